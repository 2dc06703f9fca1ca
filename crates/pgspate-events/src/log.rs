//! The events of a batch, packed: what folding reads, and what is gone back to after a refusal.
//!
//! A value is a span of one buffer. Rows are as wide as the table was when they were added, in the
//! table's order of columns, so that an event costs its bytes and eight more for each column.

use super::event::{ChangeKind, EventValue};
use crate::{Error, ErrorKind, Result, EventPlace};

/// Longest text of one batch: spans are of 32 bits.
const BYTES_MAX: usize = u32::MAX as usize - 2;

/// What an event says of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedValue<'a> {
    /// Nothing.
    Absent,
    /// It is NULL.
    Null,
    /// It is this.
    Text(&'a [u8]),
}

#[derive(Debug, Clone, Copy)]
struct Span {
    at: u32,
    len: u32,
}

const ABSENT: u32 = u32::MAX;
const NULL: u32 = u32::MAX - 1;

/// Where the cells of a row begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedRow(u32);

/// One of an event's two rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowImage {
    /// As it is after the event; what is absent there as it was before.
    New,
    /// As it was before the event; what is absent there as it is after.
    Old,
}

/// An event.
#[derive(Debug, Clone)]
pub struct LoggedEvent {
    /// Which of the tables.
    pub table: usize,
    /// What became of the row.
    pub op: ChangeKind,
    /// The row as it is after the event.
    pub new: Option<LoggedRow>,
    /// The row, or its key, as it was before.
    pub old: Option<LoggedRow>,
    /// Cells of each row.
    pub width: u16,
    /// The new row has all that the stream ever says of such a row.
    pub is_complete: bool,
    /// A transaction of the source ends with it, as far as its events are here.
    pub ends: bool,
    /// Where it stands in its source.
    pub event_place: EventPlace,
    /// How many events of the stream there are before it.
    pub ordinal: u64,
}

/// The events of a batch, in their order.
#[derive(Debug, Default)]
pub struct EventLog {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    changes: Vec<LoggedEvent>,
}

impl EventLog {
    /// Adds a row of `width` cells of which `values` says those at the places that `columns` gives;
    /// `None` there is passed over.
    pub fn row(
        &mut self,
        width: usize,
        columns: &[Option<u16>],
        values: &[EventValue],
    ) -> Result<LoggedRow> {
        let start = self.spans.len();
        self.spans.resize(start + width, Span { at: 0, len: ABSENT });
        for (column, value) in columns.iter().zip(values) {
            let Some(column) = column else { continue };
            let span = match value {
                EventValue::Absent => continue,
                EventValue::Null => Span { at: 0, len: NULL },
                EventValue::Text(text) => {
                    let at = self.bytes.len();
                    if at + text.len() > BYTES_MAX {
                        return Err(Error::new(
                            ErrorKind::Format,
                            "a batch has more than 4 GiB of text",
                        )
                        .hint("Take smaller batches with `--batch-bytes`."));
                    }
                    self.bytes.extend_from_slice(text.as_bytes());
                    Span { at: at as u32, len: text.len() as u32 }
                }
            };
            self.spans[start + usize::from(*column)] = span;
        }
        Ok(LoggedRow(start as u32))
    }

    /// Adds an event whose rows were added.
    pub fn push(&mut self, change: LoggedEvent) {
        self.changes.push(change);
    }

    /// A transaction of the source has ended, of which the last events need not be here.
    pub fn end_transaction(&mut self) {
        if let Some(last) = self.changes.last_mut() {
            last.ends = true;
        }
    }

    /// Gives back the last row that was added, which belongs to no event.
    pub fn forget(&mut self, row: LoggedRow) {
        self.spans.truncate(row.0 as usize);
    }

    /// Gives back the last event with its rows.
    pub fn take_back(&mut self) {
        let Some(change) = self.changes.pop() else { return };
        for row in [change.new, change.old].into_iter().flatten() {
            let start = (row.0 as usize).min(self.spans.len());
            self.spans.truncate(start);
        }
    }

    /// The events.
    pub fn changes(&self) -> &[LoggedEvent] {
        &self.changes
    }

    /// Bytes of memory that the events take.
    pub fn held_bytes(&self) -> u64 {
        let fixed = size_of_val(&*self.spans) + size_of_val(&*self.changes);
        (self.bytes.len() + fixed) as u64
    }

    /// What a row says of a column.
    pub fn cell(&self, width: u16, row: LoggedRow, column: usize) -> LoggedValue<'_> {
        if column >= usize::from(width) {
            return LoggedValue::Absent;
        }
        let Span { at, len } = self.spans[row.0 as usize + column];
        match len {
            ABSENT => LoggedValue::Absent,
            NULL => LoggedValue::Null,
            _ => LoggedValue::Text(&self.bytes[at as usize..(at + len) as usize]),
        }
    }

    /// What one row of an event says of a column, and where it says nothing, the other one.
    pub fn either(&self, change: &LoggedEvent, which: RowImage, column: usize) -> LoggedValue<'_> {
        let (first, second) = match which {
            RowImage::New => (change.new, change.old),
            RowImage::Old => (change.old, change.new),
        };
        let cell = |row: Option<LoggedRow>| {
            row.map_or(LoggedValue::Absent, |row| self.cell(change.width, row, column))
        };
        match cell(first) {
            LoggedValue::Absent => cell(second),
            found => found,
        }
    }
}

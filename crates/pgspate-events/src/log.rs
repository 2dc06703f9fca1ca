//! The log of a batch's events, packed. Folding reads the log; the writer reads it again after a
//! refusal.
//!
//! A value is a span of one buffer. A row has one cell for each column that its table had when the
//! row was added, in the table's order. An event costs its text and eight bytes for each column.

use super::event::{ChangeKind, EventValue};
use crate::{Error, ErrorKind, EventPlace, Result};

/// The most bytes of text in one batch: offsets have 32 bits.
const BYTES_MAX: usize = u32::MAX as usize - 2;

/// A column's value in a logged row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedValue<'a> {
    /// The event does not give the column.
    Absent,
    /// NULL.
    Null,
    /// A value, as the input function of the column's type reads it.
    Text(&'a [u8]),
}

#[derive(Debug, Clone, Copy)]
struct Span {
    at: u32,
    len: u32,
}

const ABSENT: u32 = u32::MAX;
const NULL: u32 = u32::MAX - 1;

/// A row in the log: the index of its first cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedRow(u32);

/// One of an event's two row images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowImage {
    /// The row after the event.
    New,
    /// The row before the event.
    Old,
}

/// An event in the log.
#[derive(Debug, Clone)]
pub struct LoggedEvent {
    /// The index of the event's table.
    pub table: usize,
    /// The kind of change.
    pub op: ChangeKind,
    /// The row as it is after the event.
    pub new: Option<LoggedRow>,
    /// The row, or its key, as it was before the event.
    pub old: Option<LoggedRow>,
    /// The number of cells in each of the event's rows.
    pub width: u16,
    /// Whether the new row has all columns that the stream gives of such rows.
    pub is_complete: bool,
    /// Whether the event is the last event of its source transaction in this log.
    pub ends_transaction: bool,
    /// The event's place in the source.
    pub event_place: EventPlace,
    /// The number of earlier events in the stream.
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
    /// Adds a row of `width` cells. Each of `values` goes to the cell that `columns` names at the
    /// same index; values whose cell is `None` are left out.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the batch would have more than 4 GiB of text.
    pub fn add_row(
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

    /// Adds an event, after its rows.
    pub fn push(&mut self, change: LoggedEvent) {
        self.changes.push(change);
    }

    /// Marks the last event as the end of its source transaction. Later events of the transaction
    /// may have been left out of the log.
    pub fn end_transaction(&mut self) {
        if let Some(last) = self.changes.last_mut() {
            last.ends_transaction = true;
        }
    }

    /// Removes the row that was added last and belongs to no event.
    pub fn remove_last_row(&mut self, row: LoggedRow) {
        self.spans.truncate(row.0 as usize);
    }

    /// Removes the last event with its rows.
    pub fn remove_last_event(&mut self) {
        let Some(change) = self.changes.pop() else { return };
        for row in [change.new, change.old].into_iter().flatten() {
            let start = (row.0 as usize).min(self.spans.len());
            self.spans.truncate(start);
        }
    }

    /// Gives the rows of a table `width` cells, after its columns have changed. Column `n` moves to
    /// the position `places[n]`. Returns false, with nothing changed, if a row has a value for a
    /// column without a place.
    pub fn move_columns(&mut self, table: usize, places: &[Option<u16>], width: u16) -> bool {
        let (mut spans, mut changes) = (Vec::with_capacity(self.spans.len()), self.changes.clone());
        for change in &mut changes {
            let old_width = usize::from(change.width);
            for row in [&mut change.new, &mut change.old].into_iter().flatten() {
                let start = row.0 as usize;
                let cells = &self.spans[start..start + old_width];
                let at = spans.len();
                row.0 = at as u32;
                if change.table != table {
                    spans.extend_from_slice(cells);
                    continue;
                }
                spans.resize(at + usize::from(width), Span { at: 0, len: ABSENT });
                for (cell, place) in cells.iter().zip(places) {
                    match place {
                        Some(place) => spans[at + usize::from(*place)] = *cell,
                        None if cell.len == ABSENT => {}
                        None => return false,
                    }
                }
            }
            if change.table == table {
                change.width = width;
            }
        }
        (self.spans, self.changes) = (spans, changes);
        true
    }

    /// Returns the events in order.
    pub fn changes(&self) -> &[LoggedEvent] {
        &self.changes
    }

    /// Returns the memory that the events take, in bytes.
    pub fn held_bytes(&self) -> u64 {
        let fixed = size_of_val(&*self.spans) + size_of_val(&*self.changes);
        (self.bytes.len() + fixed) as u64
    }

    /// Returns a column's value in a row of `width` cells.
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

    /// Returns a column's value in one row image of an event. If the column is absent in that
    /// image, returns the column's value in the other image.
    pub fn cell_in_either(
        &self,
        change: &LoggedEvent,
        image: RowImage,
        column: usize,
    ) -> LoggedValue<'_> {
        let (first, second) = match image {
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

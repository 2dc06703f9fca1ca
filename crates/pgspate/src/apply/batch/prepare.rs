//! What is left of events, as COPY bytes for the stage.
//!
//! A row of the stage has the target's columns and three of its own: what is to become of it, which
//! columns are given, and the key from which it has come. As everywhere, a row with a value that an
//! encoder does not take is left to the server as text.

use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::apply::route::ApplyTable;
use crate::encode::{Encoded, text};
use pgspate_events::fold::{RowBase, FoldedKey, FoldedTable, LoggedKey, FoldKey, FoldedRow, fold};
use pgspate_events::log::{LoggedValue, EventLog, RowImage};

/// What becomes of a staged row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowAction {
    /// It goes.
    Goes = 0,
    /// It is updated, if it is there, and need not be there.
    Maybe = 1,
    /// It is updated, if it is there.
    Changes = 2,
    /// It is updated, or inserted if it is not there.
    Comes = 3,
    /// The same, and what it does not give has its default.
    Fresh = 4,
    /// It goes and comes again, as what others have of it must be free meanwhile.
    Frees = 5,
    /// No row, but a key that a row takes: the target must not have both this and the one before.
    Takes = 6,
}

/// Which columns the rows of a batch give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ColumnPresence {
    Never,
    Sometimes,
    Always,
}

/// The staged rows of one table.
#[derive(Debug, Default)]
pub(crate) struct EncodedTable {
    pub(crate) table: usize,
    pub(crate) encoded: Encoded,
    pub(crate) truncates: bool,
    /// Rows that go.
    pub(crate) goes: u64,
    /// Rows that come or change.
    pub(crate) comes: u64,
    /// Some of them only change what is there.
    pub(crate) has_changes: bool,
    /// Some of them come from another key, under which there may be more of them.
    pub(crate) has_moves: bool,
    /// Some of them have defaults for what they do not give.
    pub(crate) has_fresh: bool,
    /// A row takes the key of another one for certain; or may do so, as the target will tell.
    pub(crate) has_clash: bool,
    pub(crate) has_takes: bool,
    /// For each column, among the rows that come or change.
    pub(crate) given: Vec<ColumnPresence>,
    /// Rows go because they have another key now.
    pub(crate) has_left: bool,
    /// Two rows may have the same key.
    pub(crate) is_loose: bool,
    /// Updates of rows that are known not to be there.
    pub(crate) missing: u64,
    /// What comes of it depends on events to come: it is not to be cut here.
    pub(crate) is_in_suspense: bool,
}

/// Folds events and encodes what is left, for each table with anything to do.
pub(crate) fn prepare(
    log: &EventLog,
    range: Range<usize>,
    tables: &[Arc<ApplyTable>],
) -> Result<Vec<EncodedTable>> {
    let keyings: Vec<&FoldKey> = tables.iter().map(|facts| &facts.keying).collect();
    let folded = fold(log, range, &keyings)?;
    let all = folded.tables.iter().enumerate();
    Ok(all
        .filter(|(_, folded)| !folded.is_empty() || folded.missing > 0)
        .map(|(table, folded)| TableEncoder::new(log, &tables[table], folded, table).run())
        .collect())
}

struct TableEncoder<'a> {
    log: &'a EventLog,
    facts: &'a ApplyTable,
    folded: &'a FoldedTable,
    out: EncodedTable,
    /// The columns that all rows give, and those that any does.
    all: Vec<u8>,
    any: Vec<u8>,
    row: Vec<LoggedValue<'a>>,
    given: Vec<u8>,
    /// Of a table without a key: the place of the row among those of the batch.
    nth: i64,
}

impl<'a> TableEncoder<'a> {
    fn new(log: &'a EventLog, facts: &'a ApplyTable, folded: &'a FoldedTable, table: usize) -> TableEncoder<'a> {
        let bytes = facts.columns.len().div_ceil(8);
        TableEncoder {
            log,
            facts,
            folded,
            out: EncodedTable {
                table,
                truncates: folded.truncates,
                has_clash: folded.has_clash,
                has_takes: !folded.takes.is_empty(),
                is_loose: folded.is_loose,
                missing: folded.missing,
                is_in_suspense: folded.is_in_suspense(),
                ..EncodedTable::default()
            },
            all: vec![0xff; bytes],
            any: vec![0; bytes],
            row: vec![LoggedValue::Absent; facts.columns.len()],
            given: vec![0; bytes],
            nth: 0,
        }
    }

    fn run(mut self) -> EncodedTable {
        for entry in self.folded.in_order() {
            match &entry.state {
                _ if FoldedTable::is_untouched(entry) => {}
                None => self.goes(entry),
                Some(state) => self.comes(entry, state),
            }
        }
        for (from, key) in &self.folded.takes {
            self.takes(*from, *key);
        }
        for at in &self.folded.removals {
            self.whole(*at, RowImage::Old, RowAction::Goes);
        }
        for at in &self.folded.inserts {
            self.whole(*at, RowImage::New, RowAction::Comes);
        }
        let bit = |bits: &[u8], nth: usize| bits[nth / 8] >> (nth % 8) & 1 == 1;
        let given = (0..self.facts.columns.len()).map(|nth| match () {
            () if bit(&self.all, nth) && self.out.comes > 0 => ColumnPresence::Always,
            () if bit(&self.any, nth) => ColumnPresence::Sometimes,
            () => ColumnPresence::Never,
        });
        EncodedTable { given: given.collect(), ..self.out }
    }

    /// A row of nothing but the key that an event gives.
    fn take_key(&mut self, key: LoggedKey) {
        self.row.fill(LoggedValue::Absent);
        let change = &self.log.changes()[key.change as usize];
        for (column, _) in &self.facts.keying.columns {
            self.row[*column] = self.log.either(change, key.which, *column);
        }
    }

    /// A row that goes has its key alone.
    fn goes(&mut self, entry: &FoldedKey) {
        self.take_key(entry.key);
        // Of a row that goes, it says whether its events have moved on to another key.
        self.given.fill(if entry.is_left { 0xff } else { 0 });
        self.out.has_left |= entry.is_left;
        self.write(RowAction::Goes, None);
    }

    /// A key that a row takes, and the one from which it comes.
    fn takes(&mut self, from: Option<LoggedKey>, key: LoggedKey) {
        self.take_key(key);
        self.given.fill(0);
        self.write(RowAction::Takes, from.map(|from| (from.change, from.which)));
    }

    fn comes(&mut self, entry: &FoldedKey, state: &FoldedRow) {
        for (column, cell) in self.row.iter_mut().enumerate() {
            *cell = self.folded.cell(self.log, state, column);
        }
        let change = &self.log.changes()[entry.key.change as usize];
        for (column, _) in &self.facts.keying.columns {
            self.row[*column] = self.log.either(change, entry.key.which, *column);
        }
        let is_partial = self.note_given();
        let (what, from) = match state.base {
            _ if state.is_maybe => (RowAction::Maybe, None),
            // Whether it was there counts, too.
            RowBase::Moved(from) if is_partial || !state.puts => (what(state.puts), Some(from)),
            RowBase::Nothing if is_partial && state.puts => (RowAction::Fresh, None),
            _ => (what(state.puts), None),
        };
        self.out.has_changes |= what == RowAction::Changes;
        self.out.has_moves |= from.is_some();
        self.out.has_fresh |= what == RowAction::Fresh;
        self.write(what, from.map(|from| (from.change, from.which)));
    }

    /// A row of a table without a key.
    fn whole(&mut self, at: u32, which: RowImage, what: RowAction) {
        let change = &self.log.changes()[at as usize];
        for (column, cell) in self.row.iter_mut().enumerate() {
            *cell = match (which, change.old) {
                (RowImage::Old, Some(old)) => self.log.cell(change.width, old, column),
                _ => self.log.either(change, which, column),
            };
        }
        match what {
            RowAction::Goes => self.given.fill(0),
            _ => drop(self.note_given()),
        }
        self.nth = 2 * i64::from(at) + i64::from(which == RowImage::New);
        self.write(what, None);
    }

    /// Notes which columns the row gives. Whether it does not give all.
    fn note_given(&mut self) -> bool {
        self.given.fill(0);
        let mut is_partial = false;
        for (nth, cell) in self.row.iter().enumerate() {
            match cell {
                LoggedValue::Absent => is_partial = true,
                _ => self.given[nth / 8] |= 1 << (nth % 8),
            }
        }
        for (nth, byte) in self.given.iter().enumerate() {
            self.all[nth] &= byte;
            self.any[nth] |= byte;
        }
        is_partial
    }

    fn write(&mut self, what: RowAction, from: Option<(u32, RowImage)>) {
        match what {
            RowAction::Goes => self.out.goes += 1,
            RowAction::Takes => {}
            _ => self.out.comes += 1,
        }
        if self.binary(what, from).is_none() {
            self.text(what, from);
        }
    }

    /// Writes the row in binary, or nothing if an encoder does not take a value.
    fn binary(&mut self, what: RowAction, from: Option<(u32, RowImage)>) -> Option<()> {
        let encoders = self.facts.encoders.as_ref()?;
        let out = &mut self.out.encoded.binary;
        let start = out.len();
        let fields = self.row.len() + 2 + self.facts.keying.columns.len().max(1);
        out.extend_from_slice(&(fields as i16).to_be_bytes());
        let from = from.map(|(at, which)| (&self.log.changes()[at as usize], which));
        let key = self.facts.keying.columns.iter().map(|(column, _)| *column);
        for (encoder, cell) in encoders.iter().zip(&self.row) {
            if !field(encoder, *cell, out) {
                out.truncate(start);
                return None;
            }
        }
        out.extend_from_slice(&2_i32.to_be_bytes());
        out.extend_from_slice(&(what as i16).to_be_bytes());
        out.extend_from_slice(&(self.given.len() as i32).to_be_bytes());
        out.extend_from_slice(&self.given);
        for column in key {
            let cell =
                from.map_or(LoggedValue::Absent, |(change, which)| self.log.either(change, which, column));
            if !field(&encoders[column], cell, out) {
                out.truncate(start);
                return None;
            }
        }
        if !self.facts.has_key() {
            out.extend_from_slice(&8_i32.to_be_bytes());
            out.extend_from_slice(&self.nth.to_be_bytes());
        }
        self.out.encoded.binary_rows += 1;
        Some(())
    }

    fn text(&mut self, what: RowAction, from: Option<(u32, RowImage)>) {
        let out = &mut self.out.encoded.text;
        for cell in &self.row {
            text::append(bytes(*cell), out);
            out.push(b'\t');
        }
        out.extend_from_slice(&[b'0' + what as u8, b'\t']);
        out.extend_from_slice(b"\\\\x");
        for byte in &self.given {
            out.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        for (column, _) in &self.facts.keying.columns {
            out.push(b'\t');
            let cell = from.map_or(LoggedValue::Absent, |(at, which)| {
                self.log.either(&self.log.changes()[at as usize], which, *column)
            });
            text::append(bytes(cell), out);
        }
        if !self.facts.has_key() {
            out.extend_from_slice(format!("\t{}", self.nth).as_bytes());
        }
        out.push(b'\n');
        let nth = self.out.encoded.binary_rows + self.out.encoded.text_rows.len() as u64;
        self.out.encoded.text_rows.push(nth);
    }
}

fn what(puts: bool) -> RowAction {
    if puts { RowAction::Comes } else { RowAction::Changes }
}

fn bytes(cell: LoggedValue<'_>) -> Option<&[u8]> {
    match cell {
        LoggedValue::Text(value) => Some(value),
        LoggedValue::Absent | LoggedValue::Null => None,
    }
}

#[inline]
fn field(encoder: &crate::encode::field::FieldEncoder, cell: LoggedValue<'_>, out: &mut Vec<u8>) -> bool {
    match cell {
        LoggedValue::Text(value) => encoder.encode(value, out),
        LoggedValue::Absent | LoggedValue::Null => {
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            true
        }
    }
}

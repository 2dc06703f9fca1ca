//! Encodes the folded rows of events as COPY data for the stage.
//!
//! A row of the stage has the target's columns and three more: the action, the columns that are
//! given, and the old key. A row with a value that an encoder refuses is sent as text, so that the
//! server decides.

use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::apply::route::ApplyTable;
use crate::encode::{Encoded, text};
use pgspate_events::fold::{FoldKey, FoldedKey, FoldedRow, FoldedTable, LoggedKey, RowBase, fold};
use pgspate_events::log::{EventLog, LoggedValue, RowImage};

/// What to do with a staged row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowAction {
    /// Delete the row.
    Delete = 0,
    /// Update the row if it exists. A missing row does not count as missing.
    UpdateIfPresent = 1,
    /// Update the row if it exists. A missing row counts as missing.
    Update = 2,
    /// Update the row, or insert it if it is absent.
    Upsert = 3,
    /// Update the row, or insert it if it is absent. Absent columns get their defaults.
    UpsertWithDefaults = 4,
    /// Delete and re-insert the row, so that other rows can take its unique values.
    Reinsert = 5,
    /// No row: a key that a row takes. It is an error if the target has both this key and the row's
    /// old key.
    ClaimKey = 6,
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
    pub(crate) copy_data: Encoded,
    pub(crate) truncates: bool,
    /// The number of deleted rows.
    pub(crate) deletes: u64,
    /// The number of rows that are inserted or updated.
    pub(crate) upserts: u64,
    /// Whether any row must exist to be updated.
    pub(crate) has_updates: bool,
    /// Whether any row is inserted if it is absent.
    pub(crate) has_inserts: bool,
    /// Whether any row has a new key, and the target's row with the old key must be looked up.
    pub(crate) has_moved_rows: bool,
    /// Whether any row gets defaults for absent columns.
    pub(crate) has_defaults: bool,
    /// Whether a row certainly takes the key of another row.
    pub(crate) has_key_conflict: bool,
    /// Whether a row may take the key of another row. Only the target's rows tell.
    pub(crate) has_key_claims: bool,
    /// Which columns the inserted and updated rows give.
    pub(crate) presence: Vec<ColumnPresence>,
    /// Whether rows are deleted because they have a new key.
    pub(crate) has_moved_away: bool,
    /// Whether a row gets the key that another row had.
    pub(crate) reuses_keys: bool,
    /// Whether two staged rows may have the same key.
    pub(crate) may_repeat_keys: bool,
    /// Updates of rows that are known to be absent.
    pub(crate) missing: u64,
    /// Whether later events decide the outcome of a row. The batch must not be cut here.
    pub(crate) needs_later_events: bool,
}

/// Folds events and encodes the resulting rows, for each table with changes.
pub(crate) fn encode_folded_rows(
    log: &EventLog,
    range: Range<usize>,
    tables: &[Arc<ApplyTable>],
) -> Result<Vec<EncodedTable>> {
    let fold_keys: Vec<&FoldKey> = tables.iter().map(|facts| &facts.fold_key).collect();
    let folded = fold(log, range, &fold_keys)?;
    let all = folded.tables.iter().enumerate();
    Ok(all
        .filter(|(_, folded)| !folded.is_empty() || folded.missing > 0)
        .map(|(table, folded)| TableEncoder::new(log, &tables[table], folded, table).encode_table())
        .collect())
}

struct TableEncoder<'a> {
    log: &'a EventLog,
    facts: &'a ApplyTable,
    folded: &'a FoldedTable,
    out: EncodedTable,
    /// The columns that all rows give, as bits.
    given_by_all: Vec<u8>,
    /// The columns that any row gives, as bits.
    given_by_any: Vec<u8>,
    row: Vec<LoggedValue<'a>>,
    presence: Vec<u8>,
    /// For a table without a key: the row's number in the batch.
    nth: i64,
}

impl<'a> TableEncoder<'a> {
    fn new(
        log: &'a EventLog,
        facts: &'a ApplyTable,
        folded: &'a FoldedTable,
        table: usize,
    ) -> TableEncoder<'a> {
        let bytes = facts.columns.len().div_ceil(8);
        TableEncoder {
            log,
            facts,
            folded,
            out: EncodedTable {
                table,
                truncates: folded.truncates,
                has_key_conflict: folded.has_key_clash,
                has_key_claims: !folded.taken_keys.is_empty(),
                reuses_keys: folded.reuses_keys,
                may_repeat_keys: folded.keys_may_be_equal,
                missing: folded.missing,
                needs_later_events: folded.has_displaced_rows(),
                ..EncodedTable::default()
            },
            given_by_all: vec![0xff; bytes],
            given_by_any: vec![0; bytes],
            row: vec![LoggedValue::Absent; facts.columns.len()],
            presence: vec![0; bytes],
            nth: 0,
        }
    }

    /// Encodes all rows of the table.
    fn encode_table(mut self) -> EncodedTable {
        for entry in self.folded.keys_in_order() {
            match &entry.row {
                _ if FoldedTable::is_untouched(entry) => {}
                None => self.encode_delete(entry),
                Some(state) => self.encode_upsert(entry, state),
            }
        }
        for (from, key) in &self.folded.taken_keys {
            self.encode_key_claim(*from, *key);
        }
        for at in &self.folded.deletes {
            self.encode_whole_row(*at, RowImage::Old, RowAction::Delete);
        }
        for at in &self.folded.inserts {
            self.encode_whole_row(*at, RowImage::New, RowAction::Upsert);
        }
        let bit = |bits: &[u8], nth: usize| bits[nth / 8] >> (nth % 8) & 1 == 1;
        let presence = (0..self.facts.columns.len()).map(|nth| match () {
            () if bit(&self.given_by_all, nth) && self.out.upserts > 0 => ColumnPresence::Always,
            () if bit(&self.given_by_any, nth) => ColumnPresence::Sometimes,
            () => ColumnPresence::Never,
        });
        EncodedTable { presence: presence.collect(), ..self.out }
    }

    /// Sets the current row to the key that an event gives. All other columns are absent.
    fn set_key_only(&mut self, key: LoggedKey) {
        self.row.fill(LoggedValue::Absent);
        let change = &self.log.changes()[key.change as usize];
        for (column, _) in &self.facts.fold_key.columns {
            self.row[*column] = self.log.cell_in_either(change, key.image, *column);
        }
    }

    /// Encodes a delete. Its row has only the key.
    fn encode_delete(&mut self, entry: &FoldedKey) {
        self.set_key_only(entry.key);
        // For a delete, the presence bits tell whether the row has moved to another key.
        self.presence.fill(if entry.moved_away { 0xff } else { 0 });
        self.out.has_moved_away |= entry.moved_away;
        self.encode_row(RowAction::Delete, None);
    }

    /// Encodes a key that a row takes, and the row's old key.
    fn encode_key_claim(&mut self, from: Option<LoggedKey>, key: LoggedKey) {
        self.set_key_only(key);
        self.presence.fill(0);
        self.encode_row(RowAction::ClaimKey, from.map(|from| (from.change, from.image)));
    }

    /// Encodes a row that is inserted or updated.
    fn encode_upsert(&mut self, entry: &FoldedKey, state: &FoldedRow) {
        for (column, cell) in self.row.iter_mut().enumerate() {
            *cell = self.folded.cell(self.log, state, column);
        }
        let change = &self.log.changes()[entry.key.change as usize];
        for (column, _) in &self.facts.fold_key.columns {
            self.row[*column] = self.log.cell_in_either(change, entry.key.image, *column);
        }
        let is_partial = self.note_presence();
        let (action, from) = match state.base {
            _ if state.needs_target_row => (RowAction::UpdateIfPresent, None),
            // The old key is needed to fill absent columns, or to find out whether the row exists.
            RowBase::Moved(from) if is_partial || !state.inserts_if_absent => {
                (update_or_upsert(state.inserts_if_absent), Some(from))
            }
            RowBase::Nothing if is_partial && state.inserts_if_absent => {
                (RowAction::UpsertWithDefaults, None)
            }
            _ => (update_or_upsert(state.inserts_if_absent), None),
        };
        self.out.has_updates |= action == RowAction::Update;
        self.out.has_inserts |= state.inserts_if_absent;
        self.out.has_moved_rows |= from.is_some();
        self.out.has_defaults |= action == RowAction::UpsertWithDefaults;
        self.encode_row(action, from.map(|from| (from.change, from.image)));
    }

    /// Encodes a row of a table without a key.
    fn encode_whole_row(&mut self, at: u32, image: RowImage, action: RowAction) {
        let change = &self.log.changes()[at as usize];
        for (column, cell) in self.row.iter_mut().enumerate() {
            *cell = match (image, change.old) {
                (RowImage::Old, Some(old)) => self.log.cell(change.width, old, column),
                _ => self.log.cell_in_either(change, image, column),
            };
        }
        match action {
            RowAction::Delete => self.presence.fill(0),
            _ => drop(self.note_presence()),
        }
        self.nth = 2 * i64::from(at) + i64::from(image == RowImage::New);
        self.encode_row(action, None);
    }

    /// Notes which columns the row gives. Returns whether any column is absent.
    fn note_presence(&mut self) -> bool {
        self.presence.fill(0);
        let mut is_partial = false;
        for (nth, cell) in self.row.iter().enumerate() {
            match cell {
                LoggedValue::Absent => is_partial = true,
                _ => self.presence[nth / 8] |= 1 << (nth % 8),
            }
        }
        for (nth, byte) in self.presence.iter().enumerate() {
            self.given_by_all[nth] &= byte;
            self.given_by_any[nth] |= byte;
        }
        is_partial
    }

    /// Encodes the current row, in binary if all encoders take its values.
    fn encode_row(&mut self, action: RowAction, from: Option<(u32, RowImage)>) {
        match action {
            RowAction::Delete => self.out.deletes += 1,
            RowAction::ClaimKey => {}
            _ => self.out.upserts += 1,
        }
        if self.encode_binary(action, from).is_none() {
            self.encode_text(action, from);
        }
    }

    /// Encodes the row in binary. Returns `None` and writes nothing if an encoder refuses a value.
    fn encode_binary(&mut self, action: RowAction, from: Option<(u32, RowImage)>) -> Option<()> {
        let encoders = self.facts.encoders.as_ref()?;
        let out = &mut self.out.copy_data.binary;
        let start = out.len();
        let fields = self.row.len() + 2 + self.facts.fold_key.columns.len().max(1);
        out.extend_from_slice(&(fields as i16).to_be_bytes());
        let from = from.map(|(at, image)| (&self.log.changes()[at as usize], image));
        let key = self.facts.fold_key.columns.iter().map(|(column, _)| *column);
        for (encoder, cell) in encoders.iter().zip(&self.row) {
            if !encode_cell(encoder, *cell, out) {
                out.truncate(start);
                return None;
            }
        }
        out.extend_from_slice(&2_i32.to_be_bytes());
        out.extend_from_slice(&(action as i16).to_be_bytes());
        out.extend_from_slice(&(self.presence.len() as i32).to_be_bytes());
        out.extend_from_slice(&self.presence);
        for column in key {
            let cell = from.map_or(LoggedValue::Absent, |(change, image)| {
                self.log.cell_in_either(change, image, column)
            });
            if !encode_cell(&encoders[column], cell, out) {
                out.truncate(start);
                return None;
            }
        }
        if !self.facts.has_key() {
            out.extend_from_slice(&8_i32.to_be_bytes());
            out.extend_from_slice(&self.nth.to_be_bytes());
        }
        self.out.copy_data.binary_rows += 1;
        Some(())
    }

    /// Encodes the current row as text.
    fn encode_text(&mut self, action: RowAction, from: Option<(u32, RowImage)>) {
        let out = &mut self.out.copy_data.text;
        for cell in &self.row {
            text::append(cell_bytes(*cell), out);
            out.push(b'\t');
        }
        out.extend_from_slice(&[b'0' + action as u8, b'\t']);
        out.extend_from_slice(b"\\\\x");
        for byte in &self.presence {
            out.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        for (column, _) in &self.facts.fold_key.columns {
            out.push(b'\t');
            let cell = from.map_or(LoggedValue::Absent, |(at, image)| {
                self.log.cell_in_either(&self.log.changes()[at as usize], image, *column)
            });
            text::append(cell_bytes(cell), out);
        }
        if !self.facts.has_key() {
            out.extend_from_slice(format!("\t{}", self.nth).as_bytes());
        }
        out.push(b'\n');
        let nth = self.out.copy_data.binary_rows + self.out.copy_data.text_rows.len() as u64;
        self.out.copy_data.text_rows.push(nth);
    }
}

fn update_or_upsert(inserts_if_absent: bool) -> RowAction {
    if inserts_if_absent { RowAction::Upsert } else { RowAction::Update }
}

/// Returns the text of a value; `None` for NULL and absent values.
fn cell_bytes(cell: LoggedValue<'_>) -> Option<&[u8]> {
    match cell {
        LoggedValue::Text(value) => Some(value),
        LoggedValue::Absent | LoggedValue::Null => None,
    }
}

#[inline]
fn encode_cell(
    encoder: &crate::encode::field::FieldEncoder,
    cell: LoggedValue<'_>,
    out: &mut Vec<u8>,
) -> bool {
    match cell {
        LoggedValue::Text(value) => encoder.encode(value, out),
        LoggedValue::Absent | LoggedValue::Null => {
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            true
        }
    }
}

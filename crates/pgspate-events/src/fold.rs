//! Folds the events of a batch: for each table and key, one row to delete or one row to write.
//!
//! Folding reads the events in order and does no I/O. A column's final value is found by walking
//! back through the events of its key. An absent value is not NULL. The target's rows are not known
//! here, so each folded row names its base. The base is the target's row under the same key, the
//! target's row under the old key, or nothing.

mod identified;
mod shared_keys;

use std::collections::HashMap;

use super::event::ChangeKind;
use super::key_form::KeyForm;
use super::log::{EventLog, LoggedEvent, LoggedValue, RowImage};
use crate::{Error, ErrorKind, Result};
pub use identified::check_row_is_identified;
use shared_keys::PickedRow;

/// The key by which the events of a table are folded.
#[derive(Debug, Clone, Default)]
pub struct FoldKey {
    /// The columns of the key: their index in the table, and the form of their values. Empty for a
    /// table without a key.
    pub columns: Vec<(usize, KeyForm)>,
    /// The form of the values of each column of the table. Texts of other columns are compared.
    pub value_forms: Vec<KeyForm>,
    /// Whether the server checks the key at the end of a transaction. Two rows may share a key
    /// until then.
    pub is_deferrable: bool,
}

/// The key of a row, given by one row image of a logged event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedKey {
    /// The event's index in the log.
    pub change: u32,
    /// The row image of the event that has the key.
    pub image: RowImage,
}

/// The row whose values a folded row keeps in columns that no event gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowBase {
    /// The target's row under the same key, if there is one.
    Target,
    /// No row: absent columns get their defaults.
    Nothing,
    /// The target's row under this old key, or else the target's row under the new key.
    Moved(LoggedKey),
}

/// A row as the target must have it after the batch.
#[derive(Debug, Clone, Copy)]
pub struct FoldedRow {
    /// The index of the row's last event in `FoldedTable::links`; [`NO_EVENT`] for none.
    last_link: u32,
    /// The row that gives the columns that no event gives.
    pub base: RowBase,
    /// Whether the row is inserted if the target does not have it. If false, an absent row is
    /// counted as missing, unless `needs_target_row` is true.
    pub inserts_if_absent: bool,
    /// Whether the row is written only if the target has a row under this key.
    pub needs_target_row: bool,
    /// The event that inserted the row under a key without an earlier event; [`NO_EVENT`] for none.
    inserted_at: u32,
}

impl FoldedRow {
    /// The target's row under the key, if there is one, unchanged.
    const AS_IS: FoldedRow = FoldedRow {
        last_link: NO_EVENT,
        base: RowBase::Target,
        inserts_if_absent: false,
        needs_target_row: false,
        inserted_at: NO_EVENT,
    };

    /// Returns whether no event has changed the row.
    fn is_as_is(&self) -> bool {
        self.last_link == NO_EVENT && self.base == RowBase::Target
    }
}

/// The outcome of all events of one key.
#[derive(Debug, Clone, Copy)]
pub struct FoldedKey {
    /// The key.
    pub key: LoggedKey,
    /// The row under this key, or `None` if there is none in the end.
    pub row: Option<FoldedRow>,
    /// Whether the last event of the key gave the row another key.
    pub moved_away: bool,
    /// Whether a row had this key at some time and left it: it was deleted or got another key.
    was_left: bool,
}

/// An event of a row, linked to the previous event of the same row.
#[derive(Debug, Clone, Copy)]
struct EventLink {
    /// The event's index in the log.
    change: u32,
    /// The index of the previous event's link, or [`NO_EVENT`].
    before: u32,
}

/// Stands for no event and no link.
const NO_EVENT: u32 = u32::MAX;

/// Up to this many keys are not sorted, because few of them are neighbours in the index. Measured
/// on a table of 200,000 rows: sorting costs 3 % of the time for 1,000 keys, nothing for 2,000, and
/// saves time from 4,000 keys on.
const UNSORTED_MAX: usize = 1000;

/// The outcome of all events of one table.
#[derive(Debug, Default)]
pub struct FoldedTable {
    /// Whether the table is truncated before anything is written.
    pub truncates: bool,
    entries: Vec<FoldedKey>,
    /// Events that insert a row into a table without a key, in order, as indexes in the log.
    pub inserts: Vec<u32>,
    /// Events that delete one row of a table without a key, as indexes in the log.
    pub deletes: Vec<u32>,
    /// The number of updates whose row is known to be absent.
    pub missing: u64,
    /// Whether the server may find two differently spelled keys equal.
    pub keys_may_be_equal: bool,
    /// Whether a row got the key that another row had before. The target's row under this key is
    /// updated, as if it were the same row.
    pub reuses_keys: bool,
    /// Whether an event that is a whole transaction gave a row the key of another row.
    pub has_key_clash: bool,
    /// Old and new keys of rows whose key an event changed that is a whole transaction. Another row
    /// may have the new key: the server is asked whether rows exist under the old and the new key.
    /// The old key is `None` for a row that does not depend on the target.
    pub taken_keys: Vec<(Option<LoggedKey>, LoggedKey)>,
    links: Vec<EventLink>,
    /// The index of each key in `entries`, by the key's bytes.
    entry_by_key: HashMap<Box<[u8]>, u32>,
    /// Rows that share a key with a newer row within the transaction, oldest first, by the key's
    /// index in `entries`. They must leave the key before the transaction ends.
    waiting: HashMap<u32, Vec<FoldedRow>>,
    /// Whether the open transaction has inserted a row under a deferrable key that another row may
    /// have.
    has_open_insert: bool,
    /// Ranges of events that must be folded together: the first and the last event.
    joined_ranges: Vec<(usize, usize)>,
}

/// The outcome of a range of events, by table.
#[derive(Debug, Default)]
pub struct FoldedTables {
    /// The tables, in the order of [`LoggedEvent::table`].
    pub tables: Vec<FoldedTable>,
}

/// Folds a range of the log's events. `fold_keys` are in the order of [`LoggedEvent::table`].
///
/// # Errors
/// [`ErrorKind::Format`] for an event without a whole key; [`check_row_is_identified`] refuses such
/// events earlier.
pub fn fold(
    log: &EventLog,
    range: std::ops::Range<usize>,
    fold_keys: &[&FoldKey],
) -> Result<FoldedTables> {
    fold_with(log, range, fold_keys, |_, _| {})
}

/// Returns the indexes within the range at which a batch may end. No event after such an index is
/// about a row that an event before the index has displaced from its key.
pub fn find_cuts(
    log: &EventLog,
    range: std::ops::Range<usize>,
    fold_keys: &[&FoldKey],
) -> Result<Vec<usize>> {
    let mut cuts = Vec::new();
    let truncates =
        |at: usize| log.changes().get(at).is_some_and(|it| it.op == ChangeKind::Truncate);
    let folded = fold_with(log, range, fold_keys, |at, tables| {
        // Tables that one statement truncates may have foreign keys to each other.
        let is_one_statement = truncates(at) && truncates(at + 1);
        if !is_one_statement && tables.iter().all(|table| table.waiting.is_empty()) {
            cuts.push(at + 1);
        }
    })?;
    for (first, last) in folded.tables.iter().flat_map(|table| &table.joined_ranges) {
        let within = cuts.partition_point(|cut| cut <= first);
        let after = cuts.partition_point(|cut| cut <= last);
        cuts.drain(within..after);
    }
    Ok(cuts)
}

/// Folds a range of events, and calls `after` with each event's index and the tables.
fn fold_with(
    log: &EventLog,
    range: std::ops::Range<usize>,
    fold_keys: &[&FoldKey],
    mut after: impl FnMut(usize, &[FoldedTable]),
) -> Result<FoldedTables> {
    let mut folded = FoldedTables::default();
    folded.tables.resize_with(fold_keys.len(), FoldedTable::default);
    let mut scratch = KeyBuffers::default();
    let mut transaction_start = range.start as u32;
    for at in range {
        let change = &log.changes()[at];
        let fold_key = fold_keys[change.table];
        let table = &mut folded.tables[change.table];
        let mut folder =
            EventFolder { log, fold_key, table, event_index: at as u32, transaction_start };
        folder.fold_event(change, &mut scratch)?;
        if change.ends_transaction {
            transaction_start = at as u32 + 1;
            folded.tables.iter_mut().for_each(FoldedTable::end_transaction);
        }
        after(at, &folded.tables);
    }
    Ok(folded)
}

/// Buffers for the keys of one event, reused for all events.
#[derive(Default)]
struct KeyBuffers {
    key: Vec<u8>,
    old_key: Vec<u8>,
}

/// Folds one event into its table.
struct EventFolder<'a> {
    log: &'a EventLog,
    fold_key: &'a FoldKey,
    table: &'a mut FoldedTable,
    event_index: u32,
    /// The index of the first event of the event's transaction.
    transaction_start: u32,
}

impl EventFolder<'_> {
    /// Folds the event into its table.
    fn fold_event(&mut self, change: &LoggedEvent, scratch: &mut KeyBuffers) -> Result<()> {
        if change.op == ChangeKind::Truncate {
            let FoldedTable { keys_may_be_equal, missing, has_key_clash, .. } = *self.table;
            let taken_keys = std::mem::take(&mut self.table.taken_keys);
            let kept = FoldedTable {
                keys_may_be_equal,
                missing,
                has_key_clash,
                taken_keys,
                ..Default::default()
            };
            *self.table = FoldedTable { truncates: true, ..kept };
            return Ok(());
        }
        if self.fold_key.columns.is_empty() {
            if change.op == ChangeKind::Update && self.changes_nothing(change) {
                return Ok(());
            }
            if matches!(change.op, ChangeKind::Delete | ChangeKind::Update) {
                self.table.deletes.push(self.event_index);
            }
            if change.op != ChangeKind::Delete {
                self.table.inserts.push(self.event_index);
            }
            return Ok(());
        }
        match change.op {
            ChangeKind::Insert | ChangeKind::Snapshot => {
                self.write_key(change, RowImage::New, &mut scratch.key)?;
                self.insert(change, &scratch.key);
            }
            ChangeKind::Delete => {
                self.write_key(change, RowImage::Old, &mut scratch.key)?;
                self.delete(change, &scratch.key);
            }
            ChangeKind::Update | ChangeKind::Truncate => {
                self.write_key(change, RowImage::New, &mut scratch.key)?;
                let moves = change.old.is_some() && {
                    self.write_key(change, RowImage::Old, &mut scratch.old_key)?;
                    scratch.old_key != scratch.key
                };
                match moves {
                    true => self.move_row(change, &scratch.old_key, &scratch.key),
                    false => self.update(change, &scratch.key),
                }
            }
        }
        Ok(())
    }

    /// Writes the canonical form of a row image's key.
    fn write_key(
        &mut self,
        change: &LoggedEvent,
        image: RowImage,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.clear();
        for (column, key_form) in &self.fold_key.columns {
            let LoggedValue::Text(value) = self.log.cell_in_either(change, image, *column) else {
                let message = "the event does not have all columns of the key";
                return Err(Error::new(ErrorKind::Format, message));
            };
            self.table.keys_may_be_equal |= !key_form.append(value, out);
        }
        Ok(())
    }

    /// Returns the index of a key's entry, and whether the events so far determine the row under
    /// the key. The events do so if the key has an entry already, or if the table was truncated.
    fn find_or_add_entry(&mut self, key: &[u8], image: RowImage) -> (usize, bool) {
        if let Some(found) = self.table.entry_by_key.get(key) {
            return (*found as usize, true);
        }
        let entry_index = self.table.entries.len();
        let key_at = LoggedKey { change: self.event_index, image };
        self.table.entries.push(FoldedKey {
            key: key_at,
            row: None,
            moved_away: false,
            was_left: false,
        });
        self.table.entry_by_key.insert(key.into(), entry_index as u32);
        (entry_index, self.table.truncates)
    }

    /// Links the event to the previous event of its row. A complete event needs no previous event.
    fn link_event(&mut self, before: u32) -> u32 {
        let is_complete = self.log.changes()[self.event_index as usize].is_complete;
        let before = if is_complete { NO_EVENT } else { before };
        self.table.links.push(EventLink { change: self.event_index, before });
        (self.table.links.len() - 1) as u32
    }

    /// Inserts or replaces the row of a key.
    fn insert(&mut self, change: &LoggedEvent, key: &[u8]) {
        let (entry_index, is_known) = self.find_or_add_entry(key, RowImage::New);
        let shares_key = self.fold_key.is_deferrable
            && change.op == ChangeKind::Insert
            && !change.ends_transaction;
        let before = self.table.entries[entry_index].row;
        let folded_row = match before {
            Some(folded_row) => FoldedRow {
                last_link: self.link_event(folded_row.last_link),
                inserts_if_absent: true,
                ..folded_row
            },
            None => {
                let base = if is_known { RowBase::Nothing } else { RowBase::Target };
                let inserted_at = if is_known || change.op != ChangeKind::Insert {
                    NO_EVENT
                } else {
                    self.event_index
                };
                FoldedRow {
                    last_link: self.link_event(NO_EVENT),
                    base,
                    inserts_if_absent: true,
                    needs_target_row: false,
                    inserted_at,
                }
            }
        };
        let mut folded_row = FoldedRow { needs_target_row: false, ..folded_row };
        self.table.reuses_keys |= self.table.entries[entry_index].was_left;
        match before {
            Some(before) if shares_key => {
                self.keep_waiting(entry_index, before);
                folded_row.inserted_at = NO_EVENT;
            }
            _ => self.table.has_open_insert |= shares_key && !is_known,
        }
        self.table.entries[entry_index].row = Some(folded_row);
    }

    /// Deletes the row of a key.
    fn delete(&mut self, change: &LoggedEvent, key: &[u8]) {
        let (entry_index, _) = self.find_or_add_entry(key, RowImage::Old);
        match self.pick_row(change, entry_index) {
            PickedRow::Waiting(row) => drop(self.take_waiting(entry_index, row)),
            // The delete stays even if events of this batch inserted the row: the target may have a
            // row under the key, too.
            PickedRow::Last => drop(self.take_last(change, entry_index)),
        }
    }

    /// Updates the row of a key.
    fn update(&mut self, change: &LoggedEvent, key: &[u8]) {
        let (entry_index, is_known) = self.find_or_add_entry(key, RowImage::New);
        self.update_entry(change, entry_index, is_known);
    }

    /// Updates the row of an entry. `is_known` is what [`Self::find_or_add_entry`] returned.
    fn update_entry(&mut self, change: &LoggedEvent, entry_index: usize, is_known: bool) {
        let inserts_if_absent = change.is_complete;
        if let PickedRow::Waiting(row) = self.pick_row(change, entry_index) {
            self.update_waiting(entry_index, row, inserts_if_absent);
            return;
        }
        let folded_row = match self.table.entries[entry_index].row {
            Some(folded_row) => {
                let (inserts_if_absent, needs_target_row) = (
                    folded_row.inserts_if_absent || inserts_if_absent,
                    folded_row.needs_target_row && !inserts_if_absent,
                );
                FoldedRow {
                    last_link: self.link_event(folded_row.last_link),
                    inserts_if_absent,
                    needs_target_row,
                    ..folded_row
                }
            }
            None if is_known && !inserts_if_absent => {
                self.table.missing += 1;
                return;
            }
            None => {
                let base = if is_known { RowBase::Nothing } else { RowBase::Target };
                FoldedRow {
                    last_link: self.link_event(NO_EVENT),
                    base,
                    inserts_if_absent,
                    ..FoldedRow::AS_IS
                }
            }
        };
        self.table.reuses_keys |= self.table.entries[entry_index].was_left;
        self.table.entries[entry_index].row = Some(folded_row);
    }

    /// Gives the row of one key another key.
    fn move_row(&mut self, change: &LoggedEvent, from: &[u8], to: &[u8]) {
        let inserts_if_absent = change.is_complete;
        let (source, is_known) = self.find_or_add_entry(from, RowImage::Old);
        let moving = match self.pick_row(change, source) {
            PickedRow::Waiting(row) => Some(self.take_waiting(source, row)),
            PickedRow::Last => {
                let moving = self.take_last(change, source);
                self.table.entries[source].moved_away = self.table.entries[source].row.is_none();
                moving
            }
        };
        let was_there = moving.is_some() || !is_known;
        if !was_there && !inserts_if_absent {
            // If the stream is read again, the row may have its new key already.
            let (target, is_known) = self.find_or_add_entry(to, RowImage::New);
            let is_gone = self.table.entries[target].row.is_none() && is_known;
            match is_gone {
                true => self.table.missing += 1,
                false => self.update_entry(change, target, is_known),
            }
            return;
        }
        let key_from = LoggedKey { change: self.event_index, image: RowImage::Old };
        let folded_row = match moving {
            Some(folded_row) => {
                let base = match folded_row.base {
                    RowBase::Target => RowBase::Moved(key_from),
                    other => other,
                };
                let inserts_if_absent = folded_row.inserts_if_absent || inserts_if_absent;
                FoldedRow {
                    last_link: self.link_event(folded_row.last_link),
                    base,
                    inserts_if_absent,
                    ..FoldedRow::AS_IS
                }
            }
            None => {
                let base = if was_there { RowBase::Moved(key_from) } else { RowBase::Nothing };
                FoldedRow {
                    last_link: self.link_event(NO_EVENT),
                    base,
                    inserts_if_absent,
                    ..FoldedRow::AS_IS
                }
            }
        };
        let (target, is_known) = self.find_or_add_entry(to, RowImage::New);
        let key_to = LoggedKey { change: self.event_index, image: RowImage::New };
        if was_there {
            self.displace_occupant(change, folded_row.base, key_to, target, is_known);
        }
        self.table.reuses_keys |= self.table.entries[target].was_left;
        // The row's key is spelled as this event spells it.
        self.table.entries[target].key = key_to;
        self.table.entries[target].row = Some(folded_row);
    }

    /// Returns whether an update of a table without a key leaves the row as it was.
    fn changes_nothing(&self, change: &LoggedEvent) -> bool {
        let cell = |image, column| self.log.cell_in_either(change, image, column);
        (0..usize::from(change.width))
            .all(|column| cell(RowImage::New, column) == cell(RowImage::Old, column))
    }
}

impl FoldedTable {
    /// Returns the keys: a few in the order of their events, many in the order of their bytes.
    /// Neighbours in that order are neighbours in the index, which saves the server a quarter of
    /// its time.
    pub fn keys_in_order(&self) -> Vec<&FoldedKey> {
        if self.entries.len() <= UNSORTED_MAX {
            return self.entries.iter().collect();
        }
        let mut sorted: Vec<(&[u8], u32)> =
            self.entry_by_key.iter().map(|(key, entry_index)| (&**key, *entry_index)).collect();
        sorted.sort_unstable();
        sorted.into_iter().map(|(_, entry_index)| &self.entries[entry_index as usize]).collect()
    }

    /// Returns whether the events leave the target's row under this key as it is.
    pub fn is_untouched(entry: &FoldedKey) -> bool {
        entry.row.is_some_and(|folded_row| folded_row.is_as_is())
    }

    /// Returns a row's final value in a column, or [`LoggedValue::Absent`] if no event gives one.
    pub fn cell<'a>(
        &self,
        log: &'a EventLog,
        folded_row: &FoldedRow,
        column: usize,
    ) -> LoggedValue<'a> {
        let mut at = folded_row.last_link;
        while at != NO_EVENT {
            let link = self.links[at as usize];
            let change = &log.changes()[link.change as usize];
            if let Some(row) = change.new {
                let cell = log.cell(change.width, row, column);
                if cell != LoggedValue::Absent {
                    return cell;
                }
            }
            at = link.before;
        }
        LoggedValue::Absent
    }

    /// Returns whether a later event may be about a row that another row has displaced from its
    /// key.
    pub fn has_displaced_rows(&self) -> bool {
        self.has_open_insert || !self.waiting.is_empty()
    }

    /// Forgets the rows that waited to leave their key in the transaction that has ended.
    fn end_transaction(&mut self) {
        self.has_open_insert = false;
        self.waiting.clear();
    }

    /// Returns whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        !self.truncates
            && self.entries.is_empty()
            && self.inserts.is_empty()
            && self.deletes.is_empty()
    }
}

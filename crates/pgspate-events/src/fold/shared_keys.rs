//! Rows that share a key within a transaction, and the choice of the row that an event is about.
//!
//! Some sources have a deferrable key, or check keys at the end of a statement. In such a source, a
//! row may get the key of another row before the other row leaves the key. Then an event is about
//! the row that equals the event's old row. If two rows are equal in all columns, the choice does
//! not change the outcome. If an event has only the key of its old row, the oldest row under the
//! key leaves first.

use super::{EventFolder, FoldedRow, LoggedKey, NO_EVENT, RowBase};
use crate::log::{LoggedEvent, LoggedValue, RowImage};

/// The row that an event is about, among the rows that share a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PickedRow {
    /// The newest row under the key, or the only one.
    Last,
    /// An older row: its index among the key's waiting rows.
    Waiting(usize),
}

/// Whether a row equals the old row of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowMatch {
    Not,
    /// The row equals the old row in all columns that earlier events give, but at least one column
    /// is unknown or spelled otherwise.
    Perhaps,
    Yes,
}

impl EventFolder<'_> {
    /// Returns the row under a key that an event is about.
    pub(super) fn pick_row(&mut self, change: &LoggedEvent, entry_index: usize) -> PickedRow {
        let Some(last) = self.table.entries[entry_index].row else { return PickedRow::Last };
        let hides_target_row = self.may_hide_target_row(&last, entry_index);
        if !hides_target_row && !self.table.waiting.contains_key(&(entry_index as u32)) {
            return PickedRow::Last;
        }
        let has_old_values = has_old_values_except_key(self, change);
        let row_match = self.match_old_row(change, &last);
        if has_old_values && row_match == RowMatch::Not && hides_target_row {
            self.note_joined_range(&last);
            self.keep_waiting(entry_index, FoldedRow::AS_IS);
            if let Some(last) = &mut self.table.entries[entry_index].row {
                last.inserted_at = NO_EVENT;
            }
        }
        let Some(waiting) = self.table.waiting.get(&(entry_index as u32)) else {
            return PickedRow::Last;
        };
        if !has_old_values {
            // The target need not have a row under the key: see `take_last`.
            let is_there = waiting.first().is_some_and(|row| !row.is_as_is());
            return if is_there { PickedRow::Waiting(0) } else { PickedRow::Last };
        }
        let fits: Vec<RowMatch> =
            waiting.iter().map(|row| self.match_old_row(change, row)).collect();
        let first = |wanted: RowMatch| fits.iter().position(|found| *found == wanted);
        match (first(RowMatch::Yes), row_match, first(RowMatch::Perhaps)) {
            (Some(row), _, _) => PickedRow::Waiting(row),
            (None, RowMatch::Yes, _) => PickedRow::Last,
            (None, _, Some(row)) => PickedRow::Waiting(row),
            (None, _, None) => PickedRow::Last,
        }
    }

    /// Takes an older row away from a key.
    pub(super) fn take_waiting(&mut self, entry_index: usize, row: usize) -> FoldedRow {
        let at = entry_index as u32;
        self.table.reuses_keys = true;
        let Some(rows) = self.table.waiting.get_mut(&at) else { return FoldedRow::AS_IS };
        let taken = rows.remove(row);
        if rows.is_empty() {
            self.table.waiting.remove(&at);
        }
        if let (RowBase::Target, Some(last)) =
            (taken.base, &mut self.table.entries[entry_index].row)
            && last.base == RowBase::Target
        {
            // The target's row under the key was the taken row.
            last.base = RowBase::Nothing;
        }
        taken
    }

    /// Takes the newest row away from a key. The next older row becomes the newest row.
    pub(super) fn take_last(
        &mut self,
        change: &LoggedEvent,
        entry_index: usize,
    ) -> Option<FoldedRow> {
        let last = self.table.entries[entry_index].row.take();
        self.table.entries[entry_index].moved_away = false;
        self.table.entries[entry_index].was_left = true;
        let has_old_values = has_old_values_except_key(self, change);
        let at = entry_index as u32;
        let before = match self.table.waiting.get_mut(&at) {
            Some(rows) => rows.pop(),
            None => {
                let beside = last.filter(|last| {
                    (has_old_values || self.fold_key.is_deferrable)
                        && self.may_hide_target_row(last, entry_index)
                });
                beside.map(|last| {
                    if self.fold_key.is_deferrable {
                        self.note_joined_range(&last);
                    }
                    FoldedRow::AS_IS
                })
            }
        };
        if self.table.waiting.get(&at).is_some_and(Vec::is_empty) {
            self.table.waiting.remove(&at);
        }
        let before = match (before, last) {
            // If the target has a row under the key, the event was about that row; the newest row
            // stays.
            (Some(before), Some(last)) if before.is_as_is() && !has_old_values => Some(FoldedRow {
                base: RowBase::Target,
                inserts_if_absent: false,
                needs_target_row: true,
                ..last
            }),
            (before, _) => before,
        };
        self.table.entries[entry_index].row = before;
        last
    }

    /// Adds an event to an older row under a key.
    pub(super) fn update_waiting(
        &mut self,
        entry_index: usize,
        row: usize,
        inserts_if_absent: bool,
    ) {
        let at = entry_index as u32;
        let Some(before) = self.table.waiting.get(&at).map(|rows| rows[row]) else { return };
        let last_link = self.link_event(before.last_link);
        if let Some(rows) = self.table.waiting.get_mut(&at) {
            rows[row] = FoldedRow {
                last_link,
                inserts_if_absent: before.inserts_if_absent || inserts_if_absent,
                ..before
            };
        }
    }

    /// Makes room for a row that gets the key of an entry. A row that has the key now becomes a
    /// waiting row. If the event ends its transaction, no row can leave the key later: then the
    /// clash, or the key that must be free in the target, is only noted.
    pub(super) fn displace_occupant(
        &mut self,
        change: &LoggedEvent,
        base: RowBase,
        key: LoggedKey,
        entry_index: usize,
        is_known: bool,
    ) {
        if !self.fold_key.is_deferrable && !has_old_values_except_key(self, change) {
            // The key is not deferrable, and the source does not send whole old rows. Such a source
            // checks the key at each row, so a row never gets a key that another row has.
            return;
        }
        let occupant = self.table.entries[entry_index].row;
        if change.ends_transaction {
            let before = (self.event_index as usize).checked_sub(1);
            let is_alone = before.is_none_or(|before| self.log.changes()[before].ends_transaction);
            match occupant {
                _ if !is_alone => {}
                Some(_) => self.table.has_key_clash = true,
                None if is_known => {}
                None => {
                    let from = match base {
                        RowBase::Moved(from) => Some(from),
                        RowBase::Target | RowBase::Nothing => None,
                    };
                    self.table.taken_keys.push((from, key));
                }
            }
            return;
        }
        if let Some(row) = occupant {
            self.keep_waiting(entry_index, row);
        } else if !is_known {
            self.keep_waiting(entry_index, FoldedRow::AS_IS);
        }
    }

    /// Adds a row to the waiting rows of its key, because a newer row gets the key. If the row
    /// itself was inserted beside a row that the target may have, the target's row is added first.
    pub(super) fn keep_waiting(&mut self, entry_index: usize, row: FoldedRow) {
        // Whether the target has a row under the key is known when an event takes it away.
        self.table.reuses_keys |= !row.is_as_is();
        let hides_target_row = self.may_hide_target_row(&row, entry_index);
        let waiting = self.table.waiting.entry(entry_index as u32).or_default();
        if hides_target_row {
            waiting.push(FoldedRow::AS_IS);
        }
        waiting.push(FoldedRow { inserted_at: NO_EVENT, ..row });
    }

    /// Returns whether a row was inserted in this transaction, while the target may have another
    /// row with the same key.
    fn may_hide_target_row(&self, row: &FoldedRow, entry_index: usize) -> bool {
        let is_inserted = row.inserted_at != NO_EVENT && row.inserted_at >= self.transaction_start;
        is_inserted && !self.table.waiting.contains_key(&(entry_index as u32))
    }

    fn note_joined_range(&mut self, row: &FoldedRow) {
        self.table.joined_ranges.push((row.inserted_at as usize, self.event_index as usize));
    }

    /// Compares a row with the old row of an event, except for the key.
    fn match_old_row(&self, change: &LoggedEvent, row: &FoldedRow) -> RowMatch {
        let mut row_match = RowMatch::Yes;
        for (column, said) in old_values_except_key(self, change) {
            match self.known_value(row, column) {
                LoggedValue::Absent => row_match = RowMatch::Perhaps,
                has if has == said => {}
                has if self.is_same_value(column, has, said) => row_match = RowMatch::Perhaps,
                _ => return RowMatch::Not,
            }
        }
        row_match
    }

    /// Returns whether two texts are spellings of the same value of a column.
    fn is_same_value(&self, column: usize, left: LoggedValue<'_>, right: LoggedValue<'_>) -> bool {
        let (LoggedValue::Text(left), LoggedValue::Text(right)) = (left, right) else {
            return false;
        };
        self.fold_key.value_forms.get(column).is_some_and(|form| {
            let [mut left_form, mut right_form] = [Vec::new(), Vec::new()];
            form.append(left, &mut left_form);
            form.append(right, &mut right_form);
            left_form == right_form
        })
    }

    /// Returns a row's value in a column, if any event gives it in its new or its old row.
    fn known_value(&self, row: &FoldedRow, column: usize) -> LoggedValue<'_> {
        let mut at = row.last_link;
        while at != NO_EVENT {
            let link = self.table.links[at as usize];
            let change = &self.log.changes()[link.change as usize];
            let cell = self.log.cell_in_either(change, RowImage::New, column);
            if cell != LoggedValue::Absent {
                return cell;
            }
            at = link.before;
        }
        LoggedValue::Absent
    }
}

/// Returns whether an event's old row has more columns than the key.
fn has_old_values_except_key(folder: &EventFolder<'_>, change: &LoggedEvent) -> bool {
    old_values_except_key(folder, change).next().is_some()
}

/// Returns the columns of an event's old row, except for the key.
fn old_values_except_key<'a>(
    folder: &'a EventFolder<'_>,
    change: &'a LoggedEvent,
) -> impl Iterator<Item = (usize, LoggedValue<'a>)> {
    let is_key = |column| folder.fold_key.columns.iter().any(|(of_key, _)| *of_key == column);
    let columns = (0..usize::from(change.width)).filter(move |column| !is_key(*column));
    let old = change.old.into_iter();
    let cells = old.flat_map(move |row| {
        columns.clone().map(move |column| (column, folder.log.cell(change.width, row, column)))
    });
    cells.filter(|(_, cell)| *cell != LoggedValue::Absent)
}

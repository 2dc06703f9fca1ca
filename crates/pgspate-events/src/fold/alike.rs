//! Rows that share a key within a transaction, and which of them an event is about.
//!
//! A source with a deferrable key, or one that checks keys at the end of a statement, may give a
//! row the key of another one before that leaves it. An event is then about a row that is like its
//! old row. Of rows that are alike in all columns any will do, as what is left is the same, and the
//! other one stays. Where an event has the key of its old row alone, the row that was there first
//! leaves first.

use super::{RowBase, FIRST, Folding, LoggedKey, FoldedRow};
use crate::log::{LoggedValue, LoggedEvent, RowImage};

/// Which of the rows that share a key an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pick {
    /// The one that came last, or the only one.
    Last,
    /// One that was there before.
    Waiting(usize),
}

/// Whether a row is like the old row of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Not,
    /// As far as events say what it has.
    Perhaps,
    Yes,
}

impl Folding<'_> {
    /// Which row of a key an event is about.
    pub(super) fn pick(&mut self, change: &LoggedEvent, nth: usize) -> Pick {
        let Some(last) = self.table.entries[nth].state else { return Pick::Last };
        let is_beside = self.is_beside_another(&last, nth);
        if !is_beside && !self.table.waiting.contains_key(&(nth as u32)) {
            return Pick::Last;
        }
        let tells_apart = tells_rows_apart(self, change);
        let fit = self.fit(change, &last);
        if tells_apart && fit == Fit::Not && is_beside {
            self.note_span(&last);
            self.wait(nth, FoldedRow::AS_IS);
            if let Some(last) = &mut self.table.entries[nth].state {
                last.came = FIRST;
            }
        }
        let Some(waiting) = self.table.waiting.get(&(nth as u32)) else { return Pick::Last };
        if !tells_apart {
            // What the target has need not be there: see `take_last`.
            let is_there = waiting.first().is_some_and(|row| !row.is_as_is());
            return if is_there { Pick::Waiting(0) } else { Pick::Last };
        }
        let fits: Vec<Fit> = waiting.iter().map(|row| self.fit(change, row)).collect();
        let first = |wanted: Fit| fits.iter().position(|fit| *fit == wanted);
        match (first(Fit::Yes), fit, first(Fit::Perhaps)) {
            (Some(row), _, _) => Pick::Waiting(row),
            (None, Fit::Yes, _) => Pick::Last,
            (None, _, Some(row)) => Pick::Waiting(row),
            (None, _, None) => Pick::Last,
        }
    }

    /// Takes a row away that was there before the last one.
    pub(super) fn take_waiting(&mut self, nth: usize, row: usize) -> FoldedRow {
        let at = nth as u32;
        let Some(rows) = self.table.waiting.get_mut(&at) else { return FoldedRow::AS_IS };
        let taken = rows.remove(row);
        if rows.is_empty() {
            self.table.waiting.remove(&at);
        }
        if let (RowBase::Target, Some(last)) = (taken.base, &mut self.table.entries[nth].state)
            && last.base == RowBase::Target
        {
            // What the target has under the key was the other row's.
            last.base = RowBase::Nothing;
        }
        taken
    }

    /// Takes the row away that came last, so that one that was there before is the last one again.
    pub(super) fn take_last(&mut self, change: &LoggedEvent, nth: usize) -> Option<FoldedRow> {
        let last = self.table.entries[nth].state.take();
        self.table.entries[nth].is_left = false;
        let tells_apart = tells_rows_apart(self, change);
        let at = nth as u32;
        let before = match self.table.waiting.get_mut(&at) {
            Some(rows) => rows.pop(),
            None => {
                let beside = last.filter(|last| {
                    (tells_apart || self.keying.is_deferrable) && self.is_beside_another(last, nth)
                });
                beside.map(|last| {
                    if self.keying.is_deferrable {
                        self.note_span(&last);
                    }
                    FoldedRow::AS_IS
                })
            }
        };
        if self.table.waiting.get(&at).is_some_and(Vec::is_empty) {
            self.table.waiting.remove(&at);
        }
        let before = match (before, last) {
            // If the target has a row there, it was that one which left, and the last one stays.
            (Some(before), Some(last)) if before.is_as_is() && !tells_apart => {
                Some(FoldedRow { base: RowBase::Target, puts: false, is_maybe: true, ..last })
            }
            (before, _) => before,
        };
        self.table.entries[nth].state = before;
        last
    }

    /// Changes a row that was there before the last one.
    pub(super) fn update_waiting(&mut self, nth: usize, row: usize, puts: bool) {
        let at = nth as u32;
        let Some(before) = self.table.waiting.get(&at).map(|rows| rows[row]) else { return };
        let head = self.link(before.head);
        if let Some(rows) = self.table.waiting.get_mut(&at) {
            rows[row] = FoldedRow { head, puts: before.puts || puts, ..before };
        }
    }

    /// A row comes to the key of an entry, to which another row may have to wait.
    pub(super) fn arrive(
        &mut self,
        change: &LoggedEvent,
        base: RowBase,
        key: LoggedKey,
        nth: usize,
        is_known: bool,
    ) {
        if !self.keying.is_deferrable && !tells_rows_apart(self, change) {
            // Of such a source, keys change one after the other, or by way of a key that is free.
            return;
        }
        let occupant = self.table.entries[nth].state;
        if change.ends {
            let before = (self.at as usize).checked_sub(1);
            let is_alone = before.is_none_or(|before| self.log.changes()[before].ends);
            match occupant {
                _ if !is_alone => {}
                Some(_) => self.table.has_clash = true,
                None if is_known => {}
                None => {
                    let from = match base {
                        RowBase::Moved(from) => Some(from),
                        RowBase::Target | RowBase::Nothing => None,
                    };
                    self.table.takes.push((from, key));
                }
            }
            return;
        }
        if let Some(row) = occupant {
            self.wait(nth, row);
        } else if !is_known {
            self.wait(nth, FoldedRow::AS_IS);
        }
    }

    /// Notes a row that shares its key from now on with one that comes; and before that the one
    /// beside which it was inserted.
    pub(super) fn wait(&mut self, nth: usize, row: FoldedRow) {
        let is_beside = self.is_beside_another(&row, nth);
        let waiting = self.table.waiting.entry(nth as u32).or_default();
        if is_beside {
            waiting.push(FoldedRow::AS_IS);
        }
        waiting.push(FoldedRow { came: FIRST, ..row });
    }

    /// Whether a row was inserted in this transaction where the target may have another one.
    fn is_beside_another(&self, row: &FoldedRow, nth: usize) -> bool {
        let is_inserted = row.came != FIRST && row.came >= self.begin;
        is_inserted && !self.table.waiting.contains_key(&(nth as u32))
    }

    fn note_span(&mut self, row: &FoldedRow) {
        self.table.spans.push((row.came as usize, self.at as usize));
    }

    /// Whether a row is like the old row of an event, but for the key.
    fn fit(&self, change: &LoggedEvent, row: &FoldedRow) -> Fit {
        let mut fit = Fit::Yes;
        for (column, said) in old_beside_key(self, change) {
            match self.known(row, column) {
                LoggedValue::Absent => fit = Fit::Perhaps,
                has if has != said => return Fit::Not,
                _ => {}
            }
        }
        fit
    }

    /// What a row has in a column, where events say it: also those that leave it as it was.
    fn known(&self, row: &FoldedRow, column: usize) -> LoggedValue<'_> {
        let mut at = row.head;
        while at != FIRST {
            let link = self.table.links[at as usize];
            let change = &self.log.changes()[link.change as usize];
            let cell = self.log.either(change, RowImage::New, column);
            if cell != LoggedValue::Absent {
                return cell;
            }
            at = link.before;
        }
        LoggedValue::Absent
    }
}

/// Whether an event has of its old row more than the key.
fn tells_rows_apart(folding: &Folding<'_>, change: &LoggedEvent) -> bool {
    old_beside_key(folding, change).next().is_some()
}

/// What an event says of its old row, but for the key.
fn old_beside_key<'a>(
    folding: &'a Folding<'_>,
    change: &'a LoggedEvent,
) -> impl Iterator<Item = (usize, LoggedValue<'a>)> {
    let is_key = |column| folding.keying.columns.iter().any(|(of_key, _)| *of_key == column);
    let columns = (0..usize::from(change.width)).filter(move |column| !is_key(*column));
    let old = change.old.into_iter();
    let cells = old.flat_map(move |row| {
        columns.clone().map(move |column| (column, folding.log.cell(change.width, row, column)))
    });
    cells.filter(|(_, cell)| *cell != LoggedValue::Absent)
}

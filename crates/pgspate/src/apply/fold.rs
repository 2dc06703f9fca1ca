//! Events to what is left of them: for each table and key one row that goes, or one that comes.
//!
//! Folding reads the events in their order and does no I/O. What a column is to be is found by
//! walking back through the events of its key: absent is not NULL. As the state of the target is
//! not known here, a row says on what it is based: on what the target has, on nothing, or on what
//! the target has under another key, from which the row has come.

use std::collections::HashMap;

use super::canon::Canon;
use super::event::Op;
use super::log::{Cell, Change, Log, Which};
use crate::{Error, Kind, Result};

/// What folding has to know of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keying {
    /// The columns of the key; empty for a table without one.
    pub(crate) columns: Vec<(usize, Canon)>,
}

/// The key of a row: the cells of one row of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyAt {
    pub(crate) change: u32,
    pub(crate) which: Which,
}

/// On what a row is based, where its events say nothing of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// What the target has under its key, if anything.
    Target,
    /// Nothing: what is absent has its default.
    Nothing,
    /// What the target has under this key, or else under its own.
    Moved(KeyAt),
}

/// A row as it is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    /// The last of its events.
    head: u32,
    pub(crate) base: Base,
    /// It comes to be if the target has no such row. Else that is a row that is missing.
    pub(crate) puts: bool,
}

/// What is left of the events of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) key: KeyAt,
    /// `None`: there is no such row.
    pub(crate) state: Option<State>,
    /// Its row got another key, as the last that was said of it.
    pub(crate) is_left: bool,
}

/// An event of a row, and the one before it.
#[derive(Debug, Clone, Copy)]
struct Link {
    change: u32,
    before: u32,
}

const FIRST: u32 = u32::MAX;

/// Of so few keys hardly two are neighbours. Measured on a table of 200,000 rows: at 1,000 sorting
/// costs 3 % of the time, at 2,000 nothing, and from 4,000 on it pays.
const UNSORTED_MAX: usize = 1000;

/// What is left of the events of a table.
#[derive(Debug, Default)]
pub(crate) struct FoldedTable {
    /// All that was there before goes first.
    pub(crate) truncates: bool,
    entries: Vec<Entry>,
    /// Of a table without a key: rows that come, in their order.
    pub(crate) inserts: Vec<u32>,
    /// Of a table without a key: rows that go, one for each.
    pub(crate) removals: Vec<u32>,
    /// Updates of rows that are known not to be there.
    pub(crate) missing: u64,
    /// Two keys may be the same to the server.
    pub(crate) is_loose: bool,
    links: Vec<Link>,
    /// The place of each key among the entries.
    places: HashMap<Box<[u8]>, u32>,
    /// Rows that the target may have had where another one of the same transaction has come, until
    /// they go elsewhere: what there was before.
    displaced: HashMap<u32, Option<State>>,
}

/// What is left of a range of events, by table.
#[derive(Debug, Default)]
pub(crate) struct Folded {
    pub(crate) tables: Vec<FoldedTable>,
}

/// Folds events of the log.
///
/// # Errors
/// Of [`Kind::Format`]: an event without a whole key. It is refused by [`check`] before.
pub(crate) fn fold(
    log: &Log,
    range: std::ops::Range<usize>,
    keyings: &[&Keying],
) -> Result<Folded> {
    fold_with(log, range, keyings, |_, _| {})
}

/// The places within the range where it may be cut into batches: events before the place are there,
/// and none to come is about a row that another one of these has displaced.
pub(crate) fn cuts(
    log: &Log,
    range: std::ops::Range<usize>,
    keyings: &[&Keying],
) -> Result<Vec<usize>> {
    let mut cuts = Vec::new();
    let truncates = |at: usize| log.changes().get(at).is_some_and(|it| it.op == Op::Truncate);
    fold_with(log, range, keyings, |at, tables| {
        // Tables that were emptied at once may refer to each other.
        let is_one_statement = truncates(at) && truncates(at + 1);
        if !is_one_statement && !tables.iter().any(FoldedTable::is_in_suspense) {
            cuts.push(at + 1);
        }
    })?;
    Ok(cuts)
}

fn fold_with(
    log: &Log,
    range: std::ops::Range<usize>,
    keyings: &[&Keying],
    mut after: impl FnMut(usize, &[FoldedTable]),
) -> Result<Folded> {
    let mut folded = Folded::default();
    folded.tables.resize_with(keyings.len(), FoldedTable::default);
    let mut scratch = Scratch::default();
    for at in range {
        let change = &log.changes()[at];
        let keying = keyings[change.table];
        let mut folding =
            Folding { log, keying, table: &mut folded.tables[change.table], at: at as u32 };
        folding.take(change, &mut scratch)?;
        if change.ends {
            folded.tables.iter_mut().for_each(|table| table.displaced.clear());
        }
        after(at, &folded.tables);
    }
    Ok(folded)
}

/// Whether an event says which row it is about, before it is taken into a log.
pub(crate) fn check(log: &Log, change: &Change, keying: &Keying, all: &[usize]) -> Result<()> {
    let is_there = |which, column| matches!(log.either(change, which, column), Cell::Text(_));
    let refuse = |message: &str| Err(Error::new(Kind::Format, message));
    if change.op == Op::Truncate {
        return Ok(());
    }
    let is_new = matches!(change.op, Op::Insert | Op::Snapshot | Op::Update);
    if is_new && change.new.is_none() {
        return refuse("the event has no row");
    }
    if change.op == Op::Delete && change.old.is_none() && change.new.is_none() {
        return refuse("the event does not say which row is deleted");
    }
    if keying.columns.is_empty() {
        let is_whole = || {
            change.old.is_some_and(|old| {
                all.iter().all(|column| log.cell(change.width, old, *column) != Cell::Absent)
            })
        };
        if matches!(change.op, Op::Update | Op::Delete) && !is_whole() {
            let message = "the table has no primary key, and the event does not have the whole row \
                           as it was";
            return refuse(message).map_err(|error| {
                error.hint(
                    "Give the table a primary key, or have the source send whole old rows: in \
                     PostgreSQL, `alter table ... replica identity full`.",
                )
            });
        }
        return Ok(());
    }
    let which = if change.op == Op::Delete { Which::Old } else { Which::New };
    match keying.columns.iter().all(|(column, _)| is_there(which, *column)) {
        true => Ok(()),
        false => refuse("the event does not have all columns of the key"),
    }
}

/// Buffers that are used again.
#[derive(Default)]
struct Scratch {
    key: Vec<u8>,
    other: Vec<u8>,
}

/// One event and its table.
struct Folding<'a> {
    log: &'a Log,
    keying: &'a Keying,
    table: &'a mut FoldedTable,
    at: u32,
}

impl Folding<'_> {
    fn take(&mut self, change: &Change, scratch: &mut Scratch) -> Result<()> {
        if change.op == Op::Truncate {
            let FoldedTable { is_loose, missing, .. } = *self.table;
            *self.table =
                FoldedTable { truncates: true, is_loose, missing, ..FoldedTable::default() };
            return Ok(());
        }
        if self.keying.columns.is_empty() {
            if matches!(change.op, Op::Delete | Op::Update) {
                self.table.removals.push(self.at);
            }
            if change.op != Op::Delete {
                self.table.inserts.push(self.at);
            }
            return Ok(());
        }
        match change.op {
            Op::Insert | Op::Snapshot => {
                self.key(change, Which::New, &mut scratch.key)?;
                self.insert(&scratch.key);
            }
            Op::Delete => {
                self.key(change, Which::Old, &mut scratch.key)?;
                self.delete(change, &scratch.key);
            }
            Op::Update | Op::Truncate => {
                self.key(change, Which::New, &mut scratch.key)?;
                let moves = change.old.is_some() && {
                    self.key(change, Which::Old, &mut scratch.other)?;
                    scratch.other != scratch.key
                };
                match moves {
                    true => self.move_row(change, &scratch.other, &scratch.key),
                    false => self.update(change, &scratch.key),
                }
            }
        }
        Ok(())
    }

    fn key(&mut self, change: &Change, which: Which, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        for (column, canon) in &self.keying.columns {
            let Cell::Text(value) = self.log.either(change, which, *column) else {
                let message = "the event does not have all columns of the key";
                return Err(Error::new(Kind::Format, message));
            };
            self.table.is_loose |= !canon.append(value, out);
        }
        Ok(())
    }

    /// The entry of a key. A new one is based on what the target has, or on nothing after a
    /// truncate.
    fn entry(&mut self, key: &[u8], which: Which) -> (usize, bool) {
        if let Some(found) = self.table.places.get(key) {
            return (*found as usize, true);
        }
        let nth = self.table.entries.len();
        let key_at = KeyAt { change: self.at, which };
        self.table.entries.push(Entry { key: key_at, state: None, is_left: false });
        self.table.places.insert(key.into(), nth as u32);
        (nth, self.table.truncates)
    }

    /// Adds the event to those of a row. Before one that says everything none counts.
    fn link(&mut self, before: u32) -> u32 {
        let is_complete = self.log.changes()[self.at as usize].is_complete;
        let before = if is_complete { FIRST } else { before };
        self.table.links.push(Link { change: self.at, before });
        (self.table.links.len() - 1) as u32
    }

    fn insert(&mut self, key: &[u8]) {
        let (nth, is_known) = self.entry(key, Which::New);
        let state = match self.table.entries[nth].state {
            Some(state) => State { head: self.link(state.head), puts: true, ..state },
            None => {
                let base = if is_known { Base::Nothing } else { Base::Target };
                State { head: self.link(FIRST), base, puts: true }
            }
        };
        self.table.entries[nth].state = Some(state);
    }

    fn delete(&mut self, change: &Change, key: &[u8]) {
        let (nth, _) = self.entry(key, Which::Old);
        if self.table.displaced.contains_key(&(nth as u32)) && self.is_of_another(change, nth) {
            self.table.displaced.remove(&(nth as u32));
            return;
        }
        // Also of a row that came with these events: the target may have one of that key.
        self.table.entries[nth].state = None;
        self.table.entries[nth].is_left = false;
    }

    fn update(&mut self, change: &Change, key: &[u8]) {
        let (nth, is_known) = self.entry(key, Which::New);
        let puts = change.is_complete;
        let state = match self.table.entries[nth].state {
            Some(state) => State { head: self.link(state.head), puts: state.puts || puts, ..state },
            None if is_known && !puts => {
                self.table.missing += 1;
                return;
            }
            None => {
                let base = if is_known { Base::Nothing } else { Base::Target };
                State { head: self.link(FIRST), base, puts }
            }
        };
        self.table.entries[nth].state = Some(state);
    }

    /// The row of one key gets another one.
    fn move_row(&mut self, change: &Change, from: &[u8], to: &[u8]) {
        let puts = change.is_complete;
        let (source, is_known) = self.entry(from, Which::Old);
        let displaced = self.table.displaced.contains_key(&(source as u32))
            && self.is_of_another(change, source);
        let moving = match displaced {
            true => self.table.displaced.remove(&(source as u32)).flatten(),
            false => self.table.entries[source].state.take(),
        };
        self.table.entries[source].is_left = !displaced;
        let was_there = displaced || moving.is_some() || !is_known;
        if !was_there && !puts {
            // Read again, it may have come to its new key before.
            let (target, is_known) = self.entry(to, Which::New);
            let is_gone = self.table.entries[target].state.is_none() && is_known;
            match is_gone {
                true => self.table.missing += 1,
                false => self.update(change, to),
            }
            return;
        }
        let key_from = KeyAt { change: self.at, which: Which::Old };
        let state = match moving {
            Some(state) => {
                let base = match state.base {
                    Base::Target => Base::Moved(key_from),
                    other => other,
                };
                State { head: self.link(state.head), base, puts: state.puts || puts }
            }
            None => {
                let base = if was_there { Base::Moved(key_from) } else { Base::Nothing };
                State { head: self.link(FIRST), base, puts }
            }
        };
        let (target, is_known) = self.entry(to, Which::New);
        let occupant = self.table.entries[target].state;
        if (occupant.is_some() || !is_known) && self.tells_rows_apart(change) {
            self.table.displaced.insert(target as u32, occupant);
        }
        // Its key is spelled as this event spells it.
        self.table.entries[target].key = KeyAt { change: self.at, which: Which::New };
        self.table.entries[target].state = Some(state);
    }

    /// Whether an event about a key to which a row has come within its transaction is about the
    /// row that was there before: what it says of the other columns is not what that one has.
    fn is_of_another(&self, change: &Change, nth: usize) -> bool {
        let Some(state) = self.table.entries[nth].state else { return false };
        self.old_beside_key(change).any(|(column, said)| {
            let has = self.table.cell(self.log, &state, column);
            has != Cell::Absent && said != has
        })
    }

    /// Whether an event has of its old row more than the key. A source that does not send that is
    /// one in which keys change one after the other, or by way of a key that is free.
    fn tells_rows_apart(&self, change: &Change) -> bool {
        self.old_beside_key(change).next().is_some()
    }

    /// What an event says of its old row, but for the key.
    fn old_beside_key<'a>(&'a self, change: &'a Change) -> impl Iterator<Item = (usize, Cell<'a>)> {
        let is_key = |column| self.keying.columns.iter().any(|(of_key, _)| *of_key == column);
        let columns = (0..usize::from(change.width)).filter(move |column| !is_key(*column));
        let old = change.old.into_iter();
        let cells = old.flat_map(move |row| {
            columns.clone().map(move |column| (column, self.log.cell(change.width, row, column)))
        });
        cells.filter(|(_, cell)| *cell != Cell::Absent)
    }
}

impl FoldedTable {
    /// What is left: a few rows as their events came, many in the order of their keys' bytes. Then
    /// the server looks up and inserts each row beside the last one, which takes it a quarter less.
    pub(crate) fn in_order(&self) -> Vec<&Entry> {
        if self.entries.len() <= UNSORTED_MAX {
            return self.entries.iter().collect();
        }
        let mut places: Vec<(&[u8], u32)> =
            self.places.iter().map(|(key, nth)| (&**key, *nth)).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, nth)| &self.entries[nth as usize]).collect()
    }

    /// What a row is to have in a column, as far as events say it.
    pub(crate) fn cell<'a>(&self, log: &'a Log, state: &State, column: usize) -> Cell<'a> {
        let mut at = state.head;
        while at != FIRST {
            let link = self.links[at as usize];
            let change = &log.changes()[link.change as usize];
            if let Some(row) = change.new {
                let cell = log.cell(change.width, row, column);
                if cell != Cell::Absent {
                    return cell;
                }
            }
            at = link.before;
        }
        Cell::Absent
    }

    /// Whether an event to come may be about a row that was where another one has come.
    pub(crate) fn is_in_suspense(&self) -> bool {
        !self.displaced.is_empty()
    }

    /// Whether nothing is to be done.
    pub(crate) fn is_empty(&self) -> bool {
        !self.truncates
            && self.entries.is_empty()
            && self.inserts.is_empty()
            && self.removals.is_empty()
    }
}

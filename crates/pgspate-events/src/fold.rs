//! Events to what is left of them: for each table and key one row that goes, or one that comes.
//!
//! Folding reads the events in their order and does no I/O. What a column is to be is found by
//! walking back through the events of its key: absent is not NULL. As the state of the target is
//! not known here, a row says on what it is based: on what the target has, on nothing, or on what
//! the target has under another key, from which the row has come.

mod alike;

use std::collections::HashMap;

use super::canon::Canon;
use super::event::ChangeKind;
use super::log::{LoggedValue, LoggedEvent, EventLog, RowImage};
use crate::{Error, ErrorKind, Result};
use alike::Pick;

/// What folding has to know of a table.
#[derive(Debug, Clone, Default)]
pub struct FoldKey {
    /// The columns of the key; empty for a table without one.
    pub columns: Vec<(usize, Canon)>,
    /// The key is checked at the end of a transaction, within which rows may share it.
    pub is_deferrable: bool,
}

/// The key of a row: the cells of one row of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedKey {
    /// The event, by its place in the log.
    pub change: u32,
    /// Which of the event's rows.
    pub which: RowImage,
}

/// On what a row is based, where its events say nothing of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowBase {
    /// What the target has under its key, if anything.
    Target,
    /// Nothing: what is absent has its default.
    Nothing,
    /// What the target has under this key, or else under its own.
    Moved(LoggedKey),
}

/// A row as it is to be.
#[derive(Debug, Clone, Copy)]
pub struct FoldedRow {
    /// The last of its events.
    head: u32,
    /// What it has in columns of which its events say nothing.
    pub base: RowBase,
    /// It comes to be if the target has no such row. Else that is a row that is missing.
    pub puts: bool,
    /// If the target has no such row, there is none to be.
    pub is_maybe: bool,
    /// The insert by which it came under a key of which nothing was known; [`FIRST`] for none.
    came: u32,
}

impl FoldedRow {
    /// The row that the target has under the key, if any, as it is.
    const AS_IS: FoldedRow =
        FoldedRow { head: FIRST, base: RowBase::Target, puts: false, is_maybe: false, came: FIRST };

    /// Whether no event says anything of it.
    fn is_as_is(&self) -> bool {
        self.head == FIRST && self.base == RowBase::Target
    }
}

/// What is left of the events of a key.
#[derive(Debug, Clone, Copy)]
pub struct FoldedKey {
    /// The key.
    pub key: LoggedKey,
    /// `None`: there is no such row.
    pub state: Option<FoldedRow>,
    /// Its row got another key, as the last that was said of it.
    pub is_left: bool,
}

/// An event of a row, and the one before it.
#[derive(Debug, Clone, Copy)]
struct EventLink {
    change: u32,
    before: u32,
}

const FIRST: u32 = u32::MAX;

/// Of so few keys hardly two are neighbours. Measured on a table of 200,000 rows: at 1,000 sorting
/// costs 3 % of the time, at 2,000 nothing, and from 4,000 on it pays.
const UNSORTED_MAX: usize = 1000;

/// What is left of the events of a table.
#[derive(Debug, Default)]
pub struct FoldedTable {
    /// All that was there before goes first.
    pub truncates: bool,
    entries: Vec<FoldedKey>,
    /// Of a table without a key: rows that come, in their order.
    pub inserts: Vec<u32>,
    /// Of a table without a key: rows that go, one for each.
    pub removals: Vec<u32>,
    /// Updates of rows that are known not to be there.
    pub missing: u64,
    /// Two keys may be the same to the server.
    pub is_loose: bool,
    /// A row has come, in no transaction with others, to a key that another row has.
    pub has_clash: bool,
    /// Rows that have come, in no transaction with others, to a key that another row may have: if
    /// the target has rows under both keys, it has. The first key is `None` of a row that is known.
    pub takes: Vec<(Option<LoggedKey>, LoggedKey)>,
    links: Vec<EventLink>,
    /// The place of each key among the entries.
    places: HashMap<Box<[u8]>, u32>,
    /// By the place of their key: rows that share it within the transaction with the one that came
    /// last, the oldest first. They have to leave it before the transaction ends.
    waiting: HashMap<u32, Vec<FoldedRow>>,
    /// A row was inserted in the open transaction, whose deferrable key another row may have.
    is_open: bool,
    /// First and last of events that are to be folded together.
    spans: Vec<(usize, usize)>,
}

/// What is left of a range of events, by table.
#[derive(Debug, Default)]
pub struct FoldedTables {
    /// By the tables' places in the log.
    pub tables: Vec<FoldedTable>,
}

/// Folds events of the log.
///
/// # Errors
/// Of [`ErrorKind::Format`]: an event without a whole key. It is refused by [`check`] before.
pub fn fold(log: &EventLog, range: std::ops::Range<usize>, keyings: &[&FoldKey]) -> Result<FoldedTables> {
    fold_with(log, range, keyings, |_, _| {})
}

/// The places within the range where it may be cut into batches: events before the place are there,
/// and none to come is about a row that another one of these has displaced.
pub fn cuts(log: &EventLog, range: std::ops::Range<usize>, keyings: &[&FoldKey]) -> Result<Vec<usize>> {
    let mut cuts = Vec::new();
    let truncates = |at: usize| log.changes().get(at).is_some_and(|it| it.op == ChangeKind::Truncate);
    let folded = fold_with(log, range, keyings, |at, tables| {
        // Tables that were emptied at once may refer to each other.
        let is_one_statement = truncates(at) && truncates(at + 1);
        if !is_one_statement && tables.iter().all(|table| table.waiting.is_empty()) {
            cuts.push(at + 1);
        }
    })?;
    for (first, last) in folded.tables.iter().flat_map(|table| &table.spans) {
        let within = cuts.partition_point(|cut| cut <= first);
        let after = cuts.partition_point(|cut| cut <= last);
        cuts.drain(within..after);
    }
    Ok(cuts)
}

fn fold_with(
    log: &EventLog,
    range: std::ops::Range<usize>,
    keyings: &[&FoldKey],
    mut after: impl FnMut(usize, &[FoldedTable]),
) -> Result<FoldedTables> {
    let mut folded = FoldedTables::default();
    folded.tables.resize_with(keyings.len(), FoldedTable::default);
    let mut scratch = KeyBuffers::default();
    let mut begin = range.start as u32;
    for at in range {
        let change = &log.changes()[at];
        let keying = keyings[change.table];
        let table = &mut folded.tables[change.table];
        let mut folding = Folding { log, keying, table, at: at as u32, begin };
        folding.take(change, &mut scratch)?;
        if change.ends {
            begin = at as u32 + 1;
            folded.tables.iter_mut().for_each(FoldedTable::end_transaction);
        }
        after(at, &folded.tables);
    }
    Ok(folded)
}

/// Whether an event says which row it is about, before it is taken into a log.
pub fn check(log: &EventLog, change: &LoggedEvent, keying: &FoldKey, all: &[usize]) -> Result<()> {
    let is_there = |which, column| matches!(log.either(change, which, column), LoggedValue::Text(_));
    let refuse = |message: &str| Err(Error::new(ErrorKind::Format, message));
    if change.op == ChangeKind::Truncate {
        return Ok(());
    }
    let is_new = matches!(change.op, ChangeKind::Insert | ChangeKind::Snapshot | ChangeKind::Update);
    if is_new && change.new.is_none() {
        return refuse("the event has no row");
    }
    if change.op == ChangeKind::Delete && change.old.is_none() && change.new.is_none() {
        return refuse("the event does not say which row is deleted");
    }
    if keying.columns.is_empty() {
        let is_whole = || {
            change.old.is_some_and(|old| {
                all.iter().all(|column| log.cell(change.width, old, *column) != LoggedValue::Absent)
            })
        };
        if matches!(change.op, ChangeKind::Update | ChangeKind::Delete) && !is_whole() {
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
    let which = if change.op == ChangeKind::Delete { RowImage::Old } else { RowImage::New };
    match keying.columns.iter().all(|(column, _)| is_there(which, *column)) {
        true => Ok(()),
        false => refuse("the event does not have all columns of the key"),
    }
}

/// Buffers that are used again.
#[derive(Default)]
struct KeyBuffers {
    key: Vec<u8>,
    other: Vec<u8>,
}

/// One event and its table.
struct Folding<'a> {
    log: &'a EventLog,
    keying: &'a FoldKey,
    table: &'a mut FoldedTable,
    at: u32,
    /// The first event of its transaction.
    begin: u32,
}

impl Folding<'_> {
    fn take(&mut self, change: &LoggedEvent, scratch: &mut KeyBuffers) -> Result<()> {
        if change.op == ChangeKind::Truncate {
            let FoldedTable { is_loose, missing, has_clash, .. } = *self.table;
            let takes = std::mem::take(&mut self.table.takes);
            let kept = FoldedTable { is_loose, missing, has_clash, takes, ..Default::default() };
            *self.table = FoldedTable { truncates: true, ..kept };
            return Ok(());
        }
        if self.keying.columns.is_empty() {
            if change.op == ChangeKind::Update && self.changes_nothing(change) {
                return Ok(());
            }
            if matches!(change.op, ChangeKind::Delete | ChangeKind::Update) {
                self.table.removals.push(self.at);
            }
            if change.op != ChangeKind::Delete {
                self.table.inserts.push(self.at);
            }
            return Ok(());
        }
        match change.op {
            ChangeKind::Insert | ChangeKind::Snapshot => {
                self.key(change, RowImage::New, &mut scratch.key)?;
                self.insert(change, &scratch.key);
            }
            ChangeKind::Delete => {
                self.key(change, RowImage::Old, &mut scratch.key)?;
                self.delete(change, &scratch.key);
            }
            ChangeKind::Update | ChangeKind::Truncate => {
                self.key(change, RowImage::New, &mut scratch.key)?;
                let moves = change.old.is_some() && {
                    self.key(change, RowImage::Old, &mut scratch.other)?;
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

    fn key(&mut self, change: &LoggedEvent, which: RowImage, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        for (column, canon) in &self.keying.columns {
            let LoggedValue::Text(value) = self.log.either(change, which, *column) else {
                let message = "the event does not have all columns of the key";
                return Err(Error::new(ErrorKind::Format, message));
            };
            self.table.is_loose |= !canon.append(value, out);
        }
        Ok(())
    }

    /// The entry of a key. A new one is based on what the target has, or on nothing after a
    /// truncate.
    fn entry(&mut self, key: &[u8], which: RowImage) -> (usize, bool) {
        if let Some(found) = self.table.places.get(key) {
            return (*found as usize, true);
        }
        let nth = self.table.entries.len();
        let key_at = LoggedKey { change: self.at, which };
        self.table.entries.push(FoldedKey { key: key_at, state: None, is_left: false });
        self.table.places.insert(key.into(), nth as u32);
        (nth, self.table.truncates)
    }

    /// Adds the event to those of a row. Before one that says everything none counts.
    fn link(&mut self, before: u32) -> u32 {
        let is_complete = self.log.changes()[self.at as usize].is_complete;
        let before = if is_complete { FIRST } else { before };
        self.table.links.push(EventLink { change: self.at, before });
        (self.table.links.len() - 1) as u32
    }

    fn insert(&mut self, change: &LoggedEvent, key: &[u8]) {
        let (nth, is_known) = self.entry(key, RowImage::New);
        let is_beside = self.keying.is_deferrable && change.op == ChangeKind::Insert && !change.ends;
        let before = self.table.entries[nth].state;
        let state = match before {
            Some(state) => FoldedRow { head: self.link(state.head), puts: true, ..state },
            None => {
                let base = if is_known { RowBase::Nothing } else { RowBase::Target };
                let came = if is_known || change.op != ChangeKind::Insert { FIRST } else { self.at };
                FoldedRow { head: self.link(FIRST), base, puts: true, is_maybe: false, came }
            }
        };
        let mut state = FoldedRow { is_maybe: false, ..state };
        match before {
            Some(before) if is_beside => {
                self.wait(nth, before);
                state.came = FIRST;
            }
            _ => self.table.is_open |= is_beside && !is_known,
        }
        self.table.entries[nth].state = Some(state);
    }

    fn delete(&mut self, change: &LoggedEvent, key: &[u8]) {
        let (nth, _) = self.entry(key, RowImage::Old);
        match self.pick(change, nth) {
            Pick::Waiting(row) => drop(self.take_waiting(nth, row)),
            // Also of a row that came with these events: the target may have one of that key.
            Pick::Last => drop(self.take_last(change, nth)),
        }
    }

    fn update(&mut self, change: &LoggedEvent, key: &[u8]) {
        let (nth, is_known) = self.entry(key, RowImage::New);
        let puts = change.is_complete;
        if let Pick::Waiting(row) = self.pick(change, nth) {
            self.update_waiting(nth, row, puts);
            return;
        }
        let state = match self.table.entries[nth].state {
            Some(state) => {
                let (puts, is_maybe) = (state.puts || puts, state.is_maybe && !puts);
                FoldedRow { head: self.link(state.head), puts, is_maybe, ..state }
            }
            None if is_known && !puts => {
                self.table.missing += 1;
                return;
            }
            None => {
                let base = if is_known { RowBase::Nothing } else { RowBase::Target };
                FoldedRow { head: self.link(FIRST), base, puts, ..FoldedRow::AS_IS }
            }
        };
        self.table.entries[nth].state = Some(state);
    }

    /// The row of one key gets another one.
    fn move_row(&mut self, change: &LoggedEvent, from: &[u8], to: &[u8]) {
        let puts = change.is_complete;
        let (source, is_known) = self.entry(from, RowImage::Old);
        let moving = match self.pick(change, source) {
            Pick::Waiting(row) => Some(self.take_waiting(source, row)),
            Pick::Last => {
                let moving = self.take_last(change, source);
                self.table.entries[source].is_left = self.table.entries[source].state.is_none();
                moving
            }
        };
        let was_there = moving.is_some() || !is_known;
        if !was_there && !puts {
            // Read again, it may have come to its new key before.
            let (target, is_known) = self.entry(to, RowImage::New);
            let is_gone = self.table.entries[target].state.is_none() && is_known;
            match is_gone {
                true => self.table.missing += 1,
                false => self.update(change, to),
            }
            return;
        }
        let key_from = LoggedKey { change: self.at, which: RowImage::Old };
        let state = match moving {
            Some(state) => {
                let base = match state.base {
                    RowBase::Target => RowBase::Moved(key_from),
                    other => other,
                };
                let puts = state.puts || puts;
                FoldedRow { head: self.link(state.head), base, puts, ..FoldedRow::AS_IS }
            }
            None => {
                let base = if was_there { RowBase::Moved(key_from) } else { RowBase::Nothing };
                FoldedRow { head: self.link(FIRST), base, puts, ..FoldedRow::AS_IS }
            }
        };
        let (target, is_known) = self.entry(to, RowImage::New);
        let key_to = LoggedKey { change: self.at, which: RowImage::New };
        if was_there {
            self.arrive(change, state.base, key_to, target, is_known);
        }
        // Its key is spelled as this event spells it.
        self.table.entries[target].key = key_to;
        self.table.entries[target].state = Some(state);
    }

    /// Whether an event of a table without a key leaves the row as it was.
    fn changes_nothing(&self, change: &LoggedEvent) -> bool {
        let cell = |which, column| self.log.either(change, which, column);
        (0..usize::from(change.width))
            .all(|column| cell(RowImage::New, column) == cell(RowImage::Old, column))
    }
}

impl FoldedTable {
    /// What is left: a few rows as their events came, many in the order of their keys' bytes. Then
    /// the server looks up and inserts each row beside the last one, which takes it a quarter less.
    pub fn in_order(&self) -> Vec<&FoldedKey> {
        if self.entries.len() <= UNSORTED_MAX {
            return self.entries.iter().collect();
        }
        let mut places: Vec<(&[u8], u32)> =
            self.places.iter().map(|(key, nth)| (&**key, *nth)).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, nth)| &self.entries[nth as usize]).collect()
    }

    /// Rows of which no event says anything in the end.
    pub fn is_untouched(entry: &FoldedKey) -> bool {
        entry.state.is_some_and(|state| state.is_as_is())
    }

    /// What a row is to have in a column, as far as events say it.
    pub fn cell<'a>(&self, log: &'a EventLog, state: &FoldedRow, column: usize) -> LoggedValue<'a> {
        let mut at = state.head;
        while at != FIRST {
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

    /// Whether an event to come may be about a row that was where another one has come.
    pub fn is_in_suspense(&self) -> bool {
        self.is_open || !self.waiting.is_empty()
    }

    fn end_transaction(&mut self) {
        self.is_open = false;
        self.waiting.clear();
    }

    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        !self.truncates
            && self.entries.is_empty()
            && self.inserts.is_empty()
            && self.removals.is_empty()
    }
}

//! Folded events against the same events one by one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::canon::Canon;
use super::event::{ChangeKind, EventValue};
use super::fold::{RowBase, FoldedKey, FoldedTables, FoldKey, fold};
use super::log::{LoggedValue, LoggedEvent, EventLog, LoggedRow, RowImage};
use super::event_place::EventPlace;

/// Key, and two columns more.
const WIDTH: usize = 3;

/// An event of a table with the columns `k`, `a` and `b`.
#[derive(Debug, Clone)]
enum Step {
    Insert(u8, u16, u16),
    /// Which columns it gives.
    Update(u8, Option<u16>, Option<u16>),
    Move(u8, u8, Option<u16>, Option<u16>),
    /// In one statement, so that for a moment two rows have one key.
    Swap(u8, u8),
    Delete(u8),
    Truncate,
}

pub(super) type Rows = BTreeMap<u8, [u16; 2]>;

/// One event, as a careful program would apply it by itself: an insert replaces, an update that
/// gives all makes its row, another one needs it.
fn step(rows: &mut Rows, step: &Step) {
    let merge = |old: Option<[u16; 2]>, a: Option<u16>, b: Option<u16>| match (old, a, b) {
        (Some(old), _, _) => Some([a.unwrap_or(old[0]), b.unwrap_or(old[1])]),
        (None, Some(a), Some(b)) => Some([a, b]),
        (None, _, _) => None,
    };
    match *step {
        Step::Insert(key, a, b) => drop(rows.insert(key, [a, b])),
        Step::Update(key, a, b) => {
            if let Some(row) = merge(rows.get(&key).copied(), a, b) {
                rows.insert(key, row);
            }
        }
        Step::Move(from, to, a, b) => {
            let old = rows.remove(&from).or_else(|| rows.get(&to).copied());
            if let Some(row) = merge(old, a, b) {
                rows.insert(to, row);
            }
        }
        Step::Swap(left, right) => {
            let (of_left, of_right) = (rows[&left], rows[&right]);
            rows.extend([(left, of_right), (right, of_left)]);
        }
        Step::Delete(key) => drop(rows.remove(&key)),
        Step::Truncate => rows.clear(),
    }
}

fn log_of(steps: &[Step]) -> EventLog {
    let mut log = EventLog::default();
    let text = |number: u16| EventValue::Text(number.to_string().into());
    let maybe = |number: Option<u16>| number.map_or(EventValue::Absent, text);
    let columns = [Some(0), Some(1), Some(2)];
    for (nth, step) in steps.iter().enumerate() {
        let mut row = |key: u8, a: EventValue, b: EventValue| {
            let values = [text(key.into()), a, b];
            Some(log.row(WIDTH, &columns, &values).unwrap())
        };
        let key = |row: &mut dyn FnMut(u8, EventValue, EventValue) -> _, key| {
            row(key, EventValue::Absent, EventValue::Absent)
        };
        let (op, new, old) = match *step {
            Step::Insert(id, a, b) => (ChangeKind::Insert, row(id, text(a), text(b)), None),
            Step::Update(id, a, b) => (ChangeKind::Update, row(id, maybe(a), maybe(b)), None),
            Step::Move(from, to, a, b) => {
                let new = row(to, maybe(a), maybe(b));
                (ChangeKind::Update, new, key(&mut row, from))
            }
            Step::Delete(id) => (ChangeKind::Delete, None, key(&mut row, id)),
            Step::Truncate | Step::Swap(..) => (ChangeKind::Truncate, None, None),
        };
        let is_complete = matches!(
            step,
            Step::Insert(..)
                | Step::Update(_, Some(_), Some(_))
                | Step::Move(_, _, Some(_), Some(_))
        );
        log.push(LoggedEvent { is_complete, ends: true, ..change(nth, op, new, old) });
    }
    log
}

pub(super) fn change(nth: usize, op: ChangeKind, new: Option<LoggedRow>, old: Option<LoggedRow>) -> LoggedEvent {
    LoggedEvent {
        table: 0,
        op,
        new,
        old,
        width: WIDTH as u16,
        is_complete: op != ChangeKind::Delete,
        ends: false,
        event_place: EventPlace::Line { input: 0, line: nth as u64 + 1 },
        ordinal: nth as u64,
    }
}

/// The same in one transaction of a source that sends whole rows; old ones too if they are `whole`,
/// else of these the key.
fn transaction_of(mut rows: Rows, steps: &[Step], whole: bool) -> EventLog {
    let mut log = EventLog::default();
    for it in steps {
        let before = rows.clone();
        step(&mut rows, it);
        let pairs = match *it {
            Step::Insert(key, ..) => vec![(ChangeKind::Insert, None, Some(key))],
            Step::Update(key, ..) => vec![(ChangeKind::Update, Some(key), Some(key))],
            Step::Move(from, to, ..) => vec![(ChangeKind::Update, Some(from), Some(to))],
            Step::Swap(left, right) => {
                vec![(ChangeKind::Update, Some(left), Some(right)), (ChangeKind::Update, Some(right), Some(left))]
            }
            Step::Delete(key) => vec![(ChangeKind::Delete, Some(key), None)],
            Step::Truncate => vec![(ChangeKind::Truncate, None, None)],
        };
        for (op, from, to) in pairs {
            let mut add = |rows: &Rows, key: u8, whole: bool| {
                let [a, b] = rows[&key].map(|number| match whole {
                    true => EventValue::Text(number.to_string().into()),
                    false => EventValue::Absent,
                });
                let values = [EventValue::Text(key.to_string().into()), a, b];
                log.row(WIDTH, &[Some(0), Some(1), Some(2)], &values).unwrap()
            };
            let new = to.map(|key| add(&rows, key, true));
            let old = from.map(|key| add(&before, key, whole));
            log.push(change(log.changes().len(), op, new, old));
        }
    }
    log
}

fn number(cell: LoggedValue<'_>) -> Option<u16> {
    match cell {
        LoggedValue::Text(text) => Some(std::str::from_utf8(text).unwrap().parse().unwrap()),
        _ => None,
    }
}

/// What the statements do with what is folded.
pub(super) fn write(rows: &mut Rows, log: &EventLog, folded: &FoldedTables) {
    let table = &folded.tables[0];
    if table.truncates {
        rows.clear();
    }
    let before = rows.clone();
    let key = |change: u32, which: RowImage| -> u8 {
        let change = &log.changes()[change as usize];
        number(log.either(change, which, 0)).unwrap() as u8
    };
    for entry in table.in_order().into_iter().filter(|entry| entry.state.is_none()) {
        rows.remove(&key(entry.key.change, entry.key.which));
    }
    for entry in table.in_order() {
        let Some(state) = &entry.state else { continue };
        let at = key(entry.key.change, entry.key.which);
        let [a, b] = [1, 2].map(|column| number(table.cell(log, state, column)));
        let own = before.get(&at);
        if state.is_maybe && own.is_none() {
            continue;
        }
        let base = match state.base {
            RowBase::Nothing => None,
            RowBase::Target => own,
            RowBase::Moved(from) => before.get(&key(from.change, from.which)).or(own),
        };
        if base.is_none() && !state.puts {
            continue;
        }
        let base = base.copied().unwrap_or([u16::MAX; 2]);
        rows.insert(at, [a.unwrap_or(base[0]), b.unwrap_or(base[1])]);
    }
}

fn keying() -> FoldKey {
    FoldKey { columns: vec![(0, Canon::Text)], is_deferrable: false }
}

/// Histories that a table with a key can have: what is inserted is not there, what is changed is,
/// and a key that is moved to is free; or rows that differ swap their keys.
fn history(swaps: bool) -> impl Strategy<EventValue = (Rows, Vec<Step>)> {
    let any_step = (0..7_u8, 0..5_u8, 0..5_u8, any::<Option<u16>>(), any::<Option<u16>>());
    let start = proptest::collection::btree_map(0..5_u8, any::<[u16; 2]>(), 0..5);
    (start, proptest::collection::vec(any_step, 0..40)).prop_map(move |(start, picks)| {
        let mut rows = start.clone();
        let mut steps = Vec::new();
        for (kind, from, to, a, b) in picks {
            let kind = if swaps { kind } else { kind.min(5) };
            let is_there = rows.contains_key(&from);
            let next = match kind {
                0 | 1 if !is_there => Step::Insert(from, a.unwrap_or(1), b.unwrap_or(2)),
                0..=2 if is_there => Step::Update(from, a, b),
                3 | 4 if is_there && !rows.contains_key(&to) => Step::Move(from, to, a, b),
                6 if is_there && rows.get(&to).is_some_and(|row| *row != rows[&from]) => {
                    Step::Swap(from, to)
                }
                5 if is_there && b.is_some() => Step::Delete(from),
                5 if from == 0 && a.is_some() => Step::Truncate,
                _ => continue,
            };
            step(&mut rows, &next);
            steps.push(next);
        }
        (start, steps)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// However a history is cut into batches, the table is as after its events one by one.
    #[test]
    fn folds_are_their_events_one_by_one(
        (start, steps) in history(false),
        cuts in proptest::collection::vec(0..41_usize, 0..4),
    ) {
        let log = log_of(&steps);
        let mut expected = start.clone();
        steps.iter().for_each(|it| step(&mut expected, it));
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(steps.len())).collect();
        cuts.extend([0, steps.len()]);
        cuts.sort_unstable();
        let mut rows = start;
        for pair in cuts.windows(2) {
            let folded = fold(&log, pair[0]..pair[1], &[&keying()]).unwrap();
            prop_assert_eq!(folded.tables[0].missing, 0);
            write(&mut rows, &log, &folded);
        }
        prop_assert_eq!(rows, expected);
    }

    /// In one transaction too, whether rows swap their keys, of which then old rows tell, or not.
    #[test]
    fn a_transaction_folds_to_its_events_one_by_one(
        ((start, steps), whole) in any::<bool>()
            .prop_flat_map(|whole| (history(whole), Just(whole))),
    ) {
        let log = transaction_of(start.clone(), &steps, whole);
        let mut expected = start.clone();
        steps.iter().for_each(|it| step(&mut expected, it));
        let mut rows = start;
        let folded = fold(&log, 0..log.changes().len(), &[&keying()]).unwrap();
        write(&mut rows, &log, &folded);
        prop_assert_eq!(rows, expected);
    }

    /// Applied once more to a table that is further on, a stream leads to the same table.
    #[test]
    fn a_stream_may_be_read_again((start, steps) in history(false), from in 0..40_usize) {
        // Not before the first event of what is read again is a row known, as after a restart.
        let log = log_of(&steps);
        let mut rows = start;
        let whole = fold(&log, 0..steps.len(), &[&keying()]).unwrap();
        write(&mut rows, &log, &whole);
        let expected = rows.clone();
        let from = from.min(steps.len());
        let complete = |it: &Step| match it {
            Step::Update(_, a, b) | Step::Move(_, _, a, b) => a.is_some() && b.is_some(),
            _ => true,
        };
        prop_assume!(steps[from..].iter().all(complete));
        let again = fold(&log, from..steps.len(), &[&keying()]).unwrap();
        write(&mut rows, &log, &again);
        prop_assert_eq!(rows, expected);
    }
}

#[test]
fn a_deleted_row_that_is_updated_is_missing() {
    let steps = [Step::Delete(1), Step::Update(1, Some(1), None), Step::Update(2, None, Some(1))];
    let log = log_of(&steps);
    let folded = fold(&log, 0..3, &[&keying()]).unwrap();
    assert_eq!(folded.tables[0].missing, 1);
    let mut rows = Rows::from([(1, [1, 1])]);
    write(&mut rows, &log, &folded);
    assert_eq!(rows, Rows::new());
}

/// A few are as they came.
#[test]
fn many_rows_are_in_the_order_of_their_keys() {
    for count in [900, 3000] {
        let mut log = EventLog::default();
        for nth in (0..count).rev().chain(0..count) {
            let values = [format!("{nth:04}"), "1".to_owned(), "2".to_owned()];
            let values = values.map(|value| EventValue::Text(value.into()));
            let row = log.row(WIDTH, &[Some(0), Some(1), Some(2)], &values).unwrap();
            log.push(change(log.changes().len(), ChangeKind::Insert, Some(row), None));
        }
        let folded = fold(&log, 0..log.changes().len(), &[&keying()]).unwrap();
        let key = |entry: &FoldedKey| {
            let change = &log.changes()[entry.key.change as usize];
            number(log.either(change, entry.key.which, 0)).unwrap()
        };
        let keys: Vec<u16> = folded.tables[0].in_order().into_iter().map(key).collect();
        let sorted: Vec<u16> = (0..count).collect();
        let as_they_came: Vec<u16> = (0..count).rev().collect();
        assert_eq!(keys, if count < 1000 { as_they_came } else { sorted });
    }
}

//! The folded events of a batch must give the same table as the events applied one by one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::event::{ChangeKind, EventValue};
use super::event_place::EventPlace;
use super::fold::{FoldKey, FoldedKey, FoldedTables, RowBase, fold};
use super::key_form::KeyForm;
use super::log::{EventLog, LoggedEvent, LoggedRow, LoggedValue, RowImage};

/// The key and two other columns.
const WIDTH: usize = 3;

/// An event of a table with the columns `k`, `a` and `b`.
#[derive(Debug, Clone)]
enum HistoryStep {
    Insert(u8, u16, u16),
    /// An update and the values that the event gives. `None` leaves a column out.
    Update(u8, Option<u16>, Option<u16>),
    Move(u8, u8, Option<u16>, Option<u16>),
    /// Two rows swap their keys in one statement, so both have the same key for a moment.
    Swap(u8, u8),
    Delete(u8),
    Truncate,
}

pub(super) type Rows = BTreeMap<u8, [u16; 2]>;

/// Applies one event. An insert replaces the row, an update with all columns inserts an absent row,
/// and any other update needs its row.
fn apply_step(rows: &mut Rows, step: &HistoryStep) {
    let merge = |old: Option<[u16; 2]>, a: Option<u16>, b: Option<u16>| match (old, a, b) {
        (Some(old), _, _) => Some([a.unwrap_or(old[0]), b.unwrap_or(old[1])]),
        (None, Some(a), Some(b)) => Some([a, b]),
        (None, _, _) => None,
    };
    match *step {
        HistoryStep::Insert(key, a, b) => drop(rows.insert(key, [a, b])),
        HistoryStep::Update(key, a, b) => {
            if let Some(row) = merge(rows.get(&key).copied(), a, b) {
                rows.insert(key, row);
            }
        }
        HistoryStep::Move(from, to, a, b) => {
            let old = rows.remove(&from).or_else(|| rows.get(&to).copied());
            if let Some(row) = merge(old, a, b) {
                rows.insert(to, row);
            }
        }
        HistoryStep::Swap(left, right) => {
            let (of_left, of_right) = (rows[&left], rows[&right]);
            rows.extend([(left, of_right), (right, of_left)]);
        }
        HistoryStep::Delete(key) => drop(rows.remove(&key)),
        HistoryStep::Truncate => rows.clear(),
    }
}

fn log_of(steps: &[HistoryStep]) -> EventLog {
    let mut log = EventLog::default();
    let text = |number: u16| EventValue::Text(number.to_string().into());
    let maybe = |number: Option<u16>| number.map_or(EventValue::Absent, text);
    let columns = [Some(0), Some(1), Some(2)];
    for (nth, step) in steps.iter().enumerate() {
        let mut row = |key: u8, a: EventValue, b: EventValue| {
            let values = [text(key.into()), a, b];
            Some(log.add_row(WIDTH, &columns, &values).unwrap())
        };
        let key = |row: &mut dyn FnMut(u8, EventValue, EventValue) -> _, key| {
            row(key, EventValue::Absent, EventValue::Absent)
        };
        let (op, new, old) = match *step {
            HistoryStep::Insert(id, a, b) => (ChangeKind::Insert, row(id, text(a), text(b)), None),
            HistoryStep::Update(id, a, b) => {
                (ChangeKind::Update, row(id, maybe(a), maybe(b)), None)
            }
            HistoryStep::Move(from, to, a, b) => {
                let new = row(to, maybe(a), maybe(b));
                (ChangeKind::Update, new, key(&mut row, from))
            }
            HistoryStep::Delete(id) => (ChangeKind::Delete, None, key(&mut row, id)),
            HistoryStep::Truncate | HistoryStep::Swap(..) => (ChangeKind::Truncate, None, None),
        };
        let is_complete = matches!(
            step,
            HistoryStep::Insert(..)
                | HistoryStep::Update(_, Some(_), Some(_))
                | HistoryStep::Move(_, _, Some(_), Some(_))
        );
        log.push(LoggedEvent { is_complete, ends_transaction: true, ..change(nth, op, new, old) });
    }
    log
}

pub(super) fn change(
    nth: usize,
    op: ChangeKind,
    new: Option<LoggedRow>,
    old: Option<LoggedRow>,
) -> LoggedEvent {
    LoggedEvent {
        table: 0,
        op,
        new,
        old,
        width: WIDTH as u16,
        is_complete: op != ChangeKind::Delete,
        ends_transaction: false,
        event_place: EventPlace::Line { input: 0, line: nth as u64 + 1 },
        ordinal: nth as u64,
    }
}

/// Returns the steps as one transaction of a source that sends whole new rows. Old rows are whole
/// if `whole` is true; if not, they have only the key.
fn transaction_of(mut rows: Rows, steps: &[HistoryStep], whole: bool) -> EventLog {
    let mut log = EventLog::default();
    for it in steps {
        let before = rows.clone();
        apply_step(&mut rows, it);
        let pairs = match *it {
            HistoryStep::Insert(key, ..) => vec![(ChangeKind::Insert, None, Some(key))],
            HistoryStep::Update(key, ..) => vec![(ChangeKind::Update, Some(key), Some(key))],
            HistoryStep::Move(from, to, ..) => vec![(ChangeKind::Update, Some(from), Some(to))],
            HistoryStep::Swap(left, right) => {
                vec![
                    (ChangeKind::Update, Some(left), Some(right)),
                    (ChangeKind::Update, Some(right), Some(left)),
                ]
            }
            HistoryStep::Delete(key) => vec![(ChangeKind::Delete, Some(key), None)],
            HistoryStep::Truncate => vec![(ChangeKind::Truncate, None, None)],
        };
        for (op, from, to) in pairs {
            let mut add = |rows: &Rows, key: u8, whole: bool| {
                let [a, b] = rows[&key].map(|number| match whole {
                    true => EventValue::Text(number.to_string().into()),
                    false => EventValue::Absent,
                });
                let values = [EventValue::Text(key.to_string().into()), a, b];
                log.add_row(WIDTH, &[Some(0), Some(1), Some(2)], &values).unwrap()
            };
            let new = to.map(|key| add(&rows, key, true));
            let old = from.map(|key| add(&before, key, whole));
            log.push(change(log.changes().len(), op, new, old));
        }
    }
    log
}

fn cell_number(cell: LoggedValue<'_>) -> Option<u16> {
    match cell {
        LoggedValue::Text(text) => Some(std::str::from_utf8(text).unwrap().parse().unwrap()),
        _ => None,
    }
}

/// Applies folded events, as the statements of the writer do.
pub(super) fn write(rows: &mut Rows, log: &EventLog, folded: &FoldedTables) {
    let table = &folded.tables[0];
    if table.truncates {
        rows.clear();
    }
    let before = rows.clone();
    let key = |change: u32, image: RowImage| -> u8 {
        let change = &log.changes()[change as usize];
        cell_number(log.cell_in_either(change, image, 0)).unwrap() as u8
    };
    for entry in table.keys_in_order().into_iter().filter(|entry| entry.row.is_none()) {
        rows.remove(&key(entry.key.change, entry.key.image));
    }
    for entry in table.keys_in_order() {
        let Some(state) = &entry.row else { continue };
        let at = key(entry.key.change, entry.key.image);
        let [a, b] = [1, 2].map(|column| cell_number(table.cell(log, state, column)));
        let own = before.get(&at);
        if state.needs_target_row && own.is_none() {
            continue;
        }
        let base = match state.base {
            RowBase::Nothing => None,
            RowBase::Target => own,
            RowBase::Moved(from) => before.get(&key(from.change, from.image)).or(own),
        };
        if base.is_none() && !state.inserts_if_absent {
            continue;
        }
        let base = base.copied().unwrap_or([u16::MAX; 2]);
        rows.insert(at, [a.unwrap_or(base[0]), b.unwrap_or(base[1])]);
    }
}

fn fold_key() -> FoldKey {
    FoldKey { columns: vec![(0, KeyForm::Text)], is_deferrable: false, ..FoldKey::default() }
}

/// Generates histories that a table with a key can have: inserts use a free key, updates and
/// deletes find their row, and a new key is free. With `swaps`, rows that differ may swap their
/// keys.
fn history(swaps: bool) -> impl Strategy<Value = (Rows, Vec<HistoryStep>)> {
    let any_step = (0..7_u8, 0..5_u8, 0..5_u8, any::<Option<u16>>(), any::<Option<u16>>());
    let start = proptest::collection::btree_map(0..5_u8, any::<[u16; 2]>(), 0..5);
    (start, proptest::collection::vec(any_step, 0..40)).prop_map(move |(start, picks)| {
        let mut rows = start.clone();
        let mut steps = Vec::new();
        for (kind, from, to, a, b) in picks {
            let kind = if swaps { kind } else { kind.min(5) };
            let is_there = rows.contains_key(&from);
            let next = match kind {
                0 | 1 if !is_there => HistoryStep::Insert(from, a.unwrap_or(1), b.unwrap_or(2)),
                0..=2 if is_there => HistoryStep::Update(from, a, b),
                3 | 4 if is_there && !rows.contains_key(&to) => HistoryStep::Move(from, to, a, b),
                6 if is_there && rows.get(&to).is_some_and(|row| *row != rows[&from]) => {
                    HistoryStep::Swap(from, to)
                }
                5 if is_there && b.is_some() => HistoryStep::Delete(from),
                5 if from == 0 && a.is_some() => HistoryStep::Truncate,
                _ => continue,
            };
            apply_step(&mut rows, &next);
            steps.push(next);
        }
        (start, steps)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The cuts into batches do not change the table.
    #[test]
    fn folded_events_give_the_table_of_single_events(
        (start, steps) in history(false),
        cuts in proptest::collection::vec(0..41_usize, 0..4),
    ) {
        let log = log_of(&steps);
        let mut expected = start.clone();
        steps.iter().for_each(|it| apply_step(&mut expected, it));
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(steps.len())).collect();
        cuts.extend([0, steps.len()]);
        cuts.sort_unstable();
        let mut rows = start;
        for pair in cuts.windows(2) {
            let folded = fold(&log, pair[0]..pair[1], &[&fold_key()]).unwrap();
            prop_assert_eq!(folded.tables[0].missing, 0);
            write(&mut rows, &log, &folded);
        }
        prop_assert_eq!(rows, expected);
    }

    /// Folding gives the same table for one transaction: with swapped keys and whole old rows, or
    /// with neither.
    #[test]
    fn a_folded_transaction_gives_the_table_of_single_events(
        ((start, steps), whole) in any::<bool>()
            .prop_flat_map(|whole| (history(whole), Just(whole))),
    ) {
        let log = transaction_of(start.clone(), &steps, whole);
        let mut expected = start.clone();
        steps.iter().for_each(|it| apply_step(&mut expected, it));
        let mut rows = start;
        let folded = fold(&log, 0..log.changes().len(), &[&fold_key()]).unwrap();
        write(&mut rows, &log, &folded);
        prop_assert_eq!(rows, expected);
    }

    /// A stream that is applied again, to a table that has later changes, gives the same table.
    #[test]
    fn a_stream_may_be_read_again((start, steps) in history(false), from in 0..40_usize) {
        // After a restart nothing is known of the events before `from`.
        let log = log_of(&steps);
        let mut rows = start;
        let whole = fold(&log, 0..steps.len(), &[&fold_key()]).unwrap();
        write(&mut rows, &log, &whole);
        let expected = rows.clone();
        let from = from.min(steps.len());
        let complete = |it: &HistoryStep| match it {
            HistoryStep::Update(_, a, b) | HistoryStep::Move(_, _, a, b) => {
                a.is_some() && b.is_some()
            }
            _ => true,
        };
        prop_assume!(steps[from..].iter().all(complete));
        let again = fold(&log, from..steps.len(), &[&fold_key()]).unwrap();
        write(&mut rows, &log, &again);
        prop_assert_eq!(rows, expected);
    }
}

#[test]
fn a_deleted_row_that_is_updated_is_missing() {
    let steps = [
        HistoryStep::Delete(1),
        HistoryStep::Update(1, Some(1), None),
        HistoryStep::Update(2, None, Some(1)),
    ];
    let log = log_of(&steps);
    let folded = fold(&log, 0..3, &[&fold_key()]).unwrap();
    assert_eq!(folded.tables[0].missing, 1);
    let mut rows = Rows::from([(1, [1, 1])]);
    write(&mut rows, &log, &folded);
    assert_eq!(rows, Rows::new());
}

/// The row under the old key was deleted, and the target may have a row under the new key.
#[test]
fn a_moved_row_that_was_deleted_leaves_the_row_under_its_new_key() {
    let steps = [HistoryStep::Delete(1), HistoryStep::Move(1, 2, Some(5), None)];
    let log = log_of(&steps);
    let folded = fold(&log, 0..2, &[&fold_key()]).unwrap();
    for before in [Rows::from([(2, [7, 8])]), Rows::new()] {
        let mut rows = before.clone();
        write(&mut rows, &log, &folded);
        let mut expected = before;
        steps.iter().for_each(|it| apply_step(&mut expected, it));
        assert_eq!(rows, expected);
    }
}

/// Few rows keep the order of their events.
#[test]
fn many_rows_are_in_the_order_of_their_keys() {
    for count in [900, 3000] {
        let mut log = EventLog::default();
        for nth in (0..count).rev().chain(0..count) {
            let values = [format!("{nth:04}"), "1".to_owned(), "2".to_owned()];
            let values = values.map(|value| EventValue::Text(value.into()));
            let row = log.add_row(WIDTH, &[Some(0), Some(1), Some(2)], &values).unwrap();
            log.push(change(log.changes().len(), ChangeKind::Insert, Some(row), None));
        }
        let folded = fold(&log, 0..log.changes().len(), &[&fold_key()]).unwrap();
        let key = |entry: &FoldedKey| {
            let change = &log.changes()[entry.key.change as usize];
            cell_number(log.cell_in_either(change, entry.key.image, 0)).unwrap()
        };
        let keys: Vec<u16> = folded.tables[0].keys_in_order().into_iter().map(key).collect();
        let sorted: Vec<u16> = (0..count).collect();
        let as_they_came: Vec<u16> = (0..count).rev().collect();
        assert_eq!(keys, if count < 1000 { as_they_came } else { sorted });
    }
}

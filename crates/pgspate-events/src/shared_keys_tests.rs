//! Rows that share a key within a transaction: folded events must give the same table as the events
//! applied one by one to a table without any constraint.

use proptest::prelude::*;

use super::event::{ChangeKind, EventValue};
use super::fold::{FoldKey, fold};
use super::fold_tests::{Rows, change, write};
use super::key_form::KeyForm;
use super::log::EventLog;

/// A change of one of the current rows, named by its index.
#[derive(Debug, Clone)]
enum SharedKeyStep {
    Insert(u8, u16),
    Move(usize, u8),
    Change(usize, u16),
    Delete(usize),
}

/// Rows of a table whose key is checked at the end of a transaction: the key, and the value of both
/// `a` and `b`.
type RowsSharingKeys = Vec<(u8, u16)>;

/// Returns the events of the transactions and the rows after them. Each transaction ends with at
/// most one row for each key.
fn log_of(start: &Rows, transactions: &[Vec<SharedKeyStep>]) -> (EventLog, Rows) {
    let mut log = EventLog::default();
    let mut rows: RowsSharingKeys = start.iter().map(|(key, values)| (*key, values[0])).collect();
    for steps in transactions {
        for step in steps {
            apply(&mut rows, step, &mut log);
        }
        let shares = |rows: &RowsSharingKeys, nth: &usize| {
            rows.iter().filter(|row| row.0 == rows[*nth].0).count() > 1
        };
        while let Some(nth) = (0..rows.len()).find(|nth| shares(&rows, nth)) {
            apply(&mut rows, &SharedKeyStep::Delete(nth), &mut log);
        }
        log.end_transaction();
    }
    let end = rows.iter().map(|(key, value)| (*key, [*value; 2])).collect();
    (log, end)
}

fn apply(rows: &mut RowsSharingKeys, step: &SharedKeyStep, log: &mut EventLog) {
    let before = rows.clone();
    let at = |nth: usize| nth % before.len();
    let (op, old, new) = match *step {
        SharedKeyStep::Insert(key, value) => (ChangeKind::Insert, None, Some((key, value))),
        _ if rows.is_empty() => return,
        SharedKeyStep::Move(nth, key) => {
            (ChangeKind::Update, Some(at(nth)), Some((key, before[at(nth)].1)))
        }
        SharedKeyStep::Change(nth, value) => {
            (ChangeKind::Update, Some(at(nth)), Some((before[at(nth)].0, value)))
        }
        SharedKeyStep::Delete(nth) => (ChangeKind::Delete, Some(at(nth)), None),
    };
    old.into_iter().for_each(|nth| _ = rows.remove(nth));
    rows.extend(new);
    let mut add = |(key, value): (u8, u16)| {
        let value = || EventValue::Text(value.to_string().into());
        let values = [EventValue::Text(key.to_string().into()), value(), value()];
        log.add_row(3, &[Some(0), Some(1), Some(2)], &values).unwrap()
    };
    let new = new.map(&mut add);
    let old = old.map(|nth| add(before[nth]));
    log.push(change(log.changes().len(), op, new, old));
}

fn steps() -> impl Strategy<Value = Vec<Vec<SharedKeyStep>>> {
    let step =
        (0..8_u8, 0..9_usize, 0..5_u8, 0..2_u16).prop_map(|(kind, nth, key, value)| match kind {
            0 => SharedKeyStep::Insert(key, value),
            1..=4 => SharedKeyStep::Move(nth, key),
            5 | 6 => SharedKeyStep::Change(nth, value),
            _ => SharedKeyStep::Delete(nth),
        });
    proptest::collection::vec(proptest::collection::vec(step, 0..12), 1..4)
}

fn start() -> impl Strategy<Value = Rows> {
    proptest::collection::btree_map(0..5_u8, (0..2_u16).prop_map(|value| [value; 2]), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// If two rows are equal, an event may be about either: the table equals the source's.
    #[test]
    fn rows_may_share_a_key_until_the_transaction_ends(
        (start, transactions) in (start(), steps()),
        is_deferrable in any::<bool>(),
    ) {
        let transactions: Vec<_> = match is_deferrable {
            true => transactions,
            // Without a deferrable key, an insert needs a free key.
            false => transactions.into_iter().map(|steps| steps.into_iter()
                .filter(|step| !matches!(step, SharedKeyStep::Insert(..))).collect()).collect(),
        };
        let (log, expected) = log_of(&start, &transactions);
        let columns = vec![(0, KeyForm::Text)];
        let fold_key = FoldKey { columns, is_deferrable, ..FoldKey::default() };
        let mut rows = start;
        let folded = fold(&log, 0..log.changes().len(), &[&fold_key]).unwrap();
        prop_assert_eq!(folded.tables[0].missing, 0);
        write(&mut rows, &log, &folded);
        prop_assert_eq!(rows, expected);
    }
}

/// Every row gets the next key, and old rows have only their key. In the second case one row moves
/// twice.
#[test]
fn keys_that_move_on_need_no_old_rows() {
    let fold_key =
        FoldKey { columns: vec![(0, KeyForm::Text)], is_deferrable: true, ..FoldKey::default() };
    for (start, picks) in
        [(vec![1, 2, 3], vec![(1, 2), (2, 3), (3, 4)]), (vec![1], vec![(1, 2), (2, 3)])]
    {
        let mut rows: Rows = start.iter().map(|key| (*key, [u16::from(*key); 2])).collect();
        let mut log = EventLog::default();
        for (nth, (from, to)) in picks.iter().enumerate() {
            let value = if start.len() == 1 { 1 } else { nth as u16 + 1 };
            let text = |number: u16| EventValue::Text(number.to_string().into());
            let all = [Some(0), Some(1), Some(2)];
            let new = log.add_row(3, &all, &[text(*to), text(value), text(value)]).unwrap();
            let old = [text(*from), EventValue::Absent, EventValue::Absent];
            let old = log.add_row(3, &all, &old).unwrap();
            log.push(change(nth, ChangeKind::Update, Some(new), Some(old)));
        }
        log.end_transaction();
        let folded = fold(&log, 0..log.changes().len(), &[&fold_key]).unwrap();
        write(&mut rows, &log, &folded);
        let expected: Rows = match start.len() {
            1 => Rows::from([(3, [1, 1])]),
            _ => (2..=4_u8).map(|key| (key, [u16::from(key) - 1; 2])).collect(),
        };
        assert_eq!(rows, expected);
    }
}

/// Without transactions, folding only notes that a row takes the key of another row: the server
/// decides.
#[test]
fn keys_that_are_taken_are_noted_without_transactions() {
    let fold_key =
        FoldKey { columns: vec![(0, KeyForm::Text)], is_deferrable: false, ..FoldKey::default() };
    let mut log = EventLog::default();
    apply(&mut vec![(1, 1), (2, 2)], &SharedKeyStep::Move(0, 2), &mut log);
    log.end_transaction();
    let folded = fold(&log, 0..1, &[&fold_key]).unwrap();
    assert_eq!((folded.tables[0].taken_keys.len(), folded.tables[0].has_key_clash), (1, false));
    let inserts = vec![SharedKeyStep::Insert(1, 1), SharedKeyStep::Insert(2, 2)];
    let (mut log, _) = log_of(&Rows::new(), &[inserts]);
    apply(&mut vec![(1, 1), (2, 2)], &SharedKeyStep::Move(0, 2), &mut log);
    log.end_transaction();
    let folded = fold(&log, 0..3, &[&fold_key]).unwrap();
    assert_eq!((folded.tables[0].taken_keys.len(), folded.tables[0].has_key_clash), (0, true));
}

//! Rows that share a key within a transaction: what is left of events against a table without any
//! constraint until the transaction ends.

use proptest::prelude::*;

use super::canon::Canon;
use super::event::{ChangeKind, EventValue};
use super::fold::{FoldKey, fold};
use super::fold_tests::{Rows, change, write};
use super::log::EventLog;

/// What happens to which of the rows that there are then.
#[derive(Debug, Clone)]
enum Step {
    Insert(u8, u16),
    Move(usize, u8),
    LoggedEvent(usize, u16),
    Delete(usize),
}

/// Rows of a table whose key is checked at the end of a transaction; `a` and `b` are the same.
type Loose = Vec<(u8, u16)>;

/// The events of transactions, each of which ends with one row for each key.
fn log_of(start: &Rows, transactions: &[Vec<Step>]) -> (EventLog, Rows) {
    let mut log = EventLog::default();
    let mut rows: Loose = start.iter().map(|(key, values)| (*key, values[0])).collect();
    for steps in transactions {
        for step in steps {
            apply(&mut rows, step, &mut log);
        }
        let shares =
            |rows: &Loose, nth: &usize| rows.iter().filter(|row| row.0 == rows[*nth].0).count() > 1;
        while let Some(nth) = (0..rows.len()).find(|nth| shares(&rows, nth)) {
            apply(&mut rows, &Step::Delete(nth), &mut log);
        }
        log.end_transaction();
    }
    let end = rows.iter().map(|(key, value)| (*key, [*value; 2])).collect();
    (log, end)
}

fn apply(rows: &mut Loose, step: &Step, log: &mut EventLog) {
    let before = rows.clone();
    let at = |nth: usize| nth % before.len();
    let (op, old, new) = match *step {
        Step::Insert(key, value) => (ChangeKind::Insert, None, Some((key, value))),
        _ if rows.is_empty() => return,
        Step::Move(nth, key) => (ChangeKind::Update, Some(at(nth)), Some((key, before[at(nth)].1))),
        Step::LoggedEvent(nth, value) => (ChangeKind::Update, Some(at(nth)), Some((before[at(nth)].0, value))),
        Step::Delete(nth) => (ChangeKind::Delete, Some(at(nth)), None),
    };
    old.into_iter().for_each(|nth| _ = rows.remove(nth));
    rows.extend(new);
    let mut add = |(key, value): (u8, u16)| {
        let value = || EventValue::Text(value.to_string().into());
        let values = [EventValue::Text(key.to_string().into()), value(), value()];
        log.row(3, &[Some(0), Some(1), Some(2)], &values).unwrap()
    };
    let new = new.map(&mut add);
    let old = old.map(|nth| add(before[nth]));
    log.push(change(log.changes().len(), op, new, old));
}

fn steps() -> impl Strategy<EventValue = Vec<Vec<Step>>> {
    let step =
        (0..8_u8, 0..9_usize, 0..5_u8, 0..2_u16).prop_map(|(kind, nth, key, value)| match kind {
            0 => Step::Insert(key, value),
            1..=4 => Step::Move(nth, key),
            5 | 6 => Step::LoggedEvent(nth, value),
            _ => Step::Delete(nth),
        });
    proptest::collection::vec(proptest::collection::vec(step, 0..12), 1..4)
}

fn start() -> impl Strategy<EventValue = Rows> {
    proptest::collection::btree_map(0..5_u8, (0..2_u16).prop_map(|value| [value; 2]), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Whichever of the rows that are alike an event takes, the table is as in the source.
    #[test]
    fn rows_may_share_a_key_until_the_transaction_ends(
        (start, transactions) in (start(), steps()),
        is_deferrable in any::<bool>(),
    ) {
        let transactions: Vec<_> = match is_deferrable {
            true => transactions,
            // An insert is then of a key that is free.
            false => transactions.into_iter().map(|steps| steps.into_iter()
                .filter(|step| !matches!(step, Step::Insert(..))).collect()).collect(),
        };
        let (log, expected) = log_of(&start, &transactions);
        let keying = FoldKey { columns: vec![(0, Canon::Text)], is_deferrable };
        let mut rows = start;
        let folded = fold(&log, 0..log.changes().len(), &[&keying]).unwrap();
        prop_assert_eq!(folded.tables[0].missing, 0);
        write(&mut rows, &log, &folded);
        prop_assert_eq!(rows, expected);
    }
}

/// All keys move on by one; old rows tell their key alone. Of rows whose next key is free one moves
/// on twice.
#[test]
fn keys_that_move_on_need_no_old_rows() {
    let keying = FoldKey { columns: vec![(0, Canon::Text)], is_deferrable: true };
    for (start, picks) in
        [(vec![1, 2, 3], vec![(1, 2), (2, 3), (3, 4)]), (vec![1], vec![(1, 2), (2, 3)])]
    {
        let mut rows: Rows = start.iter().map(|key| (*key, [u16::from(*key); 2])).collect();
        let mut log = EventLog::default();
        for (nth, (from, to)) in picks.iter().enumerate() {
            let value = if start.len() == 1 { 1 } else { nth as u16 + 1 };
            let text = |number: u16| EventValue::Text(number.to_string().into());
            let all = [Some(0), Some(1), Some(2)];
            let new = log.row(3, &all, &[text(*to), text(value), text(value)]).unwrap();
            let old = [text(*from), EventValue::Absent, EventValue::Absent];
            let old = log.row(3, &all, &old).unwrap();
            log.push(change(nth, ChangeKind::Update, Some(new), Some(old)));
        }
        log.end_transaction();
        let folded = fold(&log, 0..log.changes().len(), &[&keying]).unwrap();
        write(&mut rows, &log, &folded);
        let expected: Rows = match start.len() {
            1 => Rows::from([(3, [1, 1])]),
            _ => (2..=4_u8).map(|key| (key, [u16::from(key) - 1; 2])).collect(),
        };
        assert_eq!(rows, expected);
    }
}

/// Without transactions, a row that takes another one's key is not for us to judge.
#[test]
fn keys_that_are_taken_are_noted_without_transactions() {
    let keying = FoldKey { columns: vec![(0, Canon::Text)], is_deferrable: false };
    let mut log = EventLog::default();
    apply(&mut vec![(1, 1), (2, 2)], &Step::Move(0, 2), &mut log);
    log.end_transaction();
    let folded = fold(&log, 0..1, &[&keying]).unwrap();
    assert_eq!((folded.tables[0].takes.len(), folded.tables[0].has_clash), (1, false));
    let inserts = vec![Step::Insert(1, 1), Step::Insert(2, 2)];
    let (mut log, _) = log_of(&Rows::new(), &[inserts]);
    apply(&mut vec![(1, 1), (2, 2)], &Step::Move(0, 2), &mut log);
    log.end_transaction();
    let folded = fold(&log, 0..3, &[&keying]).unwrap();
    assert_eq!((folded.tables[0].takes.len(), folded.tables[0].has_clash), (0, true));
}

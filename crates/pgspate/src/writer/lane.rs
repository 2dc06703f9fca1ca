//! A lane: takes the units that wait, writes them with one session, and answers their callers.
//!
//! A set that the server refuses is written again in halves, until the refused unit is alone. So no
//! caller gets an error of another caller's records. A set that waits for a lock of another session
//! is written again by a statement for each unit. The units that are locked then are handed to
//! `WaitingSessions`, so that the lane's other units do not wait with them.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::core::WriterCore;
use super::governor::SetSize;
use super::session::{RecordSession, WriteFailure, copy_error};
use super::shape::has_outdated_types;
use super::unit::{InsertOutcome, UnitWay, WriteUnit};
use crate::{Error, ErrorKind, Result};
use pgspate_target::session::ReconnectBackoff;

/// How long a lane's statement waits for a lock, in milliseconds. Shorter than any deadlock
/// timeout, so that lanes cause no deadlock.
pub(super) const LANE_LOCK_TIMEOUT: i32 = 25;
/// Smaller sets cost more than a statement for each unit, which needs no second try.
const SET_ROWS_MIN: usize = 8;

/// A lane of a writer.
pub(super) struct RecordLane {
    core: Arc<WriterCore>,
    session: Option<RecordSession>,
    size: SetSize,
    /// The units of the batch that wait for locks, in their order.
    locked: Vec<WriteUnit>,
}

/// The result of sending units.
enum Sent {
    /// All units have their answers.
    Answered,
    /// The session was lost. These units were not sent.
    Unsent(Vec<WriteUnit>),
}

impl Sent {
    /// Returns that these units, and those of the other sets, were not sent.
    fn unsent(mut units: Vec<WriteUnit>, sets: VecDeque<Vec<WriteUnit>>) -> Sent {
        units.extend(sets.into_iter().flatten());
        Sent::Unsent(units)
    }
}

impl Drop for RecordLane {
    /// A lane that panicked must not count as a lane that writes: then closing would wait for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.core.end_panicked_lane();
        }
    }
}

impl RecordLane {
    pub(super) fn new(core: Arc<WriterCore>) -> RecordLane {
        let size = SetSize::new(core.options.set_rows);
        RecordLane { core, session: None, size, locked: Vec::new() }
    }

    /// Writes what waits, until the writer is closed and nothing waits any more, or the lane has
    /// long been idle.
    pub(super) async fn run(mut self) {
        while let Some(units) = self.core.next_units(self.size.rows()).await {
            let records = units.iter().map(|unit| unit.rows.len() as u64).sum();
            let batch_units = units.len();
            let unsent = self.write(units.into()).await;
            self.core.wait_for_locks(std::mem::take(&mut self.locked));
            let is_ending = !unsent.is_empty();
            self.core.end_batch(records, batch_units, unsent.into_iter());
            if is_ending {
                break;
            }
        }
        self.core.end_lane();
        if let Some(session) = self.session.take() {
            session.close().await;
        }
    }

    /// Writes units and answers them. Units that were not sent when the server was lost are sent
    /// again until the time limit. Returns the units that another lane must write, because the
    /// server accepts no connection of this lane.
    async fn write(&mut self, mut units: VecDeque<WriteUnit>) -> VecDeque<WriteUnit> {
        let mut backoff = ReconnectBackoff::new(self.core.options.limits.retry_for);
        while !units.is_empty() {
            if let Err(error) = self.open_session().await {
                if self.core.may_end_lane(&error) {
                    return units;
                }
                let pause = if error.is_retryable() { backoff.next_pause() } else { None };
                let Some(pause) = pause else {
                    units.into_iter().for_each(|it| self.core.answer_unsent(it, &error));
                    return VecDeque::new();
                };
                tokio::time::sleep(pause).await;
                continue;
            }
            let run = self.take_run(&mut units);
            if let Sent::Unsent(unsent) = self.write_run(run).await {
                unsent.into_iter().rev().for_each(|unit| units.push_front(unit));
                // The server may accept sessions and lose each of them at once.
                let Some(pause) = backoff.next_pause() else {
                    let message = "the server loses each session that prepares the INSERT";
                    let error = Error::new(ErrorKind::Connect, message);
                    units.into_iter().for_each(|it| self.core.answer_unsent(it, &error));
                    return VecDeque::new();
                };
                tokio::time::sleep(pause).await;
            }
        }
        units
    }

    /// Opens a session, unless there is one.
    async fn open_session(&mut self) -> Result<()> {
        if self.session.as_ref().is_none_or(RecordSession::is_closed) {
            self.session = None;
            self.session = Some(RecordSession::open(&self.core, LANE_LOCK_TIMEOUT).await?);
        }
        Ok(())
    }

    /// Writes units that may be written in the same way.
    async fn write_run(&mut self, (way, units): (UnitWay, Vec<WriteUnit>)) -> Sent {
        match way {
            UnitWay::InSet if units.len() > 1 => self.write_sets(units).await,
            UnitWay::InSet | UnitWay::OwnStatement => self.write_each(units).await,
            UnitWay::OwnTransaction => self.write_transactions(units).await,
        }
    }

    /// Writes units by as few statements as possible.
    async fn write_sets(&mut self, units: Vec<WriteUnit>) -> Sent {
        let mut sets = VecDeque::from([units]);
        while let Some(mut units) = sets.pop_front() {
            if let [_] = &units[..] {
                match self.write_each(units).await {
                    Sent::Answered => continue,
                    Sent::Unsent(unsent) => return Sent::unsent(unsent, sets),
                }
            }
            let Some(session) = &mut self.session else { return Sent::unsent(units, sets) };
            let rows = units.iter().map(|unit| unit.rows.len()).sum();
            match session.write_set(&units).await {
                Ok(outcomes) => {
                    self.size.note_written();
                    self.core.counters.count_set(rows);
                    let answers = units.into_iter().zip(outcomes);
                    answers.for_each(|(unit, outcome)| self.core.answer(unit, Ok(outcome)));
                }
                Err(WriteFailure::Unsent(error)) if error.kind() == ErrorKind::Connect => {
                    self.session = None;
                    return Sent::unsent(units, sets);
                }
                Err(WriteFailure::Sent(error)) if error.kind() == ErrorKind::Connect => {
                    return Sent::unsent(self.lose(units, &error), sets);
                }
                Err(WriteFailure::Sent(error)) if concerns_all(&error) => {
                    let refuse = |unit| self.core.answer(unit, Err(copy_error(&error)));
                    units.into_iter().for_each(refuse);
                }
                // Keys of the table are dropped, so the server would not be asked for any half.
                Err(WriteFailure::Unsent(error)) if error.kind() == ErrorKind::Ledger => {
                    if let Sent::Unsent(unsent) = self.refuse_unsent(units, &error) {
                        return Sent::unsent(unsent, sets);
                    }
                }
                Err(WriteFailure::Unsent(error) | WriteFailure::Sent(error))
                    if is_lock_timeout(&error) =>
                {
                    self.core.counters.count_refused_set();
                    // Each half with a locked record would wait once more.
                    if let Sent::Unsent(unsent) = self.write_each(units).await {
                        return Sent::unsent(unsent, sets);
                    }
                }
                Err(WriteFailure::Unsent(error)) => {
                    self.size.note_refused(rows);
                    self.core.counters.count_refused_set();
                    self.core.note_refusal(&units[0].shape, &error);
                    // The server refuses the statement of a set, so it would refuse each half, too.
                    let (single, several): (Vec<_>, Vec<_>) =
                        units.into_iter().partition(|unit| unit.rows.len() == 1);
                    self.refuse_unsent(several, &error);
                    if let Sent::Unsent(unsent) = self.write_each(single).await {
                        return Sent::unsent(unsent, sets);
                    }
                }
                Err(WriteFailure::Sent(error)) => {
                    self.size.note_refused(rows);
                    self.core.counters.count_refused_set();
                    self.core.note_refusal(&units[0].shape, &error);
                    let second = units.split_off(units.len() / 2);
                    sets.push_front(second);
                    sets.push_front(units);
                }
            }
        }
        Sent::Answered
    }

    /// Writes each unit by a statement of its own.
    async fn write_each(&mut self, units: Vec<WriteUnit>) -> Sent {
        let Some(session) = &mut self.session else { return Sent::Unsent(units) };
        match session.write_each(&units).await {
            Ok(answers) => {
                if units.len() > 1 && answers.iter().all(Result::is_ok) {
                    self.size.note_written();
                }
                self.answer(units, answers)
            }
            Err(error) => self.refuse_unsent(units, &error),
        }
    }

    /// Writes each unit in a transaction of its own.
    async fn write_transactions(&mut self, units: Vec<WriteUnit>) -> Sent {
        let mut units = units.into_iter();
        while let Some(unit) = units.next() {
            let Some(session) = &mut self.session else {
                return Sent::Unsent(std::iter::once(unit).chain(units).collect());
            };
            let sent = match session.write_transaction(&unit).await {
                Ok(answer) => self.answer(vec![unit], vec![answer]),
                Err(error) => self.refuse_unsent(vec![unit], &error),
            };
            if let Sent::Unsent(mut unsent) = sent {
                unsent.extend(units);
                return Sent::Unsent(unsent);
            }
        }
        Sent::Answered
    }

    /// Answers units with their results. Keeps those that wait for a lock. Returns the units
    /// that must be sent again, because the session was lost.
    fn answer(&mut self, units: Vec<WriteUnit>, answers: Vec<Result<InsertOutcome>>) -> Sent {
        let mut unsent = Vec::new();
        for (unit, answer) in units.into_iter().zip(answers) {
            match answer {
                Err(error) if error.kind() == ErrorKind::Connect => {
                    unsent.extend(self.lose(vec![unit], &error));
                }
                Err(error) if is_lock_timeout(&error) => self.locked.push(unit),
                answer => {
                    if let Err(error) = &answer {
                        self.core.note_refusal(&unit.shape, error);
                        if error.sqlstate() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                            // Another server may be the primary now.
                            self.session = None;
                        }
                    }
                    self.core.counters.count_statement();
                    self.core.answer(unit, answer);
                }
            }
        }
        if unsent.is_empty() { Sent::Answered } else { Sent::Unsent(unsent) }
    }

    /// Answers units whose statements could not be prepared. Returns them if the session was lost.
    fn refuse_unsent(&mut self, units: Vec<WriteUnit>, error: &Error) -> Sent {
        if error.kind() == ErrorKind::Connect {
            self.session = None;
            return Sent::Unsent(units);
        }
        if is_lock_timeout(error) {
            self.locked.extend(units);
            return Sent::Answered;
        }
        for unit in units {
            self.core.note_refusal(&unit.shape, error);
            self.core.answer(unit, Err(copy_error(error)));
        }
        Sent::Answered
    }

    /// Answers units whose result was lost together with the session. Returns those that may be
    /// sent again.
    fn lose(&mut self, units: Vec<WriteUnit>, lost: &Error) -> Vec<WriteUnit> {
        self.session = None;
        let mut again = Vec::new();
        for mut unit in units {
            match unit.may_send_again() {
                true => again.push(unit),
                false => self.core.answer_unknown(unit, lost),
            }
        }
        again
    }

    /// Takes the first units that may be written in the same way, and returns that way. Takes no
    /// more records than a set may have.
    fn take_run(&self, units: &mut VecDeque<WriteUnit>) -> (UnitWay, Vec<WriteUnit>) {
        let are_sets_worthwhile = self.size.rows() >= SET_ROWS_MIN;
        let way = |unit: &WriteUnit| match unit.way() {
            UnitWay::InSet if !are_sets_worthwhile => UnitWay::OwnStatement,
            way => way,
        };
        let Some(first) = units.front().map(way) else { return (UnitWay::InSet, Vec::new()) };
        let options = &self.core.options;
        let (mut rows, mut bytes) = (0, 0);
        let fits = |unit: &&WriteUnit| {
            rows += unit.rows.len();
            bytes += unit.rows.bytes();
            way(unit) == first && rows <= options.set_rows && bytes <= options.set_bytes
        };
        let count = units.iter().take_while(fits).count().max(1);
        (first, units.drain(..count).collect())
    }
}

/// Returns whether the error of a set concerns each of its units: the outcome is unknown, or the
/// table's columns have other types. Then no half of the set is tried.
fn concerns_all(error: &Error) -> bool {
    error.kind() == ErrorKind::OutcomeUnknown || has_outdated_types(error)
}

/// Returns whether a statement has waited too long for a lock of another session.
pub(super) fn is_lock_timeout(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

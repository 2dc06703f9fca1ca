//! The state that the callers and the lanes of a writer share.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, OnceCell, OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio_postgres::error::SqlState;

use super::WriterOptions;
use super::counters::{WriterCounters, WriterReport};
use super::facts::set_up_facts;
use super::governor::LaneGovernor;
use super::kept_shapes::KeptShape;
use super::lane::RecordLane;
use super::queue::{SetLimits, UnitQueue};
use super::rows::EncodedRows;
use super::session::copy_error;
use super::shape::{InsertRequest, InsertShape, has_outdated_types};
use super::unit::{InsertOutcome, WriteUnit};
use super::waiting::{LockedCall, WaitingSessions};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::{KEYS_DROPPED, ensure_ledger, prune_requests};
use pgspate_target::{read_session, value_settings_sql};

/// How long a lane without work keeps its session.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// How many bytes a permit of the queue's room stands for.
const ROOM_UNIT: usize = 1024;
/// How often old idempotency keys are forgotten.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);

/// Errors for which the records are not at fault: lock timeout, cancelled statement, deadlock,
/// a server that has become a standby, dropped keys of the table.
const NOT_TRIED: [SqlState; 5] = [
    SqlState::LOCK_NOT_AVAILABLE,
    SqlState::QUERY_CANCELED,
    SqlState::T_R_DEADLOCK_DETECTED,
    SqlState::READ_ONLY_SQL_TRANSACTION,
    KEYS_DROPPED,
];

/// The shared state of a writer.
#[derive(Debug)]
pub(super) struct WriterCore {
    pub(super) dsn: Dsn,
    /// Sets what the meaning of a value's text depends on, in all sessions, to what it was when the
    /// writer was opened. Otherwise a change of the server's settings would reach some of them.
    pub(super) value_settings: String,
    pub(super) options: WriterOptions,
    pub(super) counters: WriterCounters,
    pub(super) waiting: WaitingSessions,
    pub(super) runtime: Handle,
    /// The room of the queue that is left, in units of `ROOM_UNIT`.
    room: Arc<Semaphore>,
    room_size: u32,
    lanes: Mutex<LaneState>,
    /// Wakes a lane.
    work: Notify,
    /// Wakes the one who closes the writer, when a lane ends.
    lane_ended: Notify,
    is_closing: AtomicBool,
    next_call: AtomicU64,
    pub(super) shapes: Mutex<HashMap<InsertRequest, KeptShape>>,
    /// Set once the ledger, which has the idempotency keys, exists.
    ledger: OnceCell<()>,
    /// When old idempotency keys were last forgotten.
    pruned: Mutex<Option<Instant>>,
    /// The session that reads what tables are.
    pub(super) facts: tokio::sync::Mutex<Option<Connection>>,
    /// When the facts of a table could last not be read, because it was locked.
    pub(super) locked_tables: Mutex<HashMap<String, Instant>>,
}

#[derive(Debug)]
struct LaneState {
    queue: UnitQueue,
    governor: LaneGovernor,
    /// Lanes that exist.
    open: usize,
    /// Lanes that write now.
    busy: usize,
}

impl WriterCore {
    /// Opens the state, with one connection.
    pub(super) async fn open(
        dsn: Dsn,
        options: WriterOptions,
        runtime: &Handle,
    ) -> Result<Arc<WriterCore>> {
        let dsn = dsn.with_stall_timeout(options.limits.stall_timeout);
        let connection = dsn.connect("pgspate write").await?;
        let value_settings = value_settings_sql(&read_session(&connection.client).await?);
        set_up_facts(&connection, &value_settings).await?;
        let connections = options.connections.max(1);
        let waiters = if connections < 4 { 1 } else { (connections / 4).max(2) };
        let room_size = u32::try_from(options.queue_bytes / ROOM_UNIT).unwrap_or(u32::MAX).max(1);
        let room_size = room_size.min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        let governor =
            LaneGovernor::new(connections.saturating_sub(waiters).max(1), Instant::now());
        Ok(Arc::new(WriterCore {
            waiting: WaitingSessions::new(waiters),
            room: Arc::new(Semaphore::new(room_size as usize)),
            room_size,
            lanes: Mutex::new(LaneState {
                queue: UnitQueue::default(),
                governor,
                open: 0,
                busy: 0,
            }),
            counters: WriterCounters::default(),
            runtime: runtime.clone(),
            work: Notify::new(),
            lane_ended: Notify::new(),
            is_closing: AtomicBool::new(false),
            next_call: AtomicU64::new(0),
            shapes: Mutex::new(HashMap::new()),
            ledger: OnceCell::new(),
            pruned: Mutex::new(None),
            facts: tokio::sync::Mutex::new(Some(connection)),
            locked_tables: Mutex::new(HashMap::new()),
            dsn,
            value_settings,
            options,
        }))
    }

    /// Queues the records, and waits for their answers.
    pub(super) async fn insert(
        self: &Arc<WriterCore>,
        shape: &Arc<InsertShape>,
        records: Vec<EncodedRows>,
    ) -> Result<Vec<Result<InsertOutcome>>> {
        if records.iter().any(EncodedRows::has_key) {
            shape.check_takes_keys()?;
            self.prepare_keys().await?;
        }
        let call = self.next_call.fetch_add(1, Ordering::Relaxed);
        let mut units = Vec::with_capacity(records.len());
        let mut receivers = Vec::with_capacity(records.len());
        // At once for the whole call: calls that each had a part of the room would wait for each
        // other.
        let room = Arc::new(self.take_room(&records).await?);
        for rows in records {
            let (unit, receiver) = WriteUnit::new(shape.clone(), rows, call, room.clone());
            receivers.push(receiver);
            units.push(unit);
        }
        // A caller that stops waiting must keep no room, as closing waits for all of it.
        drop(room);
        let empty = |unit: &WriteUnit| unit.rows.is_empty();
        for unit in units.extract_if(.., |unit| empty(unit)) {
            unit.answer(Ok(InsertOutcome::default()));
        }
        self.queue(units)?;
        let mut answers = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            answers.push(receiver.await.unwrap_or_else(|_| Err(abandoned_error())));
        }
        self.mark_outdated(shape, &mut answers).await;
        Ok(answers)
    }

    /// Creates the ledger before the first call with an idempotency key, and forgets old keys from
    /// time to time.
    async fn prepare_keys(self: &Arc<WriterCore>) -> Result<()> {
        let create = async || {
            let mut kept = self.facts.lock().await;
            let connection = self.take_facts_connection(&mut kept).await?;
            ensure_ledger(&connection.client).await?;
            *kept = Some(connection);
            Ok::<_, Error>(())
        };
        self.ledger.get_or_try_init(create).await?;
        {
            let mut pruned = self.pruned.lock().unwrap_or_else(PoisonError::into_inner);
            if pruned.is_some_and(|at| at.elapsed() < PRUNE_INTERVAL) {
                return Ok(());
            }
            *pruned = Some(Instant::now());
        }
        let core = self.clone();
        self.runtime.spawn(async move {
            // With a session of its own, as the one for facts would keep callers waiting.
            if let Ok(connection) = core.dsn.connect("pgspate write").await {
                // Old keys do no harm. The next time comes soon.
                let _ = prune_requests(&connection.client, core.options.keep_keys).await;
                connection.close().await;
            }
        });
        Ok(())
    }

    /// Takes room for a call. Waits for room, or refuses, as the options say. A call that needs
    /// more than there is takes all of it.
    async fn take_room(&self, records: &[EncodedRows]) -> Result<OwnedSemaphorePermit> {
        let units = records.iter().map(|rows| rows.bytes().div_ceil(ROOM_UNIT).max(1));
        let units = u32::try_from(units.sum::<usize>()).unwrap_or(u32::MAX);
        let units = units.clamp(1, self.room_size);
        let room = self.room.clone();
        if !self.options.refuses_when_full {
            return room.acquire_many_owned(units).await.map_err(|_| closed_error());
        }
        room.try_acquire_many_owned(units).map_err(|error| match error {
            TryAcquireError::Closed => closed_error(),
            TryAcquireError::NoPermits => {
                let message = "the queue of the writer is full";
                Error::new(ErrorKind::QueueFull, message).hint("Send the records again later.")
            }
        })
    }

    /// Returns whether the queue has no room left.
    pub(super) fn is_full(&self) -> bool {
        self.room.available_permits() == 0
    }

    /// Gives units to a lane.
    fn queue(self: &Arc<WriterCore>, units: Vec<WriteUnit>) -> Result<()> {
        let mut lanes = self.lanes();
        // Under the lock, so that no unit is queued after the last lane has ended.
        if self.is_closing.load(Ordering::Relaxed) {
            return Err(closed_error());
        }
        lanes.queue.push(units);
        self.wake_lane(&mut lanes);
        Ok(())
    }

    /// Wakes an idle lane, or starts one, if units wait and one more lane may write.
    fn wake_lane(self: &Arc<WriterCore>, lanes: &mut LaneState) {
        if lanes.queue.is_empty() || lanes.busy >= lanes.governor.lanes() {
            return;
        }
        if lanes.open > lanes.busy {
            self.work.notify_one();
        } else {
            lanes.open += 1;
            self.runtime.spawn(RecordLane::new(self.clone()).run());
        }
    }

    /// Waits for units, and takes at most `rows` records. Returns `None` if the lane must end.
    pub(super) async fn next_units(self: &Arc<WriterCore>, rows: usize) -> Option<Vec<WriteUnit>> {
        // Callers that are ready now are in the same set.
        tokio::task::yield_now().await;
        loop {
            {
                let mut lanes = self.lanes();
                if !lanes.queue.is_empty() && lanes.busy < lanes.governor.lanes() {
                    let limits = SetLimits { rows, bytes: self.options.set_bytes };
                    let units = lanes.queue.take(limits);
                    lanes.busy += 1;
                    self.wake_lane(&mut lanes);
                    return Some(units);
                }
                if lanes.queue.is_empty() && self.is_closing.load(Ordering::Relaxed) {
                    return None;
                }
            }
            if tokio::time::timeout(IDLE_LIMIT, self.work.notified()).await.is_err() {
                let lanes = self.lanes();
                if lanes.queue.is_empty() || lanes.open > lanes.governor.lanes() {
                    return None;
                }
            }
        }
    }

    /// Takes notice of a lane's end. `unsent` are units that the lane could not send.
    pub(super) fn end_batch(
        self: &Arc<WriterCore>,
        records: u64,
        units: usize,
        unsent: impl DoubleEndedIterator<Item = WriteUnit>,
    ) {
        let mut lanes = self.lanes();
        lanes.busy -= 1;
        lanes.queue.push_front(unsent);
        let is_crowded = units > 1 || !lanes.queue.is_empty();
        lanes.governor.count_batch(records, is_crowded, Instant::now());
        self.wake_lane(&mut lanes);
    }

    /// Takes notice of the end of a lane.
    pub(super) fn end_lane(self: &Arc<WriterCore>) {
        let mut lanes = self.lanes();
        lanes.open -= 1;
        self.wake_lane(&mut lanes);
        drop(lanes);
        self.lane_ended.notify_one();
    }

    /// Takes notice of a lane that panicked while it wrote. Its callers get an error.
    pub(super) fn end_panicked_lane(self: &Arc<WriterCore>) {
        let mut lanes = self.lanes();
        lanes.busy = lanes.busy.saturating_sub(1);
        drop(lanes);
        self.end_lane();
    }

    /// Returns whether a lane that cannot connect may end, because the server has no connection
    /// left and other lanes write.
    pub(super) fn may_end_lane(&self, error: &Error) -> bool {
        let mut lanes = self.lanes();
        let is_refused = error.sqlstate() == Some(&SqlState::TOO_MANY_CONNECTIONS);
        let may_end = is_refused && lanes.open > 1;
        if may_end {
            let others = lanes.open - 1;
            lanes.governor.limit_lanes(others, Instant::now());
        }
        may_end
    }

    /// Answers a unit, and counts the answer.
    pub(super) fn answer(&self, unit: WriteUnit, answer: Result<InsertOutcome>) {
        if let Err(error) = &answer
            && unit.losses > 0
            && error.sqlstate().is_some_and(|code| NOT_TRIED.contains(code))
        {
            // The backend of a lost session may still write the records.
            return self.answer_unknown(unit, error);
        }
        match &answer {
            // An earlier call with the same key wrote the rows, and counted them. After a lost
            // connection, this call itself may have written them.
            Ok(outcome) if outcome.is_repeat && unit.losses == 0 => {}
            Ok(outcome) => self.counters.count_rows(outcome.rows),
            // Its caller encodes the records again.
            Err(error) if has_outdated_types(error) => {}
            Err(_) => self.counters.count_refused(),
        }
        unit.answer(answer);
    }

    /// Answers a unit that could not be sent. If it was sent before, its outcome is unknown.
    pub(super) fn answer_unsent(&self, unit: WriteUnit, error: &Error) {
        match unit.losses {
            0 => self.answer(unit, Err(copy_error(error))),
            _ => self.answer_unknown(unit, error),
        }
    }

    /// Tells a caller that the outcome of its records is unknown.
    pub(super) fn answer_unknown(&self, unit: WriteUnit, lost: &Error) {
        self.counters.count_unknown();
        unit.answer_unknown(lost);
    }

    /// Writes units of a batch that wait for locks, in sessions of their own.
    pub(super) fn wait_for_locks(self: &Arc<WriterCore>, units: Vec<WriteUnit>) {
        units.iter().for_each(|_| self.counters.count_lock_wait());
        for call in LockedCall::of_batch(units) {
            self.waiting.add(self, call);
        }
    }

    /// Runs a task beside the lanes.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Gives units to the lanes that have been taken before. They go also while the writer closes.
    pub(super) fn queue_again(self: &Arc<WriterCore>, units: impl IntoIterator<Item = WriteUnit>) {
        let mut lanes = self.lanes();
        lanes.queue.push(units);
        self.wake_lane(&mut lanes);
    }

    /// Returns what the writer has done so far.
    pub(super) fn report(&self) -> WriterReport {
        let lanes = self.lanes();
        WriterReport {
            lanes: lanes.busy as u64,
            lanes_allowed: lanes.governor.lanes() as u64,
            waiting: lanes.queue.records() as u64,
            ..self.counters.report()
        }
    }

    /// Accepts no further units. The lanes write what is queued, and end.
    pub(super) fn begin_close(&self) {
        let lanes = self.lanes();
        self.is_closing.store(true, Ordering::Relaxed);
        drop(lanes);
        self.work.notify_waiters();
        self.work.notify_one();
    }

    /// Closes the writer, and waits until all units have their answers and all lanes have ended.
    pub(super) async fn close(self: &Arc<WriterCore>) -> WriterReport {
        self.begin_close();
        // Each unit keeps its part of the room until it is answered.
        drop(self.room.acquire_many(self.room_size).await);
        self.room.close();
        loop {
            let ended = self.lane_ended.notified();
            if self.lanes().open == 0 {
                break;
            }
            self.work.notify_waiters();
            let _ = tokio::time::timeout(Duration::from_millis(50), ended).await;
        }
        self.waiting.close().await;
        if let Some(connection) = self.facts.lock().await.take() {
            connection.close().await;
        }
        self.report()
    }

    fn lanes(&self) -> MutexGuard<'_, LaneState> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error of a call whose lane has ended, for example with its runtime.
fn abandoned_error() -> Error {
    let message = "the writer ended before the server answered";
    Error::new(ErrorKind::OutcomeUnknown, message)
}

fn closed_error() -> Error {
    Error::new(ErrorKind::Usage, "the writer is closed")
}

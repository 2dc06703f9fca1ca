//! Sessions for units that wait for locks of other sessions, so that no lane waits with them.
//!
//! Most of these sessions wait for one unit each, as long as the writer's options say. Further
//! units are parked. The last session tries the parked units in turn. So a unit whose lock is free
//! is written although others wait for a lock that is held for long. Between two rounds of tries
//! this session waits for the oldest units, so that a lock that is never free for long is got too.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore};

use super::core::{IDLE_LIMIT, WriterCore};
use super::lane::{LANE_LOCK_TIMEOUT, is_lock_timeout};
use super::session::{RecordSession, copy_error};
use super::unit::{InsertOutcome, UnitWay, WriteUnit};
use crate::{Error, ErrorKind, Result};
use pgspate_target::session::ReconnectBackoff;

/// The most calls that are tried at once.
const TRIED_CALLS_MAX: usize = 1000;
/// The time between two rounds of tries, as a multiple of the time of the last round. Each try of a
/// locked record is a line in the server's log.
const PAUSE_FACTOR: u32 = 10;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The units of one call that wait for locks, in their order. Only the first one is sent. Then the
/// lanes get the others back.
#[derive(Debug)]
pub(super) struct LockedCall {
    units: VecDeque<WriteUnit>,
    since: Instant,
}

impl LockedCall {
    /// Sorts the locked units of a batch by their calls.
    pub(super) fn of_batch(units: Vec<WriteUnit>) -> Vec<LockedCall> {
        let mut calls: Vec<LockedCall> = Vec::new();
        let mut places = HashMap::new();
        for unit in units {
            let place = *places.entry(unit.call).or_insert(calls.len());
            if place == calls.len() {
                calls.push(LockedCall { units: VecDeque::new(), since: Instant::now() });
            }
            calls[place].units.push_back(unit);
        }
        calls
    }
}

/// The calls that find no session free.
#[derive(Default)]
struct ParkedCalls {
    calls: VecDeque<LockedCall>,
    /// Whether a task tries them in turn.
    is_trying: bool,
}

/// The sessions of waiting units.
pub(super) struct WaitingSessions {
    /// The sessions that may wait for a lock. The one that tries parked calls is not among them.
    permits: Semaphore,
    /// The sessions that wait for nothing, and since when.
    free: Mutex<Vec<(RecordSession, Instant)>>,
    /// Whether a task ends free sessions.
    is_ending_idle: AtomicBool,
    parked: Mutex<ParkedCalls>,
    /// Ends the pause between tries.
    closing: Notify,
}

impl std::fmt::Debug for WaitingSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingSessions").finish_non_exhaustive()
    }
}

impl WaitingSessions {
    /// Returns an empty set of at most `sessions_max` sessions, at least one.
    pub(super) fn new(sessions_max: usize) -> WaitingSessions {
        WaitingSessions {
            permits: Semaphore::new(sessions_max.saturating_sub(1)),
            free: Mutex::default(),
            is_ending_idle: AtomicBool::new(false),
            parked: Mutex::default(),
            closing: Notify::new(),
        }
    }

    /// Writes a call with a session of its own, or parks it if there is none.
    pub(super) fn add(&self, core: &Arc<WriterCore>, call: LockedCall) {
        let mut parked = self.parked();
        parked.calls.push_back(call);
        if self.permits.available_permits() > 0 {
            let core = core.clone();
            core.clone().spawn(async move { core.waiting.write_parked(&core).await });
        }
        if !std::mem::replace(&mut parked.is_trying, true) {
            let core = core.clone();
            core.clone().spawn(async move { core.waiting.try_in_turn(&core).await });
        }
    }

    /// Writes parked calls until none is left, if a session may wait for them.
    async fn write_parked(&self, core: &Arc<WriterCore>) {
        let Ok(_permit) = self.permits.try_acquire() else { return };
        loop {
            let next = self.parked().calls.pop_front();
            let Some(mut call) = next else { return };
            if let Some(first) = call.units.pop_front() {
                self.write(core, first).await;
            }
            core.queue_again(call.units);
        }
    }

    /// Writes a unit and answers it. Waits for locks as long as the writer's options say.
    async fn write(&self, core: &Arc<WriterCore>, mut unit: WriteUnit) {
        let mut backoff = ReconnectBackoff::new(core.options.limits.retry_for);
        loop {
            match self.try_write(core, &unit).await {
                Ok(Err(lost)) if lost.kind() == ErrorKind::Connect => {
                    if !unit.may_send_again() {
                        return core.answer_unknown(unit, &lost);
                    }
                }
                Ok(answer) => {
                    core.counters.count_statement();
                    return core.answer(unit, answer);
                }
                Err(unsent) => {
                    let pause = if unsent.is_retryable() { backoff.next_pause() } else { None };
                    let Some(pause) = pause else {
                        return core.answer_unsent(unit, &unsent);
                    };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Sends a unit. An error says that nothing was sent.
    async fn try_write(
        &self,
        core: &Arc<WriterCore>,
        unit: &WriteUnit,
    ) -> Result<Result<InsertOutcome>> {
        let free = self.free().pop().map(|(session, _)| session);
        let free = free.filter(|session| !session.is_closed());
        let mut session = match free {
            Some(session) => session,
            None => {
                let lock_timeout = core.options.limits.lock_timeout_millis();
                RecordSession::open(core, lock_timeout).await?
            }
        };
        let answer = write_alone(&mut session, unit).await?;
        if !session.is_closed() {
            self.free().push((session, Instant::now()));
            if !self.is_ending_idle.swap(true, Ordering::Relaxed) {
                let core = core.clone();
                core.clone().spawn(async move { core.waiting.end_idle().await });
            }
        }
        Ok(answer)
    }

    /// Ends free sessions that have long been idle, until none is left. A session that stays would
    /// keep loads from dropping the keys of its tables.
    async fn end_idle(&self) {
        let is_idle = |since: &Instant| since.elapsed() >= IDLE_LIMIT;
        loop {
            tokio::time::sleep(IDLE_LIMIT).await;
            let (idle, is_done) = {
                let mut free = self.free();
                let idle: Vec<_> = free.extract_if(.., |(_, since)| is_idle(since)).collect();
                // Under the lock, so that a session that gets free now has a task.
                self.is_ending_idle.store(!free.is_empty(), Ordering::Relaxed);
                (idle, free.is_empty())
            };
            for (session, _) in idle {
                session.close().await;
            }
            if is_done {
                return;
            }
        }
    }

    /// Tries the parked calls from time to time, until none is left.
    async fn try_in_turn(&self, core: &Arc<WriterCore>) {
        let mut session = None;
        let mut backoff = ReconnectBackoff::new(core.options.limits.retry_for);
        let mut pause = PAUSE_MIN;
        let mut lost = None;
        loop {
            match lost.take() {
                Some(pause) => self.sleep(pause).await,
                None => lost = self.wait_for_oldest(core, &mut session, pause, &mut backoff).await,
            }
            if self.parked().calls.is_empty()
                && let Some(session) = session.take()
            {
                RecordSession::close(session).await;
            }
            let calls: Vec<LockedCall> = {
                let mut parked = self.parked();
                if parked.calls.is_empty() && session.is_none() {
                    parked.is_trying = false;
                    return;
                }
                let count = parked.calls.len().min(TRIED_CALLS_MAX);
                parked.calls.drain(..count).collect()
            };
            let began = Instant::now();
            for calls in by_shape(calls) {
                lost = self.try_calls(core, &mut session, calls, &mut backoff).await.or(lost);
            }
            if lost.is_none() {
                backoff = ReconnectBackoff::new(core.options.limits.retry_for);
            }
            pause = (began.elapsed() * PAUSE_FACTOR).clamp(PAUSE_MIN, PAUSE_MAX);
        }
    }

    /// Waits for the locks of the oldest parked calls, one after the other, for about as long as
    /// `pause`.
    /// Returns a pause if the server could not be reached.
    async fn wait_for_oldest(
        &self,
        core: &Arc<WriterCore>,
        session: &mut Option<RecordSession>,
        pause: Duration,
        backoff: &mut ReconnectBackoff,
    ) -> Option<Duration> {
        let end = Instant::now() + pause;
        let mut lost = None;
        while lost.is_none() {
            let left = end.saturating_duration_since(Instant::now());
            let is_short = left < Duration::from_millis(LANE_LOCK_TIMEOUT.unsigned_abs().into());
            let Some(call) = (if is_short { None } else { self.take_oldest() }) else {
                self.sleep(left).await;
                break;
            };
            if let Some(session) = session {
                // Whoever gives up loses its place in the server's queue, so each wait is longer.
                let wait = left.max(call.since.elapsed().min(PAUSE_MAX));
                let millis = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
                // A lost session is noticed by the next statement.
                let _ = session.limit_lock_wait(millis).await;
            }
            lost = self.try_calls(core, session, vec![call], backoff).await;
        }
        if let Some(session) = session {
            let _ = session.limit_lock_wait(LANE_LOCK_TIMEOUT).await;
        }
        lost
    }

    /// Takes the parked call that has waited longest.
    fn take_oldest(&self) -> Option<LockedCall> {
        let mut parked = self.parked();
        let calls = &mut parked.calls;
        let oldest = (0..calls.len()).min_by_key(|at| calls[*at].since)?;
        calls.remove(oldest)
    }

    /// Sleeps, unless the writer closes.
    async fn sleep(&self, pause: Duration) {
        let _ = tokio::time::timeout(pause, self.closing.notified()).await;
    }

    /// Tries the first unit of calls of one shape. Calls that are locked still are parked again.
    /// Returns a pause if the server could not be reached.
    async fn try_calls(
        &self,
        core: &Arc<WriterCore>,
        session: &mut Option<RecordSession>,
        mut calls: Vec<LockedCall>,
        backoff: &mut ReconnectBackoff,
    ) -> Option<Duration> {
        let units: Vec<_> = calls.iter_mut().filter_map(|call| call.units.pop_front()).collect();
        let (answers, pause) = match try_units(core, session, &units).await {
            Ok(answers) => (answers, None),
            Err(error) if is_lock_timeout(&error) => {
                (units.iter().map(|_| Some(Err(copy_error(&error)))).collect(), None)
            }
            Err(unsent) => {
                let pause = if unsent.is_retryable() { backoff.next_pause() } else { None };
                if pause.is_none() {
                    units.into_iter().for_each(|unit| core.answer_unsent(unit, &unsent));
                    calls.into_iter().for_each(|call| core.queue_again(call.units));
                    return None;
                }
                (units.iter().map(|_| None).collect::<Vec<_>>(), pause)
            }
        };
        for ((mut call, mut unit), answer) in calls.into_iter().zip(units).zip(answers) {
            match answer {
                // It was not sent.
                None => call.units.push_front(unit),
                Some(Err(error)) if is_lock_timeout(&error) && !has_waited(core, &call) => {
                    call.units.push_front(unit);
                }
                Some(Err(lost)) if lost.kind() == ErrorKind::Connect => {
                    if unit.may_send_again() {
                        call.units.push_front(unit);
                    } else {
                        core.answer_unknown(unit, &lost);
                    }
                }
                Some(answer) => {
                    core.counters.count_statement();
                    core.answer(unit, answer);
                    core.queue_again(call.units.drain(..));
                }
            }
            if !call.units.is_empty() {
                self.add(core, call);
            }
        }
        pause
    }

    /// Ends the sessions. No unit may be waiting any more.
    pub(super) async fn close(&self) {
        while self.parked().is_trying {
            self.closing.notify_one();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let free = std::mem::take(&mut *self.free());
        for (session, _) in free {
            session.close().await;
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<(RecordSession, Instant)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parked(&self) -> MutexGuard<'_, ParkedCalls> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a call has waited for locks as long as the writer's options say.
fn has_waited(core: &WriterCore, call: &LockedCall) -> bool {
    let limit = core.options.limits.lock_timeout;
    !limit.is_zero() && call.since.elapsed() > limit
}

/// Sorts calls by the shape of their first units, and by how these may be written.
fn by_shape(calls: Vec<LockedCall>) -> Vec<Vec<LockedCall>> {
    let mut sorted: Vec<Vec<LockedCall>> = Vec::new();
    let mut places = HashMap::new();
    for call in calls {
        let Some(first) = call.units.front() else { continue };
        let kind = (first.shape.id, first.way() == UnitWay::OwnTransaction);
        let place = *places.entry(kind).or_insert(sorted.len());
        if place == sorted.len() {
            sorted.push(Vec::new());
        }
        sorted[place].push(call);
    }
    sorted
}

/// Sends units of one shape. Returns their answers; `None` for units that were not sent, because
/// the session ended before. An error says that nothing was sent.
async fn try_units(
    core: &WriterCore,
    session: &mut Option<RecordSession>,
    units: &[WriteUnit],
) -> Result<Vec<Option<Result<InsertOutcome>>>> {
    if session.as_ref().is_none_or(RecordSession::is_closed) {
        *session = None;
    }
    let open = match session {
        Some(session) => session,
        None => session.insert(RecordSession::open(core, LANE_LOCK_TIMEOUT).await?),
    };
    if units.iter().all(|unit| unit.way() != UnitWay::OwnTransaction) {
        let answers = open.write_each(units).await?;
        return Ok(answers.into_iter().map(Some).collect());
    }
    let mut answers = Vec::with_capacity(units.len());
    for unit in units {
        let answer = match write_alone(open, unit).await {
            // An error of the first one alone says that nothing was sent.
            Err(unsent) if answers.is_empty() => return Err(unsent),
            Err(unsent) if unsent.kind() == ErrorKind::Connect => None,
            answer => Some(answer.flatten()),
        };
        let is_lost = |answer: &Result<InsertOutcome>| {
            answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Connect)
        };
        let has_ended = answer.as_ref().is_none_or(is_lost);
        answers.push(answer);
        if has_ended {
            // The driver takes the connection for open until it notices the server's end.
            *session = None;
            break;
        }
    }
    answers.resize_with(units.len(), || None);
    Ok(answers)
}

/// Writes a unit. An error says that nothing was sent.
async fn write_alone(
    session: &mut RecordSession,
    unit: &WriteUnit,
) -> Result<Result<InsertOutcome>> {
    if unit.way() == UnitWay::OwnTransaction {
        return session.write_transaction(unit).await;
    }
    let mut answers = session.write_each(std::slice::from_ref(unit)).await?;
    let missing = || Err(Error::new(ErrorKind::Bug, "a statement has no answer"));
    Ok(answers.pop().unwrap_or_else(missing))
}

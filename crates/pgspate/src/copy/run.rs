//! Runs a copy job: starts lanes, adds lanes while throughput grows, and commits all lanes at the
//! end if [`Commit::AtEnd`] says so.

use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use super::commit::{check_chunks_survived, check_not_emptied, commit_lanes, has_new_chunks};
use super::first_refusal::find_first_refusal;
use super::lane::{self, FinishedLane};
use super::monitor::Monitor;
use super::session_registry::SessionRegistry;
use super::shared::{LaneFailure, SharedRun};
use super::{
    Commit, CopyEnd, CopyJob, CopyOutcome, CopyProgress, Destination, Lanes, StageSeconds, shards,
};
use crate::format::{ContentDigests, Cutter};
use crate::{Error, ErrorKind, Result};

/// Time for which the throughput of a number of lanes is measured.
const TRIAL_TIME: Duration = Duration::from_millis(500);
/// An additional lane is kept if throughput grows by this factor.
const GROWTH_MIN: f64 = 1.07;
/// Time between two checks of the lanes.
const TICK: Duration = Duration::from_millis(20);

/// Runs the job to its end. Blocks; call it from a thread that does not belong to `runtime`.
///
/// # Errors
/// The first refusal in input order, a lost connection, or the user's request to stop. [`Commit`]
/// decides which rows stay in the table.
pub fn run(
    job: &CopyJob,
    cutter: Box<dyn Cutter>,
    progress: &CopyProgress,
    runtime: &tokio::runtime::Handle,
) -> Result<CopyEnd> {
    let shared = SharedRun::new(job, cutter, progress);
    shared.check_earlier_rejects()?;
    if let (Some(route), Some(ledger)) = (&job.shard_route, &job.ledger) {
        return shards::run(&shared, route, &ledger.recorder, runtime);
    }
    let finished = run_lanes(&shared, runtime);
    shared.check_cancelled()?;
    if shared.lanes_conflict.load(Relaxed) {
        return Ok(CopyEnd::LanesConflict);
    }
    if let Some(failure) = shared.take_failure() {
        drop(finished);
        return end_after_failure(&shared, failure, runtime);
    }
    if let (true, Some(error)) = (finished.is_empty(), shared.connection_limit().take()) {
        return Err(error);
    }
    for lane in &finished {
        lane.tally.reconcile(job.may_skip_rows)?;
    }
    shared.check_complete(&finished)?;
    shared.check_reject_percentage()?;
    let contents = shared.contents();
    (job.check_unchanged)(&contents)?;
    check_not_emptied(job, &finished)?;
    let started = Instant::now();
    let committed = match job.commit {
        _ if job.keeps_transaction_open() => Ok(()),
        Commit::AtEnd => {
            progress.committed.unverified_chunks.store(true, Relaxed);
            let committed = runtime.block_on(commit_lanes(job, &finished));
            if committed.is_ok() {
                let tallies = finished.iter().map(|lane| &lane.tally);
                tallies.for_each(|it| progress.committed.add(it.rows_written, it.chunks));
            }
            committed
        }
        Commit::EachChunk if shared.lost_session.load(Relaxed) => {
            runtime.block_on(check_chunks_survived(job, shared.chunks()))
        }
        Commit::EachChunk => Ok(()),
    };
    let is_staged = !matches!(job.destination, Destination::Table { .. });
    if let Err(error) = committed {
        // A stage is lost with its session, whether or not the commit happened.
        let writes_once = job.ledger.is_some() || is_staged;
        let may_retry = writes_once && !job.is_stream && error.is_retryable();
        return if may_retry { Ok(CopyEnd::Interrupted(error)) } else { Err(error) };
    }
    let outcome = sum_up(&shared, &finished, contents, started.elapsed());
    let sessions = finished.into_iter().filter(|_| is_staged);
    Ok(CopyEnd::Done(outcome, sessions.flat_map(|lane| lane.sessions).collect()))
}

/// Decides how the copy ends after a failure: whether the caller is to repeat it.
///
/// # Errors
/// The first refusal in input order, or the failure, if repeating the copy would not help.
fn end_after_failure(
    shared: &SharedRun<'_>,
    failure: LaneFailure,
    runtime: &tokio::runtime::Handle,
) -> Result<CopyEnd> {
    let job = shared.job;
    if failure.is_emptied && !job.is_stream {
        return Ok(CopyEnd::Interrupted(failure.error));
    }
    let had_several_lanes = !job.one_statement && shared.progress.lanes.load(Relaxed) > 1;
    let can_repeat = job.commit == Commit::AtEnd && !job.is_stream;
    if had_several_lanes
        && can_repeat
        && !failure.is_chunk_recorded
        && may_be_lane_conflict(&failure.error)
    {
        return Ok(CopyEnd::LanesConflict);
    }
    // The server may refuse rows because a lost session of this run has committed them.
    let may_be_committed = || failure.refused.is_some() && runtime.block_on(has_new_chunks(job));
    if can_repeat && (failure.is_retryable() || may_be_committed()) {
        return Ok(CopyEnd::Interrupted(failure.error));
    }
    Err(shared.add_blocker_hint(find_first_refusal(shared, failure, runtime)))
}

/// Returns the sums over all lanes. `committing` is the time from the last row to the last commit.
fn sum_up(
    shared: &SharedRun<'_>,
    finished: &[FinishedLane],
    contents: ContentDigests,
    committing: Duration,
) -> CopyOutcome {
    let progress = shared.progress;
    let [source, encode, server] = progress.stage_nanos().map(|nanos| nanos as f64 / 1e9);
    let stages = StageSeconds { source, encode, server, commit: committing.as_secs_f64() };
    CopyOutcome {
        rows_in: finished.iter().map(|lane| lane.tally.rows_in).sum(),
        rows_written: finished.iter().map(|lane| lane.tally.rows_written).sum(),
        rows_rejected: finished.iter().map(|lane| lane.tally.rows_rejected).sum(),
        rows_as_text: finished.iter().map(|lane| lane.tally.rows_as_text).sum(),
        lanes: finished.iter().filter(|lane| lane.tally.chunks > 0).count(),
        chunks: shared.chunks(),
        chunks_before: shared.skipped(),
        stages,
        bytes_sent: progress.sent.load(Relaxed),
        contents,
    }
}

/// Returns whether rows of two lanes may have caused the error, such as two rows with the same key.
/// With one lane, the server refuses the second of the two rows.
fn may_be_lane_conflict(error: &Error) -> bool {
    let codes = [
        SqlState::UNIQUE_VIOLATION,
        SqlState::EXCLUSION_VIOLATION,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    error.sqlstate().is_some_and(|code| codes.contains(code))
}

/// Runs lanes until the end of the input or a failure. Returns the lanes that did not fail.
fn run_lanes(shared: &SharedRun<'_>, runtime: &tokio::runtime::Handle) -> Vec<FinishedLane> {
    let (initial, max) = match shared.job.lanes {
        _ if shared.job.one_statement => (1, 1),
        Lanes::Fixed(lanes) => (lanes, lanes),
        Lanes::Auto(initial, max) => (initial, max.max(initial)),
    };
    let sessions = SessionRegistry::default();
    thread::scope(|scope| {
        let sessions = &sessions;
        let start = |ordinal: usize| {
            shared.progress.lanes.fetch_add(1, Relaxed);
            let watcher = thread::current();
            scope.spawn(move || {
                let finished = lane::run_lane(shared, ordinal as u64, sessions, runtime);
                watcher.unpark();
                finished
            })
        };
        let mut lanes: Vec<_> = (0..initial).map(start).collect();
        let mut monitor = Monitor::new(shared, sessions, runtime);
        let mut trial =
            Some(LaneTrial { started: Instant::now(), bytes_before: 0, rate_before: 0.0 });
        while !lanes.iter().all(ScopedJoinHandle::is_finished) {
            thread::park_timeout(TICK);
            monitor.tick();
            if shared.lanes_conflict.load(Relaxed) || shared.progress.is_cancelled() {
                monitor.cancel_statements();
            }
            let may_add = lanes.len() < max.min(shared.lanes_max.load(Relaxed) as usize)
                && shared.connection_limit().is_none();
            let Some(current) = trial.as_mut().filter(|it| may_add && it.is_over()) else {
                continue;
            };
            if current.next_trial(shared.progress.sent.load(Relaxed)) && !shared.is_over() {
                lanes.push(start(lanes.len()));
            } else if lanes.len() > initial {
                // The last lane did not increase throughput. That lane ends after its current
                // chunk.
                shared.lanes_max.fetch_min(lanes.len() as u64 - 1, Relaxed);
                trial = None;
            }
        }
        lanes.into_iter().filter_map(|lane| join_lane(shared, lane)).collect()
    })
}

/// Waits for a lane's thread, and returns its result. A panic in a lane fails the load.
fn join_lane(
    shared: &SharedRun<'_>,
    lane: ScopedJoinHandle<'_, Option<FinishedLane>>,
) -> Option<FinishedLane> {
    lane.join().unwrap_or_else(|_| {
        let error = Error::new(ErrorKind::Bug, "a lane panicked");
        shared.fail(LaneFailure::of(0, error));
        None
    })
}

/// A measurement of the current number of lanes, which decides whether to add one more lane.
struct LaneTrial {
    started: Instant,
    /// Bytes that were sent before this trial.
    bytes_before: u64,
    /// Bytes per second in the previous trial.
    rate_before: f64,
}

impl LaneTrial {
    fn is_over(&self) -> bool {
        self.started.elapsed() >= TRIAL_TIME
    }

    /// Ends this trial and starts the next one. `sent` is the number of bytes sent so far. Returns
    /// whether this trial was faster than the one before.
    fn next_trial(&mut self, sent: u64) -> bool {
        let rate = (sent - self.bytes_before) as f64 / self.started.elapsed().as_secs_f64();
        let was_faster = rate > self.rate_before * GROWTH_MIN;
        *self = LaneTrial { started: Instant::now(), bytes_before: sent, rate_before: rate };
        was_faster
    }
}

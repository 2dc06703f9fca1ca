//! What shows of a stream while it is applied, and the wish to stop.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::replication::Lsn;
use crate::load;
use crate::session::Stop;

/// Shared between a run and whoever shows its progress.
#[derive(Debug, Default)]
pub struct Watch {
    pub(super) stop: Stop,
    /// The writer has failed, and wants no more.
    pub(crate) gone: AtomicBool,
    /// Batches that the writer was given, those of them that it has done with, and those which it
    /// has or soon will have.
    handed: AtomicU64,
    done: AtomicU64,
    nearly_done: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) batch_events: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    /// Of a slot: where the source's log ends, and up to where it is applied; of topics the sums
    /// of that.
    pub(crate) source_end: AtomicU64,
    pub(crate) applied: AtomicU64,
    /// When the log was seen to end where, from what is not applied on.
    ends: Mutex<Ends>,
    /// Of a slot: when the last transaction that is applied was committed, in microseconds.
    pub(crate) committed: AtomicU64,
    pub(crate) reconnects: AtomicU64,
    pub(crate) is_connected: AtomicBool,
    /// The source's log is counted in messages of topics.
    pub(crate) counts_messages: AtomicBool,
    /// A table whose rows are copied before the stream begins, and the load that does it.
    copying: Mutex<Option<(String, Arc<load::Watch>)>>,
}

/// So many ends of the log are kept; then every other one is forgotten.
const ENDS_MAX: usize = 1024;

/// Ends of the source's log, and when they were seen.
#[derive(Debug, Default)]
struct Ends {
    seen: VecDeque<(u64, Instant)>,
    /// Where the log ended when the run began.
    first: u64,
}

impl Ends {
    fn note(&mut self, end: u64, now: Instant) {
        if self.first == 0 {
            self.first = end;
        }
        if self.seen.back().is_some_and(|(last, _)| *last >= end) {
            return;
        }
        if self.seen.len() >= ENDS_MAX {
            let mut nth = 0;
            self.seen.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
        self.seen.push_back((end, now));
    }

    /// For how long there has been what is not applied; and whether it may be older than the run.
    fn lag(&mut self, applied: u64, now: Instant) -> (Duration, bool) {
        while self.seen.front().is_some_and(|(end, _)| *end <= applied) {
            self.seen.pop_front();
        }
        let first = self.seen.front();
        let lag = first.map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at));
        (lag, applied < self.first)
    }
}

/// A copy of the counters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Events committed.
    pub events: u64,
    /// Bytes of input that they were.
    pub bytes: u64,
    /// Transactions on the target.
    pub batches: u64,
    /// Events of the last one.
    pub batch_events: u64,
    /// Events that were set aside.
    pub dead_letters: u64,
    /// Of a replication slot and of topics: how far behind it is.
    pub lag: Option<Lag>,
    /// The table whose rows are copied before the stream begins, and how many are.
    pub copying: Option<(String, u64)>,
}

/// How far a stream is behind its source.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Lag {
    /// Bytes of the source's log that are not applied, those of other databases too; none of
    /// topics.
    pub bytes: u64,
    /// Of topics: messages that are not applied, with marks of transactions among them.
    pub messages: Option<u64>,
    /// Seconds for which the source's log has gone on beyond what is applied; none when all that
    /// there is is applied. Of what there was when the run began: since the run began, or the
    /// last transaction that is applied was committed there, by its clock and ours.
    pub seconds: f64,
    /// Connections to the source that were lost.
    pub reconnects: u64,
    /// Whether there is one.
    pub is_connected: bool,
}

impl Watch {
    /// Events that this run has applied, or set aside, and committed.
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// Has the run stop after the batch that is being written.
    pub fn cancel(&self) {
        self.stop.request();
    }

    /// Whether it is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.stop.is_requested()
    }

    /// Whether nobody wants more events: the run is to stop, or the writer has failed.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.is_cancelled() || self.gone.load(Relaxed)
    }

    /// The writer is given a batch.
    pub(crate) fn begin_batch(&self) {
        self.handed.fetch_add(1, Relaxed);
    }

    /// The writer has one statement of its batch to run, which takes about as long as it takes to
    /// make the next one ready.
    pub(crate) fn near_end_of_batch(&self) {
        self.nearly_done.store(self.done.load(Relaxed) + 1, Relaxed);
    }

    /// The writer has committed its batch.
    pub(crate) fn end_batch(&self) {
        let done = self.done.fetch_add(1, Relaxed) + 1;
        self.nearly_done.store(done, Relaxed);
    }

    /// Whether the writer has a batch.
    pub(crate) fn has_batch(&self) -> bool {
        self.handed.load(Relaxed) > self.done.load(Relaxed)
    }

    /// How far the source's log went on beyond a place in it when it was last looked at.
    pub(crate) fn bytes_behind(&self, end: Lsn) -> u64 {
        self.source_end.load(Relaxed).saturating_sub(end.0)
    }

    /// Whether it has a batch, and will have for a while.
    pub(crate) fn is_writing(&self) -> bool {
        self.handed.load(Relaxed) > self.nearly_done.load(Relaxed)
    }

    /// The counters now.
    pub fn progress(&self) -> Progress {
        Progress {
            events: self.events.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            batches: self.batches.load(Relaxed),
            batch_events: self.batch_events.load(Relaxed),
            dead_letters: self.dead_letters.load(Relaxed),
            lag: self.lag(),
            copying: self.copying().as_ref().map(|(table, load)| {
                let rows = load.copy.snapshot().rows;
                (table.clone(), rows)
            }),
        }
    }

    fn lag(&self) -> Option<Lag> {
        let (end, applied) = (self.source_end.load(Relaxed), self.applied.load(Relaxed));
        if end == 0 {
            return None;
        }
        let behind = end.saturating_sub(applied);
        let counts_messages = self.counts_messages.load(Relaxed);
        let committed = Duration::from_micros(self.committed.load(Relaxed));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut lag, is_old) = self.ends().lag(applied, Instant::now());
        if is_old && !committed.is_zero() {
            lag = lag.max(now.saturating_sub(committed));
        }
        Some(Lag {
            bytes: if counts_messages { 0 } else { behind },
            messages: counts_messages.then_some(behind),
            seconds: if behind == 0 { 0.0 } else { lag.as_secs_f64() },
            reconnects: self.reconnects.load(Relaxed),
            is_connected: self.is_connected.load(Relaxed),
        })
    }

    /// The source's log ends here now.
    pub(crate) fn see_end(&self, end: Lsn) {
        self.ends().note(end.0.max(1), Instant::now());
        self.source_end.fetch_max(end.0.max(1), Relaxed);
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All up to here is applied, or was nothing of ours.
    pub(crate) fn reach(&self, applied: Lsn) {
        self.applied.fetch_max(applied.0, Relaxed);
        self.source_end.fetch_max(applied.0, Relaxed);
    }

    /// What a load shows that copies a table; it stops when this run is to.
    pub(crate) fn of_copy(&self) -> load::Watch {
        load::Watch::with(self.stop.clone())
    }

    /// Shows the load that copies a table.
    pub(crate) fn show_copy(&self, copying: Option<(String, Arc<load::Watch>)>) {
        *self.copying() = copying;
    }

    fn copying(&self) -> MutexGuard<'_, Option<(String, Arc<load::Watch>)>> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_is_nearly_done_lets_the_next_one_be_made() {
        let watch = Watch::default();
        let state = |watch: &Watch| (watch.is_writing(), watch.has_batch());
        assert_eq!(state(&watch), (false, false));
        watch.begin_batch();
        assert_eq!(state(&watch), (true, true));
        watch.near_end_of_batch();
        assert_eq!(state(&watch), (false, true));
        // The next one is handed over before the writer has done with the first.
        watch.begin_batch();
        watch.near_end_of_batch();
        assert_eq!(state(&watch), (true, true));
        watch.end_batch();
        assert_eq!(state(&watch), (true, true));
        watch.end_batch();
        assert_eq!(state(&watch), (false, false));
    }

    #[test]
    fn a_stream_lags_since_the_log_went_beyond_it() {
        let (mut ends, began) = (Ends::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        ends.note(100, at(0));
        // Nothing is applied yet, and nobody knows how old it is.
        assert_eq!(ends.lag(50, at(3)), (Duration::from_secs(3), true));
        assert_eq!(ends.lag(100, at(4)), (Duration::ZERO, false));
        // After an hour in which nothing was written.
        ends.note(100, at(3600));
        ends.note(200, at(3601));
        ends.note(300, at(3602));
        assert_eq!(ends.lag(100, at(3605)), (Duration::from_secs(4), false));
        assert_eq!(ends.lag(250, at(3605)), (Duration::from_secs(3), false));
        for nth in 0..5000 {
            ends.note(400 + nth, at(4000 + nth));
            assert_eq!(ends.lag(300, at(4000 + nth)).0.as_secs(), nth);
        }
        assert!(ends.seen.len() <= ENDS_MAX);
        assert_eq!(ends.lag(300, at(9000)), (Duration::from_secs(5000), false));
    }
}

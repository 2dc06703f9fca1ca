//! What shows of a stream while it is applied, and the wish to stop.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::load;
use pgspate_replication::{Lag, LagMeter};
use pgspate_target::session::Stop;

/// Shared between a run and whoever shows its progress.
#[derive(Debug, Default)]
pub struct ApplyWatch {
    /// The user's wish that the run ends.
    pub(crate) stop: Stop,
    /// Ends the reading: the run has ended, or is to.
    pub(crate) unwanted: Stop,
    pub(crate) lag: Arc<LagMeter>,
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
    /// A table whose rows are copied before the stream begins, and the load that does it.
    copying: Mutex<Option<(String, Arc<load::LoadWatch>)>>,
}

/// A copy of the counters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApplyProgress {
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

impl ApplyWatch {
    /// Events that this run has applied, or set aside, and committed.
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// Has the run stop after the batch that is being written.
    pub fn cancel(&self) {
        self.stop.request();
        self.unwanted.request();
    }

    /// Whether it is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.stop.is_requested()
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

    /// Whether it has a batch, and will have for a while.
    pub(crate) fn is_writing(&self) -> bool {
        self.handed.load(Relaxed) > self.nearly_done.load(Relaxed)
    }

    /// The counters now.
    pub fn progress(&self) -> ApplyProgress {
        ApplyProgress {
            events: self.events.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            batches: self.batches.load(Relaxed),
            batch_events: self.batch_events.load(Relaxed),
            dead_letters: self.dead_letters.load(Relaxed),
            lag: self.lag.lag(),
            copying: self.copying().as_ref().map(|(table, load)| {
                let rows = load.copy.snapshot().rows;
                (table.clone(), rows)
            }),
        }
    }

    /// What a load shows that copies a table; it stops when this run is to.
    pub(crate) fn of_copy(&self) -> load::LoadWatch {
        load::LoadWatch::with(self.stop.clone())
    }

    /// Shows the load that copies a table.
    pub(crate) fn show_copy(&self, copying: Option<(String, Arc<load::LoadWatch>)>) {
        *self.copying() = copying;
    }

    fn copying(&self) -> MutexGuard<'_, Option<(String, Arc<load::LoadWatch>)>> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_is_nearly_done_lets_the_next_one_be_made() {
        let watch = ApplyWatch::default();
        let state = |watch: &ApplyWatch| (watch.is_writing(), watch.has_batch());
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
}

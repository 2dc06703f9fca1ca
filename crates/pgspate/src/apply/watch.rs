//! The progress of a running stream, and the request to stop it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::load;
use pgspate_replication::{LagMeter, StreamLag};
use pgspate_target::session::StopFlag;

/// The progress of a run and the request to stop it. The run and other threads share the watch.
#[derive(Debug, Default)]
pub struct ApplyWatch {
    /// The user's request to stop.
    pub(crate) stop: StopFlag,
    /// The request to stop reading the source, because the run has ended or is to stop.
    pub(crate) end_reading: StopFlag,
    pub(crate) lag: Arc<LagMeter>,
    /// The number of batches that the builder has sent to the writer.
    batches_sent: AtomicU64,
    /// The number of batches that the writer has finished. If a batch ends within a source
    /// transaction, a later batch commits it.
    batches_done: AtomicU64,
    /// The number of batches that the writer has finished, or of which only one statement is left.
    batches_nearly_done: AtomicU64,
    /// The number of finished batches that a crash of the server cannot undo any more.
    batches_kept: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) batch_events: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    /// What the run waits for before it begins, in words.
    waits_for: Mutex<Option<String>>,
    /// The table of the initial copy, and its running load.
    copying: Mutex<Option<(String, Arc<load::LoadWatch>)>>,
}

/// The counters of a stream at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApplyProgress {
    /// Events committed.
    pub events: u64,
    /// Bytes of input of the committed events.
    pub bytes: u64,
    /// Transactions on the target.
    pub batches: u64,
    /// Events of the last batch.
    pub batch_events: u64,
    /// Events set aside as dead letters.
    pub dead_letters: u64,
    /// How far a slot or topics are behind.
    pub lag: Option<StreamLag>,
    /// The table of the initial copy, and the number of rows copied so far.
    pub copying: Option<(String, u64)>,
    /// What the run waits for before it begins, in words.
    pub waits_for: Option<String>,
}

impl ApplyWatch {
    /// Returns the events that this run has committed, dead letters included.
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// Stops the run after the current batch.
    pub fn cancel(&self) {
        self.stop.request();
        self.end_reading.request();
    }

    /// Returns whether the user has asked the run to stop.
    pub fn is_cancelled(&self) -> bool {
        self.stop.is_requested()
    }

    /// Records that the builder sends a batch to the writer.
    pub(crate) fn begin_batch(&self) {
        self.batches_sent.fetch_add(1, Relaxed);
    }

    /// Records that the writer has one statement of its batch left. Encoding the next batch takes
    /// about as long as this statement.
    pub(crate) fn near_end_of_batch(&self) {
        self.batches_nearly_done.store(self.batches_done.load(Relaxed) + 1, Relaxed);
    }

    /// Records that the writer has finished its batch.
    pub(crate) fn end_batch(&self) {
        let done = self.batches_done.fetch_add(1, Relaxed) + 1;
        self.batches_nearly_done.store(done, Relaxed);
    }

    /// Records that a crash of the server has undone the last `count` batches that were finished.
    pub(crate) fn reopen_batches(&self, count: u64) {
        let done = self.batches_done.fetch_sub(count, Relaxed) - count;
        self.batches_nearly_done.store(done, Relaxed);
    }

    /// Records that no crash of the server can undo a batch any more.
    pub(crate) fn keep_batch(&self) {
        self.batches_kept.fetch_add(1, Relaxed);
    }

    /// Returns whether the writer has a batch that is not applied for certain.
    pub(crate) fn writer_has_batch(&self) -> bool {
        self.batches_sent.load(Relaxed) > self.batches_kept.load(Relaxed)
    }

    /// Returns whether the writer has a batch with more than one statement left.
    pub(crate) fn writer_stays_busy(&self) -> bool {
        self.batches_sent.load(Relaxed) > self.batches_nearly_done.load(Relaxed)
    }

    /// Returns the current counters.
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
            waits_for: self.waits_for.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Shows what the run waits for before it begins; `None` when it waits no longer.
    pub(crate) fn show_wait(&self, waits_for: Option<String>) {
        *self.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    }

    /// Returns a watch for the load of a table. The load stops when this run is to stop.
    pub(crate) fn load_watch(&self) -> load::LoadWatch {
        load::LoadWatch::with_stop(self.stop.clone())
    }

    /// Shows the load of a table as progress of this run; `None` when it has ended.
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
    fn the_next_batch_may_be_cut_when_the_writer_is_nearly_done() {
        let watch = ApplyWatch::default();
        let state = |watch: &ApplyWatch| (watch.writer_stays_busy(), watch.writer_has_batch());
        assert_eq!(state(&watch), (false, false));
        watch.begin_batch();
        assert_eq!(state(&watch), (true, true));
        watch.near_end_of_batch();
        assert_eq!(state(&watch), (false, true));
        // The writer gets the next batch before it has finished the first.
        watch.begin_batch();
        watch.near_end_of_batch();
        assert_eq!(state(&watch), (true, true));
        watch.end_batch();
        assert_eq!(state(&watch), (true, true));
        watch.end_batch();
        watch.keep_batch();
        assert_eq!(state(&watch), (false, true));
        // A crash of the server undoes the second batch, which is applied again.
        watch.reopen_batches(1);
        assert_eq!(state(&watch), (true, true));
        watch.end_batch();
        watch.keep_batch();
        assert_eq!(state(&watch), (false, false));
    }
}

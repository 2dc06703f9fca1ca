//! What shows of a stream while it is applied, and the wish to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::replication::Lsn;
use crate::load;

/// How often one that waits for something else looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Shared between a run and whoever shows its progress.
#[derive(Debug, Default)]
pub struct Watch {
    cancelled: AtomicBool,
    /// The writer has failed, and wants no more.
    pub(crate) gone: AtomicBool,
    /// The writer has a batch.
    pub(crate) busy: AtomicBool,
    pub(crate) events: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) batch_events: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    /// Of a slot: where the source's log ends, and up to where it is applied.
    pub(crate) source_end: AtomicU64,
    pub(crate) applied: AtomicU64,
    /// Of a slot: when the last transaction that is applied was committed, in microseconds.
    pub(crate) committed: AtomicU64,
    pub(crate) reconnects: AtomicU64,
    pub(crate) is_connected: AtomicBool,
    /// A table whose rows are copied before the stream begins, and the load that does it.
    copying: Mutex<Option<(String, Arc<load::Watch>)>>,
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
    /// Of a replication slot: how far behind it is.
    pub lag: Option<Lag>,
    /// The table whose rows are copied before the stream begins, and how many are.
    pub copying: Option<(String, u64)>,
}

/// How far a stream is behind its source.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Lag {
    /// Bytes of the source's log that are not applied, those of other databases too.
    pub bytes: u64,
    /// Seconds since the last transaction that is applied was committed on the source, by its
    /// clock and ours; none when all that there is is applied.
    pub seconds: f64,
    /// Connections to the source that were lost.
    pub reconnects: u64,
    /// Whether there is one.
    pub is_connected: bool,
}

impl Watch {
    /// Has the run stop after the batch that is being written.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
        if let Some((_, load)) = &*self.copying() {
            load.copy.cancel();
        }
    }

    /// Whether it is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    /// Waits until it is to stop.
    pub(crate) async fn cancelled(&self) {
        while !self.is_cancelled() {
            tokio::time::sleep(LOOK).await;
        }
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
        let bytes = end.saturating_sub(applied);
        let committed = Duration::from_micros(self.committed.load(Relaxed));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_known = bytes > 0 && !committed.is_zero();
        let seconds = if is_known { now.saturating_sub(committed).as_secs_f64() } else { 0.0 };
        Some(Lag {
            bytes,
            seconds,
            reconnects: self.reconnects.load(Relaxed),
            is_connected: self.is_connected.load(Relaxed),
        })
    }

    /// All up to here is applied, or was nothing of ours.
    pub(crate) fn reach(&self, applied: Lsn) {
        self.applied.fetch_max(applied.0, Relaxed);
        self.source_end.fetch_max(applied.0, Relaxed);
    }

    /// Shows the load that copies a table, and stops it when it is to stop.
    pub(crate) fn show_copy(&self, copying: Option<(String, Arc<load::Watch>)>) {
        if let (Some((_, load)), true) = (&copying, self.is_cancelled()) {
            load.copy.cancel();
        }
        *self.copying() = copying;
    }

    fn copying(&self) -> MutexGuard<'_, Option<(String, Arc<load::Watch>)>> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

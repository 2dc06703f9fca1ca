//! What shows of a stream while it is applied, and the wish to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

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
}

/// A copy of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
}

impl Watch {
    /// Has the run stop after the batch that is being written.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    /// Whether it is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    /// The counters now.
    pub fn progress(&self) -> Progress {
        Progress {
            events: self.events.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            batches: self.batches.load(Relaxed),
            batch_events: self.batch_events.load(Relaxed),
            dead_letters: self.dead_letters.load(Relaxed),
        }
    }
}

//! What a load is doing right now, for whoever watches it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Counters that lanes write and the progress line reads.
#[derive(Debug, Default)]
pub struct Progress {
    /// Rows handed to the server.
    pub rows: AtomicU64,
    /// Decompressed input bytes taken by lanes.
    pub bytes: AtomicU64,
    /// Rows set aside, by earlier runs of the job too.
    pub rejected: AtomicU64,
    /// COPY bytes handed to connections.
    pub sent: AtomicU64,
    /// Lanes at work.
    pub lanes: AtomicU64,
    /// Set to make the load stop and roll back.
    pub cancelled: AtomicBool,
    pub(crate) source_nanos: AtomicU64,
    pub(crate) encode_nanos: AtomicU64,
    pub(crate) send_nanos: AtomicU64,
    waiting: Mutex<Waiting>,
    phase: Mutex<Option<String>>,
}

/// What most of the load waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing has been seen yet.
    #[default]
    Unknown,
    /// The input.
    Source,
    /// Our own encoding.
    Encode,
    /// Bytes on their way.
    Network,
    /// The server, and what it waits for itself: a wait event, or `CPU`.
    Server(String),
}

/// A copy of the counters.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Rows handed to the server.
    pub rows: u64,
    /// Decompressed input bytes taken.
    pub bytes: u64,
    /// Rows set aside.
    pub rejected: u64,
    /// Lanes at work.
    pub lanes: u64,
    /// What it waits for.
    pub waiting: Waiting,
    /// What is done with the table while no rows are written: `building index "a"`.
    pub phase: Option<String>,
}

impl Progress {
    /// The counters now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            rows: self.rows.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            lanes: self.lanes.load(Relaxed),
            waiting: self.waiting.lock().expect("no panic while held").clone(),
            phase: self.phase.lock().expect("no panic while held").clone(),
        }
    }

    /// Asks the load to stop and roll back.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    /// Counts from zero again, for a second attempt.
    pub(crate) fn start_over(&self) {
        let counters = [&self.rows, &self.bytes, &self.rejected, &self.sent, &self.lanes];
        let times = [&self.source_nanos, &self.encode_nanos, &self.send_nanos];
        counters.into_iter().chain(times).for_each(|counter| counter.store(0, Relaxed));
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    pub(crate) fn set_waiting(&self, waiting: Waiting) {
        *self.waiting.lock().expect("no panic while held") = waiting;
    }

    pub(crate) fn set_phase(&self, phase: Option<String>) {
        *self.phase.lock().expect("no panic while held") = phase;
    }

    /// Nanoseconds that lanes spent on source, encoding and sending so far.
    pub(crate) fn nanos(&self) -> [u64; 3] {
        [&self.source_nanos, &self.encode_nanos, &self.send_nanos].map(|it| it.load(Relaxed))
    }
}

//! What a load is doing right now, for whoever watches it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::numbers::counted;
use pgspate_target::session::Stop;

/// Counters that lanes write and the progress line reads.
#[derive(Debug, Default)]
pub struct CopyProgress {
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
    pub(crate) stop: Stop,
    pub(crate) source_nanos: AtomicU64,
    pub(crate) encode_nanos: AtomicU64,
    pub(crate) send_nanos: AtomicU64,
    waiting: Mutex<Waiting>,
    phase: Mutex<Option<String>>,
    /// What is known to be committed, by earlier runs of the job too.
    pub(crate) kept: Arc<CommittedCounts>,
    /// What is changed on the table, and how it is put back.
    altered: Mutex<Option<String>>,
}

/// Rows and chunks that are committed.
#[derive(Debug, Default)]
pub(crate) struct CommittedCounts {
    rows: AtomicU64,
    chunks: AtomicU64,
    /// A commit is under way, of which nobody knows yet what comes of it.
    pub(crate) is_unsure: AtomicBool,
}

impl CommittedCounts {
    pub(crate) fn add(&self, rows: u64, chunks: u64) {
        self.rows.fetch_add(rows, Relaxed);
        self.chunks.fetch_add(chunks, Relaxed);
    }

    /// What the ledger has before an attempt.
    pub(crate) fn begin(&self, rows: u64, chunks: u64) {
        self.rows.store(rows, Relaxed);
        self.chunks.store(chunks, Relaxed);
        self.is_unsure.store(false, Relaxed);
    }

    /// `3 rows in 1 committed chunk`, or nothing.
    pub(crate) fn words(&self) -> Option<String> {
        let (rows, chunks) = (self.rows.load(Relaxed), self.chunks.load(Relaxed));
        (chunks > 0)
            .then(|| format!("{} in {}", counted(rows, "row"), counted(chunks, "committed chunk")))
    }
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
pub struct ProgressSnapshot {
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

impl CopyProgress {
    /// Of a part of a run that has a wish to stop already.
    pub(crate) fn with(stop: Stop) -> CopyProgress {
        CopyProgress { stop, ..CopyProgress::default() }
    }

    /// The counters now.
    pub fn snapshot(&self) -> ProgressSnapshot {
        ProgressSnapshot {
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
        self.stop.request();
    }

    /// Counts from zero again, for a second attempt.
    pub(crate) fn start_over(&self) {
        let counters = [&self.rows, &self.bytes, &self.rejected, &self.sent, &self.lanes];
        let times = [&self.source_nanos, &self.encode_nanos, &self.send_nanos];
        counters.into_iter().chain(times).for_each(|counter| counter.store(0, Relaxed));
    }

    /// What stays of a load that ends here and now, and how to go on, in words.
    pub fn last_words(&self) -> String {
        let kept = match (self.kept.words(), self.kept.is_unsure.load(Relaxed)) {
            (Some(kept), _) => {
                format!("{kept} stay; the same command, run again, loads the rest")
            }
            (None, false) => "nothing was committed".to_owned(),
            (None, true) => {
                "the last commit was under way; the same command, run again, finds out".to_owned()
            }
        };
        match &*self.altered.lock().expect("no panic while held") {
            Some(altered) => format!("{kept}\n{altered}"),
            None => kept,
        }
    }

    /// Notes what is changed on the table, or that it is back.
    pub(crate) fn note_altered(&self, altered: Option<String>) {
        *self.altered.lock().expect("no panic while held") = altered;
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.stop.is_requested()
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

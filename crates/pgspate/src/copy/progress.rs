//! The live progress of a copy. The command line and the Python package display it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::numbers::counted;
use pgspate_target::session::StopFlag;

/// Counters that lanes write and the progress line reads.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Rows handed to the server.
    pub rows: AtomicU64,
    /// Decompressed input bytes taken by lanes.
    pub bytes: AtomicU64,
    /// Bytes of chunks that were skipped, because earlier runs of the job have written them.
    pub(crate) bytes_before: AtomicU64,
    /// Rows rejected, including those of earlier runs of the job.
    pub rejected: AtomicU64,
    /// COPY bytes handed to connections.
    pub sent: AtomicU64,
    /// Lanes that were started.
    pub lanes: AtomicU64,
    pub(crate) stop: StopFlag,
    /// Nanoseconds that lanes spent on reading and cutting the source.
    pub(crate) source_nanos: AtomicU64,
    /// Nanoseconds that lanes spent on encoding.
    pub(crate) encode_nanos: AtomicU64,
    /// Nanoseconds that lanes waited until the server accepted more bytes.
    pub(crate) send_nanos: AtomicU64,
    waiting: Mutex<Waiting>,
    phase: Mutex<Option<String>>,
    /// Rows and chunks known to be committed, including those of earlier runs of the job.
    pub(crate) committed: Arc<CommittedCounts>,
    /// Whether the load has begun with `--restart`.
    pub(crate) is_restarted: AtomicBool,
    /// A description of the changes to the table that are not restored yet, and how to restore the
    /// table.
    table_changes: Mutex<Option<String>>,
}

/// Rows and chunks that are committed.
#[derive(Debug, Default)]
pub(crate) struct CommittedCounts {
    rows: AtomicU64,
    chunks: AtomicU64,
    /// Whether a commit was sent whose outcome is not known yet.
    pub(crate) unverified_chunks: AtomicBool,
}

impl CommittedCounts {
    pub(crate) fn add(&self, rows: u64, chunks: u64) {
        self.rows.fetch_add(rows, Relaxed);
        self.chunks.fetch_add(chunks, Relaxed);
    }

    /// Sets the counts to the rows and chunks in the ledger, before an attempt.
    pub(crate) fn reset_to(&self, rows: u64, chunks: u64) {
        self.rows.store(rows, Relaxed);
        self.chunks.store(chunks, Relaxed);
        self.unverified_chunks.store(false, Relaxed);
    }

    /// Returns `3 rows in 1 committed chunk`; `None` if nothing is committed.
    pub(crate) fn describe(&self) -> Option<String> {
        let (rows, chunks) = (self.rows.load(Relaxed), self.chunks.load(Relaxed));
        (chunks > 0)
            .then(|| format!("{} in {}", counted(rows, "row"), counted(chunks, "committed chunk")))
    }
}

/// The resource that most of the load waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Waiting {
    /// No measurement was made yet.
    #[default]
    Unknown,
    /// The input.
    Source,
    /// Encoding by pgspate.
    Encode,
    /// The network.
    Network,
    /// The server. The text is the backends' wait event, or `CPU`.
    Server(String),
}

/// The progress at one moment.
#[derive(Debug, Clone, Default)]
pub struct ProgressSnapshot {
    /// Rows handed to the server.
    pub rows: u64,
    /// Decompressed input bytes taken by lanes.
    pub bytes: u64,
    /// Bytes of chunks that were skipped, because earlier runs of the job have written them.
    pub bytes_before: u64,
    /// Rows rejected.
    pub rejected: u64,
    /// Lanes that were started.
    pub lanes: u64,
    /// The resource that most of the load waits for.
    pub waiting: Waiting,
    /// The work on the table while no rows are written, such as `building index "a"`.
    pub phase: Option<String>,
}

impl CopyProgress {
    /// Creates counters that are zero. `stop` is the stop flag of the whole run.
    pub(crate) fn with_stop(stop: StopFlag) -> CopyProgress {
        CopyProgress { stop, ..CopyProgress::default() }
    }

    /// Returns the progress at this moment.
    pub fn snapshot(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            rows: self.rows.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            bytes_before: self.bytes_before.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            lanes: self.lanes.load(Relaxed),
            waiting: self.waiting.lock().expect("no panic while held").clone(),
            phase: self.phase.lock().expect("no panic while held").clone(),
        }
    }

    /// Returns the flag that [`CopyProgress::cancel`] sets.
    pub fn stop_flag(&self) -> StopFlag {
        self.stop.clone()
    }

    /// Asks the load to stop and roll back.
    pub fn cancel(&self) {
        self.stop.request();
    }

    /// Sets the counters to zero before another attempt.
    pub(crate) fn start_over(&self) {
        let counters =
            [&self.rows, &self.bytes, &self.bytes_before, &self.rejected, &self.sent, &self.lanes];
        let times = [&self.source_nanos, &self.encode_nanos, &self.send_nanos];
        counters.into_iter().chain(times).for_each(|counter| counter.store(0, Relaxed));
    }

    /// Returns what continues this load if it ends early, as the subject of a clause. After a load
    /// with `--restart`, the same command would start over once more, beside the committed rows.
    pub(crate) fn command_to_resume(&self) -> &'static str {
        match self.is_restarted.load(Relaxed) {
            false => "the same command, run again",
            true => "the same command without `--restart`, run again",
        }
    }

    /// Describes which rows stay in the table if the load ends now, and how to continue.
    pub fn describe_kept_rows(&self) -> String {
        let kept = match (self.committed.describe(), self.committed.unverified_chunks.load(Relaxed))
        {
            (Some(kept), _) => {
                let again = self.command_to_resume();
                format!("{kept} stay; {again}, loads the rest")
            }
            (None, false) => "nothing was committed".to_owned(),
            (None, true) => {
                let again = self.command_to_resume();
                format!("the outcome of the last commit is unknown; {again}, finds out")
            }
        };
        match &*self.table_changes.lock().expect("no panic while held") {
            Some(changes) => format!("{kept}\n{changes}"),
            None => kept,
        }
    }

    /// Records a description of the changes to the table; `None` once the table is restored.
    pub(crate) fn note_table_changes(&self, changes: Option<String>) {
        *self.table_changes.lock().expect("no panic while held") = changes;
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

    /// Returns the nanoseconds that lanes have spent on reading, encoding and sending.
    pub(crate) fn stage_nanos(&self) -> [u64; 3] {
        [&self.source_nanos, &self.encode_nanos, &self.send_nanos].map(|it| it.load(Relaxed))
    }
}

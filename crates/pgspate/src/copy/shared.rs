//! State that the lanes of a copy share: the source of chunks, the progress, and the first failure
//! in input order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use tokio_postgres::error::SqlState;

use super::cutter_thread::CutterThread;
use super::lane::FinishedLane;
use super::{Commit, CopyJob, CopyProgress, Lanes, LedgerJob, RejectsMax};
use crate::format::{Chunk, ContentDigests, Cutter};
use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::Reject;

/// An error, and the chunk in which the error happened.
#[derive(Debug)]
pub(super) struct LaneFailure {
    /// Ordinal of the chunk that failed, or that could not be cut.
    pub(super) seq: u64,
    pub(super) error: Error,
    /// The chunk, if the server or the encoder refused one of its rows.
    pub(super) refused: Option<RefusedChunk>,
    /// Whether the ledger has the chunk already, because a lost session of this run committed the
    /// chunk.
    pub(super) is_chunk_recorded: bool,
    /// Whether a server crash has emptied the table, although the ledger says that chunks are
    /// written. All lanes must start over.
    pub(super) is_emptied: bool,
}

impl LaneFailure {
    /// Creates a failure that is not about a chunk's rows.
    pub(super) fn of(seq: u64, error: Error) -> LaneFailure {
        LaneFailure { seq, error, refused: None, is_chunk_recorded: false, is_emptied: false }
    }

    /// Creates the failure for a table that a server crash has emptied.
    pub(super) fn table_emptied(seq: u64) -> LaneFailure {
        let message = "the server crashed, which emptied the table's unlogged storage";
        let error = Error::new(ErrorKind::Ledger, message);
        LaneFailure { is_emptied: true, ..LaneFailure::of(seq, error) }
    }

    /// Returns whether sending the same chunks again may succeed.
    pub(super) fn is_retryable(&self) -> bool {
        self.is_chunk_recorded || self.error.is_retryable()
    }
}

/// A chunk of which the server or the encoder refused a row.
#[derive(Debug)]
pub(super) struct RefusedChunk {
    pub(super) chunk: Arc<Chunk>,
    pub(super) by: RefusedBy,
}

/// The step that refused a row.
#[derive(Debug, Clone, Copy)]
pub(super) enum RefusedBy {
    /// The server, in a binary COPY.
    BinaryCopy,
    /// The server, in the text COPY of rows that the encoder could not encode.
    LeftOverText,
    /// The server, in a text COPY of all rows.
    WholeText,
    /// The encoder; the error has a place already.
    Encoder,
}

/// State that all lanes of a copy share.
pub(super) struct SharedRun<'a> {
    pub(super) job: &'a CopyJob,
    pub(super) progress: &'a CopyProgress,
    /// The source of chunks; `None` after its end or an error.
    cutter: Mutex<Option<ChunkSource>>,
    /// Number of chunks that were cut so far.
    chunks: AtomicU64,
    /// A number above those of all chunks that were cut so far.
    seq_end: AtomicU64,
    /// Number of chunks that were skipped, because the ledger had them already.
    skipped: AtomicU64,
    /// The failure with the lowest chunk ordinal.
    failure: Mutex<Option<LaneFailure>>,
    /// Lowest ordinal of a failed chunk. Lanes abandon all later chunks.
    failed_seq: AtomicU64,
    /// Whether a lane waits for a lock of another lane that commits at the end.
    pub(super) lanes_conflict: AtomicBool,
    /// Whether the server has refused a row of the COPY that all chunks share.
    pub(super) statement_refused: AtomicBool,
    /// Whether a lane has lost a session. The server may have crashed.
    pub(super) lost_session: AtomicBool,
    /// Whether the cutter has reached the end of the input.
    all_chunks_cut: AtomicBool,
    /// Whether there is only one lane, and no lane will be added.
    pub(super) has_one_lane: bool,
    /// The server's error when it had no free connection for another lane.
    connection_limit: Mutex<Option<Error>>,
    /// Number of rows that earlier runs have rejected.
    rejected_before: u64,
    /// Number of rows that this run has rejected, by the ordinal of the chunk. A chunk that is
    /// written again replaces its earlier number.
    rejected: Mutex<HashMap<u64, u64>>,
    /// Digests of the inputs read so far.
    contents: Mutex<ContentDigests>,
    /// A session outside this run that held a lock for which a lane waited.
    blocker: Mutex<Option<String>>,
    /// Lanes with this ordinal or a higher one take no more chunks.
    pub(super) lanes_max: AtomicU64,
}

/// The result of cutting a chunk.
enum NextChunk {
    /// A chunk that is in the ledger already.
    Written,
    /// A chunk to write.
    Unwritten(Chunk),
    /// The end of the input.
    End,
}

/// The source of chunks: a cutter, or a thread that runs a cutter.
enum ChunkSource {
    Direct(Box<dyn Cutter>),
    CutterThread(CutterThread),
}

impl<'a> SharedRun<'a> {
    pub(super) fn new(
        job: &'a CopyJob,
        cutter: Box<dyn Cutter>,
        progress: &'a CopyProgress,
    ) -> SharedRun<'a> {
        let ledger = job.ledger.as_ref();
        let rejected = ledger.map_or(0, |ledger| ledger.written_chunks.totals().rows_rejected);
        progress.rejected.store(rejected, Relaxed);
        let cutter = if job.is_stream {
            ChunkSource::CutterThread(CutterThread::new(cutter))
        } else {
            ChunkSource::Direct(cutter)
        };
        SharedRun {
            job,
            progress,
            cutter: Mutex::new(Some(cutter)),
            chunks: AtomicU64::new(0),
            seq_end: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            failure: Mutex::new(None),
            failed_seq: AtomicU64::new(u64::MAX),
            lanes_conflict: AtomicBool::new(false),
            statement_refused: AtomicBool::new(false),
            lost_session: AtomicBool::new(false),
            all_chunks_cut: AtomicBool::new(false),
            has_one_lane: job.one_statement || matches!(job.lanes, Lanes::Fixed(1)),
            connection_limit: Mutex::new(None),
            rejected_before: rejected,
            rejected: Mutex::new(HashMap::new()),
            contents: Mutex::new(ContentDigests::new(job.input_names.len())),
            blocker: Mutex::new(None),
            lanes_max: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns the next chunk that is not written yet; `None` if there are no more chunks or the
    /// load has ended.
    pub(super) fn next_chunk(&self) -> Option<Arc<Chunk>> {
        let started = Instant::now();
        let Ok(mut cutter) = self.cutter.lock() else {
            // Another lane panicked while cutting. `join_lane` reports the panic.
            return None;
        };
        let chunk = loop {
            if self.is_over() {
                return None;
            }
            let result = match cutter.as_mut()? {
                ChunkSource::Direct(cutter) => cutter.next(),
                ChunkSource::CutterThread(thread) => thread.next(|| self.is_over()),
            };
            let seq = match &result {
                Ok(Some(chunk)) => chunk.seq,
                _ => self.seq_end(),
            };
            match result.and_then(|chunk| self.classify(chunk)) {
                Ok(NextChunk::Written) => self.count_cut_chunk(seq),
                Ok(NextChunk::Unwritten(chunk)) => {
                    self.count_cut_chunk(seq);
                    break Some(chunk);
                }
                Ok(NextChunk::End) => {
                    // `CutterThread::next` also returns `None` when the load has ended early. Then
                    // nothing reads this flag.
                    self.all_chunks_cut.store(true, Relaxed);
                    *cutter = None;
                    break None;
                }
                Err(error) => {
                    *cutter = None;
                    self.fail(LaneFailure::of(seq, error));
                    break None;
                }
            }
        };
        drop(cutter);
        // The cutter's lock is released here, so that lanes compute digests in parallel.
        let chunk = chunk.and_then(|chunk| match self.add_digest(chunk) {
            Ok(chunk) => Some(Arc::new(chunk)),
            Err((seq, error)) => {
                self.fail(LaneFailure::of(seq, error));
                None
            }
        });
        self.progress.source_nanos.fetch_add(started.elapsed().as_nanos() as u64, Relaxed);
        chunk
    }

    fn count_cut_chunk(&self, seq: u64) {
        self.chunks.fetch_add(1, Relaxed);
        self.seq_end.fetch_max(seq + 1, Relaxed);
    }

    /// Adds the content's digest to a chunk, if the ledger records digests of this input.
    fn add_digest(&self, mut chunk: Chunk) -> Result<Chunk, (u64, Error)> {
        if self.job.ledger.is_some() && !self.job.is_stream {
            chunk.digest = chunk.content_digest().map_err(|error| (chunk.seq, error))?;
            self.add_content(&chunk);
        }
        Ok(chunk)
    }

    fn add_content(&self, chunk: &Chunk) {
        let mut contents = self.contents.lock().expect("no panic while held");
        contents.add(chunk.input, chunk.position(), chunk.digest);
    }

    /// Returns the digests of all inputs.
    pub(super) fn contents(&self) -> ContentDigests {
        match self.job.ledger.is_some() && !self.job.is_stream {
            true => self.contents.lock().expect("no panic while held").clone(),
            false => ContentDigests::default(),
        }
    }

    /// Returns whether the ledger has a chunk already. Checks that such a chunk still has the
    /// content that was written.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the chunk's content or position has changed.
    fn classify(&self, chunk: Option<Chunk>) -> Result<NextChunk> {
        let Some(chunk) = chunk else { return Ok(NextChunk::End) };
        let done = self.job.ledger.as_ref().and_then(|ledger| ledger.written_chunks.get(chunk.seq));
        let Some(record) = done else {
            return Ok(NextChunk::Unwritten(chunk));
        };
        let chunk = self.add_digest(chunk).map_err(|(_, error)| error)?;
        if record.digest.is_some() && record.digest != chunk.digest {
            let message = format!("{} has changed since it was written", self.name_chunk(&chunk));
            return Err(Error::new(ErrorKind::Ledger, message).hint(SOURCE_CHANGED_HINT));
        }
        if (record.input, record.position) != (chunk.input, chunk.position()) {
            let message = format!(
                "{} begins at {}, but began at {} when it was written",
                self.name_chunk(&chunk),
                chunk.position(),
                record.position
            );
            return Err(Error::new(ErrorKind::Ledger, message).hint(SOURCE_CHANGED_HINT));
        }
        self.progress.rows.fetch_add(record.rows_in, Relaxed);
        self.progress.bytes.fetch_add(chunk.stored_bytes(), Relaxed);
        let ledger = self.job.ledger.as_ref();
        if ledger.is_some_and(|ledger| ledger.chunks_before.get(chunk.seq).is_some()) {
            self.progress.bytes_before.fetch_add(chunk.stored_bytes(), Relaxed);
        }
        self.skipped.fetch_add(1, Relaxed);
        Ok(NextChunk::Written)
    }

    /// Returns a chunk's number and input in words.
    fn name_chunk(&self, chunk: &Chunk) -> String {
        let source = self.job.input_names.get(chunk.input).map_or("-", String::as_str);
        format!("chunk {} of \"{source}\"", chunk.seq_in_input())
    }

    /// Returns the number of chunks that were skipped, because the ledger had them already.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    /// Returns the number of chunks that were cut so far.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks.load(Relaxed)
    }

    /// Returns a number above those of all chunks that were cut so far. A failure with this number
    /// lets the lanes send these chunks.
    pub(super) fn seq_end(&self) -> u64 {
        self.seq_end.load(Relaxed)
    }

    /// Records a failure, unless a failure of an earlier chunk is recorded.
    pub(super) fn fail(&self, failure: LaneFailure) {
        let mut first = self.failure.lock().expect("no panic while held");
        if first.as_ref().is_none_or(|first| failure.seq < first.seq) {
            self.failed_seq.fetch_min(failure.seq, Relaxed);
            *first = Some(failure);
        }
    }

    /// Records the server's error when it had no free connection for another lane.
    pub(super) fn note_connection_limit(&self, error: Error) {
        *self.connection_limit.lock().expect("no panic while held") = Some(error);
    }

    /// Returns the server's error when it had no free connection for another lane.
    pub(super) fn connection_limit(&self) -> MutexGuard<'_, Option<Error>> {
        self.connection_limit.lock().expect("no panic while held")
    }

    /// Counts a chunk's rejected rows.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if more rows are rejected than `--max-rejects` allows.
    pub(super) fn count_rejects(&self, chunk: u64, rejects: &[Reject]) -> Result<()> {
        let Some(last) = rejects.last() else { return Ok(()) };
        let mut rejected = self.rejected.lock().expect("no panic while held");
        rejected.insert(chunk, rejects.len() as u64);
        let all = self.rejected_before + rejected.values().sum::<u64>();
        drop(rejected);
        self.progress.rejected.store(all, Relaxed);
        let allowed = match self.job.rejects_max() {
            Some(RejectsMax::Rows(most)) if all > most => format!("{most}"),
            // While few rows were read, the percentage is not checked here. It is always checked
            // after the last row.
            Some(RejectsMax::Percent(most)) => {
                let rows = self.progress.rows.load(Relaxed);
                if rows < PERCENTAGE_ROWS_MIN || all as f64 <= rows as f64 * most / 100.0 {
                    return Ok(());
                }
                format!("{most}%")
            }
            _ => return Ok(()),
        };
        let message = format!("{} (SQLSTATE {})", last.message, last.sqlstate.code());
        let cause = Error::new(ErrorKind::Server, message).at(last.place.clone());
        Err(too_many_rejects(all, &allowed).because(cause))
    }

    /// Checks the number of rows that earlier runs have rejected, before a row is read.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if `--max-rejects` allows fewer rows now.
    pub(super) fn check_earlier_rejects(&self) -> Result<()> {
        match self.job.rejects_max() {
            Some(RejectsMax::Rows(most)) if self.rejected_before > most => {
                Err(too_many_rejects(self.rejected_before, &format!("{most}")))
            }
            _ => Ok(()),
        }
    }

    /// Checks the percentage of rejected rows, after all rows were read.
    pub(super) fn check_reject_percentage(&self) -> Result<()> {
        let (all, rows) = (self.progress.rejected.load(Relaxed), self.progress.rows.load(Relaxed));
        match self.job.rejects_max() {
            Some(RejectsMax::Percent(most)) if all as f64 > rows as f64 * most / 100.0 => {
                Err(too_many_rejects(all, &format!("{most}%")))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a lane reads the next chunk of the input at this moment.
    pub(super) fn is_reading(&self) -> bool {
        matches!(self.cutter.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Records a session that holds a lock for which a lane waits.
    pub(super) fn note_blocker(&self, blocker: String) {
        *self.blocker.lock().expect("no panic while held") = Some(blocker);
    }

    /// Adds a hint that names the lock's holder, if the error is a lock timeout.
    pub(super) fn add_blocker_hint(&self, error: Error) -> Error {
        let is_lock = error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        let blocker = self.blocker.lock().expect("no panic while held").take();
        let Some(blocker) = blocker.filter(|_| is_lock) else { return error };
        let seconds = self.job.setup.limits.lock_timeout.as_secs();
        error.hint(format!(
            "The lock was held for {seconds} s by {blocker}. End that session, or wait longer with \
             `--lock-timeout`."
        ))
    }

    pub(super) fn take_failure(&self) -> Option<LaneFailure> {
        self.failure.lock().expect("no panic while held").take()
    }

    /// Returns whether chunk `seq` need not be sent any more, because the load ends earlier.
    pub(super) fn is_abandoned(&self, seq: u64) -> bool {
        seq > self.failed_seq.load(Relaxed)
            || self.lanes_conflict.load(Relaxed)
            || self.statement_refused.load(Relaxed)
            || self.progress.is_cancelled()
    }

    /// Returns whether a lane has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.lock().expect("no panic while held").is_some()
    }

    /// Returns whether the load ends early, so that lanes take no more chunks.
    pub(super) fn is_over(&self) -> bool {
        self.is_abandoned(u64::MAX)
    }

    /// Checks that lanes have confirmed every chunk of the input.
    pub(super) fn check_complete(&self, lanes: &[FinishedLane]) -> Result<()> {
        self.check_confirmed(lanes.iter().map(|lane| lane.tally.chunks).sum())
    }

    /// Checks that `written` chunks and those that the ledger had are every chunk of the input.
    pub(super) fn check_confirmed(&self, written: u64) -> Result<()> {
        let (confirmed, chunks) = (self.skipped() + written, self.chunks());
        if self.are_all_chunks_cut() && confirmed == chunks {
            return Ok(());
        }
        let message = format!("{confirmed} of {chunks} chunks are confirmed");
        Err(Error::new(ErrorKind::Bug, message))
    }

    /// Returns whether the input has no more chunks.
    pub(super) fn are_all_chunks_cut(&self) -> bool {
        self.all_chunks_cut.load(Relaxed)
    }

    /// Returns an error if the user stopped the load.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        let has_chunks = |ledger: &LedgerJob| ledger.written_chunks.chunks() > 0;
        self.progress.stop.check().map_err(|stopped| match self.job.commit {
            Commit::AtEnd if !self.job.ledger.as_ref().is_some_and(has_chunks) => {
                Error::new(stopped.kind(), format!("{stopped}; nothing was loaded"))
            }
            Commit::AtEnd | Commit::EachChunk => stopped,
        })
    }
}

/// Hint for a source that has changed since some of its chunks were written.
const SOURCE_CHANGED_HINT: &str =
    "The source has changed. `--restart` loads all of it again; rows written so far stay.";

/// Minimum number of rows read before a percentage of rejected rows is meaningful.
const PERCENTAGE_ROWS_MIN: u64 = 100_000;

pub(crate) fn too_many_rejects(all: u64, allowed: &str) -> Error {
    let rows = counted(all, "row");
    Error::new(ErrorKind::Server, format!("{rows} rejected; --max-rejects allows {allowed}"))
        .hint("Raise `--max-rejects` to continue, or correct the input.")
}

//! What lanes share: the cutter, the progress, and the first failure in input order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tokio_postgres::error::SqlState;

use super::lane::FinishedLane;
use super::pipe::CutterThread;
use super::{Commit, CopyJob, Lanes, CopyProgress, RejectsMax};
use crate::format::{Chunk, Contents, Cutter};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::Reject;

/// What went wrong, and with which chunk.
#[derive(Debug)]
pub(super) struct LaneFailure {
    /// Ordinal of the chunk, or of the one that could not be cut.
    pub(super) seq: u64,
    pub(super) error: Error,
    /// Where rows were refused.
    pub(super) refused: Option<RefusedChunk>,
    /// The ledger has the chunk already: an earlier session of ours wrote it after all.
    pub(super) is_taken: bool,
    /// A crash has taken what the ledger says is written: all lanes are to begin over.
    pub(super) is_emptied: bool,
}

impl LaneFailure {
    /// One that is about no chunk's rows.
    pub(super) fn of(seq: u64, error: Error) -> LaneFailure {
        LaneFailure { seq, error, refused: None, is_taken: false, is_emptied: false }
    }

    /// One for rows that a crash of the server has taken.
    pub(super) fn of_crash(seq: u64) -> LaneFailure {
        let message = "the server has crashed, and has emptied what is unlogged of the table";
        let error = Error::new(ErrorKind::Ledger, message);
        LaneFailure { is_emptied: true, ..LaneFailure::of(seq, error) }
    }

    /// Whether the same chunks may be taken when they are sent again.
    pub(super) fn is_retryable(&self) -> bool {
        self.is_taken || self.error.is_retryable()
    }
}

/// A chunk of which a row was refused, by the server or for its structure.
#[derive(Debug)]
pub(super) struct RefusedChunk {
    pub(super) chunk: Arc<Chunk>,
    pub(super) by: RefusedBy,
}

/// Who refused it, and where.
#[derive(Debug, Clone, Copy)]
pub(super) enum RefusedBy {
    /// The server, in the binary COPY.
    BinaryCopy,
    /// The server, in the text COPY of the rows that the encoder left to it.
    LeftOverText,
    /// The server, in a text COPY of all rows.
    WholeText,
    /// The encoder: its error already has a place.
    Encoder,
}

/// ChunkSource come from here, and failures go here.
pub(super) struct SharedRun<'a> {
    pub(super) job: &'a CopyJob,
    pub(super) progress: &'a CopyProgress,
    cutter: Mutex<Option<ChunkSource>>,
    chunks: AtomicU64,
    /// How many of them were written before.
    skipped: AtomicU64,
    failure: Mutex<Option<LaneFailure>>,
    /// The lowest failed ordinal; lanes give up what comes after it.
    failed_seq: AtomicU64,
    /// Two lanes wait for each other.
    pub(super) conflict: AtomicBool,
    /// The server has refused a row of the one statement that is under way.
    pub(super) statement_refused: AtomicBool,
    /// A session was lost in which chunks had been committed, perhaps with its server.
    pub(super) has_lost: AtomicBool,
    /// The input was cut to its end.
    is_cut: AtomicBool,
    /// There is one lane and never another.
    pub(super) is_alone: bool,
    /// What the server said when it had no room for another lane.
    full: Mutex<Option<Error>>,
    /// Rows that earlier runs have set aside.
    rejected_before: u64,
    /// Rows that this one has, by chunk: one that is written again counts once.
    rejected: Mutex<HashMap<u64, u64>>,
    /// The digests of what was read.
    contents: Mutex<Contents>,
    /// Who else held a lock that a lane waited for.
    blocker: Mutex<Option<String>>,
    /// Lanes with an ordinal from here on take no more chunks.
    pub(super) lanes_max: AtomicU64,
}

/// What comes from the cutter.
enum NextChunk {
    /// A chunk that an earlier run has written.
    Written,
    Wanted(Chunk),
    End,
}

/// Where chunks come from.
enum ChunkSource {
    Direct(Box<dyn Cutter>),
    CutterThread(CutterThread),
}

impl<'a> SharedRun<'a> {
    pub(super) fn new(job: &'a CopyJob, cutter: Box<dyn Cutter>, progress: &'a CopyProgress) -> SharedRun<'a> {
        let ledger = job.ledger.as_ref();
        let rejected = ledger.map_or(0, |ledger| ledger.done.sums().rows_rejected);
        progress.rejected.store(rejected, Relaxed);
        let cutter =
            if job.is_stream { ChunkSource::CutterThread(CutterThread::new(cutter)) } else { ChunkSource::Direct(cutter) };
        SharedRun {
            job,
            progress,
            cutter: Mutex::new(Some(cutter)),
            chunks: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            failure: Mutex::new(None),
            failed_seq: AtomicU64::new(u64::MAX),
            conflict: AtomicBool::new(false),
            statement_refused: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            is_alone: job.one_statement || matches!(job.lanes, Lanes::Fixed(1)),
            full: Mutex::new(None),
            rejected_before: rejected,
            rejected: Mutex::new(HashMap::new()),
            contents: Mutex::new(Contents::new(job.input_names.len())),
            blocker: Mutex::new(None),
            lanes_max: AtomicU64::new(u64::MAX),
        }
    }

    /// The next chunk that is not written yet, or `None` when there are no more or the load has
    /// failed.
    pub(super) fn next_chunk(&self) -> Option<Arc<Chunk>> {
        let asked = Instant::now();
        let Ok(mut cutter) = self.cutter.lock() else {
            // Another lane panicked while cutting, and says so.
            return None;
        };
        let chunk = loop {
            if self.is_over() {
                return None;
            }
            let result = match cutter.as_mut()? {
                ChunkSource::Direct(cutter) => cutter.next(),
                ChunkSource::CutterThread(pipe) => pipe.next(|| self.is_over()),
            };
            let seq = self.chunks.load(Relaxed);
            match result.and_then(|chunk| self.sort(chunk)) {
                Ok(NextChunk::Written) => self.chunks.store(seq + 1, Relaxed),
                Ok(NextChunk::Wanted(chunk)) => {
                    self.chunks.store(seq + 1, Relaxed);
                    break Some(chunk);
                }
                Ok(NextChunk::End) => {
                    // A pipe also ends when the load is over; that counts for nothing then.
                    self.is_cut.store(true, Relaxed);
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
        // Lanes do this side by side.
        let chunk = chunk.and_then(|chunk| match self.digested(chunk) {
            Ok(chunk) => Some(Arc::new(chunk)),
            Err((seq, error)) => {
                self.fail(LaneFailure::of(seq, error));
                None
            }
        });
        self.progress.source_nanos.fetch_add(asked.elapsed().as_nanos() as u64, Relaxed);
        chunk
    }

    /// The chunk with its digest, if the ledger is to know it.
    fn digested(&self, mut chunk: Chunk) -> Result<Chunk, (u64, Error)> {
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

    /// The digests of all inputs that were read.
    pub(super) fn contents(&self) -> Contents {
        match self.job.ledger.is_some() && !self.job.is_stream {
            true => self.contents.lock().expect("no panic while held").clone(),
            false => Contents::default(),
        }
    }

    /// Tells a chunk that is written already, and that it is the one that was written then.
    fn sort(&self, chunk: Option<Chunk>) -> Result<NextChunk> {
        let Some(chunk) = chunk else { return Ok(NextChunk::End) };
        let done = self.job.ledger.as_ref().and_then(|ledger| ledger.done.get(chunk.seq));
        let Some(seal) = done else {
            return Ok(NextChunk::Wanted(chunk));
        };
        let chunk = self.digested(chunk).map_err(|(_, error)| error)?;
        if seal.digest.is_some() && seal.digest != chunk.digest {
            let source = self.job.input_names.get(chunk.input).map_or("-", String::as_str);
            let message = format!(
                "chunk {} of \"{source}\" is not what it was when it was written",
                chunk.seq
            );
            return Err(Error::new(ErrorKind::Ledger, message).hint(CHANGED));
        }
        if (seal.input, seal.position) != (chunk.input, chunk.position()) {
            let message = format!(
                "chunk {} begins at {} and not, as when it was written, at {}",
                chunk.seq,
                chunk.position(),
                seal.position
            );
            return Err(Error::new(ErrorKind::Ledger, message).hint(CHANGED));
        }
        self.progress.rows.fetch_add(seal.rows_in, Relaxed);
        self.progress.bytes.fetch_add(chunk.stored_bytes(), Relaxed);
        self.skipped.fetch_add(1, Relaxed);
        Ok(NextChunk::Written)
    }

    /// ChunkSource that were written before.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    pub(super) fn chunks(&self) -> u64 {
        self.chunks.load(Relaxed)
    }

    /// Keeps the failure that comes first in the input.
    pub(super) fn fail(&self, failure: LaneFailure) {
        let mut first = self.failure.lock().expect("no panic while held");
        if first.as_ref().is_none_or(|first| failure.seq < first.seq) {
            self.failed_seq.fetch_min(failure.seq, Relaxed);
            *first = Some(failure);
        }
    }

    /// Notes that the server takes no more connections.
    pub(super) fn note_full(&self, error: Error) {
        *self.full.lock().expect("no panic while held") = Some(error);
    }

    /// What it said then.
    pub(super) fn full(&self) -> MutexGuard<'_, Option<Error>> {
        self.full.lock().expect("no panic while held")
    }

    /// Counts a chunk's rows that are to be set aside; the error when that makes more than there
    /// may be.
    pub(super) fn reject(&self, chunk: u64, rejects: &[Reject]) -> Result<()> {
        let Some(last) = rejects.last() else { return Ok(()) };
        let mut rejected = self.rejected.lock().expect("no panic while held");
        rejected.insert(chunk, rejects.len() as u64);
        let all = self.rejected_before + rejected.values().sum::<u64>();
        drop(rejected);
        self.progress.rejected.store(all, Relaxed);
        let may = match self.job.rejects() {
            Some(RejectsMax::Rows(most)) if all > most => format!("{most}"),
            // A share is judged when it means something, and at the end.
            Some(RejectsMax::Percent(most)) => {
                let rows = self.progress.rows.load(Relaxed);
                if rows < ROWS_FOR_A_SHARE || all as f64 <= rows as f64 * most / 100.0 {
                    return Ok(());
                }
                format!("{most} %")
            }
            _ => return Ok(()),
        };
        let message = format!("{} (SQLSTATE {})", last.message, last.sqlstate.code());
        let cause = Error::new(ErrorKind::Server, message).at(last.place.clone());
        Err(too_many(all, &may).because(cause))
    }

    /// Judges the share of rows that were set aside, when all rows are read.
    pub(super) fn check_share(&self) -> Result<()> {
        let (all, rows) = (self.progress.rejected.load(Relaxed), self.progress.rows.load(Relaxed));
        match self.job.rejects() {
            Some(RejectsMax::Percent(most)) if all as f64 > rows as f64 * most / 100.0 => {
                Err(too_many(all, &format!("{most} %")))
            }
            _ => Ok(()),
        }
    }

    /// Notes who holds a lock that a lane waits for.
    pub(super) fn note_blocker(&self, blocker: String) {
        *self.blocker.lock().expect("no panic while held") = Some(blocker);
    }

    /// Adds to an error about a lock who held it.
    pub(super) fn name_blocker(&self, error: Error) -> Error {
        let is_lock = error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        let blocker = self.blocker.lock().expect("no panic while held").take();
        let Some(blocker) = blocker.filter(|_| is_lock) else { return error };
        let seconds = self.job.copying.limits.lock_timeout.as_secs();
        error.hint(format!(
            "The lock was held for {seconds} s by {blocker}. End that session, or wait longer with \
             `--lock-timeout`."
        ))
    }

    pub(super) fn take_failure(&self) -> Option<LaneFailure> {
        self.failure.lock().expect("no panic while held").take()
    }

    /// Whether chunk `seq` is no longer wanted.
    pub(super) fn is_given_up(&self, seq: u64) -> bool {
        seq > self.failed_seq.load(Relaxed)
            || self.conflict.load(Relaxed)
            || self.statement_refused.load(Relaxed)
            || self.progress.is_cancelled()
    }

    /// Whether a lane has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.lock().expect("no panic while held").is_some()
    }

    /// Whether no further chunk is wanted.
    pub(super) fn is_over(&self) -> bool {
        self.is_given_up(u64::MAX)
    }

    /// Every chunk of the input has been confirmed by a lane.
    pub(super) fn check_complete(&self, lanes: &[FinishedLane]) -> Result<()> {
        let confirmed = self.skipped() + lanes.iter().map(|lane| lane.tally.chunks).sum::<u64>();
        if self.is_cut.load(Relaxed) && confirmed == self.chunks() {
            return Ok(());
        }
        let chunks = self.chunks();
        let message = format!("{confirmed} of {chunks} chunks are confirmed");
        Err(Error::new(ErrorKind::Bug, message))
    }

    /// The error to end with when the user stopped the load.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        self.progress.stop.check().map_err(|stopped| match self.job.commit {
            Commit::AtEnd => Error::new(stopped.kind(), format!("{stopped}; nothing was loaded")),
            Commit::EachChunk => stopped,
        })
    }
}

/// For a source of which other chunks are written than it has now.
const CHANGED: &str =
    "The source is not what it was. `--restart` begins anew; what is written stays.";

/// Below this many rows, a few refused ones are no share to judge by.
const ROWS_FOR_A_SHARE: u64 = 100_000;

fn too_many(all: u64, may: &str) -> Error {
    let s = if all == 1 { " is" } else { "s are" };
    Error::new(ErrorKind::Server, format!("{all} row{s} refused, and at most {may} may be"))
        .hint("Raise `--max-rejects` to go on, or mend the input.")
}

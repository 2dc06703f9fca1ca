//! One lane: a thread that encodes, ahead by a bounded number of pieces of the task that streams.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;

use super::ready::limits;
use super::session::{ConfirmedTally, SessionRegistry};
use super::shared::{LaneFailure, RefusedChunk, RefusedBy, SharedRun};
use super::sift::sift;
use super::stream::{BEGIN, LaneStream, LaneTally, refused_copy};
use super::{Commit, Destination, LaneSession, LedgerJob, PIECE_BYTES, PIECES_AHEAD};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, Mode};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{Seal, insert_rejects, is_emptied, is_taken, read_done};
use pgspate_target::session::{LOOK, Patience};

/// From the thread to the task.
#[derive(Clone)]
pub(super) enum LaneMessage {
    /// The next chunk, and how its rows are meant to go.
    Chunk(Arc<Chunk>, Mode),
    Piece(Mode, Bytes),
    /// The chunk is complete: so many rows were sent as binary and as text.
    End(u64, u64),
    /// There are no more chunks, and the load goes on.
    Complete,
}

/// What a lane did to its end. Where lanes commit together, the transactions are still open.
pub(super) struct FinishedLane {
    /// One, unless sessions share the rows.
    pub(super) sessions: Vec<LaneSession>,
    /// Of all of them.
    pub(super) tally: LaneTally,
}

/// A session under way, from the thread's side.
struct RunningSession {
    sender: mpsc::Sender<LaneMessage>,
    confirmed: Arc<ConfirmedTally>,
    task: JoinHandle<Result<Connection, Box<LaneFailure>>>,
}

/// A lane over all its sessions.
struct Lane<'a, 'b> {
    shared: &'a SharedRun<'b>,
    nth: u64,
    runtime: &'a tokio::runtime::Handle,
    /// Chunks that were taken and that no session has confirmed, where they can be sent again.
    in_flight: VecDeque<InFlightChunk>,
    /// How many of them this session has confirmed: they come first, and are let go of.
    released: usize,
    /// What the encoder refused in this session, where that is set aside.
    refused: Option<LaneFailure>,
    /// A session has ended before its time: what it had begun may be written all the same.
    has_lost: bool,
    /// Backends of sessions that this lane has opened and not seen end.
    backends: Vec<i32>,
    tally: LaneTally,
}

/// A chunk on its way.
#[derive(Clone)]
struct InFlightChunk {
    chunk: Arc<Chunk>,
    /// Whether its rows are counted in the progress, so that they are not when they are sent again.
    is_counted: bool,
}

/// Connects and runs a lane until there are no more chunks, over as many sessions as it takes.
/// `None` when it failed; the failure is in `shared` then.
pub(super) fn run(
    shared: &SharedRun<'_>,
    nth: u64,
    sessions: &SessionRegistry,
    runtime: &tokio::runtime::Handle,
) -> Option<FinishedLane> {
    let mut lane = Lane {
        shared,
        nth,
        runtime,
        in_flight: VecDeque::new(),
        released: 0,
        refused: None,
        has_lost: false,
        backends: Vec::new(),
        tally: LaneTally::default(),
    };
    let mut patience = Patience::new(shared.job.copying.limits.retry_for);
    loop {
        let chunks_before = lane.tally.chunks;
        let failure = match lane.session(sessions) {
            Ok(sessions) => return Some(FinishedLane { sessions, tally: lane.tally }),
            Err(failure) => failure,
        };
        if failure.error.kind() == ErrorKind::Connect
            && shared.job.lanes.is_auto()
            && lane.tally.chunks == 0
            && lane.in_flight.is_empty()
            && is_full(&failure.error)
        {
            // No room for this one: the others do its work, if there are others.
            shared.note_full(failure.error);
            return None;
        }
        if lane.tally.chunks > chunks_before {
            patience.renew();
        }
        let failure = match lane.set_aside(lane.judge(failure)) {
            Ok(()) => {
                patience.renew();
                continue;
            }
            Err(failure) => failure,
        };
        if shared.job.rejects().is_some() && failure.refused.is_some() && shared.has_failed() {
            // The rows would have been set aside; the load ends for another reason.
            return None;
        }
        if !lane.may_retry(&failure) || !patience.wait(|| shared.is_over()) {
            shared.fail(failure);
            return None;
        }
        lane.has_lost = true;
        shared.has_lost.store(true, Relaxed);
    }
}

impl Lane<'_, '_> {
    /// Runs until there are no more chunks or a session has failed.
    fn session(&mut self, sessions: &SessionRegistry) -> Result<Vec<LaneSession>, LaneFailure> {
        self.refused = None;
        let shares = match &self.shared.job.destination {
            Destination::Stage { shares } if !shares.is_empty() => shares.as_slice(),
            _ => &[String::new()],
        };
        let served = shares.iter().map(|share| self.open(sessions, share));
        let served = served.collect::<Result<Vec<_>, _>>()?;
        let senders: Vec<_> = served.iter().map(|it| it.sender.clone()).collect();
        let (confirmed, tasks): (Vec<_>, Vec<_>) =
            served.into_iter().map(|it| (it.confirmed, it.task)).unzip();
        self.released = 0;
        self.feed(&senders, &confirmed[0]);
        drop(senders);
        let served: Vec<_> = tasks.into_iter().map(|task| self.runtime.block_on(task)).collect();
        self.release(&confirmed[0]);
        let tallies: Vec<_> = confirmed.iter().map(|it| it.get()).collect();
        self.tally.add(&LaneTally::of_shares(&tallies));
        let mut kept = Vec::with_capacity(served.len());
        for (served, tally) in served.into_iter().zip(tallies) {
            let served = served.map_err(|ended| {
                let error = match ended.is_cancelled() {
                    true => cut_off(),
                    false => Error::new(ErrorKind::Bug, "a lane's task panicked").because(ended),
                };
                LaneFailure::of(self.shared.chunks(), error)
            })?;
            let connection = served.map_err(|failure| *failure)?;
            kept.push(LaneSession { connection, rows: tally.rows_written });
        }
        self.refused.take().map_or(Ok(kept), Err)
    }

    /// Connects, and begins to stream what is sent.
    fn open(&mut self, sessions: &SessionRegistry, share: &str) -> Result<RunningSession, LaneFailure> {
        let (shared, runtime) = (self.shared, self.runtime);
        let failed = |error| LaneFailure::of(shared.chunks(), error);
        let connecting = async {
            let ready = shared.job.ready(share).await?;
            if self.has_lost {
                self.end_lost_backends(&ready.connection).await;
            }
            self.backends.push(ready.connection.backend_pid());
            self.recall(&ready.connection).await?;
            Ok(ready)
        };
        let ready = runtime.block_on(unless_over(shared, None, connecting)).map_err(failed)?;
        // Opening may wait for a lock: it has to be seen, and to end when the load is stopped.
        let session = (ready.connection.backend_pid(), ready.connection.canceller());
        let open = runtime.spawn(std::future::pending::<()>());
        sessions.add(session.clone(), open.abort_handle());
        let opening = LaneStream::open(shared, ready);
        let stream = runtime.block_on(unless_over(shared, Some(&open), opening));
        open.abort();
        let stream = stream.map_err(failed)?;
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        let confirmed = stream.confirmed();
        let task = runtime.spawn(stream.serve(receiver));
        sessions.add(session, task.abort_handle());
        Ok(RunningSession { sender, confirmed, task })
    }

    /// Tells a refusal of rows from one of rows that are there already: where a session was lost
    /// while it wrote them, it may have come to its end only after we had asked the ledger.
    fn judge(&self, failure: LaneFailure) -> LaneFailure {
        let (Some(refused), true) = (&failure.refused, self.has_lost) else { return failure };
        let Some(ledger) = self.shared.job.ledger_id() else { return failure };
        let seq = refused.chunk.seq;
        let done = self.runtime.block_on(async {
            let connection = self.shared.job.connect.open().await?;
            read_done(&connection.client, ledger).await
        });
        let is_taken = done.is_ok_and(|done| done.get(seq).is_some());
        LaneFailure { is_taken, ..failure }
    }

    /// Writes the chunk of which a row was refused without its refused rows, and sets these aside.
    /// The failure, where that is not what is to be done about it.
    fn set_aside(&mut self, failure: LaneFailure) -> Result<(), LaneFailure> {
        let job = self.shared.job;
        let ledger = match &job.ledger {
            Some(ledger) if ledger.rejects.is_some() => ledger,
            _ => return Err(failure),
        };
        if failure.is_retryable() || self.shared.is_over() {
            return Err(failure);
        }
        let Some(refused) = &failure.refused else { return Err(failure) };
        let chunk = Arc::clone(&refused.chunk);
        let tally = self.runtime.block_on(self.write_rest(ledger, &chunk))?;
        self.count(chunk.seq, tally.rows_in);
        self.in_flight.retain(|other| other.chunk.seq != chunk.seq);
        self.tally.add(&tally);
        Ok(())
    }

    async fn write_rest(
        &mut self,
        ledger: &LedgerJob,
        chunk: &Arc<Chunk>,
    ) -> Result<LaneTally, LaneFailure> {
        let (shared, job) = (self.shared, self.shared.job);
        let failed_for = |error| LaneFailure::of(chunk.seq, error);
        let connection = job.connect.open().await.map_err(failed_for)?;
        self.backends.push(connection.backend_pid());
        let failed = |error: tokio_postgres::Error| match is_emptied(&error) {
            true => LaneFailure::of_crash(chunk.seq),
            false => LaneFailure {
                is_taken: is_taken(&error),
                ..failed_for(refused_copy(&connection, error))
            },
        };
        // The isolation level is said before any query of its transaction: so not in one message
        // with others.
        connection.client.batch_execute(&limits(&job.copying.limits)).await.map_err(failed)?;
        connection.client.batch_execute(BEGIN).await.map_err(failed)?;
        let mut encoder = (job.encoder)();
        let sifted = sift(&connection, job, encoder.as_mut(), chunk).await.map_err(failed_for)?;
        shared.reject(chunk.seq, &sifted.rejects).map_err(failed_for)?;
        let inserted = insert_rejects(&connection.client, ledger.id, chunk.seq, &sifted.rejects);
        inserted.await.map_err(failed)?;
        let seal = Seal {
            chunk: chunk.seq,
            input: chunk.input,
            position: chunk.position(),
            digest: chunk.digest,
            rows_in: sifted.rows_in,
            rows_written: sifted.rows_written,
            rows_rejected: sifted.rejects.len() as u64,
        };
        let sql = format!("{}; commit", ledger.id.seal_sql(&[seal], ledger.is_bound));
        connection.client.batch_execute(&sql).await.map_err(failed)?;
        self.backends.pop();
        shared.progress.kept.add(seal.rows_written, 1);
        Ok(LaneTally {
            rows_in: seal.rows_in,
            rows_written: seal.rows_written,
            rows_as_text: seal.rows_written,
            rows_rejected: seal.rows_rejected,
            chunks: 1,
        })
    }

    /// Ends the backends of lost sessions: the server may not know that their client is gone, and
    /// the rows that they have written would be waited for.
    async fn end_lost_backends(&mut self, connection: &Connection) {
        for pid in std::mem::take(&mut self.backends) {
            connection.end_lost_backend(pid).await;
        }
    }

    /// Asks the ledger which of the chunks in flight were written after all.
    async fn recall(&mut self, connection: &Connection) -> Result<()> {
        let Some(job) = self.shared.job.ledger_id().filter(|_| !self.in_flight.is_empty()) else {
            return Ok(());
        };
        let done = read_done(&connection.client, job).await?;
        let (tally, progress) = (&mut self.tally, self.shared.progress);
        self.in_flight.retain(|it| {
            let Some(seal) = done.get(it.chunk.seq) else { return true };
            if !it.is_counted {
                progress.rows.fetch_add(seal.rows_in, Relaxed);
            }
            progress.kept.add(seal.rows_written, 1);
            tally.rows_in += seal.rows_in;
            tally.rows_written += seal.rows_written;
            tally.rows_rejected += seal.rows_rejected;
            tally.chunks += 1;
            false
        });
        Ok(())
    }

    /// Whether what failed can be done again by this lane alone.
    fn may_retry(&self, failure: &LaneFailure) -> bool {
        let job = self.shared.job;
        job.commit == Commit::EachChunk && failure.is_retryable() && !self.shared.is_over()
    }

    /// The thread's side: takes chunks, encodes them, and hands the pieces on. Chunks that an
    /// earlier session has not brought home come first.
    fn feed(&mut self, channels: &[mpsc::Sender<LaneMessage>], confirmed: &ConfirmedTally) {
        let shared = self.shared;
        let mut encoder = (shared.job.encoder)();
        let mut out = Encoded::default();
        let mut mode = shared.job.mode;
        let mut sender = PieceSender { shared, channels, nanos: 0 };
        let mut again: VecDeque<_> =
            self.in_flight.iter().map(|it| Arc::clone(&it.chunk)).collect();
        while self.nth < shared.lanes_max.load(Relaxed) || !again.is_empty() {
            let is_new = again.is_empty();
            self.release(confirmed);
            let Some(chunk) = again.pop_front().or_else(|| self.take()) else { break };
            let started = Instant::now();
            let rows = encode_chunk(&chunk, mode, encoder.as_mut(), &mut out, &mut sender);
            let sending = std::mem::take(&mut sender.nanos);
            let encoding = (started.elapsed().as_nanos() as u64).saturating_sub(sending);
            shared.progress.send_nanos.fetch_add(sending, Relaxed);
            shared.progress.encode_nanos.fetch_add(encoding, Relaxed);
            if is_new {
                shared.progress.bytes.fetch_add(chunk.stored_bytes(), Relaxed);
            }
            let rows = match rows {
                Ok(Some(rows)) => rows,
                Ok(None) => break,
                Err(failure) if shared.job.rejects().is_some() => {
                    self.refused = Some(failure);
                    return;
                }
                Err(failure) => {
                    shared.fail(failure);
                    break;
                }
            };
            self.count(chunk.seq, rows.binary + rows.text + rows.known);
            if mode == Mode::Binary && rows.text > rows.binary + rows.known {
                // The encoder mostly says no here, so asking it only costs time.
                mode = Mode::Text;
            }
        }
        // A load that is over rolls back as it stands; but what the server has to say of the one
        // statement may come before what ended it.
        if !shared.is_over() || (shared.job.one_statement && !shared.progress.is_cancelled()) {
            sender.send(LaneMessage::Complete);
        }
    }

    /// Counts a chunk's rows in the progress, once.
    fn count(&mut self, seq: u64, rows: u64) {
        let mut in_flight = self.in_flight.iter_mut();
        let known = in_flight.find(|it| it.chunk.seq == seq);
        if !known.is_some_and(|it| std::mem::replace(&mut it.is_counted, true)) {
            self.shared.progress.rows.fetch_add(rows, Relaxed);
        }
    }

    /// Lets go of the chunks that the server has confirmed.
    fn release(&mut self, confirmed: &ConfirmedTally) {
        let confirmed = usize::try_from(confirmed.get().chunks).unwrap_or(usize::MAX);
        let more = confirmed.saturating_sub(self.released).min(self.in_flight.len());
        self.in_flight.drain(..more);
        self.released += more;
    }

    fn take(&mut self) -> Option<Arc<Chunk>> {
        let chunk = self.shared.next_chunk()?;
        if self.shared.job.commit == Commit::EachChunk {
            self.in_flight.push_back(InFlightChunk { chunk: Arc::clone(&chunk), is_counted: false });
        }
        Some(chunk)
    }
}

/// A lane's way to its tasks, and the time spent waiting for them.
struct PieceSender<'a> {
    shared: &'a SharedRun<'a>,
    channels: &'a [mpsc::Sender<LaneMessage>],
    nanos: u64,
}

impl PieceSender<'_> {
    /// False when a task has ended.
    fn send(&mut self, message: LaneMessage) -> bool {
        let asked = Instant::now();
        if let LaneMessage::Piece(_, piece) = &message {
            self.shared.progress.sent.fetch_add(piece.len() as u64, Relaxed);
        }
        let mut channels = self.channels.iter();
        let is_open = channels.all(|channel| channel.blocking_send(message.clone()).is_ok());
        self.nanos += asked.elapsed().as_nanos() as u64;
        is_open
    }
}

/// ChunkRowCounts of a chunk, by the way they went.
#[derive(Default)]
struct ChunkRowCounts {
    binary: u64,
    text: u64,
    /// Not sent.
    known: u64,
}

/// Encodes and sends a chunk. `None` when that came to nothing: the session has failed, or the
/// load is over.
fn encode_chunk(
    chunk: &Arc<Chunk>,
    mode: Mode,
    encoder: &mut dyn ChunkEncoder,
    out: &mut Encoded,
    sender: &mut PieceSender<'_>,
) -> Result<Option<ChunkRowCounts>, LaneFailure> {
    let (shared, seq) = (sender.shared, chunk.seq);
    out.clear();
    if !sender.send(LaneMessage::Chunk(Arc::clone(chunk), mode)) {
        return Ok(None);
    }
    let mut rows = ChunkRowCounts::default();
    let mut filled = encoder.begin(Arc::clone(chunk), mode).map(|()| true);
    while let Ok(true) = filled {
        filled = encoder.fill(out, PIECE_BYTES);
        let at_end = !matches!(filled, Ok(true));
        if shared.is_given_up(seq) || !drain(out, mode, at_end, &mut rows, sender) {
            return Ok(None);
        }
    }
    if let Err(error) = filled {
        let refused = Some(RefusedChunk { chunk: Arc::clone(chunk), by: RefusedBy::Encoder });
        return Err(LaneFailure { refused, ..LaneFailure::of(seq, error) });
    }
    Ok(sender.send(LaneMessage::End(rows.binary, rows.text)).then_some(rows))
}

/// Sends what is ready: binary rows as they come, and text rows at the chunk's end when there are
/// binary ones before them.
fn drain(
    out: &mut Encoded,
    mode: Mode,
    at_end: bool,
    rows: &mut ChunkRowCounts,
    sender: &mut PieceSender<'_>,
) -> bool {
    rows.binary += out.binary_rows;
    out.binary_rows = 0;
    rows.known += std::mem::take(&mut out.known_rows);
    if !out.binary.is_empty() {
        let next = Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 4);
        let piece = std::mem::replace(&mut out.binary, next);
        if !sender.send(LaneMessage::Piece(Mode::Binary, piece.into())) {
            return false;
        }
    }
    if !out.text.is_empty() && (at_end || mode == Mode::Text) {
        rows.text += out.text_rows.len() as u64;
        out.text_rows.clear();
        let next = Vec::with_capacity(if at_end { 0 } else { PIECE_BYTES + PIECE_BYTES / 4 });
        let text = std::mem::replace(&mut out.text, next);
        let text = Bytes::from(text);
        let mut pieces = (0..text.len()).step_by(PIECE_BYTES);
        return pieces.all(|at| {
            let piece = text.slice(at..text.len().min(at + PIECE_BYTES));
            sender.send(LaneMessage::Piece(Mode::Text, piece))
        });
    }
    true
}

/// What `work` gives, as long as the load goes on and `open` does.
async fn unless_over<T>(
    shared: &SharedRun<'_>,
    open: Option<&JoinHandle<()>>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut work = std::pin::pin!(work);
    loop {
        let is_shut = open.is_some_and(JoinHandle::is_finished);
        match tokio::time::timeout(LOOK, work.as_mut()).await {
            Ok(done) => return done,
            // What it waits for is cancelled, and answers; or else it is shut.
            Err(_) if is_shut || (open.is_none() && shared.is_over()) => {
                return Err(cut_off());
            }
            Err(_) => {}
        }
    }
}

/// The session did not end in time when the load was to.
fn cut_off() -> Error {
    let cause = Error::new(ErrorKind::Connect, "the connection was given up as the load is over");
    Error::new(ErrorKind::Connect, "could not copy").because(cause)
}

/// Whether the server takes no more connections, for this role or at all.
fn is_full(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

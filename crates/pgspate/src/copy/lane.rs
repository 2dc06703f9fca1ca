//! Runs one lane: a thread that encodes chunks, and a task per session that sends the encoded bytes
//! to the server.
//!
//! The thread is ahead of each task by at most `PIECES_AHEAD` pieces.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;

use super::reject::write_good_rows;
use super::session_registry::{ConfirmedTally, SessionRegistry};
use super::shared::{LaneFailure, RefusedBy, RefusedChunk, SharedRun};
use super::stream::{BEGIN_READ_COMMITTED, LaneStream, LaneTally, copy_error};
use super::{Commit, Destination, LaneSession, LedgerJob, PIECE_BYTES, PIECES_AHEAD};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, EncodeMode};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{
    ChunkRecord, insert_rejects, is_chunk_recorded, is_emptied_by_crash, read_written_chunks,
};
use pgspate_target::session::{POLL_INTERVAL, ReconnectBackoff};

/// A message from a lane's thread to its sending task.
#[derive(Clone)]
pub(super) enum LaneMessage {
    /// The start of a chunk, and the COPY format intended for the chunk's rows.
    Chunk(Arc<Chunk>, EncodeMode),
    /// Encoded rows, and their COPY format.
    Piece(EncodeMode, Bytes),
    /// The end of a chunk: the numbers of rows sent as binary and as text.
    End(u64, u64),
    /// The end of the input, if the load has not failed.
    Complete,
}

/// A lane that reached the end of the input. If lanes commit together, its transactions are still
/// open.
pub(super) struct FinishedLane {
    /// The lane's sessions: one session, unless several stage tables each receive a part of the
    /// rows.
    pub(super) sessions: Vec<LaneSession>,
    /// The tally of all sessions together.
    pub(super) tally: LaneTally,
}

/// The lane thread's handles of a running session.
struct RunningSession {
    sender: mpsc::Sender<LaneMessage>,
    confirmed: Arc<ConfirmedTally>,
    /// The task that sends rows. The task returns the connection, or the failure.
    task: JoinHandle<Result<Arc<Connection>, Box<LaneFailure>>>,
}

/// A lane and its sessions, including those opened after a lost connection.
struct Lane<'a, 'b> {
    shared: &'a SharedRun<'b>,
    /// The lane's number, counted from 0.
    ordinal: u64,
    runtime: &'a tokio::runtime::Handle,
    /// Chunks that the lane took and that no session has confirmed, if each chunk is committed. The
    /// lane sends these chunks again after a lost connection.
    in_flight: VecDeque<InFlightChunk>,
    /// Number of chunks that the current session has confirmed and that `release_confirmed` has
    /// removed from `in_flight`.
    released_chunks: usize,
    /// The chunk that the encoder refused in this session, if rows may be rejected.
    refused: Option<LaneFailure>,
    /// Whether a session was lost. The chunks that the lost session was sending may be written
    /// nevertheless.
    lost_session: bool,
    /// Process ids of the backends that this lane has connected to and that may still be running.
    open_backend_pids: Vec<i32>,
    tally: LaneTally,
}

/// A chunk that was sent and is not confirmed yet.
#[derive(Clone)]
struct InFlightChunk {
    chunk: Arc<Chunk>,
    /// Whether the progress has counted the chunk's rows. Rows that are sent again are not counted
    /// again.
    is_counted: bool,
}

/// Connects and runs a lane until there are no more chunks. Opens a new session after each lost
/// connection, if each chunk is committed.
///
/// Returns `None` if the lane failed, and records the failure in `shared`. Also returns `None` if
/// the server had no free connection for an additional lane.
pub(super) fn run_lane(
    shared: &SharedRun<'_>,
    ordinal: u64,
    sessions: &SessionRegistry,
    runtime: &tokio::runtime::Handle,
) -> Option<FinishedLane> {
    let mut lane = Lane {
        shared,
        ordinal,
        runtime,
        in_flight: VecDeque::new(),
        released_chunks: 0,
        refused: None,
        lost_session: false,
        open_backend_pids: Vec::new(),
        tally: LaneTally::default(),
    };
    let mut backoff = ReconnectBackoff::new(shared.job.setup.limits.retry_for);
    loop {
        let chunks_before = lane.tally.chunks;
        let failure = match lane.run_sessions(sessions) {
            Ok(sessions) => return Some(FinishedLane { sessions, tally: lane.tally }),
            Err(failure) => failure,
        };
        if failure.error.kind() == ErrorKind::Connect
            && shared.job.lanes.is_auto()
            && lane.tally.chunks == 0
            && lane.in_flight.is_empty()
            && is_connection_limit(&failure.error)
        {
            // The server has no free connection for this lane. The other lanes do its work. If
            // there is no other lane, `run` returns this error.
            shared.note_connection_limit(failure.error);
            return None;
        }
        if lane.tally.chunks > chunks_before {
            backoff.reset();
        }
        let failure = match lane.write_rejecting_bad_rows(lane.mark_if_already_written(failure)) {
            Ok(()) => {
                backoff.reset();
                continue;
            }
            Err(failure) => failure,
        };
        if shared.job.rejects_max().is_some() && failure.refused.is_some() && shared.has_failed() {
            // This lane would reject the rows, but the load ends because of another failure.
            return None;
        }
        if !lane.may_retry(&failure) || !backoff.wait(|| shared.is_over()) {
            shared.fail(failure);
            return None;
        }
        lane.lost_session = true;
        shared.lost_session.store(true, Relaxed);
    }
}

impl Lane<'_, '_> {
    /// Opens the lane's sessions, and sends chunks until there are no more chunks or a session has
    /// failed.
    fn run_sessions(
        &mut self,
        sessions: &SessionRegistry,
    ) -> Result<Vec<LaneSession>, LaneFailure> {
        self.refused = None;
        let where_conditions = match &self.shared.job.destination {
            Destination::Stage { where_conditions } if !where_conditions.is_empty() => {
                where_conditions.as_slice()
            }
            _ => &[String::new()],
        };
        let running = where_conditions
            .iter()
            .map(|where_condition| self.open_session(sessions, where_condition));
        let running = running.collect::<Result<Vec<_>, _>>()?;
        let senders: Vec<_> = running.iter().map(|it| it.sender.clone()).collect();
        let (confirmed, tasks): (Vec<_>, Vec<_>) =
            running.into_iter().map(|it| (it.confirmed, it.task)).unzip();
        self.released_chunks = 0;
        self.feed_chunks(&senders, &confirmed[0]);
        drop(senders);
        let results: Vec<_> = tasks.into_iter().map(|task| self.runtime.block_on(task)).collect();
        self.release_confirmed(&confirmed[0]);
        let tallies: Vec<_> = confirmed.iter().map(|it| it.get()).collect();
        self.tally.add(&LaneTally::of_sessions(&tallies));
        let mut finished = Vec::with_capacity(results.len());
        for (result, tally) in results.into_iter().zip(tallies) {
            let result = result.map_err(|ended| {
                let error = match ended.is_cancelled() {
                    true => session_closed_error(),
                    false => Error::new(ErrorKind::Bug, "a lane's task panicked").because(ended),
                };
                LaneFailure::of(self.shared.seq_end(), error)
            })?;
            let connection = result.map_err(|failure| *failure)?;
            finished.push(LaneSession { connection, rows_written: tally.rows_written });
        }
        self.refused.take().map_or(Ok(finished), Err)
    }

    /// Opens a session and starts the task that sends rows. `where_condition` selects the rows that
    /// the session keeps; empty for all rows.
    fn open_session(
        &mut self,
        sessions: &SessionRegistry,
        where_condition: &str,
    ) -> Result<RunningSession, LaneFailure> {
        let (shared, runtime) = (self.shared, self.runtime);
        let failed = |error| LaneFailure::of(shared.seq_end(), error);
        let connecting = async {
            let ready = shared.job.open_lane_session(where_condition).await?;
            if self.lost_session {
                self.terminate_lost_backends(&ready.connection).await;
            }
            self.open_backend_pids.push(ready.connection.backend_pid());
            self.drop_written_chunks(&ready.connection).await?;
            Ok(ready)
        };
        let ready =
            runtime.block_on(run_until_load_ends(shared, None, connecting)).map_err(failed)?;
        // `LaneStream::open` may wait for a lock. The session is registered before, so that the
        // monitor sees the lock wait and can end the wait when the load stops. The registry needs a
        // task to abort; this task does nothing.
        let session = (ready.connection.backend_pid(), ready.connection.canceller());
        let abort_marker = runtime.spawn(std::future::pending::<()>());
        sessions.add(session.clone(), abort_marker.abort_handle());
        let opening = LaneStream::open(shared, ready);
        let stream = runtime.block_on(run_until_load_ends(shared, Some(&abort_marker), opening));
        abort_marker.abort();
        let stream = stream.map_err(failed)?;
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        let confirmed = stream.confirmed();
        let task = runtime.spawn(stream.serve(receiver));
        sessions.add(session, task.abort_handle());
        Ok(RunningSession { sender, confirmed, task })
    }

    /// Marks the failure if the refused chunk is in the ledger already. A lost session may have
    /// committed the chunk after this lane read the ledger.
    fn mark_if_already_written(&self, failure: LaneFailure) -> LaneFailure {
        let (Some(refused), true) = (&failure.refused, self.lost_session) else { return failure };
        let Some(ledger) = self.shared.job.ledger_id() else { return failure };
        let seq = refused.chunk.seq;
        let done = self.runtime.block_on(async {
            let connection = self.shared.job.session_opener.open().await?;
            read_written_chunks(&connection.client, ledger).await
        });
        let is_chunk_recorded = done.is_ok_and(|done| done.get(seq).is_some());
        LaneFailure { is_chunk_recorded, ..failure }
    }

    /// Writes the refused chunk again, and rejects the chunk's bad rows. Returns the failure if no
    /// row may be rejected, or if the failure is not about a row.
    fn write_rejecting_bad_rows(&mut self, failure: LaneFailure) -> Result<(), LaneFailure> {
        let job = self.shared.job;
        let ledger = match &job.ledger {
            Some(ledger) if ledger.rejects_max.is_some() => ledger,
            _ => return Err(failure),
        };
        if failure.is_retryable() || self.shared.is_over() {
            return Err(failure);
        }
        let Some(refused) = &failure.refused else { return Err(failure) };
        let chunk = Arc::clone(&refused.chunk);
        let tally = self.runtime.block_on(self.write_and_record_good_rows(ledger, &chunk))?;
        self.count_rows_once(chunk.seq, tally.rows_in);
        self.in_flight.retain(|other| other.chunk.seq != chunk.seq);
        self.tally.add(&tally);
        Ok(())
    }

    /// Writes the chunk's good rows, its rejects and its row in the ledger, in a transaction of a
    /// new session.
    async fn write_and_record_good_rows(
        &mut self,
        ledger: &LedgerJob,
        chunk: &Arc<Chunk>,
    ) -> Result<LaneTally, LaneFailure> {
        let (shared, job) = (self.shared, self.shared.job);
        let failed_for = |error| LaneFailure::of(chunk.seq, error);
        let connection = job.session_opener.open().await.map_err(failed_for)?;
        self.open_backend_pids.push(connection.backend_pid());
        let failed = |error: tokio_postgres::Error| match is_emptied_by_crash(&error) {
            true => LaneFailure::table_emptied(chunk.seq),
            false => LaneFailure {
                is_chunk_recorded: is_chunk_recorded(&error),
                ..failed_for(copy_error(&connection, error))
            },
        };
        // The isolation level must be set before the transaction's first query, so BEGIN is a
        // separate message.
        connection.client.batch_execute(&job.setup.session_settings_sql()).await.map_err(failed)?;
        connection.client.batch_execute(BEGIN_READ_COMMITTED).await.map_err(failed)?;
        let mut encoder = (job.make_encoder)();
        let written =
            write_good_rows(&connection, job, encoder.as_mut(), chunk).await.map_err(failed_for)?;
        shared.count_rejects(chunk.seq, &written.rejects).map_err(failed_for)?;
        let inserted =
            insert_rejects(&connection.client, ledger.recorder.job, chunk.seq, &written.rejects);
        inserted.await.map_err(failed)?;
        let record = ChunkRecord {
            chunk: chunk.seq,
            input: chunk.input,
            position: chunk.position(),
            digest: chunk.digest,
            rows_in: written.rows_in,
            rows_written: written.rows_written,
            rows_rejected: written.rejects.len() as u64,
        };
        let sql = format!("{}; commit", ledger.recorder.insert_chunks_sql(&[record]));
        connection.client.batch_execute(&sql).await.map_err(failed)?;
        self.open_backend_pids.pop();
        shared.progress.committed.add(record.rows_written, 1);
        Ok(LaneTally {
            rows_in: record.rows_in,
            rows_written: record.rows_written,
            rows_as_text: record.rows_written,
            rows_rejected: record.rows_rejected,
            chunks: 1,
        })
    }

    /// Terminates the backends of lost sessions. The server may not have noticed the lost
    /// connections, and new sessions would wait for the locks of those backends.
    async fn terminate_lost_backends(&mut self, connection: &Connection) {
        for pid in std::mem::take(&mut self.open_backend_pids) {
            connection.terminate_lost_backend(pid).await;
        }
    }

    /// Reads the ledger. Counts the chunks in flight that are written already, and removes these
    /// chunks from `in_flight`.
    async fn drop_written_chunks(&mut self, connection: &Connection) -> Result<()> {
        let Some(job) = self.shared.job.ledger_id().filter(|_| !self.in_flight.is_empty()) else {
            return Ok(());
        };
        let done = read_written_chunks(&connection.client, job).await?;
        let (tally, progress) = (&mut self.tally, self.shared.progress);
        self.in_flight.retain(|it| {
            let Some(record) = done.get(it.chunk.seq) else { return true };
            if !it.is_counted {
                progress.rows.fetch_add(record.rows_in, Relaxed);
            }
            progress.committed.add(record.rows_written, 1);
            tally.rows_in += record.rows_in;
            tally.rows_written += record.rows_written;
            tally.rows_rejected += record.rows_rejected;
            tally.chunks += 1;
            false
        });
        Ok(())
    }

    /// Returns whether this lane may send the unconfirmed chunks again after the failure.
    fn may_retry(&self, failure: &LaneFailure) -> bool {
        let job = self.shared.job;
        job.commit == Commit::EachChunk && failure.is_retryable() && !self.shared.is_over()
    }

    /// Takes chunks, encodes them and passes the encoded pieces to the sessions' tasks. Unconfirmed
    /// chunks of an earlier session come first.
    fn feed_chunks(&mut self, channels: &[mpsc::Sender<LaneMessage>], confirmed: &ConfirmedTally) {
        let shared = self.shared;
        let mut encoder = (shared.job.make_encoder)();
        let mut out = Encoded::default();
        let mut mode = shared.job.mode;
        let mut sender = PieceSender { shared, channels, wait_nanos: 0 };
        let mut to_resend: VecDeque<_> =
            self.in_flight.iter().map(|it| Arc::clone(&it.chunk)).collect();
        while self.ordinal < shared.lanes_max.load(Relaxed) || !to_resend.is_empty() {
            let is_new = to_resend.is_empty();
            self.release_confirmed(confirmed);
            let Some(chunk) = to_resend.pop_front().or_else(|| self.take_chunk()) else { break };
            let started = Instant::now();
            let rows = encode_chunk(&chunk, mode, encoder.as_mut(), &mut out, &mut sender);
            let sending = std::mem::take(&mut sender.wait_nanos);
            let encoding = (started.elapsed().as_nanos() as u64).saturating_sub(sending);
            shared.progress.send_nanos.fetch_add(sending, Relaxed);
            shared.progress.encode_nanos.fetch_add(encoding, Relaxed);
            if is_new {
                shared.progress.bytes.fetch_add(chunk.stored_bytes(), Relaxed);
            }
            let rows = match rows {
                Ok(Some(rows)) => rows,
                Ok(None) => break,
                Err(failure) if shared.job.rejects_max().is_some() => {
                    self.refused = Some(failure);
                    return;
                }
                Err(failure) => {
                    shared.fail(failure);
                    break;
                }
            };
            self.count_rows_once(chunk.seq, rows.binary + rows.text + rows.already_in_table);
            if mode == EncodeMode::Binary && rows.text > rows.binary + rows.already_in_table {
                // The encoder cannot encode most of these rows in binary, so trying only costs
                // time.
                mode = EncodeMode::Text;
            }
        }
        // If the load has ended early, the transaction is rolled back. With a single COPY for all
        // chunks, the COPY is completed nevertheless. The server may refuse a row that comes before
        // the error that ended the load.
        if !shared.is_over() || (shared.job.one_statement && !shared.progress.is_cancelled()) {
            sender.send(LaneMessage::Complete);
        }
    }

    /// Adds a chunk's rows to the progress, unless they were added when the chunk was sent before.
    fn count_rows_once(&mut self, seq: u64, rows: u64) {
        let mut in_flight = self.in_flight.iter_mut();
        let found = in_flight.find(|it| it.chunk.seq == seq);
        if !found.is_some_and(|it| std::mem::replace(&mut it.is_counted, true)) {
            self.shared.progress.rows.fetch_add(rows, Relaxed);
        }
    }

    /// Removes the confirmed chunks from those in flight.
    fn release_confirmed(&mut self, confirmed: &ConfirmedTally) {
        let confirmed = usize::try_from(confirmed.get().chunks).unwrap_or(usize::MAX);
        let newly_confirmed =
            confirmed.saturating_sub(self.released_chunks).min(self.in_flight.len());
        self.in_flight.drain(..newly_confirmed);
        self.released_chunks += newly_confirmed;
    }

    /// Takes the next chunk from the shared source; `None` if there are no more chunks.
    fn take_chunk(&mut self) -> Option<Arc<Chunk>> {
        let chunk = self.shared.next_chunk()?;
        if self.shared.job.commit == Commit::EachChunk {
            self.in_flight
                .push_back(InFlightChunk { chunk: Arc::clone(&chunk), is_counted: false });
        }
        Some(chunk)
    }
}

/// Sends messages to the tasks of a lane's sessions.
struct PieceSender<'a> {
    shared: &'a SharedRun<'a>,
    /// One channel per session.
    channels: &'a [mpsc::Sender<LaneMessage>],
    /// Nanoseconds spent waiting for space in the channels.
    wait_nanos: u64,
}

impl PieceSender<'_> {
    /// Sends a message to every task. Returns false if a task has ended.
    fn send(&mut self, message: LaneMessage) -> bool {
        let started = Instant::now();
        if let LaneMessage::Piece(_, piece) = &message {
            self.shared.progress.sent.fetch_add(piece.len() as u64, Relaxed);
        }
        let mut channels = self.channels.iter();
        let is_open = channels.all(|channel| channel.blocking_send(message.clone()).is_ok());
        self.wait_nanos += started.elapsed().as_nanos() as u64;
        is_open
    }
}

/// Numbers of a chunk's rows: sent as binary, sent as text, and not sent.
#[derive(Default)]
struct ChunkRowCounts {
    binary: u64,
    text: u64,
    /// Rows that the table has already. These rows are not sent.
    already_in_table: u64,
}

/// Encodes and sends a chunk. Returns `None` if a session failed or the load has ended.
fn encode_chunk(
    chunk: &Arc<Chunk>,
    mode: EncodeMode,
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
    let mut has_more = encoder.begin(Arc::clone(chunk), mode).map(|()| true);
    while let Ok(true) = has_more {
        has_more = encoder.fill(out, PIECE_BYTES);
        let at_end = !matches!(has_more, Ok(true));
        if shared.is_abandoned(seq) || !send_encoded(out, mode, at_end, &mut rows, sender) {
            return Ok(None);
        }
    }
    if let Err(error) = has_more {
        let refused = Some(RefusedChunk { chunk: Arc::clone(chunk), by: RefusedBy::Encoder });
        return Err(LaneFailure { refused, ..LaneFailure::of(seq, error) });
    }
    Ok(sender.send(LaneMessage::End(rows.binary, rows.text)).then_some(rows))
}

/// Sends encoded rows. Binary rows are sent immediately. Text rows are sent immediately in text
/// mode; in binary mode they are sent at the chunk's end, after the binary rows. Returns false if a
/// task has ended.
fn send_encoded(
    out: &mut Encoded,
    mode: EncodeMode,
    at_end: bool,
    rows: &mut ChunkRowCounts,
    sender: &mut PieceSender<'_>,
) -> bool {
    rows.binary += out.binary_rows;
    out.binary_rows = 0;
    rows.already_in_table += std::mem::take(&mut out.known_rows);
    if !out.binary.is_empty() {
        let next = Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 4);
        let piece = std::mem::replace(&mut out.binary, next);
        if !sender.send(LaneMessage::Piece(EncodeMode::Binary, piece.into())) {
            return false;
        }
    }
    if !out.text.is_empty() && (at_end || mode == EncodeMode::Text) {
        rows.text += out.text_rows.len() as u64;
        out.text_rows.clear();
        let next = Vec::with_capacity(if at_end { 0 } else { PIECE_BYTES + PIECE_BYTES / 4 });
        let text = std::mem::replace(&mut out.text, next);
        let text = Bytes::from(text);
        let mut pieces = (0..text.len()).step_by(PIECE_BYTES);
        return pieces.all(|at| {
            let piece = text.slice(at..text.len().min(at + PIECE_BYTES));
            sender.send(LaneMessage::Piece(EncodeMode::Text, piece))
        });
    }
    true
}

/// Runs `work`. Returns an error if the monitor aborts `abort_marker` before `work` is done.
/// Without a marker, returns an error if the load ends before `work` is done.
pub(super) async fn run_until_load_ends<T>(
    shared: &SharedRun<'_>,
    abort_marker: Option<&JoinHandle<()>>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut work = std::pin::pin!(work);
    loop {
        let is_aborted = abort_marker.is_some_and(JoinHandle::is_finished);
        match tokio::time::timeout(POLL_INTERVAL, work.as_mut()).await {
            Ok(done) => return done,
            Err(_) if is_aborted || (abort_marker.is_none() && shared.is_over()) => {
                return Err(session_closed_error());
            }
            Err(_) => {}
        }
    }
}

/// Returns the error for a session that was closed because the load ended.
fn session_closed_error() -> Error {
    let cause = Error::new(ErrorKind::Connect, "the connection was closed because the load ended");
    Error::new(ErrorKind::Connect, "could not copy").because(cause)
}

/// Returns whether the server refused a connection because the connection limit of the server, the
/// database or the role is reached.
fn is_connection_limit(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

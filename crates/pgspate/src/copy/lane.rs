//! One lane: a thread that encodes, ahead by a bounded number of pieces of the task that streams.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;

use super::shared::{Failure, Refused, RefusedBy, Shared};
use super::stream::{Stream, Tally};
use super::{Commit, PIECE_BYTES, PIECES_AHEAD, Patience};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, Mode};
use crate::ledger::read_done;
use crate::target::connect::Connection;
use crate::{Error, Kind, Result};

/// How often a lane that waits for the server looks whether it should.
const LOOK: Duration = Duration::from_millis(50);

/// From the thread to the task.
pub(super) enum Message {
    /// The next chunk, and how its rows are meant to go.
    Chunk(Arc<Chunk>, Mode),
    Piece(Mode, Bytes),
    /// The chunk is complete: so many rows were sent as binary and as text.
    End(u64, u64),
    /// There are no more chunks, and the load goes on.
    Complete,
}

/// What a lane did to its end. Where lanes commit together, the transaction is still open.
pub(super) struct Finished {
    pub(super) connection: Connection,
    pub(super) tally: Tally,
}

/// A lane over all its sessions.
struct Lane<'a, 'b> {
    shared: &'a Shared<'b>,
    nth: u64,
    runtime: &'a tokio::runtime::Handle,
    /// Chunks that were taken and that no session has confirmed, where they can be sent again.
    in_flight: VecDeque<Arc<Chunk>>,
    tally: Tally,
}

/// Connects and runs a lane until there are no more chunks, over as many sessions as it takes.
/// `None` when it failed; the failure is in `shared` then.
pub(super) fn run(
    shared: &Shared<'_>,
    nth: u64,
    opened: impl Fn(&Connection),
    runtime: &tokio::runtime::Handle,
) -> Option<Finished> {
    let tally = Tally::default();
    let mut lane = Lane { shared, nth, runtime, in_flight: VecDeque::new(), tally };
    let mut patience = Patience::new(shared.job.retry_for);
    loop {
        let chunks_before = lane.tally.chunks;
        let failure = match lane.session(&opened) {
            Ok(connection) => return Some(Finished { connection, tally: lane.tally }),
            Err(failure) => failure,
        };
        if failure.error.kind() == Kind::Connect
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
        if !lane.may_retry(&failure) || !lane.pause(&mut patience) {
            shared.fail(failure);
            return None;
        }
    }
}

impl Lane<'_, '_> {
    /// Runs until there are no more chunks or the session has failed.
    fn session(&mut self, opened: &impl Fn(&Connection)) -> Result<Connection, Failure> {
        let (shared, runtime) = (self.shared, self.runtime);
        let failed = |error| Failure::of(shared.chunks(), error);
        let connection = runtime.block_on((shared.job.connect)()).map_err(failed)?;
        runtime.block_on(self.recall(&connection)).map_err(failed)?;
        // First, as opening may wait for a lock, and has to end when the load is stopped.
        opened(&connection);
        let opening = Stream::open(shared.job, connection, shared.is_alone);
        let stream = runtime.block_on(opening).map_err(failed)?;
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        let task = runtime.spawn(stream.serve(receiver));
        self.feed(&sender);
        drop(sender);
        let served = runtime.block_on(task).map_err(|panicked| {
            let error = Error::new(Kind::Bug, "a lane's task panicked").because(panicked);
            Failure::of(0, error)
        })?;
        let confirmed = usize::try_from(served.tally.chunks).unwrap_or(usize::MAX);
        self.in_flight.drain(..confirmed.min(self.in_flight.len()));
        self.tally.add(&served.tally);
        served.result.map_err(|failure| *failure)
    }

    /// Asks the ledger which of the chunks in flight were written after all.
    async fn recall(&mut self, connection: &Connection) -> Result<()> {
        let Some(job) = self.shared.job.ledger.filter(|_| !self.in_flight.is_empty()) else {
            return Ok(());
        };
        let done = read_done(&connection.client, job).await?;
        let tally = &mut self.tally;
        self.in_flight.retain(|chunk| {
            let Some(seal) = done.get(chunk.seq) else { return true };
            tally.rows_in += seal.rows_in;
            tally.rows_written += seal.rows_written;
            tally.chunks += 1;
            false
        });
        Ok(())
    }

    /// Whether what failed can be done again by this lane alone.
    fn may_retry(&self, failure: &Failure) -> bool {
        let job = self.shared.job;
        job.commit == Commit::EachChunk && failure.is_retryable() && !self.shared.is_over()
    }

    /// Waits. False when it is time to give up.
    fn pause(&self, patience: &mut Patience) -> bool {
        let Some(pause) = patience.next_pause() else { return false };
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if self.shared.is_over() {
                return false;
            }
            std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
        true
    }

    /// The thread's side: takes chunks, encodes them, and hands the pieces on. Chunks that an
    /// earlier session has not brought home come first.
    fn feed(&mut self, channel: &mpsc::Sender<Message>) {
        let shared = self.shared;
        let mut encoder = (shared.job.encoder)();
        let mut out = Encoded::default();
        let mut mode = shared.job.mode;
        let mut sender = Sender { shared, channel, nanos: 0 };
        let mut again: VecDeque<_> = self.in_flight.clone();
        while self.nth < shared.lanes_max.load(Relaxed) || !again.is_empty() {
            let is_new = again.is_empty();
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
            let Some(rows) = rows else { break };
            shared.progress.rows.fetch_add(rows.binary + rows.text, Relaxed);
            if mode == Mode::Binary && rows.text > rows.binary {
                // The encoder mostly says no here, so asking it only costs time.
                mode = Mode::Text;
            }
        }
        // A load that is over rolls back as it stands; but what the server has to say of the one
        // statement may come before what ended it.
        if !shared.is_over() || (shared.job.one_statement && !shared.progress.is_cancelled()) {
            sender.send(Message::Complete);
        }
    }

    fn take(&mut self) -> Option<Arc<Chunk>> {
        let chunk = self.shared.next_chunk()?;
        if self.shared.job.commit == Commit::EachChunk {
            self.in_flight.push_back(Arc::clone(&chunk));
        }
        Some(chunk)
    }
}

/// A lane's way to its task, and the time spent waiting for it.
struct Sender<'a> {
    shared: &'a Shared<'a>,
    channel: &'a mpsc::Sender<Message>,
    nanos: u64,
}

impl Sender<'_> {
    /// False when the task has ended.
    fn send(&mut self, message: Message) -> bool {
        let asked = Instant::now();
        if let Message::Piece(_, piece) = &message {
            self.shared.progress.sent.fetch_add(piece.len() as u64, Relaxed);
        }
        let is_open = self.channel.blocking_send(message).is_ok();
        self.nanos += asked.elapsed().as_nanos() as u64;
        is_open
    }
}

/// Rows of a chunk, by the way they went.
#[derive(Default)]
struct Rows {
    binary: u64,
    text: u64,
}

/// Encodes and sends a chunk. `None` when that came to nothing; the failure is in `shared` then,
/// or the load is over.
fn encode_chunk(
    chunk: &Arc<Chunk>,
    mode: Mode,
    encoder: &mut dyn ChunkEncoder,
    out: &mut Encoded,
    sender: &mut Sender<'_>,
) -> Option<Rows> {
    let (shared, seq) = (sender.shared, chunk.seq);
    out.clear();
    if !sender.send(Message::Chunk(Arc::clone(chunk), mode)) {
        return None;
    }
    let mut rows = Rows::default();
    let mut filled = encoder.begin(Arc::clone(chunk), mode).map(|()| true);
    while let Ok(true) = filled {
        filled = encoder.fill(out, PIECE_BYTES);
        let at_end = !matches!(filled, Ok(true));
        if shared.is_given_up(seq) || !drain(out, mode, at_end, &mut rows, sender) {
            return None;
        }
    }
    if let Err(error) = filled {
        let refused = Some(Refused { chunk: Arc::clone(chunk), by: RefusedBy::Encoder });
        shared.fail(Failure { refused, ..Failure::of(seq, error) });
        return None;
    }
    sender.send(Message::End(rows.binary, rows.text)).then_some(rows)
}

/// Sends what is ready: binary rows as they come, and text rows at the chunk's end when there are
/// binary ones before them.
fn drain(
    out: &mut Encoded,
    mode: Mode,
    at_end: bool,
    rows: &mut Rows,
    sender: &mut Sender<'_>,
) -> bool {
    rows.binary += out.binary_rows;
    out.binary_rows = 0;
    if !out.binary.is_empty() {
        let next = Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 4);
        let piece = std::mem::replace(&mut out.binary, next);
        if !sender.send(Message::Piece(Mode::Binary, piece.into())) {
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
            sender.send(Message::Piece(Mode::Text, piece))
        });
    }
    true
}

/// Whether the server takes no more connections, for this role or at all.
fn is_full(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

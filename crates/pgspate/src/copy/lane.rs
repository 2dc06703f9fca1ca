//! One lane: a thread that encodes, ahead by a bounded number of pieces of the task that streams.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;

use super::shared::{Failure, Refused, RefusedBy, Shared};
use super::stream::{Finished, Stream};
use super::{PIECE_BYTES, PIECES_AHEAD};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, Mode};
use crate::target::connect::Connection;
use crate::{Error, Kind};

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

/// Connects and runs a lane until there are no more chunks. `None` when it failed; the failure is
/// in `shared` then.
pub(super) fn run(
    shared: &Shared<'_>,
    nth: u64,
    opened: impl FnOnce(&Connection),
    runtime: &tokio::runtime::Handle,
) -> Option<Finished> {
    let stream = match runtime.block_on(Stream::open(shared.job, shared.is_alone)) {
        Ok(stream) => stream,
        Err(error) if shared.job.lanes.is_auto() && is_full(&error) => {
            // No room for this one: the others do its work, if there are others.
            shared.note_full(error);
            return None;
        }
        Err(error) => {
            shared.fail(Failure { seq: shared.chunks(), error, refused: None });
            return None;
        }
    };
    opened(stream.connection());
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let task = runtime.spawn(stream.serve(receiver));
    feed(shared, nth, &sender);
    drop(sender);
    match runtime.block_on(task) {
        Ok(Ok(finished)) => Some(finished),
        Ok(Err(failure)) => {
            shared.fail(*failure);
            None
        }
        Err(panicked) => {
            let error = Error::new(Kind::Bug, "a lane's task panicked").because(panicked);
            shared.fail(Failure { seq: 0, error, refused: None });
            None
        }
    }
}

/// The thread's side: takes chunks, encodes them, and hands the pieces on.
fn feed(shared: &Shared<'_>, nth: u64, channel: &mpsc::Sender<Message>) {
    let mut encoder = (shared.job.encoder)();
    let mut out = Encoded::default();
    let mut mode = shared.job.mode;
    let mut sender = Sender { shared, channel, nanos: 0 };
    while nth < shared.lanes_max.load(Relaxed) {
        let Some(chunk) = shared.next_chunk() else { break };
        let started = Instant::now();
        let rows = encode_chunk(&chunk, mode, encoder.as_mut(), &mut out, &mut sender);
        let sending = std::mem::take(&mut sender.nanos);
        let encoding = (started.elapsed().as_nanos() as u64).saturating_sub(sending);
        shared.progress.send_nanos.fetch_add(sending, Relaxed);
        shared.progress.encode_nanos.fetch_add(encoding, Relaxed);
        let Some(rows) = rows else { break };
        shared.progress.rows.fetch_add(rows.binary + rows.text, Relaxed);
        shared.progress.bytes.fetch_add(chunk.stored_bytes(), Relaxed);
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
        shared.fail(Failure { seq, error, refused });
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

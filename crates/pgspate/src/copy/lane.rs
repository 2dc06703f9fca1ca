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
use crate::format::{Chunk, Mode};
use crate::target::connect::Connection;
use crate::{Error, Kind};

/// From the thread to the task.
pub(super) enum Message {
    Chunk(Arc<Chunk>),
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
    let stream = match runtime.block_on(Stream::open(shared.job)) {
        Ok(stream) => stream,
        Err(error) if nth > 0 && shared.job.lanes.is_auto() && is_full(&error) => {
            // The server has no room for this one: the others do its work.
            shared.lanes_max.fetch_min(nth, Relaxed);
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
fn feed(shared: &Shared<'_>, nth: u64, sender: &mpsc::Sender<Message>) {
    let mut encoder = (shared.job.encoder)();
    let mut out = Encoded::default();
    let mut mode = shared.job.mode;
    while nth < shared.lanes_max.load(Relaxed) {
        let Some(chunk) = shared.next_chunk() else { break };
        let seq = chunk.seq;
        let size = chunk.stored_bytes();
        let started = Instant::now();
        let mut sending = 0;
        out.clear();
        let mut send = |message: Message| {
            let asked = Instant::now();
            if let Message::Piece(_, piece) = &message {
                shared.progress.sent.fetch_add(piece.len() as u64, Relaxed);
            }
            let is_open = sender.blocking_send(message).is_ok();
            sending += asked.elapsed().as_nanos() as u64;
            is_open
        };
        if !send(Message::Chunk(Arc::clone(&chunk))) {
            return;
        }
        let mut rows = (0, 0);
        let result = encoder.begin(Arc::clone(&chunk), mode).and_then(|()| {
            loop {
                let more = encoder.fill(&mut out, PIECE_BYTES)?;
                if shared.is_given_up(seq) || !drain(&mut out, mode, !more, &mut rows, &mut send) {
                    return Ok(false);
                }
                if !more {
                    return Ok(true);
                }
            }
        });
        let is_complete = match result {
            Ok(is_complete) => is_complete && send(Message::End(rows.0, rows.1)),
            Err(error) => {
                let refused = Some(Refused { chunk, by: RefusedBy::Encoder });
                shared.fail(Failure { seq, error, refused });
                false
            }
        };
        let elapsed = started.elapsed().as_nanos() as u64;
        shared.progress.send_nanos.fetch_add(sending, Relaxed);
        shared.progress.encode_nanos.fetch_add(elapsed - sending, Relaxed);
        if !is_complete {
            return;
        }
        shared.progress.rows.fetch_add(rows.0 + rows.1, Relaxed);
        shared.progress.bytes.fetch_add(size, Relaxed);
        if mode == Mode::Binary && rows.1 > rows.0 {
            // The encoder mostly says no here, so asking it only costs time.
            mode = Mode::Text;
        }
    }
    if !shared.is_over() || shared.refused.load(Relaxed) {
        let _ = sender.blocking_send(Message::Complete);
    }
}

/// Sends what is ready: binary rows as they come, and text rows at the chunk's end when there are
/// binary ones before them.
fn drain(
    out: &mut Encoded,
    mode: Mode,
    at_end: bool,
    rows: &mut (u64, u64),
    send: &mut impl FnMut(Message) -> bool,
) -> bool {
    rows.0 += out.binary_rows;
    out.binary_rows = 0;
    if !out.binary.is_empty() {
        let next = Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 4);
        let piece = std::mem::replace(&mut out.binary, next);
        if !send(Message::Piece(Mode::Binary, piece.into())) {
            return false;
        }
    }
    if !out.text.is_empty() && (at_end || mode == Mode::Text) {
        rows.1 += out.text_rows.len() as u64;
        out.text_rows.clear();
        let next = Vec::with_capacity(if at_end { 0 } else { PIECE_BYTES + PIECE_BYTES / 4 });
        let text = std::mem::replace(&mut out.text, next);
        let text = Bytes::from(text);
        let mut pieces = (0..text.len()).step_by(PIECE_BYTES);
        return pieces.all(|at| {
            let piece = text.slice(at..text.len().min(at + PIECE_BYTES));
            send(Message::Piece(Mode::Text, piece))
        });
    }
    true
}

/// Whether the server takes no more connections, for this role or at all.
fn is_full(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

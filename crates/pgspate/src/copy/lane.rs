//! One lane: a thread that encodes and a task that streams, in one transaction.
//!
//! The thread is ahead of the task by a bounded number of pieces. Rows that were encoded and rows
//! that the server confirmed are compared chunk by chunk.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;
use tokio_postgres::{CopyInSink, Statement};

use super::shared::{Failure, Refused, RefusedBy, Shared};
use super::{PIECE_BYTES, PIECES_AHEAD};
use crate::encode::Encoded;
use crate::format::{Chunk, Mode};
use crate::target::connect::Connection;
use crate::target::{Refusal, server_error};
use crate::{Error, Kind, Result};

const BINARY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const BINARY_TRAILER: &[u8] = b"\xff\xff";

/// From the thread to the task.
enum Message {
    Chunk(Arc<Chunk>),
    Piece(Mode, Bytes),
    /// The chunk is complete: so many rows were sent as binary and as text.
    End(u64, u64),
    /// There are no more chunks, and the load goes on.
    Complete,
}

/// What a lane did in its transaction, which is still open.
pub(super) struct Finished {
    pub(super) connection: Connection,
    pub(super) rows_in: u64,
    pub(super) rows_written: u64,
    pub(super) rows_as_text: u64,
}

/// Connects and runs a lane until there are no more chunks. `None` when it failed; the failure is
/// in `shared` then.
pub(super) fn run(
    shared: &Shared<'_>,
    nth: u64,
    opened: impl FnOnce(&Connection),
    runtime: &tokio::runtime::Handle,
) -> Option<Finished> {
    let lane = match runtime.block_on(open(shared)) {
        Ok(lane) => lane,
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
    opened(&lane.connection);
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let task = runtime.spawn(lane.serve(receiver));
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

/// The task's side.
struct Lane {
    connection: Connection,
    binary: Statement,
    text: Statement,
    one_statement: bool,
    rows_in: u64,
    rows_written: u64,
    rows_as_text: u64,
}

/// Whether bytes went out; if not, in which kind of COPY.
type Sent = Result<(), (Error, Mode)>;

/// A COPY under way.
struct Open {
    mode: Mode,
    sink: Pin<Box<CopyInSink<Bytes>>>,
}

async fn open(shared: &Shared<'_>) -> Result<Lane> {
    let job = shared.job;
    let connection = (job.connect)().await?;
    let what = || "could not prepare to copy".to_owned();
    let begin = "set statement_timeout = 0; set lock_timeout = 0; \
                 set idle_in_transaction_session_timeout = 0; \
                 set synchronous_commit = off; begin";
    connection.client.batch_execute(begin).await.map_err(server_error(what()))?;
    let text = connection.client.prepare(&job.text_sql).await.map_err(server_error(what()))?;
    let binary = connection.client.prepare(&job.binary_sql).await.map_err(server_error(what()))?;
    Ok(Lane {
        connection,
        binary,
        text,
        one_statement: job.one_statement,
        rows_in: 0,
        rows_written: 0,
        rows_as_text: 0,
    })
}

impl Lane {
    async fn serve(
        mut self,
        mut messages: mpsc::Receiver<Message>,
    ) -> Result<Finished, Box<Failure>> {
        let mut copy: Option<Open> = None;
        let mut chunk: Option<Arc<Chunk>> = None;
        while let Some(message) = messages.recv().await {
            let result = match message {
                Message::Chunk(next) => {
                    chunk = Some(next);
                    Ok(())
                }
                Message::Piece(mode, piece) => self.write(&mut copy, mode, piece).await,
                Message::End(binary_rows, text_rows) => {
                    self.end_chunk(&mut copy, binary_rows, text_rows).await
                }
                Message::Complete => self.complete(&mut copy).await,
            };
            if let Err((error, mode)) = result {
                return Err(Box::new(refused(error, chunk, mode)));
            }
        }
        // Still open only when the load was given up: it is aborted with its sink.
        drop(copy);
        Ok(Finished {
            connection: self.connection,
            rows_in: self.rows_in,
            rows_written: self.rows_written,
            rows_as_text: self.rows_as_text,
        })
    }

    async fn write(&mut self, copy: &mut Option<Open>, mode: Mode, piece: Bytes) -> Sent {
        if copy.as_ref().is_some_and(|copy| copy.mode != mode) {
            self.finish(copy).await?;
        }
        let connection = &self.connection;
        let with_mode = |error| (refused_copy(connection, error), mode);
        if copy.is_none() {
            let statement = if mode == Mode::Binary { &self.binary } else { &self.text };
            let sink = self.connection.client.copy_in(statement).await.map_err(with_mode)?;
            let mut sink = Box::pin(sink);
            if mode == Mode::Binary {
                sink.feed(Bytes::from_static(BINARY_HEADER)).await.map_err(with_mode)?;
            }
            *copy = Some(Open { mode, sink });
        }
        match copy {
            Some(copy) => copy.sink.feed(piece).await.map_err(with_mode),
            None => Ok(()),
        }
    }

    /// Ends the chunk's COPY, unless all chunks share one.
    async fn end_chunk(&mut self, copy: &mut Option<Open>, binary: u64, text: u64) -> Sent {
        self.rows_in += binary + text;
        self.rows_as_text += text;
        if self.one_statement {
            return Ok(());
        }
        self.finish(copy).await
    }

    /// Ends a COPY that all chunks share, and has deferred constraints checked: here rather than
    /// in the commit, as lanes may then wait for each other and must be watched.
    async fn complete(&mut self, copy: &mut Option<Open>) -> Sent {
        self.finish(copy).await?;
        if self.rows_in == 0 {
            return Ok(());
        }
        let checked = self.connection.client.batch_execute("set constraints all immediate").await;
        checked.map_err(|error| (refused_copy(&self.connection, error), Mode::Text))
    }

    async fn finish(&mut self, copy: &mut Option<Open>) -> Sent {
        let Some(mut open) = copy.take() else { return Ok(()) };
        let mode = open.mode;
        let connection = &self.connection;
        let with_mode = |error| (refused_copy(connection, error), mode);
        if mode == Mode::Binary {
            open.sink.feed(Bytes::from_static(BINARY_TRAILER)).await.map_err(with_mode)?;
        }
        let written = open.sink.as_mut().finish().await.map_err(with_mode)?;
        self.rows_written += written;
        Ok(())
    }
}

impl Finished {
    /// Compares what was sent with what the server wrote.
    pub(super) fn reconcile(&self, may_drop_rows: bool) -> Result<()> {
        if self.rows_written == self.rows_in || may_drop_rows {
            return Ok(());
        }
        let (sent, written) = (self.rows_in, self.rows_written);
        let message = format!("sent {sent} rows but the server wrote {written}; nothing is kept");
        Err(Error::new(Kind::Bug, message))
    }
}

/// The server's refusal in its own words alone, or what became of the connection.
pub(super) fn refused_copy(connection: &Connection, error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(said) if !ends_session(said.code()) => {
            let message = Refusal::new(said).to_string();
            server_error(message)(error)
        }
        _ => connection.explain("could not copy", error),
    }
}

/// Whether the server ends the session with such an error.
fn ends_session(code: &SqlState) -> bool {
    code.code().starts_with("08") || code.code().starts_with("57P0")
}

/// Whether the server takes no more connections, for this role or at all.
fn is_full(error: &Error) -> bool {
    error.sqlstate() == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

/// The failure for a chunk whose rows the server did not take, or for a lost connection.
fn refused(error: Error, chunk: Option<Arc<Chunk>>, mode: Mode) -> Failure {
    let Some(chunk) = chunk else { return Failure { seq: 0, error, refused: None } };
    let by = match mode {
        Mode::Binary => RefusedBy::BinaryCopy,
        Mode::Text => RefusedBy::TextCopy,
    };
    let seq = chunk.seq;
    let refused = (error.kind() == Kind::Server).then_some(Refused { chunk, by });
    Failure { seq, error, refused }
}

//! The connection of a lane: one COPY for each chunk, in one transaction.
//!
//! Where the next chunk is at hand, the end of a COPY and the start of the next one travel
//! together: the server goes on without waiting for us. What was sent and what the server
//! confirmed are counted and compared.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::sync::mpsc::Receiver;
use tokio_postgres::error::SqlState;
use tokio_postgres::{CopyInSink, Statement};

use super::Job;
use super::lane::Message;
use super::shared::{Failure, Refused, RefusedBy};
use crate::format::{Chunk, Mode};
use crate::target::connect::Connection;
use crate::target::{Refusal, server_error};
use crate::{Error, Kind, Result};

const BINARY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Nothing ends a load but its end, and commits but for the last need not reach the disk.
pub(super) const NO_LIMITS: &str = "\
set synchronous_commit = off;
select set_config(name, '0', false) from pg_settings
where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout',
               'idle_in_transaction_session_timeout')";

const BINARY_TRAILER: &[u8] = b"\xff\xff";

/// What a lane did in its transaction, which is still open.
pub(super) struct Finished {
    pub(super) connection: Connection,
    pub(super) rows_in: u64,
    pub(super) rows_written: u64,
    pub(super) rows_as_text: u64,
    /// Chunks of which the server has confirmed every row.
    pub(super) chunks: u64,
}

/// A lane's side towards the server.
pub(super) struct Stream {
    connection: Connection,
    binary: Statement,
    text: Statement,
    one_statement: bool,
    /// The COPY that pieces go to.
    open: Option<Open>,
    /// The COPY that has all of its pieces, and is to be ended.
    ending: Option<Open>,
    /// The chunk that pieces are of, and how all of its rows were meant to go.
    chunk: Option<(Arc<Chunk>, Mode)>,
    rows_in: u64,
    rows_written: u64,
    rows_as_text: u64,
    chunks: u64,
}

/// A COPY under way.
struct Open {
    mode: Mode,
    chunk: Option<(Arc<Chunk>, Mode)>,
    sink: Pin<Box<CopyInSink<Bytes>>>,
}

/// What went wrong, in which kind of COPY, and with which chunk.
struct Fault {
    error: tokio_postgres::Error,
    mode: Mode,
    chunk: Option<(Arc<Chunk>, Mode)>,
}

type Sent = Result<(), Fault>;

impl Stream {
    /// Connects, and begins the lane's transaction. Several lanes must see rows and constraints
    /// as of now, whatever the role's default isolation is.
    pub(super) async fn open(job: &Job, is_alone: bool) -> Result<Stream> {
        let connection = (job.connect)().await?;
        let what = || "could not prepare to copy".to_owned();
        let client = &connection.client;
        client.batch_execute(NO_LIMITS).await.map_err(server_error(what()))?;
        let begin = if is_alone { "begin" } else { "begin isolation level read committed" };
        client.batch_execute(begin).await.map_err(server_error(what()))?;
        let text = client.prepare(&job.text_sql).await.map_err(server_error(what()))?;
        let binary = client.prepare(&job.binary_sql).await.map_err(server_error(what()))?;
        Ok(Stream {
            connection,
            binary,
            text,
            one_statement: job.one_statement,
            open: None,
            ending: None,
            chunk: None,
            rows_in: 0,
            rows_written: 0,
            rows_as_text: 0,
            chunks: 0,
        })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Streams what comes until there is no more.
    pub(super) async fn serve(
        mut self,
        mut messages: Receiver<Message>,
    ) -> Result<Finished, Box<Failure>> {
        loop {
            let waiting = match messages.try_recv() {
                Ok(message) => Some(message),
                // Nothing to go on with, so the server's answer can be waited for.
                Err(_) => match self.end().await {
                    Ok(()) => messages.recv().await,
                    Err(fault) => return Err(self.failure(fault)),
                },
            };
            let Some(message) = waiting else { break };
            let result = match message {
                Message::Chunk(next, mode) => {
                    self.chunk = Some((next, mode));
                    Ok(())
                }
                Message::Piece(mode, piece) => self.write(mode, piece).await,
                Message::End(binary_rows, text_rows) => {
                    self.end_chunk(binary_rows, text_rows).await
                }
                Message::Complete => self.complete().await,
            };
            if let Err(fault) = result {
                return Err(self.failure(fault));
            }
        }
        // Still open only when the load was given up: it is aborted with its sink.
        drop(self.open);
        Ok(Finished {
            connection: self.connection,
            rows_in: self.rows_in,
            rows_written: self.rows_written,
            rows_as_text: self.rows_as_text,
            chunks: self.chunks,
        })
    }

    async fn write(&mut self, mode: Mode, piece: Bytes) -> Sent {
        if self.open.as_ref().is_some_and(|open| open.mode != mode) {
            // Two kinds in one chunk: a COPY of each.
            self.end().await?;
            self.ending = self.open.take();
        }
        if self.open.is_none() {
            self.open = Some(self.begin(mode).await?);
        }
        match &mut self.open {
            Some(open) => open.feed(piece).await,
            None => Ok(()),
        }
    }

    /// Begins a COPY, and ends the one before it in the same breath. The client sends nothing of
    /// the second before all of the first. After a refusal the connection must not be used again:
    /// the client's and the server's idea of what comes next may differ then.
    async fn begin(&mut self, mode: Mode) -> Result<Open, Fault> {
        let statement = if mode == Mode::Binary { &self.binary } else { &self.text };
        let ending = self.ending.take();
        let end = async {
            match ending {
                Some(open) => open.finish().await,
                None => Ok(0),
            }
        };
        let (ended, begun) =
            tokio::join!(biased; end, self.connection.client.copy_in::<_, Bytes>(statement));
        self.rows_written += ended?;
        let chunk = self.chunk.clone();
        let sink = match begun {
            Ok(sink) => Box::pin(sink),
            Err(error) => return Err(Fault { error, mode, chunk }),
        };
        let mut open = Open { mode, chunk, sink };
        if mode == Mode::Binary {
            open.feed(Bytes::from_static(BINARY_HEADER)).await?;
        }
        Ok(open)
    }

    /// Counts the chunk and has its COPY ended, unless all chunks share one.
    async fn end_chunk(&mut self, binary: u64, text: u64) -> Sent {
        self.rows_in += binary + text;
        self.rows_as_text += text;
        self.chunks += 1;
        if self.one_statement || self.open.is_none() {
            return Ok(());
        }
        self.end().await?;
        self.ending = self.open.take();
        Ok(())
    }

    /// Ends the COPY that is to be ended.
    async fn end(&mut self) -> Sent {
        if let Some(open) = self.ending.take() {
            self.rows_written += open.finish().await?;
        }
        Ok(())
    }

    /// The failure for a chunk whose rows the server did not take, or for a lost connection.
    fn failure(&self, fault: Fault) -> Box<Failure> {
        let error = refused_copy(&self.connection, fault.error);
        let Some((chunk, meant)) = fault.chunk else {
            return Box::new(Failure { seq: 0, error, refused: None });
        };
        let by = match (fault.mode, meant) {
            (Mode::Binary, _) => RefusedBy::BinaryCopy,
            (Mode::Text, Mode::Binary) => RefusedBy::LeftOver,
            (Mode::Text, Mode::Text) => RefusedBy::WholeText,
        };
        let seq = chunk.seq;
        let refused = (error.kind() == Kind::Server).then_some(Refused { chunk, by });
        Box::new(Failure { seq, error, refused })
    }

    /// Ends a COPY that all chunks share, and has deferred constraints checked: here rather than
    /// in the commit, as lanes may then wait for each other and must be watched.
    async fn complete(&mut self) -> Sent {
        self.end().await?;
        self.ending = self.open.take();
        self.end().await?;
        if self.rows_in == 0 {
            return Ok(());
        }
        let checked = self.connection.client.batch_execute("set constraints all immediate").await;
        let chunk = self.chunk.clone();
        checked.map_err(|error| Fault { error, mode: Mode::Text, chunk })
    }
}

impl Open {
    async fn feed(&mut self, bytes: Bytes) -> Sent {
        let fed = self.sink.feed(bytes).await;
        fed.map_err(|error| self.fault(error))
    }

    /// Ends the COPY; the rows that the server wrote.
    async fn finish(mut self) -> Result<u64, Fault> {
        if self.mode == Mode::Binary {
            self.feed(Bytes::from_static(BINARY_TRAILER)).await?;
        }
        let written = self.sink.as_mut().finish().await;
        written.map_err(|error| self.fault(error))
    }

    fn fault(&self, error: tokio_postgres::Error) -> Fault {
        Fault { error, mode: self.mode, chunk: self.chunk.clone() }
    }
}

impl Finished {
    /// Compares what was sent with what the server wrote.
    pub(super) fn reconcile(&self, may_drop_rows: bool) -> Result<()> {
        if self.rows_written == self.rows_in || (may_drop_rows && self.rows_written < self.rows_in)
        {
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

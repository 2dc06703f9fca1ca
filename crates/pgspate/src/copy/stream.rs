//! Sends a lane's chunks over its connection: one COPY per chunk, recorded in the ledger.
//!
//! If the next chunk is ready, one message has the end of a COPY, the chunk's row in the ledger,
//! the commit and the start of the next COPY. So the server does not wait for the client. The rows
//! sent and the rows that the server confirmed are counted and compared.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::sync::mpsc::Receiver;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, CopyInSink, Statement};

use super::lane::LaneMessage;
use super::progress::CommittedCounts;
use super::session_registry::ConfirmedTally;
use super::shared::{LaneFailure, RefusedBy, RefusedChunk, SharedRun};
use super::{Commit, ReadySession};
use crate::format::{Chunk, EncodeMode};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{
    ChunkRecord, JobId, is_chunk_recorded, is_emptied_by_crash, is_refused_for_dropped_keys,
};
use pgspate_target::{ServerRefusal, ends_session, server_error};

/// Header of binary COPY data.
pub(crate) const BINARY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
pub(crate) const BINARY_TRAILER: &[u8] = b"\xff\xff";
/// Begins a lane's transaction. Several lanes must see the latest rows and constraints, whatever
/// the role's default isolation level is.
pub(super) const BEGIN_READ_COMMITTED: &str = "begin isolation level read committed";

/// Rows and chunks of a lane that the server has confirmed.
#[derive(Debug, Default, Clone)]
pub(super) struct LaneTally {
    pub(super) rows_in: u64,
    pub(super) rows_written: u64,
    pub(super) rows_as_text: u64,
    pub(super) rows_rejected: u64,
    pub(super) chunks: u64,
}

/// A lane's connection, and the state of its COPY.
pub(super) struct LaneStream {
    connection: Connection,
    binary: Statement,
    text: Statement,
    /// The statement that begins the first transaction; `None` once it was sent.
    begin: Option<&'static str>,
    one_statement: bool,
    may_drop_rows: bool,
    commit: Commit,
    ledger: Option<JobId>,
    is_bound: bool,
    /// Whether the transaction stays open for the caller.
    keeps_transaction_open: bool,
    /// SQL to run before the commit.
    after: Option<String>,
    /// The COPY that receives pieces.
    open: Option<OpenCopy>,
    /// A COPY that has all of its pieces and is yet to be ended.
    ending: Option<EndingCopy>,
    /// The current chunk, and the format meant for all of its rows.
    chunk: Option<ChunkAndMode>,
    /// Confirmed rows of a chunk whose last COPY has not ended.
    chunk_written: u64,
    /// Records of chunks, to be inserted into the ledger with the last chunk.
    chunk_records: Vec<ChunkRecord>,
    tally: LaneTally,
    confirmed: Arc<ConfirmedTally>,
    /// Counts of what is committed, for the progress.
    committed: Arc<CommittedCounts>,
}

/// A chunk, and the format meant for all of its rows.
type ChunkAndMode = (Arc<Chunk>, EncodeMode);

/// A COPY in progress.
struct OpenCopy {
    mode: EncodeMode,
    chunk: Option<ChunkAndMode>,
    sink: Pin<Box<CopyInSink<Bytes>>>,
}

/// A COPY to be ended (`None` if the chunk has no rows), and the chunk that ends with it.
struct EndingCopy {
    copy: Option<OpenCopy>,
    whole: Option<CompleteChunk>,
}

/// A chunk of which every row was sent.
struct CompleteChunk {
    chunk: Option<ChunkAndMode>,
    rows_in: u64,
    rows_as_text: u64,
}

/// An error of the server, with the format of the COPY and the chunk that it happened in.
struct CopyFault {
    error: tokio_postgres::Error,
    mode: EncodeMode,
    chunk: Option<ChunkAndMode>,
}

impl LaneStream {
    /// Prepares to send over `ready`. The first transaction begins with the first COPY, or at once
    /// if there is SQL to run before.
    pub(super) async fn open(shared: &SharedRun<'_>, ready: ReadySession) -> Result<LaneStream> {
        let (job, is_alone) = (shared.job, shared.is_alone);
        let ReadySession { connection, text, binary } = ready;
        // COPY FREEZE after other SQL needs read committed: other levels still hold the snapshot of
        // the earlier statement. Without such SQL, a lone lane uses the role's default level.
        let begin =
            if is_alone && job.sql_before().is_none() { "begin" } else { BEGIN_READ_COMMITTED };
        if let Some(before) = job.sql_before() {
            let (begun, made_ready) = tokio::join!(
                biased;
                connection.client.batch_execute(begin),
                connection.client.batch_execute(before)
            );
            begun.map_err(server_error("could not prepare a session to copy".to_owned()))?;
            made_ready.map_err(|error| copy_error(&connection, error))?;
        }
        Ok(LaneStream {
            connection,
            binary,
            text,
            begin: job.sql_before().is_none().then_some(begin),
            one_statement: job.one_statement,
            may_drop_rows: job.may_drop_rows,
            commit: job.commit,
            ledger: job.ledger_id(),
            is_bound: job.ledger.as_ref().is_some_and(|ledger| ledger.is_bound),
            keeps_transaction_open: job.keeps_transaction_open(),
            after: job.sql_after().map(str::to_owned),
            open: None,
            ending: None,
            chunk: None,
            chunk_written: 0,
            chunk_records: Vec::new(),
            tally: LaneTally::default(),
            confirmed: Arc::default(),
            committed: Arc::clone(&shared.progress.committed),
        })
    }

    /// Returns the tally of what the server has confirmed; it is updated continuously.
    pub(super) fn confirmed(&self) -> Arc<ConfirmedTally> {
        Arc::clone(&self.confirmed)
    }

    /// Sends messages until the channel closes. Returns the connection, whose transaction may be
    /// open, or the failure.
    pub(super) async fn serve(
        mut self,
        messages: Receiver<LaneMessage>,
    ) -> Result<Connection, Box<LaneFailure>> {
        let streamed = self.stream(messages).await;
        // A COPY is still open only if the load was abandoned. Dropping its sink aborts the COPY.
        drop((self.open.take(), self.ending.take()));
        match streamed {
            Ok(()) => Ok(self.connection),
            Err(fault) => Err(self.failure(fault)),
        }
    }

    async fn stream(&mut self, mut messages: Receiver<LaneMessage>) -> Result<(), CopyFault> {
        loop {
            let waiting = match messages.try_recv() {
                Ok(message) => Some(message),
                // No message is waiting, so there is time to wait for the server's reply.
                Err(_) => {
                    self.end_pending().await?;
                    messages.recv().await
                }
            };
            match waiting {
                Some(LaneMessage::Chunk(next, mode)) => self.chunk = Some((next, mode)),
                Some(LaneMessage::Piece(mode, piece)) => self.write(mode, piece).await?,
                Some(LaneMessage::End(binary, text)) => self.end_chunk(binary, text).await?,
                Some(LaneMessage::Complete) => self.complete_lane().await?,
                None => return Ok(()),
            }
        }
    }

    async fn write(&mut self, mode: EncodeMode, piece: Bytes) -> Result<(), CopyFault> {
        if self.open.as_ref().is_some_and(|open| open.mode != mode) {
            // The chunk has rows in both formats, and needs one COPY for each.
            self.end_pending().await?;
            self.ending = Some(EndingCopy { copy: self.open.take(), whole: None });
        }
        if self.open.is_none() {
            self.open = Some(self.begin(mode).await?);
        }
        match &mut self.open {
            Some(open) => open.feed(piece).await,
            None => Ok(()),
        }
    }

    /// Begins a COPY, and ends the pending one in the same round trip. The client sends all of the
    /// first statement before the second. After an error the connection must not be used again,
    /// because client and server may disagree about the next message.
    async fn begin(&mut self, mode: EncodeMode) -> Result<OpenCopy, CopyFault> {
        let statement = if mode == EncodeMode::Binary { &self.binary } else { &self.text };
        let (ending, begin) = (self.ending.take(), self.begin.take());
        let client = &self.connection.client;
        let start = async {
            match begin {
                Some(begin) => client.batch_execute(begin).await,
                None => Ok(()),
            }
        };
        // If the transaction could not begin, the COPY after it has no effect, because nothing ends
        // it.
        let (closed, started, begun) = tokio::join!(
            biased;
            self.end_and_record(ending),
            start,
            client.copy_in::<_, Bytes>(statement)
        );
        self.count_confirmed(closed?);
        let chunk = self.chunk.clone();
        let sink = match started.and(begun) {
            Ok(sink) => Box::pin(sink),
            Err(error) => return Err(CopyFault { error, mode, chunk }),
        };
        let mut open = OpenCopy { mode, chunk, sink };
        if mode == EncodeMode::Binary {
            open.feed(Bytes::from_static(BINARY_HEADER)).await?;
        }
        Ok(open)
    }

    /// Marks the chunk's COPY to be ended, unless all chunks share one COPY.
    async fn end_chunk(&mut self, binary: u64, text: u64) -> Result<(), CopyFault> {
        self.end_pending().await?;
        if let Some(begin) = self.begin.take() {
            // A chunk without rows needs a row in the ledger, too, and hence a transaction.
            let begun = self.connection.client.batch_execute(begin).await;
            let chunk = self.chunk.clone();
            begun.map_err(|error| CopyFault { error, mode: EncodeMode::Text, chunk })?;
        }
        let whole =
            CompleteChunk { chunk: self.chunk.clone(), rows_in: binary + text, rows_as_text: text };
        let copy = if self.one_statement { None } else { self.open.take() };
        self.ending = Some(EndingCopy { copy, whole: Some(whole) });
        if self.may_drop_rows || self.one_statement {
            // The ledger records the written rows, which are known only after the COPY.
            self.end_pending().await?;
        }
        Ok(())
    }

    /// Ends the pending COPY, if there is one.
    async fn end_pending(&mut self) -> Result<(), CopyFault> {
        let ending = self.ending.take();
        let closed = self.end_and_record(ending).await?;
        self.count_confirmed(closed);
        Ok(())
    }

    /// Ends a COPY. If lanes commit each chunk, also records the chunk that ends with it and
    /// commits. Returns the number of written rows, and the chunk.
    async fn end_and_record(
        &self,
        ending: Option<EndingCopy>,
    ) -> Result<(u64, Option<CompleteChunk>), CopyFault> {
        let Some(EndingCopy { copy, whole }) = ending else { return Ok((0, None)) };
        let finish = async {
            match copy {
                Some(open) => open.finish().await,
                None => Ok(0),
            }
        };
        let job = self.ledger.filter(|_| self.commit == Commit::EachChunk);
        let (Some(job), Some(recorded)) = (job, &whole) else {
            return Ok((finish.await?, whole));
        };
        let insert_chunks_sql =
            |rows| job.insert_chunks_sql(&[recorded.to_record(rows)], self.is_bound);
        let client = &self.connection.client;
        if !self.may_drop_rows {
            // The number of sent rows is recorded as written. If the server wrote fewer, the load
            // fails.
            let record = insert_chunks_sql(recorded.rows_in);
            let (written, recorded) =
                tokio::join!(biased; finish, record_and_commit(client, &record, recorded));
            let written = written?;
            recorded?;
            return Ok((written, whole));
        }
        let written = finish.await?;
        record_and_commit(client, &insert_chunks_sql(self.chunk_written + written), recorded)
            .await?;
        Ok((written, whole))
    }

    /// Adds confirmed rows and a confirmed chunk to the tally.
    fn count_confirmed(&mut self, (written, whole): (u64, Option<CompleteChunk>)) {
        self.chunk_written += written;
        let Some(whole) = whole else { return };
        let written = std::mem::take(&mut self.chunk_written);
        self.tally.rows_in += whole.rows_in;
        self.tally.rows_written += written;
        self.tally.rows_as_text += whole.rows_as_text;
        self.tally.chunks += 1;
        match self.commit {
            Commit::AtEnd if self.ledger.is_some() => {
                self.chunk_records.push(whole.to_record(written))
            }
            Commit::AtEnd => {}
            Commit::EachChunk => self.committed.add(written, 1),
        }
        self.confirmed.set(&self.tally);
    }

    /// Returns the failure for a chunk that the server refused, or for a lost connection.
    fn failure(&self, fault: CopyFault) -> Box<LaneFailure> {
        let is_chunk_recorded = is_chunk_recorded(&fault.error);
        if is_emptied_by_crash(&fault.error) {
            let seq = fault.chunk.map_or(0, |(chunk, _)| chunk.seq);
            return Box::new(LaneFailure::table_emptied(seq));
        }
        let error = copy_error(&self.connection, fault.error);
        let Some((chunk, meant)) = fault.chunk else {
            return Box::new(LaneFailure { is_chunk_recorded, ..LaneFailure::of(0, error) });
        };
        let by = match (fault.mode, meant) {
            (EncodeMode::Binary, _) => RefusedBy::BinaryCopy,
            (EncodeMode::Text, EncodeMode::Binary) => RefusedBy::LeftOverText,
            (EncodeMode::Text, EncodeMode::Text) => RefusedBy::WholeText,
        };
        let seq = chunk.seq;
        let refused = (error.kind() == ErrorKind::Server).then_some(RefusedChunk { chunk, by });
        Box::new(LaneFailure { refused, is_chunk_recorded, ..LaneFailure::of(seq, error) })
    }

    /// Ends a COPY that all chunks share, inserts the ledger rows of chunks that are committed
    /// together, and checks deferred constraints. The commit would check them, too. But lanes may
    /// wait for each other during the check, and here the monitor watches them.
    async fn complete_lane(&mut self) -> Result<(), CopyFault> {
        let chunks = self.tally.chunks + u64::from(self.ending.is_some());
        let is_all = self.commit == Commit::EachChunk || self.keeps_transaction_open;
        if is_all || (chunks == 0 && self.after.is_none()) {
            return self.end_pending().await;
        }
        if let Some(copy) = self.open.take() {
            self.end_pending().await?;
            let written = copy.finish().await?;
            self.tally.rows_written += written;
            self.confirmed.set(&self.tally);
            distribute_written_rows(&mut self.chunk_records, written);
        }
        let ending = self.ending.take();
        let last = ending.as_ref().and_then(|ending| ending.whole.as_ref());
        // The number of sent rows is recorded as written. If the server wrote fewer, the load fails
        // before it commits.
        let last = last.map(|whole| whole.to_record(whole.rows_in));
        let mut sql = "set constraints all immediate".to_owned();
        if let (Some(job), false) = (self.ledger, self.chunk_records.is_empty() && last.is_none()) {
            let chunk_records: Vec<ChunkRecord> =
                self.chunk_records.iter().copied().chain(last).collect();
            sql = format!("{}; {sql}", job.insert_chunks_sql(&chunk_records, self.is_bound));
        }
        if let Some(after) = &self.after {
            sql = format!("{sql}; {after}");
        }
        let chunk = self.chunk.clone();
        let (closed, checked) = tokio::join!(
            biased;
            self.end_and_record(ending),
            self.connection.client.batch_execute(&sql)
        );
        self.count_confirmed(closed?);
        checked.map_err(|error| CopyFault { error, mode: EncodeMode::Text, chunk })
    }
}

impl CompleteChunk {
    fn to_record(&self, rows_written: u64) -> ChunkRecord {
        let Some((chunk, _)) = &self.chunk else { return ChunkRecord::default() };
        ChunkRecord {
            chunk: chunk.seq,
            input: chunk.input,
            position: chunk.position(),
            digest: chunk.digest,
            rows_in: self.rows_in,
            rows_written,
            rows_rejected: 0,
        }
    }
}

/// Inserts the chunk's row into the ledger, commits, and begins the next transaction.
async fn record_and_commit(
    client: &Client,
    insert_chunks_sql: &str,
    whole: &CompleteChunk,
) -> Result<(), CopyFault> {
    let sql = format!("{insert_chunks_sql}; commit; {BEGIN_READ_COMMITTED}");
    let recorded = client.batch_execute(&sql).await;
    let mode = whole.chunk.as_ref().map_or(EncodeMode::Text, |(_, mode)| *mode);
    recorded.map_err(|error| CopyFault { error, mode, chunk: whole.chunk.clone() })
}

/// Distributes the rows that one COPY wrote over its chunks: each chunk gets all of its rows while
/// any are left.
fn distribute_written_rows(chunk_records: &mut [ChunkRecord], mut written: u64) {
    for record in chunk_records {
        record.rows_written = record.rows_in.min(written);
        written -= record.rows_written;
    }
}

impl OpenCopy {
    async fn feed(&mut self, bytes: Bytes) -> Result<(), CopyFault> {
        let fed = self.sink.feed(bytes).await;
        fed.map_err(|error| self.fault(error))
    }

    /// Ends the COPY. Returns the number of rows that the server wrote.
    async fn finish(mut self) -> Result<u64, CopyFault> {
        if self.mode == EncodeMode::Binary {
            self.feed(Bytes::from_static(BINARY_TRAILER)).await?;
        }
        let written = self.sink.as_mut().finish().await;
        written.map_err(|error| self.fault(error))
    }

    fn fault(&self, error: tokio_postgres::Error) -> CopyFault {
        CopyFault { error, mode: self.mode, chunk: self.chunk.clone() }
    }
}

impl LaneTally {
    pub(super) fn add(&mut self, other: &LaneTally) {
        self.rows_in += other.rows_in;
        self.rows_written += other.rows_written;
        self.rows_as_text += other.rows_as_text;
        self.rows_rejected += other.rows_rejected;
        self.chunks += other.chunks;
    }

    /// Combines the tallies of sessions that received the same rows and of which each wrote its
    /// share.
    pub(super) fn of_shares(tallies: &[LaneTally]) -> LaneTally {
        let all = |of: fn(&LaneTally) -> u64| tallies.iter().map(of);
        LaneTally {
            rows_in: all(|it| it.rows_in).max().unwrap_or_default(),
            rows_written: all(|it| it.rows_written).sum(),
            rows_as_text: all(|it| it.rows_as_text).max().unwrap_or_default(),
            rows_rejected: all(|it| it.rows_rejected).max().unwrap_or_default(),
            // A chunk is done when every session has confirmed it.
            chunks: all(|it| it.chunks).min().unwrap_or_default(),
        }
    }

    /// Checks that the server wrote as many rows as were sent. With `may_drop_rows` it may have
    /// written fewer.
    pub(super) fn reconcile(&self, may_drop_rows: bool) -> Result<()> {
        let (sent, written) = (self.rows_in - self.rows_rejected, self.rows_written);
        if written == sent || (may_drop_rows && written < sent) {
            return Ok(());
        }
        let message = format!("sent {sent} rows but the server wrote {written}");
        Err(Error::new(ErrorKind::Bug, message))
    }
}

/// Returns the server's refusal in the server's own words, or an explanation of the lost
/// connection.
pub(crate) fn copy_error(connection: &Connection, error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(_) if is_refused_for_dropped_keys(&error) => keys_dropped_error(),
        Some(said) if !ends_session(said.code()) => {
            let message = ServerRefusal::new(said).to_string();
            server_error(message)(error)
        }
        _ => connection.explain("could not copy", error),
    }
}

/// Returns the error for keys that another load has dropped. The caller can look up which load,
/// with another session.
fn keys_dropped_error() -> Error {
    Error::new(
        ErrorKind::Ledger,
        "another load has dropped the table's keys and not created them again",
    )
    .with_sqlstate(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
}

/// Returns whether a load failed because another load has dropped the table's keys.
pub(crate) fn is_keys_dropped_error(error: &Error) -> bool {
    error.kind() == ErrorKind::Ledger
        && error.sqlstate() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
}

//! Sends a lane's chunks over one connection, and records the chunks in the ledger.
//!
//! Each chunk is one COPY, or two if some of its rows are sent as binary and others as text. If the
//! next chunk is ready, the end of a COPY, the chunk's row in the ledger, the commit and the start
//! of the next COPY are sent together. So the server does not wait for the client.
//! The rows that were sent and the rows that the server confirmed are counted and compared.

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
use super::{Commit, ReadySession, surrounding};
use crate::format::{Chunk, EncodeMode};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{
    ChunkRecord, ChunkRecorder, is_chunk_recorded, is_emptied_by_crash,
    is_refused_for_altered_table, is_refused_for_dropped_keys, is_refused_for_emptied_table,
    is_refused_for_replaced_table,
};
use pgspate_target::{ConcurrentChange, ServerRefusal, ends_session, server_error};

/// Header of binary COPY data.
pub(crate) const BINARY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Trailer of binary COPY data.
pub(crate) const BINARY_TRAILER: &[u8] = b"\xff\xff";
/// Begins a lane's transaction. Each statement must see the latest committed rows and constraints,
/// whatever the role's default isolation level is.
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
    connection: Arc<Connection>,
    binary: Statement,
    text: Statement,
    /// The statement that begins the first transaction; `None` once the statement was sent.
    begin_sql: Option<String>,
    one_statement: bool,
    may_skip_rows: bool,
    commit: Commit,
    ledger: Option<ChunkRecorder>,
    /// Whether the transaction stays open after the last chunk, for the caller.
    keeps_transaction_open: bool,
    /// SQL to run before the commit.
    sql_after: Option<String>,
    /// The COPY to which pieces are sent.
    open_copy: Option<OpenCopy>,
    /// A COPY to which all of its pieces were sent, and that is not ended yet.
    ending_copy: Option<EndingCopy>,
    /// The current chunk, and the format intended for all of its rows.
    chunk: Option<ChunkAndMode>,
    /// Rows that the server has written of a chunk whose last COPY has not ended.
    chunk_written: u64,
    /// Records to insert into the ledger after the last chunk.
    chunk_records: Vec<ChunkRecord>,
    /// Rows and chunks that the server has confirmed.
    tally: LaneTally,
    /// A copy of `tally` for the lane's thread.
    confirmed: Arc<ConfirmedTally>,
    /// Counts of committed rows and chunks, for the progress.
    committed: Arc<CommittedCounts>,
}

/// A chunk, and the format intended for all of its rows.
type ChunkAndMode = (Arc<Chunk>, EncodeMode);

/// A COPY in progress.
struct OpenCopy {
    mode: EncodeMode,
    chunk: Option<ChunkAndMode>,
    sink: Pin<Box<CopyInSink<Bytes>>>,
}

/// A COPY that must be ended, and the chunk that is complete after this COPY.
struct EndingCopy {
    /// The COPY; `None` if the chunk has no rows, or if all chunks share one COPY.
    copy: Option<OpenCopy>,
    /// The complete chunk; `None` if another COPY of the same chunk follows.
    complete_chunk: Option<CompleteChunk>,
}

/// A chunk of which every row was sent.
struct CompleteChunk {
    chunk: Option<ChunkAndMode>,
    rows_in: u64,
    rows_as_text: u64,
}

/// An error of the server, and the COPY in which the error happened.
struct CopyFault {
    error: tokio_postgres::Error,
    /// The format of the COPY.
    mode: EncodeMode,
    /// The chunk that was sent.
    chunk: Option<ChunkAndMode>,
}

impl LaneStream {
    /// Creates a stream over the session `ready`. The first transaction begins with the first COPY.
    /// If SQL must run before the first COPY, the transaction begins here.
    pub(super) async fn open(shared: &SharedRun<'_>, ready: ReadySession) -> Result<LaneStream> {
        let (job, has_one_lane) = (shared.job, shared.has_one_lane);
        let ReadySession { connection, text, binary } = ready;
        // COPY FREEZE after other SQL needs read committed: at other levels the transaction still
        // holds the snapshot of the earlier statement. The ledger's checks must see what was
        // committed while COPY waited for the table, and so need read committed, too. If there is
        // neither, and only one lane, the role's default isolation level applies.
        let is_plain = has_one_lane && job.sql_before().is_none() && job.ledger.is_none();
        let begin = job.setup.begin_sql(if is_plain { "begin" } else { BEGIN_READ_COMMITTED });
        if let Some(before) = job.sql_before() {
            let (begun, prepared) = tokio::join!(
                biased;
                connection.client.batch_execute(&begin),
                surrounding::run_before(&connection, &job.destination, before)
            );
            begun.map_err(server_error("could not prepare a session to copy".to_owned()))?;
            prepared?;
        }
        Ok(LaneStream {
            connection,
            binary,
            text,
            begin_sql: job.sql_before().is_none().then_some(begin),
            one_statement: job.one_statement,
            may_skip_rows: job.may_skip_rows,
            commit: job.commit,
            ledger: job.ledger.as_ref().map(|ledger| ledger.recorder.clone()),
            keeps_transaction_open: job.keeps_transaction_open(),
            sql_after: job.sql_after().map(str::to_owned),
            open_copy: None,
            ending_copy: None,
            chunk: None,
            chunk_written: 0,
            chunk_records: Vec::new(),
            tally: LaneTally::default(),
            confirmed: Arc::default(),
            committed: Arc::clone(&shared.progress.committed),
        })
    }

    /// Returns the tally of confirmed rows and chunks. The stream updates this tally while it
    /// sends.
    pub(super) fn confirmed(&self) -> Arc<ConfirmedTally> {
        Arc::clone(&self.confirmed)
    }

    /// Sends the chunks that arrive as `messages`, until the channel closes. Returns the
    /// connection, whose transaction may still be open, or the failure.
    pub(super) async fn serve(
        mut self,
        messages: Receiver<LaneMessage>,
    ) -> Result<Arc<Connection>, Box<LaneFailure>> {
        let sent = self.send_all(messages).await;
        // A COPY is still open only if the load ended early. Dropping the sink aborts the COPY.
        drop((self.open_copy.take(), self.ending_copy.take()));
        match sent {
            Ok(()) => Ok(self.connection),
            Err(fault) => Err(self.failure(fault)),
        }
    }

    async fn send_all(&mut self, mut messages: Receiver<LaneMessage>) -> Result<(), CopyFault> {
        loop {
            let message = match messages.try_recv() {
                Ok(message) => Some(message),
                // No message is ready, so the stream ends the COPY and waits for the reply.
                Err(_) => {
                    self.end_pending().await?;
                    messages.recv().await
                }
            };
            match message {
                Some(LaneMessage::Chunk(next, mode)) => self.chunk = Some((next, mode)),
                Some(LaneMessage::Piece(mode, piece)) => self.send_piece(mode, piece).await?,
                Some(LaneMessage::End(binary, text)) => self.end_chunk(binary, text).await?,
                Some(LaneMessage::Complete) => self.complete_lane().await?,
                None => return Ok(()),
            }
        }
    }

    /// Sends a piece in a COPY of the format `mode`. Begins this COPY if necessary.
    async fn send_piece(&mut self, mode: EncodeMode, piece: Bytes) -> Result<(), CopyFault> {
        if self.open_copy.as_ref().is_some_and(|open| open.mode != mode) {
            // The chunk has rows in both formats, and needs one COPY for each.
            self.end_pending().await?;
            self.ending_copy =
                Some(EndingCopy { copy: self.open_copy.take(), complete_chunk: None });
        }
        if self.open_copy.is_none() {
            self.open_copy = Some(self.begin_copy(mode).await?);
        }
        match &mut self.open_copy {
            Some(open) => open.feed(piece).await,
            None => Ok(()),
        }
    }

    /// Begins a COPY, and ends the pending COPY in the same round trip. The end is sent before the
    /// begin. After an error the connection must not be used again, because client and server may
    /// disagree about the next message.
    async fn begin_copy(&mut self, mode: EncodeMode) -> Result<OpenCopy, CopyFault> {
        let statement = if mode == EncodeMode::Binary { &self.binary } else { &self.text };
        let (ending, begin) = (self.ending_copy.take(), self.begin_sql.take());
        let client = &self.connection.client;
        let start = async {
            match begin {
                Some(begin) => client.batch_execute(&begin).await,
                None => Ok(()),
            }
        };
        // If BEGIN fails, the COPY has no effect, because the COPY is never ended.
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

    /// Marks the chunk as complete, and its COPY as pending, unless all chunks share one COPY.
    /// `binary` and `text` are the numbers of rows sent in each format.
    async fn end_chunk(&mut self, binary: u64, text: u64) -> Result<(), CopyFault> {
        self.end_pending().await?;
        if let Some(begin) = self.begin_sql.take() {
            // A chunk without rows also needs a row in the ledger, and therefore a transaction.
            let begun = self.connection.client.batch_execute(&begin).await;
            let chunk = self.chunk.clone();
            begun.map_err(|error| CopyFault { error, mode: EncodeMode::Text, chunk })?;
        }
        let complete_chunk =
            CompleteChunk { chunk: self.chunk.clone(), rows_in: binary + text, rows_as_text: text };
        let copy = if self.one_statement { None } else { self.open_copy.take() };
        self.ending_copy = Some(EndingCopy { copy, complete_chunk: Some(complete_chunk) });
        if self.may_skip_rows || self.one_statement {
            // The ledger records the number of written rows, which the server reports at the end of
            // the COPY.
            self.end_pending().await?;
        }
        Ok(())
    }

    /// Ends the pending COPY, if there is one.
    async fn end_pending(&mut self) -> Result<(), CopyFault> {
        let ending = self.ending_copy.take();
        let closed = self.end_and_record(ending).await?;
        self.count_confirmed(closed);
        Ok(())
    }

    /// Ends a COPY. If the chunk is complete and each chunk is committed, records the chunk in the
    /// ledger and commits. Returns the number of written rows, and the complete chunk.
    async fn end_and_record(
        &self,
        ending: Option<EndingCopy>,
    ) -> Result<(u64, Option<CompleteChunk>), CopyFault> {
        let Some(EndingCopy { copy, complete_chunk }) = ending else { return Ok((0, None)) };
        let finish = async {
            match copy {
                Some(open) => open.finish().await,
                None => Ok(0),
            }
        };
        let recorder = self.ledger.as_ref().filter(|_| self.commit == Commit::EachChunk);
        let (Some(recorder), Some(recorded)) = (recorder, &complete_chunk) else {
            return Ok((finish.await?, complete_chunk));
        };
        let insert_chunks_sql = |rows| recorder.insert_chunks_sql(&[recorded.to_record(rows)]);
        let client = &self.connection.client;
        if !self.may_skip_rows {
            // The number of sent rows is recorded as the number of written rows. If the server
            // wrote fewer rows, `reconcile` fails the load.
            let record = insert_chunks_sql(recorded.rows_in);
            let (written, recorded) =
                tokio::join!(biased; finish, record_and_commit(client, &record, recorded));
            let written = written?;
            recorded?;
            return Ok((written, complete_chunk));
        }
        let written = finish.await?;
        record_and_commit(client, &insert_chunks_sql(self.chunk_written + written), recorded)
            .await?;
        Ok((written, complete_chunk))
    }

    /// Adds `written` confirmed rows, and the complete chunk if there is one, to the tally.
    fn count_confirmed(&mut self, (written, complete_chunk): (u64, Option<CompleteChunk>)) {
        self.chunk_written += written;
        let Some(complete_chunk) = complete_chunk else { return };
        let written = std::mem::take(&mut self.chunk_written);
        self.tally.rows_in += complete_chunk.rows_in;
        self.tally.rows_written += written;
        self.tally.rows_as_text += complete_chunk.rows_as_text;
        self.tally.chunks += 1;
        match self.commit {
            Commit::AtEnd if self.ledger.is_some() => {
                self.chunk_records.push(complete_chunk.to_record(written))
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
        let Some((chunk, intended_mode)) = fault.chunk else {
            return Box::new(LaneFailure { is_chunk_recorded, ..LaneFailure::of(0, error) });
        };
        let by = match (fault.mode, intended_mode) {
            (EncodeMode::Binary, _) => RefusedBy::BinaryCopy,
            (EncodeMode::Text, EncodeMode::Binary) => RefusedBy::LeftOverText,
            (EncodeMode::Text, EncodeMode::Text) => RefusedBy::WholeText,
        };
        let seq = chunk.seq;
        let refused = (error.kind() == ErrorKind::Server).then_some(RefusedChunk { chunk, by });
        Box::new(LaneFailure { refused, is_chunk_recorded, ..LaneFailure::of(seq, error) })
    }

    /// Completes the lane after its last chunk. Ends a COPY that all chunks share, inserts the rows
    /// of all chunks into the ledger, and checks deferred constraints.
    ///
    /// The commit would also check deferred constraints. But lanes may wait for each other during
    /// the check, and the monitor only watches the lanes before the commits.
    async fn complete_lane(&mut self) -> Result<(), CopyFault> {
        // The one statement of all chunks is still open.
        if let Some(copy) = self.open_copy.take() {
            self.end_pending().await?;
            let written = copy.finish().await?;
            self.tally.rows_written += written;
            self.confirmed.set(&self.tally);
            distribute_written_rows(&mut self.chunk_records, written);
        }
        let chunks = self.tally.chunks + u64::from(self.ending_copy.is_some());
        let only_ends_copy = self.commit == Commit::EachChunk || self.keeps_transaction_open;
        if only_ends_copy || (chunks == 0 && self.sql_after.is_none()) {
            return self.end_pending().await;
        }
        let ending = self.ending_copy.take();
        let last = ending.as_ref().and_then(|ending| ending.complete_chunk.as_ref());
        // The number of sent rows is recorded as the number of written rows. If the server wrote
        // fewer rows, the load fails before it commits.
        let last = last.map(|complete_chunk| complete_chunk.to_record(complete_chunk.rows_in));
        let mut sql = "set constraints all immediate".to_owned();
        let has_chunks = !self.chunk_records.is_empty() || last.is_some();
        if let Some(recorder) = self.ledger.as_ref().filter(|_| has_chunks) {
            let chunk_records: Vec<ChunkRecord> =
                self.chunk_records.iter().copied().chain(last).collect();
            sql = format!("{}; {sql}", recorder.insert_chunks_sql(&chunk_records));
        }
        if let Some(after) = &self.sql_after {
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
    complete_chunk: &CompleteChunk,
) -> Result<(), CopyFault> {
    let sql = format!("{insert_chunks_sql}; commit; {BEGIN_READ_COMMITTED}");
    let recorded = client.batch_execute(&sql).await;
    let mode = complete_chunk.chunk.as_ref().map_or(EncodeMode::Text, |(_, mode)| *mode);
    recorded.map_err(|error| CopyFault { error, mode, chunk: complete_chunk.chunk.clone() })
}

/// Distributes the number of rows that one COPY wrote over its chunks, in order. Each chunk gets as
/// many written rows as it has rows, while written rows are left.
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

    /// Combines the tallies of a lane's sessions. Each session received all rows, and wrote those
    /// rows that its COPY WHERE condition selects.
    pub(super) fn of_sessions(tallies: &[LaneTally]) -> LaneTally {
        let all = |of: fn(&LaneTally) -> u64| tallies.iter().map(of);
        LaneTally {
            rows_in: all(|it| it.rows_in).max().unwrap_or_default(),
            rows_written: all(|it| it.rows_written).sum(),
            rows_as_text: all(|it| it.rows_as_text).max().unwrap_or_default(),
            rows_rejected: all(|it| it.rows_rejected).max().unwrap_or_default(),
            // A chunk is confirmed when every session has confirmed it.
            chunks: all(|it| it.chunks).min().unwrap_or_default(),
        }
    }

    /// Checks that the server wrote as many rows as were sent, or fewer if `may_skip_rows`.
    pub(super) fn reconcile(&self, may_skip_rows: bool) -> Result<()> {
        let (sent, written) = (self.rows_in - self.rows_rejected, self.rows_written);
        if written == sent || (may_skip_rows && written < sent) {
            return Ok(());
        }
        let message = format!("sent {sent} rows but the server wrote {written}");
        Err(Error::new(ErrorKind::Bug, message))
    }
}

/// Returns the error of a COPY: the server's refusal in the server's own words, or an explanation
/// of a lost connection.
pub(crate) fn copy_error(connection: &Connection, error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(_) if is_refused_for_dropped_keys(&error) => keys_dropped_error(),
        Some(_) if is_refused_for_replaced_table(&error) => ConcurrentChange::Replaced.to_error(),
        Some(_) if is_refused_for_emptied_table(&error) => ConcurrentChange::Emptied.to_error(),
        Some(_) if is_refused_for_altered_table(&error) => ConcurrentChange::Altered.to_error(),
        Some(refusal) if !ends_session(refusal.code()) => {
            let message = ServerRefusal::new(refusal).to_string();
            server_error(message)(error)
        }
        _ => connection.explain("could not copy", error),
    }
}

/// Returns the error for a table whose keys another load has dropped. With another session, the
/// caller can look up which load it was.
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

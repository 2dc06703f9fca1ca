//! The connection of a lane: one COPY for each chunk, sealed in the ledger.
//!
//! Where the next chunk is at hand, the end of a COPY, the chunk's row in the ledger, the commit
//! and the start of the next COPY travel together: the server goes on without waiting for us. What
//! was sent and what the server confirmed are counted and compared.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::sync::mpsc::Receiver;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, CopyInSink, Statement};

use super::lane::LaneMessage;
use super::progress::CommittedCounts;
use super::session::ConfirmedTally;
use super::shared::{LaneFailure, RefusedChunk, RefusedBy, SharedRun};
use super::{Commit, ReadySession};
use crate::format::{Chunk, Mode};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{JobId, Seal, is_emptied, is_refused, is_taken};
use pgspate_target::{ServerRefusal, ends_session, server_error};

/// What binary COPY data begin and end with.
pub(crate) const BINARY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
pub(crate) const BINARY_TRAILER: &[u8] = b"\xff\xff";
/// Several lanes must see rows and constraints as of now, whatever the role's default is.
pub(super) const BEGIN: &str = "begin isolation level read committed";

/// What a lane did, as far as the server has confirmed it.
#[derive(Debug, Default, Clone)]
pub(super) struct LaneTally {
    pub(super) rows_in: u64,
    pub(super) rows_written: u64,
    pub(super) rows_as_text: u64,
    pub(super) rows_rejected: u64,
    pub(super) chunks: u64,
}

/// A lane's side towards the server.
pub(super) struct LaneStream {
    connection: Connection,
    binary: Statement,
    text: Statement,
    /// How the first transaction begins, until it has.
    begin: Option<&'static str>,
    one_statement: bool,
    may_drop_rows: bool,
    commit: Commit,
    ledger: Option<JobId>,
    is_bound: bool,
    /// The transaction is somebody else's afterwards.
    stays_open: bool,
    /// What ends the transaction, but for its commit.
    after: Option<String>,
    /// The COPY that pieces go to.
    open: Option<OpenCopy>,
    /// What has all of its pieces, and is to be ended.
    ending: Option<EndingCopy>,
    /// The chunk that pieces are of, and how all of its rows were meant to go.
    chunk: Option<ChunkAndMode>,
    /// Rows that the server has confirmed of a chunk whose end is still to come.
    chunk_written: u64,
    /// Rows for the ledger that are written with the last chunk.
    seals: Vec<Seal>,
    tally: LaneTally,
    confirmed: Arc<ConfirmedTally>,
    /// Where it notes what is committed.
    kept: Arc<CommittedCounts>,
}

/// A chunk, and how all of its rows were meant to go.
type ChunkAndMode = (Arc<Chunk>, Mode);

/// A COPY under way.
struct OpenCopy {
    mode: Mode,
    chunk: Option<ChunkAndMode>,
    sink: Pin<Box<CopyInSink<Bytes>>>,
}

/// A COPY that is to be ended, if the chunk has any row, and the chunk that ends with it.
struct EndingCopy {
    copy: Option<OpenCopy>,
    whole: Option<CompleteChunk>,
}

/// A chunk that was sent to its end.
struct CompleteChunk {
    chunk: Option<ChunkAndMode>,
    rows_in: u64,
    rows_as_text: u64,
}

/// What went wrong, in which kind of COPY, and with which chunk.
struct CopyFault {
    error: tokio_postgres::Error,
    mode: Mode,
    chunk: Option<ChunkAndMode>,
}

impl LaneStream {
    /// Over a session that is ready. Its first transaction begins with its first COPY, or now, if
    /// there is something to do in it before.
    pub(super) async fn open(shared: &SharedRun<'_>, ready: ReadySession) -> Result<LaneStream> {
        let (job, is_alone) = (shared.job, shared.is_alone);
        let ReadySession { connection, text, binary } = ready;
        // COPY FREEZE does not go with the snapshots of other isolation levels.
        let begin = if is_alone && job.before().is_none() { "begin" } else { BEGIN };
        if let Some(before) = job.before() {
            let (begun, made_ready) = tokio::join!(
                biased;
                connection.client.batch_execute(begin),
                connection.client.batch_execute(before)
            );
            begun.map_err(server_error("could not prepare to copy".to_owned()))?;
            made_ready.map_err(|error| refused_copy(&connection, error))?;
        }
        Ok(LaneStream {
            connection,
            binary,
            text,
            begin: job.before().is_none().then_some(begin),
            one_statement: job.one_statement,
            may_drop_rows: job.may_drop_rows,
            commit: job.commit,
            ledger: job.ledger_id(),
            is_bound: job.ledger.as_ref().is_some_and(|ledger| ledger.is_bound),
            stays_open: job.stays_open(),
            after: job.after().map(str::to_owned),
            open: None,
            ending: None,
            chunk: None,
            chunk_written: 0,
            seals: Vec::new(),
            tally: LaneTally::default(),
            confirmed: Arc::default(),
            kept: Arc::clone(&shared.progress.kept),
        })
    }

    /// What the server has confirmed, as it does.
    pub(super) fn confirmed(&self) -> Arc<ConfirmedTally> {
        Arc::clone(&self.confirmed)
    }

    /// Streams what comes until there is no more. The connection, with a transaction open, or what
    /// went wrong.
    pub(super) async fn serve(
        mut self,
        messages: Receiver<LaneMessage>,
    ) -> Result<Connection, Box<LaneFailure>> {
        let streamed = self.stream(messages).await;
        // Still open only when the load was given up: it is aborted with its sink.
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
                // Nothing to go on with, so the server's answer can be waited for.
                Err(_) => {
                    self.end().await?;
                    messages.recv().await
                }
            };
            match waiting {
                Some(LaneMessage::Chunk(next, mode)) => self.chunk = Some((next, mode)),
                Some(LaneMessage::Piece(mode, piece)) => self.write(mode, piece).await?,
                Some(LaneMessage::End(binary, text)) => self.end_chunk(binary, text).await?,
                Some(LaneMessage::Complete) => self.complete().await?,
                None => return Ok(()),
            }
        }
    }

    async fn write(&mut self, mode: Mode, piece: Bytes) -> Result<(), CopyFault> {
        if self.open.as_ref().is_some_and(|open| open.mode != mode) {
            // Two kinds in one chunk: a COPY of each.
            self.end().await?;
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

    /// Begins a COPY, and ends what comes before it in the same breath. The client sends nothing
    /// of the second before all of the first. After a refusal the connection must not be used
    /// again: the client's and the server's idea of what comes next may differ then.
    async fn begin(&mut self, mode: Mode) -> Result<OpenCopy, CopyFault> {
        let statement = if mode == Mode::Binary { &self.binary } else { &self.text };
        let (ending, begin) = (self.ending.take(), self.begin.take());
        let client = &self.connection.client;
        let start = async {
            match begin {
                Some(begin) => client.batch_execute(begin).await,
                None => Ok(()),
            }
        };
        // A COPY that goes on without its transaction comes to nothing, as nobody ends it.
        let (closed, started, begun) = tokio::join!(
            biased;
            self.close(ending),
            start,
            client.copy_in::<_, Bytes>(statement)
        );
        self.note(closed?);
        let chunk = self.chunk.clone();
        let sink = match started.and(begun) {
            Ok(sink) => Box::pin(sink),
            Err(error) => return Err(CopyFault { error, mode, chunk }),
        };
        let mut open = OpenCopy { mode, chunk, sink };
        if mode == Mode::Binary {
            open.feed(Bytes::from_static(BINARY_HEADER)).await?;
        }
        Ok(open)
    }

    /// Has the chunk's COPY ended, unless all chunks share one.
    async fn end_chunk(&mut self, binary: u64, text: u64) -> Result<(), CopyFault> {
        self.end().await?;
        if let Some(begin) = self.begin.take() {
            // A chunk without rows is sealed in a transaction, too.
            let begun = self.connection.client.batch_execute(begin).await;
            let chunk = self.chunk.clone();
            begun.map_err(|error| CopyFault { error, mode: Mode::Text, chunk })?;
        }
        let whole = CompleteChunk { chunk: self.chunk.clone(), rows_in: binary + text, rows_as_text: text };
        let copy = if self.one_statement { None } else { self.open.take() };
        self.ending = Some(EndingCopy { copy, whole: Some(whole) });
        if self.may_drop_rows || self.one_statement {
            // The ledger is to have the rows that were written, which are known after the COPY.
            self.end().await?;
        }
        Ok(())
    }

    /// Ends what is to be ended.
    async fn end(&mut self) -> Result<(), CopyFault> {
        let ending = self.ending.take();
        let closed = self.close(ending).await?;
        self.note(closed);
        Ok(())
    }

    /// Ends a COPY and, where lanes commit each chunk, seals the chunk that ends with it. The rows
    /// that the COPY has written, and the chunk.
    async fn close(&self, ending: Option<EndingCopy>) -> Result<(u64, Option<CompleteChunk>), CopyFault> {
        let Some(EndingCopy { copy, whole }) = ending else { return Ok((0, None)) };
        let finish = async {
            match copy {
                Some(open) => open.finish().await,
                None => Ok(0),
            }
        };
        let job = self.ledger.filter(|_| self.commit == Commit::EachChunk);
        let (Some(job), Some(sealed)) = (job, &whole) else {
            return Ok((finish.await?, whole));
        };
        let seal_sql = |rows| job.seal_sql(&[sealed.seal(rows)], self.is_bound);
        let client = &self.connection.client;
        if !self.may_drop_rows {
            // As many as were sent, or the load fails.
            let seal = seal_sql(sealed.rows_in);
            let (written, sealed) =
                tokio::join!(biased; finish, commit_chunk(client, &seal, sealed));
            let written = written?;
            sealed?;
            return Ok((written, whole));
        }
        let written = finish.await?;
        commit_chunk(client, &seal_sql(self.chunk_written + written), sealed).await?;
        Ok((written, whole))
    }

    /// Counts what the server has confirmed.
    fn note(&mut self, (written, whole): (u64, Option<CompleteChunk>)) {
        self.chunk_written += written;
        let Some(whole) = whole else { return };
        let written = std::mem::take(&mut self.chunk_written);
        self.tally.rows_in += whole.rows_in;
        self.tally.rows_written += written;
        self.tally.rows_as_text += whole.rows_as_text;
        self.tally.chunks += 1;
        match self.commit {
            Commit::AtEnd if self.ledger.is_some() => self.seals.push(whole.seal(written)),
            Commit::AtEnd => {}
            Commit::EachChunk => self.kept.add(written, 1),
        }
        self.confirmed.set(&self.tally);
    }

    /// The failure for a chunk whose rows the server did not take, or for a lost connection.
    fn failure(&self, fault: CopyFault) -> Box<LaneFailure> {
        let is_taken = is_taken(&fault.error);
        if is_emptied(&fault.error) {
            let seq = fault.chunk.map_or(0, |(chunk, _)| chunk.seq);
            return Box::new(LaneFailure::of_crash(seq));
        }
        let error = refused_copy(&self.connection, fault.error);
        let Some((chunk, meant)) = fault.chunk else {
            return Box::new(LaneFailure { is_taken, ..LaneFailure::of(0, error) });
        };
        let by = match (fault.mode, meant) {
            (Mode::Binary, _) => RefusedBy::BinaryCopy,
            (Mode::Text, Mode::Binary) => RefusedBy::LeftOverText,
            (Mode::Text, Mode::Text) => RefusedBy::WholeText,
        };
        let seq = chunk.seq;
        let refused = (error.kind() == ErrorKind::Server).then_some(RefusedChunk { chunk, by });
        Box::new(LaneFailure { refused, is_taken, ..LaneFailure::of(seq, error) })
    }

    /// Ends a COPY that all chunks share, writes the chunks that are to be committed together to
    /// the ledger, and has deferred constraints checked: here rather than in the commit, as lanes
    /// may then wait for each other and must be watched.
    async fn complete(&mut self) -> Result<(), CopyFault> {
        let chunks = self.tally.chunks + u64::from(self.ending.is_some());
        let is_all = self.commit == Commit::EachChunk || self.stays_open;
        if is_all || (chunks == 0 && self.after.is_none()) {
            return self.end().await;
        }
        if let Some(copy) = self.open.take() {
            self.end().await?;
            let written = copy.finish().await?;
            self.tally.rows_written += written;
            self.confirmed.set(&self.tally);
            spread(&mut self.seals, written);
        }
        let ending = self.ending.take();
        let last = ending.as_ref().and_then(|ending| ending.whole.as_ref());
        // As many as were sent, or the load fails before it commits.
        let last = last.map(|whole| whole.seal(whole.rows_in));
        let mut sql = "set constraints all immediate".to_owned();
        if let (Some(job), false) = (self.ledger, self.seals.is_empty() && last.is_none()) {
            let seals: Vec<Seal> = self.seals.iter().copied().chain(last).collect();
            sql = format!("{}; {sql}", job.seal_sql(&seals, self.is_bound));
        }
        if let Some(after) = &self.after {
            sql = format!("{sql}; {after}");
        }
        let chunk = self.chunk.clone();
        let (closed, checked) = tokio::join!(
            biased;
            self.close(ending),
            self.connection.client.batch_execute(&sql)
        );
        self.note(closed?);
        checked.map_err(|error| CopyFault { error, mode: Mode::Text, chunk })
    }
}

impl CompleteChunk {
    fn seal(&self, rows_written: u64) -> Seal {
        let Some((chunk, _)) = &self.chunk else { return Seal::default() };
        Seal {
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

/// Writes the chunk's row, commits, and begins the next transaction.
async fn commit_chunk(client: &Client, seal_sql: &str, whole: &CompleteChunk) -> Result<(), CopyFault> {
    let sql = format!("{seal_sql}; commit; {BEGIN}");
    let sealed = client.batch_execute(&sql).await;
    let mode = whole.chunk.as_ref().map_or(Mode::Text, |(_, mode)| *mode);
    sealed.map_err(|error| CopyFault { error, mode, chunk: whole.chunk.clone() })
}

/// Gives each chunk of one COPY its share of the rows that this has written: all of its own, as
/// long as there are any.
fn spread(seals: &mut [Seal], mut written: u64) {
    for seal in seals {
        seal.rows_written = seal.rows_in.min(written);
        written -= seal.rows_written;
    }
}

impl OpenCopy {
    async fn feed(&mut self, bytes: Bytes) -> Result<(), CopyFault> {
        let fed = self.sink.feed(bytes).await;
        fed.map_err(|error| self.fault(error))
    }

    /// Ends the COPY; the rows that the server wrote.
    async fn finish(mut self) -> Result<u64, CopyFault> {
        if self.mode == Mode::Binary {
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

    /// That of sessions to which the same was sent, and each of which wrote its share.
    pub(super) fn of_shares(tallies: &[LaneTally]) -> LaneTally {
        let all = |of: fn(&LaneTally) -> u64| tallies.iter().map(of);
        LaneTally {
            rows_in: all(|it| it.rows_in).max().unwrap_or_default(),
            rows_written: all(|it| it.rows_written).sum(),
            rows_as_text: all(|it| it.rows_as_text).max().unwrap_or_default(),
            rows_rejected: all(|it| it.rows_rejected).max().unwrap_or_default(),
            // What one has not confirmed is not done.
            chunks: all(|it| it.chunks).min().unwrap_or_default(),
        }
    }

    /// Compares what was sent with what the server wrote.
    pub(super) fn reconcile(&self, may_drop_rows: bool) -> Result<()> {
        let (sent, written) = (self.rows_in - self.rows_rejected, self.rows_written);
        if written == sent || (may_drop_rows && written < sent) {
            return Ok(());
        }
        let message = format!("sent {sent} rows but the server wrote {written}");
        Err(Error::new(ErrorKind::Bug, message))
    }
}

/// The server's refusal in its own words alone, or what became of the connection.
pub(crate) fn refused_copy(connection: &Connection, error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(_) if is_refused(&error) => keys_are_down(),
        Some(said) if !ends_session(said.code()) => {
            let message = ServerRefusal::new(said).to_string();
            server_error(message)(error)
        }
        _ => connection.explain("could not copy", error),
    }
}

/// Another load has dropped the table's keys. Which one, whoever has another session can tell.
fn keys_are_down() -> Error {
    Error::new(
        ErrorKind::Ledger,
        "another load has dropped the table's keys, and they are not back",
    )
    .with_sqlstate(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
}

/// Whether that is why a load has failed.
pub(crate) fn is_keys_down(error: &Error) -> bool {
    error.kind() == ErrorKind::Ledger
        && error.sqlstate() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
}

//! Writes batches to the server. Each batch is one transaction, and the stream's new position is
//! its last statement.
//!
//! A small batch is sent at once, with its rows as parameters. A larger batch is staged first. A
//! batch is kept until its commit is known. After a lost session the ledger tells whether the batch
//! was committed. Events that the server refuses are found by halving the batch under savepoints of
//! the same transaction.

mod altered_tables;
mod counts;
mod direct;
mod one_statement;
mod pipeline;
mod refusals;
mod round;
mod row_errors;
mod session;
mod statements;
mod steps;

use tokio::runtime::Handle;

pub use counts::ApplyCounts;

use self::pipeline::BatchPipeline;
use self::session::WriterSession;
use super::batch::EventBatch;
use super::watch::ApplyWatch;
use crate::copy::is_row_error_code;
use crate::reading::name_lock_holder;
use crate::{Error, ErrorKind, Result};
use pgspate_replication::SourceNames;
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, AppliedStream, DeadLetter};
use pgspate_target::session::{ReconnectBackoff, WaitLimits};
use pgspate_target::{ServerRefusal, UnloggedExtent};

/// The writer's connection and limits.
#[derive(Debug, Clone)]
pub(crate) struct WriterSettings {
    pub(crate) dsn: Dsn,
    pub(crate) limits: WaitLimits,
    /// Sets what the meaning of a value's text depends on, as the router's encoders expect it. A
    /// later session would take over changed defaults otherwise.
    pub(crate) value_settings: String,
    /// How many events may be set aside in a run.
    pub(crate) dead_letters_max: u64,
    /// The inputs' names, for places in messages.
    pub(crate) inputs: SourceNames,
    /// Batches of at most this many rows are written without a stage.
    pub(crate) direct_rows: u64,
}

/// Applies batches in order, and knows the stream's position.
pub(crate) struct BatchWriter {
    settings: WriterSettings,
    runtime: Handle,
    session: Option<WriterSession>,
    stream: AppliedStream,
    /// The backend's pid of a lost session.
    lost_pid: Option<i32>,
    /// Counts of committed batches.
    pub(crate) counts: ApplyCounts,
    /// Whether the ledger knows that the stream writes to unlogged tables.
    pub(crate) has_noted_unlogged_writes: bool,
    /// Committed batches whose counts may be too low, as replies were lost.
    pub(crate) uncounted: u64,
    /// The work of the open transaction so far.
    uncommitted: UncommittedWork,
    pipeline: BatchPipeline,
}

/// Work that counts when the open transaction commits.
#[derive(Debug, Default)]
struct UncommittedWork {
    counts: ApplyCounts,
    dead_letters: Vec<DeadLetter>,
    /// Whether the counts may be too low, as replies were lost.
    may_lack_counts: bool,
    /// Batches that the open transaction contains and that are no longer in memory.
    spilled_batches: u64,
}

impl BatchWriter {
    /// Connects and takes the stream over. With `only_if_free`, fails if another session holds the
    /// stream, and otherwise holds the stream until the new session ends.
    pub(crate) async fn open(
        settings: WriterSettings,
        stream: &str,
        partition: &str,
        runtime: Handle,
        only_if_free: bool,
    ) -> Result<BatchWriter> {
        let session = WriterSession::open(&settings).await?;
        let client = &session.connection.client;
        if only_if_free {
            ledger::hold_stream(client, stream, partition).await?;
        }
        let stream = ledger::open_stream(client, stream, partition).await?;
        Ok(BatchWriter {
            settings,
            runtime,
            session: Some(session),
            stream,
            lost_pid: None,
            counts: ApplyCounts::default(),
            has_noted_unlogged_writes: false,
            uncounted: 0,
            uncommitted: UncommittedWork::default(),
            pipeline: BatchPipeline::default(),
        })
    }

    /// Returns the position up to which the stream is applied.
    pub(crate) fn mark(&self) -> &ledger::StreamPosition {
        &self.stream.mark
    }

    /// Applies a batch. Commits if a source transaction ends with the batch. Blocks.
    ///
    /// # Errors
    /// When the server refuses an event, with the event's place. When the server cannot be reached
    /// in time. When another process took the stream over. An uncommitted batch leaves nothing
    /// behind.
    fn apply(&mut self, batch: &mut EventBatch, watch: &ApplyWatch) -> Result<()> {
        let mut backoff = ReconnectBackoff::new(self.settings.limits.retry_for);
        let runtime = self.runtime.clone();
        let mut lost = None;
        loop {
            let was_committed = match &lost {
                Some(_) => runtime.block_on(self.was_committed(batch)),
                None => Ok(false),
            };
            let tried = match was_committed {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    if let Some(error) = lost.take()
                        && std::mem::take(&mut self.uncommitted).spilled_batches > 0
                    {
                        return Err(spilled_transaction_error(error));
                    }
                    match runtime.block_on(self.apply_once(batch, watch)) {
                        Ok(false) => match runtime.block_on(self.encode_again(batch)) {
                            Ok(()) => continue,
                            Err(error) => Err(error),
                        },
                        done => done.map(drop),
                    }
                }
                Err(error) => Err(error),
            };
            let Err(error) = tried else { return Ok(()) };
            runtime.block_on(self.roll_back_after(&error));
            let error = runtime.block_on(self.explain_stream_error(error));
            let error = runtime.block_on(self.name_lock_holder(batch, error));
            if !error.is_retryable() || !backoff.wait(|| watch.is_cancelled()) {
                self.uncommitted = UncommittedWork::default();
                return Err(error);
            }
            lost = Some(error);
        }
    }

    /// After a failure: checks whether the batch was committed and only the reply was lost.
    async fn was_committed(&mut self, batch: &EventBatch) -> Result<bool> {
        let pending = [&batch.end_position];
        self.reopen_session(&pending[..usize::from(batch.ends_transaction)]).await?;
        let was_committed = batch.ends_transaction && self.stream.mark == batch.end_position;
        if was_committed {
            self.note_commit(batch);
        }
        Ok(was_committed)
    }

    /// Opens a session if there is none. `pending`: the positions that the lost session may have
    /// committed.
    async fn reopen_session(&mut self, pending: &[&ledger::StreamPosition]) -> Result<()> {
        if self.session.is_none() {
            let session = WriterSession::open(&self.settings).await?;
            if let Some(pid) = self.lost_pid {
                session.connection.terminate_lost_backend(pid).await;
            }
            self.stream.reopen(&session.connection.client, pending).await?;
            ledger::check_stream_not_emptied(&session.connection.client, self.stream.name())
                .await?;
            self.session = Some(session);
            self.lost_pid = None;
        }
        Ok(())
    }

    /// Returns the session and the stream. Opens the session again if it was lost.
    async fn open_session(&mut self) -> Result<(&mut WriterSession, &AppliedStream)> {
        self.reopen_session(&[]).await?;
        Ok((self.session.as_mut().expect("just opened"), &self.stream))
    }

    /// Encodes a batch again whose tables were altered. Rolls back.
    async fn encode_again(&mut self, batch: &mut EventBatch) -> Result<()> {
        self.has_noted_unlogged_writes = false;
        if std::mem::take(&mut self.uncommitted).spilled_batches > 0 {
            return Err(altered_tables::altered_within_transaction_error());
        }
        let session = self.open_session().await?.0;
        session.roll_back().await?;
        session.may_use_parameters = true;
        altered_tables::encode_again(session, batch).await
    }

    /// Tries once to write the batch, and to commit it if a source transaction ends with it.
    /// Returns false if nothing is committed because a table was altered.
    async fn apply_once(&mut self, batch: &EventBatch, watch: &ApplyWatch) -> Result<bool> {
        if altered_tables::has_altered_tables(batch) {
            return Ok(false);
        }
        self.reopen_session(&[]).await?;
        if !self.has_noted_unlogged_writes
            && batch.tables.iter().any(|it| it.table.unlogged != UnloggedExtent::Nothing)
        {
            self.note_unlogged_writes(false).await?;
        }
        if self.write_directly(batch).await? {
            return Ok(true);
        }
        let session = self.session.as_mut().expect("just opened");
        let dead_letters_left =
            self.settings.dead_letters_max.saturating_sub(self.counts.dead_letters);
        let mut search = refusals::RefusalSearch {
            batch,
            inputs: &self.settings.inputs,
            dead_letters_max: self.settings.dead_letters_max,
            dead_letters_left: dead_letters_left
                .saturating_sub(self.uncommitted.dead_letters.len() as u64),
            dead_letters: Vec::new(),
            watch,
            tries: 0,
        };
        let is_open = self.uncommitted.spilled_batches > 0;
        let counts = match search.write_batch(session, is_open).await {
            // The alteration may be the reason for the refusal.
            Err(error) if !is_open && error.kind() == ErrorKind::Server => {
                session.roll_back().await?;
                return match altered_tables::find_altered(session, batch).await? {
                    true => Ok(false),
                    false => Err(error),
                };
            }
            written => written?,
        };
        if altered_tables::find_altered(session, batch).await? {
            return Ok(false);
        }
        self.uncommitted.dead_letters.append(&mut search.dead_letters);
        self.uncommitted.counts.add(&counts);
        if !batch.ends_transaction {
            session.clear_stages().await?;
            self.uncommitted.spilled_batches += 1;
            self.uncommitted.counts.add_batch(batch);
            return Ok(true);
        }
        if is_open {
            // Earlier batches of this transaction are not in memory, so their events cannot be
            // searched. Check deferred constraints now.
            let checked =
                session.run("set constraints all immediate", "check deferred constraints").await;
            checked.map_err(|error| self.settings.oversized_transaction_error(batch, error))?;
        }
        let client = &session.connection.client;
        self.stream.advance(client, &batch.end_position, &self.uncommitted.dead_letters).await?;
        self.stream.advance_partitions(client, &batch.partition_moves).await?;
        session.commit().await?;
        self.note_commit(batch);
        Ok(true)
    }

    /// Writes and commits a small batch that is a whole transaction, with its rows as parameters.
    /// Returns false, with nothing written, if the batch must be staged.
    async fn write_directly(&mut self, batch: &EventBatch) -> Result<bool> {
        let session = self.session.as_mut().expect("opened by the caller");
        let is_whole = self.uncommitted.spilled_batches == 0 && session.may_use_parameters;
        if !is_whole || !direct::can_write_directly(batch, self.settings.direct_rows) {
            return Ok(false);
        }
        let mut done = direct::DirectOutcome::default();
        // The counts stay incomplete until the replies arrive, also if the stall guard ends the
        // session.
        self.uncommitted.may_lack_counts =
            batch.encoded_tables.iter().any(|it| it.deletes + it.upserts > 0);
        let written = direct::write(session, batch, &self.stream, &mut done).await;
        // If only the reply to the commit was lost, these counts are right.
        (self.uncommitted.counts, self.uncommitted.may_lack_counts) =
            (done.counts, !done.is_complete);
        if written? {
            self.note_commit(batch);
            return Ok(true);
        }
        self.uncommitted = UncommittedWork::default();
        Ok(false)
    }

    /// Counts the batch after its commit.
    fn note_commit(&mut self, batch: &EventBatch) {
        let pending = std::mem::take(&mut self.uncommitted);
        self.counts.add(&pending.counts);
        self.uncounted += u64::from(pending.may_lack_counts);
        self.counts.dead_letters += pending.dead_letters.len() as u64;
        self.counts.add_batch(batch);
        self.counts.batches += u64::from(batch.events > 0 || pending.spilled_batches > 0);
        self.stream.mark = batch.end_position.clone();
        altered_tables::mark_widened_tables(batch);
    }

    /// Stops other processes from taking the stream while the session lives.
    pub(crate) async fn hold_stream(&mut self) -> Result<()> {
        let (session, stream) = self.open_session().await?;
        stream.hold(&session.connection.client).await
    }

    /// Sets the stream's position without applying events. Opens a session that was lost during the
    /// initial copy again, once.
    pub(crate) async fn move_stream_to(&mut self, mark: ledger::StreamPosition) -> Result<()> {
        let mut has_lost = false;
        loop {
            self.reopen_session(&[&mark][..usize::from(has_lost)]).await?;
            if has_lost && self.stream.mark == mark {
                // The position was committed, and only the reply was lost.
                return Ok(());
            }
            let Some(session) = &self.session else { continue };
            let advance = self.stream.advance(&session.connection.client, &mark, &[]);
            match advance.await {
                Ok(()) => {
                    self.stream.mark = mark;
                    return Ok(());
                }
                Err(error) if has_lost || !error.is_retryable() => return Err(error),
                Err(error) => {
                    has_lost = true;
                    self.roll_back_after(&error).await;
                }
            }
        }
    }

    /// Records the files of the stream in the ledger before they are read.
    pub(crate) async fn record_files(&mut self, files: &[String]) -> Result<()> {
        let (session, stream) = self.open_session().await?;
        ledger::record_stream_files(&session.connection.client, stream.name(), files).await
    }

    /// Adds the partitions' rows to the ledger before the partitions are read.
    pub(crate) async fn begin_partitions(&mut self, moves: &[ledger::PartitionMove]) -> Result<()> {
        if moves.is_empty() {
            return Ok(());
        }
        let (session, stream) = self.open_session().await?;
        session.begin().await?;
        // Fails if another process has the stream.
        stream.advance(&session.connection.client, &stream.mark, &[]).await?;
        stream.advance_partitions(&session.connection.client, moves).await?;
        session.commit().await
    }

    /// Runs statements without rows, in a transaction of their own. `task` completes "could not".
    pub(crate) async fn run(&mut self, sql: &str, task: &str) -> Result<()> {
        self.open_session().await?.0.run(sql, task).await
    }

    /// Returns the first value of a query.
    pub(crate) async fn query_value<T>(&mut self, sql: &str, task: &str) -> Result<T>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        self.open_session().await?.0.query_value(sql, task).await
    }

    /// Notes in the ledger that the stream will write to unlogged tables. `starts_over`: earlier
    /// writes are done again.
    pub(crate) async fn note_unlogged_writes(&mut self, starts_over: bool) -> Result<()> {
        let (session, stream) = self.open_session().await?;
        let (client, is_within) = (&session.connection.client, session.in_transaction);
        ledger::bind_stream(client, stream.name(), starts_over, is_within).await?;
        self.has_noted_unlogged_writes = true;
        Ok(())
    }

    /// Checks that no crash of the server has emptied the unlogged tables since they were written.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] when a crash has emptied them.
    pub(crate) async fn check_unlogged_kept(&mut self) -> Result<()> {
        let mut has_lost = false;
        loop {
            let (session, stream) = self.open_session().await?;
            match ledger::check_stream_not_emptied(&session.connection.client, stream.name()).await
            {
                Err(error) if error.is_retryable() && !has_lost => {
                    has_lost = true;
                    self.roll_back_after(&error).await;
                }
                checked => return checked,
            }
        }
    }

    /// After a failure: rolls back the transaction, or drops the session if that fails.
    async fn roll_back_after(&mut self, error: &Error) {
        // The transaction that is rolled back may contain the note about unlogged tables.
        self.has_noted_unlogged_writes = false;
        let Some(session) = &mut self.session else { return };
        if error.kind() == ErrorKind::Connect || session.roll_back().await.is_err() {
            self.drop_session();
        }
    }

    /// Drops the session, which may still be at work on the server.
    fn drop_session(&mut self) {
        self.lost_pid = self.session.take().map(|session| session.connection.backend_pid());
    }

    /// Returns the error, or the reason why the stream's position could not be changed.
    async fn explain_stream_error(&self, error: Error) -> Error {
        let Some(session) = &self.session else { return error };
        match error.kind() {
            ErrorKind::Ledger => self.stream.explain(&session.connection.client, error).await,
            _ => error,
        }
    }

    /// Adds which sessions lock the batch's tables to the error of a lock that was not granted in
    /// time.
    async fn name_lock_holder(&self, batch: &EventBatch, mut error: Error) -> Error {
        let Some(session) = &self.session else { return error };
        for facts in batch.written_tables() {
            let (client, limits) = (&session.connection.client, &self.settings.limits);
            error = name_lock_holder(client, facts.table.oid, limits, error).await;
        }
        error
    }

    /// Ends the session. Returns the counts.
    pub(crate) async fn close(mut self) -> ApplyCounts {
        if let Some(session) = self.session.take() {
            session.connection.close().await;
        }
        self.counts
    }
}

impl WriterSettings {
    /// Returns the error for a source transaction that spans batches and violates a deferred
    /// constraint.
    fn oversized_transaction_error(&self, batch: &EventBatch, error: Error) -> Error {
        if !is_row_refusal(&error) {
            return error;
        }
        let end = batch.log.changes().last().map(|it| self.inputs.place(it.event_place));
        Error::new(error.kind(), "could not apply the transaction of the source that ends here")
            .at(end.unwrap_or_default())
            .hint(
                "The transaction is larger than a batch, so the event at fault is unknown. \
                 Raise `--batch-rows` or `--batch-bytes`, so that pgspate can find the event.",
            )
            .because(error)
    }
}

/// Adds a hint: earlier batches of the transaction are lost with the session.
fn spilled_transaction_error(error: Error) -> Error {
    error.hint(
        "A source transaction was larger than a batch and is no longer in memory. Run the same \
         command again.",
    )
}

/// Checks whether the server refused the rows of an event, so that other events may succeed.
fn is_row_refusal(error: &Error) -> bool {
    if error.kind() == ErrorKind::Connect {
        return false;
    }
    // Input functions may raise any error, even an internal error. An error with a context line,
    // such as COPY's, is about a row. An internal error without a context is the server's own.
    let context = error.refusal().and_then(ServerRefusal::context).unwrap_or_default();
    let names_row = !context.is_empty();
    error.sqlstate().is_some_and(|code| is_row_error_code(code, names_row))
}

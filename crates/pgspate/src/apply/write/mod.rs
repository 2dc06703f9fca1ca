//! Batches to the server: each is one transaction with the stream's position as its last statement.
//!
//! A small one is sent as a whole, rows and all; a larger one is staged first. A batch is kept
//! until it is known to be committed. What a lost session may have committed is read back from the
//! ledger, never guessed. What the server refuses is looked for by halves, under savepoints of the
//! same transaction.

mod counts;
mod direct;
mod round;
mod session;
mod sift;
mod statements;

use tokio::runtime::Handle;

pub use counts::ApplyCounts;

use self::session::WriterSession;
use super::batch::EventBatch;
use super::watch::ApplyWatch;
use crate::copy::is_about_a_row;
use crate::{Error, ErrorKind, Result};
use pgspate_replication::SourceNames;
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, DeadLetter, Stream};
use pgspate_target::session::{Limits, Patience};
use pgspate_target::{ServerRefusal, Unlogged};

/// How the writer works.
#[derive(Debug, Clone)]
pub(crate) struct WriterSettings {
    pub(crate) dsn: Dsn,
    pub(crate) limits: Limits,
    /// So many events may be set aside.
    pub(crate) dead_letters_max: u64,
    /// The inputs' names, for places.
    pub(crate) inputs: SourceNames,
    /// Batches of up to so many rows need no stage.
    pub(crate) direct_rows: u64,
}

/// Applies batches in their order.
pub(crate) struct BatchWriter {
    settings: WriterSettings,
    runtime: Handle,
    session: Option<WriterSession>,
    stream: Stream,
    /// The server's process for a session that was lost.
    lost_pid: Option<i32>,
    /// What is committed.
    pub(crate) counts: ApplyCounts,
    /// It has written to unlogged tables, which the ledger knows.
    pub(crate) is_bound: bool,
    /// Batches that are committed, but may have done more than is counted, as answers were lost.
    pub(crate) uncounted: u64,
    /// What the open transaction has done so far.
    pending: UncommittedWork,
}

/// What becomes true with the next commit.
#[derive(Debug, Default)]
struct UncommittedWork {
    counts: ApplyCounts,
    letters: Vec<DeadLetter>,
    /// The counts may not be all, as answers were lost.
    lacks: bool,
    /// Batches that are in the open transaction and are kept by nobody.
    spilled: u64,
}

impl BatchWriter {
    /// Connects, and takes the stream over. `holds`: only if no session holds it, which this one
    /// does from then on.
    pub(crate) async fn open(
        settings: WriterSettings,
        stream: &str,
        partition: &str,
        runtime: Handle,
        holds: bool,
    ) -> Result<BatchWriter> {
        let session = WriterSession::open(&settings).await?;
        let client = &session.connection.client;
        if holds {
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
            is_bound: false,
            uncounted: 0,
            pending: UncommittedWork::default(),
        })
    }

    /// Up to where the stream is applied.
    pub(crate) fn mark(&self) -> &ledger::Mark {
        &self.stream.mark
    }

    /// Applies a batch, and commits it if a transaction of the source ends with it. Blocks.
    ///
    /// # Errors
    /// What the server refuses, with the event's place; a server that stays away; a stream that was
    /// taken over. What is not committed is not there then.
    pub(crate) fn apply(&mut self, batch: &EventBatch, watch: &ApplyWatch) -> Result<()> {
        let mut patience = Patience::new(self.settings.limits.retry_for);
        let runtime = self.runtime.clone();
        let mut lost = None;
        loop {
            let is_committed = match &lost {
                Some(_) => runtime.block_on(self.is_committed(batch)),
                None => Ok(false),
            };
            let tried = match is_committed {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    if let Some(error) = lost.take()
                        && std::mem::take(&mut self.pending).spilled > 0
                    {
                        return Err(is_gone(error));
                    }
                    runtime.block_on(self.attempt(batch, watch))
                }
                Err(error) => Err(error),
            };
            let Err(error) = tried else { return Ok(()) };
            runtime.block_on(self.roll_back_after(&error));
            let error = runtime.block_on(self.explain(error));
            if !error.is_retryable() || !patience.wait(|| watch.is_cancelled()) {
                self.pending = UncommittedWork::default();
                return Err(error);
            }
            lost = Some(error);
        }
    }

    /// After a failure: whether all was committed, and only the answer was lost.
    async fn is_committed(&mut self, batch: &EventBatch) -> Result<bool> {
        self.reopen(batch.commits.then_some(&batch.end)).await?;
        let is_committed = batch.commits && self.stream.mark == batch.end;
        if is_committed {
            self.note_commit(batch);
        }
        Ok(is_committed)
    }

    /// A session, if there is none. `pending`: what a lost one may have committed.
    async fn reopen(&mut self, pending: Option<&ledger::Mark>) -> Result<()> {
        if self.session.is_none() {
            let session = WriterSession::open(&self.settings).await?;
            if let Some(pid) = self.lost_pid {
                session.connection.end_lost_backend(pid).await;
            }
            self.stream.reopen(&session.connection.client, pending).await?;
            ledger::check_stream(&session.connection.client, self.stream.name()).await?;
            self.session = Some(session);
            self.lost_pid = None;
        }
        Ok(())
    }

    /// The session and the stream, which may have to be opened again.
    async fn opened(&mut self) -> Result<(&mut WriterSession, &Stream)> {
        self.reopen(None).await?;
        Ok((self.session.as_mut().expect("just opened"), &self.stream))
    }

    async fn attempt(&mut self, batch: &EventBatch, watch: &ApplyWatch) -> Result<()> {
        self.reopen(None).await?;
        if !self.is_bound && batch.tables.iter().any(|it| it.table.unlogged != Unlogged::No) {
            self.bind(false).await?;
        }
        let session = self.session.as_mut().expect("just opened");
        let is_whole = self.pending.spilled == 0 && session.takes_parameters;
        if is_whole && direct::takes(batch, self.settings.direct_rows) {
            let mut done = direct::DirectOutcome::default();
            // Until it is known, also where a silent session is given up.
            self.pending.lacks = batch.prepared.iter().any(|it| it.goes + it.comes > 0);
            let written = direct::write(session, batch, &self.stream, &mut done).await;
            // If only the answer to the commit is lost, all this was done.
            (self.pending.counts, self.pending.lacks) = (done.counts, !done.is_all);
            if written? {
                self.note_commit(batch);
                return Ok(());
            }
            self.pending = UncommittedWork::default();
        }
        let room = self.settings.dead_letters_max.saturating_sub(self.counts.dead_letters);
        let mut sifting = sift::BatchSift {
            batch,
            inputs: &self.settings.inputs,
            room: room.saturating_sub(self.pending.letters.len() as u64),
            letters: Vec::new(),
            watch,
            tries: 0,
        };
        let is_open = self.pending.spilled > 0;
        let counts = sifting.write(session, is_open).await?;
        self.pending.letters.append(&mut sifting.letters);
        self.pending.counts.add(&counts);
        if !batch.commits {
            session.clear_stages().await?;
            self.pending.spilled += 1;
            self.pending.counts.note(batch);
            return Ok(());
        }
        if is_open {
            // What came before this batch is not at hand any more, should it be refused.
            let checked =
                session.run("set constraints all immediate", "check deferred constraints").await;
            checked.map_err(|error| self.settings.cannot_look_back(batch, error))?;
        }
        let client = &session.connection.client;
        self.stream.advance(client, &batch.end, &self.pending.letters).await?;
        self.stream.advance_parts(client, &batch.parts).await?;
        session.commit().await?;
        self.note_commit(batch);
        Ok(())
    }

    fn note_commit(&mut self, batch: &EventBatch) {
        let pending = std::mem::take(&mut self.pending);
        self.counts.add(&pending.counts);
        self.uncounted += u64::from(pending.lacks);
        self.counts.dead_letters += pending.letters.len() as u64;
        self.counts.note(batch);
        self.counts.batches += u64::from(batch.events > 0);
        self.stream.mark = batch.end.clone();
    }

    /// Lets no other process begin this stream as long as the session lives.
    pub(crate) async fn hold(&mut self) -> Result<()> {
        let (session, stream) = self.opened().await?;
        stream.hold(&session.connection.client).await
    }

    /// Moves the stream without any event. A session that was lost while rows were copied is
    /// opened again, once.
    pub(crate) async fn move_to(&mut self, mark: ledger::Mark) -> Result<()> {
        let mut has_lost = false;
        loop {
            self.reopen(has_lost.then_some(&mark)).await?;
            if has_lost && self.stream.mark == mark {
                // Only the answer was lost.
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

    /// Gives parts of the stream their rows, before they are read.
    pub(crate) async fn begin_parts(&mut self, moves: &[ledger::PartMove]) -> Result<()> {
        if moves.is_empty() {
            return Ok(());
        }
        let (session, stream) = self.opened().await?;
        session.begin().await?;
        // Only who has the stream may do so.
        stream.advance(&session.connection.client, &stream.mark, &[]).await?;
        stream.advance_parts(&session.connection.client, moves).await?;
        session.commit().await
    }

    /// Runs statements without rows, in a transaction of their own. `what` completes "could not".
    pub(crate) async fn run(&mut self, sql: &str, what: &str) -> Result<()> {
        self.opened().await?.0.run(sql, what).await
    }

    /// Asks for one value.
    pub(crate) async fn ask<T>(&mut self, sql: &str, what: &str) -> Result<T>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        self.opened().await?.0.ask(sql, what).await
    }

    /// Notes that the stream writes to unlogged tables, before it does. `renews`: what it has
    /// written before is to be written again.
    pub(crate) async fn bind(&mut self, renews: bool) -> Result<()> {
        let (session, stream) = self.opened().await?;
        let (client, is_within) = (&session.connection.client, session.in_transaction);
        ledger::bind_stream(client, stream.name(), renews, is_within).await?;
        self.is_bound = true;
        Ok(())
    }

    /// That no crash of the server has emptied unlogged tables since they were written to.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when one has.
    pub(crate) async fn check_kept(&mut self) -> Result<()> {
        let mut has_lost = false;
        loop {
            let (session, stream) = self.opened().await?;
            match ledger::check_stream(&session.connection.client, stream.name()).await {
                Err(error) if error.is_retryable() && !has_lost => {
                    has_lost = true;
                    self.roll_back_after(&error).await;
                }
                checked => return checked,
            }
        }
    }

    /// After a failure: a session that is as new, or none.
    async fn roll_back_after(&mut self, error: &Error) {
        // It may have been noted in the transaction that is rolled back.
        self.is_bound = false;
        let Some(session) = &mut self.session else { return };
        if error.kind() == ErrorKind::Connect || session.roll_back().await.is_err() {
            self.lost_pid = Some(session.connection.backend_pid());
            self.session = None;
        }
    }

    /// The error, or what is behind a stream that could not be moved on.
    async fn explain(&self, error: Error) -> Error {
        let Some(session) = &self.session else { return error };
        match error.kind() {
            ErrorKind::Ledger => self.stream.explain(&session.connection.client, error).await,
            _ => error,
        }
    }

    /// Ends the session.
    pub(crate) async fn close(mut self) -> ApplyCounts {
        if let Some(session) = self.session.take() {
            session.connection.close().await;
        }
        self.counts
    }
}

impl WriterSettings {
    /// The error for a transaction larger than a batch that deferred constraints refuse.
    fn cannot_look_back(&self, batch: &EventBatch, error: Error) -> Error {
        if !is_of_data(&error) {
            return error;
        }
        let end = batch.log.changes().last().map(|it| self.inputs.place(it.event_place));
        Error::new(error.kind(), "could not apply the transaction of the source that ends here")
            .at(end.unwrap_or_default())
            .hint(
                "Which of its events is refused cannot be told, as it is larger than a batch. With \
                 a larger `--batch-rows` or `--batch-bytes` it is looked for.",
            )
            .because(error)
    }
}

fn is_gone(error: Error) -> Error {
    error.hint(
        "A transaction of the source was larger than a batch, and is not at hand any more: run the \
         same command again.",
    )
}

/// Whether the server refused what an event says, and might take others.
fn is_of_data(error: &Error) -> bool {
    if error.kind() == ErrorKind::Connect {
        return false;
    }
    // Input functions may raise anything, also an internal error. What COPY says of the row tells
    // that from work of the server's own.
    let context = error.refusal().and_then(ServerRefusal::context).unwrap_or_default();
    let names_row = !context.is_empty();
    error.sqlstate().is_some_and(|code| is_about_a_row(code, names_row))
}

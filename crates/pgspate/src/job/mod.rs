//! A run's job: the session that holds the job's lock, and the job's state in the ledger.
//!
//! A run that writes rows opens its job here and holds the job's lock. After a lost connection the
//! run connects again and reads from the ledger which chunks are written. This module knows neither
//! the source nor the way rows are written. Of the table it knows only the name.

mod own_session;

use tokio_postgres::Client;

pub(crate) use own_session::{OwnSession, RetryWhileAway};

use crate::Result;
use crate::copy::CopyProgress;
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{
    self, ChunkRecord, JobId, JobIdentity, JobLookup, LedgerState, OpenJob, OpenOutcome,
    RecordedChange,
};

/// A run's session, and its job if the run keeps a ledger.
pub(crate) struct JobSession {
    pub(crate) own: OwnSession,
    /// The identity by which the ledger recognises the run; `None` without a ledger.
    pub(crate) identity: Option<JobIdentity>,
    pub(crate) known: LedgerState,
    pub(crate) opened: Option<OpenJob>,
    /// What earlier runs had written when the job was opened.
    pub(crate) sums_before: ChunkRecord,
    /// Warnings for the final report.
    pub(crate) warnings: Vec<String>,
}

impl RetryWhileAway for JobSession {
    fn own(&self) -> &OwnSession {
        &self.own
    }

    fn restore_session(&mut self) -> Result<()> {
        self.reconnect()?;
        if let Some(key) = self.lock_key() {
            self.ask(async |client: &Client| ledger::end_lost_lanes(client, key).await)?;
        }
        self.reopen()
    }
}

impl JobSession {
    /// Creates the session of a run whose job was not looked up yet.
    pub(crate) fn new(own: OwnSession) -> JobSession {
        JobSession {
            own,
            identity: None,
            known: LedgerState::default(),
            opened: None,
            sums_before: ChunkRecord::default(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.own.connection
    }

    pub(crate) fn client(&self) -> &Client {
        &self.own.connection.client
    }

    /// Runs `question` on the run's own session. Blocks.
    pub(crate) fn ask<T>(&self, question: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.own.ask(question)
    }

    /// Runs `question` on the run's own session, again while the server is away. Gives up after the
    /// time for which lanes would retry.
    pub(crate) fn ask_until_answered<T>(
        &mut self,
        progress: &CopyProgress,
        question: impl AsyncFn(&Client) -> Result<T>,
    ) -> Result<T> {
        self.retry_while_away(progress, |job| job.ask(&question))
    }

    /// Returns the id of the open job.
    pub(crate) fn id(&self) -> Option<JobId> {
        self.opened.as_ref().map(|opened| opened.job)
    }

    /// Returns the key of the job's advisory lock, if the run keeps a ledger.
    pub(crate) fn lock_key(&self) -> Option<i64> {
        self.identity.as_ref().map(JobIdentity::lock_key)
    }

    /// Returns whether the job's rows are lost when the server crashes, as for an unlogged table.
    pub(crate) fn is_bound(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.is_bound)
    }

    /// Completes the run's identity if that needs the ledger's secret. Creates the ledger if it is
    /// missing.
    pub(crate) fn complete_identity(&mut self, progress: &CopyProgress) -> Result<()> {
        if self.identity.as_ref().is_none_or(JobIdentity::has_complete_key) {
            return Ok(());
        }
        let secret = self.retry_while_away(progress, |job| {
            job.reconnect()?;
            job.ask(async |client: &Client| {
                ledger::ensure_ledger(client).await?;
                ledger::read_url_key(client).await
            })
        })?;
        if let Some(identity) = &mut self.identity {
            identity.hash_hidden_urls(&secret);
        }
        Ok(())
    }

    /// Opens the job for a table, if the run keeps a ledger. Returns false if another run has
    /// finished the job in the meantime.
    pub(crate) fn open(
        &mut self,
        table_oid: u32,
        restart: bool,
        created: bool,
        progress: &CopyProgress,
    ) -> Result<bool> {
        let Some(identity) = &mut self.identity else { return Ok(true) };
        identity.table_oid = table_oid;
        let (identity, known) = (identity.clone(), self.known.clone());
        let begun = self.ask_until_answered(progress, async |client: &Client| {
            ledger::open_job(client, &identity, &known, restart, created).await
        })?;
        match begun {
            OpenOutcome::Finished(record) => self.known.found = JobLookup::Finished(record),
            OpenOutcome::Opened(opened) => self.begin(opened),
        }
        Ok(self.opened.is_some())
    }

    /// Continues with a job that is open.
    pub(crate) fn begin(&mut self, opened: OpenJob) {
        self.sums_before = opened.done.totals();
        self.opened = Some(opened);
    }

    /// Connects again if the connection was lost, and reads which chunks are written now.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.reconnect()?;
        let (Some(opened), Some(identity)) = (&self.opened, &self.identity) else { return Ok(()) };
        let (job, is_bound) = (opened.job, opened.is_bound);
        let (is_emptied, done) = self.ask(async |client: &Client| {
            let is_emptied = is_bound && ledger::restart_emptied_job(client, job, identity).await?;
            Ok((is_emptied, ledger::reread_written_chunks(client, job).await?))
        })?;
        if is_emptied {
            self.sums_before = ChunkRecord::default();
            let table = &identity.table;
            self.warnings.push(format!(
                "the server crashed and emptied unlogged table {table}; the rows of this load were \
                 loaded again"
            ));
        }
        if let Some(opened) = &mut self.opened {
            opened.done = done;
        }
        Ok(())
    }

    /// Connects again if the connection was lost, and takes the job's lock again.
    pub(crate) fn reconnect(&mut self) -> Result<()> {
        if !self.own.reconnect()? {
            return Ok(());
        }
        let identity = self.identity.as_ref().filter(|identity| identity.has_complete_key());
        let Some(key) = identity.map(JobIdentity::lock_key) else { return Ok(()) };
        self.ask(async |client: &Client| {
            ledger::hold_job_lock(client, key).await?;
            ledger::end_lost_lanes(client, key).await
        })
    }

    /// Returns what the job has in the table and the ledger. Returns `None` if the server cannot be
    /// asked; nothing may be deleted then.
    pub(crate) fn written_sums(&mut self) -> Option<ChunkRecord> {
        if self.reopen().is_err() {
            self.opened = None;
        }
        Some(self.opened.as_ref()?.done.totals())
    }

    /// Deletes a job that has written nothing. Returns a hint about changes of an earlier run that
    /// are not restored.
    pub(crate) fn delete_unused(&mut self) -> Option<String> {
        let job = self.opened.take()?.job;
        // An error is ignored: the job is also deleted when the load is run again.
        let forgot = self.ask(async |client: &Client| ledger::forget_unused_job(client, job).await);
        let left = forgot.unwrap_or_default();
        let names: Vec<_> = left.iter().map(RecordedChange::name).collect();
        (!left.is_empty()).then(|| {
            format!(
                "An earlier load dropped or changed {} and has not restored it. `pgspate status \
                 --restore {}` restores it, and so does the next load into the table.",
                names.join(", "),
                job.0
            )
        })
    }

    /// Returns the job's number, and the number of rows that earlier runs of the job have written.
    pub(crate) fn earlier_rows(&self) -> (Option<i64>, u64) {
        match (&self.known.found, &self.opened) {
            (JobLookup::Finished(record), _) => {
                (Some(record.job), record.rows_written.unsigned_abs())
            }
            // The job found by `prepare` may have been changed by another run since.
            (_, Some(opened)) => (Some(opened.job.0), self.sums_before.rows_written),
            (_, None) => (None, 0),
        }
    }

    /// Returns the number of rows that a finished job has rejected.
    pub(crate) fn earlier_rejects(&self) -> u64 {
        match &self.known.found {
            JobLookup::Finished(record) => record.rows_rejected.unsigned_abs(),
            _ => 0,
        }
    }
}

//! A run's job: the control session, which holds the job's lock, and the job's state in the ledger.
//!
//! A run that keeps a ledger opens its job here and holds the job's lock. After a lost connection
//! the run connects again and reads from the ledger which chunks are written. This module does not
//! depend on the source, on the way rows are written, or on the table's columns.

mod control_session;

use tokio_postgres::Client;

pub(crate) use control_session::{ControlSession, RetryAfterConnectionLoss};

use crate::Result;
use crate::copy::CopyProgress;
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{
    self, ChunkRecord, JobId, JobIdentity, JobLookup, LedgerState, OpenJob, OpenOptions,
    OpenOutcome, RecordedChange,
};

/// A run's control session, and its job if the run keeps a ledger.
pub(crate) struct JobSession {
    pub(crate) control_session: ControlSession,
    /// The identity by which the ledger recognises the run; `None` without a ledger.
    pub(crate) identity: Option<JobIdentity>,
    /// What the ledger knew about the run's job before this run opened it.
    pub(crate) ledger_state: LedgerState,
    /// The job, once this run has opened it.
    pub(crate) opened: Option<OpenJob>,
    /// Numbers of rows that earlier runs had read, written and rejected when the job was opened.
    pub(crate) totals_before: ChunkRecord,
    /// Warnings for the final report.
    pub(crate) warnings: Vec<String>,
}

impl RetryAfterConnectionLoss for JobSession {
    fn control_session(&self) -> &ControlSession {
        &self.control_session
    }

    fn restore_session(&mut self) -> Result<()> {
        self.reconnect()?;
        if let Some(key) = self.lock_key() {
            self.with_client(async |client: &Client| ledger::end_lost_lanes(client, key).await)?;
        }
        self.reopen()
    }
}

impl JobSession {
    /// Creates the state of a run whose job was not looked up yet.
    pub(crate) fn new(control_session: ControlSession) -> JobSession {
        JobSession {
            control_session,
            identity: None,
            ledger_state: LedgerState::default(),
            opened: None,
            totals_before: ChunkRecord::default(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.control_session.connection
    }

    pub(crate) fn client(&self) -> &Client {
        &self.control_session.connection.client
    }

    /// Runs `work` with the control session's client. Blocks.
    pub(crate) fn with_client<T>(&self, work: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.control_session.with_client(work)
    }

    /// Runs `work` with the control session's client, and again after a retryable error, such as a
    /// lost connection. Gives up after the time limit that lanes have for reconnecting. Blocks.
    pub(crate) fn with_client_and_retry<T>(
        &mut self,
        progress: &CopyProgress,
        work: impl AsyncFn(&Client) -> Result<T>,
    ) -> Result<T> {
        self.retry_after_connection_loss(progress, |job| job.with_client(&work))
    }

    /// Returns the id of the open job.
    pub(crate) fn id(&self) -> Option<JobId> {
        self.opened.as_ref().map(|opened| opened.job)
    }

    /// Returns the key of the job's advisory lock, if the run keeps a ledger.
    pub(crate) fn lock_key(&self) -> Option<i64> {
        self.identity.as_ref().map(JobIdentity::lock_key)
    }

    /// Returns whether a server crash removes the job's rows, as in an unlogged table.
    pub(crate) fn crash_removes_rows(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.crash_removes_rows)
    }

    /// Completes the run's identity, if its URLs must be hashed with a secret of the ledger.
    /// Creates the ledger if it is missing.
    pub(crate) fn complete_identity(&mut self, progress: &CopyProgress) -> Result<()> {
        if self.identity.as_ref().is_none_or(JobIdentity::has_complete_key) {
            return Ok(());
        }
        let secret = self.retry_after_connection_loss(progress, |job| {
            job.reconnect()?;
            job.with_client(async |client: &Client| {
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
    /// started or finished a job with the same files in the meantime. Then the run must be prepared
    /// again.
    pub(crate) fn open(
        &mut self,
        table_oid: u32,
        options: OpenOptions,
        progress: &CopyProgress,
    ) -> Result<bool> {
        let Some(identity) = &mut self.identity else { return Ok(true) };
        identity.table_oid = table_oid;
        let (identity, known) = (identity.clone(), self.ledger_state.clone());
        let outcome = self.with_client_and_retry(progress, async |client: &Client| {
            ledger::open_job(client, &identity, &known, options).await
        })?;
        if let OpenOutcome::Opened(opened) = outcome {
            self.begin(opened);
        }
        Ok(self.opened.is_some())
    }

    /// Makes `opened` this run's job.
    pub(crate) fn begin(&mut self, opened: OpenJob) {
        self.totals_before = opened.done.totals();
        self.opened = Some(opened);
    }

    /// Connects again if the connection was lost, and reads from the ledger which chunks are
    /// written now.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.reconnect()?;
        let (Some(opened), Some(identity)) = (&self.opened, &self.identity) else { return Ok(()) };
        let (job, crash_removes_rows) = (opened.job, opened.crash_removes_rows);
        let (is_emptied, done) = self.with_client(async |client: &Client| {
            let is_emptied =
                crash_removes_rows && ledger::restart_emptied_job(client, job, identity).await?;
            Ok((is_emptied, ledger::reread_written_chunks(client, job).await?))
        })?;
        if is_emptied {
            self.totals_before = ChunkRecord::default();
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
        if !self.control_session.reconnect()? {
            return Ok(());
        }
        let identity = self.identity.as_ref().filter(|identity| identity.has_complete_key());
        let Some(key) = identity.map(JobIdentity::lock_key) else { return Ok(()) };
        self.with_client(async |client: &Client| {
            ledger::hold_job_lock(client, key).await?;
            ledger::end_lost_lanes(client, key).await
        })
    }

    /// Reads how many rows the job has written and rejected. Returns `None` if the run has no job,
    /// or if the server cannot be reached. If the server cannot be reached, also forgets the job,
    /// so that the caller deletes nothing.
    pub(crate) fn written_totals(&mut self) -> Option<ChunkRecord> {
        if self.reopen().is_err() {
            self.opened = None;
        }
        Some(self.opened.as_ref()?.done.totals())
    }

    /// Deletes the job, which has written nothing, and its shadow table. A job with changes to the
    /// table that are not restored stays in the ledger. Returns a hint about what stays.
    pub(crate) fn delete_unused(&mut self) -> Option<String> {
        let job = self.opened.take()?.job;
        let result =
            self.with_client(async |client: &Client| ledger::forget_unused_job(client, job).await);
        let unrestored = match result {
            Ok(unrestored) => unrestored,
            Err(error) => {
                let (why, job) = (error.messages().join(": "), job.0);
                return Some(format!(
                    "Job {job} and its shadow table, if it has one, could not be removed: {why}. \
                     `pgspate status {job} --forget` removes both."
                ));
            }
        };
        let names: Vec<_> = unrestored.iter().map(RecordedChange::name).collect();
        (!unrestored.is_empty()).then(|| {
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
        match (&self.ledger_state.found, &self.opened) {
            (JobLookup::Finished(finished), _) => {
                (finished.jobs.last().map(|record| record.job), finished.rows_written)
            }
            // Another run may have changed the job after `prepare` looked it up, so the open job
            // counts.
            (_, Some(opened)) => (Some(opened.job.0), self.totals_before.rows_written),
            (_, None) => (None, 0),
        }
    }

    /// Returns the number of rows that earlier jobs have rejected, if these have loaded everything;
    /// 0 otherwise.
    pub(crate) fn earlier_rejects(&self) -> u64 {
        match &self.ledger_state.found {
            JobLookup::Finished(finished) => {
                finished.jobs.iter().map(|job| job.rows_rejected.unsigned_abs()).sum()
            }
            _ => 0,
        }
    }

    /// Returns which jobs have rejected rows, if these have loaded everything.
    pub(crate) fn earlier_rejecting_jobs(&self) -> Vec<i64> {
        match &self.ledger_state.found {
            JobLookup::Finished(finished) => {
                let rejecting = finished.jobs.iter().filter(|job| job.rows_rejected > 0);
                rejecting.map(|job| job.job).collect()
            }
            _ => Vec::new(),
        }
    }
}

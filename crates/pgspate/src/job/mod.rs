//! A run's job: the session that holds it, and what the ledger has of it.
//!
//! A run that writes rows opens its job here, and holds the job's lock. After a lost connection it
//! connects anew, and the ledger says what is written by then. This room knows neither what is
//! read nor how it is written, and nothing of the table but its name.

mod own;

use tokio_postgres::Client;

pub(crate) use own::{OwnSession, RetryWhileAway};

use crate::Result;
use crate::copy::CopyProgress;
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{self, Begun, Change, Found, Identity, JobId, Known, Opened, Seal};

/// A run's session and its job, if it keeps a ledger.
pub(crate) struct JobSession {
    pub(crate) own: OwnSession,
    /// What the ledger knows the run by, if there is to be one.
    pub(crate) identity: Option<Identity>,
    pub(crate) known: Known,
    pub(crate) opened: Option<Opened>,
    /// What earlier runs had written when the job was opened.
    pub(crate) at_first: Seal,
    /// What is to be told in the end.
    pub(crate) warnings: Vec<String>,
}

impl RetryWhileAway for JobSession {
    fn own(&self) -> &OwnSession {
        &self.own
    }

    fn come_back(&mut self) -> Result<()> {
        self.reconnect()?;
        if let Some(key) = self.lock_key() {
            self.ask(async |client: &Client| ledger::outlast_lost_lanes(client, key).await)?;
        }
        self.reopen()
    }
}

impl JobSession {
    /// Of a run whose job nobody has looked for yet.
    pub(crate) fn new(own: OwnSession) -> JobSession {
        JobSession {
            own,
            identity: None,
            known: Known::default(),
            opened: None,
            at_first: Seal::default(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.own.connection
    }

    pub(crate) fn client(&self) -> &Client {
        &self.own.connection.client
    }

    /// Asks the server over the run's own session. Blocks.
    pub(crate) fn ask<T>(&self, question: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.own.ask(question)
    }

    /// The same, and again while the server is away, as long as lanes would try.
    pub(crate) fn persist<T>(
        &mut self,
        progress: &CopyProgress,
        question: impl AsyncFn(&Client) -> Result<T>,
    ) -> Result<T> {
        self.again(progress, |job| job.ask(&question))
    }

    /// The job, once it is open.
    pub(crate) fn id(&self) -> Option<JobId> {
        self.opened.as_ref().map(|opened| opened.job)
    }

    /// The lock of the job, if the run keeps a ledger.
    pub(crate) fn lock_key(&self) -> Option<i64> {
        self.identity.as_ref().map(Identity::lock_key)
    }

    /// Whether the job's rows are lost when the server crashes.
    pub(crate) fn is_bound(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.is_bound)
    }

    /// Finds out what the run is known by where that takes a key of the ledger, which is made for
    /// that if need be.
    pub(crate) fn settle_identity(&mut self, progress: &CopyProgress) -> Result<()> {
        if self.identity.as_ref().is_none_or(Identity::is_settled) {
            return Ok(());
        }
        let secret = self.again(progress, |job| {
            job.reconnect()?;
            job.ask(async |client: &Client| {
                ledger::ensure(client).await?;
                ledger::secret(client).await
            })
        })?;
        if let Some(identity) = &mut self.identity {
            identity.settle(&secret);
        }
        Ok(())
    }

    /// Opens the job for a table, if the run keeps a ledger. False when another run has done it
    /// meanwhile.
    pub(crate) fn open(
        &mut self,
        table_oid: u32,
        (restart, made): (bool, bool),
        progress: &CopyProgress,
    ) -> Result<bool> {
        let Some(identity) = &mut self.identity else { return Ok(true) };
        identity.table_oid = table_oid;
        let (identity, known) = (identity.clone(), self.known.clone());
        let begun = self.persist(progress, async |client: &Client| {
            ledger::open(client, &identity, &known, restart, made).await
        })?;
        match begun {
            Begun::Finished(record) => self.known.found = Found::Finished(record),
            Begun::Opened(opened) => self.begin(opened),
        }
        Ok(self.opened.is_some())
    }

    /// Begins with a job that is open.
    pub(crate) fn begin(&mut self, opened: Opened) {
        self.at_first = opened.done.sums();
        self.opened = Some(opened);
    }

    /// Connects anew where the connection was lost meanwhile, and reads what is written by now.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.reconnect()?;
        let (Some(opened), Some(identity)) = (&self.opened, &self.identity) else { return Ok(()) };
        let (job, is_bound) = (opened.job, opened.is_bound);
        let (is_emptied, done) = self.ask(async |client: &Client| {
            let is_emptied = is_bound && ledger::begin_over(client, job, identity).await?;
            Ok((is_emptied, ledger::reread_done(client, job).await?))
        })?;
        if is_emptied {
            self.at_first = Seal::default();
            let table = &identity.table;
            self.warnings.push(format!(
                "the server crashed and emptied {table}, which is unlogged: its rows of this load \
                 were loaded again"
            ));
        }
        if let Some(opened) = &mut self.opened {
            opened.done = done;
        }
        Ok(())
    }

    /// Connects anew where the connection was lost meanwhile, and holds the job again.
    pub(crate) fn reconnect(&mut self) -> Result<()> {
        if !self.own.reconnect()? {
            return Ok(());
        }
        let identity = self.identity.as_ref().filter(|identity| identity.is_settled());
        let Some(key) = identity.map(Identity::lock_key) else { return Ok(()) };
        self.ask(async |client: &Client| {
            ledger::hold(client, key).await?;
            ledger::outlast_lost_lanes(client, key).await
        })
    }

    /// What of the job is in the table and the ledger now; `None` where nothing can tell. Then
    /// nothing may be forgotten either.
    pub(crate) fn kept(&mut self) -> Option<Seal> {
        if self.reopen().is_err() {
            self.opened = None;
        }
        Some(self.opened.as_ref()?.done.sums())
    }

    /// Forgets a job that has left nothing behind. What an earlier run has changed on the table
    /// and this one has not put back, for the end of its error.
    pub(crate) fn forget(&mut self) -> Option<String> {
        let job = self.opened.take()?.job;
        // It would be forgotten when the load is run again, too.
        let forgot = self.ask(async |client: &Client| ledger::forget_unused(client, job).await);
        let left = forgot.unwrap_or_default();
        let names: Vec<_> = left.iter().map(Change::name).collect();
        (!left.is_empty()).then(|| {
            format!(
                "An earlier load has dropped or changed this, and it is not back: {}. `pgspate \
                 status --restore {}` puts it back, and so does the next load into the table.",
                names.join(", "),
                job.0
            )
        })
    }

    /// The number of the job, and the rows that earlier runs of it have written.
    pub(crate) fn before(&self) -> (Option<i64>, u64) {
        match (&self.known.found, &self.opened) {
            (Found::Finished(record), _) => (Some(record.job), record.rows_written.unsigned_abs()),
            // What was known before may have been another run's since.
            (_, Some(opened)) => (Some(opened.job.0), self.at_first.rows_written),
            (_, None) => (None, 0),
        }
    }

    /// Rows that were set aside by a job that is finished, and is not gone on with.
    pub(crate) fn rejected_before(&self) -> u64 {
        match &self.known.found {
            Found::Finished(record) => record.rows_rejected.unsigned_abs(),
            _ => 0,
        }
    }
}

//! A sync that completes a job of a distributed engine such as Spark: tasks have staged the rows on
//! the server already.
//!
//! The rows are copied from the job's stage to the session's stage. The transaction that writes the
//! differences also marks the job as complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tokio_postgres::Client;

use super::{PreparedSync, SyncReport};
use crate::copy::LaneSession;
use crate::numbers::counted;
use crate::stage::STAGE_NAME;
use crate::{Error, ErrorKind, Result, care};
use pgspate_target::ledger::{self, BegunFleetJob};
use pgspate_target::{ConcurrentChange, server_error};

/// The staged rows of a job, in place of a source's rows.
pub(crate) struct FleetJobRows {
    /// The job.
    pub(crate) begun: BegunFleetJob,
    /// The oid of the job's table.
    pub(crate) table_oid: u32,
    /// The name in SQL of the job's stage.
    pub(crate) stage: String,
    /// The columns of the rows, unquoted.
    pub(crate) columns: Vec<String>,
    /// The columns of the rows in SQL, and the query for the rows; `None` if there are no rows.
    pub(crate) query: Option<(String, String)>,
    /// The number of rows.
    pub(crate) rows: u64,
    /// The numbers of the attempts whose rejected rows stay; `None` if no row may be rejected.
    pub(crate) attempts: Option<Vec<i64>>,
    /// The process id of the backend that writes, for the caller. The backend may outlive a lost
    /// connection, and keep the lock on the job's row.
    pub(crate) writing_backend: Arc<AtomicI32>,
    /// Returns the job's report as the ledger keeps it.
    pub(crate) report: WriteJobReport,
}

/// Writes the report of a job as the ledger keeps it.
type WriteJobReport = Box<dyn Fn(&SyncReport) -> Result<String> + Send + Sync>;

impl FleetJobRows {
    /// Copies the rows to the session's stage, which is empty.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if rows are missing, because the server has crashed. The error of an
    /// altered table if the session's stage has other types.
    pub(super) async fn stage(&self, session: &mut LaneSession, table: &str) -> Result<()> {
        let failed = server_error("could not read the job's stage".to_owned());
        let client = &session.connection.client;
        self.writing_backend.store(session.connection.backend_pid(), Ordering::Relaxed);
        self.check_types(client, STAGE_NAME, table).await?;
        let staged = match &self.query {
            Some((columns, query)) => {
                let sql = format!("insert into {STAGE_NAME} ({columns}) {query}");
                client.execute(sql.as_str(), &[]).await.map_err(failed)?
            }
            None => 0,
        };
        if staged != self.rows {
            return Err(missing_rows_error(self.begun.job, staged, self.rows));
        }
        session.rows_written = staged;
        Ok(())
    }

    /// Checks that the columns of this relation have the types of the job's rows. Otherwise the
    /// server would cast the values. `table` is the job's table, for the error.
    async fn check_types(&self, client: &Client, relation: &str, table: &str) -> Result<()> {
        if self.query.is_none()
            || ledger::has_stage_types(client, &self.stage, &self.columns, relation).await?
        {
            return Ok(());
        }
        Err(altered_error(&format!("job {}", self.begun.job), table))
    }

    /// Locks the job's row, in the transaction that compares and writes. Checks the types of the
    /// table, which the transaction has locked.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the job was completed or begun again meanwhile. The error of an
    /// altered table if a column has another type than the job's rows.
    pub(super) async fn lock(&self, client: &Client, table: &str) -> Result<()> {
        self.check_types(client, table, table).await?;
        let BegunFleetJob { job, fence, .. } = self.begun;
        match ledger::lock_fleet_job(client, job).await? {
            Some(locked) if locked.fence == fence && locked.report.is_none() => Ok(()),
            _ => {
                let message = format!("job {job} was completed, aborted or begun again meanwhile");
                Err(Error::new(ErrorKind::Ledger, message))
            }
        }
    }

    /// Advances the table's sequences, and marks the job as complete.
    pub(super) async fn finish(
        &self,
        client: &Client,
        table: &str,
        report: &mut SyncReport,
    ) -> Result<()> {
        if report.inserted + report.updated > 0 {
            let warnings = care::advance_sequences(client, table, &self.columns).await?;
            report.warnings.extend(warnings);
        }
        let rejected = match &self.attempts {
            Some(attempts) => {
                ledger::keep_rejects(client, self.begun.job, attempts.clone()).await?
            }
            None => 0,
        };
        let rows_in = report.rows_in + rejected;
        let counts = [rows_in, report.inserted + report.updated, rejected].map(u64::cast_signed);
        let text = (self.report)(report)?;
        ledger::complete_fleet_job(client, self.begun.job, counts, &text).await
    }
}

impl PreparedSync {
    /// Sets the job's rows, which are written in place of the source's.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if another table has taken the name of the job's table.
    pub(crate) fn with_fleet_job(mut self, rows: FleetJobRows) -> Result<PreparedSync> {
        if self.staging.table.oid != rows.table_oid {
            let message = format!("another table has taken the name of {}", self.table());
            return Err(Error::new(ErrorKind::Ledger, message).hint("Complete the job again."));
        }
        self.staging.stage = self.staging.stage.for_source(None);
        Ok(PreparedSync { fleet_job: Some(rows), ..self })
    }

    /// Returns a function that gives an error another hint if there is a job, which cannot have all
    /// options of a sync.
    pub(super) fn hint_for_job(&self, hint: &'static str) -> impl FnOnce(Error) -> Error {
        let is_job = self.fleet_job.is_some();
        move |error| if is_job { error.hint(hint) } else { error }
    }

    /// Copies the job's rows to the stage, if there is a job.
    pub(super) async fn stage_fleet_job(&self, sessions: &mut [LaneSession]) -> Result<()> {
        match (&self.fleet_job, sessions) {
            (Some(rows), [session]) => rows.stage(session, self.table()).await,
            (Some(_), _) => Err(Error::new(ErrorKind::Bug, "several sessions stage a job's rows")),
            (None, _) => Ok(()),
        }
    }
}

/// Returns the error of a table of which a column has another type than the job's rows.
pub(crate) fn altered_error(job: &str, table: &str) -> Error {
    Error::new(ErrorKind::Plan, format!("the rows of {job} do not fit {table}"))
        .because(ConcurrentChange::Altered.to_error())
        .hint("Begin the job again, and write all parts.")
}

/// Returns the error of a stage that has lost rows.
pub(crate) fn missing_rows_error(job: i64, staged: u64, expected: u64) -> Error {
    let message = format!("the stage of job {job} has {staged} of {}", counted(expected, "row"));
    Error::new(ErrorKind::Ledger, message).hint(
        "The server crashed after rows were written, and a crash empties the stage. The table is \
         unchanged. Begin the job again, and write all parts.",
    )
}

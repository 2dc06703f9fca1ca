//! An attempt of a task to write a part of a job: one transaction that ends with a seal.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::connection;
use super::{FleetReceipt, FleetTicket};
use crate::copy::{
    self, AttemptRejects, COMMIT_FOR_OTHERS, CopyEnd, CopyJob, Destination, EarlySession,
    LaneSession, ReadySession,
};
use crate::format::EncodeMode;
use crate::plan::{self, RowPlan};
use crate::reading::{InputOrigin, LoadWatch, ReadingOptions, StageCopy, Survey, hint_value};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, NewPart, SealedPart};
use pgspate_target::session::{ReconnectBackoff, WaitLimits};
use pgspate_target::{TargetTable, TypedQuery, pin_transaction_sql, server_error, users_path_sql};

/// Writes the rows of a part: into the job's stage, or into the table if each task commits. Blocks.
///
/// Nothing is written unless a receipt is returned, or the receipt was lost. Staged rows whose
/// receipt was lost are left out of the table. If each task commits, another attempt of the part
/// returns the lost receipt.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the job was begun again, completed or aborted. The errors of
/// [`load::prepare`](crate::load::prepare) if the rows do not fit the table.
pub fn write_part(
    ticket: &FleetTicket,
    part: i64,
    options: &ReadingOptions,
    limits: WaitLimits,
    dsn: Dsn,
    runtime: &Handle,
    watch: &Arc<LoadWatch>,
) -> Result<FleetReceipt> {
    if ticket.is_complete {
        let message = format!("{} is complete", ticket.title());
        return Err(Error::new(ErrorKind::Ledger, message)
            .hint("Write nothing, and complete the job without receipts for its report."));
    }
    let dsn = dsn.with_stall_timeout(limits.stall_timeout);
    let attempt = Attempt { ticket, part, dsn: &dsn, limits, runtime, watch };
    match attempt.write(options) {
        // Another attempt may have committed rows with the same keys while this attempt waited.
        Err(error) if ticket.commits_parts() && error.sqlstate().is_some() => {
            attempt.other_receipt(error)
        }
        Err(error) if error.sqlstate().is_some() => Err(attempt.name_end_of_job(error)),
        written => written,
    }
}

/// An attempt, and where and how long it may work.
struct Attempt<'a> {
    ticket: &'a FleetTicket,
    part: i64,
    dsn: &'a Dsn,
    limits: WaitLimits,
    runtime: &'a Handle,
    watch: &'a Arc<LoadWatch>,
}

/// The rows of an attempt, in an open transaction.
struct CopiedRows {
    session: LaneSession,
    /// The names of the written columns.
    columns: Vec<String>,
    /// The condition that the written columns have the types that their values are encoded for.
    has_types_sql: String,
    /// The table's oid.
    table_oid: u32,
}

impl CopiedRows {
    fn rows(&self) -> i64 {
        self.session.rows_written.cast_signed()
    }
}

/// The result of sealing an attempt.
enum Seal {
    /// The attempt is sealed, as this transaction, and can be committed.
    Sealed(i64),
    /// Another attempt of the part has committed its rows.
    Late(SealedPart),
}

impl Attempt<'_> {
    fn write(&self, options: &ReadingOptions) -> Result<FleetReceipt> {
        let Attempt { ticket, dsn, limits, runtime, watch, .. } = *self;
        if let InputOrigin::Batches(batches) = &options.origin
            && batches.is_stream()
        {
            // The program may need long for its rows. Meanwhile no connection is open.
            batches.read_ahead(u64::from(ticket.options.buffer) << 20)?;
        }
        let connection = connection::connect(ticket, dsn, limits, runtime, watch)?;
        if ticket.commits_parts()
            && let Some(done) = runtime.block_on(self.find_part(&connection.client))?
        {
            return Ok(self.receipt(&done));
        }
        let table = &ticket.table;
        let survey = Survey::take_in(connection, options, table, limits, dsn.clone(), runtime)?;
        let copied = self.copy_rows(survey)?;
        let (connection, rows) = (&copied.session.connection, copied.rows());
        let snapshot = watch.copy.snapshot();
        let sent = snapshot.rows.saturating_sub(snapshot.rejected).cast_signed();
        let rows_kept_out = (sent - rows).max(0);
        let receipt = match runtime.block_on(self.seal(&copied))? {
            Seal::Sealed(xid) => {
                FleetReceipt { job: ticket.job, part: self.part, xid, rows, rows_kept_out }
            }
            Seal::Late(done) => return Ok(self.receipt(&done)),
        };
        let commit = if ticket.commits_parts() { COMMIT_FOR_OTHERS } else { "commit" };
        let committed = runtime.block_on(connection.client.batch_execute(commit));
        match committed.map_err(|error| connection.explain("could not commit", error)) {
            Ok(()) => Ok(receipt),
            Err(error) if error.is_retryable() => self.look_up(receipt, error),
            Err(error) => Err(error),
        }
    }

    /// Copies the rows.
    fn copy_rows(&self, survey: Survey) -> Result<CopiedRows> {
        let Attempt { ticket, dsn, limits, runtime, watch, .. } = *self;
        let Survey { control_session, reading, session, table, rows: request, .. } = survey;
        let Some(table) = table else { return Err(ticket.dropped_error()) };
        if table.oid != ticket.table_oid {
            // Another job may have exchanged the table. The ledger knows the new one.
            let client = &control_session.connection.client;
            let now = runtime.block_on(ledger::fleet_job_table(client, ticket.job))?;
            if now != Some(table.oid) {
                return Err(ticket.dropped_error());
            }
        }
        let mut plan = RowPlan::make(&table, &session, &reading.facts(), &request)?;
        let is_visible = ticket.commits_parts();
        let one_statement = is_visible && plan::one_statement_reason(&table, false).is_some();
        if one_statement {
            plan.mode = EncodeMode::Text;
        }
        let rejects_max = ticket.options.max_rejects;
        if one_statement && rejects_max.is_some() {
            return Err(ticket.not_rejecting_error());
        }
        watch.start_over(reading.stored_bytes());
        let version = session.server_version;
        let make_encoder = reading.encoder(&plan, &table, version, request.ignore_unknown)?;
        let stage = &ticket.destination;
        let relation = ticket.destination_name(&table.name);
        let (reading, plan, session, table) = (&reading, &plan, &session, &table);
        let copy = StageCopy { dsn, limits, reading, plan, session, table, stage, relation };
        let destination =
            Destination::OpenTransaction { before: "select".to_owned(), is_partial: false };
        let job = CopyJob {
            one_statement,
            may_skip_rows: is_visible && plan::may_skip_rows(table),
            ..copy.job(make_encoder, destination)
        };
        // The connection that has read the table writes the rows, too.
        let connection = control_session.connection;
        let cutter = reading.cutter(plan, watch, 1);
        let explain = |error| self.explain_failure(table, plan, error);
        let copied_by = |session| CopiedRows {
            session,
            columns: plan.column_names(),
            has_types_sql: ticket.has_types_sql(&plan.binary_columns()),
            table_oid: table.oid,
        };
        if let Some(most) = rejects_max {
            let rejects = AttemptRejects { job: ticket.job, rows_max: most };
            let progress = &watch.copy;
            let copied = copy::run_rejecting(&job, connection, cutter, rejects, progress, runtime);
            return copied.map(copied_by).map_err(explain);
        }
        let ready = runtime.block_on(ReadySession::of_connection(connection, &job.setup))?;
        let job = CopyJob { early_session: EarlySession::from_open(ready, runtime), ..job };
        match copy::run(&job, cutter, &watch.copy, runtime).map_err(explain)? {
            CopyEnd::Done(_, mut sessions) => match (sessions.pop(), sessions.is_empty()) {
                (Some(session), true) => Ok(copied_by(session)),
                _ => Err(Error::new(ErrorKind::Bug, "the session with the rows was closed")),
            },
            CopyEnd::LanesConflict => {
                Err(Error::new(ErrorKind::Bug, "a single session waits for itself"))
            }
            CopyEnd::Interrupted(error) | CopyEnd::NotRoutable(error) => Err(explain(error)),
        }
    }

    /// Seals the attempt in its open transaction.
    async fn seal(&self, copied: &CopiedRows) -> Result<Seal> {
        let CopiedRows { session, columns, has_types_sql, table_oid } = copied;
        let (ticket, client) = (self.ticket, &session.connection.client);
        if ticket.commits_parts() {
            if let Some(done) = self.find_part(client).await? {
                return Ok(Seal::Late(done));
            }
            // The rows of this transaction lock the table, so no load can drop keys from here on.
            let failed = || server_error("could not look for dropped keys".to_owned());
            client.batch_execute(&pin_transaction_sql()).await.map_err(failed())?;
            ledger::check_no_dropped_keys(client, *table_oid).await?;
            let named = "select to_regclass($1)::oid is not distinct from $2";
            let row = client.fetch_one(named, &[&ticket.table, table_oid]).await;
            if !row.map_err(failed())?.get::<_, bool>(0) {
                return Err(ticket.dropped_error());
            }
            // Deferred triggers run under the user's search path.
            client.batch_execute(&users_path_sql(true)).await.map_err(failed())?;
        }
        let (begun, is_visible) = (ticket.begun(), ticket.commits_parts());
        let part = NewPart { part: self.part, columns, has_types_sql, rows: copied.rows() };
        if let Some(xid) = ledger::seal_part(client, &begun, part, is_visible).await? {
            return Ok(Seal::Sealed(xid));
        }
        let failed = server_error("could not look up the types of the columns".to_owned());
        let row =
            client.fetch_one(&format!("select {has_types_sql}"), &[]).await.map_err(failed)?;
        Err(if !row.get::<_, bool>(0) {
            ticket.altered_error()
        } else if is_visible && ledger::is_fleet_job_emptied(client, begun.job).await? {
            ticket.emptied_error()
        } else {
            ticket.fenced_error()
        })
    }

    /// Returns the attempt of the part that has committed its rows, if one has.
    async fn find_part(&self, client: &Client) -> Result<Option<SealedPart>> {
        ledger::find_part(client, &self.ticket.begun(), self.part).await
    }

    fn receipt(&self, part: &SealedPart) -> FleetReceipt {
        let SealedPart { part, xid, rows, .. } = *part;
        FleetReceipt { job: self.ticket.job, part, xid, rows, rows_kept_out: 0 }
    }

    /// Asks the ledger whether the attempt is sealed, after the answer to its commit was lost.
    fn look_up(&self, receipt: FleetReceipt, lost: Error) -> Result<FleetReceipt> {
        let attempt = [receipt.job, receipt.part, receipt.xid];
        let mut backoff = ReconnectBackoff::new(self.limits.retry_for);
        while backoff.wait(|| self.watch.copy.is_cancelled()) {
            let found = self.runtime.block_on(async {
                let connection = self.dsn.connect("pgspate fleet").await?;
                ledger::is_part_sealed(&connection.client, attempt).await
            });
            match found {
                Ok(Some(true)) => return Ok(receipt),
                Ok(Some(false)) => return Err(lost),
                Ok(None) => {}
                Err(later) if later.is_retryable() => {}
                Err(later) => return Err(later),
            }
        }
        Err(lost)
    }

    /// Returns the receipt of another attempt of the part that has committed its rows while this
    /// attempt failed with `error`.
    ///
    /// # Errors
    /// `error`, if there is no such attempt.
    fn other_receipt(&self, error: Error) -> Result<FleetReceipt> {
        let found = self.runtime.block_on(async {
            let connection = self.dsn.connect("pgspate fleet").await?;
            self.find_part(&connection.client).await
        });
        match found {
            Ok(Some(done)) => Ok(self.receipt(&done)),
            Ok(None) | Err(_) => Err(error),
        }
    }

    /// Returns the error of a job that has ended or was begun again, in place of what the server
    /// says of the stage, which is dropped then. Returns `error` if the job is open.
    fn name_end_of_job(&self, error: Error) -> Error {
        let is_open = self.runtime.block_on(async {
            let connection = self.dsn.connect("pgspate fleet").await?;
            ledger::is_fleet_job_open(&connection.client, &self.ticket.begun()).await
        });
        match is_open {
            Ok(false) => self.ticket.fenced_error().because(error),
            Ok(true) | Err(_) => error,
        }
    }

    fn explain_failure(&self, table: &TargetTable, plan: &RowPlan, error: Error) -> Error {
        let kind = error.kind();
        let title = self.ticket.title();
        let message =
            format!("could not write part {} of {title} for {}", self.part, table.sql_name);
        Error::new(kind, message).because(hint_value(error, plan))
    }
}

//! Jobs of engines with a driver, such as Spark and Ray: the driver begins a job, tasks write parts
//! of it, and the driver completes it. The rows become visible at once.
//!
//! A task may be tried again, or several times at once. Each attempt writes into the job's stage in
//! a transaction of its own, and its receipt names that transaction. The driver passes the
//! receipts of the attempts that count. Rows of all other attempts are left out.

mod part;

use std::collections::{BTreeMap, HashMap};

pub use part::write_part;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio_postgres::Client;

use crate::copy::COMMIT_DURABLY;
use crate::fleet::check_name;
use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, BegunFleetJob, JobId, LockedFleetJob, NewFleetJob, SealedPart};
use pgspate_target::session::{ReconnectBackoff, WaitLimits};
use pgspate_target::{
    TargetTable, begin_pinned_sql, pin_transaction_sql, quote_ident, server_error, suggest_table,
    users_path_sql,
};

/// What tasks need to write parts of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetTicket {
    /// The job's number in the ledger.
    pub job: i64,
    /// The number of the driver's run. Attempts of earlier runs are refused.
    pub fence: i64,
    /// The job's name, if it has one.
    pub name: Option<String>,
    /// The table's name in SQL.
    pub table: String,
    /// The table's oid.
    pub table_oid: u32,
    /// Whether an earlier run of the driver has completed the job.
    pub is_complete: bool,
    /// What the user should know: other jobs of the table that are not complete.
    pub warnings: Vec<String>,
}

/// What an attempt has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReceipt {
    /// The job's number.
    pub job: i64,
    /// The part.
    pub part: i64,
    /// The number of the attempt's transaction.
    pub xid: i64,
    /// Rows written.
    pub rows: i64,
}

/// What a completed job has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetJobReport {
    /// The job's number.
    pub job: i64,
    /// The table's name in SQL.
    pub table: String,
    /// Rows of all parts.
    pub rows_in: i64,
    /// Rows written to the table. A trigger may have left out some.
    pub rows_written: i64,
    /// The number of parts.
    pub parts: usize,
    /// Sealed attempts whose rows were left out.
    pub losers: usize,
}

/// The result of [`abort`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AbortOutcome {
    /// Nothing is left of the job.
    Aborted,
    /// The job is complete, so nothing was done.
    IsComplete,
    /// The driver has begun the job again, or it was forgotten. Nothing was done.
    IsAnother,
}

impl FleetTicket {
    fn begun(&self) -> BegunFleetJob {
        BegunFleetJob { job: self.job, fence: self.fence, is_complete: self.is_complete }
    }

    /// Returns the job in words.
    fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("job {} \"{name}\"", self.job),
            None => format!("job {}", self.job),
        }
    }

    /// Returns the error of a ticket that is no longer valid.
    fn fenced_error(&self) -> Error {
        let message = format!("{} was begun again, completed or aborted", self.title());
        Error::new(ErrorKind::Ledger, message)
            .hint("Nothing of this attempt is written. Only the driver's latest run counts.")
    }
}

/// Begins a job that appends rows to a table. If an earlier run of the driver has begun a job of
/// this name, begins that job again, and its attempts no longer count. Blocks.
///
/// # Errors
/// [`ErrorKind::Plan`] if the table does not exist or cannot be written this way. The errors of
/// [`ledger::begin_fleet_job`].
pub fn begin(
    table: &str,
    name: Option<&str>,
    dsn: &Dsn,
    limits: WaitLimits,
    runtime: &Handle,
) -> Result<FleetTicket> {
    name.map_or(Ok(()), |name| check_name("job", name))?;
    let dsn = dsn.with_stall_timeout(limits.stall_timeout);
    runtime.block_on(async {
        let connection = dsn.connect("pgspate fleet").await?;
        let client = &connection.client;
        let target = read_table(client, table).await?;
        let new = NewFleetJob { name, table_oid: target.oid, table: &target.sql_name };
        let begun = ledger::begin_fleet_job(client, new).await?;
        let warnings = ledger::abandoned_fleet_jobs(client, target.oid, begun.job).await?;
        Ok(FleetTicket {
            job: begun.job,
            fence: begun.fence,
            name: name.map(str::to_owned),
            table: target.sql_name,
            table_oid: target.oid,
            is_complete: begun.is_complete,
            warnings,
        })
    })
}

async fn read_table(client: &Client, table: &str) -> Result<TargetTable> {
    let failed = || server_error("could not look up the table".to_owned());
    client.batch_execute(&begin_pinned_sql()).await.map_err(failed())?;
    let found = TargetTable::read(client, table).await;
    client.batch_execute("rollback").await.map_err(failed())?;
    let Some(target) = found? else {
        let error = Error::new(ErrorKind::Plan, format!("table {table} does not exist"))
            .hint("Create the table first.");
        return Err(suggest_table(client, table, error).await);
    };
    target.check_is_user_schema()?;
    let reason = match (target.kind, target.commits_across_nodes) {
        ('r' | 'p', false) => return Ok(target),
        ('r' | 'p', true) => "its rows may be on several servers",
        _ => "it is not a table",
    };
    let message = format!("{} cannot be written by a job with a driver: {reason}", target.sql_name);
    Err(Error::new(ErrorKind::Plan, message).hint("Use `load` or `sync` in each task."))
}

/// Completes a job: moves the rows of these attempts from the stage into the table, in one
/// transaction. A job that is complete already returns the report of its completion. Blocks.
///
/// # Errors
/// [`ErrorKind::Usage`] if the receipts do not belong together. [`ErrorKind::Ledger`] if a receipt
/// is not known, if rows are missing after a server crash, or if the job was begun again. After an
/// error the table is unchanged, and the call can be repeated.
pub fn complete(
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
    dsn: &Dsn,
    limits: WaitLimits,
    runtime: &Handle,
) -> Result<FleetJobReport> {
    let dsn = dsn.with_stall_timeout(limits.stall_timeout);
    let mut backoff = ReconnectBackoff::new(limits.retry_for);
    loop {
        match runtime.block_on(complete_once(ticket, receipts, &dsn)) {
            // If the answer to the commit was lost, the next try finds the report.
            Err(error) if error.is_retryable() && backoff.wait(|| false) => {}
            result => return result,
        }
    }
}

async fn complete_once(
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
    dsn: &Dsn,
) -> Result<FleetJobReport> {
    let connection = dsn.connect("pgspate fleet").await?;
    let client = &connection.client;
    let failed = || server_error(format!("could not complete {}", ticket.title()));
    client.batch_execute(&begin_pinned_sql()).await.map_err(failed())?;
    let moved = move_rows(client, ticket, receipts).await;
    let end = if moved.is_ok() { COMMIT_DURABLY } else { "rollback" };
    let ended = client.batch_execute(end).await;
    let report = moved?;
    ended.map_err(|error| connection.explain("could not complete the job", error))?;
    // Ignored: `pgspate status` shows a stage that is left.
    let _ = ledger::drop_stage(client, &ticket.begun()).await;
    Ok(report)
}

/// Moves the rows of the receipts in the open transaction, and marks the job as complete.
async fn move_rows(
    client: &Client,
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
) -> Result<FleetJobReport> {
    let locked = ledger::lock_fleet_job(client, ticket.job).await?;
    let Some(LockedFleetJob { fence, report, table }) = locked else {
        return Err(ticket.fenced_error());
    };
    if let Some(report) = report {
        let bug = |error| Error::new(ErrorKind::Bug, "could not read the report").because(error);
        return serde_json::from_str(&report).map_err(bug);
    }
    if fence != ticket.fence {
        return Err(ticket.fenced_error());
    }
    let Some(table) = table else {
        let message = format!("{} was dropped after {} began", ticket.table, ticket.title());
        return Err(Error::new(ErrorKind::Ledger, message)
            .hint("Abort the job, create the table and begin again."));
    };
    let sealed = ledger::read_parts(client, ticket.job).await?;
    let winners = find_winners(ticket, receipts, &sealed)?;
    ledger::check_no_dropped_keys(client, ticket.table_oid).await?;
    let rows_in = winners.iter().map(|it| it.rows).sum();
    let mut by_columns: BTreeMap<&[String], Vec<&SealedPart>> = BTreeMap::new();
    for part in winners.iter().filter(|it| it.rows > 0) {
        by_columns.entry(&part.columns).or_default().push(part);
    }
    let stage = ledger::stage_name(ticket.job, ticket.fence);
    let mut rows_written = 0;
    for (columns, parts) in by_columns {
        rows_written += move_parts(client, ticket, &table, &stage, columns, &parts).await?;
    }
    let losers = sealed.len() - winners.len();
    let parts = winners.len();
    let report = FleetJobReport { job: ticket.job, table, rows_in, rows_written, parts, losers };
    let text = serde_json::to_string(&report)
        .map_err(|error| Error::new(ErrorKind::Bug, "could not write the report").because(error))?;
    ledger::complete_fleet_job(client, ticket.job, [rows_in, rows_written], &text).await?;
    Ok(report)
}

/// Returns the sealed attempts of the receipts.
fn find_winners<'a>(
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
    sealed: &'a [SealedPart],
) -> Result<Vec<&'a SealedPart>> {
    let known: HashMap<i64, &SealedPart> = sealed.iter().map(|it| (it.xid, it)).collect();
    let mut winners: BTreeMap<i64, &SealedPart> = BTreeMap::new();
    for receipt in receipts {
        let found = known.get(&receipt.xid).filter(|it| {
            receipt.job == ticket.job && it.part == receipt.part && it.rows == receipt.rows
        });
        let Some(found) = found else {
            let part = receipt.part;
            let message = format!("the receipt of part {part} is not of {}", ticket.title());
            return Err(Error::new(ErrorKind::Ledger, message).hint(
                "The attempt belongs to an earlier run of the driver, or the server crashed after \
                 it. Begin the job again, and write all parts.",
            ));
        };
        let other = winners.insert(receipt.part, found);
        if other.is_some_and(|other| other.xid != receipt.xid) {
            let message = format!("there are receipts of two attempts of part {}", receipt.part);
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("Hand over one receipt for each part, or number the parts differently."));
        }
    }
    Ok(winners.into_values().collect())
}

/// Moves the rows of attempts that wrote the same columns. Returns the number of written rows.
async fn move_parts(
    client: &Client,
    ticket: &FleetTicket,
    table: &str,
    stage: &str,
    columns: &[String],
    parts: &[&SealedPart],
) -> Result<i64> {
    let failed = || server_error(format!("could not move the rows of {}", ticket.title()));
    let expected: i64 = parts.iter().map(|it| it.rows).sum();
    // Rows know the last 32 bits of their transaction's number.
    let xids: Vec<String> = parts.iter().map(|it| (it.xid & 0xffff_ffff).to_string()).collect();
    let of_parts = format!(
        "from only {stage} as stage where stage.xmin operator(pg_catalog.=) \
         any ('{{{}}}'::pg_catalog.xid[])",
        xids.join(",")
    );
    let count = format!("select pg_catalog.count(*) {of_parts}");
    let staged: i64 = client.query_one(&count, &[]).await.map_err(failed())?.get(0);
    if staged != expected {
        let message = format!(
            "the stage of {} has {staged} of {}",
            ticket.title(),
            counted(expected.unsigned_abs(), "row")
        );
        return Err(Error::new(ErrorKind::Ledger, message).hint(
            "The server crashed after rows were written, and a crash empties the stage. The table \
             is unchanged. Begin the job again, and write all parts.",
        ));
    }
    let names: Vec<_> = columns.iter().map(|name| quote_ident(name)).collect();
    let names = names.join(", ");
    let from: Vec<_> = columns.iter().map(|name| format!("stage.{}", quote_ident(name))).collect();
    let insert = format!(
        "insert into {table} ({names}) overriding system value select {} {of_parts}",
        from.join(", ")
    );
    // Triggers and defaults of the user run under the user's search path.
    client.batch_execute(&users_path_sql(true)).await.map_err(failed())?;
    let written = client.execute(insert.as_str(), &[]).await.map_err(failed())?;
    client.batch_execute(&pin_transaction_sql()).await.map_err(failed())?;
    Ok(written.cast_signed())
}

/// Aborts a job: nothing is left of it. Does nothing if the job is complete. Blocks.
///
/// # Errors
/// [`ErrorKind::Server`] if the stage cannot be dropped. Then `pgspate status` shows the job.
pub fn abort(
    ticket: &FleetTicket,
    dsn: &Dsn,
    limits: WaitLimits,
    runtime: &Handle,
) -> Result<AbortOutcome> {
    let dsn = dsn.with_stall_timeout(limits.stall_timeout);
    runtime.block_on(async {
        let connection = dsn.connect("pgspate fleet").await?;
        let client = &connection.client;
        if ledger::fence_off(client, &ticket.begun()).await? {
            ledger::forget_job(client, ticket.job).await?;
            return Ok(AbortOutcome::Aborted);
        }
        Ok(match ledger::is_job_finished(client, JobId(ticket.job)).await? {
            true => AbortOutcome::IsComplete,
            false => AbortOutcome::IsAnother,
        })
    })
}

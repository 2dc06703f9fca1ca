//! Completes a job: makes the rows of the attempts that count visible, and records the report.
//!
//! Rows and report are one transaction, which holds the lock on the job's row. So a job is
//! completed once, and no attempt is sealed meanwhile.

use std::collections::{BTreeMap, HashMap};

use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::{FleetJobReport, FleetMode, FleetReceipt, FleetTicket, merge};
use crate::care::JobShadow;
use crate::copy::COMMIT_DURABLY;
use crate::sync::SyncOptions;
use crate::sync::fleet_job::missing_rows_error;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::{self, JobId, LockedFleetJob, SealedPart};
use pgspate_target::session::{ReconnectBackoff, WaitLimits};
use pgspate_target::{begin_pinned_sql, quote_ident, server_error, users_path_sql};

/// Completes a job: writes the rows of these attempts to the table, in one transaction. If each
/// task commits its rows, checks that no part is missing. A job that is complete already returns
/// the report of its completion. `sync` has the options of a job of [`FleetMode::Sync`]. Blocks.
///
/// # Errors
/// [`ErrorKind::Usage`] if the receipts do not belong together. [`ErrorKind::Ledger`] if a receipt
/// is not known, if rows are missing after a server crash, or if the job was begun again. The
/// errors of a sync. After an error no row of the table has changed, and the call can be repeated.
pub fn complete(
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
    sync: Option<SyncOptions>,
    dsn: &Dsn,
    limits: WaitLimits,
    runtime: &Handle,
) -> Result<FleetJobReport> {
    let dsn = dsn.with_stall_timeout(limits.stall_timeout);
    let mut backoff = ReconnectBackoff::new(limits.retry_for);
    let syncs = ticket.options.mode == FleetMode::Sync;
    let sync = sync.unwrap_or_default();
    loop {
        let completed = match syncs && !ticket.is_complete {
            true => merge::complete(ticket, receipts, sync.clone(), &dsn, limits, runtime),
            false => runtime.block_on(complete_once(ticket, receipts, &dsn, limits)),
        };
        match completed {
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
    limits: WaitLimits,
) -> Result<FleetJobReport> {
    let connection = dsn.connect("pgspate fleet").await?;
    let client = &connection.client;
    let failed = || server_error(format!("could not complete {}", ticket.title()));
    let warning = match ticket.has_shadow {
        true => JobShadow::wait_for_older_transactions(client).await?,
        false => None,
    };
    client.batch_execute(&begin_pinned_sql()).await.map_err(failed())?;
    let work = Completion { connection: &connection, ticket, limits };
    let completed = work.run(receipts, warning).await;
    let end = if completed.is_ok() { COMMIT_DURABLY } else { "rollback" };
    let ended = client.batch_execute(end).await;
    let report = completed?;
    ended.map_err(|error| connection.explain("could not complete the job", error))?;
    drop_stage(client, ticket).await;
    Ok(report)
}

/// Drops the stage or the shadow of a completed job. An error is ignored: `pgspate status` shows
/// what is left.
pub(super) async fn drop_stage(client: &Client, ticket: &FleetTicket) {
    if let Some(stage) = ticket.stage() {
        let _ = ledger::drop_stage(client, ticket.job, stage).await;
    }
}

/// The open transaction that completes a job.
struct Completion<'a> {
    connection: &'a Connection,
    ticket: &'a FleetTicket,
    limits: WaitLimits,
}

impl Completion<'_> {
    /// Writes the rows of the receipts, and marks the job as complete.
    async fn run(
        &self,
        receipts: &[FleetReceipt],
        warning: Option<String>,
    ) -> Result<FleetJobReport> {
        let (client, ticket) = (&self.connection.client, self.ticket);
        let table = match lock(client, ticket).await? {
            JobState::Open { table } => table,
            JobState::Complete(report) => return Ok(report),
        };
        let sealed = ledger::read_parts(client, ticket.job).await?;
        let winners = find_winners(ticket, receipts, &sealed)?;
        ledger::check_no_dropped_keys(client, ticket.table_oid).await?;
        let rows_in = winners.iter().map(|it| it.rows).sum();
        let (losers, parts) = (sealed.len() - winners.len(), winners.len());
        let mut warnings: Vec<String> = warning.into_iter().collect();
        let inserted = match ticket.commits_parts() {
            true if losers > 0 => return Err(unnamed_part_error(ticket, &winners, &sealed)),
            true => rows_in,
            false if ticket.has_shadow => match self.exchange(&winners).await? {
                Ok(rows) => rows,
                Err(reason) => {
                    warnings.push(format!("the rows were inserted, not exchanged: {reason}"));
                    self.move_rows(&table, &winners).await?
                }
            },
            false => self.move_rows(&table, &winners).await?,
        };
        let report = FleetJobReport {
            job: ticket.job,
            table,
            rows_in,
            rows_written: inserted,
            inserted,
            parts,
            losers,
            warnings,
            ..FleetJobReport::default()
        };
        let counts = [rows_in, inserted];
        ledger::complete_fleet_job(client, ticket.job, counts, &report.as_json()?).await?;
        Ok(report)
    }

    /// Puts the shadow in the table's place. Returns the number of rows, or the reason why the
    /// shadow cannot take the table's place. Then its rows are still there.
    async fn exchange(&self, winners: &[&SealedPart]) -> Result<Result<i64, String>> {
        let (client, ticket) = (&self.connection.client, self.ticket);
        let failed = || server_error(format!("could not complete {}", ticket.title()));
        let staged = StagedParts { ticket, columns: &[], parts: winners };
        staged.check_count(client).await?;
        let savepoint = "savepoint pgspate_exchange";
        client.batch_execute(savepoint).await.map_err(failed())?;
        client.execute(&staged.delete_others(), &[]).await.map_err(failed())?;
        let must_be_empty = ticket.options.mode == FleetMode::Append;
        let name = ticket.destination.split_once('.').map_or("", |(_, name)| name);
        let version = self.connection.server_version();
        let shadow = JobShadow::new(ticket.job, (ticket.table_oid, &ticket.table, name), version);
        match shadow.exchange(client, self.limits.lock_timeout, must_be_empty).await? {
            Ok(oid) => {
                ledger::move_job_to(client, JobId(ticket.job), oid).await?;
                Ok(Ok(staged.rows()))
            }
            Err(reason) => {
                let back = format!("rollback to {savepoint}");
                client.batch_execute(&back).await.map_err(failed())?;
                Ok(Err(reason))
            }
        }
    }

    /// Moves the rows of these attempts into the table. Returns the number of written rows.
    async fn move_rows(&self, table: &str, winners: &[&SealedPart]) -> Result<i64> {
        let (client, ticket) = (&self.connection.client, self.ticket);
        let failed = || server_error(format!("could not move the rows of {}", ticket.title()));
        let mut by_columns: BTreeMap<&[String], Vec<&SealedPart>> = BTreeMap::new();
        for part in winners.iter().filter(|it| it.rows > 0) {
            by_columns.entry(&part.columns).or_default().push(part);
        }
        if ticket.options.mode == FleetMode::Replace {
            let emptied = ledger::record_emptied_sql(client, ticket.table_oid, None).await?;
            let truncate = format!("truncate {table}; {emptied}");
            client.batch_execute(&truncate).await.map_err(failed())?;
        }
        // Triggers and defaults of the user run under the user's search path.
        client.batch_execute(&users_path_sql(true)).await.map_err(failed())?;
        let mut written = 0;
        for (columns, parts) in by_columns {
            let staged = StagedParts { ticket, columns, parts: &parts };
            staged.check_count(client).await?;
            let insert = format!(
                "insert into {table} ({}) overriding system value {}",
                staged.columns_in(""),
                staged.select()
            );
            written += client.execute(insert.as_str(), &[]).await.map_err(failed())?;
        }
        Ok(written.cast_signed())
    }
}

/// A job whose row is locked.
pub(super) enum JobState {
    /// The job can be completed. The table's current name in SQL.
    Open { table: String },
    /// The job was completed with this report.
    Complete(FleetJobReport),
}

/// Locks the job's row until the transaction ends.
pub(super) async fn lock(client: &Client, ticket: &FleetTicket) -> Result<JobState> {
    let locked = ledger::lock_fleet_job(client, ticket.job).await?;
    let Some(LockedFleetJob { fence, report, table }) = locked else {
        return Err(ticket.fenced_error());
    };
    if let Some(report) = report {
        let bug = |error| Error::new(ErrorKind::Bug, "could not read the report").because(error);
        return serde_json::from_str(&report).map(JobState::Complete).map_err(bug);
    }
    if fence != ticket.fence {
        return Err(ticket.fenced_error());
    }
    table.map(|table| JobState::Open { table }).ok_or_else(|| ticket.dropped_error())
}

impl FleetJobReport {
    /// Returns the report as the ledger keeps it.
    pub(super) fn as_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| {
            Error::new(ErrorKind::Bug, "could not write the report").because(error)
        })
    }
}

/// Returns the sealed attempts of the receipts, in the order of their parts.
pub(super) fn find_winners<'a>(
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

/// Returns the error of a part that is in the table, but that no receipt names.
fn unnamed_part_error(
    ticket: &FleetTicket,
    winners: &[&SealedPart],
    sealed: &[SealedPart],
) -> Error {
    let is_named = |part: i64| winners.iter().any(|it| it.part == part);
    let part = sealed.iter().map(|it| it.part).filter(|part| !is_named(*part)).min();
    let message = format!(
        "part {} of {} is in the table, but there is no receipt of it",
        part.unwrap_or_default(),
        ticket.title()
    );
    Error::new(ErrorKind::Usage, message)
        .hint("Hand over the receipts of all parts. A part that is written again returns its own.")
}

/// Attempts that wrote the same columns into the stage.
pub(super) struct StagedParts<'a> {
    pub(super) ticket: &'a FleetTicket,
    pub(super) columns: &'a [String],
    pub(super) parts: &'a [&'a SealedPart],
}

impl StagedParts<'_> {
    /// Returns the number of rows that the attempts have written.
    pub(super) fn rows(&self) -> i64 {
        self.parts.iter().map(|it| it.rows).sum()
    }

    /// Returns the columns in SQL, each with this prefix.
    pub(super) fn columns_in(&self, prefix: &str) -> String {
        let columns = self.columns.iter().map(|name| format!("{prefix}{}", quote_ident(name)));
        columns.collect::<Vec<_>>().join(", ")
    }

    /// Returns the query for the rows of the attempts.
    pub(super) fn select(&self) -> String {
        format!("select {} {}", self.columns_in("stage."), self.from())
    }

    /// Returns the statement that deletes the rows of all other attempts.
    fn delete_others(&self) -> String {
        format!(
            "delete from only {} as stage where not {}",
            self.ticket.destination,
            self.condition()
        )
    }

    fn from(&self) -> String {
        format!("from only {} as stage where {}", self.ticket.destination, self.condition())
    }

    /// Returns the condition for rows of the attempts.
    fn condition(&self) -> String {
        // Rows know the last 32 bits of their transaction's number.
        let xids = self.parts.iter().map(|it| (it.xid & 0xffff_ffff).to_string());
        format!(
            "stage.xmin operator(pg_catalog.=) any ('{{{}}}'::pg_catalog.xid[])",
            xids.collect::<Vec<_>>().join(",")
        )
    }

    /// Checks that the stage has all rows of the attempts.
    pub(super) async fn check_count(&self, client: &Client) -> Result<()> {
        let (ticket, expected) = (self.ticket, self.rows());
        let failed = || server_error(format!("could not read the rows of {}", ticket.title()));
        let count = format!("select pg_catalog.count(*) {}", self.from());
        let staged: i64 = client.query_one(&count, &[]).await.map_err(failed())?.get(0);
        if staged == expected {
            return Ok(());
        }
        let [staged, expected] = [staged, expected].map(i64::unsigned_abs);
        Err(missing_rows_error(ticket.job, staged, expected))
    }
}

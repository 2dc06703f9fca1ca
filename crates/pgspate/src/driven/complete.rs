//! Completes a job: makes the rows of the attempts that count visible, and records the report.
//!
//! Rows and report are one transaction, which holds the lock on the job's row. So a job is
//! completed once, and no attempt is sealed meanwhile.

use std::collections::{BTreeMap, HashMap};

use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::{FleetJobReport, FleetMode, FleetReceipt, FleetTicket, merge};
use crate::copy::COMMIT_DURABLY;
use crate::sync::SyncOptions;
use crate::sync::fleet_job::missing_rows_error;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, LockedFleetJob, SealedPart};
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
            false => runtime.block_on(complete_once(ticket, receipts, &dsn)),
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
) -> Result<FleetJobReport> {
    let connection = dsn.connect("pgspate fleet").await?;
    let client = &connection.client;
    let failed = || server_error(format!("could not complete {}", ticket.title()));
    client.batch_execute(&begin_pinned_sql()).await.map_err(failed())?;
    let completed = complete_in_transaction(client, ticket, receipts).await;
    let end = if completed.is_ok() { COMMIT_DURABLY } else { "rollback" };
    let ended = client.batch_execute(end).await;
    let report = completed?;
    ended.map_err(|error| connection.explain("could not complete the job", error))?;
    // Ignored: `pgspate status` shows a stage that is left.
    let _ = ledger::drop_stage(client, &ticket.begun()).await;
    Ok(report)
}

/// Writes the rows of the receipts in the open transaction, and marks the job as complete.
async fn complete_in_transaction(
    client: &Client,
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
) -> Result<FleetJobReport> {
    let table = match lock(client, ticket).await? {
        JobState::Open { table } => table,
        JobState::Complete(report) => return Ok(report),
    };
    let sealed = ledger::read_parts(client, ticket.job).await?;
    let winners = find_winners(ticket, receipts, &sealed)?;
    ledger::check_no_dropped_keys(client, ticket.table_oid).await?;
    let rows_in = winners.iter().map(|it| it.rows).sum();
    let (losers, parts) = (sealed.len() - winners.len(), winners.len());
    let inserted = match ticket.commits_parts() {
        true if losers > 0 => return Err(unnamed_part_error(ticket, &winners, &sealed)),
        true => rows_in,
        false => move_rows(client, ticket, &table, &winners).await?,
    };
    let report = FleetJobReport {
        job: ticket.job,
        table,
        rows_in,
        rows_written: inserted,
        inserted,
        parts,
        losers,
        ..FleetJobReport::default()
    };
    ledger::complete_fleet_job(client, ticket.job, [rows_in, inserted], &report.as_json()?).await?;
    Ok(report)
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

/// Moves the rows of these attempts from the stage into the table. Returns the number of written
/// rows.
async fn move_rows(
    client: &Client,
    ticket: &FleetTicket,
    table: &str,
    winners: &[&SealedPart],
) -> Result<i64> {
    let failed = || server_error(format!("could not move the rows of {}", ticket.title()));
    let mut by_columns: BTreeMap<&[String], Vec<&SealedPart>> = BTreeMap::new();
    for part in winners.iter().filter(|it| it.rows > 0) {
        by_columns.entry(&part.columns).or_default().push(part);
    }
    // Triggers and defaults of the user run under the user's search path.
    client.batch_execute(&users_path_sql(true)).await.map_err(failed())?;
    if ticket.options.mode == FleetMode::Replace {
        client.batch_execute(&format!("truncate {table}")).await.map_err(failed())?;
    }
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

    fn from(&self) -> String {
        // Rows know the last 32 bits of their transaction's number.
        let xids = self.parts.iter().map(|it| (it.xid & 0xffff_ffff).to_string());
        format!(
            "from only {} as stage where stage.xmin operator(pg_catalog.=) \
             any ('{{{}}}'::pg_catalog.xid[])",
            self.ticket.destination,
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

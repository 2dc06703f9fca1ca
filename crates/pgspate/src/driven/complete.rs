//! Completes a job: makes the rows of the attempts that count visible, and records the report.
//!
//! Rows and report are one transaction, which holds the lock on the job's row. So a job is
//! completed once, and no attempt is sealed meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::completion_sessions::CompletionSessions;
use super::staged::StagedParts;
use super::{FleetJobOptions, FleetJobReport, FleetMode, FleetReceipt, FleetTicket, merge};
use crate::care::{self, JobShadow};
use crate::copy::{COMMIT_FOR_OTHERS, emptying_error};
use crate::numbers::counted;
use crate::sync::SyncOptions;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::{self, JobId, LockedFleetJob, SealedPart};
use pgspate_target::session::{ReconnectBackoff, TimeoutScope, WaitLimits};
use pgspate_target::{
    TargetTable, TypedQuery, begin_pinned_sql, has_inheriting_tables, server_error, users_path_sql,
};

/// The most parts that an error names.
const PARTS_NAMED_MAX: usize = 10;

/// Completes a job: writes the rows of these attempts to the table, in one transaction. If each
/// task commits its rows, checks that no part is missing. A job that is complete already returns
/// the report of its completion. `sync` has the options of a job of [`FleetMode::Sync`]. Blocks.
///
/// # Errors
/// [`ErrorKind::Usage`] if the receipts do not belong together, or if there is no receipt of a part
/// that is written. [`ErrorKind::Plan`] if no rows would replace those of the table.
/// [`ErrorKind::Ledger`] if a receipt is not known, if rows are missing after a server crash, or if
/// the job was begun again. The errors of a sync. After an error no row of the table has changed,
/// unless the connection was lost. The call can be repeated, and finds what was done.
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
    let sessions = CompletionSessions::new(&dsn);
    loop {
        let completed = match syncs && !ticket.is_complete {
            true => merge::complete(ticket, receipts, sync.clone(), &sessions, limits, runtime),
            false => runtime.block_on(complete_once(ticket, receipts, &sessions, limits)),
        };
        match completed {
            // If the answer to the commit was lost, the next try finds the report.
            Err(error) if error.is_retryable() && sessions.wait(&mut backoff, limits) => {}
            result => return result,
        }
    }
}

async fn complete_once(
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
    sessions: &CompletionSessions<'_>,
    limits: WaitLimits,
) -> Result<FleetJobReport> {
    let connection = sessions.open().await?;
    let completion = Completion { connection: &connection, ticket, limits };
    let report = completion.run(receipts).await?;
    drop_stage(&connection.client, ticket).await;
    Ok(report)
}

/// Drops the stage or the shadow of a completed job. An error is ignored: `pgspate status` shows
/// what is left.
pub(super) async fn drop_stage(client: &Client, ticket: &FleetTicket) {
    if let Some(stage) = ticket.stage() {
        let _ = ledger::drop_stage(client, ticket.job, stage).await;
    }
}

/// The completion of a job, in a session of its own.
struct Completion<'a> {
    connection: &'a Connection,
    ticket: &'a FleetTicket,
    limits: WaitLimits,
}

impl Completion<'_> {
    async fn run(&self, receipts: &[FleetReceipt]) -> Result<FleetJobReport> {
        let mut warning = None;
        if self.ticket.has_shadow {
            if let Some(report) = self.in_transaction(self.leave_out_losers(receipts)).await? {
                return Ok(report);
            }
            warning = JobShadow::wait_for_older_transactions(&self.connection.client).await?;
        }
        self.in_transaction(self.write_rows(receipts, warning)).await
    }

    /// Does `work` in a transaction.
    async fn in_transaction<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let client = &self.connection.client;
        let failed = server_error(format!("could not complete {}", self.ticket.title()));
        client.batch_execute(&begin_sql(self.limits)).await.map_err(failed)?;
        let done = work.await;
        let end = if done.is_ok() { COMMIT_FOR_OTHERS } else { "rollback" };
        let ended = client.batch_execute(end).await;
        let done = done?;
        ended.map_err(|error| self.connection.explain("could not complete the job", error))?;
        Ok(done)
    }

    /// Deletes rows of the shadow whose attempts do not count, in a transaction of its own. So no
    /// transaction that is older than the exchange sees them afterwards. Returns the report if the
    /// job is complete already.
    async fn leave_out_losers(&self, receipts: &[FleetReceipt]) -> Result<Option<FleetJobReport>> {
        let (client, ticket) = (&self.connection.client, self.ticket);
        let table = match lock(client, ticket).await? {
            JobState::Open(table) => table,
            JobState::Complete(report) => return Ok(Some(report)),
        };
        let sealed = ledger::read_parts(client, ticket.job).await?;
        let winners = find_winners(ticket, receipts, &sealed)?;
        check_not_emptied(client, ticket, &table, &winners).await?;
        // No attempt can seal as long as this session has the lock, so those that write are losers.
        ledger::end_writers(client, &ticket.destination).await;
        if sealed.len() > winners.len() {
            let staged = StagedParts { ticket, columns: &[], parts: &winners };
            staged.check_count(client).await?;
            staged.delete_others(client).await?;
        }
        Ok(None)
    }

    /// Writes the rows of the receipts, and marks the job as complete.
    async fn write_rows(
        &self,
        receipts: &[FleetReceipt],
        warning: Option<String>,
    ) -> Result<FleetJobReport> {
        let (client, ticket) = (&self.connection.client, self.ticket);
        let table = match lock(client, ticket).await? {
            JobState::Open(table) => table,
            JobState::Complete(report) => return Ok(report),
        };
        // Rows in a stage are still there.
        if ticket.commits_parts() && ledger::is_fleet_job_emptied(client, ticket.job).await? {
            return Err(ticket.emptied_error());
        }
        let sealed = ledger::read_parts(client, ticket.job).await?;
        let winners = find_winners(ticket, receipts, &sealed)?;
        check_not_emptied(client, ticket, &table, &winners).await?;
        ledger::check_no_dropped_keys(client, table.oid).await?;
        let rejected = ticket.keep_rejects(client, &winners).await?;
        let rows: i64 = winners.iter().map(|it| it.rows).sum();
        let (losers, parts) = (sealed.len() - winners.len(), winners.len());
        let mut warnings: Vec<String> = warning.into_iter().collect();
        let inserted = if ticket.commits_parts() {
            rows
        } else if ticket.has_shadow {
            match self.exchange(&table, &winners).await? {
                Ok(rows) => rows,
                Err(reason) => {
                    warnings.push(format!("the rows were inserted, not exchanged: {reason}"));
                    self.move_rows(&table, &winners).await?
                }
            }
        } else {
            self.move_rows(&table, &winners).await?
        };
        if inserted > 0 {
            let written = winners.iter().filter(|it| it.rows > 0).flat_map(|it| &it.columns);
            let written: BTreeSet<&String> = written.collect();
            let columns: Vec<String> = written.into_iter().cloned().collect();
            warnings.extend(care::advance_sequences(client, &table.name, &columns).await?);
        }
        let rows_kept_out = match ticket.commits_parts() {
            // A receipt may come twice.
            true => {
                let kept = receipts.iter().map(|receipt| (receipt.part, receipt.rows_kept_out));
                kept.collect::<HashMap<_, _>>().values().sum()
            }
            false => (rows - inserted).max(0),
        };
        if rows_kept_out > 0 {
            let rows = counted(rows_kept_out.unsigned_abs(), "row");
            warnings.push(format!("triggers of {} kept out {rows}", table.name));
        }
        let report = FleetJobReport {
            job: ticket.job,
            table: table.name,
            rows_in: inserted + rows_kept_out + rejected,
            rows_written: inserted,
            rows_kept_out,
            inserted,
            rejected,
            parts,
            losers,
            warnings,
            ..FleetJobReport::default()
        };
        let counts = [report.rows_in, inserted, rejected];
        ledger::complete_fleet_job(client, ticket.job, counts, &report.as_json()?).await?;
        Ok(report)
    }

    /// Puts the shadow in the table's place. Returns the number of rows, or the reason why the
    /// shadow cannot take the table's place. Then its rows are still there.
    async fn exchange(
        &self,
        table: &JobTable,
        winners: &[&SealedPart],
    ) -> Result<Result<i64, String>> {
        let (client, ticket) = (&self.connection.client, self.ticket);
        let failed = || server_error(format!("could not complete {}", ticket.title()));
        if table.name != ticket.table {
            return Ok(Err(format!("the table is now {}", table.name)));
        }
        let staged = StagedParts { ticket, columns: &[], parts: winners };
        staged.check_count(client).await?;
        let savepoint = "savepoint pgspate_exchange";
        client.batch_execute(savepoint).await.map_err(failed())?;
        ledger::end_writers(client, &ticket.destination).await;
        staged.delete_others(client).await?;
        let must_be_empty = ticket.options.mode == FleetMode::Append;
        let name = ticket.destination.split_once('.').map_or("", |(_, name)| name);
        let version = self.connection.server_version();
        let shadow = JobShadow::new(ticket.job, (ticket.table_oid, &ticket.table, name), version);
        match shadow.exchange(client, self.limits.lock_timeout, must_be_empty).await? {
            Ok(oid) => {
                ledger::move_fleet_jobs(client, ticket.table_oid, oid, JobId(ticket.job)).await?;
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
    async fn move_rows(&self, table: &JobTable, winners: &[&SealedPart]) -> Result<i64> {
        let (client, ticket) = (&self.connection.client, self.ticket);
        let failed = || server_error(format!("could not move the rows of {}", ticket.title()));
        let mut by_columns: BTreeMap<&[String], Vec<&SealedPart>> = BTreeMap::new();
        for part in winners.iter().filter(|it| it.rows > 0) {
            by_columns.entry(&part.columns).or_default().push(part);
        }
        self.lock_table(table).await?;
        let JobTable { name: table, oid } = table;
        for (columns, parts) in &by_columns {
            StagedParts { ticket, columns, parts }.check_types(client, table).await?;
        }
        // A load may have dropped keys before this transaction had the lock.
        ledger::check_no_dropped_keys_in_transaction(client, *oid, None).await?;
        if ticket.options.mode == FleetMode::Replace {
            let emptied = ledger::record_emptied_sql(client, *oid, None).await?;
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

    /// Locks the table, and checks that the name is still that of the job's table, and that no rule
    /// would write the rows elsewhere.
    async fn lock_table(&self, table: &JobTable) -> Result<()> {
        let (client, ticket) = (&self.connection.client, self.ticket);
        let JobTable { name, oid } = table;
        let failed = server_error(format!("could not lock {name}"));
        let replaces = ticket.options.mode == FleetMode::Replace;
        let mode = if replaces { "access exclusive" } else { "row exclusive" };
        let sql = format!("lock table {name} in {mode} mode");
        client.batch_execute(&sql).await.map_err(failed)?;
        let found = TargetTable::read(client, name).await?;
        let Some(found) = found.filter(|it| it.oid == *oid) else {
            let message = format!("another table has taken the name of {name}");
            return Err(Error::new(ErrorKind::Ledger, message).hint("Complete the job again."));
        };
        found.check_no_rule()?;
        if replaces && has_inheriting_tables(client, &found).await? {
            let message = format!("other tables inherit from {name}, and would be emptied, too");
            return Err(Error::new(ErrorKind::Plan, message)
                .hint("Abort the job, or end the inheritance and complete the job again."));
        }
        Ok(())
    }
}

/// The table of a job, as it is now.
pub(super) struct JobTable {
    /// The table's name in SQL.
    pub(super) name: String,
    /// The table's oid.
    pub(super) oid: u32,
}

/// A job whose row is locked.
pub(super) enum JobState {
    /// The job can be completed.
    Open(JobTable),
    /// The job was completed with this report.
    Complete(FleetJobReport),
}

/// Returns the SQL that begins a transaction of a completion.
pub(super) fn begin_sql(limits: WaitLimits) -> String {
    let timeouts =
        TimeoutScope::Transaction.disable_with_lock_timeout_sql(limits.lock_timeout_millis());
    format!("{}; {timeouts}", begin_pinned_sql())
}

/// Locks the job's row until the transaction ends.
pub(super) async fn lock(client: &Client, ticket: &FleetTicket) -> Result<JobState> {
    let locked = ledger::lock_fleet_job(client, ticket.job).await?;
    let Some(LockedFleetJob { fence, report, table, table_oid: oid }) = locked else {
        return Err(ticket.fenced_error());
    };
    if !ticket.begun().is_job_of(fence) {
        return Err(ticket.fenced_error());
    }
    if let Some(report) = report {
        let bug = |error| Error::new(ErrorKind::Bug, "could not read the report").because(error);
        return serde_json::from_str(&report).map(JobState::Complete).map_err(bug);
    }
    if fence != ticket.fence {
        return Err(ticket.fenced_error());
    }
    let open = |name| JobState::Open(JobTable { name, oid });
    table.map(open).ok_or_else(|| ticket.dropped_error())
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
    let lost: BTreeSet<i64> =
        sealed.iter().map(|it| it.part).filter(|part| !winners.contains_key(part)).collect();
    // A repeated epoch may have fewer parts, and the parts of the first try are in the stage.
    match lost.is_empty() || ticket.options.epoch.is_some() {
        true => Ok(winners.into_values().collect()),
        false => Err(lost_receipts_error(ticket, &lost)),
    }
}

/// Returns the error of parts that are written, but that no receipt names. Only their attempts can
/// be losers of which another attempt has a receipt: without one, a receipt is lost.
fn lost_receipts_error(ticket: &FleetTicket, parts: &BTreeSet<i64>) -> Error {
    let named = parts.iter().take(PARTS_NAMED_MAX).map(i64::to_string).collect::<Vec<_>>();
    let more = match parts.len().saturating_sub(PARTS_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (word, are, them) = match parts.len() {
        1 => ("part", "is", "it"),
        _ => ("parts", "are", "them"),
    };
    let message = format!(
        "{word} {}{more} of {} {are} written, but there is no receipt for {them}",
        named.join(", "),
        ticket.title()
    );
    let hint = "Hand over a receipt of each part. A part that is written again returns a new one. \
                To leave a part out, begin the job again and do not write it.";
    Error::new(ErrorKind::Usage, message).hint(hint)
}

/// Refuses to replace the table's rows by no rows, unless the driver has allowed it.
async fn check_not_emptied(
    client: &Client,
    ticket: &FleetTicket,
    table: &JobTable,
    winners: &[&SealedPart],
) -> Result<()> {
    let FleetJobOptions { mode, allow_empty, .. } = ticket.options;
    let has_rows = winners.iter().any(|it| it.rows > 0);
    if mode != FleetMode::Replace || allow_empty || has_rows {
        return Ok(());
    }
    let name = &table.name;
    let failed = || server_error(format!("could not read {name}"));
    // A policy may hide rows. Then the table counts as one with rows.
    let may_read = "select has_table_privilege($1::oid, 'select') \
                    and not row_security_active($1::oid)";
    let may_read = client.fetch_one(may_read, &[&table.oid]).await.map_err(failed())?;
    if may_read.get(0) {
        let look = format!("select exists (select from {name})");
        let found = client.fetch_one(&look, &[]).await.map_err(failed())?;
        if !found.get::<_, bool>(0) {
            return Ok(());
        }
    }
    let message = format!("could not complete {}", ticket.title());
    Err(Error::new(ErrorKind::Plan, message).because(emptying_error()))
}

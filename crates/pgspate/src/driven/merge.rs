//! Completes a job whose rows are compared with the table's rows, as [`sync`] does.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::complete::{JobState, begin_sql, drop_stage, find_winners, lock};
use super::completion_sessions::CompletionSessions;
use super::staged::StagedParts;
use super::{FleetJobReport, FleetReceipt, FleetTicket};
use crate::format::memory::{BatchIter, BatchTarget, ProgramBatches};
use crate::plan::AutoChoice;
use crate::reading::{InputOrigin, LoadWatch};
use crate::sync::fleet_job::FleetJobRows;
use crate::sync::{self, SyncOptions, SyncReport};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger;
use pgspate_target::server_error;
use pgspate_target::session::WaitLimits;

/// Refuses options of a sync that a job cannot have.
pub(super) fn check_options(options: &SyncOptions) -> Result<()> {
    let one = "a job is completed in one transaction of one session";
    let no_order = "the tasks' rows have no order";
    let refused = [
        ("check", options.is_check, "a job writes its rows"),
        ("create", options.create, "create the table before the job begins"),
        ("add_columns", options.reading.rows.add_columns, "add the columns before the job begins"),
        ("lanes", options.lanes > 1, one),
        ("transactions", options.transactions > 1, one),
        ("keep", options.keeps_last, no_order),
        ("read_ahead", options.read_ahead == AutoChoice::Always, "the rows are staged already"),
        ("fleet", options.fleet.fleet.is_some(), "its tasks share the work already"),
    ];
    match refused.iter().find(|(_, is_refused, _)| *is_refused) {
        Some((option, _, why)) => {
            let message = format!("a job with a driver cannot have the option \"{option}\": {why}");
            Err(Error::new(ErrorKind::Usage, message))
        }
        None => Ok(()),
    }
}

/// Completes the job once.
pub(super) fn complete(
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
    options: SyncOptions,
    sessions: &CompletionSessions<'_>,
    limits: WaitLimits,
    runtime: &Handle,
) -> Result<FleetJobReport> {
    check_options(&options)?;
    let find = || runtime.block_on(find_state(ticket, receipts, sessions, limits));
    let StagedSync { columns, rows, report } = match find()? {
        SyncState::Complete(report) => return Ok(report),
        SyncState::Open(staged) => *staged,
    };
    let origin = InputOrigin::Batches(Arc::new(StagedColumns::of(&columns, &ticket.title())));
    let reading = crate::reading::ReadingOptions { origin, ..options.reading };
    let table = Some(report.table.clone());
    let options = SyncOptions { reading, table, limits, read_ahead: AutoChoice::Never, ..options };
    let watch = Arc::new(LoadWatch::default());
    let synced = sync::prepare(options, sessions.dsn.clone(), runtime)
        .and_then(|prepared| prepared.with_fleet_job(rows)?.run(&watch));
    // Another call may have completed the job, or the answer to the commit was lost.
    let completed = match synced {
        Ok(synced) => report.with_counts(&synced),
        Err(error) => match find() {
            Ok(SyncState::Complete(report)) => report,
            Ok(SyncState::Open(_)) | Err(_) => return Err(error),
        },
    };
    runtime.block_on(async {
        // Ignored, like an error of dropping: the job is complete, and `pgspate status` shows a
        // stage that is left.
        if let Ok(connection) = sessions.dsn.connect("pgspate fleet").await {
            drop_stage(&connection.client, ticket).await;
        }
    });
    Ok(completed)
}

/// A job that a sync completes.
enum SyncState {
    /// The job was completed with this report.
    Complete(FleetJobReport),
    /// The rows are to be written.
    Open(Box<StagedSync>),
}

/// What a sync needs to write the staged rows.
struct StagedSync {
    /// The columns of the rows.
    columns: Vec<String>,
    rows: FleetJobRows,
    /// The report, without the counts of the sync.
    report: FleetJobReport,
}

async fn find_state(
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
    sessions: &CompletionSessions<'_>,
    limits: WaitLimits,
) -> Result<SyncState> {
    let connection = sessions.open().await?;
    let client = &connection.client;
    let failed = || server_error(format!("could not complete {}", ticket.title()));
    client.batch_execute(&begin_sql(limits)).await.map_err(failed())?;
    let found = find_in_transaction(client, ticket, receipts, sessions).await;
    client.batch_execute("rollback").await.map_err(failed())?;
    if let Ok(SyncState::Complete(_)) = &found {
        drop_stage(client, ticket).await;
    }
    found
}

async fn find_in_transaction(
    client: &Client,
    ticket: &FleetTicket,
    receipts: &[FleetReceipt],
    sessions: &CompletionSessions<'_>,
) -> Result<SyncState> {
    let table = match lock(client, ticket).await? {
        JobState::Open(table) => table,
        JobState::Complete(report) => return Ok(SyncState::Complete(report)),
    };
    let sealed = ledger::read_parts(client, ticket.job).await?;
    let winners = find_winners(ticket, receipts, &sealed)?;
    let columns = match winners.first() {
        Some(first) => first.columns.clone(),
        None => ledger::stage_columns(client, table.oid).await?,
    };
    let sorted = |columns: &[String]| {
        let mut sorted = columns.to_vec();
        sorted.sort();
        sorted
    };
    let expected = sorted(&columns);
    if let Some(other) = winners.iter().find(|it| sorted(&it.columns) != expected) {
        let message = format!(
            "part {} of {} has other columns than the other parts",
            other.part,
            ticket.title()
        );
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Give all parts the same columns: a sync compares all of them."));
    }
    let staged = StagedParts { ticket, columns: &columns, parts: &winners };
    let rows = staged.rows();
    // This transaction is rolled back. The sync keeps the rejects.
    let rejected = ticket.keep_rejects(client, &winners).await?;
    let report = FleetJobReport {
        job: ticket.job,
        table: table.name,
        rows_in: rows + rejected,
        rejected,
        parts: winners.len(),
        losers: sealed.len() - winners.len(),
        ..FleetJobReport::default()
    };
    let stored = report.clone();
    let rows = FleetJobRows {
        begun: ticket.begun(),
        table_oid: table.oid,
        stage: ticket.destination.clone(),
        columns: columns.clone(),
        query: (rows > 0).then(|| (staged.columns_in(""), staged.select())),
        rows: rows.unsigned_abs(),
        writing_backend: Arc::clone(&sessions.last_backend),
        attempts: ticket.options.max_rejects.map(|_| winners.iter().map(|it| it.xid).collect()),
        report: Box::new(move |synced| stored.with_counts(synced).as_json()),
    };
    Ok(SyncState::Open(Box::new(StagedSync { columns, rows, report })))
}

impl FleetJobReport {
    fn with_counts(&self, synced: &SyncReport) -> FleetJobReport {
        let SyncReport { inserted, updated, deleted, changes_kept_out, .. } = *synced;
        let [inserted, updated, deleted, rows_kept_out] =
            [inserted, updated, deleted, changes_kept_out].map(u64::cast_signed);
        let rows_written = inserted + updated;
        let warnings = [&self.warnings[..], &synced.warnings].concat();
        FleetJobReport {
            rows_written,
            rows_kept_out,
            inserted,
            updated,
            deleted,
            warnings,
            ..self.clone()
        }
    }
}

/// The source of a sync whose rows are on the server already: columns without rows.
#[derive(Debug)]
struct StagedColumns {
    schema: SchemaRef,
    name: String,
}

impl StagedColumns {
    fn of(columns: &[String], name: &str) -> StagedColumns {
        let fields = columns.iter().map(|name| Field::new(name, DataType::Utf8, true));
        let schema = Schema::new(fields.collect::<Vec<_>>()).into();
        StagedColumns { schema, name: name.to_owned() }
    }
}

impl ProgramBatches for StagedColumns {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bytes(&self) -> Option<u64> {
        Some(0)
    }

    fn is_stream(&self) -> bool {
        false
    }

    fn open(&self, _: &[Option<BatchTarget>]) -> Result<BatchIter> {
        Ok(Box::new(std::iter::empty()))
    }
}

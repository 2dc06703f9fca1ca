//! An attempt of a task to write a part of a job: one transaction that ends with a seal.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::{FleetReceipt, FleetTicket};
use crate::copy::{self, CopyEnd, Destination, LaneSession};
use crate::plan::RowPlan;
use crate::reading::{LoadWatch, ReadingOptions, StageCopy, Survey, hint_encoding};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Dsn;
use pgspate_target::session::{ReconnectBackoff, WaitLimits};
use pgspate_target::{TargetTable, ledger};

/// Writes the rows of a part into the job's stage. Nothing is written unless a receipt is returned,
/// or the receipt was lost: then the rows are left out. Blocks.
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
    let (session, dsn, columns) = stage_rows(ticket, options, limits, dsn, runtime, watch)?;
    let LaneSession { connection, rows_written } = session;
    let rows = rows_written.cast_signed();
    let (begun, client) = (ticket.begun(), &connection.client);
    let sealed = runtime.block_on(ledger::seal_part(client, &begun, part, &columns, rows))?;
    let Some(xid) = sealed else { return Err(ticket.fenced_error()) };
    let receipt = FleetReceipt { job: ticket.job, part, xid, rows };
    let committed = runtime.block_on(client.batch_execute("commit"));
    let Err(error) = committed.map_err(|error| connection.explain("could not commit", error))
    else {
        return Ok(receipt);
    };
    if !error.is_retryable() {
        return Err(error);
    }
    // The answer to the commit is lost. The ledger says whether the server has committed.
    let mut backoff = ReconnectBackoff::new(limits.retry_for);
    while backoff.wait(|| watch.copy.is_cancelled()) {
        let found = runtime.block_on(async {
            let connection = dsn.connect("pgspate fleet").await?;
            ledger::is_part_sealed(&connection.client, &begun, xid).await
        });
        match found {
            Ok(true) => return Ok(receipt),
            Ok(false) => return Err(error),
            Err(later) if later.is_retryable() => {}
            Err(later) => return Err(later),
        }
    }
    Err(error)
}

/// Copies the rows into the stage. Returns the session, whose transaction is open, and the names of
/// the written columns.
fn stage_rows(
    ticket: &FleetTicket,
    options: &ReadingOptions,
    limits: WaitLimits,
    dsn: Dsn,
    runtime: &Handle,
    watch: &Arc<LoadWatch>,
) -> Result<(LaneSession, Dsn, Vec<String>)> {
    let survey = Survey::take(options, Some(&ticket.table), limits, dsn, None, runtime)?;
    let Survey { control_session, reading, session, table, rows: request, .. } = survey;
    let Some(table) = table.filter(|it| it.oid == ticket.table_oid) else {
        let message = format!("{} was dropped after {} began", ticket.table, ticket.title());
        return Err(Error::new(ErrorKind::Ledger, message).hint("Begin the job again."));
    };
    let plan = RowPlan::make(&table, &session, &reading.facts(), &request)?;
    let stage = ledger::stage_name(ticket.job, ticket.fence);
    watch.start_over(reading.stored_bytes());
    let version = session.server_version;
    let make_encoder = reading.encoder(&plan, &table, version, request.ignore_unknown)?;
    let copy = StageCopy {
        control_session: &control_session,
        reading: &reading,
        plan: &plan,
        table: &table,
        stage: &stage,
    };
    let job = copy.job(make_encoder, Destination::OpenStage { before: "select".to_owned() });
    let cutter = reading.cutter(&plan, watch);
    let ended = copy::run(&job, cutter, &watch.copy, runtime);
    let explain = |error| explain_failure(ticket, &table, &plan, error);
    match ended.map_err(explain)? {
        CopyEnd::Done(_, mut sessions) => match (sessions.pop(), sessions.is_empty()) {
            (Some(session), true) => {
                let columns = plan.columns.iter().map(|it| it.name.clone()).collect();
                Ok((session, control_session.dsn.clone(), columns))
            }
            _ => Err(Error::new(ErrorKind::Bug, "the session with the staged rows was closed")),
        },
        CopyEnd::LanesConflict => {
            Err(Error::new(ErrorKind::Bug, "a single session waits for itself"))
        }
        CopyEnd::Interrupted(error) | CopyEnd::NotRoutable(error) => Err(explain(error)),
    }
}

fn explain_failure(
    ticket: &FleetTicket,
    table: &TargetTable,
    plan: &RowPlan,
    error: Error,
) -> Error {
    let kind = error.kind();
    let message = format!("could not write a part of {} for {}", ticket.title(), table.sql_name);
    Error::new(kind, message).because(hint_encoding(error, plan))
}

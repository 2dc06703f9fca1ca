//! Drops a table's indexes and foreign keys, and removes rows that they would have refused.
//!
//! Every drop is recorded in the same transaction, under an exclusive lock of the table. The
//! decision is made again from the catalog as it is under that lock.

use tokio_postgres::error::SqlState;

use crate::plan::maintenance::{MaintenanceInputs, MaintenancePlan};
use crate::plan::{AutoChoice, IndexChoice, LoadPlan, PlanRequest};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{self, JobId, NewChange};
use pgspate_target::{
    AUTOVACUUM_CHANGE, MaintenanceFacts, RestoreRecipe, TargetTable, TypedQuery, locking_sessions,
    server_error,
};

/// Lock timeout when the indexes may as well be kept. Other sessions queue behind the lock request.
const LOCK_AUTO: &str = "2s";
/// Lock timeout when the user demands the changes.
const LOCK_ASKED: &str = "10s";

/// Makes the planned changes and records how to undo them. Returns what was changed.
///
/// # Errors
/// When the server refuses a change, or another session has locked the table. Nothing is changed
/// then.
pub(super) async fn alter(
    connection: &Connection,
    job: JobId,
    facts: MaintenanceInputs<'_>,
    plan: &LoadPlan,
    ask: &PlanRequest,
) -> Result<(MaintenancePlan, MaintenanceFacts)> {
    let altered = drop_and_record(connection, job, facts, plan, ask).await;
    if altered.is_err() {
        // The caller reports the earlier error.
        let _ = connection.client.batch_execute("rollback").await;
    }
    altered
}

async fn drop_and_record(
    connection: &Connection,
    job: JobId,
    facts: MaintenanceInputs<'_>,
    plan: &LoadPlan,
    ask: &PlanRequest,
) -> Result<(MaintenancePlan, MaintenanceFacts)> {
    let (client, table) = (&connection.client, facts.table);
    let failed = || server_error(format!("could not drop the indexes of {}", table.sql_name));
    let is_asked =
        [ask.options.rebuild_indexes, ask.options.pause_autovacuum].contains(&AutoChoice::Always);
    let turn = if is_asked { LOCK_ASKED } else { LOCK_AUTO };
    // Setting a table option does not block readers and writers.
    let mode = if plan.maintenance.drops_indexes() {
        "access exclusive"
    } else {
        "share update exclusive"
    };
    let sql = format!(
        "begin isolation level read committed; set local lock_timeout = '{turn}'; \
         set local statement_timeout = 0; lock table only {} in {mode} mode",
        table.sql_name
    );
    if let Err(error) = client.batch_execute(&sql).await {
        let is_lock_error = error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        let error = failed()(error);
        let _ = client.batch_execute("rollback").await;
        return Err(if is_lock_error {
            hint_table_in_use(connection, table, error).await
        } else {
            error
        });
    }
    let upkeep = MaintenanceFacts::read_in_transaction(client, table).await?;
    let writer = ledger::other_writer(client, table.oid, job.0).await?;
    let facts = MaintenanceInputs { upkeep: &upkeep, writer: writer.as_deref(), ..facts };
    let care = MaintenancePlan::make(&facts, &plan.rows.columns, ask)?;
    let mut changes = Vec::new();
    let mut statements = Vec::new();
    for index in upkeep.indexes.iter().zip(&care.indexes) {
        let (index, IndexChoice { kept_because: None, .. }) = index else { continue };
        statements.push(index.drop.clone());
        changes.push(NewChange {
            kind: index.kind.name().to_owned(),
            object: index.name.clone(),
            steps: index.recipe.to_ledger_steps(index.kind.name()),
            parallel_build: index.parallel_build,
        });
    }
    if care.autovacuum_pause.is_some() {
        let (off, change) = pause_autovacuum(table, &upkeep);
        statements.push(off);
        changes.push(change);
    }
    ledger::record_changes(client, job, table.oid, &changes).await?;
    statements.push("commit".to_owned());
    client.batch_execute(&statements.join("; ")).await.map_err(failed())?;
    Ok((care, upkeep))
}

/// Adds the session that uses the table to the error.
async fn hint_table_in_use(connection: &Connection, table: &TargetTable, error: Error) -> Error {
    let found = locking_sessions(&connection.client, table.oid).await.unwrap_or_default();
    let who = match found.first() {
        Some(who) => format!("{who} is using it"),
        None => "another session was using it".to_owned(),
    };
    Error::new(ErrorKind::Server, format!("could not lock {}: {who}", table.sql_name))
        .because(error)
        .hint("Wait until that session ends, or keep the indexes with `--rebuild-indexes never`.")
}

/// Returns the statement that switches autovacuum off, and the change to record.
fn pause_autovacuum(table: &TargetTable, upkeep: &MaintenanceFacts) -> (String, NewChange) {
    let names = ["autovacuum_enabled", "toast.autovacuum_enabled"];
    let tables = names.iter().zip(&upkeep.autovacuum).take(1 + usize::from(upkeep.has_toast));
    let options: Vec<_> = tables.map(|(name, set)| ((*name).to_owned(), set.clone())).collect();
    let off: Vec<_> = options.iter().map(|(name, _)| format!("{name} = off")).collect();
    let recipe = RestoreRecipe { options, ..RestoreRecipe::default() };
    let change = NewChange {
        kind: AUTOVACUUM_CHANGE.to_owned(),
        object: String::new(),
        steps: recipe.to_ledger_steps(AUTOVACUUM_CHANGE),
        parallel_build: false,
    };
    (format!("alter table {} set ({})", table.sql_name, off.join(", ")), change)
}

/// The result of removing the load's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowRemoval {
    Done,
    /// Other tables or triggers would be affected. Nothing was changed.
    WouldBeNoticed,
    /// Other sessions have changed or deleted this number of the rows. Nothing was changed.
    ChangedByOthers(u64),
}

/// Removes the rows that the job has written, and its chunks in the ledger. The rows are recognised
/// by the transactions that also inserted the chunks. A row that another session has changed is no
/// longer recognised; then all rows are kept.
pub(super) async fn remove_rows(
    connection: &Connection,
    job: JobId,
    table: &TargetTable,
) -> Result<RowRemoval> {
    let taken = remove_rows_within(connection, job, table).await;
    if !matches!(taken, Ok(RowRemoval::Done)) {
        let _ = connection.client.batch_execute("rollback").await;
    }
    taken
}

async fn remove_rows_within(
    connection: &Connection,
    job: JobId,
    table: &TargetTable,
) -> Result<RowRemoval> {
    let (client, name) = (&connection.client, &table.sql_name);
    let failed = || server_error(format!("could not remove the load's rows from {name}"));
    let begin = format!(
        "begin isolation level read committed; set local lock_timeout = '{LOCK_ASKED}'; \
         set local statement_timeout = 0; lock table only {name} in access exclusive mode"
    );
    client.batch_execute(&begin).await.map_err(failed())?;
    let upkeep = MaintenanceFacts::read_in_transaction(client, table).await?;
    if upkeep.is_referenced || upkeep.has_delete_triggers {
        return Ok(RowRemoval::WouldBeNoticed);
    }
    let ours =
        format!("any (array(select xmin from pgspate.ledger where job = {} group by 1))", job.0);
    let look = format!(
        "select count(*) filter (where t.xmin = {ours}), count(*), \
                (select coalesce(sum(rows_written), 0)::bigint from pgspate.ledger where job = {}) \
         from only {name} t",
        job.0
    );
    let row = client.fetch_one(&look, &[]).await.map_err(failed())?;
    let [found, all, written] = [0, 1, 2].map(|nth| row.get::<_, i64>(nth));
    if found < written {
        return Ok(RowRemoval::ChangedByOthers(written.abs_diff(found)));
    }
    let take = match found == all {
        true => format!("truncate only {name}"),
        false => format!("delete from only {name} t where t.xmin = {ours}"),
    };
    client.batch_execute(&take).await.map_err(failed())?;
    ledger::forget_chunks_and_shadow(client, job).await?;
    client.batch_execute("commit").await.map_err(failed())?;
    Ok(RowRemoval::Done)
}

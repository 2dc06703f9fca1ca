//! Drops a table's indexes and foreign keys. Removes the load's rows if an index or foreign key
//! cannot be created again because of these rows.
//!
//! The indexes are dropped in one transaction, under an exclusive lock on the table. The
//! transaction reads the catalog again, makes the plan again, and records every drop in the ledger.

use futures_util::future::join_all;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::plan::maintenance::{MaintenanceInputs, MaintenancePlan};
use crate::plan::{AutoChoice, IndexChoice, LoadPlan, PlanRequest};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{self, JobId, NewChange};
use pgspate_target::{
    AUTOVACUUM_CHANGE, MaintenanceFacts, RestoreRecipe, TableLocks, TargetTable, TypedQuery,
    locking_sessions, server_error,
};

/// Lock timeout for changes that are optional. Other sessions queue behind the lock request.
const LOCK_TIMEOUT_AUTO: &str = "2s";
/// Lock timeout for changes that the user has demanded.
pub(super) const LOCK_TIMEOUT_DEMANDED: &str = "10s";

/// Makes the planned changes and records how to undo them. Returns the plan that was executed, and
/// the table's indexes and options before the changes.
///
/// # Errors
/// If the server refuses a change, or another session has locked the table. Nothing is changed
/// then.
pub(super) async fn alter(
    connection: &Connection,
    job: JobId,
    facts: MaintenanceInputs<'_>,
    plan: &LoadPlan,
    request: &PlanRequest,
) -> Result<(MaintenancePlan, MaintenanceFacts)> {
    let altered = drop_and_record(connection, job, facts, plan, request).await;
    if altered.is_err() {
        // The caller reports the earlier error.
        let _ = connection.client.batch_execute("rollback").await;
    }
    altered
}

/// Makes the changes. After an error, the transaction is still open.
async fn drop_and_record(
    connection: &Connection,
    job: JobId,
    facts: MaintenanceInputs<'_>,
    plan: &LoadPlan,
    request: &PlanRequest,
) -> Result<(MaintenancePlan, MaintenanceFacts)> {
    let (client, table) = (&connection.client, facts.table);
    let failed = || server_error(format!("could not drop the indexes of {}", table.sql_name));
    let is_demanded = [request.options.rebuild_indexes, request.options.pause_autovacuum]
        .contains(&AutoChoice::Always);
    let lock_timeout = if is_demanded { LOCK_TIMEOUT_DEMANDED } else { LOCK_TIMEOUT_AUTO };
    // Setting a table option does not block readers and writers.
    let mode = if plan.maintenance.drops_indexes() {
        "access exclusive"
    } else {
        "share update exclusive"
    };
    let sql = format!(
        "begin isolation level read committed; set local lock_timeout = '{lock_timeout}'; \
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
    table.as_written().check_unchanged(client).await?;
    let maintenance_facts = MaintenanceFacts::read_in_transaction(client, table).await?;
    let facts = MaintenanceInputs { maintenance_facts: &maintenance_facts, ..facts };
    let maintenance = plan_beside_writers(client, job, &facts, plan, request).await?;
    let mut changes = Vec::new();
    let mut statements = Vec::new();
    for index in maintenance_facts.indexes.iter().zip(&maintenance.indexes) {
        let (index, IndexChoice { kept_because: None, .. }) = index else { continue };
        statements.push(index.drop.clone());
        changes.push(NewChange {
            kind: index.kind.name().to_owned(),
            object: index.name.clone(),
            steps: index.recipe.to_ledger_steps(index.kind.name()),
            parallel_build: index.parallel_build,
        });
    }
    if maintenance.autovacuum_pause.is_some() {
        let (off, change) = pause_autovacuum(table, &maintenance_facts);
        statements.push(off);
        changes.push(change);
    }
    ledger::record_changes(client, job, table.oid, &changes).await?;
    statements.push("commit".to_owned());
    // Each statement is a separate message for Citus, which sends a message's whole text to its
    // workers. All messages are sent before the first reply arrives.
    let done = join_all(statements.iter().map(|sql| client.batch_execute(sql))).await;
    done.into_iter().collect::<Result<(), _>>().map_err(failed())?;
    Ok((maintenance, maintenance_facts))
}

/// Makes the plan again. Keys are kept for other jobs, and for sessions that write single records.
/// Such sessions that come later wait for the end of the transaction.
async fn plan_beside_writers(
    client: &Client,
    job: JobId,
    facts: &MaintenanceInputs<'_>,
    plan: &LoadPlan,
    request: &PlanRequest,
) -> Result<MaintenancePlan> {
    let make = |writer: Option<&str>| {
        let facts = MaintenanceInputs { writer, ..*facts };
        MaintenancePlan::make(&facts, &plan.rows.columns, request)
    };
    let table = facts.table.oid;
    let writer = ledger::other_writer(client, table, job.0).await?;
    let maintenance = make(writer.as_deref())?;
    if !maintenance.drops_keys() {
        return Ok(maintenance);
    }
    match ledger::exclude_record_writers(client, table).await? {
        Some(writer) => make(Some(&writer)),
        None => Ok(maintenance),
    }
}

/// Adds the session that uses the table, and a hint, to the error.
async fn hint_table_in_use(connection: &Connection, table: &TargetTable, error: Error) -> Error {
    let found =
        locking_sessions(&connection.client, table.oid, TableLocks::All).await.unwrap_or_default();
    let who = match found.first() {
        Some(who) => format!("{who} is using it"),
        None => "another session was using it".to_owned(),
    };
    Error::new(ErrorKind::Server, format!("could not lock {}: {who}", table.sql_name))
        .because(error)
        .hint("Wait until that session ends, or keep the indexes with `--rebuild-indexes never`.")
}

/// Returns the statement that switches autovacuum off for the table, and the change to record.
fn pause_autovacuum(
    table: &TargetTable,
    maintenance_facts: &MaintenanceFacts,
) -> (String, NewChange) {
    let names = ["autovacuum_enabled", "toast.autovacuum_enabled"];
    let tables = names
        .iter()
        .zip(&maintenance_facts.autovacuum)
        .take(1 + usize::from(maintenance_facts.has_toast));
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
    /// The rows were removed.
    Done,
    /// Foreign keys of other tables refer to the table, it has triggers or rules for DELETE, or
    /// other rows would be removed, too. Nothing was changed.
    Refused,
    /// The rows are not known, because they are in other tables or were written under savepoints.
    /// Nothing was changed.
    Unknown,
    /// Other sessions have changed or deleted this number of the rows. Nothing was changed.
    ChangedByOthers(u64),
}

/// Removes the rows that the job has written, and the job's chunks in the ledger. The job's rows
/// have the `xmin` of the transactions that recorded its chunks. If another session has changed
/// such a row, the row has another `xmin`, and no row is removed. Rows that were written beside
/// rejected rows have the `xmin` of their savepoints.
pub(super) async fn remove_rows(
    connection: &Connection,
    job: JobId,
    table: &TargetTable,
    lock_timeout: &str,
) -> Result<RowRemoval> {
    let removal = remove_rows_in_transaction(connection, job, table, lock_timeout).await;
    if !matches!(removal, Ok(RowRemoval::Done)) {
        let _ = connection.client.batch_execute("rollback").await;
    }
    removal
}

/// Removes the rows. If it does not return `Done`, the transaction is still open.
async fn remove_rows_in_transaction(
    connection: &Connection,
    job: JobId,
    table: &TargetTable,
    lock_timeout: &str,
) -> Result<RowRemoval> {
    let (client, name) = (&connection.client, &table.sql_name);
    let failed = || server_error(format!("could not remove the load's rows from {name}"));
    let begin = format!(
        "begin isolation level read committed; set local lock_timeout = '{lock_timeout}'; \
         set local statement_timeout = 0; lock table only {name} in access exclusive mode"
    );
    client.batch_execute(&begin).await.map_err(failed())?;
    table.as_written().check_unchanged(client).await?;
    let maintenance_facts = MaintenanceFacts::read_in_transaction(client, table).await?;
    // The triggers of the first copy have acted already, and subscribers would repeat a TRUNCATE.
    let has_effects = !table.triggers.is_empty()
        || maintenance_facts.is_published
        || maintenance_facts.has_delete_actions;
    if maintenance_facts.is_referenced || has_effects {
        return Ok(RowRemoval::Refused);
    }
    // The server hashes this list. It would search an array row by row.
    let our_transactions = format!("(select xmin from pgspate.ledger where job = {})", job.0);
    let sum = |counted: &str| {
        let job = job.0;
        format!(
            "(select coalesce(sum({counted}), 0)::bigint from pgspate.ledger where job = {job})"
        )
    };
    let query = format!(
        "select count(*) filter (where t.xmin in {our_transactions}), count(*), {}, {} \
         from only {name} t",
        sum("rows_written"),
        sum("rows_rejected")
    );
    let row = client.fetch_one(&query, &[]).await.map_err(failed())?;
    let [found, all, written, rejected] = [0, 1, 2, 3].map(|nth| row.get::<_, i64>(nth));
    if found < written {
        let is_plain =
            table.kind == 'r' && !table.row_security && table.storage.facts().extension.is_none();
        return Ok(match rejected == 0 && is_plain {
            true => RowRemoval::ChangedByOthers(written.abs_diff(found)),
            false => RowRemoval::Unknown,
        });
    }
    if found > written {
        // After a wraparound, transactions of other rows have the same ids.
        return Ok(RowRemoval::Refused);
    }
    let removed = if found == all {
        client.batch_execute(&format!("truncate only {name}")).await.map_err(failed())?;
        found
    } else {
        let sql = format!("delete from only {name} t where t.xmin in {our_transactions}");
        let deleted = client.run_statement(&sql, &[]).await.map_err(failed())?;
        i64::try_from(deleted).unwrap_or(i64::MAX)
    };
    if removed != found {
        return Ok(RowRemoval::Refused);
    }
    ledger::forget_chunks_and_shadow(client, job).await?;
    client.batch_execute("commit").await.map_err(failed())?;
    Ok(RowRemoval::Done)
}

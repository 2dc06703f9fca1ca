//! Takes indexes and foreign keys off a table, and rows that they would have refused.
//!
//! What is dropped is recorded in the same transaction, under a lock of the table that nobody else
//! can hold beside, and the decision is made again from what is found then.

use tokio_postgres::error::SqlState;

use crate::plan::care::{MaintenancePlan, MaintenanceFacts};
use crate::plan::{IndexChoice, LoadPlan, PlanRequest, AutoChoice};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{self, JobId, NewChange};
use pgspate_target::{AUTOVACUUM, Ask, Recipe, Table, Upkeep, server_error, users};

/// How long to wait for the table, during which others wait behind us: not long where the indexes
/// may as well stay.
const LOCK_AUTO: &str = "2s";
const LOCK_ASKED: &str = "10s";

/// Carries out what is planned, and records how to put it back. What was done in the end.
///
/// # Errors
/// When the server refuses something, or another session has the table; nothing is changed then.
pub(super) async fn alter(
    connection: &Connection,
    job: JobId,
    facts: MaintenanceFacts<'_>,
    plan: &LoadPlan,
    ask: &PlanRequest,
) -> Result<(MaintenancePlan, Upkeep)> {
    let altered = alter_within(connection, job, facts, plan, ask).await;
    if altered.is_err() {
        // The error that is told is the one before.
        let _ = connection.client.batch_execute("rollback").await;
    }
    altered
}

async fn alter_within(
    connection: &Connection,
    job: JobId,
    facts: MaintenanceFacts<'_>,
    plan: &LoadPlan,
    ask: &PlanRequest,
) -> Result<(MaintenancePlan, Upkeep)> {
    let (client, table) = (&connection.client, facts.table);
    let failed = || server_error(format!("could not drop the indexes of {}", table.sql_name));
    let is_asked =
        [ask.options.rebuild_indexes, ask.options.pause_autovacuum].contains(&AutoChoice::Always);
    let turn = if is_asked { LOCK_ASKED } else { LOCK_AUTO };
    // A table option is set beside readers and writers.
    let mode =
        if plan.care.drops_indexes() { "access exclusive" } else { "share update exclusive" };
    let sql = format!(
        "begin isolation level read committed; set local lock_timeout = '{turn}'; \
         set local statement_timeout = 0; lock table only {} in {mode} mode",
        table.sql_name
    );
    if let Err(error) = client.batch_execute(&sql).await {
        let is_locked = error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        let error = failed()(error);
        let _ = client.batch_execute("rollback").await;
        return Err(if is_locked { in_use(connection, table, error).await } else { error });
    }
    let upkeep = Upkeep::read_within(client, table).await?;
    let writer = ledger::writer(client, table.oid, job.0).await?;
    let facts = MaintenanceFacts { upkeep: &upkeep, writer: writer.as_deref(), ..facts };
    let care = MaintenancePlan::make(&facts, &plan.rows.columns, ask)?;
    let mut changes = Vec::new();
    let mut statements = Vec::new();
    for index in upkeep.indexes.iter().zip(&care.indexes) {
        let (index, IndexChoice { stays: None, .. }) = index else { continue };
        statements.push(index.drop.clone());
        changes.push(NewChange {
            kind: index.kind.name().to_owned(),
            object: index.name.clone(),
            steps: index.recipe.recorded(index.kind.name()),
            beside: index.beside,
        });
    }
    if care.autovacuum_pause.is_some() {
        let (off, change) = pause(table, &upkeep);
        statements.push(off);
        changes.push(change);
    }
    ledger::record(client, job, table.oid, &changes).await?;
    statements.push("commit".to_owned());
    client.batch_execute(&statements.join("; ")).await.map_err(failed())?;
    Ok((care, upkeep))
}

/// Names who has the table.
async fn in_use(connection: &Connection, table: &Table, error: Error) -> Error {
    let found = users(&connection.client, table.oid).await.unwrap_or_default();
    let who = match found.first() {
        Some(who) => format!("{who} uses it"),
        None => "another session used it".to_owned(),
    };
    Error::new(ErrorKind::Server, format!("could not lock {}: {who}", table.sql_name))
        .because(error)
        .hint(
            "Wait until that session is done, or leave the indexes with `--rebuild-indexes never`.",
        )
}

/// The statement that switches autovacuum off, and the change.
fn pause(table: &Table, upkeep: &Upkeep) -> (String, NewChange) {
    let names = ["autovacuum_enabled", "toast.autovacuum_enabled"];
    let tables = names.iter().zip(&upkeep.autovacuum).take(1 + usize::from(upkeep.has_toast));
    let options: Vec<_> = tables.map(|(name, set)| ((*name).to_owned(), set.clone())).collect();
    let off: Vec<_> = options.iter().map(|(name, _)| format!("{name} = off")).collect();
    let recipe = Recipe { options, ..Recipe::default() };
    let change = NewChange {
        kind: AUTOVACUUM.to_owned(),
        object: String::new(),
        steps: recipe.recorded(AUTOVACUUM),
        beside: false,
    };
    (format!("alter table {} set ({})", table.sql_name, off.join(", ")), change)
}

/// What has become of rows that were to be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeBack {
    Back,
    /// Somebody would notice: nothing is changed.
    Noticed,
    /// Other sessions have changed or deleted so many: nothing is changed.
    Changed(u64),
}

/// Takes the rows that the job has written out of the table again, and its chunks out of the
/// ledger. They are known by the transactions that also wrote the chunks; so a row that another
/// session has changed since is known no more, and all of them stay.
pub(super) async fn take_back(connection: &Connection, job: JobId, table: &Table) -> Result<TakeBack> {
    let taken = take_back_within(connection, job, table).await;
    if !matches!(taken, Ok(TakeBack::Done)) {
        let _ = connection.client.batch_execute("rollback").await;
    }
    taken
}

async fn take_back_within(connection: &Connection, job: JobId, table: &Table) -> Result<TakeBack> {
    let (client, name) = (&connection.client, &table.sql_name);
    let failed = || server_error(format!("could not take the rows back out of {name}"));
    let begin = format!(
        "begin isolation level read committed; set local lock_timeout = '{LOCK_ASKED}'; \
         set local statement_timeout = 0; lock table only {name} in access exclusive mode"
    );
    client.batch_execute(&begin).await.map_err(failed())?;
    let upkeep = Upkeep::read_within(client, table).await?;
    if upkeep.is_referenced || upkeep.has_delete_triggers {
        return Ok(TakeBack::WouldBeNoticed);
    }
    let ours =
        format!("any (array(select xmin from pgspate.ledger where job = {} group by 1))", job.0);
    let look = format!(
        "select count(*) filter (where t.xmin = {ours}), count(*), \
                (select coalesce(sum(rows_written), 0)::bigint from pgspate.ledger where job = {}) \
         from only {name} t",
        job.0
    );
    let row = client.ask_one(&look, &[]).await.map_err(failed())?;
    let [found, all, written] = [0, 1, 2].map(|nth| row.get::<_, i64>(nth));
    if found < written {
        return Ok(TakeBack::ChangedByOthers(written.abs_diff(found)));
    }
    let take = match found == all {
        true => format!("truncate only {name}"),
        false => format!("delete from only {name} t where t.xmin = {ours}"),
    };
    client.batch_execute(&take).await.map_err(failed())?;
    ledger::clear(client, job).await?;
    client.batch_execute("commit").await.map_err(failed())?;
    Ok(TakeBack::Done)
}

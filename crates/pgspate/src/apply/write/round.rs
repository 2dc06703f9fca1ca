//! Writes the folded rows of some events in the open transaction. One such pass is a round.

use std::sync::Arc;

use super::row_errors::{
    action_error, cascade_error, identity_error, lost_row_error, no_key_error,
    reinserted_meanwhile_error, same_key_error, taken_key_error,
};
use super::session::{StatementPlanning, WriterSession};
use super::steps::{RoundStep, RoundTable, StepAction, count_step, order_tables, round_steps};
use crate::apply::batch::EncodedTable;
use crate::apply::route::ApplyTable;
use crate::apply::watch::ApplyWatch;
use crate::apply::write::ApplyCounts;
use crate::apply::write::statements::{ApplyStatements, RowSource};
use crate::copy::temp_table;
use crate::format::EncodeMode;
use crate::{Error, ErrorKind, Result, ledger};
use pgspate_target::{pin_transaction_sql, users_path_sql};

/// Up to this many rows, settings make the planner use indexes.
const INDEX_LOOKUP_ROWS_MAX: u64 = 1000;

/// How the rows of a round are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundOptions {
    /// Whether unreferenced rows are deleted early even if foreign keys exist. Rows whose new
    /// unique values another row has are then deleted and inserted again, as no single statement
    /// could exchange the values.
    pub(super) reinserts: bool,
    /// Whether a round is refused in which actions of foreign keys may follow the wrong rows.
    pub(super) checks_actions: bool,
}

/// Writes the rows of a round, and returns counts.
pub(super) async fn write_tables(
    session: &mut WriterSession,
    tables: &[Arc<ApplyTable>],
    encoded: &[EncodedTable],
    options: RoundOptions,
    watch: &ApplyWatch,
) -> Result<ApplyCounts> {
    let RoundOptions { reinserts, checks_actions } = options;
    let round_tables = order_tables(tables, encoded, RowSource::Stage, reinserts);
    if let Some(round_table) =
        round_tables.iter().find(|round_table| round_table.encoded.has_key_conflict)
    {
        return Err(taken_key_error(&round_table.facts.table.sql_name));
    }
    if let Some(round_table) = round_tables.iter().find(|it| it.needs_row_addresses()) {
        return Err(no_key_error(round_table.facts));
    }
    if let Some(round_table) =
        round_tables.iter().find(|it| checks_actions && may_act_on_wrong_rows(it.facts, it.encoded))
    {
        return Err(action_error(&round_table.facts.table.sql_name));
    }
    let scans_table = |round_table: &RoundTable<'_>| {
        !round_table.facts.has_key() && round_table.encoded.deletes > 0
    };
    let is_small =
        round_tables.iter().map(RoundTable::row_count).sum::<u64>() <= INDEX_LOOKUP_ROWS_MAX;
    let can_explain = |round_table: &RoundTable<'_>| {
        round_table.facts.table.storage.facts().explains_joins_with_temporary_tables
    };
    let planning = match () {
        () if is_small && !round_tables.iter().any(scans_table) => StatementPlanning::ByIndex,
        () if round_tables.iter().all(can_explain) => StatementPlanning::Checked,
        () => StatementPlanning::Unchecked,
    };
    session.set_planning(planning).await?;
    let mut counts = ApplyCounts::default();
    truncate_tables(session, &round_tables, &mut counts).await?;
    for round_table in &round_tables {
        counts.missing += round_table.encoded.missing;
        if round_table.row_count() > 0 {
            stage_rows(session, round_table).await?;
        }
    }
    let is_run = |step: &RoundStep| checks_actions || step.action != StepAction::AskActingUpdates;
    let may_merge = session.may_merge && !is_small;
    let mut steps = round_steps(&round_tables, may_merge).into_iter().filter(is_run).peekable();
    while let Some(step) = steps.next() {
        if steps.peek().is_none() {
            watch.near_end_of_batch();
        }
        run_step(session, &step, &round_tables[step.round_table], &mut counts).await?;
    }
    // Re-inserted rows count as updates. A trigger may keep an inserted row out.
    counts.inserted = counts.inserted.saturating_sub(counts.reinserted);
    counts.reinserted = 0;
    // Cancelled pairs were neither looked up nor written.
    counts.missing -= counts.cancelled_pairs;
    counts.inserted += counts.cancelled_pairs;
    counts.deleted += counts.cancelled_pairs;
    counts.cancelled_pairs = 0;
    Ok(counts)
}

/// Runs a statement of a round and counts its result.
async fn run_step(
    session: &mut WriterSession,
    step: &RoundStep,
    round_table: &RoundTable<'_>,
    counts: &mut ApplyCounts,
) -> Result<()> {
    let facts = round_table.facts;
    let rows = match step.action {
        action if action.is_yes_or_no() => {
            match session.query_value::<bool>(&step.sql, &step.task).await? {
                true => return Err(refusal_after_yes(action, facts)),
                false => 0,
            }
        }
        action if action.returns_count() => {
            session.query_value::<i64>(&step.sql, &step.task).await?.unsigned_abs()
        }
        StepAction::Merge => {
            let before = session.count_written(facts.table.oid).await?;
            let written = session.execute(&step.sql, &step.task).await?;
            let after = session.count_written(facts.table.oid).await?;
            counts.add_merged(written, &before, &after);
            return Ok(());
        }
        StepAction::DeleteReinserted => {
            let marked = round_table.statements.count_reinserted();
            let marked = session.query_value::<i64>(&marked, &step.task).await?.unsigned_abs();
            match session.execute(&step.sql, &step.task).await? {
                deleted if deleted == marked => deleted,
                _ => return Err(reinserted_meanwhile_error(&facts.table.sql_name)),
            }
        }
        _ => session.execute(&step.sql, &step.task).await?,
    };
    count_step(step, round_table, rows, counts);
    Ok(())
}

/// Returns the error of a round whose question was answered with yes.
fn refusal_after_yes(question: StepAction, facts: &ApplyTable) -> Error {
    let name = &facts.table.sql_name;
    match question {
        StepAction::AskDuplicates => same_key_error(name),
        StepAction::AskKeyClaims => taken_key_error(name),
        StepAction::AskIdentityChanges => identity_error(facts),
        StepAction::AskCascades => cascade_error(name),
        StepAction::AskActingUpdates => action_error(name),
        StepAction::AskLostRows => lost_row_error(name),
        other => Error::new(ErrorKind::Bug, format!("{other:?} is no question with yes or no")),
    }
}

/// Updates the key of the only staged row in place, as the source's statement did. Returns false if
/// the row is missing or its key cannot be set.
pub(super) async fn move_row(
    session: &mut WriterSession,
    facts: &ApplyTable,
    encoded: &EncodedTable,
) -> Result<bool> {
    let statements = ApplyStatements::new(facts, encoded, RowSource::Stage, false);
    let round_table = RoundTable { facts, encoded, statements };
    let Some(sql) = round_table.statements.move_row() else { return Ok(false) };
    session.set_planning(StatementPlanning::ByIndex).await?;
    stage_rows(session, &round_table).await?;
    let task = format!("update the key of a row of {}", facts.table.sql_name);
    Ok(session.execute(&sql, &task).await? == 1)
}

/// Truncates the tables that the events truncate.
async fn truncate_tables(
    session: &WriterSession,
    round_tables: &[RoundTable<'_>],
    counts: &mut ApplyCounts,
) -> Result<()> {
    let emptied = round_tables.iter().filter(|round_table| round_table.encoded.truncates);
    let names: Vec<_> =
        emptied.map(|round_table| round_table.facts.sql_without_children()).collect();
    if names.is_empty() {
        return Ok(());
    }
    counts.truncated += names.len() as u64;
    // One statement for all tables, because foreign keys among them require that.
    let names = names.join(", ");
    let task = format!("truncate {names}");
    session.run(&task, &task).await?;
    session.run(&pin_transaction_sql(), &task).await?;
    for round_table in round_tables.iter().filter(|round_table| round_table.encoded.truncates) {
        let (client, oid) = (&session.connection.client, round_table.facts.table.oid);
        let emptied = ledger::record_emptied_sql(client, oid, None).await?;
        session.run(&emptied, &task).await?;
    }
    session.run(&users_path_sql(true), &task).await
}

/// Copies the rows of a table into its stage.
async fn stage_rows(session: &mut WriterSession, round_table: &RoundTable<'_>) -> Result<()> {
    session.ensure_stage(round_table.facts).await?;
    let copy_data = &round_table.encoded.copy_data;
    let (binary_rows, text_rows) = (copy_data.binary_rows, copy_data.text_rows.len() as u64);
    let name = &round_table.facts.table.sql_name;
    let failed = |error: Error| {
        let kind = error.kind();
        Error::new(kind, format!("could not stage rows for {name}")).because(error)
    };
    let staged = session.stage_for_rows(round_table.facts.table.oid, binary_rows + text_rows);
    let Some(staged) = staged else { return Err(Error::new(ErrorKind::Bug, "there is no stage")) };
    let (binary, text) = (staged.binary.clone(), staged.text.clone());
    let connection = &session.connection;
    for (mode, statement, rows, count) in [
        (EncodeMode::Binary, &binary, &copy_data.binary, binary_rows),
        (EncodeMode::Text, &text, &copy_data.text, text_rows),
    ] {
        if count > 0 {
            temp_table::copy_rows(connection, statement, mode, rows, count)
                .await
                .map_err(failed)?;
        }
    }
    Ok(())
}

/// Checks whether a row gets the key that another row had, while a foreign key to the table has an
/// action. The table's row is updated in place, so rows that refer to it would now refer to another
/// row.
pub(super) fn may_act_on_wrong_rows(facts: &ApplyTable, encoded: &EncodedTable) -> bool {
    encoded.reuses_keys && facts.has_acting_referrers
}

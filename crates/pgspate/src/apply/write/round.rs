//! Writes the folded rows of some events in the open transaction. One such pass is a round.
//!
//! Rows are deleted first, so that their unique values are free. Rows that other rows may reference
//! are deleted last. So no foreign key is violated, and no foreign key's action changes rows that
//! refer to another row by then.
//! Referenced tables are written before the tables that refer to them. The statements and their
//! order are the same for staged rows and for parameters.

use std::sync::Arc;

use super::row_errors::{
    action_error, cascade_error, identity_error, lost_row_error, no_key_error,
    reinserted_meanwhile_error, same_key_error, taken_key_error,
};
use super::session::{StatementPlanning, WriterSession};
use crate::apply::batch::EncodedTable;
use crate::apply::route::{ApplyTable, parents_first};
use crate::apply::watch::ApplyWatch;
use crate::apply::write::ApplyCounts;
use crate::apply::write::statements::{ApplyStatements, RowSource};
use crate::copy::temp_table;
use crate::format::EncodeMode;
use crate::{Error, ErrorKind, Result, ledger};
use pgspate_target::{pin_transaction_sql, users_path_sql};

/// Up to this many rows, settings make the planner use indexes.
const INDEX_LOOKUP_ROWS_MAX: u64 = 1000;

/// A table of a round, with its rows and statements.
pub(super) struct RoundTable<'a> {
    pub(super) facts: &'a ApplyTable,
    pub(super) encoded: &'a EncodedTable,
    statements: ApplyStatements<'a>,
}

/// Returns the tables of a round, referenced tables first. `reinserts`: as in [`RoundOptions`].
pub(super) fn order_tables<'a>(
    tables: &'a [Arc<ApplyTable>],
    encoded: &'a [EncodedTable],
    source: RowSource,
    reinserts: bool,
) -> Vec<RoundTable<'a>> {
    let round_table = |encoded: &'a EncodedTable| {
        let facts = &*tables[encoded.table];
        let statements =
            ApplyStatements::new(facts, encoded, source, reinserts && facts.may_reinsert());
        RoundTable { facts, encoded, statements }
    };
    let facts: Vec<_> = encoded.iter().map(|it| &*tables[it.table]).collect();
    let mut round_tables: Vec<_> =
        parents_first(&facts).into_iter().zip(encoded.iter().map(round_table)).collect();
    round_tables.sort_by_key(|(place, _)| *place);
    round_tables.into_iter().map(|(_, round_table)| round_table).collect()
}

impl RoundTable<'_> {
    /// Returns the number of staged rows.
    pub(super) fn row_count(&self) -> u64 {
        self.encoded.deletes + self.encoded.upserts
    }

    /// Checks whether rows are deleted for which the table has neither a key nor addresses.
    fn needs_row_addresses(&self) -> bool {
        let has_row_addresses = self.facts.table.storage.facts().has_row_addresses;
        self.encoded.deletes > 0 && !self.facts.has_key() && !has_row_addresses
    }

    /// Checks whether rows of a table without a key are deleted first, which frees their unique
    /// values. If other rows may refer to them, a foreign key would refuse or cascade the delete.
    fn deletes_whole_rows_first(&self) -> bool {
        !self.facts.has_key() && self.facts.referrers.is_empty()
    }
}

/// A statement on the rows of a table.
pub(super) struct RoundStep {
    /// The position of the table in the round.
    pub(super) round_table: usize,
    pub(super) sql: String,
    /// Completes "could not" in messages.
    pub(super) task: String,
    pub(super) action: StepAction,
}

/// What a statement does, or what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepAction {
    /// Fills in absent columns of staged rows, from the target's rows or from defaults.
    FillIn,
    /// Stages rows to be deleted and inserted again, so that other rows can take their unique
    /// values.
    Reinsert,
    /// Locks rows that are deleted and written again, against updates and new references.
    LockRows,
    /// Deletes the rows that are inserted again.
    DeleteReinserted,
    Delete,
    /// Removes pairs of an inserted and a deleted row from the stage, for a table without a key.
    CancelPairs,
    /// Deletes whole rows of a table without a key.
    DeleteWholeRows,
    Update,
    Insert,
    /// Asks how many rows the next statement writes if no trigger keeps them out.
    AskExpected,
    /// Asks whether a key is staged twice.
    AskDuplicates,
    /// Asks whether a row takes a key that another row of the target has.
    AskKeyClaims,
    /// Asks whether an update sets a column that is `generated always as identity`.
    AskIdentityChanges,
    /// Asks how many updated rows are missing in the target.
    AskMissing,
    /// Asks whether deleting the old row of a changed key would cascade to other rows.
    AskCascades,
    /// Asks whether an update outside the key would change other rows, too.
    AskActingUpdates,
    /// Asks whether the table lacks a row that was deleted and inserted again.
    AskLostRows,
}

impl StepAction {
    /// Checks whether the statement returns a value.
    pub(super) fn returns_value(self) -> bool {
        self.is_yes_or_no() || self.returns_count()
    }

    /// Checks whether the statement asks a question that yes answers with a refusal.
    fn is_yes_or_no(self) -> bool {
        use StepAction::{
            AskActingUpdates, AskCascades, AskDuplicates, AskIdentityChanges, AskKeyClaims,
            AskLostRows,
        };
        matches!(
            self,
            AskDuplicates
                | AskKeyClaims
                | AskIdentityChanges
                | AskCascades
                | AskActingUpdates
                | AskLostRows
        )
    }

    /// Checks whether the statement returns a number of rows.
    pub(super) fn returns_count(self) -> bool {
        matches!(self, StepAction::AskMissing | StepAction::AskExpected | StepAction::LockRows)
    }
}

/// Returns the statements of a round in their order.
pub(super) fn round_steps(round_tables: &[RoundTable<'_>]) -> Vec<RoundStep> {
    let mut steps = StepList { round_tables, steps: Vec::new() };
    let is_single_row = round_tables.iter().map(RoundTable::row_count).sum::<u64>() == 1;
    for (at, round_table) in
        round_tables.iter().enumerate().filter(|(_, round_table)| round_table.row_count() > 0)
    {
        steps.add_fill_ins(at, round_table);
        if !is_single_row && let Some(sql) = round_table.statements.acting_updates() {
            steps.add(at, StepAction::AskActingUpdates, "look up what refers to @", sql);
        }
    }
    let is_early = |round_table: &RoundTable<'_>| {
        !round_table.facts.is_referenced || round_table.statements.reinserts()
    };
    for (at, round_table) in round_tables.iter().enumerate().rev() {
        steps.add_delete_reinserted(at, round_table);
        if is_early(round_table) {
            steps.add_delete(at, round_table, true);
        }
        if round_table.deletes_whole_rows_first() {
            steps.add_delete_whole_rows(at, round_table);
        }
    }
    for (at, round_table) in round_tables.iter().enumerate() {
        let inserts_first = round_table.facts.refers_to_itself() || !round_table.facts.has_key();
        if inserts_first {
            steps.add_insert(at, round_table);
        }
        steps.add_update(at, round_table);
        if !inserts_first {
            steps.add_insert(at, round_table);
        }
        if !round_table.deletes_whole_rows_first() {
            steps.add_delete_whole_rows(at, round_table);
        }
    }
    for (at, round_table) in round_tables.iter().enumerate().rev() {
        if !round_table.facts.is_referenced {
            continue;
        }
        if let (Some(sql), true) =
            (round_table.statements.cascades(), round_table.encoded.has_moved_away)
        {
            steps.add(at, StepAction::AskCascades, "look up what refers to @", sql);
        }
        steps.add_delete(at, round_table, false);
    }
    steps.steps
}

/// Collects the statements of a round.
struct StepList<'a> {
    round_tables: &'a [RoundTable<'a>],
    steps: Vec<RoundStep>,
}

impl StepList<'_> {
    /// Adds a statement. `@` in `task` stands for the table's name.
    fn add(&mut self, round_table: usize, action: StepAction, task: &str, sql: String) {
        let task = task.replace('@', &self.round_tables[round_table].facts.table.sql_name);
        self.steps.push(RoundStep { round_table, sql, task, action });
    }

    /// Adds statements that fill in columns of staged rows, and that check and count keys.
    fn add_fill_ins(&mut self, at: usize, round_table: &RoundTable<'_>) {
        let (encoded, statements) = (round_table.encoded, &round_table.statements);
        if !round_table.facts.has_key() {
            self.add_cancel_pairs(at, round_table);
            return;
        }
        if encoded.has_key_claims {
            let task = "look up exchanged keys of @";
            self.add(at, StepAction::AskKeyClaims, task, statements.key_conflicts());
            self.add(at, StepAction::FillIn, task, statements.forget_key_claims());
        }
        if encoded.may_repeat_keys && round_table.row_count() > 1 {
            let sql = statements.duplicate_keys();
            self.add(at, StepAction::AskDuplicates, "compare the keys of staged rows of @", sql);
        }
        if encoded.has_moved_rows {
            if let Some(sql) = statements.lock_moved_rows() {
                self.add(at, StepAction::LockRows, "lock rows of @ whose key changes", sql);
            }
            let task = "look up rows of @ whose key changes";
            self.add(at, StepAction::FillIn, task, statements.fill_moved_rows());
        }
        if encoded.has_defaults {
            self.add(at, StepAction::FillIn, "fill in defaults of @", statements.fill_defaults());
        }
        if encoded.has_updates {
            let task = "look up rows of @ that are updated";
            self.add(at, StepAction::AskMissing, task, statements.missing_rows());
        }
        let task = "look up rows of @ that exchange unique values";
        if statements.reinserts() {
            self.add(at, StepAction::LockRows, task, statements.lock_unique_changes());
        }
        for sql in statements.reinsert_sql() {
            self.add(at, StepAction::Reinsert, task, sql);
        }
    }

    /// Adds the statements that remove pairs of inserted and deleted rows of a table without a key.
    fn add_cancel_pairs(&mut self, at: usize, round_table: &RoundTable<'_>) {
        let (encoded, statements) = (round_table.encoded, &round_table.statements);
        if encoded.deletes == 0 || encoded.upserts == 0 {
            return;
        }
        if let Some(sql) = statements.fill_whole_rows() {
            self.add(at, StepAction::FillIn, "fill in defaults of @", sql);
        }
        self.add(
            at,
            StepAction::CancelPairs,
            "compare staged rows of @",
            statements.cancel_pairs(),
        );
    }

    /// Adds the DELETE of whole rows of a table without a key. If rows are inserted, too, a deleted
    /// row may be the old row of an update.
    fn add_delete_whole_rows(&mut self, at: usize, round_table: &RoundTable<'_>) {
        if round_table.encoded.deletes > 0 && !round_table.facts.has_key() {
            if round_table.encoded.upserts > 0
                && let Some(sql) = round_table.statements.cascades()
            {
                self.add(at, StepAction::AskCascades, "look up what refers to @", sql);
            }
            self.add(
                at,
                StepAction::DeleteWholeRows,
                "delete rows of @",
                round_table.statements.delete_whole_rows(),
            );
        }
    }

    /// Adds the statements that delete the rows to insert again.
    fn add_delete_reinserted(&mut self, at: usize, round_table: &RoundTable<'_>) {
        let statements = &round_table.statements;
        if !statements.reinserts() || round_table.encoded.upserts == 0 {
            return;
        }
        let sql = statements.delete_reinserted();
        self.add(at, StepAction::DeleteReinserted, "delete rows of @", sql);
    }

    /// Adds the DELETE of rows by key. With `is_early`, the DELETE runs before the inserts.
    fn add_delete(&mut self, at: usize, round_table: &RoundTable<'_>, is_early: bool) {
        if round_table.encoded.deletes > 0 && round_table.facts.has_key() {
            let statements = &round_table.statements;
            // A row that an early DELETE leaves is counted before the late one.
            if !(is_early && round_table.facts.is_referenced) {
                self.add_expected(at, || statements.count_deletes(is_early));
            }
            self.add(at, StepAction::Delete, "delete rows of @", statements.delete(is_early));
        }
    }

    /// Adds the question how many rows the next statement writes, if triggers may keep rows out.
    fn add_expected(&mut self, at: usize, count_sql: impl FnOnce() -> String) {
        if self.round_tables[at].facts.may_keep_rows_out {
            self.add(at, StepAction::AskExpected, "count rows of @", count_sql());
        }
    }

    /// Adds the UPDATE, unless the table was truncated or has no key.
    fn add_update(&mut self, at: usize, round_table: &RoundTable<'_>) {
        let has_no_rows_to_update = round_table.encoded.truncates || !round_table.facts.has_key();
        if round_table.encoded.upserts > 0
            && !has_no_rows_to_update
            && let Some(sql) = round_table.statements.update()
        {
            if let Some(sql) = round_table.statements.identity_changes() {
                let task = "compare identity columns of @";
                self.add(at, StepAction::AskIdentityChanges, task, sql);
            }
            self.add_expected(at, || round_table.statements.count_updates());
            self.add(at, StepAction::Update, "update rows of @", sql);
        }
    }

    /// Adds the INSERT.
    fn add_insert(&mut self, at: usize, round_table: &RoundTable<'_>) {
        if round_table.encoded.upserts > 0 {
            let statements = &round_table.statements;
            self.add_expected(at, || statements.count_inserts());
            self.add(at, StepAction::Insert, "insert rows into @", statements.insert());
            if statements.reinserts() {
                let task = "look up inserted rows of @";
                self.add(at, StepAction::AskLostRows, task, statements.lost_reinserted());
            }
        }
    }
}

/// Adds a statement's result: the rows that it wrote, or the number that it asked for.
pub(super) fn count_step(
    step: &RoundStep,
    round_table: &RoundTable<'_>,
    rows: u64,
    counts: &mut ApplyCounts,
) {
    if matches!(step.action, StepAction::Delete | StepAction::Update | StepAction::Insert) {
        counts.changes_kept_out += std::mem::take(&mut counts.expected).saturating_sub(rows);
    }
    match step.action {
        StepAction::AskExpected => counts.expected = rows,
        StepAction::Delete => counts.deleted += rows,
        StepAction::DeleteWholeRows => {
            counts.deleted += rows;
            counts.missing += round_table.encoded.deletes.saturating_sub(rows);
        }
        StepAction::CancelPairs => counts.cancelled_pairs += rows / 2,
        StepAction::Update => counts.updated += rows,
        StepAction::Insert => counts.inserted += rows,
        StepAction::AskMissing => counts.missing += rows,
        StepAction::Reinsert => {
            counts.updated += rows;
            counts.reinserted += rows;
        }
        StepAction::FillIn
        | StepAction::LockRows
        | StepAction::DeleteReinserted
        | StepAction::AskDuplicates
        | StepAction::AskKeyClaims
        | StepAction::AskIdentityChanges
        | StepAction::AskCascades
        | StepAction::AskActingUpdates
        | StepAction::AskLostRows => {}
    }
}

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
    let mut steps = round_steps(&round_tables).into_iter().filter(is_run).peekable();
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

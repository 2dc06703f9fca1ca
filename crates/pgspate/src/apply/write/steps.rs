//! The statements that write the tables of a round, in their order.
//!
//! Rows are deleted first, so that their unique values are free. Rows that other rows may reference
//! are deleted last. So no foreign key is violated, and no foreign key's action changes rows that
//! refer to another row by then.
//! Referenced tables are written before the tables that refer to them. The statements and their
//! order are the same for staged rows and for parameters. But many staged rows of a table are
//! merged if their order does not matter.

use std::sync::Arc;

use crate::apply::batch::EncodedTable;
use crate::apply::route::{ApplyTable, parents_first};
use crate::apply::write::ApplyCounts;
use crate::apply::write::statements::{ApplyStatements, RowSource};

/// A table of a round, with its rows and statements.
pub(super) struct RoundTable<'a> {
    pub(super) facts: &'a ApplyTable,
    pub(super) encoded: &'a EncodedTable,
    pub(super) statements: ApplyStatements<'a>,
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
    pub(super) fn needs_row_addresses(&self) -> bool {
        let has_row_addresses = self.facts.table.storage.facts().has_row_addresses;
        self.encoded.deletes > 0 && !self.facts.has_key() && !has_row_addresses
    }

    /// Checks whether MERGE may write the rows. A deleted row then does not free its unique values
    /// for other rows, nor do other tables of the round find the row deleted.
    fn is_mergeable(&self, round_tables: &[RoundTable<'_>]) -> bool {
        // A partitioned table may be the one of which this table is a partition.
        let is_earlier = |other: &RoundTable<'_>| {
            other.facts.table.kind == 'p' || self.facts.parent_oids.contains(&other.facts.table.oid)
        };
        let inserts = self.encoded.has_inserts && !self.encoded.truncates;
        let is_alone = !self.facts.is_referenced && !round_tables.iter().any(is_earlier);
        inserts && is_alone && !self.statements.reinserts() && self.facts.may_merge()
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
    /// Deletes, updates and inserts, after one lookup of each row.
    Merge,
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
    pub(super) fn is_yes_or_no(self) -> bool {
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

/// Returns the statements of a round in their order. `may_merge`: the server has MERGE, and there
/// are so many rows that it pays.
pub(super) fn round_steps(round_tables: &[RoundTable<'_>], may_merge: bool) -> Vec<RoundStep> {
    let mut steps = StepList { round_tables, steps: Vec::new() };
    let merges: Vec<_> =
        round_tables.iter().map(|it| may_merge && it.is_mergeable(round_tables)).collect();
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
        if is_early(round_table) && !merges[at] {
            steps.add_delete(at, round_table, true);
        }
        if round_table.deletes_whole_rows_first() {
            steps.add_delete_whole_rows(at, round_table);
        }
    }
    for (at, round_table) in round_tables.iter().enumerate() {
        if merges[at] {
            steps.add_merge(at, round_table);
            continue;
        }
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
            self.add_identity_question(at, round_table);
            self.add_expected(at, || round_table.statements.count_updates());
            self.add(at, StepAction::Update, "update rows of @", sql);
        }
    }

    /// Adds the MERGE, which deletes, updates and inserts.
    fn add_merge(&mut self, at: usize, round_table: &RoundTable<'_>) {
        self.add_identity_question(at, round_table);
        let sql = round_table.statements.merge(round_table.encoded);
        self.add(at, StepAction::Merge, "merge rows into @", sql);
    }

    /// Adds the question whether an update sets an identity column, if it may.
    fn add_identity_question(&mut self, at: usize, round_table: &RoundTable<'_>) {
        if let Some(sql) = round_table.statements.identity_changes() {
            let task = "compare identity columns of @";
            self.add(at, StepAction::AskIdentityChanges, task, sql);
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
        | StepAction::Merge
        | StepAction::AskDuplicates
        | StepAction::AskKeyClaims
        | StepAction::AskIdentityChanges
        | StepAction::AskCascades
        | StepAction::AskActingUpdates
        | StepAction::AskLostRows => {}
    }
}

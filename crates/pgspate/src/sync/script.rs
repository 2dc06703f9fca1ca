//! A sync as SQL statements, for a session of another program.
//!
//! The other program can make the sync a part of its own transaction. It stages the rows, runs the
//! statements in order, and acts on their results. [`PreparedSync::run`] runs the same statements.

use serde::Serialize;

use super::statements::{DIFF, SyncStatements};
use super::{PreparedSync, attempts};
use crate::stage;
use crate::stage::planner;
use pgspate_target::cascading_keys_sql;
use pgspate_target::measure::TransactionCounters;

/// The statements to run. Each string is one statement.
#[derive(Debug, Clone, Serialize)]
pub struct SyncScript {
    /// The table's name in SQL.
    pub table: String,
    /// The table's oid. The caller can check that the table's name means the same table in its
    /// session.
    pub oid: u32,
    /// Statements that wait for other syncs of the same rows and create the stage.
    pub begin: Vec<String>,
    /// Settings of the transaction, for all statements. A shorter `lock_timeout` of the caller
    /// stays.
    pub settings: Vec<String>,
    /// Names of these settings, so that the caller can restore them.
    pub setting_names: Vec<String>,
    /// The stage table's name in SQL.
    pub stage: &'static str,
    /// The stage table's columns, unquoted, in order.
    pub columns: Vec<String>,
    /// Statements to run after the rows are staged.
    pub staged: Vec<String>,
    /// Query for the number of staged rows.
    pub count_staged: String,
    /// Query for the number of source rows outside the scope, and of source rows with the key of a
    /// table row outside the scope. If a number is not zero, the caller must stop.
    pub rows_outside_scope: Option<String>,
    /// Query for the number of source rows with the key of a table row in a scope that the source
    /// does not have. If the number is not zero, the caller must stop.
    pub keys_in_other_scopes: Option<String>,
    /// Query for duplicate keys of the source, one key per row. If there is a row, the caller must
    /// stop.
    pub duplicates: Option<String>,
    /// Query for keys of the source that the table has more than once, one key per row. If there is
    /// a row, the caller must stop.
    pub table_duplicates: Option<String>,
    /// Statements that find the differences.
    pub compare: Vec<String>,
    /// Query for the numbers of rows to delete, to update and to insert.
    pub count: String,
    /// Statement that deletes rows.
    pub delete: Option<String>,
    /// Statement that updates rows.
    pub update: Option<String>,
    /// Statement that inserts rows.
    pub insert: String,
    /// Query for the number of the table's rows that the transaction has deleted or updated. If it
    /// grows by more than the differences, the caller must refuse what `cascading_keys` returns.
    pub count_changed: String,
    /// Query for foreign keys that write rows of the table when other rows of it are written.
    pub cascading_keys: String,
    /// Statements that release the snapshot and drop the temporary tables.
    pub end: Vec<String>,
    /// Whether the caller must refuse a source without rows, because it would delete everything.
    pub must_have_rows: bool,
    /// Maximum percentage of the scope's rows that may be deleted.
    pub max_delete: f64,
    /// Whether the caller must only count the differences and write nothing.
    pub is_check: bool,
}

impl PreparedSync {
    /// Returns the statements of this sync, for another session. Changes and stages nothing.
    pub fn script(&self) -> SyncScript {
        // The caller's session has a single transaction.
        let statements = SyncStatements { split: None, ..self.build_statements() };
        let table = &self.staging.table;
        let columns: Vec<_> = self.staging.plan.columns.iter().map(|it| it.name.clone()).collect();
        let stage = &self.staging.stage;
        let locks = attempts::SyncLock::of_sync(self);
        let locks = locks.iter().map(|lock| format!("select {}", lock.call_sql("xact_lock")));
        let drop = |name: &str| format!("drop table if exists {name}");
        let keeps_last = self.options.keeps_last;
        let drop_duplicates = keeps_last.then(|| statements.drop_duplicates());
        let analyze = format!("analyze {} ({})", stage::STAGE_NAME, statements.lookup_columns());
        let (deletes, updates) = self.allowed_writes();
        let mut settings: Vec<String> =
            planner::SETTINGS.split(';').map(|it| it.trim().into()).collect();
        let name = |it: &String| it.split_whitespace().nth(2).unwrap_or_default().to_owned();
        let mut setting_names: Vec<String> = settings.iter().map(name).collect();
        setting_names.push("lock_timeout".to_owned());
        let timeout = self.options.limits.lock_timeout_millis();
        if timeout > 0 {
            settings.push(format!(
                "select set_config('lock_timeout', '{timeout}', true) from pg_settings \
                 where name = 'lock_timeout' and setting::int4 not between 1 and {timeout}"
            ));
        }
        SyncScript {
            table: table.sql_name.clone(),
            oid: table.oid,
            begin: locks
                .chain([drop(stage::STAGE_NAME)])
                .chain(stage.create_statements().iter().cloned())
                .collect(),
            setting_names,
            settings,
            stage: stage::STAGE_NAME,
            columns,
            staged: drop_duplicates.into_iter().chain([analyze]).collect(),
            count_staged: format!("select count(*) from {}", stage::STAGE_NAME),
            rows_outside_scope: statements.rows_outside_scope(),
            keys_in_other_scopes: statements.keys_in_other_scopes(),
            duplicates: (!keeps_last).then(|| statements.duplicates()),
            table_duplicates: statements.duplicates_in_table(),
            // Here plans are not checked before the statements run, so all columns are analyzed.
            compare: vec![
                // The statements that write find rows by their addresses. As long as a cursor holds
                // a snapshot, no row that the comparison sees is removed, so that no other row
                // gets its address.
                "declare pgspate_snapshot no scroll cursor for select 1".to_owned(),
                statements.diff(),
                format!("analyze {DIFF}"),
                "set local enable_nestloop = on".to_owned(),
            ],
            count: statements.count_differences(),
            delete: deletes.then(|| statements.delete()),
            update: updates.then(|| statements.update()),
            insert: statements.insert(),
            count_changed: TransactionCounters::changed_sql(table.oid),
            cascading_keys: cascading_keys_sql(table.oid),
            end: vec!["close pgspate_snapshot".to_owned(), drop(DIFF), drop(stage::STAGE_NAME)],
            must_have_rows: self.must_have_rows(),
            max_delete: self.options.max_delete,
            is_check: self.options.is_check,
        }
    }
}

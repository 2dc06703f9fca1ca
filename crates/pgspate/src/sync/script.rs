//! A sync as statements, for a session that is not pgspate's own.
//!
//! For whoever wants a sync to be part of a transaction that another program has begun. The
//! statements are those of [`PreparedSync::run`]; that program stages the rows, runs them in their
//! order, and heeds what they tell.

use serde::Serialize;

use super::statements::{DIFF, Scope, SyncStatements};
use super::{PreparedSync, write};
use crate::stage;
use crate::stage::pin;

/// What to run, one statement each.
#[derive(Debug, Clone, Serialize)]
pub struct Script {
    /// The table, as SQL writes it.
    pub table: String,
    /// Its oid, for another session to see that it means the same table.
    pub oid: u32,
    /// Waits for other syncs of the same rows, and makes the stage.
    pub begin: Vec<String>,
    /// Settings for the statements from `staged` on, for the transaction.
    pub settings: Vec<String>,
    /// The names of these settings, by which they are put back.
    pub setting_names: Vec<String>,
    /// The table that rows are to be staged in, as SQL writes it.
    pub stage: &'static str,
    /// Its columns, unquoted, in its order.
    pub columns: Vec<String>,
    /// When rows are staged.
    pub staged: Vec<String>,
    /// How many rows are staged.
    pub count_staged: String,
    /// Refuse to go on if this finds anything: rows outside the scope, keys that are taken there.
    pub strays: Option<String>,
    /// Likewise: keys of rows in other scopes.
    pub movers: Option<String>,
    /// Likewise, a row for each: keys that the source has more than once.
    pub duplicates: Option<String>,
    /// Likewise, a row for each: keys of the source that the table has more than once.
    pub table_duplicates: Option<String>,
    /// Finds what differs.
    pub compare: Vec<String>,
    /// How many rows are to be deleted, updated and inserted.
    pub count: String,
    /// Deletes them.
    pub delete: Option<String>,
    /// Updates them.
    pub update: Option<String>,
    /// Inserts them.
    pub insert: String,
    /// Takes away what was made.
    pub end: Vec<String>,
    /// Whether a source without rows would delete everything, and may not.
    pub must_have_rows: bool,
    /// At most such a share of the scope may be deleted, in percent.
    pub max_delete: f64,
    /// Nothing is to be written.
    pub is_check: bool,
}

impl PreparedSync {
    /// The sync for another session. Nothing is changed or staged by this.
    pub fn script(&self) -> Script {
        // It is one transaction, the caller's.
        let statements = SyncStatements { turns: None, ..self.build() };
        let table = &self.staging.table;
        let columns: Vec<_> = self.staging.plan.columns.iter().map(|it| it.name.clone()).collect();
        let stage = &self.staging.stage;
        let lock = format!(
            "select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('{}', {}))",
            write::scope(self).replace('\'', "''"),
            table.oid
        );
        let drop = |name: &str| format!("drop table if exists {name}");
        let keeps_last = self.options.keeps_last;
        let drop_duplicates = keeps_last.then(|| statements.drop_duplicates());
        let analyze = format!("analyze {} ({})", stage::NAME, statements.finding());
        let (deletes, updates) = self.writes();
        let all = matches!(self.options.scope, Scope::All | Scope::Where(_));
        let settings: Vec<String> = pin::SETTINGS.split(';').map(|it| it.trim().into()).collect();
        let name = |it: &String| it.split_whitespace().nth(2).unwrap_or_default().to_owned();
        Script {
            table: table.sql_name.clone(),
            oid: table.oid,
            begin: vec![lock, drop(stage::NAME), stage.create().to_owned()],
            setting_names: settings.iter().map(name).collect(),
            settings,
            stage: stage::NAME,
            columns,
            staged: drop_duplicates.into_iter().chain([analyze]).collect(),
            count_staged: format!("select count(*) from {}", stage::NAME),
            strays: statements.strays(),
            movers: statements.movers(),
            duplicates: (!keeps_last).then(|| statements.duplicates()),
            table_duplicates: statements.duplicates_in_table(),
            // Statistics of all of it: no plan is looked at before it is run.
            compare: vec![
                statements.diff(),
                format!("analyze {DIFF}"),
                "set local enable_nestloop = on".to_owned(),
            ],
            count: statements.count(),
            delete: deletes.then(|| statements.delete()),
            update: updates.then(|| statements.update()),
            insert: statements.insert(),
            end: vec![drop(DIFF), drop(stage::NAME)],
            must_have_rows: all && !self.options.may_empty && !self.options.is_check,
            max_delete: self.options.max_delete,
            is_check: self.options.is_check,
        }
    }
}

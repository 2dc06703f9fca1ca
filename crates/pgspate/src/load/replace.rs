//! `--replace` and `--atomic` in one transaction: the SQL before and after the COPY of the single
//! lane.
//!
//! No other session sees a change before the commit, and a rollback leaves the table as it was.

use super::{Load, LoadOptions};
use crate::Result;
use crate::copy::SurroundingSql;
use crate::plan::{AtomicMethod, AtomicPlan};
use pgspate_target::connect::Connection;
use pgspate_target::{IncomingForeignKey, TableDependencies, TargetTable, ledger};

/// Reads the objects that depend on the table, if `--replace` or `--atomic` needs to know them. A
/// missing table has none.
pub(super) async fn bonds(
    options: &LoadOptions,
    connection: &Connection,
    table: Option<&TargetTable>,
) -> Result<Option<TableDependencies>> {
    match table.filter(|_| options.plan.replace.is_some() || options.plan.atomic) {
        Some(table) => TableDependencies::read(&connection.client, table).await.map(Some),
        None => Ok(None),
    }
}

impl Load {
    /// Returns the SQL around COPY, if all rows are replaced in one transaction. Returns `None` if
    /// that transaction is committed already, although its reply was lost.
    pub(super) fn surrounding_sql(&self) -> Result<Option<SurroundingSql>> {
        let Some(at_once) = &self.plan.at_once else { return Ok(None) };
        let is_done = self.job.opened.as_ref().is_some_and(|opened| opened.done.chunks() > 0);
        if at_once.method != AtomicMethod::OneTransaction || !at_once.replaces || is_done {
            return Ok(None);
        }
        let job = self.job.id();
        let oid = self.created_oid.unwrap_or(self.table.oid);
        let emptied = ledger::record_emptied_sql(self.job.client(), oid, job);
        let emptied = self.job.own.runtime.block_on(emptied)?;
        Ok(Some(replace_sql(&self.plan.table, at_once, &emptied)))
    }
}

/// Builds the SQL of the transaction that replaces all rows.
fn replace_sql(table: &str, at_once: &AtomicPlan, emptied: &str) -> SurroundingSql {
    let (mut before, mut after) = (String::new(), String::new());
    for IncomingForeignKey { table: other, name, definition, comment, .. } in &at_once.references {
        before += &format!("alter table {other} drop constraint {name}; ");
        after += &format!("alter table {other} add constraint {name} {definition}; ");
        if let Some(comment) = comment {
            let comment = comment.replace('\'', "''");
            after += &format!(
                "comment on constraint {name} on {other} is E'{}'; ",
                escape_backslashes(&comment)
            );
        }
    }
    before += &format!("truncate {table}; {emptied}");
    SurroundingSql { before, after }
}

/// Escapes backslashes for an `E''` string, which does not depend on `standard_conforming_strings`.
fn escape_backslashes(text: &str) -> String {
    text.replace('\\', "\\\\")
}

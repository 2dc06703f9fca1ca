//! `--replace` in one transaction: the SQL before and after the COPY of the single lane.
//!
//! No other session sees a change before the commit. A rollback leaves the table as it was.

use super::{Load, LoadOptions};
use crate::Result;
use crate::copy::{CopyOutcome, SurroundingSql, emptying_error};
use crate::plan::{AtomicMethod, AtomicPlan};
use crate::reading::name_lock_holder;
use pgspate_target::connect::Connection;
use pgspate_target::{IncomingForeignKey, TableDependencies, TargetTable, ledger};

/// Reads the objects that depend on the table, if `--replace` or `--atomic` is set. Returns `None`
/// for a missing table.
pub(super) async fn read_dependencies(
    options: &LoadOptions,
    connection: &Connection,
    table: Option<&TargetTable>,
) -> Result<Option<TableDependencies>> {
    let Some(table) = table.filter(|_| options.plan.replace.is_some() || options.plan.atomic)
    else {
        return Ok(None);
    };
    match TableDependencies::read(&connection.client, table).await {
        Ok(dependencies) => Ok(Some(dependencies)),
        Err(error) => {
            let (client, limits) = (&connection.client, &options.limits);
            Err(name_lock_holder(client, table.oid, limits, error).await)
        }
    }
}

impl Load {
    /// Returns the SQL before and after COPY, if all rows are replaced in one transaction. Returns
    /// `None` if an earlier attempt has committed the transaction and only lost the reply.
    pub(super) fn surrounding_sql(&self) -> Result<Option<SurroundingSql>> {
        let Some(atomic_plan) = &self.plan.atomic_plan else { return Ok(None) };
        let is_done = self.job.opened.as_ref().is_some_and(|opened| opened.done.chunks() > 0);
        if atomic_plan.method != AtomicMethod::OneTransaction || !atomic_plan.replaces || is_done {
            return Ok(None);
        }
        let job = self.job.id();
        let oid = self.created_oid.unwrap_or(self.table.oid);
        let emptied = ledger::record_emptied_sql(self.job.client(), oid, job);
        let emptied = self.job.control_session.runtime.block_on(emptied)?;
        let sql = replace_sql(&self.plan.table, atomic_plan, &emptied);
        Ok(Some(SurroundingSql { must_have_rows: self.must_have_rows(), ..sql }))
    }

    /// Returns whether the load must not end without rows, because it would empty a table that has
    /// some.
    fn must_have_rows(&self) -> bool {
        let replaces = self.plan.atomic_plan.as_ref().is_some_and(|it| it.replaces);
        let has_rows = self.request.dependencies.as_ref().is_some_and(|it| !it.is_empty);
        replaces && has_rows && !self.options.may_empty
    }

    /// Refuses to put a shadow table without rows in the place of a table that has some. `outcome`
    /// is of the last run of the job.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if no row is to take the place of the old rows.
    pub(super) fn check_not_emptied_by(&self, outcome: &CopyOutcome) -> Result<()> {
        let before = &self.job.totals_before;
        let taken = outcome.rows_in - outcome.rows_rejected;
        match self.is_swap() && self.must_have_rows() && taken + before.rows_written == 0 {
            true => Err(emptying_error()),
            false => Ok(()),
        }
    }
}

/// Builds the SQL of the transaction that replaces all rows.
fn replace_sql(table: &str, atomic_plan: &AtomicPlan, emptied: &str) -> SurroundingSql {
    let references = atomic_plan.references.clone();
    let (mut before, mut after) = (String::new(), String::new());
    for IncomingForeignKey { table: other, name, definition, comment, .. } in
        &atomic_plan.references
    {
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
    SurroundingSql { references, before, after, must_have_rows: false }
}

/// Escapes backslashes for an `E''` string, which does not depend on `standard_conforming_strings`.
fn escape_backslashes(text: &str) -> String {
    text.replace('\\', "\\\\")
}

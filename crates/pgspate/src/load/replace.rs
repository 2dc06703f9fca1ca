//! `--replace` and `--atomic`: new rows become visible at once, the old ones go with that.
//!
//! What a lane does around its COPY when everything is one transaction. Until it commits, nothing
//! of it can be seen; if it does not, nothing has happened.

use super::{Load, LoadOptions};
use crate::Result;
use crate::copy::SurroundingSql;
use crate::plan::{AtomicPlan, AtomicMethod};
use pgspate_target::connect::Connection;
use pgspate_target::{Bonds, Reference, Table, ledger};

/// What is bound to the table, if rows are to become visible at once. No table: it is made for the
/// load.
pub(super) async fn bonds(
    options: &LoadOptions,
    connection: &Connection,
    table: Option<&Table>,
) -> Result<Option<Bonds>> {
    match table.filter(|_| options.plan.replace.is_some() || options.plan.atomic) {
        Some(table) => Bonds::read(&connection.client, table).await.map(Some),
        None => Ok(None),
    }
}

impl Load {
    /// What a lane does besides COPY, if everything is its one transaction. Nothing if that is
    /// committed already, though its answer got lost.
    pub(super) fn around(&self) -> Result<Option<SurroundingSql>> {
        let Some(at_once) = &self.plan.at_once else { return Ok(None) };
        let is_done = self.job.opened.as_ref().is_some_and(|opened| opened.done.chunks() > 0);
        if at_once.method != AtomicMethod::OneTransaction || !at_once.replaces || is_done {
            return Ok(None);
        }
        let job = self.job.id();
        let oid = self.made.unwrap_or(self.table.oid);
        let emptied = ledger::emptied_sql(self.job.client(), oid, job);
        let emptied = self.job.own.runtime.block_on(emptied)?;
        Ok(Some(around(&self.plan.table, at_once, &emptied)))
    }
}

/// The statements of the one transaction that replaces all rows.
fn around(table: &str, at_once: &AtomicPlan, emptied: &str) -> SurroundingSql {
    let (mut before, mut after) = (String::new(), String::new());
    for Reference { table: other, name, definition, comment, .. } in &at_once.references {
        before += &format!("alter table {other} drop constraint {name}; ");
        after += &format!("alter table {other} add constraint {name} {definition}; ");
        if let Some(comment) = comment {
            let comment = comment.replace('\'', "''");
            after +=
                &format!("comment on constraint {name} on {other} is E'{}'; ", escape(&comment));
        }
    }
    before += &format!("truncate {table}; {emptied}");
    SurroundingSql { before, after }
}

/// For an `E''` string, which means the same whatever `standard_conforming_strings` is.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
}

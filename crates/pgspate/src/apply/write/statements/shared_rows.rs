//! One statement for all rows of a table: common table expressions for the rows, for the DELETE,
//! the UPDATE and the INSERT, and columns that count what they have written.
//!
//! All of them see the table as it was before the statement. Unique indexes see what was written
//! before. So the expressions are counted in the order in which the rows are to be written, which
//! is when the server runs them.

use super::{ACTION_COLUMN, ApplyStatements, PRESENCE_COLUMN};
use crate::apply::batch::{EncodedTable, RowAction};
use crate::apply::route::ApplyTable;
use pgspate_target::quote_ident;

/// The number of columns of [`ApplyStatements::shared_writes`].
pub(crate) const SHARED_COUNTS: usize = 4;

/// A count where nothing is written.
const NONE: &str = "0::int8";

/// Returns the name of the common table expression with the rows of table `number`.
pub(super) fn shared_rows_name(number: usize) -> String {
    format!("\"pgspate rows {number}\"")
}

/// Returns this common table expression. Its parameters begin with number `first`. It has no rows
/// if the common table expression `moved` has none.
pub(crate) fn shared_rows_sql(facts: &ApplyTable, number: usize, first: usize) -> String {
    let all: Vec<_> = facts.table.columns.iter().map(|column| quote_ident(&column.name)).collect();
    format!(
        "{} as materialized (select s.* from moved, \
         unnest(${first}::{}[], ${}::int2[], ${}::bytea[]) \
         s ({}, {ACTION_COLUMN}, {PRESENCE_COLUMN}))",
        shared_rows_name(number),
        facts.table.sql_name,
        first + 1,
        first + 2,
        all.join(", ")
    )
}

impl ApplyStatements<'_> {
    /// Returns common table expressions that write the shared rows of table `number`, and columns
    /// that count the rows deleted, updated, inserted, and missing.
    pub(crate) fn shared_writes(
        &self,
        encoded: &EncodedTable,
        number: usize,
    ) -> (Vec<String>, [String; SHARED_COUNTS]) {
        let mut writes = Vec::new();
        let mut count = |what: &str, sql: Option<String>| match sql {
            Some(sql) => {
                writes.push(format!("{what}{number} as ({sql} returning 1)"));
                format!("(select count(*) from {what}{number})")
            }
            None => NONE.to_owned(),
        };
        let deleted = count("deleted", (encoded.deletes > 0).then(|| self.delete(false)));
        let update = (encoded.upserts > 0).then(|| self.update()).flatten();
        let updated = count("updated", update);
        // Mostly the UPDATE finds all rows.
        let all = format!(
            "select count(*) from {} where {ACTION_COLUMN} >= {}",
            shared_rows_name(number),
            RowAction::UpdateIfPresent as i16
        );
        let insert = format!("{} and {updated} < ({all})", self.insert());
        let inserted = count("inserted", encoded.has_inserts.then_some(insert));
        // Some rows are right already, or missing. Or another session has deleted a row that this
        // statement still sees. Then the INSERT left the row out, and so the statement fails.
        let missing = match encoded.has_updates {
            true => format!("({})", self.missing_rows()),
            false => NONE.to_owned(),
        };
        let missing = match updated.as_str() {
            NONE => missing,
            _ => format!(
                "case when {updated} + {inserted} = ({all}) then 0 \
                      else {missing} / (({}) <= {updated})::int4 end",
                self.count_updates()
            ),
        };
        (writes, [deleted, updated, inserted, missing])
    }
}

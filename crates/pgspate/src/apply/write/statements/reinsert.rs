//! Statements for rows that are deleted and inserted again, so that other rows can take their
//! unique values.
//!
//! A row that another row refers to is never deleted for this. Another session may add such a
//! reference or change a row at any time, so the rows are locked before they are copied.

use super::{ACTION_COLUMN, ApplyStatements, is_given_sql};
use crate::apply::batch::RowAction;

impl ApplyStatements<'_> {
    /// Returns, for each unique index, a statement that completes rows whose new values another row
    /// has, and marks them for delete and insert.
    pub(crate) fn reinsert_sql(&self) -> Vec<String> {
        let unique = self.facts.unique_indexes.iter().filter(|_| self.reinserts);
        unique.map(|columns| self.reinsert_for_index(columns)).collect()
    }

    /// Returns the statement of [`ApplyStatements::reinsert_sql`] for the unique index on
    /// `columns`.
    fn reinsert_for_index(&self, columns: &[usize]) -> String {
        let (mut differs, mut holds) = (Vec::new(), Vec::new());
        for at in columns {
            let column = &self.facts.columns[*at];
            let name = &column.sql;
            let new = format!("(case when {} then s.{name} else t.{name} end)", is_given_sql(*at));
            differs.push(column.differ_sql(&format!("t.{name}"), &new));
            holds.push(column.equal_sql(&format!("o.{name}"), &new));
        }
        format!(
            "update {} s set {}, {ACTION_COLUMN} = {} from {} t \
             where s.{ACTION_COLUMN} in ({}, {}) and {} and ({}) \
             and exists (select from {} o where {}){}",
            self.stage,
            self.set_filled_columns(|column| format!("t.{}", column.sql)),
            RowAction::Reinsert as i16,
            self.table,
            RowAction::Update as i16,
            RowAction::Upsert as i16,
            self.key_matches(),
            differs.join(" or "),
            self.table,
            holds.join(" and "),
            self.unreferenced_condition()
        )
    }

    /// Returns SQL that locks the rows whose unique values change, so that no session can change
    /// them or add a reference to them. The SQL returns the number of locked rows.
    pub(crate) fn lock_unique_changes(&self) -> String {
        let differ = |at: &usize| {
            let column = &self.facts.columns[*at];
            let (old, new) = (format!("t.{}", column.sql), format!("s.{}", column.sql));
            format!("{} and ({})", is_given_sql(*at), column.differ_sql(&old, &new))
        };
        let differ: Vec<_> = self.facts.unique_indexes.iter().flatten().map(differ).collect();
        format!(
            "select count(*) from (select 1 from {} t join {} on {} where s.{ACTION_COLUMN} in \
             ({}, {}) and ({}) for update of t) l",
            self.table,
            self.rows_sql,
            self.key_matches(),
            RowAction::Update as i16,
            RowAction::Upsert as i16,
            differ.join(" or ")
        )
    }

    /// Returns the DELETE statement for the marked rows. A row that another row refers to by now
    /// stays.
    pub(crate) fn delete_reinserted(&self) -> String {
        format!(
            "delete from {} t using {} where {} and {}{}",
            self.table,
            self.rows_sql,
            is_reinserted_sql(),
            self.key_matches(),
            self.unreferenced_condition()
        )
    }

    /// Returns SQL that asks whether the table lacks a marked row.
    pub(crate) fn lost_reinserted(&self) -> String {
        let (rows, is_absent) = self.rows_and_absence();
        format!(
            "select exists (select 1 from {rows} where {} and {is_absent})",
            is_reinserted_sql()
        )
    }

    /// Returns SQL that counts the marked rows.
    pub(crate) fn count_reinserted(&self) -> String {
        format!("select count(*) from {} where {}", self.rows_sql, is_reinserted_sql())
    }
}

/// Returns the condition that a staged row is marked for delete and insert.
fn is_reinserted_sql() -> String {
    format!("s.{ACTION_COLUMN} = {}", RowAction::Reinsert as i16)
}

//! The MERGE statement, which looks each row up once. PostgreSQL has it since version 15.

use super::{ACTION_COLUMN, ApplyStatements};
use crate::apply::batch::{EncodedTable, RowAction};

impl ApplyStatements<'_> {
    /// Returns the MERGE statement that deletes, updates and inserts the staged rows. The server
    /// tells only how many rows it has written in all.
    pub(crate) fn merge(&self, encoded: &EncodedTable) -> String {
        self.merge_rows(&self.table, &self.rows_sql, encoded)
    }

    /// Returns the MERGE statement that writes `rows`, a FROM item with the alias `s`, to `table`.
    pub(super) fn merge_rows(&self, table: &str, rows: &str, encoded: &EncodedTable) -> String {
        let mut sql = format!("merge into {table} t using {rows} on {}", self.key_matches());
        // The role needs the privilege for each action, even if no row calls for it.
        if encoded.deletes > 0 {
            let delete = RowAction::Delete as i16;
            sql += &format!(" when matched and s.{ACTION_COLUMN} = {delete} then delete");
        }
        if let Some(sets) = self.sets() {
            let (first, last) =
                (RowAction::UpdateIfPresent as i16, RowAction::UpsertWithDefaults as i16);
            sql += &format!(
                " when matched and s.{ACTION_COLUMN} between {first} and {last} and ({}) \
                 then update set {sets}",
                self.row_differs()
            );
        }
        if encoded.has_inserts {
            let (names, values) = self.inserted_columns();
            sql += &format!(
                " when not matched and s.{ACTION_COLUMN} >= {} then insert {} values ({})",
                RowAction::Upsert as i16,
                self.insert_columns(&names),
                values.join(", ")
            );
        }
        sql
    }
}

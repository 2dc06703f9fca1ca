//! The statement that writes a whole batch of one table, and advances the stream.
//!
//! The statement is a transaction of its own, so rows and position are committed together. It first
//! checks that the stream is where the batch begins, and that the table was not altered. The server
//! locks the table before it takes the snapshot in which the statement checks this.
//!
//! All rows are looked up in one snapshot. If another session changes a row meanwhile, fewer rows
//! are written than this snapshot demands. Then the statement fails, and nothing is written. MERGE
//! looks such a row up once more.
//!
//! The row that the statement returns ends with a NULL of each column of the table. So the server
//! refuses the prepared statement after a column was added, dropped, renamed or given another type.
//! That costs less than a look at the catalog. The catalog's rows of the columns are looked at only
//! where other alterations of a column matter.

use super::{ACTION_COLUMN, ApplyStatements, is_given_sql, parameter_columns};
use crate::apply::batch::{ColumnPresence, EncodedTable, RowAction};
use pgspate_target::ledger::{IS_BEFORE_MOVE, advance_if_sql};
use pgspate_target::{is_unaltered_sql, users_path_sql};

/// The address of the target's row; NULL if the row is absent.
const ADDRESS_COLUMN: &str = "\"pgspate at\"";
/// Whether the staged row changes the target's row.
const DIFFERS_COLUMN: &str = "\"pgspate differs\"";

/// The position of the rows among the parameters, counted from 0. The parameters before are those
/// of the stream's move. After the rows, their actions and their columns come the table's OID, the
/// mark of its definition, and whether the commit need not wait for the disk.
pub(crate) const ROWS_PARAMETER: usize = 8;

/// Returns the parameter that comes `nth` after the rows.
fn parameter(nth: usize) -> String {
    format!("${}", ROWS_PARAMETER + 1 + nth)
}

/// A part of the statement that writes rows.
struct RowWrite {
    name: &'static str,
    /// The statement, which ends within its WHERE clause.
    sql: String,
    /// The condition for the rows of `found` that the statement must write.
    rows: String,
}

impl ApplyStatements<'_> {
    /// Returns the statement that writes all rows of a batch and advances the stream. Its row
    /// begins with the numbers of deleted, updated, inserted and missing rows. `may_merge`: the
    /// server has MERGE that returns what it did.
    ///
    /// The server refuses the statement as a division by zero if the stream is elsewhere or if the
    /// table was altered. It does so, too, if keys of the table are dropped, or if another session
    /// changes a row meanwhile.
    pub(crate) fn whole_batch(&self, encoded: &EncodedTable, may_merge: bool) -> String {
        // MERGE does not tell which updates found no row.
        let is_complete = self.presence.iter().all(|it| *it != ColumnPresence::Sometimes);
        let merges = may_merge && self.facts.may_merge() && encoded.has_inserts;
        let (written, counts) = match merges && !encoded.has_updates && is_complete {
            true => self.merged_rows(encoded),
            false => self.written_rows(encoded),
        };
        format!(
            "with begun as materialized ({}), {written} \
             select {counts}, 1 / (select count(*) from moved)::int4, (null::{}).* from counted",
            self.begun(),
            self.facts.table.sql_name
        )
    }

    /// Returns a query that has a row if the batch may be written. The query restores the user's
    /// search path for what the server evaluates while it writes, such as conditions of columns.
    fn begun(&self) -> String {
        let marks_columns = self.facts.needs_columns_mark();
        format!(
            "select ({}), \
                    case when {} then set_config('synchronous_commit', 'off', true) end \
             from pgspate.stream where {IS_BEFORE_MOVE} and {}",
            users_path_sql(true),
            parameter(5),
            is_unaltered_sql(&parameter(3), &parameter(4), marks_columns)
        )
    }

    /// Returns the rows in the parameters, as a FROM item with the alias `s`. There are none unless
    /// the batch may be written.
    fn rows_if_begun(&self) -> String {
        let begun = "case when exists (select from begun) then";
        format!(
            "unnest({begun} {}::{}[] end, {begun} {}::int2[] end, {begun} {}::bytea[] end) {}",
            parameter(0),
            self.facts.table.sql_name,
            parameter(1),
            parameter(2),
            parameter_columns(self.facts)
        )
    }

    /// Returns the table without its inheriting tables.
    fn only_table(&self) -> String {
        format!("only {}", self.facts.table.sql_name)
    }

    /// Returns the common table expressions that merge the rows and advance the stream, and the
    /// columns of `counted` that have the counts.
    fn merged_rows(&self, encoded: &EncodedTable) -> (String, String) {
        let merge = self.merge_rows(&self.only_table(), &self.rows_if_begun(), encoded);
        let actions = [("DELETE", "deleted"), ("UPDATE", "updated"), ("INSERT", "inserted")];
        let counts = actions
            .map(|(action, name)| format!("count(*) filter (where action = '{action}') as {name}"));
        let sql = format!(
            "merged as ({merge} returning merge_action() as action), \
             counted as materialized (select {} from merged), moved as ({})",
            counts.join(", "),
            advance_if_sql(&parameter(3), "exists (select from begun)"),
        );
        (sql, "deleted, updated, inserted, 0::int8".to_owned())
    }

    /// Returns the common table expressions that delete, update and insert the rows and advance the
    /// stream, and the columns of `counted` that have the counts.
    fn written_rows(&self, encoded: &EncodedTable) -> (String, String) {
        let all =
            [self.delete_found(encoded), self.update_found(encoded), self.insert_missing(encoded)];
        let (mut writes, mut after) = (String::new(), String::new());
        let (mut counts, mut is_whole) = (String::new(), "exists (select from begun)".to_owned());
        for RowWrite { name, sql, rows } in all.iter().flatten() {
            // A write waits for the writes before, which may free unique values.
            writes += &format!("{name} as ({sql}{after} returning 1), ");
            after += &format!(" and (select count(*) from {name}) >= 0");
            counts += &format!(
                "(select count(*) from {name}) as {name}, \
                 count(*) filter (where {rows}) as to_be_{name}, "
            );
            is_whole += &format!(" and (select {name} = to_be_{name} from counted)");
        }
        let count_of = |name: &str| match all.iter().flatten().any(|it| it.name == name) {
            true => name.to_owned(),
            false => "0::int8".to_owned(),
        };
        let sql = format!(
            "found as materialized ({}), {writes}\
             counted as materialized (select {counts}{} as missing from found s), moved as ({})",
            self.found_rows(encoded),
            self.missing_count(encoded),
            advance_if_sql(&parameter(3), &is_whole),
        );
        let [deleted, updated, inserted] = ["deleted", "updated", "inserted"].map(count_of);
        (sql, format!("{deleted}, {updated}, {inserted}, missing"))
    }

    /// Returns a query for the rows of the batch, each with the address of the target's row.
    fn found_rows(&self, encoded: &EncodedTable) -> String {
        let (first, last) =
            (RowAction::UpdateIfPresent as i16, RowAction::UpsertWithDefaults as i16);
        let differs = match encoded.upserts > 0 && self.sets().is_some() {
            false => "false".to_owned(),
            true => format!(
                "s.{ACTION_COLUMN} between {first} and {last} and t.ctid is not null and ({})",
                self.row_differs()
            ),
        };
        format!(
            "select s.*, t.ctid as {ADDRESS_COLUMN}, {differs} as {DIFFERS_COLUMN} \
             from {} left join {} t on {}",
            self.rows_if_begun(),
            self.only_table(),
            self.key_matches()
        )
    }

    /// Returns the condition that a row of the target is the row that was found for `s`.
    fn is_found(&self) -> String {
        format!("t.ctid = s.{ADDRESS_COLUMN} and {}", self.key_matches())
    }

    /// Returns the statement that deletes rows.
    fn delete_found(&self, encoded: &EncodedTable) -> Option<RowWrite> {
        let is_delete = format!("s.{ACTION_COLUMN} = {}", RowAction::Delete as i16);
        (encoded.deletes > 0).then(|| RowWrite {
            name: "deleted",
            sql: format!(
                "delete from {} t using found s where {is_delete} and {}",
                self.only_table(),
                self.is_found()
            ),
            rows: format!("{is_delete} and s.{ADDRESS_COLUMN} is not null"),
        })
    }

    /// Returns the statement that updates rows that differ.
    fn update_found(&self, encoded: &EncodedTable) -> Option<RowWrite> {
        let sets = self.sets().filter(|_| encoded.upserts > 0)?;
        Some(RowWrite {
            name: "updated",
            sql: format!(
                "update {} t set {sets} from found s where s.{DIFFERS_COLUMN} and {}",
                self.only_table(),
                self.is_found()
            ),
            rows: format!("s.{DIFFERS_COLUMN}"),
        })
    }

    /// Returns the statement that inserts rows that are absent. A row that lacks a column is not
    /// inserted, so the batch fails.
    fn insert_missing(&self, encoded: &EncodedTable) -> Option<RowWrite> {
        let (mut names, mut values, mut is_given) = (Vec::new(), Vec::new(), String::new());
        for (at, column, presence) in self.columns_with_presence() {
            if presence == ColumnPresence::Sometimes && !self.is_key(at) {
                is_given += &format!(" and {}", is_given_sql(at));
            }
            if presence != ColumnPresence::Never || self.is_key(at) {
                names.push(column.sql.as_str());
                values.push(format!("s.{}", column.sql));
            }
        }
        let rows = format!(
            "s.{ACTION_COLUMN} >= {} and s.{ADDRESS_COLUMN} is null",
            RowAction::Upsert as i16
        );
        encoded.has_inserts.then(|| RowWrite {
            name: "inserted",
            sql: format!(
                "{} select {} from found s where {rows}{is_given}",
                self.insert_into(&names),
                values.join(", ")
            ),
            rows,
        })
    }

    /// Returns SQL for the number of updates without a row in the target.
    fn missing_count(&self, encoded: &EncodedTable) -> String {
        match encoded.has_updates {
            // An aggregate has a row, however many rows were found.
            false => "count(*) filter (where false)".to_owned(),
            true => format!(
                "count(*) filter (where s.{ACTION_COLUMN} = {} and s.{ADDRESS_COLUMN} is null)",
                RowAction::Update as i16
            ),
        }
    }
}

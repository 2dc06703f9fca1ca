//! Statements for a table without a key, whose rows are found by comparing whole rows.

use super::{ACTION_COLUMN, ApplyStatements, ORDER_COLUMN};
use crate::apply::batch::{ColumnPresence, RowAction};

impl ApplyStatements<'_> {
    /// Returns SQL that fills columns that inserted rows lack with their defaults, so that these
    /// rows can be compared with deleted rows. `None` if the rows have all columns.
    pub(crate) fn fill_whole_rows(&self) -> Option<String> {
        let is_partial =
            self.columns_with_presence().any(|(.., presence)| presence != ColumnPresence::Always);
        is_partial.then(|| {
            format!(
                "update {} s set {} where s.{ACTION_COLUMN} = {}",
                self.stage,
                self.set_filled_columns(|column| column.default.clone()),
                RowAction::Upsert as i16
            )
        })
    }

    /// Returns SQL that removes pairs of an inserted row and a later delete of an equal row. The
    /// remaining rows have the same effect as all events one by one, if deletes run first.
    pub(crate) fn cancel_pairs(&self) -> String {
        let (stage, whole, goes) = (&self.stage, self.row_as_text("s"), RowAction::Delete as i16);
        format!(
            "delete from {stage} s using (\
             select at, what, row_number() over (partition by whole, what order by nth) as kth, \
                    sum(step) over (partition by whole) as total, \
                    greatest(0, -min(level) over (partition by whole)) as least \
             from (select *, sum(step) over (partition by whole order by nth) as level \
                   from (select s.ctid as at, s.{ACTION_COLUMN} as what, \
                                s.{ORDER_COLUMN} as nth, {whole} as whole, \
                                case s.{ACTION_COLUMN} when {goes} then -1 else 1 end as step \
                         from {stage} s) s) s) c \
             where s.ctid = c.at \
               and c.kth > c.least + case c.what when {goes} then 0 else c.total end"
        )
    }

    /// Returns the whole row as text.
    fn row_as_text(&self, of: &str) -> String {
        let all: Vec<_> =
            self.facts.columns.iter().map(|column| format!("{of}.{}", column.sql)).collect();
        format!("row({})::text", all.join(", "))
    }

    /// Returns SQL that updates a row in place, instead of a delete of this row and an insert. The
    /// only staged delete has the old values, the only staged upsert the new values.
    pub(super) fn update_whole_row(&self) -> String {
        let sets: Vec<_> = self
            .columns_with_presence()
            .filter(|(_, column, presence)| {
                *presence != ColumnPresence::Never && !column.is_identity_always
            })
            .map(|(_, it, _)| format!("{0} = s.{0}", it.sql))
            .collect();
        format!(
            "update {table} t set {} from {stage} s, \
             (select t.ctid as at, t.tableoid as part from {table} t join {stage} s \
              on s.{ACTION_COLUMN} = {goes} and {} = {} limit 1) o \
             where s.{ACTION_COLUMN} <> {goes} and t.ctid = o.at and t.tableoid = o.part{}",
            sets.join(", "),
            self.row_as_text("t"),
            self.row_as_text("s"),
            self.keeps_identity(),
            table = self.table,
            stage = self.stage,
            goes = RowAction::Delete as i16
        )
    }

    /// Returns SQL that asks whether a row that is to be deleted meets the condition `refers`.
    pub(super) fn whole_rows_cascade(&self, refers: &str) -> String {
        format!(
            "select exists (select 1 from {} t join {} s on s.{ACTION_COLUMN} = {} and {} = {} \
             where {refers})",
            self.table,
            self.stage,
            RowAction::Delete as i16,
            self.row_as_text("t"),
            self.row_as_text("s")
        )
    }

    /// Returns SQL that deletes one row of the table for each staged delete of an equal row.
    pub(crate) fn delete_whole_rows(&self) -> String {
        let (of_stage, of_table) = (self.row_as_text("s"), self.row_as_text("t"));
        let (table, stage, goes) = (&self.table, &self.stage, RowAction::Delete as i16);
        format!(
            "delete from {table} t using (\
             select t.ctid as at, t.tableoid as part, s.n, \
                    row_number() over (partition by s.whole) as nth \
             from {table} t join (select {of_stage} as whole, count(*) as n from {stage} s \
                                  where s.{ACTION_COLUMN} = {goes} group by 1) s \
             on {of_table} = s.whole) s \
             where s.nth <= s.n and t.ctid = s.at and t.tableoid = s.part"
        )
    }
}

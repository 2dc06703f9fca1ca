//! Builds the SQL statements that apply staged rows. Performs no I/O.
//!
//! Alias `t` is the target table, and alias `s` the staged rows. These are in a temporary table, or
//! in the statement's parameters for a few rows. No statement uses `on conflict`. No statement
//! writes a row that has the right values already. Only statements for a single row set key
//! columns. The text depends on the table and on the columns that a batch gives, never on values.
//! For a few rows it does not depend on their number either.

mod identity;
mod merge;
mod parameters;
mod reinsert;
mod whole_batch;
mod without_key;

pub(crate) use whole_batch::ROWS_PARAMETER;

use crate::apply::batch::{ColumnPresence, EncodedTable, RowAction};
use crate::apply::route::{ApplyColumn, ApplyTable};
use crate::stage::keys;
use parameters::{parameter_columns, parameter_rows};

const ACTION_COLUMN: &str = "\"pgspate what\"";
const PRESENCE_COLUMN: &str = "\"pgspate given\"";
const ORDER_COLUMN: &str = "\"pgspate nth\"";

/// Builds the statements for the staged rows of one table.
pub(crate) struct ApplyStatements<'a> {
    facts: &'a ApplyTable,
    /// The target for SQL, without its inheriting tables.
    table: String,
    stage: String,
    /// The staged rows for a FROM clause, with alias `s`. Citus joins a table with a temporary
    /// table only if the temporary table is in a subquery.
    rows_sql: String,
    is_direct: bool,
    presence: Vec<ColumnPresence>,
    truncates: bool,
    reinserts: bool,
    /// Whether there are many rows, and at least a quarter of them are deletes. The condition on
    /// the action then makes the planner expect many rows.
    deletes_many: bool,
    /// Whether there are many rows, and at least a quarter of them are inserted or updated.
    upserts_many: bool,
}

/// Where staged rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowSource {
    /// In the table's stage.
    Stage,
    /// In the statement's three parameters: rows of the table's type, actions, and columns given.
    /// No row has an old key or is filled with defaults.
    Parameters,
}

/// From this many rows on, the planner's row estimates matter.
const STATISTICS_ROWS_MIN: u64 = 1000;

/// Returns the name of a table's stage.
pub(crate) fn stage_name(facts: &ApplyTable) -> String {
    format!("pgspate_apply_{}_{}", facts.table.oid, facts.version)
}

/// Returns the SQL that creates the stage of a table.
pub(crate) fn create_stage_sql(facts: &ApplyTable) -> String {
    let columns: Vec<_> = facts
        .columns
        .iter()
        .map(|column| format!("{} as {}", as_base_type("", column), column.sql))
        .collect();
    let mut from: Vec<_> = old_key_names(facts)
        .zip(key_columns(facts))
        .map(|(name, column)| format!(", {} as {name}", as_base_type("", column)))
        .collect();
    if !facts.has_key() {
        from.push(format!(", 0::int8 as {ORDER_COLUMN}"));
    }
    format!(
        "create temporary table {} on commit delete rows as \
         select {}, 0::int2 as {ACTION_COLUMN}, ''::bytea as {PRESENCE_COLUMN}{} \
         from {} with no data",
        stage_name(facts),
        columns.join(", "),
        from.concat(),
        facts.table.sql_name
    )
}

/// Returns a column cast to its type in the stage: for a domain, the base type, because a domain
/// may reject NULL.
fn as_base_type(of: &str, column: &ApplyColumn) -> String {
    match &column.base_type {
        Some(ty) => format!("{of}{}::{ty}", column.sql),
        None => format!("{of}{}", column.sql),
    }
}

/// Returns the COPY statement that fills the stage of a table.
pub(crate) fn copy_into_stage_sql(facts: &ApplyTable, format: &str) -> String {
    let columns: Vec<_> = facts.columns.iter().map(|column| column.sql.clone()).collect();
    let mut from: Vec<_> = old_key_names(facts).map(|name| format!(", {name}")).collect();
    if !facts.has_key() {
        from.push(format!(", {ORDER_COLUMN}"));
    }
    format!(
        "copy pg_temp.{} ({}, {ACTION_COLUMN}, {PRESENCE_COLUMN}{}) from stdin (format {format})",
        stage_name(facts),
        columns.join(", "),
        from.concat()
    )
}

/// Returns the key columns of a table.
fn key_columns(facts: &ApplyTable) -> impl Iterator<Item = &ApplyColumn> {
    facts.fold_key.columns.iter().map(|(at, _)| &facts.columns[*at])
}

/// Returns the names of the stage's columns for the old key of a row.
fn old_key_names(facts: &ApplyTable) -> impl Iterator<Item = String> {
    (1..=facts.fold_key.columns.len()).map(|nth| format!("\"pgspate from {nth}\""))
}

impl<'a> ApplyStatements<'a> {
    pub(crate) fn new(
        facts: &'a ApplyTable,
        encoded: &EncodedTable,
        source: RowSource,
        reinserts: bool,
    ) -> ApplyStatements<'a> {
        // Moved rows, rows with defaults and compared rows are completed, so they give all columns.
        let cancels = !facts.has_key() && encoded.deletes > 0;
        let fills = encoded.has_moved_rows || encoded.has_defaults || reinserts || cancels;
        let widened = |presence: &ColumnPresence| match presence {
            ColumnPresence::Never if fills => ColumnPresence::Sometimes,
            other => *other,
        };
        let stage = format!("pg_temp.{}", stage_name(facts));
        let rows = encoded.deletes + encoded.upserts;
        let is_many = |some: u64| rows > STATISTICS_ROWS_MIN && some >= rows / 4;
        ApplyStatements {
            facts,
            table: facts.sql_without_children(),
            rows_sql: match source {
                RowSource::Stage => format!("(select * from {stage}) s"),
                RowSource::Parameters => parameter_rows(facts),
            },
            is_direct: source == RowSource::Parameters,
            stage,
            deletes_many: is_many(encoded.deletes),
            upserts_many: is_many(encoded.upserts),
            presence: encoded.presence.iter().map(widened).collect(),
            truncates: encoded.truncates,
            reinserts,
        }
    }

    /// Checks whether rows are deleted and inserted again.
    pub(crate) fn reinserts(&self) -> bool {
        self.reinserts
    }

    /// Returns the condition that no row refers to the target's row.
    fn unreferenced_condition(&self) -> String {
        self.facts.referrers.iter().map(|refers| format!(" and not {refers}")).collect()
    }

    /// Returns SQL that asks whether deleting the old row of a changed key would cascade to other
    /// rows. `None` if no foreign key cascades.
    pub(crate) fn cascades(&self) -> Option<String> {
        if self.facts.cascading_referrers.is_empty() {
            return None;
        }
        let refers = self.facts.cascading_referrers.join(" or ");
        let Some((first, _)) = self.facts.fold_key.columns.first() else {
            return Some(self.whole_rows_cascade(&refers));
        };
        Some(format!(
            "select exists (select 1 from {} t join {} on {} \
             where s.{ACTION_COLUMN} = {} and {} and ({refers}))",
            self.table,
            self.rows_sql,
            self.key_matches(),
            RowAction::Delete as i16,
            is_given_sql(*first),
        ))
    }

    /// Returns SQL that asks whether another staged row gets a value that an updated row gives up.
    /// Only columns outside the key count whose updates a foreign key follows by an action. `None`
    /// if the batch gives no such column.
    pub(crate) fn acting_updates(&self) -> Option<String> {
        let all = &self.facts.columns;
        let is_passed_on = |at: &usize| {
            let (column, name) = (&all[*at], &all[*at].sql);
            let (old, new) = (format!("t.{name}"), format!("s.{name}"));
            format!(
                "{} and ({}) and exists (select 1 from {} o where o.{ACTION_COLUMN} >= {} and {} \
                 and not ({}))",
                is_given_sql(*at),
                column.differ_sql(&old, &new),
                self.stage,
                RowAction::UpdateIfPresent as i16,
                column.equal_sql(&format!("o.{name}"), &old),
                self.key_matches_as("o")
            )
        };
        let given = self.facts.acting_columns.iter();
        let given = given.filter(|at| self.presence[**at] != ColumnPresence::Never);
        let passed_on: Vec<_> = given.map(is_passed_on).collect();
        (self.facts.has_key() && !passed_on.is_empty()).then(|| {
            format!(
                "select exists (select 1 from {} t join {} on {} \
                 where s.{ACTION_COLUMN} >= {} and ({}))",
                self.table,
                self.rows_sql,
                self.key_matches(),
                RowAction::UpdateIfPresent as i16,
                passed_on.join(" or ")
            )
        })
    }

    /// Returns SQL that asks whether a row takes a key that another row of the target has.
    pub(crate) fn key_conflicts(&self) -> String {
        let from: Vec<_> = old_key_names(self.facts)
            .zip(key_columns(self.facts))
            .map(|(name, column)| {
                column.equal_sql(&format!("o.{}", column.sql), &format!("s.{name}"))
            })
            .collect();
        let is_known = old_key_names(self.facts).next().unwrap_or_default();
        format!(
            "select exists (select 1 from {} join {} t on {} where s.{ACTION_COLUMN} = {} and \
             (s.{is_known} is null or exists (select 1 from {} o where {})))",
            self.rows_sql,
            self.table,
            self.key_matches(),
            RowAction::ClaimKey as i16,
            self.table,
            from.join(" and ")
        )
    }

    /// Returns SQL that removes claimed keys from the stage.
    pub(crate) fn forget_key_claims(&self) -> String {
        format!(
            "delete from {} s where s.{ACTION_COLUMN} = {}",
            self.stage,
            RowAction::ClaimKey as i16
        )
    }

    /// Returns SQL that asks whether a key is staged twice. With parameters, a duplicate raises an
    /// error, as the next statement is sent before the reply is read.
    pub(crate) fn duplicate_keys(&self) -> String {
        let key: Vec<_> =
            key_columns(self.facts).map(|column| format!("s.{}", column.sql)).collect();
        let (from, key) = (&self.rows_sql, key.join(", "));
        let exist = format!("exists (select from {from} group by {key} having count(*) > 1)");
        match self.is_direct {
            true => format!("select 1 / (not {exist})::int4"),
            false => format!("select {exist}"),
        }
    }

    /// Returns the condition that a row of the target has the old key of a staged row.
    fn old_key_matches(&self) -> String {
        let matches: Vec<_> = old_key_names(self.facts)
            .zip(key_columns(self.facts))
            .map(|(name, column)| {
                column.equal_sql(&format!("t.{}", column.sql), &format!("s.{name}"))
            })
            .collect();
        matches.join(" and ")
    }

    /// Returns SQL that locks the target's rows whose key changes, and returns their number. They
    /// are copied and deleted, so another session's update in between would be lost. `None` if the
    /// rows are not stored in the target's own files.
    pub(crate) fn lock_moved_rows(&self) -> Option<String> {
        self.facts.table.storage.facts().has_row_addresses.then(|| {
            format!(
                "select count(*) from (select 1 from {} t join {} on {} for update of t) l",
                self.table,
                self.rows_sql,
                self.old_key_matches()
            )
        })
    }

    /// Returns SQL that completes moved rows with the target's values under the old key.
    pub(crate) fn fill_moved_rows(&self) -> String {
        let matches = self.old_key_matches();
        let rows = match self.facts.table.storage.facts().has_row_addresses {
            true => format!("{} t", self.table),
            // The rows are sent to this server, so only rows with a staged old key are read. Citus
            // evaluates the inner query first because of its OFFSET, and else refuses it.
            false => format!(
                "(select distinct t.* from {} t join {} on {matches} offset 0) t",
                self.table, self.rows_sql
            ),
        };
        format!(
            "update {} s set {} from {rows} where {matches}",
            self.stage,
            self.set_filled(|column| format!("t.{}", column.sql)),
        )
    }

    /// Returns SQL that completes new rows with defaults.
    pub(crate) fn fill_defaults(&self) -> String {
        format!(
            "update {} s set {} where s.{ACTION_COLUMN} = {}",
            self.stage,
            self.set_filled(|column| column.default.clone()),
            RowAction::UpsertWithDefaults as i16
        )
    }

    /// Returns assignments that fill in absent columns and make the row an upsert of all columns.
    fn set_filled(&self, value: impl Fn(&ApplyColumn) -> String) -> String {
        format!(
            "{}, {ACTION_COLUMN} = {}",
            self.set_filled_columns(value),
            RowAction::Upsert as i16
        )
    }

    /// Returns assignments that fill in absent columns and mark all columns as given.
    fn set_filled_columns(&self, value: impl Fn(&ApplyColumn) -> String) -> String {
        let sets = self
            .columns_with_presence()
            .filter(|(at, _, presence)| *presence != ColumnPresence::Always && !self.is_key(*at));
        let sets: Vec<_> = sets
            .map(|(at, column, _)| {
                let (name, bit) = (&column.sql, is_given_sql(at));
                format!("{name} = case when {bit} then s.{name} else {} end, ", value(column))
            })
            .collect();
        let all = "ff".repeat(self.facts.columns.len().div_ceil(8));
        format!("{}{PRESENCE_COLUMN} = '\\x{all}'", sets.concat())
    }

    /// Returns SQL that counts updates without a row in the target.
    pub(crate) fn missing_rows(&self) -> String {
        let (rows, is_absent) = self.rows_and_absence();
        format!(
            "select count(*) from {rows} where s.{ACTION_COLUMN} = {} and {is_absent}",
            RowAction::Update as i16,
        )
    }

    /// Returns the DELETE statement. An early delete leaves rows alone that other rows refer to.
    pub(crate) fn delete(&self, is_early: bool) -> String {
        format!("delete from {} t using {}", self.table, self.deleted_rows(is_early))
    }

    /// Returns SQL that counts the rows that the DELETE deletes if no trigger keeps them.
    pub(crate) fn count_deletes(&self, is_early: bool) -> String {
        format!("select count(*) from {} t, {}", self.table, self.deleted_rows(is_early))
    }

    /// Returns what follows USING in the DELETE statement.
    fn deleted_rows(&self, is_early: bool) -> String {
        let unreferenced = match is_early && self.facts.is_referenced {
            true => self.unreferenced_condition(),
            false => String::new(),
        };
        // Without statistics the planner estimates a third of the rows for `<=`, and one in two
        // hundred for `=`.
        let operator = if self.deletes_many { "<=" } else { "=" };
        let which = format!("{operator} {}", RowAction::Delete as i16);
        format!(
            "{} where s.{ACTION_COLUMN} {which} and {}{unreferenced}",
            self.rows_sql,
            self.key_matches()
        )
    }

    /// Returns the UPDATE statement, or `None` if no column can be set.
    pub(crate) fn update(&self) -> Option<String> {
        let sets = self.sets()?;
        Some(format!("update {} t set {sets} from {}", self.table, self.updated_rows()))
    }

    /// Returns the assignments of the UPDATE statement, or `None` if no column can be set.
    fn sets(&self) -> Option<String> {
        let sets: Vec<_> = self
            .updatable_columns()
            .filter_map(|(at, column, presence)| set_given_sql(at, column, presence))
            .collect();
        (!sets.is_empty()).then(|| sets.join(", "))
    }

    /// Returns SQL that counts the rows that the UPDATE updates if no trigger keeps them.
    pub(crate) fn count_updates(&self) -> String {
        format!("select count(*) from {} t, {}", self.table, self.updated_rows())
    }

    /// Returns the columns that the UPDATE may set.
    fn updatable_columns(&self) -> impl Iterator<Item = (usize, &ApplyColumn, ColumnPresence)> {
        let all = self.columns_with_presence();
        all.filter(|(at, column, _)| !self.is_key(*at) && !column.is_identity_always)
    }

    /// Returns what follows FROM in the UPDATE statement.
    fn updated_rows(&self) -> String {
        let (first, last, reinserts) = (
            RowAction::UpdateIfPresent as i16,
            RowAction::UpsertWithDefaults as i16,
            RowAction::Reinsert as i16,
        );
        let which = match self.upserts_many {
            // The planner estimates a third of the rows for `>=`, and one in two hundred for a
            // range.
            true => format!(">= {first} and s.{ACTION_COLUMN} <> {reinserts}"),
            false => format!("between {first} and {last}"),
        };
        format!(
            "{} where s.{ACTION_COLUMN} {which} and {} and ({})",
            self.rows_sql,
            self.key_matches(),
            self.row_differs()
        )
    }

    /// Returns the condition that a staged row changes the target's row with its key.
    fn row_differs(&self) -> String {
        let mut differs = Vec::new();
        for (at, column, presence) in self.updatable_columns() {
            let name = &column.sql;
            let is_other = match column.is_exact {
                true => column.differ_sql(&format!("t.{name}"), &format!("s.{name}")),
                // 1.0 and 1.00 are equal but not identical.
                false => keys::image_differs_sql(&as_base_type("t.", column), &format!("s.{name}")),
            };
            match presence {
                ColumnPresence::Never => {}
                ColumnPresence::Always => differs.push(is_other),
                ColumnPresence::Sometimes => {
                    differs.push(format!("{} and {is_other}", is_given_sql(at)))
                }
            }
        }
        differs.join(" or ")
    }

    /// Returns SQL that updates the row of the only staged delete to the key and columns of the
    /// only staged upsert. `None` if the key cannot be set.
    pub(crate) fn move_row(&self) -> Option<String> {
        if !self.facts.has_key() {
            return Some(self.update_whole_row());
        }
        let may_set_key = self.facts.table.storage.facts().may_set_key;
        if !may_set_key || key_columns(self.facts).any(|column| column.is_identity_always) {
            return None;
        }
        let set =
            |(at, column, presence): (usize, &ApplyColumn, ColumnPresence)| match self.is_key(at) {
                true => set_given_sql(at, column, ColumnPresence::Always),
                false if column.is_identity_always => None,
                false => set_given_sql(at, column, presence),
            };
        let sets: Vec<_> = self.columns_with_presence().filter_map(set).collect();
        let of_old = self.key_matches_as("o");
        Some(format!(
            "update {} t set {} from {stage} o, {stage} s \
             where o.{ACTION_COLUMN} = {goes} and s.{ACTION_COLUMN} <> {goes} and {}{}",
            self.table,
            sets.join(", "),
            of_old,
            self.keeps_identity(),
            stage = self.stage,
            goes = RowAction::Delete as i16
        ))
    }

    /// Returns the INSERT statement for upserts whose row is absent.
    pub(crate) fn insert(&self) -> String {
        let (names, values) = self.inserted_columns();
        format!(
            "{} select {} from {}",
            self.insert_into(&names),
            values.join(", "),
            self.inserted_rows()
        )
    }

    /// Returns the columns that an INSERT sets, and their values.
    fn inserted_columns(&self) -> (Vec<&str>, Vec<String>) {
        let presence = |(at, _, presence): &(usize, &ApplyColumn, ColumnPresence)| {
            *presence != ColumnPresence::Never || self.is_key(*at)
        };
        let value = |(at, column, presence): (usize, &ApplyColumn, ColumnPresence)| {
            let (name, default) = (&column.sql, &column.default);
            match presence {
                ColumnPresence::Sometimes if !self.is_key(at) => {
                    format!("case when {} then s.{name} else {default} end", is_given_sql(at))
                }
                _ => format!("s.{name}"),
            }
        };
        let columns = self.columns_with_presence().filter(presence);
        columns.map(|it| (it.1.sql.as_str(), value(it))).unzip()
    }

    /// Returns the beginning of an INSERT statement of these columns.
    fn insert_into(&self, names: &[&str]) -> String {
        format!("insert into {} {}", self.facts.table.sql_name, self.insert_columns(names))
    }

    /// Returns the list of columns of an INSERT, and how it sets identity columns.
    fn insert_columns(&self, names: &[&str]) -> String {
        let is_overriding = self.facts.columns.iter().any(|column| column.is_identity_always);
        let overriding = if is_overriding { " overriding system value" } else { "" };
        format!("({}){overriding}", names.join(", "))
    }

    /// Returns SQL that counts the rows that the INSERT inserts if no trigger keeps them out.
    pub(crate) fn count_inserts(&self) -> String {
        format!("select count(*) from {}", self.inserted_rows())
    }

    /// Returns what follows FROM in the INSERT statement.
    fn inserted_rows(&self) -> String {
        let (rows, is_absent) = match self.facts.has_key() && !self.truncates {
            true => self.rows_and_absence(),
            false => (self.rows_sql.clone(), "true".to_owned()),
        };
        format!("{rows} where s.{ACTION_COLUMN} >= {} and {is_absent}", RowAction::Upsert as i16)
    }

    /// Returns the staged rows for a FROM clause, and the condition that the target has no row with
    /// the key of `s`.
    ///
    /// Citus refuses `not exists` here. In an outer join with all of the table, Citus would send
    /// all rows to this server. So the inner query finds the keys on the servers that store the
    /// rows.
    fn rows_and_absence(&self) -> (String, String) {
        let (table, matches) = (&self.table, self.key_matches());
        if self.facts.table.storage.facts().has_row_addresses {
            let is_absent = format!("not exists (select from {table} t where {matches})");
            return (self.rows_sql.clone(), is_absent);
        }
        let keys: Vec<_> = key_columns(self.facts).map(|it| format!("t.{}", it.sql)).collect();
        let rows = format!(
            "{0} left join (select distinct {1}, true as found from {table} t join {0} \
             on {matches}) t on {matches}",
            self.rows_sql,
            keys.join(", ")
        );
        (rows, "t.found is null".to_owned())
    }

    /// Returns the condition that the target's row has the key of the staged row.
    fn key_matches(&self) -> String {
        self.key_matches_as("s")
    }

    /// Returns the condition that the target's row has the key of the staged row `stage`.
    fn key_matches_as(&self, stage: &str) -> String {
        let matches = |column: &ApplyColumn| {
            column.equal_sql(&format!("t.{}", column.sql), &format!("{stage}.{}", column.sql))
        };
        key_columns(self.facts).map(matches).collect::<Vec<_>>().join(" and ")
    }

    /// Checks whether the column is part of the key.
    fn is_key(&self, at: usize) -> bool {
        self.facts.fold_key.columns.iter().any(|(of_key, _)| *of_key == at)
    }

    /// Returns the columns with their positions, and whether the batch gives them.
    fn columns_with_presence(&self) -> impl Iterator<Item = (usize, &ApplyColumn, ColumnPresence)> {
        let all = self.facts.columns.iter().zip(&self.presence).enumerate();
        all.map(|(at, (column, presence))| (at, column, *presence))
    }
}

/// Returns SQL that is true if the staged row gives the column.
fn is_given_sql(at: usize) -> String {
    format!("pg_catalog.get_bit(s.{PRESENCE_COLUMN}, {at}) = 1")
}

/// Returns the assignment of a column that a staged row may give.
fn set_given_sql(at: usize, column: &ApplyColumn, presence: ColumnPresence) -> Option<String> {
    let name = &column.sql;
    match presence {
        ColumnPresence::Never => None,
        ColumnPresence::Always => Some(format!("{name} = s.{name}")),
        ColumnPresence::Sometimes => {
            Some(format!("{name} = case when {} then s.{name} else t.{name} end", is_given_sql(at)))
        }
    }
}

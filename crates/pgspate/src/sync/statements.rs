//! Builds the SQL statements of a sync. Performs no I/O.
//!
//! In SQL, `t` is the target and `s` the stage. Unchanged rows are only read: no writing statement
//! touches them.

use tokio_postgres::Client;

use super::columns::{SyncColumn, SyncColumns};
use super::report::Examples;
use super::transactions::TransactionSplit;
use crate::stage::keys::{self, EQUALS};
use crate::stage::planner::PlannedStatements;
use crate::stage::{ORDER_COLUMN, STAGE_NAME};
use pgspate_target::StorageFacts;

/// The temporary table of differences.
pub(super) const DIFF: &str = "pg_temp.pgspate_diff";
/// The differences `s`, for a join with the target. Citus accepts a temporary table in such a join
/// only within a subquery.
const DIFF_ROWS: &str = "(select * from pg_temp.pgspate_diff) s";
/// The staged rows `s`, for a join with the target.
const STAGE_ROWS: &str = "(select *, true as \"pgspate staged\" from pg_temp.pgspate_stage) s";
/// Column of [`STAGE_ROWS`]: NULL in an outer join if there is no staged row.
const IS_STAGED: &str = "\"pgspate staged\"";
/// The temporary table of unmatched rows: the rows of a table read ahead that match no source row.
pub(super) const UNMATCHED: &str = "pg_temp.pgspate_unmet";
/// Column of both temporary tables: the row's `ctid`. A user's table is unlikely to have a column
/// with one of these names.
pub(super) const TID: &str = "\"pgspate tid\"";
/// Column of differences: the `tableoid` of the target's row, which names its partition.
pub(super) const PARTITION: &str = "\"pgspate part\"";
/// Column of unmatched rows: whether the source has rows of the same scope.
pub(super) const SCOPE_IN_SOURCE: &str = "\"pgspate is in\"";
/// Column of differences: whether the source has the row. If not, the row is deleted.
pub(super) const IN_SOURCE: &str = "\"pgspate stays\"";
/// Column of differences: the ordinal of the transaction that writes the row.
const TRANSACTION: &str = "\"pgspate turn\"";

/// The target's rows that are made equal to the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Rows whose values in these columns occur in the source.
    By(Vec<String>),
    /// Rows for which this SQL expression over the table's columns is true.
    Where(String),
    /// The whole table.
    All,
    /// All rows that have a key of the source; no row is deleted.
    NoDelete,
    /// No existing row; rows are only inserted.
    InsertOnly,
}

/// The names and options from which the statements are built.
pub(super) struct SyncStatements<'a> {
    pub(super) table: &'a str,
    pub(super) storage: StorageFacts,
    pub(super) columns: &'a SyncColumns,
    pub(super) scope: &'a Scope,
    /// Whether the last of several source rows with the same key is written.
    pub(super) keeps_last: bool,
    /// Whether the table was read ahead. If so, the stage has only rows that the table does not
    /// have, and only the unmatched rows of the table are compared.
    pub(super) was_read_ahead: bool,
    /// The split into several consecutive transactions, if there are several.
    pub(super) split: Option<&'a TransactionSplit>,
    /// The ordinal of the transaction to write; `None` writes all differences.
    pub(super) transaction: Option<i32>,
}

impl SyncStatements<'_> {
    /// Returns a runner of these statements in a session.
    pub(super) fn planned<'c>(&self, client: &'c Client) -> PlannedStatements<'c> {
        PlannedStatements::new(client, self.storage)
    }

    /// Returns the query for duplicate keys of the source. Each result row has the number of
    /// duplicate keys, one of the keys, and how often the key occurs.
    pub(super) fn duplicates(&self) -> String {
        self.duplicates_in(&format!("{STAGE_NAME} s"))
    }

    /// Returns the query for keys of the source that the table has more than once within the scope.
    /// Returns `None` if the key is unique or no row of the table is written.
    pub(super) fn duplicates_in_table(&self) -> Option<String> {
        if self.columns.key_is_unique || *self.scope == Scope::InsertOnly {
            return None;
        }
        let scope = self.in_scope().unwrap_or_else(|| "true".to_owned());
        Some(self.duplicates_in(&format!(
            "(select * from {} t where {scope}) s \
             where exists (select from {STAGE_NAME} n where {})",
            self.table,
            self.matches("s", "n")
        )))
    }

    fn duplicates_in(&self, rows: &str) -> String {
        let keys = list(self.columns.key.iter(), "s");
        let words = self.key_as_text("s");
        format!(
            "select pg_catalog.count(*) over (), {words}, \
                    pg_catalog.count(*) from {rows} group by {keys} \
             having pg_catalog.count(*) operator(pg_catalog.>) 1 \
             order by pg_catalog.count(*) desc limit 3"
        )
    }

    /// Returns the query for the number of rows in the scope; `None` if nothing is deleted.
    fn count_scope(&self) -> Option<String> {
        let scope = self.in_scope()?;
        Some(format!("select pg_catalog.count(*) from {} t where {scope}", self.table))
    }

    /// Returns the columns by which rows are found, for ANALYZE.
    pub(super) fn lookup_columns(&self) -> String {
        let mut columns: Vec<_> = self.columns.key.iter().collect();
        columns.extend(self.scope_columns());
        columns.sort_by_key(|column| &column.name);
        columns.dedup();
        list(columns.into_iter(), "")
    }

    /// Returns the statement that analyzes the differences, with a small sample.
    pub(super) fn analyze_diff(&self) -> String {
        let turn = self.split.map_or_else(String::new, |_| format!(", {TRANSACTION}"));
        format!(
            "set local default_statistics_target = 10; analyze {DIFF} ({TID}, {IN_SOURCE}{turn})"
        )
    }

    /// Returns the statement that keeps only the last of several staged rows with the same key.
    pub(super) fn drop_duplicates(&self) -> String {
        let keys = list(self.columns.key.iter(), "");
        format!(
            "delete from {STAGE_NAME} where ctid {EQUALS} any (select ctid from (\
                 select ctid, pg_catalog.row_number() over \
                        (partition by {keys} order by {ORDER_COLUMN} desc) as nth \
                 from {STAGE_NAME}) s \
             where nth operator(pg_catalog.>) 1)"
        )
    }

    /// Returns the query that counts source rows outside the scope, and source rows with the key of
    /// a table row outside the scope.
    pub(super) fn rows_outside_scope(&self) -> Option<String> {
        let Scope::Where(predicate) = self.scope else { return None };
        let (matches, keys) = (self.matches("t", "s"), list(self.columns.key.iter(), "s"));
        Some(format!(
            "select (select pg_catalog.count(*) from {STAGE_NAME} source \
                     where ({predicate}) is not true), \
                    (select pg_catalog.count(*) from (\
                       select distinct {keys} \
                       from (select * from {} where ({predicate}) is not true) t \
                       join {STAGE_ROWS} on {matches}) found)",
            self.table
        ))
    }

    /// Returns the query that counts source rows with the key of a table row of another scope. Its
    /// second column is one of the keys. Returns `None` if the key contains the scope's columns,
    /// because there are no such rows then.
    pub(super) fn keys_in_other_scopes(&self) -> Option<String> {
        let Scope::By(_) = self.scope else { return None };
        if self.scope_columns().iter().all(|column| self.columns.key.contains(column)) {
            return None;
        }
        let (matches, scope) = (self.matches("t", "s"), self.in_scope()?);
        Some(format!(
            "select pg_catalog.count(*), pg_catalog.min({} collate pg_catalog.\"C\") from (\
               select distinct {} from {} t join {STAGE_ROWS} on {matches} \
               where not ({scope})) found",
            self.key_as_text("found"),
            list(self.columns.key.iter(), "s"),
            self.table
        ))
    }

    /// Returns the statement that creates the table of differences.
    pub(super) fn diff(&self) -> String {
        format!("{} {}", self.create_diff(), self.diff_rows())
    }

    /// Returns the beginning of the statement that creates the table of differences.
    pub(super) fn create_diff(&self) -> String {
        let lives = if self.split.is_some() { "preserve rows" } else { "drop" };
        format!("create temporary table pgspate_diff on commit {lives} as")
    }

    /// Returns the query for the differences. Each has the address of the target's row version,
    /// whether the source has the row, and the source's values.
    pub(super) fn diff_rows(&self) -> String {
        let (table, matches) = (self.table, self.matches("t", "s"));
        let (place, columns) = (self.address_columns(), self.diff_columns());
        let differs = self.differs().filter(|_| *self.scope != Scope::InsertOnly);
        let differs = differs.map_or_else(String::new, |differs| format!(" or ({differs})"));
        let (from, is_gone) = match self.in_scope() {
            Some(scope) => (
                format!(
                    "(select t.*, {place} from {table} t where {scope}) t \
                     full join {STAGE_ROWS} on {matches}"
                ),
                format!(" or s.{IS_STAGED} is null"),
            ),
            None => (
                format!(
                    "{STAGE_ROWS} left join (select t.*, {place} from {}) t on {matches}",
                    self.rows_with_staged_keys()
                ),
                String::new(),
            ),
        };
        let turn = self.split.map_or_else(String::new, |split| {
            format!(", {} as {TRANSACTION}", split.of_row("s", "t"))
        });
        format!(
            "select t.{TID}, t.{PARTITION}, s.{IS_STAGED} is not null as {IN_SOURCE}, \
                    {columns}{turn} \
             from {from} where t.{TID} is null{is_gone}{differs}"
        )
    }

    /// Returns the rows `t` of the table that may have staged keys, for a FROM clause. From a table
    /// in shards, only rows with staged keys are read, because rows are sent between servers.
    fn rows_with_staged_keys(&self) -> String {
        match self.storage.has_row_addresses {
            true => format!("{} t where {}", self.table, self.limit_to_unmatched("true")),
            false => format!(
                "{} t join (select {} from {STAGE_NAME}) s on {}",
                self.table,
                list(self.columns.key.iter(), ""),
                self.matches("t", "s")
            ),
        }
    }

    /// Returns the condition for table rows `t` that may differ: `condition`, or the unmatched rows
    /// if the table was read ahead.
    fn limit_to_unmatched(&self, condition: &str) -> String {
        match self.was_read_ahead {
            true => format!(
                "t.ctid {EQUALS} any (select {TID} from {UNMATCHED} where {SCOPE_IN_SOURCE})"
            ),
            false => condition.to_owned(),
        }
    }

    /// Returns the statement that marks unmatched rows whose scope has staged rows.
    pub(super) fn mark_staged_scopes(&self) -> Option<String> {
        let Scope::By(_) = self.scope else { return None };
        Some(format!(
            "update {UNMATCHED} u set {SCOPE_IN_SOURCE} = true from {} t \
             where not u.{SCOPE_IN_SOURCE} and t.ctid {EQUALS} u.{TID} and {}",
            self.table,
            self.in_staged_scope()
        ))
    }

    /// Returns the query that counts rows to insert whose key the table has. Such rows exist only
    /// if the table was read ahead and the source has a duplicate key.
    pub(super) fn count_taken_keys(&self) -> String {
        let matches = self.matches("t", "s");
        format!(
            "select pg_catalog.count(*) from {DIFF_ROWS} join {} t on {matches} \
             where s.{TID} is null",
            self.table
        )
    }

    /// Returns the query that counts the rows to delete, to update and to insert.
    pub(super) fn count_differences(&self) -> String {
        format!("select {} from {DIFF}", counts())
    }

    /// Returns the query of [`SyncStatements::count_differences`] with two more columns: the rows
    /// in the scope, and whether rows to insert have the same key. Returns `None` if a source with
    /// duplicate keys could have the same counts. Also returns `None` if the storage does not take
    /// one query on the table and on temporary tables.
    pub(super) fn count_differences_and_keys(&self) -> Option<String> {
        let joins = self.storage.explains_joins_with_temporary_tables;
        if !self.columns.key_is_unique || self.keeps_last || !joins {
            return None;
        }
        let (scope, keys) = (self.count_scope()?, list(self.columns.key.iter(), "s"));
        Some(format!(
            "select found.*, ({scope}), \
                    exists (select from {DIFF} s where s.{TID} is null group by {keys} \
                            having pg_catalog.count(*) operator(pg_catalog.>) 1) \
             from ({}) found",
            self.count_differences()
        ))
    }

    /// Returns the query that counts the rows to delete, to update and to insert for each
    /// transaction. The last column is the transaction's ordinal.
    pub(super) fn count_per_transaction(&self) -> String {
        format!(
            "select {}, {TRANSACTION} from {DIFF} group by {TRANSACTION} order by {TRANSACTION}",
            counts()
        )
    }

    /// Returns the query that counts the rows to delete or update that are still in place, and the
    /// rows to insert whose key exists by now.
    pub(super) fn recheck(&self) -> String {
        let (table, at, turn) = (self.table, self.same_row_version(), self.in_this_transaction());
        let (matches, scope) = (self.matches("t", "s"), self.is_still_in_scope());
        format!(
            "select (select pg_catalog.count(*) from {table} t join {DIFF_ROWS} on {at} \
                     where s.{TID} is not null and (s.{IN_SOURCE} or true{scope}){turn}), \
                    (select pg_catalog.count(*) from {table} t join {DIFF_ROWS} on {matches} \
                     where s.{TID} is null{turn})"
        )
    }

    pub(super) fn delete(&self) -> String {
        let (at, turn) = (self.same_row_version(), self.in_this_transaction());
        format!(
            "delete from {} t using {DIFF_ROWS} where {at} and not s.{IN_SOURCE}{turn}",
            self.table
        )
    }

    pub(super) fn update(&self) -> String {
        let set = self.columns.set().map(|it| format!("{0} = s.{0}", it.name));
        let set = set.collect::<Vec<_>>().join(", ");
        let (at, turn) = (self.same_row_version(), self.in_this_transaction());
        format!(
            "update {} t set {set} from {DIFF_ROWS} \
             where {at} and s.{IN_SOURCE} and s.{TID} is not null{turn}",
            self.table
        )
    }

    pub(super) fn insert(&self) -> String {
        let (into, from) = (list(self.columns.all(), ""), list(self.columns.all(), "s"));
        let overriding = match self.columns.all().any(|column| column.is_fixed) {
            true => "overriding system value ",
            false => "",
        };
        format!(
            "insert into {} ({into}) {overriding}\
             select {from} from {DIFF} s where s.{TID} is null{}",
            self.table,
            self.in_this_transaction()
        )
    }

    /// Returns queries for some keys of rows to delete, to update and to insert.
    pub(super) fn examples(&self) -> [String; 3] {
        let most = Examples::COUNT_MAX;
        let some = |condition: &str| {
            let key = self.key_as_text("s");
            format!("select {key} from {DIFF} s where {condition} limit {most}")
        };
        let delete = format!(
            "select {} from {} t join {DIFF_ROWS} on {} where not s.{IN_SOURCE} limit {most}",
            self.key_as_text("t"),
            self.table,
            self.same_row_version()
        );
        let update = some(&format!("s.{IN_SOURCE} and s.{TID} is not null"));
        [delete, update, some(&format!("s.{TID} is null"))]
    }

    /// Returns SQL for the key of a row of `from`, as text.
    fn key_as_text(&self, from: &str) -> String {
        let columns = self.columns.key.iter();
        let words = columns.map(|it| format!("coalesce({from}.{}::text, 'null')", it.name));
        format!("pg_catalog.concat_ws(', ', {})", words.collect::<Vec<_>>().join(", "))
    }

    pub(super) fn scope_columns(&self) -> Vec<&SyncColumn> {
        let Scope::By(names) = self.scope else { return Vec::new() };
        let find = |name: &String| {
            let quoted = pgspate_target::quote_ident(name);
            self.columns.all().find(|column| column.name == quoted)
        };
        names.iter().filter_map(find).collect()
    }

    /// Returns the condition that a target row is in the scope from which rows are deleted.
    fn in_scope(&self) -> Option<String> {
        let scope = match self.scope {
            Scope::All => "true".to_owned(),
            Scope::Where(predicate) => format!("({predicate})"),
            Scope::By(_) => self.in_staged_scope(),
            Scope::NoDelete | Scope::InsertOnly => return None,
        };
        Some(self.limit_to_unmatched(&scope))
    }

    fn in_staged_scope(&self) -> String {
        let columns = self.scope_columns();
        let distinct = list(columns.iter().copied(), "");
        let matches: Vec<_> = columns.iter().map(|it| it.matches("t", "scopes")).collect();
        format!(
            "exists (select from (select distinct {distinct} from {STAGE_NAME}) scopes where {})",
            matches.join(" and ")
        )
    }

    /// Returns the condition that `t` is the target's row version of difference `s`. If several
    /// transactions write, another row may have got the address, so keys are compared, too.
    pub(super) fn same_row_version(&self) -> String {
        let place = format!("t.ctid {EQUALS} s.{TID} and t.tableoid {EQUALS} s.{PARTITION}");
        match (self.storage.has_row_addresses, self.split.is_some()) {
            (false, _) => self.matches("t", "s"),
            (true, true) => format!("{place} and {}", self.matches("t", "s")),
            (true, false) => place,
        }
    }

    /// Returns the condition that a row to delete is still in its scope.
    fn is_still_in_scope(&self) -> String {
        let columns = self.scope_columns();
        columns.iter().map(|column| format!(" and {}", column.matches("t", "s"))).collect()
    }

    /// Returns the condition that the current transaction writes difference `s`.
    pub(super) fn in_this_transaction(&self) -> String {
        self.transaction
            .map_or_else(String::new, |nth| format!(" and s.{TRANSACTION} {EQUALS} {nth}"))
    }

    /// Returns the address columns of a target row; NULL if there is no target row.
    fn address_columns(&self) -> String {
        match self.storage.has_row_addresses {
            true => format!("t.ctid as {TID}, t.tableoid as {PARTITION}"),
            false => format!("true as {TID}, true as {PARTITION}"),
        }
    }

    /// Returns the columns of a difference: the source's values. For a row that the source does not
    /// have, the columns have the table's key, and the table's scope if there are several
    /// transactions.
    fn diff_columns(&self) -> String {
        if self.storage.has_row_addresses && self.split.is_none() {
            return list(self.columns.all(), "s");
        }
        let scope = if self.split.is_some() { self.scope_columns() } else { Vec::new() };
        let found = |it: &SyncColumn| match (self.columns.key.contains(it), scope.contains(&it)) {
            (true, _) => format!("coalesce(s.{0}, t.{0}) as {0}", it.name),
            (false, true) => {
                format!("case when s.{IS_STAGED} is null then t.{0} else s.{0} end as {0}", it.name)
            }
            (false, false) => format!("s.{}", it.name),
        };
        self.columns.all().map(found).collect::<Vec<_>>().join(", ")
    }

    /// Returns the condition that two rows have the same key.
    pub(super) fn matches(&self, left: &str, right: &str) -> String {
        let all: Vec<_> =
            self.columns.key.iter().map(|column| column.matches(left, right)).collect();
        all.join(" and ")
    }

    /// Returns the condition that a matched row differs; `None` if no column is compared. Other
    /// columns than exact ones and floats are compared byte by byte, which takes longer.
    fn differs(&self) -> Option<String> {
        let (quick, other): (Vec<_>, Vec<_>) =
            self.columns.compared().partition(|column| column.is_exact || column.is_float);
        let mut all: Vec<String> = quick.iter().map(|column| column.differs("t", "s")).collect();
        if !other.is_empty() {
            let (left, right) =
                (list(other.iter().copied(), "t"), list(other.iter().copied(), "s"));
            all.push(keys::image_differs_sql(&left, &right));
        }
        (!all.is_empty()).then(|| all.join(" or "))
    }
}

/// Returns the aggregates for the numbers of rows to delete, to update and to insert.
fn counts() -> String {
    format!(
        "pg_catalog.count(*) filter (where not {IN_SOURCE}), \
         pg_catalog.count(*) filter (where {IN_SOURCE} and {TID} is not null), \
         pg_catalog.count(*) filter (where {TID} is null)"
    )
}

/// Returns the columns as a list: `t.a, t.b`, or `a, b` without a table.
pub(super) fn list<'a>(columns: impl Iterator<Item = &'a SyncColumn>, of: &str) -> String {
    let dot = if of.is_empty() { "" } else { "." };
    columns.map(|column| format!("{of}{dot}{}", column.name)).collect::<Vec<_>>().join(", ")
}

//! The statements of a sync. Pure: names in, SQL out.
//!
//! `t` is the target, `s` the stage. Unchanged rows are read and nothing else: no statement names
//! them in what it writes.

use super::columns::{SyncColumns, SyncColumn};
use super::report::Examples;
use super::turns::TransactionSplit;
use crate::stage::NAME;
use crate::stage::keys::{self, EQUALS};

/// The table of differences.
pub(super) const DIFF: &str = "pg_temp.pgspate_diff";
/// Rows of a table that was read ahead which the source was not seen to have.
pub(super) const UNMET: &str = "pg_temp.pgspate_unmet";
/// Its own columns, by names that no table has.
pub(super) const TID: &str = "\"pgspate tid\"";
pub(super) const PART: &str = "\"pgspate part\"";
/// Of a row that the source was not seen to have: its scope is one of the source's.
pub(super) const IS_IN: &str = "\"pgspate is in\"";
pub(super) const STAYS: &str = "\"pgspate stays\"";
/// Of a difference: the transaction that writes it.
const TURN: &str = "\"pgspate turn\"";

/// What of the target is to be like the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Rows whose values in these columns occur in the source.
    By(Vec<String>),
    /// Rows for which this SQL expression over the table's columns is true.
    Where(String),
    /// The whole table.
    All,
    /// No row is deleted.
    NoDelete,
    /// No row is deleted or updated.
    InsertOnly,
}

/// Builds statements.
pub(super) struct SyncStatements<'a> {
    pub(super) table: &'a str,
    pub(super) columns: &'a SyncColumns,
    pub(super) scope: &'a Scope,
    /// Of rows with the same key, the last one counts.
    pub(super) keeps_last: bool,
    /// The table was read ahead: the stage is without rows that the table has, and only the table's
    /// other rows are to be looked at.
    pub(super) is_ahead: bool,
    /// What differs is written in several transactions, one after the other.
    pub(super) turns: Option<&'a TransactionSplit>,
    /// Of these, the one that the writing statements are for; otherwise they write everything.
    pub(super) turn: Option<i32>,
}

impl SyncStatements<'_> {
    /// Keys that the source has more than once: how many there are, and some of them.
    pub(super) fn duplicates(&self) -> String {
        self.duplicates_in(&format!("{NAME} s"))
    }

    /// The same among rows that the table does not have.
    pub(super) fn duplicates_in_inserts(&self) -> String {
        self.duplicates_in(&format!("{DIFF} s where s.{TID} is null"))
    }

    /// Keys of the source that the table has more than once within the scope. `None` where the
    /// table cannot have any, and where none of its rows is written.
    pub(super) fn duplicates_in_table(&self) -> Option<String> {
        if self.columns.key_is_unique || *self.scope == Scope::InsertOnly {
            return None;
        }
        let scope = self.in_scope().unwrap_or_else(|| "true".to_owned());
        Some(self.duplicates_in(&format!(
            "(select * from {} t where {scope}) s \
             where exists (select from {NAME} n where {})",
            self.table,
            self.matches("s", "n")
        )))
    }

    fn duplicates_in(&self, rows: &str) -> String {
        let keys = list(self.columns.key.iter(), "s");
        let words =
            self.columns.key.iter().map(|it| format!("coalesce(s.{}::text, 'null')", it.name));
        let words = words.collect::<Vec<_>>().join(", ");
        format!(
            "select pg_catalog.count(*) over (), pg_catalog.concat_ws(', ', {words}), \
                    pg_catalog.count(*) from {rows} group by {keys} \
             having pg_catalog.count(*) operator(pg_catalog.>) 1 \
             order by pg_catalog.count(*) desc limit 3"
        )
    }

    /// How many rows the scope has; `None` where nothing is deleted.
    pub(super) fn count_scope(&self) -> Option<String> {
        let scope = self.in_scope()?;
        Some(format!("select pg_catalog.count(*) from {} t where {scope}", self.table))
    }

    /// The columns by which rows are found, for statistics.
    pub(super) fn finding(&self) -> String {
        let mut columns: Vec<_> = self.columns.key.iter().collect();
        columns.extend(self.scope_columns());
        columns.sort_by_key(|column| &column.name);
        columns.dedup();
        list(columns.into_iter(), "")
    }

    /// Statistics of the difference, by a small sample.
    pub(super) fn analyze_diff(&self) -> String {
        let turn = self.turns.map_or_else(String::new, |_| format!(", {TURN}"));
        format!("set local default_statistics_target = 10; analyze {DIFF} ({TID}, {STAYS}{turn})")
    }

    /// Leaves the last of rows with the same key.
    pub(super) fn drop_duplicates(&self) -> String {
        let keys = list(self.columns.key.iter(), "");
        format!(
            "delete from {NAME} where ctid {EQUALS} any (select ctid from (\
                 select ctid, pg_catalog.row_number() over \
                        (partition by {keys} order by ctid desc) as nth from {NAME}) s \
             where nth operator(pg_catalog.>) 1)"
        )
    }

    /// Rows of the source that are not in the scope, or whose key a row outside has.
    pub(super) fn strays(&self) -> Option<String> {
        let Scope::Where(predicate) = self.scope else { return None };
        let matches = self.matches("t", "s");
        Some(format!(
            "select (select pg_catalog.count(*) from {NAME} where ({predicate}) is not true), \
                    (select pg_catalog.count(*) \
                     from (select * from {} where ({predicate}) is not true) t \
                     join {NAME} s on {matches})",
            self.table
        ))
    }

    /// Rows of other scopes whose key the source has. There can be none where the scope's columns
    /// are of the key.
    pub(super) fn movers(&self) -> Option<String> {
        let Scope::By(_) = self.scope else { return None };
        if self.scope_columns().iter().all(|column| self.columns.key.contains(column)) {
            return None;
        }
        let (matches, scope) = (self.matches("t", "s"), self.in_scope()?);
        Some(format!(
            "select pg_catalog.count(*) from {} t join {NAME} s on {matches} where not ({scope})",
            self.table
        ))
    }

    /// What differs, found in one pass over both: for each row the place of the target's version,
    /// whether the source has it, and what the source says.
    pub(super) fn diff(&self) -> String {
        let (table, matches) = (self.table, self.matches("t", "s"));
        let (place, columns) = (self.place(), self.found());
        let differs = self.differs().filter(|_| *self.scope != Scope::InsertOnly);
        let differs = differs.map_or_else(String::new, |differs| format!(" or ({differs})"));
        let (from, is_gone) = match self.in_scope() {
            Some(scope) => (
                format!(
                    "(select t.*, {place} from {table} t where {scope}) t \
                     full join {NAME} s on {matches}"
                ),
                " or s.ctid is null",
            ),
            None => (
                format!(
                    "{NAME} s left join (select t.*, {place} from {table} t where {}) t \
                     on {matches}",
                    self.may_differ("true")
                ),
                "",
            ),
        };
        let (lives, turn) = match self.turns {
            Some(turns) => ("preserve rows", format!(", {} as {TURN}", turns.of_row("s", "t"))),
            None => ("drop", String::new()),
        };
        format!(
            "create temporary table pgspate_diff on commit {lives} as \
             select t.{TID}, t.{PART}, s.ctid is not null as {STAYS}, {columns}{turn} \
             from {from} where t.{TID} is null{is_gone}{differs}"
        )
    }

    /// Of the table's rows `t`, those that may differ from the source: by a condition, unless the
    /// table was read ahead.
    fn may_differ(&self, condition: &str) -> String {
        match self.is_ahead {
            true => format!("t.ctid {EQUALS} any (select {TID} from {UNMET} where {IS_IN})"),
            false => condition.to_owned(),
        }
    }

    /// Where the table was read ahead: marks rows whose scope the stage has.
    pub(super) fn admit(&self) -> Option<String> {
        let Scope::By(_) = self.scope else { return None };
        Some(format!(
            "update {UNMET} u set {IS_IN} = true from {} t \
             where not u.{IS_IN} and t.ctid {EQUALS} u.{TID} and {}",
            self.table,
            self.in_staged_scope()
        ))
    }

    /// How many rows of the difference are to be inserted although the table has their keys. There
    /// can be some where it was read ahead, and the source has a key more than once.
    pub(super) fn taken(&self) -> String {
        let matches = self.matches("t", "s");
        format!(
            "select pg_catalog.count(*) from {DIFF} s join {} t on {matches} where s.{TID} is null",
            self.table
        )
    }

    /// How many rows of the difference are to be deleted, to be updated and to be inserted.
    pub(super) fn count(&self) -> String {
        format!("select {} from {DIFF}", counts())
    }

    /// The same for each of several transactions that has any, and which it is.
    pub(super) fn count_turns(&self) -> String {
        format!("select {}, {TURN} from {DIFF} group by {TURN} order by {TURN}", counts())
    }

    /// How many rows of what differs are at their places, and how many to insert are there.
    pub(super) fn look_again(&self) -> String {
        let (table, at, turn) = (self.table, self.at(), self.of_turn());
        let (matches, scope) = (self.matches("t", "s"), self.in_its_scope());
        format!(
            "select (select pg_catalog.count(*) from {table} t join {DIFF} s on {at} \
                     where s.{TID} is not null and (s.{STAYS} or true{scope}){turn}), \
                    (select pg_catalog.count(*) from {table} t join {DIFF} s on {matches} \
                     where s.{TID} is null{turn})"
        )
    }

    pub(super) fn delete(&self) -> String {
        let (at, turn) = (self.at(), self.of_turn());
        format!("delete from {} t using {DIFF} s where {at} and not s.{STAYS}{turn}", self.table)
    }

    pub(super) fn update(&self) -> String {
        let set = self.columns.set().map(|it| format!("{0} = s.{0}", it.name));
        let set = set.collect::<Vec<_>>().join(", ");
        let (at, turn) = (self.at(), self.of_turn());
        format!(
            "update {} t set {set} from {DIFF} s \
             where {at} and s.{STAYS} and s.{TID} is not null{turn}",
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
            self.of_turn()
        )
    }

    /// Three keys each of rows to delete, to update and to insert.
    pub(super) fn examples(&self) -> [String; 3] {
        let most = Examples::MOST;
        let key = |of: &str| {
            let columns = self.columns.key.iter().map(|it| format!("{of}.{}::text", it.name));
            format!("pg_catalog.concat_ws(', ', {})", columns.collect::<Vec<_>>().join(", "))
        };
        let some = |condition: &str| {
            format!("select {} from {DIFF} s where {condition} limit {most}", key("s"))
        };
        let delete = format!(
            "select {} from {} t join {DIFF} s on {} where not s.{STAYS} limit {most}",
            key("t"),
            self.table,
            self.at()
        );
        let update = some(&format!("s.{STAYS} and s.{TID} is not null"));
        [delete, update, some(&format!("s.{TID} is null"))]
    }

    pub(super) fn scope_columns(&self) -> Vec<&SyncColumn> {
        let Scope::By(names) = self.scope else { return Vec::new() };
        let find = |name: &String| {
            let quoted = pgspate_target::quote_ident(name);
            self.columns.all().find(|column| column.name == quoted)
        };
        names.iter().filter_map(find).collect()
    }

    /// Whether a row of the target is in the scope from which rows are deleted.
    fn in_scope(&self) -> Option<String> {
        let scope = match self.scope {
            Scope::All => "true".to_owned(),
            Scope::Where(predicate) => format!("({predicate})"),
            Scope::By(_) => self.in_staged_scope(),
            Scope::NoDelete | Scope::InsertOnly => return None,
        };
        Some(self.may_differ(&scope))
    }

    fn in_staged_scope(&self) -> String {
        let columns = self.scope_columns();
        let distinct = list(columns.iter().copied(), "");
        let matches: Vec<_> = columns.iter().map(|it| it.matches("t", "scopes")).collect();
        format!(
            "exists (select from (select distinct {distinct} from {NAME}) scopes where {})",
            matches.join(" and ")
        )
    }

    /// The target's version that a difference is about. In a later transaction than the one that
    /// found it, another row may be in its place.
    pub(super) fn at(&self) -> String {
        let place = format!("t.ctid {EQUALS} s.{TID} and t.tableoid {EQUALS} s.{PART}");
        match (self.columns.found_by_key, self.turns.is_some()) {
            (true, _) => self.matches("t", "s"),
            (false, true) => format!("{place} and {}", self.matches("t", "s")),
            (false, false) => place,
        }
    }

    /// For a row to delete in a later transaction: that it is still in the scope it was found in.
    fn in_its_scope(&self) -> String {
        let columns = self.scope_columns();
        columns.iter().map(|column| format!(" and {}", column.matches("t", "s"))).collect()
    }

    /// Whether a difference is this transaction's to write.
    pub(super) fn of_turn(&self) -> String {
        self.turn.map_or_else(String::new, |turn| format!(" and s.{TURN} {EQUALS} {turn}"))
    }

    /// What is kept of the place of the target's version; NULL where there is none.
    fn place(&self) -> String {
        match self.columns.found_by_key {
            true => format!("true as {TID}, true as {PART}"),
            false => format!("t.ctid as {TID}, t.tableoid as {PART}"),
        }
    }

    /// The columns of a difference: the source's, and of a row that it does not have the key, for a
    /// later transaction with the scope.
    fn found(&self) -> String {
        if !self.columns.found_by_key && self.turns.is_none() {
            return list(self.columns.all(), "s");
        }
        let scope = if self.turns.is_some() { self.scope_columns() } else { Vec::new() };
        let found = |it: &SyncColumn| match (self.columns.key.contains(it), scope.contains(&it)) {
            (true, _) => format!("coalesce(s.{0}, t.{0}) as {0}", it.name),
            (false, true) => {
                format!("case when s.ctid is null then t.{0} else s.{0} end as {0}", it.name)
            }
            (false, false) => format!("s.{}", it.name),
        };
        self.columns.all().map(found).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn matches(&self, left: &str, right: &str) -> String {
        let all: Vec<_> =
            self.columns.key.iter().map(|column| column.matches(left, right)).collect();
        all.join(" and ")
    }

    /// Whether a row is to be written. Values that may be equal and yet differ are compared by
    /// their bytes.
    fn differs(&self) -> Option<String> {
        let (exact, other): (Vec<_>, Vec<_>) =
            self.columns.compared().partition(|column| column.is_exact);
        let mut all: Vec<String> = exact
            .iter()
            .map(|column| match column.is_nullable {
                true => {
                    let [t, s] = ["t", "s"].map(|of| format!("{of}.{}", column.name));
                    keys::differ(&t, &column.equals, &s)
                }
                // What the stage has may be NULL, and is then refused.
                false => format!("(t.{0} {1} s.{0}) is not true", column.name, column.equals),
            })
            .collect();
        if !other.is_empty() {
            let (left, right) =
                (list(other.iter().copied(), "t"), list(other.iter().copied(), "s"));
            all.push(format!("row({left})::record operator(pg_catalog.*<>) row({right})::record"));
        }
        (!all.is_empty()).then(|| all.join(" or "))
    }
}

/// Of the table of differences: rows to delete, to update, to insert.
fn counts() -> String {
    format!(
        "pg_catalog.count(*) filter (where not {STAYS}), \
         pg_catalog.count(*) filter (where {STAYS} and {TID} is not null), \
         pg_catalog.count(*) filter (where {TID} is null)"
    )
}

/// `t.a, t.b`; `a, b` for no table.
pub(super) fn list<'a>(columns: impl Iterator<Item = &'a SyncColumn>, of: &str) -> String {
    let dot = if of.is_empty() { "" } else { "." };
    columns.map(|column| format!("{of}{dot}{}", column.name)).collect::<Vec<_>>().join(", ")
}

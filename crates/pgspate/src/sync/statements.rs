//! The statements of a sync. Pure: names in, SQL out.
//!
//! `t` is the target, `s` the stage. Unchanged rows are read and nothing else: no statement names
//! them in what it writes.

use super::columns::{Columns, SyncColumn};
use crate::stage::NAME;

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
pub(super) struct Statements<'a> {
    pub(super) table: &'a str,
    pub(super) columns: &'a Columns,
    pub(super) scope: &'a Scope,
    /// Of rows with the same key, the last one counts.
    pub(super) keeps_last: bool,
}

impl Statements<'_> {
    /// Keys that the source has more than once: how many there are, and some of them.
    pub(super) fn duplicates(&self) -> String {
        let keys = list(self.columns.key.iter(), "s");
        format!(
            "select count(*) over (), concat_ws(', ', {}), count(*) from {NAME} s \
             group by {keys} having count(*) > 1 limit 3",
            self.columns
                .key
                .iter()
                .map(|it| format!("s.{}::text", it.name))
                .collect::<Vec<_>>()
                .join(", ")
        )
    }

    /// Leaves the last of rows with the same key.
    pub(super) fn drop_duplicates(&self) -> String {
        let keys = list(self.columns.key.iter(), "");
        format!(
            "delete from {NAME} where ctid in (select ctid from (select ctid, row_number() over \
             (partition by {keys} order by ctid desc) as nth from {NAME}) s where nth > 1)"
        )
    }

    /// Rows of the source that are not in the scope, or whose key a row outside has.
    pub(super) fn strays(&self) -> Option<String> {
        let Scope::Where(predicate) = self.scope else { return None };
        let matches = self.matches("t", "s");
        Some(format!(
            "select (select count(*) from {NAME} where ({predicate}) is not true), \
                    (select count(*) from (select * from {} where ({predicate}) is not true) t \
                     join {NAME} s on {matches})",
            self.table
        ))
    }

    /// Rows of other scopes whose key the source has.
    pub(super) fn movers(&self) -> Option<String> {
        let Scope::By(_) = self.scope else { return None };
        let (matches, scope) = (self.matches("t", "s"), self.in_scope()?);
        Some(format!(
            "select count(*) from {} t join {NAME} s on {matches} where not ({scope})",
            self.table
        ))
    }

    /// Rows of the target in the scope.
    pub(super) fn count_scope(&self) -> Option<String> {
        let scope = self.in_scope()?;
        Some(format!("select count(*) from {} t where {scope}", self.table))
    }

    pub(super) fn delete(&self) -> Option<String> {
        let (scope, matches) = (self.in_scope()?, self.matches("t", "s"));
        Some(format!(
            "delete from {} t where {scope} and not exists (select from {NAME} s where {matches})",
            self.table
        ))
    }

    pub(super) fn update(&self) -> Option<String> {
        if *self.scope == Scope::InsertOnly {
            return None;
        }
        let set: Vec<_> = self.columns.set().map(|it| format!("{0} = s.{0}", it.name)).collect();
        let differs = self.differs()?;
        let matches = self.matches("t", "s");
        Some(format!(
            "update {} t set {} from {NAME} s where {matches} and ({differs})",
            self.table,
            set.join(", ")
        ))
    }

    pub(super) fn insert(&self) -> String {
        let (into, from) = (list(self.columns.all(), ""), list(self.columns.all(), "s"));
        let overriding = match self.columns.all().any(|column| column.is_fixed) {
            true => "overriding system value ",
            false => "",
        };
        format!(
            "insert into {table} ({into}) {overriding}select {from} from {NAME} s \
             where not exists (select from {table} t where {matches})",
            table = self.table,
            matches = self.matches("t", "s")
        )
    }

    /// Counts for `--check`: to delete, to update, to insert; and some keys of each.
    pub(super) fn check(&self) -> [Option<String>; 3] {
        let key = |of: &str| {
            let columns = self.columns.key.iter().map(|it| format!("{of}.{}::text", it.name));
            format!("concat_ws(', ', {})", columns.collect::<Vec<_>>().join(", "))
        };
        let sample =
            |key: &str, from: &str| format!("select count(*), (array_agg({key}))[1:3] from {from}");
        let matches = self.matches("t", "s");
        let delete = self.in_scope().map(|scope| {
            let from = format!(
                "{} t where {scope} and not exists (select from {NAME} s where {matches})",
                self.table
            );
            sample(&key("t"), &from)
        });
        let update = self.update().and_then(|_| self.differs()).map(|differs| {
            let from = format!("{} t join {NAME} s on {matches} where {differs}", self.table);
            sample(&key("s"), &from)
        });
        let from =
            format!("{NAME} s where not exists (select from {} t where {matches})", self.table);
        [delete, update, Some(sample(&key("s"), &from))]
    }

    /// Whether a row of the target is in the scope from which rows are deleted.
    fn in_scope(&self) -> Option<String> {
        match self.scope {
            Scope::All => Some("true".to_owned()),
            Scope::Where(predicate) => Some(format!("({predicate})")),
            Scope::By(names) => {
                let columns: Vec<&SyncColumn> = names
                    .iter()
                    .filter_map(|name| {
                        let quoted = crate::target::quote_ident(name);
                        self.columns.all().find(|column| column.name == quoted)
                    })
                    .collect();
                let distinct = list(columns.iter().copied(), "");
                let matches: Vec<_> =
                    columns.iter().map(|column| column.matches("t", "scopes")).collect();
                Some(format!(
                    "exists (select from (select distinct {distinct} from {NAME}) scopes \
                     where {})",
                    matches.join(" and ")
                ))
            }
            Scope::NoDelete | Scope::InsertOnly => None,
        }
    }

    fn matches(&self, left: &str, right: &str) -> String {
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
                true => format!("t.{0} is distinct from s.{0}", column.name),
                // What the stage has may be NULL, and is then refused.
                false => format!("(t.{0} = s.{0}) is not true", column.name),
            })
            .collect();
        if !other.is_empty() {
            let (left, right) =
                (list(other.iter().copied(), "t"), list(other.iter().copied(), "s"));
            all.push(format!("row({left})::record *<> row({right})::record"));
        }
        (!all.is_empty()).then(|| all.join(" or "))
    }
}

/// `t.a, t.b`; `a, b` for no table.
fn list<'a>(columns: impl Iterator<Item = &'a SyncColumn>, of: &str) -> String {
    let dot = if of.is_empty() { "" } else { "." };
    columns.map(|column| format!("{of}{dot}{}", column.name)).collect::<Vec<_>>().join(", ")
}

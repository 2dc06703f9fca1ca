//! Assigns scopes to sessions that compare and write in parallel, or to consecutive transactions of
//! one session.
//!
//! One transaction writes a whole scope. No transaction depends on rows that another transaction
//! writes later. Sessions commit independently, so the server can detect a deadlock between the
//! sessions.

use tokio_postgres::Client;

use super::columns::SyncColumn;
use crate::Result;
use pgspate_target::{TargetTable, quote_ident, server_error};

/// Oids of date and time types, whose input may be `now` or `today`. Sessions parse these words at
/// different times and get different values.
const DATE_TIME_TYPES: [u32; 5] = [1082, 1083, 1114, 1184, 1266];

/// Query for facts about sharing. Columns: the reason why one session's rows could depend on
/// another session's rows, or NULL; the columns of $2 that every unique index contains with their
/// default equality. Rows that conflict in a unique index then belong to the same share.
const SHARING_FACTS_SQL: &str = "\
with parts as (select relid::oid as oid from pg_partition_tree($1::oid::regclass)
               union select $1::oid)
select case
       when exists (select from pg_constraint f join parts on parts.oid = f.confrelid
                    where f.contype = 'f' and f.conrelid in (select oid from parts))
       then 'a foreign key of the table refers to itself'
       when exists (select from pg_index i join parts on parts.oid = i.indrelid
                    where i.indisexclusion)
       then 'the table has an exclusion constraint'
       when exists (select from pg_class c join parts on parts.oid = c.oid
                    where c.relkind not in ('r', 'p'))
       then 'some of its rows are on another server' end,
    array(select named.name from unnest($2::text[]) with ordinality as named(name, nth)
          where not exists (
              select from pg_index i join parts on parts.oid = i.indrelid
              where i.indisunique and not exists (
                  select from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
                  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                  join pg_opclass c on c.oid = i.indclass[k.nth - 1]
                  where k.nth <= i.indnkeyatts and a.attname = named.name and c.opcdefault
                    and i.indcollation[k.nth - 1] = a.attcollation))
          order by named.nth)";

/// The columns by which scopes are assigned.
#[derive(Debug, Clone)]
pub(super) struct ScopeShares {
    columns: Vec<SyncColumn>,
    /// Whether one of the columns has a date or time type.
    pub(super) has_time_columns: bool,
}

/// Returns the scope's columns by which rows can be assigned to sessions or transactions. Returns
/// the reason if there are no such columns.
///
/// `server_parses_values` says that date and time columns cannot be used: the server parses the
/// values of all rows, or might have to while the source cannot be read again.
pub(super) async fn choose(
    client: &Client,
    table: &TargetTable,
    scope: &[String],
    key: &[SyncColumn],
    server_parses_values: bool,
) -> Result<Result<ScopeShares, String>> {
    let is_time = |name: &str| {
        let column = table.columns.iter().find(|column| column.name == name);
        column.is_some_and(|column| DATE_TIME_TYPES.contains(&column.ty.base().oid))
    };
    // Equal values must have the same text, and equal keys must be in the same scope.
    let exact_key_column =
        |name: &str| key.iter().find(|it| it.is_exact && it.name == quote_ident(name));
    let fitting = scope.iter().map(String::as_str).filter(|name| exact_key_column(name).is_some());
    let names: Vec<&str> =
        fitting.filter(|name| !(server_parses_values && is_time(name))).collect();
    let failed = server_error(format!("could not look up the keys of {}", table.sql_name));
    let row = client.query_one(SHARING_FACTS_SQL, &[&table.oid, &names]).await.map_err(failed)?;
    if let Some(reason) = row.get::<_, Option<String>>(0) {
        return Ok(Err(reason));
    }
    let in_indexes: Vec<String> = row.get(1);
    Ok(match (names.is_empty(), in_indexes.is_empty()) {
        (true, _) => Err(format!(
            "no column of the scope ({}) is in the key and has identical text for equal values",
            scope.join(", ")
        )),
        (false, true) => Err(format!("a unique index does not contain {}", names.join(" and "))),
        (false, false) => Ok(ScopeShares {
            has_time_columns: in_indexes.iter().any(|name| is_time(name)),
            columns: in_indexes.iter().filter_map(|name| exact_key_column(name)).cloned().collect(),
        }),
    })
}

impl ScopeShares {
    /// Returns one SQL condition for each session: whether the session keeps a row.
    pub(super) fn conditions(&self, sessions: usize) -> Vec<String> {
        let share = self.share_sql(sessions, |column| format!("{}::text", column.name));
        (0..sessions).map(|nth| format!("({share}) operator(pg_catalog.=) {nth}")).collect()
    }

    /// Returns SQL for the number, from 0 to `count` - 1, of the session or transaction that a row
    /// belongs to. `text` returns SQL for a column's value as text. The number is a hash of the
    /// columns' values, in which NULL counts as empty text.
    pub(super) fn share_sql(&self, count: usize, text: impl Fn(&SyncColumn) -> String) -> String {
        let values = self.columns.iter().map(|it| format!("coalesce({}, '')", text(it)));
        let values = values.collect::<Vec<_>>().join(", ");
        format!(
            "(pg_catalog.hashtext(pg_catalog.concat_ws(',', {values}) collate \"C\") \
             operator(pg_catalog.&) 2147483647) operator(pg_catalog.%) {count}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_keeps_one_remainder() {
        let column = |name: &str| SyncColumn {
            name: name.to_owned(),
            equals: "operator(pg_catalog.=)".to_owned(),
            is_nullable: false,
            is_array: false,
            is_exact: true,
            is_float: false,
            is_fixed: false,
            is_ignored: false,
        };
        let columns = vec![column("meter"), column("\"a b\"")];
        let hash = "(pg_catalog.hashtext(pg_catalog.concat_ws(',', coalesce(meter::text, ''), \
                    coalesce(\"a b\"::text, '')) collate \"C\") operator(pg_catalog.&) 2147483647)";
        let share = |nth| format!("({hash} operator(pg_catalog.%) 2) operator(pg_catalog.=) {nth}");
        let expected = [share(0), share(1)];
        assert_eq!(ScopeShares { columns, has_time_columns: false }.conditions(2), expected);
    }
}

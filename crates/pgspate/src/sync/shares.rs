//! Scopes shared out among sessions, each of which compares and writes its own.
//!
//! A scope is one session's as a whole, and whatever could make sessions wait for each other keeps
//! the sync in one: each of them commits only when all have written.

use tokio_postgres::Client;

use super::columns::SyncColumn;
use crate::Result;
use crate::target::{Table, server_error};

/// Whether sessions could wait for each other: by triggers, by foreign keys that act on rows, by
/// exclusion constraints, or on another server. And of the columns $2, those in every unique index:
/// rows with the same unique value are then in the same share.
const FACTS: &str = "\
with parts as (select relid::oid as oid from pg_partition_tree($1::oid::regclass)
               union select $1::oid)
select exists (select from pg_trigger g join parts on parts.oid = g.tgrelid
               where not g.tgisinternal and g.tgenabled <> 'D')
    or exists (select from pg_constraint f join parts on parts.oid = f.confrelid
               where f.contype = 'f' and (f.conrelid in (select oid from parts)
                     or f.confdeltype not in ('a', 'r') or f.confupdtype not in ('a', 'r')))
    or exists (select from pg_index i join parts on parts.oid = i.indrelid
               where i.indisexclusion)
    or exists (select from pg_class c join parts on parts.oid = c.oid
               where c.relkind not in ('r', 'p')),
    array(select named.name from unnest($2::text[]) with ordinality as named(name, nth)
          where not exists (
              select from pg_index i join parts on parts.oid = i.indrelid
              where i.indisunique and not exists (
                  select from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
                  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                  where k.nth <= i.indnkeyatts and a.attname = named.name))
          order by named.nth)";

/// Those of the columns by which scopes can be told apart, so that no session ever waits for
/// another one.
pub(super) async fn columns(
    client: &Client,
    table: &Table,
    scope: &[String],
    key: &[SyncColumn],
) -> Result<Vec<SyncColumn>> {
    let quoted = |name: &str| crate::target::quote_ident(name).into_owned();
    // Equal values have to be spelled alike; and equal keys have to be in the same scope.
    let fitting = |name: &&String| key.iter().any(|it| it.is_exact && it.name == quoted(name));
    let names: Vec<&str> = scope.iter().filter(fitting).map(String::as_str).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let failed = server_error(format!("could not look up the keys of {}", table.sql_name));
    let row = client.query_one(FACTS, &[&table.oid, &names]).await.map_err(failed)?;
    if row.get(0) {
        return Ok(Vec::new());
    }
    let names: Vec<String> = row.get(1);
    let is_named = |column: &&SyncColumn| names.iter().any(|name| quoted(name) == column.name);
    Ok(key.iter().filter(is_named).cloned().collect())
}

/// What each of so many sessions keeps. Equal values have the same hash; NULL has one too.
pub(super) fn conditions(columns: &[SyncColumn], sessions: usize) -> Vec<String> {
    if columns.is_empty() || sessions < 2 {
        return Vec::new();
    }
    let values: Vec<_> =
        columns.iter().map(|column| format!("coalesce({}::text, '')", column.name)).collect();
    let hash = format!("(hashtext({}) & 2147483647)", values.join(" || ',' || "));
    (0..sessions).map(|nth| format!("{hash} % {sessions} = {nth}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_has_a_remainder() {
        let column = |name: &str| SyncColumn {
            name: name.to_owned(),
            is_nullable: false,
            is_exact: true,
            is_fixed: false,
            is_ignored: false,
        };
        let both = [column("meter"), column("\"a b\"")];
        let hash = "(hashtext(coalesce(meter::text, '') || ',' || coalesce(\"a b\"::text, '')) \
                    & 2147483647)";
        let expected = [format!("{hash} % 2 = 0"), format!("{hash} % 2 = 1")];
        assert_eq!(conditions(&both, 2), expected);
        assert!(conditions(&both, 1).is_empty());
        assert!(conditions(&[], 8).is_empty());
    }
}

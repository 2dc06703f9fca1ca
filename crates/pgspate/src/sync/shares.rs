//! Scopes shared out among transactions: of several sessions, each of which compares and writes its
//! own, or of one session, one after the other.
//!
//! A scope is one transaction's as a whole, and none ever needs what another one has yet to write.
//! Sessions commit when they are done, each by itself, so that whatever makes one wait for another
//! is the server's to see and to end.

use tokio_postgres::Client;

use super::columns::SyncColumn;
use crate::Result;
use pgspate_target::{Table, quote_ident, server_error};

/// Types of which a value may be spelled as the moment it is read at: `now`, `today`. Sessions
/// read at different moments.
const MOMENTS: [u32; 5] = [1082, 1083, 1114, 1184, 1266];

/// Why sessions could need each other's rows, if they could. And of the columns $2, those in every
/// unique index, under which the same values are equal: rows that cannot both be there are in the
/// same share then.
const FACTS: &str = "\
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
       then 'rows of it are on another server' end,
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

/// SyncColumns by which scopes are told apart.
#[derive(Debug, Clone)]
pub(super) struct ScopeShares {
    columns: Vec<SyncColumn>,
    /// Text that the server reads could say `now` in one of them.
    pub(super) has_moments: bool,
}

/// The columns of the scope by which rows can be shared out, or why that cannot be.
/// `reads_moments`: the server reads values of all rows, or the source cannot be read again.
pub(super) async fn choose(
    client: &Client,
    table: &Table,
    scope: &[String],
    key: &[SyncColumn],
    reads_moments: bool,
) -> Result<Result<ScopeShares, String>> {
    let moment = |name: &str| {
        let column = table.columns.iter().find(|column| column.name == name);
        column.is_some_and(|column| MOMENTS.contains(&column.ty.base().oid))
    };
    // Equal values have to be spelled alike; and equal keys have to be in the same scope.
    let of_key = |name: &str| key.iter().find(|it| it.is_exact && it.name == quote_ident(name));
    let fitting = scope.iter().map(String::as_str).filter(|name| of_key(name).is_some());
    let names: Vec<&str> = fitting.filter(|name| !(reads_moments && moment(name))).collect();
    let failed = server_error(format!("could not look up the keys of {}", table.sql_name));
    let row = client.query_one(FACTS, &[&table.oid, &names]).await.map_err(failed)?;
    if let Some(reason) = row.get::<_, Option<String>>(0) {
        return Ok(Err(reason));
    }
    let in_indexes: Vec<String> = row.get(1);
    Ok(match (names.is_empty(), in_indexes.is_empty()) {
        (true, _) => Err(format!(
            "of the scope's columns ({}) none is of the key and has one spelling for equal values",
            scope.join(", ")
        )),
        (false, true) => Err(format!("a unique index is without {}", names.join(" and "))),
        (false, false) => Ok(ScopeShares {
            has_moments: in_indexes.iter().any(|name| moment(name)),
            columns: in_indexes.iter().filter_map(|name| of_key(name)).cloned().collect(),
        }),
    })
}

impl ScopeShares {
    /// What each of so many sessions keeps.
    pub(super) fn conditions(&self, sessions: usize) -> Vec<String> {
        let share = self.share(sessions, |column| format!("{}::text", column.name));
        (0..sessions).map(|nth| format!("({share}) operator(pg_catalog.=) {nth}")).collect()
    }

    /// Whose of so many a row is, from 0 on, by what `text` gives of a column. Equal values have
    /// the same hash; NULL has one too.
    pub(super) fn share(&self, of: usize, text: impl Fn(&SyncColumn) -> String) -> String {
        let values = self.columns.iter().map(|it| format!("coalesce({}, '')", text(it)));
        let values = values.collect::<Vec<_>>().join(", ");
        format!(
            "(pg_catalog.hashtext(pg_catalog.concat_ws(',', {values}) collate \"C\") \
             operator(pg_catalog.&) 2147483647) operator(pg_catalog.%) {of}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_has_a_remainder() {
        let column = |name: &str| SyncColumn {
            name: name.to_owned(),
            equals: "operator(pg_catalog.=)".to_owned(),
            is_nullable: false,
            is_exact: true,
            is_fixed: false,
            is_ignored: false,
        };
        let columns = vec![column("meter"), column("\"a b\"")];
        let hash = "(pg_catalog.hashtext(pg_catalog.concat_ws(',', coalesce(meter::text, ''), \
                    coalesce(\"a b\"::text, '')) collate \"C\") operator(pg_catalog.&) 2147483647)";
        let share = |nth| format!("({hash} operator(pg_catalog.%) 2) operator(pg_catalog.=) {nth}");
        let expected = [share(0), share(1)];
        assert_eq!(ScopeShares { columns, has_moments: false }.conditions(2), expected);
    }
}

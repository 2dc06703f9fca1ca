//! Unlogged tables that look like data.

use super::finding::Check;
use super::scene::{Found, Scene, count};
use crate::numbers::{bytes, thousands};

const UNLOGGED: Check = Check {
    id: "unlogged-tables",
    question: "Are there tables that a crash empties?",
    rule: "PostgreSQL manual, CREATE TABLE: unlogged tables are truncated after a crash",
};

/// With a key, or of some size: what is meant to be thrown away has neither.
const TABLES: &str = "\
select format('%I.%I', n.nspname, c.relname), pg_table_size(c.oid),
       greatest(c.reltuples, coalesce(pg_stat_get_live_tuples(c.oid), 0))::int8,
       exists (select from pg_constraint k where k.conrelid = c.oid and k.contype in ('p', 'f'))
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and c.relpersistence = 'u' and n.nspname <> 'pgspate'
  and ($1::oid = 0 or c.oid = $1)
  and c.relname !~ '(^|_)(tmp|temp|stag(e|ing)|scratch|cache)(_|$)'
  and (exists (select from pg_constraint k where k.conrelid = c.oid and k.contype in ('p', 'f'))
       or pg_table_size(c.oid) > 100 * 1024 * 1024)
  and pg_relation_size(c.oid) > 0
order by 2 desc limit 20";

/// Unlogged tables with keys or of some size.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let rows = scene.rows(TABLES).await?;
    if rows.is_empty() {
        return Ok(vec![UNLOGGED.ok("none that looks like data")]);
    }
    let finding = |row: &tokio_postgres::Row| {
        let (table, has_key): (String, bool) = (row.get(0), row.get(3));
        let (size, rows) = (count(row, 1), count(row, 2));
        let key = if has_key { ", with keys" } else { "" };
        let text = format!("unlogged: about {} rows, {}{key}", thousands(rows), bytes(size));
        UNLOGGED
            .warning(text)
            .on(&table)
            .count("bytes", size)
            .weighs(size as f64)
            .advice(
                "After a crash it is empty, and it is not in backups of the data folder nor \
                     on replicas. This writes it once, with WAL, and locks it meanwhile.",
            )
            .run(format!("alter table {table} set logged;"))
    };
    Ok(rows.iter().map(finding).collect())
}

//! Unlogged tables that look like data.

use super::finding::Check;
use super::scene::{Found, Scene, count};
use pgspate_base::numbers::{bytes, thousands};

const UNLOGGED: Check = Check {
    id: "unlogged-tables",
    question: "Are there tables that a crash empties?",
    rule: "PostgreSQL manual, CREATE TABLE: unlogged tables are truncated after a crash",
};

const LOST: &str =
    "After a crash it is empty, and it is not in backups of the data folder nor on replicas.";

/// With a key, or of some size: what is meant to be thrown away has neither. The last column is the
/// unlogged tables that it refers to, itself included, those that have to be logged first before
/// those that refer to them.
const TABLES: &str = "\
select c.name, pg_table_size(c.oid),
       greatest(c.reltuples, coalesce(pg_stat_get_live_tuples(c.oid), 0))::int8,
       exists (select from pg_constraint k where k.conrelid = c.oid and k.contype in ('p', 'f')),
       array(with recursive need(oid, depth) as (
                 select c.oid, 0
                 union
                 select u.oid, need.depth + 1
                 from need join pg_constraint k on k.conrelid = need.oid and k.contype = 'f'
                 join pg_class u on u.oid = k.confrelid and u.relpersistence = 'u'
                 where u.oid <> need.oid and need.depth < 16)
             select format('%I.%I', n.nspname, u.relname)
             from need join pg_class u on u.oid = need.oid
             join pg_namespace n on n.oid = u.relnamespace
             group by 1 order by max(need.depth) desc)
from tables c
where c.relkind = 'r' and c.relpersistence = 'u'
  and c.relname !~ '(^|_)(tmp|temp|stag(e|ing)|scratch|cache)(_|$)'
  and (exists (select from pg_constraint k where k.conrelid = c.oid and k.contype in ('p', 'f'))
       or WHOLE > 100 * 1024 * 1024)
  and case when c.is_locked then false else pg_relation_size(c.oid) > 0 end
order by WHOLE desc limit 20";

/// Unlogged tables with keys or of some size.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let rows = scene.tables(TABLES, &[]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let (table, has_key): (String, bool) = (row.get(0), row.get(3));
        let (size, rows) = (count(row, 1), count(row, 2));
        let key = if has_key { ", with keys" } else { "" };
        let text = format!("unlogged: about {} rows, {}{key}", thousands(rows), bytes(size));
        let needed: Vec<String> = row.get(4);
        let finding = UNLOGGED
            .warning(text)
            .on(&table)
            .count("bytes", size)
            .weighs(size as f64)
            .advice(match needed.len() {
                0 | 1 => format!("{LOST} This writes it once, with WAL, and locks it meanwhile."),
                _ => format!(
                    "{LOST} This writes it once, with WAL, and locks it meanwhile; what it refers \
                     to has to be logged before."
                ),
            });
        let logged = |table: &String| format!("alter table {table} set logged;");
        needed.iter().map(logged).fold(finding, super::Finding::run)
    };
    Ok(UNLOGGED.found(rows.iter().map(finding), "none that looks like data"))
}

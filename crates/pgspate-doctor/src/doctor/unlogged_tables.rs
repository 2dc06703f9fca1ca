//! Finds unlogged tables that seem to hold lasting data.

use super::context::{CheckContext, CheckResult, count};
use super::finding::Check;
use pgspate_base::numbers::{bytes, thousands};

const UNLOGGED: Check = Check {
    id: "unlogged-tables",
    question: "Which tables would be empty after a crash?",
    rule: "PostgreSQL manual, CREATE TABLE: unlogged tables are truncated after a crash",
};

const LOST: &str =
    "After a crash the table is empty. It is missing in physical backups and on replicas.";

const REWRITE: &str =
    "SET LOGGED rewrites the table, writes all of it to WAL, and blocks readers and writers.";

/// Unlogged tables with a primary or foreign key, or of more than 100 MiB; temporary data usually
/// has neither. Excludes tables whose names say that they are temporary, such as `orders_tmp`. The
/// last column lists the table and the unlogged tables that it references. A referenced table comes
/// first, because it must be logged before the tables that reference it.
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

/// Finds unlogged tables with keys or of more than 100 MiB.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let rows = context.query_tables(TABLES, &[]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let (table, has_key): (String, bool) = (row.get(0), row.get(3));
        let (size, rows) = (count(row, 1), count(row, 2));
        let key = if has_key { ", with keys" } else { "" };
        let text = format!("unlogged: about {} rows, {}{key}", thousands(rows), bytes(size));
        let needed: Vec<String> = row.get(4);
        let finding =
            UNLOGGED.warning(text).about(&table).count("bytes", size).weight(size as f64).advice(
                match needed.len() {
                    0 | 1 => format!("{LOST} {REWRITE}"),
                    _ => format!(
                        "{LOST} {REWRITE} The tables that it references must be logged first."
                    ),
                },
            );
        let logged = |table: &String| format!("alter table {table} set logged;");
        needed.iter().map(logged).fold(finding, super::Finding::remedy)
    };
    Ok(UNLOGGED
        .findings_or_ok(rows.iter().map(finding), "no unlogged table seems to hold lasting data"))
}

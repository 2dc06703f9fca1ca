//! Tables that checks leave out, as a session has them locked.

use super::finding::Check;
use super::scene::{Found, Scene, count};

const LOCKED: Check = Check {
    id: "locked-tables",
    question: "Which tables are locked against readers, and were not looked at?",
    rule: "PostgreSQL manual, explicit locking: ACCESS EXCLUSIVE lets nobody read",
};

/// Also those that a session only waits to lock: who asks after it waits, too.
const NAMES: &str = "\
, seen as (
    select distinct format('%I.%I', n.nspname, c.relname) as name, l.pid
    from pg_locks l join pg_database d on d.oid = l.database
    left join pg_index i on i.indexrelid = l.relation
    join pg_class c on c.oid = coalesce(i.indrelid, l.relation)
    join schemas n on n.oid = c.relnamespace
    where d.datname = current_database() and l.locktype = 'relation'
      and l.mode = 'AccessExclusiveLock' and l.pid is distinct from pg_backend_pid()
      and c.relkind in ('r', 'p', 'm') and ($1::oid = 0 or c.oid in (select oid from asked)))
select name, string_agg(coalesce(pid::text, 'prepared'), ', ' order by pid), count(*) over ()
from seen group by name order by name limit 5";

/// One finding with their names, or none.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let rows = scene.tables(NAMES, &[]).await?;
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let whole = count(first, 2);
    let name = |row: &tokio_postgres::Row| {
        let (table, pids): (&str, &str) = (row.get(0), row.get(1));
        format!("{table} (by {pids})")
    };
    let mut names = rows.iter().map(name).collect::<Vec<_>>().join(", ");
    if whole > rows.len() as u64 {
        names.push_str(&format!(" and {} more", whole - rows.len() as u64));
    }
    let text = format!("locked against readers, and left out: {names}");
    let finding = LOCKED.cannot_see(text).count("tables", whole);
    Ok(vec![finding.advice("Ask again when they are free.")])
}

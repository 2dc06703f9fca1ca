//! Names the tables that checks leave out because a session has locked them.

use super::context::{CheckContext, CheckResult, count};
use super::finding::Check;

const LOCKED: Check = Check {
    id: "locked-tables",
    question: "Which tables are locked against readers and were not checked?",
    rule: "PostgreSQL manual, explicit locking: ACCESS EXCLUSIVE blocks readers",
};

/// Locked tables. A table that a session waits to lock counts, too: later readers would wait behind
/// that session.
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
select name, string_agg(coalesce('process ' || pid, 'a prepared transaction'), ', ' order by pid),
       count(*) over ()
from seen group by name order by name limit 5";

/// Reports all locked tables in one finding, if there are any.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let rows = context.query_tables(NAMES, &[]).await?;
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let tables = count(first, 2);
    let name = |row: &tokio_postgres::Row| {
        let (table, pids): (&str, &str) = (row.get(0), row.get(1));
        format!("{table} (by {pids})")
    };
    let mut names = rows.iter().map(name).collect::<Vec<_>>().join(", ");
    if tables > rows.len() as u64 {
        names.push_str(&format!(" and {} more", tables - rows.len() as u64));
    }
    let text = format!("locked against readers and not checked: {names}");
    let finding = LOCKED.cannot_see(text).count("tables", tables);
    Ok(vec![finding.advice("Run `pgspate doctor` again when the locks are released.")])
}

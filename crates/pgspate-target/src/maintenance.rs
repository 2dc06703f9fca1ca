//! Facts that decide what a load does to a table before and after writing: indexes, owner, sessions
//! that use the table, size, and sequences.
//!
//! The facts are read for the plan, and again under the lock under which indexes are dropped.
//! Nothing is changed.

use tokio_postgres::{Client, Row, SimpleQueryMessage};

use super::index::{self, TableIndex};
use super::{TableStorage, TargetTable, TypedQuery, server_error};
use crate::Result;

/// Facts that decide which indexes a load drops, and what else the load changes for its duration.
#[derive(Debug, Clone, Default)]
pub struct MaintenanceFacts {
    /// Indexes and foreign keys, in the order in which they are recreated.
    pub indexes: Vec<TableIndex>,
    /// Whether the current role may alter the table.
    pub is_owner: bool,
    /// Whether the current role may create indexes in the table's schema.
    pub may_create_indexes: bool,
    /// Whether a publication contains the table. Logical replication needs its keys.
    pub is_published: bool,
    /// Whether foreign keys refer to the table.
    pub is_referenced: bool,
    /// Whether DELETE or TRUNCATE fires triggers, or DELETE is subject to rules.
    pub has_delete_actions: bool,
    /// Other sessions that hold a lock on the table, in words.
    pub locking_sessions: Vec<String>,
    /// Whether the table is known to have no rows.
    pub is_empty: bool,
    /// Size without indexes, in bytes; `u64::MAX` if it is unknown.
    pub table_bytes: u64,
    /// Estimated rows including partitions, from the catalog. `None` if the table was never
    /// analyzed.
    pub rows: Option<f64>,
    /// The limit of temporary files per process for this role, in bytes, if a limit exists.
    pub temp_bytes_max: Option<u64>,
    /// The table's options `autovacuum_enabled` and `toast.autovacuum_enabled`, if set.
    pub autovacuum: [Option<String>; 2],
    /// Whether the table has a TOAST table.
    pub has_toast: bool,
    /// Sequences that the table's columns own.
    pub sequences: Vec<Sequence>,
}

/// A sequence that a column owns: of an identity or serial column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// The column's name, unquoted.
    pub column: String,
    /// The sequence, quoted for SQL.
    pub name: String,
    /// The step between two values.
    pub increment: i64,
    /// The minimum and the maximum value.
    pub bounds: (i64, i64),
    /// Whether the sequence begins again after its last value.
    pub cycles: bool,
}

/// Sessions that hold a lock on the table or its indexes, strongest locks first. A role without the
/// right to see all sessions sees fewer details.
const LOCKING_SESSIONS: &str = "\
select concat('session ', a.pid, ' (', concat_ws(
    ', ', '\"' || nullif(a.application_name, '') || '\"', 'role ' || a.usename, a.state), ')')
from pg_stat_activity a join (
    select pid, max(array_position(array['AccessShareLock', 'RowShareLock', 'RowExclusiveLock',
        'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
        'AccessExclusiveLock'], mode)) as strength
    from pg_locks
    where granted and locktype = 'relation'
      and database = (select oid from pg_database where datname = current_database())
      and relation in (select $1::oid union all
                       select indexrelid from pg_index where indrelid = $1)
    group by pid) l on l.pid = a.pid
where a.pid <> pg_backend_pid() and a.usesysid is not null and l.strength >= $2
  and coalesce(a.backend_type, 'client backend') = 'client backend'
order by l.strength desc, a.pid";

const FACTS: &str = "\
select pg_has_role(c.relowner, 'usage'), has_schema_privilege(c.relnamespace, 'create'),
       exists (select from pg_publication_tables p
               where (p.schemaname, p.tablename) = (n.nspname, c.relname)),
       exists (select from pg_constraint f where f.contype = 'f' and f.confrelid = c.oid),
       case when not exists (select from pg_locks
                             where relation = c.oid and mode = 'AccessExclusiveLock' and granted
                               and pid <> pg_backend_pid())
            then (select sum(pg_table_size(oid)) from (select c.oid {chunks}) t(oid))::int8 end,
       (select case when bool_and(t.reltuples >= 0 and (t.relpages > 0 or t.reltuples > 0))
                    then sum(t.reltuples)::float8 end
        from pg_class t where t.oid = c.oid and t.relkind <> 'p'
          or t.oid in (select relid from pg_partition_tree(c.oid) where isleaf {chunks})),
       (select option_value from pg_options_to_table(c.reloptions)
        where option_name = 'autovacuum_enabled'),
       (select option_value
        from pg_class t, pg_options_to_table(t.reloptions)
        where t.oid = c.reltoastrelid and option_name = 'autovacuum_enabled'),
       c.reltoastrelid <> 0,
       exists (select from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal
                 and t.tgtype & 40 <> 0)
         or exists (select from pg_rewrite r where r.ev_class = c.oid and r.ev_type = '4'),
       (select setting::int8 * 1024 from pg_settings
        where name = 'temp_file_limit' and setting::int8 >= 0)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = $1";

/// Adds the chunks of hypertable `c` to a list of oids.
const CHUNKS: &str = "union all select inhrelid from pg_inherits where inhparent = c.oid";

const SEQUENCES: &str = "\
select a.attname::text, format('%I.%I', n.nspname, s.relname), q.seqincrement, q.seqmin, q.seqmax,
       q.seqcycle
from pg_depend d
join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
join pg_class s on s.oid = d.objid join pg_namespace n on n.oid = s.relnamespace
join pg_sequence q on q.seqrelid = s.oid
where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
  and d.deptype in ('a', 'i') and d.refobjid = $1
  and a.atttypid in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
order by a.attnum";

/// How long [`MaintenanceFacts::read`] waits for an exclusive lock of another session. Reading
/// index definitions locks the indexes.
const LOCK_TIMEOUT_MILLIS: i32 = 1000;

/// How long the check for rows waits for its lock. Sessions that only read or write rows do not
/// block the check.
const EMPTY_CHECK_LOCK_TIMEOUT: &str = "50ms";

impl Sequence {
    /// Reads the sequences that the columns of a table own. `table` is a name in SQL.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
    pub async fn read_of(client: &Client, table: &str) -> Result<Vec<Sequence>> {
        let failed = server_error(format!("could not look up the sequences of {table}"));
        let sql = SEQUENCES.replace("$1", "to_regclass($1)::oid");
        let rows = client.fetch_all(&sql, &[&table]).await.map_err(failed)?;
        Ok(rows.iter().map(read_sequence).collect())
    }

    /// Returns the aggregate that finds the last value in the sequence's direction.
    pub fn last_value_aggregate(&self) -> &'static str {
        if self.increment > 0 { "max" } else { "min" }
    }
}

impl MaintenanceFacts {
    /// Reads the facts in a transaction of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
    pub async fn read(client: &Client, table: &TargetTable) -> Result<MaintenanceFacts> {
        MaintenanceFacts::read_with_timeout(client, table, LOCK_TIMEOUT_MILLIS).await
    }

    /// Reads the facts. Waits up to `lock_timeout_millis` for exclusive locks of other sessions; 0
    /// waits without limit.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
    pub async fn read_with_timeout(
        client: &Client,
        table: &TargetTable,
        lock_timeout_millis: i32,
    ) -> Result<MaintenanceFacts> {
        let failed = || server_error(format!("could not look up table {}", table.sql_name));
        let begin = format!("begin read only; set local lock_timeout = {lock_timeout_millis}");
        let (begun, read, ended) = tokio::join!(
            biased;
            client.batch_execute(&begin),
            MaintenanceFacts::read_in_transaction(client, table),
            client.batch_execute("rollback")
        );
        begun.map_err(failed())?;
        let facts = read?;
        ended.map_err(failed())?;
        Ok(facts)
    }

    /// Reads the facts in one round trip, within the open transaction. Changes that transaction's
    /// search path.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
    pub async fn read_in_transaction(
        client: &Client,
        table: &TargetTable,
    ) -> Result<MaintenanceFacts> {
        let failed = || server_error(format!("could not look up table {}", table.sql_name));
        let oid = table.oid;
        let fetch = async |sql| client.fetch_all(sql, &[&oid]).await;
        let chunks = if table.storage.is_in_chunks() { CHUNKS } else { "" };
        let facts_sql = FACTS.replace("{chunks}", chunks);
        let strength_min = TableLocks::All.strength_min();
        let (indexes, facts, is_empty, locking_sessions, sequences) = tokio::join!(
            biased;
            index::read(client, table),
            fetch(&facts_sql),
            is_empty(client, table),
            async { client.fetch_all(LOCKING_SESSIONS, &[&oid, &strength_min]).await },
            fetch(SEQUENCES)
        );
        let (indexes, facts) = (indexes?, facts.map_err(failed())?);
        let (locking_sessions, sequences) =
            (locking_sessions.map_err(failed())?, sequences.map_err(failed())?);
        let Some(facts) = facts.first() else { return Ok(MaintenanceFacts::default()) };
        let is_measured_here = table.storage.facts().is_measured_here;
        let table_bytes: Option<i64> = facts.get(4);
        Ok(MaintenanceFacts {
            indexes,
            is_owner: facts.get(0),
            may_create_indexes: facts.get(1),
            is_published: facts.get(2),
            is_referenced: facts.get(3),
            locking_sessions: locking_sessions.iter().map(|row| row.get(0)).collect(),
            is_empty: match table_bytes {
                None => false,
                Some(0) if table.storage == TableStorage::Plain => table.kind == 'r',
                Some(_) => is_empty,
            },
            table_bytes: table_bytes
                .filter(|_| is_measured_here)
                .map_or(u64::MAX, i64::unsigned_abs),
            rows: facts.get::<_, Option<f64>>(5).filter(|_| is_measured_here),
            autovacuum: [facts.get(6), facts.get(7)],
            has_toast: facts.get(8),
            has_delete_actions: facts.get(9),
            temp_bytes_max: facts.get::<_, Option<i64>>(10).map(i64::unsigned_abs),
            sequences: sequences.iter().map(read_sequence).collect(),
        })
    }
}

/// Returns whether an ordinary table has no rows, wherever its rows are stored. Returns false if
/// the check fails, for example because another session holds an exclusive lock.
async fn is_empty(client: &Client, table: &TargetTable) -> bool {
    if table.kind != 'r' {
        return false;
    }
    let begin =
        format!("savepoint before_check; set local lock_timeout = '{EMPTY_CHECK_LOCK_TIMEOUT}'");
    let only = if table.storage == TableStorage::Plain { "only " } else { "" };
    let sql = format!("select not exists (select 1 from {only}{}) as is_empty", table.sql_name);
    // If the connection was lost, the next query reports the error.
    let (_, checked, _) = tokio::join!(
        biased;
        client.batch_execute(&begin),
        client.simple_query(&sql),
        client.batch_execute("rollback to savepoint before_check")
    );
    checked.is_ok_and(|answers| {
        answers.iter().any(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
            _ => false,
        })
    })
}

/// The locks of sessions that [`locking_sessions`] finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableLocks {
    /// All locks, which stop statements that change the table itself.
    All,
    /// Locks of sessions that have locked rows, or more. A session that only reads stops no writer.
    OfWriters,
}

impl TableLocks {
    /// Returns the position of the weakest mode among PostgreSQL's modes.
    fn strength_min(self) -> i32 {
        match self {
            TableLocks::All => 1,
            TableLocks::OfWriters => 2,
        }
    }
}

/// Reads which sessions hold locks on the table, in words. Empty if no session holds a lock any
/// more.
///
/// # Errors
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
pub async fn locking_sessions(
    client: &Client,
    table: u32,
    locks: TableLocks,
) -> Result<Vec<String>> {
    let failed = server_error("could not list the sessions that use the table".to_owned());
    let strength_min = locks.strength_min();
    let rows =
        client.fetch_all(LOCKING_SESSIONS, &[&table, &strength_min]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn read_sequence(row: &Row) -> Sequence {
    Sequence {
        column: row.get(0),
        name: row.get(1),
        increment: row.get(2),
        bounds: (row.get(3), row.get(4)),
        cycles: row.get(5),
    }
}

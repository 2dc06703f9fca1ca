//! What a table needs before and after a load: its indexes, its owner, who uses it, its size, and
//! the sequences of its columns.
//!
//! Read when the plan is made, and once more under the lock that indexes are dropped under.
//! Nothing is changed.

use tokio_postgres::{Client, Row, SimpleQueryMessage};

use super::index::{self, Index};
use super::{Ask, Table, server_error};
use crate::Result;

/// Facts of a table that a load takes care of.
#[derive(Debug, Clone, Default)]
pub struct Upkeep {
    /// Indexes and foreign keys, in the order in which they are made again.
    pub indexes: Vec<Index>,
    /// Whether this role may alter it.
    pub is_owner: bool,
    /// Whether this role may make indexes in its schema.
    pub may_create: bool,
    /// Whether it is published for logical replication, which needs its keys.
    pub is_published: bool,
    /// Whether foreign keys of other tables refer to it.
    pub is_referenced: bool,
    /// Whether deleting rows, or all of them, fires triggers.
    pub has_delete_triggers: bool,
    /// Other sessions that have a lock on it now, in words.
    pub users: Vec<String>,
    /// Whether it has no rows, as far as that is known.
    pub is_empty: bool,
    /// Bytes of its rows, without indexes.
    pub table_bytes: u64,
    /// Rows that the catalog believes it has, with those of partitions; none if it was never
    /// counted.
    pub rows: Option<f64>,
    /// Bytes of temporary files that a process may write for this role, if that is limited.
    pub temp_bytes_max: Option<u64>,
    /// Its options `autovacuum_enabled` and `toast.autovacuum_enabled`, as they are set.
    pub autovacuum: [Option<String>; 2],
    /// Whether it has a toast table.
    pub has_toast: bool,
    /// Sequences of its columns.
    pub sequences: Vec<Sequence>,
}

/// A sequence that a column owns: of an identity, or of a serial type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// The column, unquoted.
    pub column: String,
    /// The sequence, as SQL writes it.
    pub name: String,
    /// The step between two values.
    pub increment: i64,
    /// The least and the greatest value.
    pub bounds: (i64, i64),
}

/// The sessions that have a lock on the table or its indexes are users of it; those with the
/// strongest locks first. A role that may not see everything sees less of them.
const USERS: &str = "\
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
where a.pid <> pg_backend_pid() and a.usesysid is not null
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
            then pg_table_size(c.oid) end,
       (select case when bool_and(t.reltuples >= 0 and (t.relpages > 0 or t.reltuples > 0))
                    then sum(t.reltuples)::float8 end
        from pg_class t where t.oid = c.oid and t.relkind <> 'p'
          or t.oid in (select relid from pg_partition_tree(c.oid) where isleaf)),
       (select option_value from pg_options_to_table(c.reloptions)
        where option_name = 'autovacuum_enabled'),
       (select option_value
        from pg_class t, pg_options_to_table(t.reloptions)
        where t.oid = c.reltoastrelid and option_name = 'autovacuum_enabled'),
       c.reltoastrelid <> 0,
       exists (select from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal
                 and t.tgtype & 40 <> 0),
       (select setting::int8 * 1024 from pg_settings
        where name = 'temp_file_limit' and setting::int8 >= 0)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = $1";

const SEQUENCES: &str = "\
select a.attname::text, format('%I.%I', n.nspname, s.relname), q.seqincrement, q.seqmin, q.seqmax
from pg_depend d
join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
join pg_class s on s.oid = d.objid join pg_namespace n on n.oid = s.relnamespace
join pg_sequence q on q.seqrelid = s.oid
where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
  and d.deptype in ('a', 'i') and d.refobjid = $1
  and a.atttypid in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
order by a.attnum";

/// How long to wait at first for who has the table for itself: definitions of indexes take a lock.
const LOOK_MILLIS: i32 = 1000;

/// How long it may take to be let at a table's rows: those who only read or write let us at once.
const LOOK_LOCK: &str = "50ms";

impl Sequence {
    /// The aggregate that gives the value that it is to be past.
    pub fn furthest(&self) -> &'static str {
        if self.increment > 0 { "max" } else { "min" }
    }
}

impl Upkeep {
    /// Reads the facts of a table, in a transaction of its own.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn read(client: &Client, table: &Table) -> Result<Upkeep> {
        Upkeep::read_with_patience(client, table, LOOK_MILLIS).await
    }

    /// The same, waiting so many milliseconds for who has the table for itself; 0 for ever.
    pub async fn read_with_patience(client: &Client, table: &Table, millis: i32) -> Result<Upkeep> {
        let failed = || server_error(format!("could not look up table {}", table.sql_name));
        let begin = format!("begin read only; set local lock_timeout = {millis}");
        let (begun, read, ended) = tokio::join!(
            biased;
            client.batch_execute(&begin),
            Upkeep::read_within(client, table),
            client.batch_execute("rollback")
        );
        begun.map_err(failed())?;
        let upkeep = read?;
        ended.map_err(failed())?;
        Ok(upkeep)
    }

    /// The same within the transaction that there is, whose search path it sets; in one round trip.
    pub async fn read_within(client: &Client, table: &Table) -> Result<Upkeep> {
        let failed = || server_error(format!("could not look up table {}", table.sql_name));
        let oid = table.oid;
        let ask = async |sql| client.ask_all(sql, &[&oid]).await;
        let (indexes, facts, is_empty, users, sequences) = tokio::join!(
            biased;
            index::read(client, table),
            ask(FACTS),
            is_empty(client, table),
            ask(USERS),
            ask(SEQUENCES)
        );
        let (indexes, facts) = (indexes?, facts.map_err(failed())?);
        let (users, sequences) = (users.map_err(failed())?, sequences.map_err(failed())?);
        let Some(facts) = facts.first() else { return Ok(Upkeep::default()) };
        let table_bytes: Option<i64> = facts.get(4);
        Ok(Upkeep {
            indexes,
            is_owner: facts.get(0),
            may_create: facts.get(1),
            is_published: facts.get(2),
            is_referenced: facts.get(3),
            users: users.iter().map(|row| row.get(0)).collect(),
            is_empty: match table_bytes {
                None => false,
                Some(0) => table.kind == 'r',
                Some(_) => is_empty,
            },
            table_bytes: table_bytes.map_or(u64::MAX, i64::unsigned_abs),
            rows: facts.get(5),
            autovacuum: [facts.get(6), facts.get(7)],
            has_toast: facts.get(8),
            has_delete_triggers: facts.get(9),
            temp_bytes_max: facts.get::<_, Option<i64>>(10).map(i64::unsigned_abs),
            sequences: sequences.iter().map(sequence).collect(),
        })
    }
}

/// Whether a table of this server has no rows. False, too, where that cannot be found out: at once
/// where somebody has the table for himself.
async fn is_empty(client: &Client, table: &Table) -> bool {
    if table.kind != 'r' {
        return false;
    }
    let sql = format!(
        "savepoint looked; set local lock_timeout = '{LOOK_LOCK}'; \
         select not exists (select from only {}) as is_empty",
        table.sql_name
    );
    // What is asked next tells of a connection that was lost.
    let (looked, _) = tokio::join!(
        biased;
        client.simple_query(&sql),
        client.batch_execute("rollback to savepoint looked")
    );
    looked.is_ok_and(|answers| {
        answers.iter().any(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
            _ => false,
        })
    })
}

/// The sessions that keep us from a lock on the table, in words; empty if they are gone by now.
///
/// # Errors
/// Those of the connection.
pub async fn users(client: &Client, table: u32) -> Result<Vec<String>> {
    let failed = server_error("could not look up who uses the table".to_owned());
    let rows = client.ask_all(USERS, &[&table]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn sequence(row: &Row) -> Sequence {
    Sequence {
        column: row.get(0),
        name: row.get(1),
        increment: row.get(2),
        bounds: (row.get(3), row.get(4)),
    }
}

//! What every check needs to know: the server's settings, the role's rights, what was sampled.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::disk::Traffic;
use super::tempfiles::TempFiles;
use super::waits::Waits;
use super::{Finding, Options};
use crate::{Error, Result};
use pgspate_target::measure::{Difference, Measurement};
use pgspate_target::server::{Flavour, Settings};
use pgspate_target::{quote_ident, server_error};

/// What a check gives, or why the server did not answer it.
pub(super) type Found = Result<Vec<Finding>, tokio_postgres::Error>;

/// A check has no more findings than that: who has mended these asks again.
pub(super) const FINDINGS_MAX: usize = 20;

/// What queries about tables begin with: `ours` are all that are looked at, `tables` those of them
/// that were asked for, by the first argument, with their partitions; both as in `pg_class`, with
/// more.
///
/// Not ours are the server's, those of extensions and of pgspate. Also left out is what a session
/// has locked against readers, or waits to: a look would wait in line behind it, and others behind
/// the look. Nothing here is volatile, or the server would work all of it out for all tables.
const TABLES: &str = "\
with recursive asked(oid) as (
    select $1::oid
    union select h.inhrelid from pg_inherits h join asked on h.inhparent = asked.oid),
held(oid, is_closed) as materialized (
    select l.relation, l.mode = 'AccessExclusiveLock'
    from pg_locks l join pg_database d on d.oid = l.database
    where d.datname = current_database() and l.locktype = 'relation'
      and l.pid is distinct from pg_backend_pid()
      and l.mode in ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock',
                     'ShareLock')),
locked(oid) as materialized (
    select oid from held where is_closed
    union select i.indrelid from pg_index i join held on held.oid = i.indexrelid and is_closed
    union select i.indexrelid from pg_index i join held on held.oid = i.indrelid and is_closed),
schemas as not materialized (
    select oid, nspname from pg_namespace
    where nspname !~ '^(pg_|information_schema$|pgspate(_job_[0-9]+)?$|_timescaledb_)'),
members as not materialized (
    select objid as oid from pg_depend where classid = 'pg_class'::regclass and deptype = 'e'),
ours as not materialized (
    select c.*, n.nspname, format('%I.%I', n.nspname, c.relname) as name,
           coalesce((select option_value::int from pg_options_to_table(c.reloptions)
                     where option_name = 'fillfactor'), 100) as fillfactor,
           c.oid in (select oid from locked) as is_locked,
           pg_stat_get_live_tuples(c.oid) > 2 * greatest(c.reltuples, 0) + 1000 as is_stale
    from pg_class c join schemas n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'm') and c.relpersistence <> 't'
      and not exists (select from members m where m.oid = c.oid)
      and c.oid not in (select oid from locked)),
tables as not materialized (
    select c.* from ours c where $1::oid = 0 or c.oid in (select oid from asked))";

/// How large a table `c` is, to filter and to sort by: `ABOUT` in queries; `WHOLE` is with TOAST.
///
/// `pg_relation_size` locks, and the session keeps what it has learnt of each relation; so it is
/// asked only where the catalog is stale, and of the rows that a query gives.
const ABOUT: &str = "\
case when c.is_locked then null when c.is_stale then pg_relation_size(c.oid)
     else c.relpages::int8 * current_setting('block_size')::int8 end";
const WHOLE: &str = "\
case when c.is_locked then null when c.is_stale then pg_table_size(c.oid)
     else (c.relpages + coalesce((select x.relpages from pg_class x
                                  where x.oid = c.reltoastrelid), 0))::int8
          * current_setting('block_size')::int8 end";

/// Since when the database `d` of `pg_stat_database` has been counted: `SINCE` in queries. Where
/// its counters were never reset, from version 15 on, they began with those of the server, also
/// after a crash; of these each can be reset alone.
pub(super) const SINCE: &str = "\
coalesce(d.stats_reset, (select least(a.stats_reset, b.stats_reset)
                         from pg_stat_archiver a, pg_stat_bgwriter b))";

/// What the role may do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rights {
    pub(crate) role: String,
    pub(crate) reads_stats: bool,
}

/// Everything that checks look at.
pub(super) struct Scene<'a> {
    pub(super) client: &'a Client,
    pub(super) options: &'a Options,
    pub(super) version: u32,
    pub(super) flavour: Flavour,
    pub(super) settings: Settings,
    pub(super) rights: Rights,
    /// The table that was asked for; 0 for all.
    pub(super) table: u32,
    /// The counters now, and what was counted while it was looked.
    pub(super) now: Measurement,
    pub(super) sampled: Difference,
    pub(super) waits: Waits,
    /// What its disk did meanwhile, where the server is here.
    pub(super) traffic: Option<Traffic>,
    pub(super) temp: TempFiles,
}

impl Scene<'_> {
    /// A setting's value.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(|setting| setting.value.as_str())
    }

    /// A setting in bytes.
    pub(super) fn setting_bytes(&self, name: &str) -> Option<u64> {
        self.settings.get(name)?.bytes()
    }

    /// A setting as a number.
    pub(super) fn setting_number(&self, name: &str) -> Option<f64> {
        self.setting(name)?.parse().ok()
    }

    /// Rows of a query whose only argument is the table.
    pub(super) async fn rows(&self, sql: &str) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.client.query(sql, &[&self.table]).await
    }

    /// Rows of a query that goes on after [`TABLES`], with `ABOUT` and `WHOLE` for sizes; its
    /// further arguments are `more`.
    pub(super) async fn tables(
        &self,
        sql: &str,
        more: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let mut arguments: Vec<&(dyn ToSql + Sync)> = vec![&self.table];
        arguments.extend(more);
        let sql = sql.replace("ABOUT", ABOUT).replace("WHOLE", WHOLE);
        self.client.query(&format!("{TABLES} {sql}"), &arguments).await
    }

    /// How a setting of the whole server is changed here.
    pub(super) fn set(&self, name: &str, value: &str) -> Vec<String> {
        let restart = match self.settings.get(name).map(|setting| setting.context.as_str()) {
            Some("postmaster") => "; it counts after a restart",
            _ => "",
        };
        match self.flavour.has_alter_system() {
            true if restart.is_empty() => vec![
                format!("alter system set {name} = '{value}';"),
                "select pg_reload_conf();".to_owned(),
            ],
            true => {
                vec![format!("alter system set {name} = '{value}'; -- then restart the server")]
            }
            false => vec![format!(
                "-- {}: set {name} to {value}{restart}",
                self.flavour.settings_place()
            )],
        }
    }

    /// The grant that would show more.
    pub(super) fn grant(&self, right: &str) -> String {
        format!("grant {right} to {};", quote_ident(&self.rights.role))
    }
}

/// The schema of an extension, as SQL writes it, if it is installed.
pub(super) async fn schema_of(client: &Client, extension: &str) -> Option<String> {
    let sql = "select quote_ident(n.nspname) from pg_extension e \
               join pg_namespace n on n.oid = e.extnamespace where e.extname = $1";
    Some(client.query_opt(sql, &[&extension]).await.ok()??.get(0))
}

/// What `pgstattuple` says of a table, if it is there and may be used: percent dead, percent free.
pub(super) async fn tuples(client: &Client, table: u32) -> Option<(f64, f64)> {
    let schema = schema_of(client, "pgstattuple").await?;
    let sql = format!(
        "select dead_tuple_percent::float8, approx_free_percent::float8 \
         from {schema}.pgstattuple_approx({table}::oid::regclass)"
    );
    let row = attempt(client, &sql).await?;
    Some((row.get(0), row.get(1)))
}

/// One row, or nothing where the server refuses. In a transaction, which goes on after that.
pub(super) async fn attempt(client: &Client, sql: &str) -> Option<Row> {
    client.batch_execute("savepoint attempt").await.ok()?;
    match client.query_one(sql, &[]).await {
        Ok(row) => Some(row),
        Err(_) => {
            let _ = client.batch_execute("rollback to savepoint attempt").await;
            None
        }
    }
}

pub(crate) async fn rights(client: &Client) -> Result<Rights> {
    let sql = "select current_user::text, \
               pg_has_role(current_user, 'pg_read_all_stats', 'usage')";
    let failed = server_error("could not look up the role's rights".to_owned());
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    Ok(Rights { role: row.get(0), reads_stats: row.get(1) })
}

/// Numbers of rows that are never negative.
pub(super) fn count(row: &Row, nth: usize) -> u64 {
    row.get::<_, Option<i64>>(nth).map_or(0, |value| u64::try_from(value).unwrap_or(0))
}

/// Whether what a row is about is still there: `nth` is a privilege, and what was dropped meanwhile
/// has none.
pub(super) fn is_there(row: &Row, nth: usize) -> bool {
    row.get::<_, Option<bool>>(nth).is_some()
}

/// Whether an error is about the connection rather than about what was asked.
pub(super) fn is_lost(error: &Error) -> bool {
    error.refusal().is_none()
}

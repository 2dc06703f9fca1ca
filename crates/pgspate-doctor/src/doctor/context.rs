//! What all checks share: the server's settings, the role's privileges, and the samples; and how
//! they query tables without waiting for locks.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::disk::DiskTraffic;
use super::temp_file_usage::TempFiles;
use super::waits::WaitSamples;
use super::{DoctorOptions, Finding};
use crate::{Error, Result};
use pgspate_target::measure::{MeasuredDifference, Measurement};
use pgspate_target::server::{Flavour, ServerSettings};
use pgspate_target::{quote_ident, server_error};

/// The findings of a check, or the error with which the server refused its query.
pub(super) type CheckResult = Result<Vec<Finding>, tokio_postgres::Error>;

/// How many findings a check reports at most. Users run the checks again after they have fixed
/// these problems.
pub(super) const FINDINGS_MAX: usize = 20;

/// The `with` clause that queries about tables begin with. `ours` has all tables that are checked.
/// `tables` has the table of the first argument and its partitions, or all of `ours` if that
/// argument is 0. Both have the columns of `pg_class` and some more.
///
/// `ours` leaves out tables of the server, of extensions and of pgspate. It also leaves out tables
/// that a session holds or awaits in ACCESS EXCLUSIVE mode: the check would wait for that session,
/// and other sessions would wait behind the check. No function here is volatile; otherwise the
/// server would compute every column for every table.
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

/// The size of a table `c`, to filter and sort by. Queries write it as `ABOUT`, and with TOAST as
/// `WHOLE`.
///
/// `pg_relation_size` locks the relation and fills the session's relation cache. So it is called
/// only if `relpages` is out of date, and for the rows that a query returns.
const ABOUT: &str = "\
case when c.is_locked then null when c.is_stale then pg_relation_size(c.oid)
     else c.relpages::int8 * current_setting('block_size')::int8 end";
const WHOLE: &str = "\
case when c.is_locked then null when c.is_stale then pg_table_size(c.oid)
     else (c.relpages + coalesce((select x.relpages from pg_class x
                                  where x.oid = c.reltoastrelid), 0))::int8
          * current_setting('block_size')::int8 end";

/// When the counters of database `d` in `pg_stat_database` began; queries write it as `SINCE`. From
/// version 15 on, `stats_reset` is null if they were never reset. They then began with the server's
/// own counters, which restart after a crash. Each of those can be reset alone, so the oldest
/// counts.
pub(super) const SINCE: &str = "\
coalesce(d.stats_reset, (select least(a.stats_reset, b.stats_reset)
                         from pg_stat_archiver a, pg_stat_bgwriter b))";

/// The connected role and its privileges.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoleRights {
    pub(crate) role: String,
    pub(crate) reads_stats: bool,
}

/// The facts and samples that checks judge.
pub(super) struct CheckContext<'a> {
    pub(super) client: &'a Client,
    pub(super) options: &'a DoctorOptions,
    pub(super) version: u32,
    pub(super) flavour: Flavour,
    pub(super) settings: ServerSettings,
    pub(super) rights: RoleRights,
    /// The OID of the table to check; 0 for all tables.
    pub(super) table: u32,
    /// The server's counters after sampling.
    pub(super) now: Measurement,
    /// The counts that the server added during the sample.
    pub(super) sampled: MeasuredDifference,
    pub(super) waits: WaitSamples,
    /// The traffic of the server's disk while sampling, if the server is on this machine.
    pub(super) traffic: Option<DiskTraffic>,
    pub(super) temp: TempFiles,
}

impl CheckContext<'_> {
    /// Returns a setting's value.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(|setting| setting.value.as_str())
    }

    /// Returns a setting's value in bytes.
    pub(super) fn setting_bytes(&self, name: &str) -> Option<u64> {
        self.settings.get(name)?.bytes()
    }

    /// Returns a setting's value as a number.
    pub(super) fn setting_number(&self, name: &str) -> Option<f64> {
        self.setting(name)?.parse().ok()
    }

    /// Runs a query whose only argument is the OID of the table.
    pub(super) async fn query_with_table_oid(
        &self,
        sql: &str,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.client.query(sql, &[&self.table]).await
    }

    /// Runs a query that continues the `with` clause [`TABLES`]. `ABOUT` and `WHOLE` in it stand
    /// for sizes. Its first argument is the OID of the table; `more` are the others.
    pub(super) async fn query_tables(
        &self,
        sql: &str,
        more: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let mut arguments: Vec<&(dyn ToSql + Sync)> = vec![&self.table];
        arguments.extend(more);
        let sql = sql.replace("ABOUT", ABOUT).replace("WHOLE", WHOLE);
        self.client.query(&format!("{TABLES} {sql}"), &arguments).await
    }

    /// Returns the statements that change a setting of the whole server; without ALTER SYSTEM, a
    /// comment that says where to change it.
    pub(super) fn statements_to_set(&self, name: &str, value: &str) -> Vec<String> {
        let restart = match self.settings.get(name).map(|setting| setting.context.as_str()) {
            Some("postmaster") => "; it takes effect after a restart",
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
                self.flavour.how_to_change_settings()
            )],
        }
    }

    /// Returns the statement that grants `right` to the connected role.
    pub(super) fn grant_statement(&self, right: &str) -> String {
        format!("grant {right} to {};", quote_ident(&self.rights.role))
    }
}

/// Returns the schema of an extension as SQL writes it, if the extension is installed.
pub(super) async fn schema_of(client: &Client, extension: &str) -> Option<String> {
    let sql = "select quote_ident(n.nspname) from pg_extension e \
               join pg_namespace n on n.oid = e.extnamespace where e.extname = $1";
    Some(client.query_opt(sql, &[&extension]).await.ok()??.get(0))
}

/// Measures a table with `pgstattuple`: the percentages of dead rows and of free space. Returns
/// `None` if the extension is missing or the role may not use it.
pub(super) async fn dead_and_free_percent(client: &Client, table: u32) -> Option<(f64, f64)> {
    let schema = schema_of(client, "pgstattuple").await?;
    let sql = format!(
        "select dead_tuple_percent::float8, approx_free_percent::float8 \
         from {schema}.pgstattuple_approx({table}::oid::regclass)"
    );
    let row = query_in_savepoint(client, &sql).await?;
    Some((row.get(0), row.get(1)))
}

/// Queries one row behind a savepoint. If the server refuses, returns `None`, and the transaction
/// stays usable.
pub(super) async fn query_in_savepoint(client: &Client, sql: &str) -> Option<Row> {
    client.batch_execute("savepoint before_query").await.ok()?;
    match client.query_one(sql, &[]).await {
        Ok(row) => Some(row),
        Err(_) => {
            let _ = client.batch_execute("rollback to savepoint before_query").await;
            None
        }
    }
}

/// Reads the connected role's name and privileges.
pub(crate) async fn read_role_rights(client: &Client) -> Result<RoleRights> {
    let sql = "select current_user::text, \
               pg_has_role(current_user, 'pg_read_all_stats', 'usage')";
    let failed = server_error("could not look up the role's privileges".to_owned());
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    Ok(RoleRights { role: row.get(0), reads_stats: row.get(1) })
}

/// Returns column `column_index`, a count that is never negative; null counts as 0.
pub(super) fn count(row: &Row, column_index: usize) -> u64 {
    row.get::<_, Option<i64>>(column_index).map_or(0, |value| u64::try_from(value).unwrap_or(0))
}

/// Returns whether the row's object still exists. Column `column_index` is the result of a
/// privilege function, which returns null for an object that was dropped meanwhile.
pub(super) fn still_exists(row: &Row, column_index: usize) -> bool {
    row.get::<_, Option<bool>>(column_index).is_some()
}

/// Returns whether the connection is lost; otherwise the server refused the query.
pub(super) fn is_connection_lost(error: &Error) -> bool {
    error.refusal().is_none()
}

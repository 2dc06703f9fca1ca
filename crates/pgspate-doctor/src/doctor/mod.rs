//! Checks of a server: what slows writes there, and the statement or setting that helps.
//!
//! The checks run one after the other, each in a read-only transaction. Their settings end with the
//! transaction, so a pooler can hand the session to others afterwards. Any role can run the checks.
//! If the role lacks a privilege, the finding names the grant. A check without a problem still
//! reports what it looked at.

mod bloat;
mod checkpoints;
mod context;
mod dead_rows;
mod disk;
mod exact_sizes;
mod finding;
mod held_back;
mod hot_updates;
mod indexes;
mod io;
mod keys;
mod locked_tables;
mod not_put_back;
mod oversized_indexes;
mod partitions;
mod parts;
pub mod picture;
mod repartition;
mod row_by_row;
mod sequences;
mod settings;
pub mod storage;
mod temp_file_usage;
mod temporary_files;
mod unlogged_tables;
mod waits;
mod wal;

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

pub use finding::{Check, Finding, Verdict};
pub use pgspate_target::server::Flavour;

use crate::{Error, ErrorKind, Result};
use context::{CheckContext, CheckResult};
use disk::ServerDisk;
use pgspate_target::connect::Connection;
use pgspate_target::measure::{Measurement, server_version};
use pgspate_target::{TargetTable, quote_ident, server_error, suggest_table};
use storage::Volume;
use waits::WaitSamples;

/// The options of the checks.
#[derive(Debug, Clone)]
pub struct DoctorOptions {
    /// The only table to check, as SQL writes it; `None` for all tables and the server.
    pub table: Option<String>,
    /// How long to sample wait events and counters.
    pub sample: Duration,
    /// The cloud volume that holds the server's data.
    pub storage: Option<Volume>,
    /// The least size in bytes at which a table should be partitioned.
    pub large_table_bytes: u64,
}

impl Default for DoctorOptions {
    fn default() -> DoctorOptions {
        DoctorOptions {
            table: None,
            sample: Duration::from_secs(2),
            storage: None,
            large_table_bytes: 100 << 30,
        }
    }
}

/// The result of all checks.
#[derive(Debug, Clone, Serialize)]
pub struct Examination {
    /// The server's version, as the server writes it.
    pub server_version: String,
    /// The kind of PostgreSQL: plain, a provider's, or with an extension such as Citus.
    pub flavour: Flavour,
    /// Sentences on how this kind differs from plain PostgreSQL.
    pub peculiarities: &'static [&'static str],
    /// The database.
    pub database: String,
    /// The role that ran the checks.
    pub role: String,
    /// How many seconds sessions were sampled.
    pub sampled_seconds: f64,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
}

impl Examination {
    /// Returns whether any finding is a note or a warning.
    pub fn has_problems(&self) -> bool {
        self.findings.iter().any(Finding::is_problem)
    }
}

/// Samples the server, runs all checks, and sorts their findings.
///
/// # Errors
/// [`ErrorKind::Usage`] if the table of the options does not exist or is a view;
/// [`ErrorKind::Connect`] if the connection is lost.
pub async fn examine(connection: &Connection, options: &DoctorOptions) -> Result<Examination> {
    let client = &connection.client;
    let failed = || server_error("could not look up the server's version".to_owned());
    let table = match &options.table {
        Some(name) => table_oid(client, name).await?,
        None => 0,
    };
    let sql = "select current_setting('server_version'), current_database()::text";
    let row = client.query_one(sql, &[]).await.map_err(failed())?;
    let before = Measurement::take(client, &[]).await;
    let disk = ServerDisk::find(connection).await;
    let files = temp_file_usage::TempFilesBefore::measure(client).await;
    let waits = WaitSamples::sample(client, options.sample).await;
    let traffic = disk.as_ref().and_then(ServerDisk::traffic);
    let now = Measurement::take(client, &[]).await;
    let temp = files.measure_again(client, disk.as_ref()).await;
    let context = CheckContext {
        client,
        options,
        version: server_version(client).await,
        flavour: Flavour::detect(client).await,
        settings: pgspate_target::server::read_settings(client).await?,
        rights: context::read_role_rights(client).await?,
        table,
        sampled: now.since(&before),
        now,
        waits,
        traffic,
        temp,
    };
    let mut findings = run_checks(&context).await?;
    findings.sort_by(|a, b| {
        a.verdict.cmp(&b.verdict).then(b.weight.total_cmp(&a.weight)).then(a.id.cmp(b.id))
    });
    Ok(Examination {
        server_version: row.get(0),
        flavour: context.flavour,
        peculiarities: context.flavour.peculiarities(),
        database: row.get(1),
        role: context.rights.role,
        sampled_seconds: context.sampled.seconds,
        findings,
    })
}

/// Reads the facts about a table.
///
/// # Errors
/// [`ErrorKind::Usage`] if the table does not exist.
pub async fn find_table(connection: &Connection, name: &str) -> Result<TargetTable> {
    match TargetTable::read(&connection.client, name).await? {
        Some(table) => Ok(table),
        None => Err(no_such_table(&connection.client, name).await),
    }
}

/// Returns the table's OID without locking the table.
async fn table_oid(client: &Client, name: &str) -> Result<u32> {
    let failed = || server_error(format!("could not look up table {name}"));
    let Some(oid) = TargetTable::find_oid(client, name).await.map_err(failed())? else {
        return Err(no_such_table(client, name).await);
    };
    let sql = "select c.relkind = 'v', \
                      (select string_agg(distinct d.refobjid::regclass::text, ', ') \
                       from pg_rewrite w join pg_depend d on d.objid = w.oid \
                       join pg_class r on r.oid = d.refobjid and r.relkind <> 'S' \
                       where w.ev_class = c.oid and d.classid = 'pg_rewrite'::regclass \
                         and d.refclassid = 'pg_class'::regclass and d.refobjid <> c.oid) \
               from pg_class c where c.oid = $1";
    let found = client.query_opt(sql, &[&oid]).await.map_err(failed())?;
    let Some(view) = found.filter(|row| row.get(0)) else { return Ok(oid) };
    let error = Error::new(ErrorKind::Usage, format!("{name} is a view, and doctor checks tables"));
    Err(match view.get::<_, Option<&str>>(1) {
        Some(read) => error.hint(format!("Name a table. The view reads {read}.")),
        None => error.hint("Name a table."),
    })
}

async fn no_such_table(client: &Client, name: &str) -> Error {
    let error = Error::new(ErrorKind::Usage, format!("there is no table {name}"))
        .hint("Write the name as in SQL, with its schema: `--table sales.\"Order\"`.");
    suggest_table(client, name, error).await
}

/// Begins the read-only transaction of a check. Its settings are local to the transaction.
async fn begin_check(client: &Client) -> Result<()> {
    let sql = "begin transaction read only; set local lock_timeout = '2s'; \
               set local statement_timeout = '1min'; \
               select set_config(name, 'off', true) from pg_settings where name = 'jit'";
    let failed = server_error("could not begin a check".to_owned());
    client.batch_execute(sql).await.map_err(failed)
}

/// Runs every check, one after the other. With `--table`, checks of the whole server are left out.
async fn run_checks(context: &CheckContext<'_>) -> Result<Vec<Finding>> {
    let mut all = Vec::new();
    macro_rules! run {
        ($($check:path),+ $(,)?) => {
            $(
                for attempt in 1.. {
                    begin_check(context.client).await?;
                    let found = $check(context).await;
                    // Needed even if the check failed; fails if the session is lost.
                    let ended = context.client.batch_execute("rollback").await;
                    if attempt < ATTEMPTS_MAX && found.as_ref().is_err_and(is_lock_timeout) {
                        continue;
                    }
                    all.extend(findings_or_refusal(context, stringify!($check), found)?);
                    ended.map_err(server_error("could not end a check".to_owned()))?;
                    break;
                }
            )+
        };
    }
    if context.table == 0 {
        run!(
            settings::check_crash_safety,
            settings::check_autovacuum,
            settings::check_synchronous_commit,
            checkpoints::check,
            wal::check,
            temporary_files::check,
            not_put_back::check,
            held_back::check,
            io::check,
        );
    } else {
        run!(not_put_back::check);
    }
    run!(
        locked_tables::check,
        waits::check,
        storage::check,
        settings::check_maintenance_memory,
        unlogged_tables::check,
        dead_rows::check_dead,
        dead_rows::check_never_vacuumed,
        bloat::check,
        indexes::check,
        oversized_indexes::check,
        hot_updates::check,
        keys::check_primary_keys,
        keys::check_foreign_keys,
        row_by_row::check,
        partitions::check,
        parts::check,
        sequences::check,
    );
    Ok(all)
}

/// How often a check is tried. Another session may lock a table after the check has read pg_locks
/// and before it reads the table; the next attempt leaves that table out.
const ATTEMPTS_MAX: u32 = 3;

fn is_lock_timeout(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Reports a check whose query the server refused.
const REFUSED: Check = Check {
    id: "refused",
    question: "Does the server answer the queries of each check?",
    rule: "each check queries only what this server version should show to this role",
};

/// Returns the check's findings; if the server refused its query, a finding that says so.
///
/// # Errors
/// [`ErrorKind::Connect`] if the connection is lost.
fn findings_or_refusal(
    context: &CheckContext<'_>,
    check: &str,
    found: CheckResult,
) -> Result<Vec<Finding>> {
    let error = match found {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let is_forbidden = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    let error = server_error(format!("could not run the check {check}"))(error);
    if context::is_connection_lost(&error) {
        return Err(error);
    }
    let refusal_text = error.refusal().map(ToString::to_string).unwrap_or_default();
    let name = check.trim_end_matches("::check").replace("::", " ").replace('_', " ");
    let finding = REFUSED.cannot_see(format!("{name}: {refusal_text}"));
    let role = quote_ident(&context.rights.role);
    Ok(vec![match is_forbidden {
        true => finding.remedy(format!("grant pg_monitor to {role};")),
        false => finding,
    }])
}

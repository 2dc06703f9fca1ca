//! What slows writes on a server, and what to do about it: one check after the other.
//!
//! Nothing is written, and nothing is left behind in a session that a pooler hands to others: each
//! check runs in a read-only transaction whose settings end with it. Any role can ask; what it
//! may not see is said, with the grant that would show it. A check that finds nothing says what it
//! looked at, so that silence has its evidence.

mod bloat;
mod checkpoints;
mod copying;
mod disk;
mod exact;
mod finding;
mod forgotten;
mod held;
mod hot;
mod indexes;
mod io;
mod keys;
mod locked;
mod oversized;
mod partitions;
pub mod picture;
mod repartition;
mod rows;
mod scene;
mod sequences;
mod settings;
pub mod storage;
mod temp;
mod tempfiles;
mod unlogged;
mod waits;
mod wal;

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

pub use finding::{Check, Finding, Verdict};
pub use pgspate_target::server::Flavour;

use crate::{Error, Kind, Result};
use disk::Disk;
use pgspate_target::connect::Connection;
use pgspate_target::measure::{Measurement, server_version};
use pgspate_target::{Table, quote_ident, server_error};
use scene::{Found, Scene};
use storage::Volume;
use waits::Waits;

/// What to look at.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only this table, as SQL writes it.
    pub table: Option<String>,
    /// How long to sample what sessions wait for.
    pub sample: Duration,
    /// The volume that the server is on.
    pub storage: Option<Volume>,
    /// From how many bytes on a table should be partitioned.
    pub large_table_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            table: None,
            sample: Duration::from_secs(2),
            storage: None,
            large_table_bytes: 100 << 30,
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Examination {
    /// The server's version, as it writes it.
    pub server_version: String,
    /// Which kind of PostgreSQL it is.
    pub flavour: Flavour,
    /// What is different there.
    pub peculiarities: &'static [&'static str],
    /// The database.
    pub database: String,
    /// The role that looked.
    pub role: String,
    /// For how many seconds sessions were sampled.
    pub sampled_seconds: f64,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

impl Examination {
    /// Whether something should be done.
    pub fn has_trouble(&self) -> bool {
        self.findings.iter().any(Finding::is_trouble)
    }
}

/// Looks at everything.
///
/// # Errors
/// When there is no such table, or the connection is lost.
pub async fn examine(connection: &Connection, options: &Options) -> Result<Examination> {
    let client = &connection.client;
    let failed = || server_error("could not begin to look".to_owned());
    let table = match &options.table {
        Some(name) => oid_of(client, name).await?,
        None => 0,
    };
    let sql = "select current_setting('server_version'), current_database()::text";
    let row = client.query_one(sql, &[]).await.map_err(failed())?;
    let before = Measurement::take(client, &[]).await;
    let disk = Disk::of(connection).await;
    let files = tempfiles::Before::look(client).await;
    let waits = Waits::sample(client, options.sample).await;
    let traffic = disk.as_ref().and_then(Disk::traffic);
    let now = Measurement::take(client, &[]).await;
    let temp = files.until_now(client, disk.as_ref()).await;
    let scene = Scene {
        client,
        options,
        version: server_version(client).await,
        flavour: Flavour::of(client).await,
        settings: pgspate_target::server::read(client).await?,
        rights: scene::rights(client).await?,
        table,
        sampled: now.since(&before),
        now,
        waits,
        traffic,
        temp,
    };
    let mut findings = look(&scene).await?;
    findings.sort_by(|a, b| {
        a.verdict.cmp(&b.verdict).then(b.weight.total_cmp(&a.weight)).then(a.id.cmp(b.id))
    });
    Ok(Examination {
        server_version: row.get(0),
        flavour: scene.flavour,
        peculiarities: scene.flavour.peculiarities(),
        database: row.get(1),
        role: scene.rights.role,
        sampled_seconds: scene.sampled.seconds,
        findings,
    })
}

/// The table of that name.
///
/// # Errors
/// When there is none.
pub async fn find(connection: &Connection, name: &str) -> Result<Table> {
    match Table::read(&connection.client, name).await? {
        Some(table) => Ok(table),
        None => Err(missing(name)),
    }
}

/// The table's oid, which is had without a lock.
async fn oid_of(client: &Client, name: &str) -> Result<u32> {
    let failed = server_error(format!("could not look up table {name}"));
    Table::find_oid(client, name).await.map_err(failed)?.ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    Error::new(Kind::Usage, format!("there is no table {name}"))
        .hint("Write it as SQL does, with its schema: `--table sales.\"Order\"`.")
}

/// Begins a check's transaction: what is set is set in it alone.
async fn begin(client: &Client) -> Result<()> {
    let sql = "begin transaction read only; set local lock_timeout = '2s'; \
               set local statement_timeout = '1min'; \
               select set_config(name, 'off', true) from pg_settings where name = 'jit'";
    let failed = server_error("could not begin a check".to_owned());
    client.batch_execute(sql).await.map_err(failed)
}

/// Every check, one after the other. Those of the whole server are left out when one table was
/// asked for.
async fn look(scene: &Scene<'_>) -> Result<Vec<Finding>> {
    let mut all = Vec::new();
    macro_rules! run {
        ($($check:path),+ $(,)?) => {
            $(
                for attempt in 1.. {
                    begin(scene.client).await?;
                    let found = $check(scene).await;
                    // Also where the server refused something, or there is no session any more.
                    let ended = scene.client.batch_execute("rollback").await;
                    if attempt < ATTEMPTS && found.as_ref().is_err_and(is_locked) {
                        continue;
                    }
                    all.extend(answered(scene, stringify!($check), found)?);
                    ended.map_err(server_error("could not end a check".to_owned()))?;
                    break;
                }
            )+
        };
    }
    if scene.table == 0 {
        run!(
            settings::safety,
            settings::autovacuum,
            settings::synchronous_commit,
            checkpoints::check,
            wal::check,
            temp::check,
            forgotten::check,
            held::check,
            io::check,
        );
    }
    run!(
        locked::check,
        waits::check,
        storage::check,
        settings::maintenance,
        unlogged::check,
        rows::dead,
        rows::never,
        bloat::check,
        indexes::superfluous,
        oversized::check,
        hot::check,
        keys::primary,
        keys::foreign,
        copying::check,
        partitions::check,
        sequences::check,
    );
    Ok(all)
}

/// A table may be locked between the moment when locks are looked at and the look; the next time it
/// is left out.
const ATTEMPTS: u32 = 3;

fn is_locked(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// What a check that the server refused to answer could not see.
const REFUSED: Check = Check {
    id: "refused",
    question: "Does the server answer?",
    rule: "each check asks what this version and this role should be able to see",
};

fn answered(scene: &Scene<'_>, check: &str, found: Found) -> Result<Vec<Finding>> {
    let error = match found {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let is_forbidden = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    let error = server_error(format!("could not look at {check}"))(error);
    if scene::is_lost(&error) {
        return Err(error);
    }
    let said = error.refusal().map(ToString::to_string).unwrap_or_default();
    let name = check.trim_end_matches("::check").replace("::", " ");
    let finding = REFUSED.cannot_see(format!("{name}: {said}"));
    let role = quote_ident(&scene.rights.role);
    Ok(vec![match is_forbidden {
        true => finding.run(format!("grant pg_monitor to {role};")),
        false => finding,
    }])
}

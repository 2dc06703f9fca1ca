//! What writing costs: a server's counters taken before and after, and what lies between.
//!
//! Each server version is asked for what it has; what it has not, what a role may not see and what
//! was reset in between is `None`, never wrong. Counters of the server and of a table count
//! everybody's work; those of a statement and of a transaction are this session's alone.

mod bill;
mod counters;
mod own;
mod statement;
mod tables;

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::{Client, Row};

use crate::Ask;

pub use bill::{Bill, PRICE_PER_MILLION};
pub use counters::{Checkpoints, Database, Io, Wal};
pub use own::Own;
pub use statement::{StatementCost, answer_json, execute};
pub use tables::{TableCounters, TableDifference, TableState};

/// The first version whose sessions can be told to hand over what they counted.
const FORCES_FLUSH: u32 = 150_000;
/// Before, they hand it over when half a second has passed since the last time.
const FLUSH_PAUSE: Duration = Duration::from_millis(600);

/// Everything that a server counts, at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measurement {
    /// `server_version_num`; 0 where the server did not say.
    pub server_version: u32,
    /// Seconds since 1970, by the server's clock.
    pub taken: f64,
    /// Where the WAL is: bytes since the server was made, reserved if not yet written.
    pub wal_position: Option<u64>,
    /// WAL of the whole server.
    pub wal: Wal,
    /// What all processes read and wrote of tables and indexes (from PostgreSQL 16 on).
    pub io: Io,
    /// Of that, what sessions had to read and write themselves.
    pub io_sessions: Io,
    /// What was read and written of temporary tables.
    pub io_temporary: Io,
    /// Checkpoints, and who wrote pages.
    pub checkpoints: Checkpoints,
    /// The current database.
    pub database: Database,
    /// The tables that were asked for, together.
    pub tables: Option<(TableCounters, TableState)>,
}

/// What was done between two measurements.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Difference {
    /// Seconds in between.
    pub seconds: f64,
    /// WAL of the whole server, from its position.
    pub wal_bytes: Option<u64>,
    /// WAL of the whole server, as it counts it.
    pub wal: Wal,
    /// What all processes read and wrote of tables and indexes (from PostgreSQL 16 on).
    pub io: Io,
    /// Of that, what sessions had to read and write themselves.
    pub io_sessions: Io,
    /// What was read and written of temporary tables.
    pub io_temporary: Io,
    /// Checkpoints, and who wrote pages.
    pub checkpoints: Checkpoints,
    /// The current database.
    pub database: Database,
    /// The tables that were asked for, together.
    pub tables: Option<TableDifference>,
}

impl Measurement {
    /// Whether it is taken at once: before PostgreSQL 15 more than a second has to pass before what
    /// was counted can be seen.
    pub fn is_prompt(server_version: u32) -> bool {
        server_version >= FORCES_FLUSH
    }

    /// Asks for everything, about these tables (oids; partitions, indexes and toast tables belong
    /// to them) and the current database. To be called outside of a transaction: what the server
    /// refuses is `None` here, and would be the end of one. What this session has done counts;
    /// other sessions hand over what they counted within a second, or at their end.
    pub async fn take(client: &Client, tables: &[u32]) -> Measurement {
        let version = server_version(client).await;
        flush(client, version).await;
        let tables = match tables {
            [] => None,
            _ => tables::take(client, tables, version).await,
        };
        let [io, io_sessions, io_temporary] = counters::io(client, version).await;
        Measurement {
            server_version: version,
            taken: clock(client).await,
            wal_position: wal_position(client).await,
            wal: counters::wal(client, version).await,
            io,
            io_sessions,
            io_temporary,
            checkpoints: counters::checkpoints(client, version).await,
            database: counters::database(client).await,
            tables,
        }
    }

    /// What was done since an earlier one.
    #[must_use]
    pub fn since(&self, before: &Measurement) -> Difference {
        let tables = match (&self.tables, &before.tables) {
            (Some((after, now)), Some((was, then))) => Some(TableDifference {
                counted: after.since(was),
                before: then.clone(),
                after: now.clone(),
            }),
            _ => None,
        };
        Difference {
            seconds: (self.taken - before.taken).max(0.0),
            wal_bytes: counters::grown(self.wal_position, before.wal_position),
            wal: self.wal.since(&before.wal),
            io: self.io.since(&before.io),
            io_sessions: self.io_sessions.since(&before.io_sessions),
            io_temporary: self.io_temporary.since(&before.io_temporary),
            checkpoints: self.checkpoints.since(&before.checkpoints),
            database: self.database.since(&before.database),
            tables,
        }
    }
}

impl Difference {
    /// What a service that bills I/Os would have asked for what the whole server did meanwhile:
    /// pages of the current database that were not in its cache, and WAL. `None` where either is
    /// not known.
    pub fn bill(&self, price_per_million: f64) -> Option<Bill> {
        Some(Bill::estimate(self.database.blocks_read?, self.wal_bytes?, price_per_million))
    }
}

/// Has what this session counted so far seen by everybody, and others' numbers looked up anew.
pub async fn flush(client: &Client, version: u32) {
    if Measurement::is_prompt(version) {
        let _ = client.tell("select pg_stat_force_next_flush()", &[]).await;
    } else {
        tokio::time::sleep(FLUSH_PAUSE).await;
        // At the end of this statement; the next answer has to come from a later state.
        let _ = client.tell("select 1", &[]).await;
        tokio::time::sleep(FLUSH_PAUSE).await;
    }
    let _ = client.tell("select pg_stat_clear_snapshot()", &[]).await;
}

/// `server_version_num`; 0 where the server does not say.
pub async fn server_version(client: &Client) -> u32 {
    let sql = "select current_setting('server_version_num')::int8";
    let row = client.ask_one(sql, &[]).await.ok();
    row.and_then(|row| u32::try_from(row.get::<_, i64>(0)).ok()).unwrap_or_default()
}

async fn clock(client: &Client) -> f64 {
    let sql = "select extract(epoch from clock_timestamp())::float8";
    client.ask_one(sql, &[]).await.map_or(0.0, |row| row.get(0))
}

/// Where the WAL is, in bytes since the server was made; unknown on a server that does not tell. On
/// a standby, what it has received and replayed is not its own writing.
pub async fn wal_position(client: &Client) -> Option<u64> {
    let sql = "select case when not pg_is_in_recovery() then \
               pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8 end";
    number(&client.ask_one(sql, &[]).await.ok()?, 0)
}

/// A counter of a row; `None` where it is null or negative.
fn number(row: &Row, nth: usize) -> Option<u64> {
    row.try_get::<_, Option<i64>>(nth).ok().flatten().and_then(|value| u64::try_from(value).ok())
}

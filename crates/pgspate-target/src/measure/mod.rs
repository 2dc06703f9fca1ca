//! The cost of writing: the server's counters before and after, and their differences.
//!
//! Each server version is queried for the counters that it has. A counter is `None` if the version
//! lacks it, or if the role may not see it. A difference is also `None` if the counter was reset
//! between the measurements. Counters of the server and of tables include the work of all sessions.
//! Counters of a statement and of a transaction include only this session.

mod bill;
mod counters;
mod statement;
mod tables;
mod transaction;

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::{Client, Row};

use crate::TypedQuery;

pub use bill::{IoBill, PRICE_PER_MILLION};
pub use counters::{CheckpointCounters, DatabaseCounters, IoCounters, WalCounters};
pub use statement::{StatementCost, execute_measured, explain_json};
pub use tables::{TableCounters, TableDifference, TableState};
pub use transaction::TransactionCounters;

/// The first version in which a session can report its counters on request.
const FORCE_FLUSH_VERSION_MIN: u32 = 150_000;
/// How long to wait on older versions. There, a session reports its counters at most every half
/// second.
const FLUSH_PAUSE: Duration = Duration::from_millis(600);

/// All counters of a server at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measurement {
    /// `server_version_num`; 0 if unknown.
    pub server_version: u32,
    /// Time by the server's clock, in seconds since 1970.
    pub taken: f64,
    /// The WAL insert position in bytes, including bytes that are not yet written.
    pub wal_position: Option<u64>,
    /// WAL of the whole server.
    pub wal: WalCounters,
    /// Reads and writes of tables and indexes by all processes (PostgreSQL 16 and newer).
    pub io: IoCounters,
    /// The part of `io` done by sessions themselves.
    pub io_sessions: IoCounters,
    /// Reads and writes of temporary tables.
    pub io_temporary: IoCounters,
    /// Checkpoints, and pages written outside of checkpoints.
    pub checkpoints: CheckpointCounters,
    /// Work in the current database.
    pub database: DatabaseCounters,
    /// The requested tables, added up.
    pub tables: Option<(TableCounters, TableState)>,
}

/// The difference of two measurements.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MeasuredDifference {
    /// Seconds between the two measurements.
    pub seconds: f64,
    /// WAL of the whole server in bytes, from the WAL position.
    pub wal_bytes: Option<u64>,
    /// WAL of the whole server, from its counters.
    pub wal: WalCounters,
    /// Reads and writes of tables and indexes by all processes (PostgreSQL 16 and newer).
    pub io: IoCounters,
    /// The part of `io` done by sessions themselves.
    pub io_sessions: IoCounters,
    /// Reads and writes of temporary tables.
    pub io_temporary: IoCounters,
    /// Checkpoints, and pages written outside of checkpoints.
    pub checkpoints: CheckpointCounters,
    /// Work in the current database.
    pub database: DatabaseCounters,
    /// The requested tables, added up.
    pub tables: Option<TableDifference>,
}

impl Measurement {
    /// Returns whether a session's latest counters can be made visible at once. Before PostgreSQL
    /// 15, they appear only after more than a second.
    pub fn can_force_flush(server_version: u32) -> bool {
        server_version >= FORCE_FLUSH_VERSION_MIN
    }

    /// Reads all counters of the server, of the current database, and of `tables` (oids) with their
    /// partitions, indexes and TOAST tables. Must not run in a transaction: a refused query gives
    /// `None` here, but would abort a transaction. This session's latest work is included. Other
    /// sessions report their work within a second, or when they end.
    pub async fn take(client: &Client, tables: &[u32]) -> Measurement {
        let version = server_version(client).await;
        flush_counters(client, version).await;
        let tables = match tables {
            [] => None,
            _ => tables::read(client, tables, version).await,
        };
        let [io, io_sessions, io_temporary] = counters::read_io(client, version).await;
        Measurement {
            server_version: version,
            taken: read_clock(client).await,
            wal_position: wal_position(client).await,
            wal: counters::read_wal(client, version).await,
            io,
            io_sessions,
            io_temporary,
            checkpoints: counters::read_checkpoints(client, version).await,
            database: counters::read_database(client).await,
            tables,
        }
    }

    /// Returns the difference to an earlier measurement.
    #[must_use]
    pub fn since(&self, before: &Measurement) -> MeasuredDifference {
        let tables = match (&self.tables, &before.tables) {
            (Some((counters, state)), Some((counters_before, state_before))) => {
                Some(TableDifference {
                    counted: counters.since(counters_before),
                    before: state_before.clone(),
                    after: state.clone(),
                })
            }
            _ => None,
        };
        MeasuredDifference {
            seconds: (self.taken - before.taken).max(0.0),
            wal_bytes: counters::counter_growth(self.wal_position, before.wal_position),
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

impl MeasuredDifference {
    /// Returns what a service that bills I/O would charge for the whole server's work: pages of the
    /// current database that were not in the cache, and WAL. `None` if either number is unknown.
    pub fn bill(&self, price_per_million: f64) -> Option<IoBill> {
        Some(IoBill::estimate(self.database.blocks_read?, self.wal_bytes?, price_per_million))
    }
}

/// Makes this session's counters visible to all sessions, and the latest counters of other sessions
/// visible to this session.
pub async fn flush_counters(client: &Client, version: u32) {
    if Measurement::can_force_flush(version) {
        let _ = client.run_statement("select pg_stat_force_next_flush()", &[]).await;
    } else {
        tokio::time::sleep(FLUSH_PAUSE).await;
        // The session reports its counters at the end of this statement. Wait until they are
        // visible.
        let _ = client.run_statement("select 1", &[]).await;
        tokio::time::sleep(FLUSH_PAUSE).await;
    }
    let _ = client.run_statement("select pg_stat_clear_snapshot()", &[]).await;
}

/// Reads `server_version_num`; 0 if the server does not answer.
pub async fn server_version(client: &Client) -> u32 {
    let sql = "select current_setting('server_version_num')::int8";
    let row = client.fetch_one(sql, &[]).await.ok();
    row.and_then(|row| u32::try_from(row.get::<_, i64>(0)).ok()).unwrap_or_default()
}

/// Reads the server's clock, in seconds since 1970; 0 if the server does not answer.
async fn read_clock(client: &Client) -> f64 {
    let sql = "select extract(epoch from clock_timestamp())::float8";
    client.fetch_one(sql, &[]).await.map_or(0.0, |row| row.get(0))
}

/// Reads the WAL insert position in bytes. `None` if unknown, and on a standby, which receives WAL
/// but does not generate it.
pub async fn wal_position(client: &Client) -> Option<u64> {
    let sql = "select case when not pg_is_in_recovery() then \
               pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8 end";
    read_counter(&client.fetch_one(sql, &[]).await.ok()?, 0)
}

/// Reads a counter of a row. `None` if it is NULL or negative.
fn read_counter(row: &Row, column: usize) -> Option<u64> {
    row.try_get::<_, Option<i64>>(column).ok().flatten().and_then(|value| u64::try_from(value).ok())
}

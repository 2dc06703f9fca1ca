//! The server's counters before and after a trial.

use std::time::Duration;

use pgspate::Result;
use pgspate::measure::Measurement;
use pgspate::target::connect::Connection;

use crate::context::SCHEMA;

/// Checks for ended sessions: one second in all, as a session may belong to another program.
const SESSION_CHECKS_MAX: u32 = 100;
const SESSION_CHECK_PAUSE: Duration = Duration::from_millis(10);

/// Waits until the trial's sessions have ended. A session publishes its counters when it ends,
/// shortly after the client has disconnected.
pub(super) async fn wait_for_ended_sessions(connection: &Connection) -> Result<()> {
    let sql = "select exists (select from pg_stat_activity where usename = current_user \
               and datname = current_database() and application_name like 'pgspate%' \
               and application_name <> 'pgspate lab keeper' and pid <> pg_backend_pid())";
    for _ in 0..SESSION_CHECKS_MAX {
        let row = connection.client.query_one(sql, &[]).await;
        let row = row.map_err(|error| connection.explain("could not list sessions", error))?;
        if !row.get::<_, bool>(0) {
            break;
        }
        tokio::time::sleep(SESSION_CHECK_PAUSE).await;
    }
    Ok(())
}

/// Reads the counters of the server and of the lab's tables.
pub(super) async fn take_measurement(
    connection: &Connection,
    tables: &[u32],
) -> Result<Measurement> {
    Ok(Measurement::take(&connection.client, tables).await)
}

/// Returns the OIDs of the lab's tables.
pub(super) async fn find_tables(connection: &Connection) -> Result<Vec<u32>> {
    let sql = "select c.oid from pg_class c join pg_namespace n on n.oid = relnamespace \
               where nspname = $1 and relkind in ('r', 'p', 'm')";
    let rows = connection.client.query(sql, &[&SCHEMA]).await;
    let rows = rows.map_err(|error| connection.explain("could not list the tables", error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

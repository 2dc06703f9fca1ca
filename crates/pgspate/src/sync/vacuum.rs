//! Vacuums the table, so that the space of rows that the sync updated or deleted can be used again.

use std::time::Instant;

use super::SyncReport;
use crate::Result;
use pgspate_target::connect::Connection;
use pgspate_target::{measure, server_error};

/// First server version with the MAINTAIN privilege.
const HAS_MAINTAIN: u32 = 170_000;

/// Returns whether the role may vacuum the table. If it may not, VACUUM only raises a warning.
pub(super) async fn is_allowed(session: &Connection, table: u32) -> Result<bool> {
    let granted = match session.server_version() >= HAS_MAINTAIN {
        true => " or has_table_privilege(c.oid, 'MAINTAIN')",
        false => "",
    };
    let sql = format!(
        "select pg_has_role(c.relowner, 'usage') or pg_has_role(d.datdba, 'usage'){granted} \
         from pg_class c, pg_database d where c.oid = $1 and d.datname = current_database()"
    );
    let failed = server_error("could not look up the table's owner".to_owned());
    Ok(session.client.query_one(&sql, &[&table]).await.map_err(failed)?.get(0))
}

/// Vacuums the table. A failure is only a warning, because the rows are committed.
pub(super) async fn run(session: &Connection, table: &str, report: &mut SyncReport) {
    let client = &session.client;
    // Reports this session's row counts first; otherwise they would arrive after the vacuum and
    // trigger another one.
    measure::flush_counters(client, session.server_version()).await;
    let started = Instant::now();
    match client.batch_execute(&format!("vacuum {table}")).await {
        Ok(()) => report.vacuum_seconds = Some(started.elapsed().as_secs_f64()),
        Err(error) => {
            let why = error.as_db_error().map_or(error.to_string(), |said| said.message().into());
            report.warnings.push(format!("could not vacuum {table}: {why}; the rows are written"));
        }
    }
}

//! Reads and changes the server's settings.
//!
//! ALTER SYSTEM writes `postgresql.auto.conf`; sessions see the change once the server has reloaded
//! its files. [`MARKER`] is in that file as long as any setting of `tune` is.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::TUNED_SETTINGS;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{RecordedChange, SETTING_CHANGE};
use pgspate_target::server::{ServerSetting, ServerSettings};
use pgspate_target::{quote_literal, server_error};

/// A custom setting that has no effect. The value, made by [`marker_value`], says where the old
/// values are.
pub(crate) const MARKER: &str = "pgspate.tuned";
/// How long the server may take to reload its files. A reload that succeeds takes milliseconds.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// An SQL expression: whether the role may read the server's files of settings.
const MAY_READ: &str = "\
has_table_privilege('pg_catalog.pg_file_settings', 'select')
and has_function_privilege('pg_catalog.pg_show_all_file_settings()', 'execute')";

/// The sources of values that apply to some sessions alone, as `pg_settings` names them.
const SESSION_SOURCES: [&str; 6] =
    ["global", "database", "user", "database user", "client", "session"];
/// Settings that `tune` does not change, and that others follow.
const LEADING_SETTINGS: [&str; 1] = ["vacuum_cost_limit"];

/// The marker of a server that is tuned: the database and ledger rows with the old values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TuneMarker {
    /// The current name of the database whose ledger has the old values.
    pub(crate) database: String,
    /// Whether `database` is the connected database.
    pub(crate) is_here: bool,
    /// The `ordinal` numbers of the ledger rows that the `apply` of this marker has recorded.
    rows: RangeInclusive<i32>,
}

impl TuneMarker {
    /// Returns whether the `apply` of this marker has recorded the row.
    pub(super) fn has(&self, change: &RecordedChange) -> bool {
        let (_, ordinal) = change.order();
        change.kind == SETTING_CHANGE && self.rows.contains(&ordinal)
    }
}

/// Reads the marker from the server's file. If the role may not read the file, or the file has no
/// marker, the value that sessions see counts. Works inside a transaction, too.
///
/// # Errors
/// [`ErrorKind::Server`] if a query fails.
pub(crate) async fn read_marker(client: &Client) -> Result<Option<TuneMarker>> {
    let failed = || server_error("could not look up whether the server is tuned".to_owned());
    let sql = format!("select nullif(current_setting('{MARKER}', true), ''), {MAY_READ}");
    let row = client.query_one(&sql, &[]).await.map_err(failed())?;
    let mut marker: Option<String> = row.get(0);
    if row.get(1) {
        marker = auto_conf(client).await?.remove(MARKER).or(marker);
    }
    let Some(marker) = marker else { return Ok(None) };
    let (name, oid, rows) = parse_marker(&marker);
    // The OID counts first. The name counts if no database has that OID: earlier versions wrote the
    // name alone, and a restored copy of the database has another OID.
    let sql = "select datname::text, datname = current_database() from pg_catalog.pg_database \
               where oid = $1 or datname = $2 order by oid = $1 desc limit 1";
    let found = client.query_opt(sql, &[&oid, &name]).await.map_err(failed())?;
    let (database, is_here) =
        found.map_or_else(|| (name.to_owned(), false), |row| (row.get(0), row.get(1)));
    Ok(Some(TuneMarker { database, is_here, rows }))
}

/// Returns the marker's value for an `apply` that has recorded these ledger rows, such as
/// `sales 16384 13-15`. The OID is needed because a database can be renamed. The rows are needed
/// because other rows may be from an earlier `apply`, or forged by another role.
pub(super) async fn marker_value(client: &Client, rows: &RangeInclusive<i32>) -> Result<String> {
    let sql = "select concat_ws(' ', datname, oid, $1::text) from pg_catalog.pg_database \
               where datname = current_database()";
    let rows = format!("{}-{}", rows.start(), rows.end());
    let failed = server_error("could not look up the database".to_owned());
    Ok(client.query_one(sql, &[&rows]).await.map_err(failed)?.get(0))
}

/// Parses the database's name, its OID, and the rows. Earlier versions wrote the name alone.
fn parse_marker(marker: &str) -> (&str, u32, RangeInclusive<i32>) {
    let words = || {
        let mut words = marker.rsplitn(3, ' ');
        let (rows, oid, name) = (words.next()?, words.next()?, words.next()?);
        let (first, last) = rows.split_once('-')?;
        Some((name, oid.parse().ok()?, first.parse().ok()?..=last.parse().ok()?))
    };
    words().unwrap_or((marker, 0, 0..=i32::MAX))
}

/// Checks that the server can read its files of settings, if the role may see that. While one file
/// has an error, the server does not show the contents of the others.
///
/// # Errors
/// [`ErrorKind::Server`] if a file has an error.
pub(super) async fn check_files(client: &Client) -> Result<()> {
    let failed = || server_error("could not read the server's files of settings".to_owned());
    let sql = format!("select {MAY_READ}");
    if !client.query_one(&sql, &[]).await.map_err(failed())?.get::<_, bool>(0) {
        return Ok(());
    }
    let sql = "select exists (select from pg_file_settings where name is null)";
    match client.query_one(sql, &[]).await.map_err(failed())?.get(0) {
        true => Err(broken_files("the server cannot read its settings".to_owned())),
        false => Ok(()),
    }
}

/// Reads the settings in `postgresql.auto.conf`.
///
/// # Errors
/// [`ErrorKind::Server`] if the role may not read `pg_file_settings`.
pub(super) async fn auto_conf(client: &Client) -> Result<HashMap<String, String>> {
    let sql = "select lower(name), setting from pg_file_settings \
               where sourcefile like '%postgresql.auto.conf' and name is not null \
                 and setting <> '' order by seqno";
    let failed = server_error("could not read pg_file_settings".to_owned());
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    // If a setting has two lines, the later one counts.
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Reads all settings as they apply to the server. If the session's role or database sets a value,
/// the value of the server's files or the default counts instead: other sessions have that one. If
/// it cannot be read, the setting is left out, and is among the returned names.
///
/// # Errors
/// [`ErrorKind::Server`] if a query fails, [`ErrorKind::Connect`] if the connection fails.
pub(super) async fn read_server_settings(
    client: &Client,
) -> Result<(ServerSettings, Vec<&'static str>)> {
    let mut unseen = Vec::new();
    let mut settings = pgspate_target::server::read_settings(client).await?;
    let is_own = |setting: &ServerSetting| SESSION_SOURCES.contains(&setting.source.as_str());
    let relevant = TUNED_SETTINGS.into_iter().chain(LEADING_SETTINGS);
    let own: Vec<_> = relevant.filter(|name| settings.get(*name).is_some_and(is_own)).collect();
    for name in own {
        let Some(mut setting) = settings.remove(name) else { continue };
        match value_of_server(client, name).await? {
            Some(value) => {
                setting.value = value;
                settings.insert(name.to_owned(), setting);
            }
            None => unseen.push(name),
        }
    }
    Ok((settings, unseen))
}

/// Returns the server's value of a setting that the session's role or database sets, in the
/// setting's unit. Returns `None` if the role may not read the server's files, or may not set the
/// setting itself.
async fn value_of_server(client: &Client, name: &str) -> Result<Option<String>> {
    let failed = || server_error(format!("could not read the server's value of {name}"));
    let sql = format!("select {MAY_READ}");
    if !client.query_one(&sql, &[]).await.map_err(failed())?.get::<_, bool>(0) {
        return Ok(None);
    }
    // If a setting has several lines, the last one counts.
    let sql = "select coalesce((select f.setting from pg_file_settings f \
                                where lower(f.name) = s.name and f.error is null \
                                order by f.seqno desc limit 1), s.boot_val, '') \
               from pg_settings s where s.name = $1";
    let value: String = client.query_one(sql, &[&name]).await.map_err(failed())?.get(0);
    // The server converts the value into the setting's unit.
    client.batch_execute("begin").await.map_err(failed())?;
    let set = client.query_one("select set_config($1, $2, true)", &[&name, &value]).await;
    let sql = "select setting from pg_settings where name = $1";
    let shown = match &set {
        Ok(_) => client.query_one(sql, &[&name]).await.map(|row| Some(row.get(0))),
        Err(_) => Ok(None),
    };
    client.batch_execute("rollback").await.map_err(failed())?;
    shown.map_err(failed())
}

/// Changes a setting in `postgresql.auto.conf`; without a value, removes it.
pub(super) async fn alter(client: &Client, name: &str, value: Option<&str>) -> Result<()> {
    let sql = match value {
        Some(value) => format!("alter system set {name} = {}", quote_literal(value)),
        None => format!("alter system reset {name}"),
    };
    client.batch_execute(&sql).await.map_err(could_not_change(name))
}

/// Sets the marker to `value`; without a value, removes it.
pub(super) async fn alter_marker(client: &Client, value: Option<&str>) -> Result<()> {
    // ALTER SYSTEM accepts the custom name only after this session has set it.
    let set = format!("set {MARKER} = ''");
    client.batch_execute(&set).await.map_err(could_not_change(MARKER))?;
    let altered = alter(client, MARKER, value).await;
    // Without the reset, this session would keep its own value and not see the file's.
    let reset = client.batch_execute(&format!("reset {MARKER}")).await;
    altered.and(reset.map_err(could_not_change(MARKER)))
}

fn could_not_change(name: &str) -> impl FnOnce(tokio_postgres::Error) -> Error {
    server_error(format!("could not change {name}"))
}

/// Makes the server reload its files, and waits until this session sees the new values.
///
/// # Errors
/// [`ErrorKind::Server`] if the server does not reload its files. The server reloads nothing if any
/// line has an error.
pub(super) async fn reload(client: &Client) -> Result<()> {
    let failed = || server_error("could not make the server reload its settings".to_owned());
    let sql = "select pg_conf_load_time()::text";
    let loaded: String = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
    client.batch_execute("select pg_reload_conf()").await.map_err(failed())?;
    let started = Instant::now();
    loop {
        let now: String = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
        if now != loaded {
            return Ok(());
        }
        if started.elapsed() > RELOAD_TIMEOUT {
            let seconds = RELOAD_TIMEOUT.as_secs();
            return Err(broken_files(format!(
                "the server has not read its settings in {seconds} s"
            )));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn broken_files(message: String) -> Error {
    Error::new(ErrorKind::Server, message).hint(
        "The server applies no change from its configuration files while any line in them has an \
         error. This query shows the line: `select sourcefile, sourceline, error from \
         pg_file_settings where error is not null`.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_of_all_versions_are_parsed() {
        assert_eq!(parse_marker("sales 16384 13-15"), ("sales", 16384, 13..=15));
        assert_eq!(parse_marker("our sales 16384 1-1"), ("our sales", 16384, 1..=1));
        for name_alone in ["sales", "our sales", "our sales 2", "1 2", "our old sales", "s 1 2-x"] {
            assert_eq!(parse_marker(name_alone), (name_alone, 0, 0..=i32::MAX));
        }
    }
}

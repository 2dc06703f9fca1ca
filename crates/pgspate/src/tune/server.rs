//! What is asked of a server about its settings, and how they are changed.
//!
//! What counts is `postgresql.auto.conf`, which ALTER SYSTEM writes, and sessions see it once the
//! server has read it again. [`MARKER`] is in it for as long as anything of `tune` is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::way_back::literal;
use crate::target::server_error;
use crate::{Error, Result};

/// A setting without a use: the database whose ledger has the way back.
pub(crate) const MARKER: &str = "pgspate.tuned";
/// How long the server may take to read its files again.
const RELOAD: Duration = Duration::from_secs(5);

/// Where a server was tuned from that is not put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The database whose ledger has the way back.
    pub(crate) database: String,
    /// Whether that is this one.
    pub(crate) is_here: bool,
}

/// The marker, as the server's file has it or, where that may not be read or has it no more, as
/// sessions see it. Can be asked in a transaction, which goes on after it.
///
/// # Errors
/// When the server cannot be asked.
pub(crate) async fn mark(client: &Client) -> Result<Option<Mark>> {
    let failed = || server_error("could not look up whether the server is tuned".to_owned());
    let sql = format!(
        "select current_database()::text, nullif(current_setting('{MARKER}', true), ''), \
                has_table_privilege('pg_catalog.pg_file_settings', 'select') \
                and has_function_privilege('pg_catalog.pg_show_all_file_settings()', 'execute')"
    );
    let row = client.query_one(&sql, &[]).await.map_err(failed())?;
    let (here, mut marker): (String, Option<String>) = (row.get(0), row.get(1));
    if row.get(2) {
        marker = auto_conf(client).await?.remove(MARKER).or(marker);
    }
    Ok(marker.map(|database| Mark { is_here: database == here, database }))
}

/// What `postgresql.auto.conf` says now, but for what it says nothing of.
///
/// # Errors
/// When the role may not read it.
pub(super) async fn auto_conf(client: &Client) -> Result<HashMap<String, String>> {
    let sql = "select lower(name), setting from pg_file_settings \
               where sourcefile like '%postgresql.auto.conf' and name is not null \
                 and setting <> '' order by seqno";
    let failed = server_error("could not read pg_file_settings".to_owned());
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    // Of two lines the later one counts.
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Has `postgresql.auto.conf` say that, or nothing.
pub(super) async fn alter(client: &Client, name: &str, value: Option<&str>) -> Result<()> {
    let sql = match value {
        Some(value) => format!("alter system set {name} = {}", literal(value)),
        None => format!("alter system reset {name}"),
    };
    client.batch_execute(&sql).await.map_err(not_changed(name))
}

/// The same with the marker.
pub(super) async fn alter_mark(client: &Client, database: Option<&str>) -> Result<()> {
    // A session knows the name once it has set it.
    let set = format!("set {MARKER} = ''");
    client.batch_execute(&set).await.map_err(not_changed(MARKER))?;
    let altered = alter(client, MARKER, database).await;
    // Else it would not see what the file says.
    let reset = client.batch_execute(&format!("reset {MARKER}")).await;
    altered.and(reset.map_err(not_changed(MARKER)))
}

fn not_changed(name: &str) -> impl FnOnce(tokio_postgres::Error) -> Error {
    server_error(format!("could not change {name}"))
}

/// Has the server read its files, and waits until this session sees that, and these values, in
/// the server's own units. Names those that stay what they were.
pub(super) async fn reload<'a>(
    client: &Client,
    wanted: &[(&'a str, &str)],
) -> Result<Vec<&'a str>> {
    let failed = || server_error("could not have the server read its settings".to_owned());
    let sql = "select pg_conf_load_time()::text";
    let loaded: String = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
    client.batch_execute("select pg_reload_conf()").await.map_err(failed())?;
    let started = Instant::now();
    loop {
        let now: String = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
        let settings = crate::doctor::scene::settings(client).await?;
        let differs = |(name, value): &&(&str, &str)| {
            settings.get(*name).is_none_or(|setting| setting.value != *value)
        };
        let overruled: Vec<&str> = wanted.iter().filter(differs).map(|(name, _)| *name).collect();
        if (now != loaded && overruled.is_empty()) || started.elapsed() > RELOAD {
            return Ok(overruled);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

//! What is asked of a server about its settings, and how they are changed.
//!
//! What counts is `postgresql.auto.conf`, which ALTER SYSTEM writes, and sessions see it once the
//! server has read it again. [`MARKER`] is in it for as long as anything of `tune` is.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use crate::{Error, Kind, Result};
use pgspate_target::ledger::{Change, SETTING};
use pgspate_target::{quote_literal, server_error};

/// A setting without a use: where the way back is, in the words of [`marker`].
pub(crate) const MARKER: &str = "pgspate.tuned";
/// How long the server may take to read its files again. It takes milliseconds, if it does at all.
const RELOAD: Duration = Duration::from_secs(10);
/// Whether the role may read what the server's files say.
const MAY_READ: &str = "\
has_table_privilege('pg_catalog.pg_file_settings', 'select')
and has_function_privilege('pg_catalog.pg_show_all_file_settings()', 'execute')";

/// Where a server was tuned from that is not put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The database whose ledger has the way back, by its present name.
    pub(crate) database: String,
    /// Whether that is this one.
    pub(crate) is_here: bool,
    /// The rows of that ledger, by `ordinal`, that are of the `apply` that has set the marker.
    rows: RangeInclusive<i32>,
}

impl Mark {
    /// Whether a row of the ledger is of the `apply` that has set the marker.
    pub(super) fn has(&self, change: &Change) -> bool {
        let (_, ordinal) = change.order();
        change.kind == SETTING && self.rows.contains(&ordinal)
    }
}

/// The marker, as the server's file has it or, where that may not be read or has it no more, as
/// sessions see it. Can be asked in a transaction, which goes on after it.
///
/// # Errors
/// When the server cannot be asked.
pub(crate) async fn mark(client: &Client) -> Result<Option<Mark>> {
    let failed = || server_error("could not look up whether the server is tuned".to_owned());
    let sql = format!("select nullif(current_setting('{MARKER}', true), ''), {MAY_READ}");
    let row = client.query_one(&sql, &[]).await.map_err(failed())?;
    let mut marker: Option<String> = row.get(0);
    if row.get(1) {
        marker = auto_conf(client).await?.remove(MARKER).or(marker);
    }
    let Some(marker) = marker else { return Ok(None) };
    let (name, oid, rows) = read_marker(&marker);
    // By its name only if no database has that oid: it was formerly the name alone, and a copy that
    // was restored elsewhere has another oid.
    let sql = "select datname::text, datname = current_database() from pg_catalog.pg_database \
               where oid = $1 or datname = $2 order by oid = $1 desc limit 1";
    let found = client.query_opt(sql, &[&oid, &name]).await.map_err(failed())?;
    let (database, is_here) =
        found.map_or_else(|| (name.to_owned(), false), |row| (row.get(0), row.get(1)));
    Ok(Some(Mark { database, is_here, rows }))
}

/// What the marker is set to by an `apply` that has recorded these rows in the ledger: `sales 16384
/// 13-15`. A database can be renamed. Other rows are of an earlier `apply`, or of a role that wants
/// a setting changed.
pub(super) async fn marker(client: &Client, rows: &RangeInclusive<i32>) -> Result<String> {
    let sql = "select concat_ws(' ', datname, oid, $1::text) from pg_catalog.pg_database \
               where datname = current_database()";
    let rows = format!("{}-{}", rows.start(), rows.end());
    let failed = server_error("could not look up the database".to_owned());
    Ok(client.query_one(sql, &[&rows]).await.map_err(failed)?.get(0))
}

/// The database's name, its oid, and the rows; formerly it was the name alone.
fn read_marker(marker: &str) -> (&str, u32, RangeInclusive<i32>) {
    let words = || {
        let mut words = marker.rsplitn(3, ' ');
        let (rows, oid, name) = (words.next()?, words.next()?, words.next()?);
        let (first, last) = rows.split_once('-')?;
        Some((name, oid.parse().ok()?, first.parse().ok()?..=last.parse().ok()?))
    };
    words().unwrap_or((marker, 0, 0..=i32::MAX))
}

/// Refuses where the server finds one of its files to be broken, as far as the role may know: it
/// does not say then what is in the others.
pub(super) async fn check_files(client: &Client) -> Result<()> {
    let failed = || server_error("could not look at the server's files of settings".to_owned());
    let sql = format!("select {MAY_READ}");
    if !client.query_one(&sql, &[]).await.map_err(failed())?.get::<_, bool>(0) {
        return Ok(());
    }
    let sql = "select exists (select from pg_file_settings where name is null)";
    match client.query_one(sql, &[]).await.map_err(failed())?.get(0) {
        true => Err(broken("the server cannot read its settings".to_owned())),
        false => Ok(()),
    }
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
        Some(value) => format!("alter system set {name} = {}", quote_literal(value)),
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

/// Has the server read its files, and waits until this session sees what they say now.
///
/// # Errors
/// When it has not read them: it reads nothing at all where a line of them is wrong.
pub(super) async fn reload(client: &Client) -> Result<()> {
    let failed = || server_error("could not have the server read its settings".to_owned());
    let sql = "select pg_conf_load_time()::text";
    let loaded: String = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
    client.batch_execute("select pg_reload_conf()").await.map_err(failed())?;
    let started = Instant::now();
    loop {
        let now: String = client.query_one(sql, &[]).await.map_err(failed())?.get(0);
        if now != loaded {
            return Ok(());
        }
        if started.elapsed() > RELOAD {
            let seconds = RELOAD.as_secs();
            return Err(broken(format!("the server has not read its settings in {seconds} s")));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn broken(message: String) -> Error {
    Error::new(Kind::Server, message).hint(
        "It reads none of them while a line of its files is wrong: `select sourcefile, sourceline, \
         error from pg_file_settings where error is not null` names it.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read() {
        assert_eq!(read_marker("sales 16384 13-15"), ("sales", 16384, 13..=15));
        assert_eq!(read_marker("our sales 16384 1-1"), ("our sales", 16384, 1..=1));
        for formerly in ["sales", "our sales", "our sales 2", "1 2", "our old sales", "s 1 2-x"] {
            assert_eq!(read_marker(formerly), (formerly, 0, 0..=i32::MAX));
        }
    }
}

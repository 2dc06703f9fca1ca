//! One run of a job at a time: an advisory lock for as long as the run's session lives.
//!
//! The lock spares two runs from doing the same work. That no chunk is written twice does not
//! depend on it: the ledger's key sees to that.

use std::time::Duration;

use tokio_postgres::Client;

use crate::target::{Ask, server_error};
use crate::{Error, Kind, Result};

/// How long a session that has the lock may take to notice that its client is gone.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// That `l` of pg_locks is the lock of key $1, and held.
const IS_HELD: &str = "\
l.locktype = 'advisory' and l.granted and l.objsubid = 1
  and l.database = (select oid from pg_database where datname = current_database())
  and l.classid = (($1::bigint >> 32) & 4294967295)::oid
  and l.objid = ($1::bigint & 4294967295)::oid";

/// Takes the lock of a load for this session.
///
/// # Errors
/// Of [`Kind::Ledger`] when another session has it, saying which.
pub(crate) async fn hold(client: &Client, key: i64) -> Result<()> {
    hold_for(client, key, "this load").await
}

/// Takes the lock for this session. `what` it is for, in words.
///
/// # Errors
/// Of [`Kind::Ledger`] when another session has it, saying which.
pub(crate) async fn hold_for(client: &Client, key: i64, what: &str) -> Result<()> {
    let started = std::time::Instant::now();
    loop {
        if try_hold(client, key).await? {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            let who = holder(client, key).await?;
            let who = who.unwrap_or_else(|| "another session".to_owned());
            return Err(Error::new(Kind::Ledger, format!("{what} is under way in {who}"))
                .hint("Wait until it is done; running this again then does what is left."));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes the lock for this session, if it is free.
///
/// # Errors
/// When the server cannot be asked.
pub(super) async fn try_hold(client: &Client, key: i64) -> Result<bool> {
    let failed = server_error("could not take the lock".to_owned());
    let row = client.ask_one("select pg_try_advisory_lock($1)", &[&key]).await;
    Ok(row.map_err(failed)?.get(0))
}

/// That `l` of pg_locks is the lock of this key, and held.
pub(super) fn is_held(key: i64) -> String {
    IS_HELD.replace("$1", &format!("({key})"))
}

/// Ends the session of ours that has the lock, whose connection was lost before the server could
/// notice. It is ours for certain, as nobody else has this lock; if it cannot be ended, so be it.
pub(crate) async fn release(client: &Client, key: i64, pid: i32) {
    let sql = format!(
        "select pg_terminate_backend(l.pid) from pg_locks l where l.pid = $2 and {IS_HELD}"
    );
    let _ = client.tell(&sql, &[&key, &pid]).await;
}

/// Which session has the lock, in words; `None` if none has. Of another role's session little is
/// shown to a role without `pg_read_all_stats`.
///
/// # Errors
/// When the server cannot be asked.
pub(crate) async fn holder(client: &Client, key: i64) -> Result<Option<String>> {
    let failed = server_error("could not look up who has the job".to_owned());
    let sql = format!(
        "select a.pid, coalesce(a.backend_start::timestamptz(0)::text, 'a time not shown'), \
                coalesce(a.application_name, ''), \
                case when a.backend_start is null then 'a place not shown' \
                     else coalesce(host(a.client_addr), 'a local socket') end \
         from pg_locks l join pg_stat_activity a on a.pid = l.pid where {IS_HELD}"
    );
    let row = client.ask_opt(&sql, &[&key]).await.map_err(failed)?;
    Ok(row.map(|row| {
        let (pid, since): (i32, &str) = (row.get(0), row.get(1));
        let (application, address): (&str, &str) = (row.get(2), row.get(3));
        format!("session {pid} (\"{application}\" from {address}, since {since})")
    }))
}

//! One run of a job at a time: an advisory lock for as long as the run's session lives.
//!
//! The lock spares two runs from doing the same work. That no chunk is written twice does not
//! depend on it: the ledger's key sees to that.

use std::time::Duration;

use tokio_postgres::Client;

use crate::{Ask, Error, ErrorKind, Result, server_error};

/// How long a session that has the lock may take to notice that its client is gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for lanes of this run, which have closed their connections.
const LOST_PATIENCE: Duration = Duration::from_secs(1);
/// The same for lanes of an earlier run that have no transaction.
const IDLE_PATIENCE: Duration = Duration::from_secs(1);
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
/// Of [`ErrorKind::Ledger`] when another session has it, saying which.
pub async fn hold(client: &Client, key: i64) -> Result<()> {
    hold_for(client, key, "this load").await
}

/// Takes the lock for this session. `what` it is for, in words.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when another session has it, saying which.
pub(crate) async fn hold_for(client: &Client, key: i64, what: &str) -> Result<()> {
    let started = std::time::Instant::now();
    loop {
        if try_hold(client, key).await? {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            let who = holder(client, key).await?;
            let who = who.unwrap_or_else(|| "another session".to_owned());
            return Err(Error::new(ErrorKind::Ledger, format!("{what} is under way in {who}"))
                .hint("Wait until it is done; running this again then does what is left."));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The lock that every lane of a job shares, whose own this is.
fn lanes_key(key: i64) -> i64 {
    key ^ 0x006c_616e_6573
}

/// Has a lane's session share the lock by which later runs of the job see that it is there.
pub fn share_sql(key: i64) -> String {
    format!("select pg_catalog.pg_advisory_lock_shared({})", lanes_key(key))
}

/// Waits for lanes of earlier runs, which may still be writing what their client had sent before it
/// was killed. Terminates those that do not end: the job is this session's, which has its lock.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when one of them stays.
pub(super) async fn outlast_lanes(client: &Client, key: i64) -> Result<()> {
    // Lanes of this run are opened after its first session. A role that is not shown when a session
    // began does not wait for it.
    let earlier = "a.backend_start < (select backend_start from pg_stat_activity \
                                      where pid = pg_backend_pid())";
    outlast(client, key, earlier, PATIENCE, IDLE_PATIENCE).await
}

/// The same for all lanes, of this run too: none that writes is connected any more. The server may
/// not have noticed that, and their locks would be waited for.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when one of them stays.
pub async fn outlast_lost_lanes(client: &Client, key: i64) -> Result<()> {
    outlast(client, key, "true", LOST_PATIENCE, Duration::ZERO).await
}

/// Waits for lanes that have a transaction as long as `patience`, then terminates them. One that is
/// idle is waited for as long as `idle_patience`: it may be about to read what its client has sent.
/// After that it is harmless, and may be this run's own, opened before its first row.
async fn outlast(
    client: &Client,
    key: i64,
    which: &str,
    patience: Duration,
    idle_patience: Duration,
) -> Result<()> {
    let key = lanes_key(key);
    let lanes = format!(
        "from pg_locks l join pg_stat_activity a on a.pid = l.pid \
         where {IS_HELD} and l.pid <> pg_backend_pid() and {which} \
           and ($2 or a.state is distinct from 'idle')"
    );
    let failed = || server_error("could not look for an earlier run of this load".to_owned());
    let count = format!("select count(*) {lanes}");
    let end = format!("select pg_terminate_backend(l.pid) {lanes}");
    let (started, mut is_ended) = (std::time::Instant::now(), false);
    loop {
        let counts_idle = started.elapsed() < idle_patience;
        let asked = client.ask_one(&count, &[&key, &counts_idle]).await;
        let count: i64 = asked.map_err(failed())?.get(0);
        if count == 0 {
            return Ok(());
        }
        if started.elapsed() > patience && !is_ended {
            // Another role's may not be ended.
            let _ = client.ask_all(&end, &[&key, &false]).await;
            is_ended = true;
        }
        if started.elapsed() > patience + PATIENCE {
            let who = holder(client, key).await?;
            let who = who.unwrap_or_else(|| "another session".to_owned());
            return Err(Error::new(
                ErrorKind::Ledger,
                format!("an earlier run still writes in {who}"),
            )
            .hint("Wait until it is done, or end it; then run the same command again."));
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

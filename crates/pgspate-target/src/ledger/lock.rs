//! Only one run of a job at a time: an advisory lock that lasts as long as the run's session.
//!
//! The lock keeps two runs from doing the same work. What prevents writing a chunk twice is not the
//! lock, but the primary key of `pgspate.ledger`.

use std::time::Duration;

use tokio_postgres::Client;

use super::identity::lock_key;
use crate::signalled_sessions::MAY_SIGNAL;
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery, server_error};

/// How long to wait until a session that holds the lock ends. The server may be slow to notice that
/// the session's client no longer exists.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for lanes of this run, which have closed their connections.
const LOST_LANE_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout for lanes of an earlier run that are not in a transaction.
const IDLE_LANE_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A condition: row `l` of pg_locks is the lock of key $1, and is held.
const IS_HELD: &str = "\
l.locktype = 'advisory' and l.granted and l.objsubid = 1
  and l.database = (select oid from pg_database where datname = current_database())
  and l.classid = (($1::bigint >> 32) & 4294967295)::oid
  and l.objid = ($1::bigint & 4294967295)::oid";

/// Takes the lock of a load for this session.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another session holds the lock. The message names that session.
pub async fn hold_job_lock(client: &Client, key: i64) -> Result<()> {
    hold_lock(client, key, "this load").await
}

/// Takes a lock for this session. `task` says what is locked: "this load".
///
/// # Errors
/// [`ErrorKind::Ledger`] if another session holds the lock. The message names that session.
pub(crate) async fn hold_lock(client: &Client, key: i64, task: &str) -> Result<()> {
    let started = std::time::Instant::now();
    loop {
        if try_lock(client, key).await? {
            return Ok(());
        }
        if started.elapsed() > NOTICE_TIMEOUT {
            let who = lock_holder(client, key).await?;
            let who = who.unwrap_or_else(|| "another session".to_owned());
            return Err(Error::new(ErrorKind::Ledger, format!("{task} is running in {who}")).hint(
                "Wait until that run is done. Then run the same command again to do the rest.",
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the key of the lock that all lanes of the job share.
fn lanes_key(key: i64) -> i64 {
    // The constant is "lanes" in ASCII.
    key ^ 0x006c_616e_6573
}

/// Returns the statement by which a lane's session takes the lanes' lock, which all lanes share.
/// The lock shows later runs of the job that the lane exists.
pub fn share_lanes_lock_sql(key: i64) -> String {
    format!("select pg_catalog.pg_advisory_lock_shared({})", lanes_key(key))
}

/// Waits for lanes of earlier runs. Such lanes may still be writing data that a client sent before
/// the client was killed. Then terminates these lanes: this session has the job's lock, and so owns
/// the job.
///
/// # Errors
/// [`ErrorKind::Ledger`] if a lane cannot be terminated.
pub(super) async fn end_earlier_lanes(client: &Client, key: i64) -> Result<()> {
    // Lanes of this run are opened after the run's first session. A role that may not see
    // `backend_start` does not wait.
    let earlier = "a.backend_start < (select backend_start from pg_stat_activity \
                                      where pid = pg_backend_pid())";
    end_lanes(client, key, earlier, NOTICE_TIMEOUT, IDLE_LANE_TIMEOUT).await
}

/// Waits for all lanes of the job, including lanes of this run, and then terminates the lanes.
/// Their clients have disconnected. The server may not have noticed, and the lanes' locks would
/// block this run.
///
/// # Errors
/// [`ErrorKind::Ledger`] if a lane cannot be terminated.
pub async fn end_lost_lanes(client: &Client, key: i64) -> Result<()> {
    end_lanes(client, key, "true", LOST_LANE_TIMEOUT, Duration::ZERO).await
}

/// Waits for lanes that meet `condition`. Waits for lanes in a transaction up to `timeout`, and
/// then terminates them. Waits for idle lanes up to `idle_timeout`, since an idle lane may be about
/// to read data that its client sent. After that, an idle lane is harmless: it may belong to this
/// run, and have no rows to write yet.
async fn end_lanes(
    client: &Client,
    key: i64,
    condition: &str,
    timeout: Duration,
    idle_timeout: Duration,
) -> Result<()> {
    let key = lanes_key(key);
    let lanes = format!(
        "from pg_locks l join pg_stat_activity a on a.pid = l.pid \
         where {IS_HELD} and l.pid <> pg_backend_pid() and {condition} \
           and ($2 or a.state is distinct from 'idle')"
    );
    let failed = || server_error("could not check for an earlier run of this load".to_owned());
    let count = format!("select count(*) {lanes}");
    let terminate = format!("select pg_terminate_backend(l.pid) {lanes} and {MAY_SIGNAL}");
    let (started, mut has_terminated) = (std::time::Instant::now(), false);
    loop {
        let counts_idle = started.elapsed() < idle_timeout;
        let row = client.fetch_one(&count, &[&key, &counts_idle]).await;
        let lanes_left: i64 = row.map_err(failed())?.get(0);
        if lanes_left == 0 {
            return Ok(());
        }
        if started.elapsed() > timeout && !has_terminated {
            // An error is ignored: the role of a session may have changed meanwhile.
            let _ = client.fetch_all(&terminate, &[&key, &false]).await;
            has_terminated = true;
        }
        if started.elapsed() > timeout + NOTICE_TIMEOUT {
            let who = lock_holder(client, key).await?;
            let who = who.unwrap_or_else(|| "another session".to_owned());
            return Err(Error::new(
                ErrorKind::Ledger,
                format!("an earlier run is still writing in {who}"),
            )
            .hint(
                "Wait until that run is done, or terminate the session. Then run the same command \
                 again.",
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Takes the lock for this session, if the lock is free. Returns whether this session holds it.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub(super) async fn try_lock(client: &Client, key: i64) -> Result<bool> {
    let failed = server_error("could not take the lock".to_owned());
    let row = client.fetch_one("select pg_try_advisory_lock($1)", &[&key]).await;
    Ok(row.map_err(failed)?.get(0))
}

/// Takes one of a number of locks for this session, in random order. Returns false if other
/// sessions hold all of them. `name` is a digest that tells these locks from others.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub(super) async fn take_slot(client: &Client, name: &str, slots: u32) -> Result<bool> {
    let failed = server_error("could not take one of the connections".to_owned());
    let sql = "select true from (select nth from generate_series(0, $2::bigint) as nth \
                                 order by random() offset 0) as slot \
               where pg_try_advisory_lock($1::bigint # nth) limit 1";
    let values: [&dyn TypedParameter; 2] = [&lock_key(name), &(i64::from(slots) - 1)];
    client.fetch_opt(sql, &values).await.map(|row| row.is_some()).map_err(failed)
}

/// Returns a condition: row `l` of pg_locks is the lock of this key, and is held.
pub(super) fn is_held_sql(key: i64) -> String {
    IS_HELD.replace("$1", &format!("({key})"))
}

/// Returns those of the keys whose locks are held, by any session.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub(super) async fn held_keys(client: &Client, keys: &[i64]) -> Result<Vec<i64>> {
    let failed = server_error("could not look up the locks of sessions".to_owned());
    let is_held = IS_HELD.replace("$1::bigint", "key");
    let sql = format!(
        "select key from unnest($1::bigint[]) as key \
         where exists (select from pg_locks l where {is_held})"
    );
    let rows = client.fetch_all(&sql, &[&keys.to_vec()]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns which session holds the lock, in words, or `None`. Roles without `pg_read_all_stats` see
/// few details of other roles' sessions.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub(crate) async fn lock_holder(client: &Client, key: i64) -> Result<Option<String>> {
    let failed = server_error("could not find the session that works on the job".to_owned());
    let sql = format!(
        "select a.pid, coalesce(a.backend_start::timestamptz(0)::text, 'a time not shown'), \
                coalesce(a.application_name, ''), \
                case when a.backend_start is null then 'a place not shown' \
                     else coalesce(host(a.client_addr), 'a local socket') end \
         from pg_locks l join pg_stat_activity a on a.pid = l.pid where {IS_HELD}"
    );
    let row = client.fetch_opt(&sql, &[&key]).await.map_err(failed)?;
    Ok(row.map(|row| {
        let (pid, since): (i32, &str) = (row.get(0), row.get(1));
        let (application, address): (&str, &str) = (row.get(2), row.get(3));
        format!("session {pid} (\"{application}\" from {address}, since {since})")
    }))
}

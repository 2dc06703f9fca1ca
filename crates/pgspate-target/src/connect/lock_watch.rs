//! Finds out which other sessions hold the locks that the sessions of a run wait for, for the
//! progress line.
//!
//! A session of its own looks, since the waiting sessions cannot. It is open only while a session
//! of the run has waited for an answer for [`SILENCE_MIN`].

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;

use super::connection::{Connection, lock};
use super::dsn::Dsn;
use super::traffic::ConnectionTraffic;

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a session waits for an answer before its locks are looked at.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a look that failed. The server may be full or slow.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// Returns SQL that describes a session of `pg_stat_activity`: `session 77 ('psql', role meters,
/// idle in transaction)`. `alias` names the row.
pub fn describe_session_sql(alias: &str) -> String {
    format!(
        "format('session %s (%s)', {alias}.pid, \
                concat_ws(', ', quote_literal(nullif({alias}.application_name, '')), \
                          'role ' || {alias}.usename, {alias}.state))"
    )
}

/// The sessions of a run, and the sessions that hold the locks that they wait for.
#[derive(Debug, Default)]
pub struct LockWatch {
    sessions: WatchedSessions,
    holders: Mutex<Option<String>>,
}

/// The sessions that were opened with parameters of a [`LockWatch`].
#[derive(Debug, Clone, Default)]
pub(super) struct WatchedSessions(Arc<Mutex<Vec<WatchedSession>>>);

#[derive(Debug)]
struct WatchedSession {
    pid: i32,
    /// The server's address; empty for a Unix socket.
    server: String,
    traffic: ConnectionTraffic,
}

/// The backends of a run at one moment.
struct RunBackends {
    all: Vec<i32>,
    /// The backends that have not answered for [`SILENCE_MIN`].
    silent: Vec<i32>,
}

impl LockWatch {
    /// Starts to watch the sessions that are opened with the returned parameters. The watch ends
    /// when it is dropped.
    pub fn start(self: &Arc<LockWatch>, dsn: &Dsn, runtime: &Handle) -> Dsn {
        runtime.spawn(watch_until_dropped(Arc::downgrade(self), dsn.clone()));
        dsn.watched_by(self.sessions.clone())
    }

    /// Returns the sessions that hold the locks that a session of the run waits for, in words:
    /// `session 77 ('psql', role meters, idle in transaction)`. `None` if none waits for long.
    pub fn holders(&self) -> Option<String> {
        lock(&self.holders).clone()
    }
}

impl WatchedSessions {
    /// Adds a session that was just opened.
    pub(super) fn add(&self, pid: i32, server: &str, traffic: &ConnectionTraffic) {
        let (server, traffic) = (server.to_owned(), traffic.clone());
        lock(&self.0).push(WatchedSession { pid, server, traffic });
    }

    /// Returns whether an open session is silent.
    fn is_any_silent(&self) -> bool {
        let mut sessions = lock(&self.0);
        sessions.retain(|session| !session.traffic.is_closed());
        sessions.iter().any(WatchedSession::is_silent)
    }

    /// Returns the backends of the sessions with this server. One of several servers may have other
    /// processes with the same ids.
    fn backends_on(&self, server: &str) -> RunBackends {
        let sessions = lock(&self.0);
        let here = || sessions.iter().filter(|session| session.server == server);
        RunBackends {
            all: here().map(|session| session.pid).collect(),
            silent: here().filter(|it| it.is_silent()).map(|session| session.pid).collect(),
        }
    }
}

impl WatchedSession {
    /// Returns whether the server has owed an answer for [`SILENCE_MIN`].
    fn is_silent(&self) -> bool {
        self.traffic.silence().is_some_and(|silence| silence.since.elapsed() >= SILENCE_MIN)
    }
}

/// Looks at the sessions until the watch is dropped.
async fn watch_until_dropped(watch: Weak<LockWatch>, dsn: Dsn) {
    let mut observer = None;
    loop {
        sleep(LOOK_INTERVAL).await;
        let Some(watch) = watch.upgrade() else { return };
        if !watch.sessions.is_any_silent() {
            observer = None;
            *lock(&watch.holders) = None;
            continue;
        }
        let look = find_holders(&dsn, &mut observer, &watch.sessions);
        let found = timeout(LOOK_TIMEOUT, look).await.ok().flatten();
        let has_failed = found.is_none();
        *lock(&watch.holders) = found.flatten();
        drop(watch);
        if has_failed {
            observer = None;
            sleep(FAILURE_PAUSE).await;
        }
    }
}

/// Returns the sessions that hold locks that silent sessions wait for, without those of the run.
/// The outer `None` says that the server does not answer or refuses the query.
async fn find_holders(
    dsn: &Dsn,
    observer: &mut Option<Connection>,
    sessions: &WatchedSessions,
) -> Option<Option<String>> {
    let connection = match observer {
        Some(connection) => connection,
        none => {
            let connection = dsn.connect("pgspate").await.ok()?;
            // A query that is given up ends on the server, too.
            let limit = format!("set statement_timeout = {}", LOOK_TIMEOUT.as_millis());
            connection.client.batch_execute(&limit).await.ok()?;
            none.insert(connection)
        }
    };
    let RunBackends { all, silent } = sessions.backends_on(connection.server_address());
    let sql = format!(
        "select string_agg(distinct {}, ', ') \
         from pg_stat_activity a \
         cross join lateral unnest(pg_blocking_pids(a.pid)) blocker(pid) \
         join pg_stat_activity b on b.pid = blocker.pid \
         where a.pid = any ($1) and a.wait_event_type = 'Lock' \
           and a.wait_event not in ('extend', 'page') and b.pid <> all ($2)",
        describe_session_sql("b")
    );
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&silent, Type::INT4_ARRAY), (&all, Type::INT4_ARRAY)];
    Some(connection.client.query_typed_one(&sql, &parameters).await.ok()?.get(0))
}

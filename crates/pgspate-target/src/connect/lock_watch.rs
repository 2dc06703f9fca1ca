//! Finds out which other sessions hold the locks that the sessions of a run wait for, for the
//! progress line.
//!
//! A session of its own looks, since the waiting sessions cannot. It is open only while a session
//! of the run has waited for an answer for [`SILENCE_MIN`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;

use super::connection::Connection;
use super::dsn::Dsn;
use super::traffic::ConnectionTraffic;

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a session waits for an answer before its locks are looked at.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns SQL that describes a session of `pg_stat_activity`: `session 77 ('psql', role meters,
/// idle in transaction)`. `alias` names the row.
pub fn describe_session_sql(alias: &str) -> String {
    format!(
        "pg_catalog.format('session %s (%s)', {alias}.pid, \
         pg_catalog.concat_ws(', ', pg_catalog.quote_literal(nullif({alias}.application_name, '')), \
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
    traffic: ConnectionTraffic,
}

impl LockWatch {
    /// Starts to watch the sessions that are opened with the returned parameters. The watch ends
    /// when it is dropped.
    pub fn start(self: &Arc<LockWatch>, dsn: &Dsn, runtime: &Handle) -> Dsn {
        runtime.spawn(look_again_and_again(Arc::downgrade(self), dsn.clone()));
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
    pub(super) fn add(&self, pid: i32, traffic: ConnectionTraffic) {
        lock(&self.0).push(WatchedSession { pid, traffic });
    }

    /// Returns the backends of all open sessions, and of those that wait for an answer.
    fn pids(&self) -> (Vec<i32>, Vec<i32>) {
        let mut sessions = lock(&self.0);
        sessions.retain(|session| !session.traffic.is_closed());
        let is_silent = |session: &&WatchedSession| {
            session.traffic.silence().is_some_and(|it| it.since.elapsed() >= SILENCE_MIN)
        };
        let silent = sessions.iter().filter(is_silent).map(|session| session.pid).collect();
        (sessions.iter().map(|session| session.pid).collect(), silent)
    }
}

/// Looks at the sessions until the watch is dropped. A look that fails is repeated.
async fn look_again_and_again(watch: Weak<LockWatch>, dsn: Dsn) {
    let mut observer = None;
    loop {
        sleep(LOOK_INTERVAL).await;
        let Some(watch) = watch.upgrade() else { return };
        let (all, silent) = watch.sessions.pids();
        if silent.is_empty() {
            observer = None;
            *lock(&watch.holders) = None;
            continue;
        }
        let look = timeout(LOOK_TIMEOUT, find_holders(&dsn, &mut observer, &all, &silent)).await;
        if !matches!(look, Ok(Some(_))) {
            observer = None;
        }
        *lock(&watch.holders) = look.ok().flatten().flatten();
    }
}

/// Returns the sessions that hold locks that `silent` backends wait for. Those of `all` backends of
/// the run are left out. `None` if the server does not answer or refuses the query.
async fn find_holders(
    dsn: &Dsn,
    observer: &mut Option<Connection>,
    all: &[i32],
    silent: &[i32],
) -> Option<Option<String>> {
    let connection = match observer {
        Some(connection) => connection,
        none => none.insert(dsn.connect("pgspate").await.ok()?),
    };
    let sql = format!(
        "select pg_catalog.string_agg(distinct {}, ', ') \
         from pg_catalog.pg_stat_activity a, pg_catalog.pg_stat_activity b \
         where a.pid operator(pg_catalog.=) any ($1) and a.wait_event_type = 'Lock' \
           and a.wait_event not in ('extend', 'page') \
           and b.pid operator(pg_catalog.=) any (pg_catalog.pg_blocking_pids(a.pid)) \
           and b.pid operator(pg_catalog.<>) all ($2)",
        describe_session_sql("b")
    );
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&silent, Type::INT4_ARRAY), (&all, Type::INT4_ARRAY)];
    Some(connection.client.query_typed_one(&sql, &parameters).await.ok()?.get(0))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

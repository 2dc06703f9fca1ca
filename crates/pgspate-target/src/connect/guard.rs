//! Ends connections that are silent although the server owes an answer.
//!
//! A tap follows the headers of all messages, and so knows whether the server owes an answer. A
//! query may take as long as it needs. If the client waits for the server and no byte moves, a
//! second session queries the backend's state.
//!
//! - If the backend waits for the client, a message was lost. The backend is terminated to release
//!   its locks, and the connection ends.
//! - If the server cannot be reached, the connection ends.
//! - If the backend works, or waits for a lock, the connection stays. The connection also stays if
//!   the backend's state is unknown: behind a pooler, or if the second session reached another
//!   server.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::attempt::attempt;
use super::connection::Connection;
use super::dsn::Dsn;
use super::failure::FailureCause;
use super::host::Host;
use super::socket::SocketRoute;
use super::traffic::{ConnectionTraffic, Silence};

/// The `application_name` of sessions that observe another session.
const OBSERVER_NAME: &str = "pgspate";
/// How many failed observations in a row end the connection.
const UNREACHABLE_MAX: u32 = 2;
/// The minimal timeout of an observation: a busy server accepts connections slowly.
const OBSERVE_TIMEOUT_MIN: Duration = Duration::from_secs(2);

/// Selects three columns. Column 0 is the server's address. Column 1 says whether the session waits
/// for its client or no longer exists. Column 2 is a text of the session's state, the time of the
/// last change and the bytes of its COPY: it stays equal while the session makes no progress. A
/// session without a tracked state (`track_activities`) counts as working.
const BACKEND_STATE_QUERY: &str = "\
select coalesce(pg_catalog.host(pg_catalog.inet_server_addr()), ''),
       a.pid is null
       or coalesce(state operator(pg_catalog.<>) 'disabled'
                   and (state operator(pg_catalog.~~) 'idle%' or wait_event
                        operator(pg_catalog.=) any (array['ClientRead', 'ClientWrite'])), false),
       pg_catalog.concat_ws(' ', state, state_change, PROGRESS)
from (select) one
left join pg_catalog.pg_stat_activity a on a.pid operator(pg_catalog.=) $1";

/// The first version that reports the progress of a COPY.
const PROGRESS_FROM: u32 = 140_000;
const PROGRESS: &str = "\
(select bytes_processed from pg_catalog.pg_stat_progress_copy c \
 where c.pid operator(pg_catalog.=) a.pid)";

/// The backend that serves a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum BackendId {
    /// The process whose id is in the protocol's key data. The session was not queried yet.
    FromKeyData,
    /// A process, and the address of its server. The address is empty for a Unix socket.
    Process(i32, String),
    /// The backend cannot be determined.
    #[default]
    Unknown,
}

/// Watches one connection.
pub(super) struct StallGuard {
    dsn: Dsn,
    host: Host,
    route: SocketRoute,
    limit: Duration,
    traffic: ConnectionTraffic,
    backend: tokio::sync::watch::Receiver<BackendId>,
}

/// A running guard. The guard ends with its connection.
pub(super) struct GuardHandle {
    task: JoinHandle<()>,
    backend: tokio::sync::watch::Sender<BackendId>,
}

impl GuardHandle {
    /// Tells the guard which backend serves the connection.
    pub(super) fn identify(&self, backend: BackendId) {
        self.backend.send_replace(backend);
    }
}

impl Drop for GuardHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The observed state of a backend.
enum BackendState {
    Working,
    /// The backend waits for the client, or no longer exists. Two equal texts in a row mean that
    /// the backend waited all the time. The connection is the observing session, which can
    /// terminate the backend.
    WaitingForClient(String, Box<Connection>),
    /// The server answers, but the state is unknown.
    Unknown,
    /// The server does not answer.
    Unreachable,
}

/// A silence and the observations during it.
struct SilenceRecord {
    silence: Silence,
    next_observation: Instant,
    /// The text of the last observation, if the backend then waited for the client.
    waiting_state: Option<String>,
    failed_observations: u32,
}

impl StallGuard {
    /// Starts watching a connection to `host`, if `dsn` limits silence.
    pub(super) fn start(
        dsn: &Dsn,
        host: &Host,
        route: &SocketRoute,
        traffic: &ConnectionTraffic,
    ) -> Option<GuardHandle> {
        let limit = dsn.stall_timeout?;
        let (backend, receiver) = tokio::sync::watch::channel(BackendId::FromKeyData);
        let guard = StallGuard {
            // Sessions that observe are not guarded themselves.
            dsn: dsn.without_stall_guard(),
            host: host.clone(),
            route: route.clone(),
            limit,
            traffic: traffic.clone(),
            backend: receiver,
        };
        let task = tokio::spawn(async move { guard.run().await });
        Some(GuardHandle { task, backend })
    }

    /// Ends the connection once it is silent and the backend does nothing. The backend is observed
    /// when the silence has lasted half the limit, and again at the limit. While the backend works,
    /// later observations are one limit apart.
    async fn run(&self) {
        let step = self.limit / 2;
        let mut record: Option<SilenceRecord> = None;
        while !self.traffic.is_closed() {
            let Some(silence) = self.traffic.silence() else {
                record = None;
                sleep(step).await;
                continue;
            };
            let current = record.take().filter(|record| record.silence == silence);
            let mut current = current.unwrap_or_else(|| SilenceRecord::new(silence, step));
            if Instant::now() < current.next_observation {
                sleep_until(current.next_observation).await;
                record = Some(current);
                continue;
            }
            let began = Instant::now();
            current.next_observation = began + step;
            match self.observe_backend().await {
                BackendState::Working => {
                    current.next_observation = began + self.limit;
                    (current.waiting_state, current.failed_observations) = (None, 0);
                }
                BackendState::Unknown => {
                    current.next_observation = began + self.limit;
                    current.failed_observations = 0;
                }
                BackendState::WaitingForClient(state, observer)
                    if current.waiting_state.as_ref() == Some(&state) =>
                {
                    if self.traffic.stop_reading(silence) {
                        self.terminate(&observer).await;
                        return self.abandon(silence);
                    }
                }
                BackendState::WaitingForClient(state, _) => {
                    (current.waiting_state, current.failed_observations) = (Some(state), 0)
                }
                BackendState::Unreachable if current.failed_observations + 1 >= UNREACHABLE_MAX => {
                    if self.traffic.stop_reading(silence) {
                        return self.abandon(silence);
                    }
                }
                BackendState::Unreachable => current.failed_observations += 1,
            }
            record = Some(current);
        }
    }

    fn abandon(&self, silence: Silence) {
        let seconds = silence.since.elapsed().as_secs().max(1);
        self.traffic.abandon(format!("{} gave no answer for {seconds} s", self.host));
    }

    /// Queries the backend's state in a new session, with a timeout.
    async fn observe_backend(&self) -> BackendState {
        let observation = async {
            let observer = match attempt(&self.dsn, &self.host, &self.route, OBSERVER_NAME).await {
                Ok(Ok(observer)) => observer,
                // A server that refuses the connection is reachable.
                Err(failure) if failure.cause == FailureCause::Unreachable => {
                    return BackendState::Unreachable;
                }
                Ok(Err(_)) | Err(_) => return BackendState::Unknown,
            };
            self.query_backend(observer).await
        };
        timeout(self.observe_timeout(), observation).await.unwrap_or(BackendState::Unreachable)
    }

    fn observe_timeout(&self) -> Duration {
        OBSERVE_TIMEOUT_MIN.max(self.limit / 2)
    }

    /// Returns the backend's process id, or 0, and the server's address if known.
    fn backend(&self) -> (i32, Option<String>) {
        match self.backend.borrow().clone() {
            BackendId::FromKeyData => (self.traffic.process_id(), None),
            BackendId::Process(pid, address) => (pid, Some(address)),
            BackendId::Unknown => (0, None),
        }
    }

    /// Terminates the backend, from the observing session.
    async fn terminate(&self, observer: &Connection) {
        let sql = format!("select pg_catalog.pg_terminate_backend({})", self.backend().0);
        // If the role may not terminate the backend, the backend keeps its locks until it ends.
        let _ = timeout(self.observe_timeout(), observer.client.simple_query(&sql)).await;
    }

    /// Queries the backend's state in the observing session.
    async fn query_backend(&self, observer: Connection) -> BackendState {
        let (pid, address) = self.backend();
        if pid == 0 {
            return BackendState::Unknown;
        }
        let has_progress = observer.server_version() >= PROGRESS_FROM;
        let sql = BACKEND_STATE_QUERY
            .replace("PROGRESS", if has_progress { PROGRESS } else { "null::text" });
        let int4 = tokio_postgres::types::Type::INT4;
        match observer.client.query_typed_one(&sql, &[(&pid, int4)]).await {
            // The observer reached another server, which does not know the session.
            Ok(row) if address.is_some_and(|address| address != row.get::<_, &str>(0)) => {
                BackendState::Unknown
            }
            Ok(row) if row.get(1) => BackendState::WaitingForClient(row.get(2), Box::new(observer)),
            Ok(_) => BackendState::Working,
            Err(error) if error.code().is_some() => BackendState::Unknown,
            Err(_) => BackendState::Unreachable,
        }
    }
}

impl SilenceRecord {
    fn new(silence: Silence, step: Duration) -> SilenceRecord {
        let next_observation = Instant::from_std(silence.since) + step;
        SilenceRecord { silence, next_observation, waiting_state: None, failed_observations: 0 }
    }
}

#[cfg(test)]
mod tests;

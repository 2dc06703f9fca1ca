//! Ends connections that are silent although the server owes an answer.
//!
//! A tap follows the headers of all messages, and so knows whether the server owes an answer. A
//! query may take as long as it needs. While the client waits for the server and no byte moves, a
//! second session asks what the backend does.
//!
//! - If the backend waits for the client, a message was lost. The backend is terminated to release
//!   its locks, and the connection ends.
//! - If the server cannot be reached, the connection ends.
//! - If the backend works, or waits for a lock, the connection stays. The connection also stays if
//!   nothing is known about the backend: behind a pooler, or on one of several servers.

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

/// Columns: 0 the server's address, 1 whether the session waits for its client or no longer exists,
/// 2 since when, or how far its COPY is. A session without a tracked state (`track_activities`)
/// counts as working.
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
    /// The process id in the protocol's key data. The session was not queried yet.
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

/// A running guard. It ends with its connection.
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
    /// The backend waits for the client, or no longer exists. Two equal texts mean that it waited
    /// all the time. The connection belongs to the session that observed it, and can terminate the
    /// backend.
    WaitingForClient(String, Box<Connection>),
    /// The server answers, but the state is unknown.
    Unknown,
    /// The server does not answer.
    Unreachable,
}

/// What is known about a silence.
struct SilenceRecord {
    silence: Silence,
    next: Instant,
    waits_since: Option<String>,
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
        let (backend, seen) = tokio::sync::watch::channel(BackendId::FromKeyData);
        let guard = StallGuard {
            // Observing sessions are not observed themselves.
            dsn: dsn.without_stall_guard(),
            host: host.clone(),
            route: route.clone(),
            limit,
            traffic: traffic.clone(),
            backend: seen,
        };
        let task = tokio::spawn(async move { guard.run().await });
        Some(GuardHandle { task, backend })
    }

    /// Ends the connection once it is silent and the backend does nothing. The first observations
    /// come at half the limit and at the limit. Later ones come a limit apart, as long as the
    /// backend works.
    async fn run(&self) {
        let step = self.limit / 2;
        let mut record: Option<SilenceRecord> = None;
        while !self.traffic.is_closed() {
            let Some(silence) = self.traffic.silence() else {
                record = None;
                sleep(step).await;
                continue;
            };
            let known = record.take().filter(|known| known.silence == silence);
            let mut known = known.unwrap_or_else(|| SilenceRecord::of(silence, step));
            if Instant::now() < known.next {
                sleep_until(known.next).await;
                record = Some(known);
                continue;
            }
            let began = Instant::now();
            known.next = began + step;
            match self.observe_backend().await {
                BackendState::Working => {
                    known = SilenceRecord { next: began + self.limit, ..known.reset() }
                }
                BackendState::Unknown => {
                    known =
                        SilenceRecord { next: began + self.limit, failed_observations: 0, ..known }
                }
                BackendState::WaitingForClient(since, observer)
                    if known.waits_since.as_ref() == Some(&since) =>
                {
                    if self.traffic.stop_reading(silence) {
                        self.terminate(&observer).await;
                        return self.give_up(silence);
                    }
                }
                BackendState::WaitingForClient(since, _) => {
                    (known.waits_since, known.failed_observations) = (Some(since), 0)
                }
                BackendState::Unreachable if known.failed_observations + 1 >= UNREACHABLE_MAX => {
                    if self.traffic.stop_reading(silence) {
                        return self.give_up(silence);
                    }
                }
                BackendState::Unreachable => known.failed_observations += 1,
            }
            record = Some(known);
        }
    }

    fn give_up(&self, silence: Silence) {
        let seconds = silence.since.elapsed().as_secs().max(1);
        self.traffic.give_up(format!("{} gave no answer for {seconds} s", self.host));
    }

    /// Observes the backend, with a timeout.
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
        let end = format!("select pg_catalog.pg_terminate_backend({})", self.backend().0);
        // If the role may not terminate it, its locks stay until the session ends.
        let _ = timeout(self.observe_timeout(), observer.client.simple_query(&end)).await;
    }

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
            Ok(row) if address.is_some_and(|it| it != row.get::<_, &str>(0)) => {
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
    fn of(silence: Silence, step: Duration) -> SilenceRecord {
        let next = Instant::from_std(silence.since) + step;
        SilenceRecord { silence, next, waits_since: None, failed_observations: 0 }
    }

    fn reset(self) -> SilenceRecord {
        SilenceRecord { waits_since: None, failed_observations: 0, ..self }
    }
}

#[cfg(test)]
mod tests;

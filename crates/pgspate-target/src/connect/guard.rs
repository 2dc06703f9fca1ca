//! Ends connections over which nothing comes any more, and which nobody closes.
//!
//! A tap follows the headers of all messages, and so knows whether the server owes an answer.
//! A question may take as long as it likes. While the client waits for the server and no byte
//! moves, another session asks what the backend does. If the backend waits for the client, a
//! message was lost: the backend is terminated to release its locks, and the connection ends. It
//! also ends if the server cannot be reached. A backend that works, or waits for a lock, is left
//! alone, as is one that nothing is known of: behind a pooler, or on one of several servers.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::attempt::attempt;
use super::connection::Connection;
use super::dsn::Dsn;
use super::failure::Why;
use super::host::Host;
use super::socket::Route;
use super::tap::{Silence, Traffic};

/// What sessions are called that look at another.
const NAME: &str = "pgspate";
/// Looks in a row at a server that does not answer, before a session with it is given up.
const MISSES_MAX: u32 = 2;
/// How long a look may take at least: a busy server is slow to take a connection.
const LOOK_MIN: Duration = Duration::from_secs(2);

/// Which server this is; whether a session waits for its client or is gone; since when, or how far
/// its COPY is. A session whose state the server does not keep (`track_activities`) passes for
/// working.
const LOOK: &str = "\
select coalesce(pg_catalog.host(pg_catalog.inet_server_addr()), ''),
       a.pid is null
       or coalesce(state operator(pg_catalog.<>) 'disabled'
                   and (state operator(pg_catalog.~~) 'idle%' or wait_event
                        operator(pg_catalog.=) any (array['ClientRead', 'ClientWrite'])), false),
       pg_catalog.concat_ws(' ', state, state_change, PROGRESS)
from (select) one
left join pg_catalog.pg_stat_activity a on a.pid operator(pg_catalog.=) $1";

/// Before PostgreSQL 14 nothing tells how far a COPY is.
const PROGRESS_FROM: u32 = 140_000;
const PROGRESS: &str = "\
(select bytes_processed from pg_catalog.pg_stat_progress_copy c \
 where c.pid operator(pg_catalog.=) a.pid)";

/// Which session a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Backend {
    /// That of the protocol's key data: nothing else has been asked yet.
    OfKeyData,
    /// A process of the server at this address, which is empty for a Unix socket.
    Process(i32, String),
    /// Nobody can tell.
    #[default]
    Unknown,
}

/// Watches one connection.
pub(super) struct StallGuard {
    dsn: Dsn,
    host: Host,
    route: Route,
    limit: Duration,
    traffic: Traffic,
    backend: tokio::sync::watch::Receiver<Backend>,
}

/// A guard at work; it ends with its connection.
pub(super) struct Guarded {
    task: JoinHandle<()>,
    backend: tokio::sync::watch::Sender<Backend>,
}

impl Guarded {
    /// Tells which session it is.
    pub(super) fn identify(&self, backend: Backend) {
        self.backend.send_replace(backend);
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a look has shown.
enum Look {
    Works,
    /// The backend waits for the client, or is gone. Equal texts: it has done so all the time. The
    /// session that has looked can end it.
    Waits(String, Box<Connection>),
    /// The server is there, and that is all.
    Unclear,
    /// The server does not answer.
    Missed,
}

/// What is known of a silence.
struct Suspicion {
    silence: Silence,
    next: Instant,
    waits: Option<String>,
    misses: u32,
}

impl StallGuard {
    /// Starts watching a connection to `host`, if `dsn` limits silence.
    pub(super) fn start(
        dsn: &Dsn,
        host: &Host,
        route: &Route,
        traffic: &Traffic,
    ) -> Option<Guarded> {
        let limit = dsn.stall_timeout?;
        let (backend, seen) = tokio::sync::watch::channel(Backend::OfKeyData);
        let guard = StallGuard {
            // Sessions that look at others are not looked at.
            dsn: dsn.unwatched(),
            host: host.clone(),
            route: route.clone(),
            limit,
            traffic: traffic.clone(),
            backend: seen,
        };
        let task = tokio::spawn(async move { guard.run().await });
        Some(Guarded { task, backend })
    }

    /// Ends the connection once it is silent and the backend does nothing. Looks come at half the
    /// limit and at the limit; later ones a limit apart, as long as the backend works.
    async fn run(&self) {
        let step = self.limit / 2;
        let mut suspicion: Option<Suspicion> = None;
        while !self.traffic.is_over() {
            let Some(silence) = self.traffic.silence() else {
                suspicion = None;
                sleep(step).await;
                continue;
            };
            let known = suspicion.take().filter(|known| known.silence == silence);
            let mut known = known.unwrap_or_else(|| Suspicion::of(silence, step));
            if Instant::now() < known.next {
                sleep_until(known.next).await;
                suspicion = Some(known);
                continue;
            }
            let began = Instant::now();
            known.next = began + step;
            match self.look().await {
                Look::Works => known = Suspicion { next: began + self.limit, ..known.cleared() },
                Look::Unclear => known = Suspicion { next: began + self.limit, misses: 0, ..known },
                Look::Waits(since, beside) if known.waits.as_ref() == Some(&since) => {
                    if self.traffic.hold(silence) {
                        self.terminate(&beside).await;
                        return self.give_up(silence);
                    }
                }
                Look::Waits(since, _) => (known.waits, known.misses) = (Some(since), 0),
                Look::Missed if known.misses + 1 >= MISSES_MAX => {
                    if self.traffic.hold(silence) {
                        return self.give_up(silence);
                    }
                }
                Look::Missed => known.misses += 1,
            }
            suspicion = Some(known);
        }
    }

    fn give_up(&self, silence: Silence) {
        let seconds = silence.since.elapsed().as_secs().max(1);
        self.traffic.give_up(format!("{} gave no answer for {seconds} s", self.host));
    }

    /// Looks at the backend, in limited time.
    async fn look(&self) -> Look {
        let look = async {
            let beside = match attempt(&self.dsn, &self.host, &self.route, NAME).await {
                Ok(Ok(beside)) => beside,
                // A server that says no is there.
                Err(failure) if failure.why == Why::Absent => return Look::Missed,
                Ok(Err(_)) | Err(_) => return Look::Unclear,
            };
            self.ask(beside).await
        };
        timeout(self.look_max(), look).await.unwrap_or(Look::Missed)
    }

    fn look_max(&self) -> Duration {
        LOOK_MIN.max(self.limit / 2)
    }

    /// The process id of the backend, and the server's address where it is known. 0 for none.
    fn backend(&self) -> (i32, Option<String>) {
        match self.backend.borrow().clone() {
            Backend::OfKeyData => (self.traffic.process_id(), None),
            Backend::Process(pid, address) => (pid, Some(address)),
            Backend::Unknown => (0, None),
        }
    }

    /// Has the server end the backend, from a session `beside` it.
    async fn terminate(&self, beside: &Connection) {
        let end = format!("select pg_catalog.pg_terminate_backend({})", self.backend().0);
        // If the role may not do that, the locks last as long as the session.
        let _ = timeout(self.look_max(), beside.client.simple_query(&end)).await;
    }

    async fn ask(&self, beside: Connection) -> Look {
        let (pid, address) = self.backend();
        if pid == 0 {
            return Look::Unclear;
        }
        let has_progress = beside.server_version() >= PROGRESS_FROM;
        let sql = LOOK.replace("PROGRESS", if has_progress { PROGRESS } else { "null::text" });
        let int4 = tokio_postgres::types::Type::INT4;
        match beside.client.query_typed_one(&sql, &[(&pid, int4)]).await {
            // Another server knows nothing of the session.
            Ok(row) if address.is_some_and(|it| it != row.get::<_, &str>(0)) => Look::Unclear,
            Ok(row) if row.get(1) => Look::Waits(row.get(2), Box::new(beside)),
            Ok(_) => Look::Works,
            Err(error) if error.code().is_some() => Look::Unclear,
            Err(_) => Look::Missed,
        }
    }
}

impl Suspicion {
    fn of(silence: Silence, step: Duration) -> Suspicion {
        let next = Instant::from_std(silence.since) + step;
        Suspicion { silence, next, waits: None, misses: 0 }
    }

    fn cleared(self) -> Suspicion {
        Suspicion { waits: None, misses: 0, ..self }
    }
}

#[cfg(test)]
mod tests;

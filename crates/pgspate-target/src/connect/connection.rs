//! One session with a server: its client, its identity, its end.
//!
//! A task drives the socket as long as the [`Connection`] lives and no longer. Notices are passed
//! over. Why a connection ended is kept, so that the first statement that trips over it can say it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::NoTls;
use tokio_postgres::{CancelToken, Client, SimpleQueryMessage};

use super::Question;
use super::failure::{os_words, words};
use super::guard::{Backend, Guarded};
use super::host::Host;
use super::socket::{Route, Socket};
use super::tap::Traffic;
use super::tls::Connector;
use crate::{Ask, Error, ErrorKind, Result, ends_session, search_path};

/// The oldest version that works, as `server_version_num` has it.
const VERSION_MIN: u32 = 130_000;
/// How long a farewell or a cancel request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a connection has ended, once it has: the server's SQLSTATE, if it sent one, and the reason.
type Ended = Arc<Mutex<Option<(Option<SqlState>, String)>>>;

/// A session with a server. Dropping it closes the socket; [`Connection::close`] says farewell
/// first.
pub struct Connection {
    /// Runs statements.
    pub client: Client,
    place: String,
    is_local: bool,
    tls: Option<Connector>,
    route: Route,
    parameters: Vec<(&'static str, String)>,
    standing: Standing,
    ended: Ended,
    traffic: Traffic,
    /// `None` where silence has no limit.
    pub(super) guard: Option<Guarded>,
    /// The task that moves bytes; it ends with the connection.
    driver: JoinSet<()>,
}

/// What a server says of a session when asked.
#[derive(Debug, Clone, Default)]
pub(super) struct Standing {
    pub(super) backend_pid: i32,
    /// The process id is not the one that the protocol has announced: there is a pooler.
    pub(super) is_pooled: bool,
    /// Unknown behind a pooler.
    backend: Backend,
    pub(super) standby: bool,
    pub(super) read_only: bool,
}

/// What servers report of themselves when a session begins.
const REPORTED: [&str; 9] = [
    "server_version",
    "server_encoding",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "IntervalStyle",
    "integer_datetimes",
    "standard_conforming_strings",
    "is_superuser",
];

impl Connection {
    /// Starts driving a connection that has just been made. `tls` is what was offered to the
    /// server, which may have had no use for it.
    pub(super) fn start<T>(
        client: Client,
        driver: tokio_postgres::Connection<Socket, T>,
        tls: Option<Connector>,
        (host, route, traffic): (&Host, &Route, &Traffic),
        guard: Option<Guarded>,
    ) -> Connection
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let value = |name| driver.parameter(name).map(str::to_owned);
        let parameters: Vec<_> =
            REPORTED.iter().filter_map(|&name| Some((name, value(name)?))).collect();
        let ended = Ended::default();
        let mut task = JoinSet::new();
        task.spawn(drive(driver, ended.clone(), traffic.clone()));
        Connection {
            client,
            place: host.to_string(),
            is_local: host.is_local(),
            tls,
            route: route.clone(),
            parameters,
            standing: Standing::default(),
            ended,
            traffic: traffic.clone(),
            guard,
            driver: task,
        }
    }

    /// Asks the server who this session is, and pins its search path (`target/search_path.rs`). The
    /// process id is not that of the protocol's key data, which is a pooler's own invention where
    /// there is a pooler. What else is `asked` goes with it.
    pub(super) async fn identify<Q: Question>(
        &mut self,
        asked: &Q,
    ) -> (Result<Standing, tokio_postgres::Error>, Q::Answer) {
        let announced = self.traffic.process_id();
        let who = format!(
            "select pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(), \
             pg_catalog.current_setting('transaction_read_only'), \
             pg_catalog.host(pg_catalog.inet_server_addr()), {}",
            search_path::pin_columns(announced)
        );
        let (rows, answer) =
            tokio::join!(biased; self.client.simple_query(&who), asked.ask(&self.client));
        let identified = rows.map(|messages| {
            for message in messages {
                if let SimpleQueryMessage::Row(row) = message {
                    let backend_pid = row.get(0).and_then(|pid| pid.parse().ok()).unwrap_or(0);
                    let address = row.get(3).unwrap_or_default().to_owned();
                    self.standing = Standing {
                        backend_pid,
                        is_pooled: ![announced, 0].contains(&backend_pid),
                        backend: match backend_pid == announced {
                            true => Backend::Process(backend_pid, address),
                            false => Backend::Unknown,
                        },
                        standby: row.get(1) == Some("t"),
                        read_only: row.get(2) == Some("on"),
                    };
                }
            }
            self.standing.clone()
        });
        if let Some(guard) = &self.guard {
            guard.identify(self.standing.backend.clone());
        }
        (identified, answer)
    }

    /// Pins the search path of a session behind a pooler that gives it a backend of its own, and
    /// asks again what was asked before it was pinned.
    pub(super) async fn pin_behind_pooler<Q: Question>(&self, asked: &Q) -> Result<Q::Answer> {
        let pin = format!("select {}", search_path::pin_columns(self.standing.backend_pid));
        let pinned = self.client.batch_execute(&pin).await;
        pinned.map_err(|error| self.explain("could not set up the session", error))?;
        Ok(asked.ask(&self.client).await)
    }

    /// The process id of the server's backend, as in `pg_stat_activity.pid`; 0 where the server
    /// is of a kind that does not tell.
    pub fn backend_pid(&self) -> i32 {
        self.standing.backend_pid
    }

    /// Whether a pooler is between this session and the server.
    pub(super) fn is_pooled(&self) -> bool {
        self.standing.is_pooled
    }

    /// The server's version as `server_version_num` has it: 150018 for 15.18. 0 if it is unknown.
    pub fn server_version(&self) -> u32 {
        self.parameter("server_version").map_or(0, version_number)
    }

    /// Whether it is older than any version that pgspate knows. One that does not tell is not.
    pub(super) fn is_too_old(&self) -> bool {
        (1..VERSION_MIN).contains(&self.server_version())
    }

    /// A parameter as the server reported it when the session began: `server_version`,
    /// `server_encoding`, `client_encoding`, `DateStyle`, `TimeZone`, `IntervalStyle`,
    /// `integer_datetimes`, `standard_conforming_strings`, `is_superuser`. None for others.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Which server this is, for messages: `server at "db1" (10.0.0.1), port 5432`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether the server is, as far as its address tells, on this machine.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// The backend of another session with the same server.
    pub(super) fn backend_of(&self, other: &Traffic) -> Backend {
        match &self.standing.backend {
            Backend::Process(_, address) => Backend::Process(other.process_id(), address.clone()),
            _ => Backend::Unknown,
        }
    }

    /// How to open another session with the same server: where, and what encryption it was
    /// offered.
    pub(super) fn way(&self) -> (&Route, Option<&Connector>) {
        (&self.route, self.tls.as_ref())
    }

    /// Ends the backend of a session of this program whose connection was lost: the server may not
    /// have noticed, and the locks of the session are in the way. Does nothing where the server has
    /// given the process id to a session of another program; where the role may not end it, its
    /// locks are waited for.
    pub async fn end_lost_backend(&self, pid: i32) {
        let sql = "select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity \
                   where pid = $1 and pid <> pg_catalog.pg_backend_pid() \
                     and datname = pg_catalog.current_database() and usename = current_user \
                     and (pg_catalog.starts_with(application_name, 'pgspate ') \
                          or application_name = pg_catalog.current_setting('application_name'))";
        let _ = self.client.ask_opt(sql, &[&pid]).await;
    }

    /// Whether the connection has ended, or was given up.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed() || self.traffic.verdict().is_some()
    }

    /// Asks the server to cancel the statement this session is running; see
    /// [`Canceller::cancel`].
    pub async fn cancel(&self) -> Result<()> {
        self.canceller().cancel().await
    }

    /// What can cancel this session's statements from another task, also after the connection has
    /// been borrowed for a transaction.
    pub fn canceller(&self) -> Canceller {
        Canceller {
            token: self.client.cancel_token(),
            tls: self.tls.clone(),
            route: self.route.clone(),
            place: self.place.clone(),
        }
    }

    /// Says farewell to the server and waits until the connection is closed.
    pub async fn close(self) {
        let Connection { client, mut driver, .. } = self;
        drop(client);
        // Either way the task is gone when `driver` is.
        let _ = tokio::time::timeout(PATIENCE, driver.join_next()).await;
    }

    /// An error of a statement on this connection, as pgspate's own: the server's words with
    /// [`ErrorKind::Server`] where the server refused; [`ErrorKind::Connect`] with the reason where
    /// the connection is gone. `message` says what was being done: `could not read facts of table
    /// x`.
    pub fn explain(&self, message: impl Into<String>, error: tokio_postgres::Error) -> Error {
        if let Some(refusal) = error.as_db_error() {
            let code = refusal.code().clone();
            let gone = ends_session(&code);
            let kind = if gone { ErrorKind::Connect } else { ErrorKind::Server };
            if gone {
                // The statements after this one learn no more than that the connection is closed.
                *lock(&self.ended) = Some((Some(code.clone()), words(refusal)));
            }
            let cause = Error::new(kind, words(refusal)).with_sqlstate(code);
            let error = Error::new(kind, message).because(cause);
            return error.hint_if(refusal.hint());
        }
        let ended = lock(&self.ended).clone();
        if !error.is_closed() && ended.is_none() && !self.client.is_closed() {
            return Error::new(ErrorKind::Bug, message).because(error);
        }
        let (code, reason) = match ended {
            Some((code, reason)) => (code, format!(": {reason}")),
            None => (None, String::new()),
        };
        let lost = format!("connection to {} was lost{reason}", self.place);
        let cause = Error::new(ErrorKind::Connect, lost).with_sqlstate(code);
        Error::new(ErrorKind::Connect, message).because(cause)
    }
}

/// Cancels the statements of one session.
#[derive(Clone)]
pub struct Canceller {
    token: CancelToken,
    tls: Option<Connector>,
    route: Route,
    place: String,
}

impl Canceller {
    /// Asks the server to cancel the statement that the session is running, over a connection of
    /// its own, encrypted like the session. The statement ends with SQLSTATE 57014, unless it was
    /// done before. Errors are of [`ErrorKind::Connect`].
    pub async fn cancel(&self) -> Result<()> {
        let request = async {
            let socket = self.route.open().await.map_err(|error| os_words(&error))?;
            let sent = match self.tls.clone() {
                None => self.token.cancel_query_raw(socket, NoTls).await,
                Some(tls) => self.token.cancel_query_raw(socket, tls).await,
            };
            sent.map_err(|error| ending(&error).1)
        };
        let cause = match tokio::time::timeout(PATIENCE, request).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => cause,
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        let message = format!("could not send a cancel request to {}", self.place);
        Err(Error::new(ErrorKind::Connect, message).because(Error::new(ErrorKind::Connect, cause)))
    }
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Canceller").field("place", &self.place).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("place", &self.place)
            .field("standing", &self.standing)
            .finish_non_exhaustive()
    }
}

/// Moves bytes between client and server until either is gone.
async fn drive<T>(mut driver: tokio_postgres::Connection<Socket, T>, ended: Ended, traffic: Traffic)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(error) = (&mut driver).await {
        // Before `driver` goes and its statements notice: they will want to know why.
        let given_up = traffic.verdict().map(|reason| (None, reason));
        *lock(&ended) = Some(given_up.unwrap_or_else(|| ending(&error)));
    }
}

fn ending(error: &tokio_postgres::Error) -> (Option<SqlState>, String) {
    use std::error::Error as _;
    let reason = match (error.as_db_error(), error.source()) {
        (Some(refusal), _) => words(refusal),
        (None, Some(source)) => match source.downcast_ref::<std::io::Error>() {
            Some(io) => os_words(io),
            None => source.to_string(),
        },
        (None, None) if error.is_closed() => "the server closed it unexpectedly".to_owned(),
        (None, None) => error.to_string(),
    };
    (error.code().cloned(), reason)
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `15.18 (Debian ...)`, `9.6.24`, `18beta1` as numbers that compare.
fn version_number(text: &str) -> u32 {
    let digits = text.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    let mut parts = digits.split('.').map(|part| part.parse::<u32>().unwrap_or(0).min(999));
    let mut part = || parts.next().unwrap_or(0);
    let (major, minor) = (part(), part());
    if major >= 10 { major * 10_000 + minor } else { major * 10_000 + minor * 100 + part() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(version_number("15.18 (Debian 15.18-0+deb12u1)"), 150_018);
        assert_eq!(version_number("18beta1"), 180_000);
        assert_eq!(version_number("9.6.24"), 90_624);
        assert_eq!(version_number("9.4.26 (Greenplum Database 6.1)"), 90_426);
        assert_eq!(version_number("unknown"), 0);
        assert_eq!(version_number("99999999999.1"), 100);
    }
}

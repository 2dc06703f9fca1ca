//! One session with a server: its client, its identity, and why it ended.
//!
//! A task drives the socket as long as the [`Connection`] lives. Notices are ignored. The reason
//! why the connection ended is kept, so that the first failing statement can report the reason.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::NoTls;
use tokio_postgres::{CancelToken, Client, SimpleQueryMessage};

use super::SessionQuery;
use super::failure::{os_error_text, refusal_text};
use super::guard::{BackendId, GuardHandle};
use super::host::Host;
use super::socket::{Socket, SocketRoute};
use super::tls::ServerTls;
use super::traffic::ConnectionTraffic;
use crate::{Error, ErrorKind, Result, ends_session, search_path};

/// The oldest supported version, as `server_version_num`.
const VERSION_MIN: u32 = 130_000;
/// How long closing a session or a cancel request may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a connection ended: the server's SQLSTATE if the server sent one, and the reason. `None`
/// while the connection is open.
type EndReason = Arc<Mutex<Option<(Option<SqlState>, String)>>>;

/// A session with a server. Dropping it closes the socket. [`Connection::close`] ends the session
/// properly.
pub struct Connection {
    /// Runs statements. Shared with statements that are not answered yet.
    pub client: Arc<Client>,
    place: String,
    is_local: bool,
    tls: Option<ServerTls>,
    route: SocketRoute,
    parameters: Vec<(&'static str, String)>,
    identity: SessionIdentity,
    ended: EndReason,
    traffic: ConnectionTraffic,
    /// `None` if the connection may be silent without limit.
    pub(super) guard: Option<GuardHandle>,
    /// The task that drives the socket. The task ends with the connection.
    driver: JoinSet<()>,
}

/// What the server reports about a session.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionIdentity {
    pub(super) backend_pid: i32,
    /// The server's address; empty for a Unix socket.
    server_address: String,
    /// Whether there is a pooler: the backend's process id differs from the one in the protocol's
    /// key data.
    pub(super) is_pooled: bool,
    /// The backend that serves the session; unknown behind a pooler.
    backend: BackendId,
    pub(super) standby: bool,
    pub(super) read_only: bool,
}

/// Parameters that servers report when a session begins.
const REPORTED_PARAMETERS: [&str; 9] = [
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
    /// Starts driving a new connection. `tls` is the TLS connector that was used, or that the
    /// server declined.
    pub(super) fn start<T>(
        client: Client,
        driver: tokio_postgres::Connection<Socket, T>,
        tls: Option<ServerTls>,
        (host, route, traffic): (&Host, &SocketRoute, &ConnectionTraffic),
        guard: Option<GuardHandle>,
    ) -> Connection
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let value = |name| driver.parameter(name).map(str::to_owned);
        let parameters: Vec<_> =
            REPORTED_PARAMETERS.iter().filter_map(|&name| Some((name, value(name)?))).collect();
        let ended = EndReason::default();
        let mut task = JoinSet::new();
        task.spawn(drive_socket(driver, ended.clone(), traffic.clone()));
        Connection {
            client: Arc::new(client),
            place: host.to_string(),
            is_local: host.is_local(),
            tls,
            route: route.clone(),
            parameters,
            identity: SessionIdentity::default(),
            ended,
            traffic: traffic.clone(),
            guard,
            driver: task,
        }
    }

    /// Queries the identity of the session, and pins its search path (`search_path.rs`). The
    /// process id in the protocol's key data is not trusted, since poolers invent it. `query` is
    /// sent in the same round trip.
    pub(super) async fn identify<Q: SessionQuery>(
        &mut self,
        query: &Q,
    ) -> (Result<SessionIdentity, tokio_postgres::Error>, Q::Answer) {
        let announced_pid = self.traffic.process_id();
        let sql = format!(
            "select pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(), \
             pg_catalog.current_setting('transaction_read_only'), \
             pg_catalog.host(pg_catalog.inet_server_addr()), {}",
            search_path::pin_columns_sql(announced_pid)
        );
        let (rows, answer) =
            tokio::join!(biased; self.client.simple_query(&sql), query.run(&self.client));
        let identified = rows.map(|messages| {
            for message in messages {
                if let SimpleQueryMessage::Row(row) = message {
                    let backend_pid = row.get(0).and_then(|pid| pid.parse().ok()).unwrap_or(0);
                    let address = row.get(3).unwrap_or_default().to_owned();
                    self.identity = SessionIdentity {
                        backend_pid,
                        is_pooled: ![announced_pid, 0].contains(&backend_pid),
                        server_address: address.clone(),
                        backend: match backend_pid == announced_pid {
                            true => BackendId::Process(backend_pid, address),
                            false => BackendId::Unknown,
                        },
                        standby: row.get(1) == Some("t"),
                        read_only: row.get(2) == Some("on"),
                    };
                }
            }
            self.identity.clone()
        });
        if let Some(guard) = &self.guard {
            guard.identify(self.identity.backend.clone());
        }
        (identified, answer)
    }

    /// Pins the search path of a session behind a pooler that keeps one backend for each session.
    /// Then runs `query` again, since `query` first ran before the path was pinned.
    pub(super) async fn pin_behind_pooler<Q: SessionQuery>(&self, query: &Q) -> Result<Q::Answer> {
        let pin = format!("select {}", search_path::pin_columns_sql(self.identity.backend_pid));
        let pinned = self.client.batch_execute(&pin).await;
        pinned.map_err(|error| self.explain("could not set up the session", error))?;
        Ok(query.run(&self.client).await)
    }

    /// Returns the backend's process id, as in `pg_stat_activity.pid`; 0 if unknown.
    pub fn backend_pid(&self) -> i32 {
        self.identity.backend_pid
    }

    /// Returns the server's address as the server knows it; empty for a Unix socket.
    pub(super) fn server_address(&self) -> &str {
        &self.identity.server_address
    }

    /// Returns whether a pooler is between this session and the server.
    pub(super) fn is_pooled(&self) -> bool {
        self.identity.is_pooled
    }

    /// Returns the server's version as `server_version_num`: 150018 for 15.18. 0 if unknown.
    pub fn server_version(&self) -> u32 {
        self.parameter("server_version").map_or(0, version_number)
    }

    /// Returns whether the server is older than the oldest supported version. An unknown version is
    /// accepted.
    pub(super) fn is_too_old(&self) -> bool {
        (1..VERSION_MIN).contains(&self.server_version())
    }

    /// Returns a parameter that the server reported when the session began: `server_version`,
    /// `server_encoding`, `client_encoding`, `DateStyle`, `TimeZone`, `IntervalStyle`,
    /// `integer_datetimes`, `standard_conforming_strings`, `is_superuser`. `None` for any other.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Returns which server this is, for messages: `server at "db1" (10.0.0.1), port 5432`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns whether the server is on this machine, judged by its address.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Returns the backend of another session, which has the same server.
    pub(super) fn backend_of(&self, other: &ConnectionTraffic) -> BackendId {
        match &self.identity.backend {
            BackendId::Process(_, address) => {
                BackendId::Process(other.process_id(), address.clone())
            }
            _ => BackendId::Unknown,
        }
    }

    /// Returns how to open another session with the same server: address and encryption.
    pub(super) fn route_and_tls(&self) -> (&SocketRoute, Option<&ServerTls>) {
        (&self.route, self.tls.as_ref())
    }

    /// Terminates the backend of a lost session of this program. The server may not have noticed
    /// the loss, and the backend's locks would block this session. Does nothing if the process id
    /// now belongs to another program's session. If the role may not terminate the backend, the
    /// caller has to wait for its locks. Must not be called in a transaction.
    pub async fn terminate_lost_backend(&self, pid: i32) {
        // The lost session belongs to the role that logged in. The role that the user has set may
        // not terminate it.
        let sql = format!(
            "set local role none; \
             select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity \
             where pid = {pid} and pid <> pg_catalog.pg_backend_pid() \
               and datname = pg_catalog.current_database() and usename = session_user \
               and (pg_catalog.starts_with(application_name, 'pgspate ') \
                    or application_name = pg_catalog.current_setting('application_name'))"
        );
        let _ = self.client.batch_execute(&sql).await;
    }

    /// Returns the state of the connection's messages.
    pub(super) fn traffic(&self) -> &ConnectionTraffic {
        &self.traffic
    }

    /// Returns whether the connection has ended or was abandoned.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed() || self.traffic.abandon_reason().is_some()
    }

    /// Gives the connection up, and closes its socket without another message. For a session that
    /// may be in the middle of a COPY. Later statements get `reason` as their error.
    pub fn abandon(&self, reason: &str) {
        self.traffic.abandon(reason.to_owned());
    }

    /// Asks the server to cancel this session's current statement, like [`Canceller::cancel`].
    pub async fn cancel(&self) -> Result<()> {
        self.canceller().cancel().await
    }

    /// Returns a handle that cancels this session's statements from another task.
    pub fn canceller(&self) -> Canceller {
        Canceller {
            token: self.client.cancel_token(),
            tls: self.tls.clone(),
            route: self.route.clone(),
            place: self.place.clone(),
        }
    }

    /// Sends the server a termination message, and waits until the connection is closed.
    pub async fn close(self) {
        let Connection { client, mut driver, .. } = self;
        drop(client);
        // Dropping `driver` ends the task in any case.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, driver.join_next()).await;
    }

    /// Converts an error of a statement on this connection. The result is [`ErrorKind::Server`]
    /// with the server's message if the server refused the statement, and [`ErrorKind::Connect`]
    /// with the reason if the connection is lost. `message` says what failed: `could not read the
    /// facts of table x`.
    pub fn explain(&self, message: impl Into<String>, error: tokio_postgres::Error) -> Error {
        if let Some(refusal) = error.as_db_error() {
            let code = refusal.code().clone();
            let is_session_over = ends_session(&code);
            let kind = if is_session_over { ErrorKind::Connect } else { ErrorKind::Server };
            if is_session_over {
                // Later statements only see that the connection is closed.
                *lock(&self.ended) = Some((Some(code.clone()), refusal_text(refusal)));
            }
            let cause = Error::new(kind, refusal_text(refusal)).with_sqlstate(code);
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
    tls: Option<ServerTls>,
    route: SocketRoute,
    place: String,
}

impl Canceller {
    /// Asks the server to cancel the session's current statement. Uses a new connection with the
    /// same encryption. The statement ends with SQLSTATE 57014, unless it was already done.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if the request cannot be sent.
    pub async fn cancel(&self) -> Result<()> {
        let request = async {
            let socket = self.route.open().await.map_err(|error| os_error_text(&error))?;
            let sent = match self.tls.clone() {
                None => self.token.cancel_query_raw(socket, NoTls).await,
                Some(tls) => self.token.cancel_query_raw(socket, tls).await,
            };
            sent.map_err(|error| end_reason(&error).1)
        };
        let cause = match tokio::time::timeout(CLOSE_TIMEOUT, request).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => cause,
            Err(_) => format!("no answer within {} s", CLOSE_TIMEOUT.as_secs()),
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
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// Moves bytes between client and server until either ends.
async fn drive_socket<T>(
    mut driver: tokio_postgres::Connection<Socket, T>,
    ended: EndReason,
    traffic: ConnectionTraffic,
) where
    T: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(error) = (&mut driver).await {
        // Store the reason before `driver` is dropped. Waiting statements fail at that moment, and
        // report the reason.
        let abandoned = traffic.abandon_reason().map(|reason| (None, reason));
        *lock(&ended) = Some(abandoned.unwrap_or_else(|| end_reason(&error)));
    }
}

/// Returns SQLSTATE and reason of an error that ended a connection.
fn end_reason(error: &tokio_postgres::Error) -> (Option<SqlState>, String) {
    use std::error::Error as _;
    let reason = match (error.as_db_error(), error.source()) {
        (Some(refusal), _) => refusal_text(refusal),
        (None, Some(source)) => match source.downcast_ref::<std::io::Error>() {
            Some(io) => os_error_text(io),
            None => source.to_string(),
        },
        (None, None) if error.is_closed() => "the server closed it unexpectedly".to_owned(),
        (None, None) => error.to_string(),
    };
    (error.code().cloned(), reason)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts `15.18 (Debian ...)`, `9.6.24` or `18beta1` to a number like `server_version_num`.
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

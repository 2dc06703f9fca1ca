//! Why a connection failed, in PostgreSQL's words, and how to fix it.
//!
//! A server's refusal keeps the server's message and SQLSTATE. No failure contains a password.

use std::error::Error as StdError;
use std::io;

use tokio_postgres::error::{DbError, SqlState};

use super::dsn::{Dsn, PasswordSource};
use super::host::{Endpoint, Host};
use super::tls::{BrokenHandshake, tls_cause};
use super::tls_settings::TlsMode;
use super::verify::TlsProblem;
use crate::{Error, ErrorKind, quote_ident};
use pgspate_base::Secret;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureCause {
    /// No server answers, the connection broke, or the answer did not come in time.
    Unreachable,
    /// The session does not have the type that `target_session_attrs` requires.
    WrongSessionType,
    /// The server refused the connection.
    Refused,
    /// The server has no TLS, or its certificate is not trusted.
    Tls,
    /// A requirement of the connection parameters cannot be met.
    Settings,
}

/// A failed attempt to use one server.
#[derive(Debug)]
pub(super) struct ConnectFailure {
    /// The server, as messages name it.
    pub(super) place: String,
    pub(super) cause: FailureCause,
    pub(super) reason: String,
    pub(super) hint: String,
    pub(super) sqlstate: Option<SqlState>,
    /// Whether the connection broke during the TLS handshake.
    pub(super) in_handshake: bool,
}

impl ConnectFailure {
    pub(super) fn new(
        cause: FailureCause,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConnectFailure {
        let (reason, hint) = (reason.into(), hint.into());
        ConnectFailure {
            place: String::new(),
            cause,
            reason,
            hint,
            sqlstate: None,
            in_handshake: false,
        }
    }

    /// Returns whether this failure ends the search for a server. As in libpq, the refusal of a
    /// running server ends the search, unless the server is starting up or shutting down.
    pub(super) fn is_final(&self) -> bool {
        match self.cause {
            FailureCause::Unreachable | FailureCause::WrongSessionType => false,
            FailureCause::Tls | FailureCause::Settings => true,
            FailureCause::Refused => self.sqlstate != Some(SqlState::CANNOT_CONNECT_NOW),
        }
    }

    /// Returns whether the server may accept a second attempt: one with TLS if this attempt used no
    /// TLS, or one without TLS if this attempt used TLS.
    pub(super) fn may_depend_on_encryption(&self) -> bool {
        match (&self.sqlstate, self.cause) {
            (Some(code), _) => code.code().starts_with("28"),
            (None, cause) => cause == FailureCause::Tls || self.in_handshake,
        }
    }

    /// Converts an error of tokio-postgres.
    pub(super) fn from_driver(
        error: &tokio_postgres::Error,
        host: &Host,
        dsn: &Dsn,
    ) -> ConnectFailure {
        if let Some(refusal) = error.as_db_error() {
            return server_refusal(refusal, dsn);
        }
        let source = error.source();
        if let Some(problem) = source.and_then(|source| source.downcast_ref::<TlsProblem>()) {
            return problem.clone().into();
        }
        if let Some(broken) = source.and_then(|source| source.downcast_ref::<BrokenHandshake>()) {
            return ConnectFailure { in_handshake: true, ..socket_failure(&broken.0, host, dsn) };
        }
        if let Some(io) = source.and_then(|source| source.downcast_ref::<io::Error>()) {
            return match tls_cause(io) {
                Some(problem) => problem.into(),
                None => socket_failure(io, host, dsn),
            };
        }
        if error.is_closed() {
            return ConnectFailure::new(
                FailureCause::Unreachable,
                CLOSED_REASON,
                NOT_POSTGRESQL_HINT,
            );
        }
        let detail = source.map(ToString::to_string).unwrap_or_default();
        match detail.as_str() {
            "password missing" => ConnectFailure {
                sqlstate: Some(SqlState::INVALID_PASSWORD),
                ..ConnectFailure::new(
                    FailureCause::Refused,
                    "the server asks for a password",
                    password_hint(dsn),
                )
            },
            "server does not support TLS" => no_tls(dsn.tls.mode),
            "server did not use channel binding" => no_channel_binding(),
            _ => {
                let reason = if detail.is_empty() { error.to_string() } else { detail };
                ConnectFailure::new(FailureCause::Settings, reason, "")
            }
        }
    }

    /// Converts the failure to an error, if no other server was tried.
    fn into_error(self, message: impl Into<String>) -> Error {
        let kind = self.kind();
        let cause = Error::new(kind, self.reason).with_sqlstate(self.sqlstate);
        let error = Error::new(kind, message).because(cause);
        if self.hint.is_empty() { error } else { error.hint(self.hint) }
    }

    fn kind(&self) -> ErrorKind {
        match self.cause {
            FailureCause::Tls | FailureCause::Settings => ErrorKind::Usage,
            FailureCause::Unreachable | FailureCause::WrongSessionType | FailureCause::Refused => {
                ErrorKind::Connect
            }
        }
    }
}

impl From<TlsProblem> for ConnectFailure {
    fn from(problem: TlsProblem) -> ConnectFailure {
        ConnectFailure::new(FailureCause::Tls, problem.reason, problem.hint)
    }
}

const CLOSED_REASON: &str = "the server closed the connection unexpectedly";
const NOT_POSTGRESQL_HINT: &str =
    "Check that the program listening there is PostgreSQL. Its log may tell more.";

/// Combines the failures of all tried servers into one error, with one cause each in the order of
/// the attempts. The last failure decides the kind, since a final refusal ends the search.
pub(super) fn combine(mut failures: Vec<ConnectFailure>) -> Error {
    let Some(last) = failures.pop() else {
        return Error::new(ErrorKind::Bug, "no server was tried");
    };
    if failures.is_empty() {
        let message = format!("could not connect to {}", last.place);
        return last.into_error(message);
    }
    let count = failures.len() + 1;
    let (kind, hint) = (last.kind(), last.hint.clone());
    let code = last.sqlstate.clone();
    let mut chain: Option<Error> = None;
    for failure in failures.into_iter().chain([last]).rev() {
        let message = format!("{}: {}", failure.place, failure.reason);
        let mut error = Error::new(failure.kind(), message).with_sqlstate(failure.sqlstate);
        if let Some(rest) = chain.take() {
            error = error.because(rest);
        }
        chain = Some(error);
    }
    let message = format!("could not connect to any of {count} addresses");
    let mut error = Error::new(kind, message).with_sqlstate(code);
    if let Some(chain) = chain {
        error = error.because(chain);
    }
    if hint.is_empty() { error } else { error.hint(hint) }
}

/// Returns a server's error with its SQLSTATE, as one line.
pub(super) fn refusal_text(refusal: &DbError) -> String {
    let mut text = format!("{} (SQLSTATE {})", refusal.message(), refusal.code().code());
    if let Some(detail) = refusal.detail() {
        text = format!("{text}: {detail}");
    }
    text
}

fn server_refusal(refusal: &DbError, dsn: &Dsn) -> ConnectFailure {
    let code = refusal.code().clone();
    let hint = match code.code() {
        "28P01" => password_hint(dsn),
        "3D000" => format!(
            "Name another database with dbname=, or create it with `create database \
             \"{}\"`.",
            dsn.dbname.replace('"', "\"\"")
        ),
        "28000" if refusal.message().contains("pg_hba.conf") => {
            "Add a line for this user, database and address to the server's pg_hba.conf. Its rules \
             may require TLS (sslmode=require) or forbid it (sslmode=disable)."
                .to_owned()
        }
        "28000" => format!(
            "The role is \"{}\"; name another one with user= or PGUSER, or create it with `create \
             role`.",
            dsn.user
        ),
        "53300" => too_many_connections_hint(refusal, dsn),
        "57P03" => "The server is starting up, shutting down or recovering; try again when it is \
                    ready."
            .to_owned(),
        _ => refusal.hint().map(str::to_owned).unwrap_or_default(),
    };
    ConnectFailure {
        sqlstate: Some(code),
        ..ConnectFailure::new(FailureCause::Refused, refusal_text(refusal), hint)
    }
}

/// Returns the hint for too many connections. The server's message may be in any language. So the
/// name of the server's C function decides whether the role's, the database's or the server's limit
/// was reached.
fn too_many_connections_hint(refusal: &DbError, dsn: &Dsn) -> String {
    let limit = match refusal.routine() {
        Some("InitializeSessionUserId") => ("role", &dsn.user),
        Some("CheckMyDatabase") => ("database", &dsn.dbname),
        _ => {
            return "Close other connections, use fewer lanes with `--lanes`, or raise the server's \
                    max_connections."
                .to_owned();
        }
    };
    let (object, name) = (limit.0, quote_ident(limit.1));
    format!(
        "Close other connections of this {object}, use fewer lanes with `--lanes`, or raise its \
         limit with `alter {object} {name} connection limit N`. A load needs one connection \
         besides those of its lanes."
    )
}

/// Converts an operating system error of a socket.
pub(super) fn socket_failure(error: &io::Error, host: &Host, dsn: &Dsn) -> ConnectFailure {
    let start_own = "start pgspate's own server with `pgspate server start`";
    let (reason, hint) = match (error.kind(), &host.endpoint) {
        (io::ErrorKind::ConnectionRefused, Endpoint::Tcp { .. }) => (
            "connection refused".to_owned(),
            format!("No server listens there. Check host and port, or {start_own}."),
        ),
        (io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound, Endpoint::Socket { .. }) => (
            "no server listens on the socket".to_owned(),
            format!("Name the server's host, or its socket folder, with host=, or {start_own}."),
        ),
        (io::ErrorKind::TimedOut, _) => return timed_out(dsn),
        (io::ErrorKind::InvalidInput, Endpoint::Tcp { .. }) if error.raw_os_error().is_some() => (
            os_error_text(error),
            "The operating system rejects the address, or a value of keepalives_idle, \
             keepalives_interval or keepalives_count."
                .to_owned(),
        ),
        (
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe,
            _,
        ) => (CLOSED_REASON.to_owned(), NOT_POSTGRESQL_HINT.to_owned()),
        _ if error.raw_os_error().is_none() => (
            format!("the server does not speak PostgreSQL's protocol: {error}"),
            NOT_POSTGRESQL_HINT.to_owned(),
        ),
        _ => (os_error_text(error), String::new()),
    };
    ConnectFailure::new(FailureCause::Unreachable, reason, hint)
}

/// Formats an I/O error in PostgreSQL's style, without the error number.
pub(super) fn os_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) if !chars.as_str().starts_with(char::is_uppercase) => {
            first.to_lowercase().collect::<String>() + chars.as_str()
        }
        _ => text.to_owned(),
    }
}

/// Returns the failure for a server that did not answer in time.
pub(super) fn timed_out(dsn: &Dsn) -> ConnectFailure {
    let reason = match dsn.connect_limit() {
        Some(limit) => format!("no answer within {} s", limit.as_secs()),
        None => "no answer".to_owned(),
    };
    ConnectFailure::new(
        FailureCause::Unreachable,
        reason,
        "Check host and port, and whether a firewall blocks the connection. connect_timeout= sets \
         how many seconds to wait.",
    )
}

/// Returns the failure if `channel_binding=require` cannot be met.
pub(super) fn no_channel_binding() -> ConnectFailure {
    ConnectFailure::new(
        FailureCause::Settings,
        "channel binding is required, but the server did not use it",
        "Channel binding needs TLS (sslmode=require or stronger) and a role whose password is \
         stored as scram-sha-256; channel_binding=prefer makes it optional.",
    )
}

fn no_tls(mode: TlsMode) -> ConnectFailure {
    let about_weaker_mode = match mode {
        TlsMode::VerifyCa | TlsMode::VerifyFull => {
            "a weaker sslmode is not safe on an open network"
        }
        _ => "sslmode=prefer connects without encryption if the server has no TLS",
    };
    let hint = format!("Switch on `ssl` in the server's configuration; {about_weaker_mode}.");
    ConnectFailure::new(
        FailureCause::Tls,
        "server does not support TLS, but TLS was required",
        hint,
    )
}

fn password_hint(dsn: &Dsn) -> String {
    if dsn.hosts.iter().any(|host| host.password.as_ref().is_some_and(Secret::is_mask)) {
        return "The password is `***`, which programs show in place of a password. For \
                SQLAlchemy's URL, take `url.render_as_string(hide_password=False)`."
            .to_owned();
    }
    match &dsn.passwords {
        PasswordSource::Given(origin) => format!("The password came from {origin}."),
        PasswordSource::File(path) => {
            format!("The password came from the password file \"{}\".", path.display())
        }
        PasswordSource::Missing(cause) => format!(
            "No password was found: the connection string has none, PGPASSWORD is not set, and \
             the password file {cause}."
        ),
    }
}

//! Why a connection could not be made, in PostgreSQL's words, and what to do about it.
//!
//! A server's refusal keeps the server's own words and SQLSTATE. No failure holds a password.

use std::error::Error as StdError;
use std::io;

use tokio_postgres::error::{DbError, SqlState};

use super::dsn::{Dsn, PasswordSource};
use super::host::{Endpoint, Host};
use super::tls::{BrokenHandshake, tls_cause};
use super::tls_settings::Mode;
use super::verify::Distrust;
use crate::{Error, ErrorKind, quote_ident};

/// What stood in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Nothing answers there, or the connection broke, or no answer came in time.
    Absent,
    /// The server is not of the kind that was asked for.
    Unsuitable,
    /// The server said no.
    Refused,
    /// TLS: the server has none, or its certificate is not trusted.
    Tls,
    /// What the connection's parameters demand cannot be had here.
    Settings,
}

/// One server that could not be used.
#[derive(Debug)]
pub(super) struct Failure {
    /// Which server.
    pub(super) place: String,
    pub(super) why: Why,
    pub(super) reason: String,
    pub(super) hint: String,
    pub(super) sqlstate: Option<SqlState>,
    /// Whether the connection broke during the TLS handshake.
    pub(super) in_handshake: bool,
}

impl Failure {
    pub(super) fn new(why: Why, reason: impl Into<String>, hint: impl Into<String>) -> Failure {
        let (reason, hint) = (reason.into(), hint.into());
        Failure { place: String::new(), why, reason, hint, sqlstate: None, in_handshake: false }
    }

    /// Whether the remaining servers are left untried, as in libpq: a server that is there and
    /// refuses is an answer. One that is starting up or shutting down is not.
    pub(super) fn is_final(&self) -> bool {
        match self.why {
            Why::Absent | Why::Unsuitable => false,
            Why::Tls | Why::Settings => true,
            Why::Refused => self.sqlstate != Some(SqlState::CANNOT_CONNECT_NOW),
        }
    }

    /// Whether the same server may take the connection with encryption where it was without, or
    /// the other way round.
    pub(super) fn may_depend_on_encryption(&self) -> bool {
        match (&self.sqlstate, self.why) {
            (Some(code), _) => code.code().starts_with("28"),
            (None, why) => why == Why::Tls || self.in_handshake,
        }
    }

    /// What tokio-postgres reports, in our words.
    pub(super) fn from_driver(error: &tokio_postgres::Error, host: &Host, dsn: &Dsn) -> Failure {
        if let Some(refusal) = error.as_db_error() {
            return refused(refusal, dsn);
        }
        let source = error.source();
        if let Some(distrust) = source.and_then(|source| source.downcast_ref::<Distrust>()) {
            return distrust.clone().into();
        }
        if let Some(broken) = source.and_then(|source| source.downcast_ref::<BrokenHandshake>()) {
            return Failure { in_handshake: true, ..absent(&broken.0, host, dsn) };
        }
        if let Some(io) = source.and_then(|source| source.downcast_ref::<io::Error>()) {
            return match tls_cause(io) {
                Some(distrust) => distrust.into(),
                None => absent(io, host, dsn),
            };
        }
        if error.is_closed() {
            return Failure::new(Why::Absent, CLOSED, NOT_OURS);
        }
        let detail = source.map(ToString::to_string).unwrap_or_default();
        match detail.as_str() {
            "password missing" => Failure {
                sqlstate: Some(SqlState::INVALID_PASSWORD),
                ..Failure::new(Why::Refused, "the server asks for a password", password_hint(dsn))
            },
            "server does not support TLS" => no_tls(dsn.tls.mode),
            "server did not use channel binding" => no_channel_binding(),
            _ => {
                let reason = if detail.is_empty() { error.to_string() } else { detail };
                Failure::new(Why::Settings, reason, "")
            }
        }
    }

    /// The error when one connection was tried.
    fn into_error(self, message: impl Into<String>) -> Error {
        let kind = self.kind();
        let cause = Error::new(kind, self.reason).with_sqlstate(self.sqlstate);
        let error = Error::new(kind, message).because(cause);
        if self.hint.is_empty() { error } else { error.hint(self.hint) }
    }

    fn kind(&self) -> ErrorKind {
        match self.why {
            Why::Tls | Why::Settings => ErrorKind::Usage,
            Why::Absent | Why::Unsuitable | Why::Refused => ErrorKind::Connect,
        }
    }
}

impl From<Distrust> for Failure {
    fn from(distrust: Distrust) -> Failure {
        Failure::new(Why::Tls, distrust.reason, distrust.hint)
    }
}

const CLOSED: &str = "the server closed the connection unexpectedly";
const NOT_OURS: &str = "Check that what listens there is PostgreSQL; its log may say more.";

/// One error for all servers that were tried: a cause each, in the order of the attempts. The last
/// one decides its kind, since a final answer ends the search.
pub(super) fn combine(mut failures: Vec<Failure>) -> Error {
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

/// A `FATAL` of the server's with its SQLSTATE, as one line.
pub(super) fn words(refusal: &DbError) -> String {
    let mut words = format!("{} (SQLSTATE {})", refusal.message(), refusal.code().code());
    if let Some(detail) = refusal.detail() {
        words = format!("{words}: {detail}");
    }
    words
}

fn refused(refusal: &DbError, dsn: &Dsn) -> Failure {
    let code = refusal.code().clone();
    let hint = match code.code() {
        "28P01" => password_hint(dsn),
        "3D000" => format!(
            "Name another database in the connection's dbname, or make it with `create database \
             \"{}\"`.",
            dsn.dbname.replace('"', "\"\"")
        ),
        "28000" if refusal.message().contains("pg_hba.conf") => {
            "Add a line to the server's pg_hba.conf that lets this user, database and address in; \
             its rules may ask for TLS (sslmode=require) or forbid it (sslmode=disable)."
                .to_owned()
        }
        "28000" => format!(
            "The role is \"{}\"; name another one with user= or PGUSER, or make it with `create \
             role`.",
            dsn.user
        ),
        "53300" => full(refusal, dsn),
        "57P03" => "The server is starting up, shutting down or recovering; try again when it is \
                    ready."
            .to_owned(),
        _ => refusal.hint().map(str::to_owned).unwrap_or_default(),
    };
    Failure { sqlstate: Some(code), ..Failure::new(Why::Refused, words(refusal), hint) }
}

/// What to do where there are too many connections: whose limit it is tells the server's routine,
/// as its message may be in any language.
fn full(refusal: &DbError, dsn: &Dsn) -> String {
    let limit = match refusal.routine() {
        Some("InitializeSessionUserId") => ("role", &dsn.user),
        Some("CheckMyDatabase") => ("database", &dsn.dbname),
        _ => {
            return "Close other connections, use fewer lanes with `--lanes`, or raise the server's \
                    max_connections."
                .to_owned();
        }
    };
    let (what, name) = (limit.0, quote_ident(limit.1));
    format!(
        "Close other connections of this {what}, use fewer lanes with `--lanes`, or raise its \
         limit with `alter {what} {name} connection limit N`. A load needs one connection besides \
         those of its lanes."
    )
}

/// What the operating system reports of a socket.
pub(super) fn absent(error: &io::Error, host: &Host, dsn: &Dsn) -> Failure {
    let start = "start pgspate's own server with `pgspate server start`";
    let (reason, hint) = match (error.kind(), &host.endpoint) {
        (io::ErrorKind::ConnectionRefused, Endpoint::Tcp { .. }) => (
            "connection refused".to_owned(),
            format!("No server listens there. Check host and port, or {start}."),
        ),
        (io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound, Endpoint::Socket { .. }) => (
            "no server listens on the socket".to_owned(),
            format!("Name the server's host, or the folder of its socket, with host=, or {start}."),
        ),
        (io::ErrorKind::TimedOut, _) => return timed_out(dsn),
        (io::ErrorKind::InvalidInput, Endpoint::Tcp { .. }) if error.raw_os_error().is_some() => (
            os_words(error),
            "The operating system does not take such an address, or such a value of \
             keepalives_idle, keepalives_interval or keepalives_count."
                .to_owned(),
        ),
        (
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe,
            _,
        ) => (CLOSED.to_owned(), NOT_OURS.to_owned()),
        _ if error.raw_os_error().is_none() => (
            format!("the server does not speak PostgreSQL's protocol: {error}"),
            NOT_OURS.to_owned(),
        ),
        _ => (os_words(error), String::new()),
    };
    Failure::new(Why::Absent, reason, hint)
}

/// An I/O error in PostgreSQL's style, without the number at its end.
pub(super) fn os_words(error: &io::Error) -> String {
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

/// No answer in time.
pub(super) fn timed_out(dsn: &Dsn) -> Failure {
    let reason = match dsn.silence_max() {
        Some(limit) => format!("no answer within {} s", limit.as_secs()),
        None => "no answer".to_owned(),
    };
    Failure::new(
        Why::Absent,
        reason,
        "A firewall may be in the way, or host or port may be wrong; connect_timeout= sets how \
         many seconds to wait.",
    )
}

/// `channel_binding=require` where it cannot be had.
pub(super) fn no_channel_binding() -> Failure {
    Failure::new(
        Why::Settings,
        "channel binding is required, but the server did not use it",
        "Channel binding needs TLS (sslmode=require or stronger) and a role whose password is \
         stored as scram-sha-256; channel_binding=prefer does without.",
    )
}

fn no_tls(mode: Mode) -> Failure {
    let weaker = match mode {
        Mode::VerifyCa | Mode::VerifyFull => "no weaker sslmode would be safe on an open network",
        _ => "sslmode=prefer takes an unencrypted connection where there is no TLS",
    };
    let hint = format!("Switch on `ssl` in the server's configuration; {weaker}.");
    Failure::new(Why::Tls, "server does not support TLS, but TLS was required", hint)
}

fn password_hint(dsn: &Dsn) -> String {
    match &dsn.passwords {
        PasswordSource::Given(origin) => format!("The password came from {origin}."),
        PasswordSource::File(path) => {
            format!("The password came from the password file \"{}\".", path.display())
        }
        PasswordSource::Missing(why) => format!(
            "No password was found: the connection string has none, PGPASSWORD is not set, and \
             the password file {why}."
        ),
    }
}

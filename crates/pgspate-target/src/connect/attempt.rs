//! Tries servers, addresses and kinds of encryption in libpq's order until a connection succeeds.
//!
//! Every failed attempt leaves a [`ConnectFailure`]. No attempt leaves an open connection behind.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, Config, SslMode, SslNegotiation};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::NoTls;

use super::SessionQuery;
use super::connection::{Connection, SessionIdentity};
use super::dsn::{Dsn, SessionAttrs};
use super::failure::{self, ConnectFailure, FailureCause};
use super::guard::StallGuard;
use super::host::{Endpoint, Host};
use super::pooler::{self, PoolingTest};
use super::socket::{SocketRoute, SocketTarget};
use super::tls::TlsSetup;
use super::tls_settings::TlsMode;
use super::traffic::ConnectionTraffic;
use crate::{Error, ErrorKind, Result};

/// How one attempt uses encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EncryptionStep {
    /// No TLS.
    Plain,
    /// TLS if the server supports it.
    TlsIfOffered,
    TlsRequired,
}

/// Why the search for a server ended.
enum SearchEnd {
    AllFailed(Vec<ConnectFailure>),
    /// The search cannot continue: a certificate file is unreadable, or pgspate cannot use the
    /// server that was found.
    Unusable(crate::Error),
}

/// Connects to the first suitable server, and runs `query` in the session.
pub(super) async fn connect<Q: SessionQuery>(
    dsn: &Dsn,
    application_name: &str,
    query: &Q,
) -> Result<(Connection, Q::Answer)> {
    let session_types: &[SessionAttrs] = match dsn.session {
        SessionAttrs::PreferStandby => &[SessionAttrs::Standby, SessionAttrs::Any],
        ref session_type => std::slice::from_ref(session_type),
    };
    let mut failures = Vec::new();
    for &wanted in session_types {
        match search_servers(dsn, application_name, wanted, query).await {
            Ok((connection, answer)) => {
                dsn.note_session(&connection);
                return Ok((connection, answer));
            }
            Err(SearchEnd::Unusable(error)) => return Err(error),
            Err(SearchEnd::AllFailed(latest)) => failures = latest,
        }
    }
    Err(failure::combine(failures))
}

/// Tries all servers in order, until a session has the type `wanted`.
async fn search_servers<Q: SessionQuery>(
    dsn: &Dsn,
    application_name: &str,
    wanted: SessionAttrs,
    query: &Q,
) -> Result<(Connection, Q::Answer), SearchEnd> {
    let mut failures = Vec::new();
    for host in shuffled_if(dsn.hosts.clone(), dsn.shuffle) {
        let addresses = match addresses(&host, dsn).await {
            Ok(addresses) => shuffled_if(addresses, dsn.shuffle),
            Err(failure) => {
                failures.push(ConnectFailure { place: host.to_string(), ..failure });
                continue;
            }
        };
        for address in addresses {
            let target = at_address(&host, &address);
            let route = SocketRoute { address, timeouts: dsn.timeouts.clone() };
            let session = async {
                let opened = attempt(dsn, &target, &route, application_name);
                match with_time_limit(dsn.connect_limit(), dsn, opened).await? {
                    Ok(connection) => {
                        check_session_attrs(connection, dsn, &target, wanted, query).await.map(Ok)
                    }
                    Err(error) => Ok(Err(error)),
                }
            };
            let failure = match with_time_limit(dsn.timeouts.connect, dsn, session).await {
                Ok(Ok((connection, _))) if connection.is_too_old() => {
                    return Err(SearchEnd::Unusable(version_error(&connection)));
                }
                Ok(Ok((connection, answer))) if !connection.is_pooled() => {
                    return Ok((connection, answer));
                }
                Ok(Ok((connection, _))) => {
                    let usable = check_pooler(dsn, &target, &route, &connection).await;
                    usable.map_err(SearchEnd::Unusable)?;
                    let answer = connection.pin_behind_pooler(query).await;
                    return answer.map(|answer| (connection, answer)).map_err(SearchEnd::Unusable);
                }
                Ok(Err(error)) => return Err(SearchEnd::Unusable(error)),
                Err(failure) => ConnectFailure { place: target.to_string(), ..failure },
            };
            let is_final = failure.is_final();
            failures.push(failure);
            if is_final {
                return Err(SearchEnd::AllFailed(failures));
            }
        }
    }
    Err(SearchEnd::AllFailed(failures))
}

/// Returns the error for a server version that pgspate does not support.
fn version_error(connection: &Connection) -> Error {
    let version = connection.parameter("server_version").unwrap_or_default();
    let message =
        format!("{} runs PostgreSQL {version}, which is not supported", connection.place());
    Error::new(ErrorKind::Server, message).hint("pgspate needs PostgreSQL 13 or newer.")
}

/// Refuses a pooler that gives each transaction another session. A pooler that passed the test is
/// not tested again. A test that proved nothing is made again for the next connection.
async fn check_pooler(
    dsn: &Dsn,
    host: &Host,
    route: &SocketRoute,
    connection: &Connection,
) -> Result<()> {
    if dsn.pooler_is_usable.get().is_some() {
        return Ok(());
    }
    let open_another = async || attempt(dsn, host, route, "pgspate").await.ok()?.ok();
    match pooler::test_pooling(connection, open_another).await {
        PoolingTest::SharesBackends => Err(pooler::pooler_error(connection.place())),
        PoolingTest::Untested => Err(pooler::untested_error(connection.place())),
        PoolingTest::NoSecondBackend => Ok(()),
        PoolingTest::KeepsBackends => {
            let _ = dsn.pooler_is_usable.set(());
            Ok(())
        }
    }
}

/// Runs `work`, and fails if it takes longer than `limit`.
async fn with_time_limit<T>(
    limit: Option<Duration>,
    dsn: &Dsn,
    work: impl Future<Output = Result<T, ConnectFailure>>,
) -> Result<T, ConnectFailure> {
    match limit {
        None => work.await,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => Err(failure::timed_out(dsn)),
        },
    }
}

/// Returns the addresses of a host, and resolves the host's name if necessary.
async fn addresses(host: &Host, dsn: &Dsn) -> Result<Vec<SocketTarget>, ConnectFailure> {
    let name = match (&host.endpoint, host.socket_path()) {
        (_, Some(path)) => return Ok(vec![SocketTarget::Unix(path)]),
        (Endpoint::Tcp { addr: Some(addr), .. }, _) => {
            return Ok(vec![SocketTarget::Tcp(SocketAddr::new(*addr, host.port))]);
        }
        _ => host.label(),
    };
    let hint = "Check the spelling of the host name, and that this machine can resolve it.";
    let lookup = async {
        tokio::net::lookup_host((name.as_str(), host.port)).await.map_err(|error| {
            let reason = format!(
                "could not translate host name to address: {}",
                failure::os_error_text(&error)
            );
            ConnectFailure::new(FailureCause::Unreachable, reason, hint)
        })
    };
    let mut found = Vec::new();
    for address in with_time_limit(dsn.connect_limit(), dsn, lookup).await?.map(SocketTarget::Tcp) {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    if found.is_empty() {
        return Err(ConnectFailure::new(
            FailureCause::Unreachable,
            "the host name has no address",
            hint,
        ));
    }
    Ok(found)
}

/// Returns the host with this address in place of its own addresses.
pub(super) fn at_address(host: &Host, address: &SocketTarget) -> Host {
    let mut host = host.clone();
    if let (Endpoint::Tcp { addr, .. }, SocketTarget::Tcp(address)) = (&mut host.endpoint, address)
    {
        *addr = Some(address.ip());
    }
    host
}

/// Tries one address with each kind of encryption that `sslmode` allows. The outer error is a
/// failure of the server. The inner error is a problem with certificate files.
pub(super) async fn attempt(
    dsn: &Dsn,
    host: &Host,
    route: &SocketRoute,
    application_name: &str,
) -> Result<Result<Connection>, ConnectFailure> {
    let (first, second) = encryption_steps(dsn, host)?;
    let mut config = config(dsn, host, application_name);
    let failure = match try_encryption_step(dsn, host, route, &mut config, first).await {
        Ok(connected) => return Ok(connected),
        Err(failure) => failure,
    };
    let Some(second) = second.filter(|_| failure.may_depend_on_encryption()) else {
        return Err(failure);
    };
    match try_encryption_step(dsn, host, route, &mut config, second).await {
        Ok(connected) => Ok(connected),
        Err(second_failure) => Err(combine_attempts(failure, second_failure, second)),
    }
}

/// Returns the kinds of encryption to try: the first, and the second if the first fails.
fn encryption_steps(
    dsn: &Dsn,
    host: &Host,
) -> Result<(EncryptionStep, Option<EncryptionStep>), ConnectFailure> {
    let is_socket = matches!(host.endpoint, Endpoint::Socket { .. });
    let mode = if is_socket { TlsMode::Disable } else { dsn.tls.mode };
    let has_no_name = matches!(host.endpoint, Endpoint::Tcp { name: None, .. });
    if mode == TlsMode::VerifyFull && has_no_name {
        let reason = "sslmode=verify-full needs a host name, and only hostaddr is given";
        let hint = "Give the name that the server's certificate is for with host=.";
        return Err(ConnectFailure::new(FailureCause::Settings, reason, hint));
    }
    let must_bind = dsn.channel_binding == ChannelBinding::Require;
    match mode {
        TlsMode::Disable if must_bind => Err(failure::no_channel_binding()),
        TlsMode::Disable => Ok((EncryptionStep::Plain, None)),
        TlsMode::Allow | TlsMode::Prefer if must_bind => Ok((EncryptionStep::TlsRequired, None)),
        TlsMode::Allow => Ok((EncryptionStep::Plain, Some(EncryptionStep::TlsRequired))),
        TlsMode::Prefer => Ok((EncryptionStep::TlsIfOffered, Some(EncryptionStep::Plain))),
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => {
            Ok((EncryptionStep::TlsRequired, None))
        }
    }
}

/// Tries one address with one kind of encryption.
async fn try_encryption_step(
    dsn: &Dsn,
    host: &Host,
    route: &SocketRoute,
    config: &mut Config,
    step: EncryptionStep,
) -> Result<Result<Connection>, ConnectFailure> {
    config.ssl_mode(match step {
        EncryptionStep::Plain => SslMode::Disable,
        EncryptionStep::TlsIfOffered => SslMode::Prefer,
        EncryptionStep::TlsRequired => SslMode::Require,
    });
    let tls = match (step != EncryptionStep::Plain).then(|| tls_setup(dsn)).transpose() {
        Ok(tls) => tls,
        Err(error) => return Ok(Err(error)),
    };
    let traffic = ConnectionTraffic::default();
    let socket = route.open().await.map_err(|error| failure::socket_failure(&error, host, dsn))?;
    let socket = socket.tapped(&traffic);
    let server = (host, route, &traffic);
    let guard = || StallGuard::start(dsn, host, route, &traffic);
    let connected = if let Some(tls) = tls {
        let tls = tls.connector(&host.label())?;
        let opened = config.connect_raw(socket, tls.clone()).await;
        opened.map(|(client, driver)| Connection::start(client, driver, Some(tls), server, guard()))
    } else {
        let opened = config.connect_raw(socket, NoTls).await;
        opened.map(|(client, driver)| Connection::start(client, driver, None, server, guard()))
    };
    connected.map(Ok).map_err(|error| ConnectFailure::from_driver(&error, host, dsn))
}

/// Returns the TLS setup that all connections share, or a new one if lists of revoked certificates
/// are used.
fn tls_setup(dsn: &Dsn) -> Result<TlsSetup> {
    // Lists of revoked certificates change often, so they are read for each connection.
    if dsn.tls.revocation_lists.is_some() {
        return TlsSetup::new(&dsn.tls);
    }
    if let Some(tls) = dsn.shared_tls.get() {
        return Ok(tls.clone());
    }
    let tls = TlsSetup::new(&dsn.tls)?;
    Ok(dsn.shared_tls.get_or_init(|| tls).clone())
}

/// Returns one failure for two attempts at the same address.
fn combine_attempts(
    first: ConnectFailure,
    second: ConnectFailure,
    second_step: EncryptionStep,
) -> ConnectFailure {
    if first.reason == second.reason {
        return first;
    }
    let (one, other) = match second_step {
        EncryptionStep::Plain => ("with TLS", "without TLS"),
        _ => ("without TLS", "with TLS"),
    };
    let reason = format!("{one}: {}; {other}: {}", first.reason, second.reason);
    // A refusal because encryption is missing is less useful than the error of the encrypted
    // attempt.
    let may_keep_first =
        second.cause != FailureCause::Refused || first.cause == FailureCause::Refused;
    let kept = if second_step == EncryptionStep::Plain && may_keep_first { first } else { second };
    ConnectFailure { reason, ..kept }
}

fn config(dsn: &Dsn, host: &Host, application_name: &str) -> Config {
    let mut config = Config::new();
    config
        .user(&dsn.user)
        .dbname(&dsn.dbname)
        .application_name(dsn.application_name(application_name))
        .channel_binding(dsn.channel_binding);
    if dsn.tls.direct {
        config.ssl_negotiation(SslNegotiation::Direct);
    }
    if let Some(password) = &host.password {
        config.password(password.expose());
    }
    if let Some(options) = &dsn.options {
        config.options(options);
    }
    config
}

/// Returns the connection and the answer to `query`, if the session has the type that
/// `target_session_attrs` requires.
async fn check_session_attrs<Q: SessionQuery>(
    mut connection: Connection,
    dsn: &Dsn,
    host: &Host,
    wanted: SessionAttrs,
    query: &Q,
) -> Result<(Connection, Q::Answer), ConnectFailure> {
    let (identified, answer) = connection.identify(query).await;
    let SessionIdentity { standby, read_only, .. } = match identified {
        Ok(identity) => identity,
        // Some servers that are compatible with PostgreSQL lack the functions of the identity
        // query. After any other error, such as a cancelled query, the search path may not be
        // pinned.
        Err(error)
            if error.code().is_some_and(is_unknown_function) && wanted == SessionAttrs::Any =>
        {
            return Ok((connection, answer));
        }
        Err(error) => return Err(ConnectFailure::from_driver(&error, host, dsn)),
    };
    let mismatch = match wanted {
        SessionAttrs::ReadWrite if read_only => "session is read-only",
        SessionAttrs::ReadOnly if !read_only => "session is not read-only",
        SessionAttrs::Primary if standby => "server is in hot standby mode",
        SessionAttrs::Standby if !standby => "server is not in hot standby mode",
        _ => return Ok((connection, answer)),
    };
    connection.close().await;
    let hint = "The parameter target_session_attrs= sets which type of session is accepted.";
    Err(ConnectFailure::new(FailureCause::WrongSessionType, mismatch, hint))
}

/// Returns whether the server does not know a function or its syntax.
fn is_unknown_function(code: &SqlState) -> bool {
    ["0A", "3F", "42"].iter().any(|class| code.code().starts_with(class))
}

/// Returns `items` in their order, or in random order if `shuffle`.
fn shuffled_if<T>(mut items: Vec<T>, shuffle: bool) -> Vec<T> {
    if shuffle {
        for last in (1..items.len()).rev() {
            // Each `RandomState` has new random keys, which is random enough to spread load.
            let random = RandomState::new().hash_one(last) as usize;
            items.swap(last, random % (last + 1));
        }
    }
    items
}

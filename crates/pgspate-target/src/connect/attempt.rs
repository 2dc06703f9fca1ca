//! Trying servers, addresses and kinds of encryption in libpq's order until one will do.
//!
//! Every attempt that fails leaves a [`Failure`]; an attempt is never left half open.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, Config, SslMode, SslNegotiation};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::NoTls;

use super::Question;
use super::connection::{Connection, Standing};
use super::dsn::{Dsn, SessionAttrs};
use super::failure::{self, Failure, Why};
use super::guard::StallGuard;
use super::host::{Endpoint, Host};
use super::pooler;
use super::socket::{Address, Route};
use super::tap::Traffic;
use super::tls::Tls;
use super::tls_settings::Mode;
use crate::{Error, ErrorKind, Result};

/// What one attempt does about encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Plain,
    /// TLS where the server has it.
    Offered,
    Encrypted,
}

/// What ended the search for a server.
enum End {
    Failed(Vec<Failure>),
    /// A certificate file could not be used: no server is to blame.
    Broken(crate::Error),
}

/// Connects to the first server that will do, and asks it.
pub(super) async fn connect<Q: Question>(
    dsn: &Dsn,
    application_name: &str,
    asked: &Q,
) -> Result<(Connection, Q::Answer)> {
    let wanted: &[SessionAttrs] = match dsn.session {
        SessionAttrs::PreferStandby => &[SessionAttrs::Standby, SessionAttrs::Any],
        ref one => std::slice::from_ref(one),
    };
    let mut failures = Vec::new();
    for &wanted in wanted {
        match search(dsn, application_name, wanted, asked).await {
            Ok(connected) => return Ok(connected),
            Err(End::Broken(error)) => return Err(error),
            Err(End::Failed(found)) => failures = found,
        }
    }
    Err(failure::combine(failures))
}

async fn search<Q: Question>(
    dsn: &Dsn,
    application_name: &str,
    wanted: SessionAttrs,
    asked: &Q,
) -> Result<(Connection, Q::Answer), End> {
    let mut failures = Vec::new();
    for host in in_order(dsn.hosts.clone(), dsn.shuffle) {
        let addresses = match addresses(&host, dsn).await {
            Ok(addresses) => in_order(addresses, dsn.shuffle),
            Err(failure) => {
                failures.push(Failure { place: host.to_string(), ..failure });
                continue;
            }
        };
        for address in addresses {
            let target = at_address(&host, &address);
            let route = Route { address, timeouts: dsn.timeouts.clone() };
            let tried = async {
                let opening = attempt(dsn, &target, &route, application_name);
                match within(dsn.silence_max(), dsn, opening).await? {
                    Ok(connection) => {
                        suitable(connection, dsn, &target, wanted, asked).await.map(Ok)
                    }
                    Err(error) => Ok(Err(error)),
                }
            };
            let failure = match within(dsn.timeouts.connect, dsn, tried).await {
                Ok(Ok((connection, _))) if connection.is_too_old() => {
                    return Err(End::Broken(too_old(&connection)));
                }
                Ok(Ok((connection, answer))) if !connection.is_pooled() => {
                    return Ok((connection, answer));
                }
                Ok(Ok((connection, _))) => {
                    let fit = refuse_pooler(dsn, &target, &route, &connection).await;
                    fit.map_err(End::Broken)?;
                    let asked = connection.pin_behind_pooler(asked).await;
                    return asked.map(|answer| (connection, answer)).map_err(End::Broken);
                }
                Ok(Err(error)) => return Err(End::Broken(error)),
                Err(failure) => Failure { place: target.to_string(), ..failure },
            };
            let is_final = failure.is_final();
            failures.push(failure);
            if is_final {
                return Err(End::Failed(failures));
            }
        }
    }
    Err(End::Failed(failures))
}

/// The refusal of a server whose answers nobody has tried.
fn too_old(connection: &Connection) -> Error {
    let version = connection.parameter("server_version").unwrap_or_default();
    let message = format!("{} runs PostgreSQL {version}", connection.place());
    Error::new(ErrorKind::Server, message).hint("pgspate needs PostgreSQL 13 or newer.")
}

/// Refuses a pooler that gives every transaction another session. A pooler is tried out once for
/// all connections.
async fn refuse_pooler(
    dsn: &Dsn,
    host: &Host,
    route: &Route,
    connection: &Connection,
) -> Result<()> {
    if dsn.is_pooler_fit.get().is_some() {
        return Ok(());
    }
    let another = async || attempt(dsn, host, route, "pgspate").await.ok()?.ok();
    if pooler::shares_backends(connection, another).await {
        return Err(pooler::refusal(connection.place()));
    }
    let _ = dsn.is_pooler_fit.set(());
    Ok(())
}

/// What `work` gives, or a failure when it takes longer than `limit`.
async fn within<T>(
    limit: Option<Duration>,
    dsn: &Dsn,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match limit {
        None => work.await,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => Err(failure::timed_out(dsn)),
        },
    }
}

/// The addresses of a host.
async fn addresses(host: &Host, dsn: &Dsn) -> Result<Vec<Address>, Failure> {
    let name = match (&host.endpoint, host.socket_path()) {
        (_, Some(path)) => return Ok(vec![Address::Unix(path)]),
        (Endpoint::Tcp { addr: Some(addr), .. }, _) => {
            return Ok(vec![Address::Tcp(SocketAddr::new(*addr, host.port))]);
        }
        _ => host.label(),
    };
    let hint = "Check the spelling of the host name, and that this machine can resolve it.";
    let lookup = async {
        tokio::net::lookup_host((name.as_str(), host.port)).await.map_err(|error| {
            let reason =
                format!("could not translate host name to address: {}", failure::os_words(&error));
            Failure::new(Why::Absent, reason, hint)
        })
    };
    let mut found = Vec::new();
    for address in within(dsn.silence_max(), dsn, lookup).await?.map(Address::Tcp) {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    if found.is_empty() {
        return Err(Failure::new(Why::Absent, "the host name has no address", hint));
    }
    Ok(found)
}

pub(super) fn at_address(host: &Host, address: &Address) -> Host {
    let mut host = host.clone();
    if let (Endpoint::Tcp { addr, .. }, Address::Tcp(address)) = (&mut host.endpoint, address) {
        *addr = Some(address.ip());
    }
    host
}

/// Tries one address with each kind of encryption that `sslmode` allows there. The outer result is
/// the server's fault, the inner one that of the certificate files.
pub(super) async fn attempt(
    dsn: &Dsn,
    host: &Host,
    route: &Route,
    application_name: &str,
) -> Result<Result<Connection>, Failure> {
    let (first, second) = steps(dsn, host)?;
    let mut config = config(dsn, host, application_name);
    let failure = match try_step(dsn, host, route, &mut config, first).await {
        Ok(connected) => return Ok(connected),
        Err(failure) => failure,
    };
    let Some(second) = second.filter(|_| failure.may_depend_on_encryption()) else {
        return Err(failure);
    };
    match try_step(dsn, host, route, &mut config, second).await {
        Ok(connected) => Ok(connected),
        Err(again) => Err(both(failure, again, second)),
    }
}

/// The kinds of encryption to try: one, and where that fails perhaps another.
fn steps(dsn: &Dsn, host: &Host) -> Result<(Step, Option<Step>), Failure> {
    let is_socket = matches!(host.endpoint, Endpoint::Socket { .. });
    let mode = if is_socket { Mode::Disable } else { dsn.tls.mode };
    let nameless = matches!(host.endpoint, Endpoint::Tcp { name: None, .. });
    if mode == Mode::VerifyFull && nameless {
        let reason = "sslmode=verify-full needs a host name, and only hostaddr is given";
        let hint = "Give the name that the server's certificate is for with host=.";
        return Err(Failure::new(Why::Settings, reason, hint));
    }
    let binding = dsn.channel_binding == ChannelBinding::Require;
    match mode {
        Mode::Disable if binding => Err(failure::no_channel_binding()),
        Mode::Disable => Ok((Step::Plain, None)),
        Mode::Allow | Mode::Prefer if binding => Ok((Step::Encrypted, None)),
        Mode::Allow => Ok((Step::Plain, Some(Step::Encrypted))),
        Mode::Prefer => Ok((Step::Offered, Some(Step::Plain))),
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => Ok((Step::Encrypted, None)),
    }
}

async fn try_step(
    dsn: &Dsn,
    host: &Host,
    route: &Route,
    config: &mut Config,
    step: Step,
) -> Result<Result<Connection>, Failure> {
    config.ssl_mode(match step {
        Step::Plain => SslMode::Disable,
        Step::Offered => SslMode::Prefer,
        Step::Encrypted => SslMode::Require,
    });
    let tls = match (step != Step::Plain).then(|| tls(dsn)).transpose() {
        Ok(tls) => tls,
        Err(error) => return Ok(Err(error)),
    };
    let traffic = Traffic::default();
    let socket = route.open().await.map_err(|error| failure::absent(&error, host, dsn))?;
    let socket = socket.tapped(&traffic);
    let way = (host, route, &traffic);
    let guard = || StallGuard::start(dsn, host, route, &traffic);
    let made = if let Some(tls) = tls {
        let tls = tls.connector(&host.label())?;
        let made = config.connect_raw(socket, tls.clone()).await;
        made.map(|(client, driver)| Connection::start(client, driver, Some(tls), way, guard()))
    } else {
        let made = config.connect_raw(socket, NoTls).await;
        made.map(|(client, driver)| Connection::start(client, driver, None, way, guard()))
    };
    made.map(Ok).map_err(|error| Failure::from_driver(&error, host, dsn))
}

fn tls(dsn: &Dsn) -> Result<Tls> {
    // A list of revoked certificates is soon out of date, and is read for each connection.
    if dsn.tls.lists.is_some() {
        return Tls::new(&dsn.tls);
    }
    if let Some(tls) = dsn.connector.get() {
        return Ok(tls.clone());
    }
    let tls = Tls::new(&dsn.tls)?;
    Ok(dsn.connector.get_or_init(|| tls).clone())
}

/// One failure of two attempts at the same address.
fn both(first: Failure, second: Failure, second_step: Step) -> Failure {
    if first.reason == second.reason {
        return first;
    }
    let (one, other) = match second_step {
        Step::Plain => ("with TLS", "without"),
        _ => ("without TLS", "with"),
    };
    let reason = format!("{one}: {}; {other}: {}", first.reason, second.reason);
    // A refusal for want of encryption says less than what encryption ran into.
    let keeps_first = second.why != Why::Refused || first.why == Why::Refused;
    let told = if second_step == Step::Plain && keeps_first { first } else { second };
    Failure { reason, ..told }
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

/// The connection, if its server is of the kind that `target_session_attrs` asks for, and the
/// answer to what is `asked`.
async fn suitable<Q: Question>(
    mut connection: Connection,
    dsn: &Dsn,
    host: &Host,
    wanted: SessionAttrs,
    asked: &Q,
) -> Result<(Connection, Q::Answer), Failure> {
    let (identified, answer) = connection.identify(asked).await;
    let Standing { standby, read_only, .. } = match identified {
        Ok(standing) => standing,
        // Not every server that speaks the protocol knows these functions. After another error, as
        // of a question that somebody has cancelled, the search path is not known to be pinned.
        Err(error)
            if error.code().is_some_and(is_unknown_function) && wanted == SessionAttrs::Any =>
        {
            return Ok((connection, answer));
        }
        Err(error) => return Err(Failure::from_driver(&error, host, dsn)),
    };
    let complaint = match wanted {
        SessionAttrs::ReadWrite if read_only => "session is read-only",
        SessionAttrs::ReadOnly if !read_only => "session is not read-only",
        SessionAttrs::Primary if standby => "server is in hot standby mode",
        SessionAttrs::Standby if !standby => "server is not in hot standby mode",
        _ => return Ok((connection, answer)),
    };
    connection.close().await;
    let hint = "The parameter target_session_attrs= says which of the servers will do.";
    Err(Failure::new(Why::Unsuitable, complaint, hint))
}

/// The server does not know a function, or how it is called.
fn is_unknown_function(code: &SqlState) -> bool {
    ["0A", "3F", "42"].iter().any(|class| code.code().starts_with(class))
}

/// `items` as they are, or in an order of chance.
fn in_order<T>(mut items: Vec<T>, shuffle: bool) -> Vec<T> {
    if shuffle {
        for last in (1..items.len()).rev() {
            // Each hasher of the standard library is keyed anew: chance enough to spread load.
            let chance = RandomState::new().hash_one(last) as usize;
            items.swap(last, chance % (last + 1));
        }
    }
    items
}

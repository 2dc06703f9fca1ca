//! Connection parameters, resolved and checked: servers, user, database, encryption, timeouts.
//!
//! Every parameter of a `Dsn` has a valid value. Neither `Display` nor `Debug` shows a password.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_postgres::config::ChannelBinding;
use tokio_postgres::error::SqlState;

use super::connection::Connection;
use super::environment::Environment;
use super::host::{self, Endpoint, Host};
use super::lock_watch::WatchedSessions;
use super::parameters::ConnectionParameters;
use super::passfile::{self, PasswordLookup};
use super::tls::TlsSetup;
use super::tls_settings::TlsSettings;
use super::uri;
use crate::{Error, ErrorKind, Result};
use pgspate_base::Secret;

/// Where and how to connect: what libpq would do with the same connection string and environment.
#[derive(Clone)]
pub struct Dsn {
    settings: ConnectionParameters,
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) dbname: String,
    pub(super) passwords: PasswordSource,
    pub(super) tls: TlsSettings,
    /// The TLS setup, read from files once and shared by all connections.
    pub(super) shared_tls: Arc<OnceLock<TlsSetup>>,
    /// Set once a test has shown that the pooler keeps a backend for each session.
    pub(super) pooler_is_usable: Arc<OnceLock<()>>,
    pub(super) channel_binding: ChannelBinding,
    pub(super) session: SessionAttrs,
    /// Whether hosts and addresses are tried in random order (`load_balance_hosts`).
    pub(super) shuffle: bool,
    pub(super) timeouts: SocketTimeouts,
    /// `None` for sessions that no guard watches.
    pub(super) stall_timeout: Option<Duration>,
    pub(super) options: Option<String>,
    /// The list to which sessions are added that are opened with these parameters.
    watched_sessions: Option<WatchedSessions>,
    warnings: Vec<String>,
}

/// The accepted type of session (`target_session_attrs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

/// How long to wait for a silent server. `None`: the operating system's default.
#[derive(Debug, Clone, Default)]
pub(super) struct SocketTimeouts {
    pub(super) connect: Option<Duration>,
    pub(super) tcp_user: Option<Duration>,
    pub(super) keepalives: bool,
    pub(super) keepalives_idle: Option<Duration>,
    pub(super) keepalives_interval: Option<Duration>,
    pub(super) keepalives_count: Option<u32>,
}

/// The default of `keepalives_idle`, in seconds. With the defaults of all three parameters, a lost
/// server is noticed after one minute of silence. Linux's own defaults need two hours and eleven
/// minutes.
const KEEPALIVES_IDLE: u32 = 30;
/// The default of `keepalives_interval`, in seconds.
const KEEPALIVES_INTERVAL: u32 = 10;
/// The default of `keepalives_count`.
const KEEPALIVES_COUNT: u32 = 3;

/// How long a connection may be silent while the server does nothing.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Where passwords came from, in words for hints.
#[derive(Debug, Clone)]
pub(super) enum PasswordSource {
    /// A connection parameter. The text names its origin: `environment variable PGPASSWORD`.
    Given(String),
    /// This password file.
    File(PathBuf),
    /// No password was found. The text completes "the password file ...".
    Missing(String),
}

impl Dsn {
    /// Resolves parameters from `arg` (a URL or `key=value` pairs), a service file and the
    /// environment. Returns `None` if `arg` is `None` and no variable names a server (`PGHOST`,
    /// `PGHOSTADDR`, `PGPORT`, `PGDATABASE`, `PGUSER`, `PGSERVICE`).
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a parameter is unknown, invalid or not supported.
    pub fn resolve(arg: Option<&str>, env: &Environment) -> Result<Option<Dsn>> {
        if arg.is_none() && !env.names_a_server() {
            return Ok(None);
        }
        let settings = ConnectionParameters::gather(arg, env)?;
        let mut warnings = Vec::new();
        let user = match settings.get("user").or(env.user.as_deref()) {
            Some(user) => user.to_owned(),
            None => {
                return Err(Error::new(
                    ErrorKind::Usage,
                    "no user name was given, and the operating system user has no name",
                )
                .hint("Name the role with user= or PGUSER."));
            }
        };
        let dbname = settings.get("dbname").unwrap_or(&user).to_owned();
        let mut hosts = host::list(&settings, env)?;
        let passwords = find_passwords(&settings, env, &mut hosts, &dbname, &user, &mut warnings);
        let tls = TlsSettings::new(&settings, env, &hosts, &mut warnings)?;
        Ok(Some(Dsn {
            channel_binding: settings
                .choice(
                    "channel_binding",
                    &[
                        ("disable", ChannelBinding::Disable),
                        ("prefer", ChannelBinding::Prefer),
                        ("require", ChannelBinding::Require),
                    ],
                )?
                .unwrap_or(ChannelBinding::Prefer),
            session: session_attrs(&settings)?,
            shuffle: settings
                .choice("load_balance_hosts", &[("disable", false), ("random", true)])?
                .unwrap_or(false),
            timeouts: timeouts(&settings)?,
            stall_timeout: Some(STALL_TIMEOUT),
            options: options(&settings, env),
            watched_sessions: None,
            shared_tls: Arc::default(),
            pooler_is_usable: Arc::default(),
            settings,
            hosts,
            user,
            dbname,
            passwords,
            tls,
            warnings,
        }))
    }

    /// Returns the role to connect as.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the database to connect to.
    pub fn dbname(&self) -> &str {
        &self.dbname
    }

    /// Returns whether a password is known for any of the servers.
    pub fn has_password(&self) -> bool {
        self.hosts.iter().any(|host| host.password.is_some())
    }

    /// Returns whether [`Dsn::connect`] failed because the server asks for a password, and none is
    /// known.
    pub fn is_password_missing(&self, error: &Error) -> bool {
        !self.has_password() && error.sqlstate() == Some(&SqlState::INVALID_PASSWORD)
    }

    /// Returns these parameters with a password for all servers. `origin` says in words where the
    /// password came from.
    #[must_use]
    pub fn with_password(&self, password: String, origin: &str) -> Dsn {
        let mut dsn = self.clone();
        let password = Secret::new(password);
        dsn.hosts.iter_mut().for_each(|host| host.password = Some(password.clone()));
        dsn.passwords = PasswordSource::Given(origin.to_owned());
        dsn
    }

    /// Returns these parameters for another server of the same cluster. The role, the database and
    /// the encryption stay. A password from a password file is looked up for the new host.
    #[must_use]
    pub fn with_host(&self, name: &str, port: u16) -> Dsn {
        let mut dsn = self.clone();
        let addr = name.parse().ok();
        let mut host = Host {
            endpoint: Endpoint::Tcp { name: Some(name.to_owned()), addr },
            port,
            password: self.hosts.first().and_then(|host| host.password.clone()),
        };
        if let PasswordSource::File(path) = &self.passwords {
            host.password = match passfile::look_up(path, name, port, &self.dbname, &self.user) {
                PasswordLookup::Found(password) => Some(password),
                _ => None,
            };
        }
        dsn.hosts = vec![host];
        dsn.pooler_is_usable = Arc::default();
        dsn.watched_sessions = None;
        dsn
    }

    /// Returns these parameters with a limit for connecting, unless a shorter one is set.
    #[must_use]
    pub fn with_connect_limit(&self, limit: Duration) -> Dsn {
        let mut dsn = self.clone();
        dsn.timeouts.connect = Some(limit.min(dsn.timeouts.connect.unwrap_or(limit)));
        dsn
    }

    /// Returns these parameters with another limit for silent connections; the default is 60
    /// seconds. A working server may take longer.
    #[must_use]
    pub fn with_stall_timeout(&self, limit: Duration) -> Dsn {
        Dsn { stall_timeout: Some(limit), ..self.clone() }
    }

    /// Returns these parameters for sessions that no guard watches.
    pub(super) fn without_stall_guard(&self) -> Dsn {
        Dsn { stall_timeout: None, ..self.clone() }
    }

    /// Returns these parameters for sessions that are added to a list.
    pub(super) fn watched_by(&self, sessions: WatchedSessions) -> Dsn {
        Dsn { watched_sessions: Some(sessions), ..self.clone() }
    }

    /// Adds an open session to the list of watched sessions, if these parameters have one.
    pub(super) fn note_session(&self, connection: &Connection) {
        if let Some(sessions) = &self.watched_sessions {
            let (pid, server) = (connection.backend_pid(), connection.server_address());
            sessions.add(pid, server, connection.traffic());
        }
    }

    /// Returns how long opening a session may take.
    pub(super) fn connect_limit(&self) -> Option<Duration> {
        self.timeouts.connect.or(self.stall_timeout)
    }

    /// Returns the requested `client_encoding`: the default encoding of input files. The session
    /// itself always uses UTF-8. `None` if unset or `auto`.
    pub fn client_encoding(&self) -> Option<&str> {
        self.settings.get("client_encoding").filter(|encoding| *encoding != "auto")
    }

    /// Returns warnings, one sentence each: about an unused password file, or a missing certificate
    /// file.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns a shell command that opens the same database in psql, without the password.
    pub fn psql_command(&self) -> String {
        let mut params = Vec::new();
        for (name, value) in self.settings.public() {
            if !matches!(name, "host" | "port" | "user" | "dbname" | "service" | "servicefile") {
                params.push(format!("{name}={}", uri::encode(value)));
            }
        }
        let mut url = self.url(true, "");
        if !params.is_empty() {
            url = format!("{url}?{}", params.join("&"));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%,=+".contains(c);
        if url.chars().all(is_plain) { format!("psql {url}") } else { format!("psql '{url}'") }
    }

    /// Returns the `application_name`, or `fallback` if none was set.
    pub fn application_name<'a>(&'a self, fallback: &'a str) -> &'a str {
        let own = self.settings.get("application_name");
        own.or_else(|| self.settings.get("fallback_application_name")).unwrap_or(fallback)
    }

    /// Returns these parameters with this `application_name` in place of any other.
    #[must_use]
    pub fn with_application_name(&self, name: &str) -> Dsn {
        let mut dsn = self.clone();
        dsn.settings.set("application_name", name.to_owned());
        dsn
    }

    fn url(&self, all_ports: bool, password: &str) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(|host| url_host(host, all_ports)).collect();
        let user = uri::encode(&self.user);
        format!("postgres://{user}{password}@{}/{}", hosts.join(","), uri::encode(&self.dbname))
    }
}

fn url_host(host: &Host, all_ports: bool) -> String {
    let label = host.label();
    let label = match label.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{label}]"),
        Err(_) => uri::encode(&label.replace('\0', "@")),
    };
    let port = Some(host.port).filter(|port| all_ports || *port != 5432);
    label + &port.map(|port| format!(":{port}")).unwrap_or_default()
}

fn session_attrs(settings: &ConnectionParameters) -> Result<SessionAttrs> {
    let words = [
        ("any", SessionAttrs::Any),
        ("read-write", SessionAttrs::ReadWrite),
        ("read-only", SessionAttrs::ReadOnly),
        ("primary", SessionAttrs::Primary),
        ("standby", SessionAttrs::Standby),
        ("prefer-standby", SessionAttrs::PreferStandby),
    ];
    Ok(settings.choice("target_session_attrs", &words)?.unwrap_or(SessionAttrs::Any))
}

fn timeouts(settings: &ConnectionParameters) -> Result<SocketTimeouts> {
    // Zero selects the operating system's default. An unset parameter selects pgspate's default.
    let number_or = |name, default| match settings.get(name) {
        None => Ok(Some(default)),
        Some(_) => settings.number(name),
    };
    let seconds = |n: u32| Duration::from_secs(n.into());
    Ok(SocketTimeouts {
        connect: settings.number("connect_timeout")?.map(seconds),
        // pgspate sets no default: Linux also counts the time in which a working server reads
        // nothing. A COPY may wait long for another session's lock.
        tcp_user: settings.number("tcp_user_timeout")?.map(|n| Duration::from_millis(n.into())),
        keepalives: settings.switch("keepalives", true)?,
        keepalives_idle: number_or("keepalives_idle", KEEPALIVES_IDLE)?.map(seconds),
        keepalives_interval: number_or("keepalives_interval", KEEPALIVES_INTERVAL)?.map(seconds),
        keepalives_count: number_or("keepalives_count", KEEPALIVES_COUNT)?,
    })
}

/// Returns the session's options: the requested options, then the options that libpq sends for
/// variables like `PGTZ`. Later options win, as in libpq.
fn options(settings: &ConnectionParameters, env: &Environment) -> Option<String> {
    let mut options: Vec<String> = settings.get("options").map(str::to_owned).into_iter().collect();
    for (variable, parameter) in
        [("PGDATESTYLE", "datestyle"), ("PGTZ", "timezone"), ("PGGEQO", "geqo")]
    {
        let value = env.variable(variable).filter(|value| !value.eq_ignore_ascii_case("default"));
        if let Some(value) = value {
            // The server splits options at white space; a backslash keeps a character literal.
            let mut escaped = String::new();
            for c in value.chars() {
                if c.is_ascii_whitespace() || c == '\\' {
                    escaped.push('\\');
                }
                escaped.push(c);
            }
            options.push(format!("-c {parameter}={escaped}"));
        }
    }
    Some(options.join(" ")).filter(|options| !options.is_empty())
}

/// Sets each host's password, and returns where the passwords came from.
fn find_passwords(
    settings: &ConnectionParameters,
    env: &Environment,
    hosts: &mut [Host],
    dbname: &str,
    user: &str,
    warnings: &mut Vec<String>,
) -> PasswordSource {
    if let (Some(password), Some(origin)) = (settings.get("password"), settings.origin("password"))
    {
        for host in hosts {
            host.password = Some(Secret::new(password));
        }
        return PasswordSource::Given(origin.to_string());
    }
    let path = settings.get("passfile").map(PathBuf::from);
    let Some(path) = path.or_else(|| env.home.as_ref().map(|home| home.join(".pgpass"))) else {
        return PasswordSource::Missing("is unknown, because there is no home folder".to_owned());
    };
    let shown = path.display().to_string();
    let mut why_missing = format!("\"{shown}\" does not exist");
    let mut is_found = false;
    for host in hosts.iter_mut() {
        let label = host.passfile_label(env);
        match passfile::look_up(&path, &label, host.port, dbname, user) {
            PasswordLookup::Found(password) => {
                host.password = Some(password);
                is_found = true;
            }
            PasswordLookup::NoLine => {
                let port = host.port;
                why_missing = format!("\"{shown}\" has no line for {label}:{port}:{dbname}:{user}");
            }
            PasswordLookup::NoFile => {}
            PasswordLookup::Ignored(why) => {
                why_missing = format!("\"{shown}\" {why}");
                warnings.push(format!("The password file \"{shown}\" was not used: it {why}."));
                break;
            }
        }
    }
    if is_found { PasswordSource::File(path) } else { PasswordSource::Missing(why_missing) }
}

/// Formats as `postgres://user:***@host/db`. The stars stand for a password of any origin.
impl fmt::Display for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url(false, if self.has_password() { ":***" } else { "" }))
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dsn")
            .field("url", &self.to_string())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

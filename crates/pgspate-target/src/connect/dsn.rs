//! A connection's parameters, resolved and checked: which servers, who, which database, how.
//!
//! Once a `Dsn` exists every parameter has a valid value. Neither its `Display` nor its `Debug`
//! shows a password.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_postgres::config::ChannelBinding;

use super::environment::Environment;
use super::host::{self, Host};
use super::passfile::{self, Lookup};
use super::settings::Settings;
use super::tls::Tls;
use super::tls_settings::TlsSettings;
use super::uri;
use crate::{Error, ErrorKind, Result};
use pgspate_base::Secret;

/// Where to connect and how: what libpq would make of the same words and surroundings.
#[derive(Clone)]
pub struct Dsn {
    settings: Settings,
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) dbname: String,
    pub(super) passwords: PasswordSource,
    pub(super) tls: TlsSettings,
    /// TLS as the files say, read once and shared by all connections.
    pub(super) connector: Arc<OnceLock<Tls>>,
    /// Whether the pooler that was met, if one was, was seen to leave each session its backend.
    pub(super) is_pooler_fit: Arc<OnceLock<()>>,
    pub(super) channel_binding: ChannelBinding,
    pub(super) session: SessionAttrs,
    pub(super) shuffle: bool,
    pub(super) timeouts: Timeouts,
    /// `None` for sessions that nobody watches.
    pub(super) stall_timeout: Option<Duration>,
    pub(super) options: Option<String>,
    warnings: Vec<String>,
}

/// Which of the servers will do (`target_session_attrs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

/// How long to wait for a server that says nothing. None: as the operating system does.
#[derive(Debug, Clone, Default)]
pub(super) struct Timeouts {
    pub(super) connect: Option<Duration>,
    pub(super) tcp_user: Option<Duration>,
    pub(super) keepalives: bool,
    pub(super) keepalives_idle: Option<Duration>,
    pub(super) keepalives_interval: Option<Duration>,
    pub(super) keepalives_count: Option<u32>,
}

/// Where the parameters say nothing: a peer that is gone is noticed after a minute of silence, not
/// after the two hours and eleven minutes of Linux. In seconds, seconds and probes.
const KEEPALIVES_IDLE: u32 = 30;
const KEEPALIVES_INTERVAL: u32 = 10;
const KEEPALIVES_COUNT: u32 = 3;

/// How long a connection may be silent while the server does nothing.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Where passwords came from, in words for hints.
#[derive(Debug, Clone)]
pub(super) enum PasswordSource {
    /// Given, and by what: `environment variable PGPASSWORD`.
    Given(String),
    /// Looked up in a file.
    File(PathBuf),
    /// No password; completes "and the password file ...".
    Missing(String),
}

impl Dsn {
    /// The parameters that `arg` (a URL or `key=value` pairs), a service and the environment give
    /// together. None when `arg` is none and no variable names a server (`PGHOST`, `PGHOSTADDR`,
    /// `PGPORT`, `PGDATABASE`, `PGUSER`, `PGSERVICE`). Errors are of [`ErrorKind::Usage`].
    pub fn resolve(arg: Option<&str>, env: &Environment) -> Result<Option<Dsn>> {
        if arg.is_none() && !env.names_a_server() {
            return Ok(None);
        }
        let settings = Settings::gather(arg, env)?;
        let mut warnings = Vec::new();
        let user = match settings.get("user").or(env.user.as_deref()) {
            Some(user) => user.to_owned(),
            None => {
                return Err(Error::new(
                    ErrorKind::Usage,
                    "no user name is given, and the operating \
                                                    system's user has none",
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
            connector: Arc::default(),
            is_pooler_fit: Arc::default(),
            settings,
            hosts,
            user,
            dbname,
            passwords,
            tls,
            warnings,
        }))
    }

    /// The role to connect as.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database to connect to.
    pub fn dbname(&self) -> &str {
        &self.dbname
    }

    /// The same servers, with another limit for connections over which nothing comes any more: 60
    /// seconds unless said otherwise. A server that is at work may take longer.
    #[must_use]
    pub fn with_stall_timeout(&self, limit: Duration) -> Dsn {
        Dsn { stall_timeout: Some(limit), ..self.clone() }
    }

    /// The same, for sessions whose silence nobody notices.
    pub(super) fn unwatched(&self) -> Dsn {
        Dsn { stall_timeout: None, ..self.clone() }
    }

    /// How long opening a session may take.
    pub(super) fn silence_max(&self) -> Option<Duration> {
        self.timeouts.connect.or(self.stall_timeout)
    }

    /// `client_encoding` as it was asked for: what input files are encoded in unless told
    /// otherwise. The session itself always speaks UTF-8. None where nothing or `auto` was asked.
    pub fn client_encoding(&self) -> Option<&str> {
        self.settings.get("client_encoding").filter(|encoding| *encoding != "auto")
    }

    /// What the user should know although nothing failed, a sentence each: a password file that
    /// was not used, a certificate file that is not there.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A shell command that opens the same database in psql, without the password.
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

    /// `application_name` for a caller that calls itself `fallback`.
    pub fn application_name<'a>(&'a self, fallback: &'a str) -> &'a str {
        let own = self.settings.get("application_name");
        own.or_else(|| self.settings.get("fallback_application_name")).unwrap_or(fallback)
    }

    /// The same for sessions that are called so, whatever was asked for.
    #[must_use]
    pub fn called(&self, name: &str) -> Dsn {
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

fn session_attrs(settings: &Settings) -> Result<SessionAttrs> {
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

fn timeouts(settings: &Settings) -> Result<Timeouts> {
    // Zero is the operating system's default, nothing at all is ours.
    let number_or = |name, default| match settings.get(name) {
        None => Ok(Some(default)),
        Some(_) => settings.number(name),
    };
    let seconds = |n: u32| Duration::from_secs(n.into());
    Ok(Timeouts {
        connect: settings.number("connect_timeout")?.map(seconds),
        // No default of ours: Linux also counts it while a living server takes nothing in, and a
        // COPY may wait long for another session's lock.
        tcp_user: settings.number("tcp_user_timeout")?.map(|n| Duration::from_millis(n.into())),
        keepalives: settings.switch("keepalives", true)?,
        keepalives_idle: number_or("keepalives_idle", KEEPALIVES_IDLE)?.map(seconds),
        keepalives_interval: number_or("keepalives_interval", KEEPALIVES_INTERVAL)?.map(seconds),
        keepalives_count: number_or("keepalives_count", KEEPALIVES_COUNT)?,
    })
}

/// The session's options: those asked for, then what libpq sends for variables like `PGTZ`, so
/// that these win as they do there.
fn options(settings: &Settings, env: &Environment) -> Option<String> {
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

/// Gives each host its password and says where they came from.
fn find_passwords(
    settings: &Settings,
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
        return PasswordSource::Missing("is unknown, as there is no home folder".to_owned());
    };
    let shown = path.display().to_string();
    let mut missing = format!("\"{shown}\" is not there");
    let mut found = false;
    for host in hosts.iter_mut() {
        let label = host.passfile_label(env);
        match passfile::look_up(&path, &label, host.port, dbname, user) {
            Lookup::Found(password) => {
                host.password = Some(password);
                found = true;
            }
            Lookup::NoLine => {
                let port = host.port;
                missing = format!("\"{shown}\" has no line for {label}:{port}:{dbname}:{user}");
            }
            Lookup::NoFile => {}
            Lookup::Ignored(why) => {
                missing = format!("\"{shown}\" {why}");
                warnings.push(format!("The password file \"{shown}\" was not used: it {why}."));
                break;
            }
        }
    }
    if found { PasswordSource::File(path) } else { PasswordSource::Missing(missing) }
}

/// `postgres://user:***@host/db`: the stars stand for a password of any origin.
impl fmt::Display for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_password = self.hosts.iter().any(|host| host.password.is_some());
        f.write_str(&self.url(false, if has_password { ":***" } else { "" }))
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

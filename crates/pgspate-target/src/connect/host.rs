//! The places where servers may be: hosts, addresses, ports and sockets, combined as libpq combines
//! them.
//!
//! A list has at least one host. Every port is from 1 to 65535.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::parameters::ConnectionParameters;
use crate::Result;
use pgspate_base::Secret;

const DEFAULT_PORT: u16 = 5432;

/// One place where a server may be.
#[derive(Debug, Clone)]
pub(super) struct Host {
    pub(super) endpoint: Endpoint,
    pub(super) port: u16,
    /// The password for this server, from any source.
    pub(super) password: Option<Secret>,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A Unix socket in a folder. `is_default` is true if no host was named.
    Socket { dir: PathBuf, is_default: bool },
    /// TCP: a name to resolve and to check certificates against, an address to connect to, or both.
    Tcp { name: Option<String>, addr: Option<IpAddr> },
}

impl Host {
    /// Returns the path of a Unix socket.
    pub(super) fn socket_path(&self) -> Option<PathBuf> {
        match &self.endpoint {
            Endpoint::Socket { dir, .. } => Some(dir.join(format!(".s.PGSQL.{}", self.port))),
            Endpoint::Tcp { .. } => None,
        }
    }

    /// Returns whether the host is a Unix socket or a loopback address.
    pub(super) fn is_local(&self) -> bool {
        match &self.endpoint {
            Endpoint::Socket { .. } => true,
            Endpoint::Tcp { addr, .. } => addr.is_some_and(|addr| addr.is_loopback()),
        }
    }

    /// Returns the host as a password file and a URL name it.
    pub(super) fn label(&self) -> String {
        match &self.endpoint {
            Endpoint::Socket { dir, .. } => dir.display().to_string(),
            Endpoint::Tcp { name: Some(name), .. } => name.clone(),
            Endpoint::Tcp { addr: Some(addr), .. } => addr.to_string(),
            Endpoint::Tcp { .. } => String::new(),
        }
    }

    /// Returns the host as the password file names it: `localhost` for the default socket.
    pub(super) fn passfile_label(&self, env: &Environment) -> String {
        match &self.endpoint {
            Endpoint::Socket { dir, is_default }
                if *is_default || env.socket_dirs.contains(dir) =>
            {
                "localhost".to_owned()
            }
            _ => self.label(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.endpoint, self.socket_path()) {
            (_, Some(path)) => write!(f, "server on socket \"{}\"", path.display()),
            (Endpoint::Tcp { name: Some(name), addr: Some(addr) }, _)
                if *name != addr.to_string() =>
            {
                write!(f, "server at \"{name}\" ({addr}), port {}", self.port)
            }
            _ => write!(f, "server at \"{}\", port {}", self.label(), self.port),
        }
    }
}

/// Returns the hosts that the parameters name, without passwords.
pub(super) fn list(settings: &ConnectionParameters, env: &Environment) -> Result<Vec<Host>> {
    let split = |name| settings.get(name).map(|text| text.split(',').map(str::trim).collect());
    let names: Option<Vec<&str>> = split("host");
    let addrs: Option<Vec<&str>> = split("hostaddr");
    let ports: Vec<&str> = split("port").unwrap_or_default();
    let count = names.as_ref().or(addrs.as_ref()).map_or(1, Vec::len);
    if let (Some(names), Some(addrs)) = (&names, &addrs)
        && names.len() != addrs.len()
    {
        let message = format!(
            "could not match {} host names to {} hostaddr values",
            names.len(),
            addrs.len()
        );
        return Err(settings.usage_error("hostaddr", message));
    }
    if ports.len() > 1 && ports.len() != count {
        let message = format!("could not match {} port numbers to {count} hosts", ports.len());
        return Err(settings.usage_error("port", message));
    }
    let mut hosts = Vec::with_capacity(count);
    for i in 0..count {
        let port = match ports.get(if ports.len() == 1 { 0 } else { i }) {
            None | Some(&"") => DEFAULT_PORT,
            Some(text) => match text.parse::<u16>() {
                Ok(port @ 1..) => port,
                _ => return Err(settings.invalid("port", "numbers from 1 to 65535")),
            },
        };
        let name = names.as_ref().map_or("", |names| names[i]);
        let addr = addrs.as_ref().map_or("", |addrs| addrs[i]);
        let endpoint = parse_endpoint(name, addr, port, settings, env)?;
        hosts.push(Host { endpoint, port, password: None });
    }
    Ok(hosts)
}

/// Returns the endpoint that one entry of `host` and of `hostaddr` names.
fn parse_endpoint(
    name: &str,
    addr: &str,
    port: u16,
    settings: &ConnectionParameters,
    env: &Environment,
) -> Result<Endpoint> {
    let addr = match addr {
        "" => None,
        text => Some(text.parse().map_err(|_| settings.invalid("hostaddr", "IP addresses"))?),
    };
    if let Some(abstract_name) = name.strip_prefix('@').filter(|_| addr.is_none()) {
        // Linux's abstract sockets: the path begins with a zero byte.
        return Ok(Endpoint::Socket {
            dir: format!("\0{abstract_name}").into(),
            is_default: false,
        });
    }
    if name.contains('@') {
        // The text is probably part of a password, so the message must not repeat it.
        return Err(settings.usage_error("host", "a host name cannot contain \"@\""));
    }
    if name.starts_with('/') && addr.is_none() {
        return Ok(Endpoint::Socket { dir: name.into(), is_default: false });
    }
    if name.is_empty() && addr.is_none() {
        return Ok(Endpoint::Socket { dir: default_socket_dir(port, env), is_default: true });
    }
    Ok(Endpoint::Tcp { name: Some(name.to_owned()).filter(|name| !name.is_empty()), addr })
}

/// Returns the first folder that has a socket for the port, otherwise the first folder that exists.
fn default_socket_dir(port: u16, env: &Environment) -> PathBuf {
    let has_socket = |dir: &&PathBuf| dir.join(format!(".s.PGSQL.{port}")).exists();
    let dirs = &env.socket_dirs;
    let dir = dirs.iter().find(has_socket).or_else(|| dirs.iter().find(|dir| dir.is_dir()));
    dir.or(dirs.first()).cloned().unwrap_or_else(|| Path::new("/tmp").to_owned())
}

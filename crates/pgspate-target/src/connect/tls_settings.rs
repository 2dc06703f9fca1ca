//! The TLS part of a connection's parameters, checked: mode, root certificates, client certificate.
//!
//! Pure but for asking which files exist. A mode that verifies always has certificates to verify
//! against.

use std::path::PathBuf;

use super::environment::Environment;
use super::host::{Endpoint, Host};
use super::revocation::Lists;
use super::settings::Settings;
use crate::Result;

/// `sslmode`, from the least to the most demanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

const MODES: [(&str, Mode); 6] = [
    ("disable", Mode::Disable),
    ("allow", Mode::Allow),
    ("prefer", Mode::Prefer),
    ("require", Mode::Require),
    ("verify-ca", Mode::VerifyCa),
    ("verify-full", Mode::VerifyFull),
];

/// Which authorities are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Roots {
    /// Any: the server's certificate is not verified.
    Unchecked,
    /// Those of the operating system.
    System,
    /// Those in a file.
    File(PathBuf),
}

/// How a connection is encrypted and with what it is verified.
#[derive(Debug, Clone)]
pub(super) struct TlsSettings {
    pub(super) mode: Mode,
    /// TLS from the first byte, without asking (`sslnegotiation=direct`).
    pub(super) direct: bool,
    pub(super) roots: Roots,
    /// What says which certificates are revoked.
    pub(super) lists: Option<Lists>,
    /// The client's certificate and its private key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    /// Whether the server's name is sent in clear, for proxies that route by it.
    pub(super) sni: bool,
    pub(super) tls12: bool,
    pub(super) tls13: bool,
}

impl TlsSettings {
    pub(super) fn new(
        settings: &Settings,
        env: &Environment,
        hosts: &[Host],
        warnings: &mut Vec<String>,
    ) -> Result<TlsSettings> {
        let system = settings.get("sslrootcert") == Some("system");
        let asked = settings.choice("sslmode", &MODES)?;
        let mode = asked.unwrap_or(if system { Mode::VerifyFull } else { Mode::Prefer });
        if system && mode != Mode::VerifyFull {
            let message = "a weaker sslmode than verify-full cannot be used with \
                           sslrootcert=system";
            return Err(settings.wrong("sslmode", message).hint(
                "Anybody can get a certificate from some authority of the system's list, so the \
                 name must be checked too: use sslmode=verify-full.",
            ));
        }
        let negotiation =
            settings.choice("sslnegotiation", &[("postgres", false), ("direct", true)])?;
        let direct = negotiation.unwrap_or(false);
        if direct && mode < Mode::Require {
            let message = "a weaker sslmode than require cannot be used with sslnegotiation=direct";
            return Err(settings.wrong("sslmode", message));
        }
        let uses_tls = mode != Mode::Disable
            && hosts.iter().any(|h| matches!(h.endpoint, Endpoint::Tcp { .. }));
        let (tls12, tls13) = versions(settings)?;
        let roots = if uses_tls { roots(settings, env, mode, warnings)? } else { Roots::Unchecked };
        let lists = if uses_tls { Lists::of(settings, env, &roots)? } else { None };
        Ok(TlsSettings {
            mode,
            direct,
            roots,
            lists,
            client: if uses_tls { client(settings, env, warnings)? } else { None },
            sni: settings.switch("sslsni", true)?,
            tls12,
            tls13,
        })
    }
}

fn roots(
    settings: &Settings,
    env: &Environment,
    mode: Mode,
    warnings: &mut Vec<String>,
) -> Result<Roots> {
    let given = settings.get("sslrootcert");
    if given == Some("system") {
        return Ok(Roots::System);
    }
    let dir = env.home.as_ref().map(|home| home.join(".postgresql"));
    let path = given.map(PathBuf::from).or_else(|| Some(dir.as_ref()?.join("root.crt")));
    let Some(path) = path.filter(|path| path.exists()) else {
        if mode >= Mode::VerifyCa {
            let message = match (given, &dir) {
                (Some(path), _) => format!("root certificate file \"{path}\" does not exist"),
                (None, Some(dir)) => {
                    format!("root certificate file \"{}/root.crt\" does not exist", dir.display())
                }
                (None, None) => "there is no home folder to find a root certificate in".to_owned(),
            };
            return Err(settings.wrong("sslrootcert", message).hint(
                "Name the file of the authority's certificate with sslrootcert=, or use \
                 sslrootcert=system, or an sslmode that does not verify the server.",
            ));
        }
        if let Some(path) = given {
            warnings.push(format!(
                "The server's certificate is not verified: the root certificate file \"{path}\" \
                 does not exist."
            ));
        }
        return Ok(Roots::Unchecked);
    };
    Ok(Roots::File(path))
}

fn client(
    settings: &Settings,
    env: &Environment,
    warnings: &mut Vec<String>,
) -> Result<Option<(PathBuf, PathBuf)>> {
    let words = [("disable", Some(false)), ("allow", Some(true)), ("require", None)];
    match settings.choice("sslcertmode", &words)? {
        Some(Some(false)) => return Ok(None),
        Some(None) => {
            let message = "sslcertmode=require cannot be used: whether the server asked for a \
                           certificate is not checked";
            return Err(settings.wrong("sslcertmode", message));
        }
        _ => {}
    }
    let dir = env.home.as_ref().map(|home| home.join(".postgresql"));
    let file = |keyword: &str, default: &str| {
        let given = settings.get(keyword).map(PathBuf::from);
        given.or_else(|| Some(dir.as_ref()?.join(default)))
    };
    let Some(cert) = file("sslcert", "postgresql.crt") else { return Ok(None) };
    if !cert.exists() {
        if settings.get("sslcert").is_some() {
            let cert = cert.display();
            warnings.push(format!(
                "No client certificate is sent: the certificate file \"{cert}\" does not exist."
            ));
        }
        return Ok(None);
    }
    Ok(file("sslkey", "postgresql.key").map(|key| (cert, key)))
}

fn versions(settings: &Settings) -> Result<(bool, bool)> {
    let version = |name: &str, default: u8| -> Result<u8> {
        let Some(text) = settings.get(name) else { return Ok(default) };
        match text.to_ascii_lowercase().as_str() {
            "tlsv1" => Ok(10),
            "tlsv1.1" => Ok(11),
            "tlsv1.2" => Ok(12),
            "tlsv1.3" => Ok(13),
            _ => Err(settings.invalid(name, "one of TLSv1, TLSv1.1, TLSv1.2, TLSv1.3")),
        }
    };
    let min = version("ssl_min_protocol_version", 12)?;
    let max = version("ssl_max_protocol_version", 13)?;
    if min > max {
        return Err(
            settings.wrong("ssl_max_protocol_version", "invalid TLS protocol version range")
        );
    }
    if max < 12 {
        let message = "TLS versions before 1.2 are not supported";
        return Err(settings.wrong("ssl_max_protocol_version", message));
    }
    Ok((min <= 12, max >= 13))
}

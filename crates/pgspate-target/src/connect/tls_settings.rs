//! The TLS part of the connection parameters, checked: mode, root certificates, client certificate.
//!
//! The only I/O is checking which files exist. A mode that verifies the server always has root
//! certificates.

use std::path::PathBuf;

use super::environment::Environment;
use super::host::{Endpoint, Host};
use super::parameters::ConnectionParameters;
use super::revocation::RevocationLists;
use crate::Result;

/// `sslmode`, from the weakest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TlsMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

const TLS_MODES: [(&str, TlsMode); 6] = [
    ("disable", TlsMode::Disable),
    ("allow", TlsMode::Allow),
    ("prefer", TlsMode::Prefer),
    ("require", TlsMode::Require),
    ("verify-ca", TlsMode::VerifyCa),
    ("verify-full", TlsMode::VerifyFull),
];

/// The trusted certificate authorities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TrustedRoots {
    /// Every certificate is accepted without verification.
    Unchecked,
    /// The authorities of the operating system.
    System,
    /// The authorities in a file.
    File(PathBuf),
}

/// How connections are encrypted and verified.
#[derive(Debug, Clone)]
pub(super) struct TlsSettings {
    pub(super) mode: TlsMode,
    /// TLS from the first byte, without asking (`sslnegotiation=direct`).
    pub(super) direct: bool,
    pub(super) roots: TrustedRoots,
    /// Where to find lists of revoked certificates.
    pub(super) revocation_lists: Option<RevocationLists>,
    /// The client's certificate and its private key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    /// Whether the server's name is sent in clear text, for proxies that route by name.
    pub(super) sni: bool,
    pub(super) tls12: bool,
    pub(super) tls13: bool,
}

impl TlsSettings {
    pub(super) fn new(
        settings: &ConnectionParameters,
        env: &Environment,
        hosts: &[Host],
        warnings: &mut Vec<String>,
    ) -> Result<TlsSettings> {
        let uses_system_roots = settings.get("sslrootcert") == Some("system");
        let requested = settings.choice("sslmode", &TLS_MODES)?;
        let mode = requested.unwrap_or(if uses_system_roots {
            TlsMode::VerifyFull
        } else {
            TlsMode::Prefer
        });
        if uses_system_roots && mode != TlsMode::VerifyFull {
            let message = "a weaker sslmode than verify-full cannot be used with \
                           sslrootcert=system";
            return Err(settings.usage_error("sslmode", message).hint(
                "Anybody can get a certificate from some authority of the system's list, so the \
                 name must be checked too: use sslmode=verify-full.",
            ));
        }
        let negotiation =
            settings.choice("sslnegotiation", &[("postgres", false), ("direct", true)])?;
        let direct = negotiation.unwrap_or(false);
        if direct && mode < TlsMode::Require {
            let message = "a weaker sslmode than require cannot be used with sslnegotiation=direct";
            return Err(settings.usage_error("sslmode", message));
        }
        let uses_tls = mode != TlsMode::Disable
            && hosts.iter().any(|h| matches!(h.endpoint, Endpoint::Tcp { .. }));
        let (tls12, tls13) = tls_versions(settings)?;
        let roots = if uses_tls {
            find_roots(settings, env, mode, warnings)?
        } else {
            TrustedRoots::Unchecked
        };
        let revocation_lists =
            if uses_tls { RevocationLists::from_parameters(settings, env, &roots)? } else { None };
        Ok(TlsSettings {
            mode,
            direct,
            roots,
            revocation_lists,
            client: if uses_tls { find_client_files(settings, env, warnings)? } else { None },
            sni: settings.switch("sslsni", true)?,
            tls12,
            tls13,
        })
    }
}

/// Finds the root certificates that the parameters name, or the file in the user's home folder.
fn find_roots(
    settings: &ConnectionParameters,
    env: &Environment,
    mode: TlsMode,
    warnings: &mut Vec<String>,
) -> Result<TrustedRoots> {
    let given = settings.get("sslrootcert");
    if given == Some("system") {
        return Ok(TrustedRoots::System);
    }
    let dir = env.home.as_ref().map(|home| home.join(".postgresql"));
    let path = given.map(PathBuf::from).or_else(|| Some(dir.as_ref()?.join("root.crt")));
    let Some(path) = path.filter(|path| path.exists()) else {
        if mode >= TlsMode::VerifyCa {
            let message = match (given, &dir) {
                (Some(path), _) => format!("root certificate file \"{path}\" does not exist"),
                (None, Some(dir)) => {
                    format!("root certificate file \"{}/root.crt\" does not exist", dir.display())
                }
                (None, None) => "there is no home folder to find a root certificate in".to_owned(),
            };
            return Err(settings.usage_error("sslrootcert", message).hint(
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
        return Ok(TrustedRoots::Unchecked);
    };
    Ok(TrustedRoots::File(path))
}

/// Finds the files of the client's certificate and its private key. `None` if no certificate is to
/// be sent.
fn find_client_files(
    settings: &ConnectionParameters,
    env: &Environment,
    warnings: &mut Vec<String>,
) -> Result<Option<(PathBuf, PathBuf)>> {
    let modes = ["disable", "allow", "require"].map(|mode| (mode, mode));
    match settings.choice("sslcertmode", &modes)? {
        Some("disable") => return Ok(None),
        Some("require") => {
            let message = "sslcertmode=require cannot be used: pgspate does not check whether the \
                           server requests a certificate";
            return Err(settings.usage_error("sslcertmode", message));
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

/// Returns whether TLS 1.2 and TLS 1.3 are allowed.
fn tls_versions(settings: &ConnectionParameters) -> Result<(bool, bool)> {
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
        return Err(settings.usage_error(
            "ssl_max_protocol_version",
            "ssl_min_protocol_version is above ssl_max_protocol_version",
        ));
    }
    if max < 12 {
        let message = "TLS versions before 1.2 are not supported";
        return Err(settings.usage_error("ssl_max_protocol_version", message));
    }
    Ok((min <= 12, max >= 13))
}

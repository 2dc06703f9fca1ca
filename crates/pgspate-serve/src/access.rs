//! Who may write: tokens, client certificates, and checks against requests of foreign web pages.
//!
//! Without tokens and client certificates only this machine's programs may write. A browser on this
//! machine is one of them, and its pages come from other machines. So the request must name a
//! loopback host, which a page under another name (DNS rebinding) cannot. It must not come from
//! another origin.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use pgspate::{Error, ErrorKind, Result};
use ring::digest::{Digest, SHA256, digest};

use crate::fault::RequestFault;
use crate::options::{ListenAddress, ServeOptions};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who may write.
#[derive(Debug)]
pub(crate) struct AccessRules {
    token_file: Option<PathBuf>,
    tokens: RwLock<Arc<Vec<Digest>>>,
    /// Whether the request must name a loopback host.
    checks_host: bool,
}

impl AccessRules {
    /// Reads the tokens.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the file cannot be used, or if other machines could write without a
    /// token or a certificate.
    pub(crate) fn new(options: &ServeOptions) -> Result<AccessRules> {
        let has_certificates =
            options.tls.as_ref().is_some_and(|files| files.client_authority.is_some());
        let is_open = options.tokens.is_none() && !has_certificates;
        if let ListenAddress::Tcp(address) = &options.listen
            && is_open
            && !address.ip().to_canonical().is_loopback()
        {
            let message =
                format!("could not listen on {address}: every machine of the network could write");
            return Err(Error::new(ErrorKind::Usage, message).hint(
                "Name a file of tokens with `--tokens`, or the authority of client certificates \
                 with `--client-ca`. Without them, listen on 127.0.0.1 or on a Unix socket.",
            ));
        }
        let tokens = match &options.tokens {
            Some(path) => read_tokens(path)?,
            None => Vec::new(),
        };
        let is_tcp = matches!(options.listen, ListenAddress::Tcp(_));
        Ok(AccessRules {
            token_file: options.tokens.clone(),
            tokens: RwLock::new(Arc::new(tokens)),
            checks_host: is_open && is_tcp,
        })
    }

    /// Reads the tokens again.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the file cannot be used. Then the old tokens count.
    pub(crate) fn reload(&self) -> Result<()> {
        if let Some(path) = &self.token_file {
            let tokens = Arc::new(read_tokens(path)?);
            *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = tokens;
        }
        Ok(())
    }

    /// Checks a request for a page that needs no token.
    ///
    /// # Errors
    /// Status 403 if a foreign web page may have sent the request.
    pub(crate) fn check_origin(&self, parts: &Parts) -> Result<(), RequestFault> {
        let text =
            |name: &HeaderName| parts.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let host = parts.uri.authority().map(|it| it.as_str()).or_else(|| text(&HOST));
        let forbidden = |message: &str| {
            RequestFault::new(StatusCode::FORBIDDEN, "foreign_origin", message).closing()
        };
        if self.checks_host && !host.is_some_and(is_loopback_host) {
            return Err(forbidden("the request does not name a host of this machine")
                .hint("Without tokens, the host must be localhost, 127.0.0.1 or [::1]."));
        }
        let is_same = |origin: &str| {
            let named = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            named.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
        };
        if text(&ORIGIN).is_some_and(|origin| !is_same(origin)) {
            return Err(forbidden("the request comes from a web page of another origin"));
        }
        // A link of another site may lead to the live page, which has no number in itself.
        let site = text(&SEC_FETCH_SITE).filter(|_| parts.uri.path() != "/");
        if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
            return Err(forbidden("the request comes from a web page of another site"));
        }
        Ok(())
    }

    /// Checks a request's token, if tokens are needed.
    ///
    /// # Errors
    /// Status 401.
    pub(crate) fn check_token(&self, parts: &Parts) -> Result<(), RequestFault> {
        if self.token_file.is_none() {
            return Ok(());
        }
        let refuse = |message: &str| {
            let fault = RequestFault::new(StatusCode::UNAUTHORIZED, "unauthorized", message);
            Err(fault.hint("Send the header Authorization: Bearer TOKEN.").closing())
        };
        let Some(value) = parts.headers.get(AUTHORIZATION) else {
            return refuse("the request has no token");
        };
        let sent = value.as_bytes();
        let (scheme, token) = sent.split_at(sent.len().min("Bearer ".len()));
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return refuse("the request has no bearer token");
        }
        let sent = digest(&SHA256, token.trim_ascii());
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Digests are compared as a whole, and all of them, so that the time tells nothing.
        let is_equal = |known: &Digest| {
            let pairs = known.as_ref().iter().zip(sent.as_ref());
            pairs.fold(0, |differences, (one, other)| differences | (one ^ other)) == 0
        };
        match tokens.iter().fold(false, |found, known| found | is_equal(known)) {
            true => Ok(()),
            false => refuse("the token is not known"),
        }
    }
}

/// Returns whether a host, with or without port, is one of this machine.
fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// Reads a file with a token in each line. Empty lines and lines that begin with `#` do not count.
fn read_tokens(path: &Path) -> Result<Vec<Digest>> {
    let shown = path.display();
    let failed = |error: std::io::Error| {
        let message = format!("could not read token file \"{shown}\"");
        Error::new(ErrorKind::Usage, message)
            .because(error)
            .hint("Name the file of tokens with `--tokens`.")
    };
    let facts = std::fs::metadata(path).map_err(failed)?;
    if facts.mode() & 0o077 != 0 {
        let message = format!("token file \"{shown}\" has group or world access");
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("The file must have permissions u=rw (0600) or less."));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let lines = text.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#'));
    let tokens: Vec<&str> = lines.collect();
    if tokens.is_empty() {
        let message = format!("token file \"{shown}\" has no token");
        return Err(Error::new(ErrorKind::Usage, message).hint("Write one token in each line."));
    }
    if let Some(nth) = tokens.iter().position(|it| !it.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let message =
            format!("token {} of file \"{shown}\" has a character that is not valid", nth + 1);
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("A token has letters, digits and punctuation of ASCII, without spaces."));
    }
    Ok(tokens.iter().map(|token| digest(&SHA256, token.as_bytes())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback_hosts() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8480", "127.9.9.9", "[::1]:1", "[::1]"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:8480",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]",
            "[::1",
            "0.0.0.0",
            "[fe80::1]:80",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}

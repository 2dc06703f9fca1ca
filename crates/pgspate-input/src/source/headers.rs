//! Request headers that the user gives, and the servers that get them.
//!
//! A header may be a credential, so pgspate sends a header only to the server that the user named
//! for it. A header without a server is sent to the only server of the sources. Servers of other
//! sources and redirect targets on other servers do not get the header. Header values never appear
//! in messages.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::{Origin, Url};

use super::SourceOptions;
use super::name::SourceSpec;
use crate::{Error, ErrorKind, Result};

/// The prefix of `--source-option` keys that set a request header.
const HEADER_OPTION: &str = "header.";

/// The headers for each server. A server is a scheme, a host and a port.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestHeaders(Vec<(Origin, HeaderName, HeaderValue)>);

impl RequestHeaders {
    /// Reads the headers among `options`. A key is `header.NAME`, or `https://HOST/:header.NAME`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a header is invalid, if no source is on its server, or if a header
    /// names no server and the sources are on several.
    pub(super) fn of(specs: &[String], options: &SourceOptions) -> Result<RequestHeaders> {
        let mut origins: Vec<Origin> = Vec::new();
        for spec in specs {
            if let SourceSpec::Url("http" | "https", _) = SourceSpec::parse(spec)
                && let Ok(url) = Url::parse(spec)
                && !origins.contains(&url.origin())
            {
                origins.push(url.origin());
            }
        }
        let mut headers = RequestHeaders::default();
        for (key, value) in &options.store {
            let Some((server, name)) = split_key(key) else { continue };
            let origin = match server {
                Some(server) => origin_of_server(server, &origins)?,
                None => only_origin(name, &origins)?,
            };
            let invalid_header_error = || {
                Error::new(ErrorKind::Usage, format!("{} is not a valid header", redacted_key(key)))
            };
            let name =
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid_header_error())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| invalid_header_error())?;
            value.set_sensitive(true);
            headers.0.push((origin, name, value));
        }
        Ok(headers)
    }

    /// Returns the headers for requests to the server of `url`.
    pub(super) fn for_server(&self, url: &Url) -> HeaderMap {
        let origin = url.origin();
        let of_server = self.0.iter().filter(|(server, ..)| *server == origin);
        let mut map = HeaderMap::new();
        for (_, name, value) in of_server {
            map.append(name.clone(), value.clone());
        }
        map
    }
}

/// Returns whether an option's key sets a header.
pub(super) fn is_header(key: &str) -> bool {
    split_key(key).is_some()
}

/// Returns the key as messages show it, without secrets. A user may write `header.x: VALUE=` by
/// mistake, which puts the secret value into the key.
pub(super) fn redacted_key(key: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = split_key(key).map_or(key, |(_, name)| name);
    match name.len() <= 64 && name.chars().all(is_name) {
        true if is_header(key) => format!("\"{HEADER_OPTION}{name}\""),
        true => format!("\"{name}\""),
        false => "\"...\"".to_owned(),
    }
}

/// Splits a key into the server, if the key names one, and the header's name.
fn split_key(key: &str) -> Option<(Option<&str>, &str)> {
    // Lower-casing ASCII does not move any byte.
    let lower = key.to_ascii_lowercase();
    if lower.starts_with(HEADER_OPTION) {
        return Some((None, &key[HEADER_OPTION.len()..]));
    }
    let at = lower.find(":header.")?;
    Some((Some(&key[..at]), &key[at + 1 + HEADER_OPTION.len()..]))
}

/// Parses the server that a key names.
///
/// # Errors
/// [`ErrorKind::Usage`] if the server is invalid, or if no source is on this server.
fn origin_of_server(server: &str, origins: &[Origin]) -> Result<Origin> {
    let is_bare = |url: &Url| {
        matches!(url.scheme(), "http" | "https")
            && matches!(url.path(), "" | "/")
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
    };
    let origin = Url::parse(server).ok().filter(is_bare).map(|url| url.origin());
    let message = match origin {
        Some(origin) if origins.contains(&origin) => return Ok(origin),
        Some(origin) => {
            format!(
                "a header is given for {}, but no source is on this server",
                origin_text(&origin)
            )
        }
        None => "a header is given for an invalid server".to_owned(),
    };
    Err(Error::new(ErrorKind::Usage, message).hint(
        "Write `--source-option 'https://HOST:PORT/:header.NAME=VALUE'`, with the scheme, host and \
         port of the source.",
    ))
}

/// Returns the only server of the sources.
///
/// # Errors
/// [`ErrorKind::Usage`] if the sources are on several web servers, or on none. `name` is the
/// header's name.
fn only_origin(name: &str, origins: &[Origin]) -> Result<Origin> {
    match origins {
        [origin] => Ok(origin.clone()),
        [] => {
            Err(Error::new(ErrorKind::Usage, "a header is given, but no source is on a web server"))
        }
        [first, ..] => {
            let key = redacted_key(&format!("{HEADER_OPTION}{name}"));
            let message = format!(
                "{key} does not name its server, and the sources are on {} servers",
                origins.len()
            );
            Err(Error::new(ErrorKind::Usage, message).hint(format!(
                "Write the server before the header's name, for example `--source-option \
                 '{}/:header.NAME=VALUE'`. pgspate sends the header only to that server.",
                origin_text(first)
            )))
        }
    }
}

fn origin_text(origin: &Origin) -> String {
    origin.ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(specs: &[&str], keys: &[&str]) -> Result<RequestHeaders> {
        let specs: Vec<String> = specs.iter().map(|spec| (*spec).to_owned()).collect();
        let store = keys.iter().map(|key| ((*key).to_owned(), "secret".to_owned())).collect();
        RequestHeaders::of(&specs, &SourceOptions { store, ..SourceOptions::default() })
    }

    fn sent_names(headers: &RequestHeaders, url: &str) -> Vec<String> {
        let map = headers.for_server(&Url::parse(url).unwrap());
        map.keys().map(|name| name.as_str().to_owned()).collect()
    }

    #[test]
    fn a_header_is_sent_only_to_its_server() {
        let one = headers(&["https://a/x", "https://a:443/y", "s3://b/k"], &["Header.X-Key"]);
        let one = one.unwrap();
        assert_eq!(sent_names(&one, "https://a/other"), ["x-key"]);
        for other in ["http://a/x", "https://a:444/x", "https://b/x", "https://a.b/x"] {
            assert!(sent_names(&one, other).is_empty(), "{other}");
        }
        let sources = ["https://a/x", "http://b:8080/y"];
        let keys = ["https://a/:header.k", "HTTP://B:8080:HEADER.l"];
        let two = headers(&sources, &keys).unwrap();
        assert_eq!(sent_names(&two, "https://a/x"), ["k"]);
        assert_eq!(sent_names(&two, "http://b:8080/y"), ["l"]);
        assert!(!format!("{two:?}").contains("secret"));
    }

    #[test]
    fn a_header_without_a_known_server_is_refused() {
        for (sources, key, expected) in [
            (&["https://a/x", "http://a/x"][..], "header.k", "the sources are on 2"),
            (&["https://a/x"], "https://b/:header.k", "given for https://b, but no source"),
            (&["https://a/x"], "https://a/x:header.k", "for an invalid server"),
            (&["https://a/x"], "https://u:mark@a/:header.k", "for an invalid server"),
            (&["s3://b/k"], "header.k", "no source is on a web server"),
            (&["https://a/x"], "header.k: mark", "\"...\" is not a valid header"),
        ] {
            let error = headers(sources, &[key]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!error.to_string().contains("mark"), "{error}");
        }
    }
}

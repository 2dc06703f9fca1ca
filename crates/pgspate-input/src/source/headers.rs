//! Request headers that the user gives, and the servers that get them.
//!
//! A header may be a key to everything its owner has. So a header goes to the servers of the
//! sources that it is given for, and to no other: not to another source's, and not to one that a
//! server redirects to. Values never become part of a message.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::{Origin, Url};

use super::Options;
use super::name::Spec;
use crate::{Error, ErrorKind, Result};

/// What a `--source-option` key begins with that sets a request header.
const HEADER_OPTION: &str = "header.";

/// The headers for each server, told by scheme, host and port.
#[derive(Debug, Clone, Default)]
pub(super) struct Headers(Vec<(Origin, HeaderName, HeaderValue)>);

impl Headers {
    /// Reads the headers among `options`. A key is `header.NAME`, or `https://HOST/:header.NAME`.
    ///
    /// # Errors
    /// Of [`ErrorKind::Usage`] for what is no header, for a server that none of `specs` is on, and
    /// for a header without a server where `specs` are on several.
    pub(super) fn of(specs: &[String], options: &Options) -> Result<Headers> {
        let mut origins: Vec<Origin> = Vec::new();
        for spec in specs {
            if let Spec::Url("http" | "https", _) = Spec::parse(spec)
                && let Ok(url) = Url::parse(spec)
                && !origins.contains(&url.origin())
            {
                origins.push(url.origin());
            }
        }
        let mut headers = Headers::default();
        for (key, value) in &options.store {
            let Some((server, name)) = split(key) else { continue };
            let origin = match server {
                Some(server) => given_origin(server, &origins)?,
                None => only_origin(name, &origins)?,
            };
            let bad =
                || Error::new(ErrorKind::Usage, format!("{} is not a valid header", shown(key)));
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.0.push((origin, name, value));
        }
        Ok(headers)
    }

    /// Those for requests to the server of `url`.
    pub(super) fn for_server(&self, url: &Url) -> HeaderMap {
        let origin = url.origin();
        let own = self.0.iter().filter(|(it, ..)| *it == origin);
        let mut map = HeaderMap::new();
        for (_, name, value) in own {
            map.append(name.clone(), value.clone());
        }
        map
    }
}

/// Whether an option's key sets a header.
pub(super) fn is_header(key: &str) -> bool {
    split(key).is_some()
}

/// A key as it may be shown: whoever writes `header.x: VALUE=` has a secret in the key.
pub(super) fn shown(key: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = split(key).map_or(key, |(_, name)| name);
    match name.len() <= 64 && name.chars().all(is_name) {
        true if is_header(key) => format!("\"{HEADER_OPTION}{name}\""),
        true => format!("\"{name}\""),
        false => "a key".to_owned(),
    }
}

/// The server, where there is one, and the header's name.
fn split(key: &str) -> Option<(Option<&str>, &str)> {
    // Bytes of ASCII stay where they are.
    let lower = key.to_ascii_lowercase();
    if lower.starts_with(HEADER_OPTION) {
        return Some((None, &key[HEADER_OPTION.len()..]));
    }
    let at = lower.find(":header.")?;
    Some((Some(&key[..at]), &key[at + 1 + HEADER_OPTION.len()..]))
}

fn given_origin(server: &str, origins: &[Origin]) -> Result<Origin> {
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
            format!("no source here is on {}, for which a header is given", words(&origin))
        }
        None => "a header is given for what is no server".to_owned(),
    };
    Err(Error::new(ErrorKind::Usage, message).hint(
        "Write the server as `--source-option 'https://HOST:PORT/:header.NAME=VALUE'`, with the \
         scheme, host and port of the source.",
    ))
}

fn only_origin(name: &str, origins: &[Origin]) -> Result<Origin> {
    match origins {
        [origin] => Ok(origin.clone()),
        [] => {
            Err(Error::new(ErrorKind::Usage, "a header is given, and no source is on a web server"))
        }
        [first, ..] => {
            let key = shown(&format!("{HEADER_OPTION}{name}"));
            let message =
                format!("{key} does not say which of {} servers it is for", origins.len());
            Err(Error::new(ErrorKind::Usage, message).hint(format!(
                "Write the server before the name, such as `--source-option \
                 '{}/:header.NAME=VALUE'`. No other server gets the header then.",
                words(first)
            )))
        }
    }
}

fn words(origin: &Origin) -> String {
    origin.ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(specs: &[&str], keys: &[&str]) -> Result<Headers> {
        let specs: Vec<String> = specs.iter().map(|spec| (*spec).to_owned()).collect();
        let store = keys.iter().map(|key| ((*key).to_owned(), "secret".to_owned())).collect();
        Headers::of(&specs, &Options { store, ..Options::default() })
    }

    fn names(headers: &Headers, url: &str) -> Vec<String> {
        let map = headers.for_server(&Url::parse(url).unwrap());
        map.keys().map(|name| name.as_str().to_owned()).collect()
    }

    #[test]
    fn a_header_goes_to_its_server_alone() {
        let one = headers(&["https://a/x", "https://a:443/y", "s3://b/k"], &["Header.X-Key"]);
        let one = one.unwrap();
        assert_eq!(names(&one, "https://a/other"), ["x-key"]);
        for other in ["http://a/x", "https://a:444/x", "https://b/x", "https://a.b/x"] {
            assert!(names(&one, other).is_empty(), "{other}");
        }
        let sources = ["https://a/x", "http://b:8080/y"];
        let keys = ["https://a/:header.k", "HTTP://B:8080:HEADER.l"];
        let two = headers(&sources, &keys).unwrap();
        assert_eq!(names(&two, "https://a/x"), ["k"]);
        assert_eq!(names(&two, "http://b:8080/y"), ["l"]);
        assert!(!format!("{two:?}").contains("secret"));
    }

    #[test]
    fn a_header_without_a_server_is_refused() {
        for (sources, key, expected) in [
            (&["https://a/x", "http://a/x"][..], "header.k", "which of 2 servers it is for"),
            (&["https://a/x"], "https://b/:header.k", "no source here is on https://b"),
            (&["https://a/x"], "https://a/x:header.k", "for what is no server"),
            (&["https://a/x"], "https://u:mark@a/:header.k", "for what is no server"),
            (&["s3://b/k"], "header.k", "no source is on a web server"),
            (&["https://a/x"], "header.k: mark", "a key is not a valid header"),
        ] {
            let error = headers(sources, &[key]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!error.to_string().contains("mark"), "{error}");
        }
    }
}

//! Parses the URL form of a connection string:
//! `postgres://user:password@host1:port1,host2/db?key=value`.
//!
//! The URL is split where libpq splits it. An unencoded special character in a password looks like
//! a second `@` or a non-numeric port. Such URLs are refused, and their text is never repeated.

use super::keyword;
use super::parameters::{ConnectionParameters, unknown_parameter};
use crate::{Error, ErrorKind, Result};
use pgspate_base::did_you_mean;

const SCHEMES: [&str; 2] = ["postgresql", "postgres"];

/// Drivers that follow the scheme in a URL of SQLAlchemy: `postgresql+psycopg://`.
const DRIVERS: [&str; 6] =
    ["psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "asyncpg", "pg8000"];

/// Parameters of these drivers and of SQLAlchemy that do not say where a connection leads. The
/// first four are SQLAlchemy's own.
const DRIVER_PARAMETERS: [&str; 12] = [
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "async_fallback",
    "use_native_hstore",
    "statement_cache_size",
    "max_cached_statement_lifetime",
    "max_cacheable_statement_size",
    "command_timeout",
    "timeout",
    "prepare_threshold",
    "autocommit",
    "tcp_keepalive",
];

/// Returns whether `text` begins like a URL, of any scheme.
pub(super) fn is_uri(text: &str) -> bool {
    split_scheme(text).is_some()
}

/// Splits a URL after its scheme. Returns `None` if the text before `://` is no scheme; it may then
/// be a part of a password.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let may_follow = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.len() <= 40
        && scheme.chars().all(may_follow);
    is_scheme.then_some((scheme, rest))
}

fn is_known_scheme(scheme: &str) -> bool {
    match scheme.split_once('+') {
        Some((scheme, driver)) => SCHEMES.contains(&scheme) && DRIVERS.contains(&driver),
        None => SCHEMES.contains(&scheme),
    }
}

/// Returns the error for a URL of another scheme.
fn unknown_scheme(scheme: &str) -> Error {
    let bare = scheme.split('+').next().unwrap_or_default();
    let near = did_you_mean("", bare, SCHEMES).filter(|_| !SCHEMES.contains(&bare));
    Error::new(ErrorKind::Usage, format!("unknown scheme \"{scheme}\" of the connection URL"))
        .hint_if(near)
        .hint_also(
            "The known schemes are postgres:// and postgresql://, and those of SQLAlchemy: \
             postgresql+psycopg://, postgresql+psycopg2:// and postgresql+asyncpg://.",
        )
}

/// Parses the URL `text` into `settings`.
pub(super) fn parse(text: &str, settings: &mut ConnectionParameters) -> Result<()> {
    let (scheme, mut rest) = split_scheme(text).unwrap_or_default();
    if !is_known_scheme(scheme) {
        return Err(unknown_scheme(scheme));
    }
    if let Some(at) = rest.find(['@', '/']).filter(|&at| rest.as_bytes()[at] == b'@') {
        let (user, password) = match rest[..at].split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (&rest[..at], None),
        };
        decode_and_set(settings, "user", user)?;
        decode_and_set(settings, "password", password.unwrap_or(""))?;
        rest = &rest[at + 1..];
    }
    let (before_query, query) = match rest.split_once('?') {
        Some((before, query)) => (before, query),
        None => (rest, ""),
    };
    if before_query.contains('@') {
        return Err(malformed("the URL has an \"@\" where a host or a database name should be"));
    }
    let (hosts, dbname) = parse_hosts(before_query, settings)?;
    decode_and_set(settings, "host", &hosts)?;
    decode_and_set(settings, "dbname", dbname)?;
    parse_query(query, scheme.contains('+'), settings)
}

/// Parses the list of hosts and ports at the start of `rest`, and stores the ports. Returns the
/// hosts, still percent-encoded, and the database name.
fn parse_hosts<'a>(
    mut rest: &'a str,
    settings: &mut ConnectionParameters,
) -> Result<(String, &'a str)> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    loop {
        let host;
        if let Some(inner) = rest.strip_prefix('[') {
            let Some((address, after)) = inner.split_once(']') else {
                return Err(malformed("the URL has a \"[\" without its \"]\""));
            };
            if address.is_empty() || !(after.is_empty() || after.starts_with([':', '/', ','])) {
                return Err(malformed(
                    "the URL has an IPv6 address that is not written as [address]",
                ));
            }
            (host, rest) = (address, after);
        } else {
            (host, rest) = rest.split_at(rest.find([':', '/', ',']).unwrap_or(rest.len()));
        }
        let mut port = "";
        if let Some(after) = rest.strip_prefix(':') {
            (port, rest) = after.split_at(after.find(['/', ',']).unwrap_or(after.len()));
        }
        if !port.is_empty() && !matches!(port.parse::<u16>(), Ok(1..)) {
            return Err(malformed("the URL has a port that is not a number from 1 to 65535"));
        }
        hosts.push(host);
        ports.push(port);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None => break,
        }
    }
    if ports.iter().any(|port| !port.is_empty()) {
        decode_and_set(settings, "port", &ports.join(","))?;
    }
    Ok((hosts.join(","), rest.strip_prefix('/').unwrap_or(rest)))
}

/// Parses the parameters of a URL. Those of a URL of SQLAlchemy are read as SQLAlchemy does.
fn parse_query(
    query: &str,
    is_of_sqlalchemy: bool,
    settings: &mut ConnectionParameters,
) -> Result<()> {
    let mut after_password = query.contains('@');
    let (mut hosts, mut has_port) = (Vec::new(), false);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=').filter(|(_, v)| !v.contains('=')) else {
            return Err(malformed("the URL has a parameter that is not written as key=value"));
        };
        let name = decode(name)?;
        if name == "ssl" {
            // libpq takes `ssl=true`; asyncpg takes the words of sslmode.
            decode_and_set(settings, "sslmode", if value == "true" { "require" } else { value })?;
            continue;
        }
        if is_of_sqlalchemy && name == "host" {
            hosts.push(decode(value)?);
            continue;
        }
        if is_of_sqlalchemy && DRIVER_PARAMETERS.contains(&name.as_str()) {
            continue;
        }
        has_port |= name == "port";
        let Some(known) = keyword::find(&name) else {
            return Err(unknown_parameter(&name, !after_password, "the URL"));
        };
        settings.set(known.name, decode(value)?);
        after_password |= keyword::is_secret(known.name);
    }
    set_hosts_of_sqlalchemy(&hosts, has_port, settings);
    Ok(())
}

/// Stores the values of `host` in a URL of SQLAlchemy. Several of them, or one without another
/// `port`, may be written as `host:port`.
fn set_hosts_of_sqlalchemy(hosts: &[String], has_port: bool, settings: &mut ConnectionParameters) {
    let is_name =
        |host: &str| host.bytes().all(|it| it.is_ascii_alphanumeric() || b"-.".contains(&it));
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let split = |written: &String| match written.split_once(':') {
        Some((host, port)) if !has_port && is_name(host) && is_number(port) => {
            (host.to_owned(), port.to_owned())
        }
        _ => (written.clone(), String::new()),
    };
    let (hosts, ports): (Vec<_>, Vec<_>) = hosts.iter().map(split).unzip();
    if hosts.iter().any(|host| !host.is_empty()) {
        settings.set("host", hosts.join(","));
    }
    if ports.iter().any(|port| !port.is_empty()) {
        settings.set("port", ports.join(","));
    }
}

/// Decodes a value, and stores it unless it is empty.
fn decode_and_set(
    settings: &mut ConnectionParameters,
    name: &'static str,
    encoded: &str,
) -> Result<()> {
    if !encoded.is_empty() {
        settings.set(name, decode(encoded)?);
    }
    Ok(())
}

/// Replaces percent-encoded characters.
fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let hex = after.get(..2).and_then(|hex| Some((hex_value(hex[0])?, hex_value(hex[1])?)));
        let Some((high, low)) = hex else {
            return Err(malformed("the URL has a \"%\" without two hexadecimal digits after it"));
        };
        bytes.push(high << 4 | low);
        rest = &after[2..];
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        Ok(_) => Err(malformed("the URL has a zero byte, %00")),
        Err(_) => Err(malformed("the URL has percent-encoded bytes that are not UTF-8")),
    }
}

fn hex_value(c: u8) -> Option<u8> {
    char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Percent-encodes every character of `text` that could end a part of a URL.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn malformed(message: &str) -> Error {
    Error::new(ErrorKind::Usage, message).hint(
        "A URL is postgres://user:password@host:port/dbname?key=value; inside its parts write %40 \
         for @, %2F for /, %3A for :, %3F for ?, %26 for & and %25 for %.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ConnectionParameters {
        let mut settings = ConnectionParameters::default();
        parse(text, &mut settings).unwrap();
        settings
    }

    fn refused(text: &str) -> String {
        parse(text, &mut ConnectionParameters::default()).unwrap_err().to_string()
    }

    #[test]
    fn every_part_is_parsed() {
        let settings = parsed(
            "postgresql://bob:s%40c%2Fr%65t@db1:5433,[::1],%2Frun%2Fpg:5434/my%20db\
             ?sslmode=verify-full&application_name=a%26b&ssl=true",
        );
        assert_eq!(settings.get("user"), Some("bob"));
        assert_eq!(settings.get("password"), Some("s@c/ret"));
        assert_eq!(settings.get("host"), Some("db1,::1,/run/pg"));
        assert_eq!(settings.get("port"), Some("5433,,5434"));
        assert_eq!(settings.get("dbname"), Some("my db"));
        assert_eq!(settings.get("application_name"), Some("a&b"));
        assert_eq!(settings.get("sslmode"), Some("require"));
    }

    #[test]
    fn urls_of_sqlalchemy_are_parsed() {
        for driver in ["", "+psycopg", "+psycopg2", "+asyncpg", "+pg8000"] {
            let text = format!("postgresql{driver}://bob:s%40cret@db1:5433/mine?ssl=verify-full");
            assert!(is_uri(&text));
            let settings = parsed(&text);
            assert_eq!(settings.get("user"), Some("bob"), "{driver}");
            assert_eq!(settings.get("password"), Some("s@cret"), "{driver}");
            assert_eq!(settings.get("port"), Some("5433"), "{driver}");
            assert_eq!(settings.get("sslmode"), Some("verify-full"), "{driver}");
        }
    }

    #[test]
    fn parameters_of_sqlalchemy_are_read_as_it_does() {
        for (text, host, port) in [
            ("+asyncpg://db1:5433/d?prepared_statement_cache_size=0", "db1", Some("5433")),
            ("+asyncpg://db1/d?async_fallback=true&statement_cache_size=0", "db1", None),
            ("+psycopg2:///d?host=127.0.0.1:5703", "127.0.0.1", Some("5703")),
            ("+psycopg2://db1:1/d?host=db2:5703", "db2", Some("5703")),
            ("+psycopg2:///d?host=db1:5&host=db2&host=db3:7", "db1,db2,db3", Some("5,,7")),
            ("+psycopg2:///d?host=db1,db2&port=5,6", "db1,db2", Some("5,6")),
            ("+psycopg2:///d?host=/run/pg&port=5", "/run/pg", Some("5")),
            ("+psycopg:///d?host=%3A%3A1", "::1", None),
            ("+psycopg://db1/d?host=", "db1", None),
        ] {
            let settings = parsed(&format!("postgresql{text}"));
            assert_eq!((settings.get("host"), settings.get("port")), (Some(host), port), "{text}");
            assert_eq!(settings.get("dbname"), Some("d"), "{text}");
        }
        for (text, name) in [
            ("postgresql+asyncpg://db1/d?statement_cach=0", "statement_cach"),
            ("postgresql://db1/d?statement_cache_size=0", "statement_cache_size"),
        ] {
            assert_eq!(refused(text), format!("unknown connection parameter \"{name}\""));
        }
        assert_eq!(parsed("postgresql:///d?host=db1:5703").get("host"), Some("db1:5703"));
    }

    #[test]
    fn an_unknown_scheme_is_named_with_the_known_ones() {
        let refusal = |text| parse(text, &mut ConnectionParameters::default()).unwrap_err();
        for (text, scheme, question) in [
            ("postgre://bob:hunter2@db1/x", "postgre", "Did you mean \"postgres\"? "),
            ("postgressql://bob:hunter2@db1/x", "postgressql", "Did you mean \"postgresql\"? "),
            ("mysql://bob:hunter2@db1/x", "mysql", ""),
            ("postgresql+odbc://bob:hunter2@db1/x", "postgresql+odbc", ""),
        ] {
            assert!(is_uri(text));
            let error = refusal(text);
            let message = format!("unknown scheme \"{scheme}\" of the connection URL");
            assert_eq!(error.to_string(), message);
            let hint = error.hint_text().unwrap();
            assert!(hint.starts_with(&format!("{question}The known schemes are")), "{hint}");
            assert!(!hint.contains("hunter2"));
        }
        assert!(!is_uri("host=db1 password=a://b"));
        assert!(!is_uri("bob:hunter2://db1"));
    }

    #[test]
    fn parts_may_be_missing() {
        assert_eq!(format!("{:?}", parsed("postgres://")), "{}");
        assert_eq!(format!("{:?}", parsed("postgres:///db")), r#"{"dbname": "db"}"#);
        assert_eq!(parsed("postgres://db1").get("host"), Some("db1"));
        assert_eq!(parsed("postgres://bob@/db").get("user"), Some("bob"));
        assert_eq!(parsed("postgres://db1?port=7").get("port"), Some("7"));
        assert_eq!(parsed("postgres:///db?host=/tmp").get("host"), Some("/tmp"));
        assert_eq!(parsed("postgres://b:x?y#z@h/d").get("password"), Some("x?y#z"));
    }

    #[test]
    fn an_unencoded_password_is_refused_and_not_repeated() {
        for text in [
            "postgres://bob:hun@ter2@db1/x",
            "postgres://bob:hun/ter2@db1/x",
            "postgres://bob:123/hunter2@db1/x",
            "postgres://bob:hunter2",
            "postgres://bob:hun%ter2@db1/x",
            "postgres://db1/x?password=hun&ter2=3",
            "postgres://db1/x?password=hun=ter2",
        ] {
            let error = refused(text);
            assert!(!error.contains("hun") && !error.contains("ter2"), "{error}");
        }
        assert_eq!(
            refused("postgres://db1/x?sslmod=require"),
            "unknown connection parameter \"sslmod\""
        );
        assert!(refused("postgres://[::1/x").contains("\"[\""));
        assert!(refused("postgres://db1:99999/x").contains("65535"));
    }
}

//! Connection strings: builds them for embedded servers, and replaces the database in any of them.
//!
//! Values are quoted as conninfo strings require, so folder names may contain spaces and quotes.

use std::path::Path;

/// The start of the line in a password file: any host, port and database, and the user `postgres`.
/// The password follows; it has only letters and digits, which need no escapes.
const PASSFILE_START: &str = "*:*:*:postgres:";

/// Returns a `key=value` string for a server's Unix socket or, without one, for its port on
/// 127.0.0.1. The string has no password: add it with [`with_password`] or [`with_passfile`].
pub(crate) fn for_server(socket_folder: Option<&Path>, port: u16, database: &str) -> String {
    let host = socket_folder.map_or("127.0.0.1".into(), |folder| folder.to_string_lossy());
    format!("host={} port={port} user=postgres dbname={}", quote(&host), quote(database))
}

/// Adds the password itself to a `key=value` string.
pub(crate) fn with_password(dsn: &str, password: &str) -> String {
    format!("{dsn} password={}", quote(password))
}

/// Adds the path of the password file. psql and all other clients with libpq read the file.
pub(crate) fn with_passfile(dsn: &str, path: &Path) -> String {
    format!("{dsn} passfile={}", quote(&path.to_string_lossy()))
}

/// Returns the line of a password file for the user `postgres`.
pub(crate) fn passfile_line(password: &str) -> String {
    format!("{PASSFILE_START}{password}\n")
}

/// Returns the password in a password file. Earlier versions of pgspate wrote only the password.
pub(crate) fn password_in(passfile: &str) -> &str {
    passfile.strip_prefix(PASSFILE_START).unwrap_or(passfile).trim()
}

/// Returns whether libpq can read a password file.
pub(crate) fn is_passfile(text: &str) -> bool {
    text.starts_with(PASSFILE_START)
}

/// Returns a URL for a server's TCP port on 127.0.0.1.
pub(crate) fn for_tcp(port: u16, password: &str, database: &str) -> String {
    let (password, database) = (percent_encode(password), percent_encode(database));
    format!("postgresql://postgres:{password}@127.0.0.1:{port}/{database}")
}

/// Returns `dsn` (a URL or `key=value`) with another database of the same server.
pub(crate) fn with_database(dsn: &str, database: &str) -> String {
    let Some((scheme, rest)) = dsn.split_once("://") else {
        // If a keyword occurs twice, the last one counts.
        return format!("{} dbname={}", dsn.trim_end(), quote(database));
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let others: Vec<&str> =
        query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("dbname=")).collect();
    let query = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    format!("{scheme}://{authority}/{}{query}", percent_encode(database))
}

/// Returns a conninfo value, quoted if necessary.
fn quote(value: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && c != '\'' && c != '\\';
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_string();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Percent-encodes all characters that could have a meaning in a URL.
fn percent_encode(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(byte as char);
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::Config;
    use tokio_postgres::config::Host;

    #[test]
    fn socket_folders_may_contain_spaces_and_quotes() {
        let folder = Path::new("/tmp/it's a \\ folder");
        let config: Config = for_server(Some(folder), 6543, "my db").parse().unwrap();
        assert_eq!(config.get_hosts(), [Host::Unix(folder.to_path_buf())]);
        assert_eq!(config.get_ports(), [6543]);
        assert_eq!(config.get_dbname(), Some("my db"));
    }

    #[test]
    fn with_database_replaces_only_the_database() {
        let cases = [
            "host=h port=5 user=u dbname=old sslmode=disable",
            "host=h port=5 user=u sslmode=disable ",
            "postgres://u@h:5/old?sslmode=disable&dbname=older",
            "postgresql://u@h:5?sslmode=disable",
            "postgresql://u@h:5/?sslmode=disable",
        ];
        for dsn in cases {
            let config: Config = with_database(dsn, "new/db'x").parse().unwrap();
            assert_eq!(config.get_dbname(), Some("new/db'x"), "{dsn}");
            assert_eq!(config.get_user(), Some("u"), "{dsn}");
            assert_eq!(config.get_hosts(), [Host::Tcp("h".into())], "{dsn}");
            assert_eq!(config.get_ports(), [5], "{dsn}");
        }
    }

    #[test]
    fn password_files_of_this_and_earlier_versions_are_read() {
        assert_eq!(password_in(&passfile_line("a1")), "a1");
        assert_eq!(password_in("a1"), "a1");
        assert!(is_passfile(&passfile_line("a1")) && !is_passfile("a1"));
        let dsn = with_password(&for_server(None, 1, "postgres"), "a b");
        let config: Config = dsn.parse().unwrap();
        assert_eq!(config.get_password(), Some("a b".as_bytes()));
        let dsn = with_passfile(&for_server(None, 1, "postgres"), Path::new("/it's here"));
        assert!(dsn.ends_with(r" passfile='/it\'s here'"), "{dsn}");
    }

    #[test]
    fn tcp_urls_may_contain_any_password() {
        let config: Config = for_tcp(5432, "p@ss/w:rd?", "postgres").parse().unwrap();
        assert_eq!(config.get_password(), Some("p@ss/w:rd?".as_bytes()));
        assert_eq!(config.get_ports(), [5432]);
    }
}

//! Connection strings: written for our own servers, pointed at another database for others'.
//!
//! Values are quoted as conninfo demands, so a folder with spaces or quotes in its name is safe.

use std::path::Path;

/// A `key=value` string for a server's Unix socket, which needs no password.
pub(crate) fn for_socket(folder: &Path, port: u16, database: &str) -> String {
    let host = quote(&folder.to_string_lossy());
    format!("host={host} port={port} user=postgres dbname={}", quote(database))
}

/// A URL for a server's TCP port on loopback.
pub(crate) fn for_tcp(port: u16, password: &str, database: &str) -> String {
    let (password, database) = (percent(password), percent(database));
    format!("postgresql://postgres:{password}@127.0.0.1:{port}/{database}")
}

/// The same server as `dsn` names (a URL or `key=value`), but another database of it.
pub(crate) fn with_database(dsn: &str, database: &str) -> String {
    let Some((scheme, rest)) = dsn.split_once("://") else {
        // Of a keyword given twice, the last counts.
        return format!("{} dbname={}", dsn.trim_end(), quote(database));
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let others: Vec<&str> =
        query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("dbname=")).collect();
    let query = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    format!("{scheme}://{authority}/{}{query}", percent(database))
}

/// A conninfo value, quoted where it must be.
fn quote(value: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && c != '\'' && c != '\\';
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_string();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Percent-encodes all but the characters that mean themselves anywhere in a URL.
fn percent(value: &str) -> String {
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
    fn socket_strings_survive_odd_folder_names() {
        let folder = Path::new("/tmp/it's a \\ folder");
        let config: Config = for_socket(folder, 6543, "my db").parse().unwrap();
        assert_eq!(config.get_hosts(), [Host::Unix(folder.to_path_buf())]);
        assert_eq!(config.get_ports(), [6543]);
        assert_eq!(config.get_dbname(), Some("my db"));
    }

    #[test]
    fn the_database_is_replaced_and_the_rest_stays() {
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
    fn tcp_urls_carry_any_password() {
        let config: Config = for_tcp(5432, "p@ss/w:rd?", "postgres").parse().unwrap();
        assert_eq!(config.get_password(), Some("p@ss/w:rd?".as_bytes()));
        assert_eq!(config.get_ports(), [5432]);
    }
}

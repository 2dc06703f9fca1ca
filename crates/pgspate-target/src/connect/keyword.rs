//! The connection parameters of libpq, and how pgspate treats each.
//!
//! A parameter that would make the connection safer, but is not supported, is refused and never
//! ignored. A parameter that only selects an unsupported feature is ignored.

/// One connection parameter.
#[derive(Debug)]
pub(super) struct Keyword {
    /// The name, as in a connection string.
    pub(super) name: &'static str,
    /// The environment variable that sets the parameter, if any.
    pub(super) variable: Option<&'static str>,
    /// How pgspate treats the parameter.
    pub(super) support: KeywordSupport,
}

/// How pgspate treats a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeywordSupport {
    /// The parameter takes effect.
    Honoured,
    /// The parameter is accepted without effect.
    Ignored,
    /// Any non-empty value is an error, for this reason.
    Refused(&'static str),
}

const fn keyword(name: &'static str, variable: &'static str, support: KeywordSupport) -> Keyword {
    let variable = if variable.is_empty() { None } else { Some(variable) };
    Keyword { name, variable, support }
}

use KeywordSupport::{Honoured, Ignored, Refused};

/// Every parameter of libpq 18.
pub(super) const KEYWORDS: &[Keyword] = &[
    keyword("service", "PGSERVICE", Honoured),
    keyword("servicefile", "PGSERVICEFILE", Honoured),
    keyword("host", "PGHOST", Honoured),
    keyword("hostaddr", "PGHOSTADDR", Honoured),
    keyword("port", "PGPORT", Honoured),
    keyword("dbname", "PGDATABASE", Honoured),
    keyword("user", "PGUSER", Honoured),
    keyword("password", "PGPASSWORD", Honoured),
    keyword("passfile", "PGPASSFILE", Honoured),
    keyword("channel_binding", "PGCHANNELBINDING", Honoured),
    keyword("connect_timeout", "PGCONNECT_TIMEOUT", Honoured),
    keyword("client_encoding", "PGCLIENTENCODING", Honoured),
    keyword("options", "PGOPTIONS", Honoured),
    keyword("application_name", "PGAPPNAME", Honoured),
    keyword("fallback_application_name", "", Honoured),
    keyword("keepalives", "", Honoured),
    keyword("keepalives_idle", "", Honoured),
    keyword("keepalives_interval", "", Honoured),
    keyword("keepalives_count", "", Honoured),
    keyword("tcp_user_timeout", "", Honoured),
    keyword("sslmode", "PGSSLMODE", Honoured),
    keyword("sslnegotiation", "PGSSLNEGOTIATION", Honoured),
    keyword("sslcert", "PGSSLCERT", Honoured),
    keyword("sslkey", "PGSSLKEY", Honoured),
    keyword("sslcertmode", "PGSSLCERTMODE", Honoured),
    keyword("sslrootcert", "PGSSLROOTCERT", Honoured),
    keyword("sslsni", "PGSSLSNI", Honoured),
    keyword("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Honoured),
    keyword("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Honoured),
    keyword("target_session_attrs", "PGTARGETSESSIONATTRS", Honoured),
    keyword("load_balance_hosts", "PGLOADBALANCEHOSTS", Honoured),
    keyword("gssencmode", "PGGSSENCMODE", Honoured),
    keyword("sslcompression", "PGSSLCOMPRESSION", Ignored),
    keyword("krbsrvname", "PGKRBSRVNAME", Ignored),
    keyword("gsslib", "PGGSSLIB", Ignored),
    keyword("gssdelegation", "PGGSSDELEGATION", Ignored),
    keyword("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    keyword("oauth_issuer", "", Ignored),
    keyword("oauth_client_id", "", Ignored),
    keyword("oauth_client_secret", "", Ignored),
    keyword("oauth_scope", "", Ignored),
    keyword("sslcrl", "PGSSLCRL", Honoured),
    keyword("sslcrldir", "PGSSLCRLDIR", Honoured),
    keyword("sslpassword", "", Refused("encrypted private keys are not supported")),
    keyword("sslkeylogfile", "", Refused("logging of TLS keys is not supported")),
    keyword(
        "requirepeer",
        "PGREQUIREPEER",
        Refused("checking the server's operating system user is not supported"),
    ),
    keyword(
        "require_auth",
        "PGREQUIREAUTH",
        Refused("restricting authentication methods is not supported"),
    ),
    keyword("scram_client_key", "", Refused("SCRAM keys in place of a password are not supported")),
    keyword("scram_server_key", "", Refused("SCRAM keys in place of a password are not supported")),
    keyword("replication", "", Refused("pgspate opens replication connections by itself")),
    keyword("min_protocol_version", "PGMINPROTOCOLVERSION", Honoured),
];

/// Parameters whose values are never printed.
const SECRETS: [&str; 5] =
    ["password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"];

/// Returns the parameter with this name.
pub(super) fn find(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|keyword| keyword.name == name)
}

/// Returns whether values of this parameter are never printed.
pub(super) fn is_secret(name: &str) -> bool {
    SECRETS.contains(&name)
}

/// Returns whether `text` could be meant as a parameter name. Other text may be part of a password,
/// and is not repeated in messages.
pub(super) fn looks_like_keyword(text: &str) -> bool {
    (1..=40).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Returns the known parameter that the user probably meant by the unknown `name`.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let alias = match name.as_str() {
        "database" | "db" => Some("dbname"),
        "username" => Some("user"),
        "hostname" | "server" => Some("host"),
        "timeout" => Some("connect_timeout"),
        "ssl" => Some("sslmode"),
        _ => None,
    };
    alias.or_else(|| pgspate_base::nearest(&name, KEYWORDS.iter().map(|known| known.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_the_intended_parameter() {
        assert_eq!(nearest("pasword"), Some("password"));
        assert_eq!(nearest("sslmdoe"), Some("sslmode"));
        assert_eq!(nearest("hots"), Some("host"));
        assert_eq!(nearest("Database"), Some("dbname"));
        assert_eq!(nearest("aplication_name"), Some("application_name"));
        assert_eq!(nearest("colour"), None);
    }

    #[test]
    fn names_and_variables_are_unique() {
        for (i, a) in KEYWORDS.iter().enumerate() {
            assert!(looks_like_keyword(a.name));
            for b in &KEYWORDS[i + 1..] {
                assert_ne!(a.name, b.name);
                assert!(a.variable.is_none() || a.variable != b.variable, "{:?}", a.variable);
            }
        }
    }
}

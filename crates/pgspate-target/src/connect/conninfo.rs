//! Parses the `key=value` form of a connection string.
//!
//! A message repeats a piece of the text only if the piece cannot be from a password.

use super::keyword;
use super::parameters::{ConnectionParameters, unknown_parameter};
use crate::{Error, ErrorKind, Result};

/// Parses `text` into `settings`. Values may be in single quotes. A backslash makes the next
/// character literal.
pub(super) fn parse(text: &str, settings: &mut ConnectionParameters) -> Result<()> {
    let mut rest = text.trim_start_matches(is_space);
    let mut after_password = false;
    while !rest.is_empty() {
        let end = rest.find(|c| c == '=' || is_space(c)).unwrap_or(rest.len());
        let name = &rest[..end];
        rest = rest[end..].trim_start_matches(is_space);
        let Some(after) = rest.strip_prefix('=') else {
            return Err(missing_equals(text, text.len() - rest.len()));
        };
        let Some(known) = keyword::find(name) else {
            return Err(unknown_parameter(name, !after_password, "the connection string"));
        };
        let (value, after) = parse_value(after.trim_start_matches(is_space))?;
        if value.contains('\0') {
            return Err(Error::new(ErrorKind::Usage, format!("zero byte in the value of {name}")));
        }
        settings.set(known.name, value);
        after_password = keyword::is_secret(name);
        rest = after.trim_start_matches(is_space);
    }
    Ok(())
}

/// Returns the value at the start of `text`, and the text after it.
fn parse_value(text: &str) -> Result<(String, &str)> {
    let quoted = text.starts_with('\'');
    let text = text.strip_prefix('\'').unwrap_or(text);
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            c if !quoted && is_space(c) => return Ok((value, &text[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        return Err(Error::new(
            ErrorKind::Usage,
            "unterminated quoted string in connection string",
        )
        .hint("Inside single quotes write \\' for a quote and \\\\ for a backslash."));
    }
    Ok((value, ""))
}

fn missing_equals(text: &str, at: usize) -> Error {
    let at = text[..at].chars().count();
    let message = format!("missing \"=\" in connection string, at character {at}");
    Error::new(ErrorKind::Usage, message).hint(
        "Write a URL, postgres://user@host:port/dbname, or `key=value` pairs such as \
         `host=localhost dbname=mine`, with values that contain spaces in single quotes.",
    )
}

fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\x0b'
}

/// Quotes `value` so that it can follow `key=`.
#[cfg(test)]
pub(super) fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ConnectionParameters {
        let mut settings = ConnectionParameters::default();
        parse(text, &mut settings).unwrap();
        settings
    }

    fn refused(text: &str) -> Error {
        parse(text, &mut ConnectionParameters::default()).unwrap_err()
    }

    #[test]
    fn pairs_with_quotes_escapes_and_spaces() {
        let settings = parsed(" host = db1 port=5433\tdbname='my \\'db\\\\'user=a\\ b password=''");
        assert_eq!(settings.get("host"), Some("db1"));
        assert_eq!(settings.get("port"), Some("5433"));
        assert_eq!(settings.get("dbname"), Some("my 'db\\"));
        assert_eq!(settings.get("user"), Some("a b"));
        assert_eq!(settings.get("password"), None);
        assert!(settings.origin("password").is_some());
    }

    #[test]
    fn the_last_value_of_a_key_wins() {
        assert_eq!(parsed("host=a host=b").get("host"), Some("b"));
    }

    #[test]
    fn errors_do_not_repeat_values() {
        assert_eq!(
            refused("host=a pasword=x").to_string(),
            "unknown connection parameter \"pasword\""
        );
        assert_eq!(
            refused("password=hunter two=3").to_string(),
            "unknown connection parameter in the connection string"
        );
        assert_eq!(
            refused("password=hunter two three").to_string(),
            "missing \"=\" in connection string, at character 20"
        );
        assert!(refused("password='hunter").to_string().starts_with("unterminated quoted"));
        assert!(!refused("bob:hun=ter@host/db").to_string().contains("hun"));
    }
}

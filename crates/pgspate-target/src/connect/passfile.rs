//! Reads the password file. Each line is `host:port:database:user:password`.
//!
//! As in libpq, a file with group or world access is not used. No message contains a password.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pgspate_base::Secret;

/// The result of a search in a password file.
pub(super) enum PasswordLookup {
    /// The password of the first matching line.
    Found(Secret),
    /// No line matches.
    NoLine,
    /// The file does not exist.
    NoFile,
    /// The file must not be used or cannot be read. The reason completes "the password file ...".
    Ignored(String),
}

/// Looks up the password for one server.
pub(super) fn look_up(
    path: &Path,
    host: &str,
    port: u16,
    dbname: &str,
    user: &str,
) -> PasswordLookup {
    let Ok(facts) = std::fs::metadata(path) else { return PasswordLookup::NoFile };
    if !facts.is_file() {
        return PasswordLookup::Ignored("is not a plain file".to_owned());
    }
    if facts.mode() & 0o077 != 0 {
        return PasswordLookup::Ignored(
            "has group or world access; its permissions should be u=rw (0600) or less".to_owned(),
        );
    }
    match std::fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let fields = [host, &port.to_string(), dbname, user];
            let found = text.lines().find_map(|line| password_of(line, fields));
            found.map_or(PasswordLookup::NoLine, PasswordLookup::Found)
        }
        Err(error) => PasswordLookup::Ignored(format!("could not be read: {}", error.kind())),
    }
}

/// Returns the password of a line, if the line is for this host, port, database and role.
fn password_of(line: &str, wanted_fields: [&str; 4]) -> Option<Secret> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line.trim_end_matches('\r');
    for wanted in wanted_fields {
        let (field, is_star, after) = cut_field(rest);
        if !is_star && field != wanted {
            return None;
        }
        rest = after?;
    }
    let (password, _, _) = cut_field(rest);
    (!password.is_empty()).then(|| Secret::new(password))
}

/// Returns a field without its escapes, whether it is a bare `*`, and the text after its colon.
fn cut_field(text: &str) -> (String, bool, Option<&str>) {
    let mut field = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => field.push(chars.next().map_or('\\', |(_, c)| c)),
            ':' => return (field, &text[..at] == "*", Some(&text[at + 1..])),
            c => field.push(c),
        }
    }
    (field, false, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<String> {
        password_of(line, ["db:1", "5432", "sales", "bob"]).map(|secret| secret.expose().to_owned())
    }

    #[test]
    fn fields_wildcards_and_escapes() {
        assert_eq!(found("db\\:1:5432:sales:bob:se\\:cr\\\\et").as_deref(), Some("se:cr\\et"));
        assert_eq!(found("*:*:*:*:x\r").as_deref(), Some("x"));
        assert_eq!(found("*:*:*:bob:a:ignored").as_deref(), Some("a"));
        assert_eq!(found("*:*:*:alice:x"), None);
        assert_eq!(found("\\*:*:*:bob:x"), None);
        assert_eq!(found("#*:*:*:*:x"), None);
        assert_eq!(found("*:*:*:bob:"), None);
        assert_eq!(found("*:*:*:bob:a\\").as_deref(), Some("a\\"));
        assert_eq!(found("*:*:*"), None);
        assert_eq!(found(""), None);
    }
}

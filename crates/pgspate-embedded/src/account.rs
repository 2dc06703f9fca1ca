//! The user that a server runs as if pgspate runs as root, and the paths that this user can reach.
//!
//! PostgreSQL refuses to run as root. If pgspate does not run as root, the server runs as the same
//! user as pgspate, and there is no account. Access is decided by owner, group and mode; ACLs are
//! ignored.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{self, Result};
use crate::sys;

/// User names, tried in this order. `nobody` exists on nearly every machine, `postgres` where
/// PostgreSQL was installed.
const NAMES: [&str; 2] = ["postgres", "nobody"];

/// An unprivileged user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerAccount {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl ServerAccount {
    /// Returns the user that servers run as, or `None` if that is pgspate's own user.
    pub(crate) fn for_server() -> Result<Option<ServerAccount>> {
        if sys::effective_uid() != 0 {
            return Ok(None);
        }
        let path = Path::new("/etc/passwd");
        let passwd = fs::read_to_string(path).map_err(|e| error::could_not("read", path, e))?;
        match choose(&passwd) {
            Some(account) => Ok(Some(account)),
            None => Err(error::new("PostgreSQL does not run as root, and no other user was found")
                .hint("Create a user named postgres, or run pgspate as an ordinary user.")),
        }
    }

    /// Returns whether the account may enter a folder, or execute a file, with this mode and owner.
    fn may_execute(&self, mode: u32, uid: u32, gid: u32) -> bool {
        let shift = match () {
            () if uid == self.uid => 6,
            () if gid == self.gid => 3,
            () => 0,
        };
        mode >> shift & 0o1 == 1
    }
}

/// Finds the first of [`NAMES`] in `/etc/passwd`.
fn choose(passwd: &str) -> Option<ServerAccount> {
    NAMES.iter().find_map(|name| passwd.lines().find_map(|line| parse(line, name)))
}

/// Parses a line of `/etc/passwd`, if the line describes the user `wanted`.
fn parse(line: &str, wanted: &str) -> Option<ServerAccount> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| *name == wanted)?;
    let uid = fields.nth(1)?.parse().ok().filter(|uid| *uid != 0)?;
    let gid = fields.next()?.parse().ok()?;
    Some(ServerAccount { name: name.to_string(), uid, gid })
}

/// Returns the first part of `path` that `account` cannot use: a folder that it may not enter, or a
/// file that it may not execute. Parts that do not exist yet are ignored.
pub(crate) fn blocked_at(path: &Path, account: &ServerAccount) -> Option<PathBuf> {
    let existing = path.ancestors().find_map(|part| part.canonicalize().ok())?;
    let mut parts: Vec<_> = existing.ancestors().collect();
    parts.reverse();
    let blocked = |part: &&&Path| match fs::metadata(part) {
        Ok(metadata) => !account.may_execute(metadata.mode(), metadata.uid(), metadata.gid()),
        Err(_) => true,
    };
    parts.iter().find(blocked).map(|part| part.to_path_buf())
}

/// Describes a user for error messages: by name, if the user has one, and by id.
pub(crate) fn describe_uid(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    match name_of(&passwd, uid) {
        Some(name) => format!("user \"{name}\" (uid {uid})"),
        None => format!("the user with uid {uid}"),
    }
}

/// Returns the name of a user in `/etc/passwd`.
fn name_of(passwd: &str, uid: u32) -> Option<&str> {
    let mut lines = passwd.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
        postgresql:x:9:9::/:/bin/sh\n";

    fn account(uid: u32, gid: u32) -> ServerAccount {
        ServerAccount { name: "x".into(), uid, gid }
    }

    #[test]
    fn postgres_comes_before_nobody() {
        assert_eq!(choose(PASSWD).unwrap().name, "nobody");
        let both = format!("{PASSWD}postgres:x:101:104::/var/lib/postgresql:/bin/bash\n");
        let expected = ServerAccount { name: "postgres".into(), uid: 101, gid: 104 };
        assert_eq!(choose(&both), Some(expected));
    }

    #[test]
    fn name_of_finds_the_name_of_a_uid() {
        assert_eq!(name_of(PASSWD, 65_534), Some("nobody"));
        assert_eq!(name_of(PASSWD, 7), None);
        assert_eq!(name_of("nobody\n:\nx:x\n", 7), None);
    }

    #[test]
    fn broken_entries_and_uid_zero_are_skipped() {
        assert_eq!(choose("postgres:x:0:0::/:/bin/sh\nnobody:x:abc:1::/:\nnobody\n\n"), None);
    }

    #[test]
    fn owner_bits_decide_for_the_owner_even_if_others_have_access() {
        assert!(!account(7, 7).may_execute(0o077, 7, 7));
        assert!(!account(7, 7).may_execute(0o707, 8, 7));
        assert!(account(7, 7).may_execute(0o001, 8, 8));
        assert!(!account(7, 7).may_execute(0o700, 0, 0));
    }

    #[test]
    fn blocked_at_returns_the_first_closed_folder_and_ignores_absent_parts() {
        let temp = tempfile::tempdir().unwrap();
        let closed = temp.path().canonicalize().unwrap().join("closed");
        fs::create_dir_all(closed.join("inner")).unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let other = sys::effective_uid() + 54_321;
        let nobody = account(other, other);
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(blocked_at(&closed.join("inner/not/there"), &nobody), None);
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(blocked_at(&closed.join("inner/not/there"), &nobody), Some(closed));
    }
}

//! Files and folders with the owner and mode that PostgreSQL insists on.
//!
//! Under root we write into folders of a less privileged user. Files are therefore written under
//! a new name and renamed, which never follows a symbolic link that somebody put there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::account::{Account, give};
use crate::error::{Error, Result};

/// Longest socket folder: the address holds 108 bytes on Linux and 104 elsewhere, and the
/// server appends `/.s.PGSQL.65535` and a final zero.
pub(crate) const SOCKET_FOLDER_BYTES_MAX: usize = 104 - "/.s.PGSQL.65535".len() - 1;

/// Log lines quoted in an error.
const LOG_LINES_QUOTED: usize = 12;
/// The end of a log that is searched for them.
const LOG_BYTES_QUOTED: u64 = 16 << 10;

/// Makes a folder that only `account` (or we) can enter; one that is there already is taken over.
pub(crate) fn make_private(path: &Path, account: Option<&Account>) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(Error::file("create", path, e)),
        _ => give(path, account),
    }
}

/// Replaces the file `path` by `content`, readable by `account` (or us) alone. Not synced: on a
/// busy disk that takes longer than all else, and most of these files are written at every start.
pub(crate) fn write_private(path: &Path, content: &[u8], account: Option<&Account>) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    remove_file(&new)?;
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)
    };
    write().map_err(|e| Error::file("write", &new, e))?;
    give(&new, account)?;
    fs::rename(&new, path).map_err(|e| Error::file("write", path, e))
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes a folder and all in it; one that is not there is fine.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes the sockets, and their lock files, that a crashed server left in `folder`.
pub(crate) fn remove_sockets(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|e| Error::file("read", folder, e))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(".s.PGSQL.") {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// Opens (or makes) the file that processes of pgspate lock.
pub(crate) fn lock_file(path: &Path) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|e| Error::file("open", path, e))
}

/// A TCP port of loopback that was free a moment ago. Whoever binds it must be ready to lose it.
pub(crate) fn free_port() -> Result<u16> {
    let bind = || TcpListener::bind(("127.0.0.1", 0))?.local_addr();
    let address =
        bind().map_err(|e| Error::new("could not find a free port on 127.0.0.1").because(e))?;
    Ok(address.port())
}

/// Whether `port` of loopback can be bound right now.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// 128 random bits as text, for a password.
pub(crate) fn random_password() -> Result<String> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0u8; 16];
    let read = || File::open(path)?.read_exact(&mut bytes);
    let mut read = read;
    read().map_err(|e| Error::file("read", path, e))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Size of a log, to find later what was added to it. Zero if there is none.
pub(crate) fn log_end(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |facts| facts.len())
}

/// The last lines that were added to a log since it was `from` bytes long.
pub(crate) fn log_tail(log: &Path, from: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(LOG_BYTES_QUOTED))))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_QUOTED).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_QUOTED)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn private_files_replace_links_instead_of_following_them() {
        let temp = tempfile::tempdir().unwrap();
        let (victim, path) = (temp.path().join("victim"), temp.path().join("conf"));
        fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        std::os::unix::fs::symlink(&victim, temp.path().join("conf.new")).unwrap();
        write_private(&path, b"content", None).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(&path).unwrap(), "content");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_log_is_quoted_from_where_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("log");
        assert_eq!((log_end(&log), log_tail(&log, 0)), (0, String::new()));
        fs::write(&log, "old\nnew\nnewer\n").unwrap();
        assert_eq!(log_tail(&log, 4), "new\nnewer");
        let many: String = (0..10_000).map(|n| format!("line {n}\n")).collect();
        fs::write(&log, many).unwrap();
        let tail = log_tail(&log, 0);
        assert_eq!(tail.lines().count(), LOG_LINES_QUOTED);
        assert!(tail.ends_with("line 9999"));
    }

    #[test]
    fn passwords_are_long_and_differ() {
        let (one, two) = (random_password().unwrap(), random_password().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, two);
    }
}

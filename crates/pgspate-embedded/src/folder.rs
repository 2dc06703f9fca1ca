//! Files and folders with the owner and mode that PostgreSQL requires.
//!
//! If pgspate runs as root, the server's user owns the data folder and the run folder. That user
//! could put a symbolic link there at any time. So all work in these folders uses file descriptors.
//! A folder is opened once and checked. A file in it is opened without following a link, then
//! checked and changed through its descriptor. No path below such a folder is resolved twice.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use crate::account::{ServerAccount, describe_uid};
use crate::error::{self, Error, Result};
use crate::sys;

/// The longest path of a socket folder. A socket's address has 108 bytes on Linux and 104
/// elsewhere; the server appends `/.s.PGSQL.65535` and a zero byte.
pub(crate) const SOCKET_FOLDER_BYTES_MAX: usize = 104 - "/.s.PGSQL.65535".len() - 1;

/// The most lines of a log that an error quotes.
const LOG_LINES_QUOTED: usize = 12;
/// The most bytes at the end of a log that are read to find the quoted lines.
const LOG_BYTES_QUOTED: u64 = 16 << 10;
/// The longest file that is read as a whole. `pg_hba.conf` may be long; all other files are short.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// An open folder. A change of its path no longer affects it.
#[derive(Debug)]
pub(crate) struct OpenFolder {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

impl OpenFolder {
    /// Opens a folder. A symbolic link is followed only if pgspate's user owns the link.
    pub(crate) fn open(path: &Path) -> Result<OpenFolder> {
        let failed = |e: io::Error| error::could_not("open", path, e);
        let plain = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(rustix::fs::CWD, path, plain | OFlags::NOFOLLOW, Mode::empty());
        let opened = opened.or_else(|e| match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() && metadata.uid() == sys::effective_uid() => {
                openat(rustix::fs::CWD, path, plain, Mode::empty())
            }
            _ => Err(e),
        });
        match opened {
            Ok(fd) => Ok(OpenFolder { file: File::from(fd), path: path.to_path_buf() }),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                Err(not_a_folder_error(path))
            }
            Err(e) => Err(failed(e.into())),
        }
    }

    /// Returns the folder's owner and mode.
    pub(crate) fn metadata(&self) -> Result<fs::Metadata> {
        self.file.metadata().map_err(|e| error::could_not("read", &self.path, e))
    }

    /// Checks that one of `owners` owns the folder, and that no other user can write to it.
    pub(crate) fn require_safe(&self, owners: &[u32]) -> Result<()> {
        require_safe(&self.path, &self.metadata()?, owners)
    }

    /// Replaces a file of the folder by `content`. Only `account` (or pgspate's user) can read the
    /// file. The file is not synced: on a busy disk that takes long, and most files are written at
    /// every start.
    pub(crate) fn write(
        &self,
        name: &str,
        content: &[u8],
        account: Option<&ServerAccount>,
    ) -> Result<()> {
        let new = format!("{name}.new");
        let path = self.path.join(&new);
        self.remove(&new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let write = || -> io::Result<()> {
            let fd = openat(&self.file, &new, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
            let mut file = File::from(fd);
            file.write_all(content)?;
            change_owner(&file, account)
        };
        write().map_err(|e| error::could_not("write", &path, e))?;
        renameat(&self.file, &new, &self.file, name)
            .map_err(|e| error::could_not("write", &self.path.join(name), e.into()))
    }

    /// Opens a plain file to read or to append. Links and pipes are rejected. To append, files with
    /// more than one hard link are rejected too.
    pub(crate) fn open_file(&self, name: &str, how: OFlags) -> io::Result<File> {
        let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.file, name, flags, Mode::RUSR | Mode::WUSR) {
            Err(rustix::io::Errno::LOOP) => {
                return Err(io::Error::other("it is a symbolic link"));
            }
            opened => File::from(opened?),
        };
        let metadata = file.metadata()?;
        match () {
            () if !metadata.is_file() => Err(io::Error::other("it is not a plain file")),
            () if how != OFlags::RDONLY && metadata.nlink() > 1 => {
                Err(io::Error::other("it has more than one hard link"))
            }
            () => Ok(file),
        }
    }

    /// Reads a plain file of at most [`FILE_BYTES_MAX`].
    pub(crate) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.open_file(name, OFlags::RDONLY)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > FILE_BYTES_MAX {
            true => Err(io::Error::other("it is too long")),
            false => Ok(bytes),
        }
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        match unlinkat(&self.file, name, AtFlags::empty()) {
            Err(e) if e != rustix::io::Errno::NOENT => {
                Err(error::could_not("remove", &self.path.join(name), e.into()))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that one of `owners` owns a file or folder, and that no other user can write to it.
pub(crate) fn require_safe(path: &Path, metadata: &fs::Metadata, owners: &[u32]) -> Result<()> {
    let (shown, mode) = (path.display(), metadata.mode() & 0o7777);
    if !owners.contains(&metadata.uid()) {
        let (owner, own) = (describe_uid(metadata.uid()), describe_uid(sys::effective_uid()));
        return Err(error::new(format!("\"{shown}\" belongs to {owner}")).hint(format!(
            "pgspate runs as {own} and does not use files of other users. Set PGSPATE_DATA_DIR to \
             a folder of your own. If you trust the content of \"{shown}\", change its owner with \
             chown."
        )));
    }
    if mode & 0o022 != 0 {
        let message = format!("other users can write to \"{shown}\" (mode {mode:04o})");
        return Err(error::new(message).hint(format!(
            "Other users may have put files there. If you trust the content of \"{shown}\", run \
             `chmod go-w \"{shown}\"`; otherwise remove it."
        )));
    }
    Ok(())
}

/// Returns the error for a path that is not a folder.
fn not_a_folder_error(path: &Path) -> Error {
    let shown = path.display();
    let message = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => {
            format!("\"{shown}\" is a symbolic link of {}", describe_uid(metadata.uid()))
        }
        _ => format!("\"{shown}\" is not a folder"),
    };
    error::new(message).hint(format!("Remove \"{shown}\" and try again."))
}

/// Makes `account` the owner of an open file. Without an account, does nothing.
pub(crate) fn change_owner(file: &File, account: Option<&ServerAccount>) -> io::Result<()> {
    match account {
        Some(account) => fchown(file, Some(account.uid), Some(account.gid)),
        None => Ok(()),
    }
}

/// Creates a folder that only `account` (or pgspate's user) can enter. An existing folder is used
/// if pgspate's user or `account` owns it, and no other user can write to it.
///
/// # Errors
/// [`pgspate_base::ErrorKind::Connect`] if another user owns the folder, or other users can write
/// to it.
pub(crate) fn make_private(path: &Path, account: Option<&ServerAccount>) -> Result<OpenFolder> {
    let folder = make(path)?;
    let own = sys::effective_uid();
    folder.require_safe(&[own, account.map_or(own, |account| account.uid)])?;
    let close = || -> io::Result<()> {
        change_owner(&folder.file, account)?;
        folder.file.set_permissions(Permissions::from_mode(0o700))
    };
    close().map_err(|e| error::could_not("change the owner of", path, e))?;
    Ok(folder)
}

/// Creates a folder that pgspate's user owns. `account` can pass through the folder, but can
/// neither list nor change it.
///
/// # Errors
/// [`pgspate_base::ErrorKind::Connect`] if another user owns the folder, or other users can write
/// to it.
pub(crate) fn make_own(path: &Path, account: Option<&ServerAccount>) -> Result<OpenFolder> {
    let folder = make(path)?;
    folder.require_safe(&[sys::effective_uid()])?;
    let mode = if account.is_some() { 0o711 } else { 0o700 };
    let changed = folder.file.set_permissions(Permissions::from_mode(mode));
    changed.map_err(|e| error::could_not("change the mode of", path, e))?;
    Ok(folder)
}

/// Creates a folder, if it is absent, and opens it.
fn make(path: &Path) -> Result<OpenFolder> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(error::could_not("create", path, e))
        }
        _ => OpenFolder::open(path),
    }
}

/// Replaces the file `path` by `content`, with [`OpenFolder::write`].
pub(crate) fn write_private(
    path: &Path,
    content: &[u8],
    account: Option<&ServerAccount>,
) -> Result<()> {
    let (parent, name) = split(path)?;
    OpenFolder::open(parent)?.write(name, content, account)
}

/// Reads a secret from a plain file that only pgspate's user can read.
///
/// # Errors
/// [`pgspate_base::ErrorKind::Connect`] if the file is absent, is a link, belongs to another user,
/// or other users can read it.
pub(crate) fn read_secret(path: &Path) -> Result<String> {
    let (parent, name) = split(path)?;
    let failed = |e| error::could_not("read", path, e);
    let folder = OpenFolder::open(parent)?;
    let file = folder.open_file(name, OFlags::RDONLY).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    require_safe(path, &metadata, &[sys::effective_uid()])?;
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let shown = path.display();
        let message = format!("other users can read \"{shown}\" (mode {mode:04o})");
        return Err(error::new(message).hint(format!(
            "The file contains the password of the embedded PostgreSQL. Run \
             `chmod 600 \"{shown}\"`. To get a new password, stop the server, remove the file, and \
             start the server again."
        )));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Splits the path of a file into its folder and its name.
fn split(path: &Path) -> Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent()
        .zip(name)
        .ok_or_else(|| error::new(format!("\"{}\" is not the path of a file", path.display())))
}

/// Removes a file, if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error::could_not("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes a folder and its content, if it exists.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error::could_not("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes the sockets and their lock files that a crashed server has left in `folder`.
pub(crate) fn remove_sockets(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|e| error::could_not("read", folder, e))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(".s.PGSQL.") {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// Opens a lock file, and creates it if it is absent.
pub(crate) fn lock_file(path: &Path) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|e| error::could_not("open", path, e))
}

/// Returns a TCP port that is free on 127.0.0.1. Another process may take the port before the
/// caller binds it.
pub(crate) fn free_port() -> Result<u16> {
    let bind = || TcpListener::bind(("127.0.0.1", 0))?.local_addr();
    let address =
        bind().map_err(|e| error::new("could not find a free port on 127.0.0.1").because(e))?;
    Ok(address.port())
}

/// Returns whether `port` on 127.0.0.1 can be bound now.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// Returns 128 random bits in hexadecimal, as a password.
pub(crate) fn random_password() -> Result<String> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0u8; 16];
    let mut read = || File::open(path)?.read_exact(&mut bytes);
    read().map_err(|e| error::could_not("read", path, e))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the size of a log, to find later lines with [`log_tail`]. Returns 0 if there is no log.
pub(crate) fn log_size(log: &Path) -> u64 {
    open_log(log).and_then(|file| file.metadata()).map_or(0, |metadata| metadata.len())
}

/// Returns the last lines of a log, without its first `from` bytes.
pub(crate) fn log_tail(log: &Path, from: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = open_log(log)?;
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

fn open_log(log: &Path) -> io::Result<File> {
    let (parent, name) = split(log).map_err(io::Error::other)?;
    OpenFolder::open(parent).map_err(io::Error::other)?.open_file(name, OFlags::RDONLY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn private_files_replace_links_instead_of_following_them() {
        let temp = tempfile::tempdir().unwrap();
        let (victim, path) = (temp.path().join("victim"), temp.path().join("conf"));
        fs::write(&victim, "untouched").unwrap();
        symlink(&victim, &path).unwrap();
        symlink(&victim, temp.path().join("conf.new")).unwrap();
        write_private(&path, b"content", None).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(&path).unwrap(), "content");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// Returns whether the test runs as root. Otherwise prints that the test is skipped.
    fn is_root() -> bool {
        let is_root = sys::effective_uid() == 0;
        if !is_root {
            eprintln!("skipped: only root can create files of another user");
        }
        is_root
    }

    fn other_user() -> ServerAccount {
        ServerAccount { name: "other".into(), uid: 4242, gid: 4242 }
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn change_of_owner_does_not_follow_links() {
        if !is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let (victim, path) = (temp.path().join("victim"), temp.path().join("conf"));
        fs::write(&victim, "untouched").unwrap();
        for name in ["conf", "conf.new"] {
            symlink(&victim, temp.path().join(name)).unwrap();
        }
        write_private(&path, b"content", Some(&other_user())).unwrap();
        assert_eq!(fs::metadata(&victim).unwrap().uid(), 0);
        assert_eq!(fs::symlink_metadata(&path).unwrap().uid(), 4242);
    }

    #[test]
    fn only_plain_files_are_opened_to_append() {
        let temp = tempfile::tempdir().unwrap();
        let folder = OpenFolder::open(temp.path()).unwrap();
        let victim = temp.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        symlink(&victim, temp.path().join("link")).unwrap();
        let append = |name: &str| {
            let opened = folder.open_file(name, OFlags::WRONLY | OFlags::APPEND);
            opened.map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(append("victim"), Ok(()));
        assert_eq!(append("link"), Err("it is a symbolic link".to_string()));
        assert!(folder.read("link").is_err() && folder.read(".").is_err());
        fs::hard_link(&victim, temp.path().join("other")).unwrap();
        assert_eq!(append("other"), Err("it has more than one hard link".to_string()));
        assert_eq!(folder.read("other").unwrap(), b"untouched");
    }

    #[test]
    fn make_private_closes_a_folder_and_rejects_one_that_others_can_write_to() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("run");
        fs::create_dir(&path).unwrap();
        set_mode(&path, 0o755);
        make_private(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        for mode in [0o777, 0o720, 0o1777] {
            set_mode(&path, mode);
            let error = make_private(&path, None).unwrap_err();
            let shown = path.display();
            let expected = format!("other users can write to \"{shown}\" (mode {mode:04o})");
            assert_eq!(error.to_string(), expected);
            assert!(error.hint_text().unwrap().contains(&format!("`chmod go-w \"{shown}\"`")));
        }
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        let error = make_private(&path, None).unwrap_err();
        assert_eq!(error.to_string(), format!("\"{}\" is not a folder", path.display()));
    }

    #[test]
    fn a_folder_or_link_of_another_user_is_rejected() {
        if !is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let (path, link) = (temp.path().join("run"), temp.path().join("link"));
        fs::create_dir(&path).unwrap();
        symlink(&path, &link).unwrap();
        OpenFolder::open(&link).unwrap();
        std::os::unix::fs::lchown(&link, Some(4242), Some(4242)).unwrap();
        let error = OpenFolder::open(&link).unwrap_err();
        let said = error.to_string();
        assert!(said.ends_with("is a symbolic link of the user with uid 4242"), "{said}");
        std::os::unix::fs::chown(&path, Some(4242), Some(4242)).unwrap();
        make_private(&path, Some(&other_user())).unwrap();
        let error = make_private(&path, None).unwrap_err();
        let expected = format!("\"{}\" belongs to the user with uid 4242", path.display());
        assert_eq!(error.to_string(), expected);
        assert!(error.hint_text().unwrap().contains("chown"), "{:?}", error.hint_text());
        assert!(make_own(&path, Some(&other_user())).is_err());
    }

    #[test]
    fn a_secret_that_others_can_read_and_a_link_to_a_secret_are_rejected() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("password");
        write_private(&path, b"secret", None).unwrap();
        assert_eq!(read_secret(&path).unwrap(), "secret");
        symlink(&path, temp.path().join("link")).unwrap();
        assert!(read_secret(&temp.path().join("link")).is_err());
        for mode in [0o640, 0o604] {
            set_mode(&path, mode);
            let error = read_secret(&path).unwrap_err();
            assert!(error.to_string().starts_with("other users can read"), "{error}");
            assert!(error.hint_text().unwrap().contains("chmod 600"));
        }
        set_mode(&path, 0o620);
        assert!(read_secret(&path).is_err());
    }

    #[test]
    fn log_tail_returns_the_last_lines_after_an_offset() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("log");
        assert_eq!((log_size(&log), log_tail(&log, 0)), (0, String::new()));
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

//! Files and folders with the owner and mode that PostgreSQL insists on.
//!
//! Under root, the data folder and the run folder belong to the server's user, who can put
//! symbolic links there at any moment. So what is done in them is done by file descriptor: a folder
//! is opened once and checked, and a file in it is opened without following a link, checked and
//! changed through its descriptor. No path below such a folder is resolved a second time.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use crate::account::{Account, describe_uid};
use crate::error::{self, Error, Result};
use crate::sys;

/// Longest socket folder: the address holds 108 bytes on Linux and 104 elsewhere, and the
/// server appends `/.s.PGSQL.65535` and a final zero.
pub(crate) const SOCKET_FOLDER_BYTES_MAX: usize = 104 - "/.s.PGSQL.65535".len() - 1;

/// Log lines quoted in an error.
const LOG_LINES_QUOTED: usize = 12;
/// The end of a log that is searched for them.
const LOG_BYTES_QUOTED: u64 = 16 << 10;
/// The longest file that is read whole: `pg_hba.conf`; all others are far shorter.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A folder that is open, so that its name can no longer lead elsewhere.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

impl Folder {
    /// Opens a folder. A symbolic link is followed only if it is our own.
    pub(crate) fn open(path: &Path) -> Result<Folder> {
        let failed = |e: io::Error| error::file("open", path, e);
        let plain = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(rustix::fs::CWD, path, plain | OFlags::NOFOLLOW, Mode::empty());
        let opened = opened.or_else(|e| match fs::symlink_metadata(path) {
            Ok(facts) if facts.is_symlink() && facts.uid() == sys::effective_uid() => {
                openat(rustix::fs::CWD, path, plain, Mode::empty())
            }
            _ => Err(e),
        });
        match opened {
            Ok(fd) => Ok(Folder { file: File::from(fd), path: path.to_path_buf() }),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => Err(not_a_folder(path)),
            Err(e) => Err(failed(e.into())),
        }
    }

    /// The folder's owner and mode.
    pub(crate) fn facts(&self) -> Result<fs::Metadata> {
        self.file.metadata().map_err(|e| error::file("read", &self.path, e))
    }

    /// Refuses a folder of another user, and one that other users can write to.
    pub(crate) fn require_safe(&self, owners: &[u32]) -> Result<()> {
        require_safe(&self.path, &self.facts()?, owners)
    }

    /// Replaces a file of the folder by `content`, readable by `account` (or us) alone. Not synced:
    /// on a busy disk that takes longer than all else, and most are written at every start.
    pub(crate) fn write(
        &self,
        name: &str,
        content: &[u8],
        account: Option<&Account>,
    ) -> Result<()> {
        let new = format!("{name}.new");
        let path = self.path.join(&new);
        self.remove(&new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let write = || -> io::Result<()> {
            let fd = openat(&self.file, &new, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
            let mut file = File::from(fd);
            file.write_all(content)?;
            give(&file, account)
        };
        write().map_err(|e| error::file("write", &path, e))?;
        renameat(&self.file, &new, &self.file, name)
            .map_err(|e| error::file("write", &self.path.join(name), e.into()))
    }

    /// Opens a plain file to read, or to append to: no link, no pipe, and to append to no second
    /// name of a file that lies elsewhere.
    pub(crate) fn open_file(&self, name: &str, how: OFlags) -> io::Result<File> {
        let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.file, name, flags, Mode::RUSR | Mode::WUSR) {
            Err(rustix::io::Errno::LOOP) => {
                return Err(io::Error::other("it is a symbolic link"));
            }
            opened => File::from(opened?),
        };
        let facts = file.metadata()?;
        match () {
            () if !facts.is_file() => Err(io::Error::other("it is not a plain file")),
            () if how != OFlags::RDONLY && facts.nlink() > 1 => {
                Err(io::Error::other("it has a second name (a hard link)"))
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

    /// Removes a file; one that is not there is fine.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        match unlinkat(&self.file, name, AtFlags::empty()) {
            Err(e) if e != rustix::io::Errno::NOENT => {
                Err(error::file("remove", &self.path.join(name), e.into()))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a file or folder of another user, and one that other users can write to.
pub(crate) fn require_safe(path: &Path, facts: &fs::Metadata, owners: &[u32]) -> Result<()> {
    let (shown, mode) = (path.display(), facts.mode() & 0o7777);
    if !owners.contains(&facts.uid()) {
        let (owner, own) = (describe_uid(facts.uid()), describe_uid(sys::effective_uid()));
        return Err(error::new(format!("\"{shown}\" belongs to {owner}")).hint(format!(
            "pgspate runs as {own} and uses no files of other users. Set PGSPATE_DATA_DIR to a \
             folder of your own. If you trust what is in \"{shown}\", change its owner with chown."
        )));
    }
    if mode & 0o022 != 0 {
        let message = format!("other users can write to \"{shown}\" (mode {mode:04o})");
        return Err(error::new(message).hint(format!(
            "Others may have put files there. If you trust what is in it, run \
             `chmod go-w \"{shown}\"`; otherwise remove it."
        )));
    }
    Ok(())
}

fn not_a_folder(path: &Path) -> Error {
    let shown = path.display();
    let what = match fs::symlink_metadata(path) {
        Ok(facts) if facts.is_symlink() => {
            format!("\"{shown}\" is a symbolic link of {}", describe_uid(facts.uid()))
        }
        _ => format!("\"{shown}\" is not a folder"),
    };
    error::new(what).hint(format!("Remove \"{shown}\", and start again."))
}

/// Gives an open file to `account`; with none, it is ours already.
pub(crate) fn give(file: &File, account: Option<&Account>) -> io::Result<()> {
    match account {
        Some(account) => fchown(file, Some(account.uid), Some(account.gid)),
        None => Ok(()),
    }
}

/// Makes a folder that only `account` (or we) can enter. One that is there already is taken over
/// if it is ours or the account's and nobody else could write to it.
///
/// # Errors
/// The folder is another user's, or others can write to it.
pub(crate) fn make_private(path: &Path, account: Option<&Account>) -> Result<Folder> {
    let folder = make(path)?;
    let own = sys::effective_uid();
    folder.require_safe(&[own, account.map_or(own, |account| account.uid)])?;
    let close = || -> io::Result<()> {
        give(&folder.file, account)?;
        folder.file.set_permissions(Permissions::from_mode(0o700))
    };
    close().map_err(|e| error::file("change the owner of", path, e))?;
    Ok(folder)
}

/// Makes a folder of our own that `account` can pass through, but neither read nor change.
///
/// # Errors
/// The folder is another user's, or others can write to it.
pub(crate) fn make_own(path: &Path, account: Option<&Account>) -> Result<Folder> {
    let folder = make(path)?;
    folder.require_safe(&[sys::effective_uid()])?;
    let mode = if account.is_some() { 0o711 } else { 0o700 };
    let changed = folder.file.set_permissions(Permissions::from_mode(mode));
    changed.map_err(|e| error::file("change the mode of", path, e))?;
    Ok(folder)
}

fn make(path: &Path) -> Result<Folder> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(error::file("create", path, e)),
        _ => Folder::open(path),
    }
}

/// Replaces the file `path` by `content`: [`Folder::write`] in the folder that holds it.
pub(crate) fn write_private(path: &Path, content: &[u8], account: Option<&Account>) -> Result<()> {
    let (parent, name) = split(path)?;
    Folder::open(parent)?.write(name, content, account)
}

/// Reads a plain file that is ours and that nobody else can read.
///
/// # Errors
/// There is no such file, it is a link or another user's, or others can read it.
pub(crate) fn read_secret(path: &Path) -> Result<String> {
    let (parent, name) = split(path)?;
    let failed = |e| error::file("read", path, e);
    let folder = Folder::open(parent)?;
    let file = folder.open_file(name, OFlags::RDONLY).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    require_safe(path, &facts, &[sys::effective_uid()])?;
    let mode = facts.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let shown = path.display();
        let message = format!("other users can read \"{shown}\" (mode {mode:04o})");
        return Err(error::new(message).hint(format!(
            "It holds the password of the embedded PostgreSQL. Run `chmod 600 \"{shown}\"`. To \
             have a new password, stop the server, remove the file, and start the server again."
        )));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// The folder of a file, and its name in it.
fn split(path: &Path) -> Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent()
        .zip(name)
        .ok_or_else(|| error::new(format!("\"{}\" is not the path of a file", path.display())))
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error::file("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes a folder and all in it; one that is not there is fine.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error::file("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes the sockets, and their lock files, that a crashed server left in `folder`.
pub(crate) fn remove_sockets(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|e| error::file("read", folder, e))?;
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
        .map_err(|e| error::file("open", path, e))
}

/// A TCP port of loopback that was free a moment ago. Whoever binds it must be ready to lose it.
pub(crate) fn free_port() -> Result<u16> {
    let bind = || TcpListener::bind(("127.0.0.1", 0))?.local_addr();
    let address =
        bind().map_err(|e| error::new("could not find a free port on 127.0.0.1").because(e))?;
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
    read().map_err(|e| error::file("read", path, e))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Size of a log, to find later what was added to it. Zero if there is none.
pub(crate) fn log_end(log: &Path) -> u64 {
    open_log(log).and_then(|file| file.metadata()).map_or(0, |facts| facts.len())
}

/// The last lines that were added to a log since it was `from` bytes long.
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
    Folder::open(parent).map_err(io::Error::other)?.open_file(name, OFlags::RDONLY)
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

    /// Whether this is root; a test that needs root says that it is skipped.
    fn is_root() -> bool {
        let is_root = sys::effective_uid() == 0;
        if !is_root {
            eprintln!("skipped: only root can make what belongs to another user");
        }
        is_root
    }

    fn stranger() -> Account {
        Account { name: "stranger".into(), uid: 4242, gid: 4242 }
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_given_away_and_not_what_a_link_leads_to() {
        if !is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let (victim, path) = (temp.path().join("victim"), temp.path().join("conf"));
        fs::write(&victim, "untouched").unwrap();
        for name in ["conf", "conf.new"] {
            symlink(&victim, temp.path().join(name)).unwrap();
        }
        write_private(&path, b"content", Some(&stranger())).unwrap();
        assert_eq!(fs::metadata(&victim).unwrap().uid(), 0);
        assert_eq!(fs::symlink_metadata(&path).unwrap().uid(), 4242);
    }

    #[test]
    fn nothing_but_a_plain_file_is_appended_to() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::open(temp.path()).unwrap();
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
        assert_eq!(append("other"), Err("it has a second name (a hard link)".to_string()));
        assert_eq!(folder.read("other").unwrap(), b"untouched");
    }

    #[test]
    fn a_folder_is_closed_to_others_unless_others_could_write_to_it() {
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
    fn a_folder_or_link_of_another_user_is_refused_by_name() {
        if !is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let (path, link) = (temp.path().join("run"), temp.path().join("link"));
        fs::create_dir(&path).unwrap();
        symlink(&path, &link).unwrap();
        Folder::open(&link).unwrap();
        std::os::unix::fs::lchown(&link, Some(4242), Some(4242)).unwrap();
        let error = Folder::open(&link).unwrap_err();
        let said = error.to_string();
        assert!(said.ends_with("is a symbolic link of the user with uid 4242"), "{said}");
        std::os::unix::fs::chown(&path, Some(4242), Some(4242)).unwrap();
        make_private(&path, Some(&stranger())).unwrap();
        let error = make_private(&path, None).unwrap_err();
        let expected = format!("\"{}\" belongs to the user with uid 4242", path.display());
        assert_eq!(error.to_string(), expected);
        assert!(error.hint_text().unwrap().contains("chown"), "{:?}", error.hint_text());
        assert!(make_own(&path, Some(&stranger())).is_err());
    }

    #[test]
    fn a_secret_that_others_can_read_or_a_link_to_one_is_refused() {
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

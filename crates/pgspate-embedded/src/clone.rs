//! Copying the data folder of a stopped server.
//!
//! The copy is a server of its own: nothing in it leads back to the original. It keeps modes and
//! owners, and leaves out what describes a running server. A copy that fails is removed. The
//! original may belong to another user, who can change it meanwhile: it is read by descriptors.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, mkdirat, openat, statat};

use crate::account::{Account, describe_uid};
use crate::error::{self, Result};
use crate::folder::Folder;
use crate::pidfile::PidFile;
use crate::{folder, sys};

/// Files that describe a running server, and mean nothing beside a copy.
const LEFT_OUT: [&str; 2] = ["postmaster.pid", "postmaster.opts"];

/// Copies the data folder of a stopped (or crashed) server to `to`, which must not exist or be
/// empty. Where the file system can, files share their blocks until one of them is changed.
/// Returns the number of files copied.
///
/// # Errors
/// `from` is no data folder, its server runs, it has tablespaces outside of it, it has links to
/// another user's files, or a file cannot be read or written.
pub fn clone_data_folder(from: &Path, to: &Path) -> Result<u64> {
    clone_for(from, to, None)
}

/// As [`clone_data_folder`], but the copy belongs to `account`, if there is one.
pub(crate) fn clone_for(from: &Path, to: &Path, account: Option<&Account>) -> Result<u64> {
    if !from.join("PG_VERSION").is_file() {
        let message = format!("\"{}\" is not a PostgreSQL data folder", from.display());
        return Err(error::new(message));
    }
    if PidFile::of_running(from).is_some() {
        let message = format!("could not copy \"{}\": its server is running", from.display());
        return Err(error::new(message).hint("Stop the server first."));
    }
    if fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(error::new(format!("\"{}\" is not empty", to.display())));
    }
    let copied = Folder::open(from).and_then(|source| {
        let owner = source.facts()?.uid();
        Copy { owner, account }.top(&source, to)
    });
    if copied.is_err() {
        // The first error tells more than one about what is left over.
        let _ = folder::remove_tree(to);
    }
    copied
}

/// A copy under way. A folder of the copy is ours until all is in it, and then given away, so that
/// nobody can put links where we write.
struct Copy<'a> {
    /// The owner of what is copied: links to what belongs to another are not followed.
    owner: u32,
    account: Option<&'a Account>,
}

impl Copy<'_> {
    fn top(&self, from: &Folder, to: &Path) -> Result<u64> {
        let to = folder::make_own(to, None)?;
        self.tree(from, &to, true)
    }

    /// Copies all that is in a folder and returns the number of files.
    fn tree(&self, from: &Folder, to: &Folder, is_top: bool) -> Result<u64> {
        let failed = |e| error::file("read", &from.path, io::Error::from(e));
        let mut files = 0;
        for entry in Dir::read_from(&from.file).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy();
            let is_left_out = is_top && LEFT_OUT.contains(&&*name);
            if !is_left_out && name != "." && name != ".." {
                files += self.entry(from, to, &name)?;
            }
        }
        self.keep(&to.file, &from.facts()?)
            .map_err(|e| error::file("change the owner of", &to.path, e))?;
        Ok(files)
    }

    fn entry(&self, from: &Folder, to: &Folder, name: &str) -> Result<u64> {
        let path = from.path.join(name);
        let failed = |e| error::file("read", &path, io::Error::from(e));
        let facts = statat(&from.file, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        let kind = FileType::from_raw_mode(facts.st_mode);
        // What a link leads to would be shared by both servers. The log (`pg_wal`) may be on
        // another disk and is copied into the folder; a tablespace cannot be.
        if kind == FileType::Symlink && from.path.ends_with("pg_tblspc") {
            let message = format!("could not copy \"{}\": it is a tablespace", path.display());
            return Err(error::new(message)
                .hint("Only data folders without tablespaces outside of them can be copied."));
        }
        let follow = match kind {
            FileType::Symlink => OFlags::empty(),
            FileType::Directory | FileType::RegularFile => OFlags::NOFOLLOW,
            // A socket of a server that crashed.
            _ => return Ok(0),
        };
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | follow;
        let file = File::from(openat(&from.file, name, how, Mode::empty()).map_err(failed)?);
        let facts = file.metadata().map_err(|e| error::file("read", &path, e))?;
        if kind == FileType::Symlink && facts.uid() != self.owner {
            let (shown, owner) = (path.display(), describe_uid(facts.uid()));
            let message = format!("could not copy \"{shown}\": it leads to what is of {owner}");
            return Err(
                error::new(message).hint("Replace the link by what it leads to, and try again.")
            );
        }
        if !facts.is_dir() {
            return self.file(file, &facts, to, name);
        }
        let into = to.path.join(name);
        mkdirat(&to.file, name, Mode::RWXU).map_err(|e| error::file("create", &into, e.into()))?;
        self.tree(&Folder { file, path }, &Folder::open(&into)?, false)
    }

    fn file(&self, mut from: File, facts: &Metadata, to: &Folder, name: &str) -> Result<u64> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mut copy = || -> io::Result<()> {
            let fd = openat(&to.file, name, how | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
            let mut file = File::from(fd);
            io::copy(&mut from, &mut file)?;
            self.keep(&file, facts)
        };
        copy().map_err(|e| error::file("write", &to.path.join(name), e))?;
        Ok(1)
    }

    /// Gives a copy the mode of its original, and its owner. Only root can give files away; for
    /// anybody else the copy is already his own.
    fn keep(&self, file: &File, facts: &Metadata) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(facts.mode() & 0o777))?;
        match self.account {
            Some(account) => folder::give(file, Some(account)),
            None if sys::effective_uid() == 0 => fchown(file, Some(facts.uid()), Some(facts.gid())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn data_folder() -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        let from = temp.path().join("from");
        fs::create_dir_all(from.join("base/1")).unwrap();
        fs::create_dir_all(from.join("pg_tblspc")).unwrap();
        fs::write(from.join("PG_VERSION"), "15\n").unwrap();
        fs::write(from.join("base/1/112"), "rows").unwrap();
        fs::write(from.join("base/postmaster.pid"), "a file like any other").unwrap();
        fs::write(from.join("postmaster.pid"), "2147483647\n").unwrap();
        fs::set_permissions(from.join("base/1/112"), Permissions::from_mode(0o640)).unwrap();
        temp
    }

    #[test]
    fn content_modes_and_links_to_the_log_are_copied() {
        let temp = data_folder();
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        fs::create_dir(temp.path().join("log")).unwrap();
        fs::write(temp.path().join("log/1"), "wal").unwrap();
        symlink(temp.path().join("log"), from.join("pg_wal")).unwrap();
        assert_eq!(clone_data_folder(&from, &to).unwrap(), 4);
        assert!(!to.join("postmaster.pid").exists());
        assert_eq!(fs::read_to_string(to.join("base/1/112")).unwrap(), "rows");
        assert_eq!(fs::metadata(to.join("base/1/112")).unwrap().mode() & 0o777, 0o640);
        assert!(!fs::symlink_metadata(to.join("pg_wal")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(to.join("pg_wal/1")).unwrap(), "wal");
    }

    #[test]
    fn tablespaces_are_refused_and_nothing_is_left() {
        let temp = data_folder();
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        symlink(temp.path(), from.join("pg_tblspc/16384")).unwrap();
        let error = clone_data_folder(&from, &to).unwrap_err();
        assert!(error.to_string().ends_with("it is a tablespace"));
        assert!(!to.exists());
    }

    #[test]
    fn links_to_what_others_own_are_refused() {
        let temp = data_folder();
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        symlink("/etc/passwd", from.join("base/1/113")).unwrap();
        if sys::effective_uid() == 0 {
            // As if the data were the server's; by root's own links root may do as it likes.
            for path in ["", "base", "base/1", "base/1/112", "PG_VERSION"] {
                std::os::unix::fs::chown(from.join(path), Some(4242), Some(4242)).unwrap();
            }
        }
        let error = clone_data_folder(&from, &to).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("113") && said.contains("leads to what is of user \"root\""),
            "{said}"
        );
        assert!(!to.exists());
    }

    #[test]
    fn other_folders_and_full_targets_are_refused_untouched() {
        let temp = data_folder();
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        fs::create_dir(&to).unwrap();
        fs::write(to.join("mine"), "").unwrap();
        let error = clone_data_folder(&from, &to).unwrap_err();
        assert!(error.to_string().ends_with("is not empty"));
        assert!(to.join("mine").exists());
        let error = clone_data_folder(&to, &from).unwrap_err();
        assert!(error.to_string().ends_with("is not a PostgreSQL data folder"));
    }
}

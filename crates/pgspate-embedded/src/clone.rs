//! Copies the data folder of a stopped server.
//!
//! The copy is independent: no link in it leads to the original. Modes and owners are kept. Files
//! that describe a running server are left out. An incomplete copy is removed. Another user may own
//! the original and may change it during the copy, so it is read through file descriptors.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, mkdirat, openat, statat};

use crate::account::{ServerAccount, describe_uid};
use crate::error::{self, Result};
use crate::folder::OpenFolder;
use crate::pidfile::PidFile;
use crate::{folder, sys};

/// Files that describe a running server, and that are not copied.
const LEFT_OUT: [&str; 2] = ["postmaster.pid", "postmaster.opts"];

/// Copies the data folder of a stopped or crashed server to `to`, which must be absent or empty. If
/// the file system supports it, the files share their blocks until one of them changes. Returns the
/// number of copied files.
///
/// # Errors
/// [`pgspate_base::ErrorKind::Connect`] if `from` is no data folder, its server runs, it has
/// tablespaces, it has links to another user's files, or a file cannot be read or written.
pub fn clone_data_folder(from: &Path, to: &Path) -> Result<u64> {
    clone_for(from, to, None)
}

/// Copies like [`clone_data_folder`], but `account` owns the copy, if there is one.
pub(crate) fn clone_for(from: &Path, to: &Path, account: Option<&ServerAccount>) -> Result<u64> {
    if !from.join("PG_VERSION").is_file() {
        let message = format!("\"{}\" is not a PostgreSQL data folder", from.display());
        return Err(error::new(message));
    }
    if PidFile::of_running(from).is_some() {
        let message = format!("could not copy \"{}\": its server is running", from.display());
        return Err(error::new(message).hint("Stop the server, then copy its data folder."));
    }
    if fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(error::new(format!("\"{}\" is not empty", to.display())));
    }
    let copied = OpenFolder::open(from).and_then(|source| {
        let owner = source.metadata()?.uid();
        FolderCopy { owner, account }.copy_data_folder(&source, to)
    });
    if copied.is_err() {
        // The error of the copy is reported; an error of the removal is ignored.
        let _ = folder::remove_tree(to);
    }
    copied
}

/// A copy in progress. pgspate's user owns each folder of the copy until the folder is complete.
/// Then the owner changes. So no other user can put links where pgspate writes.
struct FolderCopy<'a> {
    /// The owner of the original. Links to files of other users are not followed.
    owner: u32,
    account: Option<&'a ServerAccount>,
}

impl FolderCopy<'_> {
    fn copy_data_folder(&self, from: &OpenFolder, to: &Path) -> Result<u64> {
        let to = folder::make_own(to, None)?;
        self.copy_tree(from, &to, true)
    }

    /// Copies the content of a folder. Returns the number of files.
    fn copy_tree(&self, from: &OpenFolder, to: &OpenFolder, is_top: bool) -> Result<u64> {
        let failed = |e| error::could_not("read", &from.path, io::Error::from(e));
        let mut files = 0;
        for entry in Dir::read_from(&from.file).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy();
            let is_left_out = is_top && LEFT_OUT.contains(&&*name);
            if !is_left_out && name != "." && name != ".." {
                files += self.copy_entry(from, to, &name)?;
            }
        }
        self.keep_mode_and_owner(&to.file, &from.metadata()?)
            .map_err(|e| error::could_not("change the owner of", &to.path, e))?;
        Ok(files)
    }

    /// Copies a file, or a folder with its content. Returns the number of files.
    fn copy_entry(&self, from: &OpenFolder, to: &OpenFolder, name: &str) -> Result<u64> {
        let path = from.path.join(name);
        let failed = |e| error::could_not("read", &path, io::Error::from(e));
        let status = statat(&from.file, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        let kind = FileType::from_raw_mode(status.st_mode);
        // A copied link would make both servers use the same files. The WAL (`pg_wal`) may be on
        // another disk; it is copied into the data folder. A tablespace cannot be copied.
        if kind == FileType::Symlink && from.path.ends_with("pg_tblspc") {
            let message = format!("could not copy \"{}\": it is a tablespace", path.display());
            return Err(
                error::new(message).hint("Only data folders without tablespaces can be copied.")
            );
        }
        let follow = match kind {
            FileType::Symlink => OFlags::empty(),
            FileType::Directory | FileType::RegularFile => OFlags::NOFOLLOW,
            // Other kinds of files, for example the socket of a crashed server, are not copied.
            _ => return Ok(0),
        };
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | follow;
        let file = File::from(openat(&from.file, name, how, Mode::empty()).map_err(failed)?);
        let metadata = file.metadata().map_err(|e| error::could_not("read", &path, e))?;
        if kind == FileType::Symlink && metadata.uid() != self.owner {
            let (shown, owner) = (path.display(), describe_uid(metadata.uid()));
            let message = format!("could not copy \"{shown}\": it is a link to a file of {owner}");
            return Err(error::new(message)
                .hint("Replace the link by a copy of the file or folder, and try again."));
        }
        if !metadata.is_dir() {
            return self.copy_file(file, &metadata, to, name);
        }
        let into = to.path.join(name);
        mkdirat(&to.file, name, Mode::RWXU)
            .map_err(|e| error::could_not("create", &into, e.into()))?;
        self.copy_tree(&OpenFolder { file, path }, &OpenFolder::open(&into)?, false)
    }

    fn copy_file(
        &self,
        mut from: File,
        metadata: &Metadata,
        to: &OpenFolder,
        name: &str,
    ) -> Result<u64> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mut copy = || -> io::Result<()> {
            let fd = openat(&to.file, name, how | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
            let mut file = File::from(fd);
            io::copy(&mut from, &mut file)?;
            self.keep_mode_and_owner(&file, metadata)
        };
        copy().map_err(|e| error::could_not("write", &to.path.join(name), e))?;
        Ok(1)
    }

    /// Sets mode and owner of a copy as in the original, or `account` as owner. Only root can
    /// change owners; for other users the copy already has the right owner.
    fn keep_mode_and_owner(&self, file: &File, metadata: &Metadata) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(metadata.mode() & 0o777))?;
        match self.account {
            Some(account) => folder::change_owner(file, Some(account)),
            None if sys::effective_uid() == 0 => {
                fchown(file, Some(metadata.uid()), Some(metadata.gid()))
            }
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
    fn content_modes_and_a_linked_pg_wal_are_copied() {
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
    fn tablespaces_are_rejected_and_the_copy_is_removed() {
        let temp = data_folder();
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        symlink(temp.path(), from.join("pg_tblspc/16384")).unwrap();
        let error = clone_data_folder(&from, &to).unwrap_err();
        assert!(error.to_string().ends_with("it is a tablespace"));
        assert!(!to.exists());
    }

    #[test]
    fn links_to_files_of_other_users_are_rejected() {
        let temp = data_folder();
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        symlink("/etc/passwd", from.join("base/1/113")).unwrap();
        if sys::effective_uid() == 0 {
            // Another user owns the data, because root's own links may lead anywhere.
            for path in ["", "base", "base/1", "base/1/112", "PG_VERSION"] {
                std::os::unix::fs::chown(from.join(path), Some(4242), Some(4242)).unwrap();
            }
        }
        let error = clone_data_folder(&from, &to).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("113") && said.contains("it is a link to a file of user \"root\""),
            "{said}"
        );
        assert!(!to.exists());
    }

    #[test]
    fn a_target_with_files_and_a_source_without_data_are_rejected() {
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

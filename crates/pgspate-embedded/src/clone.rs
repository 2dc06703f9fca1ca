//! Copying the data folder of a stopped server.
//!
//! The copy is a server of its own: nothing in it leads back to the original. It keeps modes and
//! owners, and leaves out what describes a running server. A copy that fails is removed.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use crate::error::{Error, Result};
use crate::pidfile::PidFile;
use crate::{folder, sys};

/// Files that describe a running server, and mean nothing beside a copy.
const LEFT_OUT: [&str; 2] = ["postmaster.pid", "postmaster.opts"];

/// Copies the data folder of a stopped (or crashed) server to `to`, which must not exist or be
/// empty. Where the file system can, files share their blocks until one of them is changed.
/// Returns the number of files copied.
///
/// # Errors
/// `from` is no data folder, its server runs, it has tablespaces outside of it, or a file cannot
/// be read or written.
pub fn clone_data_folder(from: &Path, to: &Path) -> Result<u64> {
    if !from.join("PG_VERSION").is_file() {
        let message = format!("\"{}\" is not a PostgreSQL data folder", from.display());
        return Err(Error::new(message));
    }
    if PidFile::of_running(from).is_some() {
        let message = format!("could not copy \"{}\": its server is running", from.display());
        return Err(Error::new(message).with_hint("Stop the server first."));
    }
    if fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::new(format!("\"{}\" is not empty", to.display())));
    }
    let copied = copy_tree(from, to, true);
    if copied.is_err() {
        // The first error tells more than one about what is left over.
        let _ = folder::remove_tree(to);
    }
    copied
}

/// Copies a folder with all in it and returns the number of files.
fn copy_tree(from: &Path, to: &Path, is_top: bool) -> Result<u64> {
    let facts = fs::metadata(from).map_err(|e| Error::file("read", from, e))?;
    match DirBuilder::new().mode(0o700).create(to) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::file("create", to, e));
        }
        _ => {}
    }
    let mut files = 0;
    for entry in fs::read_dir(from).map_err(|e| Error::file("read", from, e))? {
        let entry = entry.map_err(|e| Error::file("read", from, e))?;
        let name = entry.file_name();
        if is_top && LEFT_OUT.iter().any(|left_out| name == *left_out) {
            continue;
        }
        files += copy_entry(&entry.path(), &to.join(&name))?;
    }
    fs::set_permissions(to, Permissions::from_mode(facts.mode() & 0o777))
        .map_err(|e| Error::file("change the mode of", to, e))?;
    keep_owner(to, &facts)?;
    Ok(files)
}

fn copy_entry(from: &Path, to: &Path) -> Result<u64> {
    let facts = fs::symlink_metadata(from).map_err(|e| Error::file("read", from, e))?;
    if facts.is_symlink() {
        return copy_link(from, to);
    }
    if facts.is_dir() {
        return copy_tree(from, to, false);
    }
    if !facts.is_file() {
        // A socket of a server that crashed.
        return Ok(0);
    }
    copy_file(from, to, &facts)
}

/// What a link leads to would be shared by both servers. The log (`pg_wal`) may be on another
/// disk and is copied into the folder; a tablespace cannot be.
fn copy_link(from: &Path, to: &Path) -> Result<u64> {
    if from.parent().is_some_and(|parent| parent.ends_with("pg_tblspc")) {
        let message = format!("could not copy \"{}\": it is a tablespace", from.display());
        return Err(Error::new(message)
            .with_hint("Only data folders without tablespaces outside of them can be copied."));
    }
    let facts = fs::metadata(from).map_err(|e| Error::file("read", from, e))?;
    if facts.is_dir() { copy_tree(from, to, false) } else { copy_file(from, to, &facts) }
}

fn copy_file(from: &Path, to: &Path, facts: &fs::Metadata) -> Result<u64> {
    fs::copy(from, to).map_err(|e| Error::file("copy", from, e))?;
    keep_owner(to, facts)?;
    Ok(1)
}

/// Only root can give files away; for anybody else the copy is already his own.
fn keep_owner(path: &Path, facts: &fs::Metadata) -> Result<()> {
    if sys::effective_uid() != 0 {
        return Ok(());
    }
    lchown(path, Some(facts.uid()), Some(facts.gid()))
        .map_err(|e| Error::file("change the owner of", path, e))
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

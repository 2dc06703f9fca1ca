//! Safe writes in folders where other users can write: never through a link, never half a file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Error, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The most names that are tried for a temporary file.
const TEMPORARY_NAMES_MAX: u32 = 100;

/// Replaces the file `path`: writes a temporary file beside `path` and renames it to `path`.
/// Readers see the old content or the whole new content. A file or link that another user put at
/// `path` is never written to.
///
/// # Errors
/// An [`io::Error`] if the file cannot be written, or `path` is not a plain file.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => return Err(Error::other("it is a symbolic link")),
        Ok(metadata) if !metadata.is_file() => return Err(Error::other("it is not a plain file")),
        _ => {}
    }
    let (mut file, temporary) = create_beside(path)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Creates a temporary file beside `path`.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut attempt = 0;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{attempt}.part", std::process::id()));
        let name = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Err(error)
                if error.kind() == ErrorKind::AlreadyExists && attempt < TEMPORARY_NAMES_MAX =>
            {
                attempt += 1
            }
            opened => return Ok((opened?, name)),
        }
    }
}

/// Opens a file that only this user may read, and creates the file if it is absent. The content of
/// an existing file stays.
///
/// # Errors
/// An [`io::Error`] if the file cannot be opened, is a link or not a plain file, belongs to another
/// user, or has more than one hard link.
pub fn open_own(path: &Path) -> io::Result<File> {
    // NONBLOCK: without it, opening a pipe would wait for a reader.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    let shown = path.display();
    match () {
        () if !metadata.is_file() => Err(Error::other(format!("\"{shown}\" is not a plain file"))),
        () if metadata.uid() != rustix::process::geteuid().as_raw() => Err(Error::other(format!(
            "\"{shown}\" belongs to the user with uid {}",
            metadata.uid()
        ))),
        () if metadata.nlink() > 1 => {
            Err(Error::other(format!("\"{shown}\" has more than one hard link")))
        }
        () => {
            file.set_permissions(Permissions::from_mode(0o600))?;
            Ok(file)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_write_does_not_follow_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "untouched").unwrap();
        symlink(at("victim"), at("link")).unwrap();
        let refused = write_whole(&at("link"), b"new").unwrap_err();
        assert_eq!(refused.to_string(), "it is a symbolic link");
        assert!(write_whole(folder.path(), b"new").is_err());
        // Replacing one of two hard links leaves the other file as it is.
        fs::hard_link(at("victim"), at("second")).unwrap();
        assert!(
            open_own(&at("second")).unwrap_err().to_string().contains("more than one hard link")
        );
        write_whole(&at("second"), b"new").unwrap();
        assert_eq!(fs::read(at("second")).unwrap(), b"new");
        assert!(open_own(&at("link")).is_err());
        assert_eq!(fs::read(at("victim")).unwrap(), b"untouched");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn an_existing_temporary_file_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join(format!("page.{}-0.part", std::process::id()));
        fs::write(&taken, "untouched").unwrap();
        write_whole(&folder.path().join("page"), b"new").unwrap();
        assert_eq!(fs::read(taken).unwrap(), b"untouched");
    }
}

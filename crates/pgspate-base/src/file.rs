//! Files that pgspate writes where others may write too: through no link, and never half.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Error, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Names that are tried for a temporary file.
const NAMES_MAX: u32 = 100;

/// Writes a file beside `path` and renames it to there. What another user put there is not written
/// to, and whoever reads sees all of it or what was there before.
///
/// # Errors
/// When it cannot be written, and when there is something else than a plain file.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => return Err(Error::other("it is a symbolic link")),
        Ok(found) if !found.is_file() => return Err(Error::other("it is not a plain file")),
        _ => {}
    }
    let (mut file, beside) = new_beside(path)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&beside, path));
    written.inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// A new file beside `path`.
fn new_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut nth = 0;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{nth}.part", std::process::id()));
        let name = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && nth < NAMES_MAX => nth += 1,
            opened => return Ok((opened?, name)),
        }
    }
}

/// Opens or makes a file that only this user may read. What is in it stays.
///
/// # Errors
/// When it cannot be opened, and when it is a link, no plain file, another user's, or has a second
/// name.
pub fn open_own(path: &Path) -> io::Result<File> {
    // A pipe that nobody reads would be waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    let facts = file.metadata()?;
    let shown = path.display();
    match () {
        () if !facts.is_file() => Err(Error::other(format!("\"{shown}\" is not a plain file"))),
        () if facts.uid() != rustix::process::geteuid().as_raw() => {
            Err(Error::other(format!("\"{shown}\" belongs to the user with uid {}", facts.uid())))
        }
        () if facts.nlink() > 1 => {
            Err(Error::other(format!("\"{shown}\" has a second name (a hard link)")))
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
    fn links_are_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "untouched").unwrap();
        symlink(at("victim"), at("link")).unwrap();
        let refused = write_whole(&at("link"), b"new").unwrap_err();
        assert_eq!(refused.to_string(), "it is a symbolic link");
        assert!(write_whole(folder.path(), b"new").is_err());
        // Of a file with two names only one is replaced.
        fs::hard_link(at("victim"), at("second")).unwrap();
        assert!(open_own(&at("second")).unwrap_err().to_string().contains("a second name"));
        write_whole(&at("second"), b"new").unwrap();
        assert_eq!(fs::read(at("second")).unwrap(), b"new");
        assert!(open_own(&at("link")).is_err());
        assert_eq!(fs::read(at("victim")).unwrap(), b"untouched");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_name_that_is_taken_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join(format!("page.{}-0.part", std::process::id()));
        fs::write(&taken, "untouched").unwrap();
        write_whole(&folder.path().join("page"), b"new").unwrap();
        assert_eq!(fs::read(taken).unwrap(), b"untouched");
    }
}

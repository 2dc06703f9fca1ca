//! Detects local files that change while they are read.
//!
//! The metadata of a file is noted when the file is found, and compared after every read of the
//! open file. Bytes of another version are therefore never returned without an error.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use super::source_error;
use crate::{Error, Result};

/// The hint for a file that may grow, but was cut.
const CUT_HINT: &str = "The file may only grow while it is read. Let log rotation rename it and \
                        create a new file, instead of `copytruncate`.";

/// The metadata that identifies one version of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    /// Whether the file still has a name in a folder.
    is_linked: bool,
    pub(super) size: u64,
    /// The time of the last write, in seconds and nanoseconds.
    modified: (i64, i64),
    /// The time of the last status change, in seconds and nanoseconds.
    changed: (i64, i64),
    /// Whether the file may grow while it is read.
    may_grow: bool,
}

impl FileVersion {
    pub(super) fn of(metadata: &Metadata, may_grow: bool) -> FileVersion {
        FileVersion {
            device: metadata.dev(),
            inode: metadata.ino(),
            is_linked: metadata.nlink() > 0,
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            may_grow,
        }
    }

    /// Returns a text that identifies this version among all files of its file system. The number
    /// of the device is left out: it may differ after each start of the machine.
    pub(super) fn identity_text(&self) -> String {
        format!("{}:{}.{:09}", self.inode, self.changed.0, self.changed.1)
    }

    /// Returns whether `now` is certainly the same version. False means uncertain: only the time of
    /// the last status change differs. Renaming, `chown` and `chmod` change this time too.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if `now` is certainly another version.
    fn is_same_version(&self, now: &FileVersion, name: &str) -> Result<bool> {
        let (was, is) = (self.size, now.size);
        if is < was {
            let error = change_error(name, format!("was cut to {is} of {was} bytes"));
            return Err(match self.may_grow {
                true => error.hint(CUT_HINT),
                false => error,
            });
        }
        if self.may_grow {
            return Ok(true);
        }
        if is > was {
            return Err(change_error(name, format!("grew from {was} to {is} bytes")));
        }
        if now.modified != self.modified {
            return Err(change_error(name, "was written to".to_owned()));
        }
        if !now.is_linked {
            return Err(change_error(name, "was deleted or replaced".to_owned()));
        }
        Ok(*self == *now)
    }

    /// Returns whether the file at `path` certainly still has this version.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if the file is missing or certainly has
    /// another version.
    pub(super) fn is_at(&self, path: &Path, name: &str) -> Result<bool> {
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => change_error(name, "was deleted or renamed".to_owned()),
            _ => read_failure(name).because(error),
        })?;
        self.is_same_version(&FileVersion::of(&metadata, self.may_grow), name)
    }

    /// Returns whether another file is at `path`. False if `path` names no file.
    pub(super) fn is_replaced(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) != (self.device, self.inode))
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if the file cannot be opened or has another
    /// version.
    pub(super) fn open(self, path: &Path, name: &Arc<str>) -> Result<VersionedFile> {
        let file = File::open(path).map_err(|error| super::local::open_error(path, error))?;
        let opened = VersionedFile { file, version: self, read: 0, name: Arc::clone(name) };
        opened.check()?;
        Ok(opened)
    }
}

/// An open file of a known version.
#[derive(Debug)]
pub(super) struct VersionedFile {
    pub(super) file: File,
    version: FileVersion,
    /// The number of bytes that were read in order.
    read: u64,
    name: Arc<str>,
}

impl VersionedFile {
    pub(super) fn size(&self) -> u64 {
        self.version.size
    }

    /// Returns whether the open file certainly still has its version.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if the file certainly has another version.
    fn check(&self) -> Result<bool> {
        let metadata = self.file.metadata().map_err(|e| read_failure(&self.name).because(e))?;
        let now = FileVersion::of(&metadata, self.version.may_grow);
        // A file that has grown may not shrink again.
        let known = FileVersion { size: self.version.size.max(self.read), ..self.version };
        known.is_same_version(&now, &self.name)
    }

    /// Checks that the file certainly has its version. Used for reads whose bytes no later step
    /// verifies.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if the file may have another version.
    fn check_strictly(&self) -> Result<()> {
        match self.check()? || self.version.may_grow {
            true => Ok(()),
            false => Err(change_error(&self.name, "was changed or renamed".to_owned())),
        }
    }

    /// Reads the first bytes of the file into `head`, as many as there are. Returns their number.
    pub(super) fn read_head(&self, head: &mut [u8]) -> io::Result<usize> {
        let mut len = 0;
        while len < head.len() {
            match self.file.read_at(&mut head[len..], len as u64) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(len)
    }

    /// Fills `bytes` with the file's bytes from `start` on.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if the bytes cannot be read or may belong to
    /// another version.
    pub(super) fn read_exact_at(&self, bytes: &mut [u8], start: u64) -> Result<()> {
        let read = self.file.read_exact_at(bytes, start);
        // An error about a changed file is clearer than one about an early end.
        self.check_strictly()?;
        read.map_err(|error| {
            let name = &self.name;
            source_error(name, format!("could not read \"{name}\" at byte {start}")).because(error)
        })
    }
}

impl Read for VersionedFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(out);
        if let (Ok(read), true) = (&read, self.version.may_grow) {
            self.read += *read as u64;
        }
        self.check().map_err(io::Error::other)?;
        read
    }
}

fn read_failure(name: &str) -> Error {
    source_error(name, format!("could not read \"{name}\""))
}

fn change_error(name: &str, what: String) -> Error {
    source_error(name, format!("\"{name}\" {what} while it was being read"))
        .hint("Load the file when no process writes to it, or load a copy of it.")
}

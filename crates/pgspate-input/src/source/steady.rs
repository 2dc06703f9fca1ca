//! Local files that must not change while they are read.
//!
//! A file is looked at when it is found. Every read is followed by another look at the open file,
//! so that bytes of another version are never yielded without an error.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use super::fault;
use crate::{Error, Result};

/// What the file system says of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    links: bool,
    pub(super) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// More may be appended while it is read.
    may_grow: bool,
}

impl FileVersion {
    pub(super) fn of(metadata: &Metadata, may_grow: bool) -> FileVersion {
        FileVersion {
            device: metadata.dev(),
            inode: metadata.ino(),
            links: metadata.nlink() > 0,
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            may_grow,
        }
    }

    /// What tells this file, unchanged, from all others of its file system. The number of the
    /// device is left out: it may differ after each start of the machine.
    pub(super) fn text(&self) -> String {
        format!("{}:{}.{:09}", self.inode, self.changed.0, self.changed.1)
    }

    /// Whether `now` is surely the same version. False where only what a change of name, owner
    /// or rights changes too tells them apart.
    ///
    /// # Errors
    /// When it is surely another one.
    fn is_kept(&self, now: &FileVersion, name: &str) -> Result<bool> {
        let (was, is) = (self.size, now.size);
        if is < was {
            return Err(written_to(name, format!("was cut to {is} of {was} bytes")));
        }
        if self.may_grow {
            return Ok(true);
        }
        if is > was {
            return Err(written_to(name, format!("grew from {was} to {is} bytes")));
        }
        if now.modified != self.modified {
            return Err(written_to(name, "was written to".to_owned()));
        }
        if !now.links {
            return Err(written_to(name, "was deleted or replaced".to_owned()));
        }
        Ok(*self == *now)
    }

    /// Looks at the file that has this path now: whether it is surely the same version.
    ///
    /// # Errors
    /// When it is surely another one, or there is none.
    pub(super) fn is_at(&self, path: &Path, name: &str) -> Result<bool> {
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => written_to(name, "was deleted or renamed".to_owned()),
            _ => unreadable(name).because(error),
        })?;
        self.is_kept(&FileVersion::of(&metadata, self.may_grow), name)
    }

    /// Opens the file that has this path.
    ///
    /// # Errors
    /// When it cannot be opened, or is another version of it.
    pub(super) fn open(self, path: &Path, name: &Arc<str>) -> Result<SteadyFile> {
        let file = File::open(path).map_err(|error| super::local::unreadable(path, error))?;
        let steady = SteadyFile { file, version: self, name: Arc::clone(name) };
        steady.check()?;
        Ok(steady)
    }
}

/// An open file of a known version.
#[derive(Debug)]
pub(super) struct SteadyFile {
    pub(super) file: File,
    version: FileVersion,
    name: Arc<str>,
}

impl SteadyFile {
    pub(super) fn size(&self) -> u64 {
        self.version.size
    }

    /// Whether it is surely the version that it was.
    ///
    /// # Errors
    /// When it is surely another one.
    fn check(&self) -> Result<bool> {
        let metadata = self.file.metadata().map_err(|e| unreadable(&self.name).because(e))?;
        self.version.is_kept(&FileVersion::of(&metadata, self.version.may_grow), &self.name)
    }

    /// The same for bytes that are not looked at a second time: any doubt is an error.
    ///
    /// # Errors
    /// When it may be another version.
    fn check_surely(&self) -> Result<()> {
        match self.check()? || self.version.may_grow {
            true => Ok(()),
            false => Err(written_to(&self.name, "was changed, or renamed,".to_owned())),
        }
    }

    /// The first bytes that are there.
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

    /// Exactly the bytes from `start` on that fill `bytes`.
    ///
    /// # Errors
    /// When they cannot be read, or may be of another version.
    pub(super) fn read_exact_at(&self, bytes: &mut [u8], start: u64) -> Result<()> {
        let read = self.file.read_exact_at(bytes, start);
        // What happened to the file says more than that its end came too soon.
        self.check_surely()?;
        read.map_err(|error| {
            let name = &self.name;
            fault(name, format!("could not read \"{name}\" at byte {start}")).because(error)
        })
    }
}

impl Read for SteadyFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(out);
        self.check().map_err(io::Error::other)?;
        read
    }
}

fn unreadable(name: &str) -> Error {
    fault(name, format!("could not read \"{name}\""))
}

fn written_to(name: &str, what: String) -> Error {
    fault(name, format!("\"{name}\" {what} while it was being read"))
        .hint("Load it when nothing writes to it any more, or load a copy of it.")
}

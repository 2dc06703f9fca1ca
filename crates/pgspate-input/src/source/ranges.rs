//! Random access to the stored bytes of an input, for formats with a footer such as Parquet.
//!
//! A read returns exactly the requested bytes or an error, never fewer.

use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;

use super::file_version::VersionedFile;
use super::remote::RemoteObject;
use super::{run_and_wait, source_error};
use crate::{Error, Result};

/// Random access to stored bytes.
pub trait RangeReader: Send + Sync + std::fmt::Debug {
    /// Returns the number of stored bytes.
    fn len(&self) -> u64;

    /// Returns whether the input has no stored bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads `len` stored bytes from byte `start` on. Blocks the calling thread.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if the input has fewer bytes, or if the
    /// bytes cannot be read.
    fn read(&self, start: u64, len: usize) -> Result<Bytes>;

    /// Returns whether a strong entity tag of the store proves that all bytes belong to one
    /// version, now and in later runs.
    fn is_versioned(&self) -> bool {
        false
    }
}

/// Checks that an input of `size` bytes has the `len` bytes from `start` on.
fn check_range(name: &str, start: u64, len: usize, size: u64) -> Result<()> {
    match start.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(out_of_range_error(name, start, len, size)),
    }
}

fn out_of_range_error(name: &str, start: u64, len: usize, size: u64) -> Error {
    source_error(
        name,
        format!("\"{name}\" has {size} bytes; expected {len} bytes from byte {start} on"),
    )
    .hint("The file is truncated or damaged. Copy or download the file again.")
}

/// Random access to a local file.
#[derive(Debug)]
pub(super) struct FileRangeReader {
    pub(super) file: VersionedFile,
    pub(super) name: Arc<str>,
}

impl RangeReader for FileRangeReader {
    fn len(&self) -> u64 {
        self.file.size()
    }

    fn read(&self, start: u64, len: usize) -> Result<Bytes> {
        check_range(&self.name, start, len, self.file.size())?;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// Random access to a remote object.
#[derive(Debug)]
pub(super) struct RemoteRangeReader {
    pub(super) remote: Arc<RemoteObject>,
    pub(super) size: u64,
    pub(super) runtime: Handle,
}

impl RangeReader for RemoteRangeReader {
    fn len(&self) -> u64 {
        self.size
    }

    fn read(&self, start: u64, len: usize) -> Result<Bytes> {
        check_range(self.remote.name(), start, len, self.size)?;
        let remote = Arc::clone(&self.remote);
        run_and_wait(&self.runtime, async move { remote.range(start..start + len as u64).await })?
    }

    fn is_versioned(&self) -> bool {
        self.remote.is_versioned()
    }
}

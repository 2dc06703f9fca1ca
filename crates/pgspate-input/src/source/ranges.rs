//! Random access to the stored bytes of an input, for formats with a footer.
//!
//! A read gives exactly the bytes asked for or an error, never fewer.

use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;

use super::remote::Remote;
use super::steady::SteadyFile;
use super::{fault, wait};
use crate::{Error, Result};

/// Random access to stored bytes.
pub trait Ranges: Send + Sync + std::fmt::Debug {
    /// Bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `len` bytes from `start` on. Blocks.
    ///
    /// # Errors
    /// When they are not all there or cannot be read.
    fn read(&self, start: u64, len: usize) -> Result<Bytes>;

    /// Whether a store's name for this version proves that all bytes are of the same content, now
    /// and in later runs.
    fn is_versioned(&self) -> bool {
        false
    }
}

fn check(name: &str, start: u64, len: usize, size: u64) -> Result<()> {
    match start.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(outside(name, start, len, size)),
    }
}

fn outside(name: &str, start: u64, len: usize, size: u64) -> Error {
    fault(name, format!("\"{name}\" has {size} bytes; {len} from byte {start} on were expected"))
        .hint("The file is cut off or damaged; copy or download it again.")
}

/// A local file.
#[derive(Debug)]
pub(super) struct FileRanges {
    pub(super) file: SteadyFile,
    pub(super) name: Arc<str>,
}

impl Ranges for FileRanges {
    fn len(&self) -> u64 {
        self.file.size()
    }

    fn read(&self, start: u64, len: usize) -> Result<Bytes> {
        check(&self.name, start, len, self.file.size())?;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// A remote object.
#[derive(Debug)]
pub(super) struct RemoteRanges {
    pub(super) remote: Arc<Remote>,
    pub(super) size: u64,
    pub(super) runtime: Handle,
}

impl Ranges for RemoteRanges {
    fn len(&self) -> u64 {
        self.size
    }

    fn read(&self, start: u64, len: usize) -> Result<Bytes> {
        check(self.remote.name(), start, len, self.size)?;
        let remote = Arc::clone(&self.remote);
        wait(&self.runtime, async move { remote.range(start..start + len as u64).await })?
    }

    fn is_versioned(&self) -> bool {
        self.remote.is_versioned()
    }
}

//! Random access to the stored bytes of an input, for formats with a footer such as Parquet.
//!
//! A read returns exactly the requested bytes or an error, never fewer. An object store takes tens
//! of milliseconds to answer a request, so an object gets few requests. One request reads a small
//! object, the end of a larger object, or ranges that are close together.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
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

    /// Reads ranges, each of which is given by its first byte and its length. The ranges are in the
    /// order of their first bytes. Blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`RangeReader::read`].
    fn read_each(&self, ranges: &[(u64, usize)]) -> Result<Vec<Bytes>> {
        ranges.iter().map(|(start, len)| self.read(*start, *len)).collect()
    }

    /// Returns whether each read costs a request to a server.
    fn is_remote(&self) -> bool {
        false
    }

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

/// The size of objects that are read with one request, in bytes.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// The number of bytes at the end of a larger object that are read with one request.
const END_BYTES: u64 = 64 << 10;

/// The most bytes between two ranges that are read with one request.
const GAP_BYTES_MAX: u64 = 256 << 10;

/// The size from which on a request gets no further range, in bytes.
const REQUEST_BYTES_MAX: u64 = 4 << 20;

/// The most requests of one call that are in flight.
const REQUESTS_MAX: usize = 8;

/// Random access to a remote object.
#[derive(Debug)]
pub(super) struct RemoteRangeReader {
    remote: Arc<RemoteObject>,
    size: u64,
    runtime: Handle,
    /// The last bytes of the object, once they were read: formats have their footers there.
    end: Mutex<Option<Bytes>>,
}

impl RemoteRangeReader {
    pub(super) fn new(remote: Arc<RemoteObject>, size: u64, runtime: Handle) -> RemoteRangeReader {
        RemoteRangeReader { remote, size, runtime, end: Mutex::new(None) }
    }

    /// Returns the first of the bytes that are read together with the object's last byte.
    fn end_start(&self) -> u64 {
        if self.size <= WHOLE_BYTES_MAX { 0 } else { self.size - END_BYTES }
    }

    fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let remote = Arc::clone(&self.remote);
        run_and_wait(&self.runtime, async move { remote.range(range).await })?
    }
}

impl RangeReader for RemoteRangeReader {
    fn len(&self) -> u64 {
        self.size
    }

    fn read(&self, start: u64, len: usize) -> Result<Bytes> {
        check_range(self.remote.name(), start, len, self.size)?;
        let end_start = self.end_start();
        if start < end_start {
            return self.fetch(start..start + len as u64);
        }
        // Other threads that need these bytes wait for them.
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = match &*end {
            Some(bytes) => bytes,
            None => end.insert(self.fetch(end_start..self.size)?),
        };
        let at = (start - end_start) as usize;
        Ok(bytes.slice(at..at + len))
    }

    fn read_each(&self, ranges: &[(u64, usize)]) -> Result<Vec<Bytes>> {
        if self.end_start() == 0 {
            return ranges.iter().map(|(start, len)| self.read(*start, *len)).collect();
        }
        for (start, len) in ranges {
            check_range(self.remote.name(), *start, *len, self.size)?;
        }
        let requests = join_close_ranges(ranges);
        let fetches: Vec<_> = requests
            .iter()
            .map(|range| {
                let (remote, range) = (Arc::clone(&self.remote), range.clone());
                async move { remote.range(range).await }
            })
            .collect();
        let fetched: Vec<Bytes> = run_and_wait(&self.runtime, async move {
            stream::iter(fetches).buffered(REQUESTS_MAX).try_collect().await
        })??;
        let slice = |(start, len): &(u64, usize)| {
            let nth = requests.partition_point(|request| request.start <= *start) - 1;
            let at = (start - requests[nth].start) as usize;
            fetched[nth].slice(at..at + len)
        };
        Ok(ranges.iter().map(slice).collect())
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn is_versioned(&self) -> bool {
        self.remote.is_versioned()
    }
}

/// Joins ranges that are close together. The ranges, each with its first byte and its length, are
/// in the order of their first bytes.
fn join_close_ranges(ranges: &[(u64, usize)]) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for (start, len) in ranges {
        let end = start + *len as u64;
        match joined.last_mut() {
            Some(last) if end <= last.end => {}
            // At least half of the bytes are wanted.
            Some(last)
                if *start <= last.end.saturating_add(GAP_BYTES_MAX.min(*len as u64))
                    && last.end - last.start < REQUEST_BYTES_MAX =>
            {
                last.end = end;
            }
            _ => joined.push(*start..end),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_ranges_are_joined() {
        let mib = 1 << 20;
        let ranges = [(0, 10), (10, 5), (GAP_BYTES_MAX + 15, mib), (9 * mib as u64, 5 * mib)];
        let joined = join_close_ranges(&ranges);
        assert_eq!(joined, [0..GAP_BYTES_MAX + 15 + (1 << 20), 9 << 20..14 << 20]);
        // A large request gets no more ranges, unless it has their bytes.
        let joined = join_close_ranges(&[(0, 5 * mib), (0, 10), (5 * mib as u64 - 5, 10)]);
        assert_eq!(joined, [0..5 << 20, (5 << 20) - 5..(5 << 20) + 5]);
        // Of a request with a larger gap, more bytes would be dropped than used.
        assert_eq!(join_close_ranges(&[(0, 10), (100, 20)]), [0..10, 100..120]);
        assert!(join_close_ranges(&[]).is_empty());
    }
}

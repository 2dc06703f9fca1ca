//! Reads stored bytes for the Parquet decoder, in a window for each column.
//!
//! The decoder reads the columns in turn, page after page. Each column chunk has a window of bytes
//! that are read ahead. The window starts small, grows during sequential reads, and ends with the
//! chunk. So an object store gets few requests, and skipped pages cost little. The first windows of
//! a remote file are filled together.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::super::stated_size::check_memory;
use super::pages::ColumnPages;
use crate::Error;
use crate::source::RangeReader;

/// The size of the first window: a page header and, in most columns, the page.
const WINDOW_FIRST: u64 = 64 << 10;
/// The size of the first window of a remote file. An object store sends these bytes in less time
/// than it takes to answer another request.
const WINDOW_FIRST_REMOTE: u64 = 1 << 20;
/// The total size of all windows of a row group.
const WINDOWS_MAX: u64 = 16 << 20;
/// The factor by which a window grows.
const GROWTH: u64 = 4;

/// The stored bytes of a file, as the source of the Parquet decoder.
#[derive(Debug, Clone)]
pub(crate) struct ParquetBytes(Arc<ParquetBytesInner>);

#[derive(Debug)]
struct ParquetBytesInner {
    ranges: Arc<dyn RangeReader>,
    windows: Mutex<Vec<ReadWindow>>,
    /// The bytes of the metadata that were read. The metadata is decoded more than once.
    cached: Option<Mutex<Vec<(u64, Bytes)>>>,
    /// The first error of `ranges`. The decoder would only return its text.
    failed: Mutex<Option<Error>>,
}

#[derive(Debug)]
struct ReadWindow {
    /// The start of the column chunk in the file.
    start: u64,
    /// The end of the column chunk in the file.
    end: u64,
    /// The offset of `bytes` in the file.
    from: u64,
    /// The bytes of the column chunk that were read last.
    bytes: Bytes,
    /// How many bytes the first read of the window fetches.
    first: u64,
    /// The most bytes that one read of the window fetches.
    size_max: u64,
}

impl ParquetBytes {
    /// Returns bytes without windows, for metadata: the decoder requests exact parts of the
    /// metadata. These parts are cached.
    pub(crate) fn whole(ranges: Arc<dyn RangeReader>) -> ParquetBytes {
        ParquetBytes::new(ranges, Vec::new(), Some(Mutex::default()))
    }

    /// Returns bytes with a window for each column chunk of a row group. The rows `rows` of its
    /// `group_rows` rows will be read. If they begin with the first one, the windows of a remote
    /// file are filled together.
    ///
    /// # Errors
    /// The errors of [`RangeReader::read`].
    pub(crate) fn windowed(
        ranges: Arc<dyn RangeReader>,
        group: &RowGroupMetaData,
        rows: &Range<u64>,
        group_rows: u64,
    ) -> Result<ParquetBytes, Error> {
        let share = WINDOWS_MAX / (group.num_columns().max(1) as u64);
        let file_end = ranges.len();
        let is_remote = ranges.is_remote();
        let first = if is_remote { WINDOW_FIRST_REMOTE } else { WINDOW_FIRST };
        let windows = group.columns().iter().map(|chunk| {
            // A damaged file may state any offset. A chunk with an invalid offset gets no window.
            let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
            let start = u64::try_from(start).unwrap_or(0);
            let len = u64::try_from(chunk.compressed_size()).unwrap_or(0);
            let taken = u128::from(rows.end - rows.start);
            let needed = u128::from(len) * taken / u128::from(group_rows.max(1));
            let size_max = (needed as u64).clamp(WINDOW_FIRST, share.max(WINDOW_FIRST));
            let end = start.saturating_add(len).min(file_end);
            ReadWindow { start, end, from: start, bytes: Bytes::new(), first, size_max }
        });
        let mut windows: Vec<ReadWindow> = windows.collect();
        if is_remote && rows.start == 0 {
            fill_windows(ranges.as_ref(), &mut windows)?;
        }
        Ok(ParquetBytes::new(ranges, windows, None))
    }

    fn new(
        ranges: Arc<dyn RangeReader>,
        windows: Vec<ReadWindow>,
        cached: Option<Mutex<Vec<(u64, Bytes)>>>,
    ) -> ParquetBytes {
        let windows = Mutex::new(windows);
        ParquetBytes(Arc::new(ParquetBytesInner {
            ranges,
            windows,
            cached,
            failed: Mutex::new(None),
        }))
    }

    /// Returns a reader of the bytes from `start` on, which checks the page header at `start`.
    pub(super) fn page_headers(&self, start: u64, pages: Arc<ColumnPages>) -> SequentialBytes {
        SequentialBytes::new(self, start, Some(pages))
    }

    /// Takes the error of the last read, if there was one.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        lock(&self.0.failed).take()
    }
}

impl ParquetBytesInner {
    fn read(&self, start: u64, len: u64) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(len).filter(|end| *end <= self.ranges.len());
        let Some(end) = end else {
            return Err(ParquetError::EOF(format!(
                "{len} bytes at offset {start} are beyond the end of the file"
            )));
        };
        let mut windows = lock(&self.windows);
        let window = windows.iter_mut().find(|w| w.start <= start && end <= w.end);
        let Some(window) = window else { return self.fetch(start, len) };
        if !window.contains(start, end) {
            window.bytes = self.fetch(start, window.read_len(start, len))?;
            window.from = start;
        }
        let at = (start - window.from) as usize;
        Ok(window.bytes.slice(at..at + len as usize))
    }

    /// Returns the bytes of a window from `start` on, or reads some bytes at `start`.
    fn read_some(&self, start: u64) -> Result<Bytes, ParquetError> {
        let file_end = self.ranges.len();
        let windows = lock(&self.windows);
        let window = windows.iter().find(|w| w.start <= start && start < w.end);
        let len = match window {
            Some(w) if w.contains(start, start + 1) => w.from + w.bytes.len() as u64 - start,
            Some(w) => (w.end.min(file_end)).saturating_sub(start).min(WINDOW_FIRST),
            None => file_end.saturating_sub(start).min(WINDOW_FIRST),
        };
        drop(windows);
        self.read(start, len)
    }

    fn fetch(&self, start: u64, len: u64) -> Result<Bytes, ParquetError> {
        if let Some(cached) = &self.cached {
            let cached = lock(cached);
            let contains = |(from, bytes): &&(u64, Bytes)| {
                *from <= start && start + len <= from + bytes.len() as u64
            };
            if let Some((from, bytes)) = cached.iter().find(contains) {
                let at = (start - from) as usize;
                return Ok(bytes.slice(at..at + len as usize));
            }
        }
        check_memory(len).map_err(|why| {
            ParquetError::General(format!("the file states {len} bytes at offset {start}, {why}"))
        })?;
        let len = usize::try_from(len).map_err(|error| ParquetError::External(error.into()))?;
        let bytes = self.ranges.read(start, len).map_err(|error| {
            let text = error.to_string();
            lock(&self.failed).get_or_insert(error);
            ParquetError::General(text)
        })?;
        if let Some(cached) = &self.cached {
            lock(cached).push((start, bytes.clone()));
        }
        Ok(bytes)
    }

    /// Reads as many bytes from `start` on as the page header needs, and checks the header.
    fn header(&self, start: u64, pages: &ColumnPages) -> Result<Bytes, ParquetError> {
        let mut bytes = self.read_some(start)?;
        while pages.check_header(&bytes, start, None)?.is_none() {
            let more = self.read_some(start + bytes.len() as u64)?;
            if more.is_empty() {
                break;
            }
            bytes = [bytes, more].concat().into();
        }
        Ok(bytes)
    }
}

impl ReadWindow {
    fn contains(&self, start: u64, end: u64) -> bool {
        self.from <= start && end <= self.from + self.bytes.len() as u64
    }

    /// Returns how many bytes to read at `start` for a request of `len` bytes.
    fn read_len(&self, start: u64, len: u64) -> u64 {
        let held = self.bytes.len() as u64;
        let is_sequential = held > 0 && (self.from..=self.from + held).contains(&start);
        let grown = if is_sequential { held.saturating_mul(GROWTH) } else { self.first };
        grown.min(self.size_max).max(len).min(self.end - start)
    }
}

/// Fills the windows with the first bytes of their column chunks.
fn fill_windows(ranges: &dyn RangeReader, windows: &mut [ReadWindow]) -> Result<(), Error> {
    let mut filled: Vec<&mut ReadWindow> =
        windows.iter_mut().filter(|window| window.start < window.end).collect();
    filled.sort_unstable_by_key(|window| window.start);
    let wanted: Vec<(u64, usize)> = filled
        .iter()
        .map(|window| (window.start, window.size_max.min(window.end - window.start) as usize))
        .collect();
    for (window, bytes) in filled.into_iter().zip(ranges.read_each(&wanted)?) {
        window.bytes = bytes;
    }
    Ok(())
}

impl Length for ParquetBytes {
    fn len(&self) -> u64 {
        self.0.ranges.len()
    }
}

impl ChunkReader for ParquetBytes {
    type T = SequentialBytes;

    fn get_read(&self, start: u64) -> Result<SequentialBytes, ParquetError> {
        Ok(SequentialBytes::new(self, start, None))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.0.read(start, length as u64)
    }
}

/// A sequential reader of stored bytes from an offset on.
#[derive(Debug)]
pub(crate) struct SequentialBytes {
    inner: Arc<ParquetBytesInner>,
    at: u64,
    piece: Bytes,
    /// The column whose page header follows, until the header is checked.
    unchecked: Option<Arc<ColumnPages>>,
    /// Whether the end of the file was returned once.
    has_ended: bool,
}

impl SequentialBytes {
    fn new(stored: &ParquetBytes, at: u64, unchecked: Option<Arc<ColumnPages>>) -> SequentialBytes {
        let inner = stored.0.clone();
        SequentialBytes { inner, at, piece: Bytes::new(), unchecked, has_ended: false }
    }
}

impl Read for SequentialBytes {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            let piece = match self.unchecked.take() {
                Some(pages) => self.inner.header(self.at, &pages),
                None => self.inner.read_some(self.at),
            };
            self.piece = piece.map_err(io::Error::other)?;
            self.at += self.piece.len() as u64;
            // A decoder that skips the elements of a damaged header may ignore an empty read and
            // continue for ever. So the second read at the end is an error.
            if self.piece.is_empty() && std::mem::replace(&mut self.has_ended, true) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let len = self.piece.len().min(buf.len());
        buf[..len].copy_from_slice(&self.piece.split_to(len));
        Ok(len)
    }
}

/// Locks a mutex, ignoring poisoning: the data is consistent even if another thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

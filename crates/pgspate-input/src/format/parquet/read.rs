//! How the Parquet decoder reads stored bytes: in windows that move along each column.
//!
//! The decoder asks for page after page of every column in turn. Each column chunk has a window of
//! bytes read ahead, which starts small, grows while reading goes on in sequence and never crosses
//! the chunk's end, so that an object store sees few requests and skipped pages cost little.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::super::stated::check_room;
use super::pages::ColumnPages;
use crate::Error;
use crate::source::Ranges;

/// The first window: a page header and, in most columns, the page.
const WINDOW_FIRST: u64 = 64 << 10;
/// All windows of a row group together.
const WINDOWS_MAX: u64 = 16 << 20;
/// How a window grows.
const GROWTH: u64 = 4;

/// Stored bytes as the Parquet decoder wants them.
#[derive(Debug, Clone)]
pub(crate) struct Stored(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ranges: Arc<dyn Ranges>,
    windows: Mutex<Vec<Window>>,
    /// What was read of the metadata, which are decoded more than once.
    kept: Option<Mutex<Vec<(u64, Bytes)>>>,
    /// The first error of `ranges`, which the decoder would only pass on as text.
    failed: Mutex<Option<Error>>,
}

#[derive(Debug)]
struct Window {
    /// The column chunk.
    start: u64,
    end: u64,
    /// What has been read of it, and from where.
    from: u64,
    bytes: Bytes,
    size_max: u64,
}

impl Stored {
    /// Without windows: for metadata, whose parts the decoder asks for exactly. They are kept.
    pub(crate) fn whole(ranges: Arc<dyn Ranges>) -> Stored {
        Stored::new(ranges, Vec::new(), Some(Mutex::default()))
    }

    /// With a window for each column chunk of a row group, of which `rows` of `group_rows` rows
    /// will be read.
    pub(crate) fn windowed(
        ranges: Arc<dyn Ranges>,
        group: &RowGroupMetaData,
        rows: u64,
        group_rows: u64,
    ) -> Stored {
        let share = WINDOWS_MAX / (group.num_columns().max(1) as u64);
        let file_end = ranges.len();
        let windows = group.columns().iter().map(|chunk| {
            // A damaged file may say anything; what is said wrongly here gets no window.
            let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
            let start = u64::try_from(start).unwrap_or(0);
            let len = u64::try_from(chunk.compressed_size()).unwrap_or(0);
            let needed = u128::from(len) * u128::from(rows) / u128::from(group_rows.max(1));
            let size_max = (needed as u64).clamp(WINDOW_FIRST, share.max(WINDOW_FIRST));
            let end = start.saturating_add(len).min(file_end);
            Window { start, end, from: start, bytes: Bytes::new(), size_max }
        });
        Stored::new(ranges, windows.collect(), None)
    }

    fn new(
        ranges: Arc<dyn Ranges>,
        windows: Vec<Window>,
        kept: Option<Mutex<Vec<(u64, Bytes)>>>,
    ) -> Stored {
        let windows = Mutex::new(windows);
        Stored(Arc::new(Inner { ranges, windows, kept, failed: Mutex::new(None) }))
    }

    /// What follows `start`, where the header of a page is read, if anything is.
    pub(super) fn headers(&self, start: u64, pages: Arc<ColumnPages>) -> Sequential {
        Sequential::new(self, start, Some(pages))
    }

    /// The error that reading ended with, if one did.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        lock(&self.0.failed).take()
    }
}

impl Inner {
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
        if !window.holds(start, end) {
            window.bytes = self.fetch(start, window.next(start, len))?;
            window.from = start;
        }
        let at = (start - window.from) as usize;
        Ok(window.bytes.slice(at..at + len as usize))
    }

    /// What a window holds from `start` on, or as much as can be read at `start`.
    fn read_some(&self, start: u64) -> Result<Bytes, ParquetError> {
        let file_end = self.ranges.len();
        let windows = lock(&self.windows);
        let window = windows.iter().find(|w| w.start <= start && start < w.end);
        let len = match window {
            Some(w) if w.holds(start, start + 1) => w.from + w.bytes.len() as u64 - start,
            Some(w) => (w.end.min(file_end)).saturating_sub(start).min(WINDOW_FIRST),
            None => file_end.saturating_sub(start).min(WINDOW_FIRST),
        };
        drop(windows);
        self.read(start, len)
    }

    fn fetch(&self, start: u64, len: u64) -> Result<Bytes, ParquetError> {
        if let Some(kept) = &self.kept {
            let kept = lock(kept);
            let holds = |(from, bytes): &&(u64, Bytes)| {
                *from <= start && start + len <= from + bytes.len() as u64
            };
            if let Some((from, bytes)) = kept.iter().find(holds) {
                let at = (start - from) as usize;
                return Ok(bytes.slice(at..at + len as usize));
            }
        }
        check_room(len).map_err(|why| {
            ParquetError::General(format!("{len} bytes at offset {start} are to be read, {why}"))
        })?;
        let len = usize::try_from(len).map_err(|error| ParquetError::External(error.into()))?;
        let bytes = self.ranges.read(start, len).map_err(|error| {
            let text = error.to_string();
            lock(&self.failed).get_or_insert(error);
            ParquetError::General(text)
        })?;
        if let Some(kept) = &self.kept {
            lock(kept).push((start, bytes.clone()));
        }
        Ok(bytes)
    }

    /// What stands at `start`, as far as it takes to hold the header of a page, which is checked.
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

impl Window {
    fn holds(&self, start: u64, end: u64) -> bool {
        self.from <= start && end <= self.from + self.bytes.len() as u64
    }

    /// How much to read at `start` for a request of `len` bytes.
    fn next(&self, start: u64, len: u64) -> u64 {
        let held = self.bytes.len() as u64;
        let goes_on = held > 0 && (self.from..=self.from + held).contains(&start);
        let grown = if goes_on { held.saturating_mul(GROWTH) } else { WINDOW_FIRST };
        grown.min(self.size_max).max(len).min(self.end - start)
    }
}

impl Length for Stored {
    fn len(&self) -> u64 {
        self.0.ranges.len()
    }
}

impl ChunkReader for Stored {
    type T = Sequential;

    fn get_read(&self, start: u64) -> Result<Sequential, ParquetError> {
        Ok(Sequential::new(self, start, None))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.0.read(start, length as u64)
    }
}

/// Stored bytes from an offset on.
#[derive(Debug)]
pub(crate) struct Sequential {
    inner: Arc<Inner>,
    at: u64,
    piece: Bytes,
    /// Of which column the header of a page follows, until it has been checked.
    unchecked: Option<Arc<ColumnPages>>,
    /// The end of the file was met once.
    has_ended: bool,
}

impl Sequential {
    fn new(stored: &Stored, at: u64, unchecked: Option<Arc<ColumnPages>>) -> Sequential {
        let inner = stored.0.clone();
        Sequential { inner, at, piece: Bytes::new(), unchecked, has_ended: false }
    }
}

impl Read for Sequential {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            let piece = match self.unchecked.take() {
                Some(pages) => self.inner.header(self.at, &pages),
                None => self.inner.read_some(self.at),
            };
            self.piece = piece.map_err(io::Error::other)?;
            self.at += self.piece.len() as u64;
            // Whoever skips what a damaged header counts may take no bytes for an answer, and go
            // on for as long as that says.
            if self.piece.is_empty() && std::mem::replace(&mut self.has_ended, true) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let len = self.piece.len().min(buf.len());
        buf[..len].copy_from_slice(&self.piece.split_to(len));
        Ok(len)
    }
}

/// No holder of these locks leaves them half-changed, so a panic of another does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

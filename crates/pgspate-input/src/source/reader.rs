//! Reads the decompressed bytes of one input, in order, on any thread.
//!
//! A plain local file is read directly. Everything else is read ahead: objects by parallel range
//! requests, compressed data by a thread that decompresses it. After an error every further read
//! returns the same error, so an error can never look like the end of the data.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::decompress::{Compression, DecompressedReader, MAGIC_BYTES};
use super::decompression_thread::{DecompressionThread, ReadInterrupt};
use super::fetch::ObjectFetcher;
use super::file_version::VersionedFile;
use super::{read_error, source_error};
use crate::{ErrorKind, InputPlace, Result};

/// The size of one read from a compressed file or pipe.
const STORED_BLOCK_BYTES: usize = 256 << 10;

/// The size of one read from a pipe. The buffers of pipes have 64 KiB to 1 MiB.
const PIPE_BLOCK_BYTES: usize = 256 << 10;

/// The progress of reading, in stored (compressed) bytes. Shared with the progress line.
#[derive(Debug, Default)]
pub struct ReadProgress {
    stored: AtomicU64,
    total: Option<u64>,
}

impl ReadProgress {
    pub(super) fn new(total: Option<u64>) -> Arc<ReadProgress> {
        Arc::new(ReadProgress { stored: AtomicU64::new(0), total })
    }

    pub(super) fn add(&self, count: u64) {
        self.stored.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the number of stored bytes that were read and decompressed. Reading ahead makes this
    /// number a few MiB larger than what the reader has returned.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Returns the stored size of the whole input, if it is known.
    pub fn total(&self) -> Option<u64> {
        self.total
    }
}

/// A reader of the decompressed bytes of one input. Dropping the reader ends all reading ahead.
pub struct InputReader {
    /// Peeked bytes, which are returned first.
    head: Cursor<Vec<u8>>,
    body: ReaderBody,
    compression: Compression,
    name: Arc<str>,
    progress: Arc<ReadProgress>,
    failed: Option<ReadFailure>,
}

/// The parts of the first error. Every later read returns an equal error made from these parts.
struct ReadFailure {
    kind: ErrorKind,
    message: String,
    place: Option<InputPlace>,
    hint: Option<String>,
}

/// The source of the bytes after the peeked bytes.
enum ReaderBody {
    File { file: VersionedFile, read: u64 },
    Pipe(PeekedPipe),
    Object(ObjectFetcher),
    Compressed(DecompressionThread),
}

/// A stream that is not a file: the bytes that were read to detect the compression, and the rest.
type PeekedPipe = io::Chain<Cursor<Vec<u8>>, Box<dyn Read + Send>>;

impl std::fmt::Debug for InputReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InputReader")
            .field("name", &self.name)
            .field("compression", &self.compression)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

/// Returns the body of a compressed source, which a thread decompresses.
fn decompress<R: BufRead + Send + 'static>(
    source: R,
    compression: Compression,
    name: &Arc<str>,
    progress: &Arc<ReadProgress>,
    interrupt: ReadInterrupt,
) -> Result<ReaderBody> {
    let (shared_name, shared_progress) = (Arc::clone(name), Arc::clone(progress));
    let decoded = DecompressedReader::new(source, compression, shared_name, shared_progress)?;
    let stored = progress.total();
    let thread = DecompressionThread::start(decoded, Arc::clone(name), interrupt, stored)?;
    Ok(ReaderBody::Compressed(thread))
}

impl InputReader {
    pub(super) fn file(file: VersionedFile, name: Arc<str>) -> Result<InputReader> {
        let mut head = [0; MAGIC_BYTES];
        let len = file.read_head(&mut head).map_err(|error| read_error(error, &name))?;
        let compression = Compression::detect(&head[..len], &name)?;
        let progress = ReadProgress::new(Some(file.size()));
        let body = match compression {
            Compression::None => ReaderBody::File { file, read: 0 },
            _ => {
                let source = BufReader::with_capacity(STORED_BLOCK_BYTES, file);
                decompress(source, compression, &name, &progress, ReadInterrupt::NotNeeded)?
            }
        };
        Ok(InputReader::new(body, compression, name, progress))
    }

    pub(super) fn pipe(
        mut source: Box<dyn Read + Send>,
        name: Arc<str>,
        total: Option<u64>,
    ) -> Result<InputReader> {
        let mut head = Vec::with_capacity(MAGIC_BYTES);
        source
            .by_ref()
            .take(MAGIC_BYTES as u64)
            .read_to_end(&mut head)
            .map_err(|error| read_error(error, &name))?;
        let compression = Compression::detect(&head, &name)?;
        let progress = ReadProgress::new(total);
        let pipe = Cursor::new(head).chain(source);
        let body = match compression {
            Compression::None => ReaderBody::Pipe(pipe),
            _ => {
                let source = BufReader::with_capacity(STORED_BLOCK_BYTES, pipe);
                decompress(source, compression, &name, &progress, ReadInterrupt::Impossible)?
            }
        };
        Ok(InputReader::new(body, compression, name, progress))
    }

    /// Returns a reader that never decompresses, whatever the first bytes are.
    pub(super) fn plain(source: Box<dyn Read + Send>, name: Arc<str>) -> InputReader {
        let pipe = Cursor::new(Vec::new()).chain(source);
        InputReader::new(ReaderBody::Pipe(pipe), Compression::None, name, ReadProgress::new(None))
    }

    pub(super) fn fetch(
        mut fetch: ObjectFetcher,
        name: Arc<str>,
        total: Option<u64>,
    ) -> Result<InputReader> {
        let head = fetch.peek(MAGIC_BYTES)?;
        let compression = Compression::detect(&head[..head.len().min(MAGIC_BYTES)], &name)?;
        let progress = ReadProgress::new(total);
        let body = match compression {
            Compression::None => {
                fetch.check_framed()?;
                ReaderBody::Object(fetch)
            }
            _ => {
                let interrupt = ReadInterrupt::AbortTask(fetch.abort_handle());
                decompress(fetch, compression, &name, &progress, interrupt)?
            }
        };
        Ok(InputReader::new(body, compression, name, progress))
    }

    fn new(
        body: ReaderBody,
        compression: Compression,
        name: Arc<str>,
        progress: Arc<ReadProgress>,
    ) -> InputReader {
        let head = Cursor::new(Vec::new());
        InputReader { head, body, compression, name, progress, failed: None }
    }

    /// Returns the compression of the stored bytes.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Returns the input's name as the user would write it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the reader's progress. The value stays valid after the reader is dropped.
    pub fn progress(&self) -> Arc<ReadProgress> {
        Arc::clone(&self.progress)
    }

    /// Appends at most `max` bytes to `buf`, and none only at the end (or if `max` is 0). Cheaper
    /// than [`Read::read`], which needs zeroed memory.
    ///
    /// # Errors
    /// The I/O error of a failed read, which [`read_error`] converts into a pgspate error. All
    /// bytes before the failure are in `buf` or were returned by earlier calls.
    pub fn read_into(&mut self, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        if let Some(failed) = &self.failed {
            return Err(failed.error());
        }
        let before = buf.len();
        if self.head.position() < self.head.get_ref().len() as u64 {
            return self.head.by_ref().take(max as u64).read_to_end(buf);
        }
        let result = self.append_from_body(buf, max);
        let count = buf.len() - before;
        match result {
            Err(error) if count == 0 => Err(self.remember_failure(error)),
            Err(error) => {
                self.remember_failure(error);
                Ok(count)
            }
            Ok(()) => Ok(count),
        }
    }

    fn append_from_body(&mut self, buf: &mut Vec<u8>, max: usize) -> io::Result<()> {
        match &mut self.body {
            ReaderBody::File { file, read } => {
                buf.reserve(max.min(file.size().saturating_sub(*read) as usize));
                let before = buf.len();
                let result = file.by_ref().take(max as u64).read_to_end(buf);
                let count = (buf.len() - before) as u64;
                *read += count;
                self.progress.add(count);
                result?;
                check_complete(count, *read, file.size(), &self.name)
            }
            ReaderBody::Pipe(pipe) => {
                let before = buf.len();
                buf.resize(before + max.min(PIPE_BLOCK_BYTES), 0);
                let result = retry_interrupted(|| pipe.read(&mut buf[before..]));
                let count = *result.as_ref().unwrap_or(&0);
                buf.truncate(before + count);
                self.progress.add(count as u64);
                result.map(drop)
            }
            ReaderBody::Object(fetch) => {
                let bytes = fetch.fill().map_err(io::Error::other)?;
                let count = bytes.len().min(max);
                buf.extend_from_slice(&bytes[..count]);
                fetch.mark_used(count);
                if count == 0 {
                    fetch.check_framed().map_err(io::Error::other)?;
                }
                self.progress.add(count as u64);
                Ok(())
            }
            ReaderBody::Compressed(thread) => {
                let bytes = thread.fill().map_err(io::Error::other)?;
                let count = bytes.len().min(max);
                buf.extend_from_slice(&bytes[..count]);
                thread.mark_used(count);
                Ok(())
            }
        }
    }

    fn read_body(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.body {
            ReaderBody::File { file, read } => {
                let count = retry_interrupted(|| file.read(out))?;
                *read += count as u64;
                self.progress.add(count as u64);
                check_complete(count as u64, *read, file.size(), &self.name)?;
                Ok(count)
            }
            ReaderBody::Pipe(pipe) => {
                let count = retry_interrupted(|| pipe.read(out))?;
                self.progress.add(count as u64);
                Ok(count)
            }
            ReaderBody::Object(fetch) => {
                let count = fetch.read(out)?;
                self.progress.add(count as u64);
                if count == 0 {
                    fetch.check_framed().map_err(io::Error::other)?;
                }
                Ok(count)
            }
            ReaderBody::Compressed(thread) => {
                let bytes = thread.fill().map_err(io::Error::other)?;
                let count = bytes.len().min(out.len());
                out[..count].copy_from_slice(&bytes[..count]);
                thread.mark_used(count);
                Ok(count)
            }
        }
    }

    /// Makes `bytes` the next bytes that the reader returns.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>) {
        let at = self.head.position() as usize;
        bytes.extend_from_slice(&self.head.get_ref()[at..]);
        self.head = Cursor::new(bytes);
    }

    /// Remembers the error, so that every later read returns the same error.
    fn remember_failure(&mut self, error: io::Error) -> io::Error {
        let error = read_error(error, &self.name);
        let cause = std::error::Error::source(&error).map(|cause| cause.to_string());
        let message = match cause {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        self.failed = Some(ReadFailure {
            kind: error.kind(),
            message,
            place: error.place().cloned(),
            hint: error.hint_text().map(str::to_owned),
        });
        io::Error::other(error)
    }
}

impl Read for InputReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        if let Some(failed) = &self.failed {
            return Err(failed.error());
        }
        if self.head.position() < self.head.get_ref().len() as u64 {
            return self.head.read(out);
        }
        self.read_body(out).map_err(|error| self.remember_failure(error))
    }
}

impl ReadFailure {
    fn error(&self) -> io::Error {
        let mut error = crate::Error::new(self.kind, self.message.clone());
        if let Some(place) = &self.place {
            error = error.at(place.clone());
        }
        if let Some(hint) = &self.hint {
            error = error.hint(hint.clone());
        }
        io::Error::other(error)
    }
}

/// Checks that a file did not end before the size that the file had when it was opened.
fn check_complete(count: u64, read: u64, size: u64, name: &str) -> io::Result<()> {
    if count > 0 || read >= size {
        return Ok(());
    }
    let message = format!("\"{name}\" was cut to {read} of {size} bytes while it was being read");
    Err(io::Error::other(source_error(name, message)))
}

/// Repeats a read that a signal interrupted.
fn retry_interrupted(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

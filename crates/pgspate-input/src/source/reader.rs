//! The decompressed bytes of one input, in order, on whatever thread asks.
//!
//! A plain local file is read directly. Everything else is read ahead: objects by ranges in
//! parallel, compressed data by a thread that decodes it. After an error every further read is
//! the same error, so a fault can never pass for the end.

use std::io::{self, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ahead::{Ahead, Release};
use super::decode::{Compression, Decoded, MAGIC_BYTES};
use super::fetch::Fetch;
use super::steady::SteadyFile;
use super::{error_of, fault};
use crate::{ErrorKind, InputPlace, Result};

/// What is asked of a file or pipe at once when it is decompressed.
const STORED_BLOCK_BYTES: usize = 256 << 10;

/// What is asked of a pipe at once; pipes hold 64 KiB to 1 MiB.
const PIPE_BLOCK_BYTES: usize = 256 << 10;

/// How far reading has come, in stored (compressed) bytes. Shared with whoever displays it.
#[derive(Debug, Default)]
pub struct Progress {
    stored: AtomicU64,
    total: Option<u64>,
}

impl Progress {
    pub(super) fn new(total: Option<u64>) -> Arc<Progress> {
        Arc::new(Progress { stored: AtomicU64::new(0), total })
    }

    pub(super) fn add(&self, count: u64) {
        self.stored.fetch_add(count, Ordering::Relaxed);
    }

    /// Stored bytes read and decoded so far. Runs ahead of the bytes yielded by a few MiB.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Stored bytes of the whole input, where that is known.
    pub fn total(&self) -> Option<u64> {
        self.total
    }
}

/// Reads the decompressed bytes of one input. Dropping it early ends what reads ahead for it.
pub struct Reader {
    /// Bytes that were peeked, yielded first.
    head: Cursor<Vec<u8>>,
    body: Body,
    compression: Compression,
    name: Arc<str>,
    progress: Arc<Progress>,
    failed: Option<Failed>,
}

struct Failed {
    kind: ErrorKind,
    message: String,
    place: Option<InputPlace>,
    hint: Option<String>,
}

enum Body {
    File { file: SteadyFile, read: u64 },
    Pipe(Pipe),
    Fetch(Fetch),
    Ahead(Ahead),
}

/// A stream that is not a file, after its first bytes were looked at.
type Pipe = io::Chain<Cursor<Vec<u8>>, Box<dyn Read + Send>>;

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("name", &self.name)
            .field("compression", &self.compression)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

impl Reader {
    pub(super) fn file(file: SteadyFile, name: Arc<str>) -> Result<Reader> {
        let mut head = [0; MAGIC_BYTES];
        let len = file.read_head(&mut head).map_err(|error| error_of(error, &name))?;
        let compression = Compression::detect(&head[..len], &name)?;
        let progress = Progress::new(Some(file.size()));
        let body = match compression {
            Compression::None => Body::File { file, read: 0 },
            _ => {
                let source = BufReader::with_capacity(STORED_BLOCK_BYTES, file);
                let (name, progress) = (Arc::clone(&name), Arc::clone(&progress));
                let decoded = Decoded::new(source, compression, Arc::clone(&name), progress)?;
                Body::Ahead(Ahead::start(decoded, name, Release::Soon)?)
            }
        };
        Ok(Reader::new(body, compression, name, progress))
    }

    pub(super) fn pipe(
        mut source: Box<dyn Read + Send>,
        name: Arc<str>,
        total: Option<u64>,
    ) -> Result<Reader> {
        let mut head = Vec::with_capacity(MAGIC_BYTES);
        source
            .by_ref()
            .take(MAGIC_BYTES as u64)
            .read_to_end(&mut head)
            .map_err(|error| error_of(error, &name))?;
        let compression = Compression::detect(&head, &name)?;
        let progress = Progress::new(total);
        let pipe = Cursor::new(head).chain(source);
        let body = match compression {
            Compression::None => Body::Pipe(pipe),
            _ => {
                let source = BufReader::with_capacity(STORED_BLOCK_BYTES, pipe);
                let (name, progress) = (Arc::clone(&name), Arc::clone(&progress));
                let decoded = Decoded::new(source, compression, Arc::clone(&name), progress)?;
                Body::Ahead(Ahead::start(decoded, name, Release::Never)?)
            }
        };
        Ok(Reader::new(body, compression, name, progress))
    }

    /// What is not compressed, whatever it begins with.
    pub(super) fn plain(source: Box<dyn Read + Send>, name: Arc<str>) -> Reader {
        let pipe = Cursor::new(Vec::new()).chain(source);
        Reader::new(Body::Pipe(pipe), Compression::None, name, Progress::new(None))
    }

    pub(super) fn fetch(mut fetch: Fetch, name: Arc<str>, total: Option<u64>) -> Result<Reader> {
        let head = fetch.peek(MAGIC_BYTES)?;
        let compression = Compression::detect(&head[..head.len().min(MAGIC_BYTES)], &name)?;
        let progress = Progress::new(total);
        let body = match compression {
            Compression::None => {
                fetch.check_end()?;
                Body::Fetch(fetch)
            }
            _ => {
                let release = Release::Abort(fetch.abort_handle());
                let (name, progress) = (Arc::clone(&name), Arc::clone(&progress));
                let decoded = Decoded::new(fetch, compression, Arc::clone(&name), progress)?;
                Body::Ahead(Ahead::start(decoded, name, release)?)
            }
        };
        Ok(Reader::new(body, compression, name, progress))
    }

    fn new(
        body: Body,
        compression: Compression,
        name: Arc<str>,
        progress: Arc<Progress>,
    ) -> Reader {
        let head = Cursor::new(Vec::new());
        Reader { head, body, compression, name, progress, failed: None }
    }

    /// How the stored bytes are compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// The input's name as the user would write it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How far it has come; stays valid after the reader is gone.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Appends bytes to `buf`: at least one and at most `max`, none only at the end (or when
    /// `max` is 0). Cheaper than [`Read::read`] into zeroed memory.
    ///
    /// # Errors
    /// As [`Reader`] reads: [`error_of`] turns them into pgspate's own. What came before the
    /// fault is in `buf` or was yielded before.
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
        let result = self.append(buf, max);
        let count = buf.len() - before;
        match result {
            Err(error) if count == 0 => Err(self.fail(error)),
            Err(error) => {
                self.fail(error);
                Ok(count)
            }
            Ok(()) => Ok(count),
        }
    }

    fn append(&mut self, buf: &mut Vec<u8>, max: usize) -> io::Result<()> {
        match &mut self.body {
            Body::File { file, read } => {
                buf.reserve(max.min(file.size().saturating_sub(*read) as usize));
                let before = buf.len();
                let result = file.by_ref().take(max as u64).read_to_end(buf);
                let count = (buf.len() - before) as u64;
                *read += count;
                self.progress.add(count);
                result?;
                check_whole(count, *read, file.size(), &self.name)
            }
            Body::Pipe(pipe) => {
                let before = buf.len();
                buf.resize(before + max.min(PIPE_BLOCK_BYTES), 0);
                let result = retried(|| pipe.read(&mut buf[before..]));
                let count = *result.as_ref().unwrap_or(&0);
                buf.truncate(before + count);
                self.progress.add(count as u64);
                result.map(drop)
            }
            Body::Fetch(fetch) => {
                let bytes = fetch.fill().map_err(io::Error::other)?;
                let count = bytes.len().min(max);
                buf.extend_from_slice(&bytes[..count]);
                fetch.take(count);
                if count == 0 {
                    fetch.check_end().map_err(io::Error::other)?;
                }
                self.progress.add(count as u64);
                Ok(())
            }
            Body::Ahead(ahead) => {
                let bytes = ahead.fill().map_err(io::Error::other)?;
                let count = bytes.len().min(max);
                buf.extend_from_slice(&bytes[..count]);
                ahead.consume(count);
                Ok(())
            }
        }
    }

    fn fill(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.body {
            Body::File { file, read } => {
                let count = retried(|| file.read(out))?;
                *read += count as u64;
                self.progress.add(count as u64);
                check_whole(count as u64, *read, file.size(), &self.name)?;
                Ok(count)
            }
            Body::Pipe(pipe) => {
                let count = retried(|| pipe.read(out))?;
                self.progress.add(count as u64);
                Ok(count)
            }
            Body::Fetch(fetch) => {
                let count = fetch.read(out)?;
                self.progress.add(count as u64);
                if count == 0 {
                    fetch.check_end().map_err(io::Error::other)?;
                }
                Ok(count)
            }
            Body::Ahead(ahead) => {
                let bytes = ahead.fill().map_err(io::Error::other)?;
                let count = bytes.len().min(out.len());
                out[..count].copy_from_slice(&bytes[..count]);
                ahead.consume(count);
                Ok(count)
            }
        }
    }

    /// Yields `bytes` before anything else.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>) {
        let at = self.head.position() as usize;
        bytes.extend_from_slice(&self.head.get_ref()[at..]);
        self.head = Cursor::new(bytes);
    }

    /// Remembers the error, so that it is all that is ever read from here on.
    fn fail(&mut self, error: io::Error) -> io::Error {
        let error = error_of(error, &self.name);
        let cause = std::error::Error::source(&error).map(|cause| cause.to_string());
        let message = match cause {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        self.failed = Some(Failed {
            kind: error.kind(),
            message,
            place: error.place().cloned(),
            hint: error.hint_text().map(str::to_owned),
        });
        io::Error::other(error)
    }
}

impl Read for Reader {
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
        self.fill(out).map_err(|error| self.fail(error))
    }
}

impl Failed {
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

/// A file that ends before the size it had when it was opened was cut while it was read.
fn check_whole(count: u64, read: u64, size: u64, name: &str) -> io::Result<()> {
    if count > 0 || read >= size {
        return Ok(());
    }
    let message = format!("\"{name}\" was cut to {read} of {size} bytes while it was being read");
    Err(io::Error::other(fault(name, message)))
}

fn retried(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

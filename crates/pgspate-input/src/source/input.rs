//! One input: where its bytes are, and the ways to read them.
//!
//! Files and objects can be read as often as one likes. Standard input and pipes can be read
//! once; what was peeked of them is yielded again by the reader.

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle;

use super::fetch::{Fetch, Pace};
use super::local::{Found, unreadable};
use super::ranges::{FileRanges, RemoteRanges};
use super::remote::{Remote, changed};
use super::steady::FileVersion;
use super::{Compression, Ranges, Reader, error_of, fault, name};
use crate::{Error, ErrorKind, Result, Secret};

/// What is asked of an object to look at its first bytes.
const PEEK_RANGE_BYTES: u64 = 64 << 10;

/// One file, object or stream. Cheap to clone; clones are the same input.
#[derive(Debug, Clone)]
pub struct Input(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: Arc<str>,
    stored_bytes: Option<u64>,
    modified: Option<SystemTime>,
    etag: Option<String>,
    /// How many first bytes were looked at, and their digest, where the next look may see others.
    peeked: Mutex<Option<(usize, Vec<u8>)>>,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    File(PathBuf, FileVersion),
    Pipe(Mutex<Pipe>),
    /// Rows of the program's own, which are not read as bytes.
    Memory {
        is_stream: bool,
    },
    Remote {
        remote: Arc<Remote>,
        runtime: Handle,
        pace: Pace,
    },
}

/// A stream that can be read once.
#[derive(Debug)]
struct Pipe {
    /// `None` for standard input, and for what a program makes.
    path: Option<PathBuf>,
    state: PipeState,
}

enum PipeState {
    Unopened,
    /// What a program makes, not begun.
    Made(Box<dyn Read + Send>),
    Peeked(Box<Reader>),
    Taken,
}

impl fmt::Debug for PipeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PipeState::Unopened => "Unopened",
            PipeState::Made(_) => "Made",
            PipeState::Peeked(_) => "Peeked",
            PipeState::Taken => "Taken",
        })
    }
}

impl Input {
    pub(super) fn local(found: Found, may_grow: bool) -> Input {
        let name: Arc<str> = found.path.to_string_lossy().into();
        let is_file = found.metadata.is_file();
        let origin = if is_file {
            Origin::File(found.path, FileVersion::of(&found.metadata, may_grow))
        } else {
            let path = Some(found.path);
            Origin::Pipe(Mutex::new(Pipe { path, state: PipeState::Unopened }))
        };
        let (stored_bytes, modified) = match is_file {
            true => (Some(found.metadata.len()), found.metadata.modified().ok()),
            false => (None, None),
        };
        let (etag, peeked) = (None, Mutex::default());
        Input(Arc::new(Inner { name, stored_bytes, modified, etag, peeked, origin }))
    }

    pub(super) fn stdin() -> Input {
        let pipe = Pipe { path: None, state: PipeState::Unopened };
        Input(Arc::new(Inner {
            name: "-".into(),
            stored_bytes: redirected_bytes(),
            modified: None,
            etag: None,
            peeked: Mutex::default(),
            origin: Origin::Pipe(Mutex::new(pipe)),
        }))
    }

    /// Bytes that a program makes while they are read, once. Reads may block for ever; errors that
    /// are pgspate's own come out as they are.
    pub fn program(name: &str, bytes: Box<dyn Read + Send>) -> Input {
        Input::pipe(name.into(), Pipe { path: None, state: PipeState::Made(bytes) })
    }

    /// The same for bytes that are not looked at for a compression, whatever they begin with.
    pub fn given(name: &str, bytes: Box<dyn Read + Send>) -> Input {
        let name: Arc<str> = name.into();
        let reader = Reader::plain(bytes, Arc::clone(&name));
        Input::pipe(name, Pipe { path: None, state: PipeState::Peeked(Box::new(reader)) })
    }

    fn pipe(name: Arc<str>, pipe: Pipe) -> Input {
        Input(Arc::new(Inner {
            name,
            stored_bytes: None,
            modified: None,
            etag: None,
            peeked: Mutex::default(),
            origin: Origin::Pipe(Mutex::new(pipe)),
        }))
    }

    /// Rows that a program has or makes; whoever gives them has them, and no bytes.
    pub fn memory(name: &str, bytes: Option<u64>, is_stream: bool) -> Input {
        Input(Arc::new(Inner {
            name: name.into(),
            stored_bytes: bytes,
            modified: None,
            etag: None,
            peeked: Mutex::default(),
            origin: Origin::Memory { is_stream },
        }))
    }

    pub(super) fn remote(
        remote: Remote,
        modified: Option<SystemTime>,
        runtime: Handle,
        pace: Pace,
    ) -> Input {
        let (stored_bytes, etag) = match &remote {
            Remote::Store(object) => (Some(object.size), object.etag.clone()),
            Remote::Http(object) => {
                (object.size, object.etag.clone().or_else(|| object.modified.clone()))
            }
        };
        Input(Arc::new(Inner {
            name: Arc::clone(remote.name()),
            stored_bytes,
            modified,
            etag,
            peeked: Mutex::default(),
            origin: Origin::Remote { remote: Arc::new(remote), runtime, pace },
        }))
    }

    /// Its name as the user would write it: `data/a.csv`, `s3://bucket/key`, `-`. Secrets in a
    /// URL are left out.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What tells it from other inputs of this name: the whole of a URL, where the name leaves a
    /// part of it out.
    pub fn hidden(&self) -> Option<Secret> {
        match &self.0.origin {
            Origin::Remote { remote, .. } => remote.hidden(),
            _ => None,
        }
    }

    /// The suffix of its name that tells the format, in lower case and without that of a
    /// compression: `csv` for `a.CSV.gz`.
    pub fn extension(&self) -> Option<String> {
        name::extension(&self.0.name)
    }

    /// Bytes as stored, where that is known before reading.
    pub fn stored_bytes(&self) -> Option<u64> {
        self.0.stored_bytes
    }

    /// When it was last written, where that is known.
    pub fn modified(&self) -> Option<SystemTime> {
        self.0.modified
    }

    /// What the store calls this version of it, where it does.
    pub fn etag(&self) -> Option<&str> {
        self.0.etag.as_deref()
    }

    /// A text that changes when the input's content is replaced, for telling whether it is still
    /// the one it was; `None` for what cannot be recognised.
    pub fn fingerprint(&self) -> Option<String> {
        let inner = &self.0;
        if !self.is_lasting() {
            return None;
        }
        let size = inner.stored_bytes.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let version = match (&inner.etag, inner.modified) {
            (Some(etag), _) => etag.trim_start_matches("W/").trim_matches('"').to_owned(),
            (None, Some(time)) => match time.duration_since(UNIX_EPOCH) {
                Ok(since) => since.as_nanos().to_string(),
                Err(before) => format!("-{}", before.duration().as_nanos()),
            },
            (None, None) => "-".to_owned(),
        };
        Some(format!("{size}:{version}"))
    }

    /// Whether it can be read only once: standard input, a pipe, or rows that are made as they are
    /// read.
    pub fn is_stream(&self) -> bool {
        matches!(self.0.origin, Origin::Pipe(_) | Origin::Memory { is_stream: true })
    }

    /// Whether a later process can read it again, and recognise it.
    pub fn is_lasting(&self) -> bool {
        !matches!(self.0.origin, Origin::Pipe(_) | Origin::Memory { .. })
    }

    /// The path of a local file.
    pub fn local_path(&self) -> Option<&std::path::Path> {
        match &self.0.origin {
            Origin::File(path, _) => Some(path),
            _ => None,
        }
    }

    /// How it is compressed, by its first bytes. Blocks.
    ///
    /// # Errors
    /// As [`Input::reader`].
    pub fn compression(&self) -> Result<Compression> {
        match &self.0.origin {
            Origin::Pipe(pipe) => {
                let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(self.opened(&mut pipe)?.compression())
            }
            _ => Ok(self.open(true)?.compression()),
        }
    }

    /// Opens it for reading from the first byte. Blocks until the first bytes are there.
    ///
    /// # Errors
    /// When it cannot be opened, is compressed in a way that is not known, or is a stream that
    /// was read already.
    pub fn reader(&self) -> Result<Reader> {
        match &self.0.origin {
            Origin::Pipe(pipe) => {
                let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
                self.opened(&mut pipe)?;
                match std::mem::replace(&mut pipe.state, PipeState::Taken) {
                    PipeState::Peeked(reader) => Ok(*reader),
                    _ => Err(Error::new(ErrorKind::Bug, "a stream was opened and is not there")),
                }
            }
            _ => {
                let mut reader = self.open(false)?;
                self.check_peeked(&mut reader)?;
                Ok(reader)
            }
        }
    }

    /// The first decompressed bytes: `max` of them, fewer only if there are no more. Blocks.
    /// A later [`Input::reader`] yields them again, also for streams.
    ///
    /// # Errors
    /// As [`Input::reader`], and whatever reading meets before `max` bytes.
    pub fn peek(&self, max: usize) -> Result<Vec<u8>> {
        let Origin::Pipe(pipe) = &self.0.origin else {
            let bytes = head(&mut self.open(true)?, max).map_err(|(error, _)| error)?;
            self.note_peeked(&bytes);
            return Ok(bytes);
        };
        let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = self.opened(&mut pipe)?;
        match head(reader, max) {
            Ok(bytes) => {
                reader.put_back(bytes.clone());
                Ok(bytes)
            }
            Err((error, bytes)) => {
                reader.put_back(bytes);
                Err(error)
            }
        }
    }

    /// Remembers what was seen of a source that cannot prove that it is the same next time.
    fn note_peeked(&self, bytes: &[u8]) {
        if !matches!(&self.0.origin, Origin::Remote { remote, .. } if !remote.is_versioned()) {
            return;
        }
        let mut peeked = self.0.peeked.lock().unwrap_or_else(PoisonError::into_inner);
        if peeked.as_ref().is_none_or(|(len, _)| *len < bytes.len()) {
            *peeked = Some((bytes.len(), digest(bytes)));
        }
    }

    /// Refuses to read what does not begin as it did when its format was found out.
    fn check_peeked(&self, reader: &mut Reader) -> Result<()> {
        let peeked = self.0.peeked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((len, seen)) = peeked else { return Ok(()) };
        let bytes = head(reader, len).map_err(|(error, _)| error)?;
        if digest(&bytes) != seen {
            return Err(changed(&self.0.name));
        }
        reader.put_back(bytes);
        Ok(())
    }

    /// Whether it is surely what it was when it was found: a local file is looked at again. What
    /// is in doubt, its content tells. Of other inputs each answer was checked when it came.
    ///
    /// # Errors
    /// When it is surely another one by now.
    pub fn is_unchanged(&self) -> Result<bool> {
        match &self.0.origin {
            Origin::File(path, version) => version.is_at(path, &self.0.name),
            _ => Ok(true),
        }
    }

    /// Whether a store's name for its version proves that it is the same, here and in later runs.
    pub fn is_versioned(&self) -> bool {
        matches!(&self.0.origin, Origin::Remote { remote, .. } if remote.is_versioned())
    }

    /// What tells a local file, unchanged, from all others of its file system.
    pub fn file_version(&self) -> Option<String> {
        match &self.0.origin {
            Origin::File(_, version) => Some(version.text()),
            _ => None,
        }
    }

    /// Random access to its stored bytes.
    ///
    /// # Errors
    /// When it cannot be opened, or knows no random access: streams, and servers without ranges.
    pub fn ranges(&self) -> Result<Arc<dyn Ranges>> {
        let name = &self.0.name;
        match &self.0.origin {
            Origin::File(path, version) => {
                let file = version.open(path, name)?;
                Ok(Arc::new(FileRanges { file, name: Arc::clone(name) }))
            }
            Origin::Pipe(_) => {
                let what = if &**name == "-" { "standard input" } else { "a pipe" };
                let message = format!("{what} cannot be read at random, which this format needs");
                Err(fault(name, message).hint("Save it to a file first, and name the file."))
            }
            Origin::Memory { .. } => Err(no_bytes()),
            Origin::Remote { remote, runtime, .. } => match remote.random_size() {
                Some(size) => {
                    let (remote, runtime) = (Arc::clone(remote), runtime.clone());
                    Ok(Arc::new(RemoteRanges { remote, size, runtime }))
                }
                None => {
                    let message = format!(
                        "the server of \"{name}\" does not give parts of it, \
                         which this format needs"
                    );
                    Err(fault(name, message).hint("Download the file first, and name it."))
                }
            },
        }
    }

    /// A reader of a file or object. One for peeking does not read far ahead.
    fn open(&self, peek: bool) -> Result<Reader> {
        let name = Arc::clone(&self.0.name);
        match &self.0.origin {
            Origin::File(path, version) => Reader::file(version.open(path, &name)?, name),
            Origin::Remote { remote, runtime, pace } => {
                let range_bytes = pace.range_bytes.min(PEEK_RANGE_BYTES);
                let pace = if peek { Pace { range_bytes, in_flight: 1 } } else { *pace };
                let fetch = Fetch::start(runtime, Arc::clone(remote), pace);
                Reader::fetch(fetch, name, self.0.stored_bytes)
            }
            Origin::Pipe(_) => Err(Error::new(ErrorKind::Bug, "a stream was opened as a file")),
            Origin::Memory { .. } => Err(no_bytes()),
        }
    }

    /// The one reader of a stream, opened on first need.
    fn opened<'a>(&self, pipe: &'a mut Pipe) -> Result<&'a mut Reader> {
        let source: Option<Box<dyn Read + Send>> = match (&mut pipe.state, &pipe.path) {
            (PipeState::Unopened, None) => Some(Box::new(stdin()?)),
            (PipeState::Unopened, Some(path)) => {
                Some(Box::new(File::open(path).map_err(|e| unreadable(path, e))?))
            }
            (state @ PipeState::Made(_), _) => match std::mem::replace(state, PipeState::Taken) {
                PipeState::Made(bytes) => Some(bytes),
                _ => None,
            },
            _ => None,
        };
        if let Some(source) = source {
            let reader = Reader::pipe(source, Arc::clone(&self.0.name), self.0.stored_bytes)?;
            pipe.state = PipeState::Peeked(Box::new(reader));
        }
        match &mut pipe.state {
            PipeState::Peeked(reader) => Ok(reader),
            _ => {
                let name = &self.0.name;
                let what = if &**name == "-" { "standard input" } else { "a pipe" };
                Err(fault(name, format!("{what} can be read only once"))
                    .hint("Save it to a file first, and name the file."))
            }
        }
    }
}

/// Up to `max` bytes from `reader`; with an error come the bytes that were read before it.
fn head(reader: &mut Reader, max: usize) -> Result<Vec<u8>, (Error, Vec<u8>)> {
    let mut bytes = Vec::new();
    while bytes.len() < max {
        let missing = max - bytes.len();
        match reader.read_into(&mut bytes, missing) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err((error_of(error, reader.name()), bytes)),
        }
    }
    Ok(bytes)
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().to_vec()
}

fn no_bytes() -> Error {
    Error::new(ErrorKind::Bug, "rows in memory were opened as a file")
}

/// Standard input without the buffer that the standard library puts before it.
fn stdin() -> Result<File> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(Error::new(ErrorKind::Usage, "standard input is a terminal")
            .hint("Name a file, or pipe data into pgspate."));
    }
    let handle = stdin.as_fd().try_clone_to_owned();
    let handle = handle
        .map_err(|e| Error::new(ErrorKind::Source, "could not open standard input").because(e))?;
    Ok(File::from(handle))
}

/// How much is left of a file that standard input was redirected from.
fn redirected_bytes() -> Option<u64> {
    let mut file = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok()?;
    let position = file.stream_position().ok()?;
    metadata.is_file().then(|| metadata.len().saturating_sub(position))
}

//! Bytes from files, object stores and standard input, decompressed and read ahead.
//!
//! [`resolve`] turns what the user wrote into [`Input`]s; an [`Input`] gives a [`Reader`] of its
//! decompressed bytes, or [`Ranges`] of its stored ones. Everything blocks on plain threads; what
//! is asynchronous runs on the runtime it was given. Bytes are yielded whole and in order, or
//! there is an error: data that is cut off, damaged or replaced meanwhile never just ends.

mod ahead;
mod decode;
mod fetch;
mod headers;
mod http;
mod input;
mod local;
mod name;
mod ranges;
mod reader;
mod remote;
mod resolve;
mod steady;
mod store;

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::runtime::Handle;

pub use decode::Compression;
pub use input::Input;
pub use local::is_pattern;
pub use ranges::Ranges;
pub use reader::{Progress, Reader};
pub use resolve::resolve;

use crate::{Error, ErrorKind, InputPlace, Result};

/// How inputs are found and read.
#[derive(Clone)]
pub struct Options {
    /// Settings for the stores, as `--source-option KEY=VALUE` gives them: the configuration keys
    /// of the store in lower or upper case (`endpoint`, `region`, `access_key_id`, ...), `profile`
    /// for S3, `header.NAME` and `unframed` for HTTP. They win over the environment. Where sources
    /// are on several web servers, a header is for one of them: `https://HOST/:header.NAME`.
    pub store: Vec<(String, String)>,
    /// How long a store or server may be silent before the request counts as lost.
    pub stall: Duration,
    /// How long a request is tried again before its failure is reported.
    pub retry: Duration,
    /// Bytes asked of an object at once.
    pub range_bytes: u64,
    /// Ranges of one object fetched ahead at the same time. Memory: this times `range_bytes`.
    pub ranges_in_flight: usize,
    /// Local files may be appended to while they are read, and are read to their end.
    pub may_grow: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            store: Vec::new(),
            stall: Duration::from_secs(30),
            retry: Duration::from_secs(60),
            range_bytes: 8 << 20,
            ranges_in_flight: 4,
            may_grow: false,
        }
    }
}

/// Without the values of settings, which may be secrets.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.store.iter().map(|(key, _)| headers::shown(key)).collect();
        f.debug_struct("Options")
            .field("store", &keys)
            .field("stall", &self.stall)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

/// The error that reading an input called `name` met: pgspate's own if it is one, else one that
/// says that `name` could not be read.
pub fn error_of(error: io::Error, name: &str) -> Error {
    match error.downcast::<Error>() {
        Ok(own) => own,
        Err(other) => fault(name, format!("could not read \"{name}\"")).because(other),
    }
}

/// An error of an input, placed there.
fn fault(name: &str, message: impl Into<String>) -> Error {
    let place = InputPlace { source: Some(name.to_owned()), ..InputPlace::default() };
    Error::new(ErrorKind::Source, message).at(place)
}

/// What the innermost cause says; the layers around it repeat it.
fn root_cause(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

/// Runs `future` on `runtime` and waits for it, on any thread that is not one of its workers.
///
/// # Errors
/// When the runtime is shut down before it is done.
fn wait<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let (tx, rx) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        let _ = tx.send(future.await);
    });
    rx.recv().map_err(|_| Error::new(ErrorKind::Cancelled, "reading was stopped"))
}

/// TLS needs a process-wide choice of cryptography. Whoever chose first is left alone.
fn install_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Losing a race against another thread that installs one is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

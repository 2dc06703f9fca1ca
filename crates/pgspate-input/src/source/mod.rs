//! Sources: reads bytes of files, object stores, web servers and standard input, decompressed.
//!
//! [`resolve`] turns the names that the user wrote into [`Input`]s. An [`Input`] gives an
//! [`InputReader`] of its decompressed bytes, or a [`RangeReader`] of its stored bytes. Calls block
//! plain threads; asynchronous work runs on the runtime that the caller passes in.
//!
//! A reader returns all bytes in order, or an error. Data that is cut off, damaged or replaced
//! while it is read is always an error, never an early end.

mod decompress;
mod decompression_thread;
mod fetch;
mod file_version;
mod headers;
mod http;
mod input;
mod local;
mod name;
mod partition_folders;
mod ranges;
mod reader;
mod remote;
mod resolve;
mod store;
mod table_formats;
mod texts_beside_data;

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::runtime::Handle;

pub use decompress::Compression;
pub use input::Input;
pub use local::is_pattern;
pub use partition_folders::{PartitionFolder, partition_folders};
pub use ranges::RangeReader;
pub use reader::{InputReader, ReadProgress};
pub use resolve::resolve;
pub use texts_beside_data::without_texts_beside_data;

use crate::{Error, ErrorKind, InputPlace, Result};

/// Options for resolving and reading inputs.
#[derive(Clone)]
pub struct SourceOptions {
    /// Settings of stores and web servers, as `--source-option KEY=VALUE` gives them. Keys, in
    /// upper or lower case, are the store's configuration keys (`endpoint`, `region`,
    /// `access_key_id`, ...), `profile` for S3, `header.NAME` and `unframed` for HTTP. These
    /// settings override the environment. If the sources are on several web servers, a header names
    /// its server: `https://HOST/:header.NAME`.
    pub store: Vec<(String, String)>,
    /// How long a server may send nothing before the request fails.
    pub stall: Duration,
    /// How long a failed request is retried before its error is returned.
    pub retry: Duration,
    /// The size of one range request.
    pub range_bytes: u64,
    /// The most ranges of one object that are fetched ahead at the same time. Each range takes up
    /// to `range_bytes` of memory.
    pub ranges_in_flight: usize,
    /// Whether local files may grow while they are read. If so, they are read to their new end.
    pub may_grow: bool,
    /// Whether the order of the inputs decides about the result. If so, numbers in the names of a
    /// folder or pattern must be in their order.
    pub needs_order: bool,
}

impl Default for SourceOptions {
    fn default() -> SourceOptions {
        SourceOptions {
            store: Vec::new(),
            stall: Duration::from_secs(30),
            retry: Duration::from_secs(60),
            range_bytes: 8 << 20,
            ranges_in_flight: 4,
            may_grow: false,
            needs_order: false,
        }
    }
}

/// Omits the values of settings, which may be secrets.
impl fmt::Debug for SourceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.store.iter().map(|(key, _)| headers::redacted_key(key)).collect();
        f.debug_struct("SourceOptions")
            .field("store", &keys)
            .field("stall", &self.stall)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

/// Converts an I/O error from reading the input `name`. A pgspate error inside `error` is returned
/// unchanged. Any other error becomes the cause of a "could not read" error.
pub fn read_error(error: io::Error, name: &str) -> Error {
    match error.downcast::<Error>() {
        Ok(own) => own,
        Err(other) => source_error(name, format!("could not read \"{name}\"")).because(other),
    }
}

/// Returns an error of kind [`ErrorKind::Source`] whose place is the input `name`.
fn source_error(name: &str, message: impl Into<String>) -> Error {
    let place = InputPlace { source: Some(name.to_owned()), ..InputPlace::default() };
    Error::new(ErrorKind::Source, message).at(place)
}

/// Returns the message of the innermost cause. The outer errors only repeat this message.
fn root_cause(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

/// Runs `future` on `runtime` and blocks until it is done. Must not be called on a worker thread of
/// the runtime.
///
/// # Errors
/// [`ErrorKind::Cancelled`] if the runtime shuts down before `future` is done.
fn run_and_wait<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let (tx, rx) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        let _ = tx.send(future.await);
    });
    rx.recv().map_err(|_| Error::new(ErrorKind::Cancelled, "reading was stopped"))
}

/// Installs the process-wide cryptography provider that TLS needs, unless one is installed.
fn install_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If another thread installs a provider first, that provider serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

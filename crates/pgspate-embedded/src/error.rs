//! Constructors for this crate's errors. All are of [`pgspate_base::ErrorKind::Connect`].

use std::path::Path;

pub use pgspate_base::{Error, Result};

/// Returns an error with this message.
pub(crate) fn new(message: impl Into<String>) -> Error {
    Error::new(pgspate_base::ErrorKind::Connect, message)
}

/// Returns an error of the file system: could not `verb` "path", with the cause.
pub(crate) fn could_not(verb: &str, path: &Path, cause: std::io::Error) -> Error {
    new(format!("could not {verb} \"{}\"", path.display())).because(cause)
}

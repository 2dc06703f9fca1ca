//! This crate's errors: each says that there is no server to connect to.

use std::path::Path;

pub use pgspate_base::{Error, Result};

/// An error with a message worded as PostgreSQL words its own.
pub(crate) fn new(message: impl Into<String>) -> Error {
    Error::new(pgspate_base::Kind::Connect, message)
}

/// An error of the file system: "could not `verb` "path"", and why.
pub(crate) fn file(verb: &str, path: &Path, cause: std::io::Error) -> Error {
    new(format!("could not {verb} \"{}\"", path.display())).because(cause)
}

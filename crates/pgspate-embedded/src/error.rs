//! The crate's error: what could not be done, why, and what to do about it.
//!
//! `Display` is the message alone; whoever prints walks [`std::error::Error::source`] for the
//! causes. No password is ever part of a message.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;

/// A result whose error is this crate's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a server could not be found, fetched, started or stopped.
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with a message worded as PostgreSQL words its own.
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error(Box::new(Inner { message: message.into(), hint: None, source: None }))
    }

    /// An error of the file system: "could not `verb` "path"", and why.
    pub(crate) fn file(verb: &str, path: &Path, cause: std::io::Error) -> Error {
        Error::new(format!("could not {verb} \"{}\"", path.display())).because(cause)
    }

    /// Adds what the user can do, in full sentences.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub(crate) fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.0.source = Some(cause.into());
        self
    }

    /// What the user can do: its own hint, or that of the nearest cause with one.
    pub fn hint(&self) -> Option<&str> {
        let cause = || self.0.source.as_deref()?.downcast_ref::<Error>()?.hint();
        self.0.hint.as_deref().or_else(cause)
    }

    /// Message and causes on one line, for test failures and logs.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

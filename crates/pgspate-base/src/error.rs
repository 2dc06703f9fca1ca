//! The one error type: what kind it is, where in the input, why, and what to do about it.
//!
//! Fields stay fields until the command prints them. `Display` is the message alone; whoever
//! prints walks [`std::error::Error::source`] for the causes. No row value but the one that is
//! refused, as the server or what stands in for its input functions quotes it, and no password,
//! ever becomes part of a message.

use std::error::Error as StdError;
use std::fmt;

use tokio_postgres::error::SqlState;

use crate::ServerRefusal;

/// A result whose error is pgspate's own.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an error: one kind per reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is wrong: an option, a name, a combination.
    Usage,
    /// Input bytes could not be found or read.
    Source,
    /// The input's bytes are not in the format they should be.
    Format,
    /// A value cannot become a value of its column.
    Type,
    /// No connection to the server, or it was lost.
    Connect,
    /// The server refused a statement.
    Server,
    /// What was asked for cannot be done to this table.
    Plan,
    /// The ledger contradicts the request.
    Ledger,
    /// The user stopped it.
    Cancelled,
    /// An invariant of pgspate itself is broken.
    Bug,
}

/// Where in the input something is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputPlace {
    /// The source's name as the user would write it.
    pub source: Option<String>,
    /// Line, counted from 1 as an editor does, header included.
    pub line: Option<u64>,
    /// Row, counted from 1, for formats without lines.
    pub row: Option<u64>,
    /// Offset into the decompressed bytes.
    pub byte: Option<u64>,
    /// Column name.
    pub column: Option<String>,
}

impl fmt::Display for InputPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(source) = &self.source {
            parts.push(source.clone());
        }
        if let Some(line) = self.line {
            parts.push(format!("line {line}"));
        }
        if let Some(row) = self.row {
            parts.push(format!("row {row}"));
        }
        if let Some(byte) = self.byte {
            parts.push(format!("byte {byte}"));
        }
        if let Some(column) = &self.column {
            parts.push(format!("column \"{column}\""));
        }
        f.write_str(&parts.join(", "))
    }
}

/// An error of pgspate. Small: one pointer.
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    place: Option<InputPlace>,
    hint: Option<String>,
    sqlstate: Option<SqlState>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a message worded as PostgreSQL words its own: lower case, no full
    /// stop, "could not" rather than "failed to".
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            place: None,
            hint: None,
            sqlstate: None,
            source: None,
        }))
    }

    /// Says where in the input it happened.
    #[must_use]
    pub fn at(mut self, place: InputPlace) -> Error {
        self.0.place = Some(place);
        self
    }

    /// Adds what the user can do: full sentences that name the exact flag or SQL.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds what the user can do, if there is anything.
    #[must_use]
    pub fn hint_if(self, hint: Option<impl Into<String>>) -> Error {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Adds to what the user can do already.
    #[must_use]
    pub fn hint_also(self, more: &str) -> Error {
        match self.hint_text().map(|hint| format!("{hint} {more}")) {
            Some(hint) => self.hint(hint),
            None => self.hint(more),
        }
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Gives it the SQLSTATE that the server would have reported, if there is one.
    #[must_use]
    pub fn with_sqlstate(mut self, code: impl Into<Option<SqlState>>) -> Error {
        self.0.sqlstate = code.into().or(self.0.sqlstate);
        self
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Where in the input it happened: its own place, or that of the nearest cause with one.
    pub fn place(&self) -> Option<&InputPlace> {
        self.0.place.as_ref().or_else(|| self.cause()?.place())
    }

    /// What the user can do: its own hint, or that of the nearest cause with one.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref().or_else(|| self.cause()?.hint_text())
    }

    /// The SQLSTATE, where a server (or a rule of the server's that was checked here) refused.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        let own = self.0.sqlstate.as_ref();
        own.or_else(|| self.refusal().map(ServerRefusal::code)).or_else(|| self.cause()?.sqlstate())
    }

    /// Whether the same work may succeed when it is tried again unchanged.
    pub fn is_retryable(&self) -> bool {
        match self.sqlstate() {
            Some(code) => {
                code.code().starts_with("08")
                    || matches!(
                        code.code(),
                        "40001" | "40P01" | "53300" | "57P01" | "57P02" | "57P03"
                    )
            }
            None => self.0.kind == ErrorKind::Connect,
        }
    }

    /// Returns its message and those of its causes, but for layers that repeat what they wrap.
    pub fn messages(&self) -> Vec<String> {
        let first: &dyn StdError = self;
        let layers = std::iter::successors(Some(first), |&layer| layer.source());
        let mut messages: Vec<_> = layers.map(ToString::to_string).collect();
        messages.dedup();
        messages
    }

    /// What the server said, where it refused.
    pub fn refusal(&self) -> Option<&ServerRefusal> {
        let source = self.0.source.as_deref()?;
        source.downcast_ref::<ServerRefusal>().or_else(|| source.downcast_ref::<Error>()?.refusal())
    }

    /// Message and causes on one line, for test failures and logs.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text += &format!(": {cause}");
            next = cause.source();
        }
        text
    }

    fn cause(&self) -> Option<&Error> {
        self.0.source.as_deref()?.downcast_ref::<Error>()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may send anything as SQLSTATE.
    #[test]
    fn an_sqlstate_of_any_length_is_looked_at() {
        for (code, is_retryable) in [("", false), ("4", false), ("é1", false), ("08", true)] {
            let error =
                Error::new(ErrorKind::Server, "no").with_sqlstate(SqlState::from_code(code));
            assert_eq!(error.is_retryable(), is_retryable, "{code}");
        }
    }
}

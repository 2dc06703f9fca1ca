//! pgspate's only error type: kind, message, place in the input, hint and cause.
//!
//! The command turns these fields into text when it prints the error. `Display` writes the message
//! alone; the printer follows [`std::error::Error::source`] to the causes. A message never contains
//! a password. The only row value that a message may contain is the rejected value itself.

use std::error::Error as StdError;
use std::fmt;

use tokio_postgres::error::SqlState;

use crate::ServerRefusal;

/// A result with pgspate's error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error. Callers react to each kind differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong: an option, a name, or a combination of options.
    Usage,
    /// The input does not exist or cannot be read.
    Source,
    /// The input is not in the expected format.
    Format,
    /// A value cannot be converted to the type of its column.
    Type,
    /// The connection to the server could not be opened, or was lost.
    Connect,
    /// The server reported an error for a statement.
    Server,
    /// The request cannot be done with this table.
    Plan,
    /// The ledger contradicts the request.
    Ledger,
    /// A record was sent to the server, and the connection was lost before the answer.
    OutcomeUnknown,
    /// The idempotency key of a call was used for other records.
    KeyReused,
    /// Too many records wait to be written.
    QueueFull,
    /// The user cancelled the command.
    Cancelled,
    /// A bug: an invariant of pgspate is broken.
    Bug,
}

impl ErrorKind {
    /// Returns the kind as one word in lower case.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Usage => "usage",
            ErrorKind::Source => "source",
            ErrorKind::Format => "format",
            ErrorKind::Type => "type",
            ErrorKind::Connect => "connect",
            ErrorKind::Server => "server",
            ErrorKind::Plan => "plan",
            ErrorKind::Ledger => "ledger",
            ErrorKind::OutcomeUnknown => "outcome unknown",
            ErrorKind::KeyReused => "key reused",
            ErrorKind::QueueFull => "queue full",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Bug => "bug",
        }
    }
}

/// A place in the input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputPlace {
    /// The name of the source, as the user would write it.
    pub source: Option<String>,
    /// Line number, counted from 1 as in an editor; the header counts.
    pub line: Option<u64>,
    /// Row number, counted from 1, for formats without lines.
    pub row: Option<u64>,
    /// Byte offset in the decompressed input.
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

/// An error of pgspate. The value is one pointer, so that results stay small.
pub struct Error(Box<ErrorFields>);

#[derive(Debug)]
struct ErrorFields {
    kind: ErrorKind,
    message: String,
    place: Option<InputPlace>,
    hint: Option<String>,
    sqlstate: Option<SqlState>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Returns an error of `kind`. The message follows PostgreSQL's style: lower case, no full
    /// stop, "could not" rather than "failed to".
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(ErrorFields {
            kind,
            message: message.into(),
            place: None,
            hint: None,
            sqlstate: None,
            source: None,
        }))
    }

    /// Sets the place in the input.
    #[must_use]
    pub fn at(mut self, place: InputPlace) -> Error {
        self.0.place = Some(place);
        self
    }

    /// Sets the hint: full sentences that name the exact flag or SQL.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Sets the hint, if there is one.
    #[must_use]
    pub fn hint_if(self, hint: Option<impl Into<String>>) -> Error {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Appends a sentence to the hint.
    #[must_use]
    pub fn hint_also(self, more: &str) -> Error {
        match self.hint_text().map(|hint| format!("{hint} {more}")) {
            Some(hint) => self.hint(hint),
            None => self.hint(more),
        }
    }

    /// Sets the error that caused this one.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Sets the SQLSTATE that the server would have reported. `None` keeps the current one.
    #[must_use]
    pub fn with_sqlstate(mut self, code: impl Into<Option<SqlState>>) -> Error {
        self.0.sqlstate = code.into().or(self.0.sqlstate);
        self
    }

    /// Returns the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the place in the input: this error's own, or that of the nearest cause that has one.
    pub fn place(&self) -> Option<&InputPlace> {
        self.0.place.as_ref().or_else(|| self.cause()?.place())
    }

    /// Returns the hint: this error's own, or that of the nearest cause that has one.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref().or_else(|| self.cause()?.hint_text())
    }

    /// Returns the SQLSTATE that the server reported, or that pgspate set for it.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        let own = self.0.sqlstate.as_ref();
        own.or_else(|| self.refusal().map(ServerRefusal::code)).or_else(|| self.cause()?.sqlstate())
    }

    /// Returns whether an unchanged retry of the same work may succeed.
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

    /// Returns the messages of this error and its causes, without consecutive duplicates.
    pub fn messages(&self) -> Vec<String> {
        let first: &dyn StdError = self;
        let layers = std::iter::successors(Some(first), |&layer| layer.source());
        let mut messages: Vec<_> = layers.map(ToString::to_string).collect();
        messages.dedup();
        messages
    }

    /// Returns the server's error, if a server error is the cause.
    pub fn refusal(&self) -> Option<&ServerRefusal> {
        let source = self.0.source.as_deref()?;
        source.downcast_ref::<ServerRefusal>().or_else(|| source.downcast_ref::<Error>()?.refusal())
    }

    /// Returns the message and all causes on one line, for test failures and logs.
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

    /// A server may send any text as SQLSTATE.
    #[test]
    fn is_retryable_accepts_an_sqlstate_of_any_length() {
        for (code, is_retryable) in [("", false), ("4", false), ("é1", false), ("08", true)] {
            let error =
                Error::new(ErrorKind::Server, "no").with_sqlstate(SqlState::from_code(code));
            assert_eq!(error.is_retryable(), is_retryable, "{code}");
        }
    }
}

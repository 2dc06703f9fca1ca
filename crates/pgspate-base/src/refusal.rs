//! What a server says when it refuses, as one link in a chain of causes.

use std::error::Error as StdError;
use std::fmt;

use tokio_postgres::error::{DbError, SqlState};

/// A message of the server's, with its SQLSTATE; its detail is the cause beneath it.
#[derive(Debug)]
pub struct ServerRefusal {
    code: SqlState,
    message: String,
    context: Option<String>,
    /// Schema and name.
    table: Option<(String, String)>,
    column: Option<String>,
    detail: Option<Detail>,
}

#[derive(Debug)]
struct Detail(String);

impl ServerRefusal {
    /// What the server said.
    pub fn new(said: &DbError) -> ServerRefusal {
        ServerRefusal {
            code: said.code().clone(),
            message: said.message().to_owned(),
            context: said.where_().map(str::to_owned),
            table: said.schema().zip(said.table()).map(|(a, b)| (a.to_owned(), b.to_owned())),
            column: said.column().map(str::to_owned),
            detail: said.detail().map(|detail| Detail(detail.trim_end_matches('.').to_owned())),
        }
    }

    /// The SQLSTATE.
    pub fn code(&self) -> &SqlState {
        &self.code
    }

    /// The server's message alone, without its SQLSTATE.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The column that it is about, for a value that is NULL and must not be.
    pub fn column(&self) -> Option<&str> {
        self.column.as_deref()
    }

    /// Whether the server names this table as the one that it is about.
    pub fn is_about(&self, schema: &str, table: &str) -> bool {
        self.table
            .as_ref()
            .is_some_and(|(one, other)| (one.as_str(), other.as_str()) == (schema, table))
    }

    /// The server's context: for COPY, the line and the column.
    pub fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }
}

impl fmt::Display for ServerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code.code())
    }
}

impl StdError for ServerRefusal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.detail.as_ref().map(|detail| detail as &dyn StdError)
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Detail {}

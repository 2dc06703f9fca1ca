//! An error that the server reported, as one link in a chain of causes.

use std::error::Error as StdError;
use std::fmt;

use tokio_postgres::error::{DbError, SqlState};

/// An error message of the server with its SQLSTATE. The server's detail is its `source()`,
/// without its full stop.
#[derive(Debug, Clone)]
pub struct ServerRefusal {
    code: SqlState,
    message: String,
    context: Option<String>,
    /// Schema and name of the table that the error is about.
    table: Option<(String, String)>,
    column: Option<String>,
    detail: Option<RefusalDetail>,
}

#[derive(Debug, Clone)]
struct RefusalDetail(String);

impl ServerRefusal {
    /// Copies the parts of the server's error that pgspate uses.
    pub fn new(error: &DbError) -> ServerRefusal {
        ServerRefusal {
            code: error.code().clone(),
            message: error.message().to_owned(),
            context: error.where_().map(str::to_owned),
            table: error.schema().zip(error.table()).map(|(a, b)| (a.to_owned(), b.to_owned())),
            column: error.column().map(str::to_owned),
            detail: error.detail().map(|detail| RefusalDetail(detail.to_owned())),
        }
    }

    /// Returns the SQLSTATE.
    pub fn code(&self) -> &SqlState {
        &self.code
    }

    /// Returns the server's message without the SQLSTATE.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the server's detail, word by word.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_ref().map(|detail| detail.0.as_str())
    }

    /// Returns the column that the error is about. The server names the column
    /// of a NOT NULL violation.
    pub fn column(&self) -> Option<&str> {
        self.column.as_deref()
    }

    /// Returns whether the server names this table in the error.
    pub fn is_about(&self, schema: &str, table: &str) -> bool {
        self.table
            .as_ref()
            .is_some_and(|(in_schema, name)| (in_schema.as_str(), name.as_str()) == (schema, table))
    }

    /// Returns the server's context: for COPY, the line and the column.
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

impl fmt::Display for RefusalDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_end_matches('.'))
    }
}

impl StdError for RefusalDetail {}

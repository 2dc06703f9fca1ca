//! A table that a session writes into, by its name and its oid.
//!
//! COPY and LOCK TABLE find the table by its name. While they wait for a lock, another session may
//! rename the table, and give its name to another one. Once they have the lock, the name stays
//! until the end of the transaction.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::{Error, ErrorKind, Result, TypedQuery, quote_literal, server_error};

/// The table that rows are written into.
#[derive(Debug, Clone)]
pub struct WrittenTable {
    /// The name as in SQL.
    pub sql_name: String,
    /// The oid of the table that the name must lead to.
    pub oid: u32,
}

impl WrittenTable {
    /// Returns a condition: the name still leads to the table. The transaction must hold a lock on
    /// the table that the name leads to.
    pub fn has_name_sql(&self) -> String {
        let WrittenTable { sql_name, oid } = self;
        format!("pg_catalog.to_regclass({})::oid = {oid}::oid", quote_literal(sql_name))
    }

    /// Checks that the name still leads to the table. The transaction must hold a lock on the table
    /// that the name leads to.
    ///
    /// # Errors
    /// [`table_replaced_error`] if the name leads to another table. [`ErrorKind::Server`] if the
    /// server refuses the query, [`ErrorKind::Connect`] if the connection fails.
    pub async fn check_name(&self, client: &Client) -> Result<()> {
        let failed = server_error(format!("could not look up table {}", self.sql_name));
        let sql = format!("select ({}) is true", self.has_name_sql());
        match client.fetch_one(&sql, &[]).await.map_err(failed)?.get(0) {
            true => Ok(()),
            false => Err(table_replaced_error()),
        }
    }
}

/// Returns the error for a table that another load has emptied since the job started.
pub fn table_emptied_error() -> Error {
    let message = "another load has replaced all rows of the table";
    Error::new(ErrorKind::Plan, message)
        .with_sqlstate(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
        .hint("The same command, run again, loads everything.")
}

/// Returns whether the error is, or is caused by, [`table_emptied_error`].
pub fn is_table_emptied_error(error: &Error) -> bool {
    error.kind() == ErrorKind::Plan
        && error.sqlstate() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
}

/// Returns the error for a table whose name leads to another table by now.
pub fn table_replaced_error() -> Error {
    let message = "another session has put another table of this name in the table's place";
    Error::new(ErrorKind::Plan, message)
        .with_sqlstate(SqlState::UNDEFINED_TABLE)
        .hint("The same command, run again, loads into the table that has the name now.")
}

/// Returns whether the error is, or is caused by, [`table_replaced_error`].
pub fn is_table_replaced_error(error: &Error) -> bool {
    error.kind() == ErrorKind::Plan && error.sqlstate() == Some(&SqlState::UNDEFINED_TABLE)
}

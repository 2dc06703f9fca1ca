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
    /// The columns that are written in binary, each with the oid of the type that its values are
    /// encoded for. The server would store the bytes of one type as a value of another type.
    pub binary_columns: Vec<(String, u32)>,
}

impl WrittenTable {
    /// Returns a condition: the name still leads to the table. The transaction must hold a lock on
    /// the table that the name leads to.
    pub fn has_name_sql(&self) -> String {
        let WrittenTable { sql_name, oid, .. } = self;
        format!("pg_catalog.to_regclass({})::oid = {oid}::oid", quote_literal(sql_name))
    }

    /// Returns a condition: the binary columns still have their types. The transaction must hold a
    /// lock on the table.
    pub fn has_types_sql(&self) -> String {
        has_types_sql(&format!("{}::oid", self.oid), &self.binary_columns)
    }

    /// Checks that the name still leads to the table, and that the binary columns still have their
    /// types. The transaction must hold a lock on the table that the name leads to.
    ///
    /// # Errors
    /// [`table_replaced_error`] if the name leads to another table. [`table_altered_error`] if a
    /// column has another type. [`ErrorKind::Server`] if the server refuses the query,
    /// [`ErrorKind::Connect`] if the connection fails.
    pub async fn check_unchanged(&self, client: &Client) -> Result<()> {
        let failed = server_error(format!("could not look up table {}", self.sql_name));
        let sql = format!("select ({}) is true, {}", self.has_name_sql(), self.has_types_sql());
        let row = client.fetch_one(&sql, &[]).await.map_err(failed)?;
        match (row.get(0), row.get(1)) {
            (true, true) => Ok(()),
            (true, false) => Err(table_altered_error()),
            (false, _) => Err(table_replaced_error()),
        }
    }
}

/// Returns a condition: the relation has these columns, each with the type of this oid. `relation`
/// is an SQL expression for the relation's oid.
pub fn has_types_sql(relation: &str, columns: &[(String, u32)]) -> String {
    if columns.is_empty() {
        return "true".to_owned();
    }
    let expected = columns.iter().map(|(name, ty)| {
        format!("({}::pg_catalog.name, {ty}::pg_catalog.oid)", quote_literal(name))
    });
    // EXCEPT compares by the types' own operators, whatever the search path is.
    format!(
        "not exists (values {} except select attname, atttypid from pg_catalog.pg_attribute \
                     where attrelid operator(pg_catalog.=) {relation})",
        expected.collect::<Vec<_>>().join(", ")
    )
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

/// Returns the error for a table of which a column has another type than the rows are encoded for.
pub fn table_altered_error() -> Error {
    let message = "another session has changed the type of a column of the table meanwhile";
    Error::new(ErrorKind::Plan, message)
        .with_sqlstate(SqlState::DATATYPE_MISMATCH)
        .hint("The same command, run again, encodes the values for the new type.")
}

/// Returns whether the error is, or is caused by, [`table_altered_error`].
pub fn is_table_altered_error(error: &Error) -> bool {
    error.kind() == ErrorKind::Plan && error.sqlstate() == Some(&SqlState::DATATYPE_MISMATCH)
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

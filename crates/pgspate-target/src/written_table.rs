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
    /// [`ConcurrentChange::Replaced`] if the name leads to another table,
    /// [`ConcurrentChange::Altered`] if a column has another type. [`ErrorKind::Server`] if the
    /// server refuses the query, [`ErrorKind::Connect`] if the connection fails.
    pub async fn check_unchanged(&self, client: &Client) -> Result<()> {
        let failed = server_error(format!("could not look up table {}", self.sql_name));
        let sql = format!("select ({}) is true, {}", self.has_name_sql(), self.has_types_sql());
        let row = client.fetch_one(&sql, &[]).await.map_err(failed)?;
        match (row.get(0), row.get(1)) {
            (true, true) => Ok(()),
            (true, false) => Err(ConcurrentChange::Altered.to_error()),
            (false, _) => Err(ConcurrentChange::Replaced.to_error()),
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

/// What another session has done to the table since the run began. Each is an error, because what
/// the run knows of the table is outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConcurrentChange {
    /// Another load has replaced all rows of the table.
    Emptied,
    /// A column has another type than the rows are encoded for.
    Altered,
    /// The table's name leads to another table.
    Replaced,
}

impl ConcurrentChange {
    const ALL: [ConcurrentChange; 3] =
        [ConcurrentChange::Emptied, ConcurrentChange::Altered, ConcurrentChange::Replaced];

    /// Returns the SQLSTATE that tells the errors apart.
    fn sqlstate(self) -> SqlState {
        match self {
            ConcurrentChange::Emptied => SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            ConcurrentChange::Altered => SqlState::DATATYPE_MISMATCH,
            ConcurrentChange::Replaced => SqlState::UNDEFINED_TABLE,
        }
    }

    /// Returns the error of a run that has noticed the change.
    pub fn to_error(self) -> Error {
        let (message, again) = match self {
            ConcurrentChange::Emptied => {
                ("another load has replaced all rows of the table", "loads everything")
            }
            ConcurrentChange::Altered => (
                "another session has changed the type of a column of the table meanwhile",
                "encodes the values for the new type",
            ),
            ConcurrentChange::Replaced => (
                "another session has put another table of this name in the table's place",
                "loads into the table that has the name now",
            ),
        };
        Error::new(ErrorKind::Plan, message)
            .with_sqlstate(self.sqlstate())
            .hint(format!("The same command, run again, {again}."))
    }

    /// Returns the change that the error is about, or that caused the error.
    pub fn of_error(error: &Error) -> Option<ConcurrentChange> {
        let is_about =
            |it: &ConcurrentChange| error.sqlstate().is_some_and(|code| *code == it.sqlstate());
        ConcurrentChange::ALL.into_iter().find(is_about).filter(|_| error.kind() == ErrorKind::Plan)
    }
}

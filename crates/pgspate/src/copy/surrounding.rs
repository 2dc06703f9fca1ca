//! Begins the transaction that replaces all rows of a table, under locks on the tables involved.

use std::fmt::Write as _;

use tokio_postgres::Client;

use super::Destination;
use super::stream::copy_error;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{IncomingForeignKey, TypedQuery, read_references, server_error};

/// Runs `before`, the SQL before the first COPY, in the open transaction. Rows are replaced only if
/// the table and the foreign keys that refer to it are still as planned.
///
/// While the load waited for locks, another transaction may have changed the foreign keys. The SQL
/// drops them, and adds them again as they were planned.
///
/// # Errors
/// [`ErrorKind::Plan`] if the foreign keys or the types of columns have changed, or if another
/// table has the table's name.
/// An error of the server or the connection.
pub(super) async fn run_before(
    connection: &Connection,
    destination: &Destination,
    before: &str,
) -> Result<()> {
    let client = &connection.client;
    let run = async |sql: &str| {
        client.batch_execute(sql).await.map_err(|error| copy_error(connection, error))
    };
    let Destination::Table { table, surrounding: Some(surrounding) } = destination else {
        return run(before).await;
    };
    let references = &surrounding.references;
    if !references.is_empty() {
        let mut lock = "lock table ".to_owned();
        // ALTER TABLE would lock the tables in this order, too: each with its partitions.
        for name in read_lockable(client, references).await? {
            // Writing to a String cannot fail.
            let _ = write!(lock, "{name}, ");
        }
        run(&format!("{lock}only {} in access exclusive mode", table.sql_name)).await?;
        if read_references(client, table.oid).await? != *references {
            let message = "the foreign keys that refer to the table were changed during the load";
            return Err(Error::new(ErrorKind::Plan, message).hint("Run the same command again."));
        }
    }
    run(before).await?;
    // The transaction locks the table, so that name and types stay.
    table.check_unchanged(client).await
}

/// Returns the names of the tables of the foreign keys, except those that this role may not lock.
/// An owner that has revoked its privileges can still alter its table.
async fn read_lockable(client: &Client, references: &[IncomingForeignKey]) -> Result<Vec<String>> {
    let names: Vec<String> = references.iter().map(|key| key.table.clone()).collect();
    let sql = "select name from pg_catalog.unnest($1) with ordinality as t(name, nth) \
               where pg_catalog.has_table_privilege(pg_catalog.to_regclass(name)::oid, \
                                                    'update, delete, truncate') \
               order by nth";
    let failed = server_error("could not look up the foreign keys".to_owned());
    let rows = client.fetch_all(sql, &[&names]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

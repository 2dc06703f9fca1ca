//! Foreign keys by which a delete or update of a table's rows writes other rows of that table.

use tokio_postgres::Client;

use crate::{Result, server_error};

/// An action of a foreign key `c` that writes rows: cascade, set null or set default.
const WRITES_ROWS: &str =
    "c.contype = 'f' and (c.confdeltype in ('c', 'n', 'd') or c.confupdtype in ('c', 'n', 'd'))";

/// Returns a query for the names of foreign keys whose actions write rows of the table `table`
/// because other rows of it were written. The keys may lead through other tables.
pub fn cascading_keys_sql(table: u32) -> String {
    format!(
        "with recursive part(oid) as (
           select relid::oid from pg_partition_tree({table}::oid::regclass)
           union select {table}::oid),
         reached(oid) as (
           select oid from part
           union select c.conrelid from pg_constraint c join reached r on r.oid = c.confrelid
                 where {WRITES_ROWS})
         select distinct c.conname::text from pg_constraint c
         where {WRITES_ROWS} and c.conrelid in (select oid from part)
           and c.confrelid in (select oid from reached)
         order by 1"
    )
}

/// Reads the names of the keys of [`cascading_keys_sql`].
///
/// # Errors
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
pub async fn read_cascading_keys(client: &Client, table: u32) -> Result<Vec<String>> {
    let failed = server_error("could not look up foreign keys".to_owned());
    let rows = client.query(&cascading_keys_sql(table), &[]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

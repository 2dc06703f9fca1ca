//! Checks the names of `--tables` before the first event.
//!
//! An event of a table that is left out counts as applied. So a misspelt name is refused: the
//! corrected command would apply nothing.

use super::table_map::TableMap;
use crate::reading::missing_table_error;
use crate::{Error, ErrorKind, Result};
use pgspate_events::SourceTable;
use pgspate_target::connect::Connection;
use pgspate_target::{TypedQuery, suggest_table};

/// The tables and views of the database, with their schemas.
const TABLES_SQL: &str = "\
select n.nspname::text, c.relname::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
  and n.nspname not in ('pg_catalog', 'pg_toast', 'information_schema')";

/// Checks that each name of `--tables` fits a table of the target.
pub(super) async fn check(table_map: &TableMap, connection: &Connection) -> Result<()> {
    if !table_map.chooses_tables() {
        return Ok(());
    }
    let rows = connection.client.fetch_all(TABLES_SQL, &[]).await;
    let rows = rows.map_err(|error| connection.explain("could not list the tables", error))?;
    let table = |row: &tokio_postgres::Row| SourceTable { schema: row.get(0), table: row.get(1) };
    let existing: Vec<SourceTable> = rows.iter().map(table).collect();
    let Some(unknown) = table_map.find_unknown(&existing) else { return Ok(()) };
    let hint = "`--tables` names tables as the stream does, and `--map` leads them to tables of \
                the target. Events of other tables are left out and count as applied.";
    match unknown.sql_name {
        None => {
            let message = format!("no table of the target matches \"{}\"", unknown.written);
            Err(Error::new(ErrorKind::Plan, message).hint(hint))
        }
        Some(name) => {
            let error = missing_table_error(&name).hint(hint);
            Err(suggest_table(&connection.client, &name, error).await)
        }
    }
}

//! `--create`: the table that the input seems to need, and wider columns when it needs more.

use serde::Serialize;

use crate::format::infer::{self, ColumnType};
use crate::reading::missing;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{Ask, Parameter, Table, quote_ident, server_error, under_users_path};

/// A table that a load makes before it writes the first row.
#[derive(Debug, Clone)]
pub struct NewTable {
    /// Schema and name, as SQL writes them.
    pub table: String,
    /// The statement.
    pub sql: String,
}

/// A column that had to become wider, because of one value.
#[derive(Debug, Clone, Serialize)]
pub struct WidenedColumn {
    /// The column.
    pub column: String,
    /// Its type at first.
    pub from: String,
    /// Its type now.
    pub to: String,
    /// Where the value is that did not fit.
    pub place: Option<String>,
}

/// All types that columns are given, to find one by its name.
const TYPES: [ColumnType; 11] = [
    ColumnType::Boolean,
    ColumnType::Bigint,
    ColumnType::Numeric,
    ColumnType::Double,
    ColumnType::Date,
    ColumnType::Time,
    ColumnType::Timestamp,
    ColumnType::Timestamptz,
    ColumnType::Uuid,
    ColumnType::Jsonb,
    ColumnType::Text,
];

/// The statement for a table with these columns; an error that shows it unless it is `wanted`.
pub(super) fn sql(name: &str, columns: &[(String, String)], wanted: bool) -> Result<String> {
    let sql = infer::create_table_sql(name, columns);
    if wanted {
        return Ok(sql);
    }
    let hint = format!("Make it with `--create`, which would run:\n{sql};");
    Err(missing(name).hint(hint))
}

/// The table as it would be: made, looked at, and rolled back.
pub(super) async fn try_out(
    connection: &Connection,
    name: &str,
    sql: &str,
) -> Result<(Table, NewTable)> {
    let client = &connection.client;
    let sql_begun = format!("begin; {}", under_users_path(sql));
    let (made, table, undone) = tokio::join!(
        biased;
        client.batch_execute(&sql_begun),
        Table::read(client, name),
        client.batch_execute("rollback")
    );
    made.map_err(server_error(format!("could not create table {name}")))?;
    let table = table?;
    undone.map_err(server_error(format!("could not roll back table {name}")))?;
    let table =
        table.ok_or_else(|| Error::new(ErrorKind::Bug, "the table just made is not there"))?;
    let new = NewTable { table: table.sql_name.clone(), sql: sql.to_owned() };
    Ok((table, new))
}

/// Makes the table; gives its oid.
pub(super) async fn create(connection: &Connection, new: &NewTable) -> Result<u32> {
    let failed = || server_error(format!("could not create table {}", new.table));
    let client = &connection.client;
    let name: [&dyn Parameter; 1] = [&new.table];
    let sql = under_users_path(&new.sql);
    let (made, row) = tokio::join!(
        biased;
        client.batch_execute(&sql),
        client.ask_one("select to_regclass($1)::oid", &name)
    );
    made.map_err(failed())?;
    let oid: Option<u32> = row.map_err(failed())?.get(0);
    oid.ok_or_else(|| Error::new(ErrorKind::Bug, "the table just made is not there"))
}

/// Drops the table again, unless it has rows: then somebody else put them in.
pub(super) async fn drop(connection: &Connection, new: &NewTable, oid: u32) -> Result<()> {
    let dropped = drop_if_empty(connection, new, oid).await;
    if dropped.is_err() {
        // The error that is told is the one before.
        let _ = connection.client.batch_execute("rollback").await;
    }
    dropped
}

async fn drop_if_empty(connection: &Connection, new: &NewTable, oid: u32) -> Result<()> {
    let table = &new.table;
    let failed = || server_error(format!("could not drop table {table}"));
    // Nobody can add a row between the look and the drop. Who holds a lock for longer than this
    // is using the table.
    let lock = format!(
        "begin isolation level read committed; set local lock_timeout = '10s'; \
         lock table {table} in access exclusive mode"
    );
    connection.client.batch_execute(&lock).await.map_err(failed())?;
    let look =
        format!("select to_regclass($1)::oid is distinct from $2, exists (select from {table})");
    let found = connection.client.ask_one(&look, &[table, &oid]).await.map_err(failed())?;
    if found.get(0) || found.get(1) {
        return Err(Error::new(ErrorKind::Plan, "another session has put rows into it"));
    }
    let sql = format!("drop table {table}; commit");
    connection.client.batch_execute(&sql).await.map_err(failed())
}

/// Gives the column that a value did not fit the next wider type; `None` when that is not what
/// the error is about.
pub(super) async fn widen(
    connection: &Connection,
    new: &NewTable,
    table: &Table,
    error: &Error,
) -> Result<Option<WidenedColumn>> {
    let Some((column, to)) = wider(table, error) else { return Ok(None) };
    let from = column.ty.name.clone();
    let quoted = quote_ident(&column.name);
    let (target, to) = (&new.table, to.sql());
    // Through text, as not every type has a cast of its own. The table is empty but for rows that
    // others may have put in.
    let sql =
        format!("alter table {target} alter column {quoted} type {to} using {quoted}::text::{to}");
    let failed = server_error(format!("could not widen column {quoted}"));
    connection.client.batch_execute(&sql).await.map_err(failed)?;
    let place = error.place().map(ToString::to_string);
    Ok(Some(WidenedColumn { column: column.name.clone(), from, to: to.to_owned(), place }))
}

/// The column that a value did not fit, and the type that it would fit.
fn wider<'a>(table: &'a Table, error: &Error) -> Option<(&'a pgspate_target::Column, ColumnType)> {
    // Class 22 is "data exception": a value of the wrong form or size.
    if !error.sqlstate()?.code().starts_with("22") {
        return None;
    }
    let name = error.place()?.column.as_deref()?;
    let column = table.columns.iter().find(|column| column.name == name)?;
    let current = current_type(&column.ty.name)?;
    let value = refused_value(error).unwrap_or_default();
    let wider = infer::widen(current, value.as_bytes());
    let wider = if wider == current { ColumnType::Text } else { wider };
    (current != ColumnType::Text).then_some((column, wider))
}

fn current_type(name: &str) -> Option<ColumnType> {
    let alias = match name {
        "time without time zone" => "time",
        "timestamp without time zone" => "timestamp",
        "timestamp with time zone" => "timestamptz",
        other => other,
    };
    TYPES.into_iter().find(|ty| ty.sql() == alias)
}

/// The value in the server's context: `COPY t, line 5, column a: "12a"`.
fn refused_value(error: &Error) -> Option<&str> {
    let (_, quoted) = error.refusal()?.context()?.split_once(": \"")?;
    quoted.strip_suffix('"').or(Some(quoted))
}

/// For input that cannot be read again: names the type that would have fitted.
pub(super) fn hint_wider(error: Error, table: &Table) -> Error {
    let Some((column, to)) = wider(table, &error).filter(|_| error.hint_text().is_none()) else {
        return error;
    };
    let (name, from, to) = (&column.name, &column.ty.name, to.sql());
    let quoted = quote_ident(name);
    let hint = format!(
        "Column \"{name}\" was made {from} after the first rows, but this value needs {to}. \
         Create the table yourself, with `{quoted} {to}` in it, or load from a file, which pgspate \
         can start over by itself."
    );
    error.hint(hint)
}

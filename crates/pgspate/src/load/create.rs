//! `--create`: creates a table that fits the input, and widens a column when a later value does not
//! fit.

use serde::Serialize;

use crate::format::infer::{self, ColumnType};
use crate::reading::missing_table_error;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{
    TargetTable, TypedParameter, TypedQuery, quote_ident, server_error, under_users_path_sql,
};

/// A table that a load creates before it writes the first row.
#[derive(Debug, Clone)]
pub struct NewTable {
    /// Schema and name, quoted as in SQL.
    pub table: String,
    /// The CREATE TABLE statement.
    pub sql: String,
}

/// A column whose type was changed because a value did not fit.
#[derive(Debug, Clone, Serialize)]
pub struct WidenedColumn {
    /// The column's name.
    pub column: String,
    /// The type before.
    pub from: String,
    /// The type afterwards.
    pub to: String,
    /// The place of the value that did not fit.
    pub place: Option<String>,
}

/// All types that columns are created with; used to find a type by name.
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

/// Returns the CREATE TABLE statement for these columns. Unless `wanted`, returns an error that
/// shows the statement.
pub(super) fn create_table_sql(
    name: &str,
    columns: &[(String, String)],
    wanted: bool,
) -> Result<String> {
    let sql = infer::create_table_sql(name, columns);
    if wanted {
        return Ok(sql);
    }
    let hint = format!("`--create` would create it with:\n{sql};");
    Err(missing_table_error(name).hint(hint))
}

/// Creates the table, reads its columns, and rolls back.
pub(super) async fn create_and_roll_back(
    connection: &Connection,
    name: &str,
    sql: &str,
) -> Result<(TargetTable, NewTable)> {
    let client = &connection.client;
    let sql_begun = format!("begin; {}", under_users_path_sql(sql));
    let (made, table, undone) = tokio::join!(
        biased;
        client.batch_execute(&sql_begun),
        TargetTable::read(client, name),
        client.batch_execute("rollback")
    );
    made.map_err(server_error(format!("could not create table {name}")))?;
    let table = table?;
    undone.map_err(server_error(format!("could not roll back table {name}")))?;
    let table = table.ok_or_else(|| {
        Error::new(ErrorKind::Bug, "the table that was just created does not exist")
    })?;
    let new = NewTable { table: table.sql_name.clone(), sql: sql.to_owned() };
    Ok((table, new))
}

/// Creates the table; returns its oid.
pub(super) async fn create(connection: &Connection, new: &NewTable) -> Result<u32> {
    let failed = || server_error(format!("could not create table {}", new.table));
    let client = &connection.client;
    let name: [&dyn TypedParameter; 1] = [&new.table];
    let sql = under_users_path_sql(&new.sql);
    let (made, row) = tokio::join!(
        biased;
        client.batch_execute(&sql),
        client.fetch_one("select to_regclass($1)::oid", &name)
    );
    made.map_err(failed())?;
    let oid: Option<u32> = row.map_err(failed())?.get(0);
    oid.ok_or_else(|| Error::new(ErrorKind::Bug, "the table that was just created does not exist"))
}

/// Drops the table, unless it has rows. Such rows are another session's.
pub(super) async fn drop_created_table(
    connection: &Connection,
    new: &NewTable,
    oid: u32,
) -> Result<()> {
    let dropped = drop_if_empty(connection, new, oid).await;
    if dropped.is_err() {
        // The caller reports the earlier error.
        let _ = connection.client.batch_execute("rollback").await;
    }
    dropped
}

async fn drop_if_empty(connection: &Connection, new: &NewTable, oid: u32) -> Result<()> {
    let table = &new.table;
    let failed = || server_error(format!("could not drop table {table}"));
    // The lock prevents other sessions from adding a row before the drop. A session that keeps its
    // lock for longer than 10 s is using the table.
    let lock = format!(
        "begin isolation level read committed; set local lock_timeout = '10s'; \
         lock table {table} in access exclusive mode"
    );
    connection.client.batch_execute(&lock).await.map_err(failed())?;
    let look =
        format!("select to_regclass($1)::oid is distinct from $2, exists (select from {table})");
    let found = connection.client.fetch_one(&look, &[table, &oid]).await.map_err(failed())?;
    if found.get(0) || found.get(1) {
        return Err(Error::new(ErrorKind::Plan, "another session has inserted rows into it"));
    }
    let sql = format!("drop table {table}; commit");
    connection.client.batch_execute(&sql).await.map_err(failed())
}

/// Changes the column that a value did not fit to the next wider type. Returns `None` if the error
/// is of another kind.
pub(super) async fn widen(
    connection: &Connection,
    new: &NewTable,
    table: &TargetTable,
    error: &Error,
) -> Result<Option<WidenedColumn>> {
    let Some((column, to)) = wider_type(table, error) else { return Ok(None) };
    let from = column.ty.name.clone();
    let quoted = quote_ident(&column.name);
    let (target, to) = (&new.table, to.sql());
    // The cast goes through text, because not every type can be cast directly. The table is empty,
    // except for rows of other sessions.
    let sql =
        format!("alter table {target} alter column {quoted} type {to} using {quoted}::text::{to}");
    let failed = server_error(format!("could not widen column {quoted}"));
    connection.client.batch_execute(&sql).await.map_err(failed)?;
    let place = error.place().map(ToString::to_string);
    Ok(Some(WidenedColumn { column: column.name.clone(), from, to: to.to_owned(), place }))
}

/// Returns the column that a value did not fit, and a type that fits.
fn wider_type<'a>(
    table: &'a TargetTable,
    error: &Error,
) -> Option<(&'a pgspate_target::TargetColumn, ColumnType)> {
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

/// Returns the value in the error's context: `COPY t, line 5, column a: "12a"`.
fn refused_value(error: &Error) -> Option<&str> {
    let (_, quoted) = error.refusal()?.context()?.split_once(": \"")?;
    quoted.strip_suffix('"').or(Some(quoted))
}

/// Adds a hint with the type that would have fitted, for input that cannot be read again.
pub(super) fn hint_wider(error: Error, table: &TargetTable) -> Error {
    let Some((column, to)) = wider_type(table, &error).filter(|_| error.hint_text().is_none())
    else {
        return error;
    };
    let (name, from, to) = (&column.name, &column.ty.name, to.sql());
    let quoted = quote_ident(name);
    let hint = format!(
        "Column \"{name}\" was created as {from}, because of the first rows, but this value needs \
         {to}. Create the table yourself with `{quoted} {to}`. Or load from a file: pgspate can \
         read a file again and widen the column."
    );
    error.hint(hint)
}

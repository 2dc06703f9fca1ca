//! `--create`: creates a table that fits the input. If a later value does not fit its column,
//! changes the column to a wider type.

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
    /// The type before the change.
    pub from: String,
    /// The type after the change.
    pub to: String,
    /// The place of the value that did not fit.
    pub place: Option<String>,
}

/// All types that `--create` gives to columns.
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

/// Returns the CREATE TABLE statement for these columns, if `may_create`.
///
/// # Errors
/// The error for a missing table, if not `may_create`. The hint shows the statement.
pub(super) fn create_table_sql(
    name: &str,
    columns: &[(String, String)],
    may_create: bool,
) -> Result<String> {
    let sql = infer::create_table_sql(name, columns);
    if may_create {
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
    let begin_and_create = format!("begin; {}", under_users_path_sql(sql));
    let (created, table, rolled_back) = tokio::join!(
        biased;
        client.batch_execute(&begin_and_create),
        TargetTable::read(client, name),
        client.batch_execute("rollback")
    );
    created.map_err(server_error(format!("could not create table {name}")))?;
    let table = table?;
    rolled_back.map_err(server_error(format!("could not roll back table {name}")))?;
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
    let (created, row) = tokio::join!(
        biased;
        client.batch_execute(&sql),
        client.fetch_one("select to_regclass($1)::oid", &name)
    );
    created.map_err(failed())?;
    let oid: Option<u32> = row.map_err(failed())?.get(0);
    oid.ok_or_else(|| Error::new(ErrorKind::Bug, "the table that was just created does not exist"))
}

/// Drops the table that this load created.
///
/// # Errors
/// [`ErrorKind::Plan`] if another session has replaced the table or inserted rows into it. Or the
/// server's refusal.
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
    // The lock prevents other sessions from inserting a row before the drop. If another session
    // keeps its lock for longer than 10 s, the table is in use and stays.
    let lock = format!(
        "begin isolation level read committed; set local lock_timeout = '10s'; \
         lock table {table} in access exclusive mode"
    );
    connection.client.batch_execute(&lock).await.map_err(failed())?;
    let query =
        format!("select to_regclass($1)::oid is distinct from $2, exists (select 1 from {table})");
    let row = connection.client.fetch_one(&query, &[table, &oid]).await.map_err(failed())?;
    let (is_other_table, has_rows): (bool, bool) = (row.get(0), row.get(1));
    if is_other_table {
        return Err(Error::new(ErrorKind::Plan, "another session has replaced it"));
    }
    if has_rows {
        return Err(Error::new(ErrorKind::Plan, "another session has inserted rows into it"));
    }
    let sql = format!("drop table {table}; commit");
    connection.client.batch_execute(&sql).await.map_err(failed())
}

/// If a value did not fit its column, changes the column to the next wider type. Returns `None` if
/// the error is of another kind.
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
    // The value is first cast to text, because not every type can be cast directly. Only rows of
    // other sessions are cast, because this load has committed no row yet.
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

/// Returns the type with this name, if `--create` uses the type.
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

/// Adds a hint with a type that the value fits, for input that cannot be read again.
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

//! `--create`: the table that the input seems to need, and wider columns when it needs more.

use crate::format::infer::{self, ColumnType};
use crate::target::connect::Connection;
use crate::target::{Table, quote_ident, server_error};
use crate::{Error, Kind, Place, Result};

/// A table that was made for a load.
#[derive(Debug, Clone)]
pub struct Created {
    /// Schema and name, as SQL writes them.
    pub table: String,
    /// The statement.
    pub sql: String,
}

/// A column that had to become wider, because of one value.
#[derive(Debug, Clone)]
pub struct Widened {
    /// The column.
    pub column: String,
    /// Its type at first.
    pub from: String,
    /// Its type now.
    pub to: String,
    /// Where the value is.
    pub place: Option<Place>,
}

/// The widest types come last; each value fits its successors or goes to text.
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

/// Makes the table if `wanted`, else says what it would be.
pub(super) async fn create(
    connection: &Connection,
    name: &str,
    columns: &[(String, String)],
    wanted: bool,
) -> Result<(Table, Created)> {
    let sql = create_sql(name, columns);
    if !wanted {
        let message = format!("relation {name} does not exist");
        let hint = format!("Make it with `--create`, which would run:\n{sql};");
        return Err(Error::new(Kind::Plan, message)
            .with_sqlstate(tokio_postgres::error::SqlState::UNDEFINED_TABLE)
            .hint(hint));
    }
    let failed = || server_error(format!("could not create table {name}"));
    connection.client.batch_execute(&sql).await.map_err(failed())?;
    let table = Table::read(&connection.client, name).await?;
    let table = table.ok_or_else(|| Error::new(Kind::Bug, "the table just made is not there"))?;
    let created = Created { table: table.sql_name.clone(), sql };
    Ok((table, created))
}

fn create_sql(name: &str, columns: &[(String, String)]) -> String {
    let lines = columns.iter().map(|(name, ty)| format!("    {} {ty}", quote_ident(name)));
    format!("create table {name} (\n{}\n)", lines.collect::<Vec<_>>().join(",\n"))
}

/// Drops the table again.
pub(super) async fn drop(connection: &Connection, created: &Created) -> Result<()> {
    let sql = format!("drop table if exists {}", created.table);
    let failed = server_error(format!("could not drop table {}", created.table));
    connection.client.batch_execute(&sql).await.map_err(failed)
}

/// Gives the column that a value did not fit the next wider type; `None` when that is not what
/// the error is about.
pub(super) async fn widen(
    connection: &Connection,
    created: &Created,
    table: &Table,
    error: &Error,
) -> Result<Option<Widened>> {
    let Some((column, to)) = wider(table, error) else { return Ok(None) };
    let from = column.ty.name.clone();
    let quoted = quote_ident(&column.name);
    let (target, to) = (&created.table, to.sql());
    // The table is empty, so nothing is converted.
    let sql = format!("alter table {target} alter column {quoted} type {to} using null");
    let failed = server_error(format!("could not widen column {quoted}"));
    connection.client.batch_execute(&sql).await.map_err(failed)?;
    let place = error.place().cloned();
    Ok(Some(Widened { column: column.name.clone(), from, to: to.to_owned(), place }))
}

/// The column that a value did not fit, and the type that it would fit.
fn wider<'a>(table: &'a Table, error: &Error) -> Option<(&'a crate::target::Column, ColumnType)> {
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
pub(super) fn hint_wider(error: Error) -> Error {
    let Some(column) = error.place().and_then(|place| place.column.clone()) else { return error };
    let hint = format!(
        "Column \"{column}\" was given its type by the first rows. Create the table yourself with \
         a wider type, such as text, or load from a file, which pgspate can start over by itself."
    );
    error.hint(hint)
}

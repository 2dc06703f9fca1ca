//! `--create`: creates a table that fits the input. If a later value does not fit its column,
//! changes the column to a wider type, unless the user has chosen the type.

use std::collections::HashSet;

use serde::Serialize;
use tokio_postgres::error::SqlState;

use crate::format::guessed_type::{GuessedType, value_of_error};
use crate::format::infer::{self, ColumnType};
use crate::reading::{is_exported_infinity, is_json_nan, missing_table_error, refused_value};
use crate::{Error, ErrorKind, Result};
use pgspate_base::{did_you_mean, is_alike, truncate_ident};
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
    /// The columns whose types were guessed from the input's first rows.
    guessed_columns: Vec<String>,
}

/// The user's choices for a table that a load creates, or for columns that it adds.
#[derive(Debug, Clone, Default)]
pub struct NewTableOptions {
    /// Names of columns with their types, as in SQL. Other columns get types that fit the input.
    pub types: Vec<(String, String)>,
    /// The columns of the primary key.
    pub primary_key: Vec<String>,
}

impl NewTableOptions {
    /// Checks that the load may make the columns whose types the user has chosen.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the load neither creates a table nor adds columns.
    pub(crate) fn check_use(&self, creates: bool, adds_columns: bool) -> Result<()> {
        match self.types.first() {
            Some((name, _)) if !creates && !adds_columns => {
                let message = "`--type` needs `--create` or `--add-columns`: it does not change \
                               columns that the table has";
                Err(Error::new(ErrorKind::Usage, message).hint(format!(
                    "Create the table with `--create`, or add column \"{name}\" to it with \
                     `--add-columns`."
                )))
            }
            _ => Ok(()),
        }
    }
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

impl NewTable {
    /// Returns the table `name` for these columns of an input: their names and inferred types.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if an option names a column that the input does not have, or the input
    /// has two columns of one name.
    pub(crate) fn of_columns(
        name: &str,
        columns: &[(String, String)],
        options: &NewTableOptions,
    ) -> Result<NewTable> {
        let mut columns = columns.to_vec();
        let mut names = HashSet::new();
        if let Some((name, _)) = columns.iter().find(|(name, _)| !names.insert(name.clone())) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("the input has two columns \"{name}\""),
            )
            .hint("Rename one of the columns. The server keeps 63 bytes of a name."));
        }
        let mut typed_columns = Vec::new();
        for (name, ty) in &options.types {
            let at = find_input_column(&columns, name, "--type")?;
            ty.clone_into(&mut columns[at].1);
            typed_columns.push(columns[at].0.clone());
        }
        let key = options.primary_key.iter().map(|name| {
            let at = find_input_column(&columns, name, "--primary-key")?;
            Ok(columns[at].0.clone())
        });
        let sql = infer::create_table_sql(name, &columns, &key.collect::<Result<Vec<_>>>()?);
        let guessed_columns = columns.into_iter().map(|(name, _)| name);
        let guessed_columns = guessed_columns.filter(|it| !typed_columns.contains(it)).collect();
        Ok(NewTable { table: name.to_owned(), sql, guessed_columns })
    }

    /// Returns the names of the columns whose types were guessed from the input's first rows.
    pub(crate) fn guessed_columns(&self) -> &[String] {
        &self.guessed_columns
    }
}

/// Checks that the table has each column whose type the user has chosen, once columns are added.
/// `inferred` are the columns of the input.
///
/// # Errors
/// [`ErrorKind::Usage`] if neither the table nor the input has such a column.
pub(crate) fn check_typed_columns(
    table: &TargetTable,
    inferred: &[(String, String)],
    types: &[(String, String)],
) -> Result<()> {
    let mut missing = types.iter().filter(|(name, _)| !table.has_column_alike(name));
    missing.try_for_each(|(name, _)| find_input_column(inferred, name, "--type").map(drop))
}

/// Returns the position of the column that an option names. If no name is equal, upper and lower
/// case do not matter.
fn find_input_column(columns: &[(String, String)], name: &str, flag: &str) -> Result<usize> {
    let name = truncate_ident(name);
    if let Some(at) = columns.iter().position(|(column, _)| column == name) {
        return Ok(at);
    }
    let is_alike = |column: &str| column.to_lowercase() == name.to_lowercase();
    let mut alike = (0..columns.len()).filter(|at| is_alike(&columns[*at].0));
    if let (Some(at), None) = (alike.next(), alike.next()) {
        return Ok(at);
    }
    let names = columns.iter().map(|(column, _)| column.as_str());
    let hint = did_you_mean("column", name, names.clone()).unwrap_or_else(|| {
        format!("The input has the columns {}.", names.collect::<Vec<_>>().join(", "))
    });
    let message = format!("the input has no column \"{name}\", which `{flag}` names");
    Err(Error::new(ErrorKind::Usage, message).hint(hint))
}

/// Returns the error for a missing table. The hint shows the statement that would create it.
pub(crate) fn missing_table_error_with_sql(new: &NewTable) -> Error {
    missing_table_error(&new.table).hint(format!("`--create` would create it with:\n{};", new.sql))
}

/// Checks that the types are names of types and nothing else, because they become a part of a
/// statement. A type that does not exist is found when the table is created.
///
/// # Errors
/// [`ErrorKind::Usage`] if the server cannot parse one of the types.
pub(crate) async fn check_types(connection: &Connection, types: &[(String, String)]) -> Result<()> {
    for (column, ty) in types {
        let message = format!("\"{ty}\" is no type for column \"{column}\"");
        let hint = "Give the name of a type as in SQL, such as `--type 'price=numeric(10,2)'`.";
        let refusal = Error::new(ErrorKind::Usage, message.clone()).hint(hint);
        if ["--", "/*"].iter().any(|comment| ty.contains(comment)) {
            return Err(refusal);
        }
        let parsed = connection.client.fetch_one("select to_regtype($1)::oid", &[ty]).await;
        match parsed.map_err(server_error(message)) {
            Ok(_) => {}
            Err(error) if error.sqlstate().is_some() => return Err(refusal.because(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The columns of a table's primary key, and the oids of types.
const CHOICES_SQL: &str = "\
select array(select a.attname::text
             from pg_index i cross join unnest(i.indkey) with ordinality as k(attnum, nth)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where i.indrelid = $1 and i.indisprimary order by k.nth),
       array(select coalesce(to_regtype(name)::oid, 0::oid)
             from unnest($2::text[]) with ordinality as t(name, nth) order by nth)";

/// Returns which choices for a new table a table that exists does not have, in words. They have no
/// effect, so a load that runs every night gives no warning as long as the table has them.
pub(crate) async fn unused_choices(
    connection: &Connection,
    table: &TargetTable,
    options: &NewTableOptions,
) -> Result<Vec<String>> {
    let NewTableOptions { types, primary_key } = options;
    if types.is_empty() && primary_key.is_empty() {
        return Ok(Vec::new());
    }
    check_types(connection, types).await?;
    let name = &table.sql_name;
    let names: Vec<String> = types.iter().map(|(_, ty)| ty.clone()).collect();
    let failed = server_error(format!("could not look up the primary key of {name}"));
    let row = connection.client.fetch_one(CHOICES_SQL, &[&table.oid, &names]).await;
    let row = row.map_err(failed)?;
    let (key, oids): (Vec<String>, Vec<u32>) = (row.get(0), row.get(1));
    let mut unused = Vec::new();
    for ((column, ty), oid) in types.iter().zip(oids) {
        let Some(found) = table.columns.iter().find(|it| is_alike(&it.name, column)) else {
            continue;
        };
        if found.ty.oid != oid
            || modifier(ty).is_some_and(|it| modifier(&found.ty.name) != Some(it))
        {
            unused.push(format!(
                "`--type` has no effect on column \"{}\", which {name} has as {}",
                found.name, found.ty.name
            ));
        }
    }
    let has_key = key.len() == primary_key.len()
        && key.iter().zip(primary_key).all(|(it, chosen)| is_alike(it, chosen));
    if !primary_key.is_empty() && !has_key {
        let found = match key.is_empty() {
            true => "has no primary key".to_owned(),
            false => format!("has the primary key ({})", key.join(", ")),
        };
        unused.push(format!("`--primary-key` has no effect: {name} exists, and {found}"));
    }
    Ok(unused)
}

/// Returns the modifier of a type without spaces: `10,2` of `numeric(10, 2)`.
fn modifier(ty: &str) -> Option<String> {
    let (_, rest) = ty.split_once('(')?;
    Some(rest.split_once(')')?.0.replace(' ', ""))
}

/// Creates the table, reads its columns, and rolls back.
pub(crate) async fn create_and_roll_back(
    connection: &Connection,
    new: NewTable,
) -> Result<(TargetTable, NewTable)> {
    let client = &connection.client;
    let name = &new.table;
    let begin_and_create = format!("begin; {}", under_users_path_sql(&new.sql));
    let (created, table) = tokio::join!(
        biased;
        client.batch_execute(&begin_and_create),
        TargetTable::read(client, name)
    );
    let rolled_back = client.batch_execute("rollback").await;
    created.map_err(|error| create_error(name, error))?;
    let table = table?;
    rolled_back
        .map_err(server_error(format!("could not roll back the creation of table {name}")))?;
    let table = table.ok_or_else(|| {
        Error::new(ErrorKind::Bug, "the table that was just created does not exist")
    })?;
    let new = NewTable { table: table.sql_name.clone(), ..new };
    Ok((table, new))
}

/// Returns the server's refusal to create the table `name`, with a hint about its schema.
fn create_error(name: &str, error: tokio_postgres::Error) -> Error {
    let code = error.code().cloned();
    let error = server_error(format!("could not create table {name}"))(error);
    match code {
        Some(SqlState::INVALID_SCHEMA_NAME) => {
            error.hint("Create the schema first, with `create schema ...`.")
        }
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => {
            error.hint("The role may need `grant create on schema ...`.")
        }
        _ => error,
    }
}

/// Reads the table `name`, if its creation failed because another session has created it meanwhile.
///
/// # Errors
/// `error`, with which the creation failed, if there is another reason.
pub(crate) async fn read_created_meanwhile(
    connection: &Connection,
    name: &str,
    error: Error,
) -> Result<TargetTable> {
    const CODES: [SqlState; 3] =
        [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];
    if !error.sqlstate().is_some_and(|code| CODES.contains(code)) {
        return Err(error);
    }
    match TargetTable::read(&connection.client, name).await {
        Ok(Some(table)) => Ok(table),
        _ => Err(error),
    }
}

/// Creates the table; returns its oid.
pub(crate) async fn create(connection: &Connection, new: &NewTable) -> Result<u32> {
    let failed = || server_error(format!("could not create table {}", new.table));
    let client = &connection.client;
    let name: [&dyn TypedParameter; 1] = [&new.table];
    let sql = under_users_path_sql(&new.sql);
    let (created, row) = tokio::join!(
        biased;
        client.batch_execute(&sql),
        client.fetch_one("select to_regclass($1)::oid", &name)
    );
    created.map_err(|error| create_error(&new.table, error))?;
    let oid: Option<u32> = row.map_err(failed())?.get(0);
    oid.ok_or_else(|| Error::new(ErrorKind::Bug, "the table that was just created does not exist"))
}

/// Drops the table that this load created.
///
/// # Errors
/// [`ErrorKind::Plan`] if another session has replaced the table, or if the table has rows. The
/// server's error if it refuses to drop the table.
pub(crate) async fn drop_created_table(
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
        return Err(Error::new(ErrorKind::Plan, "it has rows"));
    }
    let sql = format!("drop table {table}; commit");
    connection.client.batch_execute(&sql).await.map_err(failed())
}

/// If a value did not fit its column, changes the column to the next wider type. Returns `None` if
/// the error is of another kind.
pub(crate) async fn widen(
    connection: &Connection,
    new: &NewTable,
    table: &TargetTable,
    error: &Error,
) -> Result<Option<WidenedColumn>> {
    let Some((column, to)) = wider_type(new, table, error) else { return Ok(None) };
    let from = column.ty.name.clone();
    let quoted = quote_ident(&column.name);
    let (target, to) = (&new.table, to.sql());
    // The value is first cast to text, because not every type can be cast directly. Only rows of
    // other sessions are cast, because this load has no row in the table.
    let sql =
        format!("alter table {target} alter column {quoted} type {to} using {quoted}::text::{to}");
    let failed = server_error(format!("could not widen column {quoted}"));
    connection.client.batch_execute(&sql).await.map_err(failed)?;
    let place = error.place().map(ToString::to_string);
    Ok(Some(WidenedColumn { column: column.name.clone(), from, to: to.to_owned(), place }))
}

/// Returns the column that a value did not fit, and a type that fits.
pub(crate) fn wider_type<'a>(
    new: &NewTable,
    table: &'a TargetTable,
    error: &Error,
) -> Option<(&'a pgspate_target::TargetColumn, ColumnType)> {
    // Class 22 is "data exception": a value of the wrong form or size.
    if !error.sqlstate()?.code().starts_with("22") {
        return None;
    }
    if is_exported_infinity(error) {
        return None;
    }
    if error.refusal().is_none() && error.sqlstate() == Some(&SqlState::INVALID_DATETIME_FORMAT) {
        // The user has said how dates are written, so the value is wrong and not the type.
        return None;
    }
    let name = error.place()?.column.as_deref()?;
    let column = table.columns.iter().find(|column| column.name == name)?;
    if !new.guessed_columns.contains(&column.name) {
        return None;
    }
    let guess = value_of_error(error);
    let own = GuessedType::of(&column.ty.name).and_then(GuessedType::own_type);
    if own.is_some() && guess.is_some() {
        return Some((column, ColumnType::Text));
    }
    let current = ColumnType::of_name(&column.ty.name)?;
    let value = guess.as_deref().or_else(|| refused_value(error)).unwrap_or_default();
    if current == ColumnType::Jsonb && is_json_nan(error) {
        // In a column of texts, the other values would not be JSON any more.
        return None;
    }
    let wider = infer::widen(current, value.as_bytes());
    let wider = if wider == current { ColumnType::Text } else { wider };
    (current != ColumnType::Text).then_some((column, wider))
}

/// Adds a hint to the error about a value that the guessed type of a new column does not keep.
pub(crate) fn hint_chosen_type(error: Error, table: &TargetTable) -> Error {
    let name = error.place().and_then(|place| place.column.clone());
    let (Some(name), Some(value)) = (name, value_of_error(&error)) else { return error };
    let column = table.columns.iter().find(|column| column.name == name);
    let written = column.map_or("", |column| &column.ty.name);
    // The value is an element of the array.
    let (element, brackets) = match written.strip_suffix("[]") {
        Some(element) => (element, "[]"),
        None => (written, ""),
    };
    let current = ColumnType::of_name(element);
    let wider = current.map(|current| infer::widen(current, value.as_bytes()));
    let to = wider.filter(|to| Some(*to) != current).unwrap_or(ColumnType::Text).sql();
    error.hint_also(&format!("Name the type of the column: `--type '{name}={to}{brackets}'`."))
}

/// Adds a hint with a type that the value fits, for input that cannot be read again.
pub(crate) fn hint_type(error: Error, new: &NewTable, table: &TargetTable) -> Error {
    let wider = wider_type(new, table, &error).filter(|_| error.hint_text().is_none());
    let Some((column, to)) = wider else { return error };
    let (name, from, to) = (&column.name, &column.ty.name, to.sql());
    error.hint(format!(
        "Column \"{name}\" was created as {from}, because of the first rows, but this value needs \
         {to}. Name the type: `--type '{name}={to}'`. Or load from a file: pgspate can read a file \
         again and widen the column."
    ))
}

//! Plans which input field goes to which column, and which encoder writes it.

use arrow_schema::{DataType, Field};

use super::{InputFacts, RowRequest};
use crate::encode::arrow::{self, ColumnEncoder};
use crate::encode::field::FieldEncoder;
use crate::format::nearest::nearest;
use crate::{Error, ErrorKind, Result};
use pgspate_target::{PgType, SessionSettings, TargetColumn, TargetTable, TypeKind};

/// A column that the load writes.
#[derive(Debug, Clone)]
pub struct PlannedColumn {
    /// Its name, unquoted.
    pub name: String,
    /// Its type.
    pub ty: PgType,
    /// The position of its field in the input.
    pub field: usize,
    /// How its values are written.
    pub route: ColumnRoute,
    /// COPY's `force_null`.
    pub force_null: bool,
    /// COPY's `force_not_null`.
    pub force_not_null: bool,
}

/// How a column's values are written.
#[derive(Debug, Clone)]
pub enum ColumnRoute {
    /// Text fields, encoded in binary.
    Field(FieldEncoder),
    /// An Arrow column of record batches, encoded in binary.
    Batch(ColumnEncoder),
    /// Text that the server parses, with the reason.
    Text(String),
}

impl PlannedColumn {
    /// Returns why the values are written as text, if they are.
    pub(super) fn text_reason(&self) -> Option<&str> {
        match &self.route {
            ColumnRoute::Text(reason) => Some(reason),
            ColumnRoute::Batch(encoder) => match encoder.route() {
                arrow::ValueRoute::Server(reason) => Some(reason),
                _ => None,
            },
            ColumnRoute::Field(_) => None,
        }
    }

    /// Returns the encoder of text fields, if the column has one.
    pub fn field_encoder(&self) -> Option<FieldEncoder> {
        match &self.route {
            ColumnRoute::Field(encoder) => Some(encoder.clone()),
            _ => None,
        }
    }
}

/// Plans the columns in the order of COPY, which is the order of the fields.
pub(super) fn plan_columns(
    table: &TargetTable,
    session: &SessionSettings,
    input: &InputFacts,
    request: &RowRequest,
) -> Result<Vec<PlannedColumn>> {
    let names = target_names(table, input, request)?;
    let mut planned = Vec::with_capacity(names.len());
    for (field, name) in names.iter().enumerate() {
        let Some(column) = find_column(table, name) else {
            if request.ignore_unknown && request.columns.is_none() {
                continue;
            }
            return Err(unknown_column(table, name));
        };
        if planned.iter().any(|it: &PlannedColumn| it.name == column.name) {
            let message = format!("column \"{}\" is named more than once", column.name);
            return Err(Error::new(ErrorKind::Plan, message));
        }
        planned.push(PlannedColumn {
            name: column.name.clone(),
            ty: column.ty.clone(),
            field,
            route: choose_route(column, field, session, input)?,
            force_null: false,
            force_not_null: false,
        });
    }
    if planned.is_empty() {
        let message = format!("no field of the input is a column of \"{}\"", table.name);
        return Err(Error::new(ErrorKind::Plan, message));
    }
    for name in &request.force_null {
        find_forced_column(("FORCE_NULL", "--force-null"), name, table, input, &mut planned)?
            .force_null = true;
    }
    for name in &request.force_not_null {
        let option = ("FORCE_NOT_NULL", "--force-not-null");
        find_forced_column(option, name, table, input, &mut planned)?.force_not_null = true;
    }
    Ok(planned)
}

/// Returns the planned column that `--force-null` or `--force-not-null` names. The first argument
/// is the option's name in COPY and as a flag.
fn find_forced_column<'a>(
    (option, flag): (&str, &str),
    name: &str,
    table: &TargetTable,
    input: &InputFacts,
    planned: &'a mut [PlannedColumn],
) -> Result<&'a mut PlannedColumn> {
    if !input.is_csv {
        let message = format!("COPY {option} requires CSV mode");
        return Err(Error::new(ErrorKind::Usage, message)
            .hint(format!("Leave `{flag}` out: the format says itself what is NULL.")));
    }
    let column = find_column(table, name).ok_or_else(|| unknown_column(table, name))?;
    planned.iter_mut().find(|planned| planned.name == column.name).ok_or_else(|| {
        let message = format!("{option} column \"{}\" not referenced by COPY", column.name);
        Error::new(ErrorKind::Usage, message)
            .with_sqlstate(tokio_postgres::error::SqlState::INVALID_COLUMN_REFERENCE)
            .hint(format!("Leave it out of `{flag}`: the input does not have it."))
    })
}

/// Returns the column name for each field, in the order of the fields.
fn target_names(
    table: &TargetTable,
    input: &InputFacts,
    request: &RowRequest,
) -> Result<Vec<String>> {
    if let Some(columns) = &request.columns {
        let fields = input.types.as_ref().map_or(columns.len(), Vec::len);
        if fields != columns.len() {
            let message =
                format!("the input has {fields} fields but --columns names {}", columns.len());
            return Err(Error::new(ErrorKind::Usage, message));
        }
        return Ok(columns.clone());
    }
    if let Some(names) = &input.names {
        return Ok(names.clone());
    }
    let writable = table.columns.iter().filter(|column| !column.is_generated);
    let names: Vec<String> = writable.map(|column| column.name.clone()).collect();
    match input.types.as_ref().map_or(0, Vec::len) {
        // An input without columns has no rows, and fits every table.
        0 => Ok(names),
        fields if fields == names.len() => Ok(names),
        fields => {
            let (table, columns) = (&table.name, names.len());
            let message =
                format!("the input has {fields} fields, but \"{table}\" {columns} columns");
            Err(Error::new(ErrorKind::Usage, message)
                .hint("Name the columns for the input's fields with `--columns a,b,...`."))
        }
    }
}

/// Finds a column by its exact name. Otherwise ignores case if only one column matches.
fn find_column<'a>(table: &'a TargetTable, name: &str) -> Option<&'a TargetColumn> {
    let exact = table.columns.iter().find(|column| column.name == name);
    exact.or_else(|| {
        let folded = name.trim().to_lowercase();
        let mut alike = table.columns.iter().filter(|it| it.name.to_lowercase() == folded);
        alike.next().filter(|_| alike.next().is_none())
    })
}

/// Returns the error for a name that is no column of the table.
fn unknown_column(table: &TargetTable, name: &str) -> Error {
    let message = format!("column \"{name}\" of relation \"{}\" does not exist", table.name);
    let names = table.columns.iter().map(|column| column.name.as_str());
    let hint = match nearest(name, names) {
        Some(near) => format!("Did you mean column \"{near}\"? "),
        None => String::new(),
    };
    let hint = format!(
        "{hint}Name the columns for the input's fields with `--columns a,b,...`, or skip fields \
         without a column with `--ignore-unknown`."
    );
    Error::new(ErrorKind::Plan, message)
        .with_sqlstate(tokio_postgres::error::SqlState::UNDEFINED_COLUMN)
        .hint(hint)
}

/// Chooses how the values of a column are written.
fn choose_route(
    column: &TargetColumn,
    field: usize,
    session: &SessionSettings,
    input: &InputFacts,
) -> Result<ColumnRoute> {
    let Some(types) = &input.types else {
        if !session.array_nulls && matches!(column.ty.base().kind, TypeKind::Array(..)) {
            return Ok(ColumnRoute::Text(
                "array_nulls is off, as only the server knows".to_owned(),
            ));
        }
        return Ok(match FieldEncoder::new(&column.ty, session) {
            Ok(encoder) => ColumnRoute::Field(encoder),
            Err(reason) => ColumnRoute::Text(reason),
        });
    };
    let nothing = Field::new("", DataType::Null, true);
    let source = types.get(field).unwrap_or(&nothing);
    match ColumnEncoder::new(source, &column.ty, session) {
        Ok(encoder) => Ok(ColumnRoute::Batch(encoder)),
        Err(reason) => {
            let message = format!(
                "cannot turn column \"{}\" of the input into type {} of column \"{}\": {reason}",
                source.name(),
                column.ty.name,
                column.name
            );
            Err(Error::new(ErrorKind::Type, message))
        }
    }
}

/// A table column that the input does not have.
#[derive(Debug, Clone, serde::Serialize)]
pub struct OmittedColumn {
    /// Its name, unquoted.
    pub name: String,
    /// The default expression, or words such as "null".
    pub becomes: String,
}

/// Returns the columns that the input lacks, and the values that they get.
pub(super) fn omitted_columns(
    table: &TargetTable,
    written: &[PlannedColumn],
) -> Vec<OmittedColumn> {
    let left_out = table.columns.iter().filter(|column| {
        !column.is_generated && !written.iter().any(|planned| planned.name == column.name)
    });
    let becomes = |column: &TargetColumn| match &column.default {
        Some(default) => default.clone(),
        None if column.is_identity => "its identity sequence".to_owned(),
        None => "null".to_owned(),
    };
    left_out
        .map(|column| OmittedColumn { name: column.name.clone(), becomes: becomes(column) })
        .collect()
}

/// Matches the header of a further input with the header of the first. Returns the field for each
/// expected name, as the order may differ.
///
/// # Errors
/// [`ErrorKind::Format`] when the headers do not name the same fields.
pub fn match_fields(expected: &[String], found: &[String]) -> Result<Vec<usize>> {
    // Match exactly, or without case if only one name matches. Columns are found in the same way.
    let position = |name: &String| {
        let exact = found.iter().position(|other| other == name);
        exact.or_else(|| {
            let folded = name.trim().to_lowercase();
            let is_alike = |other: &&String| other.trim().to_lowercase() == folded;
            let is_only = found.iter().filter(is_alike).count() == 1;
            let alike = found.iter().position(|other| is_alike(&other));
            alike.filter(|at| is_only && !expected.contains(&found[*at]))
        })
    };
    let fields: Option<Vec<usize>> = expected.iter().map(position).collect();
    match fields {
        Some(fields) if found.len() == expected.len() => Ok(fields),
        _ => {
            let missing = expected.iter().find(|name| !found.contains(name));
            let extra = found.iter().find(|name| !expected.contains(name));
            let detail = match (missing, extra) {
                (Some(missing), _) => format!("it lacks \"{missing}\""),
                (None, Some(extra)) => format!("it has \"{extra}\" as well"),
                (None, None) => "a name stands in it twice".to_owned(),
            };
            let message = format!("its header differs from that of the first input: {detail}");
            Err(Error::new(ErrorKind::Format, message)
                .hint("Load inputs with different columns one after the other."))
        }
    }
}

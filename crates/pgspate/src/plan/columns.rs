//! Plans which input field goes to which column, and which encoder writes the column's values.

use std::sync::Arc;

use arrow_schema::{DataType, Field};

use super::{InputFacts, RowRequest, constants};
use crate::encode::arrow::{self, ColumnEncoder};
use crate::encode::date_format::DateFormat;
use crate::encode::field::FieldEncoder;
use crate::format::constants::ConstantColumn;
use crate::format::guessed_type::GuessedType;
use crate::format::infer::snake_case;
use crate::numbers::counted;
use crate::{Error, ErrorKind, Result, did_you_mean};
use pgspate_base::{is_alike, truncate_ident};
use pgspate_target::{PgType, SessionSettings, TargetColumn, TargetTable, TypeKind};

/// A column that the load writes.
#[derive(Debug, Clone)]
pub struct PlannedColumn {
    /// The column's name, unquoted.
    pub name: String,
    /// The column's type.
    pub ty: PgType,
    /// The position of the column's field in an input record, from 0. No meaning for a constant.
    pub field: usize,
    /// How the column's values are written.
    pub route: ColumnRoute,
    /// The format of the column's dates, if it is not ISO.
    pub date_format: Option<Arc<DateFormat>>,
    /// The column's type, if this run has guessed it from the input's first rows.
    pub guessed_type: Option<GuessedType>,
    /// Whether a quoted NULL string means NULL, as with COPY's `force_null`.
    pub force_null: bool,
    /// Whether an unquoted NULL string is a value, as with COPY's `force_not_null`.
    pub force_not_null: bool,
}

/// How a column's values are written.
#[derive(Debug, Clone)]
pub enum ColumnRoute {
    /// Text fields, encoded in binary.
    Field(FieldEncoder),
    /// An Arrow column of record batches, encoded in binary.
    Batch(ColumnEncoder),
    /// Text that the server parses, with the reason against binary.
    Text(String),
    /// A value that is not in the records.
    Constant(ConstantColumn),
}

impl PlannedColumn {
    /// Returns the reason why the values are written as text; `None` if they are binary.
    pub(super) fn text_reason(&self) -> Option<&str> {
        match &self.route {
            ColumnRoute::Text(reason) => Some(reason),
            ColumnRoute::Batch(encoder) => match encoder.route() {
                arrow::ValueRoute::Server(reason) => Some(reason),
                _ => None,
            },
            ColumnRoute::Constant(constant) if !constant.is_binary() => {
                Some("only the server can read the value that all rows get")
            }
            ColumnRoute::Field(_) | ColumnRoute::Constant(_) => None,
        }
    }

    /// Returns the value that is not in the records, if the column has such a value.
    pub(crate) fn constant(&self) -> Option<&ConstantColumn> {
        match &self.route {
            ColumnRoute::Constant(constant) => Some(constant),
            _ => None,
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

/// Plans the written columns, in the order of the input's fields. COPY's column list has the same
/// order.
pub(super) fn plan_columns(
    table: &TargetTable,
    session: &SessionSettings,
    input: &InputFacts,
    request: &RowRequest,
) -> Result<Vec<PlannedColumn>> {
    let names = target_names(table, input, request)?;
    let chosen = request.columns.as_ref().filter(|_| columns_are_fields(input, request));
    let mut planned = Vec::with_capacity(names.len());
    for (field, name) in names.iter().enumerate() {
        if chosen.is_some_and(|chosen| !chosen.contains(name)) {
            continue;
        }
        let is_exact = table.columns.iter().any(|column| column.name == truncate_ident(name));
        let mut others = names.iter().filter(|other| !is_exact && *other != name);
        let other = others.find(|other| is_alike(other, name));
        let skips_field = request.ignore_unknown && request.columns.is_none() && other.is_none();
        let Some(column) = find_column(table, name).filter(|_| other.is_none()) else {
            if skips_field {
                continue;
            }
            return Err(match other {
                Some(other) => ambiguous_column(table, name, other),
                None => unknown_column(table, name),
            });
        };
        if column.is_generated {
            if skips_field {
                continue;
            }
            return Err(generated_column(&column.name));
        }
        if planned.iter().any(|it: &PlannedColumn| it.name == column.name) {
            let message = format!("column \"{}\" is named more than once", column.name);
            return Err(Error::new(ErrorKind::Plan, message));
        }
        let is_guessed = request.guessed_columns.contains(&column.name);
        planned.push(PlannedColumn {
            name: column.name.clone(),
            ty: column.ty.clone(),
            field,
            route: choose_route(column, field, session, input)?,
            date_format: None,
            guessed_type: GuessedType::of(&column.ty.name).filter(|_| is_guessed),
            force_null: false,
            force_not_null: false,
        });
    }
    if planned.is_empty() {
        let is_empty = input.types.as_ref().is_some_and(Vec::is_empty);
        let message = match &input.names {
            _ if !is_empty => format!("no field of the input is a column of \"{}\"", table.name),
            Some(_) => "the input has no columns".to_owned(),
            None => "the input has no rows that show its columns".to_owned(),
        };
        let hint = "`--ignore-unknown` skips fields whose name is no column. Name the columns for \
                    the input's fields with `--columns a,b,...`.";
        let hint = (!is_empty && request.ignore_unknown).then_some(hint);
        return Err(Error::new(ErrorKind::Plan, message).hint_if(hint));
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

/// Returns the planned column with the `name` that the user gave to `--force-null` or
/// `--force-not-null`. The first argument is the option's name in COPY, and the flag.
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
            .hint(format!("Leave `{flag}` out: this format has its own marks for NULL.")));
    }
    let column = find_column(table, name).ok_or_else(|| unknown_column(table, name))?;
    planned.iter_mut().find(|planned| planned.name == column.name).ok_or_else(|| {
        let message = format!("{option} column \"{}\" not referenced by COPY", column.name);
        Error::new(ErrorKind::Usage, message)
            .with_sqlstate(tokio_postgres::error::SqlState::INVALID_COLUMN_REFERENCE)
            .hint(format!("Leave it out of `{flag}`: the input does not have it."))
    })
}

/// Returns whether `--columns` chooses fields of an input with a schema by their names.
fn columns_are_fields(input: &InputFacts, request: &RowRequest) -> bool {
    let (Some(columns), Some(names)) = (&request.columns, &input.names) else { return false };
    input.types.is_some() && are_fields(columns, names)
}

/// Returns whether each of the columns of `--columns` is the name of one field. The fields of an
/// input with a schema go by their names then, and by their order otherwise.
pub(crate) fn are_fields(columns: &[String], names: &[String]) -> bool {
    columns.iter().all(|column| names.iter().filter(|name| *name == column).count() == 1)
}

/// Returns the column name for each field, in the order of the fields.
fn target_names(
    table: &TargetTable,
    input: &InputFacts,
    request: &RowRequest,
) -> Result<Vec<String>> {
    let by_position = request.columns.as_ref().filter(|_| !columns_are_fields(input, request));
    if let Some(columns) = by_position {
        let fields = input.types.as_ref().map_or(columns.len(), Vec::len);
        if fields != columns.len() {
            let message = format!(
                "the input has {}, but `--columns` names {}",
                counted(fields as u64, "field"),
                counted(columns.len() as u64, "column")
            );
            let hint = "If all of them are names of fields, the other fields are not loaded.";
            return Err(Error::new(ErrorKind::Usage, message)
                .hint_if(input.types.is_some().then_some(hint)));
        }
        return Ok(columns.clone());
    }
    if let Some(names) = &input.names {
        return Ok(names.clone());
    }
    let has_constant = |name: &str| {
        let mut constants = constants::constant_names(request);
        constants.any(|it| find_column(table, it).is_some_and(|column| column.name == name))
    };
    let writable = table.columns.iter().filter(|it| !it.is_generated && !has_constant(&it.name));
    let names: Vec<String> = writable.map(|column| column.name.clone()).collect();
    match input.types.as_ref().map_or(0, Vec::len) {
        // An input without columns has no rows, so the input fits every table.
        0 => Ok(names),
        fields if fields == names.len() => Ok(names),
        fields => {
            let fields = counted(fields as u64, "field");
            let columns = counted(names.len() as u64, "column");
            let message = format!("the input has {fields}, but \"{}\" has {columns}", table.name);
            Err(Error::new(ErrorKind::Usage, message)
                .hint("Name the columns for the input's fields with `--columns a,b,...`."))
        }
    }
}

/// Finds a column by its exact name, of which the server keeps 63 bytes. If there is none, ignores
/// case; then only one column may match.
pub(super) fn find_column<'a>(table: &'a TargetTable, name: &str) -> Option<&'a TargetColumn> {
    let exact = table.columns.iter().find(|column| column.name == truncate_ident(name));
    exact.or_else(|| {
        let mut matching = table.columns.iter().filter(|it| is_alike(&it.name, name));
        matching.next().filter(|_| matching.next().is_none())
    })
}

/// Returns the error for a name of the input that matches no column exactly, while another name of
/// the input differs from it in case only. Ignoring case, both could mean the same column.
fn ambiguous_column(table: &TargetTable, name: &str, other: &str) -> Error {
    let message = format!(
        "field \"{name}\" matches no column of \"{}\" exactly, and field \"{other}\" differs from \
         it in case only",
        table.name
    );
    Error::new(ErrorKind::Plan, message)
        .with_sqlstate(tokio_postgres::error::SqlState::AMBIGUOUS_COLUMN)
        .hint("Name the columns for the input's fields with `--columns a,b,...`.")
}

/// Returns the error for a name that no column of the table has.
fn unknown_column(table: &TargetTable, name: &str) -> Error {
    let message = format!("column \"{name}\" of relation \"{}\" does not exist", table.name);
    let names = table.columns.iter().map(|column| column.name.as_str());
    let snake = snake_case(name);
    let hint = match table.columns.iter().any(|column| column.name == snake) {
        true => Some(format!("`--snake-case` reads this name as \"{snake}\".")),
        false => did_you_mean("column", name, names),
    };
    Error::new(ErrorKind::Plan, message)
        .with_sqlstate(tokio_postgres::error::SqlState::UNDEFINED_COLUMN)
        .hint_if(hint)
        .hint_also(
            "Name the columns for the input's fields with `--columns a,b,...`, skip fields \
             without a column with `--ignore-unknown`, or add columns with `--add-columns`.",
        )
}

fn generated_column(name: &str) -> Error {
    Error::new(ErrorKind::Plan, format!("column \"{name}\" is a generated column"))
        .with_sqlstate(tokio_postgres::error::SqlState::INVALID_COLUMN_REFERENCE)
        .hint("The server computes it. Skip its field with `--ignore-unknown`.")
}

/// Returns the encoder for texts of a column, or the reason why the server must parse them.
pub(super) fn text_encoder(
    column: &TargetColumn,
    session: &SessionSettings,
) -> std::result::Result<FieldEncoder, String> {
    if !session.array_nulls && matches!(column.ty.base().kind, TypeKind::Array(..)) {
        return Err("array_nulls is off, and only the server parses NULL in arrays then".to_owned());
    }
    FieldEncoder::new(&column.ty, session)
}

/// Chooses how the values of a column are written.
fn choose_route(
    column: &TargetColumn,
    field: usize,
    session: &SessionSettings,
    input: &InputFacts,
) -> Result<ColumnRoute> {
    let Some(types) = &input.types else {
        return Ok(match text_encoder(column, session) {
            Ok(encoder) => ColumnRoute::Field(encoder),
            Err(reason) => ColumnRoute::Text(reason),
        });
    };
    let null_field = Field::new("", DataType::Null, true);
    let source = types.get(field).unwrap_or(&null_field);
    Ok(ColumnRoute::Batch(batch_encoder(source, &column.name, &column.ty, session)?))
}

/// Returns the encoder of an Arrow column for the table's column `name`.
///
/// # Errors
/// [`ErrorKind::Type`] if the values cannot be converted.
pub(crate) fn batch_encoder(
    source: &Field,
    name: &str,
    ty: &PgType,
    session: &SessionSettings,
) -> Result<ColumnEncoder> {
    ColumnEncoder::new(source, ty, session).map_err(|reason| {
        let message = format!(
            "cannot convert column \"{}\" of the input to type {} of column \"{name}\": {reason}",
            source.name(),
            ty.name,
        );
        Error::new(ErrorKind::Type, message)
    })
}

/// A table column that the input does not have.
#[derive(Debug, Clone, serde::Serialize)]
pub struct OmittedColumn {
    /// The column's name, unquoted.
    pub name: String,
    /// The value that the column gets: its default expression, or words such as "null".
    pub becomes: String,
}

/// Returns the columns that the input lacks, with the values that the columns get.
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

/// Finds the names of the first input's header, `expected`, in another input's header, `found`.
/// Returns the position in `found` for each expected name.
///
/// # Errors
/// [`ErrorKind::Format`] if the headers do not have the same names.
pub fn match_fields(expected: &[String], found: &[String]) -> Result<Vec<usize>> {
    // A name matches exactly, or without case if only one name matches, as in `find_column`.
    let position = |name: &String| {
        let exact = found.iter().position(|other| other == name);
        exact.or_else(|| {
            let is_only = found.iter().filter(|other| is_alike(other, name)).count() == 1;
            let alike = found.iter().position(|other| is_alike(other, name));
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
                (Some(missing), _) => format!("field \"{missing}\" is missing"),
                (None, Some(extra)) => format!("field \"{extra}\" is not in the first input"),
                (None, None) => "a name occurs more than once".to_owned(),
            };
            let message =
                format!("the header differs from the header of the first input: {detail}");
            let hint = match other_delimiter(expected, found) {
                Some(delimiter) => format!(
                    "The line is delimited by \"{delimiter}\", other than the first input. Load \
                     such inputs apart from the others."
                ),
                None => "Load inputs with different columns one after the other.".to_owned(),
            };
            Err(Error::new(ErrorKind::Format, message).hint(hint))
        }
    }
}

/// Returns the delimiter of a header that is one field, if it has the expected number of names.
fn other_delimiter(expected: &[String], found: &[String]) -> Option<char> {
    let [line] = found else { return None };
    let fits = |it: &char| expected.len() > 1 && line.split(*it).count() == expected.len();
    [',', ';', '\t', '|'].into_iter().find(fits)
}

//! Plans which columns have dates in a format of `--date-format`.

use std::sync::Arc;

use super::columns::{ColumnRoute, PlannedColumn, find_column};
use super::{InputFacts, RowRequest};
use crate::encode::date_format::DateFormats;
use crate::{Error, ErrorKind, Result, did_you_mean};
use pgspate_base::is_alike;
use pgspate_target::TargetTable;
use tokio_postgres::error::SqlState;

/// The oids of date, timestamp and timestamptz.
const DATES: [u32; 3] = [1082, 1114, 1184];

/// Gives each column of dates its format.
///
/// # Errors
/// [`ErrorKind::Usage`] if the input is not text, if a format is given twice, or if a named column
/// is not in the input or has no dates.
pub(super) fn plan_date_formats(
    table: &TargetTable,
    input: &InputFacts,
    request: &RowRequest,
    planned: &mut [PlannedColumn],
) -> Result<()> {
    let DateFormats(formats) = &request.date_formats;
    if formats.is_empty() {
        return Ok(());
    }
    if input.types.is_some() {
        let message = "`--date-format` does not apply to this format, which has types";
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Leave it out. Convert columns of strings with the library that made them."));
    }
    for (at, (name, _)) in formats.iter().enumerate() {
        if formats[..at].iter().any(|(other, _)| other == name) {
            let whose =
                name.as_ref().map_or("all columns".to_owned(), |it| format!("column \"{it}\""));
            let message = format!("`--date-format` is given twice for {whose}");
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("Give a format for each column: `--date-format COLUMN=FORMAT`."));
        }
        if let Some(name) = name {
            check_named(table, name, planned)?;
        }
    }
    for column in planned.iter_mut().filter(|it| has_dates(it)) {
        let is_named = |name: &str| {
            find_column(table, name).is_some_and(|it| it.name == column.name)
                || is_alike(name, &column.name)
        };
        let Some((format, _)) = request.date_formats.find(is_named) else { continue };
        column.date_format = Some(Arc::clone(format));
        column.guessed_type = None;
        if let ColumnRoute::Field(encoder) = &column.route {
            let encoder = encoder.clone().with_date_format(Arc::clone(format));
            column.route = ColumnRoute::Field(encoder);
        }
    }
    Ok(())
}

/// Checks that the user names a column of the input that has dates.
fn check_named(table: &TargetTable, name: &str, planned: &[PlannedColumn]) -> Result<()> {
    let column = find_column(table, name);
    let column = column.and_then(|column| planned.iter().find(|it| it.name == column.name));
    match column {
        Some(column) if has_dates(column) => Ok(()),
        Some(column) => {
            let message = format!(
                "column \"{}\", which `--date-format` names, is of type {}, not date, timestamp or \
                 timestamptz",
                column.name, column.ty.name
            );
            Err(Error::new(ErrorKind::Usage, message))
        }
        None => {
            let message =
                format!("the input has no column \"{name}\", which `--date-format` names");
            let names = planned.iter().map(|column| column.name.as_str());
            Err(Error::new(ErrorKind::Usage, message).hint_if(did_you_mean("column", name, names)))
        }
    }
}

/// Adds a hint to the server's error about a date such as `31/12/2026`: about `--date-format`,
/// unless the input has types.
pub(crate) fn hint_date_format(
    error: Error,
    columns: &[PlannedColumn],
    input: &InputFacts,
) -> Error {
    const INVALID: [SqlState; 2] =
        [SqlState::INVALID_DATETIME_FORMAT, SqlState::DATETIME_FIELD_OVERFLOW];
    let is_invalid =
        error.refusal().is_some() && error.sqlstate().is_some_and(|code| INVALID.contains(code));
    let name = error.place().and_then(|place| place.column.as_deref());
    let is_column_of_dates = |it: &PlannedColumn| {
        Some(it.name.as_str()) == name && it.date_format.is_none() && has_dates(it)
    };
    let message = error.to_string();
    let value = message.split_once(": \"").map_or("", |(_, value)| value);
    // ISO dates begin with the year.
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let separator = value[digits..].chars().next().filter(|it| matches!(it, '.' | '/' | '-'));
    let (1 | 2, Some(by)) = (digits, separator) else { return error };
    if !is_invalid || !columns.iter().any(is_column_of_dates) {
        return error;
    }
    match input.types {
        None => error.hint_also(&format!(
            "`--date-format %d{by}%m{by}%Y` reads dates such as 31{by}12{by}2026."
        )),
        Some(_) => error.hint_also("Convert such texts to dates, or to texts such as 2026-12-31."),
    }
}

fn has_dates(column: &PlannedColumn) -> bool {
    DATES.contains(&column.ty.base().oid)
}

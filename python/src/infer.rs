//! The types of a table's columns that are made for Python's rows.
//!
//! From the first rows alone. A later value that does not fit has the column widened by the engine,
//! or is refused by the server.

use pyo3::prelude::*;

use crate::classes::{Class, Classes};
use crate::spell::Speller;

/// Type of each column, from some of its values.
pub(crate) fn infer(
    py: Python<'_>,
    speller: &mut Speller,
    columns: &[Vec<Bound<'_, PyAny>>],
) -> PyResult<Vec<String>> {
    columns.iter().map(|values| column(py, &mut speller.classes, values, false)).collect()
}

/// The type that holds all of some values. `in_list`: they are the elements of a list.
fn column(
    py: Python<'_>,
    classes: &mut Classes,
    values: &[Bound<'_, PyAny>],
    in_list: bool,
) -> PyResult<String> {
    let mut ty: Option<String> = None;
    for value in values {
        let Some(found) = of_value(py, classes, value, in_list)? else { continue };
        ty = Some(match ty {
            None => found,
            Some(before) => wider(before, found),
        });
    }
    Ok(ty.unwrap_or_else(|| "text".to_owned()))
}

fn of_value(
    py: Python<'_>,
    classes: &mut Classes,
    value: &Bound<'_, PyAny>,
    in_list: bool,
) -> PyResult<Option<String>> {
    if value.is_none() {
        return Ok(None);
    }
    let has_zone = || PyResult::Ok(!value.getattr("tzinfo")?.is_none());
    let name = match classes.of(value)? {
        Class::Null => return Ok(None),
        Class::Bool => "boolean",
        Class::Int if value.extract::<i64>().is_err() => "numeric",
        Class::Int => "bigint",
        Class::Float => "double precision",
        Class::Decimal => "numeric",
        Class::Bytes => "bytea",
        Class::Datetime | Class::Moment if has_zone()? => "timestamptz",
        Class::Datetime | Class::Moment | Class::NumpyDatetime => "timestamp",
        Class::Date => "date",
        Class::Time if has_zone()? => "timetz",
        Class::Time => "time",
        Class::Timedelta | Class::NumpyTimedelta => "interval",
        Class::Uuid => "uuid",
        Class::Address => "inet",
        Class::Dict | Class::Json => "jsonb",
        Class::EnumValue => return of_value(py, classes, &value.getattr("value")?, in_list),
        class @ (Class::Numpy | Class::NumpyArray) => match Classes::plain(class, value)? {
            Some(plain) => return of_value(py, classes, &plain, in_list),
            // Refused when it is loaded.
            None => "text",
        },
        // A list of lists need not be a box, and a PostgreSQL array must be one. What is in the
        // inner one does not matter then, and it may be the outer one again.
        Class::List if in_list => "jsonb",
        Class::List => {
            let items: PyResult<Vec<_>> = value.try_iter()?.collect();
            let element = column(py, classes, &items?, true)?;
            let is_scalar = element != "jsonb";
            return Ok(Some(if is_scalar { element + "[]" } else { element }));
        }
        Class::Str | Class::EnumName | Class::Unknown => "text",
    };
    Ok(Some(name.to_owned()))
}

/// A type that holds the values of both.
fn wider(before: String, found: String) -> String {
    let numbers = ["bigint", "double precision", "numeric"];
    let rank = |ty: &str| numbers.iter().position(|number| *number == ty);
    match (rank(&before), rank(&found)) {
        _ if before == found => before,
        (Some(a), Some(b)) => numbers[a.max(b)].to_owned(),
        _ if matches!((before.as_str(), found.as_str()), ("date", "timestamp")) => found,
        _ if matches!((before.as_str(), found.as_str()), ("timestamp", "date")) => before,
        _ if before.ends_with("[]") && found.ends_with("[]") => {
            let strip = |ty: &str| ty.trim_end_matches("[]").to_owned();
            wider(strip(&before), strip(&found)) + "[]"
        }
        _ if [&before, &found].iter().all(|ty| ty.ends_with("[]") || *ty == "jsonb") => {
            "jsonb".to_owned()
        }
        _ => "text".to_owned(),
    }
}

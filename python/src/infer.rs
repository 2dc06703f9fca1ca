//! Chooses column types for a table that is created for Python's rows.
//!
//! The types are chosen from the values of the first rows. If a later value would lose content in
//! its column, the engine widens the column, or refuses the value.

use pyo3::prelude::*;

use crate::classes::{ClassCache, ValueClass};
use crate::value_text::ValueTextWriter;

/// The type of a list without values, which an array of any type can store.
const ANY_ARRAY: &str = "[]";
/// `bigint` with values of more than 15 digits, which a double does not store exactly.
const LONG_BIGINT: &str = "long bigint";
/// The least number of 16 digits.
const LONG_MIN: u64 = 1_000_000_000_000_000;

/// Returns a type for each column, from some of its values.
pub(crate) fn infer_column_types(
    py: Python<'_>,
    text_writer: &mut ValueTextWriter,
    columns: &[Vec<Bound<'_, PyAny>>],
) -> PyResult<Vec<String>> {
    let classes = &mut text_writer.classes;
    columns.iter().map(|values| type_of_values(py, classes, values, false)).collect()
}

/// Returns a type that can store all of `values`. `in_list` means that they are items of a list.
fn type_of_values(
    py: Python<'_>,
    classes: &mut ClassCache,
    values: &[Bound<'_, PyAny>],
    in_list: bool,
) -> PyResult<String> {
    let mut ty: Option<String> = None;
    for value in values {
        let Some(found) = type_of_value(py, classes, value, in_list)? else { continue };
        ty = Some(match ty {
            None => found,
            Some(before) => wider_type(before, found),
        });
    }
    Ok(match ty {
        None => "text".to_owned(),
        Some(ty) if ty == ANY_ARRAY => "text[]".to_owned(),
        Some(ty) if ty == LONG_BIGINT => "bigint".to_owned(),
        Some(ty) => ty,
    })
}

/// Returns a type that can store a value. Returns `None` for NULL, which every type can store.
fn type_of_value(
    py: Python<'_>,
    classes: &mut ClassCache,
    value: &Bound<'_, PyAny>,
    in_list: bool,
) -> PyResult<Option<String>> {
    if value.is_none() {
        return Ok(None);
    }
    let has_zone = || PyResult::Ok(!value.getattr("tzinfo")?.is_none());
    let name = match classes.class_of(value)? {
        ValueClass::Null => return Ok(None),
        ValueClass::Bool => "boolean",
        ValueClass::Int => match value.extract::<i64>() {
            Ok(value) if value.unsigned_abs() < LONG_MIN => "bigint",
            Ok(_) => LONG_BIGINT,
            Err(_) => "numeric",
        },
        ValueClass::Float => "double precision",
        ValueClass::Decimal => "numeric",
        ValueClass::Bytes => "bytea",
        ValueClass::Datetime | ValueClass::DatetimeSubclass if has_zone()? => "timestamptz",
        ValueClass::Datetime | ValueClass::DatetimeSubclass | ValueClass::NumpyDatetime => {
            "timestamp"
        }
        ValueClass::Date => "date",
        ValueClass::Time if has_zone()? => "timetz",
        ValueClass::Time => "time",
        ValueClass::Timedelta | ValueClass::NumpyTimedelta => "interval",
        ValueClass::Uuid => "uuid",
        ValueClass::Address => "inet",
        ValueClass::Dict | ValueClass::Json => "jsonb",
        ValueClass::EnumValue => {
            return type_of_value(py, classes, &value.getattr("value")?, in_list);
        }
        class @ (ValueClass::Numpy | ValueClass::NumpyArray) => {
            match ClassCache::from_numpy(class, value)? {
                Some(plain) => return type_of_value(py, classes, &plain, in_list),
                // The value is rejected when it is loaded.
                None => "text",
            }
        }
        // The inner arrays of a PostgreSQL array must have equal lengths; Python's inner lists need
        // not. So a list of lists becomes jsonb. The inner lists are not read, because a list may
        // contain itself.
        ValueClass::List if in_list => "jsonb",
        ValueClass::List => {
            let items = value.try_iter()?.collect::<PyResult<Vec<_>>>()?;
            if items.iter().all(|item| item.is_none()) {
                return Ok(Some(ANY_ARRAY.to_owned()));
            }
            let element = type_of_values(py, classes, &items, true)?;
            let is_scalar = element != "jsonb";
            return Ok(Some(if is_scalar { element + "[]" } else { element }));
        }
        ValueClass::Str
        | ValueClass::EnumName
        | ValueClass::Range
        | ValueClass::Multirange
        | ValueClass::Unknown => "text",
    };
    Ok(Some(name.to_owned()))
}

fn is_array_or_json(ty: &str) -> bool {
    ty.ends_with("[]") || ty == "jsonb"
}

/// Returns a type that can store the values of both types.
fn wider_type(before: String, found: String) -> String {
    let numbers = ["bigint", LONG_BIGINT, "double precision", "numeric"];
    let rank = |ty: &str| numbers.iter().position(|number| *number == ty);
    match (rank(&before), rank(&found)) {
        _ if before == found => before,
        _ if before == ANY_ARRAY && is_array_or_json(&found) => found,
        _ if found == ANY_ARRAY && is_array_or_json(&before) => before,
        // Only `numeric` stores both a long integer and a double.
        (Some(1), Some(2)) | (Some(2), Some(1)) => "numeric".to_owned(),
        (Some(a), Some(b)) => numbers[a.max(b)].to_owned(),
        _ if matches!((before.as_str(), found.as_str()), ("date", "timestamp")) => found,
        _ if matches!((before.as_str(), found.as_str()), ("timestamp", "date")) => before,
        _ if before.ends_with("[]") && found.ends_with("[]") => {
            let strip = |ty: &str| ty.trim_end_matches("[]").to_owned();
            wider_type(strip(&before), strip(&found)) + "[]"
        }
        _ if is_array_or_json(&before) && is_array_or_json(&found) => "jsonb".to_owned(),
        _ => "text".to_owned(),
    }
}

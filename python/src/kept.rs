//! Checks that a column's guessed type keeps the content of Python's values.

use pgspate::encode::arrow::write_float8;
use pgspate::format::guessed_type::GuessedType;
use pgspate::format::infer::ColumnType;
use pyo3::intern;
use pyo3::prelude::*;

use crate::classes::{ClassCache, ValueClass};
use crate::rows::RowFault;
use crate::value_text::{TextTarget, ValueTextWriter, long_int_text, text_of_str};

/// Checks that a guessed type keeps a value. Classes that have no text are left to the writer.
///
/// # Errors
/// An error with the value, for which the engine makes the column wider.
pub(crate) fn check_is_kept(
    guessed: GuessedType,
    value: &Bound<'_, PyAny>,
    class: ValueClass,
    text_writer: &mut ValueTextWriter,
) -> Result<(), RowFault> {
    use ColumnType::{Bigint, Date, Double, Jsonb, Timestamp, Timestamptz, Uuid};
    let py = value.py();
    let ty = guessed.column_type();
    match (class, ty) {
        (ValueClass::Int, Some(Bigint)) if value.extract::<i64>().is_ok() => return Ok(()),
        (ValueClass::Null, _)
        | (_, Some(Jsonb))
        | (ValueClass::Float, Some(Double))
        | (ValueClass::Date, Some(Date))
        | (ValueClass::Uuid, Some(Uuid)) => return Ok(()),
        // The text of an offset may have seconds, as offsets before the time zones have.
        (ValueClass::Datetime, Some(Timestamp | Timestamptz))
            if value.getattr(intern!(py, "tzinfo"))?.is_none() == (ty == Some(Timestamp)) =>
        {
            return Ok(());
        }
        _ => {}
    }
    let inner = match class {
        ValueClass::EnumValue => Some(value.getattr(intern!(py, "value"))?),
        ValueClass::EnumName => Some(value.getattr(intern!(py, "name"))?),
        ValueClass::Numpy | ValueClass::NumpyArray => ClassCache::from_numpy(class, value)?,
        _ => None,
    };
    if let Some(inner) = inner {
        let class = text_writer.classes.class_of(&inner)?;
        return check_is_kept(guessed, &inner, class, text_writer);
    }
    if let Some(element) = guessed.element()
        && class == ValueClass::List
    {
        for item in value.try_iter()? {
            let item = item?;
            let class = text_writer.classes.class_of(&item)?;
            // The lists of an array of several dimensions are of the array's type.
            let guessed = if class == ValueClass::List { guessed } else { element };
            check_is_kept(guessed, &item, class, text_writer)?;
        }
        return Ok(());
    }
    if is_class_of(value, class, guessed.own_type())? {
        return Ok(());
    }
    let Some(text) = text_of(value, class, text_writer)? else { return Ok(()) };
    match guessed.keeps(text.as_bytes()) {
        true => Ok(()),
        false => Err(RowFault::Value(guessed.error(text.as_bytes()))),
    }
}

/// Returns whether the class is that of a type whose texts are not checked.
fn is_class_of(
    value: &Bound<'_, PyAny>,
    class: ValueClass,
    own_type: Option<&str>,
) -> PyResult<bool> {
    Ok(match (own_type, class) {
        (Some("interval"), ValueClass::Timedelta | ValueClass::NumpyTimedelta)
        | (Some("bytea"), ValueClass::Bytes)
        | (Some("inet"), ValueClass::Address) => true,
        (Some("timetz"), ValueClass::Time) => !value.getattr("tzinfo")?.is_none(),
        _ => false,
    })
}

/// Returns the text of a value, which a type reads or would lose a part of. Returns `None` for
/// NULL, and for classes that only columns of certain types take.
fn text_of(
    value: &Bound<'_, PyAny>,
    class: ValueClass,
    text_writer: &mut ValueTextWriter,
) -> Result<Option<String>, RowFault> {
    let py = value.py();
    Ok(Some(match class {
        ValueClass::Float => {
            let mut text = Vec::new();
            write_float8(value.extract()?, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        }
        ValueClass::Str => text_of_str(value)?.to_owned(),
        ValueClass::Int => long_int_text(value)?,
        ValueClass::Decimal => text_writer.classes.plain_decimal(value)?.str()?.extract()?,
        ValueClass::Bool => if value.is_truthy()? { "true" } else { "false" }.to_owned(),
        ValueClass::Datetime | ValueClass::DatetimeSubclass => {
            value.call_method1(intern!(py, "isoformat"), (" ",))?.extract()?
        }
        ValueClass::Date | ValueClass::Time => {
            value.call_method0(intern!(py, "isoformat"))?.extract()?
        }
        ValueClass::NumpyDatetime => {
            let text: String = value.str()?.extract()?;
            return Ok((text != "NaT").then_some(text));
        }
        ValueClass::Uuid
        | ValueClass::Address
        | ValueClass::Timedelta
        | ValueClass::NumpyTimedelta => {
            let mut text = String::new();
            let is_value = text_writer.write_text(value, &TextTarget::Other, &mut text)?;
            return Ok(is_value.then_some(text));
        }
        _ => return Ok(None),
    }))
}

//! Writes Python's values as text for PostgreSQL's input functions.
//!
//! The column stores exactly the value. If the column would read the text as another value, the
//! value is a fault: bytes in a text column, for example. All other checks are left to the server.

use std::fmt::Write as _;

use pgspate::encode::arrow::text::write_hex;
use pgspate::encode::arrow::write_float8;
use pgspate::json::append_hstore;
use pgspate::target::{PgType, TypeKind};
use pgspate::{Error, ErrorKind};
use pyo3::exceptions::{PyRecursionError, PyTypeError, PyUnicodeEncodeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

use crate::classes::{ClassCache, ValueClass};
use crate::numpy_values::{is_narrow_float, numpy_items, timedelta_micros, widened};
use crate::rows::RowFault;
use crate::time_text::{write_datetime, write_interval, write_time, write_timedelta};

/// The most dimensions of a PostgreSQL array.
const ARRAY_DIMENSIONS_MAX: usize = 6;

/// The kind of a column's type, which decides how values are written as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TextTarget {
    /// No column: the value is not loaded.
    NoColumn,
    /// bytea.
    Bytes,
    /// json and jsonb.
    Json,
    /// date and time, which store a part of a datetime, without time zone.
    DateOrTime,
    /// timestamp without time zone.
    Timestamp,
    /// timestamp with time zone.
    Timestamptz,
    /// smallint, integer, bigint and oid.
    Integer,
    /// real and double precision.
    Float,
    /// Ranges and multiranges, with the kind of their bounds.
    Range(Box<TextTarget>),
    /// Arrays of a type, with the delimiter between elements.
    Array(Box<TextTarget>, char),
    /// The types vector and halfvec of pgvector.
    Vector,
    /// hstore.
    Hstore,
    /// text, varchar and char.
    Text,
    /// All other types.
    Other,
}

impl TextTarget {
    /// Returns the kind of a type.
    pub(crate) fn of(ty: &PgType) -> TextTarget {
        let base = ty.base();
        if let TypeKind::Array(element, delimiter) = &base.kind {
            return TextTarget::Array(Box::new(TextTarget::of(element)), char::from(*delimiter));
        }
        if let TypeKind::Range(bound) = &base.kind {
            return TextTarget::Range(Box::new(TextTarget::of(bound)));
        }
        if let Some(bound) = bound_of_range(base.oid) {
            return TextTarget::Range(Box::new(bound));
        }
        if ["vector", "halfvec"].iter().any(|name| base.name.starts_with(name)) {
            return TextTarget::Vector;
        }
        if base.is_hstore() {
            return TextTarget::Hstore;
        }
        if base.kind != TypeKind::Base {
            return TextTarget::Other;
        }
        match base.oid {
            17 => TextTarget::Bytes,
            114 | 3802 => TextTarget::Json,
            1082 | 1083 => TextTarget::DateOrTime,
            1114 => TextTarget::Timestamp,
            1184 => TextTarget::Timestamptz,
            20 | 21 | 23 | 26 => TextTarget::Integer,
            700 | 701 => TextTarget::Float,
            25 | 1042 | 1043 => TextTarget::Text,
            _ => TextTarget::Other,
        }
    }
}

/// Writes values as text, with a cache of their classes.
pub(crate) struct ValueTextWriter {
    pub(crate) classes: ClassCache,
    scratch: Vec<u8>,
}

impl ValueTextWriter {
    pub(crate) fn new(py: Python<'_>) -> PyResult<ValueTextWriter> {
        Ok(ValueTextWriter { classes: ClassCache::new(py)?, scratch: Vec::new() })
    }

    /// Appends the text of a value. Returns false and appends nothing for NULL.
    pub(crate) fn write_text(
        &mut self,
        value: &Bound<'_, PyAny>,
        to: &TextTarget,
        out: &mut String,
    ) -> Result<bool, RowFault> {
        if value.is_none() {
            return Ok(false);
        }
        let class = self.classes.class_of(value)?;
        if *to == TextTarget::Bytes && is_never_bytes(class) {
            return Err(no_bytes_fault(value)?);
        }
        match class {
            ValueClass::Null => return Ok(false),
            ValueClass::Str => out.push_str(text_of_str(value)?),
            ValueClass::Int => write_int(value, out)?,
            ValueClass::Float => self.write_float(value.extract()?, to, out),
            ValueClass::Bool => out.push_str(if value.is_truthy()? { "true" } else { "false" }),
            ValueClass::Decimal => write_decimal(&self.classes, value, to, out)?,
            ValueClass::Datetime | ValueClass::DatetimeSubclass => {
                write_datetime(&self.classes, value, to, out)?
            }
            ValueClass::Date => {
                let text = value.call_method0(intern!(value.py(), "isoformat"))?;
                out.push_str(text.cast::<PyString>().map_err(PyErr::from)?.to_str()?);
            }
            ValueClass::Time => write_time(value, out)?,
            ValueClass::Address => out.push_str(value.str()?.to_str()?),
            ValueClass::Timedelta => write_timedelta(&self.classes, value, out)?,
            ValueClass::Uuid => write_uuid(value, out)?,
            ValueClass::Bytes => write_bytes(value, to, out)?,
            ValueClass::Dict if *to == TextTarget::Json => self.write_json(value, out)?,
            ValueClass::Dict if *to == TextTarget::Hstore => self.write_hstore(value, out)?,
            ValueClass::Dict => return Err(wrong_column_fault("a dict", "json, jsonb or hstore")),
            ValueClass::List => self.write_list(value, to, out)?,
            ValueClass::EnumName => {
                let name = value.getattr(intern!(value.py(), "name"))?;
                if name.is_none() {
                    return Err(nameless_flag_fault());
                }
                return self.write_text(&name, to, out);
            }
            ValueClass::EnumValue => return self.write_text(&value.getattr("value")?, to, out),
            ValueClass::Json => push_json(value, self.classes.encode_wrapped(value), out)?,
            ValueClass::Range => self.write_range(value, to, out)?,
            ValueClass::Multirange => self.write_multirange(value, to, out)?,
            ValueClass::Numpy | ValueClass::NumpyArray => {
                return self.write_numpy(class, value, to, out);
            }
            ValueClass::NumpyDatetime => {
                let text = value.str()?;
                let text = text.to_str()?;
                if text == "NaT" {
                    return Ok(false);
                }
                out.push_str(text);
            }
            ValueClass::NumpyTimedelta => match timedelta_micros(value)? {
                None => return Ok(false),
                Some(micros) => write_interval(micros, out),
            },
            ValueClass::Unknown => return Err(unknown_class_fault(value)?),
        }
        Ok(true)
    }

    /// Writes a value of numpy. A float of less than 64 bits has the digits of 32 bits, as in Arrow
    /// data. A column of floats or integers stores its exact value. Returns false for NULL.
    fn write_numpy(
        &mut self,
        class: ValueClass,
        value: &Bound<'_, PyAny>,
        to: &TextTarget,
        out: &mut String,
    ) -> Result<bool, RowFault> {
        let keeps_width = match to {
            TextTarget::Array(element, _) => keeps_float_width(element),
            _ => keeps_float_width(to),
        };
        let is_narrow = keeps_width && is_narrow_float(value)?;
        if is_narrow && *to == TextTarget::Bytes {
            return Err(no_bytes_fault(value)?);
        }
        if is_narrow && *to == TextTarget::Json {
            return self.write_json(value, out).map(|()| true);
        }
        if is_narrow && class == ValueClass::NumpyArray {
            return self.write_text(&numpy_items(value)?, to, out);
        }
        let Some(plain) = ClassCache::from_numpy(class, value)? else {
            return Err(unknown_class_fault(value)?);
        };
        if is_narrow {
            self.write_float(widened(plain.extract()?), to, out);
            return Ok(true);
        }
        self.write_text(&plain, to, out)
    }

    /// Writes a float as PostgreSQL prints it: with the fewest digits that mean the same value. For
    /// a column of integers, writes a whole number without an exponent.
    fn write_float(&mut self, value: f64, to: &TextTarget, out: &mut String) {
        if *to == TextTarget::Integer && value.fract() == 0.0 {
            let _ = write!(out, "{value:.0}");
            return;
        }
        self.scratch.clear();
        write_float8(value, &mut self.scratch);
        out.push_str(&String::from_utf8_lossy(&self.scratch));
    }

    fn write_json(&mut self, value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
        push_json(value, self.classes.encode_json(value), out)
    }

    /// Writes a dict as its JSON would be written for hstore.
    fn write_hstore(&mut self, value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
        let (mut json, mut text) = (String::new(), Vec::new());
        self.write_json(value, &mut json)?;
        if append_hstore(json.as_bytes(), &mut text).is_err() {
            let message = "the value has a character that PostgreSQL's text cannot hold";
            return Err(RowFault::Value(Error::new(ErrorKind::Type, message)));
        }
        out.push_str(&String::from_utf8_lossy(&text));
        Ok(())
    }

    fn write_list(
        &mut self,
        value: &Bound<'_, PyAny>,
        to: &TextTarget,
        out: &mut String,
    ) -> Result<(), RowFault> {
        match to {
            TextTarget::Json | TextTarget::Vector => self.write_json(value, out),
            TextTarget::Array(element, delimiter) => {
                self.write_array(value, element, *delimiter, 1, out)
            }
            TextTarget::Range(_) => self.write_multirange(value, to, out),
            _ if self.has_ranges(value)? => self.write_multirange(value, to, out),
            _ => Err(wrong_column_fault("a list", "array, json or jsonb")),
        }
    }

    /// Writes a list as a PostgreSQL array. `depth` is the number of lists that contain each other,
    /// up to and including this list.
    fn write_array(
        &mut self,
        value: &Bound<'_, PyAny>,
        element: &TextTarget,
        delimiter: char,
        depth: usize,
        out: &mut String,
    ) -> Result<(), RowFault> {
        if depth > ARRAY_DIMENSIONS_MAX {
            let message = format!(
                "the value is a list with lists nested more than {ARRAY_DIMENSIONS_MAX} deep"
            );
            let hint = "An array has at most 6 dimensions. A column of type jsonb takes any list \
                        that does not contain itself.";
            return Err(RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint)));
        }
        out.push('{');
        let mut text = String::new();
        for (nth, item) in value.try_iter()?.enumerate() {
            let item = item?;
            if nth > 0 {
                out.push(delimiter);
            }
            text.clear();
            let class = self.classes.class_of(&item)?;
            if class == ValueClass::NumpyArray && is_array_of_scalars(&item, element)? {
                self.write_array(&numpy_items(&item)?, element, delimiter, depth + 1, out)?;
            } else if class == ValueClass::List {
                self.write_array(&item, element, delimiter, depth + 1, out)?;
            } else if self.write_text(&item, element, &mut text)? {
                write_array_element(&text, out);
            } else {
                out.push_str("NULL");
            }
        }
        out.push('}');
        Ok(())
    }
}

/// Returns the text of a `str`.
pub(crate) fn text_of_str<'a>(value: &'a Bound<'_, PyAny>) -> Result<&'a str, RowFault> {
    let text = value.cast::<PyString>().map_err(PyErr::from)?;
    text.to_str().map_err(|error| {
        if !error.is_instance_of::<PyUnicodeEncodeError>(value.py()) {
            return RowFault::Python(error);
        }
        let message = "the text has a lone surrogate, which is no character";
        let hint = "Convert the text: `text.encode(\"utf-8\", \"replace\").decode()` writes `?`.";
        RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint))
    })
}

/// Appends the JSON of a value, or returns the error of the function that should make the JSON.
fn push_json(
    value: &Bound<'_, PyAny>,
    text: PyResult<Bound<'_, PyString>>,
    out: &mut String,
) -> Result<(), RowFault> {
    let py = value.py();
    let text = text.map_err(|error| {
        let is_value_error = error.is_instance_of::<PyTypeError>(py)
            || error.is_instance_of::<PyValueError>(py)
            || error.is_instance_of::<PyRecursionError>(py);
        if !is_value_error {
            return RowFault::Python(error);
        }
        let message = format!("the value cannot be written as JSON: {}", error.value(py));
        let hint = "Give the value as JSON text, for example by `json.dumps(value, default=str)`.";
        RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint))
    })?;
    out.push_str(text.to_str()?);
    Ok(())
}

/// Writes the text of an array's element or a range's bound, in quotes if the text needs quotes.
pub(crate) fn write_array_element(text: &str, out: &mut String) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) && !text.eq_ignore_ascii_case("null") {
        return out.push_str(text);
    }
    out.push('"');
    for char in text.chars() {
        if matches!(char, '"' | '\\') {
            out.push('\\');
        }
        out.push(char);
    }
    out.push('"');
}

fn write_int(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
    match value.extract::<i64>() {
        Ok(value) => drop(write!(out, "{value}")),
        // An int outside the range of i64.
        Err(_) => out.push_str(&long_int_text(value)?),
    }
    Ok(())
}

/// Returns the digits of an int, also of a subclass that writes its text in its own way.
pub(crate) fn long_int_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let int = value.py().get_type::<PyInt>();
    int.call_method1(intern!(value.py(), "__repr__"), (value,))?.extract()
}

/// Writes a Decimal without an exponent, because not all types of numbers accept an exponent. For a
/// column of integers, omits zeros after the decimal point.
fn write_decimal(
    classes: &ClassCache,
    value: &Bound<'_, PyAny>,
    to: &TextTarget,
    out: &mut String,
) -> Result<(), RowFault> {
    if let Some(known) = classes.memory().decimal(value).filter(|_| *to != TextTarget::Integer) {
        known.write(out);
        return Ok(());
    }
    let value = classes.plain_decimal(value)?;
    let text = value.str()?;
    let text = text.to_str()?;
    if text.ends_with("NaN") {
        out.push_str("NaN");
        return Ok(());
    }
    let fixed;
    let text = if text.contains('E') {
        fixed = value.call_method1("__format__", ("f",))?.extract::<String>()?;
        fixed.as_str()
    } else {
        text
    };
    let parts = text.split_once('.').filter(|_| *to == TextTarget::Integer);
    match parts.filter(|(_, fraction)| fraction.bytes().all(|digit| digit == b'0')) {
        Some((whole, _)) => out.push_str(whole),
        None => out.push_str(text),
    }
    Ok(())
}

fn write_uuid(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
    let bits: u128 = value.getattr("int")?.extract()?;
    let part = |shift: u32, mask: u128| (bits >> shift) & mask;
    let _ = write!(
        out,
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        part(96, 0xffff_ffff),
        part(80, 0xffff),
        part(64, 0xffff),
        part(48, 0xffff),
        part(0, 0xffff_ffff_ffff)
    );
    Ok(())
}

fn write_bytes(
    value: &Bound<'_, PyAny>,
    to: &TextTarget,
    out: &mut String,
) -> Result<(), RowFault> {
    let owned;
    let bytes = match value.cast::<PyBytes>() {
        Ok(bytes) => bytes.as_bytes(),
        Err(_) => {
            owned = value
                .call_method0("__bytes__")
                .or_else(|_| value.py().get_type::<PyBytes>().call1((value,)))?;
            owned.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes()
        }
    };
    match to {
        TextTarget::Bytes => {
            let mut hex = Vec::with_capacity(2 + 2 * bytes.len());
            write_hex(bytes, &mut hex);
            out.push_str(&String::from_utf8_lossy(&hex));
            Ok(())
        }
        // Some JSON encoders return bytes.
        TextTarget::Json => match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                Ok(())
            }
            Err(_) => Err(wrong_column_fault("bytes that are not UTF-8", "bytea")),
        },
        _ => Err(wrong_column_fault("bytes", "bytea")),
    }
}

/// Returns whether an item of an array is an array of numpy whose items are the elements.
fn is_array_of_scalars(item: &Bound<'_, PyAny>, element: &TextTarget) -> PyResult<bool> {
    let dimensions: usize = item.getattr(intern!(item.py(), "ndim"))?.extract()?;
    Ok(dimensions > 0 && !matches!(element, TextTarget::Json | TextTarget::Vector))
}

/// Returns whether a number of numpy has the digits of its own width in a column.
fn keeps_float_width(to: &TextTarget) -> bool {
    !matches!(to, TextTarget::Float | TextTarget::Integer | TextTarget::Vector)
}

/// Returns the kind of the bounds of a built-in range or multirange.
fn bound_of_range(oid: u32) -> Option<TextTarget> {
    Some(match oid {
        3904 | 3926 | 4451 | 4536 => TextTarget::Integer,
        3906 | 4532 => TextTarget::Other,
        3908 | 4533 => TextTarget::Timestamp,
        3910 | 4534 => TextTarget::Timestamptz,
        3912 | 4535 => TextTarget::DateOrTime,
        _ => return None,
    })
}

/// Returns whether values of a class are no bytes, although bytea would read their text as bytes.
fn is_never_bytes(class: ValueClass) -> bool {
    use ValueClass as C;
    matches!(class, C::Bool | C::Int | C::Float | C::Decimal | C::Uuid | C::Address | C::Json)
        || matches!(class, C::Datetime | C::DatetimeSubclass | C::Date | C::Time | C::Timedelta)
        || matches!(class, C::NumpyDatetime | C::NumpyTimedelta | C::Range | C::Multirange)
}

/// Returns the fault for a value that a column of bytea does not take.
fn no_bytes_fault(value: &Bound<'_, PyAny>) -> PyResult<RowFault> {
    let class = value.get_type().fully_qualified_name()?;
    let message =
        format!("the value is of class {}, but the column is of type bytea", class.to_str()?);
    let hint = "Give bytes. `str(value).encode()` makes bytes of the value's text.";
    Ok(RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint)))
}

/// Returns the fault for flags of an enum that together have no name.
fn nameless_flag_fault() -> RowFault {
    let message = "the value is a flag of an enum, or several flags, without a name";
    let hint = "Give `flag.value`, which is a number, or a text of your own.";
    RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint))
}

/// Returns the fault for a value of an unknown class.
fn unknown_class_fault(value: &Bound<'_, PyAny>) -> PyResult<RowFault> {
    let class = value.get_type().fully_qualified_name()?;
    let class = class.to_str()?;
    let message = format!("a value of class {class} has no counterpart in PostgreSQL");
    let hint = match class.starts_with("sqlalchemy.") {
        true => "SQL expressions are not evaluated. Give the value, and None for NULL.",
        false => "Convert the value, with `str()` for example.",
    };
    Ok(RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint)))
}

/// Returns the fault for a value that its column would read as another value. Only columns of the
/// types `types` take such a value.
pub(crate) fn wrong_column_fault(value: &str, types: &str) -> RowFault {
    let message = format!("the value is {value}, which only a column of type {types} takes");
    let hint = "Convert the value, or change the type of the column.";
    RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint))
}

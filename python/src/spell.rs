//! Writes Python's values as text for PostgreSQL's input functions.
//!
//! The text means exactly the value. A value that its column would read as another value is a
//! fault, such as bytes in a text column. The server decides whether a value fits its column.

use std::fmt::Write as _;

use pgspate::encode::arrow::text::write_hex;
use pgspate::encode::arrow::write_float8;
use pgspate::target::{PgType, TypeKind};
use pgspate::{Error, ErrorKind};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::classes::{ClassCache, ValueClass};
use crate::rows::RowFault;

/// The most dimensions of a PostgreSQL array.
const DIMENSIONS: usize = 6;

/// How values must be written for a column's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SpellingTarget {
    /// The value has no column.
    None,
    /// bytea
    Bytes,
    /// json and jsonb
    Json,
    /// date and time: parts of a datetime without time zone.
    DateOrTime,
    /// timestamp without time zone.
    Timestamp,
    /// timestamp with time zone.
    Timestamptz,
    /// The integers.
    Integer,
    /// Arrays of a type, with the delimiter between elements.
    Array(Box<SpellingTarget>, char),
    /// pgvector's types.
    Vector,
    /// Text, which takes any spelling.
    Text,
    /// Everything else.
    Other,
}

impl SpellingTarget {
    /// Returns how values must be written for a type.
    pub(crate) fn of(ty: &PgType) -> SpellingTarget {
        let base = ty.base();
        if let TypeKind::Array(element, delimiter) = &base.kind {
            return SpellingTarget::Array(
                Box::new(SpellingTarget::of(element)),
                char::from(*delimiter),
            );
        }
        if ["vector", "halfvec"].iter().any(|name| base.name.starts_with(name)) {
            return SpellingTarget::Vector;
        }
        if base.kind != TypeKind::Base {
            return SpellingTarget::Other;
        }
        match base.oid {
            17 => SpellingTarget::Bytes,
            114 | 3802 => SpellingTarget::Json,
            1082 | 1083 => SpellingTarget::DateOrTime,
            1114 => SpellingTarget::Timestamp,
            1184 => SpellingTarget::Timestamptz,
            20 | 21 | 23 | 26 => SpellingTarget::Integer,
            25 | 1042 | 1043 => SpellingTarget::Text,
            _ => SpellingTarget::Other,
        }
    }
}

/// Writes values as text, with a cache of their classes.
pub(crate) struct Speller {
    pub(crate) classes: ClassCache,
    scratch: Vec<u8>,
}

type Spelled = Result<bool, RowFault>;

impl Speller {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Speller> {
        Ok(Speller { classes: ClassCache::new(py)?, scratch: Vec::new() })
    }

    /// Appends a value's text. Returns false for NULL.
    pub(crate) fn spell(
        &mut self,
        value: &Bound<'_, PyAny>,
        to: &SpellingTarget,
        out: &mut String,
    ) -> Spelled {
        if value.is_none() {
            return Ok(false);
        }
        match self.classes.class_of(value)? {
            ValueClass::Null => return Ok(false),
            ValueClass::Str => {
                out.push_str(value.cast::<PyString>().map_err(PyErr::from)?.to_str()?)
            }
            ValueClass::Int => int(value, out)?,
            ValueClass::Float => self.float(value.extract()?, out),
            ValueClass::Bool => out.push_str(if value.is_truthy()? { "true" } else { "false" }),
            ValueClass::Decimal => decimal(value, to, out)?,
            ValueClass::Datetime | ValueClass::DatetimeSubclass => {
                datetime(&self.classes, value, to, out)?
            }
            ValueClass::Date => {
                let text = value.call_method0(intern!(value.py(), "isoformat"))?;
                out.push_str(text.cast::<PyString>().map_err(PyErr::from)?.to_str()?);
            }
            ValueClass::Time | ValueClass::Address => out.push_str(value.str()?.to_str()?),
            ValueClass::Timedelta => timedelta(value, out)?,
            ValueClass::Uuid => uuid(value, out)?,
            ValueClass::Bytes => bytes(value, to, out)?,
            ValueClass::Dict if *to == SpellingTarget::Json => self.json(value, out)?,
            ValueClass::Dict => return Err(refuse(value, "a dict", "json or jsonb")),
            ValueClass::List => self.list(value, to, out)?,
            ValueClass::EnumName => return self.spell(&value.getattr("name")?, to, out),
            ValueClass::EnumValue => return self.spell(&value.getattr("value")?, to, out),
            ValueClass::Json => {
                let inner = value.getattr("obj")?;
                self.json(&inner, out)?;
            }
            class @ (ValueClass::Numpy | ValueClass::NumpyArray) => {
                return match ClassCache::from_numpy(class, value)? {
                    Some(plain) => self.spell(&plain, to, out),
                    None => Err(unknown(value)?),
                };
            }
            ValueClass::NumpyDatetime => {
                let text = value.str()?;
                let text = text.to_str()?;
                if text == "NaT" {
                    return Ok(false);
                }
                out.push_str(text);
            }
            ValueClass::NumpyTimedelta => {
                let micros = value.call_method1("astype", ("timedelta64[us]",))?;
                return self.spell(&micros.call_method0("item")?, to, out);
            }
            ValueClass::Unknown => return Err(unknown(value)?),
        }
        Ok(true)
    }

    /// Writes a float as PostgreSQL prints it: the shortest digits that give the same value.
    fn float(&mut self, value: f64, out: &mut String) {
        self.scratch.clear();
        write_float8(value, &mut self.scratch);
        out.push_str(&String::from_utf8_lossy(&self.scratch));
    }

    fn json(&mut self, value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
        let text = self.classes.dumps(value)?;
        out.push_str(text.to_str()?);
        Ok(())
    }

    fn list(
        &mut self,
        value: &Bound<'_, PyAny>,
        to: &SpellingTarget,
        out: &mut String,
    ) -> Result<(), RowFault> {
        match to {
            SpellingTarget::Json | SpellingTarget::Vector => self.json(value, out),
            SpellingTarget::Array(element, delimiter) => {
                self.array(value, element, *delimiter, 1, out)
            }
            _ => Err(refuse(value, "a list", "an array, json or jsonb")),
        }
    }

    /// Writes a list as a PostgreSQL array. `depth` is the number of open brackets, with this one.
    fn array(
        &mut self,
        value: &Bound<'_, PyAny>,
        element: &SpellingTarget,
        delimiter: char,
        depth: usize,
        out: &mut String,
    ) -> Result<(), RowFault> {
        if depth > DIMENSIONS {
            let message =
                format!("the value is a list in which lists are more than {DIMENSIONS} deep");
            let hint = "An array has at most 6 dimensions; a column of type jsonb takes any list \
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
            if !item.is_none() && matches!(self.classes.class_of(&item)?, ValueClass::List) {
                self.array(&item, element, delimiter, depth + 1, out)?;
            } else if self.spell(&item, element, &mut text)? {
                quote(&text, out);
            } else {
                out.push_str("NULL");
            }
        }
        out.push('}');
        Ok(())
    }
}

/// Writes an element of an array, in quotes if it needs them.
fn quote(text: &str, out: &mut String) {
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

fn int(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
    match value.extract::<i64>() {
        Ok(value) => drop(write!(out, "{value}")),
        // Text keeps all digits of an int that i64 does not hold.
        Err(_) => out.push_str(value.str()?.to_str()?),
    }
    Ok(())
}

/// Writes a Decimal without an exponent, which only numeric columns accept. For a column of
/// integers, zeros after the point are left out.
fn decimal(
    value: &Bound<'_, PyAny>,
    to: &SpellingTarget,
    out: &mut String,
) -> Result<(), RowFault> {
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
    let whole = text.split_once('.').filter(|_| *to == SpellingTarget::Integer);
    match whole.filter(|(_, rest)| rest.bytes().all(|digit| digit == b'0')) {
        Some((whole, _)) => out.push_str(whole),
        None => out.push_str(text),
    }
    Ok(())
}

/// Writes a datetime. In a column without time zone, a datetime with a zone becomes its UTC wall
/// clock, as in Arrow; the server would ignore the zone.
fn datetime(
    classes: &ClassCache,
    value: &Bound<'_, PyAny>,
    to: &SpellingTarget,
    out: &mut String,
) -> Result<(), RowFault> {
    let py = value.py();
    if matches!(to, SpellingTarget::DateOrTime | SpellingTarget::Timestamp)
        && !value.getattr("tzinfo")?.is_none()
    {
        let utc = value.call_method1("astimezone", (classes.utc(py),))?;
        let text = utc.str()?;
        let text = text.to_str()?;
        out.push_str(text.strip_suffix("+00:00").unwrap_or(text));
        return Ok(());
    }
    out.push_str(value.str()?.to_str()?);
    Ok(())
}

/// Returns the days, seconds and microseconds of a timedelta.
pub(crate) fn span(value: &Bound<'_, PyAny>) -> PyResult<(i64, i64, i64)> {
    let py = value.py();
    let days = value.getattr(intern!(py, "days"))?.extract()?;
    let seconds = value.getattr(intern!(py, "seconds"))?.extract()?;
    Ok((days, seconds, value.getattr(intern!(py, "microseconds"))?.extract()?))
}

/// Writes a timedelta as PostgreSQL prints intervals. Days stay days: a day is not always 24 hours.
fn timedelta(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
    let (days, seconds, micros) = span(value)?;
    if days != 0 {
        let _ = write!(out, "{days} days ");
        if days < 0 {
            out.push('+');
        }
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let _ = write!(out, "{hours:02}:{minutes:02}:{:02}", seconds % 60);
    if micros != 0 {
        let _ = write!(out, ".{micros:06}");
    }
    Ok(())
}

fn uuid(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
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

fn bytes(value: &Bound<'_, PyAny>, to: &SpellingTarget, out: &mut String) -> Result<(), RowFault> {
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
        SpellingTarget::Bytes => {
            let mut hex = Vec::with_capacity(2 + 2 * bytes.len());
            write_hex(bytes, &mut hex);
            out.push_str(&String::from_utf8_lossy(&hex));
            Ok(())
        }
        // Some JSON encoders return bytes.
        SpellingTarget::Json => match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                Ok(())
            }
            Err(_) => Err(refuse(value, "bytes that are no UTF-8", "bytea")),
        },
        _ => Err(refuse(value, "bytes", "bytea")),
    }
}

/// Returns the fault for a value of an unknown class.
fn unknown(value: &Bound<'_, PyAny>) -> PyResult<RowFault> {
    let class = value.get_type().fully_qualified_name()?;
    let message = format!("a value of class {class} has no counterpart in PostgreSQL");
    let error = Error::new(ErrorKind::Type, message);
    Ok(RowFault::Value(error.hint("Convert it, with `str()` for example.")))
}

/// Returns the fault for a value whose text its column would read as another value.
fn refuse(_: &Bound<'_, PyAny>, what: &str, types: &str) -> RowFault {
    let message = format!("the value is {what}, which only a column of type {types} takes");
    RowFault::Value(Error::new(ErrorKind::Type, message).hint("Convert the value, or the column."))
}

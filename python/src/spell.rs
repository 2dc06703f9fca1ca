//! Python's values as text that PostgreSQL's input functions take.
//!
//! A spelling never says less than the value, and never something else: a value that its column
//! would take for another one (bytes as text, say) is a fault. Whether a value fits is left to the
//! server.

use std::fmt::Write as _;

use pgspate::encode::arrow::text::write_hex;
use pgspate::encode::arrow::write_float8;
use pgspate::target::{PgType, TypeKind};
use pgspate::{Error, ErrorKind};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::classes::{Class, Classes};
use crate::rows::Fault;

/// How many dimensions an array of PostgreSQL's can have.
const DIMENSIONS: usize = 6;

/// What a column's type asks of a spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// There is no column.
    None,
    /// bytea
    Bytes,
    /// json and jsonb
    Json,
    /// date and time: parts of moments without a zone.
    Local,
    /// timestamp: moments without a zone.
    Stamp,
    /// timestamptz: moments of all zones.
    Instant,
    /// The integers.
    Whole,
    /// Arrays of a type, with the delimiter between elements.
    Array(Box<Target>, char),
    /// pgvector's types.
    Vector,
    /// Text, which takes any spelling.
    Text,
    /// Everything else.
    Other,
}

impl Target {
    /// What a type asks.
    pub(crate) fn of(ty: &PgType) -> Target {
        let base = ty.base();
        if let TypeKind::Array(element, delimiter) = &base.kind {
            return Target::Array(Box::new(Target::of(element)), char::from(*delimiter));
        }
        if ["vector", "halfvec"].iter().any(|name| base.name.starts_with(name)) {
            return Target::Vector;
        }
        if base.kind != TypeKind::Base {
            return Target::Other;
        }
        match base.oid {
            17 => Target::Bytes,
            114 | 3802 => Target::Json,
            1082 | 1083 => Target::Local,
            1114 => Target::Stamp,
            1184 => Target::Instant,
            20 | 21 | 23 | 26 => Target::Whole,
            25 | 1042 | 1043 => Target::Text,
            _ => Target::Other,
        }
    }
}

/// Spells values. Remembers what their classes are.
pub(crate) struct Speller {
    pub(crate) classes: Classes,
    scratch: Vec<u8>,
}

type Spelled = Result<bool, Fault>;

impl Speller {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Speller> {
        Ok(Speller { classes: Classes::new(py)?, scratch: Vec::new() })
    }

    /// Appends a value's text. False for NULL.
    pub(crate) fn spell(
        &mut self,
        value: &Bound<'_, PyAny>,
        to: &Target,
        out: &mut String,
    ) -> Spelled {
        if value.is_none() {
            return Ok(false);
        }
        match self.classes.of(value)? {
            Class::Null => return Ok(false),
            Class::Str => out.push_str(value.cast::<PyString>().map_err(PyErr::from)?.to_str()?),
            Class::Int => int(value, out)?,
            Class::Float => self.float(value.extract()?, out),
            Class::Bool => out.push_str(if value.is_truthy()? { "true" } else { "false" }),
            Class::Decimal => decimal(value, to, out)?,
            Class::Datetime | Class::Moment => datetime(&self.classes, value, to, out)?,
            Class::Date => {
                let text = value.call_method0(intern!(value.py(), "isoformat"))?;
                out.push_str(text.cast::<PyString>().map_err(PyErr::from)?.to_str()?);
            }
            Class::Time | Class::Address => out.push_str(value.str()?.to_str()?),
            Class::Timedelta => timedelta(value, out)?,
            Class::Uuid => uuid(value, out)?,
            Class::Bytes => bytes(value, to, out)?,
            Class::Dict if *to == Target::Json => self.json(value, out)?,
            Class::Dict => return Err(refuse(value, "a dict", "json or jsonb")),
            Class::List => self.list(value, to, out)?,
            Class::EnumName => return self.spell(&value.getattr("name")?, to, out),
            Class::EnumValue => return self.spell(&value.getattr("value")?, to, out),
            Class::Json => {
                let inner = value.getattr("obj")?;
                self.json(&inner, out)?;
            }
            class @ (Class::Numpy | Class::NumpyArray) => {
                return match Classes::plain(class, value)? {
                    Some(plain) => self.spell(&plain, to, out),
                    None => Err(unknown(value)?),
                };
            }
            Class::NumpyDatetime => {
                let text = value.str()?;
                let text = text.to_str()?;
                if text == "NaT" {
                    return Ok(false);
                }
                out.push_str(text);
            }
            Class::NumpyTimedelta => {
                let micros = value.call_method1("astype", ("timedelta64[us]",))?;
                return self.spell(&micros.call_method0("item")?, to, out);
            }
            Class::Unknown => return Err(unknown(value)?),
        }
        Ok(true)
    }

    /// As PostgreSQL prints it: the shortest digits that give the same value.
    fn float(&mut self, value: f64, out: &mut String) {
        self.scratch.clear();
        write_float8(value, &mut self.scratch);
        out.push_str(&String::from_utf8_lossy(&self.scratch));
    }

    fn json(&mut self, value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), Fault> {
        let text = self.classes.dumps(value)?;
        out.push_str(text.to_str()?);
        Ok(())
    }

    fn list(
        &mut self,
        value: &Bound<'_, PyAny>,
        to: &Target,
        out: &mut String,
    ) -> Result<(), Fault> {
        match to {
            Target::Json | Target::Vector => self.json(value, out),
            Target::Array(element, delimiter) => self.array(value, element, *delimiter, 1, out),
            _ => Err(refuse(value, "a list", "an array, json or jsonb")),
        }
    }

    /// An array as PostgreSQL writes one, `depth` brackets deep.
    fn array(
        &mut self,
        value: &Bound<'_, PyAny>,
        element: &Target,
        delimiter: char,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Fault> {
        if depth > DIMENSIONS {
            let message =
                format!("the value is a list in which lists are more than {DIMENSIONS} deep");
            let hint = "An array has at most 6 dimensions; a column of type jsonb takes any list \
                        that does not contain itself.";
            return Err(Fault::Value(Error::new(ErrorKind::Type, message).hint(hint)));
        }
        out.push('{');
        let mut text = String::new();
        for (nth, item) in value.try_iter()?.enumerate() {
            let item = item?;
            if nth > 0 {
                out.push(delimiter);
            }
            text.clear();
            if !item.is_none() && matches!(self.classes.of(&item)?, Class::List) {
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

/// An element of an array, in quotes unless it is plain.
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

fn int(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), Fault> {
    match value.extract::<i64>() {
        Ok(value) => drop(write!(out, "{value}")),
        // A larger one has all its digits still.
        Err(_) => out.push_str(value.str()?.to_str()?),
    }
    Ok(())
}

/// Without an exponent, which only numbers know; and without zeros behind the point where the
/// column takes whole numbers.
fn decimal(value: &Bound<'_, PyAny>, to: &Target, out: &mut String) -> Result<(), Fault> {
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
    let whole = text.split_once('.').filter(|_| *to == Target::Whole);
    match whole.filter(|(_, rest)| rest.bytes().all(|digit| digit == b'0')) {
        Some((whole, _)) => out.push_str(whole),
        None => out.push_str(text),
    }
    Ok(())
}

/// One with a zone goes into a column without one as its UTC wall clock, as Arrow's do: the column
/// would pass over the zone.
fn datetime(
    classes: &Classes,
    value: &Bound<'_, PyAny>,
    to: &Target,
    out: &mut String,
) -> Result<(), Fault> {
    let py = value.py();
    if matches!(to, Target::Local | Target::Stamp) && !value.getattr("tzinfo")?.is_none() {
        let utc = value.call_method1("astimezone", (classes.utc(py),))?;
        let text = utc.str()?;
        let text = text.to_str()?;
        out.push_str(text.strip_suffix("+00:00").unwrap_or(text));
        return Ok(());
    }
    out.push_str(value.str()?.to_str()?);
    Ok(())
}

/// Days, seconds and microseconds of a timedelta.
pub(crate) fn span(value: &Bound<'_, PyAny>) -> PyResult<(i64, i64, i64)> {
    let py = value.py();
    let days = value.getattr(intern!(py, "days"))?.extract()?;
    let seconds = value.getattr(intern!(py, "seconds"))?.extract()?;
    Ok((days, seconds, value.getattr(intern!(py, "microseconds"))?.extract()?))
}

/// Days stay days: they are not always 24 hours. As PostgreSQL prints intervals.
fn timedelta(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), Fault> {
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

fn uuid(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), Fault> {
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

fn bytes(value: &Bound<'_, PyAny>, to: &Target, out: &mut String) -> Result<(), Fault> {
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
        Target::Bytes => {
            let mut hex = Vec::with_capacity(2 + 2 * bytes.len());
            write_hex(bytes, &mut hex);
            out.push_str(&String::from_utf8_lossy(&hex));
            Ok(())
        }
        // What encoders of JSON give.
        Target::Json => match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                Ok(())
            }
            Err(_) => Err(refuse(value, "bytes that are no UTF-8", "bytea")),
        },
        _ => Err(refuse(value, "bytes", "bytea")),
    }
}

/// A value of a class that is none of those known.
fn unknown(value: &Bound<'_, PyAny>) -> PyResult<Fault> {
    let class = value.get_type().fully_qualified_name()?;
    let message = format!("a value of class {class} has no counterpart in PostgreSQL");
    let error = Error::new(ErrorKind::Type, message);
    Ok(Fault::Value(error.hint("Convert it, with `str()` for example.")))
}

/// A value whose text its column would take for something else.
fn refuse(_: &Bound<'_, PyAny>, what: &str, types: &str) -> Fault {
    let message = format!("the value is {what}, which only a column of type {types} takes");
    Fault::Value(Error::new(ErrorKind::Type, message).hint("Convert the value, or the column."))
}

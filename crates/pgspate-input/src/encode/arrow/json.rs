//! Nested values as compact JSON.
//!
//! Spelled as PostgreSQL's own `to_json` spells the like: bytes as `"\\x0a"`, dates and times in
//! ISO 8601, NaN and the infinities as strings. Decimals keep their digits, map keys become
//! strings and the fields of a struct keep their order.

use std::io::Write as _;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;

use super::array;
use super::text::{Write, bytes, moments, scalar, write_hex};
use super::{is_uuid, keys};

/// The JSON of a column; a row that is NULL is `null`, and the writer says whether it was.
/// `None` for a type that has no JSON here (unions).
pub(crate) fn json<'a>(array: &'a dyn Array, uuid: bool) -> Option<Write<'a>> {
    use DataType as D;
    Some(match array.data_type() {
        D::Struct(fields) => {
            let parts = array.as_struct();
            let mut writers = Vec::new();
            for (field, column) in fields.iter().zip(parts.columns()) {
                let mut name = Vec::new();
                write_string(field.name().as_bytes(), &mut name);
                writers.push((name, json(column.as_ref(), is_uuid(field))?));
            }
            nullable(array, move |row, out| write_struct(&writers, row, out))
        }
        D::Map(entries, _) => {
            let map = array.as_map();
            let (offsets, entry) = (map.value_offsets(), map.entries());
            let DataType::Struct(fields) = entries.data_type() else { return None };
            let key = json(entry.column(0).as_ref(), is_uuid(fields.first()?))?;
            let value = json(entry.column(1).as_ref(), is_uuid(fields.get(1)?))?;
            nullable(array, move |row, out| {
                let rows = offsets[row] as usize..offsets[row + 1] as usize;
                write_map(&key, &value, rows, out);
            })
        }
        D::Dictionary(..) | D::RunEndEncoded(..) => {
            let (keys, values) = keys(array)?;
            let write = json(values, uuid)?;
            Box::new(move |row, out| match keys[row] {
                -1 => {
                    out.extend_from_slice(b"null");
                    false
                }
                key => write(key as usize, out),
            })
        }
        D::Null => Box::new(|_, out| {
            out.extend_from_slice(b"null");
            false
        }),
        list if array::child(list).is_some() => {
            let field = array::child(list)?;
            let (child, rows) = array::open(array)?;
            let item = json(child, is_uuid(field))?;
            nullable(array, move |row, out| write_list(&item, rows(row), out))
        }
        _ => leaf(array, uuid)?,
    })
}

/// The JSON of a column of scalars.
fn leaf<'a>(array: &'a dyn Array, uuid: bool) -> Option<Write<'a>> {
    use DataType as D;
    Some(match array.data_type() {
        D::Boolean
        | D::Int8
        | D::Int16
        | D::Int32
        | D::Int64
        | D::UInt8
        | D::UInt16
        | D::UInt32
        | D::UInt64
        | D::Decimal32(..)
        | D::Decimal64(..)
        | D::Decimal128(..)
        | D::Decimal256(..) => absent(scalar(array)?),
        D::Float16 | D::Float32 | D::Float64 => {
            let write = scalar(array)?;
            absent(Box::new(move |row, out| {
                let start = out.len();
                let some = write(row, out);
                if matches!(out.get(start..), Some(b"NaN" | b"Infinity" | b"-Infinity")) {
                    out.insert(start, b'"');
                    out.push(b'"');
                }
                some
            }))
        }
        D::Date32 | D::Date64 | D::Time32(_) | D::Time64(_) | D::Timestamp(..) => {
            quoted(moments(array, 'T', "+00:00")?)
        }
        D::Duration(_) | D::Interval(_) => quoted(scalar(array)?),
        D::Utf8 | D::LargeUtf8 | D::Utf8View => {
            let values = bytes(array)?;
            nullable(array, move |row, out| {
                write_string(String::from_utf8_lossy(values(row)).as_bytes(), out);
            })
        }
        D::FixedSizeBinary(16) if uuid => {
            let values = bytes(array)?;
            nullable(array, move |row, out| {
                out.push(b'"');
                super::text::write_uuid(values(row), out);
                out.push(b'"');
            })
        }
        D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => {
            let values = bytes(array)?;
            nullable(array, move |row, out| {
                out.extend_from_slice(b"\"\\");
                write_hex(values(row), out);
                out.push(b'"');
            })
        }
        _ => return None,
    })
}

/// Whether [`json`] can spell a type.
pub(crate) fn has_json(data_type: &DataType) -> bool {
    match data_type {
        DataType::Union(..) => false,
        DataType::Struct(fields) => fields.iter().all(|field| has_json(field.data_type())),
        DataType::Map(entries, _) => has_json(entries.data_type()),
        DataType::Dictionary(_, values) => has_json(values),
        DataType::RunEndEncoded(_, values) => has_json(values.data_type()),
        other => array::child(other).is_none_or(|field| has_json(field.data_type())),
    }
}

fn write_struct(writers: &[(Vec<u8>, Write<'_>)], row: usize, out: &mut Vec<u8>) {
    out.push(b'{');
    for (ordinal, (name, write)) in writers.iter().enumerate() {
        if ordinal > 0 {
            out.push(b',');
        }
        out.extend_from_slice(name);
        out.push(b':');
        write(row, out);
    }
    out.push(b'}');
}

fn write_list(item: &Write<'_>, rows: std::ops::Range<usize>, out: &mut Vec<u8>) {
    out.push(b'[');
    for (ordinal, row) in rows.enumerate() {
        if ordinal > 0 {
            out.push(b',');
        }
        item(row, out);
    }
    out.push(b']');
}

fn write_map(key: &Write<'_>, value: &Write<'_>, rows: std::ops::Range<usize>, out: &mut Vec<u8>) {
    out.push(b'{');
    for (ordinal, row) in rows.enumerate() {
        if ordinal > 0 {
            out.push(b',');
        }
        let start = out.len();
        key(row, out);
        if out.get(start) != Some(&b'"') {
            // Numbers, and for the oddest of maps whole objects: their JSON is the key's text.
            let text = out.split_off(start);
            write_string(&text, out);
        }
        out.push(b':');
        value(row, out);
    }
    out.push(b'}');
}

fn nullable<'a>(array: &'a dyn Array, write: impl Fn(usize, &mut Vec<u8>) + 'a) -> Write<'a> {
    absent(super::text::writer(array, write))
}

/// Makes NULL `null`.
fn absent(write: Write<'_>) -> Write<'_> {
    Box::new(move |row, out| {
        let some = write(row, out);
        if !some {
            out.extend_from_slice(b"null");
        }
        some
    })
}

fn quoted(write: Write<'_>) -> Write<'_> {
    absent(Box::new(move |row, out| {
        let start = out.len();
        out.push(b'"');
        if !write(row, out) {
            out.truncate(start);
            return false;
        }
        out.push(b'"');
        true
    }))
}

/// Appends a JSON string.
pub(crate) fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0..=0x1F)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                let _ = write!(out, "\\u{control:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

//! Writes nested Arrow values as compact JSON.
//!
//! The format is that of PostgreSQL's `to_json`: bytes as `"\\x0a"`, dates and times in ISO 8601,
//! NaN and the infinities as strings. Decimals keep their digits, map keys become strings, and the
//! fields of a struct keep their order.

use std::io::Write as _;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_schema::{DataType, Field};

use super::array;
use super::bytes::write_parquet_interval;
use super::text::{
    AppendText, byte_values, date_time_writer, scalar_writer, write_hex, write_uuid,
};
use super::{is_parquet_interval, is_uuid, value_rows};

/// Returns the JSON writer of a nested column, whose parts have fields of their own.
pub(crate) fn nested_writer<'a>(array: &'a dyn Array) -> Option<AppendText<'a>> {
    json_writer(array, &Field::new("", array.data_type().clone(), true))
}

/// Returns the JSON writer of the column of a field. The writer writes NULL as `null` and returns
/// false for NULL. Returns `None` for types without JSON (unions).
pub(crate) fn json_writer<'a>(array: &'a dyn Array, field: &Field) -> Option<AppendText<'a>> {
    use DataType as D;
    Some(match array.data_type() {
        D::Struct(fields) => {
            let parts = array.as_struct();
            let mut writers = Vec::new();
            for (field, column) in fields.iter().zip(parts.columns()) {
                let mut name = Vec::new();
                write_string(field.name().as_bytes(), &mut name);
                writers.push((name, json_writer(column.as_ref(), field)?));
            }
            json_value_writer(array, move |row, out| write_struct(&writers, row, out))
        }
        D::Map(entries, _) => {
            let map = array.as_map();
            let (offsets, entry) = (map.value_offsets(), map.entries());
            let DataType::Struct(fields) = entries.data_type() else { return None };
            let key = json_writer(entry.column(0).as_ref(), fields.first()?)?;
            let value = json_writer(entry.column(1).as_ref(), fields.get(1)?)?;
            json_value_writer(array, move |row, out| {
                let rows = offsets[row] as usize..offsets[row + 1] as usize;
                write_map(&key, &value, rows, out);
            })
        }
        D::Dictionary(..) | D::RunEndEncoded(..) => {
            let (keys, values) = value_rows(array)?;
            let write = json_writer(values, field)?;
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
            let (child, rows) = array::child_column(array)?;
            let item = json_writer(child, field)?;
            json_value_writer(array, move |row, out| write_list(&item, rows(row), out))
        }
        _ => scalar_json_writer(array, field)?,
    })
}

/// Returns the JSON writer of a scalar column.
fn scalar_json_writer<'a>(array: &'a dyn Array, field: &Field) -> Option<AppendText<'a>> {
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
        | D::Decimal256(..) => null_as_json(scalar_writer(array)?),
        D::Float16 | D::Float32 | D::Float64 => {
            let write = scalar_writer(array)?;
            null_as_json(Box::new(move |row, out| {
                let start = out.len();
                let has_value = write(row, out);
                if matches!(out.get(start..), Some(b"NaN" | b"Infinity" | b"-Infinity")) {
                    out.insert(start, b'"');
                    out.push(b'"');
                }
                has_value
            }))
        }
        D::Date32 | D::Date64 | D::Time32(_) | D::Time64(_) | D::Timestamp(..) => {
            quoted_json(date_time_writer(array, 'T', "+00:00")?)
        }
        D::Duration(_) | D::Interval(_) => quoted_json(scalar_writer(array)?),
        D::Utf8 | D::LargeUtf8 | D::Utf8View => {
            let values = byte_values(array)?;
            json_value_writer(array, move |row, out| {
                write_string(String::from_utf8_lossy(values(row)).as_bytes(), out);
            })
        }
        D::FixedSizeBinary(_) if is_uuid(field) => quoted_bytes(array, write_uuid)?,
        D::FixedSizeBinary(_) if is_parquet_interval(field) => {
            quoted_bytes(array, write_parquet_interval)?
        }
        D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => {
            let values = byte_values(array)?;
            json_value_writer(array, move |row, out| {
                out.extend_from_slice(b"\"\\");
                write_hex(values(row), out);
                out.push(b'"');
            })
        }
        _ => return None,
    })
}

/// Returns a writer of JSON strings with the text that `write` makes of bytes.
fn quoted_bytes<'a>(
    array: &'a dyn Array,
    write: fn(&[u8], &mut Vec<u8>),
) -> Option<AppendText<'a>> {
    let values = byte_values(array)?;
    Some(json_value_writer(array, move |row, out| {
        out.push(b'"');
        write(values(row), out);
        out.push(b'"');
    }))
}

/// Returns whether [`json_writer`] supports a type.
pub(crate) fn supports_json(data_type: &DataType) -> bool {
    match data_type {
        DataType::Union(..) => false,
        DataType::Struct(fields) => fields.iter().all(|field| supports_json(field.data_type())),
        DataType::Map(entries, _) => supports_json(entries.data_type()),
        DataType::Dictionary(_, values) => supports_json(values),
        DataType::RunEndEncoded(_, values) => supports_json(values.data_type()),
        other => array::child(other).is_none_or(|field| supports_json(field.data_type())),
    }
}

/// Appends a struct as a JSON object.
fn write_struct(writers: &[(Vec<u8>, AppendText<'_>)], row: usize, out: &mut Vec<u8>) {
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

/// Appends a list as a JSON array.
fn write_list(item: &AppendText<'_>, rows: std::ops::Range<usize>, out: &mut Vec<u8>) {
    out.push(b'[');
    for (ordinal, row) in rows.enumerate() {
        if ordinal > 0 {
            out.push(b',');
        }
        item(row, out);
    }
    out.push(b']');
}

/// Appends a map as a JSON object.
fn write_map(
    key: &AppendText<'_>,
    value: &AppendText<'_>,
    rows: std::ops::Range<usize>,
    out: &mut Vec<u8>,
) {
    out.push(b'{');
    for (ordinal, row) in rows.enumerate() {
        if ordinal > 0 {
            out.push(b',');
        }
        let start = out.len();
        key(row, out);
        if out.get(start) != Some(&b'"') {
            // JSON keys are strings. The key is a number or an object, so its JSON text is quoted.
            let text = out.split_off(start);
            write_string(&text, out);
        }
        out.push(b':');
        value(row, out);
    }
    out.push(b'}');
}

/// Returns a JSON writer from a writer of values that are not NULL.
fn json_value_writer<'a>(
    array: &'a dyn Array,
    write: impl Fn(usize, &mut Vec<u8>) + 'a,
) -> AppendText<'a> {
    null_as_json(super::text::with_nulls(array, write))
}

/// Returns a writer that also writes NULL, as `null`.
fn null_as_json(write: AppendText<'_>) -> AppendText<'_> {
    Box::new(move |row, out| {
        let has_value = write(row, out);
        if !has_value {
            out.extend_from_slice(b"null");
        }
        has_value
    })
}

/// Returns a writer that puts quotes around values, and writes NULL as `null`.
fn quoted_json(write: AppendText<'_>) -> AppendText<'_> {
    null_as_json(Box::new(move |row, out| {
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

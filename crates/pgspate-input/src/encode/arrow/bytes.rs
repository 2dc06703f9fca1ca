//! Encodes strings and bytes as text, json, jsonb, bytea and uuid. For other types, the string's
//! text is encoded like a text field.
//!
//! Arrow strings are valid UTF-8, so they are copied unchanged into types whose binary form is
//! their text. Bytes count as text in all columns except bytea; the server rejects invalid UTF-8.

use std::cell::RefCell;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;

use super::column::{BoundCells, append_bytes, append_fixed};
use super::date_time::append_interval;
use super::text::{AppendText, byte_values, with_nulls, write_hex, write_uuid};
use crate::encode::field::FieldEncoder;

/// How the values of a column of strings or bytes are encoded.
#[derive(Debug, Clone)]
pub(crate) enum BytesTarget {
    /// Copies the bytes: text, varchar, bpchar, json, bytea.
    Copy,
    /// Appends jsonb: a version number, then the text.
    Jsonb,
    /// Encodes the text with the encoder of text fields.
    Field(FieldEncoder),
    /// Copies sixteen bytes as a UUID. Bytes of another length are the text of a UUID.
    Uuid(Option<FieldEncoder>),
    /// Converts Parquet's twelve bytes: months, days, milliseconds, each unsigned and
    /// little-endian.
    Interval,
    /// Converts the bytes into text with the function, then encodes the text.
    Converted(FieldEncoder, fn(&[u8], &mut Vec<u8>)),
    /// Leaves the text to the server.
    Server,
}

/// The longest value in PostgreSQL: 1 GB minus the header of a value.
const VALUE_BYTES_MAX: usize = 0x3FFF_FFFB;

/// Binds a column of strings or bytes. Returns `None` for other columns.
pub(crate) fn bind<'a>(array: &'a dyn Array, to: &'a BytesTarget) -> Option<BoundCells<'a>> {
    if let (BytesTarget::Copy, false) = (to, array.is_empty()) {
        match array.data_type() {
            DataType::Utf8 => {
                let values = array.as_string::<i32>();
                return Some(BoundCells::Bytes(values.value_offsets(), values.value_data()));
            }
            DataType::Binary => {
                let values = array.as_binary::<i32>();
                return Some(BoundCells::Bytes(values.value_offsets(), values.value_data()));
            }
            DataType::Utf8View => {
                let values = array.as_string_view();
                return Some(BoundCells::Views(values.views(), values.data_buffers()));
            }
            DataType::BinaryView => {
                let values = array.as_binary_view();
                return Some(BoundCells::Views(values.views(), values.data_buffers()));
            }
            _ => {}
        }
    }
    let values = byte_values(array)?;
    Some(match to {
        BytesTarget::Copy => {
            BoundCells::Other(Box::new(move |row, out| append_checked_bytes(values(row), out)))
        }
        BytesTarget::Jsonb => {
            BoundCells::Other(Box::new(move |row, out| append_jsonb(values(row), out)))
        }
        BytesTarget::Field(encoder) => {
            BoundCells::Other(Box::new(move |row, out| encoder.encode(values(row), out)))
        }
        BytesTarget::Uuid(encoder) => BoundCells::Other(Box::new(move |row, out| {
            let value = values(row);
            match <[u8; 16]>::try_from(value) {
                Ok(uuid) => {
                    append_bytes(&uuid, out);
                    true
                }
                Err(_) => encoder.as_ref().is_some_and(|encoder| encoder.encode(value, out)),
            }
        })),
        BytesTarget::Interval => BoundCells::Other(Box::new(move |row, out| {
            let Some((months, days, millis)) = parquet_interval(values(row)) else { return false };
            let (Ok(months), Ok(days)) = (i32::try_from(months), i32::try_from(days)) else {
                return false;
            };
            append_interval(months, days, i64::from(millis) * 1_000, out);
            true
        })),
        BytesTarget::Converted(encoder, write_converted) => {
            let text = RefCell::new(Vec::new());
            BoundCells::Other(Box::new(move |row, out| {
                let mut text = text.borrow_mut();
                text.clear();
                write_converted(values(row), &mut text);
                encoder.encode(&text, out)
            }))
        }
        BytesTarget::Server => BoundCells::Server(text_writer(array, to, false)?),
    })
}

/// Returns a function that writes the values of a column of strings or bytes as text, unchanged or
/// converted for the target. Returns `None` for other columns.
pub(crate) fn text_writer<'a>(
    array: &'a dyn Array,
    to: &BytesTarget,
    hex: bool,
) -> Option<AppendText<'a>> {
    let values = byte_values(array)?;
    Some(match to {
        BytesTarget::Uuid(_) => with_nulls(array, move |row, out| match values(row) {
            value if value.len() == 16 => write_uuid(value, out),
            value => out.extend_from_slice(value),
        }),
        BytesTarget::Interval => {
            with_nulls(array, move |row, out| write_parquet_interval(values(row), out))
        }
        BytesTarget::Converted(_, write_converted) => {
            let write_converted = *write_converted;
            with_nulls(array, move |row, out| write_converted(values(row), out))
        }
        _ if hex => with_nulls(array, move |row, out| write_hex(values(row), out)),
        _ => with_nulls(array, move |row, out| out.extend_from_slice(values(row))),
    })
}

/// Appends text as jsonb. The server parses the text.
pub(crate) fn append_jsonb(json: &[u8], out: &mut Vec<u8>) -> bool {
    if json.len() >= VALUE_BYTES_MAX {
        return false;
    }
    out.extend_from_slice(&(json.len() as u32 + 1).to_be_bytes());
    out.push(1);
    out.extend_from_slice(json);
    true
}

/// Appends bytes unchanged. Returns false if they are too long for PostgreSQL.
pub(crate) fn append_checked_bytes(value: &[u8], out: &mut Vec<u8>) -> bool {
    if value.len() > VALUE_BYTES_MAX {
        return false;
    }
    append_bytes(value, out);
    true
}

/// Appends Parquet's interval of twelve bytes in the format that PostgreSQL prints.
pub(crate) fn write_parquet_interval(bytes: &[u8], out: &mut Vec<u8>) {
    let (months, days, millis) = parquet_interval(bytes).unwrap_or_default();
    let nanos = i128::from(millis) * 1_000_000;
    super::calendar::write_interval(months.into(), days.into(), nanos, out);
}

fn parquet_interval(bytes: &[u8]) -> Option<(u32, u32, u32)> {
    let bytes: &[u8; 12] = bytes.try_into().ok()?;
    let part =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Some((part(0), part(4), part(8)))
}

/// Appends a boolean.
#[inline]
pub(crate) fn append_bool(value: bool, out: &mut Vec<u8>) -> bool {
    append_fixed([u8::from(value)], out);
    true
}

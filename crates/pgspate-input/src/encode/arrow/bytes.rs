//! Strings and bytes to text, json, jsonb, bytea, uuid, and through text to everything else.
//!
//! Arrow strings are valid UTF-8, so they are copied as they are into types whose binary form is
//! their text. Bytes count as text in any column but bytea: invalid UTF-8 is the server's to
//! refuse.

use std::cell::RefCell;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;

use super::column::{Cells, put_bytes, put4};
use super::moment::put_interval;
use super::text::{Write, bytes, write_hex, write_uuid, writer};
use crate::encode::field::FieldEncoder;

/// What a column of strings or bytes becomes.
#[derive(Debug, Clone)]
pub(crate) enum Bytes {
    /// The bytes themselves: text, varchar, bpchar, json; bytea.
    Copy,
    /// A version number, then the text.
    Jsonb,
    /// Whatever the encoder of text fields makes of them.
    Field(FieldEncoder),
    /// Bytes of any length but sixteen are the text of a UUID.
    Uuid(Option<FieldEncoder>),
    /// Parquet's twelve bytes: months, days, milliseconds, each unsigned and little-endian.
    Interval,
    /// The text that the bytes stand for.
    Spelled(FieldEncoder, fn(&[u8], &mut Vec<u8>)),
    /// Nothing: the server reads the text.
    Server,
}

/// The longest value that PostgreSQL can hold (1 GB less the header of a value).
const VALUE_BYTES_MAX: usize = 0x3FFF_FFFB;

/// Binds a column of strings or bytes. `None` when it is not one.
pub(crate) fn bind<'a>(array: &'a dyn Array, to: &'a Bytes) -> Option<Cells<'a>> {
    if let (Bytes::Copy, false) = (to, array.is_empty()) {
        match array.data_type() {
            DataType::Utf8 => {
                let values = array.as_string::<i32>();
                return Some(Cells::Bytes(values.value_offsets(), values.value_data()));
            }
            DataType::Binary => {
                let values = array.as_binary::<i32>();
                return Some(Cells::Bytes(values.value_offsets(), values.value_data()));
            }
            DataType::Utf8View => {
                let values = array.as_string_view();
                return Some(Cells::Views(values.views(), values.data_buffers()));
            }
            DataType::BinaryView => {
                let values = array.as_binary_view();
                return Some(Cells::Views(values.views(), values.data_buffers()));
            }
            _ => {}
        }
    }
    let values = bytes(array)?;
    Some(match to {
        Bytes::Copy => Cells::Other(Box::new(move |row, out| put_short(values(row), out))),
        Bytes::Jsonb => Cells::Other(Box::new(move |row, out| put_jsonb(values(row), out))),
        Bytes::Field(encoder) => {
            Cells::Other(Box::new(move |row, out| encoder.encode(values(row), out)))
        }
        Bytes::Uuid(encoder) => Cells::Other(Box::new(move |row, out| {
            let value = values(row);
            match <[u8; 16]>::try_from(value) {
                Ok(uuid) => {
                    put_bytes(&uuid, out);
                    true
                }
                Err(_) => encoder.as_ref().is_some_and(|encoder| encoder.encode(value, out)),
            }
        })),
        Bytes::Interval => Cells::Other(Box::new(move |row, out| {
            let Some((months, days, millis)) = parquet_interval(values(row)) else { return false };
            let (Ok(months), Ok(days)) = (i32::try_from(months), i32::try_from(days)) else {
                return false;
            };
            put_interval(months, days, i64::from(millis) * 1_000, out);
            true
        })),
        Bytes::Spelled(encoder, spell) => {
            let text = RefCell::new(Vec::new());
            Cells::Other(Box::new(move |row, out| {
                let mut text = text.borrow_mut();
                text.clear();
                spell(values(row), &mut text);
                encoder.encode(&text, out)
            }))
        }
        Bytes::Server => Cells::Server(text(array, to, false)?),
    })
}

/// The text of a column of strings or bytes: as they are, or as the target spells them.
pub(crate) fn text<'a>(array: &'a dyn Array, to: &Bytes, hex: bool) -> Option<Write<'a>> {
    let values = bytes(array)?;
    Some(match to {
        Bytes::Uuid(_) => writer(array, move |row, out| match values(row) {
            value if value.len() == 16 => write_uuid(value, out),
            value => out.extend_from_slice(value),
        }),
        Bytes::Interval => writer(array, move |row, out| write_parquet_interval(values(row), out)),
        Bytes::Spelled(_, spell) => {
            let spell = *spell;
            writer(array, move |row, out| spell(values(row), out))
        }
        _ if hex => writer(array, move |row, out| write_hex(values(row), out)),
        _ => writer(array, move |row, out| out.extend_from_slice(values(row))),
    })
}

/// Appends text as jsonb; the server parses it.
pub(crate) fn put_jsonb(json: &[u8], out: &mut Vec<u8>) -> bool {
    if json.len() >= VALUE_BYTES_MAX {
        return false;
    }
    out.extend_from_slice(&(json.len() as u32 + 1).to_be_bytes());
    out.push(1);
    out.extend_from_slice(json);
    true
}

/// Appends bytes as they are, if PostgreSQL could hold them at all.
pub(crate) fn put_short(value: &[u8], out: &mut Vec<u8>) -> bool {
    if value.len() > VALUE_BYTES_MAX {
        return false;
    }
    put_bytes(value, out);
    true
}

/// Appends what Parquet's twelve bytes of an interval stand for, as PostgreSQL prints it.
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
pub(crate) fn put_bool(value: bool, out: &mut Vec<u8>) -> bool {
    put4([u8::from(value)], out);
    true
}

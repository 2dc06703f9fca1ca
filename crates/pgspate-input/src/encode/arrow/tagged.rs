//! Tagged columns: each value carries its own type. Rows from Python become such columns.
//!
//! In Arrow, a tagged value is bytes: a tag byte, then a number, a date, a timestamp or a text. If
//! the table's column has the tag's type, the value is copied. Otherwise the value becomes text for
//! the column's input function. So the other values of the column do not change what a value means.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, LargeBinaryArray};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field};

use super::EXTENSION;
use super::bytes::{BytesTarget, append_checked_bytes, append_jsonb};
use super::calendar;
use super::column::{BoundCells, append_date, append_fixed, append_timestamp};
use super::text::{AppendText, with_nulls, write_float8};
use crate::encode::field::FieldEncoder;
use crate::types::{PgType, SessionSettings, TypeKind};

/// The extension name of tagged columns.
const NAME: &str = "pgspate.tagged";

const TEXT: u8 = 0;
const INT: u8 = 1;
const FLOAT: u8 = 2;
const DATE: u8 = 3;
const TIMESTAMP: u8 = 4;
const TIMESTAMPTZ: u8 = 5;

/// The type of the table's column, if tagged values can be copied into the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NativeType {
    Int2,
    Int4,
    Int8,
    Float8,
    Date,
    Timestamp,
    Timestamptz,
    /// Values are never copied, always encoded from their text.
    None,
}

/// How the values of a tagged column are encoded.
#[derive(Debug, Clone)]
pub(crate) struct TaggedTarget {
    native: NativeType,
    text: BytesTarget,
}

/// Builds a tagged column, value by value.
#[derive(Debug)]
pub struct TaggedBuilder {
    values: Vec<u8>,
    ends: Vec<i64>,
    nulls: NullBufferBuilder,
}

/// Returns the field of a tagged column.
pub fn tagged_field(name: &str) -> Field {
    let metadata = HashMap::from([(EXTENSION.to_owned(), NAME.to_owned())]);
    Field::new(name, DataType::LargeBinary, true).with_metadata(metadata)
}

/// Appends the text of a tagged value, as the input function of its column reads it.
pub fn write_tagged(value: &[u8], out: &mut Vec<u8>) {
    let Some((tag, rest)) = value.split_first() else { return };
    match (*tag, long(rest)) {
        (INT, Some(value)) => write_int(value, out),
        (FLOAT, Some(bits)) => write_float8(f64::from_bits(bits as u64), out),
        (DATE, Some(days)) => drop(calendar::write_date(days, out)),
        (TIMESTAMP, Some(micros)) => write_micros(micros, "", out),
        (TIMESTAMPTZ, Some(micros)) => write_micros(micros, "+00", out),
        _ => out.extend_from_slice(rest),
    }
}

impl Default for TaggedBuilder {
    fn default() -> TaggedBuilder {
        TaggedBuilder { values: Vec::new(), ends: vec![0], nulls: NullBufferBuilder::new(0) }
    }
}

impl TaggedBuilder {
    /// Appends NULL.
    #[inline]
    pub fn null(&mut self) {
        self.ends.push(self.values.len() as i64);
        self.nulls.append_null();
    }

    /// Appends a text, as the column's input function reads it.
    #[inline]
    pub fn text(&mut self, text: &str) {
        self.values.push(TEXT);
        self.values.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// Appends a whole number.
    #[inline]
    pub fn int(&mut self, value: i64) {
        self.long(INT, value);
    }

    /// Appends a double. Its text has the fewest digits that give the same value.
    #[inline]
    pub fn float(&mut self, value: f64) {
        self.long(FLOAT, value.to_bits() as i64);
    }

    /// Appends a date, in days since 1970.
    #[inline]
    pub fn date(&mut self, days: i64) {
        self.long(DATE, days);
    }

    /// Appends a timestamp without time zone, in microseconds since 1970.
    #[inline]
    pub fn timestamp(&mut self, micros: i64) {
        self.long(TIMESTAMP, micros);
    }

    /// Appends a timestamp with time zone, in microseconds since 1970 UTC.
    #[inline]
    pub fn timestamptz(&mut self, micros: i64) {
        self.long(TIMESTAMPTZ, micros);
    }

    /// Returns the size of all appended values in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether the appended values have no bytes.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the column of all appended values, and begins the next column.
    pub fn finish(&mut self) -> ArrayRef {
        // The next batch is probably as large, so its buffers get this capacity at once.
        let (bytes, rows) = (self.values.len(), self.ends.len());
        let values = std::mem::replace(&mut self.values, Vec::with_capacity(bytes + bytes / 8));
        let ends = std::mem::replace(&mut self.ends, Vec::with_capacity(rows));
        self.ends.push(0);
        let ends = OffsetBuffer::new(ScalarBuffer::from(ends));
        Arc::new(LargeBinaryArray::new(ends, Buffer::from_vec(values), self.nulls.finish()))
    }

    #[inline]
    fn long(&mut self, tag: u8, value: i64) {
        let mut cell = [tag; 9];
        cell[1..].copy_from_slice(&value.to_le_bytes());
        self.values.extend_from_slice(&cell);
        self.end();
    }

    #[inline]
    fn end(&mut self) {
        self.ends.push(self.values.len() as i64);
        self.nulls.append_non_null();
    }
}

/// Returns whether a field is that of a tagged column.
pub(crate) fn is_tagged(field: &Field) -> bool {
    *field.data_type() == DataType::LargeBinary
        && field.metadata().get(EXTENSION).is_some_and(|name| name == NAME)
}

impl TaggedTarget {
    /// Returns how a tagged column is encoded for a column of type `ty`; texts are encoded as
    /// `text`.
    pub(crate) fn of(ty: &PgType, session: &SessionSettings, text: BytesTarget) -> TaggedTarget {
        let base = ty.base();
        // A type without an encoder has another binary form on some servers.
        let is_known = base.kind == TypeKind::Base && FieldEncoder::new(ty, session).is_ok();
        let native = match base.oid {
            _ if !is_known => NativeType::None,
            20 => NativeType::Int8,
            21 => NativeType::Int2,
            23 => NativeType::Int4,
            701 => NativeType::Float8,
            1082 => NativeType::Date,
            1114 => NativeType::Timestamp,
            1184 => NativeType::Timestamptz,
            _ => NativeType::None,
        };
        TaggedTarget { native, text }
    }

    /// Appends the length and the binary form of a value. Returns false if the value is left to the
    /// server.
    #[inline]
    fn append(&self, value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) -> bool {
        let Some((tag, rest)) = value.split_first() else { return false };
        if *tag == TEXT {
            return self.append_text(rest, out);
        }
        if let Some(value) = long(rest) {
            let is_copied =
                match (*tag, self.native) {
                    (INT, NativeType::Int8) => append_whole(value.to_be_bytes(), out),
                    (INT, NativeType::Int4) => i32::try_from(value)
                        .is_ok_and(|value| append_whole(value.to_be_bytes(), out)),
                    (INT, NativeType::Int2) => i16::try_from(value)
                        .is_ok_and(|value| append_whole(value.to_be_bytes(), out)),
                    (FLOAT, NativeType::Float8) => append_whole(value.to_be_bytes(), out),
                    (DATE, NativeType::Date) => append_date(value, out),
                    (TIMESTAMP, NativeType::Timestamp) | (TIMESTAMPTZ, NativeType::Timestamptz) => {
                        append_timestamp(value, out)
                    }
                    _ => false,
                };
            if is_copied {
                return true;
            }
        }
        scratch.clear();
        write_tagged(value, scratch);
        self.append_text(scratch, out)
    }

    #[inline]
    fn append_text(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        match &self.text {
            BytesTarget::Copy => append_checked_bytes(text, out),
            BytesTarget::Jsonb => append_jsonb(text, out),
            BytesTarget::Field(encoder) => encoder.encode(text, out),
            _ => false,
        }
    }
}

/// Binds a tagged column. Returns `None` for other columns.
pub(crate) fn bind<'a>(array: &'a dyn Array, to: &'a TaggedTarget) -> Option<BoundCells<'a>> {
    let values = array.as_binary_opt::<i64>()?;
    let scratch = RefCell::new(Vec::new());
    Some(BoundCells::Other(Box::new(move |row, out| {
        to.append(values.value(row), &mut scratch.borrow_mut(), out)
    })))
}

/// Returns the text writer of a tagged column. Returns `None` for other columns.
pub(crate) fn text_writer(array: &dyn Array) -> Option<AppendText<'_>> {
    let values = array.as_binary_opt::<i64>()?;
    Some(with_nulls(array, move |row, out| write_tagged(values.value(row), out)))
}

#[inline]
fn append_whole<const N: usize>(value: [u8; N], out: &mut Vec<u8>) -> bool {
    append_fixed(value, out);
    true
}

#[inline]
fn long(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_le_bytes)
}

/// Appends a number's digits; faster than `write!`.
fn write_int(value: i64, out: &mut Vec<u8>) {
    let mut text = [0; 20];
    let mut at = text.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        text[at] = b'-';
    }
    out.extend_from_slice(&text[at..]);
}

fn write_micros(micros: i64, zone: &str, out: &mut Vec<u8>) {
    let nanos = (micros.rem_euclid(1_000_000) * 1_000) as u32;
    calendar::write_timestamp(micros.div_euclid(1_000_000), nanos, ' ', zone, out);
}

#[cfg(test)]
mod tests {
    use super::super::ColumnEncoder;
    use super::*;

    const TYPES: [(u32, &str); 12] = [
        (20, "bigint"),
        (21, "smallint"),
        (23, "integer"),
        (25, "text"),
        (700, "real"),
        (701, "double precision"),
        (1082, "date"),
        (1114, "timestamp"),
        (1184, "timestamptz"),
        (1700, "numeric"),
        (3802, "jsonb"),
        (790, "money"),
    ];

    fn values() -> (ArrayRef, usize) {
        let mut values = TaggedBuilder::default();
        for int in [0, 7, -1, 32_767, 32_768, -32_769, 1 << 31, i64::MAX, i64::MIN] {
            values.int(int);
        }
        for float in [0.0, -0.0, 1.0, 2.5, 1e15, 5e-324, f64::MAX, f64::NAN, f64::NEG_INFINITY] {
            values.float(float);
        }
        for days in [0, -719_162, 2_932_896, 10_957] {
            values.date(days);
        }
        for micros in [0, 1, -1, 946_684_800_123_456, -62_135_596_800_000_000] {
            values.timestamp(micros);
            values.timestamptz(micros);
        }
        for text in ["", "12", "2.5", "12345678", "2024-02-29", "{}", "x"] {
            values.text(text);
        }
        values.null();
        let rows = values.ends.len() - 1;
        (values.finish(), rows)
    }

    fn encoder(oid: u32, name: &str, server_version: u32) -> ColumnEncoder {
        let ty = PgType { oid, name: name.to_owned(), typmod: -1, kind: TypeKind::Base };
        ColumnEncoder::new(&tagged_field("a"), &ty, &SessionSettings::of_version(server_version))
            .unwrap()
    }

    #[test]
    fn a_tagged_value_is_encoded_like_its_text() {
        let (array, rows) = values();
        for (oid, name) in TYPES {
            let tagged = encoder(oid, name, 150_000);
            let (column, text) =
                (tagged.bind(&array).unwrap(), tagged.text_writer(&array).unwrap());
            for row in 0..rows {
                let (mut out, mut text_bytes, mut expected) = (vec![], vec![], vec![]);
                let is_encoded = column.append(row, &mut out);
                let mut texts = TaggedBuilder::default();
                match text(row, &mut text_bytes) {
                    true => texts.text(std::str::from_utf8(&text_bytes).unwrap()),
                    false => texts.null(),
                }
                let texts = texts.finish();
                let is_expected = tagged.bind(&texts).unwrap().append(0, &mut expected);
                assert_eq!(is_encoded, is_expected, "{name}, row {row}: {text_bytes:?}");
                if is_encoded {
                    assert_eq!(out, expected, "{name}, row {row}");
                }
            }
        }
    }

    #[test]
    fn numbers_are_written_with_all_their_digits() {
        let (array, _) = values();
        let text = encoder(25, "text", 150_000);
        let text = text.text_writer(&array).unwrap();
        let text_of = |row| {
            let mut out = Vec::new();
            text(row, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text_of(8), "-9223372036854775808");
        assert_eq!(text_of(10), "-0");
        assert_eq!(text_of(19), "0001-01-01");
        assert_eq!(text_of(24), "1970-01-01 00:00:00.000001");
        assert_eq!(text_of(31), "0001-01-01 00:00:00+00");
    }
}

//! Columns whose values say themselves what they are: rows of programs in languages with classes.
//!
//! Such a column is bytes to Arrow: a tag, then a number, a moment or a text. What the table's
//! column holds natively is copied; anything else becomes the text by which its input function
//! takes it, so that a value means the same in every column, whatever its neighbours are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, LargeBinaryArray};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field};

use super::EXTENSION;
use super::bytes::{Bytes, put_jsonb, put_short};
use super::calendar;
use super::column::{Cells, put_date, put_micros, put4};
use super::text::{Write, write_float8, writer};
use crate::encode::field::FieldEncoder;
use crate::types::{PgType, Session, TypeKind};

/// The extension name of such a column.
const NAME: &str = "pgspate.tagged";

const TEXT: u8 = 0;
const INT: u8 = 1;
const FLOAT: u8 = 2;
const DATE: u8 = 3;
const STAMP: u8 = 4;
const INSTANT: u8 = 5;

/// What a column of the table holds as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Native {
    Int2,
    Int4,
    Int8,
    Float8,
    Date,
    Stamp,
    Instant,
    /// Nothing but text.
    None,
}

/// What the values of a column become.
#[derive(Debug, Clone)]
pub(crate) struct Tagged {
    native: Native,
    text: Bytes,
}

/// Makes the column of a batch, value by value.
#[derive(Debug)]
pub struct TaggedBuilder {
    values: Vec<u8>,
    ends: Vec<i64>,
    nulls: NullBufferBuilder,
}

/// The field of such a column.
pub fn tagged_field(name: &str) -> Field {
    let metadata = HashMap::from([(EXTENSION.to_owned(), NAME.to_owned())]);
    Field::new(name, DataType::LargeBinary, true).with_metadata(metadata)
}

/// Appends the text of a value of such a column, as its column's input function takes it.
pub fn write_tagged(value: &[u8], out: &mut Vec<u8>) {
    let Some((tag, rest)) = value.split_first() else { return };
    match (*tag, long(rest)) {
        (INT, Some(value)) => write_int(value, out),
        (FLOAT, Some(bits)) => write_float8(f64::from_bits(bits as u64), out),
        (DATE, Some(days)) => drop(calendar::write_date(days, out)),
        (STAMP, Some(micros)) => write_micros(micros, "", out),
        (INSTANT, Some(micros)) => write_micros(micros, "+00", out),
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

    /// Appends a text as the column's input function takes it.
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

    /// Appends a double, which is spelled by its shortest digits.
    #[inline]
    pub fn float(&mut self, value: f64) {
        self.long(FLOAT, value.to_bits() as i64);
    }

    /// Appends a date, in days since 1970.
    #[inline]
    pub fn date(&mut self, days: i64) {
        self.long(DATE, days);
    }

    /// Appends a moment without a zone, in microseconds since 1970.
    #[inline]
    pub fn stamp(&mut self, micros: i64) {
        self.long(STAMP, micros);
    }

    /// Appends a moment of all zones, in microseconds since 1970 in UTC.
    #[inline]
    pub fn instant(&mut self, micros: i64) {
        self.long(INSTANT, micros);
    }

    /// Bytes of the values so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The column, of as many rows as values were appended. The next one is begun.
    pub fn finish(&mut self) -> ArrayRef {
        // The next batch will be about as large: what it grows by is not copied then.
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

/// Whether a field is of such a column.
pub(crate) fn is_tagged(field: &Field) -> bool {
    *field.data_type() == DataType::LargeBinary
        && field.metadata().get(EXTENSION).is_some_and(|name| name == NAME)
}

impl Tagged {
    /// What a column becomes for a column of type `ty`, whose texts become `text`.
    pub(crate) fn of(ty: &PgType, session: &Session, text: Bytes) -> Tagged {
        let base = ty.base();
        // A type without an encoder has other binary forms on some servers.
        let is_known = base.kind == TypeKind::Base && FieldEncoder::new(ty, session).is_ok();
        let native = match base.oid {
            _ if !is_known => Native::None,
            20 => Native::Int8,
            21 => Native::Int2,
            23 => Native::Int4,
            701 => Native::Float8,
            1082 => Native::Date,
            1114 => Native::Stamp,
            1184 => Native::Instant,
            _ => Native::None,
        };
        Tagged { native, text }
    }

    /// Appends the length and the binary form of a value, or says no.
    #[inline]
    fn put(&self, value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) -> bool {
        let Some((tag, rest)) = value.split_first() else { return false };
        if *tag == TEXT {
            return self.put_text(rest, out);
        }
        if let Some(value) = long(rest) {
            let is_whole = match (*tag, self.native) {
                (INT, Native::Int8) => put(value.to_be_bytes(), out),
                (INT, Native::Int4) => {
                    i32::try_from(value).is_ok_and(|value| put(value.to_be_bytes(), out))
                }
                (INT, Native::Int2) => {
                    i16::try_from(value).is_ok_and(|value| put(value.to_be_bytes(), out))
                }
                (FLOAT, Native::Float8) => put(value.to_be_bytes(), out),
                (DATE, Native::Date) => put_date(value, out),
                (STAMP, Native::Stamp) | (INSTANT, Native::Instant) => put_micros(value, out),
                _ => false,
            };
            if is_whole {
                return true;
            }
        }
        scratch.clear();
        write_tagged(value, scratch);
        self.put_text(scratch, out)
    }

    #[inline]
    fn put_text(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        match &self.text {
            Bytes::Copy => put_short(text, out),
            Bytes::Jsonb => put_jsonb(text, out),
            Bytes::Field(encoder) => encoder.encode(text, out),
            _ => false,
        }
    }
}

/// Binds such a column. `None` when it is not one.
pub(crate) fn bind<'a>(array: &'a dyn Array, to: &'a Tagged) -> Option<Cells<'a>> {
    let values = array.as_binary_opt::<i64>()?;
    let scratch = RefCell::new(Vec::new());
    Some(Cells::Other(Box::new(move |row, out| {
        to.put(values.value(row), &mut scratch.borrow_mut(), out)
    })))
}

/// The text of such a column. `None` when it is not one.
pub(crate) fn text(array: &dyn Array) -> Option<Write<'_>> {
    let values = array.as_binary_opt::<i64>()?;
    Some(writer(array, move |row, out| write_tagged(values.value(row), out)))
}

#[inline]
fn put<const N: usize>(value: [u8; N], out: &mut Vec<u8>) -> bool {
    put4(value, out);
    true
}

#[inline]
fn long(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_le_bytes)
}

/// Appends a number's digits, without what `write!` does besides.
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
    calendar::write_stamp(micros.div_euclid(1_000_000), nanos, ' ', zone, out);
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
            values.stamp(micros);
            values.instant(micros);
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
        ColumnEncoder::new(&tagged_field("a"), &ty, &Session::of_version(server_version)).unwrap()
    }

    #[test]
    fn a_value_becomes_what_its_text_would() {
        let (array, rows) = values();
        for (oid, name) in TYPES {
            let tagged = encoder(oid, name, 150_000);
            let (put, text) = (tagged.bind(&array).unwrap(), tagged.text(&array).unwrap());
            for row in 0..rows {
                let (mut out, mut spelled, mut meant) = (vec![], vec![], vec![]);
                let is_put = put.put(row, &mut out);
                let mut texts = TaggedBuilder::default();
                match text(row, &mut spelled) {
                    true => texts.text(std::str::from_utf8(&spelled).unwrap()),
                    false => texts.null(),
                }
                let texts = texts.finish();
                let is_meant = tagged.bind(&texts).unwrap().put(0, &mut meant);
                assert_eq!(is_put, is_meant, "{name}, row {row}: {spelled:?}");
                if is_put {
                    assert_eq!(out, meant, "{name}, row {row}");
                }
            }
        }
    }

    #[test]
    fn numbers_are_spelled_with_all_their_digits() {
        let (array, _) = values();
        let text = encoder(25, "text", 150_000);
        let text = text.text(&array).unwrap();
        let spelled = |row| {
            let mut out = Vec::new();
            text(row, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(spelled(8), "-9223372036854775808");
        assert_eq!(spelled(10), "-0");
        assert_eq!(spelled(19), "0001-01-01");
        assert_eq!(spelled(24), "1970-01-01 00:00:00.000001");
        assert_eq!(spelled(31), "0001-01-01 00:00:00+00");
    }
}

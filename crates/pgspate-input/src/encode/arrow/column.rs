//! A column of one record batch, bound to its encoder: row number in, binary COPY value out.
//!
//! Downcasts, null masks and scales are looked up once per batch. The commonest pairs of types are
//! arms of one `match`, which a row-wise loop over the columns predicts and inlines; the others
//! are closures.

use arrow_buffer::{Buffer, NullBuffer};

use super::numeric::{self, Scale};
use super::text::Write;

/// Days from 1970-01-01 to 2000-01-01, where PostgreSQL counts from.
pub(crate) const EPOCH_DAYS: i64 = 10_957;
/// The same in microseconds.
pub(crate) const EPOCH_MICROS: i64 = EPOCH_DAYS * 86_400_000_000;
/// The first and the last date of PostgreSQL, in its own days: 4714-11-24 BC to 5874897-12-31.
pub(crate) const DATES: std::ops::RangeInclusive<i64> = -2_451_545..=2_145_031_948;
/// The first and the last timestamp of PostgreSQL, in its own microseconds.
pub(crate) const STAMPS: std::ops::RangeInclusive<i64> =
    -211_813_488_000_000_000..=9_223_371_331_199_999_999;

/// Appends the length and the binary form of a row's value, or says no.
pub(crate) type Put<'a> = Box<dyn Fn(usize, &mut Vec<u8>) -> bool + 'a>;

/// One column of one record batch.
pub struct Column<'a> {
    pub(crate) nulls: Option<&'a NullBuffer>,
    pub(crate) cells: Cells<'a>,
}

/// How the values lie in the batch and what they become.
pub(crate) enum Cells<'a> {
    /// int2 from 16 bits.
    Int2(&'a [i16]),
    /// int4 from 32 bits.
    Int4(&'a [i32]),
    /// int8 from 64 bits.
    Int8(&'a [i64]),
    /// float8 from 64 bits.
    Float8(&'a [f64]),
    /// date from days since 1970.
    Date(&'a [i32]),
    /// timestamp or timestamptz from microseconds since 1970.
    Micros(&'a [i64]),
    /// numeric from 128 bits.
    Decimal(&'a [i128], Scale),
    /// Bytes as they are, in one piece with offsets.
    Bytes(&'a [i32], &'a [u8]),
    /// Bytes as they are, as views.
    Views(&'a [u128], &'a [Buffer]),
    /// Another column's values: the row of each, -1 for NULL.
    Keyed(Vec<i64>, Box<Column<'a>>),
    /// NULL in every row.
    Null,
    /// Everything else.
    Other(Put<'a>),
    /// Nothing but NULL is encoded here: the server reads the text.
    Server(Write<'a>),
}

impl Column<'_> {
    /// Appends the length (int32, -1 for NULL) and the binary form of the value of `row`. When it
    /// returns false the value is left to the server, and what was appended is void.
    ///
    /// # Panics
    /// When the batch has no such row.
    #[inline]
    pub fn put(&self, row: usize, out: &mut Vec<u8>) -> bool {
        if let Some(nulls) = self.nulls
            && nulls.is_null(row)
        {
            put_null(out);
            return true;
        }
        match &self.cells {
            Cells::Int2(values) => put4(values[row].to_be_bytes(), out),
            Cells::Int4(values) => put4(values[row].to_be_bytes(), out),
            Cells::Int8(values) => put4(values[row].to_be_bytes(), out),
            Cells::Float8(values) => put4(values[row].to_be_bytes(), out),
            Cells::Date(values) => return put_date(i64::from(values[row]), out),
            Cells::Micros(values) => return put_micros(values[row], out),
            Cells::Decimal(values, scale) => put_decimal(values[row], *scale, out),
            Cells::Bytes(offsets, data) => {
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                put_bytes(&data[start..end], out);
            }
            Cells::Views(views, buffers) => put_view(views[row], buffers, out),
            Cells::Keyed(keys, values) => match keys[row] {
                -1 => put_null(out),
                key => return values.put(key as usize, out),
            },
            Cells::Null => put_null(out),
            Cells::Other(put) => return put(row, out),
            Cells::Server(write) => {
                // Whether there is a value is all that matters; the row's text is made elsewhere.
                let start = out.len();
                let some = write(row, out);
                out.truncate(start);
                if !some {
                    put_null(out);
                }
                return !some;
            }
        }
        true
    }
}

#[inline]
pub(crate) fn put_null(out: &mut Vec<u8>) {
    out.extend_from_slice(&(-1i32).to_be_bytes());
}

/// Appends the length of `N` bytes, then the bytes, as one copy.
#[inline]
pub(crate) fn put4<const N: usize>(bytes: [u8; N], out: &mut Vec<u8>) {
    let mut cell = [0u8; 12];
    cell[..4].copy_from_slice(&(N as u32).to_be_bytes());
    cell[4..4 + N].copy_from_slice(&bytes);
    out.extend_from_slice(&cell[..4 + N]);
}

/// Appends a date given in days since 1970; false where PostgreSQL has no such date.
#[inline]
pub(crate) fn put_date(days: i64, out: &mut Vec<u8>) -> bool {
    let days = days - EPOCH_DAYS;
    if !DATES.contains(&days) {
        return false;
    }
    put4((days as i32).to_be_bytes(), out);
    true
}

/// Appends a timestamp given in microseconds since 1970; false where PostgreSQL has none such.
#[inline]
pub(crate) fn put_micros(micros: i64, out: &mut Vec<u8>) -> bool {
    match micros.checked_sub(EPOCH_MICROS) {
        Some(micros) if STAMPS.contains(&micros) => {
            put4(micros.to_be_bytes(), out);
            true
        }
        _ => false,
    }
}

#[inline]
pub(crate) fn put_decimal(value: i128, scale: Scale, out: &mut Vec<u8>) {
    let mag = value.unsigned_abs();
    match u64::try_from(mag) {
        Ok(mag) => numeric::put_u64(value < 0, mag, scale, out),
        Err(_) => numeric::put_u128(value < 0, mag, scale, out),
    }
}

/// Appends a value's length and its bytes. Callers see to it that the length fits 31 bits.
#[inline]
pub(crate) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a string or binary view. Values of up to twelve bytes stand in the view itself: they
/// are copied with their unused bytes, which takes no call, and then cut.
#[inline]
fn put_view(view: u128, buffers: &[Buffer], out: &mut Vec<u8>) {
    let len = view as u32;
    if len <= 12 {
        let mut cell = view.to_le_bytes();
        cell[..4].copy_from_slice(&len.to_be_bytes());
        let end = out.len() + 4 + len as usize;
        out.extend_from_slice(&cell);
        out.truncate(end);
        return;
    }
    let buffer = &buffers[(view >> 64) as u32 as usize];
    let start = (view >> 96) as usize;
    put_bytes(&buffer[start..start + len as usize], out);
}

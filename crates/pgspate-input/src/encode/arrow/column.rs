//! A column of one record batch, bound to its encoder: turns a row number into a binary COPY value.
//!
//! Downcasts, null masks and scales are looked up once per batch. The most frequent pairs of types
//! are arms of one `match`, which the loop over rows predicts and inlines. All other pairs are
//! closures.

use arrow_buffer::{Buffer, NullBuffer};

use super::numeric::{self, DecimalScale};
use super::text::AppendText;

/// Days from 1970-01-01 (Arrow's epoch) to 2000-01-01 (PostgreSQL's epoch).
pub(crate) const EPOCH_DAYS: i64 = 10_957;
/// Microseconds from Arrow's epoch to PostgreSQL's epoch.
pub(crate) const EPOCH_MICROS: i64 = EPOCH_DAYS * 86_400_000_000;
/// PostgreSQL's range of dates, in days since 2000-01-01: 4714-11-24 BC to 5874897-12-31.
pub(crate) const DATES: std::ops::RangeInclusive<i64> = -2_451_545..=2_145_031_948;
/// PostgreSQL's range of timestamps, in microseconds since 2000-01-01.
pub(crate) const TIMESTAMPS: std::ops::RangeInclusive<i64> =
    -211_813_488_000_000_000..=9_223_371_331_199_999_999;

/// Appends the length and the binary form of a row's value. Returns false if the value is left to
/// the server.
pub(crate) type AppendBinary<'a> = Box<dyn Fn(usize, &mut Vec<u8>) -> bool + 'a>;

/// One column of one record batch, bound to its encoder.
pub struct BoundColumn<'a> {
    pub(crate) nulls: Option<&'a NullBuffer>,
    pub(crate) cells: BoundCells<'a>,
}

/// The values of a column in the batch, together with their target type.
pub(crate) enum BoundCells<'a> {
    /// 16-bit integers for int2.
    Int2(&'a [i16]),
    /// 32-bit integers for int4.
    Int4(&'a [i32]),
    /// 64-bit integers for int8.
    Int8(&'a [i64]),
    /// 64-bit floats for float8.
    Float8(&'a [f64]),
    /// Days since 1970 for date.
    Date(&'a [i32]),
    /// Microseconds since 1970 for timestamp or timestamptz.
    Timestamp(&'a [i64]),
    /// 128-bit decimals for numeric.
    Decimal(&'a [i128], DecimalScale),
    /// Strings or bytes that are copied unchanged: offsets and data.
    Bytes(&'a [i32], &'a [u8]),
    /// Strings or bytes that are copied unchanged: views and buffers.
    Views(&'a [u128], &'a [Buffer]),
    /// Dictionary or run-end encoded values: for each row, the row of its value, or -1 for NULL.
    Dictionary(Vec<i64>, Box<BoundColumn<'a>>),
    /// NULL in every row.
    Null,
    /// All other pairs of types.
    Other(AppendBinary<'a>),
    /// Only NULL is encoded. All other values are left to the server, as this text.
    Server(AppendText<'a>),
}

impl BoundColumn<'_> {
    /// Appends the length (int32, -1 for NULL) and the binary form of the value in `row`. Returns
    /// false if the value is left to the server; the caller then truncates `out` to its former
    /// length.
    ///
    /// # Panics
    /// Panics if the batch has no row `row`.
    #[inline]
    pub fn append(&self, row: usize, out: &mut Vec<u8>) -> bool {
        if let Some(nulls) = self.nulls
            && nulls.is_null(row)
        {
            append_null(out);
            return true;
        }
        match &self.cells {
            BoundCells::Int2(values) => append_fixed(values[row].to_be_bytes(), out),
            BoundCells::Int4(values) => append_fixed(values[row].to_be_bytes(), out),
            BoundCells::Int8(values) => append_fixed(values[row].to_be_bytes(), out),
            BoundCells::Float8(values) => append_fixed(values[row].to_be_bytes(), out),
            BoundCells::Date(values) => return append_date(i64::from(values[row]), out),
            BoundCells::Timestamp(values) => return append_timestamp(values[row], out),
            BoundCells::Decimal(values, scale) => append_decimal(values[row], *scale, out),
            BoundCells::Bytes(offsets, data) => {
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                append_bytes(&data[start..end], out);
            }
            BoundCells::Views(views, buffers) => append_view(views[row], buffers, out),
            BoundCells::Dictionary(keys, values) => match keys[row] {
                -1 => append_null(out),
                key => return values.append(key as usize, out),
            },
            BoundCells::Null => append_null(out),
            BoundCells::Other(append) => return append(row, out),
            BoundCells::Server(write) => {
                // Only NULL is encoded here. The text of other values is written elsewhere.
                let start = out.len();
                let has_value = write(row, out);
                out.truncate(start);
                if !has_value {
                    append_null(out);
                }
                return !has_value;
            }
        }
        true
    }
}

/// Appends NULL.
#[inline]
pub(crate) fn append_null(out: &mut Vec<u8>) {
    out.extend_from_slice(&(-1i32).to_be_bytes());
}

/// Appends the length of `N` bytes, then the bytes, as one copy.
#[inline]
pub(crate) fn append_fixed<const N: usize>(bytes: [u8; N], out: &mut Vec<u8>) {
    let mut cell = [0u8; 12];
    cell[..4].copy_from_slice(&(N as u32).to_be_bytes());
    cell[4..4 + N].copy_from_slice(&bytes);
    out.extend_from_slice(&cell[..4 + N]);
}

/// Appends a date given in days since 1970. Returns false if the date is out of PostgreSQL's range.
#[inline]
pub(crate) fn append_date(days: i64, out: &mut Vec<u8>) -> bool {
    let days = days - EPOCH_DAYS;
    if !DATES.contains(&days) {
        return false;
    }
    append_fixed((days as i32).to_be_bytes(), out);
    true
}

/// Microseconds that are no time: DuckDB exports `infinity` as the largest number, and Arrow has no
/// infinite timestamps.
pub(crate) const INFINITE_MICROS: i64 = i64::MAX;

/// Appends a timestamp given in microseconds since 1970. Returns false if the timestamp is out of
/// PostgreSQL's range, or is [`INFINITE_MICROS`].
#[inline]
pub(crate) fn append_timestamp(micros: i64, out: &mut Vec<u8>) -> bool {
    match micros.checked_sub(EPOCH_MICROS) {
        Some(since) if TIMESTAMPS.contains(&since) && micros != INFINITE_MICROS => {
            append_fixed(since.to_be_bytes(), out);
            true
        }
        _ => false,
    }
}

/// Appends a decimal as a numeric.
#[inline]
pub(crate) fn append_decimal(value: i128, scale: DecimalScale, out: &mut Vec<u8>) {
    let magnitude = value.unsigned_abs();
    match u64::try_from(magnitude) {
        Ok(magnitude) => numeric::append_u64(value < 0, magnitude, scale, out),
        Err(_) => numeric::append_u128(value < 0, magnitude, scale, out),
    }
}

/// Appends a value's length and its bytes. The caller ensures that the length fits 31 bits.
#[inline]
pub(crate) fn append_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a string or binary view. A view contains values of up to twelve bytes itself. Such a
/// value is copied with the unused bytes, which needs no call, and then truncated.
#[inline]
fn append_view(view: u128, buffers: &[Buffer], out: &mut Vec<u8>) {
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
    append_bytes(&buffer[start..start + len as usize], out);
}

//! Writes the values of Arrow columns as text for PostgreSQL's input functions.
//!
//! Used for rows that are left to the server, and for types whose only exact encoder reads text.
//! The text never loses precision: nine digits of a second stay nine digits.

use std::fmt::Display;
use std::io::Write as _;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_buffer::i256;
use arrow_schema::{DataType, IntervalUnit, TimeUnit};

use super::calendar;
use super::column::INFINITE_MICROS;

/// A function that appends a row's value as unescaped text. It returns false for NULL.
pub type AppendText<'a> = Box<dyn Fn(usize, &mut Vec<u8>) -> bool + 'a>;

/// Returns the text writer of a scalar column. Returns `None` for nested types.
pub fn scalar_writer(array: &dyn Array) -> Option<AppendText<'_>> {
    use DataType as D;
    Some(match array.data_type() {
        D::Null => Box::new(|_, _| false),
        D::Boolean => {
            let values = array.as_boolean();
            with_nulls(array, move |row, out| {
                out.extend_from_slice(if values.value(row) { b"true" } else { b"false" });
            })
        }
        D::Int8 => int_writer::<Int8Type>(array),
        D::Int16 => int_writer::<Int16Type>(array),
        D::Int32 => int_writer::<Int32Type>(array),
        D::Int64 => int_writer::<Int64Type>(array),
        D::UInt8 => int_writer::<UInt8Type>(array),
        D::UInt16 => int_writer::<UInt16Type>(array),
        D::UInt32 => int_writer::<UInt32Type>(array),
        D::UInt64 => int_writer::<UInt64Type>(array),
        D::Float16 => float_writer::<Float16Type>(array, |v, out| write_float4(v.to_f32(), out)),
        D::Float32 => float_writer::<Float32Type>(array, write_float4),
        D::Float64 => float_writer::<Float64Type>(array, write_float8),
        D::Decimal32(_, scale) => decimal_writer::<Decimal32Type>(array, *scale),
        D::Decimal64(_, scale) => decimal_writer::<Decimal64Type>(array, *scale),
        D::Decimal128(_, scale) => decimal_writer::<Decimal128Type>(array, *scale),
        D::Decimal256(_, scale) => decimal_writer::<Decimal256Type>(array, *scale),
        D::Date32 | D::Date64 | D::Time32(_) | D::Time64(_) | D::Timestamp(..) => {
            date_time_writer(array, ' ', "+00")?
        }
        D::Duration(_) | D::Interval(_) => interval_writer(array)?,
        D::Utf8
        | D::LargeUtf8
        | D::Utf8View
        | D::Binary
        | D::LargeBinary
        | D::BinaryView
        | D::FixedSizeBinary(_) => {
            let bytes = byte_values(array)?;
            with_nulls(array, move |row, out| out.extend_from_slice(bytes(row)))
        }
        _ => return None,
    })
}

/// Returns a writer that returns false for NULL, and otherwise writes the value with `write`.
pub fn with_nulls<'a>(
    array: &'a dyn Array,
    write: impl Fn(usize, &mut Vec<u8>) + 'a,
) -> AppendText<'a> {
    let nulls = array.nulls();
    Box::new(move |row, out| {
        if nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return false;
        }
        write(row, out);
        true
    })
}

/// Returns access to the bytes of each row in a column of strings or bytes.
pub fn byte_values<'a>(array: &'a dyn Array) -> Option<Box<dyn Fn(usize) -> &'a [u8] + 'a>> {
    Some(match array.data_type() {
        DataType::Utf8 => {
            let values = array.as_string::<i32>();
            Box::new(|row| values.value(row).as_bytes())
        }
        DataType::LargeUtf8 => {
            let values = array.as_string::<i64>();
            Box::new(|row| values.value(row).as_bytes())
        }
        DataType::Utf8View => {
            let values = array.as_string_view();
            Box::new(|row| values.value(row).as_bytes())
        }
        DataType::Binary => {
            let values = array.as_binary::<i32>();
            Box::new(|row| values.value(row))
        }
        DataType::LargeBinary => {
            let values = array.as_binary::<i64>();
            Box::new(|row| values.value(row))
        }
        DataType::BinaryView => {
            let values = array.as_binary_view();
            Box::new(|row| values.value(row))
        }
        DataType::FixedSizeBinary(_) => {
            let values = array.as_fixed_size_binary();
            Box::new(|row| values.value(row))
        }
        _ => return None,
    })
}

fn int_writer<T: ArrowPrimitiveType<Native: Display>>(array: &dyn Array) -> AppendText<'_> {
    let values = array.as_primitive::<T>().values();
    with_nulls(array, move |row, out| {
        let _ = write!(out, "{}", values[row]);
    })
}

fn float_writer<'a, T: ArrowPrimitiveType>(
    array: &'a dyn Array,
    format_value: impl Fn(T::Native, &mut Vec<u8>) + 'a,
) -> AppendText<'a> {
    let values = array.as_primitive::<T>().values();
    with_nulls(array, move |row, out| format_value(values[row], out))
}

fn decimal_writer<T: ArrowPrimitiveType<Native: Display>>(
    array: &dyn Array,
    scale: i8,
) -> AppendText<'_> {
    let values = array.as_primitive::<T>().values();
    with_nulls(array, move |row, out| write_decimal(&values[row].to_string(), scale.into(), out))
}

/// Appends the digits of a whole number, with a point before the last `scale` digits.
pub fn write_decimal(digits: &str, scale: i32, out: &mut Vec<u8>) {
    let digits = match digits.strip_prefix('-') {
        Some(rest) => {
            out.push(b'-');
            rest
        }
        None => digits,
    };
    if scale <= 0 {
        out.extend_from_slice(digits.as_bytes());
        if digits != "0" {
            out.resize(out.len() + scale.unsigned_abs() as usize, b'0');
        }
        return;
    }
    let scale = scale as usize;
    let padded = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = padded.split_at(padded.len() - scale);
    let _ = write!(out, "{whole}.{fraction}");
}

/// Appends a float8 as PostgreSQL prints a float8: with the fewest digits that give the same value.
pub fn write_float8(value: f64, out: &mut Vec<u8>) {
    write_float(value, &format!("{value:e}"), 15, out);
}

/// Appends a float4 as PostgreSQL prints a float4.
pub(crate) fn write_float4(value: f32, out: &mut Vec<u8>) {
    write_float(value.into(), &format!("{value:e}"), 6, out);
}

/// Appends `shortest`, which has the form `d.dde-d`, as `ddd.d`. From 10^`large` on and below
/// 10^-4, writes `d.dde-dd`.
fn write_float(value: f64, shortest: &str, large: i32, out: &mut Vec<u8>) {
    if !value.is_finite() {
        let name: &[u8] = match value {
            v if v.is_nan() => b"NaN",
            v if v > 0.0 => b"Infinity",
            _ => b"-Infinity",
        };
        return out.extend_from_slice(name);
    }
    let Some((digits, exponent)) = shortest.split_once('e') else {
        return out.extend_from_slice(shortest.as_bytes());
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= large {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.abs());
        return;
    }
    let whole: String = digits.chars().filter(|digit| *digit != '.').collect();
    let after = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let scale = after as i32 - exponent;
    match whole.trim_start_matches('-') {
        "0" => out.extend_from_slice(whole.as_bytes()),
        _ => write_decimal(&whole, scale, out),
    }
}

/// Returns the text writer of dates, times and timestamps. Timestamps have `between` before the
/// time. Timestamps with a time zone end with `zone`.
pub(crate) fn date_time_writer<'a>(
    array: &'a dyn Array,
    between: char,
    zone: &'static str,
) -> Option<AppendText<'a>> {
    let data_type = array.data_type().clone();
    let values = i64_values(array)?;
    let per_second = match &data_type {
        DataType::Date32 => {
            return Some(with_nulls(array, move |row, out| {
                if calendar::write_date(values(row), out) {
                    out.extend_from_slice(b" BC");
                }
            }));
        }
        DataType::Date64 => 1_000,
        DataType::Time32(unit) | DataType::Time64(unit) | DataType::Timestamp(unit, _) => {
            per_second(*unit)
        }
        _ => return None,
    };
    let zone = if matches!(data_type, DataType::Timestamp(_, Some(_))) { zone } else { "" };
    let is_time = matches!(data_type, DataType::Time32(_) | DataType::Time64(_));
    Some(with_nulls(array, move |row, out| {
        let mut value = values(row);
        if is_time && value < 0 {
            // No column of times takes a sign, so the server refuses the value.
            out.push(b'-');
            value = value.saturating_neg();
        }
        // The server would accept a time in the year 294247. It refuses so many seconds.
        let is_infinite = value == INFINITE_MICROS && per_second == 1_000_000;
        let per_second = if is_infinite { 1 } else { per_second };
        let secs = value.div_euclid(per_second);
        let nanos = (value.rem_euclid(per_second) * (1_000_000_000 / per_second)) as u32;
        match is_time {
            true => calendar::write_time(secs, nanos, out),
            false => calendar::write_timestamp(secs, nanos, between, zone, out),
        }
    }))
}

/// Returns the text writer of durations and intervals, in the format that PostgreSQL prints.
fn interval_writer(array: &dyn Array) -> Option<AppendText<'_>> {
    Some(match array.data_type() {
        DataType::Duration(unit) => {
            let nanos = i128::from(1_000_000_000 / per_second(*unit));
            let values = i64_values(array)?;
            with_nulls(array, move |row, out| {
                calendar::write_interval(0, 0, i128::from(values(row)) * nanos, out);
            })
        }
        DataType::Interval(IntervalUnit::YearMonth) => {
            let values = array.as_primitive::<IntervalYearMonthType>().values();
            with_nulls(array, move |row, out| {
                calendar::write_interval(values[row].into(), 0, 0, out);
            })
        }
        DataType::Interval(IntervalUnit::DayTime) => {
            let values = array.as_primitive::<IntervalDayTimeType>().values();
            with_nulls(array, move |row, out| {
                let value = values[row];
                let nanos = i128::from(value.milliseconds) * 1_000_000;
                calendar::write_interval(0, value.days.into(), nanos, out);
            })
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let values = array.as_primitive::<IntervalMonthDayNanoType>().values();
            with_nulls(array, move |row, out| {
                let value = values[row];
                let (months, days) = (value.months.into(), value.days.into());
                calendar::write_interval(months, days, value.nanoseconds.into(), out);
            })
        }
        _ => return None,
    })
}

/// Returns access to the values of a date, time, timestamp or duration column as 64-bit integers.
pub(crate) fn i64_values<'a>(array: &'a dyn Array) -> Option<Box<dyn Fn(usize) -> i64 + 'a>> {
    fn wide<'a, T: ArrowPrimitiveType<Native: Into<i64>>>(
        array: &'a dyn Array,
    ) -> Box<dyn Fn(usize) -> i64 + 'a> {
        let values = array.as_primitive::<T>().values();
        Box::new(move |row| values[row].into())
    }
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    Some(match array.data_type() {
        DataType::Date32 => wide::<Date32Type>(array),
        DataType::Date64 => wide::<Date64Type>(array),
        DataType::Time32(Second) => wide::<Time32SecondType>(array),
        DataType::Time32(Millisecond) => wide::<Time32MillisecondType>(array),
        DataType::Time64(Microsecond) => wide::<Time64MicrosecondType>(array),
        DataType::Time64(Nanosecond) => wide::<Time64NanosecondType>(array),
        DataType::Timestamp(Second, _) => wide::<TimestampSecondType>(array),
        DataType::Timestamp(Millisecond, _) => wide::<TimestampMillisecondType>(array),
        DataType::Timestamp(Microsecond, _) => wide::<TimestampMicrosecondType>(array),
        DataType::Timestamp(Nanosecond, _) => wide::<TimestampNanosecondType>(array),
        DataType::Duration(Second) => wide::<DurationSecondType>(array),
        DataType::Duration(Millisecond) => wide::<DurationMillisecondType>(array),
        DataType::Duration(Microsecond) => wide::<DurationMicrosecondType>(array),
        DataType::Duration(Nanosecond) => wide::<DurationNanosecondType>(array),
        _ => return None,
    })
}

/// Returns how many of these units a second has.
pub(crate) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Splits a 256-bit integer into its sign and the limbs of its magnitude, the least significant
/// first.
pub(crate) fn split_limbs(value: i256) -> (bool, [u64; 4]) {
    let (low, high) = value.wrapping_abs().to_parts();
    let high = high as u128;
    let limbs = [low as u64, (low >> 64) as u64, high as u64, (high >> 64) as u64];
    (value.is_negative(), limbs)
}

/// Appends bytes as `\x0a0b`.
pub fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\\x");
    for byte in bytes {
        out.extend([byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]));
    }
}

/// Appends sixteen bytes as the text of a UUID.
pub(crate) fn write_uuid(bytes: &[u8], out: &mut Vec<u8>) {
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        let _ = write!(out, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_the_server_prints_them() {
        let format_value = |value| {
            let mut out = Vec::new();
            write_float8(value, &mut out);
            String::from_utf8(out).unwrap()
        };
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (123456.0, "123456"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(format_value(value), text);
        }
    }

    #[test]
    fn decimals_keep_their_scale() {
        let format_value = |digits, scale| {
            let mut out = Vec::new();
            write_decimal(digits, scale, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(format_value("150", 2), "1.50");
        assert_eq!(format_value("-1", 9), "-0.000000001");
        assert_eq!(format_value("0", 2), "0.00");
        assert_eq!(format_value("12", -3), "12000");
        assert_eq!(format_value("0", -3), "0");
    }
}

//! Encodes Arrow integers, floats and decimals for PostgreSQL's numeric types.
//!
//! The type of the table's column decides. Values that this type cannot hold exactly (a fraction
//! for an integer, a number out of range) are left to the server, which rejects them with its own
//! message. A float becomes a numeric with the float's shortest digits. A float4 becomes a float8
//! by value, as in PostgreSQL's own cast.

use std::io::Write as _;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_buffer::i256;
use arrow_schema::DataType;

use super::column::{AppendBinary, BoundCells, append_decimal, append_fixed};
use super::numeric::{self, DecimalScale};
use super::text::{
    AppendText, scalar_writer, split_limbs, with_nulls, write_decimal, write_float4, write_float8,
};

/// PostgreSQL's numeric types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberType {
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
    /// numeric, and whether the server supports infinity (PostgreSQL 14 and later).
    Numeric(bool),
}

impl NumberType {
    pub(crate) fn of(oid: u32, server_version: u32) -> Option<NumberType> {
        Some(match oid {
            21 => NumberType::Int2,
            23 => NumberType::Int4,
            20 => NumberType::Int8,
            26 => NumberType::Oid,
            700 => NumberType::Float4,
            701 => NumberType::Float8,
            1700 => NumberType::Numeric(server_version >= 140_000),
            _ => return None,
        })
    }
}

/// Binds a column of numbers. Returns `None` for other columns.
pub(crate) fn bind(array: &dyn Array, to: NumberType) -> Option<BoundCells<'_>> {
    use DataType as D;
    Some(match (array.data_type(), to) {
        (D::Int16, NumberType::Int2) => {
            BoundCells::Int2(array.as_primitive::<Int16Type>().values())
        }
        (D::Int32, NumberType::Int4) => {
            BoundCells::Int4(array.as_primitive::<Int32Type>().values())
        }
        (D::Int64, NumberType::Int8) => {
            BoundCells::Int8(array.as_primitive::<Int64Type>().values())
        }
        (D::Float64, NumberType::Float8) => {
            BoundCells::Float8(array.as_primitive::<Float64Type>().values())
        }
        (D::Decimal128(_, scale), NumberType::Numeric(_)) => {
            let values = array.as_primitive::<Decimal128Type>().values();
            BoundCells::Decimal(values, DecimalScale::new((*scale).into())?)
        }
        (D::Int8, _) => bind_ints::<Int8Type>(array, to),
        (D::Int16, _) => bind_ints::<Int16Type>(array, to),
        (D::Int32, _) => bind_ints::<Int32Type>(array, to),
        (D::Int64, _) => bind_ints::<Int64Type>(array, to),
        (D::UInt8, _) => bind_ints::<UInt8Type>(array, to),
        (D::UInt16, _) => bind_ints::<UInt16Type>(array, to),
        (D::UInt32, _) => bind_ints::<UInt32Type>(array, to),
        (D::UInt64, _) => bind_ints::<UInt64Type>(array, to),
        (D::Float16, _) => {
            let values = array.as_primitive::<Float16Type>().values();
            BoundCells::Other(Box::new(move |row, out| {
                append_float4(values[row].to_f32(), to, out)
            }))
        }
        (D::Float32, _) => {
            let values = array.as_primitive::<Float32Type>().values();
            BoundCells::Other(Box::new(move |row, out| append_float4(values[row], to, out)))
        }
        (D::Float64, _) => {
            let values = array.as_primitive::<Float64Type>().values();
            BoundCells::Other(Box::new(move |row, out| append_float8(values[row], to, out)))
        }
        (D::Decimal32(_, scale), _) => bind_decimals::<Decimal32Type>(array, *scale, to)?,
        (D::Decimal64(_, scale), _) => bind_decimals::<Decimal64Type>(array, *scale, to)?,
        (D::Decimal128(_, scale), _) => bind_decimals::<Decimal128Type>(array, *scale, to)?,
        (D::Decimal256(_, scale), _) => BoundCells::Other(bind_decimals_256(array, *scale, to)?),
        _ => return None,
    })
}

/// Returns the text writer of a column of numbers. The server reads each text as the value that
/// [`bind`] encodes.
pub(crate) fn text_writer(array: &dyn Array, to: NumberType) -> Option<AppendText<'_>> {
    use DataType as D;
    let is_int =
        matches!(to, NumberType::Int2 | NumberType::Int4 | NumberType::Int8 | NumberType::Oid);
    match array.data_type() {
        D::Float16 | D::Float32 | D::Float64 if is_int || to == NumberType::Float4 => {
            let values = f64_values(array)?;
            Some(with_nulls(array, move |row, out| write_float(values(row), is_int, out)))
        }
        D::Float16 | D::Float32 if to == NumberType::Float8 => {
            let values = f64_values(array)?;
            Some(with_nulls(array, move |row, out| write_float8(values(row), out)))
        }
        D::Decimal32(_, scale)
        | D::Decimal64(_, scale)
        | D::Decimal128(_, scale)
        | D::Decimal256(_, scale)
            if is_int && *scale > 0 =>
        {
            let write = scalar_writer(array)?;
            Some(Box::new(move |row, out| {
                let start = out.len();
                let has_value = write(row, out);
                // A whole number is written without its point and zeros.
                if let Some(point) = out[start..].iter().position(|byte| *byte == b'.')
                    && out[start + point + 1..].iter().all(|byte| *byte == b'0')
                {
                    out.truncate(start + point);
                }
                has_value
            }))
        }
        _ => scalar_writer(array),
    }
}

/// Appends the text of a float for an integer column or a float4 column.
fn write_float(value: f64, is_int: bool, out: &mut Vec<u8>) {
    let narrow = value as f32;
    let is_out_of_range =
        narrow.is_infinite() && value.is_finite() || narrow == 0.0 && value != 0.0;
    if is_int && is_whole(value) {
        let _ = write!(out, "{}", value as i128);
    } else if is_int || is_out_of_range {
        write_float8(value, out);
    } else {
        write_float4(narrow, out);
    }
}

/// Returns whether a float is a whole number that may fit a 64-bit integer.
fn is_whole(value: f64) -> bool {
    // The bound is 2^64, so a cast to 128 bits is exact.
    value.trunc() == value && value.abs() < 18_446_744_073_709_551_616.0
}

/// Returns access to the values of a float column as 64-bit floats.
fn f64_values<'a>(array: &'a dyn Array) -> Option<Box<dyn Fn(usize) -> f64 + 'a>> {
    Some(match array.data_type() {
        DataType::Float16 => {
            let values = array.as_primitive::<Float16Type>().values();
            Box::new(move |row| values[row].to_f64())
        }
        DataType::Float32 => {
            let values = array.as_primitive::<Float32Type>().values();
            Box::new(move |row| values[row].into())
        }
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>().values();
            Box::new(move |row| values[row])
        }
        _ => return None,
    })
}

/// Binds a column of integers.
fn bind_ints<T: ArrowPrimitiveType<Native: Into<i128>>>(
    array: &dyn Array,
    to: NumberType,
) -> BoundCells<'_> {
    let values = array.as_primitive::<T>().values();
    BoundCells::Other(Box::new(move |row, out| append_int(values[row].into(), to, out)))
}

/// Appends a whole number. Returns false if the target type cannot hold the number.
#[inline]
fn append_int(value: i128, to: NumberType, out: &mut Vec<u8>) -> bool {
    match to {
        NumberType::Int2 => append_if_ok(i16::try_from(value).map(i16::to_be_bytes), out),
        NumberType::Int4 => append_if_ok(i32::try_from(value).map(i32::to_be_bytes), out),
        NumberType::Int8 => append_if_ok(i64::try_from(value).map(i64::to_be_bytes), out),
        NumberType::Oid => append_if_ok(u32::try_from(value).map(u32::to_be_bytes), out),
        NumberType::Float4 => append_if_ok(Ok::<_, ()>((value as f32).to_be_bytes()), out),
        NumberType::Float8 => append_if_ok(Ok::<_, ()>((value as f64).to_be_bytes()), out),
        NumberType::Numeric(_) => {
            let Some(scale) = DecimalScale::new(0) else { return false };
            append_decimal(value, scale, out);
            true
        }
    }
}

/// Appends a value, if its conversion has succeeded.
#[inline]
fn append_if_ok<const N: usize, E>(bytes: Result<[u8; N], E>, out: &mut Vec<u8>) -> bool {
    let Ok(bytes) = bytes else { return false };
    append_fixed(bytes, out);
    true
}

/// Appends a 32-bit float. Returns false if the target type cannot hold the float.
fn append_float4(value: f32, to: NumberType, out: &mut Vec<u8>) -> bool {
    match to {
        NumberType::Float4 => {
            append_fixed(value.to_be_bytes(), out);
            true
        }
        NumberType::Numeric(_) if value.is_finite() => {
            numeric::append_shortest_float(value.into(), &format!("{value:e}"), out)
        }
        _ => append_float8(value.into(), to, out),
    }
}

/// Appends a 64-bit float. Returns false if the target type cannot hold the float.
fn append_float8(value: f64, to: NumberType, out: &mut Vec<u8>) -> bool {
    match to {
        NumberType::Float8 => append_fixed(value.to_be_bytes(), out),
        NumberType::Float4 => {
            let narrow = value as f32;
            // The server rejects an overflow and an underflow to zero as out of range.
            let is_out_of_range =
                narrow.is_infinite() && value.is_finite() || narrow == 0.0 && value != 0.0;
            if is_out_of_range {
                return false;
            }
            append_fixed(narrow.to_be_bytes(), out);
        }
        NumberType::Numeric(infinite) if value.is_infinite() => {
            if !infinite {
                return false;
            }
            numeric::append_infinity(value < 0.0, out);
        }
        NumberType::Numeric(_) => {
            return numeric::append_shortest_float(value, &format!("{value:e}"), out);
        }
        _ => return is_whole(value) && append_int(value as i128, to, out),
    }
    true
}

/// Binds a column of decimals of up to 128 bits.
fn bind_decimals<T>(array: &dyn Array, scale: i8, to: NumberType) -> Option<BoundCells<'_>>
where
    T: ArrowPrimitiveType<Native: Into<i128>>,
{
    let values = array.as_primitive::<T>().values();
    if let NumberType::Numeric(_) = to {
        let scale = DecimalScale::new(scale.into())?;
        return Some(BoundCells::Other(Box::new(move |row, out| {
            append_decimal(values[row].into(), scale, out);
            true
        })));
    }
    Some(BoundCells::Other(Box::new(move |row, out| {
        let value: i128 = values[row].into();
        match to {
            NumberType::Float4 | NumberType::Float8 => {
                append_parsed_decimal(&value.to_string(), scale, to, out)
            }
            _ => divide_exactly(value, scale).is_some_and(|value| append_int(value, to, out)),
        }
    })))
}

/// Binds a column of 256-bit decimals.
fn bind_decimals_256(array: &dyn Array, scale: i8, to: NumberType) -> Option<AppendBinary<'_>> {
    let values = array.as_primitive::<Decimal256Type>().values();
    let shown = DecimalScale::new(scale.into())?;
    Some(Box::new(move |row, out| {
        let value: i256 = values[row];
        match to {
            NumberType::Numeric(_) => {
                let (negative, limbs) = split_limbs(value);
                numeric::append_limbs(negative, limbs, shown, out);
                true
            }
            NumberType::Float4 | NumberType::Float8 => {
                append_parsed_decimal(&value.to_string(), scale, to, out)
            }
            _ => {
                // PostgreSQL's integers have at most 19 digits. A value over 128 bits is out of
                // range, unless a division by the scale makes it small enough.
                let value = match value.to_i128() {
                    Some(value) => divide_exactly(value, scale),
                    None => divide_exactly_256(value, scale),
                };
                value.is_some_and(|value| append_int(value, to, out))
            }
        }
    }))
}

/// Returns `value / 10^scale` if the result is a whole number that fits 128 bits.
fn divide_exactly(value: i128, scale: i8) -> Option<i128> {
    if value == 0 {
        return Some(0);
    }
    let power = 10i128.checked_pow(scale.unsigned_abs().into());
    match scale {
        ..0 => value.checked_mul(power?),
        _ => power.filter(|power| value % power == 0).map(|power| value / power),
    }
}

/// Returns the quotient like [`divide_exactly`], for 256 bits.
fn divide_exactly_256(value: i256, scale: i8) -> Option<i128> {
    let power = i256::from_i128(10).checked_pow(u32::try_from(scale).ok()?)?;
    let rest = value.checked_rem(power)?;
    if rest != i256::ZERO {
        return None;
    }
    value.checked_div(power)?.to_i128()
}

/// Appends a decimal as a float. The decimal's text is parsed, so the value is rounded once.
fn append_parsed_decimal(digits: &str, scale: i8, to: NumberType, out: &mut Vec<u8>) -> bool {
    let mut text = Vec::with_capacity(digits.len() + 8);
    write_decimal(digits, scale.into(), &mut text);
    match to {
        NumberType::Float4 => match fast_float2::parse::<f32, _>(&text) {
            Ok(value) if value.is_finite() && (value != 0.0 || digits == "0") => {
                append_fixed(value.to_be_bytes(), out);
                true
            }
            _ => false,
        },
        _ => match fast_float2::parse::<f64, _>(&text) {
            Ok(value) => {
                append_fixed(value.to_be_bytes(), out);
                true
            }
            Err(_) => false,
        },
    }
}

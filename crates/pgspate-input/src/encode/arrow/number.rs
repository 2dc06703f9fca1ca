//! Integers, floats and decimals to PostgreSQL's numbers.
//!
//! The target's type decides. What it cannot hold exactly as it would take it from the value's
//! text (a fraction for an integer, a number out of range) is left to the server, which refuses
//! it in its own words. Floats become numeric by their shortest digits, and float4 becomes float8
//! by value, as PostgreSQL's own cast does.

use std::io::Write as _;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_buffer::i256;
use arrow_schema::DataType;

use super::column::{Cells, Put, put_decimal, put4};
use super::numeric::{self, Scale};
use super::text::{Write, limbs, scalar, write_decimal, write_float4, write_float8, writer};

/// PostgreSQL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
    /// Whether the server knows infinity there (PostgreSQL 14 and later).
    Numeric(bool),
}

impl Number {
    pub(crate) fn of(oid: u32, server_version: u32) -> Option<Number> {
        Some(match oid {
            21 => Number::Int2,
            23 => Number::Int4,
            20 => Number::Int8,
            26 => Number::Oid,
            700 => Number::Float4,
            701 => Number::Float8,
            1700 => Number::Numeric(server_version >= 140_000),
            _ => return None,
        })
    }
}

/// Binds a column of numbers. `None` when it is not one.
pub(crate) fn bind(array: &dyn Array, to: Number) -> Option<Cells<'_>> {
    use DataType as D;
    Some(match (array.data_type(), to) {
        (D::Int16, Number::Int2) => Cells::Int2(array.as_primitive::<Int16Type>().values()),
        (D::Int32, Number::Int4) => Cells::Int4(array.as_primitive::<Int32Type>().values()),
        (D::Int64, Number::Int8) => Cells::Int8(array.as_primitive::<Int64Type>().values()),
        (D::Float64, Number::Float8) => Cells::Float8(array.as_primitive::<Float64Type>().values()),
        (D::Decimal128(_, scale), Number::Numeric(_)) => {
            let values = array.as_primitive::<Decimal128Type>().values();
            Cells::Decimal(values, Scale::new((*scale).into())?)
        }
        (D::Int8, _) => ints::<Int8Type>(array, to),
        (D::Int16, _) => ints::<Int16Type>(array, to),
        (D::Int32, _) => ints::<Int32Type>(array, to),
        (D::Int64, _) => ints::<Int64Type>(array, to),
        (D::UInt8, _) => ints::<UInt8Type>(array, to),
        (D::UInt16, _) => ints::<UInt16Type>(array, to),
        (D::UInt32, _) => ints::<UInt32Type>(array, to),
        (D::UInt64, _) => ints::<UInt64Type>(array, to),
        (D::Float16, _) => {
            let values = array.as_primitive::<Float16Type>().values();
            Cells::Other(Box::new(move |row, out| put_float4(values[row].to_f32(), to, out)))
        }
        (D::Float32, _) => {
            let values = array.as_primitive::<Float32Type>().values();
            Cells::Other(Box::new(move |row, out| put_float4(values[row], to, out)))
        }
        (D::Float64, _) => {
            let values = array.as_primitive::<Float64Type>().values();
            Cells::Other(Box::new(move |row, out| put_float8(values[row], to, out)))
        }
        (D::Decimal32(_, scale), _) => decimals::<Decimal32Type>(array, *scale, to)?,
        (D::Decimal64(_, scale), _) => decimals::<Decimal64Type>(array, *scale, to)?,
        (D::Decimal128(_, scale), _) => decimals::<Decimal128Type>(array, *scale, to)?,
        (D::Decimal256(_, scale), _) => Cells::Other(decimals_256(array, *scale, to)?),
        _ => return None,
    })
}

/// The text of a column of numbers: such that the server makes of it what [`bind`] does.
pub(crate) fn text(array: &dyn Array, to: Number) -> Option<Write<'_>> {
    use DataType as D;
    let is_int = matches!(to, Number::Int2 | Number::Int4 | Number::Int8 | Number::Oid);
    match array.data_type() {
        D::Float16 | D::Float32 | D::Float64 if is_int || to == Number::Float4 => {
            let values = float8s(array)?;
            Some(writer(array, move |row, out| write_float(values(row), is_int, out)))
        }
        D::Float16 | D::Float32 if to == Number::Float8 => {
            let values = float8s(array)?;
            Some(writer(array, move |row, out| write_float8(values(row), out)))
        }
        D::Decimal32(_, scale)
        | D::Decimal64(_, scale)
        | D::Decimal128(_, scale)
        | D::Decimal256(_, scale)
            if is_int && *scale > 0 =>
        {
            let write = scalar(array)?;
            Some(Box::new(move |row, out| {
                let start = out.len();
                let some = write(row, out);
                // A fraction of nothing but zeros makes it no less a whole number.
                if let Some(point) = out[start..].iter().position(|byte| *byte == b'.')
                    && out[start + point + 1..].iter().all(|byte| *byte == b'0')
                {
                    out.truncate(start + point);
                }
                some
            }))
        }
        _ => scalar(array),
    }
}

/// The text of a float for an integer, or for a float4.
fn write_float(value: f64, is_int: bool, out: &mut Vec<u8>) {
    let narrow = value as f32;
    let lost = narrow.is_infinite() && value.is_finite() || narrow == 0.0 && value != 0.0;
    if is_int && is_whole(value) {
        let _ = write!(out, "{}", value as i128);
    } else if is_int || lost {
        write_float8(value, out);
    } else {
        write_float4(narrow, out);
    }
}

/// Whether a float is a whole number that a 64-bit integer might hold.
fn is_whole(value: f64) -> bool {
    // 2^64 bounds the integers in question, so a cast to 128 bits is exact.
    value.trunc() == value && value.abs() < 18_446_744_073_709_551_616.0
}

fn float8s<'a>(array: &'a dyn Array) -> Option<Box<dyn Fn(usize) -> f64 + 'a>> {
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

fn ints<T: ArrowPrimitiveType<Native: Into<i128>>>(array: &dyn Array, to: Number) -> Cells<'_> {
    let values = array.as_primitive::<T>().values();
    Cells::Other(Box::new(move |row, out| put_int(values[row].into(), to, out)))
}

/// Appends a whole number; false when the target does not hold it.
#[inline]
fn put_int(value: i128, to: Number, out: &mut Vec<u8>) -> bool {
    match to {
        Number::Int2 => put_if(i16::try_from(value).map(i16::to_be_bytes), out),
        Number::Int4 => put_if(i32::try_from(value).map(i32::to_be_bytes), out),
        Number::Int8 => put_if(i64::try_from(value).map(i64::to_be_bytes), out),
        Number::Oid => put_if(u32::try_from(value).map(u32::to_be_bytes), out),
        Number::Float4 => put_if(Ok::<_, ()>((value as f32).to_be_bytes()), out),
        Number::Float8 => put_if(Ok::<_, ()>((value as f64).to_be_bytes()), out),
        Number::Numeric(_) => {
            let Some(scale) = Scale::new(0) else { return false };
            put_decimal(value, scale, out);
            true
        }
    }
}

#[inline]
fn put_if<const N: usize, E>(bytes: Result<[u8; N], E>, out: &mut Vec<u8>) -> bool {
    let Ok(bytes) = bytes else { return false };
    put4(bytes, out);
    true
}

fn put_float4(value: f32, to: Number, out: &mut Vec<u8>) -> bool {
    match to {
        Number::Float4 => {
            put4(value.to_be_bytes(), out);
            true
        }
        Number::Numeric(_) if value.is_finite() => {
            numeric::put_float(value.into(), &format!("{value:e}"), out)
        }
        _ => put_float8(value.into(), to, out),
    }
}

fn put_float8(value: f64, to: Number, out: &mut Vec<u8>) -> bool {
    match to {
        Number::Float8 => put4(value.to_be_bytes(), out),
        Number::Float4 => {
            let narrow = value as f32;
            // The server calls both of these out of range.
            let lost = narrow.is_infinite() && value.is_finite() || narrow == 0.0 && value != 0.0;
            if lost {
                return false;
            }
            put4(narrow.to_be_bytes(), out);
        }
        Number::Numeric(infinite) if value.is_infinite() => {
            if !infinite {
                return false;
            }
            numeric::put_infinity(value < 0.0, out);
        }
        Number::Numeric(_) => return numeric::put_float(value, &format!("{value:e}"), out),
        _ => return is_whole(value) && put_int(value as i128, to, out),
    }
    true
}

fn decimals<T>(array: &dyn Array, scale: i8, to: Number) -> Option<Cells<'_>>
where
    T: ArrowPrimitiveType<Native: Into<i128>>,
{
    let values = array.as_primitive::<T>().values();
    if let Number::Numeric(_) = to {
        let scale = Scale::new(scale.into())?;
        return Some(Cells::Other(Box::new(move |row, out| {
            put_decimal(values[row].into(), scale, out);
            true
        })));
    }
    Some(Cells::Other(Box::new(move |row, out| {
        let value: i128 = values[row].into();
        match to {
            Number::Float4 | Number::Float8 => put_parsed(&value.to_string(), scale, to, out),
            _ => whole(value, scale).is_some_and(|value| put_int(value, to, out)),
        }
    })))
}

fn decimals_256(array: &dyn Array, scale: i8, to: Number) -> Option<Put<'_>> {
    let values = array.as_primitive::<Decimal256Type>().values();
    let shown = Scale::new(scale.into())?;
    Some(Box::new(move |row, out| {
        let value: i256 = values[row];
        match to {
            Number::Numeric(_) => {
                let (negative, limbs) = limbs(value);
                numeric::put_limbs(negative, limbs, shown, out);
                true
            }
            Number::Float4 | Number::Float8 => put_parsed(&value.to_string(), scale, to, out),
            _ => {
                // Integers of PostgreSQL have at most 19 digits, so what the 128 bits do not hold
                // is either out of range or has a fraction that only division would show.
                let value = match value.to_i128() {
                    Some(value) => whole(value, scale),
                    None => whole_256(value, scale),
                };
                value.is_some_and(|value| put_int(value, to, out))
            }
        }
    }))
}

/// The value of `value / 10^scale` where that is a whole number of 128 bits.
fn whole(value: i128, scale: i8) -> Option<i128> {
    if value == 0 {
        return Some(0);
    }
    let power = 10i128.checked_pow(scale.unsigned_abs().into());
    match scale {
        ..0 => value.checked_mul(power?),
        _ => power.filter(|power| value % power == 0).map(|power| value / power),
    }
}

fn whole_256(value: i256, scale: i8) -> Option<i128> {
    let power = i256::from_i128(10).checked_pow(u32::try_from(scale).ok()?)?;
    let rest = value.checked_rem(power)?;
    if rest != i256::ZERO {
        return None;
    }
    value.checked_div(power)?.to_i128()
}

/// Appends a decimal as the float that its text denotes, rounded once.
fn put_parsed(digits: &str, scale: i8, to: Number, out: &mut Vec<u8>) -> bool {
    let mut text = Vec::with_capacity(digits.len() + 8);
    write_decimal(digits, scale.into(), &mut text);
    match to {
        Number::Float4 => match fast_float2::parse::<f32, _>(&text) {
            Ok(value) if value.is_finite() && (value != 0.0 || digits == "0") => {
                put4(value.to_be_bytes(), out);
                true
            }
            _ => false,
        },
        _ => match fast_float2::parse::<f64, _>(&text) {
            Ok(value) => {
                put4(value.to_be_bytes(), out);
                true
            }
            Err(_) => false,
        },
    }
}

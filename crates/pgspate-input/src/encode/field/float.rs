//! Encodes float4 and float8. A text becomes the nearest value, as in the server's C library.
//!
//! Numbers that overflow or underflow to zero are left to the server, which rejects them.
//! Hexadecimal floats and `-nan` are left to the server too.

use super::digits::number;
use super::numeric::split_at_point;
use super::{append_fixed, trim};

/// Encodes a float8.
#[inline]
pub(super) fn encode_float8(field: &[u8], out: &mut Vec<u8>) -> bool {
    match parse_short_number(field) {
        Some(value) => append_fixed(value.to_be_bytes(), out),
        None => encode_long_float8(field, out),
    }
}

/// Parses a number with at most eight digits on each side of the point. Such a number is an integer
/// divided by 10^8. Returns `None` if the integer is 2^53 or more. A smaller integer fits a double
/// exactly, and so does 10^8. So one division rounds correctly.
#[inline(always)]
fn parse_short_number(field: &[u8]) -> Option<f64> {
    const UNITS: u64 = 100_000_000;
    let (digits, negative) = match field {
        [b'-', rest @ ..] => (rest, true),
        _ => (field, false),
    };
    let parts = split_at_point(digits)?;
    let units = number(parts.whole) * UNITS + number(parts.fraction);
    let value = units as f64 / UNITS as f64;
    (units < 1 << 53).then_some(if negative { -value } else { value })
}

/// Encodes a float8 with more digits, an exponent, infinity or NaN.
#[inline(never)]
fn encode_long_float8(field: &[u8], out: &mut Vec<u8>) -> bool {
    let text = trim(field);
    let value = match FloatText::of(text) {
        FloatText::Number { is_zero } => match fast_float2::parse::<f64, _>(text) {
            Ok(value) if value.is_finite() && (value != 0.0) != is_zero => value,
            _ => return false,
        },
        FloatText::Infinity { negative: false } => f64::INFINITY,
        FloatText::Infinity { negative: true } => f64::NEG_INFINITY,
        FloatText::Nan => f64::from_bits(0x7ff8_0000_0000_0000),
        FloatText::Other => return false,
    };
    append_fixed(value.to_be_bytes(), out)
}

/// Encodes a float4.
pub(super) fn encode_float4(field: &[u8], out: &mut Vec<u8>) -> bool {
    let text = trim(field);
    let value = match FloatText::of(text) {
        FloatText::Number { is_zero } => match fast_float2::parse::<f32, _>(text) {
            Ok(value) if value.is_finite() && (value != 0.0) != is_zero => value,
            _ => return false,
        },
        FloatText::Infinity { negative: false } => f32::INFINITY,
        FloatText::Infinity { negative: true } => f32::NEG_INFINITY,
        FloatText::Nan => f32::from_bits(0x7fc0_0000),
        FloatText::Other => return false,
    };
    append_fixed(value.to_be_bytes(), out)
}

/// The kind of a float's text.
enum FloatText {
    /// Only digits, point, signs and exponent. `is_zero`: all digits of the mantissa are zero.
    Number {
        is_zero: bool,
    },
    Infinity {
        negative: bool,
    },
    Nan,
    Other,
}

impl FloatText {
    fn of(text: &[u8]) -> FloatText {
        let unsigned = match text {
            [b'-' | b'+', rest @ ..] => rest,
            _ => text,
        };
        if unsigned.first().is_some_and(|b| b.is_ascii_digit() || *b == b'.') {
            let mantissa = unsigned.split(|b| b | 0x20 == b'e').next().unwrap_or(unsigned);
            let in_number = |b: &u8| matches!(b, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E');
            return match unsigned.iter().all(in_number) {
                true => FloatText::Number { is_zero: !mantissa.iter().any(|b| *b > b'0') },
                false => FloatText::Other,
            };
        }
        let is = |word: &[u8]| unsigned.eq_ignore_ascii_case(word);
        if is(b"infinity") || is(b"inf") {
            FloatText::Infinity { negative: text[0] == b'-' }
        } else if text.eq_ignore_ascii_case(b"nan") {
            FloatText::Nan
        } else {
            FloatText::Other
        }
    }
}

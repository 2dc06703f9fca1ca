//! Floats: the nearest value, as the C library that the server calls finds it.
//!
//! What overflows, or becomes zero though it is not, is an error on the server and is left to it.
//! Hexadecimal floats and `-nan` are left to it too.

use super::digits::number;
use super::numeric::split;
use super::{append_fixed, trim};

#[inline]
pub(super) fn float8(field: &[u8], out: &mut Vec<u8>) -> bool {
    match short(field) {
        Some(value) => append_fixed(value.to_be_bytes(), out),
        None => float8_long(field, out),
    }
}

/// A number with at most eight digits on each side of its point. As a multiple of 10^-8 it is
/// exact in a double, and so is 10^8: one division rounds correctly.
#[inline(always)]
fn short(field: &[u8]) -> Option<f64> {
    const UNITS: u64 = 100_000_000;
    let (digits, negative) = match field {
        [b'-', rest @ ..] => (rest, true),
        _ => (field, false),
    };
    let parts = split(digits)?;
    let units = number(parts.whole) * UNITS + number(parts.fraction);
    let value = units as f64 / UNITS as f64;
    (units < 1 << 53).then_some(if negative { -value } else { value })
}

#[inline(never)]
fn float8_long(field: &[u8], out: &mut Vec<u8>) -> bool {
    let text = trim(field);
    let value = match Spelling::of(text) {
        Spelling::Number { is_zero } => match fast_float2::parse::<f64, _>(text) {
            Ok(value) if value.is_finite() && (value != 0.0) != is_zero => value,
            _ => return false,
        },
        Spelling::Infinity { negative: false } => f64::INFINITY,
        Spelling::Infinity { negative: true } => f64::NEG_INFINITY,
        Spelling::Nan => f64::from_bits(0x7ff8_0000_0000_0000),
        Spelling::Other => return false,
    };
    append_fixed(value.to_be_bytes(), out)
}

pub(super) fn float4(field: &[u8], out: &mut Vec<u8>) -> bool {
    let text = trim(field);
    let value = match Spelling::of(text) {
        Spelling::Number { is_zero } => match fast_float2::parse::<f32, _>(text) {
            Ok(value) if value.is_finite() && (value != 0.0) != is_zero => value,
            _ => return false,
        },
        Spelling::Infinity { negative: false } => f32::INFINITY,
        Spelling::Infinity { negative: true } => f32::NEG_INFINITY,
        Spelling::Nan => f32::from_bits(0x7fc0_0000),
        Spelling::Other => return false,
    };
    append_fixed(value.to_be_bytes(), out)
}

enum Spelling {
    /// Made of nothing but digits, point, signs and exponent; zero if no digit is another one.
    Number {
        is_zero: bool,
    },
    Infinity {
        negative: bool,
    },
    Nan,
    Other,
}

impl Spelling {
    fn of(text: &[u8]) -> Spelling {
        let unsigned = match text {
            [b'-' | b'+', rest @ ..] => rest,
            _ => text,
        };
        if unsigned.first().is_some_and(|b| b.is_ascii_digit() || *b == b'.') {
            let mantissa = unsigned.split(|b| b | 0x20 == b'e').next().unwrap_or(unsigned);
            let in_number = |b: &u8| matches!(b, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E');
            return match unsigned.iter().all(in_number) {
                true => Spelling::Number { is_zero: !mantissa.iter().any(|b| *b > b'0') },
                false => Spelling::Other,
            };
        }
        let is = |word: &[u8]| unsigned.eq_ignore_ascii_case(word);
        if is(b"infinity") || is(b"inf") {
            Spelling::Infinity { negative: text[0] == b'-' }
        } else if text.eq_ignore_ascii_case(b"nan") {
            Spelling::Nan
        } else {
            Spelling::Other
        }
    }
}

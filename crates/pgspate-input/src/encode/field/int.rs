//! Encodes integers: int2, int4, int8 and oid.
//!
//! Accepted are decimal digits with an optional sign and space around them. Numbers out of range,
//! hexadecimal numbers, underscores and all other texts are left to the server.

use super::digits::{are_digit_values, first8, last8, load8, number, right_aligned, values};
use super::{append_fixed, append_i32, trim};

/// Encodes an int2.
#[inline]
pub(super) fn encode_int2(field: &[u8], out: &mut Vec<u8>) -> bool {
    match parse_i64(field).map(i16::try_from) {
        Some(Ok(value)) => append_fixed(value.to_be_bytes(), out),
        _ => false,
    }
}

/// Encodes an int4.
#[inline]
pub(super) fn encode_int4(field: &[u8], out: &mut Vec<u8>) -> bool {
    match parse_i64(field).map(i32::try_from) {
        Some(Ok(value)) => append_i32(value, out),
        _ => false,
    }
}

/// Encodes an int8.
#[inline]
pub(super) fn encode_int8(field: &[u8], out: &mut Vec<u8>) -> bool {
    match parse_i64(field) {
        Some(value) => append_fixed(value.to_be_bytes(), out),
        None => false,
    }
}

/// Encodes an oid. Signs and leading zeros mean different things in different server versions, so
/// these are left to the server.
pub(super) fn encode_oid(field: &[u8], out: &mut Vec<u8>) -> bool {
    let text = trim(field);
    if text.first() == Some(&b'0') && text.len() > 1 {
        return false;
    }
    match parse_unsigned(text).map(u32::try_from) {
        Some(Ok(value)) => append_i32(value as i32, out),
        _ => false,
    }
}

/// Parses a field as a 64-bit integer.
#[inline(always)]
fn parse_i64(field: &[u8]) -> Option<i64> {
    if let Some(value) = parse_unsigned(field) {
        return i64::try_from(value).ok();
    }
    match field {
        [b'-', rest @ ..] => parse_negative(rest),
        _ => parse_with_sign_and_space(field),
    }
}

/// Parses the digits that follow a minus sign.
#[inline]
fn parse_negative(digits: &[u8]) -> Option<i64> {
    0i64.checked_sub_unsigned(parse_unsigned(digits)?)
}

/// Parses an integer with a sign or with space around it.
#[cold]
#[inline(never)]
fn parse_with_sign_and_space(field: &[u8]) -> Option<i64> {
    match trim(field) {
        [b'-', rest @ ..] => parse_negative(rest),
        [b'+', rest @ ..] => i64::try_from(parse_unsigned(rest)?).ok(),
        rest => i64::try_from(parse_unsigned(rest)?).ok(),
    }
}

/// Parses one or more digits and nothing else. Returns `None` for a number over 64 bits.
#[inline(always)]
pub(super) fn parse_unsigned(digits: &[u8]) -> Option<u64> {
    match digits.len() {
        0 => None,
        n @ 1..=8 => {
            let low = right_aligned(load8(digits), n);
            are_digit_values(low).then(|| number(low))
        }
        n @ 9..=16 => {
            let high = right_aligned(first8(digits), n - 8);
            let low = values(last8(digits));
            (are_digit_values(high) & are_digit_values(low))
                .then(|| number(high) * 100_000_000 + number(low))
        }
        _ => parse_long_unsigned(digits),
    }
}

/// Parses more than 16 digits.
#[inline(never)]
fn parse_long_unsigned(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<i64> {
        parse_i64(text.as_bytes())
    }

    #[test]
    fn integer_accepts_the_whole_range() {
        for text in ["0", "-0", "7", "-32768", "123456789", "1234567890123456"] {
            assert_eq!(value(text), text.parse().ok(), "{text}");
        }
        assert_eq!(value("9223372036854775807"), Some(i64::MAX));
        assert_eq!(value("-9223372036854775808"), Some(i64::MIN));
        assert_eq!(value("00000000000000000000000000012"), Some(12));
        assert_eq!(value(" +12\t"), Some(12));
    }

    #[test]
    fn integer_rejects_other_texts() {
        for text in ["", "-", "+", "--1", "+-1", "1 2", "0x1f", "1_000", "1.0", "1e3", "٣"] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(value("9223372036854775808"), None);
        assert_eq!(value("-9223372036854775809"), None);
        assert_eq!(value("99999999999999999999999"), None);
    }

    #[test]
    fn oids_with_a_sign_or_leading_zeros_are_rejected() {
        let mut out = Vec::new();
        assert!(encode_oid(b"4294967295", &mut out));
        assert_eq!(out, [0, 0, 0, 4, 255, 255, 255, 255]);
        for text in ["-1", "+1", "007", "4294967296"] {
            assert!(!encode_oid(text.as_bytes(), &mut out), "{text}");
        }
    }
}

//! Encodes long numerics, numerics with exponents, NaN and the infinities.
//!
//! All digits are kept, up to the limits of numeric's binary format: 3,000 digits to the base of
//! 10,000, and 16,383 decimal digits after the point. Longer numerics are left to the server.

use super::numeric::NEGATIVE;
use super::trim;

/// The most digits to the base of 10,000 that the server's receive function accepts.
const GROUPS_MAX: usize = 3000;
/// The most decimal digits after the point.
const SCALE_MAX: i64 = 16_383;
/// The largest accepted exponent. With this limit, no sum in this module can overflow.
const EXPONENT_MAX: i64 = 20_000;
/// The most decimal digits that are accepted. Longer numbers are left to the server.
const DIGITS_MAX: i64 = 60_000;
/// The size of the buffer on the stack, in decimal digits.
const STACK_DIGITS: usize = 96;

const NAN: u16 = 0xc000;
const INFINITY: u16 = 0xd000;
const NEGATIVE_INFINITY: u16 = 0xf000;

/// Encodes any numeric. `has_infinity` says whether the server supports infinities.
#[inline(never)]
pub(super) fn encode(field: &[u8], has_infinity: bool, out: &mut Vec<u8>) -> bool {
    let text = trim(field);
    let (unsigned, sign) = match text {
        [b'-', rest @ ..] => (rest, NEGATIVE),
        [b'+', rest @ ..] => (rest, 0),
        _ => (text, 0),
    };
    match unsigned.first() {
        Some(b'0'..=b'9' | b'.') => match DecimalText::of(unsigned) {
            Some(decimal) => decimal.append(sign, out),
            None => false,
        },
        _ => append_special(text, has_infinity, out),
    }
}

/// Appends NaN, or an infinity if the server supports infinities.
fn append_special(text: &[u8], has_infinity: bool, out: &mut Vec<u8>) -> bool {
    let sign = if text.eq_ignore_ascii_case(b"nan") {
        NAN
    } else {
        let (unsigned, sign) = match text {
            [b'-', rest @ ..] => (rest, NEGATIVE_INFINITY),
            [b'+', rest @ ..] => (rest, INFINITY),
            _ => (text, INFINITY),
        };
        let is_infinity =
            unsigned.eq_ignore_ascii_case(b"infinity") || unsigned.eq_ignore_ascii_case(b"inf");
        if !has_infinity || !is_infinity {
            return false;
        }
        sign
    };
    append_head(0, 0, sign, 0, out);
    true
}

/// Appends length, number of digits, weight, sign and scale.
fn append_head(groups: usize, weight: i16, sign: u16, scale: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&(8 + 2 * groups as u32).to_be_bytes());
    out.extend_from_slice(&(groups as u16).to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&scale.to_be_bytes());
}

/// The parts of a decimal number: the digits before and after the point, and the exponent.
struct DecimalText<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl<'a> DecimalText<'a> {
    /// Splits a number into its parts. Returns `None` if the text is no number.
    fn of(text: &'a [u8]) -> Option<DecimalText<'a>> {
        let (mantissa, exponent) = match text.iter().position(|b| b | 0x20 == b'e') {
            Some(at) => (&text[..at], parse_exponent(&text[at + 1..])?),
            None => (text, 0),
        };
        let (whole, fraction) = match memchr::memchr(b'.', mantissa) {
            Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
            None => (mantissa, &mantissa[..0]),
        };
        let all_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
        let is_number = mantissa.len() > usize::from(mantissa.len() != whole.len())
            && all_digits(whole)
            && all_digits(fraction);
        is_number.then_some(DecimalText { whole, fraction, exponent })
    }

    /// Appends the number as a numeric. Returns false if the number is too long.
    fn append(&self, sign: u16, out: &mut Vec<u8>) -> bool {
        let digits = (self.whole.len() + self.fraction.len()) as i64;
        // The number of digits before the point. If negative, this number of zeros follows the
        // point.
        let point = self.whole.len() as i64 + self.exponent;
        let scale = (self.fraction.len() as i64 - self.exponent).max(0);
        if scale > SCALE_MAX || digits > DIGITS_MAX {
            return false;
        }
        // Leading zeros align the point between two digits to the base of 10,000.
        let first = if point > 0 { (4 - point % 4) % 4 } else { -point };
        let point = point + first;
        let len = ((first + digits).max(point) + 3) / 4 * 4;
        if len <= STACK_DIGITS as i64 {
            let mut decimal = [b'0'; STACK_DIGITS];
            self.append_aligned(&mut decimal[..len as usize], first, point, sign, scale, out)
        } else {
            let mut decimal = vec![b'0'; len as usize];
            self.append_aligned(&mut decimal, first, point, sign, scale, out)
        }
    }

    /// Appends the number by way of `decimal`: a buffer of `0` characters whose length is a
    /// multiple of four. The digits are copied into `decimal` at `first`.
    fn append_aligned(
        &self,
        decimal: &mut [u8],
        first: i64,
        point: i64,
        sign: u16,
        scale: i64,
        out: &mut Vec<u8>,
    ) -> bool {
        let first = first as usize;
        let middle = first + self.whole.len();
        decimal[first..middle].copy_from_slice(self.whole);
        decimal[middle..middle + self.fraction.len()].copy_from_slice(self.fraction);

        let (groups, _) = decimal.as_chunks::<4>();
        let is_digit = |group: &[u8; 4]| group != b"0000";
        let Some(start) = groups.iter().position(is_digit) else {
            append_head(0, 0, 0, scale as u16, out);
            return true;
        };
        let end = groups.iter().rposition(is_digit).map_or(start, |at| at + 1);
        let Ok(weight) = i16::try_from(point / 4 - 1 - start as i64) else {
            return false;
        };
        let groups = &groups[start..end];
        if groups.len() > GROUPS_MAX {
            return false;
        }
        append_head(groups.len(), weight, sign, scale as u16, out);
        out.extend(groups.iter().flat_map(|group| {
            group.iter().fold(0u16, |n, &b| n * 10 + u16::from(b - b'0')).to_be_bytes()
        }));
        true
    }
}

/// Parses the exponent after an `e`: an optional sign and digits.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (digits, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        _ => (text, false),
    };
    let value = i64::try_from(super::int::parse_unsigned(digits)?).ok()?;
    (value <= EXPONENT_MAX).then_some(if negative { -value } else { value })
}

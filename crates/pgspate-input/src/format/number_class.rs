//! Classes of numbers.

use std::fmt::{self, Write as _};

use super::infer::InferredClass;

/// The most digits before the decimal point of `numeric`.
const NUMERIC_DIGITS_MAX: usize = 131_072;

/// Returns the class of a number. Returns `None` for other texts, and for numbers with a leading
/// zero or plus sign.
pub(super) fn number_class(text: &[u8]) -> Option<InferredClass> {
    if matches!(text, b"NaN" | b"Infinity" | b"-Infinity") {
        return Some(InferredClass::Double);
    }
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let at = digits.iter().position(|b| matches!(b, b'e' | b'E'));
    let (mantissa, exponent) = match at {
        Some(at) => (&digits[..at], Some(&digits[at + 1..])),
        None => (digits, None),
    };
    let at = mantissa.iter().position(|b| *b == b'.');
    let (whole, fraction) = match at {
        Some(at) => (&mantissa[..at], Some(&mantissa[at + 1..])),
        None => (mantissa, None),
    };
    let all_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let digit_count = whole.len() + fraction.map_or(0, <[u8]>::len);
    if digit_count == 0 || !all_digits(whole) || !all_digits(fraction.unwrap_or(b"")) {
        return None;
    }
    if whole.len() > 1 && whole[0] == b'0' || whole.len() > NUMERIC_DIGITS_MAX {
        return None;
    }
    let zeros = whole.iter().chain(fraction.unwrap_or(b"")).take_while(|b| **b == b'0').count();
    let significant = digit_count - zeros;
    if let Some(exponent) = exponent {
        return exponent_number_class(text, exponent, significant);
    }
    // Only a double keeps the sign of zero. Programs print it in these forms; `-0.00` is an amount
    // of money that was rounded.
    if matches!(text, b"-0" | b"-0.0") {
        return Some(InferredClass::Double);
    }
    Some(match (fraction, significant) {
        (None, 0..=15) => InferredClass::Integer,
        (None, _) if is_bigint(text) => InferredClass::LongInteger,
        (None, _) => InferredClass::Exact,
        (Some(_), 0..=15) => InferredClass::Decimal,
        (Some(_), 16 | 17) if is_printed_double(text) => InferredClass::Double,
        (Some(_), _) => InferredClass::Exact,
    })
}

fn is_bigint(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}

/// Returns whether a number has exactly the digits with which programs print its nearest double:
/// the fewest that give the same double, or 17.
fn is_printed_double(text: &[u8]) -> bool {
    let Ok(double) = fast_float2::parse::<f64, _>(text) else { return false };
    let has_digits = |printed: fmt::Arguments<'_>| {
        let mut buffer = PrintedNumber { bytes: [0; 32], len: 0 };
        buffer.write_fmt(printed).is_ok()
            && significant_digits(&buffer.bytes[..buffer.len]).eq(significant_digits(text))
    };
    has_digits(format_args!("{double:e}"))
        || text.last() != Some(&b'0') && has_digits(format_args!("{double:.16e}"))
}

/// Returns the digits of a number from the first one that is not zero, without the exponent.
fn significant_digits(number: &[u8]) -> impl Iterator<Item = u8> {
    let mantissa = number.iter().copied().take_while(|byte| !matches!(byte, b'e' | b'E'));
    mantissa.filter(u8::is_ascii_digit).skip_while(|digit| *digit == b'0')
}

/// A short text that is written without memory of its own.
struct PrintedNumber {
    bytes: [u8; 32],
    len: usize,
}

impl fmt::Write for PrintedNumber {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        let to = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

fn exponent_number_class(
    text: &[u8],
    exponent: &[u8],
    significant: usize,
) -> Option<InferredClass> {
    let digits = exponent.strip_prefix(b"-").or(exponent.strip_prefix(b"+")).unwrap_or(exponent);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let double: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let is_exact = significant <= 15 || significant <= 17 && is_printed_double(text);
    if is_exact && double.is_finite() && (double.is_normal() || significant == 0) {
        return Some(InferredClass::Double);
    }
    let exponent: i32 = std::str::from_utf8(exponent).ok()?.parse().ok()?;
    // These limits are well within the digits that `numeric` can store on both sides of the point.
    (exponent.abs() < 10_000 && significant < 1_000).then_some(InferredClass::Exact)
}

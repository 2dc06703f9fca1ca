//! Encodes and parses times of day, for the type time and for the times of timestamps.
//!
//! Accepted are `HH:MM:SS` with an optional fraction, and `HH:MM`, up to 24:00:00. 60 seconds, and
//! fractions with more than 20 digits, are left to the server.

use super::append_fixed;
use super::digits::{are_digit_values, first8, last8, left_aligned, load8, number, pairs};

/// Microseconds per second, minute, hour and day.
const SECOND: i64 = 1_000_000;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// The most digits of a fraction.
const FRACTION_LEN_MAX: usize = 20;

/// Encodes a time.
pub(super) fn encode_time(field: &[u8], out: &mut Vec<u8>) -> bool {
    match parse(field) {
        Some((micros, [])) => append_fixed(micros.to_be_bytes(), out),
        _ => false,
    }
}

/// Parses a text of exactly eight bytes, `HH:MM:SS`, below 24 hours. Returns microseconds since
/// midnight.
#[inline(always)]
pub(super) fn parse_iso(text: &[u8]) -> Option<i64> {
    let word = first8(text);
    const COLONS: u64 = 0x0000_ff00_00ff_0000;
    const COLON: u64 = 0x0000_3a00_003a_0000;
    // The mask replaces the colons by zeros; the colons are checked below.
    let values = (word ^ 0x3030_3030_3030_3030) & !COLONS;
    if word & COLONS != COLON || !are_digit_values(values) {
        return None;
    }
    let pairs = pairs(values);
    let lane = |byte: u32| i64::from((pairs >> (8 * byte)) as u8);
    let (hours, minutes, seconds) = (lane(0), lane(3), lane(6));
    if (hours > 23) | (minutes > 59) | (seconds > 59) {
        return None;
    }
    Some((hours * 3600 + minutes * 60 + seconds) * SECOND)
}

/// Parses the fraction at the end of a text of eight or more bytes: a point, then `len` (1 to 6)
/// digits. Returns microseconds.
#[inline(always)]
pub(super) fn parse_fraction_at_end(text: &[u8], len: usize) -> Option<i64> {
    let values = left_aligned(last8(text), len);
    (are_digit_values(values) && text[text.len() - len - 1] == b'.')
        .then(|| (number(values) / 100) as i64)
}

/// Parses a time of day up to 24:00:00. Returns microseconds and the rest of the text.
pub(super) fn parse(text: &[u8]) -> Option<(i64, &[u8])> {
    let (hours, rest) = parse_short_number(text)?;
    let (minutes, rest) = parse_short_number(rest.strip_prefix(b":")?)?;
    let (seconds, rest) = match rest {
        [b':', rest @ ..] => parse_short_number(rest)?,
        // The server reads `MM:SS` if a point follows.
        [b'.', ..] => return None,
        _ => (0, rest),
    };
    let (micros, rest) = match rest {
        [b'.', rest @ ..] => parse_fraction(rest)?,
        _ => (0, rest),
    };
    if minutes > 59 || seconds > 59 {
        return None;
    }
    let total = hours * HOUR + minutes * MINUTE + seconds * SECOND + micros;
    (total <= DAY).then_some((total, rest))
}

/// Parses a number of one or two digits. Returns the number and the rest of the text.
pub(super) fn parse_short_number(text: &[u8]) -> Option<(i64, &[u8])> {
    let digit = |b: &u8| i64::from(b - b'0');
    match text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', rest @ ..] => {
            let longer = rest.first().is_some_and(u8::is_ascii_digit);
            (!longer).then_some((digit(a) * 10 + digit(b), rest))
        }
        [a @ b'0'..=b'9', rest @ ..] => Some((digit(a), rest)),
        _ => None,
    }
}

/// Parses the digits of a fraction. Returns microseconds and the rest of the text.
pub(super) fn parse_fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let len = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(len);
    match len {
        1..=6 => {
            let word = load8(digits) << (64 - 8 * len);
            Some(((number(left_aligned(word, len)) / 100) as i64, rest))
        }
        7..=FRACTION_LEN_MAX => {
            // As in the server, the fraction becomes a double, is multiplied, and is rounded to
            // even.
            let mut decimal = *b"0.00000000000000000000";
            decimal[2..2 + len].copy_from_slice(digits);
            let value = fast_float2::parse::<f64, _>(&decimal[..2 + len]).ok()?;
            let micros = (value * 1_000_000.0).round_ties_even() as i64;
            (micros < SECOND).then_some((micros, rest))
        }
        _ => None,
    }
}

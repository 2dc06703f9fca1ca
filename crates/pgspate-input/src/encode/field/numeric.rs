//! Encodes numeric exactly: digits to the base of 10,000, with the point between digits.
//!
//! Most numerics have at most eight decimal digits before the point and eight after it. Four digits
//! to the base of 10,000 hold them in one 64-bit word, and are encoded here without a loop. All
//! other numerics are encoded in `long_numeric`.

use super::digits::{
    are_digit_values, find, first8, groups, last8, left_aligned, load8, right_aligned,
};
use super::long_numeric;

/// The sign word of a negative numeric.
pub(super) const NEGATIVE: u16 = 0x4000;

/// Encodes a numeric. `has_infinity` says whether the server supports infinities.
#[inline]
pub(super) fn encode(field: &[u8], has_infinity: bool, out: &mut Vec<u8>) -> bool {
    let (digits, sign) = match field {
        [b'-', rest @ ..] => (rest, NEGATIVE),
        _ => (field, 0),
    };
    match split_at_point(digits) {
        Some(parts) => append_short(parts, sign, out),
        None => long_numeric::encode(field, has_infinity, out),
    }
}

/// A number with at most eight digits on each side of the point.
#[derive(Clone, Copy)]
pub(super) struct DecimalParts {
    /// The digit values before the point, one per byte.
    pub(super) whole: u64,
    /// The digit values after the point, one per byte.
    pub(super) fraction: u64,
    /// The number of digits after the point.
    pub(super) scale: usize,
}

/// Splits a number at its point, if it has one. The first byte must be a digit.
#[inline(always)]
pub(super) fn split_at_point(digits: &[u8]) -> Option<DecimalParts> {
    let n = digits.len();
    // `head` has the first bytes at its low end. `tail` has the last bytes at its high end.
    let (head, tail) = match n {
        1..=8 => {
            let word = load8(digits);
            (word, word << (64 - 8 * n))
        }
        9..=16 => (first8(digits), last8(digits)),
        _ => return None,
    };
    let (before, scale, fraction) = match find(tail, b'.') {
        // The point is the last byte: no digits follow.
        Some(7) => (n - 1, 0, 0),
        Some(at) => {
            let scale = 7 - at;
            (n - 1 - scale, scale, left_aligned(tail, scale))
        }
        None => (n, 0, 0),
    };
    if before.wrapping_sub(1) > 7 {
        return None;
    }
    let whole = right_aligned(head, before);
    (are_digit_values(whole) & are_digit_values(fraction)).then_some(DecimalParts {
        whole,
        fraction,
        scale,
    })
}

/// Appends a numeric with at most eight digits on each side of the point.
#[inline(always)]
fn append_short(parts: DecimalParts, sign: u16, out: &mut Vec<u8>) -> bool {
    let (whole, fraction) = (groups(parts.whole), groups(parts.fraction));
    // Four base-10000 digits of 16 bits, the highest first; the point is in the middle.
    let groups = (whole << 48)
        | (whole & 0xffff_0000_0000)
        | u64::from((fraction as u32) << 16)
        | (fraction >> 32 & 0xffff);
    let lead = groups.leading_zeros() / 16;
    let trail = groups.trailing_zeros() / 16;
    let is_zero = groups == 0;
    let count = if is_zero { 0 } else { 4 - lead - trail };
    let weight = if is_zero { 0 } else { 1i32.wrapping_sub(lead as i32) as u16 };
    let sign = if is_zero { 0 } else { sign };
    let head = (u64::from(count) << 48)
        | (u64::from(weight) << 32)
        | (u64::from(sign) << 16)
        | parts.scale as u64;
    // Appending a fixed size and truncating costs less than appending the exact size.
    let mut value = [0u8; 20];
    value[..4].copy_from_slice(&(8 + 2 * count).to_be_bytes());
    value[4..12].copy_from_slice(&head.to_be_bytes());
    value[12..].copy_from_slice(&groups.wrapping_shl(lead * 16).to_be_bytes());
    out.extend_from_slice(&value);
    out.truncate(out.len() - (8 - 2 * count as usize));
    true
}

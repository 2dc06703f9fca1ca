//! Encodes decimal numbers as PostgreSQL's binary numeric.
//!
//! A binary numeric is a sign, a display scale and digits to the base of 10,000. The point is
//! between two digits. Leading and trailing zero digits are not sent, so the bytes equal the output
//! of the server's `numeric_send` for the same value.

const BASE: u64 = 10_000;
/// The base to the power of 4, which fits 64 bits: one division gives four digits.
const BASE_POW_4: u64 = 10_000_000_000_000_000;
/// Powers of ten that move the point to the edge of a digit.
const PADS: [u64; 4] = [1, 10, 100, 1_000];
/// The largest display scale of a numeric.
const SCALE_MAX: i32 = 16_383;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

/// The scale of a decimal, prepared for digits to the base of 10,000.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecimalScale {
    /// The factor (1, 10, 100 or 1,000) that moves the point to the edge of a digit.
    pad: u64,
    /// How many digits to the base of 10,000 follow the point. If negative, this number of zero
    /// digits precedes the point.
    digits_after_point: i32,
    /// The display scale.
    display_scale: u16,
}

impl DecimalScale {
    /// Prepares the scale of decimals that mean `value / 10^scale`. Returns `None` if the scale is
    /// out of numeric's range.
    pub(crate) fn new(scale: i32) -> Option<DecimalScale> {
        if !(-SCALE_MAX..=SCALE_MAX).contains(&scale) {
            return None;
        }
        Some(DecimalScale {
            pad: PADS[(-scale).rem_euclid(4) as usize],
            digits_after_point: (scale + 3).div_euclid(4),
            display_scale: scale.max(0) as u16,
        })
    }
}

/// Appends length and bytes of `magnitude / 10^scale`, negated if `negative`.
#[inline]
pub(crate) fn append_u64(negative: bool, magnitude: u64, scale: DecimalScale, out: &mut Vec<u8>) {
    let Some(mut rest) = magnitude.checked_mul(scale.pad) else {
        return append_u128(negative, u128::from(magnitude), scale, out);
    };
    if rest == 0 {
        return append_digits(false, &[], 0, scale.display_scale, out);
    }
    let mut weight = -scale.digits_after_point - 1;
    while rest.is_multiple_of(BASE) {
        rest /= BASE;
        weight += 1;
    }
    // Most values have one to three digits. Their size is constant, so the copy needs no call.
    if rest < BASE {
        return append_few_digits([rest as u16], negative, weight + 1, scale.display_scale, out);
    }
    if rest < BASE * BASE {
        let digits = [(rest / BASE) as u16, (rest % BASE) as u16];
        return append_few_digits(digits, negative, weight + 2, scale.display_scale, out);
    }
    if rest < BASE * BASE * BASE {
        let high = rest / BASE;
        let digits = [(high / BASE) as u16, (high % BASE) as u16, (rest % BASE) as u16];
        return append_few_digits(digits, negative, weight + 3, scale.display_scale, out);
    }
    let mut digits = [0u16; 5];
    let mut at = digits.len();
    while rest != 0 {
        at -= 1;
        digits[at] = (rest % BASE) as u16;
        rest /= BASE;
        weight += 1;
    }
    append_digits(negative, &digits[at..], weight, scale.display_scale, out);
}

/// Appends length and bytes of `magnitude / 10^scale`, negated if `negative`.
pub(crate) fn append_u128(negative: bool, magnitude: u128, scale: DecimalScale, out: &mut Vec<u8>) {
    let limbs = [magnitude as u64, (magnitude >> 64) as u64, 0, 0];
    append_limbs(negative, limbs, scale, out);
}

/// Appends like [`append_u128`], for 256 bits in four limbs, the least significant first.
pub(crate) fn append_limbs(
    negative: bool,
    limbs: [u64; 4],
    scale: DecimalScale,
    out: &mut Vec<u8>,
) {
    let mut wide = [limbs[0], limbs[1], limbs[2], limbs[3], 0];
    let mut carry = 0u128;
    for limb in &mut wide {
        carry += u128::from(*limb) * u128::from(scale.pad);
        *limb = carry as u64;
        carry >>= 64;
    }
    // 256 bits and three more decimal places have at most 81 decimal digits.
    let mut digits = [0u16; 24];
    let mut at = digits.len();
    while wide != [0; 5] {
        let mut rest = divide(&mut wide, BASE_POW_4);
        for _ in 0..4 {
            at -= 1;
            digits[at] = (rest % BASE) as u16;
            rest /= BASE;
        }
    }
    let weight = (digits.len() - at) as i32 - scale.digits_after_point - 1;
    let digits = &digits[at..];
    let leading = digits.iter().take_while(|digit| **digit == 0).count();
    let trailing = digits.iter().rev().take_while(|digit| **digit == 0).count();
    if leading == digits.len() {
        return append_digits(false, &[], 0, scale.display_scale, out);
    }
    let digits = &digits[leading..digits.len() - trailing];
    append_digits(negative, digits, weight - leading as i32, scale.display_scale, out);
}

/// Divides a number of 64-bit limbs, the least significant first. Returns the remainder.
fn divide(limbs: &mut [u64], by: u64) -> u64 {
    let mut rest = 0u128;
    for limb in limbs.iter_mut().rev() {
        let part = rest << 64 | u128::from(*limb);
        *limb = (part / u128::from(by)) as u64;
        rest = part % u128::from(by);
    }
    rest as u64
}

/// Appends a float as a numeric with the digits of `shortest`, the float's shortest exact text.
pub(crate) fn append_shortest_float(value: f64, shortest: &str, out: &mut Vec<u8>) -> bool {
    if value.is_nan() {
        append_special(NAN, out);
        return true;
    }
    let Some((negative, magnitude, scale)) = parse_shortest(shortest) else { return false };
    let Some(scale) = DecimalScale::new(scale) else { return false };
    append_u64(negative, magnitude, scale, out);
    true
}

/// Appends an infinity. numeric supports infinity since PostgreSQL 14.
pub(crate) fn append_infinity(negative: bool, out: &mut Vec<u8>) {
    append_special(if negative { NEGATIVE_INFINITY } else { INFINITY }, out);
}

/// Parses `[-]d[.d]e[-]d`, the `{:e}` format of a finite float. Returns sign, digits and scale.
fn parse_shortest(text: &str) -> Option<(bool, u64, i32)> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (digits, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let mut magnitude = 0u64;
    let mut after = 0;
    let mut point = false;
    for byte in digits.bytes() {
        match byte {
            b'.' => point = true,
            digit => {
                magnitude =
                    magnitude.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))?;
                after += i32::from(point);
            }
        }
    }
    Some((negative, magnitude, after - exponent))
}

fn append_special(sign: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&8i32.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
}

/// Appends one to three digits. The number of digits is known at compile time, so the copy has a
/// constant size and needs no call.
#[inline]
fn append_few_digits<const N: usize>(
    digits: [u16; N],
    negative: bool,
    weight: i32,
    shown: u16,
    out: &mut Vec<u8>,
) {
    let mut buf = [0u8; 18];
    buf[..12].copy_from_slice(&header(N, negative, weight, shown));
    for (place, digit) in buf[12..12 + 2 * N].chunks_exact_mut(2).zip(digits) {
        place.copy_from_slice(&digit.to_be_bytes());
    }
    out.extend_from_slice(&buf[..12 + 2 * N]);
}

fn append_digits(negative: bool, digits: &[u16], weight: i32, shown: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&header(digits.len(), negative, weight, shown));
    out.extend(digits.iter().flat_map(|digit| digit.to_be_bytes()));
}

#[inline]
fn header(digits: usize, negative: bool, weight: i32, shown: u16) -> [u8; 12] {
    let sign = if negative { NEGATIVE } else { 0 };
    let mut buf = [0u8; 12];
    buf[..4].copy_from_slice(&(8 + 2 * digits as i32).to_be_bytes());
    buf[4..6].copy_from_slice(&(digits as i16).to_be_bytes());
    buf[6..8].copy_from_slice(&(weight as i16).to_be_bytes());
    buf[8..10].copy_from_slice(&sign.to_be_bytes());
    buf[10..].copy_from_slice(&shown.to_be_bytes());
    buf
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> (i16, u16, u16, Vec<i16>) {
        let short = |at: usize| i16::from_be_bytes([bytes[at], bytes[at + 1]]);
        assert_eq!(bytes.len(), 12 + 2 * short(4) as usize);
        let digits = (0..short(4) as usize).map(|n| short(12 + 2 * n)).collect();
        (short(6), short(8) as u16, short(10) as u16, digits)
    }

    fn small(magnitude: u64, scale: i32) -> (i16, u16, u16, Vec<i16>) {
        let scale = DecimalScale::new(scale).unwrap();
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        append_u64(false, magnitude, scale, &mut narrow);
        append_u128(false, u128::from(magnitude), scale, &mut wide);
        assert_eq!(narrow, wide, "{magnitude} {scale:?}");
        fields(&narrow)
    }

    #[test]
    fn digits_are_aligned_to_the_point() {
        assert_eq!(small(150, 2), (0, 0, 2, vec![1, 5000]));
        assert_eq!(small(100, 2), (0, 0, 2, vec![1]));
        assert_eq!(small(1, 9), (-3, 0, 9, vec![1000]));
        assert_eq!(small(0, 9), (0, 0, 9, vec![]));
        assert_eq!(small(10_000_000_000_001, 1), (3, 0, 1, vec![1, 0, 0, 0, 1000]));
        assert_eq!(small(1_456_312_800_000_000, 0), (3, 0, 0, vec![1456, 3128]));
        assert_eq!(small(12, -7), (2, 0, 0, vec![1, 2000]));
        assert_eq!(small(u64::MAX, 3), (4, 0, 3, vec![1, 8446, 7440, 7370, 9551, 6150]));
    }

    #[test]
    fn floats_become_numerics_with_their_shortest_digits() {
        for (value, weight, shown, digits) in [
            (0.1f64, -1, 1, vec![1000]),
            (-0.0, 0, 0, vec![]),
            (1.5e300, 75, 0, vec![1, 5000]),
            (5e-324, -81, 324, vec![5]),
        ] {
            let mut out = Vec::new();
            assert!(append_shortest_float(value, &format!("{value:e}"), &mut out));
            let got = fields(&out);
            assert_eq!((got.0, got.2, got.3), (weight, shown, digits), "{value}");
        }
    }
}

//! Decimal numbers to PostgreSQL's binary numeric.
//!
//! A numeric on the wire is a sign, a display scale and digits in base 10,000, the point standing
//! on a digit edge. Leading and trailing zero digits are never sent: the bytes are those that the
//! server's own `numeric_send` gives for the same value.

const BASE: u64 = 10_000;
/// Four digits of base 10,000: the largest power of the base in which a u128 divides fast.
const STEP: u64 = 10_000_000_000_000_000;
const PADS: [u64; 4] = [1, 10, 100, 1_000];
/// The largest display scale that numeric knows.
const SCALE_MAX: i32 = 16_383;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

/// How digits stand to the point: zeros to append so that it falls on a digit edge, how many
/// digits of base 10,000 follow it (negative: it stands that many digits further right), and the
/// display scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pad: u64,
    after: i32,
    shown: u16,
}

impl Scale {
    /// For values that stand for `value / 10^scale`. `None` where numeric cannot show that.
    pub(crate) fn new(scale: i32) -> Option<Scale> {
        if !(-SCALE_MAX..=SCALE_MAX).contains(&scale) {
            return None;
        }
        Some(Scale {
            pad: PADS[(-scale).rem_euclid(4) as usize],
            after: (scale + 3).div_euclid(4),
            shown: scale.max(0) as u16,
        })
    }
}

/// Appends length and bytes of `mag / 10^scale`, negated if `negative`.
#[inline]
pub(crate) fn put_u64(negative: bool, mag: u64, scale: Scale, out: &mut Vec<u8>) {
    let Some(mut rest) = mag.checked_mul(scale.pad) else {
        return put_u128(negative, u128::from(mag), scale, out);
    };
    if rest == 0 {
        return put_digits(false, &[], 0, scale.shown, out);
    }
    let mut weight = -scale.after - 1;
    while rest.is_multiple_of(BASE) {
        rest /= BASE;
        weight += 1;
    }
    // The commonest values have one to three digits: their copies are of constant size.
    if rest < BASE {
        return put_few([rest as u16], negative, weight + 1, scale.shown, out);
    }
    if rest < BASE * BASE {
        let digits = [(rest / BASE) as u16, (rest % BASE) as u16];
        return put_few(digits, negative, weight + 2, scale.shown, out);
    }
    if rest < BASE * BASE * BASE {
        let high = rest / BASE;
        let digits = [(high / BASE) as u16, (high % BASE) as u16, (rest % BASE) as u16];
        return put_few(digits, negative, weight + 3, scale.shown, out);
    }
    let mut digits = [0u16; 5];
    let mut at = digits.len();
    while rest != 0 {
        at -= 1;
        digits[at] = (rest % BASE) as u16;
        rest /= BASE;
        weight += 1;
    }
    put_digits(negative, &digits[at..], weight, scale.shown, out);
}

/// Appends length and bytes of `mag / 10^scale`, negated if `negative`.
pub(crate) fn put_u128(negative: bool, mag: u128, scale: Scale, out: &mut Vec<u8>) {
    let limbs = [mag as u64, (mag >> 64) as u64, 0, 0];
    put_limbs(negative, limbs, scale, out);
}

/// The same for 256 bits, given as four limbs, the least significant first.
pub(crate) fn put_limbs(negative: bool, limbs: [u64; 4], scale: Scale, out: &mut Vec<u8>) {
    let mut wide = [limbs[0], limbs[1], limbs[2], limbs[3], 0];
    let mut carry = 0u128;
    for limb in &mut wide {
        carry += u128::from(*limb) * u128::from(scale.pad);
        *limb = carry as u64;
        carry >>= 64;
    }
    // 256 bits and three more decimal places are at most 81 decimal digits.
    let mut digits = [0u16; 24];
    let mut at = digits.len();
    while wide != [0; 5] {
        let mut rest = divide(&mut wide, STEP);
        for _ in 0..4 {
            at -= 1;
            digits[at] = (rest % BASE) as u16;
            rest /= BASE;
        }
    }
    let weight = (digits.len() - at) as i32 - scale.after - 1;
    let digits = &digits[at..];
    let leading = digits.iter().take_while(|digit| **digit == 0).count();
    let trailing = digits.iter().rev().take_while(|digit| **digit == 0).count();
    if leading == digits.len() {
        return put_digits(false, &[], 0, scale.shown, out);
    }
    let digits = &digits[leading..digits.len() - trailing];
    put_digits(negative, digits, weight - leading as i32, scale.shown, out);
}

/// Divides a number of 64-bit limbs, the least significant first, and gives the remainder.
fn divide(limbs: &mut [u64], by: u64) -> u64 {
    let mut rest = 0u128;
    for limb in limbs.iter_mut().rev() {
        let part = rest << 64 | u128::from(*limb);
        *limb = (part / u128::from(by)) as u64;
        rest = part % u128::from(by);
    }
    rest as u64
}

/// Appends a float as the numeric that its shortest exact spelling denotes.
pub(crate) fn put_float(value: f64, shortest: &str, out: &mut Vec<u8>) -> bool {
    if value.is_nan() {
        put_special(NAN, out);
        return true;
    }
    let Some((negative, mag, scale)) = parse_shortest(shortest) else { return false };
    let Some(scale) = Scale::new(scale) else { return false };
    put_u64(negative, mag, scale, out);
    true
}

/// Appends an infinity, which numeric has had since PostgreSQL 14.
pub(crate) fn put_infinity(negative: bool, out: &mut Vec<u8>) {
    put_special(if negative { NEGATIVE_INFINITY } else { INFINITY }, out);
}

/// Reads `[-]d[.d]e[-]d`, which is how `{:e}` spells a finite float: sign, digits, scale.
fn parse_shortest(text: &str) -> Option<(bool, u64, i32)> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (digits, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let mut mag = 0u64;
    let mut after = 0;
    let mut point = false;
    for byte in digits.bytes() {
        match byte {
            b'.' => point = true,
            digit => {
                mag = mag.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))?;
                after += i32::from(point);
            }
        }
    }
    Some((negative, mag, after - exponent))
}

fn put_special(sign: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&8i32.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
}

/// Appends one to three digits. The buffer is cut to what they need by the optimizer, not at run
/// time: a copy of constant size takes no call.
#[inline]
fn put_few<const N: usize>(
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

fn put_digits(negative: bool, digits: &[u16], weight: i32, shown: u16, out: &mut Vec<u8>) {
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

    fn small(mag: u64, scale: i32) -> (i16, u16, u16, Vec<i16>) {
        let scale = Scale::new(scale).unwrap();
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        put_u64(false, mag, scale, &mut narrow);
        put_u128(false, u128::from(mag), scale, &mut wide);
        assert_eq!(narrow, wide, "{mag} {scale:?}");
        fields(&narrow)
    }

    #[test]
    fn digits_stand_on_the_point() {
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
    fn floats_keep_their_shortest_digits() {
        for (value, weight, shown, digits) in [
            (0.1f64, -1, 1, vec![1000]),
            (-0.0, 0, 0, vec![]),
            (1.5e300, 75, 0, vec![1, 5000]),
            (5e-324, -81, 324, vec![5]),
        ] {
            let mut out = Vec::new();
            assert!(put_float(value, &format!("{value:e}"), &mut out));
            let got = fields(&out);
            assert_eq!((got.0, got.2, got.3), (weight, shown, digits), "{value}");
        }
    }
}

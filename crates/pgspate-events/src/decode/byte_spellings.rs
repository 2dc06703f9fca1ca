//! Bytes as formats spell them: base64, hexadecimal digits, Latin-1; and numbers in two's
//! complement.
//!
//! A function that decodes returns `None` if any character of the spelling is wrong.

use pgspate_input::encode::arrow::text::{write_decimal, write_hex};

/// Decodes base64 of the standard or the URL-safe alphabet, padded or not.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let body = digits.strip_suffix(b"==").or(digits.strip_suffix(b"=")).unwrap_or(digits);
    let is_padded = body.len() != digits.len();
    if body.len() % 4 == 1 || (is_padded && !digits.len().is_multiple_of(4)) {
        return None;
    }
    let mut out = Vec::with_capacity(body.len() / 4 * 3 + 2);
    for group in body.chunks(4) {
        let mut bits = 0_u32;
        for &digit in group {
            bits = bits << 6 | u32::from(sextet(digit)?);
        }
        bits <<= 6 * (4 - group.len());
        let bytes = bits.to_be_bytes();
        out.extend_from_slice(&bytes[1..group.len()]);
        // Bits beyond the last byte: this is not base64.
        if bytes[group.len()..].iter().any(|byte| *byte != 0) {
            return None;
        }
    }
    Some(out)
}

/// Returns the six bits that a base64 digit stands for.
fn sextet(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

/// Encodes bytes as standard base64 with padding.
pub(super) fn to_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut bits = [0; 4];
        bits[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(bits);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            out.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Returns whether a text is an even number of hexadecimal digits.
pub(super) fn is_hex(text: &str) -> bool {
    text.len().is_multiple_of(2) && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Decodes hexadecimal digits.
pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !is_hex(text) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    Some(text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect())
}

/// Decodes a text that has one character for each byte.
pub(super) fn latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|char| u8::try_from(u32::from(char)).ok()).collect()
}

/// Encodes bytes as bytea spells them: `\x0a`.
pub(super) fn bytea(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(2 + 2 * bytes.len());
    write_hex(bytes, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// The most bytes of a number that is decoded. The largest numeric has 131,072 digits before the
/// point and 16,383 after the point, and needs fewer bytes.
const NUMBER_BYTES_MAX: usize = 62_000;

/// The most zeros that are written out because of a scale. Oracle, the source with such scales, has
/// scales up to 130. A number with more zeros is written with an exponent. Otherwise a few bytes
/// of input could demand 131,072 zeros.
const ZEROS_MAX: usize = 130;

/// Returns the decimal number `unscaled` / 10^`scale`. `unscaled` is big-endian in two's
/// complement. Returns `None` if numeric cannot hold the number.
pub(super) fn decimal(unscaled: &[u8], scale: i32) -> Option<String> {
    if !(-131_072..=16_383).contains(&scale) || unscaled.len() > NUMBER_BYTES_MAX {
        return None;
    }
    let digits = integer(unscaled);
    let zeros = match usize::try_from(scale) {
        Ok(scale) => scale.saturating_sub(digits.trim_start_matches('-').len()),
        Err(_) if digits == "0" => 0,
        Err(_) => scale.unsigned_abs() as usize,
    };
    if zeros > ZEROS_MAX {
        return Some(format!("{digits}e{}", -scale));
    }
    let mut out = Vec::new();
    write_decimal(&digits, scale, &mut out);
    String::from_utf8(out).ok()
}

/// Returns the decimal digits of a big-endian integer in two's complement.
fn integer(bytes: &[u8]) -> String {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    if bytes.len() <= 16 {
        let mut wide = if negative { [0xFF; 16] } else { [0; 16] };
        wide[16 - bytes.len()..].copy_from_slice(bytes);
        return i128::from_be_bytes(wide).to_string();
    }
    let mut limbs = magnitude(bytes, negative);
    // Groups of nine digits, the last group first.
    let mut groups = Vec::new();
    while let Some(&top) = limbs.last() {
        if top == 0 {
            limbs.pop();
            continue;
        }
        let mut rest = 0_u64;
        for limb in limbs.iter_mut().rev() {
            let value = rest << 32 | u64::from(*limb);
            *limb = (value / 1_000_000_000) as u32;
            rest = value % 1_000_000_000;
        }
        groups.push(rest);
    }
    let mut out = String::from(if negative { "-" } else { "" });
    out.push_str(&groups.pop().unwrap_or(0).to_string());
    for group in groups.iter().rev() {
        out.push_str(&format!("{group:09}"));
    }
    out
}

/// Returns the absolute value of a number as limbs of 32 bits, the least significant first.
fn magnitude(bytes: &[u8], negative: bool) -> Vec<u32> {
    let mut limbs = Vec::with_capacity(bytes.len() / 4 + 1);
    for group in bytes.rchunks(4) {
        let mut limb = if negative { [0xFF; 4] } else { [0; 4] };
        limb[4 - group.len()..].copy_from_slice(group);
        limbs.push(u32::from_be_bytes(limb));
    }
    if negative {
        let mut carry = true;
        for limb in &mut limbs {
            (*limb, carry) = (!*limb).overflowing_add(u32::from(carry));
        }
        if carry {
            limbs.push(1);
        }
    }
    limbs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_goes_both_ways() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"\xff\xfe\xfd\xfc", "//79/A=="),
        ] {
            assert_eq!(base64(text).unwrap(), bytes);
            assert_eq!(base64(text.trim_end_matches('=')).unwrap(), bytes);
            assert_eq!(to_base64(bytes), text);
        }
        assert_eq!(base64("__79_A").unwrap(), b"\xff\xfe\xfd\xfc");
        for text in ["A", "=", "Zg=", "Zh==", "Z g=", "Zm9v====", "Zm9v="] {
            assert_eq!(base64(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_of_any_length() {
        let decimal = |bytes: &[u8], scale| decimal(bytes, scale).unwrap();
        assert_eq!(decimal(&[0x00, 0xE2, 0x40], 2), "579.20");
        assert_eq!(decimal(&[0xFF], 3), "-0.001");
        assert_eq!(decimal(&[], 0), "0");
        assert_eq!(decimal(&[5], -3), "5000");
        let wide = |digits: &str| {
            let mut value = digits.parse::<i128>().unwrap().to_be_bytes().to_vec();
            value.splice(0..0, if digits.starts_with('-') { [0xFF; 5] } else { [0; 5] });
            value
        };
        for digits in ["0", "1", "-1", "170141183460469231731687303715884105727", "-4294967296"] {
            assert_eq!(decimal(&wide(digits), 0), digits);
        }
        let power = [&[1][..], &[0; 16]].concat();
        assert_eq!(decimal(&power, 0), "340282366920938463463374607431768211456");
        let least = [&[0x80][..], &[0; 16]].concat();
        assert_eq!(decimal(&least, 0), "-43556142965880123323311949751266331066368");
        let nines = wide("-99999999999999999999999999999999999999");
        assert_eq!(decimal(&[1], -130), format!("1{:0130}", 0));
        assert_eq!(decimal(&[1], 131), format!("0.{:0131}", 1));
        for (bytes, scale, expected) in [
            (&[1][..], -131, "1e131"),
            (&[1], -131_072, "1e131072"),
            (&[0xFF], 132, "-1e-132"),
            (&[0], 16_383, "0e-16383"),
            (&[0], -131_072, "0"),
            (&nines, 169, "-99999999999999999999999999999999999999e-169"),
        ] {
            assert_eq!(decimal(bytes, scale), expected);
        }
        assert_eq!(super::decimal(&[1], 16_384), None);
        assert_eq!(super::decimal(&[1; 62_001], 0), None);
    }

    #[test]
    fn other_spellings() {
        assert_eq!(latin1("aÿ").unwrap(), [0x61, 0xFF]);
        assert_eq!(latin1("€"), None);
        assert_eq!(from_hex("00fF").unwrap(), [0, 255]);
        assert_eq!((from_hex("0"), from_hex("0g")), (None, None));
        assert_eq!(bytea(&[0, 0xAB]), "\\x00ab");
    }
}

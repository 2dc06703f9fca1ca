//! Parses up to eight ASCII digits at once, in one 64-bit word.
//!
//! The lowest byte of a word is the first byte of the text. Nothing here reads beyond its slice: a
//! short slice is loaded with two loads that may overlap.

/// Eight times the character `0`.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// Loads a slice of 1 to 8 bytes into a word. The remaining high bytes are zero.
#[inline(always)]
pub(super) fn load8(bytes: &[u8]) -> u64 {
    let n = bytes.len();
    debug_assert!((1..=8).contains(&n));
    if let (Some(head), Some(tail)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let shift = (n - 4) * 8;
        u64::from(u32::from_le_bytes(*head)) | (u64::from(u32::from_le_bytes(*tail)) << shift)
    } else {
        let at = |i: usize| u64::from(bytes[i]) << (8 * i);
        at(0) | at(n / 2) | at(n - 1)
    }
}

/// Loads the first eight bytes of a slice, which must have eight.
#[inline(always)]
pub(super) fn first8(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// Loads the last eight bytes of a slice, which must have eight.
#[inline(always)]
pub(super) fn last8(bytes: &[u8]) -> u64 {
    bytes.last_chunk::<8>().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// Turns the first `n` (1 to 8) bytes of a word into digit values, after leading zeros.
#[inline(always)]
pub(super) fn right_aligned(word: u64, n: usize) -> u64 {
    let shift = 64 - 8 * n as u32;
    (word << shift) ^ (ZEROS << shift)
}

/// Turns the last `n` (1 to 8) bytes of a word into digit values, before trailing zeros.
#[inline(always)]
pub(super) fn left_aligned(word: u64, n: usize) -> u64 {
    let shift = 64 - 8 * n as u32;
    (word >> shift) ^ (ZEROS >> shift)
}

/// Turns the ASCII digits of a word into digit values.
#[inline(always)]
pub(super) fn values(word: u64) -> u64 {
    word ^ ZEROS
}

/// Returns whether each byte is a digit value, 0 to 9.
#[inline(always)]
pub(super) fn are_digit_values(word: u64) -> bool {
    (word.wrapping_add(0x7676_7676_7676_7676) | word) & 0x8080_8080_8080_8080 == 0
}

/// Computes, at each byte, the two-digit number of this digit value and the next.
#[inline(always)]
pub(super) fn pairs(values: u64) -> u64 {
    values.wrapping_mul(10).wrapping_add(values >> 8)
}

/// Computes the number of eight digit values. The first byte is the most significant digit.
#[inline(always)]
pub(super) fn number(values: u64) -> u64 {
    const LANES: u64 = 0x0000_00ff_0000_00ff;
    let pairs = pairs(values);
    let high = (pairs & LANES).wrapping_mul(100 + (1_000_000 << 32));
    let low = ((pairs >> 16) & LANES).wrapping_mul(1 + (10_000 << 32));
    high.wrapping_add(low) >> 32
}

/// Computes two digits to the base of 10,000 from eight digit values. Bits 0 to 15 hold the high
/// digit, and bits 32 to 47 the low digit. The other bits are undefined.
#[inline(always)]
pub(super) fn groups(values: u64) -> u64 {
    let pairs = pairs(values) & 0x00ff_00ff_00ff_00ff;
    pairs.wrapping_mul(100).wrapping_add(pairs >> 16)
}

/// Returns the index of the lowest byte of a word that equals `byte`.
#[inline(always)]
pub(super) fn find(word: u64, byte: u8) -> Option<usize> {
    let x = word ^ (u64::from(byte) * 0x0101_0101_0101_0101);
    let zero = x.wrapping_sub(0x0101_0101_0101_0101) & !x & 0x8080_8080_8080_8080;
    (zero != 0).then(|| (zero.trailing_zeros() / 8) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_length() {
        let text = b"90817263";
        for n in 1..=8 {
            let expected: u64 = std::str::from_utf8(&text[..n]).unwrap().parse().unwrap();
            let values = right_aligned(load8(&text[..n]), n);
            assert!(are_digit_values(values));
            assert_eq!(number(values), expected);
            let padded = expected * 10u64.pow(8 - n as u32);
            let word = load8(&text[..n]) << (64 - 8 * n);
            assert_eq!(number(left_aligned(word, n)), padded);
        }
    }

    #[test]
    fn tells_digits_from_all_other_bytes() {
        for byte in 0..=255u8 {
            for at in 0..8 {
                let mut text = *b"12345678";
                text[at] = byte;
                let word = values(u64::from_le_bytes(text));
                assert_eq!(are_digit_values(word), byte.is_ascii_digit(), "byte {byte} at {at}");
            }
        }
    }

    #[test]
    fn finds_the_first_match() {
        assert_eq!(find(u64::from_le_bytes(*b"12.45.78"), b'.'), Some(2));
        assert_eq!(find(u64::from_le_bytes(*b"1234567."), b'.'), Some(7));
        assert_eq!(find(u64::from_le_bytes(*b"1234/678"), b'.'), None);
    }
}

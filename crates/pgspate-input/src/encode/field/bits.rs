//! Encodes the types bit and varbit, written with zeros and ones.

/// Encodes a bit string: its length in bits, then its bytes.
pub(super) fn encode(field: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(bits) = i32::try_from(field.len()) else {
        return false;
    };
    if !field.iter().all(|b| matches!(b, b'0' | b'1')) {
        return false;
    }
    let bytes = field.len().div_ceil(8) as i32;
    out.extend_from_slice(&(4 + bytes).to_be_bytes());
    out.extend_from_slice(&bits.to_be_bytes());
    out.extend(field.chunks(8).map(|chunk| {
        let byte = chunk.iter().fold(0, |byte, bit| byte << 1 | (bit & 1));
        byte << (8 - chunk.len())
    }));
    true
}

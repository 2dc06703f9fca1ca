//! Types whose binary value is the field itself: text and similar types, names, JSON, bytea.
//!
//! The server converts and checks the encoding of text alike in binary and in text format. For
//! bytea and "char" the two formats differ, so only ASCII is accepted for these types.

use super::append_fixed;
use crate::types::SessionSettings;

/// The longest name in bytes. The server's input function truncates longer names.
const NAME_LEN_MAX: usize = 63;

/// Encodes a value whose bytes are the field's bytes.
#[inline]
pub(super) fn encode_text(field: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(len) = i32::try_from(field.len()) else {
        return false;
    };
    out.reserve(4 + field.len());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(field);
    true
}

/// Returns the longest name with bytes above 127 that fits after any encoding conversion.
pub(super) fn name_non_ascii_len_max(session: &SessionSettings) -> usize {
    if session.client_encoding.eq_ignore_ascii_case(&session.server_encoding) {
        NAME_LEN_MAX
    } else {
        NAME_LEN_MAX / 4
    }
}

/// Encodes a name that the server does not truncate.
pub(super) fn encode_name(field: &[u8], non_ascii_len_max: usize, out: &mut Vec<u8>) -> bool {
    let len_max = if field.is_ascii() { NAME_LEN_MAX } else { non_ascii_len_max };
    field.len() <= len_max && encode_text(field, out)
}

/// Encodes a "char": one ASCII character, or an empty field as a zero byte. Longer fields are
/// escapes or would be truncated; they are left to the server.
pub(super) fn encode_char(field: &[u8], out: &mut Vec<u8>) -> bool {
    match field {
        [] => append_fixed([0], out),
        [byte @ 1..=127] => append_fixed([*byte], out),
        _ => false,
    }
}

/// Encodes a jsonb: a version number, then the text.
pub(super) fn encode_jsonb(field: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(len) = i32::try_from(field.len() + 1) else {
        return false;
    };
    out.extend_from_slice(&len.to_be_bytes());
    out.push(1);
    out.extend_from_slice(field);
    true
}

/// Encodes a bytea: the hexadecimal format without spaces, and the escape format without escapes.
pub(super) fn encode_bytea(field: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(hex) = field.strip_prefix(b"\\x") else {
        let is_plain = field.iter().all(|b| matches!(b, 1..=127) && *b != b'\\');
        return is_plain && encode_text(field, out);
    };
    let (pairs, odd) = hex.as_chunks::<2>();
    let Ok(len) = i32::try_from(pairs.len()) else {
        return false;
    };
    out.extend_from_slice(&len.to_be_bytes());
    let mut wrong = odd.len() as u8;
    out.extend(pairs.iter().map(|[high, low]| {
        let (high, low) = (HEX[usize::from(*high)], HEX[usize::from(*low)]);
        wrong |= (high | low) & 0xf0;
        high << 4 | low & 0x0f
    }));
    wrong == 0
}

/// The values of the hexadecimal digits; 0xff for all other bytes.
pub(super) const HEX: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        let digit = b"0123456789abcdef"[value as usize];
        table[digit as usize] = value;
        table[digit.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    table
};

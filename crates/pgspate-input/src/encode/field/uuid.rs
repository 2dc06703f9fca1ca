//! Encodes UUIDs: sixteen bytes in hexadecimal. A dash may follow any two bytes. Braces are
//! optional.

use super::append_fixed;
use super::bytes::HEX;

/// Encodes a UUID.
pub(super) fn encode(field: &[u8], out: &mut Vec<u8>) -> bool {
    let text = match field {
        [b'{', inner @ .., b'}'] => inner,
        _ => field,
    };
    let mut value = [0u8; 16];
    let mut wrong = 0;
    let mut rest = text;
    for (i, byte) in value.iter_mut().enumerate() {
        let [high, low, behind @ ..] = rest else {
            return false;
        };
        let (high, low) = (HEX[usize::from(*high)], HEX[usize::from(*low)]);
        wrong |= (high | low) & 0xf0;
        *byte = high << 4 | low & 0x0f;
        rest = match behind {
            [b'-', after @ ..] if i % 2 == 1 && i < 15 => after,
            _ => behind,
        };
    }
    wrong == 0 && rest.is_empty() && append_fixed(value, out)
}

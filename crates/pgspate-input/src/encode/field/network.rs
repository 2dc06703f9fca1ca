//! Encodes network addresses: inet, cidr, macaddr and macaddr8.
//!
//! Accepted are complete addresses: four decimal bytes without leading zeros, or IPv6 as in RFC
//! 4291. A cidr with bits set after its mask is left to the server, which rejects it.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::append_fixed;
use super::bytes::HEX;

/// The server's number for the IPv4 family. The number for IPv6 is one more.
const FAMILY_IPV4: u8 = 2;

/// Encodes an inet or a cidr.
pub(super) fn encode_inet<const IS_CIDR: bool>(field: &[u8], out: &mut Vec<u8>) -> bool {
    let (address, mask) = match memchr::memchr(b'/', field) {
        Some(at) => (&field[..at], Some(&field[at + 1..])),
        None => (field, None),
    };
    let Ok(address) = std::str::from_utf8(address) else {
        return false;
    };
    if let Ok(v4) = address.parse::<Ipv4Addr>() {
        let Some(mask) = parse_mask(mask, 32) else {
            return false;
        };
        let host = u64::from(u32::from(v4)) & (u64::from(u32::MAX) >> mask);
        if IS_CIDR && host != 0 {
            return false;
        }
        let head = [0, 0, 0, 8, FAMILY_IPV4, mask, u8::from(IS_CIDR), 4];
        out.extend_from_slice(&head);
        out.extend_from_slice(&v4.octets());
        return true;
    }
    if let Ok(v6) = address.parse::<Ipv6Addr>() {
        let Some(mask) = parse_mask(mask, 128) else {
            return false;
        };
        let host = u128::MAX.checked_shr(u32::from(mask)).unwrap_or(0) & u128::from(v6);
        if IS_CIDR && host != 0 {
            return false;
        }
        let head = [0, 0, 0, 20, FAMILY_IPV4 + 1, mask, u8::from(IS_CIDR), 16];
        out.extend_from_slice(&head);
        out.extend_from_slice(&v6.octets());
        return true;
    }
    false
}

/// Parses the number after the slash: no leading zeros, at most `max`. Without a slash, returns
/// `max`.
fn parse_mask(text: Option<&[u8]>, max: u8) -> Option<u8> {
    let Some(text) = text else {
        return Some(max);
    };
    let plain = match text {
        [b'0'] => true,
        [b'1'..=b'9', rest @ ..] => rest.len() <= 2 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    let bits = text.iter().fold(0u16, |n, b| n * 10 + u16::from(b - b'0'));
    u8::try_from(bits).ok().filter(|bits| *bits <= max)
}

/// Encodes `N` bytes of two hexadecimal digits each, all separated by `:` or all by `-`.
pub(super) fn encode_macaddr<const N: usize>(field: &[u8], out: &mut Vec<u8>) -> bool {
    if field.len() != 3 * N - 1 || !matches!(field[2], b':' | b'-') {
        return false;
    }
    let mut value = [0u8; N];
    for (byte, text) in value.iter_mut().zip(field.chunks(3)) {
        let (high, low) = (HEX[usize::from(text[0])], HEX[usize::from(text[1])]);
        if (high | low) & 0xf0 != 0 || text.get(2).is_some_and(|b| *b != field[2]) {
            return false;
        }
        *byte = high << 4 | low;
    }
    append_fixed(value, out)
}

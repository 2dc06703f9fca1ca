//! Encodes ranges: `empty`, or two bounds in brackets. A bound is infinite, unquoted or quoted.
//!
//! Like the server's input function, the receive function makes a range canonical and checks the
//! order of the bounds. Bounds with escapes are left to the server.

use super::FieldEncoder;
use crate::types::{PgType, SessionSettings};

const EMPTY: u8 = 0x01;
const LOWER_INCLUSIVE: u8 = 0x02;
const UPPER_INCLUSIVE: u8 = 0x04;
const LOWER_INFINITE: u8 = 0x08;
const UPPER_INFINITE: u8 = 0x10;

/// Encodes the ranges of one subtype.
#[derive(Debug, Clone)]
pub(super) struct RangeEncoder {
    bound: FieldEncoder,
}

impl RangeEncoder {
    pub(super) fn new(subtype: &PgType, session: &SessionSettings) -> Result<RangeEncoder, String> {
        Ok(RangeEncoder { bound: FieldEncoder::new(subtype, session)? })
    }

    /// Encodes a range.
    pub(super) fn encode(&self, field: &[u8], out: &mut Vec<u8>) -> bool {
        if field.eq_ignore_ascii_case(b"empty") {
            out.extend_from_slice(&[0, 0, 0, 1, EMPTY]);
            return true;
        }
        self.append_bounds(field, out).is_some()
    }

    /// Encodes a range with two bounds.
    fn append_bounds(&self, field: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let [open @ (b'[' | b'('), inner @ .., close @ (b']' | b')')] = field else {
            return None;
        };
        // Which bytes above 127 are spaces depends on the server's locale.
        if !inner.is_ascii() {
            return None;
        }
        let (lower, rest) = parse_bound(inner)?;
        let (upper, rest) = parse_bound(rest.strip_prefix(b",")?)?;
        if !rest.is_empty() {
            return None;
        }
        let start = out.len();
        out.extend_from_slice(&[0; 5]);
        let mut flags = 0;
        match lower {
            Some(text) => {
                flags |= if *open == b'[' { LOWER_INCLUSIVE } else { 0 };
                self.bound.encode(text, out).then_some(())?;
            }
            None => flags |= LOWER_INFINITE,
        }
        match upper {
            Some(text) => {
                flags |= if *close == b']' { UPPER_INCLUSIVE } else { 0 };
                self.bound.encode(text, out).then_some(())?;
            }
            None => flags |= UPPER_INFINITE,
        }
        let len = i32::try_from(out.len() - start - 4).ok()?;
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        out[start + 4] = flags;
        Some(())
    }
}

/// Parses a bound. Returns its text (`None` if infinite) and the rest of the range.
fn parse_bound(text: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let special = |b: &u8| matches!(b, b',' | b'"' | b'\\' | b'(' | b')' | b'[' | b']');
    if let Some(inner) = text.strip_prefix(b"\"") {
        let end = memchr::memchr2(b'"', b'\\', inner)?;
        let rest = &inner[end..];
        // After the closing quote must come the comma or the end. Doubled quotes, and text after
        // the closing quote, are left to the server.
        let ends = matches!(rest, [b'"'] | [b'"', b',', ..]);
        return ends.then_some((Some(&inner[..end]), &rest[1..]));
    }
    let end = text.iter().position(special).unwrap_or(text.len());
    let (value, rest) = text.split_at(end);
    Some(((!value.is_empty()).then_some(value), rest))
}

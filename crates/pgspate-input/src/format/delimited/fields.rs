//! Decodes a field's bytes into its value, as COPY does.
//!
//! COPY checks the encoding of the raw line, and again of the decoded value. Some values pass one
//! check and fail the other. Such a value is not decoded here. The server gets the field as COPY
//! text in which the same bytes are separated as in the input.

use wide::u8x16;

use super::{CopyFormat, Dialect};
use crate::encode::text;

/// The decoded value of a field.
pub(super) enum FieldValue<'a> {
    /// NULL.
    Null,
    /// A value.
    Bytes(&'a [u8]),
    /// The decoded bytes of a value that only the server can check.
    Server(&'a [u8]),
}

/// Returns whether a field equals the NULL string. `has_escapes` says whether the field contains
/// quotes or escapes.
#[inline]
pub(super) fn is_null_string(dialect: &Dialect, raw: &[u8], has_escapes: bool) -> bool {
    raw.len() == dialect.null.len()
        && raw == dialect.null
        && (!has_escapes || dialect.format == CopyFormat::Text)
}

/// Returns the field without a single backslash at the end of the input, which COPY drops.
pub(super) fn without_last_escape<'a>(dialect: &Dialect, raw: &'a [u8]) -> &'a [u8] {
    let is_cut_off = dialect.format == CopyFormat::Text && ends_in_escape(raw);
    &raw[..raw.len() - usize::from(is_cut_off)]
}

/// Decodes a field with quotes or escapes that is not NULL. The value is borrowed from `raw` if it
/// is a part of `raw`; otherwise it is built in `scratch`.
pub(super) fn decode_value<'a>(
    dialect: &Dialect,
    raw: &'a [u8],
    scratch: &'a mut Vec<u8>,
) -> FieldValue<'a> {
    if let Some(inner) = strip_plain_quotes(dialect, raw) {
        return FieldValue::Bytes(inner);
    }
    scratch.clear();
    let mut builder = ValueBuilder { bytes: scratch, is_after_gap: false, is_for_server: false };
    decode_parts(dialect, raw, &mut builder);
    if builder.is_for_server { FieldValue::Server(scratch) } else { FieldValue::Bytes(scratch) }
}

/// Returns the text between the quotes, if the whole field is quoted and contains no escapes.
#[inline]
pub(super) fn strip_plain_quotes<'a>(dialect: &Dialect, raw: &'a [u8]) -> Option<&'a [u8]> {
    let quote = dialect.quote.filter(|_| dialect.format == CopyFormat::Csv)?;
    match raw {
        [first, inner @ .., last]
            if *first == quote && *last == quote && !has_either(inner, quote, dialect.escape) =>
        {
            Some(inner)
        }
        _ => None,
    }
}

/// Returns whether one of two bytes occurs in `bytes`. For most fields, which are short, a call of
/// memchr would be slower.
#[inline]
fn has_either(bytes: &[u8], one: u8, other: u8) -> bool {
    if bytes.len() > 16 {
        return memchr::memchr2(one, other, bytes).is_some();
    }
    bytes.iter().fold(false, |any, byte| any | (*byte == one) | (*byte == other))
}

/// Returns whether COPY text needs no escapes for these bytes.
#[inline]
pub(super) fn needs_no_escapes(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<16>();
    let special = |block: &[u8; 16]| {
        let block = u8x16::new(*block);
        let [escape, tab, newline, carriage_return] =
            [b'\\', b'\t', b'\n', b'\r'].map(|byte| block.simd_eq(u8x16::splat(byte)));
        escape | tab | newline | carriage_return
    };
    let all = blocks.iter().fold(u8x16::splat(0), |all, block| all | special(block));
    let is_special = |byte: &u8| matches!(byte, b'\\' | b'\t' | b'\n' | b'\r');
    !all.any() && !rest.iter().fold(false, |any, byte| any | is_special(byte))
}

/// Appends bytes as a field of COPY text.
pub(super) fn append_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    if needs_no_escapes(bytes) {
        out.extend_from_slice(bytes);
    } else {
        text::append(Some(bytes), out);
    }
}

/// Appends a field with quotes or escapes that is not NULL as COPY text with the same value. Bytes
/// above 127 that are separated in `raw` are also separated in `out`.
pub(super) fn append_text(dialect: &Dialect, raw: &[u8], out: &mut Vec<u8>) {
    match strip_plain_quotes(dialect, raw) {
        Some(inner) => append_escaped(inner, out),
        None => {
            decode_parts(dialect, raw, &mut CopyTextBuilder { bytes: out, is_after_gap: false })
        }
    }
}

/// Receives the parts of a field with quotes or escapes, in their order.
trait FieldPartSink {
    /// Receives bytes that are adjacent in the field.
    fn adjacent(&mut self, bytes: &[u8]);
    /// Notes that a quote or an escape was removed between two parts.
    fn gap(&mut self);
    /// Receives a byte that is written as an octal or hexadecimal escape. The byte is 0 or above
    /// 127.
    fn numeric_escape(&mut self, byte: u8);
}

/// Builds the value of a field.
struct ValueBuilder<'a> {
    bytes: &'a mut Vec<u8>,
    is_after_gap: bool,
    /// Whether only the server can check the value.
    is_for_server: bool,
}

impl FieldPartSink for ValueBuilder<'_> {
    #[inline]
    fn adjacent(&mut self, bytes: &[u8]) {
        let Some(first) = bytes.first() else { return };
        // Two halves of a character may have become adjacent.
        if self.is_after_gap && !first.is_ascii() {
            self.is_for_server |= self.bytes.last().is_some_and(|last| !last.is_ascii());
        }
        self.is_after_gap = false;
        self.bytes.extend_from_slice(bytes);
    }

    fn gap(&mut self) {
        self.is_after_gap = true;
    }

    /// Marks the value for the server: this byte is in the server's encoding, and all other bytes
    /// are in the client's encoding.
    fn numeric_escape(&mut self, byte: u8) {
        self.is_after_gap = false;
        self.is_for_server = true;
        self.bytes.push(byte);
    }
}

/// Builds a field of COPY text.
struct CopyTextBuilder<'a> {
    bytes: &'a mut Vec<u8>,
    is_after_gap: bool,
}

impl FieldPartSink for CopyTextBuilder<'_> {
    fn adjacent(&mut self, bytes: &[u8]) {
        let Some(first) = bytes.first() else { return };
        if self.is_after_gap && !first.is_ascii() {
            self.bytes.push(b'\\');
        }
        self.is_after_gap = false;
        append_escaped(bytes, self.bytes);
    }

    fn gap(&mut self) {
        self.is_after_gap = true;
    }

    fn numeric_escape(&mut self, byte: u8) {
        let digits = [byte >> 6, (byte >> 3) & 7, byte & 7].map(|digit| b'0' + digit);
        self.bytes.push(b'\\');
        self.bytes.extend_from_slice(&digits);
        self.is_after_gap = false;
    }
}

/// Splits a field with quotes or escapes into its parts.
fn decode_parts(dialect: &Dialect, raw: &[u8], parts: &mut impl FieldPartSink) {
    match (dialect.format, dialect.quote) {
        (CopyFormat::Text, _) => unescape(raw, parts),
        (CopyFormat::Csv, Some(quote)) => unquote(raw, quote, dialect.escape, parts),
        (CopyFormat::Csv, None) => parts.adjacent(raw),
    }
}

/// Removes the quotes of COPY csv. Quotes may begin and end anywhere in a field.
fn unquote(raw: &[u8], quote: u8, escape: u8, parts: &mut impl FieldPartSink) {
    let mut in_quote = false;
    let mut rest = raw;
    while let Some(at) = memchr::memchr2(quote, escape, rest) {
        let next = rest.get(at + 1).copied();
        if in_quote && rest[at] == escape && (next == Some(escape) || next == Some(quote)) {
            parts.adjacent(&rest[..at]);
            parts.gap();
            parts.adjacent(&rest[at + 1..at + 2]);
            rest = &rest[at + 2..];
        } else if rest[at] == quote {
            parts.adjacent(&rest[..at]);
            parts.gap();
            in_quote = !in_quote;
            rest = &rest[at + 1..];
        } else {
            parts.adjacent(&rest[..at + 1]);
            rest = &rest[at + 1..];
        }
    }
    parts.adjacent(rest);
}

/// Decodes the backslash escapes of COPY text.
fn unescape(raw: &[u8], parts: &mut impl FieldPartSink) {
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        parts.adjacent(&rest[..at]);
        let after = &rest[at + 1..];
        let (byte, used, is_number) = parse_escape(after);
        if is_number && (byte == 0 || !byte.is_ascii()) {
            parts.numeric_escape(byte);
        } else if used > 0 {
            parts.gap();
            parts.adjacent(&[byte]);
        }
        rest = &after[used..];
    }
    parts.adjacent(rest);
}

/// Parses the text after a backslash. Returns the byte that the escape stands for, the number of
/// bytes used, and whether the escape is octal or hexadecimal.
fn parse_escape(rest: &[u8]) -> (u8, usize, bool) {
    let byte = match rest {
        [] => return (0, 0, false),
        [b'0'..=b'7', ..] => {
            let (byte, used) = parse_digits(rest, 8, 3);
            return (byte, used, true);
        }
        [b'x', digits @ ..] if digits.first().is_some_and(u8::is_ascii_hexdigit) => {
            let (byte, used) = parse_digits(digits, 16, 2);
            return (byte, used + 1, true);
        }
        [b'b', ..] => 8,
        [b'f', ..] => 12,
        [b'n', ..] => b'\n',
        [b'r', ..] => b'\r',
        [b't', ..] => b'\t',
        [b'v', ..] => 11,
        [byte, ..] => *byte,
    };
    (byte, 1, false)
}

/// Parses up to `digits_max` digits as one byte. As in COPY, higher bits are cut off. Returns the
/// byte and the number of digits.
fn parse_digits(rest: &[u8], radix: u32, digits_max: usize) -> (u8, usize) {
    let digits = rest.iter().map_while(|byte| char::from(*byte).to_digit(radix)).take(digits_max);
    digits.fold((0, 0), |(value, used), digit| {
        (((u32::from(value) * radix + digit) & 0xff) as u8, used + 1)
    })
}

/// Returns whether the bytes end with an odd number of backslashes, so that the next byte is
/// escaped.
pub(super) fn ends_in_escape(bytes: &[u8]) -> bool {
    bytes.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

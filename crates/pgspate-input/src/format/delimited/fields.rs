//! From a field's bytes to its value, as COPY takes them.
//!
//! COPY checks the encoding of the raw line first and that of the value again. A value whose bytes
//! could pass the one check but not the other is not made here: the server gets the field with the
//! same breaks between its bytes.

use wide::u8x16;

use super::{Dialect, Family};
use crate::encode::text;

/// What a field says.
pub(super) enum Value<'a> {
    /// NULL.
    Null,
    /// These bytes.
    Bytes(&'a [u8]),
    /// Only the server can tell; in its encoding these bytes, if it takes them.
    Server(&'a [u8]),
}

/// Whether a field is NULL by its spelling alone. `marked` is false for a field without quotes
/// and escapes.
#[inline]
pub(super) fn is_null(dialect: &Dialect, raw: &[u8], marked: bool) -> bool {
    raw.len() == dialect.null.len()
        && raw == dialect.null
        && (!marked || dialect.family == Family::Text)
}

/// The field without a backslash before the end of the input, which COPY drops.
pub(super) fn without_last_escape<'a>(dialect: &Dialect, raw: &'a [u8]) -> &'a [u8] {
    let is_cut_off = dialect.family == Family::Text && ends_in_escape(raw);
    &raw[..raw.len() - usize::from(is_cut_off)]
}

/// The value of a marked field that is not NULL: without its quotes, or with its escapes
/// resolved. Borrowed from `raw` where that is a part of it, else built in `scratch`.
pub(super) fn value<'a>(dialect: &Dialect, raw: &'a [u8], scratch: &'a mut Vec<u8>) -> Value<'a> {
    if let Some(inner) = plainly_quoted(dialect, raw) {
        return Value::Bytes(inner);
    }
    scratch.clear();
    let mut built = Built { bytes: scratch, is_after_gap: false, in_doubt: false };
    resolve(dialect, raw, &mut built);
    if built.in_doubt { Value::Server(scratch) } else { Value::Bytes(scratch) }
}

/// What is within the quotes of a field that is quoted as a whole and has no escapes.
#[inline]
pub(super) fn plainly_quoted<'a>(dialect: &Dialect, raw: &'a [u8]) -> Option<&'a [u8]> {
    let quote = dialect.quote.filter(|_| dialect.family == Family::Csv)?;
    match raw {
        [first, inner @ .., last]
            if *first == quote && *last == quote && !has_either(inner, quote, dialect.escape) =>
        {
            Some(inner)
        }
        _ => None,
    }
}

/// Most fields are too short for a call.
#[inline]
fn has_either(bytes: &[u8], one: u8, other: u8) -> bool {
    if bytes.len() > 16 {
        return memchr::memchr2(one, other, bytes).is_some();
    }
    bytes.iter().fold(false, |any, byte| any | (*byte == one) | (*byte == other))
}

/// Whether COPY text takes the bytes for themselves.
#[inline]
pub(super) fn is_plain(bytes: &[u8]) -> bool {
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

/// Appends bytes as COPY text.
pub(super) fn append_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    if is_plain(bytes) {
        out.extend_from_slice(bytes);
    } else {
        text::append(Some(bytes), out);
    }
}

/// Appends a marked field that is not NULL as COPY text with the same value. Bytes that do not
/// stand side by side in `raw` do not do so in `out`, unless one is ASCII.
pub(super) fn append_text(dialect: &Dialect, raw: &[u8], out: &mut Vec<u8>) {
    match plainly_quoted(dialect, raw) {
        Some(inner) => append_escaped(inner, out),
        None => resolve(dialect, raw, &mut CopyText { bytes: out, is_after_gap: false }),
    }
}

/// Takes the parts of a marked field in their order.
trait Parts {
    /// Bytes that stand side by side.
    fn run(&mut self, bytes: &[u8]);
    /// Between these parts a quote or an escape was left out.
    fn gap(&mut self);
    /// A byte given by its number that is part of a character, or a zero.
    fn number(&mut self, byte: u8);
}

/// A value in the making.
struct Built<'a> {
    bytes: &'a mut Vec<u8>,
    is_after_gap: bool,
    in_doubt: bool,
}

impl Parts for Built<'_> {
    #[inline]
    fn run(&mut self, bytes: &[u8]) {
        let Some(first) = bytes.first() else { return };
        // Two parts of a character may have become neighbours.
        if self.is_after_gap && !first.is_ascii() {
            self.in_doubt |= self.bytes.last().is_some_and(|last| !last.is_ascii());
        }
        self.is_after_gap = false;
        self.bytes.extend_from_slice(bytes);
    }

    fn gap(&mut self) {
        self.is_after_gap = true;
    }

    /// It is meant in the server's encoding, while all else is in the client's.
    fn number(&mut self, byte: u8) {
        self.is_after_gap = false;
        self.in_doubt = true;
        self.bytes.push(byte);
    }
}

/// COPY text in the making.
struct CopyText<'a> {
    bytes: &'a mut Vec<u8>,
    is_after_gap: bool,
}

impl Parts for CopyText<'_> {
    fn run(&mut self, bytes: &[u8]) {
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

    fn number(&mut self, byte: u8) {
        let digits = [byte >> 6, (byte >> 3) & 7, byte & 7].map(|digit| b'0' + digit);
        self.bytes.push(b'\\');
        self.bytes.extend_from_slice(&digits);
        self.is_after_gap = false;
    }
}

fn resolve(dialect: &Dialect, raw: &[u8], parts: &mut impl Parts) {
    match (dialect.family, dialect.quote) {
        (Family::Text, _) => unescape(raw, parts),
        (Family::Csv, Some(quote)) => unquote(raw, quote, dialect.escape, parts),
        (Family::Csv, None) => parts.run(raw),
    }
}

/// Resolves COPY csv's quotes, which may begin and end anywhere in a field.
fn unquote(raw: &[u8], quote: u8, escape: u8, parts: &mut impl Parts) {
    let mut in_quote = false;
    let mut rest = raw;
    while let Some(at) = memchr::memchr2(quote, escape, rest) {
        let next = rest.get(at + 1).copied();
        if in_quote && rest[at] == escape && (next == Some(escape) || next == Some(quote)) {
            parts.run(&rest[..at]);
            parts.gap();
            parts.run(&rest[at + 1..at + 2]);
            rest = &rest[at + 2..];
        } else if rest[at] == quote {
            parts.run(&rest[..at]);
            parts.gap();
            in_quote = !in_quote;
            rest = &rest[at + 1..];
        } else {
            parts.run(&rest[..at + 1]);
            rest = &rest[at + 1..];
        }
    }
    parts.run(rest);
}

/// Resolves COPY text's backslash escapes.
fn unescape(raw: &[u8], parts: &mut impl Parts) {
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        parts.run(&rest[..at]);
        let after = &rest[at + 1..];
        let (byte, used, is_number) = escaped(after);
        if is_number && (byte == 0 || !byte.is_ascii()) {
            parts.number(byte);
        } else if used > 0 {
            parts.gap();
            parts.run(&[byte]);
        }
        rest = &after[used..];
    }
    parts.run(rest);
}

/// The byte that what follows a backslash stands for, how many bytes that took, and whether they
/// are its number.
fn escaped(rest: &[u8]) -> (u8, usize, bool) {
    let byte = match rest {
        [] => return (0, 0, false),
        [b'0'..=b'7', ..] => {
            let (byte, used) = number(rest, 8, 3);
            return (byte, used, true);
        }
        [b'x', digits @ ..] if digits.first().is_some_and(u8::is_ascii_hexdigit) => {
            let (byte, used) = number(digits, 16, 2);
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

/// Up to `digits_max` digits as one byte; what does not fit is cut off, as COPY does.
fn number(rest: &[u8], radix: u32, digits_max: usize) -> (u8, usize) {
    let digits = rest.iter().map_while(|byte| char::from(*byte).to_digit(radix)).take(digits_max);
    digits.fold((0, 0), |(value, used), digit| {
        (((u32::from(value) * radix + digit) & 0xff) as u8, used + 1)
    })
}

/// Whether an odd number of backslashes stands at the end, so that the next byte is escaped.
pub(super) fn ends_in_escape(bytes: &[u8]) -> bool {
    bytes.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

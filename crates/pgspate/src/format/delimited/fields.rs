//! From a field's bytes to its value, as COPY takes them.

use super::scan::{Fault, Index, MARKED, OFFSET, RECORD, Rules};
use super::{Dialect, Eol, Family};

/// A record's fields; NULL is `None`.
pub type ParsedRecord = Vec<Option<Vec<u8>>>;

/// Whether an unmarked or marked field is NULL by its spelling alone. `marked` is false for a
/// field without quotes and escapes.
#[inline]
pub(super) fn is_null(dialect: &Dialect, raw: &[u8], marked: bool) -> bool {
    raw.len() == dialect.null.len()
        && raw == dialect.null
        && (!marked || dialect.family == Family::Text)
}

/// The value of a marked field: without its quotes, or with its escapes resolved. Borrowed from
/// `raw` where that is a part of it, else built in `scratch`.
pub(super) fn value<'a>(dialect: &Dialect, raw: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    match (dialect.family, dialect.quote) {
        (Family::Text, _) => unescape(raw, scratch),
        (Family::Csv, Some(quote)) => unquote(raw, quote, dialect.escape, scratch),
        (Family::Csv, None) => raw,
    }
}

fn unquote<'a>(raw: &'a [u8], quote: u8, escape: u8, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if let [first, inner @ .., last] = raw
        && *first == quote
        && *last == quote
        && memchr::memchr2(quote, escape, inner).is_none()
    {
        return inner;
    }
    scratch.clear();
    let mut in_quote = false;
    let mut at = 0;
    while let Some(&byte) = raw.get(at) {
        let next = raw.get(at + 1).copied();
        if in_quote && byte == escape && (next == Some(escape) || next == Some(quote)) {
            scratch.extend(next);
            at += 1;
        } else if byte == quote {
            in_quote = !in_quote;
        } else {
            scratch.push(byte);
        }
        at += 1;
    }
    scratch
}

/// Resolves COPY text's backslash escapes.
fn unescape<'a>(raw: &[u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        scratch.extend_from_slice(&rest[..at]);
        let (byte, used) = escaped(&rest[at + 1..]);
        scratch.push(byte);
        rest = &rest[at + 1 + used..];
    }
    scratch.extend_from_slice(rest);
    scratch
}

/// The byte that follows a backslash stands for, and how many bytes it took.
fn escaped(rest: &[u8]) -> (u8, usize) {
    match rest {
        [] => (b'\\', 0),
        [b'b', ..] => (8, 1),
        [b'f', ..] => (12, 1),
        [b'n', ..] => (b'\n', 1),
        [b'r', ..] => (b'\r', 1),
        [b't', ..] => (b'\t', 1),
        [b'v', ..] => (11, 1),
        [b'0'..=b'7', ..] => number(rest, 8, 3),
        [b'x', digits @ ..] if digits.first().is_some_and(u8::is_ascii_hexdigit) => {
            let (byte, used) = number(digits, 16, 2);
            (byte, used + 1)
        }
        [byte, ..] => (*byte, 1),
    }
}

/// Up to `digits_max` digits as one byte; what does not fit is cut off, as COPY does.
fn number(rest: &[u8], radix: u32, digits_max: usize) -> (u8, usize) {
    let digits = rest.iter().map_while(|byte| char::from(*byte).to_digit(radix)).take(digits_max);
    digits.fold((0, 0), |(value, used), digit| {
        (((value as u32 * radix + digit) & 0xff) as u8, used + 1)
    })
}

/// The values of the records at the start of `bytes`, at most `limit` of them; for headers and
/// samples. A record that is cut off or faulty ends the list.
pub fn parse_records(
    dialect: &Dialect,
    eol: Eol,
    bytes: &[u8],
    complete: bool,
    limit: usize,
) -> Vec<ParsedRecord> {
    let rules = Rules::new(dialect, eol);
    let mut index = Index::default();
    let mut records = Vec::new();
    let mut start = 0;
    while start < bytes.len() && records.len() < limit {
        index.scan(bytes, start, &rules);
        let mut field_start = start;
        let mut record = Vec::new();
        for end in &index.ends {
            let at = index.start + (end & OFFSET) as usize;
            record.push(owned_value(dialect, &bytes[field_start..at], end & MARKED != 0));
            field_start = at + 1;
            if end & RECORD != 0 {
                field_start = skip_line_end(bytes, at, eol);
                let is_cut_off = at == bytes.len() && !complete;
                if !is_cut_off && records.len() < limit {
                    records.push(std::mem::take(&mut record));
                }
                record.clear();
            }
        }
        if index.fault.is_some() || index.next == start {
            break;
        }
        start = index.next;
    }
    records
}

/// The start of the record after the one that ends at `at`.
pub(super) fn skip_line_end(bytes: &[u8], at: usize, eol: Eol) -> usize {
    let width = if eol == Eol::CrLf { 2 } else { 1 };
    (at + width).min(bytes.len())
}

fn owned_value(dialect: &Dialect, raw: &[u8], marked: bool) -> Option<Vec<u8>> {
    if is_null(dialect, raw, marked) {
        return None;
    }
    let mut scratch = Vec::new();
    Some(if marked { value(dialect, raw, &mut scratch).to_vec() } else { raw.to_vec() })
}

/// The line end of an input, from its first bytes: the first carriage return or newline outside
/// quotes decides, as in COPY.
pub(super) fn detect_eol(dialect: &Dialect, bytes: &[u8]) -> Eol {
    let mut from = 0;
    let mut in_quote = false;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &bytes[from..]) {
        let pos = from + at;
        in_quote = ends_in_quote(dialect, &bytes[from..pos], in_quote);
        let is_escaped = dialect.family == Family::Text && ends_in_escape(&bytes[..pos]);
        if !in_quote && !is_escaped {
            return match (bytes[pos], bytes.get(pos + 1)) {
                (b'\n', _) => Eol::Lf,
                (_, Some(b'\n')) => Eol::CrLf,
                _ => Eol::Cr,
            };
        }
        from = pos + 1;
    }
    Eol::Lf
}

/// Whether an odd number of backslashes stands at the end, so that the next byte is escaped.
pub(super) fn ends_in_escape(bytes: &[u8]) -> bool {
    bytes.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Whether the end of `bytes` is within quotes, given whether their start is.
pub(super) fn ends_in_quote(dialect: &Dialect, bytes: &[u8], mut in_quote: bool) -> bool {
    let (Family::Csv, Some(quote)) = (dialect.family, dialect.quote) else {
        return false;
    };
    let escape = dialect.escape;
    if quote == escape {
        return in_quote ^ (memchr::memchr_iter(quote, bytes).count() % 2 == 1);
    }
    let mut at = 0;
    while let Some(found) = memchr::memchr2(quote, escape, &bytes[at..]) {
        at += found;
        let next = bytes.get(at + 1).copied();
        if in_quote && bytes[at] == escape && (next == Some(quote) || next == Some(escape)) {
            at += 1;
        } else if bytes[at] == quote {
            in_quote = !in_quote;
        }
        at += 1;
    }
    in_quote
}

impl Fault {
    /// As the server words it.
    pub(super) fn message(self, family: Family) -> &'static str {
        match (self, family) {
            (Fault::CarriageReturn, Family::Csv) => "unquoted carriage return found in data",
            (Fault::CarriageReturn, Family::Text) => "literal carriage return found in data",
            (Fault::Newline, Family::Csv) => "unquoted newline found in data",
            (Fault::Newline, Family::Text) => "literal newline found in data",
            (Fault::Unterminated, _) => "unterminated CSV quoted field",
            (Fault::TooLong, _) => "record is longer than 1 GiB, the most that PostgreSQL takes",
            (Fault::EndMarker, _) => "data follows the end-of-copy marker",
            (Fault::CorruptEndMarker, _) => "end-of-copy marker is not alone on its line",
        }
    }
}

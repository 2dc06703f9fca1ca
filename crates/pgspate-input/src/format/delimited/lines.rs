//! Where lines end, by looking at no more than that takes.
//!
//! Quotes hide line ends in csv, backslashes in text, and in a comment nothing does. The cutter
//! asks these questions of long stretches; the index answers them once more byte by byte.

use super::fields::ends_in_escape;
use super::{Dialect, Eol, Family};
use crate::format::sniff::LineEnd;

impl From<LineEnd> for Eol {
    fn from(end: LineEnd) -> Eol {
        match end {
            LineEnd::Lf => Eol::Lf,
            LineEnd::CrLf => Eol::CrLf,
            LineEnd::Cr => Eol::Cr,
        }
    }
}

impl Eol {
    /// Its bytes.
    pub fn bytes(self) -> &'static [u8] {
        match self {
            Eol::Lf => b"\n",
            Eol::CrLf => b"\r\n",
            Eol::Cr => b"\r",
        }
    }

    /// The last of its bytes.
    pub(super) fn last_byte(self) -> u8 {
        if self == Eol::Cr { b'\r' } else { b'\n' }
    }
}

/// The start of the record after the one that ends at `at`.
#[inline]
pub(super) fn skip_line_end(bytes: &[u8], at: usize, eol: Eol) -> usize {
    let width = if eol == Eol::CrLf { 2 } else { 1 };
    (at + width).min(bytes.len())
}

/// Lines as an editor counts them.
pub(super) fn count_lines(bytes: &[u8], eol: Eol) -> u64 {
    memchr::memchr_iter(eol.last_byte(), bytes).count() as u64
}

/// Whether a line is no record in this dialect. `record` is without its line end.
pub(super) fn is_skipped(dialect: &Dialect, record: &[u8]) -> bool {
    match record.first() {
        None => dialect.skip_blank_lines,
        first => dialect.comment.as_ref() == first && first.is_some(),
    }
}

/// Whether `bytes`, which end where a record does, have `\.` as their last line.
pub(super) fn ends_in_marker(bytes: &[u8], eol: Eol) -> bool {
    let line = bytes.strip_suffix(eol.bytes()).and_then(|line| line.strip_suffix(b"\\."));
    line.is_some_and(|before| before.last().is_none_or(|byte| *byte == eol.last_byte()))
}

/// The line end of an input, from its first bytes: the first carriage return or newline outside
/// quotes decides, as in COPY. `None` where the bytes do not tell and are not `complete`.
pub(super) fn detect_eol(dialect: &Dialect, bytes: &[u8], complete: bool) -> Option<Eol> {
    let is_comment = dialect.comment.is_some() && dialect.comment.as_ref() == bytes.first();
    let mut from = 0;
    let mut in_quote = false;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &bytes[from..]) {
        let pos = from + at;
        in_quote = ends_in_quote(dialect, &bytes[from..pos], in_quote);
        let is_escaped = dialect.family == Family::Text && ends_in_escape(&bytes[..pos]);
        if is_comment || (!in_quote && !is_escaped) {
            return match (bytes[pos], bytes.get(pos + 1)) {
                (b'\n', _) => Some(Eol::Lf),
                (_, Some(b'\n')) => Some(Eol::CrLf),
                (_, Some(_)) => Some(Eol::Cr),
                (_, None) => complete.then_some(Eol::Cr),
            };
        }
        from = pos + 1;
    }
    complete.then_some(Eol::Lf)
}

/// Whether the end of `bytes` is within quotes, given whether their start is. Neither may be
/// between an escape and what it escapes.
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

/// The last offset up to `to` and not before `from` at which no escape is under way.
pub(super) fn settled(dialect: &Dialect, bytes: &[u8], from: usize, to: usize) -> usize {
    let escapes = bytes[from..to].iter().rev().take_while(|byte| **byte == dialect.escape);
    to - escapes.count()
}

/// The first record edge in `bytes` after `from`, where no escape is under way and `in_quote`
/// tells whether it is within quotes.
pub(super) fn find_edge(
    dialect: &Dialect,
    eol: Eol,
    bytes: &[u8],
    from: usize,
    mut in_quote: bool,
) -> Option<usize> {
    let mut at = from;
    while let Some(found) = memchr::memchr(eol.last_byte(), &bytes[at..]) {
        let pos = at + found;
        in_quote = ends_in_quote(dialect, &bytes[at..pos], in_quote);
        let is_escaped = dialect.family == Family::Text && ends_in_escape(&bytes[..pos]);
        if !in_quote && !is_escaped {
            return Some(pos + 1);
        }
        at = pos + 1;
    }
    None
}

/// Where the line end of the comment begins that starts at `from`.
pub(super) fn comment_end(bytes: &[u8], from: usize, eol: Eol) -> Option<usize> {
    let mut ends = memchr::memchr_iter(eol.last_byte(), &bytes[from..]).map(|at| from + at);
    match eol {
        // A comment may hold a newline without a carriage return.
        Eol::CrLf => ends.map(|at| at.saturating_sub(1)).find(|at| bytes[*at] == b'\r'),
        _ => ends.next(),
    }
}

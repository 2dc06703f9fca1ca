//! Finds the ends of lines and records.
//!
//! A line end within quotes (csv) or after a backslash (text) does not end a record. In a comment
//! every line end counts. The cutter uses these functions on large buffers and looks at few bytes.
//! The field index finds the same edges.

use super::fields::ends_in_escape;
use super::{CopyFormat, Dialect, Eol};
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
    /// Returns the bytes of the line end.
    pub fn bytes(self) -> &'static [u8] {
        match self {
            Eol::Lf => b"\n",
            Eol::CrLf => b"\r\n",
            Eol::Cr => b"\r",
        }
    }

    /// Returns the last byte of the line end.
    pub(super) fn last_byte(self) -> u8 {
        if self == Eol::Cr { b'\r' } else { b'\n' }
    }
}

/// Returns where the record after the line end at `at` begins.
#[inline]
pub(super) fn skip_line_end(bytes: &[u8], at: usize, eol: Eol) -> usize {
    let width = if eol == Eol::CrLf { 2 } else { 1 };
    (at + width).min(bytes.len())
}

/// Returns the number of line ends in `bytes`. Line ends within quotes count too.
pub(super) fn count_lines(bytes: &[u8], eol: Eol) -> u64 {
    memchr::memchr_iter(eol.last_byte(), bytes).count() as u64
}

/// Returns whether a line is a comment, or a blank line to skip. `record` is without its line end.
pub(super) fn is_skipped(dialect: &Dialect, record: &[u8]) -> bool {
    match record.first() {
        None => dialect.skip_blank_lines,
        first => dialect.comment.as_ref() == first && first.is_some(),
    }
}

/// Returns whether the last line of `bytes` is `\.`. `bytes` end with a record's line end.
pub(super) fn ends_in_marker(bytes: &[u8], eol: Eol) -> bool {
    let line = bytes.strip_suffix(eol.bytes()).and_then(|line| line.strip_suffix(b"\\."));
    line.is_some_and(|before| before.last().is_none_or(|byte| *byte == eol.last_byte()))
}

/// Returns the line end of an input. As in COPY, the first carriage return or newline outside
/// quotes decides. `complete` says that `bytes` is the whole input. Otherwise returns `None` if
/// more bytes are needed.
pub(super) fn detect_eol(dialect: &Dialect, bytes: &[u8], complete: bool) -> Option<Eol> {
    let is_comment = dialect.comment.is_some() && dialect.comment.as_ref() == bytes.first();
    let mut from = 0;
    let mut in_quote = false;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &bytes[from..]) {
        let pos = from + at;
        in_quote = ends_in_quote(dialect, &bytes[from..pos], in_quote);
        let is_escaped = dialect.format == CopyFormat::Text && ends_in_escape(&bytes[..pos]);
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

/// Returns whether the end of `bytes` is within quotes. `in_quote` says whether the start of
/// `bytes` is within quotes. Neither start nor end may be between an escape character and the
/// escaped character.
pub(super) fn ends_in_quote(dialect: &Dialect, bytes: &[u8], mut in_quote: bool) -> bool {
    let (CopyFormat::Csv, Some(quote)) = (dialect.format, dialect.quote) else {
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

/// Returns the last offset in `from..=to` that does not follow an escape character.
pub(super) fn last_offset_outside_escape(
    dialect: &Dialect,
    bytes: &[u8],
    from: usize,
    to: usize,
) -> usize {
    let escapes = bytes[from..to].iter().rev().take_while(|byte| **byte == dialect.escape);
    to - escapes.count()
}

/// Returns the first record edge in `bytes` after `from`. `from` must not be within an escape;
/// `in_quote` says whether `from` is within quotes.
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
        let is_escaped = dialect.format == CopyFormat::Text && ends_in_escape(&bytes[..pos]);
        if !in_quote && !is_escaped {
            return Some(pos + 1);
        }
        at = pos + 1;
    }
    None
}

/// Returns where the line end of a comment begins. The comment starts at `from`.
pub(super) fn comment_end(bytes: &[u8], from: usize, eol: Eol) -> Option<usize> {
    let mut ends = memchr::memchr_iter(eol.last_byte(), &bytes[from..]).map(|at| from + at);
    match eol {
        // A comment may contain a newline without a carriage return.
        Eol::CrLf => ends.map(|at| at.saturating_sub(1)).find(|at| bytes[*at] == b'\r'),
        _ => ends.next(),
    }
}

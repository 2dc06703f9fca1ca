//! Walks over the records of a chunk, checks the bytes between records, and resumes after an
//! invalid record.
//!
//! The walk depends on the chunk's bytes alone. A second walk finds the same records with the same
//! numbers, invalid records included.

use std::ops::Range;

use super::cut::first_record_start;
use crate::json::{JsonSyntaxError, skip_space, value_end};

/// What is expected before the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BetweenRecords {
    /// White space or nothing.
    Space,
    /// A comma, or the end of the array. The flag is false before the first item, which no comma
    /// precedes.
    Comma(bool),
    /// Nothing: the array is closed.
    Closed,
}

/// A walk over the records of one chunk.
#[derive(Debug)]
pub(crate) struct RecordWalk {
    at: usize,
    /// All bytes before this index are valid UTF-8.
    utf8_end: usize,
    between: BetweenRecords,
}

impl RecordWalk {
    /// Returns a walk at the first byte of a chunk. `byte` is the offset of the chunk in the input.
    pub(crate) fn new(data: &[u8], byte: u64) -> RecordWalk {
        let first = first_record_start(data, byte);
        let start = skip_space(data, 0);
        let between = match data.get(start) {
            Some(b',') => BetweenRecords::Comma(true),
            // The array opens in this chunk, before its first item.
            _ if memchr::memchr(b'[', &data[..first]).is_some() => BetweenRecords::Comma(false),
            _ => BetweenRecords::Space,
        };
        let at = if between == BetweenRecords::Comma(true) { start } else { first };
        RecordWalk { at, utf8_end: utf8_end_from(data, 0), between }
    }

    /// Returns the part of the chunk that is valid UTF-8 and may be parsed.
    pub(crate) fn text<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[..self.utf8_end]
    }

    /// Returns where the next record begins, or `None` at the end of the chunk.
    pub(crate) fn next(&mut self, data: &[u8]) -> Result<Option<usize>, JsonSyntaxError> {
        let text = self.text(data);
        let mut at = skip_space(text, self.at);
        if at == text.len() && at < data.len() {
            return Err(JsonSyntaxError { at, what: INVALID_UTF8 });
        }
        let closed = match (self.between, text.get(at)) {
            (BetweenRecords::Comma(false), Some(b']')) => true,
            (BetweenRecords::Comma(true), Some(b']')) => true,
            (BetweenRecords::Comma(true), Some(b',')) => {
                at = skip_space(text, at + 1);
                if let Some(b']') | None = text.get(at) {
                    return Err(JsonSyntaxError { at, what: "expected a row after the comma" });
                }
                false
            }
            (BetweenRecords::Comma(true), Some(_)) => {
                return Err(JsonSyntaxError {
                    at,
                    what: "expected a comma or the end of the array",
                });
            }
            (BetweenRecords::Closed, Some(_)) => {
                return Err(JsonSyntaxError {
                    at,
                    what: "expected nothing after the end of the array",
                });
            }
            (_, None) => {
                self.at = at;
                return Ok(None);
            }
            _ => false,
        };
        self.at = at;
        if closed {
            self.at += 1;
            self.between = BetweenRecords::Closed;
            return self.next(data);
        }
        Ok(Some(at))
    }

    /// Continues after a record that ends at `end`.
    pub(crate) fn finish(&mut self, end: usize) {
        self.at = end;
        if self.between != BetweenRecords::Space {
            self.between = BetweenRecords::Comma(true);
        }
    }

    /// Continues after the end of a record that is invalid at `from`. If the end is uncertain, the
    /// walk is over.
    pub(crate) fn skip_invalid(&mut self, data: &[u8], from: usize) {
        let edge = match self.between {
            BetweenRecords::Space => line_edge(data, self.at, from.max(self.at + 1)),
            // The walk is still at the comma before the item, so the item begins after it.
            BetweenRecords::Comma(_) if data.get(self.at) == Some(&b',') => item_edge(data, from),
            BetweenRecords::Comma(_) => item_edge(data, self.at),
            BetweenRecords::Closed => None,
        };
        let Some(edge) = edge else {
            self.at = data.len();
            self.utf8_end = data.len();
            self.between = BetweenRecords::Closed;
            return;
        };
        self.finish(edge);
        if edge > self.utf8_end {
            self.utf8_end = utf8_end_from(data, edge);
        }
    }
}

/// Returns where the record after an invalid record begins. The invalid record starts at `start`,
/// and the first invalid byte is at `from`. A newline between a closing and an opening bracket
/// separates two records, because no value can contain such a newline. A line that is a complete
/// record also begins the next record.
fn line_edge(data: &[u8], start: usize, from: usize) -> Option<usize> {
    // The invalid byte may be a line end, so white space before it is searched too.
    let mut at = start + data[start..from.min(data.len())].trim_ascii_end().len();
    while let Some(found) = memchr::memchr(b'\n', &data[at..]) {
        let newline = at + found;
        let before = data[start..newline].trim_ascii_end();
        at = skip_space(data, newline);
        if let Some(b'{' | b'[') = data.get(at)
            && (matches!(before.last(), Some(b'}' | b']')) || is_record_line(data, before, at))
        {
            return Some(at);
        }
    }
    None
}

/// Returns whether the line at `at` is one value that cannot be part of the invalid record
/// `before`. The answer is certain if an opening bracket follows the line: within the invalid
/// record a comma would follow. At the end of the chunk, all brackets of `before` must be closed.
fn is_record_line(data: &[u8], before: &[u8], at: usize) -> bool {
    let end = memchr::memchr(b'\n', &data[at..]).map_or(data.len(), |found| at + found);
    let line = data[at..end].trim_ascii_end();
    let parsed = std::str::from_utf8(line).ok().map(|_| value_end(line, 0, &mut Vec::new()));
    if !matches!(parsed, Some(Ok((_, len))) if len == line.len()) {
        return false;
    }
    match data.get(skip_space(data, end)) {
        Some(next) => matches!(next, b'{' | b'['),
        None => {
            let count = |bracket| memchr::memchr_iter(bracket, before).count();
            count(b'{') == count(b'}') && count(b'[') == count(b']')
        }
    }
}

/// Returns where the invalid item of an array that starts at `at` ends. The item ends at the first
/// comma or closing bracket outside matching brackets.
fn item_edge(data: &[u8], at: usize) -> Option<usize> {
    let mut closing_brackets = Vec::new();
    let mut pos = at;
    while let Some(byte) = data.get(pos) {
        match byte {
            b'"' => pos = string_end(data, pos)?,
            b'{' => closing_brackets.push(b'}'),
            b'[' => closing_brackets.push(b']'),
            b',' | b']' if closing_brackets.is_empty() => return Some(pos),
            b'}' | b']' if closing_brackets.pop() != Some(*byte) => return None,
            _ => {}
        }
        pos += 1;
    }
    // The end of the chunk is also the end of its last item.
    closing_brackets.is_empty().then_some(data.len())
}

/// Returns the index of the closing quote of the string that opens at `at`, if both quotes are on
/// one line.
fn string_end(data: &[u8], at: usize) -> Option<usize> {
    let mut pos = at + 1;
    loop {
        pos += memchr::memchr3(b'"', b'\\', b'\n', data.get(pos..)?)?;
        match data[pos] {
            b'"' => return Some(pos),
            b'\\' => pos += 2,
            _ => return None,
        }
    }
}

/// An iterator over the byte ranges of all records of a chunk, invalid records included.
pub(super) struct RecordRanges<'a> {
    data: &'a [u8],
    records: RecordWalk,
    stack: Vec<u8>,
}

impl<'a> RecordRanges<'a> {
    /// Returns the ranges of a chunk. `byte` is the chunk's offset in its input.
    pub(super) fn new(data: &'a [u8], byte: u64) -> RecordRanges<'a> {
        RecordRanges { data, records: RecordWalk::new(data, byte), stack: Vec::new() }
    }
}

impl Iterator for RecordRanges<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let RecordRanges { data, records, stack } = self;
        let text = records.text(data);
        let (start, broken_at) = match records.next(data) {
            Ok(Some(start)) => match value_end(text, start, stack) {
                Ok((_, end)) => {
                    records.finish(end);
                    return Some(start..end);
                }
                Err(found) => (start, found.at),
            },
            Ok(None) => return None,
            Err(found) => (skip_space(data, records.at), found.at),
        };
        records.skip_invalid(data, broken_at);
        Some(start..records.at.max(start))
    }
}

/// The message for bytes that are not UTF-8, in PostgreSQL's words.
pub(crate) const INVALID_UTF8: &str = "invalid byte sequence for encoding \"UTF8\"";

/// Returns the end of the valid UTF-8 from `from` on.
fn utf8_end_from(data: &[u8], from: usize) -> usize {
    match simdutf8::compat::from_utf8(&data[from..]) {
        Ok(_) => data.len(),
        Err(error) => from + error.valid_up_to(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(data: &str, byte: u64) -> Vec<Result<&str, JsonSyntaxError>> {
        let bytes = data.as_bytes();
        let mut records = RecordWalk::new(bytes, byte);
        let mut seen = Vec::new();
        loop {
            match records.next(bytes) {
                Ok(None) => return seen,
                Ok(Some(start)) => match value_end(bytes, start, &mut Vec::new()) {
                    Ok((_, end)) => {
                        seen.push(Ok(&data[start..end]));
                        records.finish(end);
                    }
                    Err(error) => {
                        seen.push(Err(error));
                        records.skip_invalid(bytes, error.at);
                    }
                },
                Err(error) => {
                    seen.push(Err(error));
                    records.skip_invalid(bytes, error.at);
                }
            }
        }
    }

    #[test]
    fn values_and_items_are_found() {
        assert_eq!(walk("\u{feff} {}\n\n[1]{}", 0), [Ok("{}"), Ok("[1]"), Ok("{}")]);
        assert_eq!(walk(" [ {} , {} ] \n", 0), [Ok("{}"), Ok("{}")]);
        assert_eq!(walk("[[1], [2]]", 0), [Ok("[1]"), Ok("[2]")]);
        assert_eq!(walk(", {} , {}", 9), [Ok("{}"), Ok("{}")]);
        assert_eq!(walk("[]", 0), []);
        assert_eq!(walk("[1, 2]", 0), [Ok("[1, 2]")]);
    }

    #[test]
    fn bytes_between_records_are_checked() {
        let error = |at, what| Err(JsonSyntaxError { at, what });
        assert_eq!(walk("[{},]", 0), [Ok("{}"), error(4, "expected a row after the comma")]);
        let what = "expected a comma or the end of the array";
        assert_eq!(walk("[{} {}]", 0), [Ok("{}"), error(4, what)]);
        let what = "expected nothing after the end of the array";
        assert_eq!(walk("[{}] {}", 0), [Ok("{}"), error(5, what)]);
        assert_eq!(walk("{},{}", 0), [Ok("{}"), error(2, "expected a value")]);
    }

    #[test]
    fn an_invalid_line_is_skipped_alone_if_its_end_is_certain() {
        let seen = walk("{\"a\":}\n{\"b\":1}\n", 0);
        assert!(seen[0].is_err());
        assert_eq!(seen[1..], [Ok("{\"b\":1}")]);
        for broken in ["{\"a", "{\"a\":1", "{", "oops", "}{", "\"", "{\"a\":[1,2}", "\u{1}"] {
            let lines = format!("{broken}\n{{\"b\":1}}\n{{\"c\":1}}");
            let seen = walk(&lines, 0);
            assert!(seen[0].is_err(), "{broken}");
            assert_eq!(seen[1..], [Ok("{\"b\":1}"), Ok("{\"c\":1}")], "{broken}");
        }
        // The last line may belong to the open brackets.
        assert_eq!(walk("{\"a\":tru}\n{\"b\":1}\n", 0).len(), 2);
        assert_eq!(walk("{\"a\" [\n{\"b\":1}\n", 0).len(), 1);
        let nested = "{\"a\" [\n{\"b\":1},\n{\"b\":2}\n]}\n{\"a\":[]}\n";
        assert_eq!(walk(nested, 0)[1..], [Ok("{\"a\":[]}")]);
    }

    #[test]
    fn an_invalid_item_is_skipped_alone_if_its_end_is_certain() {
        for broken in ["{\"a\":}", "oops", "{\"a\":[1,],\"b\":{}}", "{\"]\\\"},{\":}", "", "{} {}"]
        {
            let array = format!("[{{\"b\":1}},{broken},{{\"c\":1}}]");
            let seen: Vec<_> = walk(&array, 0).into_iter().flatten().collect();
            assert_eq!([seen[0], seen[seen.len() - 1]], ["{\"b\":1}", "{\"c\":1}"], "{broken}");
        }
        for broken in ["{\"a\":[1}", "{\"a\n\"}", "{]", "{"] {
            let array = format!("[{{\"b\":1}},{broken},{{\"c\":1}}]");
            let seen = walk(&array, 0);
            assert_eq!(
                (seen[0], seen[1].is_err(), seen.len()),
                (Ok("{\"b\":1}"), true, 2),
                "{broken}"
            );
        }
    }
}

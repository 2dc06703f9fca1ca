//! The records of a chunk, one after another: what may stand between them, and where to go on
//! after one that is broken.
//!
//! The walk depends on the chunk's bytes alone, so walking again finds the same records at the same
//! ordinals, broken ones included.

use std::ops::Range;

use super::cut::first_record;
use crate::json::{Syntax, skip_space, value};

/// What stands between records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// White space or nothing.
    Space,
    /// A comma; the array may also end. False before the array's first item.
    Comma(bool),
    /// Nothing more: the array is closed.
    Closed,
}

/// A walk over the records of one chunk.
#[derive(Debug)]
pub(crate) struct Records {
    at: usize,
    /// The bytes before this are UTF-8.
    valid: usize,
    between: Between,
}

impl Records {
    /// Starts at the front of a chunk that lies at offset `byte` of its input.
    pub(crate) fn new(data: &[u8], byte: u64) -> Records {
        let first = first_record(data, byte);
        let start = skip_space(data, 0);
        let between = match data.get(start) {
            Some(b',') => Between::Comma(true),
            // The bracket of the array lies between the front and its first item.
            _ if memchr::memchr(b'[', &data[..first]).is_some() => Between::Comma(false),
            _ => Between::Space,
        };
        let at = if between == Between::Comma(true) { start } else { first };
        Records { at, valid: valid_end(data, 0), between }
    }

    /// The part of the chunk that may be parsed.
    pub(crate) fn text<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[..self.valid]
    }

    /// Where the next record begins, or `None` at the end of the chunk.
    pub(crate) fn next(&mut self, data: &[u8]) -> Result<Option<usize>, Syntax> {
        let text = self.text(data);
        let mut at = skip_space(text, self.at);
        if at == text.len() && at < data.len() {
            return Err(Syntax { at, what: INVALID_UTF8 });
        }
        let closed = match (self.between, text.get(at)) {
            (Between::Comma(false), Some(b']')) => true,
            (Between::Comma(true), Some(b']')) => true,
            (Between::Comma(true), Some(b',')) => {
                at = skip_space(text, at + 1);
                if let Some(b']') | None = text.get(at) {
                    return Err(Syntax { at, what: "expected a row after the comma" });
                }
                false
            }
            (Between::Comma(true), Some(_)) => {
                return Err(Syntax { at, what: "expected a comma or the end of the array" });
            }
            (Between::Closed, Some(_)) => {
                return Err(Syntax { at, what: "expected nothing after the end of the array" });
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
            self.between = Between::Closed;
            return self.next(data);
        }
        Ok(Some(at))
    }

    /// Goes on after a record that ends at `end`.
    pub(crate) fn finish(&mut self, end: usize) {
        self.at = end;
        if self.between != Between::Space {
            self.between = Between::Comma(true);
        }
    }

    /// Goes on after a record that is broken at `from`, where it surely ends; if that cannot be
    /// told, the walk is over.
    pub(crate) fn skip_broken(&mut self, data: &[u8], from: usize) {
        let edge = match self.between {
            Between::Space => line_edge(data, self.at, from.max(self.at + 1)),
            // Between two items the walk stands at the comma, which is behind it then.
            Between::Comma(_) if data.get(self.at) == Some(&b',') => item_edge(data, from),
            Between::Comma(_) => item_edge(data, self.at),
            Between::Closed => None,
        };
        let Some(edge) = edge else {
            self.at = data.len();
            self.valid = data.len();
            self.between = Between::Closed;
            return;
        };
        self.finish(edge);
        if edge > self.valid {
            self.valid = valid_end(data, edge);
        }
    }
}

/// Where the record after a broken one begins, which starts at `start` and is no JSON at `from`:
/// where a line ends with a closing bracket and the next one begins with an opening one, as no
/// value can have them. Or at a line that is a record by itself.
fn line_edge(data: &[u8], start: usize, from: usize) -> Option<usize> {
    // What is wrong may be that a line ended.
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

/// Whether the line at `at` is one value, and none that could be within the broken line `before`:
/// another opening bracket follows, where that would have a comma, or all brackets are closed.
fn is_record_line(data: &[u8], before: &[u8], at: usize) -> bool {
    let end = memchr::memchr(b'\n', &data[at..]).map_or(data.len(), |found| at + found);
    let line = data[at..end].trim_ascii_end();
    let parsed = std::str::from_utf8(line).ok().map(|_| value(line, 0, &mut Vec::new()));
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

/// Where a broken item of an array ends, which starts at `at`: at the comma or the array's end
/// behind brackets that fit together.
fn item_edge(data: &[u8], at: usize) -> Option<usize> {
    let mut open = Vec::new();
    let mut pos = at;
    while let Some(byte) = data.get(pos) {
        match byte {
            b'"' => pos = string_end(data, pos)?,
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b',' | b']' if open.is_empty() => return Some(pos),
            b'}' | b']' if open.pop() != Some(*byte) => return None,
            _ => {}
        }
        pos += 1;
    }
    // A chunk ends between two items.
    open.is_empty().then_some(data.len())
}

/// The closing quote of the string that opens at `at`, if it does so on the same line.
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

/// A walk over where the records of one chunk stand, broken ones included.
pub(super) struct Walk<'a> {
    data: &'a [u8],
    records: Records,
    stack: Vec<u8>,
}

impl<'a> Walk<'a> {
    /// Over a chunk that lies at offset `byte` of its input.
    pub(super) fn new(data: &'a [u8], byte: u64) -> Walk<'a> {
        Walk { data, records: Records::new(data, byte), stack: Vec::new() }
    }
}

impl Iterator for Walk<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let Walk { data, records, stack } = self;
        let text = records.text(data);
        let (start, broken_at) = match records.next(data) {
            Ok(Some(start)) => match value(text, start, stack) {
                Ok((_, end)) => {
                    records.finish(end);
                    return Some(start..end);
                }
                Err(found) => (start, found.at),
            },
            Ok(None) => return None,
            Err(found) => (skip_space(data, records.at), found.at),
        };
        records.skip_broken(data, broken_at);
        Some(start..records.at.max(start))
    }
}

/// What is said of bytes that are no text.
pub(crate) const INVALID_UTF8: &str = "invalid byte sequence for encoding \"UTF8\"";

fn valid_end(data: &[u8], from: usize) -> usize {
    match simdutf8::compat::from_utf8(&data[from..]) {
        Ok(_) => data.len(),
        Err(error) => from + error.valid_up_to(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(data: &str, byte: u64) -> Vec<Result<&str, Syntax>> {
        let bytes = data.as_bytes();
        let mut records = Records::new(bytes, byte);
        let mut seen = Vec::new();
        loop {
            match records.next(bytes) {
                Ok(None) => return seen,
                Ok(Some(start)) => match value(bytes, start, &mut Vec::new()) {
                    Ok((_, end)) => {
                        seen.push(Ok(&data[start..end]));
                        records.finish(end);
                    }
                    Err(error) => {
                        seen.push(Err(error));
                        records.skip_broken(bytes, error.at);
                    }
                },
                Err(error) => {
                    seen.push(Err(error));
                    records.skip_broken(bytes, error.at);
                }
            }
        }
    }

    #[test]
    fn values_and_items_are_walked() {
        assert_eq!(walk("\u{feff} {}\n\n[1]{}", 0), [Ok("{}"), Ok("[1]"), Ok("{}")]);
        assert_eq!(walk(" [ {} , {} ] \n", 0), [Ok("{}"), Ok("{}")]);
        assert_eq!(walk("[[1], [2]]", 0), [Ok("[1]"), Ok("[2]")]);
        assert_eq!(walk(", {} , {}", 9), [Ok("{}"), Ok("{}")]);
        assert_eq!(walk("[]", 0), []);
        assert_eq!(walk("[1, 2]", 0), [Ok("[1, 2]")]);
    }

    #[test]
    fn what_stands_between_is_checked() {
        let error = |at, what| Err(Syntax { at, what });
        assert_eq!(walk("[{},]", 0), [Ok("{}"), error(4, "expected a row after the comma")]);
        let what = "expected a comma or the end of the array";
        assert_eq!(walk("[{} {}]", 0), [Ok("{}"), error(4, what)]);
        let what = "expected nothing after the end of the array";
        assert_eq!(walk("[{}] {}", 0), [Ok("{}"), error(5, what)]);
        assert_eq!(walk("{},{}", 0), [Ok("{}"), error(2, "expected a value")]);
    }

    #[test]
    fn a_broken_line_costs_only_itself_when_its_end_is_sure() {
        let seen = walk("{\"a\":}\n{\"b\":1}\n", 0);
        assert!(seen[0].is_err());
        assert_eq!(seen[1..], [Ok("{\"b\":1}")]);
        for broken in ["{\"a", "{\"a\":1", "{", "oops", "}{", "\"", "{\"a\":[1,2}", "\u{1}"] {
            let lines = format!("{broken}\n{{\"b\":1}}\n{{\"c\":1}}");
            let seen = walk(&lines, 0);
            assert!(seen[0].is_err(), "{broken}");
            assert_eq!(seen[1..], [Ok("{\"b\":1}"), Ok("{\"c\":1}")], "{broken}");
        }
        // The last line may be within the brackets that are open.
        assert_eq!(walk("{\"a\":tru}\n{\"b\":1}\n", 0).len(), 2);
        assert_eq!(walk("{\"a\" [\n{\"b\":1}\n", 0).len(), 1);
        let nested = "{\"a\" [\n{\"b\":1},\n{\"b\":2}\n]}\n{\"a\":[]}\n";
        assert_eq!(walk(nested, 0)[1..], [Ok("{\"a\":[]}")]);
    }

    #[test]
    fn a_broken_item_costs_only_itself_when_its_end_is_sure() {
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

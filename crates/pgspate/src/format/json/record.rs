//! The records of a chunk, one after another: what may stand between them, and where to go on
//! after one that is broken.
//!
//! The walk depends on the chunk's bytes alone, so walking again finds the same records at the same
//! ordinals, broken ones included.

use super::cut::first_record;
use super::parse::{Syntax, skip_space};

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

    /// Goes on after a broken record: where a line ends with a closing bracket and the next one
    /// begins with an opening one. That stands between records even if the bytes before are no
    /// JSON. Items of an array have no such edge, so there the walk is over.
    pub(crate) fn skip_broken(&mut self, data: &[u8], from: usize) {
        let mut at = match self.between {
            Between::Space => from.max(self.at + 1).min(data.len()),
            _ => data.len(),
        };
        while let Some(found) = memchr::memchr(b'\n', &data[at..]) {
            let newline = at + found;
            let line = data[..newline].trim_ascii_end();
            at = skip_space(data, newline);
            if let (Some(b'}' | b']'), Some(b'{' | b'[')) = (line.last(), data.get(at)) {
                self.at = at;
                if at > self.valid {
                    self.valid = valid_end(data, at);
                }
                return;
            }
        }
        self.at = data.len();
        self.valid = data.len();
        self.between = Between::Closed;
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
    use super::super::parse::value;
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
        let seen = walk("{\"a\n{\"b\":1}\n{\"c\":1}", 0);
        assert!(seen[0].is_err());
        assert_eq!(seen[1..], [Ok("{\"c\":1}")]);
    }
}

//! Encodes arrays: `{...}` literals whose element type has an encoder.
//!
//! All subarrays must have the same number of elements, and all lower bounds are 1. Literals with
//! explicit bounds, empty subarrays or backslashes outside of quotes are left to the server.

use std::borrow::Cow;

use super::{FieldEncoder, has_typmod, is_space};
use crate::types::{PgType, SessionSettings, TypeKind};

/// The server's limit on dimensions.
const DIMENSIONS_MAX: usize = 6;
/// The most elements that are accepted, well below the server's limit.
const ELEMENTS_MAX: u64 = 100_000_000;

/// Encodes the arrays of one element type.
#[derive(Debug, Clone)]
pub(super) struct ArrayEncoder {
    element: FieldEncoder,
    element_oid: u32,
    delimiter: u8,
    /// Whether client and server encoding are both UTF-8, so that the server converts nothing.
    is_utf8: bool,
}

impl ArrayEncoder {
    pub(super) fn new(
        array: &PgType,
        element: &PgType,
        delimiter: u8,
        session: &SessionSettings,
    ) -> Result<ArrayEncoder, String> {
        // For the server, int2vector and oidvector are no arrays. The encoder of "char" does not
        // know the escapes within an array.
        if matches!(array.base().oid, 22 | 30) || element.base().oid == 18 {
            return Err(format!("only the server can read type {}", array.name));
        }
        if delimiter.is_ascii_alphanumeric() || is_space(delimiter) || !delimiter.is_ascii() {
            return Err(format!("type {} has an unusual delimiter", array.name));
        }
        // An array's modifier applies to its elements; a domain has a modifier of its own.
        let mut element = element.clone();
        if has_typmod(array) && !matches!(element.kind, TypeKind::Domain(_)) {
            element.typmod = array.base().typmod.max(array.typmod);
        }
        Ok(ArrayEncoder {
            element: FieldEncoder::new(&element, session)?,
            element_oid: element.oid,
            delimiter,
            is_utf8: is_utf8(&session.client_encoding) && is_utf8(&session.server_encoding),
        })
    }

    /// Encodes an array literal.
    pub(super) fn encode(&self, field: &[u8], out: &mut Vec<u8>) -> bool {
        if field == b"{}" {
            out.extend_from_slice(&12u32.to_be_bytes());
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(&self.element_oid.to_be_bytes());
            return true;
        }
        if !self.is_valid_text(field) {
            return false;
        }
        let dimensions = field.iter().take_while(|b| **b == b'{').count();
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return false;
        }
        let start = out.len();
        out.resize(start + 16 + 8 * dimensions, 0);
        let mut reader = ArrayReader { array: self, text: &field[dimensions..], has_null: false };
        let Some(sizes) = reader.parse(dimensions, out) else {
            return false;
        };
        let Ok(len) = i32::try_from(out.len() - start - 4) else {
            return false;
        };
        let header = [len as u32, dimensions as u32, reader.has_null.into(), self.element_oid];
        let words = header.into_iter().chain(sizes[..dimensions].iter().flat_map(|n| [*n, 1]));
        for (slot, word) in out[start..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *slot = word.to_be_bytes();
        }
        true
    }

    /// Returns whether the text is valid, so that the server need not check its encoding. Without
    /// the check, a byte that looks like a brace could be a part of a character in some encodings.
    fn is_valid_text(&self, field: &[u8]) -> bool {
        let is_text = field.is_ascii() || self.is_utf8 && simdutf8::basic::from_utf8(field).is_ok();
        is_text && memchr::memchr(0, field).is_none()
    }
}

fn is_utf8(encoding: &str) -> bool {
    encoding.eq_ignore_ascii_case("UTF8")
}

/// Parses one array literal.
struct ArrayReader<'a> {
    array: &'a ArrayEncoder,
    text: &'a [u8],
    has_null: bool,
}

impl<'a> ArrayReader<'a> {
    /// Parses the text after the opening braces. Returns the size of each dimension.
    fn parse(&mut self, dimensions: usize, out: &mut Vec<u8>) -> Option<[u32; DIMENSIONS_MAX]> {
        let mut sizes = [0; DIMENSIONS_MAX];
        let mut counts = [0; DIMENSIONS_MAX];
        let mut depth = dimensions;
        let mut elements = 0;
        loop {
            self.skip_space();
            if self.text.first() == Some(&b'{') {
                if depth == dimensions {
                    return None;
                }
                counts[depth] = 0;
                depth += 1;
                self.text = &self.text[1..];
                continue;
            }
            if depth != dimensions || elements == ELEMENTS_MAX {
                return None;
            }
            self.read_element(out)?;
            elements += 1;
            counts[depth - 1] += 1;
            while self.reads_closing_brace()? {
                depth -= 1;
                if sizes[depth] == 0 {
                    sizes[depth] = counts[depth];
                }
                if sizes[depth] != counts[depth] {
                    return None;
                }
                if depth == 0 {
                    return self.text.is_empty().then_some(sizes);
                }
                counts[depth - 1] += 1;
            }
        }
    }

    /// Reads the byte after an element or a subarray. Returns true for a closing brace, false for a
    /// delimiter.
    fn reads_closing_brace(&mut self) -> Option<bool> {
        self.skip_space();
        let (first, rest) = self.text.split_first()?;
        self.text = rest;
        match *first {
            b'}' => Some(true),
            byte if byte == self.array.delimiter => Some(false),
            _ => None,
        }
    }

    /// Reads and encodes one element.
    fn read_element(&mut self, out: &mut Vec<u8>) -> Option<()> {
        if self.text.first() == Some(&b'"') {
            let value = self.read_quoted()?;
            return self.array.element.encode(&value, out).then_some(());
        }
        let delimiter = self.array.delimiter;
        let ends = |b: &u8| matches!(b, b'{' | b'}' | b'"' | b'\\') || *b == delimiter;
        let end = self.text.iter().position(ends)?;
        let (raw, rest) = self.text.split_at(end);
        let len = raw.iter().rposition(|b| !is_space(*b))? + 1;
        self.text = rest;
        let value = &raw[..len];
        if value.eq_ignore_ascii_case(b"null") {
            self.has_null = true;
            out.extend_from_slice(&(-1i32).to_be_bytes());
            return Some(());
        }
        self.array.element.encode(value, out).then_some(())
    }

    /// Reads a quoted element. The element is copied only if it contains an escape.
    fn read_quoted(&mut self) -> Option<Cow<'a, [u8]>> {
        let inner = &self.text[1..];
        let end = memchr::memchr2(b'"', b'\\', inner)?;
        if inner[end] == b'"' {
            self.text = &inner[end + 1..];
            return Some(Cow::Borrowed(&inner[..end]));
        }
        let mut value = inner[..end].to_vec();
        let mut bytes = inner[end..].iter();
        loop {
            match bytes.next()? {
                b'"' => break,
                b'\\' => value.push(*bytes.next()?),
                byte => value.push(*byte),
            }
        }
        self.text = bytes.as_slice();
        Some(Cow::Owned(value))
    }

    fn skip_space(&mut self) {
        let at = self.text.iter().position(|b| !is_space(*b)).unwrap_or(self.text.len());
        self.text = &self.text[at..];
    }
}

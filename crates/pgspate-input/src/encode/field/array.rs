//! Arrays: `{...}` literals of elements that have an encoder of their own.
//!
//! Every subarray has the same number of elements, and lower bounds are 1. Literals with explicit
//! bounds, empty subarrays or backslashes outside of quotes are left to the server.

use std::borrow::Cow;

use super::{FieldEncoder, has_typmod, is_space};
use crate::types::{PgType, Session, TypeKind};

/// The most dimensions that the server allows.
const DIMENSIONS_MAX: usize = 6;
/// The most elements taken, well below what the server allows.
const ELEMENTS_MAX: u64 = 100_000_000;

/// Encodes the arrays of one element type.
#[derive(Debug, Clone)]
pub(super) struct ArrayEncoder {
    element: FieldEncoder,
    element_oid: u32,
    delimiter: u8,
    /// Whether the server takes the bytes as they are, without conversion.
    is_utf8: bool,
}

impl ArrayEncoder {
    pub(super) fn new(
        array: &PgType,
        element: &PgType,
        delimiter: u8,
        session: &Session,
    ) -> Result<ArrayEncoder, String> {
        // Vectors are no arrays to the server; "char" has no place to leave its escapes to.
        if matches!(array.base().oid, 22 | 30) || element.base().oid == 18 {
            return Err(format!("only the server can read type {}", array.name));
        }
        if delimiter.is_ascii_alphanumeric() || is_space(delimiter) || !delimiter.is_ascii() {
            return Err(format!("type {} has an unusual delimiter", array.name));
        }
        // The array's modifier is that of its elements; a domain has its own.
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

    pub(super) fn append(&self, field: &[u8], out: &mut Vec<u8>) -> bool {
        if field == b"{}" {
            out.extend_from_slice(&12u32.to_be_bytes());
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(&self.element_oid.to_be_bytes());
            return true;
        }
        if !self.is_plain(field) {
            return false;
        }
        let dimensions = field.iter().take_while(|b| **b == b'{').count();
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return false;
        }
        let start = out.len();
        out.resize(start + 16 + 8 * dimensions, 0);
        let mut reader = Reader { array: self, text: &field[dimensions..], has_null: false };
        let Some(sizes) = reader.read(dimensions, out) else {
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

    /// Whether the encoding needs no check by the server. The check comes before the elements are
    /// looked at, and in some encodings a brace may be part of a character.
    fn is_plain(&self, field: &[u8]) -> bool {
        let is_text = field.is_ascii() || self.is_utf8 && simdutf8::basic::from_utf8(field).is_ok();
        is_text && memchr::memchr(0, field).is_none()
    }
}

fn is_utf8(encoding: &str) -> bool {
    encoding.eq_ignore_ascii_case("UTF8")
}

struct Reader<'a> {
    array: &'a ArrayEncoder,
    text: &'a [u8],
    has_null: bool,
}

impl<'a> Reader<'a> {
    /// Reads everything behind the opening braces; gives the size of each dimension.
    fn read(&mut self, dimensions: usize, out: &mut Vec<u8>) -> Option<[u32; DIMENSIONS_MAX]> {
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
            self.element(out)?;
            elements += 1;
            counts[depth - 1] += 1;
            while self.closes_list()? {
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

    /// Reads what is behind an element or a list: a closing brace or a delimiter.
    fn closes_list(&mut self) -> Option<bool> {
        self.skip_space();
        let (first, rest) = self.text.split_first()?;
        self.text = rest;
        match *first {
            b'}' => Some(true),
            byte if byte == self.array.delimiter => Some(false),
            _ => None,
        }
    }

    fn element(&mut self, out: &mut Vec<u8>) -> Option<()> {
        if self.text.first() == Some(&b'"') {
            let value = self.quoted()?;
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

    /// Reads a quoted element; copies it only if something in it is escaped.
    fn quoted(&mut self) -> Option<Cow<'a, [u8]>> {
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

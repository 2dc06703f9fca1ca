//! Cuts JSON inputs into chunks at the edges of records.
//!
//! A chunk ends at the first edge at or after the chunk size. Edges depend on the bytes alone, not
//! on the sizes of reads. The concatenated chunks of an input are the input, except for white space
//! between records. In an array, later chunks begin with the comma before their first item.

use std::collections::VecDeque;
use std::io::{self, Read};

use super::scan::{BracketScanner, CutRule};
use super::{byte_order_mark_len, count_newlines, is_array_of_rows};
use crate::format::keyed::KeyedInput;
use crate::format::{Chunk, ChunkData, Cutter};
use crate::json::skip_space;
use crate::{Error, ErrorKind, InputPlace, Result};

/// How many bytes after the chunk size are searched for an edge first. If these bytes have no edge,
/// the bytes of a whole second chunk are read.
const LOOKAHEAD_BYTES: usize = 64 << 10;

/// The limits of chunks and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonCutLimits {
    /// The least size in bytes at which a chunk ends at the next edge of a record.
    pub chunk_bytes: usize,
    /// The most bytes that a record may have.
    pub record_bytes_max: usize,
}

impl Default for JsonCutLimits {
    /// Returns limits of 4 MiB for chunks and 1 GiB for records. No value in PostgreSQL can be
    /// larger than 1 GiB.
    fn default() -> JsonCutLimits {
        JsonCutLimits { chunk_bytes: 4 << 20, record_bytes_max: 1 << 30 }
    }
}

/// Cuts several JSON inputs, one after the other.
pub struct JsonCutter {
    waiting: VecDeque<KeyedInput>,
    current: Option<OpenJsonInput>,
    input: usize,
    seq: u64,
    limits: JsonCutLimits,
}

impl JsonCutter {
    /// Returns a cutter of `inputs`. A chunk's `input` is an index into `inputs`.
    pub fn new(inputs: Vec<KeyedInput>, limits: JsonCutLimits) -> JsonCutter {
        let limits = JsonCutLimits { chunk_bytes: limits.chunk_bytes.max(1), ..limits };
        JsonCutter { waiting: inputs.into(), current: None, input: 0, seq: 0, limits }
    }
}

impl Cutter for JsonCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        loop {
            if self.current.is_none() {
                let Some(input) = self.waiting.pop_front() else { return Ok(None) };
                self.current = Some(OpenJsonInput::new(input, self.limits));
            }
            let Some(open) = &mut self.current else { return Ok(None) };
            let Some((data, byte, line)) = open.next()? else {
                self.current = None;
                self.input += 1;
                continue;
            };
            let seq = self.seq;
            self.seq += 1;
            return Ok(Some(Chunk {
                seq,
                input: self.input,
                byte,
                line: line + count_newlines(&data[..first_record_start(&data, byte)]),
                first_row: 0,
                digest: None,
                data: ChunkData::Bytes(data),
            }));
        }
    }
}

/// Returns the index at which the first record of a chunk begins. `byte` is the offset of the chunk
/// in the input.
pub(super) fn first_record_start(data: &[u8], byte: u64) -> usize {
    let mark = if byte == 0 { byte_order_mark_len(data) } else { 0 };
    let at = skip_space(data, mark);
    let is_before_item = match data.get(at) {
        Some(b'[') => byte == 0 && is_array_of_rows(data) == Some(true),
        Some(b',') => true,
        _ => false,
    };
    if is_before_item { skip_space(data, at + 1) } else { at }
}

/// The input that is being cut.
struct OpenJsonInput {
    name: String,
    reader: Box<dyn Read + Send>,
    limits: JsonCutLimits,
    /// Bytes that were read and are not yet part of a chunk.
    buf: Vec<u8>,
    /// The offset of `buf` in the input.
    byte: u64,
    /// The line of the input on which `buf` begins.
    line: u64,
    /// Whether the reader has returned all bytes of the input.
    ended: bool,
    rule: Option<CutRule>,
    /// Whether the input ended within its array.
    is_unclosed: bool,
}

impl OpenJsonInput {
    fn new(input: KeyedInput, limits: JsonCutLimits) -> OpenJsonInput {
        OpenJsonInput {
            name: input.name,
            reader: input.reader,
            limits,
            buf: Vec::new(),
            byte: 0,
            line: 1,
            ended: false,
            rule: None,
            is_unclosed: false,
        }
    }

    /// Returns the next chunk's bytes, offset and line.
    fn next(&mut self) -> Result<Option<(Vec<u8>, u64, u64)>> {
        if self.is_unclosed {
            return Err(self.error(0, "the input ends inside its array"));
        }
        while let Some(rule) = self.detect_rule()? {
            let chunk = self.cut(rule)?;
            if skip_space(&chunk.0, 0) < chunk.0.len() {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// Cuts the first chunk off `buf`. Returns the chunk's bytes, offset and line.
    fn cut(&mut self, rule: CutRule) -> Result<(Vec<u8>, u64, u64)> {
        let end = match rule {
            CutRule::Items => self.structural_edge(rule)?,
            CutRule::Values => match self.line_edge()? {
                Some(end) => end,
                None => self.structural_edge(rule)?,
            },
        };
        let rest = self.buf[end..].to_vec();
        let mut data = std::mem::replace(&mut self.buf, rest);
        data.truncate(end);
        let (byte, line) = (self.byte, self.line);
        self.byte += end as u64;
        self.line += count_newlines(&data);
        Ok((data, byte, line))
    }

    /// Reads until the input's rule for edges is known. Returns `None` at the end of the input.
    fn detect_rule(&mut self) -> Result<Option<CutRule>> {
        let mut wanted = 4;
        loop {
            self.fill(wanted)?;
            if self.buf.is_empty() {
                return Ok(None);
            }
            if let Some(rule) = self.rule {
                return Ok(Some(rule));
            }
            if let [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] = self.buf[..] {
                let error = self.error(0, "the input is UTF-16, not UTF-8");
                return Err(error.hint("Convert it first: `iconv -f UTF-16 -t UTF-8`."));
            }
            let start = skip_space(&self.buf, byte_order_mark_len(&self.buf));
            let rule = match (self.buf.get(start), is_array_of_rows(&self.buf)) {
                (None, _) if self.ended => return Ok(None),
                (Some(b'{' | b'['), Some(true)) => Some(CutRule::Items),
                (Some(b'{' | b'['), Some(false)) => Some(CutRule::Values),
                // Undecided at the end of the input: the input ends after the opening bracket.
                (Some(b'['), None) if self.ended => Some(CutRule::Items),
                (Some(b'['), None) | (None, _) => None,
                (Some(_), _) => {
                    let error = self.error(start, "expected a JSON object or array");
                    return Err(
                        error.hint("If the input is not JSON, name its format with `--format`.")
                    );
                }
            };
            self.rule = rule;
            if rule.is_none() {
                self.check_record_size(self.buf.len())?;
                wanted = self.buf.len() + LOOKAHEAD_BYTES;
            }
        }
    }

    /// Looks for a newline between two values at or after the chunk size. A closing bracket, a
    /// newline and an opening bracket in a row always separate two records. A string cannot contain
    /// the newline, and a value would have a comma or colon between the brackets.
    fn line_edge(&mut self) -> Result<Option<usize>> {
        let want = self.limits.chunk_bytes;
        let mut from = want - 1;
        for end in [want.saturating_add(LOOKAHEAD_BYTES.min(want)), want.saturating_mul(2)] {
            self.fill(end)?;
            if self.buf.len() <= want && self.ended {
                return Ok(Some(self.buf.len()));
            }
            let mut next = from;
            while let Some(found) = self.buf.get(next..).and_then(|b| memchr::memchr(b'\n', b)) {
                let newline = next + found;
                next = skip_space(&self.buf, newline);
                match self.buf.get(next) {
                    None if self.ended => return Ok(Some(next)),
                    // The bytes after the newline are not read yet.
                    None => break,
                    Some(b'{' | b'[') if is_closing_bracket_before(&self.buf, newline) => {
                        return Ok(Some(next));
                    }
                    Some(_) => {}
                }
                from = next;
            }
        }
        Ok(None)
    }

    /// Finds the first edge at or after the chunk size by tracking brackets and strings.
    fn structural_edge(&mut self, rule: CutRule) -> Result<usize> {
        let want = self.limits.chunk_bytes;
        self.fill(want.saturating_add(LOOKAHEAD_BYTES.min(want)))?;
        let depth = i64::from(rule == CutRule::Items && self.byte > 0);
        let mut scanner = BracketScanner::new(rule, depth);
        let mark = if self.byte == 0 { byte_order_mark_len(&self.buf) } else { 0 };
        let skipped = want.max(mark).min(self.buf.len());
        if let Some(end) = scanner.skip(&self.buf[..skipped]) {
            return Ok(end);
        }
        let mut at = skipped;
        loop {
            if let Some(end) = scanner.find_edge(&self.buf[at..]) {
                return Ok(at + end);
            }
            at = self.buf.len();
            if self.ended {
                self.is_unclosed = rule == CutRule::Items && !scanner.is_closed();
                return Ok(at);
            }
            self.check_record_size(at)?;
            self.fill(at.saturating_add(LOOKAHEAD_BYTES.max(want)))?;
        }
    }

    /// Checks that the search for an edge over `len` bytes has not exceeded the largest record.
    fn check_record_size(&self, len: usize) -> Result<()> {
        let JsonCutLimits { chunk_bytes, record_bytes_max: max } = self.limits;
        if len <= chunk_bytes.saturating_add(max) {
            return Ok(());
        }
        let message = format!("a record is larger than {max} bytes");
        Err(self
            .error(0, &message)
            .hint("PostgreSQL accepts no row over 1 GiB. Split the record before loading it."))
    }

    /// Reads until the buffer has `len` bytes or the input ends.
    fn fill(&mut self, len: usize) -> Result<()> {
        while self.buf.len() < len && !self.ended {
            let missing = (len - self.buf.len()) as u64;
            self.buf.reserve(missing.min(self.limits.chunk_bytes as u64) as usize);
            match self.reader.by_ref().take(missing).read_to_end(&mut self.buf) {
                Ok(read) => self.ended = (read as u64) < missing,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let place = self.place(self.buf.len());
                    return Err(Error::new(ErrorKind::Source, "could not read the input")
                        .at(place)
                        .because(e));
                }
            }
        }
        Ok(())
    }

    fn error(&self, at: usize, message: &str) -> Error {
        Error::new(ErrorKind::Format, message).at(self.place(at))
    }

    fn place(&self, at: usize) -> InputPlace {
        let name = Some(self.name.clone()).filter(|name| !name.is_empty());
        InputPlace {
            source: name,
            line: Some(self.line + count_newlines(&self.buf[..at])),
            byte: Some(self.byte + at as u64),
            ..InputPlace::default()
        }
    }
}

/// Returns whether the last byte before `at`, except white space, is a closing bracket.
fn is_closing_bracket_before(data: &[u8], at: usize) -> bool {
    let space = |b: &&u8| matches!(b, b' ' | b'\n' | b'\r' | b'\t');
    matches!(data[..at].iter().rev().find(|b| !space(b)), Some(b'}' | b']'))
}

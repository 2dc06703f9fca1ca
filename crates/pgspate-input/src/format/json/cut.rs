//! Cuts JSON inputs into chunks at record edges.
//!
//! A chunk ends at the first edge at or after the wanted size, found from the bytes alone: how the
//! reader hands them out makes no difference. The chunks of an input put together are that input,
//! but for white space between records. The later chunks of an array begin with the comma before
//! their first item.

use std::collections::VecDeque;
use std::io::{self, Read};

use super::scan::{Rule, Scanner};
use super::{is_array, mark_len, newlines};
use crate::format::{Chunk, ChunkData, Cutter};
use crate::json::skip_space;
use crate::{Error, ErrorKind, InputPlace, Result};

/// How far past the wanted end to look before the bytes of a second chunk are read for it.
const AHEAD: usize = 64 << 10;

/// One input.
pub struct JsonInput {
    /// Its name, for places in errors.
    pub name: String,
    /// Its decompressed bytes.
    pub reader: Box<dyn Read + Send>,
}

/// Sizes to cut by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutLimits {
    /// Bytes at which a chunk ends, or at the next record edge after them.
    pub chunk_bytes: usize,
    /// Bytes of one record beyond which it is refused.
    pub record_bytes_max: usize,
}

impl Default for CutLimits {
    /// Chunks of 4 MiB, records of at most 1 GiB: no value in PostgreSQL can be larger.
    fn default() -> CutLimits {
        CutLimits { chunk_bytes: 4 << 20, record_bytes_max: 1 << 30 }
    }
}

/// Cuts several inputs, one after the other.
pub struct JsonCutter {
    waiting: VecDeque<JsonInput>,
    current: Option<Open>,
    input: usize,
    seq: u64,
    limits: CutLimits,
}

impl JsonCutter {
    /// A cutter of these inputs; a chunk's `input` is the index into `inputs`.
    pub fn new(inputs: Vec<JsonInput>, limits: CutLimits) -> JsonCutter {
        let limits = CutLimits { chunk_bytes: limits.chunk_bytes.max(1), ..limits };
        JsonCutter { waiting: inputs.into(), current: None, input: 0, seq: 0, limits }
    }
}

impl Cutter for JsonCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        loop {
            if self.current.is_none() {
                let Some(input) = self.waiting.pop_front() else { return Ok(None) };
                self.current = Some(Open::new(input, self.limits));
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
                line: line + newlines(&data[..first_record(&data, byte)]),
                first_row: 0,
                digest: None,
                data: ChunkData::Bytes(data),
            }));
        }
    }
}

/// Where the first record of a chunk that starts at offset `byte` of its input begins.
pub(super) fn first_record(data: &[u8], byte: u64) -> usize {
    let mark = if byte == 0 { mark_len(data) } else { 0 };
    let at = skip_space(data, mark);
    let inner = match data.get(at) {
        Some(b'[') => byte == 0 && is_array(data) == Some(true),
        Some(b',') => true,
        _ => false,
    };
    if inner { skip_space(data, at + 1) } else { at }
}

/// The input that is being read.
struct Open {
    name: String,
    reader: Box<dyn Read + Send>,
    limits: CutLimits,
    /// Bytes read and not yet given away.
    buf: Vec<u8>,
    /// Offset of `buf` in the input, and the line it begins on.
    byte: u64,
    line: u64,
    ended: bool,
    rule: Option<Rule>,
    /// The array was still open where the input ended.
    unclosed: bool,
}

impl Open {
    fn new(input: JsonInput, limits: CutLimits) -> Open {
        Open {
            name: input.name,
            reader: input.reader,
            limits,
            buf: Vec::new(),
            byte: 0,
            line: 1,
            ended: false,
            rule: None,
            unclosed: false,
        }
    }

    /// The next chunk's bytes, offset and line.
    fn next(&mut self) -> Result<Option<(Vec<u8>, u64, u64)>> {
        if self.unclosed {
            return Err(self.error(0, "the input ends before its array is closed"));
        }
        while let Some(rule) = self.begin()? {
            let chunk = self.cut(rule)?;
            if skip_space(&chunk.0, 0) < chunk.0.len() {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    fn cut(&mut self, rule: Rule) -> Result<(Vec<u8>, u64, u64)> {
        let end = match rule {
            Rule::Items => self.structural_edge(rule)?,
            Rule::Values => match self.line_edge()? {
                Some(end) => end,
                None => self.structural_edge(rule)?,
            },
        };
        let rest = self.buf[end..].to_vec();
        let mut data = std::mem::replace(&mut self.buf, rest);
        data.truncate(end);
        let (byte, line) = (self.byte, self.line);
        self.byte += end as u64;
        self.line += newlines(&data);
        Ok((data, byte, line))
    }

    /// Reads on until the input's kind is known; `None` at its end.
    fn begin(&mut self) -> Result<Option<Rule>> {
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
            let start = skip_space(&self.buf, mark_len(&self.buf));
            let rule = match (self.buf.get(start), is_array(&self.buf)) {
                (None, _) if self.ended => return Ok(None),
                (Some(b'{' | b'['), Some(true)) => Some(Rule::Items),
                (Some(b'{' | b'['), Some(false)) => Some(Rule::Values),
                // Only an array that ends at once is still undecided at the end of the input.
                (Some(b'['), None) if self.ended => Some(Rule::Items),
                (Some(b'['), None) | (None, _) => None,
                (Some(_), _) => {
                    let error = self.error(start, "expected a JSON object or array");
                    return Err(error.hint("Name the input's format with `--format`."));
                }
            };
            self.rule = rule;
            if rule.is_none() {
                self.limit(self.buf.len())?;
                wanted = self.buf.len() + AHEAD;
            }
        }
    }

    /// Looks for a newline between two values at or after the wanted size. A closing bracket, a
    /// newline and an opening bracket in a row stand between two records wherever they occur: no
    /// string can hold the newline, and within a value a comma or colon would be needed.
    fn line_edge(&mut self) -> Result<Option<usize>> {
        let want = self.limits.chunk_bytes;
        let mut from = want - 1;
        for end in [want.saturating_add(AHEAD.min(want)), want.saturating_mul(2)] {
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
                    // What follows is not read yet.
                    None => break,
                    Some(b'{' | b'[') if closes_before(&self.buf, newline) => {
                        return Ok(Some(next));
                    }
                    Some(_) => {}
                }
                from = next;
            }
        }
        Ok(None)
    }

    /// Looks for the first edge at or after the wanted size by following brackets and strings.
    fn structural_edge(&mut self, rule: Rule) -> Result<usize> {
        let want = self.limits.chunk_bytes;
        self.fill(want.saturating_add(AHEAD.min(want)))?;
        let depth = i64::from(rule == Rule::Items && self.byte > 0);
        let mut scanner = Scanner::new(rule, depth);
        let mark = if self.byte == 0 { mark_len(&self.buf) } else { 0 };
        let passed = want.max(mark).min(self.buf.len());
        if let Some(end) = scanner.pass(&self.buf[..passed]) {
            return Ok(end);
        }
        let mut at = passed;
        loop {
            if let Some(end) = scanner.edge(&self.buf[at..]) {
                return Ok(at + end);
            }
            at = self.buf.len();
            if self.ended {
                self.unclosed = rule == Rule::Items && !scanner.is_closed();
                return Ok(at);
            }
            self.limit(at)?;
            self.fill(at.saturating_add(AHEAD.max(want)))?;
        }
    }

    /// Refuses to go on when `len` bytes hold no edge where one record may at most have begun.
    fn limit(&self, len: usize) -> Result<()> {
        let CutLimits { chunk_bytes, record_bytes_max: max } = self.limits;
        if len <= chunk_bytes.saturating_add(max) {
            return Ok(());
        }
        let message = format!("a record is larger than {max} bytes");
        Err(self
            .error(0, &message)
            .hint("PostgreSQL takes no row over 1 GiB. Split the record before loading it."))
    }

    /// Reads until the buffer holds `len` bytes or the input ends.
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
            line: Some(self.line + newlines(&self.buf[..at])),
            byte: Some(self.byte + at as u64),
            ..InputPlace::default()
        }
    }
}

fn closes_before(data: &[u8], at: usize) -> bool {
    let space = |b: &&u8| matches!(b, b' ' | b'\n' | b'\r' | b'\t');
    matches!(data[..at].iter().rev().find(|b| !space(b)), Some(b'}' | b']'))
}

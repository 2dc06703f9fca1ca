//! Cuts inputs into chunks of whole records.
//!
//! A chunk ends at the first record edge at or after `chunk_bytes` from its start, so the cuts
//! depend on the bytes alone. Lanes wait in line for this, so it looks at no more than it must:
//! the parity of quotes up to the edge, and the number of newlines for messages.

use std::io::Read;
use std::sync::Arc;

use super::fields::{detect_eol, ends_in_escape, ends_in_quote, parse_records};
use super::{Dialect, Eol, Family, Layout, MapFields};
use crate::error::{Error, Kind, Place, Result};
use crate::format::{Chunk, ChunkData, Cutter};
use crate::source;

/// How far to look for the record edge at first.
const SLACK: usize = 64 << 10;
/// A record longer than PostgreSQL's limit is not read to its end.
const RECORD_BYTES_MAX: usize = 1 << 30;
const BOM: &[u8] = b"\xef\xbb\xbf";

/// How delimited input is cut.
#[derive(Clone)]
pub struct CutOptions {
    /// How fields and records are written.
    pub dialect: Dialect,
    /// Whether the first record names the fields.
    pub header: bool,
    /// Where a chunk may end.
    pub chunk_bytes: usize,
    /// From names to a layout.
    pub map: MapFields,
}

/// Cuts one delimited input.
pub struct DelimitedCutter {
    options: CutOptions,
    current: Current,
    seq: u64,
}

/// Where the cutter is.
struct Current {
    name: String,
    reader: Box<dyn Read + Send>,
    layout: Arc<Layout>,
    /// Bytes after the last edge.
    carry: Vec<u8>,
    at_end: bool,
    byte: u64,
    line: u64,
}

impl DelimitedCutter {
    /// Reads the start of the input called `name`: its byte order mark, its header, and what its
    /// lines end with.
    ///
    /// # Errors
    /// What reading meets, a first line that does not end, and what `options.map` refuses.
    pub fn open(
        name: &str,
        reader: Box<dyn Read + Send>,
        options: CutOptions,
    ) -> Result<DelimitedCutter> {
        let layout = Layout { eol: Eol::Lf, fields: 0, field_of: Vec::new() };
        let mut current = Current {
            name: name.to_owned(),
            reader,
            layout: Arc::new(layout),
            carry: Vec::new(),
            at_end: false,
            byte: 0,
            line: 1,
        };
        current.read_to(SLACK)?;
        if current.carry.starts_with(BOM) {
            current.drop_front(BOM.len());
        }
        let mut cutter = DelimitedCutter { options, current, seq: 0 };
        if !cutter.current.carry.is_empty() {
            cutter.start()?;
        }
        Ok(cutter)
    }

    fn start(&mut self) -> Result<()> {
        let DelimitedCutter { options, current, .. } = self;
        // Only a first line longer than the slack makes it read on.
        while !current.at_end && !has_line_end(&current.carry[..current.carry.len() - 1]) {
            let longer = current.carry.len() * 2;
            current.check_length(longer)?;
            current.read_to(longer)?;
        }
        let eol = detect_eol(&options.dialect, &current.carry);
        let place = current.place();
        let names = if options.header { Some(options.take_header(current, eol)?) } else { None };
        let mapped = (options.map)(names.as_deref());
        let (fields, field_of) = mapped.map_err(|error| error.at(place))?;
        current.layout = Arc::new(Layout { eol, fields, field_of });
        Ok(())
    }
}

impl CutOptions {
    /// Takes the first record off and returns its fields.
    fn take_header(&self, current: &mut Current, eol: Eol) -> Result<Vec<Vec<u8>>> {
        while self.is_passed_over(&current.carry) {
            let end = self.edge(current, 0, eol)?;
            current.drop_front(end);
        }
        let end = self.edge(current, 0, eol)?;
        let record = &current.carry[..end];
        let mut names =
            parse_records(&self.dialect, eol, record, true, 1).pop().unwrap_or_default();
        if self.dialect.trailing_delimiter {
            names.pop();
        }
        let names = names.into_iter().map(Option::unwrap_or_default).collect();
        current.drop_front(end);
        Ok(names)
    }

    /// Whether a comment or an empty line that does not count comes first.
    fn is_passed_over(&self, bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|first| {
            self.dialect.comment == Some(*first)
                || (self.dialect.skip_blank_lines && matches!(first, b'\n' | b'\r'))
        })
    }

    /// The first record edge at or after `from`, reading on as needed; the end of the input if
    /// there is none.
    fn edge(&self, current: &mut Current, from: usize, eol: Eol) -> Result<usize> {
        current.read_to(from + SLACK)?;
        if let Some(comment) = self.dialect.comment {
            return self.edge_by_records(current, from, eol, comment);
        }
        let mut searched = from.min(current.carry.len());
        while searched > 0 && current.carry[searched - 1] == self.dialect.escape {
            searched -= 1;
        }
        let mut in_quote = ends_in_quote(&self.dialect, &current.carry[..searched], false);
        loop {
            let found = find_edge(&self.dialect, eol, &current.carry, searched, &mut in_quote);
            match found {
                Some(edge) => return Ok(edge),
                None if current.at_end => return Ok(current.carry.len()),
                None => {
                    // All but the last byte is known; that one may be half of a pair.
                    searched = current.carry.len();
                    let longer = searched + searched.max(SLACK);
                    current.check_length(longer)?;
                    in_quote = ends_in_quote(&self.dialect, &current.carry[..searched], false);
                    current.read_to(longer)?;
                }
            }
        }
    }

    /// The same where lines may be comments, whose quotes do not count: record after record.
    fn edge_by_records(
        &self,
        current: &mut Current,
        from: usize,
        eol: Eol,
        comment: u8,
    ) -> Result<usize> {
        let without_quotes = Dialect { quote: None, ..self.dialect.clone() };
        let mut at = 0;
        while at <= from && at < current.carry.len() {
            let is_comment = current.carry[at] == comment;
            let dialect = if is_comment { &without_quotes } else { &self.dialect };
            match find_edge(dialect, eol, &current.carry, at, &mut false) {
                Some(edge) => at = edge,
                None if current.at_end => at = current.carry.len(),
                None => {
                    let longer = current.carry.len() + current.carry.len().max(SLACK);
                    current.check_length(longer)?;
                    current.read_to(longer)?;
                }
            }
        }
        Ok(at)
    }
}

impl Cutter for DelimitedCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        let DelimitedCutter { options, current, seq } = self;
        let edge = options.edge(current, options.chunk_bytes, current.layout.eol)?;
        if edge == 0 {
            return Ok(None);
        }
        let chunk = current.cut(edge, *seq);
        *seq += 1;
        Ok(Some(chunk))
    }
}

impl Current {
    /// Makes the carry at least `len` bytes long, or all of what is left.
    fn read_to(&mut self, len: usize) -> Result<()> {
        if self.at_end || self.carry.len() >= len {
            return Ok(());
        }
        let missing = len - self.carry.len();
        self.carry.reserve_exact(missing);
        let mut limited = (&mut self.reader).take(missing as u64);
        let read = limited.read_to_end(&mut self.carry);
        let read = read.map_err(|error| source::error_of(error, &self.name))?;
        self.at_end = read < missing;
        Ok(())
    }

    fn cut(&mut self, edge: usize, seq: u64) -> Chunk {
        let mut rest = Vec::with_capacity(self.carry.len() - edge);
        rest.extend_from_slice(&self.carry[edge..]);
        let mut bytes = std::mem::replace(&mut self.carry, rest);
        bytes.truncate(edge);
        let (byte, line) = (self.byte, self.line);
        self.byte += edge as u64;
        self.line += count_lines(&bytes, self.layout.eol);
        let data = ChunkData::Delimited(bytes, Arc::clone(&self.layout));
        Chunk { seq, input: 0, byte, line, first_row: 0, data }
    }

    fn drop_front(&mut self, len: usize) {
        let eol = detect_any_eol(&self.carry[..len]);
        self.line += count_lines(&self.carry[..len], eol);
        self.byte += len as u64;
        self.carry.drain(..len);
    }

    fn check_length(&self, len: usize) -> Result<()> {
        if len <= RECORD_BYTES_MAX * 2 {
            return Ok(());
        }
        let message = "record is longer than 1 GiB, the most that PostgreSQL takes";
        let hint =
            "Is a quote missing? Check `--quote` and `--delimiter`, or the line named above.";
        Err(Error::new(Kind::Format, message).at(self.place()).hint(hint))
    }

    fn place(&self) -> Place {
        let source = Some(self.name.clone());
        Place { source, line: Some(self.line), ..Place::default() }
    }
}

/// Lines as an editor counts them.
pub(super) fn count_lines(bytes: &[u8], eol: Eol) -> u64 {
    let end = if eol == Eol::Cr { b'\r' } else { b'\n' };
    memchr::memchr_iter(end, bytes).count() as u64
}

fn detect_any_eol(bytes: &[u8]) -> Eol {
    if memchr::memchr(b'\n', bytes).is_some() { Eol::Lf } else { Eol::Cr }
}

fn has_line_end(bytes: &[u8]) -> bool {
    memchr::memchr2(b'\n', b'\r', bytes).is_some()
}

/// The first record edge in `bytes` at or after `from`. `in_quote` tells of `from` on entry.
fn find_edge(
    dialect: &Dialect,
    eol: Eol,
    bytes: &[u8],
    from: usize,
    in_quote: &mut bool,
) -> Option<usize> {
    let end = if eol == Eol::Cr { b'\r' } else { b'\n' };
    let mut at = from;
    while let Some(found) = memchr::memchr(end, &bytes[at..]) {
        let pos = at + found;
        *in_quote = ends_in_quote(dialect, &bytes[at..pos], *in_quote);
        let is_escaped = dialect.family == Family::Text && ends_in_escape(&bytes[..pos]);
        if !*in_quote && !is_escaped {
            return Some(pos + 1);
        }
        at = pos + 1;
    }
    None
}

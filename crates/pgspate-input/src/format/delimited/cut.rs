//! Cuts inputs into chunks of whole records.
//!
//! A chunk ends at the first record edge after `chunk_bytes` from its start, so the cuts depend on
//! the bytes alone, not on how they arrive. Lanes wait in line for this, so it looks at no more
//! than it must: the parity of quotes up to the edge, and the number of newlines for messages.

use std::io::Read;
use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::lines::{
    comment_end, count_lines, detect_eol, ends_in_marker, ends_in_quote, find_edge, is_skipped,
    settled, skip_line_end,
};
use super::{Dialect, Eol, Layout, MapFields, records};
use crate::format::{Chunk, ChunkData, Cutter};
use crate::{Error, ErrorKind, InputPlace, Result, source};

/// How far to look for the record edge at first. Small in tests, which then always read on.
const SLACK: usize = if cfg!(test) { 5 } else { 64 << 10 };
/// A record longer than PostgreSQL's limit is not read to its end.
const RECORD_BYTES_MAX: usize = if cfg!(test) { 1 << 18 } else { 1 << 30 };
/// More is not set aside before there are bytes for it.
const RESERVE_BYTES_MAX: usize = 128 << 20;
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
    /// lines end with. An input without any record has no layout, and `options.map` is not asked.
    ///
    /// # Errors
    /// What reading meets, a first line that does not end, a dialect that [`Dialect::check`]
    /// refuses, and what `options.map` refuses.
    pub fn open(
        name: &str,
        reader: Box<dyn Read + Send>,
        options: CutOptions,
    ) -> Result<DelimitedCutter> {
        options.dialect.check()?;
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
            current.drop_front(BOM.len(), Eol::Lf);
        }
        let mut cutter = DelimitedCutter { options, current, seq: 0 };
        cutter.start()?;
        Ok(cutter)
    }

    fn start(&mut self) -> Result<()> {
        let DelimitedCutter { options, current, .. } = self;
        let eol = current.first_eol(&options.dialect)?;
        let place = current.place();
        let mut names = None;
        if options.header {
            options.drop_skipped(current, eol)?;
            if current.carry.is_empty() {
                return Ok(());
            }
            names = Some(options.take_header(current, eol)?);
        } else if current.carry.is_empty() {
            return Ok(());
        }
        let mapped = (options.map)(names.as_deref());
        let (fields, field_of) = mapped.map_err(|error| error.at(place))?;
        current.layout = Arc::new(Layout { eol, fields, field_of });
        Ok(())
    }
}

impl CutOptions {
    /// Passes over the lines at the front that are no records.
    fn drop_skipped(&self, current: &mut Current, eol: Eol) -> Result<()> {
        if self.dialect.comment.is_none() && !self.dialect.skip_blank_lines {
            return Ok(());
        }
        loop {
            let edge = self.edge(current, 0, eol)?;
            let line = &current.carry[..edge];
            let record = line.strip_suffix(eol.bytes()).unwrap_or(line);
            if edge == 0 || !is_skipped(&self.dialect, record) {
                return Ok(());
            }
            current.drop_front(edge, eol);
        }
    }

    /// Takes the first record off and returns its fields.
    fn take_header(&self, current: &mut Current, eol: Eol) -> Result<Vec<Vec<u8>>> {
        let edge = self.edge(current, 0, eol)?;
        let (mut found, fault) =
            records::parse(&self.dialect, eol, &current.carry[..edge], true, 1);
        let Some(mut names) = found.pop() else {
            let message =
                fault.map_or("the header is missing", |it| it.message(self.dialect.family));
            return Err(Error::new(ErrorKind::Format, message)
                .with_sqlstate(SqlState::BAD_COPY_FILE_FORMAT)
                .at(current.place()));
        };
        if self.dialect.trailing_delimiter {
            names.pop();
        }
        current.drop_front(edge, eol);
        Ok(names.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// The first record edge after `from`, reading on as needed; the end of the input if there is
    /// none.
    fn edge(&self, current: &mut Current, from: usize, eol: Eol) -> Result<usize> {
        if let Some(comment) = self.dialect.comment {
            return self.edge_by_records(current, from, eol, comment);
        }
        let mut wanted = from.saturating_add(SLACK);
        // No escape is under way at `at`, and `in_quote` tells of it.
        let (mut at, mut in_quote) = (0, false);
        loop {
            current.read_to(wanted)?;
            let bytes = &current.carry;
            let start = settled(&self.dialect, bytes, at, from.clamp(at, bytes.len()));
            in_quote = ends_in_quote(&self.dialect, &bytes[at..start], in_quote);
            if let Some(edge) = find_edge(&self.dialect, eol, bytes, start, in_quote) {
                return Ok(edge);
            }
            if current.at_end {
                return Ok(bytes.len());
            }
            at = settled(&self.dialect, bytes, start, bytes.len());
            in_quote = ends_in_quote(&self.dialect, &bytes[start..at], in_quote);
            wanted = bytes.len() + bytes.len().max(SLACK);
            if wanted > RECORD_BYTES_MAX.saturating_mul(2) {
                return Err(current.too_long(last_edge(&self.dialect, eol, bytes)));
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
        current.read_to(from.saturating_add(SLACK))?;
        let mut at = 0;
        while at <= from && at < current.carry.len() {
            let bytes = &current.carry;
            let edge = if bytes[at] == comment {
                comment_end(bytes, at, eol).map(|end| skip_line_end(bytes, end, eol))
            } else {
                find_edge(&self.dialect, eol, bytes, at, false)
            };
            match edge {
                Some(edge) => at = edge,
                None if current.at_end => at = bytes.len(),
                None => {
                    let longer = bytes.len() + bytes.len().max(SLACK);
                    if longer - at > RECORD_BYTES_MAX.saturating_mul(2) {
                        return Err(current.too_long(at));
                    }
                    current.read_to(longer)?;
                }
            }
        }
        Ok(at)
    }
}

/// Where the last record begins in `bytes`, which do not hold its end.
fn last_edge(dialect: &Dialect, eol: Eol, bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(edge) = find_edge(dialect, eol, bytes, at, false) {
        at = edge;
    }
    at
}

impl Cutter for DelimitedCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        let DelimitedCutter { options, current, seq } = self;
        let eol = current.layout.eol;
        let mut edge = options.edge(current, options.chunk_bytes, eol)?;
        if edge == 0 {
            return Ok(None);
        }
        // Whether data follows an end marker must be seen within the chunk.
        if ends_in_marker(&current.carry[..edge], eol) {
            edge = options.edge(current, edge, eol)?;
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
        self.carry.reserve_exact(missing.min(RESERVE_BYTES_MAX));
        let mut limited = (&mut self.reader).take(missing as u64);
        let read = limited.read_to_end(&mut self.carry);
        let read = read.map_err(|error| source::error_of(error, &self.name))?;
        self.at_end = read < missing;
        Ok(())
    }

    /// What the first line ends with. Only a first record longer than the slack is read on for.
    fn first_eol(&mut self, dialect: &Dialect) -> Result<Eol> {
        loop {
            if let Some(eol) = detect_eol(dialect, &self.carry, self.at_end) {
                return Ok(eol);
            }
            let longer = self.carry.len() + self.carry.len().max(SLACK);
            if longer > RECORD_BYTES_MAX.saturating_mul(2) {
                return Err(self.too_long(0));
            }
            self.read_to(longer)?;
        }
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
        Chunk { seq, input: 0, byte, line, first_row: 0, digest: None, data }
    }

    fn drop_front(&mut self, len: usize, eol: Eol) {
        self.line += count_lines(&self.carry[..len], eol);
        self.byte += len as u64;
        self.carry.drain(..len);
    }

    /// The record that begins at `at` of the carry does not end soon enough.
    fn too_long(&self, at: usize) -> Error {
        let eol = if self.layout.fields > 0 { self.layout.eol } else { Eol::Lf };
        let message = "record is longer than 1 GiB, the most that PostgreSQL takes";
        let hint = "Is a quote missing at its end? Check `--quote` and `--delimiter`.";
        let mut place = self.place();
        place.line = Some(self.line + count_lines(&self.carry[..at], eol));
        place.byte = Some(self.byte + at as u64);
        Error::new(ErrorKind::Format, message).at(place).hint(hint)
    }

    fn place(&self) -> InputPlace {
        let source = Some(self.name.clone());
        InputPlace { source, line: Some(self.line), ..InputPlace::default() }
    }
}

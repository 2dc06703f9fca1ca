//! Cuts delimited inputs into chunks of whole records.
//!
//! A record edge is the position after a record's line end. A chunk ends at the first record edge
//! after `chunk_bytes` bytes. So the cuts depend on the bytes alone, and not on the sizes of the
//! reads. Lanes wait for the cutter, so the cutter does little work. The cutter only determines
//! whether an edge is within quotes, and counts lines for error messages.

use std::io::Read;
use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::lines::{
    comment_end, count_lines, detect_eol, ends_in_marker, ends_in_quote, find_edge, is_skipped,
    last_offset_outside_escape, skip_line_end,
};
use super::{Dialect, Eol, MapFields, RecordLayout, parse_records};
use crate::format::{Chunk, ChunkData, Cutter};
use crate::{Error, ErrorKind, InputPlace, Result, source};

/// How many bytes after `chunk_bytes` are read at first to find the record edge. Small in tests, so
/// that the tests cover reading on.
const READ_AHEAD_BYTES: usize = if cfg!(test) { 5 } else { 64 << 10 };
/// The longest record, as in PostgreSQL. The cutter stops reading a longer record.
const RECORD_BYTES_MAX: usize = if cfg!(test) { 1 << 18 } else { 1 << 30 };
/// The most memory that is reserved before a read.
const RESERVE_BYTES_MAX: usize = 128 << 20;
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Options of [`DelimitedCutter`].
#[derive(Clone)]
pub struct CutOptions {
    /// The syntax of the input.
    pub dialect: Dialect,
    /// Whether the first record is a header.
    pub header: bool,
    /// The least size at which a chunk may end.
    pub chunk_bytes: usize,
    /// Maps columns to fields.
    pub map: MapFields,
    /// The names of the columns, for digests. May be empty if no digest is needed.
    pub columns: Arc<[String]>,
}

/// Cuts one delimited input.
pub struct DelimitedCutter {
    options: CutOptions,
    input: OpenInput,
    seq: u64,
}

/// The open input, and the position of the cutter in it.
struct OpenInput {
    name: String,
    reader: Box<dyn Read + Send>,
    layout: Arc<RecordLayout>,
    /// The bytes that were read and that are in no chunk yet.
    unread: Vec<u8>,
    is_at_end: bool,
    /// Byte offset and line number at which `unread` begins.
    byte: u64,
    line: u64,
}

impl DelimitedCutter {
    /// Opens the input called `name`: skips a byte order mark, finds the line end, and reads the
    /// header. `options.map` is not called for an input without records.
    ///
    /// # Errors
    /// An error if reading fails, the first line does not end, [`Dialect::check`] rejects the
    /// dialect, or `options.map` fails.
    pub fn open(
        name: &str,
        reader: Box<dyn Read + Send>,
        options: CutOptions,
    ) -> Result<DelimitedCutter> {
        options.dialect.check()?;
        let layout = RecordLayout {
            eol: Eol::Lf,
            fields: 0,
            field_of: Vec::new(),
            columns: Arc::clone(&options.columns),
        };
        let mut input = OpenInput {
            name: name.to_owned(),
            reader,
            layout: Arc::new(layout),
            unread: Vec::new(),
            is_at_end: false,
            byte: 0,
            line: 1,
        };
        input.read_to(READ_AHEAD_BYTES)?;
        if input.unread.starts_with(BOM) {
            input.drop_front(BOM.len(), Eol::Lf);
        }
        let mut cutter = DelimitedCutter { options, input, seq: 0 };
        cutter.start()?;
        Ok(cutter)
    }

    /// Finds the line end, reads the header and sets the layout.
    fn start(&mut self) -> Result<()> {
        let DelimitedCutter { options, input, .. } = self;
        let eol = input.first_eol(&options.dialect)?;
        let place = input.place();
        let mut names = None;
        if options.header {
            options.skip_comments_and_blank_lines(input, eol)?;
            if input.unread.is_empty() {
                return Ok(());
            }
            names = Some(options.take_header(input, eol)?);
        } else if input.unread.is_empty() {
            return Ok(());
        }
        let mapped = (options.map)(names.as_deref());
        let (fields, field_of) = mapped.map_err(|error| error.at(place))?;
        let columns = Arc::clone(&options.columns);
        input.layout = Arc::new(RecordLayout { eol, fields, field_of, columns });
        Ok(())
    }
}

impl CutOptions {
    /// Skips comments and blank lines at the start of the input.
    fn skip_comments_and_blank_lines(&self, input: &mut OpenInput, eol: Eol) -> Result<()> {
        if self.dialect.comment.is_none() && !self.dialect.skip_blank_lines {
            return Ok(());
        }
        loop {
            let edge = self.find_edge(input, 0, eol)?;
            let line = &input.unread[..edge];
            let record = line.strip_suffix(eol.bytes()).unwrap_or(line);
            if edge == 0 || !is_skipped(&self.dialect, record) {
                return Ok(());
            }
            input.drop_front(edge, eol);
        }
    }

    /// Removes the first record from the input and returns its fields.
    fn take_header(&self, input: &mut OpenInput, eol: Eol) -> Result<Vec<Vec<u8>>> {
        let edge = self.find_edge(input, 0, eol)?;
        let (mut records, fault) =
            parse_records::parse(&self.dialect, eol, &input.unread[..edge], true, 1);
        let Some(mut names) = records.pop() else {
            let message =
                fault.map_or("the header is missing", |fault| fault.message(self.dialect.format));
            return Err(Error::new(ErrorKind::Format, message)
                .with_sqlstate(SqlState::BAD_COPY_FILE_FORMAT)
                .at(input.place()));
        };
        if self.dialect.trailing_delimiter {
            names.pop();
        }
        input.drop_front(edge, eol);
        Ok(names.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Returns the first record edge after `from`, and reads on as needed. Without an edge, returns
    /// the end of the input.
    fn find_edge(&self, input: &mut OpenInput, from: usize, eol: Eol) -> Result<usize> {
        if let Some(comment) = self.dialect.comment {
            return self.find_edge_by_records(input, from, eol, comment);
        }
        let mut wanted = from.saturating_add(READ_AHEAD_BYTES);
        // `at` is not within an escape. `in_quote` says whether `at` is within quotes.
        let (mut at, mut in_quote) = (0, false);
        loop {
            input.read_to(wanted)?;
            let bytes = &input.unread;
            let start =
                last_offset_outside_escape(&self.dialect, bytes, at, from.clamp(at, bytes.len()));
            in_quote = ends_in_quote(&self.dialect, &bytes[at..start], in_quote);
            if let Some(edge) = find_edge(&self.dialect, eol, bytes, start, in_quote) {
                return Ok(edge);
            }
            if input.is_at_end {
                return Ok(bytes.len());
            }
            at = last_offset_outside_escape(&self.dialect, bytes, start, bytes.len());
            in_quote = ends_in_quote(&self.dialect, &bytes[start..at], in_quote);
            wanted = bytes.len() + bytes.len().max(READ_AHEAD_BYTES);
            if wanted > RECORD_BYTES_MAX.saturating_mul(2) {
                return Err(input.too_long_error(last_edge(&self.dialect, eol, bytes)));
            }
        }
    }

    /// Finds the same edge as [`CutOptions::find_edge`], for dialects with comments. Quotes in
    /// comments do not count, so the search goes from record to record.
    fn find_edge_by_records(
        &self,
        input: &mut OpenInput,
        from: usize,
        eol: Eol,
        comment: u8,
    ) -> Result<usize> {
        input.read_to(from.saturating_add(READ_AHEAD_BYTES))?;
        let mut at = 0;
        while at <= from && at < input.unread.len() {
            let bytes = &input.unread;
            let edge = if bytes[at] == comment {
                comment_end(bytes, at, eol).map(|end| skip_line_end(bytes, end, eol))
            } else {
                find_edge(&self.dialect, eol, bytes, at, false)
            };
            match edge {
                Some(edge) => at = edge,
                None if input.is_at_end => at = bytes.len(),
                None => {
                    let longer = bytes.len() + bytes.len().max(READ_AHEAD_BYTES);
                    if longer - at > RECORD_BYTES_MAX.saturating_mul(2) {
                        return Err(input.too_long_error(at));
                    }
                    input.read_to(longer)?;
                }
            }
        }
        Ok(at)
    }
}

/// Returns where the last record of `bytes` begins. This record ends after `bytes`.
fn last_edge(dialect: &Dialect, eol: Eol, bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(edge) = find_edge(dialect, eol, bytes, at, false) {
        at = edge;
    }
    at
}

impl Cutter for DelimitedCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        let DelimitedCutter { options, input, seq } = self;
        let eol = input.layout.eol;
        let mut edge = options.find_edge(input, options.chunk_bytes, eol)?;
        if edge == 0 {
            return Ok(None);
        }
        // The encoder must see whether data follows an end marker, so the chunk gets one more
        // record.
        if ends_in_marker(&input.unread[..edge], eol) {
            edge = options.find_edge(input, edge, eol)?;
        }
        let chunk = input.cut(edge, *seq);
        *seq += 1;
        Ok(Some(chunk))
    }
}

impl OpenInput {
    /// Reads until `unread` has at least `len` bytes, or the input ends.
    fn read_to(&mut self, len: usize) -> Result<()> {
        if self.is_at_end || self.unread.len() >= len {
            return Ok(());
        }
        let missing = len - self.unread.len();
        self.unread.reserve_exact(missing.min(RESERVE_BYTES_MAX));
        let mut limited = (&mut self.reader).take(missing as u64);
        let read = limited.read_to_end(&mut self.unread);
        let read = read.map_err(|error| source::read_error(error, &self.name))?;
        self.is_at_end = read < missing;
        Ok(())
    }

    /// Returns the line end of the first line, and reads on as needed.
    fn first_eol(&mut self, dialect: &Dialect) -> Result<Eol> {
        loop {
            if let Some(eol) = detect_eol(dialect, &self.unread, self.is_at_end) {
                return Ok(eol);
            }
            let longer = self.unread.len() + self.unread.len().max(READ_AHEAD_BYTES);
            if longer > RECORD_BYTES_MAX.saturating_mul(2) {
                return Err(self.too_long_error(0));
            }
            self.read_to(longer)?;
        }
    }

    /// Cuts a chunk off at `edge` of `unread`.
    fn cut(&mut self, edge: usize, seq: u64) -> Chunk {
        let mut rest = Vec::with_capacity(self.unread.len() - edge);
        rest.extend_from_slice(&self.unread[edge..]);
        let mut bytes = std::mem::replace(&mut self.unread, rest);
        bytes.truncate(edge);
        let (byte, line) = (self.byte, self.line);
        self.byte += edge as u64;
        self.line += count_lines(&bytes, self.layout.eol);
        let data = ChunkData::Delimited(bytes, Arc::clone(&self.layout));
        Chunk { seq, input: 0, byte, line, first_row: 0, digest: None, data }
    }

    /// Drops the first `len` bytes of `unread`, and counts their lines.
    fn drop_front(&mut self, len: usize, eol: Eol) {
        self.line += count_lines(&self.unread[..len], eol);
        self.byte += len as u64;
        self.unread.drain(..len);
    }

    /// Returns the error for a record that is too long. The record begins at `at` of `unread`.
    fn too_long_error(&self, at: usize) -> Error {
        let eol = if self.layout.fields > 0 { self.layout.eol } else { Eol::Lf };
        let message = "record is longer than 1 GiB, the limit of PostgreSQL";
        let hint = "A closing quote may be missing. Check `--quote` and `--delimiter`.";
        let mut place = self.place();
        place.line = Some(self.line + count_lines(&self.unread[..at], eol));
        place.byte = Some(self.byte + at as u64);
        Error::new(ErrorKind::Format, message).at(place).hint(hint)
    }

    /// Returns the place at which `unread` begins.
    fn place(&self) -> InputPlace {
        let source = Some(self.name.clone());
        InputPlace { source, line: Some(self.line), ..InputPlace::default() }
    }
}

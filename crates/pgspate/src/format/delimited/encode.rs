//! Delimited chunks to COPY bytes, straight from the field's bytes.
//!
//! The row loop is the hottest code of a load: an index of field ends, a match per field, one
//! append per value. Whatever is rare (quotes with escapes inside, refusals, faults) leaves it.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::fields::{self, is_null, skip_line_end};
use super::scan::{Fault, Index, MARKED, OFFSET, RECORD, Rules};
use super::{Dialect, Eol, Family, Layout};
use crate::encode::{Encoded, field::FieldEncoder, text};
use crate::error::{Error, Kind, Place, Result};
use crate::format::{Chunk, ChunkData, ChunkEncoder, Mode};

/// How the fields of one column are read.
#[derive(Debug, Clone)]
pub struct Column {
    /// The column's name, for messages.
    pub name: String,
    /// `None`: the column's type goes to the server as text.
    pub encoder: Option<FieldEncoder>,
    /// A quoted field that spells NULL is NULL (COPY's `force_null`).
    pub force_null: bool,
    /// An unquoted field that spells NULL is its own value (COPY's `force_not_null`).
    pub force_not_null: bool,
}

/// Encodes delimited chunks.
pub struct DelimitedEncoder {
    dialect: Dialect,
    columns: Vec<Column>,
    has_forced: bool,
    /// For `\.` in csv: data since PostgreSQL 18, an end before.
    csv_end_marker: bool,
    chunk: Option<Arc<Chunk>>,
    layout: Arc<Layout>,
    mode: Mode,
    index: Index,
    /// Next entry of the index.
    at: usize,
    /// Where the record that it belongs to starts.
    record_start: usize,
    row: u64,
    scratch: Vec<u8>,
}

impl DelimitedEncoder {
    /// An encoder for `columns` in COPY's order. `server_version` is `server_version_num`.
    pub fn new(dialect: Dialect, columns: Vec<Column>, server_version: u32) -> DelimitedEncoder {
        let layout = Layout { eol: Eol::Lf, fields: 0, field_of: Vec::new() };
        let has_forced = columns.iter().any(|column| column.force_null || column.force_not_null);
        DelimitedEncoder {
            csv_end_marker: dialect.family == Family::Csv && server_version < 180_000,
            dialect,
            columns,
            has_forced,
            chunk: None,
            layout: Arc::new(layout),
            mode: Mode::Binary,
            index: Index::default(),
            at: 0,
            record_start: 0,
            row: 0,
            scratch: Vec::new(),
        }
    }

    /// Encodes the record at the index's position. False at a `\.` that ends the data.
    #[inline]
    fn encode_record(&mut self, bytes: &[u8], out: &mut Encoded) -> Result<bool> {
        let fields = self.layout.fields;
        let ends = &self.index.ends[self.at..];
        let has_shape = ends.len() >= fields
            && ends[fields - 1] & RECORD != 0
            && ends[..fields - 1].iter().fold(0, |all, end| all | end) & RECORD == 0;
        if !has_shape || self.dialect.comment.is_some() || self.dialect.skip_blank_lines {
            match self.look_closer(bytes)? {
                Shape::Record => {}
                Shape::Skip => {
                    self.step_over(bytes);
                    return Ok(true);
                }
                Shape::End => return Ok(false),
            }
        }
        if self.dialect.trailing_delimiter {
            self.check_trailing()?;
        }
        let starts_at = out.binary.len();
        if self.mode == Mode::Text || !self.encode_binary(bytes, &mut out.binary) {
            out.binary.truncate(starts_at);
            self.leave_to_server(bytes, out);
        } else {
            out.binary_rows += 1;
        }
        self.row += 1;
        self.step_over(bytes);
        Ok(true)
    }

    /// Appends the record's columns in binary. False when a field's spelling is left to the
    /// server.
    #[inline]
    fn encode_binary(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let ends = &self.index.ends[self.at..self.at + self.layout.fields];
        out.extend_from_slice(&(self.columns.len() as i16).to_be_bytes());
        for (column, &field) in self.columns.iter().zip(&self.layout.field_of) {
            let start = match field {
                0 => self.record_start,
                _ => self.index.start + (ends[field - 1] & OFFSET) as usize + 1,
            };
            let end = ends[field];
            let raw = &bytes[start..self.index.start + (end & OFFSET) as usize];
            let marked = end & MARKED != 0;
            let value = if marked || self.has_forced {
                column_value(&self.dialect, column, raw, marked, &mut self.scratch)
            } else {
                (!is_null(&self.dialect, raw, false)).then_some(raw)
            };
            let Some(encoder) = &column.encoder else { return false };
            match value {
                None => out.extend_from_slice(&(-1_i32).to_be_bytes()),
                Some(value) => {
                    if !encoder.encode(value, out) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Writes the record as COPY text.
    fn leave_to_server(&mut self, bytes: &[u8], out: &mut Encoded) {
        let ends = &self.index.ends[self.at..self.at + self.layout.fields];
        for (nth, (column, &field)) in self.columns.iter().zip(&self.layout.field_of).enumerate() {
            if nth > 0 {
                out.text.push(b'\t');
            }
            let start = match field {
                0 => self.record_start,
                _ => self.index.start + (ends[field - 1] & OFFSET) as usize + 1,
            };
            let end = ends[field];
            let raw = &bytes[start..self.index.start + (end & OFFSET) as usize];
            let marked = end & MARKED != 0;
            text::append(
                column_value(&self.dialect, column, raw, marked, &mut self.scratch),
                &mut out.text,
            );
        }
        out.text.push(b'\n');
        out.text_rows.push(self.row);
    }

    /// Moves on to the next record.
    #[inline]
    fn step_over(&mut self, bytes: &[u8]) {
        while self.index.ends[self.at] & RECORD == 0 {
            self.at += 1;
        }
        let end = self.index.start + (self.index.ends[self.at] & OFFSET) as usize;
        self.record_start = skip_line_end(bytes, end, self.layout.eol);
        self.at += 1;
    }

    /// What a record is that does not have the expected number of fields, or may be none.
    fn look_closer(&self, bytes: &[u8]) -> Result<Shape> {
        let ends = &self.index.ends[self.at..];
        let last = ends.iter().position(|end| end & RECORD != 0).expect("whole records");
        let end = self.index.start + (ends[last] & OFFSET) as usize;
        let record = &bytes[self.record_start..end];
        let is_comment = self.dialect.comment.is_some_and(|it| record.first() == Some(&it));
        if is_comment || (self.dialect.skip_blank_lines && record.is_empty()) {
            return Ok(Shape::Skip);
        }
        if self.csv_end_marker && record == b"\\." {
            if skip_line_end(bytes, end, self.layout.eol) < bytes.len() {
                return Err(self.fault_error(Fault::EndMarker));
            }
            return Ok(Shape::End);
        }
        let found = last + 1;
        if found == self.layout.fields {
            return Ok(Shape::Record);
        }
        let message = match self.columns.get(found) {
            Some(column) if found < self.layout.fields => {
                format!("missing data for column \"{}\"", column.name)
            }
            _ if found < self.layout.fields => "missing data for a column".to_owned(),
            _ => "extra data after last expected column".to_owned(),
        };
        let hint = format!("Expected {} fields, found {found}.", self.layout.fields);
        Err(self.format_error(&message).hint(hint))
    }

    /// The field after the trailing delimiter is empty.
    fn check_trailing(&self) -> Result<()> {
        let ends = &self.index.ends[self.at..self.at + self.layout.fields];
        let [.., before, last] = ends else { return Ok(()) };
        if (last & OFFSET) == (before & OFFSET) + 1 {
            return Ok(());
        }
        Err(self.format_error("extra data after last expected column"))
    }

    fn fault_error(&self, fault: Fault) -> Error {
        self.format_error(fault.message(self.dialect.family))
    }

    /// An error in the record that comes next.
    fn format_error(&self, message: &str) -> Error {
        let place = self.chunk.as_deref().map(|chunk| self.place(chunk, self.row));
        Error::new(Kind::Format, message)
            .with_sqlstate(SqlState::BAD_COPY_FILE_FORMAT)
            .at(place.unwrap_or_default())
    }

    /// Indexes the next window. False at the end of the chunk.
    fn refill(&mut self, bytes: &[u8]) -> Result<bool> {
        if let Some(fault) = self.index.fault {
            let rest = &bytes[self.index.next..];
            let is_end = fault == Fault::EndMarker
                && matches!(rest, b"\\." | b"\\.\n" | b"\\.\r\n" | b"\\.\r");
            return if is_end { Ok(false) } else { Err(self.fault_error(fault)) };
        }
        if self.index.next >= bytes.len() {
            return Ok(false);
        }
        let rules = Rules::new(&self.dialect, self.layout.eol);
        self.record_start = self.index.next;
        self.index.scan(bytes, self.index.next, &rules);
        self.at = 0;
        Ok(true)
    }
}

/// What a line turns out to be.
enum Shape {
    Record,
    Skip,
    End,
}

/// A field's value with COPY's rules for NULL applied.
fn column_value<'a>(
    dialect: &Dialect,
    column: &Column,
    raw: &'a [u8],
    marked: bool,
    scratch: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    if is_null(dialect, raw, marked) {
        return column.force_not_null.then_some(raw);
    }
    let value = if marked { fields::value(dialect, raw, scratch) } else { raw };
    (!column.force_null || value != dialect.null).then_some(value)
}

impl ChunkEncoder for DelimitedEncoder {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: Mode) -> Result<()> {
        let ChunkData::Delimited(_, layout) = &chunk.data else {
            return Err(Error::new(Kind::Bug, "a chunk of another format"));
        };
        self.layout = Arc::clone(layout);
        self.chunk = Some(chunk);
        self.mode = mode;
        self.index = Index { ends: std::mem::take(&mut self.index.ends), ..Index::default() };
        self.index.ends.clear();
        self.at = 0;
        self.row = 0;
        Ok(())
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        let Some(chunk) = self.chunk.clone() else { return Ok(false) };
        let ChunkData::Delimited(bytes, _) = &chunk.data else { return Ok(false) };
        loop {
            if self.at >= self.index.ends.len() && !self.refill(bytes)? {
                return Ok(false);
            }
            while self.at < self.index.ends.len() {
                if !self.encode_record(bytes, out)? {
                    return Ok(false);
                }
                if out.binary.len() >= piece || out.text.len() >= piece {
                    return Ok(true);
                }
            }
        }
    }

    fn place(&self, chunk: &Chunk, row: u64) -> Place {
        let ChunkData::Delimited(bytes, layout) = &chunk.data else { return Place::default() };
        let (line, byte) = locate(&self.dialect, bytes, layout.eol, row);
        let line = Some(chunk.line + line);
        Place { line, byte: Some(chunk.byte + byte), ..Place::default() }
    }
}

/// The line and the byte, both from the chunk's start, at which data row `row` begins.
fn locate(dialect: &Dialect, bytes: &[u8], eol: Eol, row: u64) -> (u64, u64) {
    let rules = Rules::new(dialect, eol);
    let mut index = Index::default();
    let mut rows = 0;
    let mut start = 0;
    loop {
        index.scan(bytes, start, &rules);
        let mut record_start = start;
        for end in index.ends.iter().filter(|end| *end & RECORD != 0) {
            let at = index.start + (end & OFFSET) as usize;
            let record = &bytes[record_start..at];
            let is_comment = dialect.comment.is_some_and(|it| record.first() == Some(&it));
            if !is_comment && !(dialect.skip_blank_lines && record.is_empty()) {
                if rows == row {
                    break;
                }
                rows += 1;
            }
            record_start = skip_line_end(bytes, at, eol);
        }
        let found = record_start < index.next;
        if found || index.next <= start || index.next >= bytes.len() || index.fault.is_some() {
            return (super::cut::count_lines(&bytes[..record_start], eol), record_start as u64);
        }
        start = index.next;
    }
}

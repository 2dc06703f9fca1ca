//! Delimited chunks to COPY bytes, straight from the field's bytes.
//!
//! The row loop is the hottest code of a load: an index of field ends, a match per field, one
//! append per value. Whatever is rare (quotes with escapes inside, refusals, faults) leaves it.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::lines::{count_lines, is_skipped, skip_line_end};
use super::row::{self, Column, Record, Spelling};
use super::scan::{Fault, Index, OFFSET, RECORD, Rules};
use super::walk::{self, is_last_marker, locate, pass_fault};
use super::{Dialect, Eol, Family, Layout};
use crate::encode::Encoded;
use crate::format::{self, Chunk, ChunkData, ChunkEncoder, Mode, no_such_row};
use crate::{Error, ErrorKind, InputPlace, Result};

/// Encodes delimited chunks.
pub struct DelimitedEncoder {
    columns: Vec<Column>,
    spelling: Spelling,
    /// For `\.` in csv: data since PostgreSQL 18, an end before.
    csv_end_marker: bool,
    /// Whether a record of the right shape may still be none.
    must_look: bool,
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
    /// How the records that are given out are laid out, if not as in their own input.
    like: Option<Layout>,
    /// Up to where lines were counted, and how many there were: refusals may be many.
    counted: (usize, u64),
}

/// What a line turns out to be.
enum Shape {
    Record,
    /// A record with so many fields.
    Other(usize),
    Skip,
    End,
}

impl DelimitedEncoder {
    /// An encoder for `columns` in COPY's order. `server_version` is `server_version_num`.
    pub fn new(dialect: Dialect, columns: Vec<Column>, server_version: u32) -> DelimitedEncoder {
        let layout = Layout { eol: Eol::Lf, fields: 0, field_of: Vec::new() };
        let has_forced = columns.iter().any(|column| column.force_null || column.force_not_null);
        DelimitedEncoder {
            csv_end_marker: dialect.family == Family::Csv && server_version < 180_000,
            must_look: false,
            columns,
            spelling: Spelling { dialect, has_forced, in_order: false },
            chunk: None,
            layout: Arc::new(layout),
            mode: Mode::Binary,
            index: Index::default(),
            at: 0,
            record_start: 0,
            row: 0,
            scratch: Vec::new(),
            like: None,
            counted: (0, 0),
        }
    }

    /// Has [`ChunkEncoder::records`] give out records as they would stand in an input with this
    /// layout, which has the same fields: so those of several inputs go into one file.
    #[must_use]
    pub fn with_records_like(mut self, layout: Layout) -> DelimitedEncoder {
        self.like = Some(layout);
        self
    }

    /// Encodes the record at the index's position. False at a `\.` that ends the data.
    #[inline]
    fn encode_record(&mut self, bytes: &[u8], out: &mut Encoded) -> Result<bool> {
        let fields = self.layout.fields;
        let ends = &self.index.ends()[self.at..];
        let has_shape = match ends.get(..fields) {
            Some([before @ .., last]) => {
                last & RECORD != 0 && before.iter().fold(0, |all, end| all | end) & RECORD == 0
            }
            _ => false,
        };
        if !has_shape || self.must_look {
            match self.look_closer(bytes) {
                Shape::Record => {}
                Shape::Other(found) => {
                    let taken = self.take_misshapen(bytes, found, out);
                    return self.pass(bytes, taken);
                }
                Shape::Skip => {
                    self.step_over(bytes);
                    return Ok(true);
                }
                Shape::End if self.is_last_line(bytes) => return Ok(false),
                Shape::End => {
                    let refused = Err(self.fault_error(bytes, Fault::EndMarker));
                    return self.pass(bytes, refused);
                }
            }
        }
        if self.spelling.dialect.trailing_delimiter && !self.is_trailing_empty() {
            let refused = Err(self.format_error(bytes, "extra data after last expected column"));
            return self.pass(bytes, refused);
        }
        self.append(bytes, out);
        self.pass(bytes, Ok(()))
    }

    /// Counts the record, whatever came of it, and moves on to the next one.
    #[inline]
    fn pass(&mut self, bytes: &[u8], taken: Result<()>) -> Result<bool> {
        self.row += 1;
        self.step_over(bytes);
        taken.map(|()| true)
    }

    /// Appends a record of the right shape.
    #[inline]
    fn append(&mut self, bytes: &[u8], out: &mut Encoded) {
        let record = Record {
            window: &bytes[self.index.start..],
            start: self.record_start - self.index.start,
            ends: &self.index.ends()[self.at..self.at + self.layout.fields.max(1)],
        };
        let (columns, spelling, field_of) = (&self.columns, &self.spelling, &self.layout.field_of);
        let starts_at = out.binary.len();
        if self.mode == Mode::Binary {
            let (binary, scratch) = (&mut out.binary, &mut self.scratch);
            if row::append_binary(record, columns, field_of, spelling, scratch, binary) {
                out.binary_rows += 1;
                return;
            }
            out.binary.truncate(starts_at);
        }
        row::append_text(record, columns, field_of, spelling, &mut self.scratch, &mut out.text);
        out.text_rows.push(self.row);
    }

    /// Moves on to the next record.
    #[inline]
    fn step_over(&mut self, bytes: &[u8]) {
        let (last, end) = self.last_field();
        self.at += last + 1;
        self.record_start = skip_line_end(bytes, end, self.layout.eol);
    }

    /// Which field of the record is its last one, and where it ends.
    #[inline]
    fn last_field(&self) -> (usize, usize) {
        let ends = &self.index.ends()[self.at..];
        let last = ends.iter().position(|end| end & RECORD != 0).unwrap_or(ends.len() - 1);
        (last, self.index.start + (ends[last] & OFFSET) as usize)
    }

    /// What a record is that does not have the expected number of fields, or may be none.
    fn look_closer(&self, bytes: &[u8]) -> Shape {
        let (last, end) = self.last_field();
        let record = &bytes[self.record_start..end];
        if is_skipped(&self.spelling.dialect, record) {
            return Shape::Skip;
        }
        // At the end of the input and without a line end of its own, it is data.
        if self.csv_end_marker && record == b"\\." && end < bytes.len() {
            return Shape::End;
        }
        // A line without fields is still told from one with an empty field.
        let found = if self.layout.fields == 0 && record.is_empty() { 0 } else { last + 1 };
        if found == self.layout.fields { Shape::Record } else { Shape::Other(found) }
    }

    /// Nothing may come after an end marker.
    fn is_last_line(&self, bytes: &[u8]) -> bool {
        let (_, end) = self.last_field();
        skip_line_end(bytes, end, self.layout.eol) == bytes.len()
    }

    /// Refuses a record with too few or too many fields. Where the server would first complain of
    /// something else in it and is to judge in any case, it gets the record.
    fn take_misshapen(&mut self, bytes: &[u8], found: usize, out: &mut Encoded) -> Result<()> {
        let fields = self.layout.fields;
        if self.mode == Mode::Text && self.spelling.in_order && fields > 0 {
            let record = Record {
                window: &bytes[self.index.start..],
                start: self.record_start - self.index.start,
                ends: &self.index.ends()[self.at..self.at + found],
            };
            let (columns, spelling) = (&self.columns, &self.spelling);
            if row::has_another_fault(record, columns, spelling, &mut self.scratch) {
                row::append_misshapen(record, columns, spelling, &mut self.scratch, &mut out.text);
                out.text_rows.push(self.row);
                return Ok(());
            }
        }
        let message = if found < fields {
            let missing = self.layout.field_of.iter().position(|field| *field == found);
            match missing.and_then(|nth| self.columns.get(nth)) {
                Some(column) => format!("missing data for column \"{}\"", column.name),
                None => "missing delimiter at the end of the record".to_owned(),
            }
        } else {
            "extra data after last expected column".to_owned()
        };
        let s = if fields == 1 { "" } else { "s" };
        let hint = format!("Expected {fields} field{s}, found {found}.");
        Err(self.format_error(bytes, &message).hint(hint))
    }

    /// Whether the field after the trailing delimiter is empty.
    fn is_trailing_empty(&self) -> bool {
        let ends = &self.index.ends()[self.at..self.at + self.layout.fields];
        let empty_at = match ends {
            [.., before, _] => (before & OFFSET) + 1,
            _ => (self.record_start - self.index.start) as u32,
        };
        ends.last().is_none_or(|last| last & OFFSET == empty_at)
    }

    fn fault_error(&mut self, bytes: &[u8], fault: Fault) -> Error {
        let error = self.format_error(bytes, fault.message(self.spelling.dialect.family));
        match fault {
            Fault::CarriageReturn | Fault::Newline => {
                let eol = match self.layout.eol {
                    Eol::Lf => "a newline",
                    Eol::CrLf => "a carriage return and a newline",
                    Eol::Cr => "a carriage return",
                };
                error.hint(format!("The first line ends with {eol}, so every line has to."))
            }
            _ => error,
        }
    }

    /// An error in the record that comes next.
    fn format_error(&mut self, bytes: &[u8], message: &str) -> Error {
        let (counted_to, lines) = self.counted;
        let lines = lines + count_lines(&bytes[counted_to..self.record_start], self.layout.eol);
        self.counted = (self.record_start, lines);
        let (line, byte) = self.chunk.as_deref().map_or((0, 0), |it| (it.line, it.byte));
        let place = InputPlace {
            line: Some(line + lines),
            byte: Some(byte + self.record_start as u64),
            ..InputPlace::default()
        };
        Error::new(ErrorKind::Format, message)
            .with_sqlstate(SqlState::BAD_COPY_FILE_FORMAT)
            .at(place)
    }

    /// Indexes the next window. False at the end of the chunk.
    fn refill(&mut self, bytes: &[u8]) -> Result<bool> {
        let eol = self.layout.eol;
        if let Some(fault) = self.index.fault {
            self.record_start = self.index.next;
            if is_last_marker(fault, &bytes[self.record_start..], eol) {
                return Ok(false);
            }
            let refused = self.fault_error(bytes, fault);
            self.row += 1;
            pass_fault(&mut self.index, &self.spelling.dialect, eol, bytes);
            return Err(refused);
        }
        if self.index.next >= bytes.len() {
            return Ok(false);
        }
        let rules = Rules::new(&self.spelling.dialect, eol);
        self.record_start = self.index.next;
        self.index.scan(bytes, self.index.next, &rules);
        self.at = 0;
        Ok(true)
    }
}

impl ChunkEncoder for DelimitedEncoder {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: Mode) -> Result<()> {
        let ChunkData::Delimited(_, layout) = &chunk.data else {
            return Err(Error::new(ErrorKind::Bug, "a chunk of another format"));
        };
        let fields = layout.fields;
        let dialect = &self.spelling.dialect;
        self.must_look = dialect.comment.is_some()
            || dialect.skip_blank_lines
            || fields == 0
            || (self.csv_end_marker && (fields == 1 || b"\\.".contains(&dialect.delimiter)));
        self.spelling.in_order = self.columns.len() == fields
            && layout.field_of.len() == fields
            && layout.field_of.iter().enumerate().all(|(nth, field)| nth == *field);
        self.layout = Arc::clone(layout);
        self.chunk = Some(chunk);
        self.mode = mode;
        self.index.reset();
        self.at = 0;
        self.row = 0;
        self.counted = (0, 0);
        Ok(())
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        let Some(chunk) = self.chunk.clone() else { return Ok(false) };
        let ChunkData::Delimited(bytes, _) = &chunk.data else { return Ok(false) };
        loop {
            if self.at >= self.index.ends().len() && !self.refill(bytes)? {
                return Ok(false);
            }
            while self.at < self.index.ends().len() {
                if !self.encode_record(bytes, out)? {
                    return Ok(false);
                }
                if out.binary.len() >= piece || out.text.len() >= piece {
                    return Ok(true);
                }
            }
        }
    }

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<format::Record>> {
        let ChunkData::Delimited(bytes, layout) = &chunk.data else { return Err(no_such_row(0)) };
        walk::records(&self.spelling.dialect, chunk, (bytes, layout), self.like.as_ref(), rows)
    }

    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace {
        let ChunkData::Delimited(bytes, layout) = &chunk.data else { return InputPlace::default() };
        let (line, byte) = locate(&self.spelling.dialect, bytes, layout.eol, row);
        let line = Some(chunk.line + line);
        InputPlace { line, byte: Some(chunk.byte + byte), ..InputPlace::default() }
    }
}

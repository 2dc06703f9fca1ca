//! Encodes delimited chunks into COPY bytes, directly from the bytes of the fields.
//!
//! The loop over rows is the hottest code of a load: it reads the field index, chooses the encoder
//! of each field, and appends each value once. Rare cases (escapes within quotes, errors) are
//! handled in functions outside of the loop.

use std::sync::Arc;

use pgspate_base::numbers::counted;
use tokio_postgres::error::SqlState;

use super::field_index::{FieldIndex, LineFault, OFFSET_MASK, RECORD_END, ScanRules};
use super::lines::{count_lines, is_skipped, skip_line_end};
use super::record_walk::{self, is_last_marker, line_and_byte_of_row, skip_faulty_record};
use super::row::{self, DelimitedColumn, IndexedRecord, RecordRules};
use super::{CopyFormat, Dialect, Eol, RecordLayout};
use crate::encode::Encoded;
use crate::format::constants::{ConstantColumns, RowTail};
use crate::format::sniff::UnseenMarks;
use crate::format::{self, Chunk, ChunkData, ChunkEncoder, EncodeMode, no_such_row_error};
use crate::{Error, ErrorKind, InputPlace, Result};

/// Encodes delimited chunks.
pub struct DelimitedEncoder {
    columns: Vec<DelimitedColumn>,
    rules: RecordRules,
    /// The columns that follow the columns of fields.
    tail: RowTail,
    /// Whether `\.` ends csv data: true before PostgreSQL 18. Since 18, it is data.
    backslash_dot_ends_csv: bool,
    unseen: UnseenMarks,
    /// Whether the window may have one of these marks.
    may_have_unseen: bool,
    /// Whether every line must be classified: a line with the expected number of fields may still
    /// be a comment, a blank line or an end marker.
    must_classify: bool,
    chunk: Option<Arc<Chunk>>,
    layout: Arc<RecordLayout>,
    mode: EncodeMode,
    index: FieldIndex,
    /// The next entry of the field index.
    next_end: usize,
    /// Where the record of the next entry starts.
    record_start: usize,
    /// The number of the next row in the chunk.
    row: u64,
    /// A buffer for decoded fields.
    scratch: Vec<u8>,
    /// The layout of the records that [`ChunkEncoder::records`] returns. If `None`, the records
    /// keep the layout of their input.
    output_layout: Option<RecordLayout>,
    /// The offset up to which lines are counted, and their number. Several errors in a chunk do
    /// not count the same lines again.
    lines_counted: (usize, u64),
}

/// The kind of a line.
enum LineShape {
    /// A record with the expected number of fields.
    Record,
    /// A record with this other number of fields.
    WrongFieldCount(usize),
    /// A comment or a blank line.
    Skipped,
    /// An end marker (`\.`).
    EndMarker,
}

impl DelimitedEncoder {
    /// Returns an encoder for `columns` in COPY's order. `server_version` is `server_version_num`.
    pub fn new(
        dialect: Dialect,
        columns: Vec<DelimitedColumn>,
        server_version: u32,
    ) -> DelimitedEncoder {
        let layout =
            RecordLayout { eol: Eol::Lf, fields: 0, field_of: Vec::new(), columns: Arc::default() };
        let tail = RowTail::default();
        let column_count = tail.column_count(columns.len());
        let has_forced_nulls =
            columns.iter().any(|column| column.force_null || column.force_not_null);
        DelimitedEncoder {
            backslash_dot_ends_csv: dialect.format == CopyFormat::Csv && server_version < 180_000,
            unseen: UnseenMarks::default(),
            may_have_unseen: false,
            must_classify: false,
            rules: RecordRules {
                dialect,
                has_forced_nulls,
                has_checks: columns
                    .iter()
                    .any(|column| column.date_format.is_some() || column.guessed_type.is_some()),
                fields_are_columns: false,
                column_count,
            },
            tail,
            columns,
            chunk: None,
            layout: Arc::new(layout),
            mode: EncodeMode::Binary,
            index: FieldIndex::default(),
            next_end: 0,
            record_start: 0,
            row: 0,
            scratch: Vec::new(),
            output_layout: None,
            lines_counted: (0, 0),
        }
    }

    /// Makes [`ChunkEncoder::records`] return records in another layout with the same fields. So
    /// the rejects of several inputs can go into one file.
    #[must_use]
    pub fn with_output_layout(mut self, layout: RecordLayout) -> DelimitedEncoder {
        self.output_layout = Some(layout);
        self
    }

    /// Refuses records with marks that the sample did not show.
    #[must_use]
    pub fn refusing(mut self, unseen: UnseenMarks) -> DelimitedEncoder {
        self.unseen = unseen;
        self
    }

    /// Adds columns that follow the columns of fields.
    #[must_use]
    pub fn with_constants(mut self, constants: ConstantColumns) -> DelimitedEncoder {
        self.tail = RowTail::new(constants);
        self.rules.column_count = self.tail.column_count(self.columns.len());
        self
    }

    /// Encodes the next record. Returns false at a `\.` that ends the data.
    #[inline]
    fn encode_record(&mut self, bytes: &[u8], out: &mut Encoded) -> Result<bool> {
        let fields = self.layout.fields;
        let ends = &self.index.ends()[self.next_end..];
        let has_expected_fields = match ends.get(..fields) {
            Some([others @ .., last]) => {
                last & RECORD_END != 0
                    && others.iter().fold(0, |all, end| all | end) & RECORD_END == 0
            }
            _ => false,
        };
        if !has_expected_fields || self.must_classify {
            match self.classify_line(bytes) {
                LineShape::Record => {}
                LineShape::WrongFieldCount(found) => {
                    let result = self.handle_wrong_field_count(bytes, found, out);
                    return self.finish_record(bytes, result);
                }
                LineShape::Skipped => {
                    self.skip_record(bytes);
                    return Ok(true);
                }
                LineShape::EndMarker if self.is_last_line(bytes) => return Ok(false),
                LineShape::EndMarker => {
                    let refused = Err(self.fault_error(bytes, LineFault::EndMarker));
                    return self.finish_record(bytes, refused);
                }
            }
        }
        if self.rules.dialect.trailing_delimiter && !self.is_trailing_empty() {
            let refused = Err(self.format_error(bytes, "extra data after last expected column"));
            return self.finish_record(bytes, refused);
        }
        let appended = self.append_row(bytes, out);
        self.finish_record(bytes, appended)
    }

    /// Counts the record, even if `result` is an error, and moves on to the next record.
    #[inline]
    fn finish_record(&mut self, bytes: &[u8], result: Result<()>) -> Result<bool> {
        self.row += 1;
        self.skip_record(bytes);
        result.map(|()| true)
    }

    /// Appends a record with the expected number of fields.
    #[inline]
    fn append_row(&mut self, bytes: &[u8], out: &mut Encoded) -> Result<()> {
        if self.may_have_unseen {
            self.check_unseen(bytes, self.layout.fields.max(1))?;
        }
        let record = IndexedRecord {
            window: &bytes[self.index.start..],
            start: self.record_start - self.index.start,
            ends: &self.index.ends()[self.next_end..self.next_end + self.layout.fields.max(1)],
        };
        let (columns, rules, field_of) = (&self.columns, &self.rules, &self.layout.field_of);
        let row_start = out.binary.len();
        if self.mode == EncodeMode::Binary {
            let (binary, scratch) = (&mut out.binary, &mut self.scratch);
            if row::append_binary(record, columns, field_of, rules, scratch, binary) {
                binary.extend_from_slice(&self.tail.binary);
                out.binary_rows += 1;
                return Ok(());
            }
            out.binary.truncate(row_start);
        }
        let scratch = &mut self.scratch;
        if rules.has_checks {
            let text_start = out.text.len();
            let row = row::append_checked_text;
            if let Err(misfit) = row(record, columns, field_of, rules, scratch, &mut out.text) {
                out.text.truncate(text_start);
                return Err(self.value_error(bytes, misfit));
            }
        } else {
            row::append_text(record, columns, field_of, rules, scratch, &mut out.text);
        }
        self.tail.complete_text(&mut out.text);
        out.text_rows.push(self.row);
        Ok(())
    }

    /// Refuses a record of `fields` fields that has a mark which the sample did not show.
    #[cold]
    fn check_unseen(&mut self, bytes: &[u8], fields: usize) -> Result<()> {
        let record = IndexedRecord {
            window: &bytes[self.index.start..],
            start: self.record_start - self.index.start,
            ends: &self.index.ends()[self.next_end..self.next_end + fields],
        };
        let dialect = &self.rules.dialect;
        let Some((field, mark)) = record.find_unseen(self.unseen, dialect) else { return Ok(()) };
        let column = self.layout.field_of.iter().position(|it| *it == field);
        let column = column.and_then(|column| self.columns.get(column));
        let name = column.map(|column| column.name.clone());
        let (message, hint) = mark.message_and_hint(dialect);
        let place = InputPlace { column: name, ..self.record_place(bytes) };
        Err(Error::new(ErrorKind::Format, message).hint(hint).at(place))
    }

    /// Moves on to the next record.
    #[inline]
    fn skip_record(&mut self, bytes: &[u8]) {
        let (last, end) = self.last_field();
        self.next_end += last + 1;
        self.record_start = skip_line_end(bytes, end, self.layout.eol);
    }

    /// Returns the number of the record's last field, and where that field ends.
    #[inline]
    fn last_field(&self) -> (usize, usize) {
        let ends = &self.index.ends()[self.next_end..];
        let last = ends.iter().position(|end| end & RECORD_END != 0).unwrap_or(ends.len() - 1);
        (last, self.index.start + (ends[last] & OFFSET_MASK) as usize)
    }

    /// Classifies the next line.
    fn classify_line(&self, bytes: &[u8]) -> LineShape {
        let (last, end) = self.last_field();
        let record = &bytes[self.record_start..end];
        if is_skipped(&self.rules.dialect, record) {
            return LineShape::Skipped;
        }
        // Without a line end, at the end of the input, `\.` is data.
        if self.backslash_dot_ends_csv && record == b"\\." && end < bytes.len() {
            return LineShape::EndMarker;
        }
        // For a table without columns, an empty line has no fields.
        let found = if self.layout.fields == 0 && record.is_empty() { 0 } else { last + 1 };
        if found == self.layout.fields {
            LineShape::Record
        } else {
            LineShape::WrongFieldCount(found)
        }
    }

    /// Returns whether the line is the last one of the chunk.
    fn is_last_line(&self, bytes: &[u8]) -> bool {
        let (_, end) = self.last_field();
        skip_line_end(bytes, end, self.layout.eol) == bytes.len()
    }

    /// Returns the error for a record with too few or too many fields. In text mode, if the server
    /// would report another error of the record first, appends the record for the server instead.
    fn handle_wrong_field_count(
        &mut self,
        bytes: &[u8],
        found: usize,
        out: &mut Encoded,
    ) -> Result<()> {
        let fields = self.layout.fields;
        if self.may_have_unseen {
            self.check_unseen(bytes, found)?;
        }
        if self.mode == EncodeMode::Text && self.rules.fields_are_columns && fields > 0 {
            let record = IndexedRecord {
                window: &bytes[self.index.start..],
                start: self.record_start - self.index.start,
                ends: &self.index.ends()[self.next_end..self.next_end + found],
            };
            let (columns, rules) = (&self.columns, &self.rules);
            if row::has_another_fault(record, columns, rules, &mut self.scratch) {
                row::append_all_fields(record, columns, rules, &mut self.scratch, &mut out.text);
                self.tail.complete_text(&mut out.text);
                out.text_rows.push(self.row);
                return Ok(());
            }
        }
        let message = if found < fields {
            let missing = self.layout.field_of.iter().position(|field| *field == found);
            match missing.and_then(|index| self.columns.get(index)) {
                Some(column) => format!("missing data for column \"{}\"", column.name),
                None => "missing delimiter at the end of the record".to_owned(),
            }
        } else {
            "extra data after last expected column".to_owned()
        };
        let mut hint = format!("Expected {}, found {found}.", counted(fields as u64, "field"));
        if bytes[self.record_start..].starts_with(self.layout.eol.bytes()) {
            hint += " The line is empty. Skip such lines with `--skip-blank-lines`.";
        } else if found > fields && self.has_apostrophes(bytes) {
            hint += " If apostrophes quote values in this input, use `--quote \"'\"`.";
        }
        Err(self.format_error(bytes, &message).hint(hint))
    }

    /// Returns whether a value of the next record begins with an apostrophe, and another ends with
    /// one, in csv where other characters quote values.
    fn has_apostrophes(&self, bytes: &[u8]) -> bool {
        let Dialect { format, quote, delimiter, .. } = self.rules.dialect;
        let (_, end) = self.last_field();
        let record = &bytes[self.record_start..end];
        let values = || record.split(|byte| *byte == delimiter);
        format == CopyFormat::Csv
            && quote != Some(b'\'')
            && values().any(|value| value.starts_with(b"'"))
            && values().any(|value| value.ends_with(b"'"))
    }

    /// Returns whether the field after the trailing delimiter is empty.
    fn is_trailing_empty(&self) -> bool {
        let ends = &self.index.ends()[self.next_end..self.next_end + self.layout.fields];
        let empty_at = match ends {
            [.., before, _] => (before & OFFSET_MASK) + 1,
            _ => (self.record_start - self.index.start) as u32,
        };
        ends.last().is_none_or(|last| last & OFFSET_MASK == empty_at)
    }

    /// Returns the error for a faulty line.
    fn fault_error(&mut self, bytes: &[u8], fault: LineFault) -> Error {
        let error = self.format_error(bytes, fault.message(self.rules.dialect.format));
        match fault {
            LineFault::CarriageReturn | LineFault::Newline => {
                let eol = match self.layout.eol {
                    Eol::Lf => "a newline",
                    Eol::CrLf => "a carriage return and a newline",
                    Eol::Cr => "a carriage return",
                };
                let convert = match self.layout.eol {
                    Eol::Cr => "`tr '\\r' '\\n'`",
                    Eol::Lf | Eol::CrLf => "`tr -d '\\r'`",
                };
                error.hint(format!(
                    "The first line ends with {eol}, so all lines must end like this. If no value \
                     has line ends, {convert} makes all of them newlines."
                ))
            }
            LineFault::Unterminated => error.hint(
                "A quote opens a value, and the input ends before another quote closes it. If \
                 quotes are ordinary characters in this input, use `--quote none`.",
            ),
            _ => error,
        }
    }

    /// Returns an error with the place of the next record.
    fn format_error(&mut self, bytes: &[u8], message: &str) -> Error {
        Error::new(ErrorKind::Format, message)
            .with_sqlstate(SqlState::BAD_COPY_FILE_FORMAT)
            .at(self.record_place(bytes))
    }

    /// Returns the place of the next record.
    fn record_place(&mut self, bytes: &[u8]) -> InputPlace {
        let (counted_to, lines) = self.lines_counted;
        let lines = lines + count_lines(&bytes[counted_to..self.record_start], self.layout.eol);
        self.lines_counted = (self.record_start, lines);
        let (line, byte) = self.chunk.as_deref().map_or((0, 0), |chunk| (chunk.line, chunk.byte));
        InputPlace {
            line: Some(line + lines),
            byte: Some(byte + self.record_start as u64),
            ..InputPlace::default()
        }
    }

    /// Returns the error for a value that does not have its column's format of dates, or that its
    /// column's guessed type does not keep.
    #[cold]
    fn value_error(&mut self, bytes: &[u8], (column, value): (usize, Vec<u8>)) -> Error {
        let place = self.record_place(bytes);
        let DelimitedColumn { name, date_format, guessed_type, .. } = &self.columns[column];
        let place = InputPlace { column: Some(name.clone()), ..place };
        match guessed_type {
            Some(guessed) => guessed.error(&value).at(place),
            None => format::date_format_error(&value, date_format.as_deref()).at(place),
        }
    }

    /// Indexes the next window. Returns false at the end of the chunk.
    fn index_next_window(&mut self, bytes: &[u8]) -> Result<bool> {
        let eol = self.layout.eol;
        if let Some(fault) = self.index.fault {
            self.record_start = self.index.next_start;
            if is_last_marker(fault, &bytes[self.record_start..], eol) {
                return Ok(false);
            }
            let refusal = self.fault_error(bytes, fault);
            self.row += 1;
            skip_faulty_record(&mut self.index, &self.rules.dialect, eol, bytes);
            return Err(refusal);
        }
        if self.index.next_start >= bytes.len() {
            return Ok(false);
        }
        let rules = ScanRules::new(&self.rules.dialect, eol);
        self.record_start = self.index.next_start;
        self.index.scan(bytes, self.index.next_start, &rules);
        self.next_end = 0;
        let window = &bytes[self.record_start..self.index.next_start];
        self.may_have_unseen = self.unseen.may_be_in(window, self.rules.dialect.quote);
        Ok(true)
    }
}

impl ChunkEncoder for DelimitedEncoder {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: EncodeMode) -> Result<()> {
        let ChunkData::Delimited(_, layout) = &chunk.data else {
            return Err(Error::new(ErrorKind::Bug, "a chunk of another format"));
        };
        let fields = layout.fields;
        let dialect = &self.rules.dialect;
        self.must_classify = dialect.comment.is_some()
            || dialect.skip_blank_lines
            || fields == 0
            || (self.backslash_dot_ends_csv
                && (fields == 1 || b"\\.".contains(&dialect.delimiter)));
        self.rules.fields_are_columns = self.columns.len() == fields
            && layout.field_of.len() == fields
            && layout.field_of.iter().enumerate().all(|(column, field)| column == *field);
        self.layout = Arc::clone(layout);
        self.mode = if self.tail.set_input(chunk.input) { mode } else { EncodeMode::Text };
        self.chunk = Some(chunk);
        self.index.reset();
        self.next_end = 0;
        self.row = 0;
        self.lines_counted = (0, 0);
        Ok(())
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        let Some(chunk) = self.chunk.clone() else { return Ok(false) };
        let ChunkData::Delimited(bytes, _) = &chunk.data else { return Ok(false) };
        let (binary_end, text_end) = (out.binary.len() + piece, out.text.len() + piece);
        loop {
            if self.next_end >= self.index.ends().len() && !self.index_next_window(bytes)? {
                return Ok(false);
            }
            while self.next_end < self.index.ends().len() {
                if !self.encode_record(bytes, out)? {
                    return Ok(false);
                }
                if out.binary.len() >= binary_end || out.text.len() >= text_end {
                    return Ok(true);
                }
            }
        }
    }

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<format::InputRecord>> {
        let ChunkData::Delimited(bytes, layout) = &chunk.data else {
            return Err(no_such_row_error(0));
        };
        record_walk::records(
            &self.rules.dialect,
            chunk,
            (bytes, layout),
            self.output_layout.as_ref(),
            rows,
        )
    }

    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace {
        let ChunkData::Delimited(bytes, layout) = &chunk.data else { return InputPlace::default() };
        let (line, byte) = line_and_byte_of_row(&self.rules.dialect, bytes, layout.eol, row);
        let line = Some(chunk.line + line);
        InputPlace { line, byte: Some(chunk.byte + byte), ..InputPlace::default() }
    }
}

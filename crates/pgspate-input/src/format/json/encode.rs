//! Encodes JSON records as rows of COPY.
//!
//! A key names a column. A missing key or `null` is NULL, a string is its text, and a number,
//! `true` or `false` is the input's own text. A json or jsonb column takes any value as JSON. An
//! array column takes an array as an array literal, and an hstore column an object as hstore. Any
//! other column takes arrays and objects as JSON text. If a key occurs twice, the last value
//! counts, as in jsonb.

use std::cell::Cell;
use std::sync::Arc;

use pgspate_base::did_you_mean;
use pgspate_base::numbers::counted;
use tokio_postgres::error::SqlState;

use super::key_lookup::KeyLookup;
use super::record::{INVALID_UTF8, RecordRanges, RecordWalk};
use super::{count_newlines, cut};
use crate::encode::{Encoded, text};
use crate::format::constants::RowTail;
use crate::format::guessed_type::GuessedType;
use crate::format::keyed::{KeyTarget, KeyedColumn, KeyedOptions};
use crate::format::{
    Chunk, ChunkData, ChunkEncoder, EncodeMode, InputRecord, date_format_error, first_chars,
    no_such_row_error,
};
use crate::json::{
    ArrayLiteralStyle, JsonKind, JsonSyntaxError, UnsupportedEscape, append_array_literal,
    append_hstore, key_end, skip_space, unescape, value_end,
};
use crate::types::{PgType, TypeKind};
use crate::{Error, ErrorKind, InputPlace, Result};

/// Encodes chunks of JSON records. Lanes must have `client_encoding` UTF8.
///
/// Lines and brackets usually show where an invalid record ends. If they do not, the whole rest of
/// the chunk counts as the invalid record.
pub struct JsonEncoder {
    options: KeyedOptions,
    forms: Vec<ValueForm>,
    tail: RowTail,
    binary: bool,
    chunk: Option<Arc<Chunk>>,
    records: RecordWalk,
    row: u64,
    key_lookup: KeyLookup,
    slots: Vec<ValueSlot>,
    stack: Vec<u8>,
    value: Vec<u8>,
    /// The byte up to which the chunk's lines are counted, and their number. With many refused
    /// rows, counting from the start each time would take too long.
    lines_counted: Cell<(usize, u64)>,
}

/// How a column's values become text.
#[derive(Debug, Clone, Copy)]
enum ValueForm {
    /// Every value is JSON.
    Json,
    /// A JSON array becomes an array literal.
    Array(ArrayLiteralStyle),
    /// A JSON object becomes hstore.
    Hstore,
    /// A string becomes its text; any other value stays JSON text.
    Plain,
}

impl ValueForm {
    fn of(ty: &PgType) -> ValueForm {
        let is_json = |ty: &PgType| matches!(ty.base().oid, 114 | 3802);
        match &ty.base().kind {
            TypeKind::Array(element, delimiter) => ValueForm::Array(ArrayLiteralStyle {
                delimiter: *delimiter,
                json: is_json(element),
            }),
            _ if is_json(ty) => ValueForm::Json,
            _ if ty.is_hstore() => ValueForm::Hstore,
            _ => ValueForm::Plain,
        }
    }
}

/// A column's value in the current record: its range of bytes in the chunk.
#[derive(Debug, Clone, Copy)]
struct ValueSlot {
    kind: JsonKind,
    start: usize,
    end: usize,
}

/// The slot of a column without a value in the record: NULL.
const ABSENT: ValueSlot = ValueSlot { kind: JsonKind::Null, start: 0, end: 0 };

/// Why a record cannot become a row.
enum RecordFault {
    /// The record is not valid JSON.
    Syntax(JsonSyntaxError),
    /// The record is JSON that ends at `end`, but its content is not a row.
    NotARow { end: usize, error: Error },
}

/// Why a value cannot be written.
enum ValueFault {
    Escape(UnsupportedEscape),
    /// The value does not have the format of its column's dates.
    DateFormat(Vec<u8>),
    /// The column's guessed type does not keep the value.
    NotKept(GuessedType, Vec<u8>),
}

impl From<UnsupportedEscape> for ValueFault {
    fn from(escape: UnsupportedEscape) -> ValueFault {
        ValueFault::Escape(escape)
    }
}

impl From<JsonSyntaxError> for RecordFault {
    fn from(syntax: JsonSyntaxError) -> RecordFault {
        RecordFault::Syntax(syntax)
    }
}

impl JsonEncoder {
    /// Returns an encoder for one lane.
    pub fn new(options: KeyedOptions) -> JsonEncoder {
        JsonEncoder {
            forms: options.columns.iter().map(|column| ValueForm::of(&column.ty)).collect(),
            tail: RowTail::new(options.constants.clone()),
            binary: false,
            chunk: None,
            records: RecordWalk::new(&[], 0),
            row: 0,
            key_lookup: KeyLookup::default(),
            slots: vec![ABSENT; options.columns.len()],
            stack: Vec::new(),
            value: Vec::new(),
            lines_counted: Cell::default(),
            options,
        }
    }

    /// Reads the record at `start` into the slots. Returns the record's end.
    fn read_record(
        &mut self,
        chunk: &Chunk,
        text: &[u8],
        start: usize,
    ) -> Result<usize, RecordFault> {
        self.slots.fill(ABSENT);
        match text[start] {
            b'{' => self.read_object(chunk, text, start),
            b'[' => self.read_array(chunk, text, start),
            _ => {
                let (kind, end) = value_end(text, start, &mut self.stack)?;
                let found = match kind {
                    JsonKind::Null => "null",
                    JsonKind::Bool => "a boolean",
                    JsonKind::Number => "a number",
                    _ => "a string",
                };
                let error = self.error(chunk, start, &format!("expected an object, found {found}"));
                Err(RecordFault::NotARow { end, error })
            }
        }
    }

    fn read_object(
        &mut self,
        chunk: &Chunk,
        text: &[u8],
        start: usize,
    ) -> Result<usize, RecordFault> {
        let mut at = skip_space(text, start + 1);
        let mut unknown = None;
        if text.get(at) == Some(&b'}') {
            return Ok(at + 1);
        }
        for position in 0.. {
            let key_start = at;
            let (key_end, value_start, escaped) = key_end(text, at)?;
            let (kind, end) = value_end(text, value_start, &mut self.stack)?;
            let key = &text[key_start + 1..key_end - 1];
            match self.key_lookup.column_of(position, key, escaped, &self.options) {
                KeyTarget::Column(column) => {
                    self.slots[column] = ValueSlot { kind, start: value_start, end };
                }
                KeyTarget::NoColumn if self.options.ignore_unknown => {}
                _ => unknown = unknown.or(Some((key_start, key_end))),
            }
            at = skip_space(text, end);
            match text.get(at) {
                Some(b',') => at = skip_space(text, at + 1),
                Some(b'}') => break,
                Some(_) => {
                    return Err(JsonSyntaxError {
                        at,
                        what: "expected a comma or the end of the object",
                    }
                    .into());
                }
                None => {
                    return Err(
                        JsonSyntaxError { at, what: "the input ends inside an object" }.into()
                    );
                }
            }
        }
        match unknown {
            None => Ok(at + 1),
            Some((from, to)) => Err(RecordFault::NotARow {
                end: at + 1,
                error: self.unknown_key_error(chunk, text, from, to),
            }),
        }
    }

    fn read_array(
        &mut self,
        chunk: &Chunk,
        text: &[u8],
        start: usize,
    ) -> Result<usize, RecordFault> {
        let mut at = skip_space(text, start + 1);
        let mut count = 0;
        if text.get(at) == Some(&b']') {
            at += 1;
        } else {
            loop {
                let (kind, end) = value_end(text, at, &mut self.stack)?;
                if let Some(slot) = self.slots.get_mut(count) {
                    *slot = ValueSlot { kind, start: at, end };
                }
                count += 1;
                at = skip_space(text, end);
                match text.get(at) {
                    Some(b',') => at = skip_space(text, at + 1),
                    Some(b']') => break,
                    Some(_) => {
                        let what = "expected a comma or the end of the array";
                        return Err(JsonSyntaxError { at, what }.into());
                    }
                    None => {
                        return Err(
                            JsonSyntaxError { at, what: "the input ends inside an array" }.into()
                        );
                    }
                }
            }
            at += 1;
        }
        let columns = self.slots.len();
        if count == columns {
            return Ok(at);
        }
        let (values, columns) = (counted(count as u64, "value"), counted(columns as u64, "column"));
        let message = format!("the array has {values}, but the load has {columns}");
        let error = self.error(chunk, start, &message).hint(
            "The values of an array are the columns in order. Name the columns of the arrays with \
             `--columns`.",
        );
        Err(RecordFault::NotARow { end: at, error })
    }

    fn unknown_key_error(&self, chunk: &Chunk, text: &[u8], from: usize, to: usize) -> Error {
        let mut key = Vec::new();
        if unescape(&text[from + 1..to - 1], &mut key).is_err() {
            return self.escape_error(self.place_at(chunk, from), UnsupportedEscape::Surrogate);
        }
        let key = String::from_utf8_lossy(&key);
        if self.options.is_table_column(&key) {
            let place = InputPlace { column: Some(key.to_string()), ..self.place_at(chunk, from) };
            let message =
                format!("key \"{key}\" names a column, but the first records do not have this key");
            return Error::new(ErrorKind::Plan, message)
                .at(place)
                .hint("Name the keys of all records with `--columns a,b,...`.");
        }
        let shown = first_chars(&key);
        let columns = self.options.columns.iter().map(|column| column.name.as_str());
        let message = format!("key \"{shown}\" names no column");
        if self.options.has_sampled_columns {
            // Types of columns come from the sample, so the user must choose this column's type.
            let message = format!("{message}, because none of the first records has this key");
            return self.error(chunk, from, &message).hint(format!(
                "Name the column and its type, for example with `--type '{shown}=text'`. To ignore \
                 keys without a column, use `--ignore-unknown` and leave out `--add-columns`."
            ));
        }
        self.error(chunk, from, &message).hint_if(did_you_mean("column", &key, columns)).hint_also(
            "If the first records lack some keys, name all keys with `--columns a,b,...`. To \
                 ignore keys without a column, use `--ignore-unknown`.",
        )
    }

    /// Appends the row of the slots to `out`.
    fn write_row(
        &mut self,
        chunk: &Chunk,
        data: &[u8],
        start: usize,
        out: &mut Encoded,
    ) -> Result<()> {
        let (binary_len, text_len) = (out.binary.len(), out.text.len());
        let is_binary = if self.binary { self.write_binary(data, out) } else { Ok(false) };
        let written = match is_binary {
            Ok(true) => {
                out.binary_rows += 1;
                return Ok(());
            }
            Ok(false) => {
                out.binary.truncate(binary_len);
                self.write_text(data, &mut out.text)
            }
            Err(fault) => Err(fault),
        };
        match written {
            Ok(()) => {
                out.text_rows.push(self.row - 1);
                Ok(())
            }
            Err((column, fault)) => {
                out.binary.truncate(binary_len);
                out.text.truncate(text_len);
                let column = &self.options.columns[column];
                let mut place = self.place_at(chunk, start);
                place.column = Some(column.name.clone());
                Err(match fault {
                    ValueFault::Escape(escape) => self.escape_error(place, escape),
                    ValueFault::DateFormat(value) => {
                        date_format_error(&value, column.date_format.as_deref()).at(place)
                    }
                    ValueFault::NotKept(guessed, value) => guessed.error(&value).at(place),
                })
            }
        }
    }

    fn write_binary(
        &mut self,
        data: &[u8],
        out: &mut Encoded,
    ) -> Result<bool, (usize, ValueFault)> {
        let out = &mut out.binary;
        out.extend_from_slice(&self.tail.column_count(self.slots.len()));
        for (i, column) in self.options.columns.iter().enumerate() {
            match field_text(self.slots[i], self.forms[i], data, &mut self.value) {
                Ok(None) => out.extend_from_slice(&(-1i32).to_be_bytes()),
                Ok(Some(bytes)) => match &column.field {
                    _ if !is_kept(column, self.slots[i].kind, bytes) => return Ok(false),
                    Some(encoder) if encoder.encode(bytes, out) => {}
                    _ => return Ok(false),
                },
                Err(escape) => return Err((i, escape.into())),
            }
        }
        out.extend_from_slice(&self.tail.binary);
        Ok(true)
    }

    fn write_text(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), (usize, ValueFault)> {
        for i in 0..self.slots.len() {
            if i > 0 {
                out.push(b'\t');
            }
            let field = field_text(self.slots[i], self.forms[i], data, &mut self.value);
            let field = field.map_err(|escape| (i, escape.into()))?;
            let column = &self.options.columns[i];
            if let (Some(value), Some(guessed)) = (field, column.guessed_type)
                && !guessed.keeps_json(self.slots[i].kind, value)
            {
                return Err((i, ValueFault::NotKept(guessed, value.to_vec())));
            }
            match (field, &column.date_format) {
                (Some(value), Some(format)) => {
                    let iso = format.respell(value);
                    let iso = iso.ok_or_else(|| (i, ValueFault::DateFormat(value.to_vec())))?;
                    out.extend_from_slice(iso.as_bytes());
                }
                (field, _) => text::append(field, out),
            }
        }
        out.push(b'\n');
        self.tail.complete_text(out);
        Ok(())
    }

    /// Returns the place of a byte of the chunk that is being encoded.
    fn place_at(&self, chunk: &Chunk, at: usize) -> InputPlace {
        let ChunkData::Bytes(data) = &chunk.data else { return InputPlace::default() };
        let (from, lines) =
            Some(self.lines_counted.get()).filter(|(from, _)| *from <= at).unwrap_or_default();
        let lines = lines + count_newlines(&data[from..at]);
        self.lines_counted.set((at, lines));
        self.place_of(chunk, data, at, lines)
    }

    /// Returns the place of the byte `at`, before which `lines` lines of the chunk end.
    fn place_of(&self, chunk: &Chunk, data: &[u8], at: usize, lines: u64) -> InputPlace {
        // The chunk's line is the line of its first record. White space or a comma may precede the
        // record.
        let before_first = count_newlines(&data[..cut::first_record_start(data, chunk.byte)]);
        InputPlace {
            source: self.options.inputs.get(chunk.input).cloned(),
            line: Some(chunk.line + lines.saturating_sub(before_first)),
            byte: Some(chunk.byte + at as u64),
            ..InputPlace::default()
        }
    }

    fn error(&self, chunk: &Chunk, at: usize, message: &str) -> Error {
        Error::new(ErrorKind::Format, message)
            .with_sqlstate(SqlState::BAD_COPY_FILE_FORMAT)
            .at(self.place_at(chunk, at))
    }

    fn syntax_error(
        &self,
        chunk: &Chunk,
        text: &[u8],
        data: &[u8],
        found: JsonSyntaxError,
    ) -> Error {
        if found.what == INVALID_UTF8 || found.at == text.len() && text.len() < data.len() {
            return self
                .error(chunk, text.len(), INVALID_UTF8)
                .with_sqlstate(SqlState::CHARACTER_NOT_IN_REPERTOIRE)
                .hint("JSON must be UTF-8. Convert the input first with `iconv -t UTF-8`.");
        }
        self.error(chunk, found.at, &format!("invalid JSON: {}", found.what))
            .with_sqlstate(SqlState::INVALID_TEXT_REPRESENTATION)
    }

    fn escape_error(&self, place: InputPlace, escape: UnsupportedEscape) -> Error {
        let message = "unsupported Unicode escape sequence";
        let (code, hint) = match escape {
            UnsupportedEscape::Nul => (
                SqlState::UNTRANSLATABLE_CHARACTER,
                "\\u0000 cannot be converted to text. Only a json column accepts it.",
            ),
            UnsupportedEscape::Surrogate => (
                SqlState::INVALID_TEXT_REPRESENTATION,
                "A Unicode surrogate must be part of a pair. Only a json column accepts it alone. \
                 `--rejects FILE` sets such records aside.",
            ),
        };
        Error::new(ErrorKind::Type, message).at(place).with_sqlstate(code).hint(hint)
    }
}

impl ChunkEncoder for JsonEncoder {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: EncodeMode) -> Result<()> {
        let ChunkData::Bytes(data) = &chunk.data else {
            return Err(Error::new(ErrorKind::Bug, "a JSON chunk has no bytes"));
        };
        self.records = RecordWalk::new(data, chunk.byte);
        self.row = 0;
        self.lines_counted.set((0, 0));
        self.binary = self.tail.set_input(chunk.input)
            && mode == EncodeMode::Binary
            && self.options.columns.iter().all(|c| c.field.is_some());
        self.chunk = Some(chunk);
        Ok(())
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        let Some(chunk) = self.chunk.clone() else { return Ok(false) };
        let ChunkData::Bytes(data) = &chunk.data else { return Ok(false) };
        let end = out.bytes() + piece.max(1);
        while out.bytes() < end {
            let text = self.records.text(data);
            let next = self.records.next(data);
            self.row += 1;
            let start = match next {
                Ok(Some(start)) => start,
                Ok(None) => return Ok(false),
                Err(found) => {
                    self.records.skip_invalid(data, found.at);
                    return Err(self.syntax_error(&chunk, text, data, found));
                }
            };
            match self.read_record(&chunk, text, start) {
                Ok(end) => self.records.finish(end),
                Err(RecordFault::NotARow { end, error }) => {
                    self.records.finish(end);
                    return Err(error);
                }
                Err(RecordFault::Syntax(found)) => {
                    // Use the position at which `RecordRanges` finds the fault. `RecordRanges` does
                    // not check keys. So both walks continue at the same byte.
                    let broken = value_end(text, start, &mut self.stack);
                    let broken_at = broken.map_or_else(|found| found.at, |(_, end)| end);
                    self.records.skip_invalid(data, broken_at);
                    return Err(self.syntax_error(&chunk, text, data, found));
                }
            }
            self.write_row(&chunk, data, start, out)?;
        }
        Ok(true)
    }

    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace {
        let ChunkData::Bytes(data) = &chunk.data else { return InputPlace::default() };
        let records_before = usize::try_from(row).unwrap_or(usize::MAX);
        let start = RecordRanges::new(data, chunk.byte)
            .nth(records_before)
            .map_or(data.len(), |record| record.start);
        self.place_of(chunk, data, start, count_newlines(&data[..start]))
    }

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<InputRecord>> {
        let ChunkData::Bytes(data) = &chunk.data else { return Err(no_such_row_error(0)) };
        let mut walk = (0..).zip(RecordRanges::new(data, chunk.byte));
        let (mut lines, mut counted_to) = (0, 0);
        let mut records = Vec::with_capacity(rows.len());
        for row in rows {
            let (_, record) =
                walk.find(|(number, _)| number == row).ok_or_else(|| no_such_row_error(*row))?;
            lines += count_newlines(&data[counted_to..record.start]);
            counted_to = record.start;
            let place = self.place_of(chunk, data, record.start, lines);
            let bytes = [data[record].trim_ascii_end(), b"\n"].concat();
            records.push(InputRecord { place, bytes });
        }
        Ok(records)
    }
}

/// Returns whether the column's type keeps a value, if the type was guessed.
#[inline]
fn is_kept(column: &KeyedColumn, kind: JsonKind, value: &[u8]) -> bool {
    column.guessed_type.is_none_or(|guessed| guessed.keeps_json(kind, value))
}

/// Returns the text of the value in a column's slot. `scratch` holds converted text.
#[inline]
fn field_text<'a>(
    slot: ValueSlot,
    form: ValueForm,
    data: &'a [u8],
    scratch: &'a mut Vec<u8>,
) -> Result<Option<&'a [u8]>, UnsupportedEscape> {
    let raw = &data[slot.start..slot.end];
    match (slot.kind, form) {
        (JsonKind::Null, _) => Ok(None),
        (_, ValueForm::Json) => Ok(Some(raw)),
        (JsonKind::String(false), _) => Ok(Some(&raw[1..raw.len() - 1])),
        (JsonKind::String(true), _) => {
            scratch.clear();
            unescape(&raw[1..raw.len() - 1], scratch)?;
            Ok(Some(scratch))
        }
        (JsonKind::Array, ValueForm::Array(style)) => {
            scratch.clear();
            append_array_literal(raw, style, scratch)?;
            Ok(Some(scratch))
        }
        (JsonKind::Object, ValueForm::Hstore) => {
            scratch.clear();
            append_hstore(raw, scratch)?;
            Ok(Some(scratch))
        }
        _ => Ok(Some(raw)),
    }
}

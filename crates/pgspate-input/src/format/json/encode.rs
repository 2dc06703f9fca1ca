//! JSON records to COPY rows.
//!
//! A key names a column; a missing key or `null` is NULL, a string is its text, and a number,
//! `true` or `false` is the text that stands in the input. A json or jsonb column takes any value
//! as the JSON it is, an array column takes an array as an array literal, any other column takes
//! arrays and objects as JSON text. Of equal keys the last counts, as in jsonb.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::record::{INVALID_UTF8, Records, Walk};
use super::{cut, newlines};
use crate::encode::field::FieldEncoder;
use crate::encode::{Encoded, text};
use crate::format::nearest::nearest;
use crate::format::{Chunk, ChunkData, ChunkEncoder, Mode, Record, no_such_row};
use crate::json::{Scalar, Shape, Syntax, Unfit, key_end, literal, skip_space, unescape, value};
use crate::types::{PgType, TypeKind};
use crate::{Error, ErrorKind, InputPlace, Result};

/// A column that is written.
#[derive(Debug, Clone)]
pub struct JsonColumn {
    /// Its name.
    pub name: String,
    /// Its type, which decides what arrays and objects become.
    pub ty: PgType,
    /// Its encoder. While any column has none, every row is left to the server as text.
    pub field: Option<FieldEncoder>,
}

/// How records become rows.
#[derive(Debug, Clone)]
pub struct JsonOptions {
    /// The columns in the order in which COPY is told them.
    pub columns: Vec<JsonColumn>,
    /// Which column a key names: an index into `columns`.
    pub keys: HashMap<String, usize>,
    /// Pass over keys that name no column, rather than refuse the record.
    pub ignore_unknown: bool,
    /// The table's columns, also those that are not written, as they are and in lower case. A key
    /// that is one of these and no key of `keys` is always refused: its values would be lost.
    pub table_columns: Arc<HashSet<String>>,
    /// The inputs' names, by a chunk's `input`, for places in errors. May be empty.
    pub inputs: Arc<[String]>,
}

impl JsonOptions {
    /// Keys name columns exactly, and every key must name one.
    pub fn new(columns: Vec<JsonColumn>) -> JsonOptions {
        let keys = columns.iter().enumerate().map(|(i, c)| (c.name.clone(), i)).collect();
        let table_columns = Arc::default();
        JsonOptions { columns, keys, ignore_unknown: false, table_columns, inputs: Arc::new([]) }
    }

    /// The column that a key names.
    fn find(&self, key: &str) -> Found {
        match self.keys.get(key) {
            Some(column) => Found::Column(*column),
            None if self.is_of_table(key) => Found::LeftOut,
            None => Found::Unknown,
        }
    }

    fn is_of_table(&self, key: &str) -> bool {
        let columns = &self.table_columns;
        !columns.is_empty()
            && (columns.contains(key) || columns.contains(&key.trim().to_lowercase()))
    }
}

/// What a key names.
#[derive(Debug, Clone, Copy, Default)]
enum Found {
    /// One of the columns that are written.
    Column(usize),
    /// A column of the table that is not written.
    LeftOut,
    #[default]
    Unknown,
}

/// Encodes chunks of JSON records. Lanes must have `client_encoding` UTF8.
///
/// Where a broken record ends is told from lines and brackets. Where they do not tell, it is all
/// that is left of the chunk.
pub struct JsonEncoder {
    options: JsonOptions,
    forms: Vec<Form>,
    binary: bool,
    chunk: Option<Arc<Chunk>>,
    records: Records,
    row: u64,
    names: Names,
    slots: Vec<Slot>,
    stack: Vec<u8>,
    value: Vec<u8>,
    /// Up to where the chunk's lines were counted, and how many: refusals may be many.
    counted: Cell<(usize, u64)>,
}

/// What a column makes of arrays, objects and quotes.
#[derive(Debug, Clone, Copy)]
enum Form {
    Json,
    Array(Shape),
    Plain,
}

impl Form {
    fn of(ty: &PgType) -> Form {
        let is_json = |ty: &PgType| matches!(ty.base().oid, 114 | 3802);
        match &ty.base().kind {
            TypeKind::Array(element, delimiter) => {
                Form::Array(Shape { delimiter: *delimiter, json: is_json(element) })
            }
            _ if is_json(ty) => Form::Json,
            _ => Form::Plain,
        }
    }
}

/// A column's value in the record at hand: where its JSON lies in the chunk.
#[derive(Debug, Clone, Copy)]
struct Slot {
    kind: Scalar,
    start: usize,
    end: usize,
}

const ABSENT: Slot = Slot { kind: Scalar::Null, start: 0, end: 0 };

/// Why a record is no row.
enum Fault {
    /// It is no JSON.
    Syntax(Syntax),
    /// It is JSON up to `end`, but no row.
    Row { end: usize, error: Error },
}

impl From<Syntax> for Fault {
    fn from(syntax: Syntax) -> Fault {
        Fault::Syntax(syntax)
    }
}

impl JsonEncoder {
    /// An encoder for one lane.
    pub fn new(options: JsonOptions) -> JsonEncoder {
        JsonEncoder {
            forms: options.columns.iter().map(|column| Form::of(&column.ty)).collect(),
            binary: false,
            chunk: None,
            records: Records::new(&[], 0),
            row: 0,
            names: Names::default(),
            slots: vec![ABSENT; options.columns.len()],
            stack: Vec::new(),
            value: Vec::new(),
            counted: Cell::default(),
            options,
        }
    }

    /// Reads the record at `start` into the slots; gives its end.
    fn read(&mut self, chunk: &Chunk, text: &[u8], start: usize) -> Result<usize, Fault> {
        self.slots.fill(ABSENT);
        match text[start] {
            b'{' => self.read_object(chunk, text, start),
            b'[' => self.read_array(chunk, text, start),
            _ => {
                let (kind, end) = value(text, start, &mut self.stack)?;
                let found = match kind {
                    Scalar::Null => "null",
                    Scalar::Bool => "a boolean",
                    Scalar::Number => "a number",
                    _ => "a string",
                };
                let error = self.error(chunk, start, &format!("expected an object, found {found}"));
                Err(Fault::Row { end, error })
            }
        }
    }

    fn read_object(&mut self, chunk: &Chunk, text: &[u8], start: usize) -> Result<usize, Fault> {
        let mut at = skip_space(text, start + 1);
        let mut unknown = None;
        if text.get(at) == Some(&b'}') {
            return Ok(at + 1);
        }
        for nth in 0.. {
            let key_start = at;
            let (key_end, value_start, escaped) = key_end(text, at)?;
            let (kind, end) = value(text, value_start, &mut self.stack)?;
            let key = &text[key_start + 1..key_end - 1];
            match self.names.column(nth, key, escaped, &self.options) {
                Found::Column(column) => {
                    self.slots[column] = Slot { kind, start: value_start, end };
                }
                Found::Unknown if self.options.ignore_unknown => {}
                _ => unknown = unknown.or(Some((key_start, key_end))),
            }
            at = skip_space(text, end);
            match text.get(at) {
                Some(b',') => at = skip_space(text, at + 1),
                Some(b'}') => break,
                Some(_) => {
                    return Err(
                        Syntax { at, what: "expected a comma or the end of the object" }.into()
                    );
                }
                None => return Err(Syntax { at, what: "the input ends inside an object" }.into()),
            }
        }
        match unknown {
            None => Ok(at + 1),
            Some((from, to)) => {
                Err(Fault::Row { end: at + 1, error: self.unknown(chunk, text, from, to) })
            }
        }
    }

    fn read_array(&mut self, chunk: &Chunk, text: &[u8], start: usize) -> Result<usize, Fault> {
        let mut at = skip_space(text, start + 1);
        let mut count = 0;
        if text.get(at) == Some(&b']') {
            at += 1;
        } else {
            loop {
                let (kind, end) = value(text, at, &mut self.stack)?;
                if let Some(slot) = self.slots.get_mut(count) {
                    *slot = Slot { kind, start: at, end };
                }
                count += 1;
                at = skip_space(text, end);
                match text.get(at) {
                    Some(b',') => at = skip_space(text, at + 1),
                    Some(b']') => break,
                    Some(_) => {
                        let what = "expected a comma or the end of the array";
                        return Err(Syntax { at, what }.into());
                    }
                    None => {
                        return Err(Syntax { at, what: "the input ends inside an array" }.into());
                    }
                }
            }
            at += 1;
        }
        let columns = self.slots.len();
        if count == columns {
            return Ok(at);
        }
        let message = format!("the row has {count} values, but {columns} columns are written");
        let error = self.error(chunk, start, &message).hint(
            "The items of an array are the columns in their order. Name those it has with \
             `--columns`.",
        );
        Err(Fault::Row { end: at, error })
    }

    fn unknown(&self, chunk: &Chunk, text: &[u8], from: usize, to: usize) -> Error {
        let mut key = Vec::new();
        if unescape(&text[from + 1..to - 1], &mut key).is_err() {
            return self.unfit(self.place_at(chunk, from), Unfit::Surrogate);
        }
        let key = String::from_utf8_lossy(&key);
        if self.options.is_of_table(&key) {
            let place = InputPlace { column: Some(key.to_string()), ..self.place_at(chunk, from) };
            let message = format!("key \"{key}\" names a column but is not in the first records");
            return Error::new(ErrorKind::Plan, message)
                .at(place)
                .hint("Name the keys of all records with `--columns a,b,...`.");
        }
        let shown: String = key.chars().take(64).collect();
        let mut hint = match nearest(&key, self.options.columns.iter().map(|c| c.name.as_str())) {
            Some(column) => format!("The nearest column is \"{column}\". "),
            None => String::new(),
        };
        hint.push_str(
            "Name all keys with `--columns a,b,...` when the first records lack some of them, or \
             pass over keys without a column with `--ignore-unknown`.",
        );
        self.error(chunk, from, &format!("key \"{shown}\" names no column")).hint(hint)
    }

    /// Appends the row in the slots to `out`.
    fn write(&mut self, chunk: &Chunk, data: &[u8], start: usize, out: &mut Encoded) -> Result<()> {
        let marks = (out.binary.len(), out.text.len());
        let done = if self.binary { self.write_binary(data, out) } else { Ok(false) };
        let done = match done {
            Ok(true) => {
                out.binary_rows += 1;
                return Ok(());
            }
            Ok(false) => {
                out.binary.truncate(marks.0);
                self.write_text(data, &mut out.text)
            }
            Err(unfit) => Err(unfit),
        };
        match done {
            Ok(()) => {
                out.text_rows.push(self.row - 1);
                Ok(())
            }
            Err((column, unfit)) => {
                out.binary.truncate(marks.0);
                out.text.truncate(marks.1);
                let mut place = self.place_at(chunk, start);
                place.column = Some(self.options.columns[column].name.clone());
                Err(self.unfit(place, unfit))
            }
        }
    }

    fn write_binary(&mut self, data: &[u8], out: &mut Encoded) -> Result<bool, (usize, Unfit)> {
        let out = &mut out.binary;
        out.extend_from_slice(&(self.slots.len() as i16).to_be_bytes());
        for (i, column) in self.options.columns.iter().enumerate() {
            match field(self.slots[i], self.forms[i], data, &mut self.value) {
                Ok(None) => out.extend_from_slice(&(-1i32).to_be_bytes()),
                Ok(Some(bytes)) => match &column.field {
                    Some(encoder) if encoder.encode(bytes, out) => {}
                    _ => return Ok(false),
                },
                Err(unfit) => return Err((i, unfit)),
            }
        }
        Ok(true)
    }

    fn write_text(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), (usize, Unfit)> {
        for i in 0..self.slots.len() {
            if i > 0 {
                out.push(b'\t');
            }
            let field = field(self.slots[i], self.forms[i], data, &mut self.value);
            text::append(field.map_err(|unfit| (i, unfit))?, out);
        }
        out.push(b'\n');
        Ok(())
    }

    /// The place in the chunk that is being encoded.
    fn place_at(&self, chunk: &Chunk, at: usize) -> InputPlace {
        let ChunkData::Bytes(data) = &chunk.data else { return InputPlace::default() };
        let (from, lines) = Some(self.counted.get()).filter(|it| it.0 <= at).unwrap_or_default();
        let lines = lines + newlines(&data[from..at]);
        self.counted.set((at, lines));
        self.place_of(chunk, data, at, lines)
    }

    /// The place behind so many lines of the chunk.
    fn place_of(&self, chunk: &Chunk, data: &[u8], at: usize, lines: u64) -> InputPlace {
        // The chunk's line is that of its first record, which is missing where only a comma is.
        let before_first = newlines(&data[..cut::first_record(data, chunk.byte)]);
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

    fn syntax(&self, chunk: &Chunk, text: &[u8], data: &[u8], found: Syntax) -> Error {
        if found.what == INVALID_UTF8 || found.at == text.len() && text.len() < data.len() {
            return self
                .error(chunk, text.len(), INVALID_UTF8)
                .with_sqlstate(SqlState::CHARACTER_NOT_IN_REPERTOIRE)
                .hint("JSON is UTF-8. Convert the input first with `iconv -t UTF-8`.");
        }
        self.error(chunk, found.at, &format!("invalid JSON: {}", found.what))
            .with_sqlstate(SqlState::INVALID_TEXT_REPRESENTATION)
    }

    fn unfit(&self, place: InputPlace, unfit: Unfit) -> Error {
        let message = "unsupported Unicode escape sequence";
        let (code, hint) = match unfit {
            Unfit::Nul => (
                SqlState::UNTRANSLATABLE_CHARACTER,
                "\\u0000 cannot be converted to text. Only a json column takes it.",
            ),
            Unfit::Surrogate => (
                SqlState::INVALID_TEXT_REPRESENTATION,
                "A Unicode surrogate needs its other half. Only a json column takes it alone.",
            ),
        };
        Error::new(ErrorKind::Type, message).at(place).with_sqlstate(code).hint(hint)
    }
}

impl ChunkEncoder for JsonEncoder {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: Mode) -> Result<()> {
        let ChunkData::Bytes(data) = &chunk.data else {
            return Err(Error::new(ErrorKind::Bug, "a chunk of JSON has no bytes"));
        };
        self.records = Records::new(data, chunk.byte);
        self.row = 0;
        self.counted.set((0, 0));
        self.binary =
            mode == Mode::Binary && self.options.columns.iter().all(|c| c.field.is_some());
        self.chunk = Some(chunk);
        Ok(())
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        let Some(chunk) = self.chunk.clone() else { return Ok(false) };
        let ChunkData::Bytes(data) = &chunk.data else { return Ok(false) };
        while out.binary.len() + out.text.len() < piece {
            let text = self.records.text(data);
            let next = self.records.next(data);
            self.row += 1;
            let start = match next {
                Ok(Some(start)) => start,
                Ok(None) => return Ok(false),
                Err(found) => {
                    self.records.skip_broken(data, found.at);
                    return Err(self.syntax(&chunk, text, data, found));
                }
            };
            match self.read(&chunk, text, start) {
                Ok(end) => self.records.finish(end),
                Err(Fault::Row { end, error }) => {
                    self.records.finish(end);
                    return Err(error);
                }
                Err(Fault::Syntax(found)) => {
                    // As the walk over the records finds it, which knows no keys.
                    let broken = value(text, start, &mut self.stack);
                    let broken_at = broken.map_or_else(|found| found.at, |(_, end)| end);
                    self.records.skip_broken(data, broken_at);
                    return Err(self.syntax(&chunk, text, data, found));
                }
            }
            self.write(&chunk, data, start, out)?;
        }
        Ok(true)
    }

    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace {
        let ChunkData::Bytes(data) = &chunk.data else { return InputPlace::default() };
        let nth = usize::try_from(row).unwrap_or(usize::MAX);
        let start = Walk::new(data, chunk.byte).nth(nth).map_or(data.len(), |record| record.start);
        self.place_of(chunk, data, start, newlines(&data[..start]))
    }

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<Record>> {
        let ChunkData::Bytes(data) = &chunk.data else { return Err(no_such_row(0)) };
        let mut walk = (0..).zip(Walk::new(data, chunk.byte));
        let (mut lines, mut counted_to) = (0, 0);
        let mut records = Vec::with_capacity(rows.len());
        for row in rows {
            let (_, record) = walk.find(|(nth, _)| nth == row).ok_or_else(|| no_such_row(*row))?;
            lines += newlines(&data[counted_to..record.start]);
            counted_to = record.start;
            let place = self.place_of(chunk, data, record.start, lines);
            let bytes = [data[record].trim_ascii_end(), b"\n"].concat();
            records.push(Record { place, bytes });
        }
        Ok(records)
    }
}

/// A column's field text for the value in its slot; `scratch` holds what had to be made.
#[inline]
fn field<'a>(
    slot: Slot,
    form: Form,
    data: &'a [u8],
    scratch: &'a mut Vec<u8>,
) -> Result<Option<&'a [u8]>, Unfit> {
    let raw = &data[slot.start..slot.end];
    match (slot.kind, form) {
        (Scalar::Null, _) => Ok(None),
        (_, Form::Json) => Ok(Some(raw)),
        (Scalar::String(false), _) => Ok(Some(&raw[1..raw.len() - 1])),
        (Scalar::String(true), _) => {
            scratch.clear();
            unescape(&raw[1..raw.len() - 1], scratch)?;
            Ok(Some(scratch))
        }
        (Scalar::Array, Form::Array(shape)) => {
            scratch.clear();
            literal(raw, shape, scratch)?;
            Ok(Some(scratch))
        }
        _ => Ok(Some(raw)),
    }
}

/// Finds columns by key. Records mostly have the same keys in the same order, so the key that
/// stood at the same position last time is tried before the map.
#[derive(Debug, Default)]
struct Names {
    seen: Vec<(Vec<u8>, Found)>,
    scratch: Vec<u8>,
}

impl Names {
    /// The column that the key (as it stands between its quotes) names.
    #[inline]
    fn column(&mut self, nth: usize, key: &[u8], escaped: bool, options: &JsonOptions) -> Found {
        if let Some((last, column)) = self.seen.get(nth)
            && last == key
        {
            return *column;
        }
        let column = self.look_up(key, escaped, options);
        // A record with thousands of keys shall not make this grow for good.
        if nth < 4096 {
            self.seen.resize_with(self.seen.len().max(nth + 1), Default::default);
            self.seen[nth].0.clear();
            self.seen[nth].0.extend_from_slice(key);
            self.seen[nth].1 = column;
        }
        column
    }

    fn look_up(&mut self, key: &[u8], escaped: bool, options: &JsonOptions) -> Found {
        let name = if escaped {
            self.scratch.clear();
            if unescape(key, &mut self.scratch).is_err() {
                return Found::Unknown;
            }
            &self.scratch
        } else {
            key
        };
        std::str::from_utf8(name).map_or(Found::Unknown, |name| options.find(name))
    }
}

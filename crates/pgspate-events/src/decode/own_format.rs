//! Decodes and writes pgspate's own format of events: one JSON object a line.
//!
//! A line is `{"op":"update","table":"shop.orders","key":{"id":7},"row":{"qty":3}}`, for example.
//! A column that `row` lacks, or that `unchanged` names, is absent. Numbers keep their spelling.
//! Events with the same columns share one list of names: equal pointers mean equal columns.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::{Decode, TargetTypes};
use crate::event::{ChangeEvent, ChangeKind, EventOrigin, EventRow, EventValue, SourceTable};
use crate::log::{EventLog, LoggedEvent, LoggedValue};
use crate::{Error, ErrorKind, Result};
use pgspate_input::json::{ArrayLiteralStyle, JsonKind, JsonSyntaxError, UnsupportedEscape};
use pgspate_input::json::{
    append_array_literal, append_hstore, key_end, skip_space, string_end, unescape, value_end,
};

/// The most tables, and the most lists of columns, that are kept. When one more is added, all
/// earlier ones are forgotten.
const INTERNED_MAX: usize = 4096;

/// Decodes pgspate's own format.
#[derive(Debug, Default)]
pub struct OwnFormat {
    tables: HashMap<Box<str>, Arc<SourceTable>>,
    last_table: Option<(Box<str>, Arc<SourceTable>)>,
    columns: InternedColumns,
    stack: Vec<u8>,
}

type SharedNames = Arc<[Box<str>]>;

/// The lists of columns that were seen, each stored once.
#[derive(Debug, Default)]
struct InternedColumns {
    /// The lists, by their names as the record spells them, each followed by a zero byte.
    all: HashMap<Box<[u8]>, SharedNames>,
    /// The list of the last `row`, of the last `old` and of the last `key`.
    last: [Option<(Box<[u8]>, SharedNames)>; 3],
    joined: Vec<u8>,
}

/// Indexes of an event's rows in `InternedColumns::last`.
const ROW: usize = 0;
const OLD: usize = 1;
const KEY: usize = 2;

/// The parts of an event that have been read.
#[derive(Default)]
struct EventParts<'a> {
    op: Option<ChangeKind>,
    table: Option<&'a [u8]>,
    schema: Option<String>,
    rows: [Option<EventRow>; 3],
    transaction: Option<Box<str>>,
    end: Option<bool>,
    /// Columns of the new row whose value the source did not send.
    unchanged: Vec<Box<str>>,
    /// The values that are JSON arrays or objects: the row, and the column's index.
    nested: Vec<(usize, usize)>,
}

impl Decode for OwnFormat {
    fn decode(
        &mut self,
        record: &[u8],
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        if std::str::from_utf8(record).is_err() {
            return Err(refuse("the record is not valid UTF-8"));
        }
        let start = skip_space(record, 0);
        if start == record.len() {
            return Ok(());
        }
        let mut parts = self.parts(record, start).map_err(|JsonSyntaxError { at, what }| {
            refuse(&format!("invalid event at byte {}: {what}", at + 1))
        })?;
        let table = self.table(&mut parts)?;
        as_literals(&mut parts, &table, types);
        let op = parts.op.ok_or_else(|| refuse("the event has no \"op\""))?;
        let unchanged = std::mem::take(&mut parts.unchanged);
        let [new, old, key] = parts.rows;
        let new = if unchanged.is_empty() { new } else { Some(with_absent(new, unchanged)?) };
        let names = key.as_ref().map(|key| Arc::clone(&key.columns));
        let ends = parts.end.unwrap_or(parts.transaction.is_none());
        events.push(ChangeEvent {
            table,
            op,
            new,
            old: old.or(key),
            key: names,
            origin: EventOrigin { transaction: parts.transaction, ..EventOrigin::default() },
            ends_transaction: ends,
        });
        Ok(())
    }
}

impl OwnFormat {
    fn parts<'a>(
        &mut self,
        data: &'a [u8],
        start: usize,
    ) -> Result<EventParts<'a>, JsonSyntaxError> {
        let mut parts = EventParts::default();
        if data[start] != b'{' {
            return Err(JsonSyntaxError { at: start, what: "expected an object" });
        }
        let mut at = skip_space(data, start + 1);
        if data.get(at) == Some(&b'}') {
            return Ok(parts);
        }
        loop {
            let (key_close, begin, _) = key_end(data, at)?;
            at = self.part(data, &data[at + 1..key_close - 1], begin, &mut parts)?;
            at = skip_space(data, at);
            match data.get(at) {
                Some(b',') => at = skip_space(data, at + 1),
                Some(b'}') => break,
                Some(_) => {
                    return Err(JsonSyntaxError {
                        at,
                        what: "expected a comma or the object's end",
                    });
                }
                None => {
                    return Err(JsonSyntaxError { at, what: "the input ends inside an object" });
                }
            }
        }
        match skip_space(data, at + 1) {
            end if end == data.len() => Ok(parts),
            at => Err(JsonSyntaxError { at, what: "expected the line's end" }),
        }
    }

    /// Reads the value of one key of the event. Returns the index after it.
    fn part<'a>(
        &mut self,
        data: &'a [u8],
        key: &[u8],
        begin: usize,
        parts: &mut EventParts<'a>,
    ) -> Result<usize, JsonSyntaxError> {
        let row = match key {
            b"row" => Some(ROW),
            b"old" => Some(OLD),
            b"key" => Some(KEY),
            _ => None,
        };
        if let Some(nth) = row
            && data.get(begin) == Some(&b'{')
        {
            let (row, end) = self.row(data, begin, nth, &mut parts.nested)?;
            parts.rows[nth] = Some(row);
            return Ok(end);
        }
        if key == b"unchanged" {
            let (names, end) = names(data, begin)?;
            parts.unchanged = names;
            return Ok(end);
        }
        let (kind, end) = value_end(data, begin, &mut self.stack)?;
        let text = &data[begin..end];
        let inside = || &data[begin + 1..end - 1];
        let fault = |what| Err(JsonSyntaxError { at: begin, what });
        match (key, kind) {
            (b"op", JsonKind::String(_)) => {
                parts.op = Some(match inside() {
                    b"insert" => ChangeKind::Insert,
                    b"update" => ChangeKind::Update,
                    b"delete" => ChangeKind::Delete,
                    b"truncate" => ChangeKind::Truncate,
                    b"snapshot" => ChangeKind::Snapshot,
                    _ => return fault("expected insert, update, delete, truncate or snapshot"),
                });
            }
            (b"table", JsonKind::String(_)) => parts.table = Some(inside()),
            (b"schema", JsonKind::String(_)) => {
                parts.schema = Some(unescaped(inside(), begin)?.into())
            }
            (b"tx", JsonKind::String(_)) => parts.transaction = Some(unescaped(inside(), begin)?),
            (b"tx", JsonKind::Number) => {
                parts.transaction = Some(String::from_utf8_lossy(text).into());
            }
            (b"end", JsonKind::Bool) => parts.end = Some(text == b"true"),
            (b"row" | b"old" | b"key" | b"schema" | b"tx" | b"end", JsonKind::Null) => {}
            (b"row" | b"old" | b"key", _) => return fault("expected an object of columns"),
            (b"op" | b"table" | b"schema", _) => return fault("expected a string"),
            (b"tx", _) => return fault("expected a string or a number"),
            (b"end", _) => return fault("expected true or false"),
            _ => {
                return fault(
                    "expected one of \"op\", \"table\", \"schema\", \"row\", \"key\", \"old\", \
                     \"unchanged\", \"tx\" and \"end\" before it",
                );
            }
        }
        Ok(end)
    }

    fn row(
        &mut self,
        data: &[u8],
        start: usize,
        nth: usize,
        nested: &mut Vec<(usize, usize)>,
    ) -> Result<(EventRow, usize), JsonSyntaxError> {
        let expected = self.columns.last[nth].as_ref().map_or(4, |(_, names)| names.len());
        let mut values = Vec::with_capacity(expected);
        self.columns.joined.clear();
        let mut at = skip_space(data, start + 1);
        let mut is_last = data.get(at) == Some(&b'}');
        while !is_last {
            let (key_close, begin, _) = key_end(data, at)?;
            self.columns.joined.extend_from_slice(&data[at + 1..key_close - 1]);
            self.columns.joined.push(0);
            let end = match data.get(begin) {
                Some(b'"') => {
                    let (close, escaped) = string_end(data, begin)?;
                    let inside = &data[begin + 1..close - 1];
                    values.push(EventValue::Text(match escaped {
                        false => text(inside),
                        true => unescaped(inside, begin)?,
                    }));
                    close
                }
                _ => {
                    let (kind, close) = value_end(data, begin, &mut self.stack)?;
                    match kind {
                        JsonKind::Null => values.push(EventValue::Null),
                        kind => {
                            if matches!(kind, JsonKind::Array | JsonKind::Object) {
                                nested.push((nth, values.len()));
                            }
                            values.push(EventValue::Text(text(&data[begin..close])));
                        }
                    }
                    close
                }
            };
            at = skip_space(data, end);
            match data.get(at) {
                Some(b',') => at = skip_space(data, at + 1),
                Some(b'}') => is_last = true,
                Some(_) => {
                    return Err(JsonSyntaxError {
                        at,
                        what: "expected a comma or the object's end",
                    });
                }
                None => {
                    return Err(JsonSyntaxError { at, what: "the input ends inside an object" });
                }
            }
        }
        let columns = self.columns.names(nth, start)?;
        Ok((EventRow { columns, values }, at + 1))
    }

    fn table(&mut self, parts: &mut EventParts<'_>) -> Result<Arc<SourceTable>> {
        let raw = parts.table.ok_or_else(|| refuse("the event has no \"table\""))?;
        if let (None, Some((last, name))) = (&parts.schema, &self.last_table)
            && last.as_bytes() == raw
        {
            return Ok(Arc::clone(name));
        }
        let written = unescaped(raw, 0).map_err(|fault| refuse(fault.what))?;
        let parsed = match (&parts.schema, written.split_once('.')) {
            (Some(schema), _) => {
                SourceTable { schema: Some(schema.clone()), table: written.to_string() }
            }
            (None, Some((schema, table))) => {
                SourceTable { schema: Some(schema.to_owned()), table: table.to_owned() }
            }
            (None, None) => SourceTable { schema: None, table: written.to_string() },
        };
        let id = format!("{}\0{}", parsed.schema.as_deref().unwrap_or("\0"), parsed.table);
        if self.tables.len() >= INTERNED_MAX && !self.tables.contains_key(id.as_str()) {
            self.tables.clear();
        }
        let name =
            Arc::clone(self.tables.entry(id.into_boxed_str()).or_insert_with(|| Arc::new(parsed)));
        if parts.schema.is_none() {
            self.last_table = Some((String::from_utf8_lossy(raw).into(), Arc::clone(&name)));
        }
        Ok(name)
    }
}

impl InternedColumns {
    /// Returns the list for the names in `joined`.
    fn names(&mut self, nth: usize, start: usize) -> Result<SharedNames, JsonSyntaxError> {
        if let Some((joined, names)) = &self.last[nth]
            && **joined == *self.joined
        {
            return Ok(Arc::clone(names));
        }
        let names = match self.all.get(&*self.joined) {
            Some(names) => Arc::clone(names),
            None => {
                let mut names: Vec<Box<str>> = Vec::new();
                for raw in self.joined.split_inclusive(|byte| *byte == 0) {
                    names.push(unescaped(&raw[..raw.len() - 1], start)?);
                }
                let mut sorted: Vec<&str> = names.iter().map(|name| &**name).collect();
                sorted.sort_unstable();
                if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                    return Err(JsonSyntaxError { at: start, what: "a column occurs twice" });
                }
                let names: SharedNames = names.into();
                if self.all.len() >= INTERNED_MAX {
                    self.all.clear();
                }
                self.all.insert(self.joined.as_slice().into(), Arc::clone(&names));
                names
            }
        };
        self.last[nth] = Some((self.joined.as_slice().into(), Arc::clone(&names)));
        Ok(names)
    }
}

/// Reads a list of names. Returns the names and the index after the list.
fn names(data: &[u8], begin: usize) -> Result<(Vec<Box<str>>, usize), JsonSyntaxError> {
    const WHAT: &str = "expected a list of columns";
    if data.get(begin) != Some(&b'[') {
        return Err(JsonSyntaxError { at: begin, what: WHAT });
    }
    let mut names = Vec::new();
    let mut at = skip_space(data, begin + 1);
    while data.get(at) == Some(&b'"') {
        let (close, _) = string_end(data, at)?;
        names.push(unescaped(&data[at + 1..close - 1], at)?);
        at = skip_space(data, close);
        match data.get(at) {
            Some(b',') => at = skip_space(data, at + 1),
            _ => break,
        }
    }
    match data.get(at) {
        Some(b']') => Ok((names, at + 1)),
        _ => Err(JsonSyntaxError { at, what: WHAT }),
    }
}

/// Adds the `unchanged` columns to the new row, as absent values.
fn with_absent(row: Option<EventRow>, unchanged: Vec<Box<str>>) -> Result<EventRow> {
    let (columns, mut values) =
        row.map_or((Vec::new(), Vec::new()), |row| (row.columns.to_vec(), row.values));
    let mut all = columns;
    for name in unchanged {
        if all.contains(&name) {
            return Err(refuse("a column is in \"row\" and in \"unchanged\""));
        }
        all.push(name);
        values.push(EventValue::Absent);
    }
    Ok(EventRow { columns: all.into(), values })
}

fn refuse(what: &str) -> Error {
    Error::new(ErrorKind::Format, what)
}

/// Returns bytes as text. The record has been checked to be UTF-8.
fn text(bytes: &[u8]) -> Box<str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => String::from_utf8_lossy(bytes).into(),
    }
}

fn unescaped(inside: &[u8], at: usize) -> Result<Box<str>, JsonSyntaxError> {
    let mut out = Vec::with_capacity(inside.len());
    unescape(inside, &mut out).map_err(|unfit| JsonSyntaxError {
        at,
        what: match unfit {
            UnsupportedEscape::Surrogate => "half of a surrogate pair in a string",
            UnsupportedEscape::Nul => "the null character, which text cannot hold",
        },
    })?;
    Ok(text(&out))
}

/// Turns JSON arrays into array literals, for columns of array types, and objects into hstore.
/// Other columns keep the JSON.
fn as_literals(parts: &mut EventParts<'_>, table: &SourceTable, types: &dyn TargetTypes) {
    for (nth, at) in std::mem::take(&mut parts.nested) {
        let Some(row) = &mut parts.rows[nth] else { continue };
        let EventValue::Text(json) = &row.values[at] else { continue };
        let Some(typname) = types.type_of(table, &row.columns[at]) else { continue };
        let mut out = Vec::new();
        let written = match (typname.strip_prefix('_'), json.starts_with('[')) {
            (Some(element), true) => {
                let shape = ArrayLiteralStyle {
                    delimiter: if element == "box" { b';' } else { b',' },
                    json: matches!(element, "json" | "jsonb"),
                };
                append_array_literal(json.as_bytes(), shape, &mut out)
            }
            (None, false) if &*typname == "hstore" => append_hstore(json.as_bytes(), &mut out),
            _ => continue,
        };
        if written.is_ok() {
            row.values[at] = EventValue::Text(text(&out));
        }
    }
}

/// Writes a logged event as a line of this format, for people to correct. `columns` are the columns
/// of the log's rows.
pub fn write_logged_event<'a>(
    log: &EventLog,
    change: &LoggedEvent,
    (schema, table): (&str, &str),
    columns: impl Iterator<Item = &'a str> + Clone,
) -> String {
    let mut line = begin(change.op, Some(schema), table);
    for (name, row) in [("row", change.new), ("old", change.old)] {
        let Some(row) = row else { continue };
        let cells = columns.clone().enumerate().map(|(at, column)| {
            let value = match log.cell(change.width, row, at) {
                LoggedValue::Absent => None,
                LoggedValue::Null => Some(None),
                LoggedValue::Text(text) => Some(Some(String::from_utf8_lossy(text))),
            };
            (column, value)
        });
        // Columns that an update omits are named as unchanged: other dead letters of the same file
        // may give them.
        let is_partial = name == "row" && change.op == ChangeKind::Update && !change.is_complete;
        add_row(&mut line, name, cells, is_partial);
    }
    line.push('}');
    line
}

/// Writes an event as a line of this format, under the given name of its table.
pub fn write_event(event: &ChangeEvent, schema: Option<&str>, table: &str) -> String {
    let mut line = begin(event.op, schema, table);
    for (name, row) in [("row", &event.new), ("old", &event.old)] {
        let Some(row) = row else { continue };
        let cells = row.columns.iter().zip(&row.values).map(|(column, value)| {
            let value = match value {
                EventValue::Absent => None,
                EventValue::Null => Some(None),
                EventValue::Text(text) => Some(Some(Cow::Borrowed(&**text))),
            };
            (&**column, value)
        });
        add_row(&mut line, name, cells, name == "row");
    }
    line.push('}');
    line
}

fn begin(op: ChangeKind, schema: Option<&str>, table: &str) -> String {
    let schema = schema.map_or("null".to_owned(), json_string);
    format!("{{\"op\":\"{}\",\"schema\":{schema},\"table\":{}", word(op), json_string(table))
}

/// Appends a row to a line. Each cell is a column and its value: absent, NULL or text.
fn add_row<'a>(
    line: &mut String,
    name: &str,
    cells: impl Iterator<Item = (&'a str, Option<Option<Cow<'a, str>>>)>,
    says_unchanged: bool,
) {
    let (mut told, mut unchanged) = (Vec::new(), Vec::new());
    for (column, value) in cells {
        match value {
            None => unchanged.push(json_string(column)),
            Some(None) => told.push(format!("{}:null", json_string(column))),
            Some(Some(text)) => {
                told.push(format!("{}:{}", json_string(column), json_string(&text)))
            }
        }
    }
    // Writing to a String cannot fail.
    let _ = write!(line, ",\"{name}\":{{{}}}", told.join(","));
    if says_unchanged && !unchanged.is_empty() {
        let _ = write!(line, ",\"unchanged\":[{}]", unchanged.join(","));
    }
}

fn word(op: ChangeKind) -> &'static str {
    match op {
        ChangeKind::Insert => "insert",
        ChangeKind::Update => "update",
        ChangeKind::Delete => "delete",
        ChangeKind::Truncate => "truncate",
        ChangeKind::Snapshot => "snapshot",
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests;

//! What AWS DMS writes: rows as csv and Parquet for S3, messages as JSON for Kafka and Kinesis.
//!
//! Files of csv name neither their table nor, without a header, their columns: the caller does. A
//! row whose key was changed is a `U` with the new key alone, so the old row stays: nothing in the
//! files tells of it.

mod batch;
mod csv;
mod message;

use std::borrow::Cow;

use self::csv::{Field, fields};
use super::cast::{ByteSpelling, TypeFamily, JsonSpelling};
use super::json::{Json, Str, malformed};
use super::shape::SourceTables;
use super::{Decode, TargetTypes};
use crate::{ErrorKind, ChangeEvent, SourceTable, ChangeKind, Result, EventValue};

const SPELLING: JsonSpelling = JsonSpelling { bytes: ByteSpelling::Hex, json_strings: false };

/// What files of DMS do not say of themselves.
#[derive(Debug, Clone)]
pub struct DmsOptions {
    /// The table of rows of csv and Parquet.
    pub table: Option<SourceTable>,
    /// The columns of rows of csv, without `ChangeKind`; left out, a header names them.
    pub columns: Option<Vec<String>>,
    /// The first line is a header even if `ChangeKind` is not the first of its names.
    pub has_header: bool,
    /// The unquoted field that means NULL: `CsvNullValue`, which DMS has as `NULL`.
    pub null: String,
    /// The unquoted field of a column that is not told: `CsvNoSupValue`.
    pub absent: Option<String>,
    /// Between two fields: `CsvDelimiter`.
    pub delimiter: u8,
}

impl Default for DmsOptions {
    fn default() -> DmsOptions {
        DmsOptions {
            table: None,
            columns: None,
            has_header: false,
            null: "NULL".to_owned(),
            absent: None,
            delimiter: b',',
        }
    }
}

/// Decodes lines of csv and messages of JSON; [`Dms::batch`] what Parquet files hold.
///
/// A line is a row of a file for S3, with `I`, `U` or `D` before it or without, a header that names
/// its columns, or of the layout of S3 as a source: `INSERT,table,schema,...`.
#[derive(Debug, Default)]
pub struct Dms {
    options: DmsOptions,
    header: Option<Vec<String>>,
    tables: SourceTables<TypeFamily>,
    seen: message::Seen,
    batches: batch::Names,
}

impl Dms {
    /// A decoder at the beginning of a stream.
    pub fn new(options: DmsOptions) -> Dms {
        Dms { options, ..Dms::default() }
    }

    /// The event of a line of csv; a header is none.
    fn line(&mut self, line: &str, types: &dyn TargetTypes) -> Result<Option<ChangeEvent>> {
        let fields = fields(line, self.options.delimiter)?;
        let first = fields[0].text.as_ref();
        let of_source = match first {
            "INSERT" => Some(ChangeKind::Insert),
            "UPDATE" => Some(ChangeKind::Update),
            "DELETE" => Some(ChangeKind::Delete),
            _ => None,
        };
        if let (Some(op), true) = (of_source, fields.len() > 3) {
            let name = SourceTable {
                schema: Some(fields[2].text.clone().into_owned()),
                table: fields[1].text.clone().into_owned(),
            };
            return self.event(&name, op, &fields[3..], types).map(Some);
        }
        if self.options.columns.is_none()
            && (first == "Op" || (self.options.has_header && self.header.is_none()))
        {
            self.read_header(&fields)?;
            return Ok(None);
        }
        let count = self.columns()?.len();
        let (op, values) = match first {
            _ if fields.len() == count => (ChangeKind::Snapshot, &fields[..]),
            "I" => (ChangeKind::Insert, &fields[1..]),
            "U" => (ChangeKind::Update, &fields[1..]),
            "D" => (ChangeKind::Delete, &fields[1..]),
            _ => {
                let found = fields.len();
                let what = format!("a row has {found} fields, but there are {count} columns");
                return Err(malformed(what));
            }
        };
        // The header of another file.
        if self.header.as_ref().is_some_and(|header| {
            header.len() == values.len() && header.iter().zip(values).all(|(a, b)| *a == b.text)
        }) {
            return Ok(None);
        }
        let Some(name) = self.options.table.clone() else { return Err(unnamed()) };
        self.event(&name, op, values, types).map(Some)
    }

    fn columns(&self) -> Result<&[String]> {
        let columns = self.options.columns.as_ref().or(self.header.as_ref());
        columns.map(Vec::as_slice).ok_or_else(|| {
            malformed("the columns of the rows are not named").hint(
                "Name them with `--dms-columns`, or let DMS write headers \
                     (`AddColumnName=true` of the endpoint).",
            )
        })
    }

    fn read_header(&mut self, fields: &[Field<'_>]) -> Result<()> {
        let names = match fields {
            [first, rest @ ..] if first.text == "Op" => rest,
            all => all,
        };
        let is_name = |field: &Field<'_>| {
            !field.text.is_empty() && !field.text.starts_with(|char: char| char.is_ascii_digit())
        };
        if names.is_empty() || !names.iter().all(is_name) {
            return Err(malformed("expected a header with the names of the columns").hint(
                "Name the columns with `--dms-columns`, or let DMS write headers \
                 (`AddColumnName=true` of the endpoint).",
            ));
        }
        self.header = Some(names.iter().map(|name| name.text.clone().into_owned()).collect());
        Ok(())
    }

    fn event(
        &mut self,
        name: &SourceTable,
        op: ChangeKind,
        values: &[Field<'_>],
        types: &dyn TargetTypes,
    ) -> Result<ChangeEvent> {
        let columns = self.columns()?;
        if columns.len() != values.len() {
            let (found, count) = (values.len(), columns.len());
            let what = format!("a row has {found} values, but there are {count} columns");
            return Err(malformed(what));
        }
        let columns: Vec<Cow<'_, str>> = columns.iter().map(|name| name.clone().into()).collect();
        let Dms { options, tables, .. } = self;
        let table = tables.of(name.schema.as_deref(), &name.table, 0);
        let cells: Vec<_> = columns.iter().zip(values).map(|(c, v)| (Str::of(c), v)).collect();
        let learn = |_: &str, ty: Option<&str>| ty.map_or(TypeFamily::Other, TypeFamily::of);
        let row = table.row(&cells, types, &learn, &mut |field: &Field<'_>, form| {
            let is = |word: &str| !field.is_quoted && field.text == word;
            if is(&options.null) {
                Ok(EventValue::Null)
            } else if options.absent.as_deref().is_some_and(is) {
                Ok(EventValue::Absent)
            } else {
                SPELLING.cast(Json::String(Str::of(&field.text)), form)
            }
        })?;
        let (new, old) = if op == ChangeKind::Delete { (None, Some(row)) } else { (Some(row), None) };
        Ok(ChangeEvent::of(table.name.clone(), op, old, new))
    }
}

impl Decode for Dms {
    fn decode(&mut self, record: &[u8], types: &dyn TargetTypes, events: &mut Vec<ChangeEvent>) -> Result<()> {
        if record.trim_ascii().is_empty() {
            return Ok(());
        }
        let event = if record.trim_ascii_start().starts_with(b"{") {
            self.message(record, types)?
        } else {
            let record = record.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(record);
            let Ok(line) = simdutf8::basic::from_utf8(record) else {
                return Err(malformed("invalid byte sequence for encoding \"UTF8\""));
            };
            let line = line.strip_suffix('\n').unwrap_or(line);
            self.line(line.strip_suffix('\r').unwrap_or(line), types)?
        };
        events.extend(event);
        Ok(())
    }
}

fn unnamed() -> crate::Error {
    crate::Error::new(ErrorKind::Format, "the rows do not name their table")
        .hint("DMS has it in the names of its folders only; name the table with `--source-table`.")
}

//! Decodes the output of AWS DMS: csv and Parquet for S3, JSON messages for Kafka and Kinesis.
//!
//! A csv file does not name its table, and without a header not its columns: the caller names them.
//! If a key changes, the file has a `U` row with the new key alone. The old row stays in the
//! target, because the file does not mention the old key.

mod batch;
mod csv;
mod message;

use std::borrow::Cow;

use self::csv::{CsvField, fields};
use super::json::{Json, JsonStr, malformed};
use super::json_values::{ByteSpelling, JsonSpelling, TypeFamily};
use super::source_tables::SourceTables;
use super::{Decode, TargetTypes};
use crate::{ChangeEvent, ChangeKind, ErrorKind, EventValue, Result, SourceTable};

const SPELLING: JsonSpelling = JsonSpelling::of_bytes(ByteSpelling::Hex);

/// Facts that the files of DMS do not state.
#[derive(Debug, Clone)]
pub struct DmsOptions {
    /// The table of csv and Parquet rows.
    pub table: Option<SourceTable>,
    /// The columns of csv rows, without `Op`. If `None`, a header names them.
    pub columns: Option<Vec<String>>,
    /// Whether the first line is a header even if its first name is not `Op`.
    pub has_header: bool,
    /// The unquoted field that means NULL: DMS's setting `CsvNullValue`, by default `NULL`.
    pub null: String,
    /// The unquoted field of a column without a value in supplemental logs: `CsvNoSupValue`.
    pub absent: Option<String>,
    /// The character between two fields: `CsvDelimiter`.
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

/// Decodes csv lines and JSON messages; [`Dms::batch`] decodes batches of Parquet files.
///
/// A csv line is a header or a row. A row may begin with `I`, `U` or `D`, or have the layout of S3
/// as a source: `INSERT,table,schema,...`.
#[derive(Debug, Default)]
pub struct Dms {
    options: DmsOptions,
    header: Option<Vec<String>>,
    /// Whether a row of csv has begun with its operation.
    has_operations: bool,
    tables: SourceTables<TypeFamily>,
    seen: message::SeenColumns,
    batches: batch::LastBatchColumns,
}

impl Dms {
    /// Returns a decoder at the beginning of a stream.
    pub fn new(options: DmsOptions) -> Dms {
        Dms { options, ..Dms::default() }
    }

    /// Returns the event of a csv line. Returns `None` for a header.
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
        let is_operation = matches!(first, "I" | "U" | "D");
        if is_operation && fields.len() == count && self.has_operations {
            let what = format!("a row has {} values, but there are {count} columns", count - 1);
            return Err(malformed(what));
        }
        self.has_operations |= is_operation && fields.len() == count + 1;
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
        // The header of the next file.
        if self.header.as_ref().is_some_and(|header| {
            header.len() == values.len() && header.iter().zip(values).all(|(a, b)| *a == b.text)
        }) {
            return Ok(None);
        }
        let Some(name) = self.options.table.clone() else { return Err(no_table_error()) };
        self.event(&name, op, values, types).map(Some)
    }

    fn columns(&self) -> Result<&[String]> {
        let columns = self.options.columns.as_ref().or(self.header.as_ref());
        columns.map(Vec::as_slice).ok_or_else(|| {
            malformed("the columns of the rows are unknown").hint(
                "Name them with `--dms-columns`, or let DMS write headers \
                     (`AddColumnName=true` of the endpoint).",
            )
        })
    }

    fn read_header(&mut self, fields: &[CsvField<'_>]) -> Result<()> {
        let names = match fields {
            [first, rest @ ..] if first.text == "Op" => rest,
            all => all,
        };
        let is_name = |field: &CsvField<'_>| {
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
        values: &[CsvField<'_>],
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
        let cells: Vec<_> = columns.iter().zip(values).map(|(c, v)| (JsonStr::of(c), v)).collect();
        let learn = |_: &str, ty: Option<&str>| ty.map_or(TypeFamily::Other, TypeFamily::of);
        let row = table.row(&cells, types, &learn, &mut |field: &CsvField<'_>, family| {
            let is = |word: &str| !field.is_quoted && field.text == word;
            if is(&options.null) {
                Ok(EventValue::Null)
            } else if options.absent.as_deref().is_some_and(is) {
                Ok(EventValue::Absent)
            } else {
                SPELLING.cast(Json::String(JsonStr::of(&field.text)), family)
            }
        })?;
        let (new, old) =
            if op == ChangeKind::Delete { (None, Some(row)) } else { (Some(row), None) };
        Ok(ChangeEvent::of(table.name.clone(), op, old, new))
    }
}

impl Decode for Dms {
    fn decode(
        &mut self,
        record: &[u8],
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
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

fn no_table_error() -> crate::Error {
    crate::Error::new(ErrorKind::Format, "the rows do not name their table").hint(
        "DMS writes it only into the names of its folders. Name the table with `--source-table`.",
    )
}

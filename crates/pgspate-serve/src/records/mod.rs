//! The records of a request's body, as the texts of their columns.
//!
//! The formats and encoders are those of `pgspate load`, so that a value is stored as load stores
//! it. An encoder writes each record as a line of COPY text. The writer encodes the texts of the
//! line for their columns, in binary where that is exact.

mod json;
mod text_rows;

use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_schema::SchemaRef;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use pgspate::encode::arrow::ColumnEncoder;
use pgspate::format::arrow::ArrowStreamCutter;
use pgspate::format::batches::{BatchColumn, BatchesEncoder};
use pgspate::format::delimited::{
    CutOptions, DelimitedColumn, DelimitedCutter, DelimitedEncoder, Dialect,
};
use pgspate::format::json::JsonEncoder;
use pgspate::format::keyed::{KeyedColumn, KeyedOptions};
use pgspate::format::{Chunk, ChunkData, Cutter};
use pgspate::writer::InsertShape;
use pgspate::{Error, ErrorKind};

use self::json::JsonRecords;
pub(crate) use self::text_rows::TextRows;
use crate::fault::RequestFault;
use crate::state::BodyRoom;

/// The most records of a request.
const RECORDS_MAX: usize = 100_000;
/// The most records of a request that are written independently of each other.
const EACH_RECORDS_MAX: usize = 10_000;
/// Csv is read as by this version of PostgreSQL, in which a line `\.` is data. The server reads no
/// csv, so that its own version does not matter.
const CSV_VERSION: u32 = 180_000;
/// The name of the body in messages.
const BODY: &str = "body";

/// The format of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    /// A JSON object, or an array of objects.
    Json,
    /// A JSON object in each line.
    JsonLines,
    /// Lines of fields, with a header.
    Csv,
    ArrowStream,
}

/// The media types, with their formats.
const MEDIA_TYPES: [(&str, BodyFormat); 4] = [
    ("application/json", BodyFormat::Json),
    ("application/x-ndjson", BodyFormat::JsonLines),
    ("text/csv", BodyFormat::Csv),
    ("application/vnd.apache.arrow.stream", BodyFormat::ArrowStream),
];

impl BodyFormat {
    /// Reads the headers `Content-Type` and `Content-Encoding`.
    ///
    /// # Errors
    /// Status 415 if there is no decoder for the body, or if a header comes several times.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Result<BodyFormat, RequestFault> {
        for name in ["Content-Type", "Content-Encoding"] {
            if headers.get_all(name).iter().count() > 1 {
                let message = format!("the request has several headers {name}");
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                return Err(RequestFault::new(status, "unsupported_media_type", message));
            }
        }
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let content_type = text("content-type").unwrap_or_default();
        let mut parts = content_type.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let is_utf8 = parts.filter_map(|part| part.split_once('=')).all(|(name, value)| {
            let value = value.trim_matches('"');
            !name.eq_ignore_ascii_case("charset") || value.eq_ignore_ascii_case("utf-8")
        });
        let is_plain =
            text("content-encoding").is_none_or(|it| it.eq_ignore_ascii_case("identity"));
        let found = MEDIA_TYPES.iter().find(|(name, _)| *name == media);
        match found {
            Some((_, format)) if is_utf8 && is_plain => Ok(*format),
            _ => {
                let message = match (content_type, is_plain) {
                    (_, false) => {
                        "the body has a content encoding, which is not supported".to_owned()
                    }
                    ("", _) => "the request has no content type".to_owned(),
                    (shown, _) => format!("content type \"{shown}\" is not supported"),
                };
                let names: Vec<&str> = MEDIA_TYPES.iter().map(|(name, _)| *name).collect();
                let hint = format!("The content types are {}, in UTF-8.", names.join(", "));
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                Err(RequestFault::new(status, "unsupported_media_type", message).hint(hint))
            }
        }
    }
}

/// A body, with its room. The room is kept as long as a decoder has the body.
pub(crate) struct HeldBody {
    pub(crate) bytes: Bytes,
    pub(crate) room: Arc<BodyRoom>,
}

/// The records of a body, with their columns.
pub(crate) struct FoundRecords {
    body: Bytes,
    room: Arc<BodyRoom>,
    content: FoundContent,
    /// The columns that records have. A record refers to them by number.
    pub(crate) kinds: Vec<Vec<String>>,
}

enum FoundContent {
    Json(JsonRecords),
    Csv,
    Arrow(SchemaRef),
}

/// Records with the same columns that follow each other in the body.
#[derive(Debug, Clone)]
pub(crate) struct RecordRun {
    /// The number of the records' columns in [`FoundRecords::kinds`].
    pub(crate) kind: usize,
    /// The first record. The last one is before the next run. `None` stands for all records.
    pub(crate) items: Option<std::ops::Range<usize>>,
}

impl FoundRecords {
    /// Finds the records of a body. With `each`, an invalid line of JSON concerns itself alone.
    ///
    /// # Errors
    /// If the body is not in the format, or has too many records.
    pub(crate) fn find(
        format: BodyFormat,
        body: HeldBody,
        each: bool,
    ) -> Result<FoundRecords, RequestFault> {
        let HeldBody { bytes: body, room } = body;
        let invalid = |error: Error| RequestFault::of_error(&error, false);
        let (content, kinds) = match format {
            BodyFormat::Json | BodyFormat::JsonLines => {
                let mut items = JsonRecords::find(&body, format == BodyFormat::JsonLines, each)?;
                let kinds = std::mem::take(&mut items.kinds);
                (FoundContent::Json(items), kinds)
            }
            BodyFormat::Csv => {
                let header = csv_header(&body).map_err(invalid)?;
                (FoundContent::Csv, vec![header])
            }
            BodyFormat::ArrowStream => {
                let cutter = ArrowStreamCutter::open(BODY, Box::new(Cursor::new(body.clone())), 0);
                let schema = cutter.map_err(invalid)?.schema();
                let names = schema.fields().iter().map(|field| field.name().clone()).collect();
                (FoundContent::Arrow(schema), vec![names])
            }
        };
        Ok(FoundRecords { body, room, content, kinds })
    }

    pub(crate) fn room(&self) -> &Arc<BodyRoom> {
        &self.room
    }

    /// Returns why a record of JSON is invalid, if it is.
    pub(crate) fn fault_of(&self, nth: usize) -> Option<&RequestFault> {
        let FoundContent::Json(items) = &self.content else { return None };
        items.items.get(nth)?.as_ref().err().map(|fault| &**fault)
    }

    /// Returns the runs of records with the same columns. `columns` maps the number of a record's
    /// columns to the number of the columns that are written.
    pub(crate) fn runs(&self, columns: &[usize]) -> Vec<RecordRun> {
        let FoundContent::Json(items) = &self.content else {
            return vec![RecordRun { kind: 0, items: None }];
        };
        let mut runs: Vec<RecordRun> = Vec::new();
        let mut last = None;
        for (nth, item) in items.items.iter().enumerate() {
            // An invalid record belongs to the run around it.
            let kind = item.as_ref().map_or(last, |item| Some(item.kind as usize));
            let written = kind.map(|kind| columns[kind]);
            match runs.last_mut() {
                Some(run) if last.is_none() || written == last.map(|kind| columns[kind]) => {
                    run.kind = kind.unwrap_or(run.kind);
                    run.items = run.items.take().map(|items| items.start..nth + 1);
                }
                _ => runs.push(RecordRun { kind: kind.unwrap_or(0), items: Some(nth..nth + 1) }),
            }
            last = kind;
        }
        runs
    }

    /// Encodes the records of a run as text. `columns` are the names that the shape writes.
    ///
    /// # Errors
    /// If the records cannot be read, or their text has more than `bytes_max` bytes.
    pub(crate) fn encode(
        &self,
        run: &RecordRun,
        shape: &InsertShape,
        bytes_max: usize,
    ) -> Result<TextRows, RequestFault> {
        let columns = &shape.request.columns;
        let mut rows = TextRows::new(bytes_max, Arc::clone(&self.room));
        match &self.content {
            FoundContent::Json(items) => {
                let range = run.items.clone().unwrap_or(0..items.items.len());
                rows.columns = (0..columns.len()).map(Some).collect();
                rows.fields = columns.clone();
                self.encode_json(&items.items[range], shape, &mut rows)?;
            }
            FoundContent::Csv => {
                // All fields are encoded, also those that are not written: a record with another
                // number of fields is then recognised.
                rows.columns = columns.iter().map(|name| self.place_of(name)).collect();
                rows.fields = self.kinds[0].clone();
                self.encode_csv(&mut rows)?;
            }
            FoundContent::Arrow(schema) => {
                let places: Vec<usize> =
                    columns.iter().filter_map(|name| self.place_of(name)).collect();
                let mut next = 0..;
                let field = |name: &String| self.place_of(name).and_then(|_| next.next());
                rows.columns = columns.iter().map(field).collect();
                rows.fields = places.iter().map(|place| self.kinds[0][*place].clone()).collect();
                self.encode_arrow(schema, &places, shape, &mut rows)?;
            }
        }
        Ok(rows)
    }

    fn encode_json(
        &self,
        items: &[json::JsonResult],
        shape: &InsertShape,
        rows: &mut TextRows,
    ) -> Result<(), RequestFault> {
        let columns =
            shape.request.columns.iter().zip(&shape.column_types).map(|(name, ty)| KeyedColumn {
                name: name.clone(),
                ty: ty.clone(),
                field: None,
                date_format: None,
                guessed_type: None,
            });
        let mut options = KeyedOptions::new(columns.collect());
        options.ignore_unknown = true;
        let mut data = Vec::new();
        for item in items.iter().flatten() {
            data.extend_from_slice(&self.body[item.start as usize..item.end as usize]);
            data.push(b'\n');
        }
        rows.encode(&mut JsonEncoder::new(options), json_chunk(data))?;
        rows.insert_faults(items.iter().map(|item| item.as_ref().err()));
        Ok(())
    }

    /// Refuses a column that the header or the schema names twice: a value would be dropped. Keys
    /// of JSON are checked with the records.
    ///
    /// # Errors
    /// Status 400.
    pub(crate) fn check_names(&self, columns: &[String]) -> Result<(), RequestFault> {
        let count = |column: &String| self.kinds[0].iter().filter(|name| *name == column).count();
        let is_json = matches!(self.content, FoundContent::Json(_));
        match columns.iter().find(|column| !is_json && count(column) > 1) {
            Some(column) => {
                let message = format!("column \"{column}\" is named twice");
                Err(RequestFault::bad("invalid_request", message))
            }
            None => Ok(()),
        }
    }

    /// Returns the place of a column in the header or the schema.
    fn place_of(&self, column: &str) -> Option<usize> {
        self.kinds[0].iter().position(|name| name == column)
    }

    fn encode_csv(&self, rows: &mut TextRows) -> Result<(), RequestFault> {
        let fields = self.kinds[0].len();
        let options = csv_options(Arc::new(move |_| Ok((fields, (0..fields).collect()))));
        let reader = Box::new(Cursor::new(self.body.clone()));
        let invalid = |error: Error| RequestFault::of_error(&error, false);
        let mut cutter = DelimitedCutter::open(BODY, reader, options).map_err(invalid)?;
        let column = |name: &String| DelimitedColumn {
            name: name.clone(),
            encoder: None,
            guessed_type: None,
            date_format: None,
            force_null: false,
            force_not_null: false,
        };
        let columns = self.kinds[0].iter().map(column).collect();
        let mut encoder = DelimitedEncoder::new(Dialect::csv(), columns, CSV_VERSION);
        while let Some(chunk) = cutter.next().map_err(invalid)? {
            rows.encode(&mut encoder, chunk)?;
        }
        Ok(())
    }

    fn encode_arrow(
        &self,
        schema: &SchemaRef,
        places: &[usize],
        shape: &InsertShape,
        rows: &mut TextRows,
    ) -> Result<(), RequestFault> {
        let invalid = |error: Error| RequestFault::of_error(&error, false);
        let mut columns = Vec::with_capacity(places.len());
        for &index in places {
            let field = schema.field(index);
            let types = shape.request.columns.iter().zip(&shape.column_types);
            let Some((_, ty)) = types.into_iter().find(|(name, _)| *name == field.name()) else {
                continue;
            };
            let encoder = ColumnEncoder::new(field, ty, &shape.session).map_err(|reason| {
                let message = format!("could not convert column \"{}\"", field.name());
                RequestFault::bad("not_possible", message).details(reason)
            })?;
            columns.push(BatchColumn { name: field.name().clone(), index, encoder });
        }
        let mut encoder = BatchesEncoder::new(columns).map_err(invalid)?;
        let reader = Box::new(Cursor::new(self.body.clone()));
        let cutter = ArrowStreamCutter::open_whole(BODY, reader, rows.bytes_max as u64);
        let mut cutter = cutter.map_err(invalid)?;
        while let Some(chunk) = cutter.next().map_err(invalid)? {
            rows.encode(&mut encoder, chunk)?;
        }
        Ok(())
    }

    /// Refuses a body with more records than a request may have.
    ///
    /// # Errors
    /// Status 413.
    pub(crate) fn check_count(count: usize, each: bool) -> Result<(), RequestFault> {
        let most = if each { EACH_RECORDS_MAX } else { RECORDS_MAX };
        if count <= most {
            return Ok(());
        }
        let message = format!("a request has at most {most} records");
        let fault = RequestFault::new(StatusCode::PAYLOAD_TOO_LARGE, "too_many_records", message);
        Err(fault.hint("Send the records in several requests, or load them with `pgspate load`."))
    }
}

fn json_chunk(data: Vec<u8>) -> Chunk {
    let data = ChunkData::Bytes(data);
    Chunk { seq: 0, input: 0, byte: 0, line: 1, first_row: 0, digest: None, data }
}

fn csv_options(map: pgspate::format::delimited::MapFields) -> CutOptions {
    let (dialect, columns) = (Dialect::csv(), Arc::default());
    CutOptions { dialect, header: true, chunk_bytes: 4 << 20, map, columns }
}

/// Returns the names in the header of a csv.
fn csv_header(body: &Bytes) -> pgspate::Result<Vec<String>> {
    let found: Arc<Mutex<Option<Vec<Vec<u8>>>>> = Arc::default();
    let keep = Arc::clone(&found);
    let options = csv_options(Arc::new(move |names| {
        let names = names.unwrap_or_default();
        *keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(names.to_vec());
        Ok((names.len(), (0..names.len()).collect()))
    }));
    DelimitedCutter::open(BODY, Box::new(Cursor::new(body.clone())), options)?;
    let names = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    let missing = || Error::new(ErrorKind::Format, "the body has no header");
    let names = names.ok_or_else(missing)?.into_iter().map(|name| {
        String::from_utf8(name)
            .map_err(|_| Error::new(ErrorKind::Format, "the header is not valid UTF-8"))
    });
    names.collect()
}

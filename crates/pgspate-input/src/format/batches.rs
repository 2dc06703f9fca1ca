//! Encodes record batches of Parquet, Arrow and programs.
//!
//! Rows keep their order. A row is either entirely binary or entirely text. If one value has no
//! exact encoding, the whole row goes to the server as text.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;

use super::constants::{ConstantColumns, RowTail};
use super::memory::BatchIter;
use super::{Chunk, ChunkData, ChunkEncoder, EncodeMode, InputRecord, no_such_row_error};
use crate::encode::arrow::{AppendText, BoundColumn, ColumnEncoder, json};
use crate::encode::{Encoded, text};
use crate::{Error, ErrorKind, InputPlace, Result};

/// A column of the table, and the column of the batches that has its values.
#[derive(Debug, Clone)]
pub struct BatchColumn {
    /// The column's name in the input, for messages.
    pub name: String,
    /// The index of the column in the batches, from 0.
    pub index: usize,
    /// The encoder of the column's values.
    pub encoder: ColumnEncoder,
}

/// Returns the columns for batches whose schema is not that of the first input. `None` if it is.
pub type PlanColumns = Arc<dyn Fn(&Schema) -> Result<Option<Vec<BatchColumn>>> + Send + Sync>;

/// Encodes record batches into the bytes of COPY.
pub struct BatchesEncoder {
    columns: Vec<BatchColumn>,
    /// Plans the columns of batches with other schemas. Without it, such batches are refused.
    other_schemas: Option<PlanColumns>,
    /// The columns that follow `columns`.
    tail: RowTail,
    open: Option<OpenChunk>,
    /// Whether reading the chunk failed.
    failed: bool,
}

/// The chunk that is being encoded, with its current batch.
struct OpenChunk {
    batches: BatchIter,
    mode: EncodeMode,
    batch: Option<RecordBatch>,
    /// The columns of `batch`, if its schema is not that of the first input.
    columns: Option<Vec<BatchColumn>>,
    /// The first row of `batch` that is not yet encoded.
    row: usize,
    /// The row number within the chunk of the first row of `batch`.
    base: u64,
}

impl BatchesEncoder {
    /// Returns an encoder for the columns, which are in the order of COPY's column list.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] if there are more columns than a row of binary COPY can have.
    pub fn new(columns: Vec<BatchColumn>) -> Result<BatchesEncoder> {
        if i16::try_from(columns.len()).is_err() {
            let message = format!("{} columns are more than a table can have", columns.len());
            return Err(Error::new(ErrorKind::Plan, message));
        }
        let tail = RowTail::default();
        Ok(BatchesEncoder { columns, other_schemas: None, tail, open: None, failed: false })
    }

    /// Accepts batches of other schemas, whose columns `plan` returns.
    #[must_use]
    pub fn with_other_schemas(self, plan: Option<PlanColumns>) -> BatchesEncoder {
        BatchesEncoder { other_schemas: plan, ..self }
    }

    /// Adds columns that follow the columns of the batches.
    #[must_use]
    pub fn with_constants(self, constants: ConstantColumns) -> BatchesEncoder {
        BatchesEncoder { tail: RowTail::new(constants), ..self }
    }
}

impl ChunkEncoder for BatchesEncoder {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: EncodeMode) -> Result<()> {
        self.open = None;
        self.failed = true;
        let ChunkData::Rows(source) = &chunk.data else {
            return Err(Error::new(ErrorKind::Bug, "a chunk of bytes reached the batch encoder"));
        };
        let batches = source.open()?;
        let mode = if self.tail.set_input(chunk.input) { mode } else { EncodeMode::Text };
        self.open = Some(OpenChunk { batches, mode, batch: None, columns: None, row: 0, base: 0 });
        self.failed = false;
        Ok(())
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        if self.failed {
            let message = "rows were requested from a chunk that could not be read";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        let filled = match &mut self.open {
            Some(open) => {
                let columns = (self.columns.as_slice(), self.other_schemas.as_ref());
                open.fill(columns, &self.tail, out, piece)
            }
            None => Ok(false),
        };
        self.failed = filled.is_err();
        if !matches!(filled, Ok(true)) {
            self.open = None;
        }
        filled
    }

    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace {
        InputPlace { row: Some(chunk.first_row + row + 1), ..InputPlace::default() }
    }

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<InputRecord>> {
        let ChunkData::Rows(source) = &chunk.data else { return Err(no_such_row_error(0)) };
        let mut batches = source.open()?;
        let mut rows = rows.iter().copied().peekable();
        let mut base = 0;
        let mut records = Vec::new();
        while let Some(wanted) = rows.peek().copied() {
            let batch = batches.next().transpose()?.ok_or_else(|| no_such_row_error(wanted))?;
            let end = base + batch.num_rows() as u64;
            if wanted < end {
                let others = columns_of_schema(self.other_schemas.as_ref(), &batch)?;
                let columns = others.as_deref().unwrap_or(&self.columns);
                let objects =
                    BatchRows { columns, tail: &self.tail, batch: &batch, base }.json_objects()?;
                while let Some(row) = rows.next_if(|row| *row < end) {
                    let bytes = objects.line((row - base) as usize);
                    records.push(InputRecord { place: self.place(chunk, row), bytes });
                }
            }
            base = end;
        }
        Ok(records)
    }
}

impl OpenChunk {
    fn fill(
        &mut self,
        (columns, other_schemas): (&[BatchColumn], Option<&PlanColumns>),
        tail: &RowTail,
        out: &mut Encoded,
        piece: usize,
    ) -> Result<bool> {
        let end = out.bytes() + piece.max(1);
        while out.bytes() < end {
            let batch = match &self.batch {
                Some(batch) if self.row < batch.num_rows() => batch,
                done => {
                    self.base += done.as_ref().map_or(0, |batch| batch.num_rows() as u64);
                    self.row = 0;
                    self.batch = None;
                    match self.batches.next().transpose()? {
                        Some(batch) => {
                            self.columns = columns_of_schema(other_schemas, &batch)?;
                            self.batch.insert(batch)
                        }
                        None => return Ok(false),
                    }
                }
            };
            let columns = self.columns.as_deref().unwrap_or(columns);
            let rows = BatchRows { columns, tail, batch, base: self.base };
            self.row = match self.mode {
                EncodeMode::Binary => rows.encode_binary(self.row, out, end)?,
                EncodeMode::Text => rows.encode_text(self.row, out, end)?,
            };
        }
        Ok(true)
    }
}

/// Returns the columns of a batch, if its schema is not that of the first input.
fn columns_of_schema(
    other_schemas: Option<&PlanColumns>,
    batch: &RecordBatch,
) -> Result<Option<Vec<BatchColumn>>> {
    other_schemas.map_or(Ok(None), |plan| plan(batch.schema_ref()))
}

/// The rows of one batch, with the columns to encode.
struct BatchRows<'a> {
    columns: &'a [BatchColumn],
    /// The columns that follow `columns`.
    tail: &'a RowTail,
    batch: &'a RecordBatch,
    /// The row number within the chunk of the first row of `batch`.
    base: u64,
}

impl<'a> BatchRows<'a> {
    /// Encodes rows from `row` on until `out` has `end` bytes. Returns the next row.
    fn encode_binary(&self, mut row: usize, out: &mut Encoded, end: usize) -> Result<usize> {
        let columns = self.bind()?;
        let count = self.tail.column_count(columns.len());
        let mut texts = None;
        while row < self.batch.num_rows() && out.bytes() < end {
            let start = out.binary.len();
            out.binary.extend_from_slice(&count);
            if columns.iter().all(|column| column.append(row, &mut out.binary)) {
                out.binary.extend_from_slice(&self.tail.binary);
                out.binary_rows += 1;
            } else {
                out.binary.truncate(start);
                let texts = match &mut texts {
                    Some(texts) => texts,
                    none => none.insert(self.text_columns()?),
                };
                self.append_text_row(row, texts, out);
            }
            row += 1;
        }
        Ok(row)
    }

    /// Encodes rows from `row` on as text until `out` has `end` bytes. Returns the next row.
    fn encode_text(&self, mut row: usize, out: &mut Encoded, end: usize) -> Result<usize> {
        let mut texts = self.text_columns()?;
        while row < self.batch.num_rows() && out.bytes() < end {
            self.append_text_row(row, &mut texts, out);
            row += 1;
        }
        Ok(row)
    }

    /// Appends one row as text.
    fn append_text_row(&self, row: usize, texts: &mut TextColumns<'_>, out: &mut Encoded) {
        for (ordinal, write) in texts.columns.iter().enumerate() {
            if ordinal > 0 {
                out.text.push(b'\t');
            }
            texts.scratch.clear();
            let has_value = write(row, &mut texts.scratch);
            text::append(has_value.then_some(texts.scratch.as_slice()), &mut out.text);
        }
        out.text.push(b'\n');
        self.tail.complete_text(&mut out.text);
        out.text_rows.push(self.base + row as u64);
    }

    /// Binds each column's encoder to the column's array.
    fn bind(&self) -> Result<Vec<BoundColumn<'a>>> {
        self.for_each_column(|encoder, array| encoder.bind(array))
    }

    fn text_columns(&self) -> Result<TextColumns<'a>> {
        Ok(TextColumns {
            columns: self.for_each_column(|encoder, array| encoder.text_writer(array))?,
            scratch: Vec::new(),
        })
    }

    /// Returns the rows as JSON objects. A loaded column has the text that the server would get,
    /// and a name under which it can be loaded again. Other columns are plain JSON.
    fn json_objects(&self) -> Result<JsonObjects<'a>> {
        let schema = self.batch.schema_ref();
        let mut members = Vec::with_capacity(self.batch.num_columns());
        for (index, (field, array)) in schema.fields().iter().zip(self.batch.columns()).enumerate()
        {
            let column = self.columns.iter().find(|column| column.index == index);
            let name = column.map_or(field.name(), |column| &column.name);
            let mut key = Vec::new();
            json::write_string(name.as_bytes(), &mut key);
            key.push(b':');
            let write = match column {
                Some(column) => column
                    .encoder
                    .text_writer(array.as_ref())
                    .ok_or_else(|| self.type_error(column, Some(array.data_type())))?,
                // A union has no JSON form, and cannot be loaded.
                None => match json::json_writer(array.as_ref(), field) {
                    Some(write) => write,
                    None => continue,
                },
            };
            members.push(JsonMember { key, write, encoder: column.map(|column| &column.encoder) });
        }
        Ok(JsonObjects { members })
    }

    /// Calls `bind` with each column's encoder and array.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if an array is missing or has another type than the plan expects.
    fn for_each_column<T>(
        &self,
        bind: impl Fn(&'a ColumnEncoder, &'a dyn arrow_array::Array) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut bound = Vec::with_capacity(self.columns.len());
        for column in self.columns {
            let array = self.batch.columns().get(column.index);
            match array.and_then(|array| bind(&column.encoder, array.as_ref())) {
                Some(value) => bound.push(value),
                None => return Err(self.type_error(column, array.map(|array| array.data_type()))),
            }
        }
        Ok(bound)
    }

    fn type_error(&self, column: &BatchColumn, found: Option<&arrow_schema::DataType>) -> Error {
        let found = found.map_or("missing".to_owned(), |found| format!("of type {found}"));
        let place = InputPlace { column: Some(column.name.clone()), ..InputPlace::default() };
        let expected = column.encoder.data_type();
        Error::new(ErrorKind::Format, format!("column is {found}, expected type {expected}"))
            .at(place)
            .hint("Give batches of one schema.")
    }
}

/// The columns of a batch as text.
struct TextColumns<'a> {
    columns: Vec<AppendText<'a>>,
    scratch: Vec<u8>,
}

/// The columns of a batch as members of JSON objects.
struct JsonObjects<'a> {
    members: Vec<JsonMember<'a>>,
}

/// A column as a member of a JSON object.
struct JsonMember<'a> {
    /// The key with its quotes and colon.
    key: Vec<u8>,
    write: AppendText<'a>,
    /// The encoder of a loaded column, which converts the text to JSON. If `None`, `write` writes
    /// JSON.
    encoder: Option<&'a ColumnEncoder>,
}

impl JsonObjects<'_> {
    /// Returns a row as a JSON object and a newline.
    fn line(&self, row: usize) -> Vec<u8> {
        let mut line = vec![b'{'];
        let mut text = Vec::new();
        for JsonMember { key, write, encoder } in &self.members {
            if line.len() > 1 {
                line.push(b',');
            }
            line.extend_from_slice(key);
            text.clear();
            match (write(row, &mut text), encoder) {
                (false, _) => line.extend_from_slice(b"null"),
                (true, Some(encoder)) => encoder.append_json(&text, &mut line),
                (true, None) => line.extend_from_slice(&text),
            }
        }
        line.extend_from_slice(b"}\n");
        line
    }
}

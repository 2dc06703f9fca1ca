//! The one encoder of record batches, whatever file they come from.
//!
//! Rows come out in their order. A row is either wholly binary or wholly text: the first value
//! that is left to the server takes its row along.

use std::sync::Arc;

use arrow_array::RecordBatch;

use super::{Chunk, ChunkData, ChunkEncoder, Mode, Record, no_such_row};
use crate::encode::arrow::{Column, ColumnEncoder, Write, is_uuid, json};
use crate::encode::{Encoded, text};
use crate::{Error, ErrorKind, InputPlace, Result};

/// One column of the table and where its values come from.
#[derive(Debug, Clone)]
pub struct BatchColumn {
    /// Its name in the input, for messages.
    pub name: String,
    /// Which column of the batches it is, counted from 0.
    pub index: usize,
    /// What its values become.
    pub encoder: ColumnEncoder,
}

/// Turns record batches into COPY bytes.
pub struct BatchesEncoder {
    columns: Vec<BatchColumn>,
    open: Option<Open>,
    /// The chunk could not be read to its end.
    failed: bool,
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// The chunk being encoded, up to and including its current batch.
struct Open {
    batches: Batches,
    mode: Mode,
    batch: Option<RecordBatch>,
    /// The first row of `batch` not yet encoded.
    row: usize,
    /// The ordinal within the chunk of row 0 of `batch`.
    base: u64,
}

impl BatchesEncoder {
    /// An encoder for the table's columns in the order in which COPY names them.
    ///
    /// # Errors
    /// ErrorKind `Plan` when there are more columns than a row of binary COPY can have.
    pub fn new(columns: Vec<BatchColumn>) -> Result<BatchesEncoder> {
        if i16::try_from(columns.len()).is_err() {
            let message = format!("{} columns are more than a table can have", columns.len());
            return Err(Error::new(ErrorKind::Plan, message));
        }
        Ok(BatchesEncoder { columns, open: None, failed: false })
    }
}

impl ChunkEncoder for BatchesEncoder {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: Mode) -> Result<()> {
        self.open = None;
        self.failed = true;
        let ChunkData::Rows(source) = &chunk.data else {
            return Err(Error::new(ErrorKind::Bug, "a chunk of bytes reached the batch encoder"));
        };
        let batches = source.open()?;
        self.open = Some(Open { batches, mode, batch: None, row: 0, base: 0 });
        self.failed = false;
        Ok(())
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        if self.failed {
            let message = "more rows were asked for of a chunk that could not be read";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        let filled = match &mut self.open {
            Some(open) => open.fill(&self.columns, out, piece),
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

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<Record>> {
        let ChunkData::Rows(source) = &chunk.data else { return Err(no_such_row(0)) };
        let mut batches = source.open()?;
        let mut rows = rows.iter().copied().peekable();
        let mut base = 0;
        let mut records = Vec::new();
        while let Some(wanted) = rows.peek().copied() {
            let batch = batches.next().transpose()?.ok_or_else(|| no_such_row(wanted))?;
            let end = base + batch.num_rows() as u64;
            if wanted < end {
                let objects = Rows { columns: &self.columns, batch: &batch, base }.objects()?;
                while let Some(row) = rows.next_if(|row| *row < end) {
                    let bytes = objects.line((row - base) as usize);
                    records.push(Record { place: self.place(chunk, row), bytes });
                }
            }
            base = end;
        }
        Ok(records)
    }
}

impl Open {
    fn fill(&mut self, columns: &[BatchColumn], out: &mut Encoded, piece: usize) -> Result<bool> {
        while out.binary.len() + out.text.len() < piece.max(1) {
            let batch = match &self.batch {
                Some(batch) if self.row < batch.num_rows() => batch,
                done => {
                    self.base += done.as_ref().map_or(0, |batch| batch.num_rows() as u64);
                    self.row = 0;
                    self.batch = None;
                    match self.batches.next().transpose()? {
                        Some(batch) => self.batch.insert(batch),
                        None => return Ok(false),
                    }
                }
            };
            let rows = Rows { columns, batch, base: self.base };
            self.row = match self.mode {
                Mode::Binary => rows.binary(self.row, out, piece)?,
                Mode::Text => rows.text(self.row, out, piece)?,
            };
        }
        Ok(true)
    }
}

/// The rows of one batch.
struct Rows<'a> {
    columns: &'a [BatchColumn],
    batch: &'a RecordBatch,
    base: u64,
}

impl<'a> Rows<'a> {
    /// Encodes rows from `row` on until `out` holds `piece` bytes; gives the row after them.
    fn binary(&self, mut row: usize, out: &mut Encoded, piece: usize) -> Result<usize> {
        let columns = self.bind()?;
        let count = (columns.len() as i16).to_be_bytes();
        let mut texts = None;
        while row < self.batch.num_rows() && out.binary.len() + out.text.len() < piece.max(1) {
            let start = out.binary.len();
            out.binary.extend_from_slice(&count);
            if columns.iter().all(|column| column.put(row, &mut out.binary)) {
                out.binary_rows += 1;
            } else {
                out.binary.truncate(start);
                let texts = match &mut texts {
                    Some(texts) => texts,
                    none => none.insert(self.texts()?),
                };
                self.put_text(row, texts, out);
            }
            row += 1;
        }
        Ok(row)
    }

    /// Writes rows from `row` on as text until `out` holds `piece` bytes.
    fn text(&self, mut row: usize, out: &mut Encoded, piece: usize) -> Result<usize> {
        let mut texts = self.texts()?;
        while row < self.batch.num_rows() && out.binary.len() + out.text.len() < piece.max(1) {
            self.put_text(row, &mut texts, out);
            row += 1;
        }
        Ok(row)
    }

    fn put_text(&self, row: usize, texts: &mut Texts<'_>, out: &mut Encoded) {
        for (ordinal, write) in texts.columns.iter().enumerate() {
            if ordinal > 0 {
                out.text.push(b'\t');
            }
            texts.scratch.clear();
            let some = write(row, &mut texts.scratch);
            text::append(some.then_some(texts.scratch.as_slice()), &mut out.text);
        }
        out.text.push(b'\n');
        out.text_rows.push(self.base + row as u64);
    }

    fn bind(&self) -> Result<Vec<Column<'a>>> {
        self.each(|encoder, array| encoder.bind(array))
    }

    fn texts(&self) -> Result<Texts<'a>> {
        Ok(Texts { columns: self.each(|encoder, array| encoder.text(array))?, scratch: Vec::new() })
    }

    /// The rows as JSON objects: each loaded column as the text that the server would get, under
    /// the name by which it is loaded again; the others as they are.
    fn objects(&self) -> Result<Objects<'a>> {
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
                    .text(array.as_ref())
                    .ok_or_else(|| self.changed(column, Some(array.data_type())))?,
                // A union has no JSON, and no type to be loaded as.
                None => match json::json(array.as_ref(), is_uuid(field)) {
                    Some(write) => write,
                    None => continue,
                },
            };
            members.push(Member { key, write, encoder: column.map(|column| &column.encoder) });
        }
        Ok(Objects { members })
    }

    fn each<T>(
        &self,
        bind: impl Fn(&'a ColumnEncoder, &'a dyn arrow_array::Array) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut bound = Vec::with_capacity(self.columns.len());
        for column in self.columns {
            let array = self.batch.columns().get(column.index);
            match array.and_then(|array| bind(&column.encoder, array.as_ref())) {
                Some(value) => bound.push(value),
                None => return Err(self.changed(column, array.map(|array| array.data_type()))),
            }
        }
        Ok(bound)
    }

    fn changed(&self, column: &BatchColumn, found: Option<&arrow_schema::DataType>) -> Error {
        let found = found.map_or("missing".to_owned(), |found| format!("of type {found}"));
        let place = InputPlace { column: Some(column.name.clone()), ..InputPlace::default() };
        let expected = column.encoder.data_type();
        Error::new(ErrorKind::Format, format!("column is {found}, expected type {expected}"))
            .at(place)
            .hint("Load files with different schemas one by one.")
    }
}

/// The columns of a batch as text.
struct Texts<'a> {
    columns: Vec<Write<'a>>,
    scratch: Vec<u8>,
}

/// The columns of a batch as members of JSON objects.
struct Objects<'a> {
    members: Vec<Member<'a>>,
}

struct Member<'a> {
    /// The name with its quotes and colon.
    key: Vec<u8>,
    write: Write<'a>,
    /// Without one, what is written is JSON.
    encoder: Option<&'a ColumnEncoder>,
}

impl Objects<'_> {
    /// A row as an object on a line of its own.
    fn line(&self, row: usize) -> Vec<u8> {
        let mut line = vec![b'{'];
        let mut text = Vec::new();
        for Member { key, write, encoder } in &self.members {
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

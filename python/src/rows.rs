//! Python's rows as record batches.
//!
//! Each value becomes itself or the text that its column's input function takes, which mean the
//! same, and the server judges what is not sure. What a row is, is said by the first ones.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use pgspate::encode::arrow::tagged_field;
use pgspate::format::memory::{BatchIter, Batches};
use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, InputPlace, Result};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyTuple};

use crate::column::Column;
use crate::desk::Desk;
use crate::infer::infer;
use crate::shape::{ROWS_AHEAD, Shape, shape};
use crate::spell::Speller;
use crate::work::Make;

/// Rows of a batch, at most.
const BATCH_ROWS: usize = 8192;
/// Bytes of a batch's text, about.
const BATCH_BYTES: usize = 4 << 20;

/// Rows that are read together, at most. Objects lie all over the memory: to look at the classes of
/// all of them before the first value is read has the processor fetch several at a time.
const BLOCK_ROWS: usize = 64;
/// Bytes after which a block has a row only.
const BLOCK_BYTES: usize = 256 << 10;

/// Why there are no more rows.
pub(crate) enum Fault {
    /// Python says so: an exception of whatever makes the rows.
    Python(PyErr),
    /// A row or a value cannot be loaded.
    Value(Error),
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Fault {
        Fault::Python(error)
    }
}

/// Rows of Python's.
pub(crate) struct Rows {
    data: Py<PyAny>,
    rows: Py<PyIterator>,
    ahead: VecDeque<Py<PyAny>>,
    shape: Shape,
    names: Vec<String>,
    schema: SchemaRef,
    speller: Speller,
    columns: Vec<Column>,
    /// Rows of the next block.
    block: usize,
    /// Rows taken so far.
    row: u64,
}

/// What the engine knows of them.
#[derive(Debug)]
pub(crate) struct RowBatches {
    name: String,
    schema: SchemaRef,
    has_names: bool,
    types: Vec<(String, String)>,
    bytes: Option<u64>,
    is_stream: bool,
    desk: Desk<RecordBatch>,
}

impl Batches for RowBatches {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn has_names(&self) -> bool {
        self.has_names
    }

    fn types(&self) -> Vec<(String, String)> {
        self.types.clone()
    }

    fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    fn is_stream(&self) -> bool {
        self.is_stream
    }

    fn open(&self, types: &[Option<PgType>]) -> Result<BatchIter> {
        Ok(self.desk.ask(types))
    }
}

impl Rows {
    /// Looks at the first rows of an iterable. `columns`: the keys to take, or what the values of
    /// sequences are called.
    pub(crate) fn look<'py>(
        data: &Bound<'py, PyAny>,
        name: &str,
        columns: Option<Vec<String>>,
        ignore_unknown: bool,
        desk: &Desk<RecordBatch>,
    ) -> PyResult<(Rows, RowBatches)> {
        let py = data.py();
        let mut rows = data.try_iter()?;
        let is_stream = !(data.is_instance_of::<PyList>() || data.is_instance_of::<PyTuple>());
        let mut ahead = VecDeque::new();
        for row in rows.by_ref().take(ROWS_AHEAD) {
            ahead.push_back(row?);
        }
        let given = columns.is_some();
        let (mut shape, names) = shape(py, &ahead, columns, ignore_unknown)?;
        let has_names = given || shape.has_names(ahead.front())?;
        let fields: Vec<_> = names.iter().map(|name| tagged_field(name)).collect();
        let schema = Arc::new(Schema::new(fields));
        let mut speller = Speller::new(py)?;
        let mut sample = vec![Vec::new(); names.len()];
        for row in &ahead {
            // What is wrong with a row is said when it is loaded.
            let Ok(values) = shape.values(row.clone()) else { continue };
            for (values, value) in sample.iter_mut().zip(values.iter()) {
                values.push(value);
            }
        }
        let types = infer(py, &mut speller, &sample)?;
        let types = names.iter().cloned().zip(types).collect();
        let bytes = (!is_stream).then(|| data.len().map(|rows| rows * names.len() * 8));
        let bytes = bytes.transpose()?.map(|bytes| bytes as u64);
        let batches = RowBatches {
            name: name.to_owned(),
            schema: schema.clone(),
            has_names,
            types,
            bytes,
            is_stream,
            desk: desk.clone(),
        };
        let (data, rows) = (data.clone().unbind(), rows.unbind());
        let ahead = ahead.into_iter().map(Bound::unbind).collect();
        let columns = Vec::new();
        let (block, row) = (1, 0);
        let rows = Rows { data, rows, ahead, shape, names, schema, speller, columns, block, row };
        Ok((rows, batches))
    }

    /// The next row, or that there is none.
    fn pull<'py>(&mut self, py: Python<'py>) -> Option<PyResult<Bound<'py, PyAny>>> {
        match self.ahead.pop_front() {
            Some(row) => Some(Ok(row.into_bound(py))),
            None => self.rows.bind(py).clone().next(),
        }
    }

    /// Puts a few rows into the columns; gives how many bytes they are.
    fn put(&mut self, rows: &[Bound<'_, PyTuple>], text: &mut String) -> Result<usize, Fault> {
        let width = self.columns.len();
        let mut values = Vec::with_capacity(rows.len() * width);
        for row in rows {
            for nth in 0..width {
                let value = row.get_borrowed_item(nth)?;
                values.push((value.get_type_ptr() as usize, value));
            }
        }
        let first = self.row;
        self.row += rows.len() as u64;
        let (mut bytes, mut end, mut fault) = (0, rows.len(), None);
        for (nth, column) in self.columns.iter_mut().enumerate() {
            let values = values.iter().skip(nth).step_by(width).take(end);
            for (row, (class, value)) in values.enumerate() {
                match column.put(value, *class, &mut self.speller, text) {
                    Ok(more) => bytes += more,
                    Err(why) => {
                        // The first row is the one to tell of: the others matter up to it.
                        (end, fault) = (row, Some((nth, why)));
                        break;
                    }
                }
            }
        }
        let Some((nth, why)) = fault else { return Ok(bytes) };
        Err(why.at(first + end as u64 + 1, self.names.get(nth)))
    }
}

impl Fault {
    /// With where it is.
    fn at(self, row: u64, column: Option<&String>) -> Fault {
        let Fault::Value(error) = self else { return self };
        let column = column.cloned();
        Fault::Value(error.at(InputPlace { row: Some(row), column, ..InputPlace::default() }))
    }
}

impl Make for Rows {
    type Batch = RecordBatch;

    fn begin(&mut self, py: Python<'_>, types: &[Option<PgType>]) -> PyResult<()> {
        if self.row > 0 {
            self.rows = self.data.bind(py).try_iter()?.unbind();
            self.ahead.clear();
            self.row = 0;
        }
        self.speller = Speller::new(py)?;
        self.columns = types.iter().map(|ty| Column::of(ty.as_ref())).collect();
        Ok(())
    }

    fn next(&mut self, py: Python<'_>) -> Result<Option<RecordBatch>, Fault> {
        let (mut rows, mut bytes) = (0, 0);
        let mut text = String::new();
        let mut held = Vec::with_capacity(BLOCK_ROWS);
        let mut is_done = false;
        while rows < BATCH_ROWS && bytes < BATCH_BYTES && !is_done {
            let mut failed = None;
            while held.len() < self.block && !is_done && failed.is_none() {
                match self.pull(py) {
                    None => is_done = true,
                    Some(row) => {
                        match row.map_err(Fault::from).and_then(|row| self.shape.values(row)) {
                            Ok(values) => held.push(values),
                            Err(fault) => failed = Some(fault),
                        }
                    }
                }
            }
            let more = self.put(&held, &mut text)?;
            if let Some(fault) = failed {
                self.row += 1;
                return Err(fault.at(self.row, None));
            }
            rows += held.len();
            bytes += more;
            self.block = if more > BLOCK_BYTES { 1 } else { BLOCK_ROWS.min(self.block * 2) };
            held.clear();
        }
        if rows == 0 {
            return Ok(None);
        }
        let columns: Vec<ArrayRef> = self.columns.iter_mut().map(Column::finish).collect();
        let batch = RecordBatch::try_new(self.schema.clone(), columns);
        let bug = |error| Error::new(ErrorKind::Bug, "could not put rows together").because(error);
        Ok(Some(batch.map_err(|error| Fault::Value(bug(error)))?))
    }
}

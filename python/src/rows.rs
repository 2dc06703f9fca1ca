//! Turns Python's rows into record batches.
//!
//! Each value becomes an Arrow value, or text for the input function of its column; both mean the
//! same. The first rows decide what a row is (see `shape`).

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use pgspate::encode::arrow::tagged_field;
use pgspate::format::memory::{BatchIter, ProgramBatches};
use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, InputPlace, Result};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyTuple};

use crate::column::ColumnWriter;
use crate::handover::RowHandover;
use crate::infer::infer;
use crate::shape::{ROWS_AHEAD, RowShape, shape};
use crate::spell::Speller;
use crate::work::MakeBatches;

/// The most rows of a batch.
const BATCH_ROWS: usize = 8192;
/// The bytes of text after which a batch ends.
const BATCH_BYTES: usize = 4 << 20;

/// The most rows that are read together. Python's objects are scattered in memory. Reading the
/// classes of a whole block before its values lets the processor fetch several objects at a time.
const BLOCK_ROWS: usize = 64;
/// Bytes after which a block has only one row.
const BLOCK_BYTES: usize = 256 << 10;

/// Why a row could not be made.
pub(crate) enum RowFault {
    /// An exception of the code that makes the rows.
    Python(PyErr),
    /// A row or a value cannot be loaded.
    Value(Error),
}

impl From<PyErr> for RowFault {
    fn from(error: PyErr) -> RowFault {
        RowFault::Python(error)
    }
}

/// Python's rows, and their conversion.
pub(crate) struct PythonRows {
    data: Py<PyAny>,
    rows: Py<PyIterator>,
    ahead: VecDeque<Py<PyAny>>,
    shape: RowShape,
    names: Vec<String>,
    schema: SchemaRef,
    speller: Speller,
    columns: Vec<ColumnWriter>,
    /// Number of rows of the next block.
    block: usize,
    /// Number of rows read so far.
    row: u64,
}

/// Python's rows as the engine reads them.
#[derive(Debug)]
pub(crate) struct RowBatches {
    name: String,
    schema: SchemaRef,
    has_names: bool,
    types: Vec<(String, String)>,
    bytes: Option<u64>,
    is_stream: bool,
    handover: RowHandover<RecordBatch>,
}

impl ProgramBatches for RowBatches {
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
        Ok(self.handover.request(types))
    }
}

impl PythonRows {
    /// Reads the first rows of an iterable. `columns` are the keys of mappings, or names for the
    /// values of sequences.
    pub(crate) fn read_ahead<'py>(
        data: &Bound<'py, PyAny>,
        name: &str,
        columns: Option<Vec<String>>,
        ignore_unknown: bool,
        handover: &RowHandover<RecordBatch>,
    ) -> PyResult<(PythonRows, RowBatches)> {
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
            // A bad row is reported when it is loaded.
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
            handover: handover.clone(),
        };
        let (data, rows) = (data.clone().unbind(), rows.unbind());
        let ahead = ahead.into_iter().map(Bound::unbind).collect();
        let columns = Vec::new();
        let (block, row) = (1, 0);
        let rows =
            PythonRows { data, rows, ahead, shape, names, schema, speller, columns, block, row };
        Ok((rows, batches))
    }

    /// Returns the next row, or None after the last one.
    fn next_row<'py>(&mut self, py: Python<'py>) -> Option<PyResult<Bound<'py, PyAny>>> {
        match self.ahead.pop_front() {
            Some(row) => Some(Ok(row.into_bound(py))),
            None => self.rows.bind(py).clone().next(),
        }
    }

    /// Appends rows to the columns and returns their size in bytes.
    fn append_rows(
        &mut self,
        rows: &[Bound<'_, PyTuple>],
        text: &mut String,
    ) -> Result<usize, RowFault> {
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
                match column.append(value, *class, &mut self.speller, text) {
                    Ok(more) => bytes += more,
                    Err(why) => {
                        // The error names the first bad row, so later rows need no check.
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

impl RowFault {
    /// Adds the place to an error.
    fn at(self, row: u64, column: Option<&String>) -> RowFault {
        let RowFault::Value(error) = self else { return self };
        let column = column.cloned();
        RowFault::Value(error.at(InputPlace { row: Some(row), column, ..InputPlace::default() }))
    }
}

impl MakeBatches for PythonRows {
    type Batch = RecordBatch;

    fn begin(&mut self, py: Python<'_>, types: &[Option<PgType>]) -> PyResult<()> {
        if self.row > 0 {
            self.rows = self.data.bind(py).try_iter()?.unbind();
            self.ahead.clear();
            self.row = 0;
        }
        self.speller = Speller::new(py)?;
        self.columns = types.iter().map(|ty| ColumnWriter::of(ty.as_ref())).collect();
        Ok(())
    }

    fn next(&mut self, py: Python<'_>) -> Result<Option<RecordBatch>, RowFault> {
        let (mut rows, mut bytes) = (0, 0);
        let mut text = String::new();
        let mut held = Vec::with_capacity(BLOCK_ROWS);
        let mut is_done = false;
        while rows < BATCH_ROWS && bytes < BATCH_BYTES && !is_done {
            let mut failed = None;
            while held.len() < self.block && !is_done && failed.is_none() {
                match self.next_row(py) {
                    None => is_done = true,
                    Some(row) => {
                        match row.map_err(RowFault::from).and_then(|row| self.shape.values(row)) {
                            Ok(values) => held.push(values),
                            Err(fault) => failed = Some(fault),
                        }
                    }
                }
            }
            let more = self.append_rows(&held, &mut text)?;
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
        let columns: Vec<ArrayRef> = self.columns.iter_mut().map(ColumnWriter::finish).collect();
        let batch = RecordBatch::try_new(self.schema.clone(), columns);
        let bug =
            |error| Error::new(ErrorKind::Bug, "could not build a record batch").because(error);
        Ok(Some(batch.map_err(|error| RowFault::Value(bug(error)))?))
    }
}

//! Converts Python's rows into record batches.
//!
//! Each value becomes an Arrow value, or text for the input function of its column's type. Both are
//! stored as the same value. The first rows decide how values are read from a row (see `shape`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use pgspate::encode::arrow::tagged_field;
use pgspate::format::memory::{BatchIter, BatchTarget, ProgramBatches};
use pgspate::{Error, ErrorKind, InputPlace, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyTuple};

use crate::batch_queue::{Batch, BatchQueue};
use crate::call::{CallEnd, MakeBatches, PROGRESS_INTERVAL, show_reading};
use crate::column::ColumnWriter;
use crate::errors::to_exception;
use crate::infer::infer_column_types;
use crate::shape::{NamedColumns, ROWS_AHEAD, RowShape, copy_row, detect_shape};
use crate::value_text::ValueTextWriter;

/// The most rows of a batch.
const BATCH_ROWS: usize = 8192;
/// The size of the values, in bytes, at which a batch ends.
const BATCH_BYTES: usize = 4 << 20;

/// The most rows of a block, which are read together. Python's objects are scattered in memory. If
/// the classes of a block's values are read first, the processor fetches several objects at a time.
const BLOCK_ROWS: usize = 64;
/// After a block with more bytes than this, the next block has only one row.
const BLOCK_BYTES: usize = 256 << 10;

/// Reason why a row could not be converted.
pub(crate) enum RowFault {
    /// An exception of the caller's code that makes the rows.
    Python(PyErr),
    /// A row or a value that cannot be loaded.
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
    /// The first rows, which were read to find out the shape.
    ahead: VecDeque<Py<PyAny>>,
    shape: RowShape,
    /// The names of a row's values.
    names: Vec<String>,
    schema: SchemaRef,
    text_writer: ValueTextWriter,
    columns: Vec<ColumnWriter>,
    /// For each column, the address of the last class whose values do not change.
    fixed_classes: Vec<usize>,
    /// Number of rows of the next block.
    block_rows: usize,
    /// The most rows of a block.
    block_rows_max: usize,
    /// Whether the rows can be read only once.
    is_stream: bool,
    /// Number of rows read so far.
    rows_read: u64,
    /// What ends the call, also between two rows of a slow iterable.
    end: CallEnd,
    /// Whether a batch ends early so that the calling thread can show the progress.
    shows_progress: bool,
}

/// The engine's view of Python's rows. The rows come through the queue.
#[derive(Debug)]
pub(crate) struct RowBatches {
    name: String,
    schema: SchemaRef,
    has_names: bool,
    types: Vec<(String, String)>,
    bytes: Option<u64>,
    began: Instant,
    is_stream: bool,
    queue: BatchQueue<RecordBatch>,
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

    fn began(&self) -> Option<Instant> {
        Some(self.began)
    }

    fn is_stream(&self) -> bool {
        self.is_stream
    }

    fn open(&self, targets: &[Option<BatchTarget>]) -> Result<BatchIter> {
        Ok(self.queue.request(targets))
    }
}

impl PythonRows {
    /// Reads the first rows of an iterable. `is_stream` means that it can be iterated only once.
    /// Meanwhile, calls the Python function `progress`.
    pub(crate) fn read_ahead<'py>(
        data: &Bound<'py, PyAny>,
        name: &str,
        is_stream: bool,
        columns: Option<NamedColumns>,
        queue: &BatchQueue<RecordBatch>,
        end: &CallEnd,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(PythonRows, RowBatches)> {
        let py = data.py();
        let began = Instant::now();
        let mut shown = began;
        let mut rows = data.try_iter()?;
        let mut ahead = VecDeque::new();
        for row in rows.by_ref().take(ROWS_AHEAD) {
            end.check().map_err(|error| to_exception(py, &error))?;
            if let Some(progress) = progress.filter(|_| shown.elapsed() >= PROGRESS_INTERVAL) {
                shown = Instant::now();
                show_reading(progress)?;
            }
            ahead.push_back(if is_stream { copy_row(row?)? } else { row? });
        }
        let are_columns_given = columns.is_some();
        let (mut shape, names) = detect_shape(py, &ahead, columns)?;
        let has_names = are_columns_given || shape.has_names(ahead.front())?;
        let fields: Vec<_> = names.iter().map(|name| tagged_field(name)).collect();
        let schema = Arc::new(Schema::new(fields));
        let mut text_writer = ValueTextWriter::new(py)?;
        let mut sample = vec![Vec::new(); names.len()];
        for row in &ahead {
            // A bad row is reported when it is loaded.
            let Ok(values) = shape.values(row.clone()) else { continue };
            for (values, value) in sample.iter_mut().zip(values.iter()) {
                values.push(value);
            }
        }
        let types = infer_column_types(py, &mut text_writer, &sample)?;
        let types = names.iter().cloned().zip(types).collect();
        let bytes = (!is_stream).then(|| data.len().map(|rows| rows * names.len() * 8));
        let bytes = bytes.transpose()?.map(|bytes| bytes as u64);
        let batches = RowBatches {
            name: name.to_owned(),
            schema: schema.clone(),
            has_names,
            types,
            bytes,
            began,
            is_stream,
            queue: queue.clone(),
        };
        let (data, rows) = (data.clone().unbind(), rows.unbind());
        let ahead = ahead.into_iter().map(Bound::unbind).collect();
        let (columns, fixed_classes) = (Vec::new(), Vec::new());
        let (block_rows, rows_read) = (1, 0);
        let rows = PythonRows {
            data,
            rows,
            ahead,
            shape,
            names,
            schema,
            text_writer,
            columns,
            fixed_classes,
            block_rows,
            block_rows_max: BLOCK_ROWS,
            is_stream,
            rows_read,
            end: end.clone(),
            // A list may be read again after a lost connection, and must be cut in the same way.
            shows_progress: is_stream && progress.is_some(),
        };
        Ok((rows, batches))
    }

    /// Returns the next row, or None after the last one.
    fn next_row<'py>(&mut self, py: Python<'py>) -> Option<PyResult<Bound<'py, PyAny>>> {
        match self.ahead.pop_front() {
            Some(row) => Some(Ok(row.into_bound(py))),
            None => self.rows.bind(py).clone().next(),
        }
    }

    /// Returns whether a value of a row may change, such as a list.
    fn may_change(&mut self, row: &Bound<'_, PyTuple>) -> PyResult<bool> {
        if self.block_rows_max == 1 {
            return Ok(true);
        }
        for (value, fixed) in row.iter_borrowed().zip(&mut self.fixed_classes) {
            let class = value.get_type_ptr() as usize;
            if class == *fixed || value.is_none() || value.is_exact_instance_of::<PyBytes>() {
                continue;
            }
            if self.text_writer.classes.class_of(&value)?.may_change() {
                return Ok(true);
            }
            *fixed = class;
        }
        Ok(false)
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
        let rows_before = self.rows_read;
        self.rows_read += rows.len() as u64;
        let (mut bytes, mut end, mut fault) = (0, rows.len(), None);
        for (nth, column) in self.columns.iter_mut().enumerate() {
            let values = values.iter().skip(nth).step_by(width).take(end);
            for (row, (class, value)) in values.enumerate() {
                match column.append(value, *class, &mut self.text_writer, text) {
                    Ok(more) => bytes += more,
                    Err(why) => {
                        // The error names the first bad row, so the next columns are read only up
                        // to this row.
                        (end, fault) = (row, Some((nth, why)));
                        break;
                    }
                }
            }
        }
        let Some((nth, why)) = fault else { return Ok(bytes) };
        Err(why.at(rows_before + end as u64 + 1, self.names.get(nth)))
    }
}

impl RowFault {
    /// Adds the place to an error.
    fn at(self, row: u64, column: Option<&String>) -> RowFault {
        self.in_column(column).at_row(usize::try_from(row - 1).ok())
    }

    /// Adds the column to an error.
    pub(crate) fn in_column(self, column: Option<&String>) -> RowFault {
        let RowFault::Value(error) = self else { return self };
        let column = column.cloned();
        RowFault::Value(error.at(InputPlace { column, ..InputPlace::default() }))
    }

    /// Adds the row to an error, counted from 0.
    pub(crate) fn at_row(self, nth: Option<usize>) -> RowFault {
        let RowFault::Value(error) = self else { return self };
        let place = error.place().cloned().unwrap_or_default();
        let row = nth.map(|nth| nth as u64 + 1);
        RowFault::Value(error.at(InputPlace { row, ..place }))
    }
}

impl Batch for RecordBatch {}

impl MakeBatches for PythonRows {
    type Batch = RecordBatch;

    fn begin(&mut self, py: Python<'_>, targets: &[Option<BatchTarget>]) -> PyResult<()> {
        if self.rows_read > 0 {
            self.rows = self.data.bind(py).try_iter()?.unbind();
            self.ahead.clear();
            self.rows_read = 0;
        }
        self.text_writer = ValueTextWriter::new(py)?;
        self.columns = targets.iter().map(|it| ColumnWriter::for_column(it.as_ref())).collect();
        self.fixed_classes = vec![0; self.names.len()];
        self.block_rows_max = BLOCK_ROWS;
        Ok(())
    }

    fn next(&mut self, py: Python<'_>) -> Result<Option<RecordBatch>, RowFault> {
        let (mut rows, mut bytes) = (0, 0);
        let mut text = String::new();
        let mut block = Vec::with_capacity(BLOCK_ROWS);
        let mut is_done = false;
        let began = self.shows_progress.then(Instant::now);
        let must_show = |rows: usize| {
            rows > 0 && began.is_some_and(|began| began.elapsed() >= PROGRESS_INTERVAL)
        };
        while rows < BATCH_ROWS && bytes < BATCH_BYTES && !is_done && !must_show(rows) {
            let mut failed = None;
            while block.len() < self.block_rows
                && !is_done
                && failed.is_none()
                && !must_show(block.len())
            {
                match self.next_row(py) {
                    None => is_done = true,
                    Some(row) => {
                        self.end.check().map_err(RowFault::Value)?;
                        match row.map_err(RowFault::from).and_then(|row| self.shape.values(row)) {
                            Ok(values) => {
                                // A stream may change a list or dict and yield it again. So each
                                // such row is written before the next one is read.
                                if self.is_stream && self.may_change(&values)? {
                                    (self.block_rows, self.block_rows_max) = (1, 1);
                                }
                                block.push(values);
                            }
                            Err(fault) => failed = Some(fault),
                        }
                    }
                }
            }
            let block_bytes = self.append_rows(&block, &mut text)?;
            if let Some(fault) = failed {
                self.rows_read += 1;
                return Err(fault.at(self.rows_read, None));
            }
            rows += block.len();
            bytes += block_bytes;
            self.block_rows = if block_bytes > BLOCK_BYTES {
                1
            } else {
                self.block_rows_max.min(self.block_rows * 2)
            };
            block.clear();
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

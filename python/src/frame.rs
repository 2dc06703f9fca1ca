//! Rows of a data frame that has columns of Arrow and columns of Python's objects.
//!
//! No column changes how another column is stored. Python's values are converted like those of
//! rows, and the other columns like those of an Arrow table.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{FieldRef, Schema, SchemaRef};
use pgspate::format::memory::{BatchIter, BatchTarget, ProgramBatches};
use pgspate::numbers::counted;
use pgspate::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::batch_queue::BatchQueue;
use crate::call::{CallEnd, MakeBatches};
use crate::data::{ArrowBatches, ArrowData, arrow_batches};
use crate::errors::to_exception;
use crate::rows::{PythonRows, RowBatches, RowFault};
use crate::shape::{NamedColumns, OtherKeys};

/// A data frame as Python passes it.
#[derive(FromPyObject)]
pub(crate) struct MixedFrame<'py>(
    /// The Arrow table.
    Bound<'py, PyAny>,
    /// The rows of the other columns, which can be iterated several times.
    Bound<'py, PyAny>,
    /// For each column, whether it is a column of the Arrow table.
    Vec<bool>,
);

/// Python's rows, with the Arrow columns of the same rows, if there are any.
pub(crate) struct FrameRows {
    rows: PythonRows,
    arrow: Option<ArrowColumns>,
}

/// The Arrow columns of a data frame.
struct ArrowColumns {
    batches: Arc<ArrowBatches>,
    is_arrow: Vec<bool>,
    schema: SchemaRef,
    /// The batches that are left, from the next row on.
    left: Option<BatchIter>,
    /// The rest of the current batch.
    current: Option<RecordBatch>,
    /// Rows of Python whose Arrow columns are in the next batch.
    waiting: Option<RecordBatch>,
}

/// The engine's view of a data frame.
#[derive(Debug)]
struct MixedBatches {
    rows: RowBatches,
    arrow: Arc<ArrowBatches>,
    is_arrow: Vec<bool>,
    schema: SchemaRef,
}

impl FrameRows {
    /// Returns rows without Arrow columns.
    pub(crate) fn of_rows(rows: PythonRows) -> FrameRows {
        FrameRows { rows, arrow: None }
    }

    /// Returns the data of the Arrow columns.
    pub(crate) fn arrow_data(&self) -> Option<ArrowData> {
        self.arrow.as_ref().map(|arrow| arrow.batches.data.clone())
    }

    /// Reads the first rows of a data frame whose columns have the names `columns`.
    pub(crate) fn read_ahead(
        frame: &MixedFrame<'_>,
        name: &str,
        columns: Vec<String>,
        queue: &BatchQueue<RecordBatch>,
        end: &CallEnd,
    ) -> PyResult<(FrameRows, Arc<dyn ProgramBatches>)> {
        let MixedFrame(table, data, is_arrow) = frame;
        if columns.len() != is_arrow.len() {
            let found = counted(is_arrow.len() as u64, "column");
            let named = counted(columns.len() as u64, "column");
            let message = format!("the data frame has {found}, but `columns=` names {named}");
            return Err(to_exception(table.py(), &Error::new(ErrorKind::Usage, message)));
        }
        let names = columns.iter().zip(is_arrow).filter(|(_, is_arrow)| !**is_arrow);
        let names = names.map(|(name, _)| name.clone()).collect();
        let names = NamedColumns { names, others: OtherKeys::Ignored };
        let (rows, row_batches) =
            PythonRows::read_ahead(data, name, false, Some(names), queue, end, None)?;
        let arrow = Arc::new(arrow_batches(table, name, true)?);
        let (row_schema, arrow_schema) = (row_batches.schema(), arrow.schema());
        let fields = merge(is_arrow, arrow_schema.fields(), row_schema.fields());
        let fields: Vec<FieldRef> = fields
            .into_iter()
            .zip(&columns)
            .map(|(field, name)| Arc::new(field.as_ref().clone().with_name(name)))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let batches = MixedBatches {
            rows: row_batches,
            arrow: Arc::clone(&arrow),
            is_arrow: is_arrow.clone(),
            schema: Arc::clone(&schema),
        };
        let arrow = ArrowColumns {
            batches: arrow,
            is_arrow: is_arrow.clone(),
            schema,
            left: None,
            current: None,
            waiting: None,
        };
        Ok((FrameRows { rows, arrow: Some(arrow) }, Arc::new(batches)))
    }
}

impl ProgramBatches for MixedBatches {
    fn name(&self) -> &str {
        self.rows.name()
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn types(&self) -> Vec<(String, String)> {
        let types = merge(&self.is_arrow, &self.arrow.types(), &self.rows.types());
        let fields = self.schema.fields().iter();
        fields.zip(types).map(|(field, (_, ty))| (field.name().clone(), ty)).collect()
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.rows.bytes()? + self.arrow.bytes()?)
    }

    fn is_stream(&self) -> bool {
        false
    }

    fn open(&self, targets: &[Option<BatchTarget>]) -> Result<BatchIter> {
        self.rows.open(targets)
    }
}

impl MakeBatches for FrameRows {
    type Batch = RecordBatch;

    fn begin(&mut self, py: Python<'_>, targets: &[Option<BatchTarget>]) -> PyResult<()> {
        let Some(arrow) = &mut self.arrow else { return self.rows.begin(py, targets) };
        let opened = arrow.batches.open(&[]).map_err(|error| to_exception(py, &error))?;
        arrow.left = Some(opened);
        (arrow.current, arrow.waiting) = (None, None);
        let targets = targets.iter().zip(&arrow.is_arrow).filter(|(_, is_arrow)| !**is_arrow);
        let targets: Vec<_> = targets.map(|(target, _)| target.clone()).collect();
        self.rows.begin(py, &targets)
    }

    fn next(&mut self, py: Python<'_>) -> Result<Option<RecordBatch>, RowFault> {
        let Some(arrow) = &mut self.arrow else { return self.rows.next(py) };
        let rows = match arrow.waiting.take() {
            Some(rows) => rows,
            None => match self.rows.next(py)? {
                Some(rows) => rows,
                None => return Ok(None),
            },
        };
        arrow.add_to(rows).map(Some).map_err(RowFault::Value)
    }
}

impl ArrowColumns {
    /// Returns the first rows of `rows` with their Arrow columns. Keeps the other rows.
    fn add_to(&mut self, rows: RecordBatch) -> Result<RecordBatch> {
        let bug = |message| Error::new(ErrorKind::Bug, message);
        let current = loop {
            if let Some(current) = self.current.take().filter(|batch| batch.num_rows() > 0) {
                break current;
            }
            let next = self.left.as_mut().and_then(Iterator::next);
            self.current = Some(next.ok_or_else(|| bug("the Arrow table has too few rows"))??);
        };
        let count = rows.num_rows().min(current.num_rows());
        let rest = |batch: &RecordBatch| batch.slice(count, batch.num_rows() - count);
        self.current = Some(rest(&current));
        self.waiting = (count < rows.num_rows()).then(|| rest(&rows));
        let (arrow, rows) = (current.slice(0, count), rows.slice(0, count));
        let columns: Vec<ArrayRef> = merge(&self.is_arrow, arrow.columns(), rows.columns());
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| bug("could not build a record batch").because(error))
    }
}

/// Returns one item for each column, from those of the Arrow columns and those of the others.
fn merge<T: Clone>(is_arrow: &[bool], arrow: &[T], others: &[T]) -> Vec<T> {
    let (mut arrow, mut others) = (arrow.iter(), others.iter());
    let next = |is_arrow: &bool| if *is_arrow { arrow.next() } else { others.next() };
    is_arrow.iter().filter_map(next).cloned().collect()
}

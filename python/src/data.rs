//! Imports the Arrow data of Python objects as batches for the engine.
//!
//! After a lost connection, the engine can read batches in memory again, but not a stream.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use arrow_array::ffi_stream::RecordBatchStreamReader;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pgspate::format::memory::{BatchIter, BatchTarget, ProgramBatches};
use pgspate::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::capsule;
use crate::errors::to_exception;

/// Arrow batches in memory.
#[derive(Debug)]
pub(crate) struct MemoryBatches {
    name: String,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl ProgramBatches for MemoryBatches {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.batches.iter().map(pgspate::format::memory::bytes_of).sum())
    }

    fn is_stream(&self) -> bool {
        false
    }

    fn open(&self, _: &[Option<BatchTarget>]) -> Result<BatchIter> {
        Ok(Box::new(self.batches.clone().into_iter().map(Ok)))
    }
}

/// A stream of Arrow batches, which can be read once.
pub(crate) struct ArrowStreamBatches {
    name: String,
    schema: SchemaRef,
    rows: Mutex<StreamRows>,
}

/// The rows of a stream that are left.
struct StreamRows {
    /// Batches that were read ahead.
    ahead: Vec<RecordBatch>,
    /// The reader of all later batches; `None` after the stream was opened.
    reader: Option<RecordBatchStreamReader>,
}

impl fmt::Debug for ArrowStreamBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowStreamBatches").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ProgramBatches for ArrowStreamBatches {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bytes(&self) -> Option<u64> {
        None
    }

    fn is_stream(&self) -> bool {
        true
    }

    fn read_ahead(&self, bytes: u64) -> Result<()> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let StreamRows { ahead, reader } = &mut *rows;
        let mut left = bytes;
        while left > 0 {
            let Some(batch) = reader.as_mut().and_then(Iterator::next) else { break };
            let batch = batch.map_err(read_error)?;
            left = left.saturating_sub(pgspate::format::memory::bytes_of(&batch));
            ahead.push(batch);
        }
        Ok(())
    }

    fn open(&self, _: &[Option<BatchTarget>]) -> Result<BatchIter> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let opened_twice = || Error::new(ErrorKind::Bug, "an Arrow stream was opened twice");
        let later = rows.reader.take().ok_or_else(opened_twice)?;
        let ahead = std::mem::take(&mut rows.ahead).into_iter().map(Ok);
        Ok(Box::new(ahead.chain(later.map(|batch| batch.map_err(read_error)))))
    }
}

fn read_error(error: ArrowError) -> Error {
    let is_of_nulls = error.to_string().contains("\"Null\"");
    let error = Error::new(ErrorKind::Source, "could not read the Arrow stream").because(error);
    match is_of_nulls {
        true => error.hint("Cast columns, lists and structs of type Null to another type."),
        false => error,
    }
}

/// Returns the batches of an object that exports Arrow data. If `is_in_memory`, all rows of the
/// object are in memory, and are collected here.
pub(crate) fn arrow_batches(
    data: &Bound<'_, PyAny>,
    name: &str,
    is_in_memory: bool,
) -> PyResult<Box<dyn ProgramBatches>> {
    let py = data.py();
    let name = name.to_owned();
    if !data.hasattr("__arrow_c_stream__")? {
        let pair = data.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
        let (schema, array) = (pair.get_item(0)?, pair.get_item(1)?);
        let batch = capsule::import_batch(schema.cast::<PyCapsule>()?, array.cast::<PyCapsule>()?)?;
        let batch = batch.map_err(|error| to_exception(py, &error))?;
        return Ok(Box::new(MemoryBatches { name, schema: batch.schema(), batches: vec![batch] }));
    }
    let capsule = data.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let reader = capsule::import_stream(&capsule)?.map_err(|error| to_exception(py, &error))?;
    let schema = reader.schema();
    if !is_in_memory {
        let rows = StreamRows { ahead: Vec::new(), reader: Some(reader) };
        return Ok(Box::new(ArrowStreamBatches { name, schema, rows: Mutex::new(rows) }));
    }
    // Another thread of the exporter may need the interpreter's lock, so this thread releases it.
    let batches = py.detach(|| reader.collect::<Result<Vec<_>, _>>());
    let batches = batches.map_err(|error| to_exception(py, &read_error(error)))?;
    Ok(Box::new(MemoryBatches { name, schema, batches }))
}

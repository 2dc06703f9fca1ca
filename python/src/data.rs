//! Arrow data of Python objects, as the engine's batches.
//!
//! Batches in memory can be read again after a lost connection; a stream cannot.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use arrow_array::ffi_stream::RecordBatchStreamReader;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pgspate::format::memory::{BatchIter, ProgramBatches};
use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::capsule;
use crate::errors::raise;

/// Batches in memory.
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

    fn open(&self, _: &[Option<PgType>]) -> Result<BatchIter> {
        Ok(Box::new(self.batches.clone().into_iter().map(Ok)))
    }
}

/// A stream of batches, read once.
pub(crate) struct ArrowStreamBatches {
    name: String,
    schema: SchemaRef,
    reader: Mutex<Option<RecordBatchStreamReader>>,
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

    fn open(&self, _: &[Option<PgType>]) -> Result<BatchIter> {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        let again = || Error::new(ErrorKind::Bug, "a stream was opened twice");
        Ok(Box::new(reader.ok_or_else(again)?.map(|batch| batch.map_err(read_error))))
    }
}

fn read_error(error: ArrowError) -> Error {
    Error::new(ErrorKind::Source, "could not read the Arrow stream").because(error)
}

/// Returns the batches of an object that exports Arrow data. `is_held` says that all of them are in
/// memory.
pub(crate) fn arrow_batches(
    data: &Bound<'_, PyAny>,
    name: &str,
    is_held: bool,
) -> PyResult<Box<dyn ProgramBatches>> {
    let py = data.py();
    let name = name.to_owned();
    if !data.hasattr("__arrow_c_stream__")? {
        let pair = data.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
        let (schema, array) = (pair.get_item(0)?, pair.get_item(1)?);
        let batch = capsule::batch(schema.cast::<PyCapsule>()?, array.cast::<PyCapsule>()?)?;
        let batch = batch.map_err(|error| raise(py, &error))?;
        return Ok(Box::new(MemoryBatches { name, schema: batch.schema(), batches: vec![batch] }));
    }
    let capsule = data.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let reader = capsule::stream(&capsule)?.map_err(|error| raise(py, &error))?;
    let schema = reader.schema();
    if !is_held {
        return Ok(Box::new(ArrowStreamBatches { name, schema, reader: Mutex::new(Some(reader)) }));
    }
    // The exporter may need the interpreter, so it is released.
    let batches = py.detach(|| reader.collect::<Result<Vec<_>, _>>());
    let batches = batches.map_err(|error| raise(py, &read_error(error)))?;
    Ok(Box::new(MemoryBatches { name, schema, batches }))
}

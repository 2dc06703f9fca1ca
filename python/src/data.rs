//! What Python hands over, as the engine's batches.
//!
//! What is in memory already can be read again, should the server go away meanwhile; a stream
//! cannot.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use arrow_array::ffi_stream::RecordBatchStreamReader;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pgspate::format::memory::{BatchIter, Batches};
use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::capsule;
use crate::errors::raise;

/// Batches in memory.
#[derive(Debug)]
pub(crate) struct Held {
    name: String,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Batches for Held {
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
pub(crate) struct Stream {
    name: String,
    schema: SchemaRef,
    reader: Mutex<Option<RecordBatchStreamReader>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Batches for Stream {
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
        let again = || Error::new(ErrorKind::Bug, "a stream was opened and is not there");
        Ok(Box::new(reader.ok_or_else(again)?.map(|batch| batch.map_err(unreadable))))
    }
}

fn unreadable(error: ArrowError) -> Error {
    Error::new(ErrorKind::Source, "could not read the Arrow stream").because(error)
}

/// The batches of an object that speaks Arrow. `is_held`: all of it is in memory.
pub(crate) fn arrow(
    data: &Bound<'_, PyAny>,
    name: &str,
    is_held: bool,
) -> PyResult<Box<dyn Batches>> {
    let py = data.py();
    let name = name.to_owned();
    if !data.hasattr("__arrow_c_stream__")? {
        let pair = data.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
        let (schema, array) = (pair.get_item(0)?, pair.get_item(1)?);
        let batch = capsule::batch(schema.cast::<PyCapsule>()?, array.cast::<PyCapsule>()?)?;
        let batch = batch.map_err(|error| raise(py, &error))?;
        return Ok(Box::new(Held { name, schema: batch.schema(), batches: vec![batch] }));
    }
    let capsule = data.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let reader = capsule::stream(&capsule)?.map_err(|error| raise(py, &error))?;
    let schema = reader.schema();
    if !is_held {
        return Ok(Box::new(Stream { name, schema, reader: Mutex::new(Some(reader)) }));
    }
    // The other side may need the interpreter for it.
    let batches = py.detach(|| reader.collect::<Result<Vec<_>, _>>());
    let batches = batches.map_err(|error| raise(py, &unreadable(error)))?;
    Ok(Box::new(Held { name, schema, batches }))
}

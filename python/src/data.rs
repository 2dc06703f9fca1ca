//! Imports the Arrow data of Python objects as batches for the engine.
//!
//! After a lost connection, the engine can read batches in memory again, but not a stream.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::{fmt, iter};

use arrow_array::ffi_stream::RecordBatchStreamReader;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pgspate::format::memory::{BatchIter, BatchTarget, ProgramBatches};
use pgspate::session::stopped_error;
use pgspate::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::capsule;
use crate::errors::to_exception;

/// Arrow data of the caller. The engine reads the data, and the calling thread can release it.
///
/// A reader may run Python code, and batches may hold Python's objects. So no thread of the engine
/// may have them after the call: Python kills a thread that calls it while the interpreter ends.
#[derive(Clone)]
pub(crate) struct ArrowData(Arc<ArrowDataShared>);

struct ArrowDataShared {
    is_released: AtomicBool,
    rows: Mutex<ArrowRows>,
}

/// The rows that are left.
struct ArrowRows {
    /// The batches in memory. Of a stream, those that were read ahead.
    batches: VecDeque<RecordBatch>,
    /// The reader of a stream, until its end.
    reader: Option<RecordBatchStreamReader>,
}

impl ArrowData {
    fn new(batches: Vec<RecordBatch>, reader: Option<RecordBatchStreamReader>) -> ArrowData {
        let rows = Mutex::new(ArrowRows { batches: batches.into(), reader });
        ArrowData(Arc::new(ArrowDataShared { is_released: AtomicBool::new(false), rows }))
    }

    /// Drops the batches and the reader. Returns false if another thread is reading a batch now;
    /// then that thread reads no other batch.
    pub(crate) fn release(&self) -> bool {
        self.0.is_released.store(true, SeqCst);
        let mut rows = match self.0.rows.try_lock() {
            Ok(rows) => rows,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        rows.batches.clear();
        rows.reader = None;
        true
    }

    /// Returns the rows that are left.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] if the data is released.
    fn rows(&self) -> Result<MutexGuard<'_, ArrowRows>> {
        let rows = self.0.rows.lock().unwrap_or_else(PoisonError::into_inner);
        match self.0.is_released.load(SeqCst) {
            true => Err(stopped_error()),
            false => Ok(rows),
        }
    }

    /// Reads the next batch of a stream. Returns `None` after the last batch.
    fn next(&self) -> Option<Result<RecordBatch>> {
        let mut rows = match self.rows() {
            Ok(rows) => rows,
            Err(error) => return Some(Err(error)),
        };
        match rows.batches.pop_front() {
            Some(batch) => Some(Ok(batch)),
            None => rows.read(),
        }
    }
}

impl ArrowRows {
    fn read(&mut self) -> Option<Result<RecordBatch>> {
        let batch = self.reader.as_mut()?.next();
        if batch.is_none() {
            self.reader = None;
        }
        batch.map(|batch| batch.map_err(read_error))
    }
}

impl fmt::Debug for ArrowData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowData").finish_non_exhaustive()
    }
}

/// The engine's view of Arrow data: batches in memory, or a stream, which can be read once.
#[derive(Debug)]
pub(crate) struct ArrowBatches {
    name: String,
    schema: SchemaRef,
    /// The size of batches in memory; `None` for a stream.
    bytes: Option<u64>,
    is_opened: AtomicBool,
    pub(crate) data: ArrowData,
}

impl ArrowBatches {
    fn new(name: &str, schema: SchemaRef, bytes: Option<u64>, data: ArrowData) -> ArrowBatches {
        let (name, is_opened) = (name.to_owned(), AtomicBool::new(false));
        ArrowBatches { name, schema, bytes, is_opened, data }
    }
}

impl ProgramBatches for ArrowBatches {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    fn is_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn read_ahead(&self, bytes: u64) -> Result<()> {
        let mut left = if self.is_stream() { bytes } else { 0 };
        while left > 0 {
            let mut rows = self.data.rows()?;
            let Some(batch) = rows.read() else { break };
            let batch = batch?;
            left = left.saturating_sub(pgspate::format::memory::bytes_of(&batch));
            rows.batches.push_back(batch);
        }
        Ok(())
    }

    fn open(&self, _: &[Option<BatchTarget>]) -> Result<BatchIter> {
        if !self.is_stream() {
            return Ok(Box::new(self.data.rows()?.batches.clone().into_iter().map(Ok)));
        }
        if self.is_opened.swap(true, SeqCst) {
            return Err(Error::new(ErrorKind::Bug, "an Arrow stream was opened twice"));
        }
        let data = self.data.clone();
        Ok(Box::new(iter::from_fn(move || data.next())))
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
) -> PyResult<ArrowBatches> {
    let py = data.py();
    let of_memory = |schema, batches: Vec<RecordBatch>| {
        let bytes = batches.iter().map(pgspate::format::memory::bytes_of).sum();
        ArrowBatches::new(name, schema, Some(bytes), ArrowData::new(batches, None))
    };
    if !data.hasattr("__arrow_c_stream__")? {
        let pair = data.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
        let (schema, array) = (pair.get_item(0)?, pair.get_item(1)?);
        let batch = capsule::import_batch(schema.cast::<PyCapsule>()?, array.cast::<PyCapsule>()?)?;
        let batch = batch.map_err(|error| to_exception(py, &error))?;
        return Ok(of_memory(batch.schema(), vec![batch]));
    }
    let capsule = data.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let reader = capsule::import_stream(&capsule)?.map_err(|error| to_exception(py, &error))?;
    let schema = reader.schema();
    if !is_in_memory {
        return Ok(ArrowBatches::new(name, schema, None, ArrowData::new(vec![], Some(reader))));
    }
    // Another thread of the exporter may need the interpreter's lock, so this thread releases it.
    let batches = py.detach(|| reader.collect::<Result<Vec<_>, _>>());
    let batches = batches.map_err(|error| to_exception(py, &read_error(error)))?;
    Ok(of_memory(schema, batches))
}

//! Imports Arrow data from PyCapsules: Python objects that hold a C pointer.
//!
//! The Arrow PyCapsule interface defines the type of a capsule's pointer by the capsule's name. The
//! import moves the data out of the capsule, so that the data is released once.

use arrow_array::ffi::{FFI_ArrowArray, from_ffi};
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::{Array, RecordBatch, StructArray};
use arrow_schema::ffi::FFI_ArrowSchema;
use pgspate::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Returns a reader of the stream that `__arrow_c_stream__` exports.
pub(crate) fn import_stream(
    capsule: &Bound<'_, PyCapsule>,
) -> PyResult<Result<RecordBatchStreamReader>> {
    let pointer = capsule.pointer_checked(Some(c"arrow_array_stream"))?;
    // SAFETY: a capsule of this name holds an initialized stream, which the import marks as
    // released.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.cast().as_ptr()) };
    Ok(RecordBatchStreamReader::try_new(stream).map_err(|error| {
        Error::new(ErrorKind::Format, "could not read the columns of the Arrow data").because(error)
    }))
}

/// Returns the record batch that `__arrow_c_array__` exports.
pub(crate) fn import_batch(
    schema: &Bound<'_, PyCapsule>,
    array: &Bound<'_, PyCapsule>,
) -> PyResult<Result<RecordBatch>> {
    let schema = schema.pointer_checked(Some(c"arrow_schema"))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(c"arrow_array"))?.cast();
    // SAFETY: capsules of these names hold an initialized schema, which outlives this function, and
    // an array of that schema, which the import marks as released.
    let data = unsafe { from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) };
    Ok(data
        .map_err(|error| {
            Error::new(ErrorKind::Format, "could not read the Arrow data").because(error)
        })
        .and_then(|data| match data.data_type() {
            arrow_schema::DataType::Struct(_) => Ok(StructArray::from(data)),
            other => Err(Error::new(
                ErrorKind::Usage,
                format!("an Arrow array of {other} is not a table"),
            )
            .hint("Make a table or a record batch with the array as a column.")),
        })
        .and_then(|columns| {
            if columns.null_count() == 0 {
                return Ok(RecordBatch::from(columns));
            }
            Err(Error::new(ErrorKind::Format, "the Arrow data has rows that are NULL as a whole"))
        }))
}

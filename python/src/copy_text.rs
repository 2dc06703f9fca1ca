//! Converts Python's rows into COPY text, which the Python code sends over the caller's connection.
//!
//! Values are converted as for the engine (see `rows`), so that both ways store the same value.

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use pgspate::encode::arrow::write_tagged;
use pgspate::encode::text;
use pgspate::format::memory::BatchTarget;
use pgspate::target::{PgType, TypeKind};
use pgspate::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch_queue::BatchQueue;
use crate::call::{CallEnd, MakeBatches};
use crate::errors::to_exception;
use crate::rows::{PythonRows, RowFault};
use crate::shape::{NamedColumns, OtherKeys};

/// A Python iterator of COPY text. Each item is `bytes` with complete rows.
#[pyclass(module = "pgspate._pgspate")]
pub(crate) struct CopyText {
    rows: PythonRows,
    count: u64,
}

/// The type of a column, as Python passes it: oid and name; for an array also oid and name of the
/// type of its elements, and the delimiter between elements.
type ColumnTypeTuple = (u32, String, Option<(u32, String, char)>);

#[pymethods]
impl CopyText {
    /// Reads the first rows of `data`. `columns` are the keys of mappings, or names for the values
    /// of sequences.
    #[new]
    fn new(
        data: &Bound<'_, PyAny>,
        columns: Vec<String>,
        types: Vec<ColumnTypeTuple>,
    ) -> PyResult<Self> {
        let py = data.py();
        let queue = BatchQueue::with_capacity(1);
        // The caller's session sends the text, and nothing else ends the rows.
        let end = CallEnd::default();
        let others = OtherKeys::NotNamed("Leave the key out.");
        let columns = NamedColumns { names: columns, others };
        let (mut rows, _) =
            PythonRows::read_ahead(data, "rows", true, Some(columns), &queue, &end, None)?;
        let target = |ty| Some(BatchTarget { ty: pg_type(ty), guessed_type: None });
        let targets: Vec<_> = types.into_iter().map(target).collect();
        rows.begin(py, &targets)?;
        Ok(CopyText { rows, count: 0 })
    }

    /// Returns the number of rows in the items so far.
    #[getter]
    fn count(&self) -> u64 {
        self.count
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        match self.rows.next(py) {
            Ok(None) => Ok(None),
            Ok(Some(batch)) => {
                self.count += batch.num_rows() as u64;
                Ok(Some(PyBytes::new(py, &copy_text(&batch))))
            }
            Err(RowFault::Python(error)) => Err(error),
            Err(RowFault::Value(error)) => {
                let place = error.place().cloned().unwrap_or_default();
                let error = Error::new(ErrorKind::Type, "could not write the rows").because(error);
                Err(to_exception(py, &error.at(place)))
            }
        }
    }
}

fn pg_type((oid, name, element): ColumnTypeTuple) -> PgType {
    let plain = |oid, name| PgType { oid, name, typmod: -1, kind: TypeKind::Base };
    let base = plain(oid, name);
    match element {
        None => base,
        Some((oid, name, delimiter)) => {
            let delimiter = u8::try_from(delimiter).unwrap_or(b',');
            PgType { kind: TypeKind::Array(Box::new(plain(oid, name)), delimiter), ..base }
        }
    }
}

/// Returns the rows of a batch as COPY text.
fn copy_text(batch: &RecordBatch) -> Vec<u8> {
    let columns: Vec<_> = batch.columns().iter().map(|column| column.as_binary::<i64>()).collect();
    let (mut out, mut value) = (Vec::new(), Vec::new());
    for row in 0..batch.num_rows() {
        for (nth, column) in columns.iter().enumerate() {
            if nth > 0 {
                out.push(b'\t');
            }
            value.clear();
            if column.is_valid(row) {
                write_tagged(column.value(row), &mut value);
            }
            text::append(column.is_valid(row).then_some(value.as_slice()), &mut out);
        }
        out.push(b'\n');
    }
    out
}

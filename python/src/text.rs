//! Turns Python's rows into COPY text, for a connection of the caller.
//!
//! Values are written exactly as `rows` writes them for the engine, so that both ways store the
//! same value.

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use pgspate::encode::arrow::write_tagged;
use pgspate::encode::text;
use pgspate::target::{PgType, TypeKind};
use pgspate::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raise;
use crate::handover::RowHandover;
use crate::rows::{PythonRows, RowFault};
use crate::work::MakeBatches;

/// An iterator of COPY text. Each item is `bytes` with whole rows.
#[pyclass(module = "pgspate._pgspate")]
pub(crate) struct CopyText {
    rows: PythonRows,
    count: u64,
}

/// A column's type, from the package: oid and name; for an array also the oid and the name of its
/// elements, and the delimiter between them.
type TypeFacts = (u32, String, Option<(u32, String, char)>);

#[pymethods]
impl CopyText {
    /// Reads the first rows of `data`. `columns` are the keys of mappings, or names for the values
    /// of sequences.
    #[new]
    fn new(data: &Bound<'_, PyAny>, columns: Vec<String>, types: Vec<TypeFacts>) -> PyResult<Self> {
        let py = data.py();
        let handover = RowHandover::with_capacity(1);
        let (mut rows, _) = PythonRows::read_ahead(data, "rows", Some(columns), false, &handover)?;
        let types: Vec<_> = types.into_iter().map(|facts| Some(pg_type(facts))).collect();
        rows.begin(py, &types)?;
        Ok(CopyText { rows, count: 0 })
    }

    /// Returns the number of rows returned so far.
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
                let whole = Error::new(ErrorKind::Type, "could not write the rows").because(error);
                Err(raise(py, &whole.at(place)))
            }
        }
    }
}

fn pg_type((oid, name, element): TypeFacts) -> PgType {
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

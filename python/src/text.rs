//! Rows as COPY text, for a connection that is not pgspate's own.
//!
//! The spellings are those by which the engine is given the same rows, so that a value means the
//! same whichever way it goes.

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use pgspate::encode::arrow::write_tagged;
use pgspate::encode::text;
use pgspate::target::{PgType, TypeKind};
use pgspate::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::desk::Desk;
use crate::errors::raise;
use crate::rows::{Fault, Rows};
use crate::work::Make;

/// Whole rows of COPY text, piece by piece.
#[pyclass(module = "pgspate._pgspate")]
pub(crate) struct CopyText {
    rows: Rows,
    count: u64,
}

/// A type as the package has looked it up: oid, name; and of an array, its element's oid and name,
/// and what is between elements.
type TypeFacts = (u32, String, Option<(u32, String, char)>);

#[pymethods]
impl CopyText {
    /// `columns`: the keys to take, or what the values of sequences are called.
    #[new]
    fn new(data: &Bound<'_, PyAny>, columns: Vec<String>, types: Vec<TypeFacts>) -> PyResult<Self> {
        let py = data.py();
        let desk = Desk::with_room(1);
        let (mut rows, _) = Rows::look(data, "rows", Some(columns), false, &desk)?;
        let types: Vec<_> = types.into_iter().map(|facts| Some(pg_type(facts))).collect();
        rows.begin(py, &types)?;
        Ok(CopyText { rows, count: 0 })
    }

    /// How many rows were taken so far.
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
            Err(Fault::Python(error)) => Err(error),
            Err(Fault::Value(error)) => {
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

//! Python's rows as record batches.
//!
//! Each value becomes itself or the text that its column's input function takes, which mean the
//! same, and the server judges what is not sure. What a row is, is said by the first ones.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use pgspate::encode::arrow::tagged_field;
use pgspate::format::memory::{BatchIter, Batches};
use pgspate::target::PgType;
use pgspate::{Error, Kind, Place, Result};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyMapping, PyString, PyTuple};

use crate::column::Column;
use crate::desk::Desk;
use crate::errors::raise;
use crate::infer::infer;
use crate::spell::Speller;
use crate::work::Make;

/// Rows that are looked at before the first one is loaded.
const ROWS_AHEAD: usize = 1000;
/// Rows of a batch, at most.
const BATCH_ROWS: usize = 8192;
/// Bytes of a batch's text, about.
const BATCH_BYTES: usize = 4 << 20;

/// Why there are no more rows.
pub(crate) enum Fault {
    /// Python says so: an exception of whatever makes the rows.
    Python(PyErr),
    /// A row or a value cannot be loaded.
    Value(Error),
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Fault {
        Fault::Python(error)
    }
}

/// What the rows are.
enum Shape {
    /// Mappings, with these keys. `is_open`: other keys are a mistake.
    Keys { keys: Vec<Py<PyString>>, is_open: bool },
    /// Sequences of so many values.
    Values(usize),
    /// Objects with these attributes.
    Attributes(Vec<Py<PyString>>),
}

/// Rows of Python's.
pub(crate) struct Rows {
    data: Py<PyAny>,
    rows: Py<PyIterator>,
    ahead: VecDeque<Py<PyAny>>,
    shape: Shape,
    names: Vec<String>,
    schema: SchemaRef,
    speller: Speller,
    columns: Vec<Column>,
    row: u64,
}

/// What the engine knows of them.
#[derive(Debug)]
pub(crate) struct RowBatches {
    name: String,
    schema: SchemaRef,
    has_names: bool,
    types: Vec<(String, String)>,
    bytes: Option<u64>,
    is_stream: bool,
    desk: Desk<RecordBatch>,
}

impl Batches for RowBatches {
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

    fn is_stream(&self) -> bool {
        self.is_stream
    }

    fn open(&self, types: &[Option<PgType>]) -> Result<BatchIter> {
        Ok(self.desk.ask(types))
    }
}

impl Rows {
    /// Looks at the first rows of an iterable. `columns`: the keys to take, or what the values of
    /// sequences are called.
    pub(crate) fn look<'py>(
        data: &Bound<'py, PyAny>,
        name: &str,
        columns: Option<Vec<String>>,
        ignore_unknown: bool,
        desk: &Desk<RecordBatch>,
    ) -> PyResult<(Rows, RowBatches)> {
        let py = data.py();
        let mut rows = data.try_iter()?;
        let is_stream = !(data.is_instance_of::<PyList>() || data.is_instance_of::<PyTuple>());
        let mut ahead = VecDeque::new();
        for row in rows.by_ref().take(ROWS_AHEAD) {
            ahead.push_back(row?);
        }
        let given = columns.is_some();
        let (shape, names) = shape(py, &ahead, columns, ignore_unknown)?;
        let has_names = given || !matches!(shape, Shape::Values(_)) || is_named(&ahead)?;
        let fields: Vec<_> = names.iter().map(|name| tagged_field(name)).collect();
        let schema = Arc::new(Schema::new(fields));
        let mut speller = Speller::new(py)?;
        let mut sample = vec![Vec::new(); names.len()];
        for row in &ahead {
            let mut take = |nth: usize, value: Option<&Bound<'py, PyAny>>| {
                sample[nth].extend(value.cloned());
                Ok(())
            };
            // What is wrong with a row is said when it is loaded.
            let _ = each(&shape, row, &mut take);
        }
        let types = infer(py, &mut speller, &sample)?;
        let types = names.iter().cloned().zip(types).collect();
        let bytes = (!is_stream).then(|| data.len().map(|rows| rows * names.len() * 8));
        let bytes = bytes.transpose()?.map(|bytes| bytes as u64);
        let batches = RowBatches {
            name: name.to_owned(),
            schema: schema.clone(),
            has_names,
            types,
            bytes,
            is_stream,
            desk: desk.clone(),
        };
        let (data, rows) = (data.clone().unbind(), rows.unbind());
        let ahead = ahead.into_iter().map(Bound::unbind).collect();
        let columns = Vec::new();
        let rows = Rows { data, rows, ahead, shape, names, schema, speller, columns, row: 0 };
        Ok((rows, batches))
    }

    /// Adds to a fault where it is.
    fn placed(&self, nth: usize, fault: Fault) -> Fault {
        let Fault::Value(error) = fault else { return fault };
        let column = self.names.get(nth).cloned();
        Fault::Value(error.at(Place { row: Some(self.row), column, ..Place::default() }))
    }
}

impl Make for Rows {
    type Batch = RecordBatch;

    fn begin(&mut self, py: Python<'_>, types: &[Option<PgType>]) -> PyResult<()> {
        if self.row > 0 {
            self.rows = self.data.bind(py).try_iter()?.unbind();
            self.ahead.clear();
            self.row = 0;
        }
        self.speller = Speller::new(py)?;
        self.columns = types.iter().map(|ty| Column::of(ty.as_ref())).collect();
        Ok(())
    }

    fn next(&mut self, py: Python<'_>) -> Result<Option<RecordBatch>, Fault> {
        let mut bytes = 0;
        let mut rows = 0;
        let mut text = String::new();
        while rows < BATCH_ROWS && bytes < BATCH_BYTES {
            let row = match self.ahead.pop_front() {
                Some(row) => row.into_bound(py),
                None => match self.rows.bind(py).clone().next() {
                    Some(row) => row?,
                    None => break,
                },
            };
            rows += 1;
            self.row += 1;
            let (speller, columns) = (&mut self.speller, &mut self.columns);
            let mut put = |nth: usize, value: Option<&Bound<'_, PyAny>>| {
                let column: &mut Column = &mut columns[nth];
                match value {
                    Some(value) => match column.put(value, speller, &mut text) {
                        Ok(more) => bytes += more,
                        Err(fault) => return Err((nth, fault)),
                    },
                    None => column.null(),
                }
                Ok(())
            };
            let done = each(&self.shape, &row, &mut put);
            done.map_err(|(nth, fault)| self.placed(nth, fault))?;
        }
        if rows == 0 {
            return Ok(None);
        }
        let columns: Vec<ArrayRef> = self.columns.iter_mut().map(Column::finish).collect();
        let batch = RecordBatch::try_new(self.schema.clone(), columns);
        let bug = |error| Error::new(Kind::Bug, "could not put rows together").because(error);
        Ok(Some(batch.map_err(|error| Fault::Value(bug(error)))?))
    }
}

/// What the rows are, from the first ones, and what their values are called.
fn shape(
    py: Python<'_>,
    ahead: &VecDeque<Bound<'_, PyAny>>,
    columns: Option<Vec<String>>,
    ignore_unknown: bool,
) -> PyResult<(Shape, Vec<String>)> {
    let interned = |names: &[String]| -> Vec<Py<PyString>> {
        names.iter().map(|name| PyString::intern(py, name).unbind()).collect()
    };
    let Some(first) = ahead.front() else {
        // No rows, so it does not matter what they would be.
        let names = columns.unwrap_or_default();
        return Ok((Shape::Values(names.len()), names));
    };
    if first.hasattr("keys")? {
        let is_open = columns.is_none() && !ignore_unknown;
        let names = match columns {
            Some(columns) => columns,
            None => keys(ahead)?,
        };
        return Ok((Shape::Keys { keys: interned(&names), is_open }, names));
    }
    if first.hasattr("__dataclass_fields__")? {
        let names = match columns {
            Some(columns) => columns,
            None => strings(&first.getattr("__dataclass_fields__")?)?,
        };
        return Ok((Shape::Attributes(interned(&names)), names));
    }
    if first.is_instance_of::<PyString>() || first.len().is_err() {
        let class = first.get_type().name()?;
        let error = Error::new(Kind::Usage, format!("a row of class {class} has no columns"));
        return Err(raise(
            py,
            &error.hint(
                "Rows are dicts, tuples, lists or dataclasses; a single column is `(value,)`.",
            ),
        ));
    }
    let values = first.len()?;
    let names = match columns {
        Some(columns) if columns.len() == values => columns,
        Some(columns) => {
            let named = columns.len();
            let message =
                format!("the first row has {values} values, but {named} columns are named");
            return Err(raise(py, &Error::new(Kind::Usage, message)));
        }
        None if first.hasattr("_fields")? => {
            let names = strings(&first.getattr("_fields")?)?;
            return Ok((Shape::Values(values), names));
        }
        None => (1..=values).map(|nth| format!("value {nth}")).collect(),
    };
    Ok((Shape::Values(values), names))
}

/// Whether the first row names its values, as a named tuple does.
fn is_named(ahead: &VecDeque<Bound<'_, PyAny>>) -> PyResult<bool> {
    ahead.front().map_or(Ok(false), |first| first.hasattr("_fields"))
}

/// The keys of the first rows, in the order in which they occur.
fn keys(ahead: &VecDeque<Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for row in ahead {
        for key in strings(&row.call_method0("keys")?)? {
            if !names.contains(&key) {
                names.push(key);
            }
        }
    }
    Ok(names)
}

fn strings(names: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    names.try_iter()?.map(|name| name?.extract()).collect()
}

/// Gives `put` the values of a row one after the other, by their ordinals.
fn each<'py>(
    shape: &Shape,
    row: &Bound<'py, PyAny>,
    put: &mut impl FnMut(usize, Option<&Bound<'py, PyAny>>) -> Result<(), (usize, Fault)>,
) -> Result<(), (usize, Fault)> {
    let none = usize::MAX;
    let of_row = |message: String| (none, Fault::Value(Error::new(Kind::Type, message)));
    let python = |nth: usize| move |error: PyErr| (nth, Fault::Python(error));
    match shape {
        Shape::Keys { keys, is_open } => {
            let mut found = 0;
            let dict = row.cast::<PyDict>().ok();
            for (nth, key) in keys.iter().enumerate() {
                let key = key.bind(row.py());
                let value = match dict {
                    Some(dict) => dict.get_item(key).map_err(python(nth))?,
                    None => row.get_item(key).map(Some).map_err(python(nth))?,
                };
                found += usize::from(value.is_some());
                put(nth, value.as_ref())?;
            }
            match dict {
                Some(dict) if *is_open && dict.len() != found => Err(of_row(format!(
                    "the row has a key that none of the first {ROWS_AHEAD} rows has"
                ))),
                _ => Ok(()),
            }
        }
        Shape::Values(count) => {
            let wrong =
                |found: usize| of_row(format!("the row has {found} values, expected {count}"));
            if let Ok(tuple) = row.cast::<PyTuple>() {
                if tuple.len() != *count {
                    return Err(wrong(tuple.len()));
                }
                for nth in 0..*count {
                    let value = tuple.get_borrowed_item(nth).map_err(python(nth))?;
                    put(nth, Some(&value))?;
                }
                return Ok(());
            }
            let found = row.len().map_err(python(none))?;
            let is_list = row.is_exact_instance_of::<PyList>();
            let is_other = || row.is_instance_of::<PyString>() || row.cast::<PyMapping>().is_ok();
            if found != *count || (!is_list && is_other()) {
                return Err(wrong(found));
            }
            for nth in 0..*count {
                put(nth, Some(&row.get_item(nth).map_err(python(nth))?))?;
            }
            Ok(())
        }
        Shape::Attributes(names) => {
            for (nth, name) in names.iter().enumerate() {
                put(nth, Some(&row.getattr(name.bind(row.py())).map_err(python(nth))?))?;
            }
            Ok(())
        }
    }
}

//! Encodes Python's records for the writer.
//!
//! A record's values are converted as those of `load` (see `value_text`), so that both store the
//! same value.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgspate::target::{PgType, TypeKind};
use pgspate::writer::{EncodedRows, InsertRequest, InsertShape, OnConflict, Writer};
use pgspate::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::errors::to_exception;
use crate::rows::RowFault;
use crate::shape::{
    NamedColumns, OtherKeys, RowShape, check_keys_differ, detect_shape, is_mapping, keys_of,
};
use crate::value_text::{TextTarget, ValueTextWriter};

/// The most kinds of records that a plan remembers.
const KNOWN_MAX: usize = 64;

/// What a call asks of its records, whatever columns the records have.
#[pyclass(frozen, module = "pgspate._pgspate")]
pub(crate) struct InsertPlan {
    /// The request without the columns.
    request: InsertRequest,
    /// The columns that the caller names.
    columns: Option<NamedColumns>,
    known: Mutex<Vec<Arc<KnownRecords>>>,
}

/// Records with the same columns, whose shape is known.
pub(crate) struct KnownRecords {
    pub(crate) shape: Arc<InsertShape>,
    /// Converts the returned JSON text of a row into a dict.
    pub(crate) reader: Py<PyAny>,
    /// The columns, as keys of dicts.
    keys: Vec<Py<PyString>>,
    targets: Vec<TextTarget>,
}

/// The records of a call, as far as they could be encoded.
pub(crate) enum EncodedCall {
    /// Each element is written independently of the others.
    Ready(Arc<KnownRecords>, Vec<EncodedRows>),
    /// The server must be asked for the shape of this request first.
    NeedsShape(InsertRequest),
}

/// How the records of a call belong together.
#[derive(Clone)]
pub(crate) enum CallParts {
    /// All or none are written.
    Together,
    /// All or none are written, and only once if the call is sent again with this key.
    Keyed(String),
    /// Each is written independently of the others.
    Each,
}

impl FromPyObject<'_, '_> for CallParts {
    type Error = PyErr;

    /// Converts an idempotency key, or whether the records are independent of each other.
    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<CallParts> {
        if let Ok(is_each) = value.extract::<bool>() {
            return Ok(if is_each { CallParts::Each } else { CallParts::Together });
        }
        Ok(CallParts::Keyed(value.extract()?))
    }
}

/// The encoder's tools.
pub(crate) struct RecordTools<'a> {
    pub(crate) writer: &'a Writer,
    pub(crate) text_writer: &'a mut ValueTextWriter,
    /// The Python function that returns the reader for returned columns.
    pub(crate) make_reader: &'a Py<PyAny>,
}

/// How the values of a call's records are read.
enum RecordReader {
    Dicts,
    Rows(RowShape),
}

#[pymethods]
impl InsertPlan {
    #[new]
    fn new(
        py: Python<'_>,
        table: String,
        returning: Vec<String>,
        on_conflict: &str,
        key: Vec<String>,
        columns: Option<Vec<String>>,
    ) -> PyResult<InsertPlan> {
        let on_conflict = match on_conflict {
            "error" => OnConflict::Refuse,
            "ignore" => OnConflict::Ignore(key),
            "update" => OnConflict::Update(key),
            other => {
                let message = format!("unknown value \"{other}\" of `on_conflict=`");
                let error = Error::new(ErrorKind::Usage, message);
                return Err(to_exception(py, &error.hint("Use `error`, `ignore` or `update`.")));
            }
        };
        let request = InsertRequest { table, columns: Vec::new(), on_conflict, returning };
        let others = OtherKeys::NotNamed("Name the key in `columns=`, or leave it out.");
        let columns = columns.map(|names| NamedColumns { names, others });
        Ok(InsertPlan { request, columns, known: Mutex::default() })
    }
}

impl InsertPlan {
    /// Encodes the records of a call.
    pub(crate) fn encode(
        &self,
        rows: &Bound<'_, PyList>,
        parts: CallParts,
        tools: &mut RecordTools<'_>,
    ) -> PyResult<EncodedCall> {
        let py = rows.py();
        let first = rows.get_item(0)?;
        let (mut reader, known, names) = self.find_known(&first)?;
        let request = match &known {
            Some(known) => Cow::Borrowed(&known.shape.request),
            None => Cow::Owned(InsertRequest { columns: names, ..self.request.clone() }),
        };
        let Some(shape) = tools.writer.kept_shape(&request) else {
            return Ok(EncodedCall::NeedsShape(request.into_owned()));
        };
        let known = match known.filter(|known| Arc::ptr_eq(&known.shape, &shape)) {
            Some(known) => known,
            None => self.remember(py, shape, tools)?,
        };
        let is_each = matches!(parts, CallParts::Each);
        let mut records = Vec::with_capacity(if is_each { rows.len() } else { 1 });
        let mut encoded = match parts {
            CallParts::Keyed(key) => {
                EncodedRows::with_key(key).map_err(|e| to_exception(py, &e))?
            }
            CallParts::Together | CallParts::Each => EncodedRows::default(),
        };
        let mut fields = RecordFields::default();
        for (nth, row) in rows.iter().enumerate() {
            reader
                .read(&known, row, nth, &mut fields, tools.text_writer)
                .map_err(|fault| self.explain(py, fault, (rows.len() > 1).then_some(nth)))?;
            fields.push_to(&known.shape, &mut encoded).map_err(|e| to_exception(py, &e))?;
            if is_each {
                records.push(std::mem::take(&mut encoded));
            }
        }
        if !is_each {
            records.push(encoded);
        }
        Ok(EncodedCall::Ready(known, records))
    }

    /// Finds out how to read records like `first`, and what is known about them. If nothing is
    /// known, also returns the names of their columns.
    fn find_known(
        &self,
        first: &Bound<'_, PyAny>,
    ) -> PyResult<(RecordReader, Option<Arc<KnownRecords>>, Vec<String>)> {
        let py = first.py();
        let all = self.known().clone();
        if let (Some(dict), None) = (dict_of(first)?, &self.columns) {
            for known in all {
                if known.has_keys_of(&dict)? {
                    return Ok((RecordReader::Dicts, Some(known), Vec::new()));
                }
            }
            // Dicts with the same keys in another order have the same shape.
            let mut names: Vec<String> = dict.keys().extract()?;
            names.sort_unstable();
            return Ok((RecordReader::Dicts, None, names));
        }
        let ahead = VecDeque::from([first.clone()]);
        let (shape, names) = detect_shape(py, &ahead, self.columns.clone())?;
        if self.columns.is_none() && !shape.has_names(Some(first))? {
            let class = first.get_type().name()?;
            let message = format!("a record of class {class} does not name its columns");
            let error = Error::new(ErrorKind::Usage, message);
            return Err(to_exception(py, &error.hint("Give a dict, or name them: `columns=`.")));
        }
        let known = all.into_iter().find(|known| known.shape.request.columns == names);
        Ok((RecordReader::Rows(shape), known, names))
    }

    /// Keeps what is known about the records of a shape.
    fn remember(
        &self,
        py: Python<'_>,
        shape: Arc<InsertShape>,
        tools: &RecordTools<'_>,
    ) -> PyResult<Arc<KnownRecords>> {
        let columns = &shape.request.columns;
        let keys = columns.iter().map(|name| PyString::intern(py, name).unbind()).collect();
        let returned: Vec<_> =
            shape.returned_columns.iter().map(|(name, ty)| returned_column(name, ty)).collect();
        let known = Arc::new(KnownRecords {
            reader: tools.make_reader.call1(py, (returned,))?,
            keys,
            targets: shape.column_types.iter().map(TextTarget::of).collect(),
            shape,
        });
        let mut all = self.known();
        // A shape of the same columns is outdated.
        all.retain(|it| it.shape.request.columns != known.shape.request.columns);
        if all.len() >= KNOWN_MAX {
            all.clear();
        }
        all.push(known.clone());
        Ok(known)
    }

    fn explain(&self, py: Python<'_>, fault: RowFault, row: Option<usize>) -> PyErr {
        match fault.at_row(row) {
            RowFault::Python(error) => error,
            RowFault::Value(error) => {
                let place = error.place().cloned().unwrap_or_default();
                let message = format!("could not write to {}", self.request.table);
                let error = Error::new(error.kind(), message).because(error);
                to_exception(py, &error.at(place))
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<KnownRecords>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownRecords {
    fn has_keys_of(&self, dict: &Bound<'_, PyDict>) -> PyResult<bool> {
        if dict.len() != self.keys.len() {
            return Ok(false);
        }
        for key in &self.keys {
            if !dict.contains(key.bind(dict.py()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl RecordReader {
    /// Writes the values of a record as text.
    fn read(
        &mut self,
        known: &KnownRecords,
        row: Bound<'_, PyAny>,
        nth: usize,
        fields: &mut RecordFields,
        text_writer: &mut ValueTextWriter,
    ) -> Result<(), RowFault> {
        fields.clear();
        match self {
            RecordReader::Rows(shape) => {
                for (place, value) in shape.values(row)?.iter().enumerate() {
                    fields.push(known, place, &value, text_writer)?;
                }
            }
            RecordReader::Dicts => {
                let dict = dict_of(&row)?.filter(|dict| dict.len() == known.keys.len());
                let dict = dict.ok_or_else(|| other_keys_fault(nth))?;
                for (place, key) in known.keys.iter().enumerate() {
                    let value = dict.get_item(key.bind(row.py()))?;
                    let value = value.ok_or_else(|| other_keys_fault(nth))?;
                    fields.push(known, place, &value, text_writer)?;
                }
            }
        }
        Ok(())
    }
}

/// The texts of a record's values.
#[derive(Default)]
struct RecordFields {
    text: String,
    /// The end of each value in the text, and whether the value is NULL.
    ends: Vec<(usize, bool)>,
}

impl RecordFields {
    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    fn push(
        &mut self,
        known: &KnownRecords,
        place: usize,
        value: &Bound<'_, PyAny>,
        text_writer: &mut ValueTextWriter,
    ) -> Result<(), RowFault> {
        let target = known.targets.get(place).unwrap_or(&TextTarget::NoColumn);
        let is_value = text_writer
            .write_text(value, target, &mut self.text)
            .map_err(|fault| fault.in_column(known.shape.request.columns.get(place)))?;
        self.ends.push((self.text.len(), !is_value));
        Ok(())
    }

    fn push_to(&self, shape: &InsertShape, out: &mut EncodedRows) -> pgspate::Result<()> {
        let mut start = 0;
        let fields = self.ends.iter().map(|&(end, is_null)| {
            let text = &self.text.as_bytes()[start..end];
            start = end;
            (!is_null).then_some(text)
        });
        shape.push_record(&fields.collect::<Vec<_>>(), out)
    }
}

/// Returns a returned column for Python: its name, the oid of its type, whether it is an array, and
/// whether its JSON value is an object. The oid of an array is the oid of its elements.
fn returned_column(name: &str, ty: &PgType) -> (String, u32, bool, bool) {
    let base = ty.base();
    let (ty, is_array) = match &base.kind {
        TypeKind::Array(element, _) => (element.base(), true),
        _ => (base, false),
    };
    (name.to_owned(), ty.oid, is_array, ty.kind == TypeKind::Other)
}

/// Returns a mapping as a dict, and None for another record.
fn dict_of<'py>(record: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    if let Ok(dict) = record.cast::<PyDict>() {
        return Ok(Some(dict.clone()));
    }
    if !is_mapping(record)? {
        return Ok(None);
    }
    check_keys_differ(&keys_of(record)?, None)?;
    let dict = record.py().get_type::<PyDict>().call1((record,))?;
    Ok(Some(dict.cast_into::<PyDict>()?))
}

fn other_keys_fault(nth: usize) -> RowFault {
    let message = format!("record {} has other columns than the first record", nth + 1);
    let hint = "Give all records the same keys, or name the columns with `columns=`: then a \
                missing key is NULL.";
    RowFault::Value(Error::new(ErrorKind::Usage, message).hint(hint))
}

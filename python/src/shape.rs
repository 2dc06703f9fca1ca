//! Finds out the shape of Python's rows, and reads their values.
//!
//! Rows are mappings, sequences or objects; the first rows decide. Each row becomes a tuple of its
//! values, in the order of the columns. `itemgetter` and `attrgetter` of Python's module `operator`
//! take a third of the time of reading value by value, so they are used where they work.

use std::collections::VecDeque;

use pgspate::numbers::counted;
use pgspate::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString, PyTuple};

use crate::errors::to_exception;
use crate::rows::RowFault;

/// The number of rows that are read to find out the shape, before the first row is loaded.
pub(crate) const ROWS_AHEAD: usize = 1000;

/// The shape of the rows.
pub(crate) enum RowShape {
    /// Mappings with these keys. With `is_strict`, any other key is an error.
    Mappings { keys: Vec<Py<PyString>>, is_strict: bool, getter: Option<Py<PyAny>> },
    /// Sequences with this number of values.
    Sequences(usize),
    /// Objects with these attributes.
    Objects { names: Vec<Py<PyString>>, getter: Option<Py<PyAny>> },
}

impl RowShape {
    /// Returns whether the rows name their values.
    pub(crate) fn has_names(&self, first: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        match self {
            // A named tuple has names.
            RowShape::Sequences(_) => first.map_or(Ok(false), |first| first.hasattr("_fields")),
            _ => Ok(true),
        }
    }

    /// Returns the values of a row, with `None` for keys that a mapping lacks.
    pub(crate) fn values<'py>(
        &mut self,
        row: Bound<'py, PyAny>,
    ) -> Result<Bound<'py, PyTuple>, RowFault> {
        match self {
            RowShape::Sequences(count) => sequence_values(row, *count),
            RowShape::Mappings { keys, is_strict, getter } => {
                mapping_values(&row, keys, *is_strict, getter)
            }
            RowShape::Objects { names, getter } => {
                let py = row.py();
                if let Some(getter) = getter {
                    return Ok(getter.bind(py).call1((row,))?.cast_into().map_err(PyErr::from)?);
                }
                let values = names.iter().map(|name| row.getattr(name.bind(py)));
                Ok(PyTuple::new(py, values.collect::<PyResult<Vec<_>>>()?)?)
            }
        }
    }
}

fn sequence_values(row: Bound<'_, PyAny>, count: usize) -> Result<Bound<'_, PyTuple>, RowFault> {
    let wrong_count = |found: usize| {
        row_fault(format!("the row has {}, expected {count}", counted(found as u64, "value")))
    };
    let row = match row.cast_into::<PyTuple>() {
        Ok(tuple) if tuple.len() == count => return Ok(tuple),
        Ok(tuple) => return Err(wrong_count(tuple.len())),
        Err(other) => other.into_inner(),
    };
    let found = row.len()?;
    if let Ok(list) = row.cast_exact::<PyList>() {
        return if found == count { Ok(list.to_tuple()) } else { Err(wrong_count(found)) };
    }
    if found != count || row.is_instance_of::<PyString>() || row.cast::<PyMapping>().is_ok() {
        return Err(wrong_count(found));
    }
    let values: PyResult<Vec<_>> = (0..count).map(|nth| row.get_item(nth)).collect();
    Ok(PyTuple::new(row.py(), values?)?)
}

fn mapping_values<'py>(
    row: &Bound<'py, PyAny>,
    keys: &[Py<PyString>],
    is_strict: bool,
    getter: &mut Option<Py<PyAny>>,
) -> Result<Bound<'py, PyTuple>, RowFault> {
    let py = row.py();
    let Ok(dict) = row.cast::<PyDict>() else {
        let values = keys.iter().map(|key| row.get_item(key.bind(py)));
        return Ok(PyTuple::new(py, values.collect::<PyResult<Vec<_>>>()?)?);
    };
    // A subclass of dict, such as a defaultdict, may return values for keys that it does not have.
    if let Some(get_all) = getter.as_ref().filter(|_| row.is_exact_instance_of::<PyDict>()) {
        match get_all.bind(py).call1((row,)) {
            Ok(_) if is_strict && dict.len() != keys.len() => return Err(unknown_key(dict, keys)),
            Ok(values) => return Ok(values.cast_into().map_err(PyErr::from)?),
            // A key is missing. Later rows probably lack keys too. An exception for each of these
            // rows would be slow, so the getter is not used any more.
            Err(_) => *getter = None,
        }
    }
    let mut found = 0;
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        let value = dict.get_item(key.bind(py))?;
        found += usize::from(value.is_some());
        values.push(value.unwrap_or_else(|| py.None().into_bound(py)));
    }
    if is_strict && dict.len() != found {
        return Err(unknown_key(dict, keys));
    }
    Ok(PyTuple::new(py, values)?)
}

/// Returns the error for a dict with a key that is not in `keys`. Names the first such key.
fn unknown_key(dict: &Bound<'_, PyDict>, keys: &[Py<PyString>]) -> RowFault {
    let is_known =
        |key: &Bound<'_, PyAny>| keys.iter().any(|it| key.eq(it.bind(dict.py())).unwrap_or(false));
    let unknown = dict.keys().into_iter().find(|key| !is_known(key));
    let name = unknown.map_or_else(String::new, |key| format!(" {key:?}"));
    let message = format!("the row has a key{name} that none of the first {ROWS_AHEAD} rows has");
    RowFault::Value(
        Error::new(ErrorKind::Type, message)
            .hint("Name all keys with `columns=`, or give one of the first rows this key."),
    )
}

fn row_fault(message: String) -> RowFault {
    RowFault::Value(Error::new(ErrorKind::Type, message))
}

/// Returns an `itemgetter` or `attrgetter` that returns the values of several names as a tuple. For
/// one name Python's getter would return the value itself, so the result is `None`.
fn make_getter(py: Python<'_>, kind: &str, names: &[Py<PyString>]) -> PyResult<Option<Py<PyAny>>> {
    // For `attrgetter`, a name with a dot is the path to a nested attribute.
    let has_dot = |name: &Py<PyString>| PyResult::Ok(name.bind(py).to_str()?.contains('.'));
    for name in names {
        if kind == "attrgetter" && has_dot(name)? {
            return Ok(None);
        }
    }
    if names.len() < 2 {
        return Ok(None);
    }
    let names = PyTuple::new(py, names)?;
    Ok(Some(py.import("operator")?.getattr(kind)?.call1(names)?.unbind()))
}

/// Returns the shape of the rows and the names of their values, from the first rows.
pub(crate) fn detect_shape(
    py: Python<'_>,
    ahead: &VecDeque<Bound<'_, PyAny>>,
    columns: Option<Vec<String>>,
    ignore_unknown: bool,
) -> PyResult<(RowShape, Vec<String>)> {
    let interned = |names: &[String]| -> Vec<Py<PyString>> {
        names.iter().map(|name| PyString::intern(py, name).unbind()).collect()
    };
    let Some(first) = ahead.front() else {
        // The shape does not matter, because there are no rows.
        let names = columns.unwrap_or_default();
        return Ok((RowShape::Sequences(names.len()), names));
    };
    if first.hasattr("keys")? {
        let is_strict = columns.is_none() && !ignore_unknown;
        let names = match columns {
            Some(columns) => columns,
            None => keys_of_rows(ahead)?,
        };
        if names.is_empty() {
            return Err(no_values_error(py));
        }
        let keys = interned(&names);
        let getter = make_getter(py, "itemgetter", &keys)?;
        return Ok((RowShape::Mappings { keys, is_strict, getter }, names));
    }
    if first.hasattr("__dataclass_fields__")? {
        let names = match columns {
            Some(columns) => columns,
            None => extract_strings(&first.getattr("__dataclass_fields__")?)?,
        };
        let attributes = interned(&names);
        let getter = make_getter(py, "attrgetter", &attributes)?;
        return Ok((RowShape::Objects { names: attributes, getter }, names));
    }
    if first.is_instance_of::<PyString>() || first.len().is_err() {
        let class = first.get_type().name()?;
        let error = Error::new(ErrorKind::Usage, format!("a row of class {class} has no columns"));
        return Err(to_exception(
            py,
            &error.hint(
                "Give dicts, tuples, lists or dataclasses; a row of one column is `(value,)`.",
            ),
        ));
    }
    let values = first.len()?;
    if values == 0 {
        return Err(no_values_error(py));
    }
    let names = match columns {
        Some(columns) if columns.len() == values => columns,
        Some(columns) => {
            let message = format!(
                "the first row has {}, but `--columns` names {}",
                counted(values as u64, "value"),
                counted(columns.len() as u64, "column")
            );
            return Err(to_exception(py, &Error::new(ErrorKind::Usage, message)));
        }
        None if first.hasattr("_fields")? => {
            let names = extract_strings(&first.getattr("_fields")?)?;
            return Ok((RowShape::Sequences(values), names));
        }
        None => (1..=values).map(|nth| format!("value {nth}")).collect(),
    };
    Ok((RowShape::Sequences(values), names))
}

fn no_values_error(py: Python<'_>) -> PyErr {
    let error = Error::new(ErrorKind::Usage, "the rows have no values");
    to_exception(py, &error.hint("Give each row at least one value, which may be None."))
}

/// Returns the keys of the first rows, in the order of their first occurrence.
fn keys_of_rows(ahead: &VecDeque<Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for row in ahead {
        for key in extract_strings(&row.call_method0("keys")?)? {
            if !names.contains(&key) {
                names.push(key);
            }
        }
    }
    Ok(names)
}

fn extract_strings(names: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    names.try_iter()?.map(|name| name?.extract()).collect()
}

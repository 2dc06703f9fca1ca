//! Finds out the shape of Python's rows, and reads their values.
//!
//! Rows are mappings, sequences or objects; the first rows decide. Each row becomes a tuple of its
//! values, in the order of the columns. `itemgetter` and `attrgetter` of Python's module `operator`
//! take a third of the time of reading value by value, so they are used where they work.

use std::collections::VecDeque;

use pgspate::numbers::counted;
use pgspate::{Error, ErrorKind, did_you_mean};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyDict, PyList, PyMapping, PyMemoryView, PySet, PyString, PyTuple, PyType,
};

use crate::errors::to_exception;
use crate::rows::RowFault;

/// The number of rows that are read to find out the shape, before the first row is loaded.
pub(crate) const ROWS_AHEAD: usize = 1000;

/// What a first row with keys does, for messages.
const NAMES_VALUES: &str = "names its values";

/// The shape of the rows.
pub(crate) enum RowShape {
    /// Mappings with these keys.
    Mappings { keys: Vec<Py<PyString>>, others: OtherKeys, getter: Option<Py<PyAny>> },
    /// Sequences with this number of values. Named tuples all have the same fields, and the caller
    /// may name some of them: `places` are those of their values.
    Sequences { count: usize, fields: Option<CheckedClass>, places: Option<Vec<usize>> },
    /// Dataclasses with these attributes. Without columns that the caller has named, all rows have
    /// the same fields.
    Objects { names: Vec<Py<PyString>>, getter: Option<Py<PyAny>>, fields: Option<CheckedClass> },
}

/// The columns that the caller names: keys of mappings, attributes of objects, or names for the
/// values of sequences.
#[derive(Debug, Clone)]
pub(crate) struct NamedColumns {
    pub(crate) names: Vec<String>,
    /// What happens to other keys of mappings.
    pub(crate) others: OtherKeys,
}

/// What happens to a key of a mapping that is not among the known keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherKeys {
    Ignored,
    /// An error: none of the first rows has the key.
    New,
    /// An error with this hint: `columns=` does not name the key, whose values would be lost.
    NotNamed(&'static str),
}

/// The fields that all classes of rows must have, and the last class that has them.
pub(crate) struct CheckedClass {
    fields: Vec<String>,
    last: Py<PyType>,
}

impl CheckedClass {
    fn of(row: &Bound<'_, PyAny>, fields: Vec<String>) -> CheckedClass {
        CheckedClass { fields, last: row.get_type().unbind() }
    }

    /// Refuses a row whose class has other fields, or the same in another order. `fields_of`
    /// returns the fields of a row, or `None` for a row whose values have no names.
    fn check(
        &mut self,
        row: &Bound<'_, PyAny>,
        fields_of: impl Fn(&Bound<'_, PyAny>) -> PyResult<Option<Vec<String>>>,
    ) -> Result<(), RowFault> {
        let class = row.get_type();
        if class.is(&self.last) {
            return Ok(());
        }
        match fields_of(row)? {
            Some(fields) if fields != self.fields => {
                let class = class.name()?;
                let message = format!("class {class} has other fields than the first row's class");
                let hint = "Load the rows of each class by a call of their own, or give dicts.";
                Err(RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint)))
            }
            _ => {
                self.last = class.unbind();
                Ok(())
            }
        }
    }
}

impl RowShape {
    /// Returns whether the rows name their values.
    pub(crate) fn has_names(&self, first: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        match self {
            // A named tuple has names.
            RowShape::Sequences { fields, .. } => Ok(first.is_some() && fields.is_some()),
            _ => Ok(true),
        }
    }

    /// Returns the values of a row, with `None` for keys that a mapping lacks.
    pub(crate) fn values<'py>(
        &mut self,
        row: Bound<'py, PyAny>,
    ) -> Result<Bound<'py, PyTuple>, RowFault> {
        match self {
            RowShape::Sequences { count, fields, places } => {
                if let Some(fields) = fields {
                    // A tuple without names has none of the fields that the caller names.
                    let nameless = places.as_ref().map(|_| Vec::new());
                    fields.check(&row, |row| Ok(fields_of_tuple(row)?.or(nameless.clone())))?;
                }
                let values = sequence_values(row, *count)?;
                let Some(places) = places else { return Ok(values) };
                let chosen: PyResult<Vec<_>> =
                    places.iter().map(|place| values.get_item(*place)).collect();
                Ok(PyTuple::new(values.py(), chosen?)?)
            }
            RowShape::Mappings { keys, others, getter } => {
                mapping_values(&row, keys, *others, getter)
            }
            RowShape::Objects { names, getter, fields } => {
                let py = row.py();
                if let Some(fields) = fields {
                    fields.check(&row, fields_of_dataclass)?;
                }
                let values = match getter {
                    Some(getter) => getter.bind(py).call1((&row,)),
                    None => {
                        let values = names.iter().map(|name| row.getattr(name.bind(py)));
                        let values: PyResult<Vec<_>> = values.collect();
                        values.and_then(|values| Ok(PyTuple::new(py, values)?.into_any()))
                    }
                };
                match values {
                    Ok(values) => Ok(values.cast_into().map_err(PyErr::from)?),
                    Err(_) if !row.hasattr("__dataclass_fields__")? => {
                        Err(other_class_fault(&row, "is a dataclass")?)
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

/// Returns the fault for a row of another form than the first row.
fn other_class_fault(row: &Bound<'_, PyAny>, first_row: &str) -> PyResult<RowFault> {
    let class = row.get_type().name()?;
    let message = format!("the row is of class {class}, but the first row {first_row}");
    let hint = "Give all rows in one form: as dicts, tuples, lists or dataclasses.";
    Ok(RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint)))
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
    let Ok(found) = row.len() else {
        return Err(other_class_fault(&row, "is a sequence of values")?);
    };
    if let Ok(list) = row.cast_exact::<PyList>() {
        return if found == count { Ok(list.to_tuple()) } else { Err(wrong_count(found)) };
    }
    if is_text_or_bytes(&row) || row.cast::<PyMapping>().is_ok() {
        return Err(other_class_fault(&row, "is a sequence of values")?);
    }
    if found != count {
        return Err(wrong_count(found));
    }
    let values: PyResult<Vec<_>> = (0..count).map(|nth| row.get_item(nth)).collect();
    Ok(PyTuple::new(row.py(), values?)?)
}

fn mapping_values<'py>(
    row: &Bound<'py, PyAny>,
    keys: &[Py<PyString>],
    others: OtherKeys,
    getter: &mut Option<Py<PyAny>>,
) -> Result<Bound<'py, PyTuple>, RowFault> {
    let py = row.py();
    let is_strict = others != OtherKeys::Ignored;
    let made;
    let dict = match row.cast::<PyDict>() {
        Ok(dict) => dict,
        Err(_) if is_mapping(row)? => {
            made = py.get_type::<PyDict>().call1((row,))?.cast_into::<PyDict>();
            made.as_ref().map_err(|_| row_fault("the row is no mapping".to_owned()))?
        }
        Err(_) => {
            let Some(fields) = fields_of_record(row)? else {
                return Err(other_class_fault(row, NAMES_VALUES)?);
            };
            if is_strict && fields.len() != keys.len() {
                return Err(row_fault("the row has other fields than the first row".to_owned()));
            }
            let values = keys.iter().map(|key| row.get_item(key.bind(py)));
            return Ok(PyTuple::new(py, values.collect::<PyResult<Vec<_>>>()?)?);
        }
    };
    // A subclass of dict, such as a defaultdict, may return values for keys that it does not have.
    if let Some(get_all) = getter.as_ref().filter(|_| row.is_exact_instance_of::<PyDict>()) {
        match get_all.bind(py).call1((row,)) {
            Ok(_) if is_strict && dict.len() != keys.len() => {
                return Err(other_key(dict, keys, others));
            }
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
        return Err(other_key(dict, keys, others));
    }
    Ok(PyTuple::new(py, values)?)
}

/// Returns the error for a dict with a key that is not in `keys`. Names the first such key.
fn other_key(dict: &Bound<'_, PyDict>, keys: &[Py<PyString>], others: OtherKeys) -> RowFault {
    let py = dict.py();
    let is_known =
        |key: &Bound<'_, PyAny>| keys.iter().any(|it| key.eq(it.bind(py)).unwrap_or(false));
    let key = dict.keys().into_iter().find(|key| !is_known(key));
    let shown = key.as_ref().map_or_else(String::new, |key| format!(" {key:?}"));
    let OtherKeys::NotNamed(hint) = others else {
        let message =
            format!("the row has a key{shown} that none of the first {ROWS_AHEAD} rows has");
        return RowFault::Value(
            Error::new(ErrorKind::Type, message)
                .hint("Name all keys with `columns=`, or give one of the first rows this key."),
        );
    };
    let message = format!("the row has a key{shown} that `columns=` does not name");
    let names: Vec<_> = keys.iter().filter_map(|name| name.bind(py).to_str().ok()).collect();
    let key = key.and_then(|key| key.extract::<String>().ok());
    let near = key.and_then(|key| did_you_mean("", &key, names));
    RowFault::Value(Error::new(ErrorKind::Type, message).hint_if(near).hint_also(hint))
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
    columns: Option<NamedColumns>,
) -> PyResult<(RowShape, Vec<String>)> {
    let others = columns.as_ref().map(|columns| columns.others);
    let columns = columns.map(|columns| columns.names);
    let interned = |names: &[String]| -> Vec<Py<PyString>> {
        names.iter().map(|name| PyString::intern(py, name).unbind()).collect()
    };
    let Some(first) = ahead.front() else {
        // The shape does not matter, because there are no rows.
        let names = columns.unwrap_or_default();
        let count = names.len();
        return Ok((RowShape::Sequences { count, fields: None, places: None }, names));
    };
    if let Some(error) = table_as_row_error(first)? {
        return Err(to_exception(py, &error));
    }
    if let Some(fields) = fields_of_record(first)? {
        // As for dataclasses, all fields that the caller names exist, so no value is lost unseen.
        let others = others.map_or(OtherKeys::New, |_| OtherKeys::Ignored);
        let names = columns.unwrap_or_else(|| fields.clone());
        check_fields(py, &names, &fields)?;
        let keys = interned(&names);
        return Ok((RowShape::Mappings { keys, others, getter: None }, names));
    }
    if is_mapping(first)? {
        // A key that only later rows have may be a column of the table, so it is never ignored.
        let others = others.unwrap_or(OtherKeys::New);
        let names = match columns {
            Some(columns) => columns,
            None => keys_of_rows(ahead)?,
        };
        if names.is_empty() {
            return Err(no_values_error(py));
        }
        let keys = interned(&names);
        let getter = make_getter(py, "itemgetter", &keys)?;
        return Ok((RowShape::Mappings { keys, others, getter }, names));
    }
    if let Some(fields) = fields_of_dataclass(first)? {
        let checked = columns.is_none().then(|| CheckedClass::of(first, fields.clone()));
        let names = columns.unwrap_or(fields);
        let attributes = interned(&names);
        let getter = make_getter(py, "attrgetter", &attributes)?;
        return Ok((RowShape::Objects { names: attributes, getter, fields: checked }, names));
    }
    if is_text_or_bytes(first) || first.len().is_err() || !first.hasattr("__getitem__")? {
        return Err(to_exception(py, &no_columns_error(first)?));
    }
    let values = first.len()?;
    if values == 0 {
        return Err(no_values_error(py));
    }
    let fields = fields_of_tuple(first)?;
    let checked = fields.clone().map(|fields| CheckedClass::of(first, fields));
    let places = columns.as_ref().zip(fields.as_ref()).and_then(|(columns, fields)| {
        let place = |name: &String| fields.iter().position(|field| field == name);
        columns.iter().map(place).collect::<Option<Vec<_>>>()
    });
    let names = match columns {
        Some(columns) if columns.len() == values || places.is_some() => columns,
        Some(columns) => {
            let message = format!(
                "the first row has {}, but `--columns` names {}",
                counted(values as u64, "value"),
                counted(columns.len() as u64, "column")
            );
            return Err(to_exception(py, &Error::new(ErrorKind::Usage, message)));
        }
        None => fields.unwrap_or_else(|| (1..=values).map(|nth| format!("value {nth}")).collect()),
    };
    Ok((RowShape::Sequences { count: values, fields: checked, places }, names))
}

/// Returns whether a row is a mapping. A dataclass or named tuple may have a field `keys`.
pub(crate) fn is_mapping(row: &Bound<'_, PyAny>) -> PyResult<bool> {
    if row.is_instance_of::<PyDict>() {
        return Ok(true);
    }
    let has_fields = row.hasattr("_fields")? || row.hasattr("__dataclass_fields__")?;
    Ok(!has_fields && row.getattr("keys").is_ok_and(|keys| keys.is_callable()))
}

/// Returns the fields of a named tuple, and `None` for another row.
fn fields_of_tuple(row: &Bound<'_, PyAny>) -> PyResult<Option<Vec<String>>> {
    match row.getattr("_fields") {
        Ok(names) => extract_strings(&names).map(Some),
        Err(_) => Ok(None),
    }
}

/// Returns the fields of a dataclass without its class variables, and `None` for another row.
fn fields_of_dataclass(row: &Bound<'_, PyAny>) -> PyResult<Option<Vec<String>>> {
    if !row.hasattr("__dataclass_fields__")? {
        return Ok(None);
    }
    let fields = row.py().import("dataclasses")?.call_method1("fields", (row,))?;
    let name = |field: PyResult<Bound<'_, PyAny>>| field?.getattr("name")?.extract();
    fields.try_iter()?.map(name).collect::<PyResult<Vec<String>>>().map(Some)
}

/// Returns a copy of a row that its iterable may change and return again. Values that may change,
/// such as lists, are copied, too.
#[pyfunction]
pub(crate) fn copy_row<'py>(row: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if let Ok(tuple) = row.cast_exact::<PyTuple>() {
        return copy_items(tuple);
    }
    if let Ok(list) = row.cast_exact::<PyList>() {
        return copy_items(&list.to_tuple());
    }
    if let Ok(dict) = row.cast_exact::<PyDict>() {
        let copy = dict.copy()?;
        for (key, value) in dict.iter() {
            if may_change(&value) {
                copy.set_item(key, copy_value(value)?)?;
            }
        }
        return Ok(copy.into_any());
    }
    // A row that cannot be copied is probably no row, which is reported when it is loaded.
    Ok(deep_copy(&row).unwrap_or(row))
}

/// Returns a tuple with copies of the items that may change.
fn copy_items<'py>(items: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    if !items.iter().any(|item| may_change(&item)) {
        return Ok(items.clone().into_any());
    }
    let copies: PyResult<Vec<_>> = items.iter().map(copy_value).collect();
    Ok(PyTuple::new(items.py(), copies?)?.into_any())
}

/// Returns a copy of a value that may change. Python cannot copy views of memory, nor lists of
/// them.
fn copy_value(value: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    if value.is_instance_of::<PyMemoryView>() {
        return value.call_method0(intern!(value.py(), "tobytes"));
    }
    if !may_change(&value) {
        return Ok(value);
    }
    match (deep_copy(&value), value.cast_exact::<PyList>()) {
        (Ok(copy), _) => Ok(copy),
        (Err(_), Ok(list)) if list.iter().all(|item| item.is_instance_of::<PyMemoryView>()) => {
            let copies: PyResult<Vec<_>> = list.iter().map(copy_value).collect();
            Ok(PyList::new(value.py(), copies?)?.into_any())
        }
        _ => Ok(value),
    }
}

fn deep_copy<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    value.py().import("copy")?.call_method1("deepcopy", (value,))
}

/// Returns whether a value of a row may change. Plain texts, numbers and times do not.
fn may_change(value: &Bound<'_, PyAny>) -> bool {
    if value.is_exact_instance_of::<PyString>() {
        return false;
    }
    if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        return tuple.iter().any(|item| may_change(&item));
    }
    // Other values that may change have no hash, but a `Json` of a driver has one.
    value.hash().is_err() || value.hasattr(intern!(value.py(), "dumps")).unwrap_or(false)
}

fn no_values_error(py: Python<'_>) -> PyErr {
    let error = Error::new(ErrorKind::Usage, "the rows have no values");
    to_exception(py, &error.hint("Give each row at least one value, which may be None."))
}

/// Returns whether a row is a text or bytes, whose items are no values.
fn is_text_or_bytes(row: &Bound<'_, PyAny>) -> bool {
    row.is_instance_of::<PyString>()
        || row.is_instance_of::<PyBytes>()
        || row.is_instance_of::<PyByteArray>()
        || row.is_instance_of::<PyMemoryView>()
}

fn no_columns_error(row: &Bound<'_, PyAny>) -> PyResult<Error> {
    let class = row.get_type().name()?;
    let error = Error::new(ErrorKind::Usage, format!("a row of class {class} has no columns"));
    let forms = "Give dicts, tuples, lists or dataclasses; a row of one column is `(value,)`.";
    let error = error.hint(forms);
    let more = [
        ("model_dump", "Of models of pydantic, give `row.model_dump()`."),
        ("__attrs_attrs__", "Of classes of attrs, give `attrs.asdict(row)`."),
        ("_sa_instance_state", "`pgspate.sqlalchemy.load` takes objects of SQLAlchemy's models."),
    ];
    if is_text_or_bytes(row) {
        return Ok(error.hint_also("For the rows of a file, give the file's path."));
    }
    for (attribute, hint) in more {
        if row.hasattr(attribute)? {
            return Ok(error.hint_also(hint));
        }
    }
    Ok(error)
}

/// Returns the names of the fields of a record of numpy, and None for another row.
fn fields_of_record(row: &Bound<'_, PyAny>) -> PyResult<Option<Vec<String>>> {
    if row.is_exact_instance_of::<PyDict>() || row.is_exact_instance_of::<PyTuple>() {
        return Ok(None);
    }
    let Ok(dtype) = row.getattr("dtype") else { return Ok(None) };
    let is_record =
        row.get_type().mro().iter().any(|class| {
            class.getattr("__name__").is_ok_and(|name| name.eq("void").unwrap_or(false))
        });
    let Some(names) = dtype.getattr("names").ok().filter(|it| is_record && !it.is_none()) else {
        return Ok(None);
    };
    extract_strings(&names).map(Some)
}

/// Refuses names of columns that are not among the fields of a record.
fn check_fields(py: Python<'_>, names: &[String], fields: &[String]) -> PyResult<()> {
    let Some(unknown) = names.iter().find(|name| !fields.contains(name)) else { return Ok(()) };
    let message = format!("the rows have no field \"{unknown}\"");
    Err(to_exception(py, &Error::new(ErrorKind::Usage, message)))
}

/// Returns the error for a row that is a table itself, such as a data frame or a record batch.
fn table_as_row_error(row: &Bound<'_, PyAny>) -> PyResult<Option<Error>> {
    let is_arrow = row.hasattr("__arrow_c_stream__")? || row.hasattr("__arrow_c_array__")?;
    let is_table = row.hasattr("__dataframe__")? || (is_arrow && row.hasattr("schema")?);
    if !is_table {
        return Ok(None);
    }
    let (class, module) = (row.get_type().name()?, row.get_type().module()?);
    let message = format!("the data consists of several tables of class {class}");
    let hint = match module.to_str()?.split('.').next() {
        Some("pandas") => "Give one data frame: `pandas.concat(frames)`. Or load each by itself.",
        Some("polars") => "Give one data frame: `polars.concat(frames)`. Or load each by itself.",
        _ => {
            "Give one table: `pyarrow.Table.from_batches(batches)` or \
             `pyarrow.concat_tables(tables)`. Or give a stream: \
             `pyarrow.RecordBatchReader.from_batches(schema, batches)`."
        }
    };
    Ok(Some(Error::new(ErrorKind::Usage, message).hint(hint)))
}

/// Returns the keys of the first rows, in the order of their first occurrence.
fn keys_of_rows(ahead: &VecDeque<Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for (nth, row) in ahead.iter().enumerate() {
        if !is_mapping(row)? {
            return Err(match other_class_fault(row, NAMES_VALUES)?.at_row(Some(nth)) {
                RowFault::Python(error) => error,
                RowFault::Value(error) => to_exception(row.py(), &error),
            });
        }
        let keys = keys_of(row)?;
        if !row.is_instance_of::<PyDict>() {
            check_keys_differ(&keys, Some(nth))?;
        }
        for key in keys {
            let Ok(name) = key.extract::<String>() else {
                return Err(to_exception(row.py(), &key_fault(&key, nth)?));
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// Returns the keys of a mapping.
pub(crate) fn keys_of<'py>(row: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    row.call_method0(intern!(row.py(), "keys"))?.try_iter()?.collect()
}

/// Refuses keys that are equal. The result of a query may have two columns of one name.
pub(crate) fn check_keys_differ(keys: &[Bound<'_, PyAny>], row: Option<usize>) -> PyResult<()> {
    let Some(first) = keys.first() else { return Ok(()) };
    if PySet::new(first.py(), keys).is_ok_and(|set| set.len() == keys.len()) {
        return Ok(());
    }
    for (nth, key) in keys.iter().enumerate() {
        for other in &keys[..nth] {
            if key.eq(other)? {
                let row =
                    row.map_or_else(|| "a record".to_owned(), |nth| format!("row {}", nth + 1));
                let message = format!("{row} has two values with the name {key:?}");
                let error = Error::new(ErrorKind::Usage, message);
                let error = error.hint("Give the columns of the query different names.");
                return Err(to_exception(key.py(), &error));
            }
        }
    }
    Ok(())
}

/// Returns the error for the key of a row that is no name.
fn key_fault(key: &Bound<'_, PyAny>, row: usize) -> PyResult<Error> {
    let class = key.get_type().name()?;
    let message = format!("row {} has a key of class {class}, and no name", row + 1);
    let hint = "Give the rows as dicts whose keys are the names of the columns.";
    Ok(Error::new(ErrorKind::Usage, message).hint(hint))
}

fn extract_strings(names: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    names.try_iter()?.map(|name| name?.extract()).collect()
}

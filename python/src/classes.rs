//! Which of the classes that have a counterpart in PostgreSQL a value's class is.
//!
//! Looked up once for each class, and then found by its address; the class is kept, so that no
//! other one comes to live there.

use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMemoryView, PySet,
    PyString, PyTuple, PyType,
};

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Null,
    Bool,
    Int,
    Float,
    Decimal,
    Str,
    Bytes,
    /// One of the standard library itself.
    Datetime,
    /// A class below it, which may have more than that one: nanoseconds, say.
    Moment,
    Date,
    Time,
    Timedelta,
    Uuid,
    Address,
    Dict,
    List,
    /// An enum's member that goes by its name.
    EnumName,
    /// One that is a string or a number as well, and goes by that.
    EnumValue,
    /// psycopg's wrappers of JSON.
    Json,
    Numpy,
    NumpyArray,
    NumpyDatetime,
    NumpyTimedelta,
    Unknown,
}

/// The classes met so far.
pub(crate) struct Classes {
    known: Vec<(usize, Class)>,
    /// Those that are known, to keep them where they are.
    kept: Vec<Py<PyType>>,
    /// Classes of the standard library that are not built in, those that others derive from last.
    standard: Vec<(Py<PyAny>, Class)>,
    enums: Py<PyAny>,
    dumps: Py<PyAny>,
    utc: Py<PyAny>,
    epoch: Py<PyAny>,
    epoch_utc: Py<PyAny>,
}

/// Modules and classes, in the order in which they are asked.
const STANDARD: [(&str, &str, Class); 12] = [
    ("decimal", "Decimal", Class::Decimal),
    ("datetime", "datetime", Class::Datetime),
    ("datetime", "date", Class::Date),
    ("datetime", "time", Class::Time),
    ("datetime", "timedelta", Class::Timedelta),
    ("uuid", "UUID", Class::Uuid),
    ("ipaddress", "IPv4Address", Class::Address),
    ("ipaddress", "IPv6Address", Class::Address),
    ("ipaddress", "IPv4Interface", Class::Address),
    ("ipaddress", "IPv6Interface", Class::Address),
    ("ipaddress", "IPv4Network", Class::Address),
    ("ipaddress", "IPv6Network", Class::Address),
];

impl Classes {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Classes> {
        let mut standard = Vec::with_capacity(STANDARD.len());
        for (module, name, class) in STANDARD {
            standard.push((py.import(module)?.getattr(name)?.unbind(), class));
        }
        let datetime = py.import("datetime")?;
        let utc = datetime.getattr("timezone")?.getattr("utc")?;
        let datetime = datetime.getattr("datetime")?;
        let epoch_utc = datetime.call1((1970, 1, 1, 0, 0, 0, 0, &utc))?.unbind();
        Ok(Classes {
            known: Vec::new(),
            kept: Vec::new(),
            standard,
            enums: py.import("enum")?.getattr("Enum")?.unbind(),
            dumps: py.import("json")?.getattr("dumps")?.unbind(),
            utc: utc.unbind(),
            epoch: datetime.call1((1970, 1, 1))?.unbind(),
            epoch_utc,
        })
    }

    /// What `value` is.
    pub(crate) fn of(&mut self, value: &Bound<'_, PyAny>) -> PyResult<Class> {
        let address = value.get_type_ptr() as usize;
        if let Some((_, class)) = self.known.iter().find(|(known, _)| *known == address) {
            return Ok(*class);
        }
        let class = self.look(value)?;
        self.kept.push(value.get_type().unbind());
        self.known.push((address, class));
        Ok(class)
    }

    /// `json.dumps(value)`
    pub(crate) fn dumps<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
        Ok(self.dumps.bind(value.py()).call1((value,))?.cast_into()?)
    }

    /// `datetime.timezone.utc`
    pub(crate) fn utc<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.utc.bind(py)
    }

    /// The first moment of 1970, without a zone.
    pub(crate) fn epoch<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.epoch.bind(py)
    }

    /// The first moment of 1970 in UTC.
    pub(crate) fn epoch_utc<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.epoch_utc.bind(py)
    }

    /// A value of numpy's as one of Python's. `None` where Python has no class for it: numpy gives
    /// such a value back as it is.
    pub(crate) fn plain<'py>(
        class: Class,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let method = if class == Class::NumpyArray { "tolist" } else { "item" };
        let plain = value.call_method0(method)?;
        Ok((plain.get_type_ptr() != value.get_type_ptr()).then_some(plain))
    }

    fn look(&self, value: &Bound<'_, PyAny>) -> PyResult<Class> {
        let py = value.py();
        let ty = value.get_type();
        let name = ty.name()?.to_string();
        if value.is_none() || matches!(name.as_str(), "NaTType" | "NAType") {
            return Ok(Class::Null);
        }
        if value.is_instance(self.enums.bind(py))? {
            let is_more = value.is_instance_of::<PyString>()
                || value.is_instance_of::<PyInt>()
                || value.is_instance_of::<PyFloat>();
            return Ok(if is_more { Class::EnumValue } else { Class::EnumName });
        }
        let module = ty.module()?.to_string();
        if module.starts_with("psycopg") && matches!(name.as_str(), "Json" | "Jsonb") {
            return Ok(Class::Json);
        }
        if module == "numpy" || module.starts_with("numpy.") {
            return Ok(match name.as_str() {
                "MaskedConstant" => Class::Null,
                "ndarray" | "MaskedArray" => Class::NumpyArray,
                "datetime64" => Class::NumpyDatetime,
                "timedelta64" => Class::NumpyTimedelta,
                _ if value.hasattr("item")? => Class::Numpy,
                _ => Class::Unknown,
            });
        }
        for (class, found) in &self.standard {
            if value.is_instance(class.bind(py))? {
                let is_below = *found == Class::Datetime && !ty.is(class.bind(py));
                return Ok(if is_below { Class::Moment } else { *found });
            }
        }
        Ok(if value.is_instance_of::<PyBool>() {
            Class::Bool
        } else if value.is_instance_of::<PyInt>() {
            Class::Int
        } else if value.is_instance_of::<PyFloat>() {
            Class::Float
        } else if value.is_instance_of::<PyString>() {
            Class::Str
        } else if value.is_instance_of::<PyBytes>()
            || value.is_instance_of::<PyByteArray>()
            || value.is_instance_of::<PyMemoryView>()
        {
            Class::Bytes
        } else if value.is_instance_of::<PyDict>() {
            Class::Dict
        } else if value.is_instance_of::<PyList>()
            || value.is_instance_of::<PyTuple>()
            || value.is_instance_of::<PySet>()
            || value.is_instance_of::<PyFrozenSet>()
        {
            Class::List
        } else {
            Class::Unknown
        })
    }
}

//! Finds out the kind of a Python value from the value's class.
//!
//! Each class is examined once, and then found in a cache by its address. The cache holds a
//! reference to the class, so that Python does not give the address to another class.

use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMemoryView, PySet,
    PyString, PyTuple, PyType,
};

use crate::numpy_values::{has_times, numpy_items};
use crate::object_memory::ObjectMemory;

/// The kind of a value, which decides how the value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueClass {
    Null,
    Bool,
    Int,
    Float,
    Decimal,
    Str,
    Bytes,
    /// `datetime.datetime` itself.
    Datetime,
    /// A subclass of `datetime`, which may hold more, such as nanoseconds.
    DatetimeSubclass,
    Date,
    Time,
    Timedelta,
    Uuid,
    Address,
    Dict,
    List,
    /// A member of an enum that is stored by its name.
    EnumName,
    /// A member of an enum that is also a string or a number, and is stored as its value.
    EnumValue,
    /// `Json` or `Jsonb` of psycopg, or `Json` of psycopg2.
    Json,
    /// `Range` of a driver or of SQLAlchemy.
    Range,
    /// `Multirange` of psycopg, which is no list.
    Multirange,
    Numpy,
    NumpyArray,
    NumpyDatetime,
    NumpyTimedelta,
    Unknown,
}

impl ValueClass {
    /// Returns whether a value may change while it is in a row.
    pub(crate) fn may_change(self) -> bool {
        use ValueClass::{Bytes, Dict, Json, List, Multirange, NumpyArray};
        matches!(self, Bytes | Dict | Json | List | Multirange | NumpyArray)
    }
}

/// A cache of the kinds of classes, with the Python objects that the conversion of values needs.
pub(crate) struct ClassCache {
    /// The addresses of classes, with the kind of their values.
    known: Vec<(usize, ValueClass)>,
    /// References to the classes of `known`, so that their addresses stay valid.
    references: Vec<Py<PyType>>,
    /// The classes of [`STANDARD`].
    standard: Vec<(Py<PyAny>, ValueClass)>,
    enum_class: Py<PyAny>,
    encode_json: Py<PyAny>,
    encode_wrapped: Py<PyAny>,
    decimal: Py<PyAny>,
    timedelta: Py<PyAny>,
    utc: Py<PyAny>,
    epoch: Py<PyAny>,
    epoch_utc: Py<PyAny>,
    memory: ObjectMemory,
}

/// Classes of the standard library that are not built in: module, class, and kind of the values.
/// They are checked in this order, so a subclass comes before its base class.
const STANDARD: [(&str, &str, ValueClass); 12] = [
    ("decimal", "Decimal", ValueClass::Decimal),
    ("datetime", "datetime", ValueClass::Datetime),
    ("datetime", "date", ValueClass::Date),
    ("datetime", "time", ValueClass::Time),
    ("datetime", "timedelta", ValueClass::Timedelta),
    ("uuid", "UUID", ValueClass::Uuid),
    ("ipaddress", "IPv4Address", ValueClass::Address),
    ("ipaddress", "IPv6Address", ValueClass::Address),
    ("ipaddress", "IPv4Interface", ValueClass::Address),
    ("ipaddress", "IPv6Interface", ValueClass::Address),
    ("ipaddress", "IPv4Network", ValueClass::Address),
    ("ipaddress", "IPv6Network", ValueClass::Address),
];

impl ClassCache {
    pub(crate) fn new(py: Python<'_>) -> PyResult<ClassCache> {
        let mut standard = Vec::with_capacity(STANDARD.len());
        for (module, name, class) in STANDARD {
            standard.push((py.import(module)?.getattr(name)?.unbind(), class));
        }
        let datetime = py.import("datetime")?;
        let json = py.import("pgspate._json")?;
        let timedelta = datetime.getattr("timedelta")?;
        let utc = datetime.getattr("timezone")?.getattr("utc")?;
        let (date, datetime) = (datetime.getattr("date")?, datetime.getattr("datetime")?);
        let decimal = py.import("decimal")?.getattr("Decimal")?;
        let epoch_utc = datetime.call1((1970, 1, 1, 0, 0, 0, 0, &utc))?.unbind();
        Ok(ClassCache {
            known: Vec::new(),
            references: Vec::new(),
            standard,
            enum_class: py.import("enum")?.getattr("Enum")?.unbind(),
            encode_json: json.getattr("encode")?.unbind(),
            encode_wrapped: json.getattr("encode_wrapped")?.unbind(),
            memory: ObjectMemory::probe(&decimal, &date, &datetime, &utc),
            decimal: decimal.unbind(),
            timedelta: timedelta.unbind(),
            utc: utc.unbind(),
            epoch: datetime.call1((1970, 1, 1))?.unbind(),
            epoch_utc,
        })
    }

    /// Returns the kind of `value`.
    pub(crate) fn class_of(&mut self, value: &Bound<'_, PyAny>) -> PyResult<ValueClass> {
        let address = value.get_type_ptr() as usize;
        if let Some((_, class)) = self.known.iter().find(|(known, _)| *known == address) {
            return Ok(*class);
        }
        let class = self.classify(value)?;
        self.references.push(value.get_type().unbind());
        self.known.push((address, class));
        Ok(class)
    }

    /// Returns a value as JSON text.
    pub(crate) fn encode_json<'py>(
        &self,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyString>> {
        Ok(self.encode_json.bind(value.py()).call1((value,))?.cast_into()?)
    }

    /// Returns a value that a class of psycopg marks as JSON, as JSON text.
    pub(crate) fn encode_wrapped<'py>(
        &self,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyString>> {
        Ok(self.encode_wrapped.bind(value.py()).call1((value,))?.cast_into()?)
    }

    /// Returns a `Decimal` itself for one of a subclass, which may write its text in its own way.
    pub(crate) fn plain_decimal<'py>(
        &self,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let decimal = self.decimal.bind(value.py());
        if value.get_type().is(decimal) { Ok(value.clone()) } else { decimal.call1((value,)) }
    }

    /// Returns whether a value is a `datetime.timedelta` itself, and of no subclass.
    pub(crate) fn is_plain_timedelta(&self, value: &Bound<'_, PyAny>) -> bool {
        value.get_type().is(self.timedelta.bind(value.py()))
    }

    /// Returns the classes whose values can be read from memory.
    pub(crate) fn memory(&self) -> ObjectMemory {
        self.memory
    }

    /// Returns `datetime.timezone.utc`.
    pub(crate) fn utc<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.utc.bind(py)
    }

    /// Returns 1970-01-01 00:00:00 without a time zone.
    pub(crate) fn epoch<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.epoch.bind(py)
    }

    /// Returns 1970-01-01 00:00:00 in UTC.
    pub(crate) fn epoch_utc<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.epoch_utc.bind(py)
    }

    /// Converts a value of numpy to a value of Python. Returns `None` if Python has no class for
    /// the value: numpy's method then returns the value itself. Times in an array stay numpy's:
    /// numpy's method would make integers of them.
    pub(crate) fn from_numpy<'py>(
        class: ValueClass,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let is_array = class == ValueClass::NumpyArray;
        if is_array && has_times(value)? {
            return numpy_items(value).map(Some);
        }
        let plain = value.call_method0(if is_array { "tolist" } else { "item" })?;
        Ok((plain.get_type_ptr() != value.get_type_ptr()).then_some(plain))
    }

    fn classify(&self, value: &Bound<'_, PyAny>) -> PyResult<ValueClass> {
        let py = value.py();
        let ty = value.get_type();
        let name = ty.name()?.to_string();
        if value.is_none() || matches!(name.as_str(), "NaTType" | "NAType") {
            return Ok(ValueClass::Null);
        }
        if value.is_instance(self.enum_class.bind(py))? {
            let has_value = value.is_instance_of::<PyString>()
                || value.is_instance_of::<PyInt>()
                || value.is_instance_of::<PyFloat>();
            return Ok(if has_value { ValueClass::EnumValue } else { ValueClass::EnumName });
        }
        if let Some(class) = class_of_driver(&ty)? {
            return Ok(class);
        }
        let module = ty.module()?.to_string();
        if module == "numpy" || module.starts_with("numpy.") {
            return Ok(match name.as_str() {
                "MaskedConstant" => ValueClass::Null,
                "ndarray" | "MaskedArray" | "memmap" => ValueClass::NumpyArray,
                "datetime64" => ValueClass::NumpyDatetime,
                "timedelta64" => ValueClass::NumpyTimedelta,
                _ if value.hasattr("item")? => ValueClass::Numpy,
                _ => ValueClass::Unknown,
            });
        }
        for (class, found) in &self.standard {
            if value.is_instance(class.bind(py))? {
                let is_subclass = *found == ValueClass::Datetime && !ty.is(class.bind(py));
                return Ok(if is_subclass { ValueClass::DatetimeSubclass } else { *found });
            }
        }
        Ok(if value.is_instance_of::<PyBool>() {
            ValueClass::Bool
        } else if value.is_instance_of::<PyInt>() {
            ValueClass::Int
        } else if value.is_instance_of::<PyFloat>() {
            ValueClass::Float
        } else if value.is_instance_of::<PyString>() {
            ValueClass::Str
        } else if value.is_instance_of::<PyBytes>()
            || value.is_instance_of::<PyByteArray>()
            || value.is_instance_of::<PyMemoryView>()
        {
            ValueClass::Bytes
        } else if value.is_instance_of::<PyDict>() {
            ValueClass::Dict
        } else if value.is_instance_of::<PyList>()
            || value.is_instance_of::<PyTuple>()
            || value.is_instance_of::<PySet>()
            || value.is_instance_of::<PyFrozenSet>()
        {
            ValueClass::List
        } else {
            ValueClass::Unknown
        })
    }
}

/// Returns the kind of a class of a driver or of SQLAlchemy, and of its subclasses.
fn class_of_driver(ty: &Bound<'_, PyType>) -> PyResult<Option<ValueClass>> {
    for base in ty.mro().iter() {
        let base = base.cast_into::<PyType>()?;
        let (name, module) = (base.name()?, base.module()?);
        let (name, module) = (name.to_str()?, module.to_str()?);
        let is_psycopg = module.starts_with("psycopg");
        let has_ranges =
            is_psycopg || ["sqlalchemy.", "asyncpg."].iter().any(|it| module.starts_with(it));
        match name {
            "Json" | "Jsonb" if is_psycopg => return Ok(Some(ValueClass::Json)),
            "Multirange" if is_psycopg => return Ok(Some(ValueClass::Multirange)),
            "Range" if has_ranges => return Ok(Some(ValueClass::Range)),
            _ => {}
        }
    }
    Ok(None)
}

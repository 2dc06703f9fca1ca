//! One column of Python's rows, value by value.
//!
//! What most values are is told apart by the address of their class, which is that of the value
//! above; those go into the batch as they are, and what they look like as text is for the engine's
//! threads. All others are spelled here. Either way a value means what its spelling means.

use arrow_array::ArrayRef;
use pgspate::encode::arrow::TaggedBuilder;
use pgspate::target::PgType;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::classes::{Class, Classes};
use crate::rows::Fault;
use crate::spell::{Speller, Target, span};

/// The day 1970-01-01 as Python counts days.
const EPOCH_ORDINAL: i64 = 719_163;
const DAY_MICROS: i64 = 86_400_000_000;

/// A column, and the batch's part of it that is being made.
pub(crate) struct Column {
    values: TaggedBuilder,
    to: Target,
    /// The address of the last value's class, and what it is.
    last: (usize, Class),
}

impl Column {
    /// One for a table's column of a type; none for one that is not loaded.
    pub(crate) fn of(ty: Option<&PgType>) -> Column {
        let to = ty.map_or(Target::None, Target::of);
        Column { values: TaggedBuilder::default(), to, last: (0, Class::Null) }
    }

    /// Appends a value, whose class is at the address `class`; gives how many bytes it is. `text`
    /// is anything.
    pub(crate) fn put(
        &mut self,
        value: &Bound<'_, PyAny>,
        class: usize,
        speller: &mut Speller,
        text: &mut String,
    ) -> Result<usize, Fault> {
        let before = self.values.len();
        if value.is_none() || self.to == Target::None {
            self.values.null();
            return Ok(0);
        }
        if class != self.last.0 {
            // Classes that are known stay where they are.
            self.last = (class, speller.classes.of(value)?);
        }
        let class = self.last.1;
        match class {
            Class::Str => {
                self.values.text(value.cast::<PyString>().map_err(PyErr::from)?.to_str()?);
            }
            Class::Int => match value.extract() {
                Ok(value) => self.values.int(value),
                // A larger one has all its digits still.
                Err(_) => self.values.text(value.str()?.to_str()?),
            },
            Class::Float => self.values.float(value.extract()?),
            Class::Date => {
                let ordinal = value.call_method0(intern!(value.py(), "toordinal"))?;
                self.values.date(ordinal.extract::<i64>()? - EPOCH_ORDINAL);
            }
            _ if class == Class::Datetime && self.datetime(value, &speller.classes)? => {}
            _ => {
                text.clear();
                match speller.spell(value, &self.to, text)? {
                    true => self.values.text(text),
                    false => self.values.null(),
                }
            }
        }
        Ok(self.values.len() - before)
    }

    /// The batch's part of it.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        self.values.finish()
    }

    /// Appends a moment, if it needs no zone of the session's: text takes six times as long. One
    /// with a zone goes into a column without one as its UTC wall clock.
    fn datetime(&mut self, value: &Bound<'_, PyAny>, classes: &Classes) -> PyResult<bool> {
        let py = value.py();
        let has_zone = !value.getattr(intern!(py, "tzinfo"))?.is_none();
        match (&self.to, has_zone) {
            (Target::Stamp, false) => self.values.timestamp(micros(value, classes.epoch(py))?),
            (Target::Stamp, true) => self.values.timestamp(micros(value, classes.epoch_utc(py))?),
            (Target::Instant, true) => {
                self.values.timestamptz(micros(value, classes.epoch_utc(py))?)
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Microseconds from one moment to another.
fn micros(value: &Bound<'_, PyAny>, epoch: &Bound<'_, PyAny>) -> PyResult<i64> {
    let (days, seconds, micros) = span(&value.sub(epoch)?)?;
    Ok(days * DAY_MICROS + seconds * 1_000_000 + micros)
}

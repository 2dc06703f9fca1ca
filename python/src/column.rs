//! Appends Python's values to a column of a record batch.
//!
//! Most values have the class of the value before, so the address of the class identifies them.
//! Common classes go into the batch as Arrow values, and the engine's threads write their text.
//! Other values become text here. Both forms store the same value.

use arrow_array::ArrayRef;
use pgspate::encode::arrow::TaggedBuilder;
use pgspate::target::PgType;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::classes::{ClassCache, ValueClass};
use crate::rows::RowFault;
use crate::spell::{Speller, SpellingTarget, span};

/// 1970-01-01 as `date.toordinal` counts days.
const EPOCH_ORDINAL: i64 = 719_163;
const DAY_MICROS: i64 = 86_400_000_000;

/// A column of the table, and the array that is being built for it.
pub(crate) struct ColumnWriter {
    values: TaggedBuilder,
    to: SpellingTarget,
    /// The address of the last value's class, and the kind of value.
    last: (usize, ValueClass),
}

impl ColumnWriter {
    /// Returns the writer for a column of this type, or for a column that is not loaded (`None`).
    pub(crate) fn of(ty: Option<&PgType>) -> ColumnWriter {
        let to = ty.map_or(SpellingTarget::None, SpellingTarget::of);
        ColumnWriter { values: TaggedBuilder::default(), to, last: (0, ValueClass::Null) }
    }

    /// Appends a value whose class is at the address `class`, and returns its size in bytes. `text`
    /// is a scratch buffer.
    pub(crate) fn append(
        &mut self,
        value: &Bound<'_, PyAny>,
        class: usize,
        speller: &mut Speller,
        text: &mut String,
    ) -> Result<usize, RowFault> {
        let before = self.values.len();
        if value.is_none() || self.to == SpellingTarget::None {
            self.values.null();
            return Ok(0);
        }
        if class != self.last.0 {
            // The cache holds the class, so its address stays valid.
            self.last = (class, speller.classes.class_of(value)?);
        }
        let class = self.last.1;
        match class {
            ValueClass::Str => {
                self.values.text(value.cast::<PyString>().map_err(PyErr::from)?.to_str()?);
            }
            ValueClass::Int => match value.extract() {
                Ok(value) => self.values.int(value),
                // Text keeps all digits of an int that i64 does not hold.
                Err(_) => self.values.text(value.str()?.to_str()?),
            },
            ValueClass::Float => self.values.float(value.extract()?),
            ValueClass::Date => {
                let ordinal = value.call_method0(intern!(value.py(), "toordinal"))?;
                self.values.date(ordinal.extract::<i64>()? - EPOCH_ORDINAL);
            }
            _ if class == ValueClass::Datetime
                && self.append_datetime(value, &speller.classes)? => {}
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

    /// Returns the array of the appended values, and begins a new one.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        self.values.finish()
    }

    /// Appends a datetime as an Arrow value and returns true, unless the value needs the session's
    /// time zone. Text would take six times as long. In a column without time zone, a datetime with
    /// a zone becomes its UTC wall clock.
    fn append_datetime(
        &mut self,
        value: &Bound<'_, PyAny>,
        classes: &ClassCache,
    ) -> PyResult<bool> {
        let py = value.py();
        let has_zone = !value.getattr(intern!(py, "tzinfo"))?.is_none();
        match (&self.to, has_zone) {
            (SpellingTarget::Timestamp, false) => {
                self.values.timestamp(micros(value, classes.epoch(py))?)
            }
            (SpellingTarget::Timestamp, true) => {
                self.values.timestamp(micros(value, classes.epoch_utc(py))?)
            }
            (SpellingTarget::Timestamptz, true) => {
                self.values.timestamptz(micros(value, classes.epoch_utc(py))?)
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns the microseconds from `epoch` to `value`.
fn micros(value: &Bound<'_, PyAny>, epoch: &Bound<'_, PyAny>) -> PyResult<i64> {
    let (days, seconds, micros) = span(&value.sub(epoch)?)?;
    Ok(days * DAY_MICROS + seconds * 1_000_000 + micros)
}

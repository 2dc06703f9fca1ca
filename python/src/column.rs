//! Appends Python's values to a column of a record batch.
//!
//! Values of common classes are appended as Arrow values, which the engine's threads write as text.
//! Values of other classes are appended as text. Both forms store the same value. Most values have
//! the class of the previous value, so the column remembers the kind of the last class.

use arrow_array::ArrayRef;
use pgspate::encode::arrow::TaggedBuilder;
use pgspate::format::guessed_type::GuessedType;
use pgspate::format::memory::BatchTarget;
use pyo3::intern;
use pyo3::prelude::*;

use crate::classes::{ClassCache, ValueClass};
use crate::kept::check_is_kept;
use crate::rows::RowFault;
use crate::time_text::timedelta_parts;
use crate::value_text::{TextTarget, ValueTextWriter, long_int_text, text_of_str};

/// The result of `date.toordinal` for 1970-01-01.
const EPOCH_ORDINAL: i64 = 719_163;
const DAY_MICROS: i64 = 86_400_000_000;

/// A column of the table, and the array that is being built for it.
pub(crate) struct ColumnWriter {
    values: TaggedBuilder,
    target: TextTarget,
    /// The column's type, if it was guessed from the first rows.
    guessed_type: Option<GuessedType>,
    /// The address of the last value's class, and the kind of its values.
    last_class: (usize, ValueClass),
}

impl ColumnWriter {
    /// Returns the writer for this column, or for a column that is not loaded (`None`).
    pub(crate) fn for_column(column: Option<&BatchTarget>) -> ColumnWriter {
        ColumnWriter {
            values: TaggedBuilder::default(),
            target: column.map_or(TextTarget::NoColumn, |column| TextTarget::of(&column.ty)),
            guessed_type: column.and_then(|column| column.guessed_type),
            last_class: (0, ValueClass::Null),
        }
    }

    /// Appends a value whose class is at the address `class`, and returns its size in bytes. `text`
    /// is a scratch buffer.
    pub(crate) fn append(
        &mut self,
        value: &Bound<'_, PyAny>,
        class: usize,
        text_writer: &mut ValueTextWriter,
        text: &mut String,
    ) -> Result<usize, RowFault> {
        let before = self.values.len();
        if value.is_none() || self.target == TextTarget::NoColumn {
            self.values.null();
            return Ok(0);
        }
        if class != self.last_class.0 {
            // The cache holds the class, so its address stays valid.
            self.last_class = (class, text_writer.classes.class_of(value)?);
        }
        let class = self.last_class.1;
        if let Some(guessed) = self.guessed_type {
            check_is_kept(guessed, value, class, text_writer)?;
        }
        match class {
            // The writer of texts decides which values are bytes.
            _ if self.target == TextTarget::Bytes => {
                self.append_text(value, text_writer, text)?;
            }
            ValueClass::Str => self.values.text(text_of_str(value)?),
            ValueClass::Int => match value.extract() {
                Ok(value) => self.values.int(value),
                // An int outside the range of i64 is written as text, with all digits.
                Err(_) => self.values.text(&long_int_text(value)?),
            },
            ValueClass::Float => {
                let value = value.extract()?;
                match whole_number(value).filter(|_| self.target == TextTarget::Integer) {
                    Some(whole) => self.values.int(whole),
                    None => self.values.float(value),
                }
            }
            ValueClass::Date => {
                let days = match text_writer.classes.memory().date_days(value) {
                    Some(days) => days,
                    None => {
                        let ordinal = value.call_method0(intern!(value.py(), "toordinal"))?;
                        ordinal.extract::<i64>()? - EPOCH_ORDINAL
                    }
                };
                self.values.date(days);
            }
            _ if class == ValueClass::Datetime
                && self.append_datetime(value, &text_writer.classes)? => {}
            _ => self.append_text(value, text_writer, text)?,
        }
        Ok(self.values.len() - before)
    }

    /// Appends a value as text.
    fn append_text(
        &mut self,
        value: &Bound<'_, PyAny>,
        text_writer: &mut ValueTextWriter,
        text: &mut String,
    ) -> Result<(), RowFault> {
        text.clear();
        match text_writer.write_text(value, &self.target, text)? {
            true => self.values.text(text),
            false => self.values.null(),
        }
        Ok(())
    }

    /// Returns the array of the appended values, and begins a new array.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        self.values.finish()
    }

    /// Appends a datetime as an Arrow value, which takes a sixth of the time of text. Returns false
    /// and appends nothing if the server must read the value as text, for example because the value
    /// needs the session's time zone. In a column without time zone, a datetime with a zone is
    /// stored as its time in UTC.
    fn append_datetime(
        &mut self,
        value: &Bound<'_, PyAny>,
        classes: &ClassCache,
    ) -> PyResult<bool> {
        let py = value.py();
        let known = classes.memory().datetime_micros(value);
        let has_zone = match known {
            Some(known) => known.is_utc,
            None => !value.getattr(intern!(py, "tzinfo"))?.is_none(),
        };
        let micros = |epoch| known.map_or_else(|| micros_since(value, epoch), |it| Ok(it.micros));
        match (&self.target, has_zone) {
            (TextTarget::Timestamp, false) => self.values.timestamp(micros(classes.epoch(py))?),
            (TextTarget::Timestamp, true) => self.values.timestamp(micros(classes.epoch_utc(py))?),
            (TextTarget::Timestamptz, true) => {
                self.values.timestamptz(micros(classes.epoch_utc(py))?)
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns the whole number that a float is. As text, it may have an exponent, which columns of
/// integers do not take.
fn whole_number(value: f64) -> Option<i64> {
    let limit = 2_f64.powi(63);
    (value.fract() == 0.0 && (-limit..limit).contains(&value)).then_some(value as i64)
}

/// Returns the microseconds from `epoch` to `value`.
fn micros_since(value: &Bound<'_, PyAny>, epoch: &Bound<'_, PyAny>) -> PyResult<i64> {
    let (days, seconds, micros) = timedelta_parts(&value.sub(epoch)?)?;
    Ok(days * DAY_MICROS + seconds * 1_000_000 + micros)
}

//! The values of `set=`, which all rows get.
//!
//! A value means what it means in a row. How it is written depends on the type of its column, which
//! the engine finds out in a thread that runs no Python. So each value is written for columns of
//! all kinds beforehand.

use pgspate::plan::{ConstantTexts, RowRequest};
use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, InputPlace, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::to_exception;
use crate::rows::RowFault;
use crate::value_text::{TextTarget, ValueTextWriter};

/// A value as the columns of each kind take it.
struct WrittenConstant {
    column: String,
    texts: Vec<(TextTarget, Result<Option<String>, Refusal>)>,
}

/// Why columns of a kind do not take a value.
struct Refusal {
    message: String,
    hint: Option<String>,
}

/// Sets the values of `set=`.
///
/// # Errors
/// `ConversionError` if no column can store a value.
pub(crate) fn set_constants(
    constants: &Bound<'_, PyDict>,
    request: &mut RowRequest,
) -> PyResult<()> {
    let py = constants.py();
    let mut writer = ValueTextWriter::new(py)?;
    let mut values = Vec::new();
    for (column, value) in constants {
        let value = WrittenConstant::write(column.extract()?, &value, &mut writer)?;
        let text = value.first_text().map_err(|error| to_exception(py, &error))?;
        request.constants.push((value.column.clone(), text));
        values.push(value);
    }
    let text_for = move |column: &str, ty: &PgType| {
        let value = values.iter().find(|value| value.column == column);
        value.map_or(Ok(None), |value| value.text_for(&TextTarget::of(ty)))
    };
    request.constant_texts = Some(ConstantTexts::new(text_for));
    Ok(())
}

impl WrittenConstant {
    fn write(
        column: String,
        value: &Bound<'_, PyAny>,
        writer: &mut ValueTextWriter,
    ) -> PyResult<WrittenConstant> {
        let mut texts = Vec::new();
        for target in targets() {
            let mut text = String::new();
            let text = match writer.write_text(value, &target, &mut text) {
                Ok(has_value) => Ok(has_value.then_some(text)),
                Err(RowFault::Python(error)) => return Err(error),
                Err(RowFault::Value(error)) => Err(Refusal {
                    message: error.to_string(),
                    hint: error.hint_text().map(str::to_owned),
                }),
            };
            texts.push((target, text));
        }
        Ok(WrittenConstant { column, texts })
    }

    /// Returns the text for the first kind of columns that takes the value. A load's identity has
    /// this text, because the load may create its table.
    fn first_text(&self) -> Result<Option<String>> {
        let taken = self.texts.iter().find_map(|(_, text)| text.as_ref().ok());
        taken.map_or_else(|| self.text_for(&TextTarget::Other), |text| Ok(text.clone()))
    }

    fn text_for(&self, target: &TextTarget) -> Result<Option<String>> {
        let find = |target| self.texts.iter().find(|(known, _)| known == target);
        // The first kind is `Other`.
        let (_, text) = find(target)
            .or_else(|| self.texts.first())
            .ok_or_else(|| Error::new(ErrorKind::Bug, "a value of `set=` has no text"))?;
        match text {
            Ok(text) => Ok(text.clone()),
            Err(Refusal { message, hint }) => {
                let column = Some(self.column.clone());
                let place = InputPlace { column, ..InputPlace::default() };
                let error = Error::new(ErrorKind::Type, message.as_str()).at(place);
                Err(error.hint_if(hint.as_deref()))
            }
        }
    }
}

/// Returns the kinds of columns. `Other` is the first one.
fn targets() -> Vec<TextTarget> {
    use TextTarget::{
        Array, Bytes, DateOrTime, Float, Hstore, Integer, Json, Other, Range, Text, Timestamp,
        Timestamptz, Vector,
    };
    let mut found = vec![
        Other,
        Text,
        Integer,
        Float,
        Bytes,
        Json,
        DateOrTime,
        Timestamp,
        Timestamptz,
        Vector,
        Hstore,
    ];
    let ranges: Vec<_> = found.iter().cloned().map(|bound| Range(Box::new(bound))).collect();
    found.extend(ranges);
    let arrays: Vec<_> = found.iter().cloned().map(|it| Array(Box::new(it), ',')).collect();
    found.extend(arrays);
    // The elements of an array of boxes have a semicolon between them.
    found.push(Array(Box::new(Other), ';'));
    found
}

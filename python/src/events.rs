//! Converts Python's events into lines of JSON, which the engine decodes.
//!
//! Events that are text stay as they are, and dicts become JSON. Each event is put into the queue
//! before the next one is read, because the next one may take long to come. The queue joins events
//! into blocks.

use std::fmt::Write as _;
use std::io::{self, Cursor, Read};

use pgspate::format::memory::BatchTarget;
use pgspate::{Error, ErrorKind, InputPlace, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyIterator, PyString};

use crate::batch_queue::{Batch, BatchQueue};
use crate::call::MakeBatches;
use crate::classes::{ClassCache, ValueClass};
use crate::numpy_values::{is_narrow_float, numpy_items, widened};
use crate::rows::RowFault;
use crate::value_text::{TextTarget, ValueTextWriter, text_of_str};

/// The size in bytes at which a block of events is complete.
const BLOCK_BYTES: usize = 64 << 10;
/// The deepest nesting of an event.
const DEPTH_MAX: usize = 100;

/// Python's events, and their conversion.
pub(crate) struct PythonEvents {
    events: Py<PyIterator>,
    text_writer: ValueTextWriter,
    name: String,
    /// The number of events read so far.
    count: u64,
}

impl PythonEvents {
    pub(crate) fn new(data: &Bound<'_, PyAny>, name: &str) -> PyResult<PythonEvents> {
        Ok(PythonEvents {
            events: data.try_iter()?.unbind(),
            text_writer: ValueTextWriter::new(data.py())?,
            name: name.to_owned(),
            count: 0,
        })
    }

    /// Appends an event as a line.
    fn append_line(&mut self, event: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
        let start = out.len();
        if let Ok(text) = event.cast::<PyString>() {
            out.push_str(text_of_str(text)?);
        } else if let Ok(bytes) = event.cast::<PyBytes>() {
            let text = std::str::from_utf8(bytes.as_bytes());
            out.push_str(text.map_err(|_| format_fault("the event is not UTF-8"))?);
        } else if event.cast::<PyDict>().is_ok() {
            self.append_json(event, DEPTH_MAX, out)?;
        } else {
            let class = event.get_type().fully_qualified_name()?;
            let message = format!("an object of class {class} is not an event");
            return Err(RowFault::Value(
                Error::new(ErrorKind::Format, message).hint("Give dicts, or JSON as str or bytes."),
            ));
        }
        // JSON may contain line ends between its tokens, but the engine reads one event per line.
        if out[start..].contains(['\n', '\r']) {
            let line = joined_lines(&out[start..])?;
            out.truncate(start);
            out.push_str(&line);
        }
        out.push('\n');
        Ok(())
    }

    /// Appends a value as JSON. A value that has no type in JSON becomes a string with the text for
    /// its column. `depth` is how much deeper the value may be nested.
    fn append_json(
        &mut self,
        value: &Bound<'_, PyAny>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), RowFault> {
        if depth == 0 {
            return Err(format_fault("the event is nested too deep, or contains itself"));
        }
        match self.text_writer.classes.class_of(value)? {
            ValueClass::Null => out.push_str("null"),
            ValueClass::Int | ValueClass::Bool => {
                self.text_writer.write_text(value, &TextTarget::Other, out)?;
            }
            ValueClass::Str => append_json_string(text_of_str(value)?, out),
            ValueClass::Dict => {
                let dict = value.cast::<PyDict>().map_err(PyErr::from)?;
                self.append_object(dict, depth - 1, out)?;
            }
            ValueClass::List => self.append_array(value, depth - 1, out)?,
            ValueClass::EnumValue => {
                return self.append_json(&value.getattr("value")?, depth - 1, out);
            }
            ValueClass::Json => match wrapped_value(value)? {
                Some(inner) => return self.append_json(&inner, depth - 1, out),
                None => self.append_json_text(value, out)?,
            },
            ValueClass::Numpy if is_narrow_float(value)? => {
                // JSON has the digits of 32 bits, as in Arrow data.
                let widened = PyFloat::new(value.py(), widened(value.extract()?));
                return self.append_json(widened.as_any(), depth - 1, out);
            }
            ValueClass::NumpyArray if is_narrow_float(value)? => {
                return self.append_json(&numpy_items(value)?, depth - 1, out);
            }
            class @ (ValueClass::Numpy | ValueClass::NumpyArray) => {
                if let Some(plain) = ClassCache::from_numpy(class, value)? {
                    return self.append_json(&plain, depth - 1, out);
                }
                self.append_text(value, out)?;
            }
            ValueClass::Bytes => {
                let mut text = String::new();
                self.text_writer.write_text(value, &TextTarget::Bytes, &mut text)?;
                append_json_string(&text, out);
            }
            ValueClass::Float | ValueClass::Decimal => {
                let mut text = String::new();
                self.text_writer.write_text(value, &TextTarget::Other, &mut text)?;
                // JSON has no infinity and no NaN.
                match text.contains(['n', 'N']) {
                    true => append_json_string(&text, out),
                    false => out.push_str(&text),
                }
            }
            _ => self.append_text(value, out)?,
        }
        Ok(())
    }

    /// Appends a dict as a JSON object. `depth` is how much deeper its values may be nested.
    fn append_object(
        &mut self,
        dict: &Bound<'_, PyDict>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), RowFault> {
        out.push('{');
        for (nth, (key, value)) in dict.iter().enumerate() {
            if nth > 0 {
                out.push(',');
            }
            if !key.is_instance_of::<PyString>() {
                return Err(format_fault("the event has a key that is not a str"));
            }
            append_json_string(text_of_str(&key)?, out);
            out.push(':');
            self.append_json(&value, depth, out)?;
        }
        out.push('}');
        Ok(())
    }

    /// Appends a list as a JSON array. `depth` is how much deeper its values may be nested.
    fn append_array(
        &mut self,
        list: &Bound<'_, PyAny>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), RowFault> {
        out.push('[');
        for (nth, value) in list.try_iter()?.enumerate() {
            if nth > 0 {
                out.push(',');
            }
            self.append_json(&value?, depth, out)?;
        }
        out.push(']');
        Ok(())
    }

    /// Appends the JSON that a value's own function makes.
    fn append_json_text(
        &mut self,
        value: &Bound<'_, PyAny>,
        out: &mut String,
    ) -> Result<(), RowFault> {
        let mut text = String::new();
        self.text_writer.write_text(value, &TextTarget::Json, &mut text)?;
        // A string of an event is the text for its column, and null is NULL.
        match text.trim_start().starts_with('"') || text.trim() == "null" {
            true => append_json_string(&text, out),
            false => out.push_str(&text),
        }
        Ok(())
    }

    /// Appends the text for a column as a JSON string. A datetime with a time zone is converted to
    /// UTC, so that a column without time zone stores the time in UTC.
    fn append_text(&mut self, value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
        let mut text = String::new();
        let is_datetime = matches!(
            self.text_writer.classes.class_of(value)?,
            ValueClass::Datetime | ValueClass::DatetimeSubclass
        );
        let target = if is_datetime { TextTarget::DateOrTime } else { TextTarget::Text };
        if !self.text_writer.write_text(value, &target, &mut text)? {
            out.push_str("null");
            return Ok(());
        }
        if is_datetime && !value.getattr("tzinfo")?.is_none() {
            text.push_str("+00");
        }
        append_json_string(&text, out);
        Ok(())
    }
}

impl MakeBatches for PythonEvents {
    type Batch = Vec<u8>;

    fn begin(&mut self, _: Python<'_>, _: &[Option<BatchTarget>]) -> PyResult<()> {
        Ok(())
    }

    fn next(&mut self, py: Python<'_>) -> Result<Option<Vec<u8>>, RowFault> {
        let Some(event) = self.events.bind(py).clone().next() else { return Ok(None) };
        self.count += 1;
        let mut line = String::new();
        match self.append_line(&event?, &mut line) {
            Ok(()) => Ok(Some(line.into_bytes())),
            Err(RowFault::Value(error)) => Err(RowFault::Value(error.at(InputPlace {
                source: Some(self.name.clone()),
                line: Some(self.count),
                ..InputPlace::default()
            }))),
            Err(python) => Err(python),
        }
    }
}

impl Batch for Vec<u8> {
    fn append(&mut self, next: Vec<u8>) -> Option<Vec<u8>> {
        if self.len() >= BLOCK_BYTES {
            return Some(next);
        }
        self.extend_from_slice(&next);
        None
    }
}

/// Returns the value in a `Json` or `Jsonb` of psycopg. Returns None if the value is a text or
/// None, or if a function of the object makes the JSON.
fn wrapped_value<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if value.getattr_opt("dumps")?.is_some_and(|dumps| !dumps.is_none()) {
        return Ok(None);
    }
    let inner = value.getattr("obj")?;
    let has_other_text = inner.is_none() || inner.is_instance_of::<PyString>();
    Ok((!has_other_text).then_some(inner))
}

/// Returns JSON with spaces in place of its line ends. JSON has no line ends in its strings.
fn joined_lines(json: &str) -> Result<String, RowFault> {
    let (mut is_in_string, mut is_escaped) = (false, false);
    let mut line = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            '\n' | '\r' if is_in_string => {
                let message = "the event has a line end in a string, which JSON writes as `\\n`";
                return Err(format_fault(message));
            }
            '\n' | '\r' => line.push(' '),
            _ => line.push(char),
        }
        is_in_string ^= char == '"' && !is_escaped;
        is_escaped = is_in_string && char == '\\' && !is_escaped;
    }
    Ok(line)
}

fn format_fault(message: &str) -> RowFault {
    RowFault::Value(Error::new(ErrorKind::Format, message))
}

/// Appends text as a JSON string. How a character is written must not change in later versions: the
/// ledger keeps a digest of these bytes, to recognize a stream that is read again.
fn append_json_string(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => {
                out.push('\\');
                out.push(char);
            }
            '\u{0}'..='\u{1f}' => drop(write!(out, "\\u{:04x}", u32::from(char))),
            _ => out.push(char),
        }
    }
    out.push('"');
}

/// Reader of the lines of Python's events, for the engine.
pub(crate) struct EventBytes {
    blocks: Box<dyn Iterator<Item = Result<Vec<u8>>> + Send>,
    block: Cursor<Vec<u8>>,
}

impl EventBytes {
    /// Requests all events, from the first one.
    pub(crate) fn request(queue: &BatchQueue<Vec<u8>>) -> EventBytes {
        EventBytes { blocks: queue.request(&[]), block: Cursor::default() }
    }
}

impl Read for EventBytes {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.block.read(buf)?;
            if read > 0 || buf.is_empty() {
                return Ok(read);
            }
            match self.blocks.next() {
                Some(Ok(block)) => self.block = Cursor::new(block),
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
    }
}

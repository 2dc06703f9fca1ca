//! Turns Python's events into lines of JSON.
//!
//! Text stays as it is; dicts become JSON. When the queue is empty, an event is passed on at once,
//! however long the next event takes.

use std::fmt::Write as _;
use std::io::{self, Cursor, Read};

use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, InputPlace, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyString};

use crate::classes::{ClassCache, ValueClass};
use crate::handover::RowHandover;
use crate::rows::RowFault;
use crate::spell::{Speller, SpellingTarget};
use crate::work::MakeBatches;

/// The bytes after which a block of events is passed on.
const BLOCK_BYTES: usize = 64 << 10;
/// The deepest nesting of an event.
const DEPTH_MAX: usize = 100;

/// Python's events, and their conversion.
pub(crate) struct PythonEvents {
    events: Py<PyIterator>,
    speller: Speller,
    handover: RowHandover<Vec<u8>>,
    name: String,
    count: u64,
    /// The fault of the next event, kept until the events before it are passed on.
    fault: Option<RowFault>,
}

impl PythonEvents {
    pub(crate) fn new(
        data: &Bound<'_, PyAny>,
        name: &str,
        handover: &RowHandover<Vec<u8>>,
    ) -> PyResult<PythonEvents> {
        Ok(PythonEvents {
            events: data.try_iter()?.unbind(),
            speller: Speller::new(data.py())?,
            handover: handover.clone(),
            name: name.to_owned(),
            count: 0,
            fault: None,
        })
    }

    fn line(&mut self, event: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
        let start = out.len();
        if let Ok(text) = event.cast::<PyString>() {
            out.push_str(text.to_str()?);
        } else if let Ok(bytes) = event.cast::<PyBytes>() {
            let text = std::str::from_utf8(bytes.as_bytes());
            out.push_str(text.map_err(|_| wrong("the event is not UTF-8"))?);
        } else if event.cast::<PyDict>().is_ok() {
            self.json(event, DEPTH_MAX, out)?;
        } else {
            let class = event.get_type().fully_qualified_name()?;
            let message = format!("an object of class {class} is no event");
            return Err(RowFault::Value(
                Error::new(ErrorKind::Format, message).hint("Give dicts, or JSON as str or bytes."),
            ));
        }
        // JSON may contain line ends between its parts, but the engine reads one event a line.
        if out[start..].contains(['\n', '\r']) {
            let line = out[start..].replace(['\n', '\r'], " ");
            out.truncate(start);
            out.push_str(&line);
        }
        out.push('\n');
        Ok(())
    }

    /// Writes a value as JSON. A value without a JSON type becomes the text for a column.
    fn json(
        &mut self,
        value: &Bound<'_, PyAny>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), RowFault> {
        if depth == 0 {
            return Err(wrong("the event is too deep, or contains itself"));
        }
        match self.speller.classes.class_of(value)? {
            ValueClass::Null => out.push_str("null"),
            ValueClass::Int | ValueClass::Bool => {
                self.speller.spell(value, &SpellingTarget::Other, out)?;
            }
            ValueClass::Str => {
                string(value.cast::<PyString>().map_err(PyErr::from)?.to_str()?, out)
            }
            ValueClass::Dict => {
                out.push('{');
                let dict = value.cast::<PyDict>().map_err(PyErr::from)?;
                for (nth, (key, value)) in dict.iter().enumerate() {
                    if nth > 0 {
                        out.push(',');
                    }
                    let Ok(key) = key.cast::<PyString>() else {
                        return Err(wrong("the event has a key that is no str"));
                    };
                    string(key.to_str()?, out);
                    out.push(':');
                    self.json(&value, depth - 1, out)?;
                }
                out.push('}');
            }
            ValueClass::List => {
                out.push('[');
                for (nth, value) in value.try_iter()?.enumerate() {
                    if nth > 0 {
                        out.push(',');
                    }
                    self.json(&value?, depth - 1, out)?;
                }
                out.push(']');
            }
            ValueClass::EnumValue => return self.json(&value.getattr("value")?, depth - 1, out),
            ValueClass::Json => return self.json(&value.getattr("obj")?, depth - 1, out),
            class @ (ValueClass::Numpy | ValueClass::NumpyArray) => {
                if let Some(plain) = ClassCache::from_numpy(class, value)? {
                    return self.json(&plain, depth - 1, out);
                }
                self.text(value, out)?;
            }
            ValueClass::Bytes => {
                let mut text = String::new();
                self.speller.spell(value, &SpellingTarget::Bytes, &mut text)?;
                string(&text, out);
            }
            ValueClass::Float | ValueClass::Decimal => {
                let mut text = String::new();
                self.speller.spell(value, &SpellingTarget::Other, &mut text)?;
                // JSON has no infinity and no NaN.
                match text.contains(['n', 'N']) {
                    true => string(&text, out),
                    false => out.push_str(&text),
                }
            }
            _ => self.text(value, out)?,
        }
        Ok(())
    }

    /// Writes the text for a column as a JSON string. A datetime with a time zone is converted to
    /// UTC, so that a column without time zone stores UTC.
    fn text(&mut self, value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
        let mut text = String::new();
        let is_moment = self.speller.classes.class_of(value)? == ValueClass::Datetime;
        let target = if is_moment { SpellingTarget::DateOrTime } else { SpellingTarget::Text };
        if !self.speller.spell(value, &target, &mut text)? {
            out.push_str("null");
            return Ok(());
        }
        if is_moment && !value.getattr("tzinfo")?.is_none() {
            text.push_str("+00");
        }
        string(&text, out);
        Ok(())
    }
}

impl MakeBatches for PythonEvents {
    type Batch = Vec<u8>;

    fn begin(&mut self, _: Python<'_>, _: &[Option<PgType>]) -> PyResult<()> {
        Ok(())
    }

    fn next(&mut self, py: Python<'_>) -> Result<Option<Vec<u8>>, RowFault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut block = String::new();
        while block.len() < BLOCK_BYTES && (block.is_empty() || !self.handover.is_empty()) {
            let made = match self.events.bind(py).clone().next() {
                Some(event) => {
                    self.count += 1;
                    event.map_err(RowFault::from).and_then(|event| self.line(&event, &mut block))
                }
                None => break,
            };
            if let Err(fault) = made {
                let fault = match fault {
                    RowFault::Value(error) => RowFault::Value(error.at(InputPlace {
                        source: Some(self.name.clone()),
                        line: Some(self.count),
                        ..InputPlace::default()
                    })),
                    python @ RowFault::Python(_) => python,
                };
                // The whole lines before the fault are passed on first.
                let end = block.rfind('\n').map_or(0, |end| end + 1);
                block.truncate(end);
                if block.is_empty() {
                    return Err(fault);
                }
                self.fault = Some(fault);
                break;
            }
        }
        Ok((!block.is_empty()).then(|| block.into_bytes()))
    }
}

fn wrong(message: &str) -> RowFault {
    RowFault::Value(Error::new(ErrorKind::Format, message))
}

/// Writes text as a JSON string. The spelling of a character must not change: the ledger keeps a
/// digest of these bytes, to recognise a stream that is read again.
fn string(text: &str, out: &mut String) {
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

/// Python's events as bytes that the engine reads.
pub(crate) struct EventBytes {
    blocks: Box<dyn Iterator<Item = Result<Vec<u8>>> + Send>,
    block: Cursor<Vec<u8>>,
}

impl EventBytes {
    pub(crate) fn of(handover: &RowHandover<Vec<u8>>) -> EventBytes {
        EventBytes { blocks: handover.request(&[]), block: Cursor::default() }
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

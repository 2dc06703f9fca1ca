//! Events that Python makes, as lines of JSON.
//!
//! Text is taken as it is, dicts are written as JSON. An event is handed over as soon as the engine
//! has nothing left to do, however long the next one takes.

use std::fmt::Write as _;
use std::io::{self, Cursor, Read};

use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, InputPlace, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyString};

use crate::classes::{Class, Classes};
use crate::desk::Desk;
use crate::rows::Fault;
use crate::spell::{Speller, Target};
use crate::work::Make;

/// Bytes that are handed over at once, about.
const BLOCK_BYTES: usize = 64 << 10;
/// How deep events may be.
const DEPTH_MAX: usize = 100;

/// Events of Python's.
pub(crate) struct Events {
    events: Py<PyIterator>,
    speller: Speller,
    desk: Desk<Vec<u8>>,
    name: String,
    count: u64,
    /// What was wrong with the event after those that were handed over.
    fault: Option<Fault>,
}

impl Events {
    pub(crate) fn new(
        data: &Bound<'_, PyAny>,
        name: &str,
        desk: &Desk<Vec<u8>>,
    ) -> PyResult<Events> {
        Ok(Events {
            events: data.try_iter()?.unbind(),
            speller: Speller::new(data.py())?,
            desk: desk.clone(),
            name: name.to_owned(),
            count: 0,
            fault: None,
        })
    }

    fn line(&mut self, event: &Bound<'_, PyAny>, out: &mut String) -> Result<(), Fault> {
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
            return Err(Fault::Value(
                Error::new(ErrorKind::Format, message).hint("Give dicts, or JSON as str or bytes."),
            ));
        }
        // Between the parts of JSON a line may end; what is read here has an event in each line.
        if out[start..].contains(['\n', '\r']) {
            let line = out[start..].replace(['\n', '\r'], " ");
            out.truncate(start);
            out.push_str(&line);
        }
        out.push('\n');
        Ok(())
    }

    /// A value as JSON. What JSON has no word for is the text that a column takes.
    fn json(
        &mut self,
        value: &Bound<'_, PyAny>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Fault> {
        if depth == 0 {
            return Err(wrong("the event is too deep, or contains itself"));
        }
        match self.speller.classes.of(value)? {
            Class::Null => out.push_str("null"),
            Class::Int | Class::Bool => drop(self.speller.spell(value, &Target::Other, out)?),
            Class::Str => string(value.cast::<PyString>().map_err(PyErr::from)?.to_str()?, out),
            Class::Dict => {
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
            Class::List => {
                out.push('[');
                for (nth, value) in value.try_iter()?.enumerate() {
                    if nth > 0 {
                        out.push(',');
                    }
                    self.json(&value?, depth - 1, out)?;
                }
                out.push(']');
            }
            Class::EnumValue => return self.json(&value.getattr("value")?, depth - 1, out),
            Class::Json => return self.json(&value.getattr("obj")?, depth - 1, out),
            class @ (Class::Numpy | Class::NumpyArray) => {
                if let Some(plain) = Classes::plain(class, value)? {
                    return self.json(&plain, depth - 1, out);
                }
                self.text(value, out)?;
            }
            Class::Bytes => {
                let mut text = String::new();
                self.speller.spell(value, &Target::Bytes, &mut text)?;
                string(&text, out);
            }
            Class::Float | Class::Decimal => {
                let mut text = String::new();
                self.speller.spell(value, &Target::Other, &mut text)?;
                // Infinity and NaN are no numbers to JSON.
                match text.contains(['n', 'N']) {
                    true => string(&text, out),
                    false => out.push_str(&text),
                }
            }
            _ => self.text(value, out)?,
        }
        Ok(())
    }

    /// The text that a column takes, as a string. A moment with a zone is the same one in UTC, so
    /// that a column without a zone has that.
    fn text(&mut self, value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), Fault> {
        let mut text = String::new();
        let is_moment = self.speller.classes.of(value)? == Class::Datetime;
        let target = if is_moment { Target::Local } else { Target::Text };
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

impl Make for Events {
    type Batch = Vec<u8>;

    fn begin(&mut self, _: Python<'_>, _: &[Option<PgType>]) -> PyResult<()> {
        Ok(())
    }

    fn next(&mut self, py: Python<'_>) -> Result<Option<Vec<u8>>, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut block = String::new();
        while block.len() < BLOCK_BYTES && (block.is_empty() || !self.desk.is_empty()) {
            let made = match self.events.bind(py).clone().next() {
                Some(event) => {
                    self.count += 1;
                    event.map_err(Fault::from).and_then(|event| self.line(&event, &mut block))
                }
                None => break,
            };
            if let Err(fault) = made {
                let fault = match fault {
                    Fault::Value(error) => Fault::Value(error.at(InputPlace {
                        source: Some(self.name.clone()),
                        line: Some(self.count),
                        ..InputPlace::default()
                    })),
                    python @ Fault::Python(_) => python,
                };
                // Whole lines before it are handed over first.
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

fn wrong(message: &str) -> Fault {
    Fault::Value(Error::new(ErrorKind::Format, message))
}

/// Text as a string of JSON. The ledger keeps a digest of these bytes, by which a stream that is
/// read again is known: how a character is spelled stays as it is.
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

/// Events as bytes that the engine reads.
pub(crate) struct EventBytes {
    blocks: Box<dyn Iterator<Item = Result<Vec<u8>>> + Send>,
    block: Cursor<Vec<u8>>,
}

impl EventBytes {
    pub(crate) fn of(desk: &Desk<Vec<u8>>) -> EventBytes {
        EventBytes { blocks: desk.ask(&[]), block: Cursor::default() }
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

//! Turns the engine's errors into Python's exceptions.
//!
//! Each cause becomes the `__cause__` of the exception before it, so that a traceback reads like
//! the command's output.

use std::error::Error as StdError;

use pgspate::target::ServerRefusal;
use pgspate::{Error, ErrorKind};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns the exception for an error.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    link(py, error, &error.to_string()).unwrap_or_else(|failed| failed)
}

fn link(py: Python<'_>, error: &Error, message: &str) -> PyResult<PyErr> {
    let class = py.import("pgspate._errors")?.getattr(class_of(error.kind()))?;
    let facts = PyDict::new(py);
    if let Some(place) = error.place() {
        let of_place = PyDict::new(py);
        of_place.set_item("source", place.source.as_deref())?;
        of_place.set_item("line", place.line)?;
        of_place.set_item("row", place.row)?;
        of_place.set_item("byte", place.byte)?;
        of_place.set_item("column", place.column.as_deref())?;
        facts.set_item("place", of_place)?;
        facts.set_item("place_text", place.to_string())?;
    }
    facts.set_item("hint", error.hint_text())?;
    facts.set_item("sqlstate", error.sqlstate().map(|code| code.code()))?;
    facts.set_item("is_retryable", error.is_retryable())?;
    facts.set_item("reasons", &error.messages()[1..])?;
    let raised = PyErr::from_value(class.call((message,), Some(&facts))?);
    if let Some(cause) = error.source() {
        raised.set_cause(py, cause_of(py, cause, message)?);
    }
    Ok(raised)
}

/// Returns the exception for the cause of an error. A cause with the text of the error itself is
/// left out.
fn cause_of(
    py: Python<'_>,
    cause: &(dyn StdError + 'static),
    before: &str,
) -> PyResult<Option<PyErr>> {
    let message = cause.to_string();
    if message == before {
        return cause.source().map_or(Ok(None), |next| cause_of(py, next, before));
    }
    if let Some(own) = cause.downcast_ref::<Error>() {
        return link(py, own, &message).map(Some);
    }
    let raised = if cause.is::<ServerRefusal>() {
        let refusal = cause.downcast_ref::<ServerRefusal>().map(|refusal| refusal.code().clone());
        let class = py.import("pgspate._errors")?.getattr("ServerError")?;
        let facts = PyDict::new(py);
        facts.set_item("sqlstate", refusal.as_ref().map(|code| code.code()))?;
        PyErr::from_value(class.call((message.as_str(),), Some(&facts))?)
    } else if cause.is::<std::io::Error>() {
        PyOSError::new_err(message.clone())
    } else {
        PyRuntimeError::new_err(message.clone())
    };
    if let Some(next) = cause.source() {
        raised.set_cause(py, cause_of(py, next, &message)?);
    }
    Ok(Some(raised))
}

fn class_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Usage => "UsageError",
        ErrorKind::Source => "SourceError",
        ErrorKind::Format => "FormatError",
        ErrorKind::Type => "ConversionError",
        ErrorKind::Connect => "ConnectError",
        ErrorKind::Server => "ServerError",
        ErrorKind::Plan => "PlanError",
        ErrorKind::Ledger => "LedgerError",
        ErrorKind::Cancelled => "Cancelled",
        ErrorKind::Bug => "BugError",
    }
}

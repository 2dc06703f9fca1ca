//! Converts the engine's errors into Python's exceptions.
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
pub(crate) fn to_exception(py: Python<'_>, error: &Error) -> PyErr {
    exception_with_cause(py, error, &error.to_string()).unwrap_or_else(|failed| failed)
}

fn exception_with_cause(py: Python<'_>, error: &Error, message: &str) -> PyResult<PyErr> {
    let class = py.import("pgspate._errors")?.getattr(exception_class(error.kind()))?;
    let attributes = PyDict::new(py);
    if let Some(place) = error.place() {
        let place_attributes = PyDict::new(py);
        place_attributes.set_item("source", place.source.as_deref())?;
        place_attributes.set_item("line", place.line)?;
        place_attributes.set_item("row", place.row)?;
        place_attributes.set_item("byte", place.byte)?;
        place_attributes.set_item("column", place.column.as_deref())?;
        attributes.set_item("place", place_attributes)?;
        attributes.set_item("place_text", place.to_string())?;
    }
    attributes.set_item("hint", error.hint_text())?;
    attributes.set_item("sqlstate", error.sqlstate().map(|code| code.code()))?;
    attributes.set_item("is_retryable", error.is_retryable())?;
    attributes.set_item("reasons", &error.messages()[1..])?;
    let exception = PyErr::from_value(class.call((message,), Some(&attributes))?);
    if let Some(cause) = error.source() {
        exception.set_cause(py, cause_exception(py, cause, message)?);
    }
    Ok(exception)
}

/// Returns the exception for the cause of an error whose message is `error_message`. Skips causes
/// that only repeat this message.
fn cause_exception(
    py: Python<'_>,
    cause: &(dyn StdError + 'static),
    error_message: &str,
) -> PyResult<Option<PyErr>> {
    let message = cause.to_string();
    if message == error_message {
        return cause.source().map_or(Ok(None), |next| cause_exception(py, next, error_message));
    }
    if let Some(error) = cause.downcast_ref::<Error>() {
        return exception_with_cause(py, error, &message).map(Some);
    }
    let exception = if let Some(refusal) = cause.downcast_ref::<ServerRefusal>() {
        let class = py.import("pgspate._errors")?.getattr("ServerError")?;
        let attributes = PyDict::new(py);
        attributes.set_item("sqlstate", refusal.code().code())?;
        PyErr::from_value(class.call((message.as_str(),), Some(&attributes))?)
    } else {
        let in_python = py.import("pgspate._python_words")?.getattr("in_python")?;
        let text = in_python.call1((message.as_str(),))?.unbind();
        match cause.is::<std::io::Error>() {
            true => PyOSError::new_err(text),
            false => PyRuntimeError::new_err(text),
        }
    };
    if let Some(next) = cause.source() {
        exception.set_cause(py, cause_exception(py, next, &message)?);
    }
    Ok(Some(exception))
}

/// Returns the name of the exception's class for a kind of error.
fn exception_class(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Usage => "UsageError",
        ErrorKind::Source => "SourceError",
        ErrorKind::Format => "FormatError",
        ErrorKind::Type => "ConversionError",
        ErrorKind::Connect => "ConnectError",
        ErrorKind::Server => "ServerError",
        ErrorKind::Plan => "PlanError",
        ErrorKind::Ledger | ErrorKind::KeyReused => "LedgerError",
        ErrorKind::OutcomeUnknown => "OutcomeUnknown",
        ErrorKind::QueueFull => "QueueFull",
        ErrorKind::Cancelled => "Cancelled",
        ErrorKind::Bug => "BugError",
    }
}

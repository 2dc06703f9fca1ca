//! Reads values of numpy that Python's own classes would change.

use pgspate::{Error, ErrorKind};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::rows::RowFault;

/// The integer that numpy keeps for NaT.
const NOT_A_TIME: i64 = i64::MIN;

/// Returns whether a value of numpy is, or an array has, floats of less than 64 bits.
pub(crate) fn is_narrow_float(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let kind = dtype_char(value)?;
    Ok(matches!(kind.as_str(), "e" | "f"))
}

/// Returns whether an array has times or timedeltas.
pub(crate) fn has_times(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    let kind = dtype_char(array)?;
    Ok(matches!(kind.as_str(), "m" | "M"))
}

/// Returns the letter of numpy for the class of a value or of an array's items.
fn dtype_char(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = value.py();
    value.getattr(intern!(py, "dtype"))?.getattr(intern!(py, "char"))?.extract()
}

/// Returns the double with the same shortest digits as a float of 32 bits.
pub(crate) fn widened(value: f64) -> f64 {
    let narrow = value as f32;
    format!("{narrow}").parse().unwrap_or(value)
}

/// Returns the items of an array as a list, which has lists for more dimensions. The items stay
/// values of numpy.
pub(crate) fn numpy_items<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    let dimensions: usize = array.getattr(intern!(py, "ndim"))?.extract()?;
    if dimensions == 0 {
        return array.get_item(PyTuple::empty(py));
    }
    let items = PyList::empty(py);
    for item in array.try_iter()? {
        let item = item?;
        items.append(if dimensions > 1 { numpy_items(&item)? } else { item })?;
    }
    Ok(items.into_any())
}

/// Returns the microseconds of a `numpy.timedelta64`, and None for NaT. numpy's own conversion to
/// microseconds does not notice that a value has more than 64 bits.
pub(crate) fn timedelta_micros(value: &Bound<'_, PyAny>) -> Result<Option<i128>, RowFault> {
    let py = value.py();
    let count: i64 = value.call_method1(intern!(py, "astype"), ("int64",))?.extract()?;
    if count == NOT_A_TIME {
        return Ok(None);
    }
    let dtype = value.getattr(intern!(py, "dtype"))?;
    let numpy = py.import(intern!(py, "numpy"))?;
    let unit = numpy.call_method1(intern!(py, "datetime_data"), (dtype,))?;
    let (unit, step): (String, i64) = unit.extract()?;
    let count = i128::from(count) * i128::from(step);
    Ok(Some(match unit.as_str() {
        "W" => count * 7 * 86_400_000_000,
        "D" => count * 86_400_000_000,
        "h" => count * 3_600_000_000,
        "m" => count * 60_000_000,
        "s" => count * 1_000_000,
        "ms" => count * 1_000,
        "us" => count,
        "ns" => rounded_micros(count, 1_000_000_000),
        "ps" => rounded_micros(count, 1_000_000_000_000),
        "fs" => rounded_micros(count, 1_000_000_000_000_000),
        "as" => rounded_micros(count, 1_000_000_000_000_000_000),
        unit => return Err(open_timedelta_fault(unit)),
    }))
}

/// Returns the microseconds of a count of units of which `per_second` are a second. Rounds as the
/// server rounds the fraction of a second, and as the engine does for Arrow's durations.
pub(crate) fn rounded_micros(count: i128, per_second: i128) -> i128 {
    let magnitude = count.abs();
    let (seconds, rest) = (magnitude / per_second, magnitude % per_second);
    let fraction = rest as f64 / per_second as f64;
    let micros = seconds * 1_000_000 + (fraction * 1e6).round_ties_even() as i128;
    count.signum() * micros
}

/// Returns the fault for a timedelta of months or years, which numpy converts to days of an average
/// month; or for a timedelta without a unit.
fn open_timedelta_fault(unit: &str) -> RowFault {
    let message = match unit {
        "generic" => "a numpy.timedelta64 without a unit has no length",
        _ => "a numpy.timedelta64 of months or years has no fixed length",
    };
    let hint = "Give the interval as text, for example \"2 months\".";
    RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint))
}

//! Writes datetimes, times and timedeltas as text for PostgreSQL's input functions.

use std::fmt::Write as _;

use pgspate::{Error, ErrorKind};
use pyo3::intern;
use pyo3::prelude::*;

use crate::classes::ClassCache;
use crate::numpy_values::rounded_micros;
use crate::rows::RowFault;
use crate::value_text::TextTarget;

const DAY_MICROS: i128 = 86_400_000_000;
/// The server takes offsets from UTC that are shorter than this.
const OFFSET_SECONDS_END: i64 = 16 * 60 * 60;

/// Writes a datetime. For a column without time zone, converts a datetime with a zone to UTC, as
/// Arrow does. The server would ignore the zone. For a column with time zone, converts a datetime
/// whose offset the server would refuse.
pub(crate) fn write_datetime(
    classes: &ClassCache,
    value: &Bound<'_, PyAny>,
    to: &TextTarget,
    out: &mut String,
) -> Result<(), RowFault> {
    let py = value.py();
    let has_zone = !value.getattr(intern!(py, "tzinfo"))?.is_none();
    let utc = || datetime_text(&value.call_method1("astimezone", (classes.utc(py),))?);
    match to {
        TextTarget::DateOrTime | TextTarget::Timestamp if has_zone => {
            let text = utc()?;
            out.push_str(text.strip_suffix("+00:00").unwrap_or(&text));
        }
        TextTarget::Timestamptz if has_zone && has_long_offset(value)? => out.push_str(&utc()?),
        _ => out.push_str(&datetime_text(value)?),
    }
    Ok(())
}

/// Returns whether the offset of a datetime from UTC is longer than the server takes.
fn has_long_offset(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let offset = value.call_method0(intern!(value.py(), "utcoffset"))?;
    if offset.is_none() {
        return Ok(false);
    }
    let (days, seconds, _) = timedelta_parts(&offset)?;
    Ok((days * 86_400 + seconds).abs() >= OFFSET_SECONDS_END)
}

/// Returns the text of a datetime. The function `str` of a subclass may return another text.
fn datetime_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let text: String = value.call_method1(intern!(value.py(), "isoformat"), (" ",))?.extract()?;
    Ok(shorten_fraction(text))
}

/// Returns the text of a time with the fraction of its second as PostgreSQL prints it: without
/// zeros at the end. A column of text stores this text.
fn shorten_fraction(mut text: String) -> String {
    if let Some(point) = text.find('.') {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let digits = text.bytes().skip(point + 1).take_while(is_digit).count();
        let end = point + 1 + digits;
        let zeros = text[point + 1..end].bytes().rev().take_while(|byte| *byte == b'0').count();
        text.replace_range(end - zeros..end, "");
    }
    text
}

/// Writes a time. A zone such as Europe/Berlin has no offset without a date, and `str()` would
/// leave the zone out.
pub(crate) fn write_time(value: &Bound<'_, PyAny>, out: &mut String) -> Result<(), RowFault> {
    let py = value.py();
    let has_zone = !value.getattr(intern!(py, "tzinfo"))?.is_none();
    if has_zone && value.call_method0(intern!(py, "utcoffset"))?.is_none() {
        let message = "the time has a time zone whose offset depends on the date";
        let hint = "Give a datetime, or a time with a fixed offset: `datetime.timezone(...)`.";
        return Err(RowFault::Value(Error::new(ErrorKind::Type, message).hint(hint)));
    }
    out.push_str(&shorten_fraction(value.call_method0(intern!(py, "isoformat"))?.extract()?));
    Ok(())
}

/// Returns the days, seconds and microseconds of a timedelta.
pub(crate) fn timedelta_parts(value: &Bound<'_, PyAny>) -> PyResult<(i64, i64, i64)> {
    let py = value.py();
    let days = value.getattr(intern!(py, "days"))?.extract()?;
    let seconds = value.getattr(intern!(py, "seconds"))?.extract()?;
    Ok((days, seconds, value.getattr(intern!(py, "microseconds"))?.extract()?))
}

/// Writes a timedelta. A subclass may have nanoseconds, and pendulum's durations have months.
pub(crate) fn write_timedelta(
    classes: &ClassCache,
    value: &Bound<'_, PyAny>,
    out: &mut String,
) -> Result<(), RowFault> {
    let (days, seconds, micros) = timedelta_parts(value)?;
    if classes.is_plain_timedelta(value) {
        write_interval(micros_of(days, seconds, micros), out);
        return Ok(());
    }
    let part = |name: &str| {
        PyResult::Ok(match value.getattr_opt(name)? {
            Some(part) => part.extract::<i64>()?,
            None => 0,
        })
    };
    // The months between two times are among the days of their exact difference.
    let is_difference = value.hasattr(intern!(value.py(), "start"))?;
    let (years, months) = if is_difference { (0, 0) } else { (part("years")?, part("months")?) };
    if (years, months) != (0, 0) {
        let _ = write!(out, "{} mons ", years * 12 + months);
    }
    let micros = micros_of(days - years * 365 - months * 30, seconds, micros);
    write_interval(
        match part("nanoseconds")? {
            0 => micros,
            nanos => rounded_micros(micros * 1_000 + i128::from(nanos), 1_000_000_000),
        },
        out,
    );
    Ok(())
}

fn micros_of(days: i64, seconds: i64, micros: i64) -> i128 {
    i128::from(days * 86_400 + seconds) * 1_000_000 + i128::from(micros)
}

/// Writes microseconds as PostgreSQL prints intervals. Days are not converted to hours, because a
/// day of PostgreSQL does not always have 24 hours.
pub(crate) fn write_interval(micros: i128, out: &mut String) {
    let days = micros.div_euclid(DAY_MICROS);
    let micros = micros.rem_euclid(DAY_MICROS);
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    if days != 0 {
        let _ = write!(out, "{days} days ");
        if days < 0 {
            out.push('+');
        }
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let _ = write!(out, "{hours:02}:{minutes:02}:{:02}", seconds % 60);
    if micros != 0 {
        out.push_str(&shorten_fraction(format!(".{micros:06}")));
    }
}

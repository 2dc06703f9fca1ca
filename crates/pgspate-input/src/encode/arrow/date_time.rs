//! Encodes Arrow dates, times, timestamps, durations and intervals for PostgreSQL's types.
//!
//! Fractions finer than a microsecond are rounded as the server rounds them in a text. A timestamp
//! with a time zone in a timestamp column becomes the local time in UTC. The server gives the same
//! value for the timestamp's text, because the server ignores the offset. The value of a timestamp
//! without a zone in a timestamptz column depends on the session's time zone. Unless the session's
//! time zone is UTC, such a timestamp is sent as text.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_schema::{DataType, IntervalUnit, TimeUnit};

use super::calendar::round_nanos;
use super::column::{
    AppendBinary, BoundCells, INFINITE_MICROS, append_date, append_fixed, append_timestamp,
};
use super::text::{i64_values, per_second};
use crate::types::SessionSettings;

/// PostgreSQL's date and time types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DateTimeType {
    Date,
    Time,
    /// timestamp and timestamptz, whose binary forms are equal.
    Timestamp,
    Interval,
}

const DAY_SECS: i64 = 86_400;
const DAY_MICROS: i64 = DAY_SECS * 1_000_000;

impl DateTimeType {
    /// Returns how values of `data_type` are encoded for a column of type `oid`. Returns `None` if
    /// the types do not match, and an error with the reason if the values are left to the server.
    pub(crate) fn of(
        data_type: &DataType,
        oid: u32,
        session: &SessionSettings,
    ) -> Option<Result<DateTimeType, String>> {
        use DataType as D;
        let zoned = matches!(data_type, D::Timestamp(_, Some(_)));
        Some(Ok(match (data_type, oid) {
            (D::Date32 | D::Date64 | D::Timestamp(..), 1082) => DateTimeType::Date,
            (D::Date32 | D::Date64 | D::Timestamp(..), 1114) => DateTimeType::Timestamp,
            (D::Date32 | D::Date64 | D::Timestamp(..), 1184) => {
                if !zoned && !is_utc(&session.time_zone) {
                    return Some(Err(format!(
                        "{data_type} has no time zone, so its value depends on the session's \
                         TimeZone {}",
                        session.time_zone
                    )));
                }
                DateTimeType::Timestamp
            }
            (D::Time32(_) | D::Time64(_), 1083) => DateTimeType::Time,
            (D::Duration(_) | D::Interval(_), 1186) => DateTimeType::Interval,
            _ => return None,
        }))
    }
}

/// Returns whether a time zone is UTC under one of its names.
fn is_utc(zone: &str) -> bool {
    let zone = zone.strip_prefix("Etc/").unwrap_or(zone);
    ["utc", "gmt", "uct", "zulu", "universal"].iter().any(|name| zone.eq_ignore_ascii_case(name))
}

/// Binds a column of dates or times. Returns `None` for other columns.
pub(crate) fn bind(array: &dyn Array, to: DateTimeType) -> Option<BoundCells<'_>> {
    use DataType as D;
    match (array.data_type(), to) {
        (D::Date32, DateTimeType::Date) => {
            return Some(BoundCells::Date(array.as_primitive::<Date32Type>().values()));
        }
        (D::Timestamp(TimeUnit::Microsecond, _), DateTimeType::Timestamp) => {
            let values = array.as_primitive::<TimestampMicrosecondType>().values();
            return Some(BoundCells::Timestamp(values));
        }
        (D::Interval(unit), DateTimeType::Interval) => {
            return Some(BoundCells::Other(bind_intervals(array, *unit)));
        }
        _ => {}
    }
    let values = i64_values(array)?;
    let per_second = match array.data_type() {
        D::Date32 => {
            return Some(BoundCells::Other(Box::new(move |row, out| {
                values(row)
                    .checked_mul(DAY_MICROS)
                    .is_some_and(|value| append_timestamp(value, out))
            })));
        }
        D::Date64 => 1_000,
        D::Time32(unit) | D::Time64(unit) | D::Timestamp(unit, _) | D::Duration(unit) => {
            per_second(*unit)
        }
        _ => return None,
    };
    Some(BoundCells::Other(match to {
        DateTimeType::Date => Box::new(move |row, out| {
            let value = values(row);
            value != INFINITE_MICROS && append_date(value.div_euclid(per_second * DAY_SECS), out)
        }),
        DateTimeType::Timestamp => Box::new(move |row, out| {
            micros(values(row), per_second).is_some_and(|value| append_timestamp(value, out))
        }),
        DateTimeType::Time => Box::new(move |row, out| match micros(values(row), per_second) {
            Some(value @ 0..=DAY_MICROS) if values(row) >= 0 => {
                append_fixed(value.to_be_bytes(), out);
                true
            }
            _ => false,
        }),
        DateTimeType::Interval => Box::new(move |row, out| {
            // The server reads a sign, then hours, minutes and seconds. So it rounds negative and
            // positive durations alike.
            let value = values(row);
            match micros_of_magnitude(value.unsigned_abs(), per_second) {
                Some(magnitude) => {
                    append_interval(0, 0, if value < 0 { -magnitude } else { magnitude }, out);
                    true
                }
                None => false,
            }
        }),
    }))
}

/// Converts a count of units into microseconds, rounded as the server rounds. Returns `None` on
/// overflow.
#[inline]
fn micros(value: i64, per_second: i64) -> Option<i64> {
    if per_second <= 1_000_000 {
        return value.checked_mul(1_000_000 / per_second);
    }
    let secs = value.div_euclid(per_second);
    Some(secs * 1_000_000 + round_nanos(value.rem_euclid(per_second)))
}

/// Converts the magnitude of a duration into microseconds. Returns `None` on overflow.
fn micros_of_magnitude(magnitude: u64, per_second: i64) -> Option<i64> {
    match i64::try_from(magnitude) {
        Ok(magnitude) => micros(magnitude, per_second),
        // Only the magnitude of the smallest 64-bit integer does not fit.
        Err(_) => None,
    }
}

/// Binds a column of intervals.
fn bind_intervals(array: &dyn Array, unit: IntervalUnit) -> AppendBinary<'_> {
    match unit {
        IntervalUnit::YearMonth => {
            let values = array.as_primitive::<IntervalYearMonthType>().values();
            Box::new(move |row, out| {
                append_interval(values[row], 0, 0, out);
                true
            })
        }
        IntervalUnit::DayTime => {
            let values = array.as_primitive::<IntervalDayTimeType>().values();
            Box::new(move |row, out| {
                let value = values[row];
                append_interval(0, value.days, i64::from(value.milliseconds) * 1_000, out);
                true
            })
        }
        IntervalUnit::MonthDayNano => {
            let values = array.as_primitive::<IntervalMonthDayNanoType>().values();
            Box::new(move |row, out| {
                let value = values[row];
                let magnitude =
                    micros_of_magnitude(value.nanoseconds.unsigned_abs(), 1_000_000_000);
                let Some(magnitude) = magnitude else { return false };
                let micros = if value.nanoseconds < 0 { -magnitude } else { magnitude };
                append_interval(value.months, value.days, micros, out);
                true
            })
        }
    }
}

/// Appends an interval: microseconds, days, months.
pub(crate) fn append_interval(months: i32, days: i32, micros: i64, out: &mut Vec<u8>) {
    let mut cell = [0u8; 20];
    cell[..4].copy_from_slice(&16u32.to_be_bytes());
    cell[4..12].copy_from_slice(&micros.to_be_bytes());
    cell[12..16].copy_from_slice(&days.to_be_bytes());
    cell[16..].copy_from_slice(&months.to_be_bytes());
    out.extend_from_slice(&cell);
}

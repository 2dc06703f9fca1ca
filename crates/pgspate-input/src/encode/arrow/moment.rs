//! Dates, times, timestamps, durations and intervals to PostgreSQL's.
//!
//! Fractions finer than a microsecond are rounded as the server rounds their text. A timestamp
//! with a time zone is an instant; in a column without one it is the wall clock in UTC, which is
//! what the server makes of its text, dropping the offset. A timestamp without a zone is an
//! instant only by the session's time zone: it goes as text unless that is UTC.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_schema::{DataType, IntervalUnit, TimeUnit};

use super::calendar::round_nanos;
use super::column::{Cells, Put, put_date, put_micros, put4};
use super::text::{longs, per_second};
use crate::types::Session;

/// PostgreSQL's dates and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Date,
    Time,
    /// timestamp and timestamptz: the same bytes.
    Stamp,
    Interval,
}

const DAY_SECS: i64 = 86_400;
const DAY_MICROS: i64 = DAY_SECS * 1_000_000;

impl Moment {
    /// What a column of `data_type` becomes in a column of type `oid`: `Ok(None)` when that is
    /// for the server's input function to say, and why.
    pub(crate) fn of(
        data_type: &DataType,
        oid: u32,
        session: &Session,
    ) -> Option<Result<Moment, String>> {
        use DataType as D;
        let zoned = matches!(data_type, D::Timestamp(_, Some(_)));
        Some(Ok(match (data_type, oid) {
            (D::Date32 | D::Date64 | D::Timestamp(..), 1082) => Moment::Date,
            (D::Date32 | D::Date64 | D::Timestamp(..), 1114) => Moment::Stamp,
            (D::Date32 | D::Date64 | D::Timestamp(..), 1184) => {
                if !zoned && !is_utc(&session.time_zone) {
                    return Some(Err(format!(
                        "{data_type} has no time zone, so its instant depends on the session's \
                         TimeZone {}",
                        session.time_zone
                    )));
                }
                Moment::Stamp
            }
            (D::Time32(_) | D::Time64(_), 1083) => Moment::Time,
            (D::Duration(_) | D::Interval(_), 1186) => Moment::Interval,
            _ => return None,
        }))
    }
}

fn is_utc(zone: &str) -> bool {
    let zone = zone.strip_prefix("Etc/").unwrap_or(zone);
    ["utc", "gmt", "uct", "zulu", "universal"].iter().any(|name| zone.eq_ignore_ascii_case(name))
}

/// Binds a column of dates or times. `None` when it is not one.
pub(crate) fn bind(array: &dyn Array, to: Moment) -> Option<Cells<'_>> {
    use DataType as D;
    match (array.data_type(), to) {
        (D::Date32, Moment::Date) => {
            return Some(Cells::Date(array.as_primitive::<Date32Type>().values()));
        }
        (D::Timestamp(TimeUnit::Microsecond, _), Moment::Stamp) => {
            let values = array.as_primitive::<TimestampMicrosecondType>().values();
            return Some(Cells::Micros(values));
        }
        (D::Interval(unit), Moment::Interval) => {
            return Some(Cells::Other(intervals(array, *unit)));
        }
        _ => {}
    }
    let values = longs(array)?;
    let per_second = match array.data_type() {
        D::Date32 => {
            return Some(Cells::Other(Box::new(move |row, out| {
                values(row).checked_mul(DAY_MICROS).is_some_and(|value| put_micros(value, out))
            })));
        }
        D::Date64 => 1_000,
        D::Time32(unit) | D::Time64(unit) | D::Timestamp(unit, _) | D::Duration(unit) => {
            per_second(*unit)
        }
        _ => return None,
    };
    Some(Cells::Other(match to {
        Moment::Date => {
            Box::new(move |row, out| put_date(values(row).div_euclid(per_second * DAY_SECS), out))
        }
        Moment::Stamp => Box::new(move |row, out| {
            micros(values(row), per_second).is_some_and(|value| put_micros(value, out))
        }),
        Moment::Time => Box::new(move |row, out| match micros(values(row), per_second) {
            Some(value @ 0..=DAY_MICROS) if values(row) >= 0 => {
                put4(value.to_be_bytes(), out);
                true
            }
            _ => false,
        }),
        Moment::Interval => Box::new(move |row, out| {
            // The server reads a sign, then hours, minutes and seconds: it rounds towards zero's
            // both sides alike.
            let value = values(row);
            match micros_of_mag(value.unsigned_abs(), per_second) {
                Some(mag) => {
                    put_interval(0, 0, if value < 0 { -mag } else { mag }, out);
                    true
                }
                None => false,
            }
        }),
    }))
}

/// Microseconds of a count of units, rounded as the server rounds; `None` past 64 bits.
#[inline]
fn micros(value: i64, per_second: i64) -> Option<i64> {
    if per_second <= 1_000_000 {
        return value.checked_mul(1_000_000 / per_second);
    }
    let secs = value.div_euclid(per_second);
    Some(secs * 1_000_000 + round_nanos(value.rem_euclid(per_second)))
}

fn micros_of_mag(mag: u64, per_second: i64) -> Option<i64> {
    match i64::try_from(mag) {
        Ok(mag) => micros(mag, per_second),
        // Only the least 64-bit number has a magnitude without a sign bit to spare.
        Err(_) => None,
    }
}

fn intervals(array: &dyn Array, unit: IntervalUnit) -> Put<'_> {
    match unit {
        IntervalUnit::YearMonth => {
            let values = array.as_primitive::<IntervalYearMonthType>().values();
            Box::new(move |row, out| {
                put_interval(values[row], 0, 0, out);
                true
            })
        }
        IntervalUnit::DayTime => {
            let values = array.as_primitive::<IntervalDayTimeType>().values();
            Box::new(move |row, out| {
                let value = values[row];
                put_interval(0, value.days, i64::from(value.milliseconds) * 1_000, out);
                true
            })
        }
        IntervalUnit::MonthDayNano => {
            let values = array.as_primitive::<IntervalMonthDayNanoType>().values();
            Box::new(move |row, out| {
                let value = values[row];
                let mag = micros_of_mag(value.nanoseconds.unsigned_abs(), 1_000_000_000);
                let Some(mag) = mag else { return false };
                let micros = if value.nanoseconds < 0 { -mag } else { mag };
                put_interval(value.months, value.days, micros, out);
                true
            })
        }
    }
}

/// Appends an interval: microseconds, days, months.
pub(crate) fn put_interval(months: i32, days: i32, micros: i64, out: &mut Vec<u8>) {
    let mut cell = [0u8; 20];
    cell[..4].copy_from_slice(&16u32.to_be_bytes());
    cell[4..12].copy_from_slice(&micros.to_be_bytes());
    cell[12..16].copy_from_slice(&days.to_be_bytes());
    cell[16..].copy_from_slice(&months.to_be_bytes());
    out.extend_from_slice(&cell);
}

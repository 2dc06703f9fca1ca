//! Dates and points in time: date, timestamp, timestamptz, timetz.
//!
//! ISO spellings, which mean the same under every DateStyle: the year has at least four digits and
//! comes first. A time zone is a number, `Z` or `UTC`; other names depend on the server's files and
//! are left to it, as is a time without zone unless the session's zone is UTC.

use super::clock::{self, DAY, HOUR, MINUTE, short_number};
use super::{append_fixed, append4, civil};
use crate::types::Session;

/// What the session's TimeZone says of spellings without a numeric zone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Zones {
    /// A time without zone is UTC.
    bare_is_utc: bool,
    /// `Z` and `UTC` mean UTC: the session's zone surely has no such abbreviation of its own.
    names_are_known: bool,
}

impl Zones {
    pub(super) fn of(session: &Session) -> Zones {
        let zone = session.time_zone.as_str();
        Zones {
            bare_is_utc: ["UTC", "GMT", "Etc/UTC"].contains(&zone),
            names_are_known: !zone
                .contains(['<', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']),
        }
    }
}

#[inline]
pub(super) fn date(field: &[u8], zones: Zones, out: &mut Vec<u8>) -> bool {
    let days = if field.len() == 10 { civil::iso(field) } else { None };
    match days {
        Some(days) => append4(days, out),
        None => date_rarer(field, zones, out),
    }
}

#[inline]
pub(super) fn timestamp(field: &[u8], zones: Zones, out: &mut Vec<u8>) -> bool {
    match iso(field) {
        Some(micros) => append_fixed(micros.to_be_bytes(), out),
        None => timestamp_rarer(field, zones, out),
    }
}

#[inline]
pub(super) fn timestamptz(field: &[u8], zones: Zones, out: &mut Vec<u8>) -> bool {
    let utc = match field {
        // Only behind a time: a zone behind a date would be something else.
        [time @ .., b'+', b'0', b'0'] if time.len() >= 19 => Some(time),
        [time @ .., b'Z'] if zones.names_are_known => Some(time),
        _ => zones.bare_is_utc.then_some(field),
    };
    match utc.and_then(iso) {
        Some(micros) => append_fixed(micros.to_be_bytes(), out),
        None => timestamptz_rarer(field, zones, out),
    }
}

/// Microseconds since 2000-01-01 from `YYYY-MM-DD HH:MM:SS` with up to six digits of a fraction.
#[inline(always)]
fn iso(field: &[u8]) -> Option<i64> {
    let fraction = match field.len() {
        19 => 0,
        n @ 21..=26 => clock::fraction_at_end(field, n - 20)?,
        _ => return None,
    };
    Some(iso_seconds(field)? + fraction)
}

/// Microseconds since 2000-01-01 from the `YYYY-MM-DD HH:MM:SS` that begins a text.
#[inline(always)]
fn iso_seconds(text: &[u8]) -> Option<i64> {
    if text.len() < 19 || !matches!(text[10], b' ' | b'T') {
        return None;
    }
    Some(i64::from(civil::iso(text)?) * DAY + clock::iso(&text[11..19])?)
}

/// Microseconds since 2000-01-01 in UTC from a time in the usual form and its zone.
fn iso_with_zone(field: &[u8], zones: Zones) -> Option<i64> {
    let seconds = iso_seconds(field)?;
    let (fraction, rest) = match &field[19..] {
        [b'.', rest @ ..] => clock::fraction(rest)?,
        rest => (0, rest),
    };
    read_zone(rest, zones)?.map(|zone| seconds + fraction - zone)
}

/// A point in time as it is written.
struct Stamp {
    days: i32,
    /// Microseconds since midnight; none if only a date is written.
    time: Option<i64>,
    /// Microseconds east of UTC, if a zone is written.
    zone: Option<i64>,
}

impl Stamp {
    /// Reads a date of 4 to 6 digits, a time, a zone, and `BC`; the last three may be missing.
    fn read(field: &[u8], zones: Zones) -> Option<Stamp> {
        let (field, is_bc) = match field {
            [rest @ .., b' ', b'B' | b'b', b'C' | b'c'] => (rest, true),
            _ => (field, false),
        };
        let year_len = field.iter().position(|b| !b.is_ascii_digit())?;
        if !(4..=6).contains(&year_len) {
            return None;
        }
        let (year, rest) = field.split_at(year_len);
        let year = super::int::unsigned(year)? as i32;
        let (month, rest) = short_number(rest.strip_prefix(b"-")?)?;
        let (day, rest) = short_number(rest.strip_prefix(b"-")?)?;
        let year = match (year, is_bc) {
            (1..=294_275, false) => year,
            (1..=4713, true) => 1 - year,
            _ => return None,
        };
        let days = civil::days(year, month as u32, day as u32)?;
        let (time, zone) = match rest {
            [] => (None, None),
            [b' ' | b'T', rest @ ..] => {
                let (time, rest) = clock::read(rest)?;
                (Some(time), read_zone(rest, zones)?)
            }
            _ => return None,
        };
        Some(Stamp { days, time, zone })
    }

    /// Microseconds since 2000-01-01 by the clock that was read.
    fn local(&self) -> i64 {
        i64::from(self.days) * DAY + self.time.unwrap_or(0)
    }
}

/// Microseconds east of UTC, if there is a zone; none if the text is not one.
fn read_zone(text: &[u8], zones: Zones) -> Option<Option<i64>> {
    let (sign, rest) = match text.strip_prefix(b" ").unwrap_or(text) {
        [] => return text.is_empty().then_some(None),
        [b'Z' | b'z'] | b"UTC" if zones.names_are_known => return Some(Some(0)),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let digit = |b: &u8| i64::from(b.wrapping_sub(b'0'));
    if !rest.iter().all(|b| b.is_ascii_digit() || *b == b':') {
        return None;
    }
    let (hours, minutes, seconds) = match rest {
        [_] | [_, _] => (short_number(rest)?.0, 0, 0),
        [b':', ..] | [.., b':'] => return None,
        [h, m1, m2] if !rest.contains(&b':') => (digit(h), digit(m1) * 10 + digit(m2), 0),
        [h1, h2, m1, m2] if !rest.contains(&b':') => {
            (digit(h1) * 10 + digit(h2), digit(m1) * 10 + digit(m2), 0)
        }
        _ => {
            let (hours, rest) = short_number(rest)?;
            let (minutes, rest) = short_number(rest.strip_prefix(b":")?)?;
            let (seconds, rest) = match rest {
                [b':', rest @ ..] => short_number(rest)?,
                _ => (0, rest),
            };
            if !rest.is_empty() {
                return None;
            }
            (hours, minutes, seconds)
        }
    };
    if hours > 15 || minutes > 59 || seconds > 59 {
        return None;
    }
    Some(Some(sign * (hours * HOUR + minutes * MINUTE + seconds * 1_000_000)))
}

/// 1 for `infinity`, -1 for `-infinity`.
fn infinity(field: &[u8]) -> Option<i32> {
    match field {
        [b'-', rest @ ..] => rest.eq_ignore_ascii_case(b"infinity").then_some(-1),
        _ => field.eq_ignore_ascii_case(b"infinity").then_some(1),
    }
}

#[inline(never)]
fn date_rarer(field: &[u8], zones: Zones, out: &mut Vec<u8>) -> bool {
    let days = match infinity(field) {
        Some(1) => i32::MAX,
        Some(_) => i32::MIN,
        None => match (compact_date(field), Stamp::read(field, zones)) {
            (Some(days), _) => days,
            // The time and zone are ignored, unless the time reaches into the next day.
            (None, Some(stamp)) if stamp.time.unwrap_or(0) < DAY => stamp.days,
            _ => return false,
        },
    };
    append4(days, out)
}

/// The date in `YYYYMMDD`.
fn compact_date(field: &[u8]) -> Option<i32> {
    if field.len() != 8 {
        return None;
    }
    let number = super::int::unsigned(field)? as u32;
    let year = number / 10_000;
    if year == 0 {
        return None;
    }
    civil::days(year as i32, number / 100 % 100, number % 100)
}

#[inline(never)]
fn timestamp_rarer(field: &[u8], zones: Zones, out: &mut Vec<u8>) -> bool {
    let micros = match (infinity(field), Stamp::read(field, zones)) {
        (Some(1), _) => i64::MAX,
        (Some(_), _) => i64::MIN,
        // The server reads a zone and ignores it.
        (None, Some(stamp)) => stamp.local(),
        _ => return false,
    };
    append_fixed(micros.to_be_bytes(), out)
}

#[inline(never)]
fn timestamptz_rarer(field: &[u8], zones: Zones, out: &mut Vec<u8>) -> bool {
    if let Some(micros) = iso_with_zone(field, zones) {
        return append_fixed(micros.to_be_bytes(), out);
    }
    let micros = match (infinity(field), Stamp::read(field, zones)) {
        (Some(1), _) => i64::MAX,
        (Some(_), _) => i64::MIN,
        (None, Some(stamp)) => match stamp.zone {
            Some(zone) => stamp.local() - zone,
            None if zones.bare_is_utc => stamp.local(),
            None => return false,
        },
        _ => return false,
    };
    append_fixed(micros.to_be_bytes(), out)
}

/// A time of day, then seconds west of UTC.
pub(super) fn timetz(field: &[u8], zones: Zones, out: &mut Vec<u8>) -> bool {
    let Some((time, rest)) = clock::read(field) else {
        return false;
    };
    let zone = match read_zone(rest, zones) {
        Some(Some(zone)) => zone,
        Some(None) if zones.bare_is_utc => 0,
        _ => return false,
    };
    let west = (-zone / 1_000_000) as i32;
    let mut value = [0u8; 12];
    value[..8].copy_from_slice(&time.to_be_bytes());
    value[8..].copy_from_slice(&west.to_be_bytes());
    append_fixed(value, out)
}

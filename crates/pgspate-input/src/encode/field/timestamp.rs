//! Encodes date, timestamp, timestamptz and timetz.
//!
//! Accepted are ISO formats, which mean the same under every DateStyle: the year comes first and
//! has at least four digits. A time zone is an offset, `Z` or `UTC`. Other zone names depend on the
//! server's files and are left to the server. A timestamptz or timetz without a zone is accepted
//! only if the session's time zone is UTC.

use super::time_of_day::{self, DAY, HOUR, MINUTE, parse_short_number};
use super::{append_fixed, append_i32, calendar_date};
use crate::types::SessionSettings;

/// How the session's TimeZone affects texts without a numeric offset.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZoneRules {
    /// Whether a time without a zone is UTC.
    bare_is_utc: bool,
    /// Whether `Z` and `UTC` mean UTC. A zone with its own abbreviations could redefine both.
    utc_names_are_safe: bool,
}

impl ZoneRules {
    /// Returns the rules for a session.
    pub(super) fn of(session: &SessionSettings) -> ZoneRules {
        let zone = session.time_zone.as_str();
        ZoneRules {
            bare_is_utc: ["UTC", "GMT", "Etc/UTC"].contains(&zone),
            utc_names_are_safe: !zone
                .contains(['<', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']),
        }
    }
}

/// Encodes a date.
#[inline]
pub(super) fn encode_date(field: &[u8], zones: ZoneRules, out: &mut Vec<u8>) -> bool {
    let days = if field.len() == 10 { calendar_date::parse_iso(field) } else { None };
    match days {
        Some(days) => append_i32(days, out),
        None => encode_rare_date(field, zones, out),
    }
}

/// Encodes a timestamp.
#[inline]
pub(super) fn encode_timestamp(field: &[u8], zones: ZoneRules, out: &mut Vec<u8>) -> bool {
    match parse_iso(field) {
        Some(micros) => append_fixed(micros.to_be_bytes(), out),
        None => encode_rare_timestamp(field, zones, out),
    }
}

/// Encodes a timestamptz.
#[inline]
pub(super) fn encode_timestamptz(field: &[u8], zones: ZoneRules, out: &mut Vec<u8>) -> bool {
    let utc = match field {
        // At least 19 bytes, so that `+00` follows a time: after a date it would not be a zone.
        [time @ .., b'+', b'0', b'0'] if time.len() >= 19 => Some(time),
        [time @ .., b'Z'] if zones.utc_names_are_safe => Some(time),
        _ => zones.bare_is_utc.then_some(field),
    };
    match utc.and_then(parse_iso) {
        Some(micros) => append_fixed(micros.to_be_bytes(), out),
        None => encode_rare_timestamptz(field, zones, out),
    }
}

/// Parses `YYYY-MM-DD HH:MM:SS` with a fraction of up to six digits. Returns microseconds since
/// 2000-01-01.
#[inline(always)]
fn parse_iso(field: &[u8]) -> Option<i64> {
    let fraction = match field.len() {
        19 => 0,
        n @ 21..=26 => time_of_day::parse_fraction_at_end(field, n - 20)?,
        _ => return None,
    };
    Some(parse_iso_seconds(field)? + fraction)
}

/// Parses the `YYYY-MM-DD HH:MM:SS` at the start of a text. Returns microseconds since 2000-01-01.
#[inline(always)]
fn parse_iso_seconds(text: &[u8]) -> Option<i64> {
    if text.len() < 19 || !matches!(text[10], b' ' | b'T') {
        return None;
    }
    Some(i64::from(calendar_date::parse_iso(text)?) * DAY + time_of_day::parse_iso(&text[11..19])?)
}

/// Parses `YYYY-MM-DD HH:MM:SS` with an optional fraction, then a zone. Returns microseconds since
/// 2000-01-01 UTC.
fn parse_iso_with_zone(field: &[u8], zones: ZoneRules) -> Option<i64> {
    let seconds = parse_iso_seconds(field)?;
    let (fraction, rest) = match &field[19..] {
        [b'.', rest @ ..] => time_of_day::parse_fraction(rest)?,
        rest => (0, rest),
    };
    parse_zone(rest, zones)?.map(|zone| seconds + fraction - zone)
}

/// A parsed date, with time and zone if they are present.
struct ParsedTimestamp {
    days: i32,
    /// Microseconds since midnight. `None` for a date without a time.
    time: Option<i64>,
    /// Microseconds east of UTC. `None` without a zone.
    zone: Option<i64>,
}

impl ParsedTimestamp {
    /// Parses a date whose year has 4 to 6 digits. Time, zone and `BC` are optional.
    fn parse(field: &[u8], zones: ZoneRules) -> Option<ParsedTimestamp> {
        let (field, is_bc) = match field {
            [rest @ .., b' ', b'B' | b'b', b'C' | b'c'] => (rest, true),
            _ => (field, false),
        };
        let year_len = field.iter().position(|b| !b.is_ascii_digit())?;
        if !(4..=6).contains(&year_len) {
            return None;
        }
        let (year, rest) = field.split_at(year_len);
        let year = super::int::parse_unsigned(year)? as i32;
        let (month, rest) = parse_short_number(rest.strip_prefix(b"-")?)?;
        let (day, rest) = parse_short_number(rest.strip_prefix(b"-")?)?;
        let year = match (year, is_bc) {
            (1..=294_275, false) => year,
            (1..=4713, true) => 1 - year,
            _ => return None,
        };
        let days = calendar_date::day_number(year, month as u32, day as u32)?;
        let (time, zone) = match rest {
            [] => (None, None),
            [b' ' | b'T', rest @ ..] => {
                let (time, rest) = time_of_day::parse(rest)?;
                (Some(time), parse_zone(rest, zones)?)
            }
            _ => return None,
        };
        Some(ParsedTimestamp { days, time, zone })
    }

    /// Returns microseconds since 2000-01-01 in local time, ignoring the zone.
    fn local(&self) -> i64 {
        i64::from(self.days) * DAY + self.time.unwrap_or(0)
    }
}

/// Parses a zone. Returns microseconds east of UTC, `Some(None)` for an empty text, and `None` for
/// a text that is left to the server.
fn parse_zone(text: &[u8], zones: ZoneRules) -> Option<Option<i64>> {
    let (sign, rest) = match text.strip_prefix(b" ").unwrap_or(text) {
        [] => return text.is_empty().then_some(None),
        [b'Z' | b'z'] | b"UTC" if zones.utc_names_are_safe => return Some(Some(0)),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let digit = |b: &u8| i64::from(b.wrapping_sub(b'0'));
    if !rest.iter().all(|b| b.is_ascii_digit() || *b == b':') {
        return None;
    }
    let (hours, minutes, seconds) = match rest {
        [_] | [_, _] => (parse_short_number(rest)?.0, 0, 0),
        [b':', ..] | [.., b':'] => return None,
        [h, m1, m2] if !rest.contains(&b':') => (digit(h), digit(m1) * 10 + digit(m2), 0),
        [h1, h2, m1, m2] if !rest.contains(&b':') => {
            (digit(h1) * 10 + digit(h2), digit(m1) * 10 + digit(m2), 0)
        }
        _ => {
            let (hours, rest) = parse_short_number(rest)?;
            let (minutes, rest) = parse_short_number(rest.strip_prefix(b":")?)?;
            let (seconds, rest) = match rest {
                [b':', rest @ ..] => parse_short_number(rest)?,
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

/// Returns 1 for `infinity` and -1 for `-infinity`.
fn parse_infinity(field: &[u8]) -> Option<i32> {
    match field {
        [b'-', rest @ ..] => rest.eq_ignore_ascii_case(b"infinity").then_some(-1),
        _ => field.eq_ignore_ascii_case(b"infinity").then_some(1),
    }
}

/// Encodes a date in another format than `YYYY-MM-DD`.
#[inline(never)]
fn encode_rare_date(field: &[u8], zones: ZoneRules, out: &mut Vec<u8>) -> bool {
    let days = match parse_infinity(field) {
        Some(1) => i32::MAX,
        Some(_) => i32::MIN,
        None => match (parse_compact_date(field), ParsedTimestamp::parse(field, zones)) {
            (Some(days), _) => days,
            // As in the server, time and zone are ignored. 24:00 would be the next day.
            (None, Some(stamp)) if stamp.time.unwrap_or(0) < DAY => stamp.days,
            _ => return false,
        },
    };
    append_i32(days, out)
}

/// Parses a date of the form `YYYYMMDD`.
fn parse_compact_date(field: &[u8]) -> Option<i32> {
    if field.len() != 8 {
        return None;
    }
    let number = super::int::parse_unsigned(field)? as u32;
    let year = number / 10_000;
    if year == 0 {
        return None;
    }
    calendar_date::day_number(year as i32, number / 100 % 100, number % 100)
}

/// Encodes a timestamp in another format than `YYYY-MM-DD HH:MM:SS`.
#[inline(never)]
fn encode_rare_timestamp(field: &[u8], zones: ZoneRules, out: &mut Vec<u8>) -> bool {
    let micros = match (parse_infinity(field), ParsedTimestamp::parse(field, zones)) {
        (Some(1), _) => i64::MAX,
        (Some(_), _) => i64::MIN,
        // As in the server, the zone is ignored.
        (None, Some(stamp)) => stamp.local(),
        _ => return false,
    };
    append_fixed(micros.to_be_bytes(), out)
}

/// Encodes a timestamptz with another zone than `+00` or `Z`, or in another format.
#[inline(never)]
fn encode_rare_timestamptz(field: &[u8], zones: ZoneRules, out: &mut Vec<u8>) -> bool {
    if let Some(micros) = parse_iso_with_zone(field, zones) {
        return append_fixed(micros.to_be_bytes(), out);
    }
    let micros = match (parse_infinity(field), ParsedTimestamp::parse(field, zones)) {
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

/// Encodes a timetz: a time of day, then the zone in seconds west of UTC.
pub(super) fn encode_timetz(field: &[u8], zones: ZoneRules, out: &mut Vec<u8>) -> bool {
    let Some((time, rest)) = time_of_day::parse(field) else {
        return false;
    };
    let zone = match parse_zone(rest, zones) {
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

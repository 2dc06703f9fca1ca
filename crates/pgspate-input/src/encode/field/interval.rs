//! Encodes intervals in the format that PostgreSQL prints: whole numbers with units, then a time.
//!
//! Each unit may occur once, and each number has its own sign. Fractions of units, `ago`, numbers
//! without units and ISO 8601 are left to the server.

use super::time_of_day::{self, HOUR, MINUTE};
use crate::types::SessionSettings;

/// How the session and the column affect ambiguous intervals.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntervalRules {
    /// Whether a minus sign at the start may apply to all numbers (`sql_standard`).
    first_sign_applies_to_all: bool,
    /// Whether the column has a type modifier, which may turn `1:02` into minutes and seconds.
    has_typmod: bool,
}

impl IntervalRules {
    pub(super) fn of(session: &SessionSettings, has_typmod: bool) -> IntervalRules {
        let plain = ["postgres", "postgres_verbose", "iso_8601"];
        let first_sign_applies_to_all =
            !plain.iter().any(|name| session.interval_style.eq_ignore_ascii_case(name));
        IntervalRules { first_sign_applies_to_all, has_typmod }
    }
}

/// The most digits of a number. Sums of such numbers cannot overflow the server's fields.
const DIGITS_MAX: usize = 6;

/// A parsed interval.
#[derive(Default)]
struct Interval {
    micros: i64,
    days: i32,
    months: i32,
    /// One bit for each unit that has occurred.
    seen: u16,
}

/// A unit of an interval.
#[derive(Clone, Copy)]
enum IntervalField {
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
}

impl IntervalField {
    fn of(word: &[u8]) -> Option<IntervalField> {
        Some(match word {
            b"year" | b"years" | b"yr" | b"yrs" => IntervalField::Year,
            b"mon" | b"mons" | b"month" | b"months" => IntervalField::Month,
            b"week" | b"weeks" => IntervalField::Week,
            b"day" | b"days" => IntervalField::Day,
            b"hour" | b"hours" | b"hr" | b"hrs" => IntervalField::Hour,
            b"minute" | b"minutes" | b"min" | b"mins" => IntervalField::Minute,
            b"second" | b"seconds" | b"sec" | b"secs" => IntervalField::Second,
            _ => return None,
        })
    }
}

/// Encodes an interval.
pub(super) fn encode(field: &[u8], rules: IntervalRules, out: &mut Vec<u8>) -> bool {
    let Some(interval) = Interval::parse(field, rules) else {
        return false;
    };
    let mut value = [0u8; 20];
    value[3] = 16;
    value[4..12].copy_from_slice(&interval.micros.to_be_bytes());
    value[12..16].copy_from_slice(&interval.days.to_be_bytes());
    value[16..].copy_from_slice(&interval.months.to_be_bytes());
    out.extend_from_slice(&value);
    true
}

impl Interval {
    /// Parses an interval. Returns `None` if the text is left to the server.
    fn parse(field: &[u8], rules: IntervalRules) -> Option<Interval> {
        if rules.first_sign_applies_to_all && field.first() == Some(&b'-') {
            return None;
        }
        let mut interval = Interval::default();
        let mut words = field.split(|b| *b == b' ');
        while let Some(word) = words.next() {
            if word.contains(&b':') {
                interval.micros += parse_time(word, rules)?;
                interval.mark_unit(IntervalField::Hour)?;
                interval.mark_unit(IntervalField::Minute)?;
                interval.mark_unit(IntervalField::Second)?;
                return words.next().is_none().then_some(interval);
            }
            let unit = IntervalField::of(words.next()?)?;
            interval.mark_unit(unit)?;
            interval.add(parse_signed(word)?, unit);
        }
        Some(interval)
    }

    /// Notes that a unit has occurred. Returns `None` if the unit has occurred before.
    fn mark_unit(&mut self, unit: IntervalField) -> Option<()> {
        let bit = 1 << unit as u16;
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        is_new.then_some(())
    }

    /// Adds a number of units.
    fn add(&mut self, number: i32, unit: IntervalField) {
        match unit {
            IntervalField::Year => self.months += number * 12,
            IntervalField::Month => self.months += number,
            IntervalField::Week => self.days += number * 7,
            IntervalField::Day => self.days += number,
            IntervalField::Hour => self.micros += i64::from(number) * HOUR,
            IntervalField::Minute => self.micros += i64::from(number) * MINUTE,
            IntervalField::Second => self.micros += i64::from(number) * 1_000_000,
        }
    }
}

/// Parses an optional sign and digits.
fn parse_signed(text: &[u8]) -> Option<i32> {
    let (digits, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        _ => (text, false),
    };
    if digits.len() > DIGITS_MAX {
        return None;
    }
    let number = super::int::parse_unsigned(digits)? as i32;
    Some(if negative { -number } else { number })
}

/// Parses `H:MM:SS` with an optional sign and fraction, and `H:MM` if the column has no modifier.
/// Returns microseconds.
fn parse_time(text: &[u8], rules: IntervalRules) -> Option<i64> {
    let (unsigned, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        _ => (text, false),
    };
    let colon = memchr::memchr(b':', unsigned)?;
    if colon > DIGITS_MAX {
        return None;
    }
    let hours = super::int::parse_unsigned(&unsigned[..colon])? as i64;
    let (minutes, rest) = time_of_day::parse_short_number(&unsigned[colon + 1..])?;
    let (seconds, rest) = match rest {
        [b':', rest @ ..] => time_of_day::parse_short_number(rest)?,
        [] if !rules.has_typmod => (0, rest),
        _ => return None,
    };
    let (micros, rest) = match rest {
        [b'.', rest @ ..] => time_of_day::parse_fraction(rest)?,
        _ => (0, rest),
    };
    if !rest.is_empty() || minutes > 59 || seconds > 59 {
        return None;
    }
    let total = hours * HOUR + minutes * MINUTE + seconds * 1_000_000 + micros;
    Some(if negative { -total } else { total })
}

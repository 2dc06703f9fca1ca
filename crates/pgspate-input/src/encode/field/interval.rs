//! Intervals as PostgreSQL prints them: whole numbers with units, then a time.
//!
//! Each unit at most once, each number with its own sign. Fractions of units, `ago`, numbers
//! without units and ISO 8601 are left to the server.

use super::clock::{self, HOUR, MINUTE};
use crate::types::Session;

/// What the session and the column say of ambiguous spellings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// Whether a minus sign in front may apply to everything behind it.
    sign_spreads: bool,
    /// Whether the column's modifier may make `1:02` minutes and seconds.
    has_typmod: bool,
}

impl Style {
    pub(super) fn of(session: &Session, has_typmod: bool) -> Style {
        let plain = ["postgres", "postgres_verbose", "iso_8601"];
        let sign_spreads =
            !plain.iter().any(|name| session.interval_style.eq_ignore_ascii_case(name));
        Style { sign_spreads, has_typmod }
    }
}

/// The most digits of a number: any sum of such numbers fits the server's fields.
const DIGITS_MAX: usize = 6;

#[derive(Default)]
struct Interval {
    micros: i64,
    days: i32,
    months: i32,
    /// One bit for each unit that was read.
    seen: u16,
}

#[derive(Clone, Copy)]
enum Unit {
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
}

impl Unit {
    fn of(word: &[u8]) -> Option<Unit> {
        Some(match word {
            b"year" | b"years" | b"yr" | b"yrs" => Unit::Year,
            b"mon" | b"mons" | b"month" | b"months" => Unit::Month,
            b"week" | b"weeks" => Unit::Week,
            b"day" | b"days" => Unit::Day,
            b"hour" | b"hours" | b"hr" | b"hrs" => Unit::Hour,
            b"minute" | b"minutes" | b"min" | b"mins" => Unit::Minute,
            b"second" | b"seconds" | b"sec" | b"secs" => Unit::Second,
            _ => return None,
        })
    }
}

pub(super) fn append(field: &[u8], style: Style, out: &mut Vec<u8>) -> bool {
    let Some(interval) = Interval::read(field, style) else {
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
    fn read(field: &[u8], style: Style) -> Option<Interval> {
        if style.sign_spreads && field.first() == Some(&b'-') {
            return None;
        }
        let mut interval = Interval::default();
        let mut words = field.split(|b| *b == b' ');
        while let Some(word) = words.next() {
            if word.contains(&b':') {
                interval.micros += interval_time(word, style)?;
                interval.mark(Unit::Hour)?;
                interval.mark(Unit::Minute)?;
                interval.mark(Unit::Second)?;
                return words.next().is_none().then_some(interval);
            }
            let unit = Unit::of(words.next()?)?;
            interval.mark(unit)?;
            interval.add(signed(word)?, unit);
        }
        Some(interval)
    }

    /// Remembers a unit; none if it was there before.
    fn mark(&mut self, unit: Unit) -> Option<()> {
        let bit = 1 << unit as u16;
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        is_new.then_some(())
    }

    fn add(&mut self, number: i32, unit: Unit) {
        match unit {
            Unit::Year => self.months += number * 12,
            Unit::Month => self.months += number,
            Unit::Week => self.days += number * 7,
            Unit::Day => self.days += number,
            Unit::Hour => self.micros += i64::from(number) * HOUR,
            Unit::Minute => self.micros += i64::from(number) * MINUTE,
            Unit::Second => self.micros += i64::from(number) * 1_000_000,
        }
    }
}

/// A sign and digits.
fn signed(text: &[u8]) -> Option<i32> {
    let (digits, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        _ => (text, false),
    };
    if digits.len() > DIGITS_MAX {
        return None;
    }
    let number = super::int::unsigned(digits)? as i32;
    Some(if negative { -number } else { number })
}

/// `H:MM:SS` with a sign and a fraction; `H:MM` where it can mean nothing else.
fn interval_time(text: &[u8], style: Style) -> Option<i64> {
    let (unsigned, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        _ => (text, false),
    };
    let colon = memchr::memchr(b':', unsigned)?;
    if colon > DIGITS_MAX {
        return None;
    }
    let hours = super::int::unsigned(&unsigned[..colon])? as i64;
    let (minutes, rest) = clock::short_number(&unsigned[colon + 1..])?;
    let (seconds, rest) = match rest {
        [b':', rest @ ..] => clock::short_number(rest)?,
        [] if !style.has_typmod => (0, rest),
        _ => return None,
    };
    let (micros, rest) = match rest {
        [b'.', rest @ ..] => clock::fraction(rest)?,
        _ => (0, rest),
    };
    if !rest.is_empty() || minutes > 59 || seconds > 59 {
        return None;
    }
    let total = hours * HOUR + minutes * MINUTE + seconds * 1_000_000 + micros;
    Some(if negative { -total } else { total })
}

//! Dates and times for PostgreSQL, from numbers since 1970 or from ISO 8601 as Java writes it.
//!
//! A driver's stand-in for infinity becomes infinity again. Every stand-in is outside the range of
//! PostgreSQL's types, so no real date is mistaken for infinity.

use std::borrow::Cow;

use pgspate_input::encode::arrow::calendar::{
    civil, write_date, write_interval, write_time, write_timestamp,
};

/// The unit in which dates and times are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// Thousandths of a second.
    Milli,
    /// Millionths of a second.
    Micro,
    /// Billionths of a second.
    Nano,
}

impl TimeUnit {
    fn per_second(self) -> i64 {
        match self {
            TimeUnit::Milli => 1_000,
            TimeUnit::Micro => 1_000_000,
            TimeUnit::Nano => 1_000_000_000,
        }
    }

    /// Splits a count into seconds and nanoseconds.
    fn split(self, value: i64) -> (i64, u32) {
        let per_second = self.per_second();
        let fraction = value.rem_euclid(per_second) * (1_000_000_000 / per_second);
        (value.div_euclid(per_second), fraction as u32)
    }
}

/// The JDBC driver's instants for infinity, in milliseconds. Some versions of Debezium take these
/// numbers for microseconds, and write a thousandth of them as milliseconds.
const INFINITY_MILLIS: i64 = 9_223_372_036_825_200_000;
const MINUS_INFINITY_MILLIS: i64 = -9_223_372_036_832_400_000;

/// Writes a timestamp, counted in units since 1970, followed by `zone`.
pub(super) fn timestamp(value: i64, unit: TimeUnit, zone: &str) -> String {
    match (value, unit) {
        (i64::MAX, TimeUnit::Micro | TimeUnit::Nano) | (INFINITY_MILLIS, _) => {
            return "infinity".into();
        }
        (i64::MIN, TimeUnit::Micro | TimeUnit::Nano) | (MINUS_INFINITY_MILLIS, _) => {
            return "-infinity".into();
        }
        (millis, TimeUnit::Milli) if millis == INFINITY_MILLIS / 1_000 => return "infinity".into(),
        (millis, TimeUnit::Milli) if millis == MINUS_INFINITY_MILLIS / 1_000 => {
            return "-infinity".into();
        }
        _ => {}
    }
    let (secs, nanos) = unit.split(value);
    let mut out = Vec::with_capacity(32);
    write_timestamp(secs, nanos, ' ', zone, &mut out);
    ascii_string(out)
}

/// Returns whether a count of units since 1970 is after the year 9999.
pub(super) fn is_after_year_9999(value: i64, unit: TimeUnit) -> bool {
    unit.split(value).0 >= 253_402_300_800
}

/// Writes a date, counted in days since 1970-01-01.
pub(super) fn date(days: i64) -> String {
    // Debezium's dates for infinity, all outside the range of date. Its versions differ in the sign
    // of the first year.
    match civil(days) {
        (-5_877_611 | 5_877_611, 6, 21) => return "infinity".into(),
        (-5_877_611, 6, 22) => return "-infinity".into(),
        _ => {}
    }
    // Debezium's dates for infinity in arrays. They have lost their era and the upper half of their
    // days; a time zone may move them by a day.
    match days {
        -622_191_234..=-622_191_232 => return "infinity".into(),
        -625_821_273..=-625_821_271 => return "-infinity".into(),
        _ => {}
    }
    let mut out = Vec::with_capacity(16);
    if write_date(days, &mut out) {
        out.extend_from_slice(b" BC");
    }
    ascii_string(out)
}

/// Writes a time of the day. Returns `None` for a count below zero or past 24:00.
pub(super) fn time(value: i64, unit: TimeUnit) -> Option<String> {
    let (secs, nanos) = unit.split(value);
    if !(0..=86_400).contains(&secs) || (secs == 86_400 && nanos != 0) {
        return None;
    }
    let mut out = Vec::with_capacity(16);
    write_time(secs, nanos, &mut out);
    Some(ascii_string(out))
}

/// Writes a duration as hours, minutes and seconds.
pub(super) fn duration(value: i64, unit: TimeUnit) -> String {
    let nanos = i128::from(value) * i128::from(1_000_000_000 / unit.per_second());
    let mut out = Vec::with_capacity(16);
    write_interval(0, 0, nanos, &mut out);
    ascii_string(out)
}

/// Converts ISO 8601 with Java's years: year 0 is 1 BC, -1 is 2 BC, and years past 9999 have a
/// plus.
pub(super) fn iso(text: &str) -> Cow<'_, str> {
    let year_len = text.bytes().skip(1).position(|byte| byte == b'-').map_or(0, |at| at + 1);
    let Some((year, rest)) = text.split_at_checked(year_len) else { return Cow::Borrowed(text) };
    let (sign, digits) = match year.as_bytes() {
        [b'+', ..] => ('+', &year[1..]),
        [b'-', ..] => ('-', &year[1..]),
        [b'0', b'0', b'0', b'0'] => ('-', year),
        _ => return Cow::Borrowed(text),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Cow::Borrowed(text);
    }
    match (sign, digits, digits.parse::<u64>()) {
        // Infinity in milliseconds, which Debezium read as microseconds.
        ('+', "294247", _) if rest.starts_with("-01-10T04:00:25.2") => Cow::Borrowed("infinity"),
        ('-', "290308", _) => Cow::Borrowed("-infinity"),
        ('+', "292278994", _) => Cow::Borrowed("infinity"),
        // Infinite dates, as in `date`.
        (_, "5877611", _) if rest.starts_with("-06-21") => Cow::Borrowed("infinity"),
        ('-', "5877611", _) if rest.starts_with("-06-22") => Cow::Borrowed("-infinity"),
        // Infinite timestamps in arrays, which have lost their era.
        ('-', "292275055", _) | ('+', "292269055", _) => Cow::Borrowed("-infinity"),
        ('-', _, Ok(year)) => {
            Cow::Owned(format!("{:04}{} BC", year + 1, rest.replacen('T', " ", 1)))
        }
        ('+', ..) => Cow::Borrowed(&text[1..]),
        _ => Cow::Borrowed(text),
    }
}

fn ascii_string(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_dates_and_times() {
        assert_eq!(timestamp(1_700_000_000_123, TimeUnit::Milli, ""), "2023-11-14 22:13:20.123");
        assert_eq!(timestamp(-1, TimeUnit::Micro, "+00"), "1969-12-31 23:59:59.999999+00");
        assert_eq!(
            timestamp(-62_135_596_800_000_001, TimeUnit::Micro, ""),
            "0001-12-31 23:59:59.999999 BC"
        );
        assert_eq!(timestamp(1, TimeUnit::Nano, ""), "1970-01-01 00:00:00.000000001");
        assert_eq!(date(19_675), "2023-11-14");
        assert_eq!(date(-719_529), "0002-12-31 BC");
        assert_eq!(time(86_399_999_999, TimeUnit::Micro).unwrap(), "23:59:59.999999");
        assert_eq!(time(86_400_000, TimeUnit::Milli).unwrap(), "24:00:00");
        assert_eq!((time(-1, TimeUnit::Nano), time(86_400_001, TimeUnit::Milli)), (None, None));
        assert_eq!(duration(-5_400_000_001, TimeUnit::Micro), "-01:30:00.000001");
    }

    #[test]
    fn stand_ins_for_infinity_become_infinity() {
        for (value, unit) in [
            (9_223_372_036_825_200_000, TimeUnit::Micro),
            (i64::MAX, TimeUnit::Micro),
            (9_223_372_036_825_200, TimeUnit::Milli),
            (i64::MAX, TimeUnit::Nano),
        ] {
            assert_eq!(timestamp(value, unit, ""), "infinity");
        }
        assert_eq!(timestamp(-9_223_372_036_832_400_000, TimeUnit::Micro, ""), "-infinity");
        assert_eq!(timestamp(-9_223_372_036_832_400, TimeUnit::Milli, ""), "-infinity");
        assert_eq!(iso("+292278994-08-16T23:00:00Z"), "infinity");
        assert_eq!(iso("-292275055-05-16T23:00:00Z"), "-infinity");
        assert_eq!(iso("+294247-01-10T04:00:25.2Z"), "infinity");
        assert_eq!(
            (iso("-5877611-06-21Z"), iso("-5877611-06-22Z")),
            ("infinity".into(), "-infinity".into())
        );
        assert_eq!(iso("-290308-12-21T19:59:27.6Z"), "-infinity");
        assert_eq!(iso("+294247-01-10T04:00:26Z"), "294247-01-10T04:00:26Z");
        assert_eq!(iso("+292269055-12-02T23:00:00.000000Z"), "-infinity");
        assert_eq!(
            (date(-622_191_233), date(-625_821_272)),
            ("infinity".into(), "-infinity".into())
        );
    }

    #[test]
    fn years_as_java_writes_them() {
        for (text, expected) in [
            ("2023-11-14T22:13:20.5Z", "2023-11-14T22:13:20.5Z"),
            ("-0043-03-15T10:00:00Z", "0044-03-15 10:00:00Z BC"),
            ("0000-01-01", "0001-01-01 BC"),
            ("+12345-01-01T00:00:00Z", "12345-01-01T00:00:00Z"),
            ("", ""),
            ("-", "-"),
            ("é-1", "é-1"),
            ("-x-1", "-x-1"),
            ("infinity", "infinity"),
        ] {
            assert_eq!(iso(text), expected);
        }
    }
}

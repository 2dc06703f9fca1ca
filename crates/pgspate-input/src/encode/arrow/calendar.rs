//! Writes dates, times and intervals as PostgreSQL prints them with the ISO date style.

use std::io::Write as _;

const DAY_SECS: i64 = 86_400;

/// Returns year, month and day of a day number, counted from 1970-01-01, in the proleptic Gregorian
/// calendar.
pub fn civil(days: i64) -> (i64, u32, u32) {
    // Eras of 400 years begin on March 1st, so that the leap day is the last day of a year.
    let shifted = i128::from(days) + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i128::from(month <= 2);
    (year as i64, month as u32, day as u32)
}

/// Appends a date: `1999-01-08`. Returns whether the caller must append ` BC` at the end.
pub fn write_date(days: i64, out: &mut Vec<u8>) -> bool {
    let (year, month, day) = civil(days);
    let shown = if year > 0 { year } else { 1 - year };
    let _ = write!(out, "{shown:04}-{month:02}-{day:02}");
    year <= 0
}

/// Appends a time: `04:05:06`. If `nanos` is not 0, also appends a fraction without trailing zeros.
pub fn write_time(secs: i64, nanos: u32, out: &mut Vec<u8>) {
    let _ = write!(out, "{:02}:{:02}:{:02}", secs / 3600, secs / 60 % 60, secs % 60);
    if nanos != 0 {
        let digits = format!("{nanos:09}");
        let _ = write!(out, ".{}", digits.trim_end_matches('0'));
    }
}

/// Appends a timestamp, given in `secs` and `nanos` since 1970: `1999-01-08 04:05:06`. `between`
/// separates date and time, and `zone` follows the time.
pub fn write_timestamp(secs: i64, nanos: u32, between: char, zone: &str, out: &mut Vec<u8>) {
    let bc = write_date(secs.div_euclid(DAY_SECS), out);
    let _ = write!(out, "{between}");
    write_time(secs.rem_euclid(DAY_SECS), nanos, out);
    out.extend_from_slice(zone.as_bytes());
    if bc {
        out.extend_from_slice(b" BC");
    }
}

/// Rounds nanoseconds to microseconds as the server does with a fraction of nine digits: the server
/// converts the fraction to a float, multiplies, and rounds to even.
#[inline]
pub(crate) fn round_nanos(nanos: i64) -> i64 {
    match nanos % 1_000 {
        0 => nanos / 1_000,
        _ => ((nanos as f64 / 1e9) * 1e6).round_ties_even() as i64,
    }
}

/// Appends an interval as PostgreSQL prints it: `1 year 2 mons -3 days +04:05:06.789`.
pub fn write_interval(months: i64, days: i64, nanos: i128, out: &mut Vec<u8>) {
    let start = out.len();
    let mut before_negative = false;
    for (count, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if count == 0 {
            continue;
        }
        let gap = if out.len() == start { "" } else { " " };
        let sign = if before_negative && count > 0 { "+" } else { "" };
        let plural = if count == 1 { "" } else { "s" };
        let _ = write!(out, "{gap}{sign}{count} {unit}{plural}");
        before_negative = count < 0;
    }
    if nanos == 0 && out.len() != start {
        return;
    }
    if out.len() != start {
        out.push(b' ');
    }
    if nanos < 0 {
        out.push(b'-');
    } else if before_negative {
        out.push(b'+');
    }
    let magnitude = nanos.unsigned_abs();
    write_time((magnitude / 1_000_000_000) as i64, (magnitude % 1_000_000_000) as u32, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(secs: i64, nanos: u32) -> String {
        let mut out = Vec::new();
        write_timestamp(secs, nanos, ' ', "+00", &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn timestamps_of_the_whole_range() {
        assert_eq!(stamp(0, 0), "1970-01-01 00:00:00+00");
        assert_eq!(stamp(951_782_399, 500_000_000), "2000-02-28 23:59:59.5+00");
        assert_eq!(stamp(951_782_400, 1), "2000-02-29 00:00:00.000000001+00");
        assert_eq!(stamp(-62_135_596_800, 0), "0001-01-01 00:00:00+00");
        assert_eq!(stamp(-62_135_596_801, 0), "0001-12-31 23:59:59+00 BC");
        assert_eq!(stamp(i64::MIN, 0), "292277022658-01-27 08:29:52+00 BC");
        assert_eq!(stamp(i64::MAX, 0), "292277026596-12-04 15:30:07+00");
    }

    #[test]
    fn each_part_of_an_interval_has_its_sign() {
        let format_value = |months, days, nanos| {
            let mut out = Vec::new();
            write_interval(months, days, nanos, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(format_value(0, 0, 0), "00:00:00");
        assert_eq!(format_value(14, -3, 1_500_000_000), "1 year 2 mons -3 days +00:00:01.5");
        assert_eq!(format_value(-1, 1, 0), "-1 mons +1 day");
        assert_eq!(format_value(0, 0, -90_061_000_000_000), "-25:01:01");
    }
}

//! Converts dates of the proleptic Gregorian calendar into days since 2000-01-01.

use super::digits::{are_digit_values, first8, pairs, values};

/// Added to a year so that all years are positive. A multiple of 400.
const YEARS_BEFORE: i32 = 4800;
/// The number of the day 2000-01-01, if 1 March of the year -4800 is day 1.
const EPOCH: i32 = 2_483_590;

/// Returns the number of days from 2000-01-01 to a date, or `None` if the date does not exist.
/// Years are astronomical: 0 is 1 BC. Callers pass years from -4712 to 294275. The server's types
/// hold every day of these years.
#[inline(always)]
pub fn day_number(year: i32, month: u32, day: u32) -> Option<i32> {
    if month.wrapping_sub(1) > 11 || day.wrapping_sub(1) > 27 && !is_late_day(year, month, day) {
        return None;
    }
    // The year begins in March, so that the leap day comes last.
    let is_before_march = month <= 2;
    let year = year.wrapping_add(YEARS_BEFORE - i32::from(is_before_march)) as u32;
    let month = if is_before_march { month + 12 } else { month };
    let century = year / 100;
    let days = 1461 * year / 4 - century + century / 4 + (979 * month - 2919) / 32 + day;
    Some(days as i32 - EPOCH)
}

/// Returns whether a date after the 28th of its month exists.
#[inline(always)]
fn is_late_day(year: i32, month: u32, day: u32) -> bool {
    let last = match month {
        2 => 28 + u32::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (1..=last).contains(&day)
}

/// Parses the `YYYY-MM-DD` at the start of a text of ten or more bytes. Returns the day number.
#[inline(always)]
pub(super) fn parse_iso(text: &[u8]) -> Option<i32> {
    let word = first8(text);
    let [d1, d2] = text.get(8..10)?.first_chunk::<2>()?;
    const DASHES: u64 = 0xff00_00ff_0000_0000;
    const DASHED: u64 = 0x2d00_002d_0000_0000;
    let digits = (word & 0xffff_ffff)
        | ((word >> 8) & 0xffff_0000_0000)
        | (u64::from(*d1) << 48)
        | (u64::from(*d2) << 56);
    let digits = values(digits);
    if word & DASHES != DASHED || !are_digit_values(digits) {
        return None;
    }
    let pairs = pairs(digits);
    let pair = |n: u32| (pairs >> (16 * n)) as u8 as u32;
    let year = pair(0) * 100 + pair(1);
    if year == 0 {
        return None;
    }
    day_number(year as i32, pair(2), pair(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_dates_have_consecutive_numbers() {
        let mut expected = day_number(-4712, 1, 1).unwrap();
        for year in -4712..=6000 {
            for month in 1..=12 {
                for day in 1..=31 {
                    if let Some(number) = day_number(year, month, day) {
                        assert_eq!(number, expected, "{year}-{month}-{day}");
                        expected += 1;
                    }
                }
            }
        }
        assert_eq!(day_number(2000, 1, 1), Some(0));
        assert_eq!(day_number(-4712, 1, 1), Some(-2_451_507));
    }

    #[test]
    fn reads_iso_dates() {
        assert_eq!(parse_iso(b"2000-03-01"), Some(60));
        assert_eq!(parse_iso(b"0001-01-01"), Some(-730_119));
        for text in ["2000-02-30", "1900-02-29", "2000-13-01", "2000-00-01", "2000-01-00"] {
            assert_eq!(parse_iso(text.as_bytes()), None, "{text}");
        }
        for text in ["0000-01-01", "2000/01/01", "2000-1-01 ", "20000-01-0", "2000-01-0x"] {
            assert_eq!(parse_iso(text.as_bytes()), None, "{text}");
        }
    }
}

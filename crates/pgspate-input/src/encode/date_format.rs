//! Formats of dates, as `--date-format` gives them: `%d.%m.%Y`, `%m/%d/%Y %I:%M %p`.
//!
//! A text with the format is spelled again in ISO format, which means the same under every
//! DateStyle. Nothing is computed but the century of a year of two digits and the hour of a clock
//! of twelve hours. Whether the month has the day is left to the encoder and the server.

use std::fmt;
use std::sync::Arc;

/// How dates and timestamps of an input are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DateFormat {
    pattern: String,
    items: Vec<FormatItem>,
}

/// A part of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormatItem {
    /// This byte.
    Literal(u8),
    /// The year with four digits.
    Year,
    /// The year with two digits: 70 to 99 are before 2000, as in PostgreSQL.
    ShortYear,
    /// The month with one or two digits.
    Month,
    /// The month's English name, or its first three letters.
    MonthName,
    /// The day of the month with one or two digits, or with a space before a digit.
    Day,
    /// The English name of a day of the week, or its first three letters. It is not compared with
    /// the date.
    Weekday,
    /// The hour from 0.
    Hour,
    /// The hour from 1 to 12.
    Hour12,
    Minute,
    Second,
    /// The digits after the seconds' decimal point.
    Fraction,
    /// `AM` or `PM`.
    Half,
    /// `Z`, or an offset from UTC: `+02`, `+0200` or `+02:00`.
    Zone,
}

/// A date in ISO format.
#[derive(Debug, Clone, Copy)]
pub struct IsoDate {
    bytes: [u8; IsoDate::LEN_MAX],
    len: usize,
}

/// The values that a text gives.
#[derive(Default)]
struct DateParts<'a> {
    year: u16,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
    fraction: &'a [u8],
    is_after_noon: Option<bool>,
    /// Sign, hours and minutes of the offset.
    zone: Option<(u8, u8, u8)>,
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

impl DateFormat {
    /// Parses a format in the notation of `strftime`.
    ///
    /// # Errors
    /// The reason why this is not the format of a date.
    pub fn parse(pattern: &str) -> Result<DateFormat, String> {
        let mut items = Vec::new();
        let mut chars = pattern.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                let mut bytes = [0; 4];
                let bytes = char.encode_utf8(&mut bytes).as_bytes();
                items.extend(bytes.iter().map(|byte| FormatItem::Literal(*byte)));
                continue;
            }
            let mut name = chars.next().unwrap_or(' ');
            if name == '-' {
                // `%-d` is a day without a zero before it. Numbers need no zero anyway.
                name = chars.next().unwrap_or(' ');
            }
            match name {
                'F' => items.extend(DateFormat::parse("%Y-%m-%d")?.items),
                'T' => items.extend(time_items(true)),
                'R' => items.extend(time_items(false)),
                _ => items.push(item_of(name)?),
            }
        }
        let format = DateFormat { pattern: pattern.to_owned(), items };
        format.check().map(|()| format)
    }

    /// Returns the format as the user wrote it.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns whether the format has an hour.
    pub fn has_time(&self) -> bool {
        self.has(FormatItem::Hour) || self.has(FormatItem::Hour12)
    }

    /// Returns whether the format has an offset from UTC.
    pub fn has_zone(&self) -> bool {
        self.has(FormatItem::Zone)
    }

    /// Returns whether texts of this format consist of digits alone, like whole numbers.
    pub fn is_digits(&self) -> bool {
        use FormatItem::{Day, Fraction, Hour, Hour12, Minute, Month, Second, ShortYear, Year};
        self.items.iter().all(|item| match item {
            FormatItem::Literal(byte) => byte.is_ascii_digit(),
            Year | ShortYear | Month | Day | Hour | Hour12 | Minute | Second | Fraction => true,
            _ => false,
        })
    }

    /// Returns the text in ISO format. Returns `None` if the text does not have the format, or has
    /// a month or a day of no year.
    pub fn respell(&self, text: &[u8]) -> Option<IsoDate> {
        let parts = self.read(text)?;
        let is_in_year = (1..=12).contains(&parts.month) && (1..=31).contains(&parts.day);
        is_in_year.then(|| parts.to_iso(self.has_time()))
    }

    /// Returns whether the text has the format, with any numbers.
    pub fn fits(&self, text: &[u8]) -> bool {
        self.read(text).is_some()
    }

    fn read<'a>(&self, text: &'a [u8]) -> Option<DateParts<'a>> {
        let mut rest = text.trim_ascii();
        let mut parts = DateParts::default();
        for item in &self.items {
            parts.read(*item, &mut rest)?;
        }
        if let Some(is_after_noon) = parts.is_after_noon {
            parts.hour = match (parts.hour, is_after_noon) {
                (12, false) => 0,
                (12, true) => 12,
                (hour @ 1..12, false) => hour,
                (hour @ 1..12, true) => hour + 12,
                _ => return None,
            };
        }
        rest.is_empty().then_some(parts)
    }

    fn has(&self, item: FormatItem) -> bool {
        self.items.contains(&item)
    }

    /// Checks that the items are a date, and that no value is given twice.
    fn check(&self) -> Result<(), String> {
        use FormatItem::{
            Day, Fraction, Half, Hour, Hour12, Minute, Month, MonthName, Second, ShortYear,
            Weekday, Year, Zone,
        };
        let count =
            |items: &[FormatItem]| self.items.iter().filter(|item| items.contains(item)).count();
        for (items, name) in [
            (&[Year, ShortYear][..], "a year (%Y or %y)"),
            (&[Month, MonthName], "a month (%m or %b)"),
            (&[Day], "a day (%d)"),
        ] {
            if count(items) != 1 {
                return Err(format!("a date format has {name} once"));
            }
        }
        let rest: [&[FormatItem]; 7] =
            [&[Hour, Hour12], &[Minute], &[Second], &[Fraction], &[Half], &[Zone], &[Weekday]];
        if rest.iter().any(|items| count(items) > 1) {
            return Err("a part of the time is given twice".to_owned());
        }
        if self.has(Hour12) != self.has(Half) {
            return Err("%I and %p are used together".to_owned());
        }
        let needs = [
            (Minute, self.has_time(), "%M needs %H"),
            (Second, self.has(Minute), "%S needs %M"),
            (Fraction, self.has(Second), "%f needs %S"),
            (Zone, self.has_time(), "%z needs %H"),
        ];
        match needs.into_iter().find(|(item, is_met, _)| self.has(*item) && !is_met) {
            Some((.., problem)) => Err(problem.to_owned()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for DateFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pattern)
    }
}

/// Returns the item with this letter.
fn item_of(name: char) -> Result<FormatItem, String> {
    Ok(match name {
        'Y' => FormatItem::Year,
        'y' => FormatItem::ShortYear,
        'm' => FormatItem::Month,
        'b' | 'B' | 'h' => FormatItem::MonthName,
        'd' | 'e' => FormatItem::Day,
        'a' | 'A' => FormatItem::Weekday,
        'H' | 'k' => FormatItem::Hour,
        'I' | 'l' => FormatItem::Hour12,
        'M' => FormatItem::Minute,
        'S' => FormatItem::Second,
        'f' => FormatItem::Fraction,
        'p' | 'P' => FormatItem::Half,
        'z' => FormatItem::Zone,
        '%' => FormatItem::Literal(b'%'),
        _ => {
            return Err(format!(
                "%{name} is not known; known are %Y %y %m %b %d %a %H %I %M %S %f %p %z %F %T %R %%"
            ));
        }
    })
}

/// Returns the items of `%H:%M`, and of `%H:%M:%S`.
fn time_items(has_seconds: bool) -> Vec<FormatItem> {
    let colon = FormatItem::Literal(b':');
    let items = [FormatItem::Hour, colon, FormatItem::Minute, colon, FormatItem::Second];
    items[..if has_seconds { 5 } else { 3 }].to_vec()
}

impl<'a> DateParts<'a> {
    /// Reads one item from the start of `rest`. Returns `None` if the item is not there.
    #[inline]
    fn read(&mut self, item: FormatItem, rest: &mut &'a [u8]) -> Option<()> {
        match item {
            FormatItem::Literal(byte) => *rest = rest.strip_prefix(&[byte])?,
            FormatItem::Year => {
                let digits = take_digits(rest, 4, 4)?;
                self.year =
                    digits.iter().fold(0, |year, digit| year * 10 + u16::from(digit - b'0'));
            }
            FormatItem::ShortYear => {
                let year = u16::from(number(take_digits(rest, 2, 2)?));
                self.year = year + if year < 70 { 2000 } else { 1900 };
            }
            FormatItem::Month => self.month = number(take_digits(rest, 1, 2)?),
            FormatItem::MonthName => self.month = take_name(rest, &MONTHS)?,
            FormatItem::Day => {
                *rest = rest.strip_prefix(b" ").unwrap_or(rest);
                self.day = number(take_digits(rest, 1, 2)?);
            }
            FormatItem::Weekday => drop(take_name(rest, &WEEKDAYS)?),
            FormatItem::Hour | FormatItem::Hour12 => self.hour = number(take_digits(rest, 1, 2)?),
            FormatItem::Minute => self.minute = number(take_digits(rest, 1, 2)?),
            FormatItem::Second => self.second = number(take_digits(rest, 1, 2)?),
            FormatItem::Fraction => {
                self.fraction = take_digits(rest, 1, 9)?;
                // PostgreSQL would round digits below a microsecond.
                if self.fraction.iter().skip(6).any(|digit| *digit != b'0') {
                    return None;
                }
            }
            FormatItem::Half => {
                let (half, after) = rest.split_at_checked(2)?;
                self.is_after_noon = Some(match half {
                    [b'a' | b'A', b'm' | b'M'] => false,
                    [b'p' | b'P', b'm' | b'M'] => true,
                    _ => return None,
                });
                *rest = after;
            }
            FormatItem::Zone => self.zone = Some(take_zone(rest)?),
        }
        Some(())
    }

    fn to_iso(&self, has_time: bool) -> IsoDate {
        let mut iso = IsoDate { bytes: [0; IsoDate::LEN_MAX], len: 0 };
        iso.push_two((self.year / 100) as u8);
        iso.push_two((self.year % 100) as u8);
        iso.push(b"-");
        iso.push_two(self.month);
        iso.push(b"-");
        iso.push_two(self.day);
        if has_time {
            iso.push(b" ");
            iso.push_two(self.hour);
            iso.push(b":");
            iso.push_two(self.minute);
            iso.push(b":");
            iso.push_two(self.second);
        }
        if !self.fraction.is_empty() {
            iso.push(b".");
            iso.push(self.fraction);
        }
        if let Some((sign, hours, minutes)) = self.zone {
            iso.push(&[sign]);
            iso.push_two(hours);
            iso.push(b":");
            iso.push_two(minutes);
        }
        iso
    }
}

impl IsoDate {
    /// `YYYY-MM-DD HH:MM:SS.123456789+HH:MM`.
    const LEN_MAX: usize = 35;

    /// Returns the text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn push_two(&mut self, number: u8) {
        self.push(&[b'0' + number / 10, b'0' + number % 10]);
    }
}

/// Takes at least `min` and at most `max` digits from the start of `rest`.
fn take_digits<'a>(rest: &mut &'a [u8], min: usize, max: usize) -> Option<&'a [u8]> {
    let len = rest.iter().take(max).take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, after) = rest.split_at(len);
    *rest = after;
    (len >= min).then_some(digits)
}

/// Returns the number of at most two digits.
fn number(digits: &[u8]) -> u8 {
    digits.iter().fold(0, |number, digit| number * 10 + (digit - b'0'))
}

/// Takes a name, or its first three letters, from the start of `rest`. Returns its number from 1.
fn take_name(rest: &mut &[u8], names: &[&str]) -> Option<u8> {
    let letters = rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let (word, after) = rest.split_at(letters);
    let is_name = |name: &&str| {
        word.eq_ignore_ascii_case(name.as_bytes())
            || word.eq_ignore_ascii_case(&name.as_bytes()[..3])
    };
    let at = names.iter().position(is_name)?;
    *rest = after;
    u8::try_from(at + 1).ok()
}

/// Takes an offset from UTC: its sign, hours and minutes.
fn take_zone(rest: &mut &[u8]) -> Option<(u8, u8, u8)> {
    let (&sign, mut after) = rest.split_first()?;
    let zone = match sign {
        b'Z' => (b'+', 0, 0),
        b'+' | b'-' => {
            let hours = number(take_digits(&mut after, 2, 2)?);
            let minutes = match after {
                [b':', minutes @ ..] => {
                    after = minutes;
                    number(take_digits(&mut after, 2, 2)?)
                }
                [b'0'..=b'9', ..] => number(take_digits(&mut after, 2, 2)?),
                _ => 0,
            };
            (sign, hours, minutes)
        }
        _ => return None,
    };
    *rest = after;
    Some(zone)
}

/// The formats of an input's dates: of all columns, and of columns by name.
#[derive(Debug, Clone, Default)]
pub struct DateFormats(pub Vec<(Option<String>, Arc<DateFormat>)>);

impl DateFormats {
    /// Returns the format of the columns for which `is_named` is true, or else of all columns. The
    /// flag says whether the user has named the column.
    pub fn find(&self, is_named: impl Fn(&str) -> bool) -> Option<(&Arc<DateFormat>, bool)> {
        let named = self.0.iter().find(|(name, _)| name.as_deref().is_some_and(&is_named));
        let found = named.or_else(|| self.0.iter().find(|(name, _)| name.is_none()))?;
        Some((&found.1, found.0.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iso(pattern: &str, text: &str) -> Option<String> {
        let format = DateFormat::parse(pattern).unwrap();
        let iso = format.respell(text.as_bytes())?;
        Some(String::from_utf8(iso.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn texts_with_the_format_are_spelled_in_iso() {
        for (pattern, text, expected) in [
            ("%d.%m.%Y", "31.12.2024", "2024-12-31"),
            ("%d.%m.%Y", " 1.2.2024 ", "2024-02-01"),
            ("%m/%d/%y", "12/31/69", "2069-12-31"),
            ("%m/%d/%y", "1/2/70", "1970-01-02"),
            ("%Y%m%d", "20240229", "2024-02-29"),
            ("%Y%m%d%H%M%S", "20240229235960", "2024-02-29 23:59:60"),
            ("%d %b %Y", "29 FEB 2024", "2024-02-29"),
            ("%A, %B %e, %Y", "Thursday, february  9, 2024", "2024-02-09"),
            ("%a %-d-%h-%y", "thu 9-sep-99", "1999-09-09"),
            ("%m/%d/%Y %H:%M", "2/3/2024 7:05", "2024-02-03 07:05:00"),
            ("%m/%d/%Y %I:%M %p", "2/3/2024 12:05 am", "2024-02-03 00:05:00"),
            ("%m/%d/%Y %I:%M:%S%p", "2/3/2024 12:05:09PM", "2024-02-03 12:05:09"),
            ("%m/%d/%Y %I %p", "2/3/2024 11 PM", "2024-02-03 23:00:00"),
            ("%FT%T.%f%z", "2024-02-03T01:02:03.4567Z", "2024-02-03 01:02:03.4567+00:00"),
            ("%FT%T.%f", "2024-02-03T01:02:03.123456000", "2024-02-03 01:02:03.123456000"),
            ("%d.%m.%Y %R %z", "3.2.2024 01:02 -0330", "2024-02-03 01:02:00-03:30"),
            ("%d.%m.%Y %H%z", "3.2.2024 01+05:45", "2024-02-03 01:00:00+05:45"),
            ("%d.%m.%Y %H%z", "3.2.2024 01-05", "2024-02-03 01:00:00-05:00"),
            // Whether a month has the day is for others to say.
            ("%d.%m.%Y", "31.02.0000", "0000-02-31"),
            ("%Y\u{5e74}%m\u{6708}%d", "2024\u{5e74}2\u{6708}3", "2024-02-03"),
            ("100%% %d.%m.%Y", "100% 1.2.2024", "2024-02-01"),
        ] {
            assert_eq!(iso(pattern, text).as_deref(), Some(expected), "{pattern} {text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for (pattern, text) in [
            ("%d.%m.%Y", "1.2.24"),
            ("%d.%m.%Y", "1.2.20245"),
            ("%d.%m.%Y", "1.2.-024"),
            ("%d.%m.%Y", "1.2.+2024"),
            ("%d.%m.%Y", "1. 2.2024"),
            ("%d.%m.%Y", "1-2-2024"),
            ("%d.%m.%Y", "2024-02-01"),
            ("%d.%m.%Y", "1.2.2024 10:00"),
            ("%d.%m.%Y", "001.2.2024"),
            ("%d.%m.%Y", ""),
            ("%d.%m.%Y", "infinity"),
            ("%d.%m.%y", "1.2.2024"),
            ("%d %b %Y", "1 Febr 2024"),
            ("%m/%d/%Y %I:%M %p", "2/3/2024 13:05 PM"),
            ("%m/%d/%Y %I:%M %p", "2/3/2024 0:05 AM"),
            ("%m/%d/%Y %I:%M %p", "2/3/2024 1:05"),
            ("%d.%m.%Y %H%z", "3.2.2024 01+5"),
            ("%d.%m.%Y %H%z", "3.2.2024 01+05:4"),
            ("%d.%m.%Y %H%z", "3.2.2024 01 CET"),
            ("%FT%T.%f", "2024-02-03T01:02:03.1234567"),
            ("%m/%d/%Y", "13/02/2024"),
            ("%d.%m.%Y", "32.1.2024"),
            ("%d.%m.%Y", "0.1.2024"),
        ] {
            assert_eq!(iso(pattern, text), None, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_that_are_not_dates_are_refused() {
        for (pattern, problem) in [
            ("", "a date format has a year (%Y or %y) once"),
            ("DD.MM.YYYY", "a date format has a year (%Y or %y) once"),
            ("%d.%Y", "a date format has a month (%m or %b) once"),
            ("%d.%m.%Y %d", "a date format has a day (%d) once"),
            ("%d.%m.%Y %I:%M", "%I and %p are used together"),
            ("%d.%m.%Y %H:%M %p", "%I and %p are used together"),
            ("%d.%m.%Y %M", "%M needs %H"),
            ("%d.%m.%Y %H %H", "a part of the time is given twice"),
            ("%d.%m.%Y %z", "%z needs %H"),
        ] {
            assert_eq!(DateFormat::parse(pattern), Err(problem.to_owned()), "{pattern}");
        }
        for pattern in ["%d.%m.%Y %Z", "%j", "%d.%m.%Y %"] {
            assert!(DateFormat::parse(pattern).unwrap_err().contains("is not known"), "{pattern}");
        }
    }
}

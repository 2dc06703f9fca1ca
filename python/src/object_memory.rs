//! Reads Decimals, dates and datetimes from the memory of CPython's objects.
//!
//! A call of Python for each value takes ten times as long. The layouts below are those of CPython
//! 3.6 and newer, but its stable interface does not promise them. So each layout is first tried on
//! values that are known. A class is read in this way only if all of them are found. Otherwise, and
//! for subclasses and unusual values, the caller asks the object.

use std::mem::size_of;

use pgspate::encode::field::day_number;
use pyo3::prelude::*;

/// Days from 1970-01-01 to 2000-01-01.
const DAYS_TO_2000: i64 = 10_957;
const DAY_MICROS: i64 = 86_400_000_000;
/// The flag of a negative Decimal.
const NEGATIVE: u8 = 1;
/// The flags of infinity and of the kinds of NaN.
const SPECIAL: u8 = 2 | 4 | 8;
/// The words of a Decimal's coefficient that its object has room for.
const INLINE_WORDS: usize = 4;
/// The most digits after the decimal point of a [`FixedDecimal`].
const SCALE_MAX: usize = 40;

/// What every object begins with: its number of references, and its class.
type Head = [usize; 2];

/// `PyDecObject` of CPython's `_decimal`, up to the words that it has room for.
#[repr(C)]
struct DecimalObject {
    head: Head,
    hash: isize,
    flags: u8,
    exponent: isize,
    digits: isize,
    word_count: isize,
    allocated: isize,
    /// Words of 19 decimal digits, the lowest first.
    words: *const u64,
}

/// `PyDateTime_Date` of CPython.
#[repr(C)]
struct DateObject {
    head: Head,
    hash: isize,
    has_zone: u8,
    /// The year in two bytes, the highest first; month; day.
    fields: [u8; 4],
}

/// `PyDateTime_DateTime` of CPython.
#[repr(C)]
struct DatetimeObject {
    head: Head,
    hash: isize,
    /// Whether the field `zone` exists.
    has_zone: u8,
    /// The fields of a date; then hour, minute, second, and microseconds in three bytes.
    fields: [u8; 10],
    fold: u8,
    zone: usize,
}

/// A Decimal that is neither infinite nor NaN: `coefficient` divided by ten to the power `scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FixedDecimal {
    is_negative: bool,
    coefficient: u64,
    scale: usize,
}

/// The time of a datetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatetimeMicros {
    /// Microseconds since 1970-01-01, in UTC if there is a zone.
    pub(crate) micros: i64,
    pub(crate) is_utc: bool,
}

/// The classes whose objects have the known layouts, by address.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ObjectMemory {
    decimal: Option<usize>,
    date: Option<usize>,
    datetime: Option<usize>,
    utc: usize,
}

impl ObjectMemory {
    /// Returns a reader of the classes for which the layout is found on known values. The caller
    /// keeps the classes and `utc`, so that their addresses stay valid.
    pub(crate) fn probe(
        decimal: &Bound<'_, PyAny>,
        date: &Bound<'_, PyAny>,
        datetime: &Bound<'_, PyAny>,
        utc: &Bound<'_, PyAny>,
    ) -> ObjectMemory {
        let address = |object: &Bound<'_, PyAny>| object.as_ptr() as usize;
        let inline = INLINE_WORDS * size_of::<u64>();
        let all = ObjectMemory {
            decimal: has_size(decimal, size_of::<DecimalObject>() + inline)
                .then_some(address(decimal)),
            date: has_size(date, size_of::<DateObject>()).then_some(address(date)),
            datetime: has_size(datetime, size_of::<DatetimeObject>()).then_some(address(datetime)),
            utc: address(utc),
        };
        ObjectMemory {
            decimal: all.decimal.filter(|_| all.reads_decimals(decimal).unwrap_or(false)),
            date: all.date.filter(|_| all.reads_dates(date).unwrap_or(false)),
            datetime: all.datetime.filter(|_| all.reads_datetimes(datetime, utc).unwrap_or(false)),
            utc: all.utc,
        }
    }

    fn reads_decimals(&self, class: &Bound<'_, PyAny>) -> PyResult<bool> {
        let known = [
            ("0", Some("0")),
            ("-0.00", Some("-0.00")),
            ("12.34", Some("12.34")),
            ("-0.0000000001", Some("-0.0000000001")),
            ("9999999999999999999", Some("9999999999999999999")),
            ("-1.844674407370955161", Some("-1.844674407370955161")),
            ("10000000000000000000", None),
            ("123456789012345678901234567890123456789012345678901234567890123456789.1", None),
            ("1E+3", None),
            ("NaN", None),
            ("-sNaN12", None),
            ("-Infinity", None),
        ];
        for (text, expected) in known {
            let mut found = String::new();
            let value = self.decimal(&class.call1((text,))?);
            if let Some(value) = value {
                value.write(&mut found);
            }
            if value.map(|_| found.as_str()) != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn reads_dates(&self, class: &Bound<'_, PyAny>) -> PyResult<bool> {
        for (year, month, day, days) in
            [(1970, 1, 1, 0), (1, 1, 1, -719_162), (9999, 12, 31, 2_932_896), (2024, 2, 29, 19_782)]
        {
            if self.date_days(&class.call1((year, month, day))?) != Some(days) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn reads_datetimes(&self, class: &Bound<'_, PyAny>, utc: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = class.py();
        let other_zone = py.import("datetime")?.getattr("timezone")?.getattr("max")?;
        for (year, month, day, hour, minute, second, fraction, micros) in [
            (1970, 1, 1, 0, 0, 0, 0, 0),
            (1969, 12, 31, 23, 59, 59, 999_999, -1),
            (2024, 2, 29, 13, 14, 15, 123_456, 1_709_212_455_123_456),
            (9999, 12, 31, 23, 59, 59, 999_999, 253_402_300_799_999_999),
        ] {
            let date_time = (year, month, day, hour, minute, second, fraction);
            let with_zone = |zone| (year, month, day, hour, minute, second, fraction, zone);
            let expected = |is_utc| Some(DatetimeMicros { micros, is_utc });
            let is_right = self.datetime_micros(&class.call1(date_time)?) == expected(false)
                && self.datetime_micros(&class.call1(with_zone(utc))?) == expected(true)
                && self.datetime_micros(&class.call1(with_zone(&other_zone))?).is_none();
            if !is_right {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a Decimal, unless it has an exponent, more digits than fit, or no value.
    pub(crate) fn decimal(&self, value: &Bound<'_, PyAny>) -> Option<FixedDecimal> {
        if Some(value.get_type_ptr() as usize) != self.decimal {
            return None;
        }
        // SAFETY: the object is of the class itself, whose objects have this size and layout.
        // Nothing changes a Decimal, and the reference keeps it.
        let (flags, exponent, word_count, words) = unsafe {
            let object = value.as_ptr().cast::<DecimalObject>();
            ((*object).flags, (*object).exponent, (*object).word_count, (*object).words)
        };
        if flags & SPECIAL != 0 || word_count != 1 {
            return None;
        }
        let scale = usize::try_from(exponent.checked_neg()?).ok()?;
        // SAFETY: a Decimal has as many words as its object says, and has no other owner of them.
        let coefficient = unsafe { *words };
        let is_negative = flags & NEGATIVE != 0;
        (scale <= SCALE_MAX).then_some(FixedDecimal { is_negative, coefficient, scale })
    }

    /// Returns the days from 1970-01-01 to a date.
    pub(crate) fn date_days(&self, value: &Bound<'_, PyAny>) -> Option<i64> {
        if Some(value.get_type_ptr() as usize) != self.date {
            return None;
        }
        // SAFETY: as for a Decimal.
        let fields = unsafe { (*value.as_ptr().cast::<DateObject>()).fields };
        days_since_1970(fields)
    }

    /// Returns the time of a datetime, unless it has another zone than UTC.
    pub(crate) fn datetime_micros(&self, value: &Bound<'_, PyAny>) -> Option<DatetimeMicros> {
        if Some(value.get_type_ptr() as usize) != self.datetime {
            return None;
        }
        let object = value.as_ptr().cast::<DatetimeObject>();
        // SAFETY: as for a Decimal. An object without a zone ends before the field `zone`, so that
        // field is read only if it exists.
        let (has_zone, fields) = unsafe { ((*object).has_zone != 0, (*object).fields) };
        let is_utc = has_zone && unsafe { (*object).zone } == self.utc;
        if has_zone && !is_utc {
            return None;
        }
        let [y, z, month, day, hour, minute, second, high, middle, low] = fields;
        let seconds = (i64::from(hour) * 60 + i64::from(minute)) * 60 + i64::from(second);
        let fraction = i64::from(u32::from_be_bytes([0, high, middle, low]));
        let days = days_since_1970([y, z, month, day])?;
        let micros = days * DAY_MICROS + seconds * 1_000_000 + fraction;
        Some(DatetimeMicros { micros, is_utc })
    }
}

impl FixedDecimal {
    /// Appends the digits, with the sign and the decimal point.
    pub(crate) fn write(self, out: &mut String) {
        let mut digits = [b'0'; SCALE_MAX + 24];
        let (mut at, mut rest, mut written) = (digits.len(), self.coefficient, 0);
        while rest > 0 || written <= self.scale {
            if written == self.scale && written > 0 {
                at -= 1;
                digits[at] = b'.';
            }
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            written += 1;
        }
        if self.is_negative {
            out.push('-');
        }
        out.extend(digits[at..].iter().map(|digit| char::from(*digit)));
    }
}

/// Returns whether the objects of a class have this size, in bytes.
fn has_size(class: &Bound<'_, PyAny>, bytes: usize) -> bool {
    let size = class.getattr("__basicsize__").and_then(|size| size.extract::<usize>());
    size.is_ok_and(|size| size == bytes)
}

fn days_since_1970([high, low, month, day]: [u8; 4]) -> Option<i64> {
    let year = i32::from(u16::from_be_bytes([high, low]));
    Some(i64::from(day_number(year, u32::from(month), u32::from(day))?) + DAYS_TO_2000)
}

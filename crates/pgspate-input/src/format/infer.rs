//! Which columns a new table should have, from a sample of its rows: the types that a DBA would
//! choose.
//!
//! Every value of the sample can be stored in the chosen type without losing a digit, and a value
//! that has more than one meaning (a zip code, a time without its zone among others with one) makes
//! its column text. The rules:
//!
//! - integers are `bigint`; with more digits than that holds, `numeric`. A leading zero or plus
//!   sign makes text.
//! - decimals are `numeric`, which is exact. In exponent notation, or with 16 or 17 significant
//!   digits (what a double prints as), they are `double precision`; with more, `numeric` again.
//! - `true`, `false`, `t`, `f` are `boolean`; 0 and 1 never are.
//! - ISO dates and times are `date`, `time`, `timestamp`, and with an offset `timestamptz`.
//! - UUIDs are `uuid`; JSON objects and arrays are `jsonb`. All else is `text`, also a column
//!   without values. Never `varchar`.

use std::collections::{HashMap, HashSet};

use super::json::Records;
use crate::json::{Scalar, skip_space, unescape, value};
use pgspate_base::{quote_ident, truncate_ident};

/// A type that a new column may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ColumnType {
    Boolean,
    Bigint,
    Numeric,
    Double,
    Date,
    Time,
    Timestamp,
    Timestamptz,
    Uuid,
    Jsonb,
    Text,
}

impl ColumnType {
    /// Its name in SQL.
    pub fn sql(self) -> &'static str {
        match self {
            ColumnType::Boolean => "boolean",
            ColumnType::Bigint => "bigint",
            ColumnType::Numeric => "numeric",
            ColumnType::Double => "double precision",
            ColumnType::Date => "date",
            ColumnType::Time => "time",
            ColumnType::Timestamp => "timestamp",
            ColumnType::Timestamptz => "timestamptz",
            ColumnType::Uuid => "uuid",
            ColumnType::Jsonb => "jsonb",
            ColumnType::Text => "text",
        }
    }
}

/// A column of a table to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewColumn {
    /// Its name, unquoted.
    pub name: String,
    /// Its type.
    pub ty: ColumnType,
}

/// The columns for delimited rows. Rows may be ragged; `None` is NULL.
pub fn columns_of_rows(names: &[String], rows: &[Vec<Option<Vec<u8>>>]) -> Vec<NewColumn> {
    names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let values = rows.iter().filter_map(|row| row.get(i)?.as_deref());
            let class = values.map(classify).fold(Class::None, Class::join);
            NewColumn { name: name.clone(), ty: class.column_type() }
        })
        .collect()
}

/// The columns for JSON: the keys of all records in the sample, in the order in which they first
/// occur. Rows that are arrays give `column_1` and so on. Stops at the sample's end or at the first
/// thing that is no row; whether that is an error shows when the input is loaded.
pub fn columns_of_json(sample: &[u8]) -> Vec<NewColumn> {
    let mut names: Vec<String> = Vec::new();
    let mut classes: Vec<Class> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut records = Records::new(sample, 0);
    let mut stack = Vec::new();
    while let Ok(Some(start)) = records.next(sample) {
        let text = records.text(sample);
        let Ok((Scalar::Object | Scalar::Array, end)) = value(text, start, &mut stack) else {
            break;
        };
        records.finish(end);
        for (name, class) in members(&text[start..end]) {
            let at = *index.entry(name).or_insert_with_key(|name| {
                names.push(name.clone());
                classes.push(Class::None);
                names.len() - 1
            });
            classes[at] = classes[at].join_json(class);
        }
    }
    let types = classes.into_iter().map(Class::column_type);
    column_names(names).into_iter().zip(types).map(|(name, ty)| NewColumn { name, ty }).collect()
}

/// The keys and classes of a valid object's or array's members.
fn members(raw: &[u8]) -> Vec<(String, Class)> {
    let mut members = Vec::new();
    let mut stack = Vec::new();
    let mut at = skip_space(raw, 1);
    while !matches!(raw.get(at), Some(b'}' | b']') | None) {
        let mut name = format!("column_{}", members.len() + 1);
        if raw[0] == b'{' {
            let Ok((_, end)) = value(raw, at, &mut stack) else { break };
            let mut key = Vec::new();
            if unescape(&raw[at + 1..end - 1], &mut key).is_ok() {
                name = String::from_utf8_lossy(&key).into_owned();
            }
            at = skip_space(raw, skip_space(raw, end) + 1);
        }
        let Ok((kind, end)) = value(raw, at, &mut stack) else { break };
        members.push((name, classify_json(kind, &raw[at..end])));
        at = skip_space(raw, end);
        if raw.get(at) == Some(&b',') {
            at = skip_space(raw, at + 1);
        }
    }
    members
}

/// The type that holds what `current` holds and this value too: `current` itself where that does.
pub fn widen(current: ColumnType, value: &[u8]) -> ColumnType {
    // What the column holds already is not known, so it counts as the widest of its type.
    let held = match current {
        ColumnType::Boolean => Class::Boolean,
        ColumnType::Bigint => Class::LongInteger,
        ColumnType::Numeric => Class::Exact,
        ColumnType::Double => Class::Double,
        ColumnType::Date => Class::Date,
        ColumnType::Time => Class::Time,
        ColumnType::Timestamp => Class::Timestamp,
        ColumnType::Timestamptz => Class::Timestamptz,
        ColumnType::Uuid => Class::Uuid,
        ColumnType::Jsonb => Class::Jsonb,
        ColumnType::Text => Class::Text,
    };
    held.join(classify(value)).column_type()
}

/// Names for new columns from a header: trimmed, at most 63 bytes, none empty (`column_3`), none
/// twice (`name_2`).
pub fn column_names<S: AsRef<str>>(header: impl IntoIterator<Item = S>) -> Vec<String> {
    let names: Vec<String> = header
        .into_iter()
        .enumerate()
        .map(|(i, name)| {
            let name = name.as_ref().replace('\0', "");
            match truncate_ident(name.trim()) {
                "" => format!("column_{}", i + 1),
                name => name.to_string(),
            }
        })
        .collect();
    let given: HashSet<String> = names.iter().cloned().collect();
    let mut taken = HashSet::new();
    names
        .into_iter()
        .map(|name| {
            let mut unique = name.clone();
            let mut nth = 2;
            while taken.contains(&unique) || nth > 2 && given.contains(&unique) {
                let suffix = format!("_{nth}");
                let mut end = name.len().min(63 - suffix.len());
                while !name.is_char_boundary(end) {
                    end -= 1;
                }
                unique = format!("{}{suffix}", &name[..end]);
                nth += 1;
            }
            taken.insert(unique.clone());
            unique
        })
        .collect()
}

/// The statement that creates a table of these columns, each with its type. `table` is already
/// quoted and qualified.
pub fn create_table_sql(table: &str, columns: &[(String, String)]) -> String {
    let lines = columns.iter().map(|(name, ty)| format!("    {} {ty}", quote_ident(name)));
    format!("create table {table} (\n{}\n)", lines.collect::<Vec<_>>().join(",\n"))
}

/// A table's name from a file's: `flights-2013.csv.gz` gives `flights_2013`.
pub fn table_name(file: &str) -> String {
    let stem = super::sniff::stem(file);
    let mut name = String::new();
    for char in stem.to_lowercase().chars() {
        if char.is_alphanumeric() {
            name.push(char);
        } else if !name.is_empty() && !name.ends_with('_') {
            name.push('_');
        }
    }
    let name = name.trim_end_matches('_');
    match name.chars().next() {
        None => "data".to_string(),
        Some(first) if first.is_ascii_digit() => truncate_ident(&format!("t_{name}")).to_string(),
        Some(_) => truncate_ident(name).to_string(),
    }
}

/// What a value looks like, finer than types are: what may be joined depends on the digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// No value yet.
    None,
    Boolean,
    /// At most 15 digits, so a double holds it too.
    Integer,
    /// More digits, within bigint.
    LongInteger,
    /// At most 15 significant digits.
    Decimal,
    /// A number that neither bigint nor double holds exactly.
    Exact,
    Double,
    Date,
    Time,
    Timestamp,
    Timestamptz,
    Uuid,
    Jsonb,
    Text,
}

impl Class {
    fn join(self, other: Class) -> Class {
        use Class::*;
        match (self, other) {
            (None, one) | (one, None) => one,
            (a, b) if a == b => a,
            (Integer, LongInteger) | (LongInteger, Integer) => LongInteger,
            (Integer, Decimal) | (Decimal, Integer) => Decimal,
            (Integer | Decimal, Double) | (Double, Integer | Decimal) => Double,
            (a, b) if a.is_number() && b.is_number() => Exact,
            (Date, Timestamp) | (Timestamp, Date) => Timestamp,
            _ => Text,
        }
    }

    /// In JSON an object or array among other values is best kept as what it is.
    fn join_json(self, other: Class) -> Class {
        match (self, other) {
            (Class::None, one) | (one, Class::None) => one,
            (Class::Jsonb, _) | (_, Class::Jsonb) => Class::Jsonb,
            (a, b) => a.join(b),
        }
    }

    fn is_number(self) -> bool {
        use Class::*;
        matches!(self, Integer | LongInteger | Decimal | Exact | Double)
    }

    fn column_type(self) -> ColumnType {
        match self {
            Class::Boolean => ColumnType::Boolean,
            Class::Integer | Class::LongInteger => ColumnType::Bigint,
            Class::Decimal | Class::Exact => ColumnType::Numeric,
            Class::Double => ColumnType::Double,
            Class::Date => ColumnType::Date,
            Class::Time => ColumnType::Time,
            Class::Timestamp => ColumnType::Timestamp,
            Class::Timestamptz => ColumnType::Timestamptz,
            Class::Uuid => ColumnType::Uuid,
            Class::Jsonb => ColumnType::Jsonb,
            Class::Text | Class::None => ColumnType::Text,
        }
    }
}

/// What a delimited field looks like.
pub(crate) fn classify(field: &[u8]) -> Class {
    let text = field.trim_ascii();
    match text.first() {
        None => Class::Text,
        Some(b'{' | b'[') if is_jsonb(text) => Class::Jsonb,
        Some(b'-' | b'.' | b'0'..=b'9' | b'N' | b'I') => {
            number(text).or_else(|| temporal(text)).unwrap_or_else(|| word(text))
        }
        _ => word(text),
    }
}

fn classify_json(kind: Scalar, raw: &[u8]) -> Class {
    match kind {
        Scalar::Null => Class::None,
        Scalar::Bool => Class::Boolean,
        Scalar::Number => number(raw).unwrap_or(Class::Text),
        Scalar::Object | Scalar::Array => Class::Jsonb,
        // A number or a word in quotes is a string on purpose.
        Scalar::String(_) => match classify(&raw[1..raw.len() - 1]) {
            class @ (Class::Date | Class::Time | Class::Timestamp | Class::Timestamptz) => class,
            Class::Uuid => Class::Uuid,
            _ => Class::Text,
        },
    }
}

fn word(text: &[u8]) -> Class {
    let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
    if is("true") || is("false") || is("t") || is("f") {
        Class::Boolean
    } else if is_uuid(text) {
        Class::Uuid
    } else {
        Class::Text
    }
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36
        && text.iter().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

fn is_jsonb(text: &[u8]) -> bool {
    let whole = value(text, 0, &mut Vec::new()).is_ok_and(|(_, end)| end == text.len());
    if !whole || std::str::from_utf8(text).is_err() {
        return false;
    }
    // jsonb refuses \u0000 and half surrogates; only text with such escapes needs the closer look.
    memchr::memmem::find(text, b"\\u").is_none()
        || memchr::memmem::find(text, b"\\u0000").is_none()
            && serde_json::from_slice::<serde_json::Value>(text).is_ok()
}

/// Most digits before the decimal point that numeric holds.
const NUMERIC_DIGITS_MAX: usize = 131_072;

fn number(text: &[u8]) -> Option<Class> {
    if matches!(text, b"NaN" | b"Infinity" | b"-Infinity") {
        return Some(Class::Double);
    }
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let at = digits.iter().position(|b| matches!(b, b'e' | b'E'));
    let (mantissa, exponent) = match at {
        Some(at) => (&digits[..at], Some(&digits[at + 1..])),
        None => (digits, None),
    };
    let at = mantissa.iter().position(|b| *b == b'.');
    let (whole, fraction) = match at {
        Some(at) => (&mantissa[..at], Some(&mantissa[at + 1..])),
        None => (mantissa, None),
    };
    let all = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let some = whole.len() + fraction.map_or(0, <[u8]>::len);
    if some == 0 || !all(whole) || !all(fraction.unwrap_or(b"")) {
        return None;
    }
    if whole.len() > 1 && whole[0] == b'0' || whole.len() > NUMERIC_DIGITS_MAX {
        return None;
    }
    let zeros = whole.iter().chain(fraction.unwrap_or(b"")).take_while(|b| **b == b'0').count();
    let significant = some - zeros;
    if let Some(exponent) = exponent {
        return scientific(text, exponent, significant);
    }
    Some(match (fraction, significant) {
        (None, 0..=15) => Class::Integer,
        (None, _) if is_bigint(text) => Class::LongInteger,
        (None, _) => Class::Exact,
        (Some(_), 0..=15) => Class::Decimal,
        (Some(_), 16 | 17) => Class::Double,
        (Some(_), _) => Class::Exact,
    })
}

fn is_bigint(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}

fn scientific(text: &[u8], exponent: &[u8], significant: usize) -> Option<Class> {
    let digits = exponent.strip_prefix(b"-").or(exponent.strip_prefix(b"+")).unwrap_or(exponent);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let double: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    if significant <= 17 && double.is_finite() && (double.is_normal() || significant == 0) {
        return Some(Class::Double);
    }
    let exponent: i32 = std::str::from_utf8(exponent).ok()?.parse().ok()?;
    // Well within what numeric holds on either side of the point.
    (exponent.abs() < 10_000 && significant < 1_000).then_some(Class::Exact)
}

/// A date, a time, or both.
fn temporal(text: &[u8]) -> Option<Class> {
    if let Some(rest) = date_end(text) {
        return match rest {
            [] => Some(Class::Date),
            [b' ' | b'T' | b't', rest @ ..] => match time_end(rest)? {
                [] => Some(Class::Timestamp),
                zone if is_zone(zone) => Some(Class::Timestamptz),
                _ => None,
            },
            _ => None,
        };
    }
    time_end(text)?.is_empty().then_some(Class::Time)
}

/// What follows a valid `YYYY-MM-DD`.
fn date_end(text: &[u8]) -> Option<&[u8]> {
    let (date, rest) = text.split_at_checked(10)?;
    if date[4] != b'-' || date[7] != b'-' {
        return None;
    }
    let number = |part: &[u8]| {
        part.iter().try_fold(0u32, |n, b| b.is_ascii_digit().then(|| n * 10 + u32::from(b - b'0')))
    };
    let (year, month, day) = (number(&date[..4])?, number(&date[5..7])?, number(&date[8..])?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0,
    };
    (year > 0 && (1..=days).contains(&day)).then_some(rest)
}

/// What follows a valid `HH:MM`, `HH:MM:SS` or `HH:MM:SS.ffffff`.
fn time_end(text: &[u8]) -> Option<&[u8]> {
    let two = |part: &[u8], below: u8| match part {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', ..] => (a - b'0') * 10 + (b - b'0') < below,
        _ => false,
    };
    if !two(text, 24) || text.get(2) != Some(&b':') || !two(&text[3..], 60) {
        return None;
    }
    let rest = &text[5..];
    let [b':', seconds @ ..] = rest else { return Some(rest) };
    if !two(seconds, 60) {
        return None;
    }
    match &seconds[2..] {
        [b'.', fraction @ ..] => {
            let len = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
            (len > 0).then(|| &fraction[len..])
        }
        rest => Some(rest),
    }
}

/// `Z`, ` UTC`, `+02`, `+0200`, `+02:00`.
fn is_zone(text: &[u8]) -> bool {
    let text = text.strip_prefix(b" ").unwrap_or(text);
    if matches!(text, b"Z" | b"z" | b"UTC" | b"GMT") {
        return true;
    }
    let [b'+' | b'-', offset @ ..] = text else { return false };
    let parts = match offset {
        [a, b] => [*a, *b, b'0', b'0'],
        [a, b, c, d] | [a, b, b':', c, d] => [*a, *b, *c, *d],
        _ => return false,
    };
    parts.iter().all(u8::is_ascii_digit) && parts[..2] <= b"15"[..] && parts[2] < b'6'
}

#[cfg(test)]
#[path = "infer_tests.rs"]
mod tests;

//! Infers the columns of a new table from a sample of its rows, with the types that a DBA would
//! choose.
//!
//! The chosen type can store every value of the sample without losing a digit. An ambiguous value
//! makes its column text: a zip code, or a time without a zone among times with a zone. The rules:
//!
//! - Integers are `bigint`, or `numeric` if they have more digits. A leading zero or plus sign
//!   makes the column `text`.
//! - Decimals are `numeric`, which is exact. In exponent notation, or with the 16 or 17 significant
//!   digits of a printed double, they are `double precision`. With other digits they are `numeric`.
//! - `true` and `false` in any case are `boolean`, and so are `t` and `f`, as PostgreSQL prints
//!   them. 0 and 1 are not. `T` and `F` are `text`, because they are codes more often.
//! - ISO dates and times are `date`, `time`, `timestamp`, and with an offset `timestamptz`. Digits
//!   below a microsecond make the column `text`.
//! - UUIDs are `uuid`; JSON objects and arrays are `jsonb`. All other columns, and columns without
//!   values, are `text`. No column is `varchar`.

use std::collections::{HashMap, HashSet};

use super::date_class::date_or_time;
use super::json::RecordWalk;
use super::number_class::number_class;
use crate::encode::date_format::{DateFormat, DateFormats};
use crate::json::{JsonKind, skip_space, unescape, value_end};
use pgspate_base::{IDENT_BYTES_MAX, is_alike, quote_ident, truncate_ident};

/// A type of a new column.
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
    /// All types.
    pub const ALL: [ColumnType; 11] = [
        ColumnType::Boolean,
        ColumnType::Bigint,
        ColumnType::Numeric,
        ColumnType::Double,
        ColumnType::Date,
        ColumnType::Time,
        ColumnType::Timestamp,
        ColumnType::Timestamptz,
        ColumnType::Uuid,
        ColumnType::Jsonb,
        ColumnType::Text,
    ];

    /// Returns the type with this name, as SQL or the server writes it.
    pub fn of_name(name: &str) -> Option<ColumnType> {
        let alias = match name {
            "time without time zone" => "time",
            "timestamp without time zone" => "timestamp",
            "timestamp with time zone" => "timestamptz",
            other => other,
        };
        ColumnType::ALL.into_iter().find(|ty| ty.sql() == alias)
    }

    /// Returns the type's name in SQL.
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
    /// The column's name, unquoted.
    pub name: String,
    /// The column's type.
    pub ty: ColumnType,
}

/// Returns the columns for delimited rows, with dates in these formats. Rows may have different
/// lengths. `None` is NULL.
pub fn columns_of_rows(
    names: &[String],
    rows: &[Vec<Option<Vec<u8>>>],
    dates: &DateFormats,
) -> Vec<NewColumn> {
    names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let values = rows.iter().filter_map(|row| row.get(i)?.as_deref());
            let format = format_of(dates, name);
            let class_of = |value| date_class(format, value).unwrap_or_else(|| classify(value));
            let class = values.map(class_of).fold(InferredClass::None, InferredClass::join);
            let ty = named_type(dates, name).unwrap_or(class.column_type());
            NewColumn { name: name.clone(), ty }
        })
        .collect()
}

/// Returns the columns for JSON: the keys of all records in the sample, in the order of their first
/// occurrence. Rows that are arrays have columns `column_1` and so on. Stops at the end of the
/// sample or at the first invalid record, which the load will report.
pub fn columns_of_json(sample: &[u8], dates: &DateFormats) -> Vec<NewColumn> {
    let mut names: Vec<String> = Vec::new();
    let mut classes: Vec<InferredClass> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut records = RecordWalk::new(sample, 0);
    let mut stack = Vec::new();
    while let Ok(Some(start)) = records.next(sample) {
        let text = records.text(sample);
        let Ok((JsonKind::Object | JsonKind::Array, end)) = value_end(text, start, &mut stack)
        else {
            break;
        };
        records.finish(end);
        for (name, class) in members(&text[start..end], dates) {
            let at = *index.entry(name).or_insert_with_key(|name| {
                names.push(name.clone());
                classes.push(InferredClass::None);
                names.len() - 1
            });
            classes[at] = classes[at].join_json(class);
        }
    }
    let types = classes.into_iter().map(InferredClass::column_type);
    let column = |(name, ty): (String, ColumnType)| {
        let ty = named_type(dates, &name).unwrap_or(ty);
        NewColumn { name, ty }
    };
    // Records are matched by key, so the names keep all of their bytes.
    unique_names(names, usize::MAX).into_iter().zip(types).map(column).collect()
}

/// Returns whether the JSON records of a sample are arrays, and there is such a record. Stops where
/// [`columns_of_json`] stops.
pub fn are_arrays(sample: &[u8]) -> bool {
    let mut records = RecordWalk::new(sample, 0);
    let (mut found, mut stack) = (false, Vec::new());
    while let Ok(Some(start)) = records.next(sample) {
        let text = records.text(sample);
        match value_end(text, start, &mut stack) {
            Ok((JsonKind::Array, end)) => records.finish(end),
            Ok((JsonKind::Object, _)) => return false,
            _ => break,
        }
        found = true;
    }
    found
}

/// Returns the keys and the classes of the members of a valid object or array.
fn members(raw: &[u8], dates: &DateFormats) -> Vec<(String, InferredClass)> {
    let mut members = Vec::new();
    let mut stack = Vec::new();
    let mut at = skip_space(raw, 1);
    while !matches!(raw.get(at), Some(b'}' | b']') | None) {
        let mut name = format!("column_{}", members.len() + 1);
        if raw[0] == b'{' {
            let Ok((_, end)) = value_end(raw, at, &mut stack) else { break };
            let mut key = Vec::new();
            if unescape(&raw[at + 1..end - 1], &mut key).is_ok() {
                name = String::from_utf8_lossy(&key).into_owned();
            }
            at = skip_space(raw, skip_space(raw, end) + 1);
        }
        let Ok((kind, end)) = value_end(raw, at, &mut stack) else { break };
        let value = &raw[at..end];
        let date = match kind {
            JsonKind::String(_) => date_class(format_of(dates, &name), &value[1..value.len() - 1]),
            JsonKind::Number => date_class(format_of(dates, &name), value),
            _ => None,
        };
        members.push((name, date.unwrap_or_else(|| classify_json(kind, value))));
        at = skip_space(raw, end);
        if raw.get(at) == Some(&b',') {
            at = skip_space(raw, at + 1);
        }
    }
    members
}

/// Returns the format of a column's dates. A format of digits alone is only that of a column that
/// the user has named: other columns may have numbers.
fn format_of<'a>(dates: &'a DateFormats, name: &str) -> Option<&'a DateFormat> {
    let (format, is_named) = dates.find(|named| names_column(named, name))?;
    (is_named || !format.is_digits()).then_some(format)
}

/// Returns the type of a column whose dates the user has given a format. Values without the format
/// are refused later, with their place.
fn named_type(dates: &DateFormats, name: &str) -> Option<ColumnType> {
    let (format, is_named) = dates.find(|named| names_column(named, name))?;
    is_named.then(|| class_of_format(format).column_type())
}

/// Returns whether an option's name is that of a column, as it is or in snake case.
fn names_column(named: &str, column: &str) -> bool {
    is_alike(named, column) || is_alike(named, &snake_case(column))
}

/// Returns the class of a value that has this format.
fn date_class(format: Option<&DateFormat>, value: &[u8]) -> Option<InferredClass> {
    let format = format?;
    format.fits(value).then(|| class_of_format(format))
}

/// Returns the class of the values of a format.
fn class_of_format(format: &DateFormat) -> InferredClass {
    match (format.has_zone(), format.has_time()) {
        (true, _) => InferredClass::Timestamptz,
        (false, true) => InferredClass::Timestamp,
        (false, false) => InferredClass::Date,
    }
}

/// Returns a type that can store all values of type `current`, and also `value`. Returns `current`
/// unchanged if `current` can store `value`.
pub fn widen(current: ColumnType, value: &[u8]) -> ColumnType {
    // The column's values are unknown, so the widest class of its type is assumed.
    let current_class = match current {
        ColumnType::Boolean => InferredClass::Boolean,
        ColumnType::Bigint => InferredClass::LongInteger,
        ColumnType::Numeric => InferredClass::Exact,
        ColumnType::Double => InferredClass::Double,
        ColumnType::Date => InferredClass::Date,
        ColumnType::Time => InferredClass::Time,
        ColumnType::Timestamp => InferredClass::Timestamp,
        ColumnType::Timestamptz => InferredClass::Timestamptz,
        ColumnType::Uuid => InferredClass::Uuid,
        ColumnType::Jsonb => InferredClass::Jsonb,
        ColumnType::Text => InferredClass::Text,
    };
    current_class.join(classify(value)).column_type()
}

/// Returns names for new columns from a header. Names are trimmed, and have at most 63 bytes. An
/// empty name becomes `column_3`, and a repeated name `name_2`.
pub fn column_names<S: AsRef<str>>(header: impl IntoIterator<Item = S>) -> Vec<String> {
    unique_names(header, IDENT_BYTES_MAX)
}

/// Returns names as [`column_names`] does, with at most `bytes_max` bytes.
fn unique_names<S: AsRef<str>>(
    header: impl IntoIterator<Item = S>,
    bytes_max: usize,
) -> Vec<String> {
    let truncated = |name: &str, bytes: usize| name[..name.floor_char_boundary(bytes)].to_owned();
    let names: Vec<String> = header
        .into_iter()
        .enumerate()
        .map(|(i, name)| {
            let name = name.as_ref().replace('\0', "");
            match name.trim() {
                "" => format!("column_{}", i + 1),
                name => truncated(name, bytes_max),
            }
        })
        .collect();
    let header_names: HashSet<String> = names.iter().cloned().collect();
    let mut taken = HashSet::new();
    names
        .into_iter()
        .map(|name| {
            let mut unique = name.clone();
            let mut number = 2;
            while taken.contains(&unique) || number > 2 && header_names.contains(&unique) {
                let suffix = format!("_{number}");
                unique = truncated(&name, bytes_max - suffix.len()) + &suffix;
                number += 1;
            }
            taken.insert(unique.clone());
            unique
        })
        .collect()
}

/// Returns a name in lower case, with underscores between its words: `order_id` for `OrderId`,
/// `Order ID` and `order-id`. A name without letters and digits stays as it is.
pub fn snake_case(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut snake = String::new();
    for (at, char) in chars.iter().enumerate() {
        if !char.is_alphanumeric() {
            if !snake.is_empty() && !snake.ends_with('_') {
                snake.push('_');
            }
            continue;
        }
        // `orderId` has a word at the `I`, and `HTTPServer` at the `S`.
        let begins_word = match at.checked_sub(1).map(|at| chars[at]) {
            Some(before) if before.is_uppercase() => {
                chars.get(at + 1).is_some_and(|after| after.is_lowercase())
            }
            Some(before) => before.is_alphanumeric(),
            None => false,
        };
        if char.is_uppercase() && begins_word && !snake.is_empty() && !snake.ends_with('_') {
            snake.push('_');
        }
        snake.extend(char.to_lowercase());
    }
    match truncate_ident(snake.trim_end_matches('_')) {
        "" => name.to_owned(),
        snake => snake.to_owned(),
    }
}

/// Returns the statement that creates a table of the columns, given as name and type. `table` is
/// already quoted and qualified. `primary_key` are names of columns.
pub fn create_table_sql(
    table: &str,
    columns: &[(String, String)],
    primary_key: &[String],
) -> String {
    let lines = columns.iter().map(|(name, ty)| format!("    {} {ty}", quote_ident(name)));
    let mut lines: Vec<String> = lines.collect();
    if !primary_key.is_empty() {
        let names: Vec<_> = primary_key.iter().map(|name| quote_ident(name)).collect();
        lines.push(format!("    primary key ({})", names.join(", ")));
    }
    format!("create table {table} (\n{}\n)", lines.join(",\n"))
}

/// Returns a table name for a file: `flights_2013` for `flights-2013.csv.gz`.
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

/// The class of a value. Classes are finer than types, because the number of digits decides which
/// type can store two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InferredClass {
    /// No value yet.
    None,
    Boolean,
    /// At most 15 digits, so a double can store the value exactly.
    Integer,
    /// More than 15 digits, within `bigint`.
    LongInteger,
    /// At most 15 significant digits.
    Decimal,
    /// A number that neither `bigint` nor a double can store exactly.
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

impl InferredClass {
    /// Returns a class whose type can store values of both classes.
    fn join(self, other: InferredClass) -> InferredClass {
        use InferredClass::*;
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

    /// Returns the joined class for JSON, where an object or array makes the column `jsonb`.
    fn join_json(self, other: InferredClass) -> InferredClass {
        match (self, other) {
            (InferredClass::None, one) | (one, InferredClass::None) => one,
            (InferredClass::Jsonb, _) | (_, InferredClass::Jsonb) => InferredClass::Jsonb,
            (a, b) => a.join(b),
        }
    }

    fn is_number(self) -> bool {
        use InferredClass::*;
        matches!(self, Integer | LongInteger | Decimal | Exact | Double)
    }

    fn column_type(self) -> ColumnType {
        match self {
            InferredClass::Boolean => ColumnType::Boolean,
            InferredClass::Integer | InferredClass::LongInteger => ColumnType::Bigint,
            InferredClass::Decimal | InferredClass::Exact => ColumnType::Numeric,
            InferredClass::Double => ColumnType::Double,
            InferredClass::Date => ColumnType::Date,
            InferredClass::Time => ColumnType::Time,
            InferredClass::Timestamp => ColumnType::Timestamp,
            InferredClass::Timestamptz => ColumnType::Timestamptz,
            InferredClass::Uuid => ColumnType::Uuid,
            InferredClass::Jsonb => ColumnType::Jsonb,
            InferredClass::Text | InferredClass::None => ColumnType::Text,
        }
    }
}

/// Returns the class of a delimited field.
pub(crate) fn classify(field: &[u8]) -> InferredClass {
    let text = field.trim_ascii();
    match text.first() {
        None => InferredClass::Text,
        Some(b'{' | b'[') if is_jsonb(text) => InferredClass::Jsonb,
        Some(b'-' | b'.' | b'0'..=b'9' | b'N' | b'I') => number_class(text)
            .or_else(|| date_or_time(text))
            .unwrap_or_else(|| boolean_or_uuid(text)),
        _ => boolean_or_uuid(text),
    }
}

fn classify_json(kind: JsonKind, raw: &[u8]) -> InferredClass {
    match kind {
        JsonKind::Null => InferredClass::None,
        JsonKind::Bool => InferredClass::Boolean,
        JsonKind::Number => number_class(raw).unwrap_or(InferredClass::Text),
        JsonKind::Object | JsonKind::Array => InferredClass::Jsonb,
        // A number or boolean in quotes is deliberately a string.
        JsonKind::String(_) => match classify(&raw[1..raw.len() - 1]) {
            class @ (InferredClass::Date
            | InferredClass::Time
            | InferredClass::Timestamp
            | InferredClass::Timestamptz) => class,
            InferredClass::Uuid => InferredClass::Uuid,
            _ => InferredClass::Text,
        },
    }
}

fn boolean_or_uuid(text: &[u8]) -> InferredClass {
    let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
    if is("true") || is("false") || matches!(text, b"t" | b"f") {
        InferredClass::Boolean
    } else if is_uuid(text) {
        InferredClass::Uuid
    } else {
        InferredClass::Text
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
    let is_one_value = value_end(text, 0, &mut Vec::new()).is_ok_and(|(_, end)| end == text.len());
    if !is_one_value || std::str::from_utf8(text).is_err() {
        return false;
    }
    // jsonb refuses \u0000 and half surrogates. Only text with such escapes needs the slower check.
    memchr::memmem::find(text, b"\\u").is_none()
        || memchr::memmem::find(text, b"\\u0000").is_none()
            && serde_json::from_slice::<serde_json::Value>(text).is_ok()
}

#[cfg(test)]
#[path = "infer_tests.rs"]
mod tests;

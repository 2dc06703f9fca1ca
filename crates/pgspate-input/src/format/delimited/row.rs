//! One record to one row, binary or text.
//!
//! A row is binary only when each of its fields surely means the same to the server in that form.

use super::fields::{self, Value, is_null, plainly_quoted, without_last_escape};
use super::scan::{MARKED, OFFSET};
use super::{Dialect, Family};
use crate::encode::field::FieldEncoder;

/// How the fields of one column are read.
#[derive(Debug, Clone)]
pub struct Column {
    /// The column's name, for messages.
    pub name: String,
    /// `None`: the column's type goes to the server as text.
    pub encoder: Option<FieldEncoder>,
    /// A quoted field that spells NULL is NULL (COPY's `force_null`).
    pub force_null: bool,
    /// An unquoted field that spells NULL is its own value (COPY's `force_not_null`).
    pub force_not_null: bool,
}

/// How fields are spelled.
pub(super) struct Spelling {
    pub(super) dialect: Dialect,
    /// Whether NULL depends on the column.
    pub(super) has_forced: bool,
    /// Whether the fields are the columns, in their order and with nothing else.
    pub(super) in_order: bool,
}

/// A record in its window.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) window: &'a [u8],
    pub(super) start: usize,
    /// The ends of its fields.
    pub(super) ends: &'a [u32],
}

impl<'a> Record<'a> {
    /// A field's bytes, and whether they hold quotes or escapes.
    #[inline]
    fn field(&self, nth: usize) -> (&'a [u8], bool) {
        let start = match nth {
            0 => self.start,
            _ => (self.ends[nth - 1] & OFFSET) as usize + 1,
        };
        let end = self.ends[nth];
        (&self.window[start..(end & OFFSET) as usize], end & MARKED != 0)
    }

    /// Whether it is a line of COPY text as it stands, in a csv dialect that
    /// [`Spelling::may_be_copy_text`]: nothing quoted, and no backslash but in `\N`.
    fn is_copy_text(&self) -> bool {
        let bytes = self.bytes();
        self.ends.iter().fold(0, |all, end| all | end) & MARKED == 0
            && memchr::memchr_iter(b'\\', bytes).all(|at| {
                (at == 0 || bytes[at - 1] == b'\t')
                    && matches!(bytes[at + 1..], [b'N'] | [b'N', b'\t', ..])
            })
    }

    /// The same of the field after the one taken before.
    #[inline]
    fn take_field(&mut self, nth: usize) -> (&'a [u8], bool) {
        let end = self.ends[nth];
        let raw = &self.window[self.start..(end & OFFSET) as usize];
        self.start = (end & OFFSET) as usize + 1;
        (raw, end & MARKED != 0)
    }

    fn bytes(&self) -> &'a [u8] {
        &self.window[self.start..(self.ends[self.ends.len() - 1] & OFFSET) as usize]
    }
}

/// Appends the record's columns in binary. False when only the server can tell what one of them
/// means; what was appended is void then.
#[inline]
pub(super) fn append_binary(
    record: Record<'_>,
    columns: &[Column],
    field_of: &[usize],
    spelling: &Spelling,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> bool {
    out.extend_from_slice(&(columns.len() as i16).to_be_bytes());
    let mut rest = record;
    for (nth, column) in columns.iter().enumerate() {
        let (raw, marked) =
            if spelling.in_order { rest.take_field(nth) } else { record.field(field_of[nth]) };
        let Some(encoder) = &column.encoder else { return false };
        let is_taken = match spelling.quick(raw, marked) {
            Some(None) => append_null(out),
            Some(Some(value)) => encoder.encode(value, out),
            None => match column_value(spelling, column, raw, marked, scratch) {
                Value::Null => append_null(out),
                Value::Bytes(value) => encoder.encode(value, out),
                Value::Server(_) => false,
            },
        };
        if !is_taken {
            return false;
        }
    }
    true
}

#[inline]
fn append_null(out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&(-1_i32).to_be_bytes());
    true
}

/// A field's value with COPY's rules for NULL applied.
fn column_value<'a>(
    spelling: &Spelling,
    column: &Column,
    raw: &'a [u8],
    marked: bool,
    scratch: &'a mut Vec<u8>,
) -> Value<'a> {
    let dialect = &spelling.dialect;
    let raw = without_last_escape(dialect, raw);
    if is_null(dialect, raw, marked) {
        return if column.force_not_null { Value::Bytes(raw) } else { Value::Null };
    }
    let value = if marked { fields::value(dialect, raw, scratch) } else { Value::Bytes(raw) };
    match value {
        Value::Bytes(bytes) if column.force_null && bytes == dialect.null => Value::Null,
        value => value,
    }
}

/// Appends the record's columns as a line of COPY text.
pub(super) fn append_text(
    record: Record<'_>,
    columns: &[Column],
    field_of: &[usize],
    spelling: &Spelling,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    if columns.is_empty() {
        out.push(b'\n');
        return;
    }
    let bytes = record.bytes();
    if spelling.in_order && spelling.is_copy_text() {
        out.extend_from_slice(without_last_escape(&spelling.dialect, bytes));
        out.push(b'\n');
        return;
    }
    if spelling.in_order && spelling.may_be_copy_text() && record.is_copy_text() {
        out.extend_from_slice(bytes);
        out.push(b'\n');
        return;
    }
    let is_plain = fields::is_plain(bytes);
    for (column, &field) in columns.iter().zip(field_of) {
        let (raw, marked) = record.field(field);
        match spelling.quick(raw, marked) {
            Some(None) => out.extend_from_slice(b"\\N"),
            Some(Some(value)) if is_plain => out.extend_from_slice(value),
            Some(Some(value)) => fields::append_escaped(value, out),
            None => append_text_field(spelling, column, raw, marked, scratch, out),
        }
        out.push(b'\t');
    }
    // The last tab becomes the line's end.
    out.pop();
    out.push(b'\n');
}

#[inline(never)]
fn append_text_field(
    spelling: &Spelling,
    column: &Column,
    raw: &[u8],
    marked: bool,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let dialect = &spelling.dialect;
    let field = without_last_escape(dialect, raw);
    let is_spelled_null = is_null(dialect, field, marked);
    // To be resolved twice is the price of few fields only.
    let is_forced_null = column.force_null
        && marked
        && !is_spelled_null
        && matches!(column_value(spelling, column, raw, marked, scratch), Value::Null);
    if is_forced_null || (is_spelled_null && !column.force_not_null) {
        out.extend_from_slice(b"\\N");
    } else if marked && !is_spelled_null {
        fields::append_text(dialect, field, out);
    } else {
        fields::append_escaped(field, out);
    }
}

impl Spelling {
    /// Whether a csv record may be a line of COPY text as it stands: the same delimiter, and NULL
    /// spelled alike. So are the files of IMDb, in which rows then cost a copy each.
    fn may_be_copy_text(&self) -> bool {
        let dialect = &self.dialect;
        dialect.family == Family::Csv
            && !self.has_forced
            && dialect.delimiter == b'\t'
            && dialect.null == b"\\N"
    }

    /// Whether records are what COPY text with its defaults takes as they stand.
    fn is_copy_text(&self) -> bool {
        let Dialect { family, delimiter, null, .. } = &self.dialect;
        *family == Family::Text && *delimiter == b'\t' && null == b"\\N" && !self.has_forced
    }

    /// The value of a field that needs no thought, NULL being `Some(None)`.
    #[inline]
    fn quick<'a>(&self, raw: &'a [u8], marked: bool) -> Option<Option<&'a [u8]>> {
        let dialect = &self.dialect;
        if self.has_forced {
            None
        } else if !marked {
            Some((!is_null(dialect, raw, false)).then_some(raw))
        } else if dialect.family == Family::Csv {
            plainly_quoted(dialect, raw).map(Some)
        } else {
            // A last backslash would not count.
            (raw == dialect.null && raw.last() != Some(&b'\\')).then_some(None)
        }
    }
}

/// Whether the server would find something to refuse before it counts the fields, or before it
/// misses one.
pub(super) fn has_another_fault(
    record: Record<'_>,
    columns: &[Column],
    spelling: &Spelling,
    scratch: &mut Vec<u8>,
) -> bool {
    if simdutf8::basic::from_utf8(record.bytes()).is_err() || record.bytes().contains(&0) {
        return true;
    }
    let mut unused = Vec::new();
    let is_short = record.ends.len() < columns.len();
    (0..record.ends.len()).any(|nth| {
        let (raw, marked) = record.field(nth);
        let column = columns.get(nth).or(columns.last());
        let Some(column) = column else { return false };
        match column_value(spelling, column, raw, marked, scratch) {
            Value::Null => false,
            Value::Server(_) => true,
            Value::Bytes(_) if !is_short => false,
            Value::Bytes(value) => {
                unused.clear();
                !column.encoder.as_ref().is_some_and(|it| it.encode(value, &mut unused))
            }
        }
    })
}

/// Appends a record that has too few or too many fields as COPY text with as many.
pub(super) fn append_misshapen(
    record: Record<'_>,
    columns: &[Column],
    spelling: &Spelling,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    for nth in 0..record.ends.len() {
        let (raw, marked) = record.field(nth);
        if let Some(column) = columns.get(nth).or(columns.last()) {
            append_text_field(spelling, column, raw, marked, scratch, out);
        }
        out.push(b'\t');
    }
    out.pop();
    out.push(b'\n');
}

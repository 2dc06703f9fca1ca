//! Encodes one record as one row of COPY, binary or text.
//!
//! A row is binary only if every field is encoded exactly as the server would. Otherwise the whole
//! row is text.

use std::sync::Arc;

use super::field_index::{HAS_ESCAPES, OFFSET_MASK};
use super::fields::{self, FieldValue, is_null_string, strip_plain_quotes, without_last_escape};
use super::{CopyFormat, Dialect};
use crate::encode::date_format::DateFormat;
use crate::encode::field::FieldEncoder;
use crate::format::guessed_type::GuessedType;

/// A column of the COPY, and how its fields are read.
#[derive(Debug, Clone)]
pub struct DelimitedColumn {
    /// The column's name, for messages.
    pub name: String,
    /// The encoder of the column's type. With `None`, values go to the server as text.
    pub encoder: Option<FieldEncoder>,
    /// The format of the column's dates, if it is not ISO. The encoder knows it, too.
    pub date_format: Option<Arc<DateFormat>>,
    /// The column's type, if it was guessed from a sample. The encoder checks it, too.
    pub guessed_type: Option<GuessedType>,
    /// COPY's `force_null`: a quoted field that equals the NULL string is NULL too.
    pub force_null: bool,
    /// COPY's `force_not_null`: an unquoted field that equals the NULL string is a value.
    pub force_not_null: bool,
}

/// How the fields of a record become the values of a row.
pub(super) struct RecordRules {
    pub(super) dialect: Dialect,
    /// Whether a column has `force_null` or `force_not_null`.
    pub(super) has_forced_nulls: bool,
    /// Whether a column has a format of dates or a guessed type.
    pub(super) has_checks: bool,
    /// Whether the fields are exactly the columns, in the same order.
    pub(super) fields_are_columns: bool,
    /// The number of columns of a binary row, with the columns that follow the fields.
    pub(super) column_count: [u8; 2],
}

/// A record and its part of the field index.
#[derive(Clone, Copy)]
pub(super) struct IndexedRecord<'a> {
    /// The bytes of the chunk from the window's start on.
    pub(super) window: &'a [u8],
    /// The start of the record in `window`.
    pub(super) start: usize,
    /// The field ends of the record.
    pub(super) ends: &'a [u32],
}

impl<'a> IndexedRecord<'a> {
    /// Returns a field's bytes, and whether they contain quotes or escapes.
    #[inline]
    pub(super) fn field(&self, index: usize) -> (&'a [u8], bool) {
        let start = match index {
            0 => self.start,
            _ => (self.ends[index - 1] & OFFSET_MASK) as usize + 1,
        };
        let end = self.ends[index];
        (&self.window[start..(end & OFFSET_MASK) as usize], end & HAS_ESCAPES != 0)
    }

    /// Returns whether this csv record is also a line of COPY text: it has no quotes, and no
    /// backslash except in `\N`. The caller has checked [`RecordRules::may_be_copy_text`].
    fn is_copy_text(&self) -> bool {
        let bytes = self.bytes();
        self.ends.iter().fold(0, |all, end| all | end) & HAS_ESCAPES == 0
            && memchr::memchr_iter(b'\\', bytes).all(|at| {
                (at == 0 || bytes[at - 1] == b'\t')
                    && matches!(bytes[at + 1..], [b'N'] | [b'N', b'\t', ..])
            })
    }

    /// Returns the field `index` like [`IndexedRecord::field`], and moves `start` behind the field.
    /// Faster for fields that are read one after the other.
    #[inline]
    fn take_field(&mut self, index: usize) -> (&'a [u8], bool) {
        let end = self.ends[index];
        let raw = &self.window[self.start..(end & OFFSET_MASK) as usize];
        self.start = (end & OFFSET_MASK) as usize + 1;
        (raw, end & HAS_ESCAPES != 0)
    }

    /// Returns the record's bytes without its line end.
    fn bytes(&self) -> &'a [u8] {
        &self.window[self.start..(self.ends[self.ends.len() - 1] & OFFSET_MASK) as usize]
    }
}

/// Appends the record as a binary row. `field_of` has the field number of each column. Returns
/// false if an encoder leaves a field to the server; the caller then discards the appended bytes.
#[inline]
pub(super) fn append_binary(
    record: IndexedRecord<'_>,
    columns: &[DelimitedColumn],
    field_of: &[usize],
    rules: &RecordRules,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> bool {
    out.extend_from_slice(&rules.column_count);
    let mut rest = record;
    for (index, column) in columns.iter().enumerate() {
        let (raw, has_escapes) = if rules.fields_are_columns {
            rest.take_field(index)
        } else {
            record.field(field_of[index])
        };
        let Some(encoder) = &column.encoder else { return false };
        let is_encoded = match rules.undecoded_value(raw, has_escapes) {
            Some(None) => append_null(out),
            Some(Some(value)) => encoder.encode(value, out),
            None => match column_value(rules, column, raw, has_escapes, scratch) {
                FieldValue::Null => append_null(out),
                FieldValue::Bytes(value) => encoder.encode(value, out),
                FieldValue::Server(_) => false,
            },
        };
        if !is_encoded {
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

/// Decodes a field and applies COPY's rules for NULL, `force_null` and `force_not_null`.
fn column_value<'a>(
    rules: &RecordRules,
    column: &DelimitedColumn,
    raw: &'a [u8],
    has_escapes: bool,
    scratch: &'a mut Vec<u8>,
) -> FieldValue<'a> {
    let dialect = &rules.dialect;
    let raw = without_last_escape(dialect, raw);
    if is_null_string(dialect, raw, has_escapes) {
        return if column.force_not_null { FieldValue::Bytes(raw) } else { FieldValue::Null };
    }
    let value = if has_escapes {
        fields::decode_value(dialect, raw, scratch)
    } else {
        FieldValue::Bytes(raw)
    };
    match value {
        FieldValue::Bytes(bytes) if column.force_null && bytes == dialect.null => FieldValue::Null,
        value => value,
    }
}

/// Appends the record as a line of COPY text.
pub(super) fn append_text(
    record: IndexedRecord<'_>,
    columns: &[DelimitedColumn],
    field_of: &[usize],
    rules: &RecordRules,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    if columns.is_empty() {
        out.push(b'\n');
        return;
    }
    let bytes = record.bytes();
    if rules.fields_are_columns && rules.is_copy_text() {
        out.extend_from_slice(without_last_escape(&rules.dialect, bytes));
        out.push(b'\n');
        return;
    }
    if rules.fields_are_columns && rules.may_be_copy_text() && record.is_copy_text() {
        out.extend_from_slice(bytes);
        out.push(b'\n');
        return;
    }
    let is_plain = fields::needs_no_escapes(bytes);
    for (column, &field) in columns.iter().zip(field_of) {
        let (raw, has_escapes) = record.field(field);
        match rules.undecoded_value(raw, has_escapes) {
            Some(None) => out.extend_from_slice(b"\\N"),
            Some(Some(value)) if is_plain => out.extend_from_slice(value),
            Some(Some(value)) => fields::append_escaped(value, out),
            None => append_text_field(rules, column, raw, has_escapes, scratch, out),
        }
        out.push(b'\t');
    }
    // The last tab becomes the line's end.
    out.pop();
    out.push(b'\n');
}

/// Appends the record as a line of COPY text, with its dates in ISO format.
///
/// # Errors
/// The number of the column whose value does not have the column's format, or is not kept by the
/// column's guessed type, and the value.
#[inline(never)]
pub(super) fn append_checked_text(
    record: IndexedRecord<'_>,
    columns: &[DelimitedColumn],
    field_of: &[usize],
    rules: &RecordRules,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), (usize, Vec<u8>)> {
    for (index, (column, &field)) in columns.iter().zip(field_of).enumerate() {
        let (raw, has_escapes) = record.field(field);
        if let Some(guessed) = column.guessed_type
            && let FieldValue::Bytes(value) | FieldValue::Server(value) =
                column_value(rules, column, raw, has_escapes, scratch)
            && !guessed.keeps(value)
        {
            return Err((index, value.to_vec()));
        }
        match &column.date_format {
            None => append_text_field(rules, column, raw, has_escapes, scratch, out),
            Some(format) => match column_value(rules, column, raw, has_escapes, scratch) {
                FieldValue::Null => out.extend_from_slice(b"\\N"),
                FieldValue::Bytes(value) | FieldValue::Server(value) => {
                    let iso = format.respell(value).ok_or_else(|| (index, value.to_vec()))?;
                    out.extend_from_slice(iso.as_bytes());
                }
            },
        }
        out.push(b'\t');
    }
    // The last tab becomes the line's end.
    out.pop();
    out.push(b'\n');
    Ok(())
}

/// Appends a field as COPY text.
#[inline(never)]
fn append_text_field(
    rules: &RecordRules,
    column: &DelimitedColumn,
    raw: &[u8],
    has_escapes: bool,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let dialect = &rules.dialect;
    let field = without_last_escape(dialect, raw);
    let equals_null_string = is_null_string(dialect, field, has_escapes);
    // Only columns with `force_null` have such fields, which are decoded twice.
    let is_forced_null = column.force_null
        && has_escapes
        && !equals_null_string
        && matches!(column_value(rules, column, raw, has_escapes, scratch), FieldValue::Null);
    if is_forced_null || (equals_null_string && !column.force_not_null) {
        out.extend_from_slice(b"\\N");
    } else if has_escapes && !equals_null_string {
        fields::append_text(dialect, field, out);
    } else {
        fields::append_escaped(field, out);
    }
}

impl RecordRules {
    /// Returns whether a csv record can also be a line of COPY text: the input has the delimiter
    /// and the NULL string of COPY text. In such files (IMDb's, for example) a row costs one memory
    /// copy.
    fn may_be_copy_text(&self) -> bool {
        let dialect = &self.dialect;
        dialect.format == CopyFormat::Csv
            && !self.has_forced_nulls
            && dialect.delimiter == b'\t'
            && dialect.null == b"\\N"
    }

    /// Returns whether the input is COPY text with default options.
    fn is_copy_text(&self) -> bool {
        let Dialect { format, delimiter, null, .. } = &self.dialect;
        *format == CopyFormat::Text
            && *delimiter == b'\t'
            && null == b"\\N"
            && !self.has_forced_nulls
    }

    /// Returns the value of a field that needs no decoding: `Some(None)` is NULL. Returns `None` if
    /// the field has to be decoded.
    #[inline]
    fn undecoded_value<'a>(&self, raw: &'a [u8], has_escapes: bool) -> Option<Option<&'a [u8]>> {
        let dialect = &self.dialect;
        if self.has_forced_nulls {
            None
        } else if !has_escapes {
            Some((!is_null_string(dialect, raw, false)).then_some(raw))
        } else if dialect.format == CopyFormat::Csv {
            strip_plain_quotes(dialect, raw).map(Some)
        } else {
            // COPY drops a backslash at the end of the input, so such a field may differ from NULL.
            (raw == dialect.null && raw.last() != Some(&b'\\')).then_some(None)
        }
    }
}

/// Returns whether the server would report another error of the record before the wrong number of
/// fields.
pub(super) fn has_another_fault(
    record: IndexedRecord<'_>,
    columns: &[DelimitedColumn],
    rules: &RecordRules,
    scratch: &mut Vec<u8>,
) -> bool {
    if simdutf8::basic::from_utf8(record.bytes()).is_err() || record.bytes().contains(&0) {
        return true;
    }
    let mut unused = Vec::new();
    let is_short = record.ends.len() < columns.len();
    (0..record.ends.len()).any(|index| {
        let (raw, has_escapes) = record.field(index);
        let column = columns.get(index).or(columns.last());
        let Some(column) = column else { return false };
        match column_value(rules, column, raw, has_escapes, scratch) {
            FieldValue::Null => false,
            FieldValue::Server(_) => true,
            FieldValue::Bytes(_) if !is_short => false,
            FieldValue::Bytes(value) => {
                unused.clear();
                !column.encoder.as_ref().is_some_and(|encoder| encoder.encode(value, &mut unused))
            }
        }
    })
}

/// Appends a record as COPY text with all of its fields, even if the record has too few or too many
/// fields.
pub(super) fn append_all_fields(
    record: IndexedRecord<'_>,
    columns: &[DelimitedColumn],
    rules: &RecordRules,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    for index in 0..record.ends.len() {
        let (raw, has_escapes) = record.field(index);
        if let Some(column) = columns.get(index).or(columns.last()) {
            append_text_field(rules, column, raw, has_escapes, scratch, out);
        }
        out.push(b'\t');
    }
    out.pop();
    out.push(b'\n');
}

//! Parses the first records of an input into values, for headers and samples.

use super::field_index::{FieldIndex, HAS_ESCAPES, LineFault, OFFSET_MASK, RECORD_END, ScanRules};
use super::fields::{FieldValue, decode_value, is_null_string, without_last_escape};
use super::lines::{is_skipped, skip_line_end};
use super::{Dialect, Eol};

/// The fields of a record. NULL is `None`.
pub type ParsedRecord = Vec<Option<Vec<u8>>>;

/// Parses at most `limit` records at the start of `bytes`, and skips comments and blank lines. If
/// `complete` is false, `bytes` may end within a record, and such a record is left out. The list
/// ends before a record that COPY would reject for its quotes or line ends. In text format, the
/// list also ends before `\.`.
pub fn parse_records(
    dialect: &Dialect,
    eol: Eol,
    bytes: &[u8],
    complete: bool,
    limit: usize,
) -> Vec<ParsedRecord> {
    parse(dialect, eol, bytes, complete, limit).0
}

/// Parses like [`parse_records`], and also returns the error that ended the list.
pub(super) fn parse(
    dialect: &Dialect,
    eol: Eol,
    bytes: &[u8],
    complete: bool,
    limit: usize,
) -> (Vec<ParsedRecord>, Option<LineFault>) {
    let rules = ScanRules::new(dialect, eol);
    let mut index = FieldIndex::default();
    let mut records = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        index.scan(bytes, start, &rules);
        let (mut record_start, mut field_start) = (start, start);
        let mut record = Vec::new();
        for end in index.ends() {
            if records.len() >= limit {
                return (records, None);
            }
            let at = index.start + (end & OFFSET_MASK) as usize;
            record.push(owned_value(dialect, &bytes[field_start..at], end & HAS_ESCAPES != 0));
            field_start = at + 1;
            if end & RECORD_END != 0 {
                let is_cut_off = at == bytes.len() && !complete;
                let record = std::mem::take(&mut record);
                if !is_cut_off && !is_skipped(dialect, &bytes[record_start..at]) {
                    records.push(record);
                }
                field_start = skip_line_end(bytes, at, eol);
                record_start = field_start;
            }
        }
        if index.fault.is_some() || index.next_start == start {
            break;
        }
        start = index.next_start;
    }
    (records, index.fault)
}

/// Decodes a field and returns an owned copy of its value. NULL is `None`.
fn owned_value(dialect: &Dialect, raw: &[u8], has_escapes: bool) -> Option<Vec<u8>> {
    let raw = without_last_escape(dialect, raw);
    if is_null_string(dialect, raw, has_escapes) {
        return None;
    }
    if !has_escapes {
        return Some(raw.to_vec());
    }
    let mut scratch = Vec::new();
    match decode_value(dialect, raw, &mut scratch) {
        FieldValue::Null => None,
        FieldValue::Bytes(bytes) | FieldValue::Server(bytes) => Some(bytes.to_vec()),
    }
}

//! The first records of an input as values, for headers and samples.

use super::fields::{Value, is_null, value, without_last_escape};
use super::lines::{is_skipped, skip_line_end};
use super::scan::{Fault, Index, MARKED, OFFSET, RECORD, Rules};
use super::{Dialect, Eol};

/// A record's fields; NULL is `None`.
pub type ParsedRecord = Vec<Option<Vec<u8>>>;

/// The values of the records at the start of `bytes`, at most `limit` of them, lines that are no
/// records left out. With `complete` false, `bytes` may end anywhere, and a record that may be cut
/// off is left out. A record that COPY would refuse for its quotes or line ends, and in text
/// format `\.`, ends the list.
pub fn parse_records(
    dialect: &Dialect,
    eol: Eol,
    bytes: &[u8],
    complete: bool,
    limit: usize,
) -> Vec<ParsedRecord> {
    parse(dialect, eol, bytes, complete, limit).0
}

/// The same, and what ended the list.
pub(super) fn parse(
    dialect: &Dialect,
    eol: Eol,
    bytes: &[u8],
    complete: bool,
    limit: usize,
) -> (Vec<ParsedRecord>, Option<Fault>) {
    let rules = Rules::new(dialect, eol);
    let mut index = Index::default();
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
            let at = index.start + (end & OFFSET) as usize;
            record.push(owned_value(dialect, &bytes[field_start..at], end & MARKED != 0));
            field_start = at + 1;
            if end & RECORD != 0 {
                let is_cut_off = at == bytes.len() && !complete;
                let record = std::mem::take(&mut record);
                if !is_cut_off && !is_skipped(dialect, &bytes[record_start..at]) {
                    records.push(record);
                }
                field_start = skip_line_end(bytes, at, eol);
                record_start = field_start;
            }
        }
        if index.fault.is_some() || index.next == start {
            break;
        }
        start = index.next;
    }
    (records, index.fault)
}

fn owned_value(dialect: &Dialect, raw: &[u8], marked: bool) -> Option<Vec<u8>> {
    let raw = without_last_escape(dialect, raw);
    if is_null(dialect, raw, marked) {
        return None;
    }
    if !marked {
        return Some(raw.to_vec());
    }
    let mut scratch = Vec::new();
    match value(dialect, raw, &mut scratch) {
        Value::Null => None,
        Value::Bytes(bytes) | Value::Server(bytes) => Some(bytes.to_vec()),
    }
}

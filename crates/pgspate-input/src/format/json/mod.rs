//! JSON: one value per line, values one after another, or one array of values.
//!
//! Chunks of one input put together are that input, byte for byte; a row's values reach the server
//! as the characters that stand in the input, so a number never passes through a float. What is
//! accepted is RFC 8259, no more: no comments, no trailing commas, no `NaN`.
//!
//! A row is an object, whose keys name columns, or an array, whose items are the columns in order.

mod cut;
mod encode;
mod record;
mod scan;

pub use cut::{CutLimits, JsonCutter, JsonInput};
pub use encode::{JsonColumn, JsonEncoder, JsonOptions};

pub(crate) use record::Records;

use crate::format::{KeyedFormat, infer};
use crate::json::skip_space;

/// JSON as a format of records.
pub(crate) const KEYED: KeyedFormat = KeyedFormat {
    columns: infer::columns_of_json,
    cutter: |input, chunk_bytes| {
        let limits = CutLimits { chunk_bytes, ..CutLimits::default() };
        Box::new(JsonCutter::new(vec![input], limits))
    },
    encoder: |options| Box::new(JsonEncoder::new(options)),
};

/// The bytes before the JSON: a UTF-8 byte order mark or nothing.
pub(crate) fn mark_len(data: &[u8]) -> usize {
    if data.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 }
}

/// Whether input that begins with `data` is one array of rows: its first item is a row itself, or
/// there is none. An array of anything else is a row by position. `None` when `data` is too short.
pub(crate) fn is_array(data: &[u8]) -> Option<bool> {
    let at = skip_space(data, mark_len(data));
    if *data.get(at)? != b'[' {
        return Some(false);
    }
    let at = skip_space(data, at + 1);
    Some(matches!(data.get(at)?, b'{' | b'[' | b']'))
}

/// How many lines end within `data`.
pub(crate) fn newlines(data: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', data).count() as u64
}

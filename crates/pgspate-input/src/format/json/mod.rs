//! The format JSON: one value per line, values one after another, or one array of values.
//!
//! The concatenated chunks of an input are the input. Values are sent to the server with the
//! input's own characters, so a number never passes through a float. Only RFC 8259 is accepted: no
//! comments, trailing commas or `NaN`.
//!
//! A row is an object whose keys name columns, or an array whose items are the columns in order.

mod cut;
mod encode;
mod key_lookup;
mod record;
mod scan;

pub use cut::{JsonCutLimits, JsonCutter};
pub use encode::JsonEncoder;

pub(crate) use record::RecordWalk;

use crate::format::infer;
use crate::format::keyed::KeyedFormat;
use crate::json::skip_space;

/// The functions of the format JSON.
pub(crate) const KEYED: KeyedFormat = KeyedFormat {
    columns: infer::columns_of_json,
    is_by_position: infer::are_arrays,
    cutter: |input, chunk_bytes| {
        let limits = JsonCutLimits { chunk_bytes, ..JsonCutLimits::default() };
        Box::new(JsonCutter::new(vec![input], limits))
    },
    encoder: |options| Box::new(JsonEncoder::new(options)),
};

/// Returns the length of the UTF-8 byte order mark at the start of `data`, or 0.
pub(crate) fn byte_order_mark_len(data: &[u8]) -> usize {
    if data.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 }
}

/// Returns whether an input that begins with `data` is one array of rows: its first item is an
/// object or array, or it is empty. Any other array is a single row. Returns `None` if `data` is
/// too short to decide.
pub(crate) fn is_array_of_rows(data: &[u8]) -> Option<bool> {
    let at = skip_space(data, byte_order_mark_len(data));
    if *data.get(at)? != b'[' {
        return Some(false);
    }
    let at = skip_space(data, at + 1);
    Some(matches!(data.get(at)?, b'{' | b'[' | b']'))
}

/// Returns the number of lines that end within `data`.
pub(crate) fn count_newlines(data: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', data).count() as u64
}

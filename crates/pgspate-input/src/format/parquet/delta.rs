//! Checks the counts and lengths that delta encodings state. The decoder allocates memory for them.

use super::super::stated_size::check_memory;
use super::thrift::ThriftCursor;

/// The memory of the decoder for each length, in bytes.
const LENGTH_BYTES: u64 = 4;

/// The header of delta-encoded numbers.
#[derive(Debug, Clone, Copy)]
struct DeltaHeader {
    /// The number of values of a block.
    block: u64,
    /// The number of miniblocks of a block.
    parts: u64,
    count: u64,
    first: i64,
}

fn read_header(cursor: &mut ThriftCursor<'_>) -> Option<DeltaHeader> {
    let block = cursor.number().ok()?;
    let parts = cursor.number().ok()?;
    let count = cursor.number().ok()?;
    Some(DeltaHeader { block, parts, count, first: cursor.signed().ok()? })
}

fn check_count(header: DeltaHeader, values: u64) -> Result<(), String> {
    let count = header.count;
    if count > values {
        return Err(format!("states {values} values in its header and {count} in its data"));
    }
    check_memory(count.saturating_mul(LENGTH_BYTES))
        .map_err(|why| format!("states {count} lengths, {why}"))
}

/// Checks the numbers or string lengths of a page that states `values` values. Unreadable data is
/// left to the decoder.
///
/// # Errors
/// A message if the data states more values than the page.
pub(super) fn check_lengths(bytes: &[u8], values: u64) -> Result<(), String> {
    read_header(&mut ThriftCursor::new(bytes)).map_or(Ok(()), |header| check_count(header, values))
}

/// Checks strings that are stored as a suffix and the length of the prefix that they share with the
/// string before. `batch` strings are decoded at a time, into at most `limit` bytes.
///
/// # Errors
/// A message if the data states more strings than the page, or if a batch of strings would not fit
/// into memory.
pub(super) fn check_prefixes(
    bytes: &[u8],
    values: u64,
    batch: u64,
    limit: u64,
) -> Result<(), String> {
    let mut cursor = ThriftCursor::new(bytes);
    let Some(prefixes) = read_header(&mut cursor) else { return Ok(()) };
    check_count(prefixes, values)?;
    let mut longest = prefixes.first;
    if for_each_number(bytes, &mut cursor, prefixes, |number| longest = longest.max(number))
        .is_none()
    {
        return Ok(());
    }
    check_lengths(&bytes[cursor.offset()..], values)?;
    // A shared prefix is at most as long as all bytes, and is copied for each string.
    let longest = u64::try_from(longest).unwrap_or(0).min(bytes.len() as u64);
    let bytes_max = longest.saturating_mul(batch);
    if bytes_max > limit {
        return Err(format!(
            "repeats {longest} bytes for up to {batch} rows, more than {limit} bytes in total"
        ));
    }
    check_memory(bytes_max)
        .map_err(|why| format!("repeats {longest} bytes for {batch} rows, {why}"))
}

/// Calls `each` with every number after the first. Returns `None` if the bytes end early.
fn for_each_number(
    bytes: &[u8],
    cursor: &mut ThriftCursor<'_>,
    header: DeltaHeader,
    mut each: impl FnMut(i64),
) -> Option<()> {
    let part_values = header.block.checked_div(header.parts)?;
    let mut left = header.count.saturating_sub(1);
    let mut number = header.first;
    while left > 0 && part_values > 0 {
        let least = cursor.signed().ok()?;
        let widths = bytes.get(cursor.offset()..)?.get(..usize::try_from(header.parts).ok()?)?;
        cursor.skip(header.parts).ok()?;
        for width in widths.iter().copied().map(u64::from) {
            let here = left.min(part_values);
            if here == 0 {
                break;
            }
            let packed = &bytes[cursor.offset()..];
            cursor.skip(part_values.checked_mul(width)?.div_ceil(8)).ok()?;
            for index in 0..here {
                let step = bits(packed, index * width, width)?;
                // Lengths are 32-bit numbers and wrap around like them.
                number = i64::from(number.wrapping_add(least).wrapping_add(step) as i32);
                each(number);
            }
            left -= here;
        }
    }
    Some(())
}

/// Returns the number of `width` bits that begins at bit `at`, lowest bit first.
fn bits(bytes: &[u8], at: u64, width: u64) -> Option<i64> {
    if width > 32 {
        return None;
    }
    let byte = (at / 8) as usize;
    let mut word = [0; 8];
    let rest = bytes.get(byte..)?;
    let len = rest.len().min(8);
    word[..len].copy_from_slice(&rest[..len]);
    let shifted = u64::from_le_bytes(word) >> (at % 8);
    Some((shifted & ((1 << width) - 1)).cast_signed())
}

//! Counts and lengths of the delta encodings, which the decoder makes room for as they state.

use super::super::stated::check_room;
use super::thrift::Cursor;

/// Bytes that the decoder holds for each length.
const LENGTH_BYTES: u64 = 4;

/// The header of numbers that are stored as differences.
#[derive(Debug, Clone, Copy)]
struct Header {
    block: u64,
    parts: u64,
    count: u64,
    first: i64,
}

fn header(cursor: &mut Cursor<'_>) -> Option<Header> {
    let block = cursor.number().ok()?;
    let parts = cursor.number().ok()?;
    let count = cursor.number().ok()?;
    Some(Header { block, parts, count, first: cursor.signed().ok()? })
}

fn check_count(header: Header, values: u64) -> Result<(), String> {
    let count = header.count;
    if count > values {
        return Err(format!("states {values} values, and then {count} of them"));
    }
    check_room(count.saturating_mul(LENGTH_BYTES))
        .map_err(|why| format!("states {count} lengths, {why}"))
}

/// Checks numbers, or the lengths of strings, of a page that states `values` values. What is not
/// readable is left to the decoder.
///
/// # Errors
/// More of them are stated.
pub(super) fn check_lengths(bytes: &[u8], values: u64) -> Result<(), String> {
    header(&mut Cursor::new(bytes)).map_or(Ok(()), |header| check_count(header, values))
}

/// Checks strings that are stored as the length of what they share with the string before, and the
/// rest. `batch` of them are decoded at a time, into at most `limit` bytes.
///
/// # Errors
/// More of them are stated, or so long ones that a batch could not be held.
pub(super) fn check_prefixes(
    bytes: &[u8],
    values: u64,
    batch: u64,
    limit: u64,
) -> Result<(), String> {
    let mut cursor = Cursor::new(bytes);
    let Some(prefixes) = header(&mut cursor) else { return Ok(()) };
    check_count(prefixes, values)?;
    let mut longest = prefixes.first;
    if follow(bytes, &mut cursor, prefixes, |number| longest = longest.max(number)).is_none() {
        return Ok(());
    }
    check_lengths(&bytes[cursor.offset()..], values)?;
    // A string shares no more than there is, and each is copied whole.
    let longest = u64::try_from(longest).unwrap_or(0).min(bytes.len() as u64);
    let most = longest.saturating_mul(batch);
    if most > limit {
        return Err(format!("repeats {longest} bytes for up to {batch} rows, over {limit} in all"));
    }
    check_room(most).map_err(|why| format!("repeats {longest} bytes for {batch} rows, {why}"))
}

/// Tells each number behind the first one. `None` where the bytes end too soon.
fn follow(
    bytes: &[u8],
    cursor: &mut Cursor<'_>,
    header: Header,
    mut tell: impl FnMut(i64),
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
            for nth in 0..here {
                let step = bits(packed, nth * width, width)?;
                // Lengths are numbers of 32 bits, and wrap around as such.
                number = i64::from(number.wrapping_add(least).wrapping_add(step) as i32);
                tell(number);
            }
            left -= here;
        }
    }
    Some(())
}

/// A number of `width` bits, from bit `at` on, the lowest first.
fn bits(bytes: &[u8], at: u64, width: u64) -> Option<i64> {
    if width > 32 {
        return None;
    }
    let byte = (at / 8) as usize;
    let mut held = [0; 8];
    let there = bytes.get(byte..)?;
    let len = there.len().min(8);
    held[..len].copy_from_slice(&there[..len]);
    let shifted = u64::from_le_bytes(held) >> (at % 8);
    Some((shifted & ((1 << width) - 1)).cast_signed())
}

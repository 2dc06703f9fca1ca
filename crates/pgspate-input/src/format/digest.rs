//! Digests of input content. They identify a source that has no other proof of its version.
//!
//! The digest is XXH3 with 128 bits. It is as fast as memory, so every load can compute it. It
//! detects accidental changes, not collisions that an attacker constructs.

use arrow_schema::Schema;
use twox_hash::{XxHash3_64, XxHash3_128};

use super::delimited::RecordLayout;
use super::{Chunk, ChunkData};
use crate::Result;
use crate::source::RangeReader;

/// The size of one read for a digest.
const PIECE_BYTES: u64 = 4 << 20;

/// The combined digest of each input's chunks. The order in which chunks are added does not matter.
/// An input has `None` if one of its chunks has no digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContentDigests(Vec<Option<u128>>);

impl ContentDigests {
    /// Returns the digests of `inputs` inputs, before any chunk is read.
    pub fn new(inputs: usize) -> ContentDigests {
        ContentDigests(vec![Some(0); inputs])
    }

    /// Adds the digest of a chunk at `position` of input number `input`.
    pub fn add(&mut self, input: usize, position: u64, digest: Option<u128>) {
        let Some(sum) = self.0.get_mut(input) else { return };
        *sum = sum.zip(digest).map(|(sum, digest)| {
            let keyed_digest = [u128::from(position).to_le_bytes(), digest.to_le_bytes()].concat();
            sum.wrapping_add(XxHash3_128::oneshot(&keyed_digest))
        });
    }

    /// Returns the digest of one input.
    pub fn of(&self, input: usize) -> Option<u128> {
        self.0.get(input).copied().flatten()
    }
}

impl Chunk {
    /// Returns the digest of the chunk's bytes, and of the columns that they fill. Returns `None`
    /// if the chunk has no stored bytes, or if a strong entity tag identifies the version.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if the chunk's file cannot be read.
    pub fn content_digest(&self) -> Result<Option<u128>> {
        match &self.data {
            ChunkData::Bytes(bytes) => Ok(Some(XxHash3_128::oneshot(bytes))),
            ChunkData::Delimited(bytes, layout) => {
                Ok(Some(XxHash3_128::oneshot_with_seed(layout.digest_seed(), bytes)))
            }
            ChunkData::Rows(rows) => rows.content_digest(),
        }
    }
}

impl RecordLayout {
    /// Returns a seed for digests that depends on which column each field fills. The order of the
    /// columns does not matter.
    fn digest_seed(&self) -> u64 {
        let mut fields: Vec<_> = self.columns.iter().zip(&self.field_of).collect();
        fields.sort_unstable();
        let layout_text = format!("{:?} {} {fields:?}", self.eol, self.fields);
        XxHash3_64::oneshot(layout_text.as_bytes())
    }
}

/// Returns a seed for digests that depends on the names and the types of the columns. Without the
/// seed, the same stored bytes would count as the same values in a column of another type.
pub(crate) fn schema_seed(schema: &Schema) -> u64 {
    XxHash3_64::oneshot(format!("{:?}", schema.fields()).as_bytes())
}

/// Returns the digest of stored bytes, given as pairs of start and end. `seed` is the
/// [`schema_seed`] of the file.
///
/// # Errors
/// [`ErrorKind::Source`](crate::ErrorKind::Source) if the bytes cannot be read.
pub(crate) fn digest_of_stored(
    ranges: &dyn RangeReader,
    seed: u64,
    byte_ranges: impl IntoIterator<Item = (u64, u64)>,
) -> Result<Option<u128>> {
    if ranges.is_versioned() {
        return Ok(None);
    }
    let mut digest = XxHash3_128::with_seed(seed);
    for (mut start, end) in byte_ranges {
        let end = end.min(ranges.len());
        while start < end {
            let len = (end - start).min(PIECE_BYTES);
            digest.write(&ranges.read(start, usize::try_from(len).unwrap_or_default())?);
            start += len;
        }
    }
    Ok(Some(digest.finish_128()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::format::delimited::Eol;

    #[test]
    fn seeds_of_layouts_depend_on_the_field_of_each_column() {
        let seed = |columns: [&str; 2], field_of: [usize; 2]| {
            let columns: Arc<[String]> = columns.iter().map(|name| (*name).to_owned()).collect();
            let field_of = field_of.to_vec();
            RecordLayout { eol: Eol::Lf, fields: 2, field_of, columns }.digest_seed()
        };
        let first = seed(["a", "b"], [0, 1]);
        assert_eq!(first, seed(["b", "a"], [1, 0]));
        assert_ne!(first, seed(["b", "a"], [0, 1]));
        assert_ne!(first, seed(["a", "c"], [0, 1]));
    }

    #[test]
    fn digests_depend_on_positions_but_not_on_the_order_of_chunks() {
        let of = |chunks: &[(usize, u64, Option<u128>)]| {
            let mut contents = ContentDigests::new(2);
            chunks.iter().for_each(|(input, at, digest)| contents.add(*input, *at, *digest));
            contents
        };
        let first = of(&[(0, 0, Some(7)), (0, 9, Some(8))]);
        assert_eq!(first, of(&[(0, 9, Some(8)), (0, 0, Some(7))]));
        assert_ne!(first, of(&[(0, 0, Some(8)), (0, 9, Some(7))]));
        assert_ne!(first.of(0), of(&[(0, 0, Some(7))]).of(0));
        assert_eq!(of(&[(0, 0, Some(7)), (0, 9, None)]).of(0), None);
        assert_eq!(of(&[(0, 0, None)]).of(1), Some(0));
    }
}

//! Digests of what was read, by which a source is known again that has no better proof.
//!
//! XXH3 of 128 bits: as fast as memory is, so that every load can afford it. It finds every change
//! that happens; it is no defence against somebody who makes two contents on purpose.

use twox_hash::{XxHash3_64, XxHash3_128};

use super::{Chunk, ChunkData};
use crate::Result;
use crate::source::Ranges;

/// What is read at once to be digested.
const PIECE_BYTES: u64 = 4 << 20;

/// The digests of all chunks, together for each input. The order in which chunks are added does
/// not count. `None` for an input of which a chunk has no digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents(Vec<Option<u128>>);

impl Contents {
    /// Of so many inputs, of which nothing is read yet.
    pub fn new(inputs: usize) -> Contents {
        Contents(vec![Some(0); inputs])
    }

    /// Adds a chunk.
    pub fn add(&mut self, input: usize, position: u64, digest: Option<u128>) {
        let Some(sum) = self.0.get_mut(input) else { return };
        *sum = sum.zip(digest).map(|(sum, digest)| {
            let both = [u128::from(position).to_le_bytes(), digest.to_le_bytes()].concat();
            sum.wrapping_add(XxHash3_128::oneshot(&both))
        });
    }

    /// Of one input.
    pub fn of(&self, input: usize) -> Option<u128> {
        self.0.get(input).copied().flatten()
    }
}

impl Chunk {
    /// The digest of the chunk's bytes and of how they are laid out; `None` where there is none,
    /// or where a store's name for the version says more.
    ///
    /// # Errors
    /// The chunk is read from its file, which fails.
    pub fn content_digest(&self) -> Result<Option<u128>> {
        match &self.data {
            ChunkData::Bytes(bytes) => Ok(Some(XxHash3_128::oneshot(bytes))),
            ChunkData::Delimited(bytes, layout) => {
                let laid_out = format!("{layout:?}");
                let seed = XxHash3_64::oneshot(laid_out.as_bytes());
                Ok(Some(XxHash3_128::oneshot_with_seed(seed, bytes)))
            }
            ChunkData::Rows(rows) => rows.content_digest(),
        }
    }
}

/// The digest of stretches of stored bytes, each given by its start and end.
///
/// # Errors
/// When they cannot be read.
pub(crate) fn of_stored(
    ranges: &dyn Ranges,
    stretches: impl IntoIterator<Item = (u64, u64)>,
) -> Result<Option<u128>> {
    if ranges.is_versioned() {
        return Ok(None);
    }
    let mut digest = XxHash3_128::new();
    for (mut start, end) in stretches {
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
    use super::*;

    #[test]
    fn the_order_of_chunks_does_not_count_and_their_places_do() {
        let of = |chunks: &[(usize, u64, Option<u128>)]| {
            let mut contents = Contents::new(2);
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

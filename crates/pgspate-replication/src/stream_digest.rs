//! Digests of streams: they show whether a stream that is read again has the same records.

use crate::{SourceNames, SourcePosition};
use pgspate_events::EventPlace;
use pgspate_target::ledger::StreamPosition;

/// The digest of a stream's records so far. The ledger keeps digests, so the algorithm must not
/// change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamDigest(u64);

impl StreamDigest {
    /// Parses a digest from the ledger. For a text that is not a digest, returns the digest of a
    /// stream without records.
    pub fn parse(text: &str) -> StreamDigest {
        StreamDigest(u64::from_str_radix(text, 16).unwrap_or_default())
    }

    /// Adds a record and its length.
    pub fn add(&mut self, line: &[u8]) {
        let (words, rest) = line.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(line.len() as u64);
    }

    /// Adds a number.
    pub fn mix(&mut self, word: u64) {
        // Multiplying by an odd number loses no bits, so one different word changes the digest.
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl std::fmt::Display for StreamDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The position in a stream whose records have one order: the place of the last record and the
/// digest of all records up to it.
#[derive(Debug, Default)]
pub struct DigestedPosition<S> {
    /// The digest of all records so far.
    pub digest: StreamDigest,
    /// Place and digest after the last record.
    last: (S, StreamDigest),
    /// Place and digest after the last whole transaction.
    whole: (S, StreamDigest),
}

impl<S: Default> DigestedPosition<S> {
    /// Returns the position before the first record of this run. `digest` is the digest in the
    /// ledger.
    pub(crate) fn after(digest: StreamDigest) -> DigestedPosition<S> {
        DigestedPosition { digest, last: Default::default(), whole: Default::default() }
    }

    /// Changes the digest although no record has come, so that the next position differs from the
    /// position in the ledger.
    pub(crate) fn advance(&mut self) {
        self.digest.mix(1);
        (self.last.1, self.whole.1) = (self.digest, self.digest);
    }
}

impl<S: Copy + Default + Send + Into<EventPlace>> SourcePosition for DigestedPosition<S> {
    type EventPlace = S;

    fn note_record(&mut self, event_place: S) {
        self.last = (event_place, self.digest);
    }

    fn note_transaction_end(&mut self) {
        self.whole = self.last;
    }

    fn mark(&self, ordinal: u64, names: &SourceNames) -> StreamPosition {
        let (event_place, digest) = self.whole;
        StreamPosition {
            ordinal,
            source: names.describe(event_place.into()),
            digest: digest.to_string(),
        }
    }

    fn digest(&self) -> String {
        self.digest.to_string()
    }
}

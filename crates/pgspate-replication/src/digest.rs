//! What tells the records of one stream from those of another, and how far they were taken.

use crate::{SourceNames, SourcePosition};
use pgspate_events::EventPlace;
use pgspate_target::ledger::Mark;

/// Tells the records of a stream so far from others. The ledger keeps it: it stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Reads a digest as the ledger has it; the first one for what is none.
    pub fn parse(text: &str) -> Digest {
        Digest(u64::from_str_radix(text, 16).unwrap_or_default())
    }

    /// Adds a record, and that it ends.
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
        // An odd factor loses nothing, so that one word that is another shows in the end.
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Records that come in an order of their own: the last one, and what all up to it are.
#[derive(Debug, Default)]
pub struct Trail<S> {
    /// Of all records so far.
    pub digest: Digest,
    last: (S, Digest),
    /// After the last whole transaction.
    whole: (S, Digest),
}

impl<S: Default> Trail<S> {
    /// Nothing yet, of a stream whose digest this is.
    pub(crate) fn after(digest: Digest) -> Trail<S> {
        Trail { digest, last: Default::default(), whole: Default::default() }
    }

    /// Tells what the ledger is to keep next from what it keeps, although no record has come.
    pub(crate) fn advance(&mut self) {
        self.digest.mix(1);
        (self.last.1, self.whole.1) = (self.digest, self.digest);
    }
}

impl<S: Copy + Default + Send + Into<EventPlace>> SourcePosition for Trail<S> {
    type EventPlace = S;

    fn arrive(&mut self, event_place: S) {
        self.last = (event_place, self.digest);
    }

    fn settle(&mut self) {
        self.whole = self.last;
    }

    fn mark(&self, ordinal: u64, names: &SourceNames) -> Mark {
        let (event_place, digest) = self.whole;
        Mark { ordinal, source: names.words(event_place.into()), digest: digest.to_string() }
    }

    fn digest(&self) -> String {
        self.digest.to_string()
    }
}

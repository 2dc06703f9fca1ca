//! What tells the records of one stream from those of another.

/// Tells the records of a stream so far from others. The ledger keeps it: it stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    /// As the ledger has it; the first one for what is none.
    pub(crate) fn parse(text: &str) -> Digest {
        Digest(u64::from_str_radix(text, 16).unwrap_or_default())
    }

    /// Adds a record, and that it ends.
    pub(crate) fn add(&mut self, line: &[u8]) {
        let (words, rest) = line.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(line.len() as u64);
    }

    pub(crate) fn mix(&mut self, word: u64) {
        // An odd factor loses nothing, so that one word that is another shows in the end.
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

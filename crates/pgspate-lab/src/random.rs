//! Random numbers that are the same for the same seed, on every machine and in every version.
//!
//! SplitMix64: a counter, mixed. Good enough for data and orders, and nothing else is asked of it.

/// A source of numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Of a seed and what it is for, so that two uses of one seed do not see the same numbers.
    pub fn new(seed: u64, purpose: &str) -> Random {
        let mut random = Random(seed);
        for byte in purpose.bytes() {
            random.0 = random.next() ^ u64::from(byte);
        }
        random
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends, and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of a product: a bias of less than end in 2^64.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// From 0 to less than 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Brings things into an order that nobody chose.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            things.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            [random.next(), random.next(), random.below(10)]
        };
        assert_eq!(numbers(1, "order"), numbers(1, "order"));
        assert_ne!(numbers(1, "order"), numbers(2, "order"));
        assert_ne!(numbers(1, "order"), numbers(1, "data"));
        assert_eq!(Random(0).next(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn shuffling_loses_nothing_and_reaches_every_order() {
        let mut seen = std::collections::HashSet::new();
        let mut random = Random::new(3, "shuffle");
        for _ in 0..200 {
            let mut things = [1, 2, 3];
            random.shuffle(&mut things);
            seen.insert(things);
            things.sort_unstable();
            assert_eq!(things, [1, 2, 3]);
        }
        assert_eq!(seen.len(), 6);
        assert!((0..1000).all(|_| random.below(7) < 7 && random.share() < 1.0));
    }
}

//! Random numbers that are the same for the same seed, on every machine and in every version.
//!
//! The generator is SplitMix64, a mixed counter: good enough for data and for shuffling.

/// The counter's increment.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A random number generator.
#[derive(Debug, Clone)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// Creates a generator from a seed and a purpose. Two purposes give different numbers.
    pub fn new(seed: u64, purpose: &str) -> SeededRandom {
        let mut random = SeededRandom(seed);
        for byte in purpose.bytes() {
            random.0 = random.next() ^ u64::from(byte);
        }
        random
    }

    /// Creates the generator of one row of a table, so that rows can be made in any order. Tables
    /// of one seed have different numbers.
    pub fn at(seed: u64, table: u64, row: u64) -> SeededRandom {
        SeededRandom(mix(mix(seed ^ mix(table.wrapping_mul(STEP))) ^ row.wrapping_mul(STEP)))
    }

    /// Returns the next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends, and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `end`; `end` must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of a product: a bias of less than end in 2^64.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number from 0 to below 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number below `end`, small numbers far more often: the mean is a quarter of `end`.
    pub fn skewed(&mut self, end: u64) -> u64 {
        let share = self.share();
        ((share * share * share * end as f64) as u64).min(end.saturating_sub(1))
    }

    /// Returns true in `percent` of a hundred cases.
    pub fn percent(&mut self, percent: f64) -> bool {
        self.share() * 100.0 < percent
    }

    /// Picks one of the values.
    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Picks one of the values, the first ones far more often.
    pub fn pick_skewed<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.skewed(of.len() as u64) as usize]
    }

    /// Shuffles the values.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            things.swap(last, other);
        }
    }
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed, purpose| {
            let mut random = SeededRandom::new(seed, purpose);
            [random.next(), random.next(), random.below(10)]
        };
        assert_eq!(numbers(1, "order"), numbers(1, "order"));
        assert_ne!(numbers(1, "order"), numbers(2, "order"));
        assert_ne!(numbers(1, "order"), numbers(1, "data"));
        assert_eq!(SeededRandom(0).next(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn shuffling_loses_nothing_and_reaches_every_order() {
        let mut seen = std::collections::HashSet::new();
        let mut random = SeededRandom::new(3, "shuffle");
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

    #[test]
    fn rows_have_numbers_of_their_own() {
        assert_eq!(SeededRandom::at(7, 1, 2).next(), SeededRandom::at(7, 1, 2).next());
        assert_ne!(SeededRandom::at(7, 1, 2).next(), SeededRandom::at(7, 2, 1).next());
        assert_ne!(SeededRandom::at(7, 1, 2).next(), SeededRandom::at(8, 1, 2).next());
    }

    #[test]
    fn numbers_are_spread_as_promised() {
        let mut random = SeededRandom::new(1, "spread");
        let mut counts = [0_u32; 10];
        let mut sum = 0;
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
            sum += random.skewed(1000);
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert!((245..255).contains(&(sum / 100_000)), "{sum}");
        assert_eq!([random.skewed(0), random.skewed(1)], [0, 0]);
        let hits = (0..100_000).filter(|_| random.percent(15.0)).count();
        assert!((14_500..15_500).contains(&hits), "{hits}");
    }
}

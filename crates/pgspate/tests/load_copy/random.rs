//! Pseudo-random numbers. The same seed gives the same numbers.

/// A SplitMix64 generator.
pub(crate) struct CopyRandom(u64);

impl CopyRandom {
    pub(crate) fn new(seed: u64) -> CopyRandom {
        // The seed is mixed, so that neighbouring seeds give unrelated numbers.
        CopyRandom(CopyRandom(seed ^ 0x5851_f42d_4c95_7f2d).next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `end`, excluding `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns a number from `first` to `last`, including both.
    pub(crate) fn between(&mut self, first: i64, last: i64) -> i64 {
        first + (self.next() % (last - first + 1) as u64) as i64
    }

    /// Returns true in one of `times` calls, on average.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

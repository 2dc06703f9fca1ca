//! Pseudo-random numbers: one seed always gives one sequence.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

/// A sequence of numbers (SplitMix64).
pub(crate) struct TestRandom {
    pub(crate) seed: u64,
    state: u64,
}

impl TestRandom {
    pub(crate) fn new(seed: u64) -> TestRandom {
        TestRandom { seed, state: seed }
    }

    /// Starts from `PGSPATE_TEST_FAULTS_SEED` if this variable is set. Otherwise a long run starts
    /// from the clock, and a short run from `seed`.
    pub(crate) fn for_test_run(seed: u64) -> TestRandom {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = if long_run().is_some() { now } else { seed };
        let random = TestRandom::new(from_environment("PGSPATE_TEST_FAULTS_SEED").unwrap_or(seed));
        println!("seed {}", random.seed);
        random
    }

    /// Returns the next number of the sequence.
    pub(crate) fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number within the range.
    pub(crate) fn among(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.number() % (range.end() - range.start() + 1)
    }

    /// Returns one of the choices.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.among(0..=choices.len() as u64 - 1) as usize]
    }
}

/// Returns `PGSPATE_TEST_FAULTS`: how many random faults of each kind a long run tries.
pub(crate) fn long_run() -> Option<u64> {
    from_environment("PGSPATE_TEST_FAULTS")
}

/// Returns the number in an environment variable, if the variable is set.
pub(crate) fn from_environment(name: &str) -> Option<u64> {
    let number = std::env::var(name).ok()?;
    Some(number.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

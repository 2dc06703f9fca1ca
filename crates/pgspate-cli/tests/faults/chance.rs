//! Numbers of chance that come again with the same seed.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

/// A sequence of numbers (SplitMix64).
pub(crate) struct Chance {
    pub(crate) seed: u64,
    state: u64,
}

impl Chance {
    /// The same every time, unless `PGSPATE_TEST_FAULTS_SEED` says otherwise.
    pub(crate) fn fixed(seed: u64) -> Chance {
        let seed = from_environment().unwrap_or(seed);
        Chance { seed, state: seed }
    }

    /// Another every time, unless `PGSPATE_TEST_FAULTS_SEED` says otherwise.
    pub(crate) fn new() -> Chance {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Chance::fixed(now.as_nanos() as u64)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn among(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.number() % (range.end() - range.start() + 1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.among(0..=choices.len() as u64 - 1) as usize]
    }
}

fn from_environment() -> Option<u64> {
    let seed = std::env::var("PGSPATE_TEST_FAULTS_SEED").ok()?;
    Some(seed.parse().expect("PGSPATE_TEST_FAULTS_SEED is a number"))
}

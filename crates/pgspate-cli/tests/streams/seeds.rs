//! Runs trials with several seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::test_random::from_environment;

/// Runs one trial for each of `count` seeds. `PGSPATE_TEST_LONG=300` runs trials of new seeds for
/// 300 seconds instead. `PGSPATE_TEST_SEED` sets the first seed.
pub(crate) fn run_trials(test: &str, count: u64, trial: &dyn Fn(u64)) {
    let limit = from_environment("PGSPATE_TEST_LONG").map(Duration::from_secs);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let first = from_environment("PGSPATE_TEST_SEED");
    let count = if first.is_some() && limit.is_none() { 1 } else { count };
    let first = first.unwrap_or_else(|| limit.map_or(0, |_| now()));
    let begin = Instant::now();
    let (mut failed, mut seed) = (Vec::new(), first);
    while limit.map_or(seed < first + count, |limit| begin.elapsed() < limit) {
        // Try the other seeds, too: several failures show more than one failure does.
        if catch_unwind(AssertUnwindSafe(|| trial(seed))).is_err() {
            failed.push(seed);
        }
        seed += 1;
    }
    println!(
        "ran {} workloads in {:?}, beginning with seed {first}",
        seed - first,
        begin.elapsed()
    );
    assert!(
        failed.is_empty(),
        "the workloads of seeds {failed:?} failed; their panics are above. To repeat the first: \
         PGSPATE_TEST_DEBEZIUM=target/debezium PGSPATE_TEST_SEED={} \
         cargo test -p pgspate-cli --test streams {test}",
        failed[0]
    );
}

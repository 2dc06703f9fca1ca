//! Streams that other tools write for random workloads. Applying a stream must make source and
//! target equal.
//!
//! The test of wal2json runs if the server has the plugin. `make test-debezium` fetches Debezium
//! and runs its tests. `PGSPATE_TEST_LONG=300` runs new workloads for 300 seconds.
//! `PGSPATE_TEST_SEED=7` begins with the workload of seed 7.

mod connector_settings;
mod database;
mod debezium;
mod debezium_engine;
mod mariadb;
#[path = "../support/run.rs"]
mod run;
mod seeds;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/test_random.rs"]
mod test_random;
mod values;
mod wal2json;
mod workload;

use std::time::Duration;

use run::{Run, finish, finish_within, spawn};
use support::LoadCase;
use test_random::TestRandom;

/// Applies the file with random settings. Up to three runs are killed before the run that is
/// returned.
fn try_in_pieces(case: &LoadCase, random: &mut TestRandom, args: &str) -> Run {
    let rows = 1 + random.below(90);
    let direct = random.pick(&["0", "1000"]);
    let args = format!("s.ndjson --quiet --batch-rows {rows} --direct-rows {direct} {args}");
    let start = || {
        let mut command = case.command(&["apply", "--to", &case.db.dsn()]);
        spawn(command.args(args.split_whitespace()))
    };
    for _ in 0..random.below(4) {
        // The run may also end before the kill.
        drop(finish_within(start(), Duration::from_millis(random.below(400))));
    }
    finish(start())
}

/// Applies the file with random settings and killed runs. Panics if the last run fails.
#[track_caller]
fn apply_in_pieces(case: &LoadCase, random: &mut TestRandom, args: &str) {
    let run = try_in_pieces(case, random, args);
    if run.status != Some(0) {
        let kept = keep_stream(case, "refused");
        panic!("{kept}: {:?} {}{}", run.status, run.stdout, run.stderr);
    }
}

/// Copies the stream to the folder for temporary files. Returns a sentence with the path.
fn keep_stream(case: &LoadCase, name: &str) -> String {
    let to = std::env::temp_dir().join(format!("pgspate-stream-{name}.ndjson"));
    match std::fs::copy(case.path("s.ndjson"), &to) {
        Ok(_) => format!("its stream is in {}", to.display()),
        Err(_) => "it has no stream".to_owned(),
    }
}

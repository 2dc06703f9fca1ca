//! Streams that other tools make of random workloads, applied: source and target are equal.
//!
//! wal2json is tried where the server has the plugin; Debezium by `make test-debezium`, which
//! fetches it. `PGSPATE_TEST_LONG=300` makes workloads for so many seconds, others every time;
//! `PGSPATE_TEST_SEED=7` begins with those of that seed.

#[allow(dead_code, reason = "the faults of load need more of it")]
#[path = "../faults/chance.rs"]
mod chance;
mod database;
mod debezium;
mod engine;
mod mariadb;
#[path = "../support/run.rs"]
mod run;
mod seeds;
#[allow(dead_code, unused_imports, reason = "the tests of load need more of it")]
#[path = "../load/support.rs"]
mod support;
mod values;
mod variant;
mod wal2json;
mod workload;

use std::time::Duration;

use chance::Chance;
use run::{Run, finish, finish_within, spawn};
use support::Case;

/// Applies the file with settings by chance, killed in some and then run again. The last run.
fn try_in_pieces(case: &Case, chance: &mut Chance, args: &str) -> Run {
    let rows = 1 + chance.below(90);
    let direct = chance.pick(&["0", "1000"]);
    let args = format!("s.ndjson --quiet --batch-rows {rows} --direct-rows {direct} {args}");
    let start = || {
        let mut command = case.command(&["apply", "--to", &case.db.dsn()]);
        spawn(command.args(args.split_whitespace()))
    };
    for _ in 0..chance.below(4) {
        // If it ends before, there was nothing to disturb.
        drop(finish_within(start(), Duration::from_millis(chance.below(400))));
    }
    finish(start())
}

/// The same, which must work.
#[track_caller]
fn apply_in_pieces(case: &Case, chance: &mut Chance, args: &str) {
    let run = try_in_pieces(case, chance, args);
    if run.status != Some(0) {
        let kept = keep(case, "refused");
        panic!("{kept}: {:?} {}{}", run.status, run.stdout, run.stderr);
    }
}

/// Puts the stream where it is not taken away; says where.
fn keep(case: &Case, name: &str) -> String {
    let to = std::env::temp_dir().join(format!("pgspate-stream-{name}.ndjson"));
    match std::fs::copy(case.path("s.ndjson"), &to) {
        Ok(_) => format!("its stream is in {}", to.display()),
        Err(_) => "it has no stream".to_owned(),
    }
}

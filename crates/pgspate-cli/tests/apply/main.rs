//! End-to-end tests of `pgspate apply`: the real command, real files, a real PostgreSQL.

mod all_formats;
mod altered_tables;
mod changed_settings;
mod dead_letters;
mod direct_batches;
mod duplicate_rows;
mod exactly_once;
mod failover;
mod faults;
mod files_of_streams;
mod followed_files;
mod foreign_key_actions;
mod formats;
mod keys;
mod native_subscription;
mod random_history;
mod restored_servers;
mod service;
mod shared_keys;
mod slot_faults;

mod lock_waits;
mod merged_rows;
mod omitted_values;
mod pipelined_batches;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/plan.rs"]
mod plan;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/protocol.rs"]
mod protocol;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/proxy.rs"]
mod proxy;
#[path = "../support/run.rs"]
mod run;
mod slots;
mod snapshots;
mod source;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;
mod tables;
#[path = "../faults/test_random.rs"]
mod test_random;
mod unlogged_tables;

use std::process::Command;

use run::{Run, finish, spawn};
use support::LoadCase;

/// Returns the command `pgspate apply` into the case's database. `args` are split at spaces.
fn command(case: &LoadCase, args: &str) -> Command {
    let mut command = case.command(&["apply", "--to", &case.db.dsn()]);
    command.args(args.split_whitespace());
    command
}

/// Runs `pgspate apply` to its end.
fn apply(case: &LoadCase, args: &str) -> Run {
    finish(spawn(&mut command(case, args)))
}

/// Writes the events to a file and applies the file, which must succeed. Returns the report.
#[track_caller]
fn apply_and_report(case: &LoadCase, events: &str, args: &str) -> serde_json::Value {
    case.put("s.ndjson", events);
    let run = apply(case, &format!("s.ndjson --json --quiet {args}"));
    assert!(matches!(run.status, Some(0 | 1)), "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Returns the report's numbers of inserted, updated, deleted and missing rows.
fn counts(report: &serde_json::Value) -> [u64; 4] {
    ["inserted", "updated", "deleted", "missing"].map(|name| report[name].as_u64().unwrap())
}

/// Returns the rows of a table in one line.
fn rows(case: &LoadCase, table: &str) -> String {
    case.rows(table).join(" ")
}

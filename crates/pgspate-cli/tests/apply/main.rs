//! `pgspate apply` as users meet it: the real command, real files, a real PostgreSQL.

mod alike;
mod back;
mod direct;
mod failover;
mod faults;
mod formats;
mod history;
mod keys;
mod letters;
mod mixed;
mod once;
mod oracle;
mod service;
mod shared_keys;
mod slot_faults;

#[path = "../faults/chance.rs"]
mod chance;
#[allow(dead_code, reason = "the faults of load need more of it")]
#[path = "../faults/plan.rs"]
mod plan;
#[allow(dead_code, reason = "the faults of load need more of it")]
#[path = "../faults/proxy.rs"]
mod proxy;
#[path = "../support/run.rs"]
mod run;
mod slots;
mod snapshots;
mod source;
#[allow(dead_code, unused_imports, reason = "the tests of load need more of it")]
#[path = "../load/support.rs"]
mod support;
mod tables;
mod unchanged;
mod unlogged;
mod waits;
#[allow(dead_code, reason = "the faults of load need more of it")]
#[path = "../faults/wire.rs"]
mod wire;

use std::process::Command;

use run::{Run, finish, spawn};
use support::Case;

/// `pgspate apply` with these arguments, split at spaces, into the case's database.
fn command(case: &Case, args: &str) -> Command {
    let mut command = case.command(&["apply", "--to", &case.db.dsn()]);
    command.args(args.split_whitespace());
    command
}

fn apply(case: &Case, args: &str) -> Run {
    finish(spawn(&mut command(case, args)))
}

/// Puts the events into a file and applies it, which must work. The report.
#[track_caller]
fn applied(case: &Case, events: &str, args: &str) -> serde_json::Value {
    case.put("s.ndjson", events);
    let run = apply(case, &format!("s.ndjson --json --quiet {args}"));
    assert!(matches!(run.status, Some(0 | 1)), "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Inserted, updated, deleted and missing rows, as a report has them.
fn counts(report: &serde_json::Value) -> [u64; 4] {
    ["inserted", "updated", "deleted", "missing"].map(|name| report[name].as_u64().unwrap())
}

/// The rows of a table, in one line.
fn rows(case: &Case, table: &str) -> String {
    case.rows(table).join(" ")
}

//! Tests of the command `pgspate sync`, with real files and a real PostgreSQL server.

mod changes;
mod concurrent_sessions;
mod constant_columns;
mod created_tables;
#[path = "../support/disk.rs"]
mod disk;
mod equal_keys;
mod exchanged_values;
#[path = "../support/lost_key.rs"]
mod lost_key;
mod random_syncs;
mod read_ahead;
mod refused_syncs;
#[path = "../support/run.rs"]
mod run;
mod several_sessions;
mod several_transactions;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;
mod temporary_space;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/test_random.rs"]
mod test_random;
mod types;

use std::process::{Child, Command};

use run::{Run, finish, spawn};
use support::LoadCase;

/// Returns the command `pgspate sync` with `args`, split at spaces, into the case's database.
fn command(case: &LoadCase, args: &str) -> Command {
    let mut command = case.command(&["sync", "--to", &case.db.dsn()]);
    command.args(args.split_whitespace());
    command
}

/// Runs `pgspate sync` to its end.
fn sync(case: &LoadCase, args: &str) -> Run {
    finish(spawn(&mut command(case, args)))
}

/// Runs a sync. Returns the numbers of inserted, updated, deleted and unchanged rows.
fn counts(case: &LoadCase, args: &str) -> [u64; 4] {
    let run = sync(case, &format!("{args} --json --quiet"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    ["inserted", "updated", "deleted", "unchanged"].map(|name| report[name].as_u64().unwrap())
}

/// Sends SIGINT, like Ctrl-C.
fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
}

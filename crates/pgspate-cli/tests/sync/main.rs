//! `pgspate sync` as users meet it: the real command, real files, a real PostgreSQL.

mod ahead;
#[allow(dead_code, reason = "the tests of faults need more of it")]
#[path = "../faults/chance.rs"]
mod chance;
mod changes;
mod concurrent;
#[path = "../support/disk.rs"]
mod disk;
mod equal_keys;
mod exchange;
mod random;
mod refused;
#[path = "../support/run.rs"]
mod run;
mod shares;
mod space;
#[allow(dead_code, unused_imports, reason = "the tests of load need more of it")]
#[path = "../load/support.rs"]
mod support;
mod turns;
mod types;

use std::process::{Child, Command};

use run::{Run, finish, spawn};
use support::LoadCase;

/// `pgspate sync` with these arguments, split at spaces, into the case's database.
fn command(case: &LoadCase, args: &str) -> Command {
    let mut command = case.command(&["sync", "--to", &case.db.dsn()]);
    command.args(args.split_whitespace());
    command
}

fn sync(case: &LoadCase, args: &str) -> Run {
    finish(spawn(&mut command(case, args)))
}

/// Inserted, updated, deleted and unchanged rows, as the report has them.
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

//! `pgspate doctor` and `pgspate tune` as users meet them: each check on a server that was brought
//! into the bad state for real, and silent after its own remedy.

mod busy;
mod counted;
mod flavours;
mod held;
mod io;
mod picture;
mod rights;
#[path = "../support/run.rs"]
mod run;
mod scope;
mod server;
#[allow(dead_code, unused_imports, reason = "the tests of load need more of it")]
#[path = "../load/support.rs"]
mod support;
mod tables;
mod temp;
mod tune;
mod waits;
mod words;

use run::{Run, command, finish, spawn, wait_until};
use serde_json::Value;

/// `pgspate doctor` with these arguments, split at spaces.
fn doctor(dsn: &str, args: &str) -> Run {
    let folder = std::env::temp_dir();
    let mut command = command(&folder, &["doctor", "--to", dsn]);
    finish(spawn(command.args(args.split_whitespace())))
}

/// What was found by a check, with everything that it looked at.
#[track_caller]
fn findings(dsn: &str, id: &str, args: &str) -> Vec<Value> {
    let watch = if args.contains("--watch") { "" } else { "--watch 100ms" };
    let run = doctor(dsn, &format!("--json {watch} {args}"));
    assert!(matches!(run.status, Some(0 | 1)), "{}", run.stderr);
    let found: Value = serde_json::from_str(&run.stdout).unwrap();
    let findings = found["findings"].as_array().unwrap().clone();
    let found: Vec<Value> = findings.into_iter().filter(|it| it["id"] == id).collect();
    for finding in &found {
        assert!(!finding["evidence"].as_str().unwrap().is_empty(), "{finding}");
        assert!(!finding["question"].as_str().unwrap().is_empty(), "{finding}");
        assert!(!finding["rule"].as_str().unwrap().is_empty(), "{finding}");
    }
    found
}

/// Those of a check that are trouble.
#[track_caller]
fn trouble(dsn: &str, id: &str, args: &str) -> Vec<Value> {
    let mut found = findings(dsn, id, args);
    found.retain(|it| it["verdict"] == "warning" || it["verdict"] == "note");
    found
}

/// What a check finds, as soon as the server's statistics know of it.
#[track_caller]
fn found(dsn: &str, id: &str, args: &str) -> Value {
    let mut all = Vec::new();
    wait_until(&format!("{id} finds something"), || {
        all = trouble(dsn, id, args);
        !all.is_empty()
    });
    all.swap_remove(0)
}

/// Waits until a check finds nothing.
#[track_caller]
fn silent(dsn: &str, id: &str, args: &str) {
    wait_until(&format!("{id} finds nothing"), || trouble(dsn, id, args).is_empty());
}

/// The statements of a finding.
fn remedy(finding: &Value) -> Vec<String> {
    let lines = finding["remedy"].as_array().unwrap().iter();
    lines.map(|line| line.as_str().unwrap().to_owned()).collect()
}

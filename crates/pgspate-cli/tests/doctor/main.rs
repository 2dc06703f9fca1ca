//! `pgspate doctor` and `pgspate tune` as users meet them. Each check runs on a server that really
//! is in the bad state, and finds nothing after its own remedy.

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

/// Runs `pgspate doctor`. `args` are split at spaces.
fn doctor(dsn: &str, args: &str) -> Run {
    let folder = std::env::temp_dir();
    let mut command = command(&folder, &["doctor", "--to", dsn]);
    finish(spawn(command.args(args.split_whitespace())))
}

/// Returns all findings of a check, also those that are no trouble.
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

/// Returns the findings of a check that are trouble.
#[track_caller]
fn trouble(dsn: &str, id: &str, args: &str) -> Vec<Value> {
    let mut found = findings(dsn, id, args);
    found.retain(|it| it["verdict"] == "warning" || it["verdict"] == "note");
    found
}

/// Returns the finding of a check, once the server's statistics show the problem.
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

/// Returns the statements of a finding's remedy.
fn remedy(finding: &Value) -> Vec<String> {
    let lines = finding["remedy"].as_array().unwrap().iter();
    lines.map(|line| line.as_str().unwrap().to_owned()).collect()
}

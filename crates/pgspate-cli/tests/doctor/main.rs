//! End-to-end tests of `pgspate doctor` and `pgspate tune`. Each check runs on a server in the bad
//! state, and finds nothing after its own remedy.

mod busy_session;
mod counter_age;
mod examined_tables;
mod false_alarms;
mod held_back;
mod io_checks;
#[path = "../support/lost_key.rs"]
mod lost_key;
mod picture;
mod privileges;
mod providers;
mod report_text;
#[path = "../support/run.rs"]
mod run;
mod server_checks;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;
mod table_checks;
mod temporary_files;
mod tune;
mod wait_checks;

use run::{Run, command, finish, spawn, wait_until};
use serde_json::Value;

/// Runs `pgspate doctor`. `args` are split at spaces.
fn doctor(dsn: &str, args: &str) -> Run {
    let folder = std::env::temp_dir();
    let mut command = command(&folder, &["doctor", "--to", dsn]);
    finish(spawn(command.args(args.split_whitespace())))
}

/// Returns all findings of a check, also findings that need no action.
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

/// Returns the warnings and notes of a check.
#[track_caller]
fn warnings_and_notes(dsn: &str, id: &str, args: &str) -> Vec<Value> {
    let mut found = findings(dsn, id, args);
    found.retain(|it| it["verdict"] == "warning" || it["verdict"] == "note");
    found
}

/// Waits until a check has a warning or note. Returns the first of them.
#[track_caller]
fn wait_for_finding(dsn: &str, id: &str, args: &str) -> Value {
    let mut all = Vec::new();
    wait_until(&format!("check {id} has a warning or note"), || {
        all = warnings_and_notes(dsn, id, args);
        !all.is_empty()
    });
    all.swap_remove(0)
}

/// Waits until a check has no warning and no note.
#[track_caller]
fn expect_no_finding(dsn: &str, id: &str, args: &str) {
    wait_until(&format!("check {id} has no warning and no note"), || {
        warnings_and_notes(dsn, id, args).is_empty()
    });
}

/// Returns the statements of a finding's remedy.
fn remedy(finding: &Value) -> Vec<String> {
    let lines = finding["remedy"].as_array().unwrap().iter();
    lines.map(|line| line.as_str().unwrap().to_owned()).collect()
}

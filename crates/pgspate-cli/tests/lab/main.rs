//! Tests of the command `pgspate lab`: the list, interrupted runs, and the report page.

mod data;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../support/run.rs"]
mod run;
mod served;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use insta::assert_snapshot;
use run::{Run, command, finish, spawn, wait_until};
use serde_json::Value;

/// Starts `pgspate lab`. `args` are split at spaces.
fn start(folder: &Path, args: &str) -> Child {
    start_with(folder, &args.split_whitespace().collect::<Vec<_>>())
}

/// Starts `pgspate lab` with arguments that may have spaces.
fn start_with(folder: &Path, args: &[&str]) -> Child {
    let mut command = command(folder, &["lab"]);
    // The lab's servers must have the PostgreSQL version that the tests use.
    for name in ["PGSPATE_PG_BIN", "TMPDIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    spawn(command.args(args))
}

/// Runs `pgspate lab` to its end.
fn lab(folder: &Path, args: &str) -> Run {
    finish(start(folder, args))
}

/// Returns the lines of results so far.
fn result_lines(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("pgspate-lab/results.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until `count` trials are measured, then sends a signal.
#[track_caller]
fn interrupt(child: &Child, folder: &Path, count: usize, signal: &str) {
    wait_until("trials are measured", || result_lines(folder).len() >= count);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

/// The arguments of a run of four trials.
const RUN_ARGS: &str = "run storage --scale 0.00002 --repeats 1 --only strategy=pgspate";

#[test]
fn the_same_command_continues_a_stopped_or_killed_run() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let child = start(folder, RUN_ARGS);
    interrupt(&child, folder, 1, "-INT");
    let stopped = finish(child);
    assert_eq!(stopped.status, Some(130), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("cleaning up; press Ctrl-C again"), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("error: stopped; "), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("Run the same command again"), "{}", stopped.stderr);
    let left: Vec<_> = fs::read_dir(folder.join("pgspate-lab")).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "only the results may be left: {left:?}");
    let first = result_lines(folder);
    let child = start(folder, RUN_ARGS);
    interrupt(&child, folder, first.len() + 1, "-KILL");
    assert_eq!(finish(child).status, None);
    let done = lab(folder, RUN_ARGS);
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    assert_eq!(done.stdout, "storage, scale 0.00002: Too little is measured to compare.\n");
    // stderr is not a terminal, so each trial has its own line.
    assert!(done.stderr.contains("storage  trial 4 of 4  "), "{}", done.stderr);
    let all = result_lines(folder);
    assert_eq!(all[..first.len()], first);
    let trials: BTreeSet<String> = all.iter().map(|line| line["trial"].to_string()).collect();
    assert_eq!((all.len(), trials.len()), (4, 4));
    let again = lab(folder, &format!("{RUN_ARGS} --json"));
    let json: Value = serde_json::from_str(&again.stdout).unwrap();
    // Where I/O cannot be throttled, the skipped trials are checked again.
    let skipped = all.iter().filter(|line| line.get("skipped").is_some()).count();
    assert_eq!(json["summary"]["before"], 4 - skipped);
    assert_eq!(json["summary"]["measured"], 0);
    assert_eq!(json["summary"]["skipped"].as_array().unwrap().len(), skipped);
    assert_eq!(json["experiments"][0]["experiment"], "storage");
    let quiet = lab(folder, &format!("{RUN_ARGS} --quiet"));
    assert_eq!((quiet.status, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(0), "", ""));
    assert_eq!(result_lines(folder), all);
    check_report_page(folder);
}

/// Writes the report page and checks it.
fn check_report_page(folder: &Path) {
    let report = lab(folder, "report --out page.html");
    assert_eq!(report.status, Some(0), "{}", report.stderr);
    assert_eq!(report.stderr, "wrote 4 trials to page.html\n");
    let page = fs::read_to_string(folder.join("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("pgspate lab run storage"));
    assert!(page.contains(" --only strategy=pgspate"));
    // The page links to publications, and loads nothing from the network.
    assert!(page.contains("storage · <b>scale 0.00002</b>"));
    for loads in ["src=\"http", "url(", "<script", "<link", "@import"] {
        assert!(!page.contains(loads), "{loads}");
    }
    let other = lab(folder, "run storage --scale 0.00003 --repeats 1");
    assert_eq!(other.status, Some(2));
    assert_snapshot!(other.stderr, @r#"
    error: results of storage in "pgspate-lab" are of another scale: 0.00002, not 0.00003

    hint: Give another folder with `--results`, or discard the earlier results with `--fresh`.
    "#);
}

#[test]
fn every_experiment_is_listed_with_its_question() {
    let temp = tempfile::tempdir().unwrap();
    let list = lab(temp.path(), "list --json");
    assert_eq!((list.status, list.stderr.as_str()), (Some(0), ""));
    let all: Value = serde_json::from_str(&list.stdout).unwrap();
    let all = all.as_array().unwrap();
    let names: Vec<&str> = all.iter().map(|it| it["name"].as_str().unwrap()).collect();
    for name in ["bulk", "rewrite", "changes", "temp", "records", "callers", "storage"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let text = lab(temp.path(), "list --scale 0.5").stdout;
    for it in all {
        assert!(
            it["trials"].as_u64().unwrap() > 1 && it["seconds_each_repeat"].as_f64() > Some(0.0)
        );
        assert!(text.contains(it["name"].as_str().unwrap()));
    }
    assert!(text.contains("for each repetition at scale 0.5"), "{text}");
    assert_eq!(text.matches("--data: imdb, tpch, or files of your own").count(), 2, "{text}");
    assert!(fs::read_dir(temp.path()).unwrap().next().is_none(), "`lab list` must write no file");
}

#[test]
fn errors_name_unknown_experiments_and_missing_results() {
    let temp = tempfile::tempdir().unwrap();
    let unknown = lab(temp.path(), "run bulky");
    assert_eq!(unknown.status, Some(2));
    let hint = "Did you mean \"bulk\"? The experiments are bulk, rewrite, changes, temp, records, \
                callers, storage. `all` runs them all.";
    let error = format!("error: there is no experiment \"bulky\"\n\nhint: {hint}\n");
    assert_eq!(unknown.stderr, error);
    let nothing = lab(temp.path(), "report");
    assert_eq!(nothing.status, Some(2));
    assert_snapshot!(nothing.stderr, @r#"
    error: there are no results in "pgspate-lab"

    hint: Measure first with `pgspate lab run bulk`, or name the folder with `--results`.
    "#);
    for wrong in
        ["run bulk --repeats 0", "run bulk --only x", "run bulk --scale 0", "run", "list bulk"]
    {
        assert_eq!(lab(temp.path(), wrong).status, Some(2), "{wrong}");
    }
    assert!(fs::read_dir(temp.path()).unwrap().next().is_none());
}

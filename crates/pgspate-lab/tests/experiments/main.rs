//! The experiments about repeated writes, from the run to the report page.
//!
//! A run fails if contenders leave different rows, so a successful run shows that all contenders
//! did the same work. Trials without server settings run on the tests' server. The other trials run
//! on the lab's server.

use std::path::Path;

use pgspate::target::connect::{Dsn, Environment};
use pgspate_embedded::{silent, testing};
use pgspate_lab::{LabOptions, ResultLine, RunStop, experiments, read, report};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The server on which an experiment runs.
enum TrialServer<'a> {
    LabServer,
    Server(&'a testing::TestDb),
}

/// Runs some trials of an experiment once, at a tiny scale. Returns the folder of results, and the
/// lines of results.
fn run_trials(
    name: &str,
    scale: f64,
    on: &TrialServer<'_>,
    only: &[(&str, &str)],
) -> (TempDir, Vec<ResultLine>) {
    let folder = tempfile::tempdir().unwrap();
    let owned = |(factor, level): &(&str, &str)| ((*factor).to_owned(), (*level).to_owned());
    let dsn = |dsn: String| Dsn::resolve(Some(&dsn), &Environment::default()).unwrap();
    let options = LabOptions {
        experiments: vec![experiments::find(name).unwrap()],
        only: only.iter().map(owned).collect(),
        data: Vec::new(),
        scale: Some(scale),
        repeats: 1,
        seed: 7,
        folder: folder.path().to_owned(),
        to: match on {
            TrialServer::LabServer => None,
            TrialServer::Server(database) => dsn(database.dsn()),
        },
        installation: Some(testing::installation(&silent).unwrap()),
        fresh: false,
        program: None,
    };
    let runtime = Runtime::new().unwrap();
    let ended = pgspate_lab::run(&options, runtime.handle(), &RunStop::default(), &|_| {});
    ended.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let lines = read(folder.path()).unwrap();
    (folder, lines)
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// Returns the result line of the trial with these levels.
fn line_of_trial<'a>(lines: &'a [ResultLine], levels: &[(&str, &str)]) -> &'a ResultLine {
    let is_it =
        |line: &&ResultLine| levels.iter().all(|(factor, level)| line.trial.is(factor, level));
    lines.iter().find(is_it).unwrap_or_else(|| panic!("no trial has {levels:?}"))
}

/// Returns a number of the trial with these levels.
fn number_of_trial(lines: &[ResultLine], levels: &[(&str, &str)], name: &str) -> f64 {
    let line = line_of_trial(lines, levels);
    line.value(name).unwrap_or_else(|| panic!("{} has no {name}", line.trial.label()))
}

/// Writes the report page. The page must have these texts, and an answer with numbers.
fn check_report_page(folder: &Path, has: &[&str]) {
    let out = folder.join("report.html");
    report::write(&experiments::ALL, folder, &out).unwrap();
    let html = std::fs::read_to_string(out).unwrap();
    let answer = html.split("<p class=\"answer\">").nth(1).unwrap();
    let answer = answer.split("</p>").next().unwrap();
    assert!(answer.ends_with('.') && answer.contains(|c: char| c.is_ascii_digit()), "{answer}");
    for text in has {
        assert!(html.contains(text), "the page has no \"{text}\"");
    }
    assert!(!html.contains("NaN") && !html.contains("–.") && !answer.contains(" – "), "{answer}");
}

fn skips_merge(database: &testing::TestDb) -> bool {
    let version = database.query("select current_setting('server_version_num')::int < 150000");
    version[0][0].as_deref() == Some("t")
}

#[test]
fn nightly_rewrites_leave_the_same_rows_and_different_numbers_of_dead_rows() {
    let database = testing::database();
    let on = TrialServer::Server(&database);
    let (folder, lines) = run_trials("rewrite", 0.001, &on, &[("autovacuum", "off")]);
    assert_eq!(lines.len(), 8);
    // The table has 300 rows. A night rewrites all rows, or changes only the 45 and 129 rows that
    // differ.
    let dead = |way: &str| number_of_trial(&lines, &[("contender", way)], "dead rows");
    assert!(dead("delete + insert") >= 2500.0, "{}", dead("delete + insert"));
    let what_differs = [
        "row by row, what differs",
        "pgspate sync",
        "pgspate sync, fillfactor 60",
        "pgspate sync --lanes 2",
    ];
    for way in what_differs {
        assert!(dead(way) <= 1740.0, "{way}: {}", dead(way));
    }
    assert_eq!(dead("pgspate sync --vacuum, 2 turns"), 0.0);
    for line in lines.iter().filter(|line| line.skipped.is_none()) {
        assert_eq!(line.value("rows"), Some(300.0));
        let nights = line.outcome.series.iter().find(|series| series.name == "dead rows");
        assert_eq!(nights.unwrap().points.len(), 10, "{}", line.trial.label());
    }
    let merge = line_of_trial(&lines, &[("contender", "stage + MERGE")]);
    assert_eq!(merge.skipped.is_some(), skips_merge(&database));
    check_report_page(
        folder.path(),
        &["Time of ten nights", "Dead rows after each night", "svg+xml"],
    );
    // The lab has left no schema.
    let left = database.query("select nspname from pg_namespace where nspname like 'pgspate%'");
    assert_eq!(left, Vec::<Vec<Option<String>>>::new());
}

#[test]
fn autovacuum_removes_dead_rows_between_the_nights() {
    let only = [("contender", "delete + insert")];
    let (folder, lines) = run_trials("rewrite", 0.005, &TrialServer::LabServer, &only);
    let dead = |level: &str| number_of_trial(&lines, &[("autovacuum", level)], "dead rows");
    // Each night rewrites 1,500 rows.
    assert!(dead("off") >= 14_000.0, "{}", dead("off"));
    assert!(dead("on") <= 2_000.0, "{}", dead("on"));
    let written = number_of_trial(&lines, &[("autovacuum", "off")], "pages written");
    assert!(written > 10.0, "{written}");
    // Each run has ten pictures. Without autovacuum, the pictures show that the table grows.
    let rows_of_cells = |level: &str, night: u32| {
        let name = format!("pictures/rewrite-delete-insert-{level}-heap-{night:02}.svg");
        let svg = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let free = svg.split("class=\"free\" d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert!(svg.contains("class=\"live\" d=\"M0"), "{svg}");
        free.matches('M').count()
    };
    let off = [1, 10].map(|night| rows_of_cells("off", night));
    assert!(off[0] < off[1], "{off:?}");
    assert!((2..10).all(|night| rows_of_cells("on", night) < off[1]));
    let out = folder.path().join("report.html");
    report::write(&experiments::ALL, folder.path(), &out).unwrap();
    let html = std::fs::read_to_string(out).unwrap();
    for text in ["night by night", "delete + insert, with autovacuum: "] {
        assert!(html.contains(text), "the page has no \"{text}\"");
    }
    assert_eq!(html.matches("<span>10</span>").count(), 2);
}

#[test]
fn changes_leave_the_same_rows_for_every_contender_and_batch_size() {
    let database = testing::database();
    database.run("create schema pgspate_other; create table pgspate_other.t (id int)");
    let (folder, lines) = run_trials("changes", 0.001, &TrialServer::Server(&database), &[]);
    // The contender "pipelined statements" has no trials with the batch size 1.
    assert_eq!(lines.len(), 35);
    let transactions = |way: &str, batch: &str| {
        number_of_trial(&lines, &[("contender", way), ("batch", batch)], "transactions")
    };
    assert_eq!(transactions("prepared statements", "1"), 20.0);
    assert_eq!(transactions("UNNEST of arrays", "100"), 5.0);
    assert_eq!(transactions("pgspate apply", "100"), 5.0);
    assert_eq!(transactions("multi-row VALUES", "100000"), 1.0);
    assert_eq!(transactions("pipelined statements", "100"), 2.0);
    assert_eq!(transactions("COPY + stage", "1"), 20.0);
    check_report_page(folder.path(), &["Events a second by batch size", "UNNEST of arrays"]);
    let left = database.query("select nspname from pg_namespace where nspname like 'pgspate%'");
    assert_eq!(left, [[Some("pgspate_other".to_owned())]]);
}

#[test]
fn changes_are_applied_on_the_labs_own_server() {
    let only = [("batch", "100"), ("contender", "COPY + stage"), ("contender", "pgspate apply")];
    let (folder, lines) = run_trials("changes", 0.001, &TrialServer::LabServer, &only);
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.value("transactions") == Some(5.0)), "{lines:?}");
    check_report_page(folder.path(), &["COPY + stage"]);
}

#[test]
fn many_clients_sort_in_each_temporary_space() {
    let only = [("query", "order by"), ("clients", "20")];
    let (folder, lines) = run_trials("temp", 0.0002, &TrialServer::LabServer, &only);
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.value("temp bytes").unwrap() > 0.0));
    report::write(&experiments::ALL, folder.path(), &folder.path().join("report.html")).unwrap();
}

#[test]
fn a_session_without_temporary_space_fails_and_others_continue() {
    let only = [("clients", "8"), ("query", "create temp table as"), ("query", "select distinct")];
    let (folder, lines) = run_trials("temp", 0.0005, &TrialServer::LabServer, &only);
    assert_eq!(lines.len(), 6);
    let small = "a quarter of the table";
    let ended = line_of_trial(&lines, &[("temp_file_limit", small)]);
    assert!(ended.value("failed").unwrap() >= 1.0);
    let note = &ended.outcome.notes[0];
    assert!(note.contains("temporary file size exceeds"), "{note}");
    assert!(note.contains("SQLSTATE 53400"), "{note}");
    let spilt = |work_mem: &str| {
        let levels = [
            ("query", "select distinct"),
            ("work_mem", work_mem),
            ("temp space", "data folder"),
            ("temp_file_limit", "none"),
        ];
        number_of_trial(&lines, &levels, "temp bytes")
    };
    assert!(spilt("a sixteenth of the table") > 100_000.0);
    assert_eq!(spilt("twice the table"), 0.0);
    let elsewhere = line_of_trial(&lines, &[("temp space", "tablespace")]);
    assert!(elsewhere.outcome.notes[0].starts_with("The"), "{:?}", elsewhere.outcome.notes);
    check_report_page(folder.path(), &["Throughput by clients", "When temporary space runs out"]);
}

#[test]
fn every_way_of_writing_records_leaves_the_same_rows() {
    let database = testing::database();
    let (folder, lines) = run_trials("records", 0.00002, &TrialServer::Server(&database), &[]);
    assert_eq!(lines.len(), 13);
    for line in &lines {
        let single = line.trial.is("writing", "single inserts");
        // At the largest size, the table begins with 600 rows. The trial writes the other rows.
        let rows = if single { 610.0 } else { 650.0 };
        assert_eq!(line.value("rows"), Some(rows), "{}", line.trial.label());
        let queries = line.outcome.series.iter().filter(|series| series.name != "rows a second");
        assert_eq!(queries.count(), if single { 4 } else { 0 });
    }
    check_report_page(
        folder.path(),
        &["Rows a second as tables grow", "without reference", "partitioned"],
    );
}

#[test]
fn callers_are_answered_when_their_records_are_in_the_table() {
    let only = [
        ("table", "account"),
        ("callers", "1"),
        ("callers", "16"),
        ("round trip", "1 ms round trip"),
        ("flush", "flush as it is"),
    ];
    let (folder, lines) = run_trials("callers", 0.00001, &TrialServer::LabServer, &only);
    let (lines, skipped): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line.skipped.is_none());
    // A session for each caller, a batcher and the writer, each with 1 and 16 callers.
    assert_eq!(lines.len(), 6);
    // Without the program, nothing can be sent to it. The tests of the command have it.
    assert_eq!(skipped.len(), 4);
    let rate = |line: &ResultLine| line.value("records a second").unwrap();
    // On a busy machine no call may end in the measured part of a trial.
    assert!(lines.iter().any(|line| rate(line) > 0.0));
    for line in &lines {
        let calls = line.value("calls").unwrap();
        assert!(calls >= 1.0, "{}: {calls}", line.trial.label());
        if rate(line) > 0.0 {
            // The proxy delays each answer.
            let wait = line.value("median wait").unwrap();
            assert!(wait >= 1.0, "{}: {wait} ms", line.trial.label());
        }
    }
    check_report_page(folder.path(), &["Records a second into account", "a batch every 5 ms"]);
}

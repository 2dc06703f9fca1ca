//! Files that are followed: files that are replaced, cut, or read again after a restart.

use std::process::Child;

use insta::assert_snapshot;

use crate::run::{ask, wait_until};
use crate::support::LoadCase;
use crate::{apply, apply_and_report, command, finish, spawn};

fn case() -> LoadCase {
    LoadCase::new("create table t (id int primary key)")
}

/// Returns events that insert rows with these ids.
fn inserts(ids: std::ops::Range<u32>) -> String {
    let insert = |id| format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id}}}}}\n");
    ids.map(insert).collect()
}

/// Starts to follow `s.ndjson`, and waits until its events are applied.
fn follow(case: &LoadCase, events: u64) -> Child {
    let child = spawn(&mut command(case, "s.ndjson --follow --quiet"));
    wait_for_events(case, events);
    child
}

fn wait_for_events(case: &LoadCase, events: u64) {
    wait_until("the events are applied", || {
        case.value("select to_regclass('pgspate.stream') is not null") == "t"
            && case.value("select coalesce(max(ordinal), 0) from pgspate.stream")
                == events.to_string()
    });
}

/// Log rotation renames the file and creates a new one. The events of the new file are not taken
/// for the applied events.
#[test]
fn a_rotated_file_is_not_taken_for_the_applied_file() {
    let case = case();
    case.put("s.ndjson", inserts(0..9));
    let child = follow(&case, 9);
    std::fs::rename(case.path("s.ndjson"), case.path("s.ndjson.1")).unwrap();
    case.put("s.ndjson", inserts(9..12));
    assert_snapshot!(finish(child).refusal(), @r#"
    error: "s.ndjson" was replaced by another file

    hint: To continue, name the same files, the old file under the name that it has now,
          … and then the new file, with `--stream '[DIR]/s.ndjson'`. 9 events of this run
          … are committed, 9 of the stream; the next run continues after them.
    "#);
    let again = || apply(&case, "s.ndjson --follow --quiet").refusal();
    assert_snapshot!(again(), @"
    error: the input has 3 events, but 9 of the stream are applied already

    hint: Name all files of the stream in their order, or give these files a stream of
          … their own with `--stream NAME`.
    ");
    case.put("s.ndjson", "");
    assert_snapshot!(again(), @"
    error: the input has 0 events, but 9 of the stream are applied already

    hint: Name all files of the stream in their order, or give these files a stream of
          … their own with `--stream NAME`.
    ");
    // With the rotated file before the new file, the stream continues.
    case.put("s.ndjson", inserts(9..14));
    let stream = case.path("s.ndjson").canonicalize().unwrap();
    let args = format!("s.ndjson.1 s.ndjson --stream {} --quiet", stream.display());
    let run = apply(&case, &args);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from t"), "14");
}

/// `copytruncate` empties the file in place.
#[test]
fn a_file_that_is_cut_while_it_is_followed_is_refused() {
    let case = case();
    case.put("s.ndjson", "");
    let child = spawn(&mut command(&case, "s.ndjson --follow --quiet"));
    let mut file = std::fs::OpenOptions::new().append(true).open(case.path("s.ndjson")).unwrap();
    std::io::Write::write_all(&mut file, inserts(0..9).as_bytes()).unwrap();
    wait_for_events(&case, 9);
    file.set_len(0).unwrap();
    assert_snapshot!(finish(child).refusal(), @r#"
    error: "s.ndjson" was cut to 0 of 387 bytes while it was being read
      at: s.ndjson

    hint: The file may only grow while it is read. Let log rotation rename it and create a
          … new file, instead of `copytruncate`. 9 events of this run are committed, 9 of
          … the stream; the next run continues after them.
    "#);
    assert_eq!(case.value("select count(*) from t"), "9");
}

/// The last applied line had no end when the file was applied without `--follow`.
#[test]
fn a_file_whose_last_line_has_no_end_is_followed() {
    let case = case();
    let events = inserts(0..3);
    apply_and_report(&case, events.trim_end(), "");
    let child = spawn(&mut command(&case, "s.ndjson --follow --quiet"));
    let mut file = std::fs::OpenOptions::new().append(true).open(case.path("s.ndjson")).unwrap();
    std::io::Write::write_all(&mut file, format!("\n{}", inserts(3..5)).as_bytes()).unwrap();
    wait_for_events(&case, 5);
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(finish(child).status, Some(0));
    assert_eq!(ask(&case.db.dsn(), "select count(*) from t"), "5");
}

/// wal2json writes transactions without events. The position may be after such a transaction.
#[test]
fn a_transaction_without_events_at_the_end_is_read_again() {
    let case = case();
    let transaction = |id: u32| {
        let row = format!(r#"[{{"name":"id","type":"integer","value":{id}}}]"#);
        let insert = format!(r#"{{"action":"I","schema":"public","table":"t","columns":{row}}}"#);
        format!("{{\"action\":\"B\"}}\n{insert}\n{{\"action\":\"C\"}}\n")
    };
    let empty = "{\"action\":\"B\"}\n{\"action\":\"C\"}\n";
    let mut events = transaction(1) + empty;
    for count in [1, 0] {
        assert_eq!(apply_and_report(&case, &events, "")["events"], count);
    }
    events += &transaction(2);
    assert_eq!(apply_and_report(&case, &events, "")["events"], 1);
    assert_eq!(case.value("select count(*) from t"), "2");
    // Other events under the stream's name are refused as before.
    let other = transaction(7) + empty + &transaction(2) + &transaction(3);
    case.put("s.ndjson", other);
    let refusal = apply(&case, "s.ndjson --quiet").refusal();
    assert!(refusal.contains("its first 2 events differ"), "{refusal}");
}

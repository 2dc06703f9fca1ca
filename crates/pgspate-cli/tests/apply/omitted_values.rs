//! Unchanged values that a source omits. The target keeps its value, or pgspate refuses the event.
//! An omitted value never becomes NULL.

use std::io::Write as _;

use crate::run::wait_until;
use crate::support::LoadCase;
use crate::{apply, apply_and_report, command, counts, finish, rows, spawn};

const UNAVAILABLE: &str = "\"__debezium_unavailable_value\"";

/// Returns a case whose table has three rows with large values.
fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id int primary key, v int, note text)");
    case.db.run("insert into t select id, id, 'large ' || id from generate_series(1, 3) id");
    case
}

fn row(id: u32, v: &str, note: &str) -> String {
    format!(r#"{{"id":{id},"v":{v},"note":{note}}}"#)
}

/// Returns a Debezium event.
fn envelope(op: &str, before: &str, after: &str, lsn: u32) -> String {
    let source = format!(
        r#"{{"connector":"postgresql","db":"d","schema":"public","table":"t","lsn":{lsn}}}"#
    );
    format!(r#"{{"before":{before},"after":{after},"source":{source},"op":"{op}"}}"#) + "\n"
}

/// Returns Debezium's two records of a key change, without headers.
fn key_change(from: u32, to: u32) -> [String; 2] {
    let delete = envelope("d", &row(from, "null", "null"), "null", from);
    [delete + "null\n", envelope("c", "null", &row(to, &to.to_string(), UNAVAILABLE), from)]
}

#[test]
fn a_delete_and_an_insert_without_headers_are_one_change() {
    for args in ["", "--batch-rows 1 --batch-delay 0", "--direct-rows 0"] {
        let case = case();
        let events: String =
            [key_change(1, 11), key_change(2, 1), key_change(11, 12)].concat().concat();
        let report = apply_and_report(&case, &events, args);
        assert_eq!((&report["events"], &report["missing"]), (&6.into(), &0.into()));
        assert_eq!(rows(&case, "t"), "(1,1,\"large 2\") (12,12,\"large 1\") (3,3,\"large 3\")");
        // The next run reads the same events again, and then two new events.
        let more = events + &key_change(3, 4).concat();
        assert_eq!(apply_and_report(&case, &more, args)["events"], 2);
        assert_eq!(case.value("select note from t where id = 4"), "large 3");
    }
}

/// The delete is larger than two batches. It waits for its insert across the line between them.
#[test]
fn a_large_delete_is_half_of_a_key_change() {
    let case = case();
    let [delete, insert] = key_change(1, 11);
    let large = format!("\"note\":\"{}\"", "x".repeat(3 << 20));
    let events = delete.replacen("\"note\":null", &large, 1) + &insert;
    let report = apply_and_report(&case, &events, "--batch-bytes 1");
    assert_eq!((&report["events"], &report["missing"]), (&2.into(), &0.into()));
    assert_eq!(case.value("select note from t where id = 11"), "large 1");
}

/// The delete is committed before the insert arrives. The deleted row's values are lost.
#[test]
fn a_key_change_split_between_two_runs_invents_no_values() {
    let case = case();
    let [delete, insert] = key_change(1, 11);
    apply_and_report(&case, &delete, "");
    assert_eq!(case.value("select count(*) from t"), "2");
    case.put("s.ndjson", delete.clone() + &insert);
    let refusal = apply(&case, "s.ndjson --quiet").refusal();
    assert!(refusal.contains("only that row had the values"), "{refusal}");
    assert!(refusal.contains("at: s.ndjson, line 3"), "{refusal}");
    let report = apply_and_report(&case, &(delete + &insert), "--max-dead-letters 1");
    assert_eq!((&report["dead_letters"], counts(&report)), (&1.into(), [0, 0, 0, 0]));
    assert_eq!(case.value("select count(*) from t"), "2");
    let payload = case.value("select payload from pgspate.dead_letter");
    assert!(payload.contains(r#""row":{"id":"11","v":"11"},"unchanged":["note"]"#), "{payload}");
    // The uncorrected dead letter is refused again, without invented values.
    let report = apply_and_report(&case, &(payload.clone() + "\n"), "--stream unmended");
    assert_eq!(counts(&report), [0, 0, 0, 1]);
    let mended = payload.replace(r#"},"unchanged":["note"]"#, r#","note":"large 1"}"#);
    apply_and_report(&case, &(mended + "\n"), "--stream mended");
    assert_eq!(case.value("select note from t where id = 11"), "large 1");
}

/// The second half of a key change is refused. The next run applies both halves.
#[test]
fn a_refused_key_change_is_applied_when_the_target_takes_it() {
    let case = case();
    let insert = envelope("c", "null", &row(9, "9", "null"), 8);
    let [delete, second] = key_change(1, 11);
    let second = second.replace("\"v\":11", "\"v\":11,\"x\":1");
    case.put("s.ndjson", insert + &delete + &second);
    let refusal = apply(&case, "s.ndjson --quiet").refusal();
    assert!(refusal.contains("column \"x\"") && refusal.contains("line 4"), "{refusal}");
    assert_eq!(case.value("select string_agg(id::text, ' ' order by id) from t"), "1 2 3 9");
    case.db.run("alter table t add x int");
    let run = apply(&case, "s.ndjson --quiet");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let kept = case.value("select (id, v, note, x)::text from t where id in (1, 11)");
    assert_eq!(kept, "(11,11,\"large 1\",1)");
}

#[test]
fn an_insert_with_omitted_values_is_refused() {
    let insert = envelope("c", "null", &row(9, "9", UNAVAILABLE), 1);
    let snapshot = envelope("r", "null", &row(9, "9", UNAVAILABLE), 1);
    let flat = r#"{"id":9,"v":9,"note":UNAVAILABLE,"__op":"c","__schema":"public","__table":"t"}"#;
    let flat = flat.replace("UNAVAILABLE", UNAVAILABLE) + "\n";
    // The deleted key 1 may have nothing to do with the insert of key 9.
    let pair = r#"{"key":{"id":1},"value":null}"#.to_owned()
        + "\n{\"key\":{\"id\":9},\"value\":"
        + flat.trim_end()
        + "}\n";
    let plain = r#"{"op":"insert","table":"t","row":{"id":9,"v":9},"unchanged":["note"]}"#;
    for (events, args) in [
        (insert, ""),
        (snapshot, ""),
        (flat, ""),
        (pair, "--source-table public.t"),
        (plain.to_owned() + "\n", ""),
        ("I,9,9,?\n".to_owned(), "--source-table t --dms-columns id,v,note --dms-absent ?"),
    ] {
        let case = case();
        case.put("s.ndjson", &events);
        let refusal = apply(&case, &format!("s.ndjson --quiet {args}")).refusal();
        let what = "the event has no value for column \"note\" of a new row of public.t";
        assert!(refusal.contains(what), "{events}: {refusal}");
        apply_and_report(&case, &events, &format!("{args} --max-dead-letters 1"));
        assert_eq!(case.value("select count(*) from t where note is null"), "0", "{events}");
        let letter = r#"{"op":"(insert|snapshot)","schema":"public","table":"t",.*"unchanged""#;
        let sql = format!("select count(*) from pgspate.dead_letter where payload ~ '{}'", {
            letter.replace('{', "\\{")
        });
        assert_eq!(case.value(&sql), "1", "{events}");
    }
}

#[test]
fn headers_of_flattened_rows_keep_omitted_values_of_a_key_change() {
    let case = case();
    let row = |id: u32, rest: &str| {
        format!(
            r#"{{"id":{id},"v":{id},"note":{UNAVAILABLE},"__schema":"public","__table":"t"{rest}}}"#
        )
    };
    let record = |key: u32, header: &str, other: u32, value: &str| {
        let headers = format!(r#"{{"__debezium.{header}":{{"id":{other}}}}}"#);
        format!(r#"{{"key":{{"id":{key}}},"headers":{headers},"value":{value}}}"#) + "\n"
    };
    let events = record(1, "newkey", 11, &row(1, r#","__deleted":"true","__op":"d""#))
        + &record(11, "oldkey", 1, &row(11, r#","__op":"c""#))
        + &record(2, "newkey", 12, "null")
        + &record(12, "oldkey", 2, &row(12, ""));
    apply_and_report(&case, &events, "");
    assert_eq!(rows(&case, "t"), "(11,11,\"large 1\") (12,12,\"large 2\") (3,3,\"large 3\")");
}

/// wal2json omits unchanged columns without a mark, so an update may look complete.
#[test]
fn an_update_of_a_missing_row_invents_no_values() {
    let column = |name: &str, value: &str| format!(r#"{{"name":"{name}","value":{value}}}"#);
    let wal2json = format!(
        r#"{{"action":"U","schema":"public","table":"t","columns":[{},{}],"identity":[{}]}}"#,
        column("id", "9"),
        column("v", "9"),
        column("id", "9")
    );
    let maxwell = r#"{"database":"public","table":"t","type":"update","ts":1,"xid":1,"#.to_owned()
        + r#""commit":true,"data":{"id":9,"v":9},"old":{"v":8}}"#;
    let debezium = envelope("u", "null", &row(9, "9", UNAVAILABLE), 1);
    for event in [wal2json, maxwell, debezium] {
        let case = case();
        let report = apply_and_report(&case, &(event.clone() + "\n"), "");
        assert_eq!(counts(&report), [0, 0, 0, 1], "{event}");
        assert_eq!(case.value("select count(*) from t"), "3", "{event}");
    }
}

/// The delete is the last event of a file that may grow.
#[test]
fn a_delete_at_the_end_of_a_growing_file_is_applied() {
    let case = case();
    case.put("s.ndjson", &key_change(1, 11)[0]);
    let child = spawn(&mut command(&case, "s.ndjson --follow --quiet"));
    wait_until("the row is deleted", || case.value("select count(*) from t") == "2");
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(finish(child).status, Some(0));
}

/// A delete may be the first half of a key change. pgspate waits a limited time for the insert.
#[test]
fn a_lone_delete_is_applied_though_the_stream_stays_open() {
    let case = case();
    let mut child = spawn(&mut command(&case, "- --follow --quiet --json"));
    let mut pipe = child.stdin.take().unwrap();
    let [delete, insert] = key_change(1, 11);
    pipe.write_all(delete.as_bytes()).unwrap();
    wait_until("the row is deleted", || case.value("select count(*) from t") == "2");
    let [other, its_insert] = key_change(2, 12);
    pipe.write_all((other + &its_insert).as_bytes()).unwrap();
    wait_until("the key has changed", || case.value("select max(id) from t") == "12");
    pipe.write_all(insert.as_bytes()).unwrap();
    drop(pipe);
    let run = finish(child);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let error = "the event has no value for column \"note\"";
    assert!(run.stderr.contains(error) && run.stdout.contains("\"format\""), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(12,12,\"large 2\") (3,3,\"large 3\")");
}

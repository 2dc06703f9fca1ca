//! Small batches, each written by a single statement. The next ones are sent before its answer, and
//! few commits wait for the disk.

use std::fmt::Write as _;

use pgspate_embedded::{silent, testing};

use crate::run::{ask, finish, session, spawn, wait_until};
use crate::support::LoadCase;
use crate::{apply, apply_and_report, command, counts, rows};

/// The table logs each version of a row, and the statement that writes it. A trigger would need
/// several statements.
const CREATE_TABLE: &str = "\
create table public.log (n bigint generated always as identity, id int, v int, sql text);
create function public.note(id int, v int) returns bool language plpgsql as $$ begin
  insert into public.log (id, v, sql) values (id, v, current_query()); return true; end $$;
create table public.t (id int primary key, v int, u int unique, check (public.note(id, v)))";

const WRITTEN_ALONE: &str = "select count(*) from log where sql like 'with moved as%'";

/// Returns events that insert ten counters and then increase them in turn.
fn counter_events(count: u64) -> String {
    let mut events = String::new();
    for nth in 0..count {
        let (op, key, value) = (if nth < 10 { "insert" } else { "update" }, nth % 10, nth / 10);
        let row = format!("{{\"id\":{key},\"v\":{value}}}");
        writeln!(events, "{{\"op\":\"{op}\",\"table\":\"t\",\"row\":{row}}}").unwrap();
    }
    events
}

/// Asserts that each version of each counter was written once, in order.
fn check_versions(dsn: &str, versions: u64) {
    let wrong = "select count(*) from (select v - coalesce(lag(v) over (partition by id \
                 order by n), -1) as step from public.log) x where step <> 1";
    assert_eq!(ask(dsn, wrong), "0");
    let counted = format!("select count(*) from public.t where v = {}", versions - 1);
    assert_eq!(ask(dsn, &counted), "10");
}

#[test]
fn rows_and_counts_are_those_of_staged_batches() {
    let events = r#"
{"op":"insert","table":"t","row":{"id":1,"v":1,"u":10}}
{"op":"insert","table":"t","row":{"id":2,"v":1,"u":20}}
{"op":"update","table":"t","row":{"id":1,"v":1,"u":10}}
{"op":"update","table":"t","row":{"id":2,"v":2}}
{"op":"update","table":"t","row":{"id":9,"v":2}}
{"op":"delete","table":"t","key":{"id":8}}
{"op":"delete","table":"t","key":{"id":1}}
{"op":"insert","table":"t","row":{"id":3,"v":3,"u":10}}
{"op":"snapshot","table":"t","row":{"id":2,"v":2,"u":20}}
{"op":"insert","table":"t","row":{"id":4,"v":4,"u":null}}
{"op":"update","table":"t","key":{"id":4},"row":{"id":5,"v":4,"u":40}}
{"op":"update","table":"t","row":{"id":3,"v":5,"u":11}}
{"op":"insert","table":"t","row":{"id":6,"v":3,"u":10}}
"#;
    for size in [1, 2, 5, 100] {
        let [staged, direct] = ["--direct-rows 0", "--direct-rows 1000"].map(|way| {
            let case = LoadCase::new(CREATE_TABLE);
            let args = format!("--batch-rows {size} --batch-delay 1000 {way}");
            let report = apply_and_report(&case, events, &args);
            let alone: u64 = case.value(WRITTEN_ALONE).parse().unwrap();
            ((rows(&case, "t"), counts(&report), report["events"].clone()), alone)
        });
        assert_eq!(staged.0, direct.0, "{size}");
        assert_eq!(staged.1, 0, "{size}");
        assert!(direct.1 > 0, "{size}");
    }
}

#[test]
fn refused_events_are_set_aside_among_batches_that_are_sent_ahead() {
    let case = LoadCase::new(CREATE_TABLE);
    let mut events = counter_events(400);
    for _ in 0..3 {
        events += "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":\"x\",\"v\":0}}\n";
        events += "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":50,\"v\":0,\"u\":1}}\n";
        events += "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":51,\"v\":0,\"u\":1}}\n";
        events += "{\"op\":\"delete\",\"table\":\"t\",\"key\":{\"id\":50}}\n";
    }
    let report = apply_and_report(&case, &events, "--batch-rows 1 --max-dead-letters 9");
    assert_eq!(report["dead_letters"], 6, "{report}");
    assert_eq!(report["events"], 412);
    let letters =
        "select string_agg(position::text, ' ' order by position) from pgspate.dead_letter";
    assert_eq!(case.value(letters), "400 402 404 406 408 410");
    assert_eq!(case.value("select count(*) from t where v = 39"), "10");
    assert_ne!(case.value(WRITTEN_ALONE), "0");
}

/// Another session deletes a row that the statement still sees. The event inserts the row again.
#[test]
fn a_row_that_is_deleted_meanwhile_is_inserted() {
    for size in [1, 2] {
        let case = LoadCase::new(CREATE_TABLE);
        case.db.run("insert into t values (1, 0, 0), (2, 0, null)");
        let events = r#"{"op":"snapshot","table":"t","row":{"id":2,"v":1,"u":2}}
{"op":"snapshot","table":"t","row":{"id":1,"v":1,"u":1}}
"#;
        case.put("s.ndjson", events);
        let (runtime, other) = session(&case.db.dsn());
        runtime.block_on(other.batch_execute("begin; delete from t where id = 1")).unwrap();
        let args = format!("s.ndjson --quiet --batch-rows {size} --batch-delay 1000");
        let child = spawn(&mut command(&case, &args));
        let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                     and datname = current_database() and query like 'with moved as%'";
        wait_until("the statement waits for the row", || case.value(waits) == "1");
        runtime.block_on(other.batch_execute("commit")).unwrap();
        finish(child).success();
        assert_eq!(rows(&case, "t"), "(1,1,1) (2,1,2)", "{size}");
    }
}

/// Other transactions run all the time, and one of them alters the table.
#[test]
fn an_altered_table_is_noticed_among_batches_that_are_sent_ahead() {
    for is_busy in [false, true] {
        let case = LoadCase::new(&format!("{CREATE_TABLE}; create table other (n int)"));
        let mut events = counter_events(4000);
        let insert = |nth: u64| {
            let row = format!("{{\"id\":{nth},\"v\":0,\"later\":\"{nth}\"}}");
            format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{row}}}\n")
        };
        events.extend((100..3100).map(insert));
        case.put("s.ndjson", &events);
        let args = "s.ndjson --quiet --batch-rows 1 --unknown-columns ignore";
        let child = spawn(&mut command(&case, args));
        let (runtime, other) = session(&case.db.dsn());
        let applied = "select coalesce(max(ordinal), 0) from pgspate.stream";
        let reached = |count: u64| {
            let exists = "select to_regclass('pgspate.stream') is not null";
            wait_until("some events are applied", || {
                if is_busy {
                    runtime.block_on(other.batch_execute("insert into other values (1)")).unwrap();
                }
                case.value(exists) == "t" && case.value(applied).parse::<u64>().unwrap() >= count
            });
        };
        reached(5000);
        runtime.block_on(other.batch_execute("alter table t add later text")).unwrap();
        // From the alteration on, each row has the new column's value.
        finish(child).success();
        let first = "select min(id) from t where later is not null";
        let first = case.value(first);
        let without = format!("select count(*) from t where id >= {first} and later is null");
        assert_eq!(case.value(&without), "0", "{is_busy}");
        let wrong = "select count(*) from t where id >= 100 and later <> id::text";
        assert_eq!(case.value(wrong), "0", "{is_busy}");
        assert_eq!(case.value("select count(*) from t"), "3010", "{is_busy}");
        assert_ne!(case.value(WRITTEN_ALONE), "0");
    }
}

#[test]
fn a_killed_run_continues_at_its_position() {
    let case = LoadCase::new(CREATE_TABLE);
    case.put("s.ndjson", counter_events(20_000));
    for round in 1..4 {
        let mut child = spawn(&mut command(&case, "s.ndjson --quiet --batch-rows 7"));
        let enough =
            format!("select coalesce(max(ordinal), 0) >= {} from pgspate.stream", round * 2000);
        wait_until("some batches are applied", || {
            case.value("select to_regclass('pgspate.stream') is not null") == "t"
                && case.value(&enough) == "t"
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let last = apply(&case, "s.ndjson --quiet --batch-rows 7");
    assert_eq!(last.status, Some(0), "{}", last.stderr);
    assert_eq!(case.value("select count(*) from log where sql not like 'with moved as%'"), "0");
    let twice = "select count(*) from (select from log group by id, v having count(*) > 1) x";
    assert_eq!(case.value(twice), "0");
    assert_eq!(case.value("select count(*) from t where v = 1999"), "10");
}

/// A crash of the server undoes commits that did not wait for the disk. The run writes these
/// batches again.
#[test]
fn a_crash_of_the_server_loses_no_batch() {
    let started = testing::builder().conf("wal_writer_delay = 10s").start(&silent);
    let server = started.unwrap_or_else(|error| panic!("{}", error.chain()));
    let folder = tempfile::TempDir::with_prefix("pgspate-crash-").unwrap();
    ask(&server.dsn(), CREATE_TABLE);
    let events = 12_000;
    std::fs::write(folder.path().join("s.ndjson"), counter_events(events)).unwrap();
    let dsn = server.dsn();
    let args = ["apply", "--to", &dsn, "s.ndjson", "--json", "--quiet", "--batch-rows", "1"];
    let child = spawn(&mut crate::run::command(folder.path(), &args));
    for round in 1..=3 {
        let enough = format!("select coalesce(max(v), 0) >= {} from public.t", round * 200);
        wait_until("some batches are applied", || ask(&dsn, &enough) == "t");
        server.kill().unwrap();
        server.restart().unwrap();
    }
    let run = finish(child);
    assert!(matches!(run.status, Some(0 | 1)), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["events"], events, "{report}");
    check_versions(&dsn, events / 10);
}

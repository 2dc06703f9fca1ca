//! Every event is applied exactly once: resumed streams, fences, dead letters, large transactions,
//! leftover objects.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use insta::assert_snapshot;

use crate::run::{ask, session, wait_until};
use crate::support::{LoadCase, folded, redact};
use crate::{apply, apply_and_report, command, counts, finish, rows, spawn};

fn case() -> LoadCase {
    LoadCase::new("create table t (id int primary key, v int, note text)")
}

/// Returns events that insert ten counters and then increase them in turn. A lost event changes the
/// final values.
fn counter_events(from: u64, to: u64) -> String {
    let mut events = String::new();
    for nth in from..to {
        let (key, count) = (nth % 10, nth / 10);
        let line = match count {
            0 => format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{key},\"v\":0}}}}"),
            _ => format!(
                "{{\"op\":\"update\",\"table\":\"t\",\"row\":{{\"id\":{key},\"v\":{count}}}}}"
            ),
        };
        writeln!(events, "{line}").unwrap();
    }
    events
}

/// Creates a trigger that logs each version of a row that is written.
fn log_row_versions(case: &LoadCase) {
    case.db.run(
        "create table log (n bigint generated always as identity, id int, v int); \
         create function note() returns trigger language plpgsql as $$ begin \
           insert into log (id, v) values (new.id, new.v); return new; end $$; \
         create trigger note after insert or update on t for each row execute function note()",
    );
}

/// The command is killed between batches and within batches, and run again.
#[test]
fn a_killed_stream_continues_at_its_position() {
    let case = case();
    log_row_versions(&case);
    case.put("s.ndjson", counter_events(0, 30_000));
    for round in 1..6 {
        let args = "s.ndjson --quiet --batch-rows 500 --batch-delay 0";
        let mut child = spawn(&mut command(&case, args));
        let enough =
            format!("select coalesce(max(ordinal), 0) >= {} from pgspate.stream", round * 2000);
        wait_until("some batches are applied", || {
            case.value("select to_regclass('pgspate.stream') is not null") == "t"
                && case.value(&enough) == "t"
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let last = apply(&case, "s.ndjson --json --quiet --batch-rows 500");
    assert_eq!(last.status, Some(0), "{}", last.stderr);
    let report: serde_json::Value = serde_json::from_str(&last.stdout).unwrap();
    let before = report["events_before"].as_u64().unwrap();
    assert!(before >= 10_000, "{before}");
    assert_eq!(before + report["events"].as_u64().unwrap(), 30_000);
    assert_eq!(case.value("select count(*) from t where v = 2999"), "10");
    // No version was written twice, and none after a later version of the row.
    let twice = "select count(*) from (select from log group by id, v having count(*) > 1) x";
    assert_eq!(case.value(twice), "0");
    let back = "select count(*) from (select v - lag(v) over (partition by id order by n) as step \
                from log) x where step <= 0";
    assert_eq!(case.value(back), "0");
}

#[test]
fn a_longer_input_is_applied_from_where_the_last_run_ended() {
    let case = case();
    case.put("a.ndjson", counter_events(0, 25));
    let first = apply(&case, "a.ndjson --stream grows --json --quiet");
    assert_eq!(first.status, Some(0), "{}", first.stderr);
    case.put("b.ndjson", counter_events(25, 40));
    let second = apply(&case, "a.ndjson b.ndjson --stream grows --json --quiet");
    let report: serde_json::Value = serde_json::from_str(&second.stdout).unwrap();
    assert_eq!((&report["events_before"], &report["events"]), (&25.into(), &15.into()));
    assert_eq!(case.value("select string_agg(v::text, '' order by id) from t"), "3333333333");
    // Another input under the stream's name is refused, and so is an input that is too short.
    case.put("c.ndjson", counter_events(1, 60));
    assert_snapshot!(apply(&case, "c.ndjson --stream grows --quiet").refusal(), @"
    error: the input is not the stream that was applied before: its first 40 events differ
      at: c.ndjson, line 40

    hint: Give the same files in the same order, or begin a stream of its own with
          … `--stream NAME`.
    ");
    assert_snapshot!(apply(&case, "a.ndjson --stream grows --quiet").refusal(), @"
    error: the input has 25 events, but 40 of the stream are applied already

    hint: Name all files of the stream in their order, or give these files a stream of
          … their own with `--stream NAME`.
    ");
    let status = finish(spawn(case.command(&["status"]).args(["--to", &case.db.dsn()])));
    assert_snapshot!(redact(&status.stdout), @"
    stream grows  40 events applied, up to [DIR]/b.ndjson, line 15
      last advanced at [WHEN]
    ");
}

/// In wal2json, every transaction ends with the same record. That record does not identify a
/// stream.
#[test]
fn another_stream_of_wal2json_is_not_mistaken_for_the_first() {
    let case = case();
    let stream = |from: u32| -> String {
        (from..from + 3)
            .map(|id| {
                let row = format!(r#"[{{"name":"id","type":"integer","value":{id}}}]"#);
                let table = r#""schema":"public","table":"t""#;
                format!("{{\"action\":\"B\"}}\n{{\"action\":\"I\",{table},\"columns\":{row}}}\n")
                    + "{\"action\":\"C\"}\n"
            })
            .collect()
    };
    apply_and_report(&case, &stream(1), "");
    apply_and_report(&case, &(stream(1) + &stream(4)), "");
    assert_eq!(case.value("select count(*) from t"), "6");
    case.put("s.ndjson", stream(11) + &stream(14) + &stream(17));
    assert_snapshot!(apply(&case, "s.ndjson --quiet").refusal(), @"
    error: the input is not the stream that was applied before: its first 6 events differ
      at: s.ndjson, line 20

    hint: Give the same files in the same order, or begin a stream of its own with
          … `--stream NAME`.
    ");
}

/// A restarted run skips applied events without checking their columns. It checks the columns of
/// all later events.
#[test]
fn unknown_columns_are_refused_after_a_restart_too() {
    let case = case();
    let event = |id: u32| {
        let row = format!(r#"{{"id":{id},"v":1,"extra":"x"}}"#);
        format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{row}}}\n")
    };
    apply_and_report(&case, &event(1), "--unknown-columns ignore");
    case.put("s.ndjson", event(1) + &event(2));
    let run = apply(&case, "s.ndjson --quiet");
    assert!(run.refusal().contains("column \"extra\" of relation \"t\" does not exist"));
    apply_and_report(&case, &(event(1) + &event(2)), "--unknown-columns add");
    assert_eq!(rows(&case, "t"), "(1,1,,) (2,1,,x)");
}

#[test]
fn a_second_process_fences_off_the_first() {
    let case = case();
    let mut first = spawn(&mut command(&case, "- --stream one --quiet"));
    let mut pipe = first.stdin.take().unwrap();
    pipe.write_all(counter_events(0, 10).as_bytes()).unwrap();
    wait_until("the first has begun", || {
        case.value("select to_regclass('pgspate.stream') is not null") == "t"
            && case.value("select count(*) from t") == "10"
    });
    case.put("s.ndjson", counter_events(0, 20));
    let second = apply(&case, "s.ndjson --stream one --json --quiet");
    assert_eq!(second.status, Some(0), "{}", second.stderr);
    pipe.write_all(counter_events(10, 30).as_bytes()).unwrap();
    drop(pipe);
    assert_snapshot!(finish(first).refusal(), @"
    error: the stream was taken over by another pgspate

    hint: Only one process applies a stream at a time. For files and topics, it is the
          … process started last. For a slot, it is the process that reads the slot.
    ");
    assert_eq!(case.value("select string_agg(distinct v::text, '') from t"), "1");
}

/// Bad events are set aside in the transaction that saves the position. With more bad events than
/// allowed, the run stops.
#[test]
fn bad_events_are_set_aside_up_to_the_limit() {
    let case = LoadCase::new(
        "create table t (id int primary key, v int check (v <> 1300), note text); \
         create table c (id int primary key, of int references t); insert into t values (0, 0)",
    );
    let mut events = String::new();
    for id in 1..=200 {
        let v = match id {
            50 => "\"no number\"".to_owned(),
            100 | 101 => "1300".to_owned(),
            _ => id.to_string(),
        };
        writeln!(events, "{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id},\"v\":{v}}}}}")
            .unwrap();
    }
    events += "{\"op\":\"insert\",\"table\":\"c\",\"row\":{\"id\":1,\"of\":77}}\n";
    events += "{\"op\":\"insert\",\"table\":\"c\",\"row\":{\"id\":2,\"of\":777}}\n";
    events += "{\"op\":\"insert\",\"table\":\"c\",\"row\":{\"of\":7}}\nno event\n";
    case.put("s.ndjson", &events);
    assert_snapshot!(apply(&case, "s.ndjson --quiet --batch-delay 60000").refusal(), @r#"
    error: could not apply the insert of public.t
      caused by: could not stage rows for public.t
      caused by: invalid input syntax for type integer: "no number" (SQLSTATE 22P02)
      at: s.ndjson, line 50

    hint: Nothing of its batch is applied. With `--max-dead-letters N` up to N such events
          … are set aside in pgspate.dead_letter, and the others applied.
    "#);
    assert_eq!(rows(&case, "t"), "(0,0,)");
    let report = apply_and_report(&case, &events, "--max-dead-letters 10 --batch-delay 60000");
    assert_eq!((&report["dead_letters"], counts(&report)), (&6.into(), [198, 0, 0, 0]));
    let letters = "select string_agg(concat_ws('|', position, source, line, table_name, sqlstate), \
                   e'\\n' order by position) from pgspate.dead_letter";
    assert_snapshot!(folded(&case.value(letters)), @"
    49|s.ndjson|50|public.t|22P02
    99|s.ndjson|100|public.t|23514
    100|s.ndjson|101|public.t|23514
    201|s.ndjson|202|public.c|23503
    202|s.ndjson|203|public.c
    203|s.ndjson|204
    ");
    let payloads = "select string_agg(payload, e'\\n' order by position) from pgspate.dead_letter \
                    where line in (202, 203, 204)";
    assert_snapshot!(case.value(payloads), @r#"
    {"op":"insert","schema":"public","table":"c","row":{"id":"2","of":"777"}}
    {"op":"insert","schema":"public","table":"c","row":{"of":"7"}}
    no event
    "#);
    let messages = "select string_agg(message, e'\\n' order by position) from pgspate.dead_letter";
    assert_snapshot!(folded(&case.value(messages)), @r#"
    could not stage rows for public.t: invalid input syntax for type integer: "no number"
          … (SQLSTATE 22P02)
    could not insert rows into public.t: new row for relation "t" violates check constraint
          … "t_v_check" (SQLSTATE 23514): Failing row contains (100, 1300, null).
    could not insert rows into public.t: new row for relation "t" violates check constraint
          … "t_v_check" (SQLSTATE 23514): Failing row contains (101, 1300, null).
    could not insert rows into public.c: insert or update on table "c" violates foreign key
          … constraint "c_of_fkey" (SQLSTATE 23503): Key (of)=(777) is not present in table
          … "t".
    could not apply the insert of public.c: the event does not have all columns of the key
    could not read a record as pgspate; the format was detected from a record: it has an
          … "op" and a "table": invalid event at byte 1: expected an object
    "#);
    // A corrected dead letter can be applied as an event.
    let payload =
        "select replace(payload, '\"777\"', '\"77\"') from pgspate.dead_letter where line = 202";
    apply_and_report(&case, &(case.value(payload) + "\n"), "--stream mended");
    assert_eq!(rows(&case, "c"), "(1,77) (2,77)");
    // If a batch has one dead letter more than allowed, the batch is rolled back.
    case.db.run("truncate t cascade");
    case.put("s.ndjson", &events);
    let run =
        apply(&case, "s.ndjson --quiet --max-dead-letters 5 --stream fewer --batch-delay 60000");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "");
}

#[test]
fn transactions_of_the_source_are_not_split() {
    let case = case();
    let mut events = String::new();
    for nth in 0..5000 {
        let ends = nth % 1000 == 999;
        writeln!(
            events,
            r#"{{"op":"insert","table":"t","row":{{"id":{nth},"v":{v}}},"tx":{v},"end":{ends}}}"#,
            v = nth / 1000
        )
        .unwrap();
    }
    // The transaction is much larger than a batch, so that several batches are one transaction.
    let report = apply_and_report(&case, &events, "--batch-rows 10");
    assert_eq!((&report["batches"], &report["events"]), (&5.into(), &5000.into()));
    // A transaction without an end is not applied, and the run says so.
    let cut: String = events.lines().take(2500).map(|line| format!("{line}\n")).collect();
    case.put("cut.ndjson", cut.replace("\"id\":", "\"id\":9"));
    assert_snapshot!(apply(&case, "cut.ndjson --quiet").refusal(), @"
    error: the input ends within a source transaction

    hint: The events of that transaction are not applied. Run the same command again when
          … the input is complete, or apply the incomplete transaction with `--at-end
          … apply`. 2000 events of this run are committed, 2000 of the stream; the next run
          … continues after them.
    ");
    // The transactions that ended before the cut are applied. Their keys begin with a 9.
    assert_eq!(case.value("select count(*) from t where v < 2 and id > 5000"), "1900");
    assert_eq!(case.value("select max(ordinal) from pgspate.stream"), "5000");
}

/// An event of a wide table takes far more memory than its record has bytes.
#[test]
fn batches_are_limited_by_the_memory_of_their_events() {
    let columns: String = (0..500).map(|nth| format!(", c{nth} int")).collect();
    let case = LoadCase::new(&format!("create table t (id int primary key{columns})"));
    let mut events = String::new();
    for id in 0..1000 {
        writeln!(events, r#"{{"op":"insert","table":"t","row":{{"id":{id}}}}}"#).unwrap();
    }
    assert!(events.len() < 1 << 20);
    let report = apply_and_report(&case, &events, "--batch-bytes 1 --batch-delay 600000");
    // Each of the 500 columns takes four bytes or more.
    assert!(report["batches"].as_u64() >= Some(2), "{report}");
    assert_eq!(report["bytes"], events.len());
    assert_eq!(case.value("select count(*) from t"), "1000");
}

/// A record that is a whole transaction is sent to the server in parts, and committed at once.
#[test]
fn a_record_of_many_events_is_committed_at_once() {
    let case = case();
    let change = |id: u32| {
        let v = if id == 333 { "\"x\"".to_owned() } else { id.to_string() };
        let names = r#""columnnames":["id","v"],"columntypes":["integer","integer"]"#;
        let at = r#""kind":"insert","schema":"public","table":"t""#;
        format!(r#"{{{at},{names},"columnvalues":[{id},{v}]}}"#)
    };
    let all: Vec<String> = (0..500).map(change).collect();
    let record = format!(r#"{{"xid":1,"change":[{}]}}"#, all.join(",")) + "\n";
    case.put("s.ndjson", &record);
    let run = apply(&case, "s.ndjson --quiet --batch-rows 20");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "");
    let report = apply_and_report(&case, &record, "--batch-rows 20 --max-dead-letters 1");
    assert_eq!((&report["batches"], &report["inserted"]), (&1.into(), &499.into()));
}

#[test]
fn only_the_refused_event_of_a_large_transaction_is_set_aside() {
    let case = case();
    let mut events = String::new();
    for nth in 0..300 {
        let v = if nth == 222 { "\"x\"".to_owned() } else { nth.to_string() };
        let ends = nth == 299;
        let row = format!(r#"{{"id":{nth},"v":{v}}}"#);
        writeln!(events, r#"{{"op":"insert","table":"t","row":{row},"tx":1,"end":{ends}}}"#)
            .unwrap();
    }
    case.put("s.ndjson", &events);
    let run = apply(&case, "s.ndjson --quiet --batch-rows 20");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "");
    let report = apply_and_report(&case, &events, "--batch-rows 20 --max-dead-letters 1");
    assert_eq!((&report["batches"], &report["inserted"]), (&1.into(), &299.into()));
}

/// In a large transaction, a refused event may be among the first events of its table. The rollback
/// to a savepoint then removes the stage table.
#[test]
fn stage_tables_rolled_back_to_a_savepoint_are_created_again() {
    let case = LoadCase::new(
        "create table t (id int primary key check (id <> 2)); \
         create table u (id int primary key check (id <> 3)); create table w (id int primary key)",
    );
    let mut events = String::new();
    for nth in 0..120 {
        let (table, id) = match nth {
            0..40 => ("t", nth),
            40..80 => ("u", nth - 40),
            _ => ("w", nth),
        };
        let row = format!(r#"{{"id":{id}}},"tx":1,"end":{}"#, nth == 119);
        writeln!(events, r#"{{"op":"insert","table":"{table}","row":{row}}}"#).unwrap();
    }
    let report = apply_and_report(&case, &events, "--batch-rows 5 --max-dead-letters 2");
    assert_eq!((&report["dead_letters"], &report["inserted"]), (&2.into(), &118.into()));
    // The next transaction uses the same stage tables.
    let next = events.replace("\"id\":", "\"id\":9").replace("\"tx\":1", "\"tx\":2");
    let report = apply_and_report(&case, &(events + &next), "--batch-rows 5 --max-dead-letters 2");
    assert_eq!(report["inserted"], 120);
}

/// pgspate leaves no object behind, and batches add no rows to the catalog.
#[test]
fn the_catalog_does_not_grow_with_batches() {
    let case = case();
    let sizes = "select string_agg(concat(relname, ' ', n_tup_ins), ', ' order by relname) \
                 from pg_stat_sys_tables where relname in ('pg_class', 'pg_attribute')";
    let one = case.value(sizes);
    let inserted = |before: &str| -> Vec<u64> {
        let _ = ask(&case.db.dsn(), "select pg_stat_clear_snapshot()");
        let numbers = |text: &str| -> Vec<u64> {
            text.split(", ").map(|it| it.rsplit(' ').next().unwrap().parse().unwrap()).collect()
        };
        let now = numbers(&case.value(sizes));
        now.iter().zip(numbers(before)).map(|(now, before)| now - before).collect()
    };
    let staged = "--direct-rows 0 --batch-rows 50";
    apply_and_report(&case, &counter_events(0, 100), &format!("--stream a {staged}"));
    wait_until("the server's statistics have the inserts", || {
        inserted(&one).iter().all(|rows| *rows > 0)
    });
    let two = case.value(sizes);
    let report = apply_and_report(
        &case,
        &counter_events(0, 10_000),
        &format!("--stream b {staged} --batch-delay 0"),
    );
    assert!(report["batches"].as_u64().unwrap() >= 100);
    wait_until("the server's statistics have the inserts", || {
        inserted(&two).iter().all(|rows| *rows > 0)
    });
    // The session creates one temporary table in all, not one for each batch.
    assert!(inserted(&two).iter().all(|rows| *rows < 60), "{two}: {:?}", inserted(&two));
    assert_eq!(
        case.value("select count(*) from pg_class where relname like 'pgspate_apply%'"),
        "0"
    );
}

/// With missing or wrong statistics, the time of a batch does not grow with the square of its rows.
#[test]
fn wrong_statistics_do_not_lead_to_nested_loops() {
    let case = case();
    case.db.run("alter table t set (autovacuum_enabled = off); analyze t");
    case.db.run("insert into t select i, 0 from generate_series(0, 39999) i");
    let mut events = String::new();
    for id in 0..40_000 {
        writeln!(
            events,
            "{{\"op\":\"update\",\"table\":\"t\",\"row\":{{\"id\":{id},\"v\":1,\"note\":null}}}}"
        )
        .unwrap();
    }
    case.put("s.ndjson", &events);
    let mut command = command(&case, "s.ndjson --quiet --batch-delay 10000");
    let child = spawn(command.env("PGOPTIONS", "-c enable_hashjoin=off -c enable_mergejoin=off"));
    // A nested loop would compare 1,600 million pairs, three times.
    finish(child).success();
    assert_eq!(case.value("select count(*) from t where v = 1"), "40000");
}

#[test]
fn a_lone_event_does_not_wait_for_others() {
    let case = case();
    let mut child = spawn(&mut command(&case, "- --follow --quiet --json"));
    let mut pipe = child.stdin.take().unwrap();
    for nth in 0..20 {
        pipe.write_all(counter_events(nth, nth + 1).as_bytes()).unwrap();
        // The event is applied though the input stays open without more data.
        wait_until("the event is applied", || {
            case.value("select coalesce(sum(v + 1), 0) from t") == (nth + 1).to_string()
        });
    }
    drop(pipe);
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
}

/// A transaction that was sent in part is committed when its end comes, and counts as a commit.
#[test]
fn the_end_of_a_large_transaction_does_not_wait_for_the_next() {
    let insert = |id| {
        let column = format!(r#"{{"name":"id","type":"integer","value":{id}}}"#);
        format!(r#"{{"action":"I","schema":"public","table":"t","columns":[{column}]}}"#) + "\n"
    };
    let begin = "{\"action\":\"B\",\"xid\":9}\n".to_owned();
    let events = begin + &(0..10).map(insert).collect::<String>();
    let end = "{\"action\":\"C\",\"xid\":9}\n";
    let case = LoadCase::new("create table t (id int primary key)");
    let mut child = spawn(&mut command(&case, "- --follow --quiet --batch-rows 5"));
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(events.as_bytes()).unwrap();
    pipe.write_all(end.as_bytes()).unwrap();
    wait_until("the transaction is committed", || case.value("select count(*) from t") == "10");
    drop(pipe);
    finish(child).success();
    case.db.run("truncate t");
    let report = apply_and_report(&case, &(events + end), "--batch-rows 5 --stream again");
    assert_eq!((&report["inserted"], &report["batches"]), (&10.into(), &1.into()));
}

/// The session that reads table facts may be lost long before an event names a new table.
#[test]
fn table_facts_are_read_again_after_their_session_was_lost() {
    let case = case();
    case.db.run("create table late (id int primary key)");
    let mut child = spawn(&mut command(&case, "- --quiet --json --retry-for 20"));
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(counter_events(0, 10).as_bytes()).unwrap();
    wait_until("the first events are applied", || case.value("select count(*) from t") == "10");
    let (runtime, other) = session(&case.db.dsn());
    let sessions = "from pg_stat_activity where datname = current_database() \
                    and application_name = 'pgspate apply'";
    let end = format!("select count(pg_terminate_backend(pid)) {sessions}");
    runtime.block_on(other.query_one(&end, &[])).unwrap();
    wait_until("the sessions have ended", || {
        case.value(&format!("select count(*) {sessions}")) == "0"
    });
    pipe.write_all(b"{\"op\":\"insert\",\"table\":\"late\",\"row\":{\"id\":1}}\n").unwrap();
    drop(pipe);
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(rows(&case, "late"), "(1)");
}

#[test]
fn a_growing_file_is_followed_until_a_signal() {
    let case = case();
    case.put("s.ndjson", counter_events(0, 15));
    let child = spawn(&mut command(&case, "s.ndjson --follow --quiet --json"));
    let done = |events: u64| {
        wait_until("the events are applied", || {
            case.value("select to_regclass('pgspate.stream') is not null") == "t"
                && case.value("select coalesce(max(ordinal), 0) from pgspate.stream")
                    == events.to_string()
        });
    };
    done(15);
    let mut file = std::fs::OpenOptions::new().append(true).open(case.path("s.ndjson")).unwrap();
    let more = counter_events(15, 40);
    // The run waits for the rest of an incomplete record.
    file.write_all(&more.as_bytes()[..100]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    file.write_all(&more.as_bytes()[100..]).unwrap();
    done(40);
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["events"], &report["is_stopped"]), (&40.into(), &true.into()));
}

#[test]
fn a_lost_connection_is_replaced() {
    let case = case();
    log_row_versions(&case);
    case.db.run(
        "create function slow() returns trigger language plpgsql as $$ begin \
           perform pg_sleep(0.02); return null; end $$; \
         create trigger slow after insert or update on t for each statement \
           execute function slow()",
    );
    case.put("s.ndjson", counter_events(0, 20_000));
    let child = spawn(&mut command(&case, "s.ndjson --quiet --batch-rows 400 --batch-delay 0"));
    let (runtime, other) = session(&case.db.dsn());
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where datname = current_database() and application_name = 'pgspate apply' \
                 and query not like 'select%'";
    for round in 1..6 {
        wait_until("some batches are applied", || {
            case.value("select to_regclass('pgspate.stream') is not null") == "t"
                && case.value(&format!(
                    "select coalesce(max(ordinal), 0) > {} from pgspate.stream",
                    round * 1500
                )) == "t"
        });
        runtime.block_on(other.query_one(end, &[])).unwrap();
    }
    finish(child).success();
    assert_eq!(case.value("select count(*) from t where v = 1999"), "10");
    let twice = "select count(*) from (select from log group by id, v having count(*) > 1) x";
    assert_eq!(case.value(twice), "0");
}

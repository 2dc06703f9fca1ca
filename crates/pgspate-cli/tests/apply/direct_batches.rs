//! Small batches are sent directly, with their rows as parameters, or through the stage table. Both
//! ways must have the same results.

use std::process::Command;
use std::time::Duration;

use crate::run::{finish_within, spawn, wait_until};
use crate::support::LoadCase;
use crate::{apply, apply_and_report, command, counts, rows};

/// Columns of many types. For some columns, only the server knows which value it stores.
const CREATE_TABLE: &str = r#"
create type mood as enum ('glad', 'sad');
create table log (sql text);
create function note() returns trigger language plpgsql as
  'begin insert into log values (current_query()); return null; end';
create table t (
  id int primary key, gone text, a numeric(6, 2), b varchar(5), c char(4), d timestamptz(0),
  twice numeric generated always as (a * 2) stored, e int[], f text[], g jsonb, h bytea,
  "of day" time(1), m mood, r int4range, "I" bigint default 7, j float8);
alter table t drop column gone;
create trigger seen after insert or update or delete on t for each statement
  execute function note();
insert into t (id, a, b, c, e) values
  (1, 1.5, 'one', 'a', '{1}'), (2, 2.5, 'two', 'b', '{2}'), (3, null, null, null, null)"#;

const EVENTS: &str = r#"
{"op":"insert","table":"t","row":{"id":4,"a":"1.005","b":"abc     ","c":"x"}}
{"op":"update","table":"t","row":{"id":4,"d":"2026-01-01 00:00:00.6Z","e":[1,null]}}
{"op":"update","table":"t","row":{"id":4,"f":["a,b","c\"d"],"g":{"k":1.0},"h":"\\x00ff"}}
{"op":"update","table":"t","row":{"id":4,"of day":"12:00:00.16","m":"sad","r":"[1,5)","I":9}}
{"op":"insert","table":"t","row":{"id":5,"b":"fünf"}}
{"op":"update","table":"t","row":{"id":1,"a":"1.499","c":"a   ","e":[1]}}
{"op":"update","table":"t","row":{"id":2,"a":3,"of day":null,"f":[]}}
{"op":"update","table":"t","row":{"id":9,"a":3}}
{"op":"delete","table":"t","key":{"id":3}}
{"op":"delete","table":"t","key":{"id":8}}
{"op":"update","table":"t","row":{"id":4,"j":1e3}}
{"op":"snapshot","table":"t","row":{"id":2,"b":"two"}}
"#;

/// Applies the events through the stage and directly. Returns for each way the rows, the counts,
/// and the number of statements that have rows as parameters.
fn apply_both_ways(
    tables: &str,
    events: &str,
    args: &str,
    table: &str,
) -> [(String, [u64; 4], u64); 2] {
    ["--direct-rows 0", "--direct-rows 1000"].map(|way| {
        let case = LoadCase::new(tables);
        let report = apply_and_report(&case, events, &format!("{args} {way}"));
        let direct = case.value("select count(*) from log where sql like '%unnest(case%$1::%'");
        (rows(&case, table), counts(&report), direct.parse().unwrap())
    })
}

#[test]
fn rows_are_the_same_without_a_stage() {
    for size in [1, 2, 100] {
        let args = format!("--batch-rows {size} --batch-delay 1000");
        let [staged, direct] = apply_both_ways(CREATE_TABLE, EVENTS, &args, "t");
        assert_eq!(staged.0, direct.0, "{size}");
        assert_eq!(staged.1, direct.1, "{size}");
        assert!(staged.0.contains("1.01"), "{}", staged.0);
        assert!(staged.2 == 0 && direct.2 > 0, "{size}: {staged:?} {direct:?}");
    }
}

/// Tables with generated identity columns, and partitions.
#[test]
fn direct_batches_work_for_identity_columns_and_partitions() {
    let tables = "create table log (sql text); \
                  create function note() returns trigger language plpgsql as \
                    'begin insert into log values (current_query()); return null; end'; \
                  create table t (a int, b text, n int generated always as identity, v text, \
                                  primary key (b, a)) partition by range (a); \
                  create table t1 partition of t for values from (0) to (10); \
                  create table t2 partition of t for values from (10) to (20); \
                  create trigger seen after insert or update or delete on t for each statement \
                    execute function note()";
    let mut events = String::new();
    for nth in 0..20 {
        events += &format!(
            "{{\"op\":\"insert\",\"table\":\"t\",\
              \"row\":{{\"a\":{nth},\"b\":\"k\",\"n\":{},\"v\":\"x\"}}}}\n",
            nth + 100
        );
        let update = format!("{{\"a\":{nth},\"b\":\"k\",\"v\":\"y\"}}");
        events += &format!("{{\"op\":\"update\",\"table\":\"t\",\"row\":{update}}}\n");
        if nth % 3 == 0 {
            let key = format!("{{\"a\":{nth},\"b\":\"k\"}}");
            events += &format!("{{\"op\":\"delete\",\"table\":\"t\",\"key\":{key}}}\n");
        }
    }
    for size in [1, 7] {
        let [staged, direct] =
            apply_both_ways(tables, &events, &format!("--batch-rows {size}"), "t");
        assert_eq!((&staged.0, staged.1), (&direct.0, direct.1));
        assert!(staged.2 == 0 && direct.2 > 0, "{size}: {staged:?} {direct:?}");
    }
}

const CREATE_WITH_DEFERRED_KEY: &str = "\
create table log (sql text); create table p (id int primary key);
create table t (id int primary key, u int unique, v varchar(3),
                p int references p deferrable initially deferred);
insert into p values (1); insert into t values (1, 1, 'a', 1)";

/// Both ways report a refused commit in the same words. No event of the batch is applied.
#[test]
fn a_refused_commit_applies_no_event_of_its_batch() {
    let refusals = ["--direct-rows 0", "--direct-rows 1000"].map(|way| {
        let case = LoadCase::new(CREATE_WITH_DEFERRED_KEY);
        let events = r#"{"op":"insert","table":"t","row":{"id":2,"u":2,"p":1}}
{"op":"insert","table":"t","row":{"id":3,"u":3,"p":4}}
"#;
        case.put("s.ndjson", events);
        let run = apply(&case, &format!("s.ndjson --quiet --batch-delay 1000 {way}"));
        assert_eq!(run.status, Some(2), "{way}: {}", run.stderr);
        assert_eq!(rows(&case, "t"), "(1,1,a,1)", "{way}");
        run.refusal()
    });
    assert_eq!(refusals[0], refusals[1]);
    for said in ["the insert of public.t", "(p)=(4)", "at: s.ndjson, line 2", "--max-dead-letters"]
    {
        assert!(refusals[0].contains(said), "{}", refusals[0]);
    }
}

/// The server refuses an event only at the commit. pgspate finds the event, even if a child comes
/// before its parent.
#[test]
fn an_event_that_only_the_commit_refuses_is_set_aside() {
    let child =
        |id, p| format!("\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id},\"p\":{p}}}");
    let parent = |id: &str| format!("\"op\":\"insert\",\"table\":\"p\",\"row\":{{\"id\":{id}}}");
    let each = |all: &[String]| all.iter().map(|it| format!("{{{it}}}\n")).collect::<String>();
    let together = |tx: u32, all: &[String]| {
        let (last, first) = all.split_last().unwrap();
        let first = first.iter().map(|it| format!("{{{it},\"tx\":{tx}}}\n")).collect::<String>();
        format!("{first}{{{last},\"tx\":{tx},\"end\":true}}\n")
    };
    let long =
        "\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":99,\"v\":\"long\",\"p\":1}".to_owned();
    let histories = [
        // Each event is a transaction, and one batch has all events.
        (each(&[child(2, 1), child(3, 4), child(4, 1)]), 1),
        (each(&[child(2, 9), parent("9"), child(3, 4), long.clone(), child(4, 1), child(5, 6)]), 3),
        // Three source transactions. The refused event is in the middle of the second.
        (
            together(1, &[child(2, 9), parent("9")])
                + &together(2, &[child(4, 1), child(3, 4), child(7, 1)])
                + &together(3, &[child(8, 1), long.clone(), child(10, 1)]),
            2,
        ),
        // A transaction with an event that fails at once and an event that fails at the commit.
        (together(1, &[child(2, 1), long.clone(), child(3, 4), child(4, 1)]), 2),
        // Both kinds of events in the second of three transactions. The server refuses a parent and
        // the events that refer to the parent, and no other event.
        (
            each(&[child(2, 9), parent("9")])
                + &together(2, &[parent(r#""x""#), child(3, 4), child(4, 1), child(5, 4)])
                + &together(3, &[child(6, 8), long, parent("8")]),
            4,
        ),
    ];
    for (events, letters) in histories {
        let args = "--batch-delay 1000 --max-dead-letters 9";
        let [staged, direct] = ["--direct-rows 0", "--direct-rows 1000"].map(|way| {
            let case = LoadCase::new(CREATE_WITH_DEFERRED_KEY);
            let report = apply_and_report(&case, &events, &format!("{args} {way}"));
            assert_eq!(report["dead_letters"], letters, "{events}");
            let codes = "select string_agg(sqlstate || ' ' || position, ', ' order by position) \
                         from pgspate.dead_letter";
            (rows(&case, "t"), counts(&report), case.value(codes))
        });
        assert_eq!(staged, direct);
        let orphans = [",4)", ",6)", "long"];
        assert!(!orphans.iter().any(|it| staged.0.contains(it)), "{}", staged.0);
        assert!(staged.0.contains("(2,") && staged.0.contains("(4,"), "{}", staged.0);
        assert!(staged.2.contains("23503"), "{}", staged.2);
    }
}

/// If pgspate cannot find the refused event, the error gives the place of the first event.
#[test]
fn a_refused_commit_of_many_events_has_a_place() {
    let events = |count: u64| {
        let row = |id| format!("\"row\":{{\"id\":{id},\"p\":{}}}", if id == 70 { 4 } else { 1 });
        let event = |id| format!("{{\"op\":\"insert\",\"table\":\"t\",{},\"tx\":2", row(id));
        let last = event(count + 1) + ",\"end\":true}\n";
        (2..=count).map(|id| event(id) + "}\n").collect::<String>() + &last
    };
    for (count, rows_max, place, said) in [
        (120, 100_000, "line 1", "the 120 events that begin with the insert of public.t"),
        (120, 20, "line 120", "--batch-rows"),
    ] {
        let case = LoadCase::new(CREATE_WITH_DEFERRED_KEY);
        case.put("s.ndjson", events(count));
        let args = format!("s.ndjson --quiet --max-dead-letters 9 --batch-rows {rows_max}");
        let run = apply(&case, &args);
        assert_eq!((run.status, rows(&case, "t").as_str()), (Some(2), "(1,1,a,1)"));
        for said in [said, &format!("at: s.ndjson, {place}\n"), "(p)=(4)"] {
            assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
        }
    }
}

/// A signal stops the search for the refused event.
#[test]
fn the_search_for_the_refused_event_can_be_stopped() {
    let case = LoadCase::new(
        "create table t (id int primary key); create sequence n; \
         create function look() returns trigger language plpgsql as $$ begin \
           perform nextval('n'), pg_sleep(0.02); \
           if new.id > 88 then raise 'no' using errcode = '23503'; end if; return null; end $$; \
         create constraint trigger look after insert on t deferrable initially deferred \
           for each row execute function look()",
    );
    let event =
        |id| format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id}}},\"tx\":1");
    let events: String = (1..90).map(|id| event(id) + "}\n").collect();
    case.put("s.ndjson", events + &event(90) + ",\"end\":true}\n");
    let child = spawn(&mut command(&case, "s.ndjson --quiet --max-dead-letters 9"));
    wait_until("the search has begun", || case.value("select last_value > 300 from n") == "t");
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    let Ok(run) = finish_within(child, Duration::from_secs(60)) else {
        panic!("the run did not stop")
    };
    assert!(run.stderr.contains("stopped by the user"), "{}", run.stderr);
    assert_eq!((run.status, rows(&case, "t").as_str()), (Some(130), ""));
}

/// If other rows refer to a row, the row's key must change by an update. The server checks the
/// updated row's own foreign key at the commit.
#[test]
fn a_key_change_that_the_commit_refuses_is_set_aside() {
    let case = LoadCase::new(
        "create table p (id int primary key); insert into p values (1); \
         create table a (id int primary key, p int references p deferrable initially deferred); \
         create table b (a int references a on update cascade); \
         insert into a values (1, 1), (2, 1); insert into b values (1), (2)",
    );
    let events = r#"{"op":"update","table":"a","old":{"id":1},"row":{"id":11,"p":1}}
{"op":"update","table":"a","old":{"id":2},"row":{"id":12,"p":7}}
"#;
    let report = apply_and_report(&case, events, "--batch-delay 1000 --max-dead-letters 1");
    assert_eq!(report["dead_letters"], 1);
    assert_eq!(
        (rows(&case, "a").as_str(), rows(&case, "b").as_str()),
        ("(11,1) (2,1)", "(11) (2)")
    );
}

/// pgspate finds the end of a transaction even if the last event is of a table that `--tables`
/// excludes, or is a dead letter. Without a mark, the next transaction shows the end.
#[test]
fn transactions_may_end_with_events_that_are_not_applied() {
    for (last, letters) in [("x", 3), ("p", 6), ("", 3)] {
        let mut events = String::new();
        let mut insert = |table: &str, row: &str, more: &str| {
            let event = format!("\"op\":\"insert\",\"table\":\"{table}\",\"row\":{{{row}}}");
            events += &format!("{{{event},{more}}}\n");
        };
        for tx in 1..=3 {
            let (id, more) = (10 + tx, format!("\"tx\":{tx}"));
            insert("p", &format!("\"id\":{id}"), &more);
            insert("t", &format!("\"id\":{id},\"p\":{}", id + 10), &more);
            if !last.is_empty() {
                insert(last, "\"note\":\"\"", &format!("{more},\"end\":true"));
            }
        }
        insert("p", "\"id\":14", "\"tx\":4,\"end\":true");
        let case = LoadCase::new(CREATE_WITH_DEFERRED_KEY);
        let args = "--batch-delay 1000 --max-dead-letters 9 --tables p,t";
        let report = apply_and_report(&case, &events, &format!("{args} --unknown-columns ignore"));
        assert_eq!(report["dead_letters"], letters, "{events}");
        assert_eq!(rows(&case, "p"), "(1) (11) (12) (13) (14)");
        assert_eq!(rows(&case, "t"), "(1,1,a,1)");
    }
}

/// A direct batch sets aside the same events as a staged batch.
#[test]
fn refused_events_of_a_direct_batch_are_set_aside() {
    let events = r#"{"op":"insert","table":"t","row":{"id":2,"u":2,"v":"b","p":1}}
{"op":"insert","table":"t","row":{"id":4,"u":4,"v":"long","p":1}}
{"op":"insert","table":"t","row":{"id":5,"u":1,"v":"e","p":1}}
{"op":"update","table":"t","row":{"id":1,"u":6}}
{"op":"insert","table":"t","row":{"id":7,"u":7,"v":"f","p":1}}
"#;
    for size in [1, 2, 6] {
        let args = format!("--batch-rows {size} --batch-delay 1000 --max-dead-letters 9");
        let [staged, direct] = apply_both_ways(CREATE_WITH_DEFERRED_KEY, events, &args, "t");
        assert_eq!((&staged.0, staged.1), (&direct.0, direct.1), "{size}");
        assert!(direct.0.starts_with("(1,6,a,1) (2,2,b,1)"), "{}", direct.0);
    }
}

/// Only the server knows that two spellings of an interval are one key.
#[test]
fn two_spellings_of_a_key_are_one_key() {
    let tables = "create table log (sql text); \
                  create table t (id interval primary key, v int); \
                  insert into t values ('1 day', 0)";
    let events = r#"{"op":"update","table":"t","row":{"id":"24 hours","v":1}}
{"op":"update","table":"t","row":{"id":"1 day","v":2}}
"#;
    let [staged, direct] = apply_both_ways(tables, events, "--batch-delay 1000", "t");
    assert_eq!(staged, direct);
    assert!(staged.0.ends_with(",2)"), "{}", staged.0);
}

/// A batch whose statement was cancelled is staged, and the next batch is sent directly.
#[test]
fn a_cancelled_batch_does_not_affect_the_next() {
    let tables = "create table log (sql text); create sequence n; \
                  create function note() returns trigger language plpgsql as $$ begin \
                    if nextval('n') = 1 then \
                      raise exception 'once' using errcode = 'query_canceled'; end if; \
                    insert into log values (current_query()); return null; end $$; \
                  create table t (id int primary key); \
                  create trigger seen after insert on t for each statement \
                    execute function note()";
    let events = r#"{"op":"insert","table":"t","row":{"id":1}}
{"op":"insert","table":"t","row":{"id":2}}
"#;
    let case = LoadCase::new(tables);
    let report = apply_and_report(&case, events, "--batch-rows 1");
    assert_eq!((rows(&case, "t").as_str(), counts(&report)), ("(1) (2)", [2, 0, 0, 0]));
    let direct = "select count(*) from log where sql like '%unnest(case%$1::%'";
    assert_eq!(case.value(direct), "1");
}

/// Triggers run under the same settings with and without a stage.
#[test]
fn settings_are_the_same_without_a_stage() {
    let tables = "create table log (sql text); create table set (way text); \
                  create function note() returns trigger language plpgsql as $$ begin \
                    insert into log values (current_query()); \
                    insert into set select string_agg(name || setting, ' ' order by name) \
                      from pg_settings where name ~ '^enable_|^jit$|^work_mem$|^plan_|_mem$'; \
                    return null; end $$; \
                  create table t (id int primary key); \
                  create trigger seen after insert on t for each statement \
                    execute function note()";
    let events = r#"{"op":"insert","table":"t","row":{"id":1}}"#;
    let [staged, direct] = apply_both_ways(tables, events, "", "set");
    assert_eq!(staged.0, direct.0);
    assert!(direct.0.contains("enable_hashjoinoff") && direct.2 == 1, "{}", direct.0);
}

//! Small batches of one table: each is one statement, and the next is sent before its answer.

use std::process::{Child, Command};

use pgspate_embedded::{ThrowawayServer, silent, testing};

use crate::altered_tables::{COUNT, PipedStream};
use crate::proxy::Proxy;
use crate::run::{ask, finish, session, spawn, try_ask, wait_until};
use crate::source::PublishedDatabase;
use crate::support::LoadCase;
use crate::{apply, command, rows};

/// Asks whether a session waits for a lock of another.
const WAITS: &str = "select count(*) > 0 from pg_locks l join pg_stat_activity a using (pid) \
                     where not l.granted and a.datname = current_database()";

const LOCK_ROW: &str = "begin; select from t where id = 0 for update";

fn insert(id: u32) -> String {
    format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id},\"v\":1}}}}\n")
}

/// An update of the row that a test locks.
fn update() -> String {
    "{\"op\":\"update\",\"table\":\"t\",\"row\":{\"id\":0,\"v\":1}}\n".to_owned()
}

/// Returns the number of batches that were sent through the proxy as one statement.
fn statements_sent(proxy: &Proxy) -> usize {
    let log = proxy.log();
    log.lines().filter(|line| line.contains(" -> B ") && line.ends_with(" commit")).count()
}

/// Returns the events of seven batches. The first one opens the session, and the second one waits
/// for the row that a test locks.
fn events_with_update() -> String {
    insert(1) + &update() + &(2..=6).map(insert).collect::<String>()
}

/// Conditions of the user's run under the user's search path. A statement that failed would be
/// repeated in another way, which sends more messages. A new statement is prepared while answers
/// are on their way.
#[test]
fn each_batch_is_one_statement() {
    let case = LoadCase::new(
        "create table allowed (id int); insert into allowed select generate_series(0, 100); \
         create function is_allowed(int) returns bool language plpgsql as \
           'begin return exists (select from allowed where id = $1); end'; \
         create table t (id int primary key, v int, check (is_allowed(id)))",
    );
    case.put("a.ndjson", insert(0));
    apply(&case, "a.ndjson --quiet").success();
    let delete = "{\"op\":\"delete\",\"table\":\"t\",\"key\":{\"id\":40}}\n";
    let events: String = (1..=40).map(insert).collect();
    case.put("s.ndjson", events.clone() + delete + &update());
    let proxy = Proxy::start(&case.db.dsn(), None);
    let mut command = case.command(&["apply", "--to", &proxy.dsn(), "s.ndjson", "--quiet"]);
    let run = finish(spawn(command.args(["--batch-rows", "1", "--batch-delay", "60000"])));
    assert_eq!((run.status, case.value(COUNT).as_str()), (Some(0), "40"), "{}", run.stderr);
    let (sent, log) = (statements_sent(&proxy), proxy.log());
    assert!(sent >= 41, "{sent} batches\n{log}");
    assert!(!log.contains(" <- E "), "{log}");
}

/// A failed batch stops the batches behind it, which may be at the server already.
#[test]
fn a_failed_batch_stops_those_behind_it() {
    for (letters, status, expected, events) in
        [(0, 2, "(0,1) (1,1)", "2"), (1, 1, "(0,1) (1,1) (3,1) (4,1) (5,1) (6,1)", "7")]
    {
        let case = LoadCase::new("create table t (id int primary key check (id <> 2), v int)");
        case.db.run("insert into t values (0, 0)");
        case.put("s.ndjson", events_with_update());
        let (runtime, holder) = session(&case.db.dsn());
        runtime.block_on(holder.batch_execute(LOCK_ROW)).unwrap();
        let proxy = Proxy::start(&case.db.dsn(), None);
        let mut command = case.command(&["apply", "--to", &proxy.dsn(), "s.ndjson", "--quiet"]);
        command.args(["--batch-rows", "1", "--max-dead-letters", &letters.to_string()]);
        let child = spawn(&mut command);
        wait_until("batches are sent behind one that waits for the row", || {
            case.value(WAITS) == "t" && statements_sent(&proxy) >= 3
        });
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        let run = finish(child);
        assert_eq!(run.status, Some(status), "{}", run.stderr);
        assert_eq!(rows(&case, "t"), expected);
        assert_eq!(case.value("select ordinal from pgspate.stream"), events);
        assert_eq!(case.value("select count(*) from pgspate.dead_letter"), letters.to_string());
    }
}

/// Statements behind one that waits in vain for a lock are not waited for.
#[test]
fn a_lock_timeout_is_paid_for_one_batch() {
    let case = LoadCase::new("create table t (id int primary key, v int)");
    case.db.run("insert into t values (0, 0)");
    case.put("s.ndjson", events_with_update());
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute(LOCK_ROW)).unwrap();
    let run = apply(&case, "s.ndjson --quiet --batch-rows 1 --lock-timeout 1");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("lock timeout"), "{}", run.stderr);
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    assert_eq!(rows(&case, "t"), "(0,0) (1,1)");
    apply(&case, "s.ndjson --quiet --batch-rows 1").success();
    assert_eq!(rows(&case, "t"), "(0,1) (1,1) (2,1) (3,1) (4,1) (5,1) (6,1)");
}

/// Another process takes the stream over while a statement waits for a row.
#[test]
fn a_waiting_statement_does_not_stop_another_process() {
    let case = LoadCase::new("create table t (id int primary key, v int)");
    case.db.run("insert into t values (0, 0)");
    case.put("s.ndjson", events_with_update());
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute(LOCK_ROW)).unwrap();
    let start = || spawn(&mut command(&case, "s.ndjson --quiet --batch-rows 1"));
    let first = start();
    wait_until("a batch waits for the row", || case.value(WAITS) == "t");
    let second = start();
    let fence = "select fence from pgspate.stream";
    wait_until("the second process has the stream", || case.value(fence) == "2");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    let first = finish(first);
    assert_eq!(first.status, Some(2), "{}", first.stderr);
    assert!(first.stderr.contains("taken over by another pgspate"), "{}", first.stderr);
    finish(second).success();
    assert_eq!(rows(&case, "t"), "(0,1) (1,1) (2,1) (3,1) (4,1) (5,1) (6,1)");
}

/// A table is altered while statements wait for it.
#[test]
fn batches_in_flight_notice_an_altered_table() {
    let case = LoadCase::new("create table t (id int primary key, v numeric(4, 1))");
    let mut stream = PipedStream::new(&case, "--batch-rows 1");
    stream.send(r#"{"op":"insert","row":{"id":0,"v":1.25}}"#, COUNT, "1");
    let (runtime, holder) = session(&case.db.dsn());
    let alter = "begin; alter table t alter v type numeric";
    runtime.block_on(holder.batch_execute(alter)).unwrap();
    for id in 1..30 {
        stream.write(&format!("{{\"op\":\"insert\",\"row\":{{\"id\":{id},\"v\":1.25}}}}"));
    }
    wait_until("a batch waits for the table", || case.value(WAITS) == "t");
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    stream.end().success();
    assert_eq!(case.value("select count(*) from t where v = 1.25"), "29");
}

const CRASH_TABLE: &str = "create table t (id int primary key, v int)";
const CRASH_ROWS: u32 = 60;

/// Returns the rows of table t.
fn rows_of(dsn: &str) -> String {
    let sql = "select string_agg(t::text, ' ' order by t::text) from t";
    try_ask(dsn, sql).unwrap_or_default()
}

fn send_signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

/// Starts a run that has committed batches whose commits are not on the disk, and that waits for a
/// row. The WAL writer is stopped. Returns the run and the WAL writer's process.
fn start_with_late_commits(
    source: &PublishedDatabase,
    target: &ThrowawayServer,
    case: &LoadCase,
) -> (Child, String) {
    let dsn = target.dsn();
    let writer = "select pid from pg_stat_activity where backend_type = 'walwriter'";
    let writer = ask(&dsn, writer);
    send_signal("-STOP", &writer);
    for id in 1..CRASH_ROWS {
        source.run(&format!("insert into t values ({id}, 1)"));
    }
    source.run("update t set v = 1 where id = 0;\ninsert into t values (1000, 1)");
    let mut follow = case.command(&["apply", "--to", &dsn, "--follow", "--quiet"]);
    follow.args(["--batch-rows", "1", "--retry-for", "120"]).arg(source.slot());
    let child = spawn(&mut follow);
    wait_until("a batch waits for the row", || ask(&dsn, WAITS) == "t");
    let is_late = "select pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()";
    println!("some commits are not on the disk: {}", ask(&dsn, is_late));
    (child, writer)
}

/// A crash of the target loses commits that did not wait for the disk. The source has no event
/// before the position that is confirmed to it.
#[test]
fn a_crash_of_the_target_loses_and_doubles_no_batch() {
    let source = PublishedDatabase::new(&format!(
        "{CRASH_TABLE};\ninsert into t values (0, 0);\ncreate publication p for table t"
    ));
    let target = testing::builder()
        .conf("wal_writer_delay = 10s\nautovacuum = off\n")
        .start(&silent)
        .unwrap_or_else(|error| panic!("{}", error.chain()));
    let dsn = target.dsn();
    ask(&dsn, CRASH_TABLE);
    ask(&dsn, "insert into t values (0, 0)");
    let case = LoadCase::new(CRASH_TABLE);
    let run = |args: &[&str]| {
        let mut command = case.command(&["apply", "--to", &dsn, "--quiet", "--json"]);
        let run = finish(spawn(command.args(args).arg(source.slot())));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        serde_json::from_str::<serde_json::Value>(&run.stdout).unwrap()
    };
    run(&["--create-slot"]);
    let mut events = u64::from(CRASH_ROWS) + 1;
    for kills_run in [false, true] {
        let (runtime, holder) = session(&dsn);
        runtime.block_on(holder.batch_execute(LOCK_ROW)).unwrap();
        let (mut child, wal_writer) = start_with_late_commits(&source, &target, &case);
        if kills_run {
            child.kill().unwrap();
        }
        // The server restarts all its processes if one of them dies.
        send_signal("-KILL", &wal_writer);
        if kills_run {
            child.wait().unwrap();
        } else {
            wait_until("all rows are there", || rows_of(&dsn) == source.rows("t"));
            crate::slot_faults::interrupt(&child);
            // Status 1: the counts of the batch that the crash has cut off may be missing.
            let run = finish(child);
            assert!(matches!(run.status, Some(0 | 1)), "{}", run.stderr);
        }
        wait_until("the target is back", || try_ask(&dsn, "select 1").is_ok());
        run(&[]);
        assert_eq!(rows_of(&dsn), source.rows("t"));
        assert_eq!(run(&[])["events"], 0);
        assert_eq!(ask(&dsn, "select ordinal from pgspate.stream"), events.to_string());
        source.run("delete from t where id > 0;\nupdate t set v = 0");
        run(&[]);
        events += 2 * (u64::from(CRASH_ROWS) + 1);
    }
}

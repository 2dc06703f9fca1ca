//! Connections lost at any message: no event is lost, and none is applied twice.
//!
//! `PGSPATE_TEST_FAULTS=300` tries 300 random faults instead of a few.

use std::fmt::Write as _;
use std::time::Duration;

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::protocol::MessageSide;
use crate::proxy::{Proxy, StallRelease};
use crate::run::{finish, finish_within, session, spawn, wait_until};
use crate::support::LoadCase;
use crate::{apply, counts, rows};

const CREATE_TABLES: &str = "\
create table parent (id int primary key, code text unique);
create table t (id int primary key, parent int references parent, v int);
create table log (n bigint generated always as identity, id int, v int);
create function note() returns trigger language plpgsql as $$ begin
  insert into log (id, v) values (new.id, new.v); return new; end $$;
create trigger note after insert or update on t for each row execute function note()";

const EVENT_COUNT: u64 = 1200;

/// Returns events that increase the number of each row by one. A lost or repeated event changes the
/// final number.
fn events() -> String {
    let mut events = String::new();
    for nth in 0..EVENT_COUNT {
        let (id, v) = (nth % 7, nth / 7);
        if v == 0 {
            let row = format!(r#"{{"id":{id},"code":"c{id}"}}"#);
            writeln!(events, r#"{{"op":"insert","table":"parent","row":{row},"tx":{nth}}}"#)
                .unwrap();
        }
        let op = if v == 0 { "insert" } else { "update" };
        writeln!(
            events,
            "{{\"op\":\"{op}\",\"table\":\"t\",\"row\":{{\"id\":{id},\"parent\":{id},\"v\":{v}}},\
             \"tx\":{nth},\"end\":true}}"
        )
        .unwrap();
    }
    events
}

/// Runs the stream with a fault, and again without a fault. An error describes the broken rule.
fn run_with_fault(plan: FaultPlan) -> Result<(), String> {
    let case = LoadCase::new(CREATE_TABLES);
    case.put("s.ndjson", events());
    let args = "s.ndjson --quiet --batch-rows 150 --batch-delay 0 --retry-for 20";
    let proxy = Proxy::start(&case.db.dsn(), Some(plan));
    let mut command = case.command(&["apply", "--to", &proxy.dsn()]);
    let mut child = spawn(command.args(args.split_whitespace()));
    let mut is_over = false;
    wait_until("the fault has fired or the run has ended", || {
        is_over = child.try_wait().unwrap().is_some();
        is_over || proxy.has_fired()
    });
    if !is_over {
        std::thread::sleep(Duration::from_millis(20));
        proxy.release(StallRelease::Cut);
    }
    let first = finish_within(child, Duration::from_secs(60));
    let log = || proxy.log().lines().rev().take(30).collect::<Vec<_>>().join("\n");
    let first = first.map_err(|run| format!("the run does not end: {}\n{}", run.stderr, log()))?;
    proxy.disarm();
    if !matches!(first.status, Some(0..=2)) {
        return Err(format!("the run ended with {:?}: {}", first.status, first.stderr));
    }
    let second = apply(&case, args);
    if second.status != Some(0) {
        return Err(format!(
            "the second run says: {}; the first said: {}",
            second.stderr, first.stderr
        ));
    }
    let last: String = (0..7)
        .map(|id| format!("({id},{id},{}) ", (EVENT_COUNT - 1 - id) / 7))
        .collect::<String>()
        .trim_end()
        .to_owned();
    let twice = "select count(*) from (select from log group by id, v having count(*) > 1) x";
    let found = (rows(&case, "t"), case.value(twice));
    match found == (last.clone(), "0".to_owned()) {
        true => Ok(()),
        false => Err(format!("found {found:?}, expected {last}; {}", first.stderr)),
    }
}

/// Returns the number of messages of a run without a fault.
fn count_messages() -> u64 {
    let case = LoadCase::new(CREATE_TABLES);
    case.put("s.ndjson", events());
    let proxy = Proxy::start(&case.db.dsn(), None);
    let mut command = case.command(&["apply", "--to", &proxy.dsn()]);
    let args = "s.ndjson --quiet --batch-rows 150 --batch-delay 0";
    let run = finish(spawn(command.args(args.split_whitespace())));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    proxy.counts().0
}

/// The reply to a commit is lost. The report still counts the dead letters of that commit.
#[test]
fn a_lost_reply_to_a_commit_loses_no_counts() {
    let case = LoadCase::new("create table t (id int primary key check (id <> 2))");
    let insert = |id| format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id}}}}}\n");
    // This run creates the ledger, so that the next run's first commit is the commit of the batch.
    case.put("a.ndjson", insert(9));
    apply(&case, "a.ndjson --quiet").success();
    case.put("s.ndjson", (1..4).map(insert).collect::<String>());
    let proxy = Proxy::start(
        &case.db.dsn(),
        Some(FaultPlan::new(Fault::SwallowCommit, FaultPlace::Commit(1))),
    );
    let mut command = case.command(&["apply", "--to", &proxy.dsn(), "s.ndjson", "--json"]);
    command.args(["--quiet", "--max-dead-letters", "1", "--retry-for", "20"]);
    command.args(["--batch-delay", "60000"]);
    let run = finish(spawn(&mut command));
    assert!(proxy.has_fired());
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["dead_letters"], counts(&report)), (&1.into(), [2, 0, 0, 0]));
    assert_eq!(rows(&case, "t"), "(1) (3) (9)");
}

/// A direct batch and its commit are one message, and the reply to the commit is lost. If the
/// counts arrived before the loss, the report has them. Otherwise the run says that they are
/// missing.
#[test]
fn a_lost_reply_to_a_direct_commit_is_counted_or_reported() {
    let case =
        LoadCase::new("create table t (id int primary key, v int); insert into t values (9, 0)");
    let (runtime, holder) = session(&case.db.dsn());
    let ask = |sql| runtime.block_on(holder.batch_execute(sql)).unwrap();
    let run = |id: u64, plan: Option<FaultPlan>| {
        let event = |op, id| {
            let row = format!("{{\"id\":{id},\"v\":{}}}", id + 1);
            format!("{{\"op\":\"{op}\",\"table\":\"t\",\"row\":{row}}}\n")
        };
        let file = format!("{id}.ndjson");
        case.put(&file, [event("insert", id), event("delete", id - 1)].concat());
        let proxy = Proxy::start(&case.db.dsn(), plan);
        let mut command = case.command(&["apply", "--to", &proxy.dsn(), &file, "--json"]);
        let child = spawn(command.args(["--quiet", "--batch-delay", "60000"]));
        if plan.is_some_and(|plan| plan.fault == Fault::SwallowCommit) {
            // The proxy forwards no reply until the commit was sent.
            wait_until("the commit was sent", || proxy.has_fired());
            ask("rollback");
        }
        let run = finish(child);
        assert_eq!(proxy.has_fired(), plan.is_some());
        let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        let is_counted = report["uncounted"] == 0;
        assert_eq!(run.status, Some(i32::from(!is_counted)), "{}", run.stderr);
        (report, proxy.log().matches(" <- C ").count() as u64)
    };
    // This run creates the ledger.
    run(10, None);
    let (report, answers) = run(11, None);
    assert_eq!(counts(&report), [1, 0, 1, 0], "{report}");
    let last = FaultPlan::new(Fault::Cut, FaultPlace::Kind(MessageSide::Server, b'C', answers));
    let (report, _) = run(12, Some(last));
    assert_eq!((counts(&report), &report["warnings"]), ([1, 0, 1, 0], &serde_json::json!([])));
    ask("begin; select from t where id = 12 for update");
    let (report, _) = run(13, Some(FaultPlan::new(Fault::SwallowCommit, FaultPlace::Commit(1))));
    assert!(
        report["warnings"][0].as_str().unwrap().contains("to 1 committed batch were lost"),
        "{report}"
    );
    assert_eq!(report["uncounted"], 1);
    assert_eq!(rows(&case, "t"), "(13,14)");
}

#[test]
fn random_faults_lose_and_double_no_event() {
    let many = std::env::var("PGSPATE_TEST_FAULTS").ok().map(|many| many.parse::<u64>().unwrap());
    let count = many.unwrap_or(16);
    let all = count_messages();
    let kinds = [
        Fault::Cut,
        Fault::CutInside,
        Fault::CutAfter,
        Fault::Lose,
        Fault::Stall,
        Fault::SwallowCommit,
    ];
    let mut failures = Vec::new();
    for nth in 0..count {
        let fault = kinds[nth as usize % kinds.len()];
        let at = match fault {
            Fault::SwallowCommit => FaultPlace::Commit(1 + nth / 6 % 11),
            // Spread the faults over the run. No two faults hit the same message.
            _ => FaultPlace::Message(1 + (nth * all / count + nth * 7) % all),
        };
        let plan = FaultPlan::new(fault, at);
        println!("{plan}");
        if let Err(what) = run_with_fault(plan) {
            failures.push(format!("{plan}: {what}"));
        }
    }
    println!("tried {count} faults, spread over {all} messages");
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
}

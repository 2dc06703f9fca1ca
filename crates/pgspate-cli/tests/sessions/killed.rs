//! Sessions that outlive their client: what a killed load had sent is still being written when the
//! same load is run again at once.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use crate::chance::{TestRandom, from_environment};
use crate::run::{finish, session, spawn, wait_until};
use crate::support::LoadCase;

const ROWS: u64 = 200_000;

/// Keeps the key.
const LOAD: &str = "t.csv --commit chunk --rebuild-indexes never --quiet";

/// About 20 MB, five chunks.
fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id bigint primary key, note text)");
    let mut text = "id,note\n".to_owned();
    (0..ROWS).for_each(|id| writeln!(text, "{id},{:>90}", id * 7).unwrap());
    case.put("t.csv", text);
    case
}

#[track_caller]
fn assert_complete(case: &LoadCase, what: &str) {
    let sql = "select concat_ws(' ', count(*), min(id), max(id)) from t";
    assert_eq!(case.value(sql), format!("{ROWS} 0 {}", ROWS - 1), "{what}");
}

#[test]
fn lanes_of_a_killed_load_are_waited_for() {
    let case = case();
    let (runtime, holder) = session(&case.db.dsn());
    let sql = format!("begin; insert into t values ({}, 'of another session')", ROWS - 1);
    runtime.block_on(holder.batch_execute(&sql)).unwrap();
    let mut child = spawn(&mut case.load_command(&format!("{LOAD} --lanes 1")));
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database() and application_name like 'pgspate%'";
    wait_until("the last chunk waits for the key", || case.value(waits) == "1");
    child.kill().unwrap();
    child.wait().unwrap();
    let again = spawn(&mut case.load_command(LOAD));
    let theirs = "select count(*) from pg_stat_activity where datname = current_database() \
                  and application_name like 'pgspate%' \
                  and backend_start > (select max(query_start) from pg_stat_activity \
                                       where wait_event_type = 'Lock' \
                                         and datname = current_database())";
    wait_until("the load is run again", || case.value(theirs) != "0");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(again).success();
    assert_complete(&case, "run again");
}

#[test]
fn lanes_of_a_killed_load_that_are_stuck_are_ended() {
    let case = case();
    let (runtime, holder) = session(&case.db.dsn());
    let sql = "begin; insert into t values (100000, 'of another session')";
    runtime.block_on(holder.batch_execute(sql)).unwrap();
    let mut child = spawn(&mut case.load_command(&format!("{LOAD} --lanes 2")));
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database() and application_name like 'pgspate%'";
    wait_until("a chunk waits for the key", || case.value(waits) != "0");
    child.kill().unwrap();
    child.wait().unwrap();
    let stuck = "select string_agg(pid::text, ',') from pg_stat_activity \
                 where wait_event_type = 'Lock' and datname = current_database()";
    let stuck = case.value(stuck);
    let again = spawn(&mut case.load_command(LOAD));
    let gone = format!("select count(*) from pg_stat_activity where pid in ({stuck})");
    wait_until("they are gone", || case.value(&gone) == "0");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(again).success();
    assert_complete(&case, "run again");
}

/// `PGSPATE_TEST_KILLS` says how many loads are killed (6 by default).
#[test]
fn a_killed_load_is_run_again_at_once() {
    for seed in 1..=from_environment("PGSPATE_TEST_KILLS").unwrap_or(6) {
        let (case, mut chance) = (case(), TestRandom::new(seed));
        for _ in 0..chance.among(1..=2) {
            let lanes = format!("{LOAD} --lanes {}", chance.among(1..=3));
            let mut child = spawn(&mut case.load_command(&lanes));
            thread::sleep(Duration::from_millis(chance.among(50..=1200)));
            let _ = child.kill();
            child.wait().unwrap();
        }
        finish(spawn(&mut case.load_command(LOAD))).success();
        assert_complete(&case, &format!("seed {seed}"));
    }
}

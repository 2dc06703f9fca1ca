//! Sessions that outlive their client. The server still writes the data of a killed load when the
//! same load is run again at once.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use crate::run::{finish, session, spawn, wait_until};
use crate::support::LoadCase;
use crate::test_random::{TestRandom, from_environment};

const ROWS: u64 = 200_000;

/// The arguments of a load that commits each chunk and keeps the primary key.
const LOAD_ARGS: &str = "t.csv --commit chunk --rebuild-indexes never --quiet";

/// Returns a case with a file of about 20 MB, which is five chunks.
fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id bigint primary key, note text)");
    let mut text = "id,note\n".to_owned();
    (0..ROWS).for_each(|id| writeln!(text, "{id},{:>90}", id * 7).unwrap());
    case.put("t.csv", text);
    case
}

/// Asserts that the table has every row once.
#[track_caller]
fn assert_complete(case: &LoadCase, what: &str) {
    let sql = "select concat_ws(' ', count(*), min(id), max(id)) from t";
    assert_eq!(case.value(sql), format!("{ROWS} 0 {}", ROWS - 1), "{what}");
}

#[test]
fn a_repeated_load_waits_for_lanes_of_the_killed_load() {
    let case = case();
    let (runtime, holder) = session(&case.db.dsn());
    let sql = format!("begin; insert into t values ({}, 'of another session')", ROWS - 1);
    runtime.block_on(holder.batch_execute(&sql)).unwrap();
    let mut child = spawn(&mut case.load_command(&format!("{LOAD_ARGS} --lanes 1")));
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database() and application_name like 'pgspate%'";
    wait_until("the last chunk waits for the key", || case.value(waits) == "1");
    child.kill().unwrap();
    child.wait().unwrap();
    let again = spawn(&mut case.load_command(LOAD_ARGS));
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
fn a_repeated_load_terminates_blocked_lanes_of_the_killed_load() {
    let case = case();
    let (runtime, holder) = session(&case.db.dsn());
    let sql = "begin; insert into t values (100000, 'of another session')";
    runtime.block_on(holder.batch_execute(sql)).unwrap();
    let mut child = spawn(&mut case.load_command(&format!("{LOAD_ARGS} --lanes 2")));
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database() and application_name like 'pgspate%'";
    wait_until("a chunk waits for the key", || case.value(waits) != "0");
    child.kill().unwrap();
    child.wait().unwrap();
    let stuck = "select string_agg(pid::text, ',') from pg_stat_activity \
                 where wait_event_type = 'Lock' and datname = current_database()";
    let stuck = case.value(stuck);
    let again = spawn(&mut case.load_command(LOAD_ARGS));
    let gone = format!("select count(*) from pg_stat_activity where pid in ({stuck})");
    wait_until("they are gone", || case.value(&gone) == "0");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(again).success();
    assert_complete(&case, "run again");
}

/// `PGSPATE_TEST_KILLS` is the number of loads to kill (default 6).
#[test]
fn a_killed_load_can_be_run_again_at_once() {
    for seed in 1..=from_environment("PGSPATE_TEST_KILLS").unwrap_or(6) {
        let (case, mut random) = (case(), TestRandom::new(seed));
        for _ in 0..random.among(1..=2) {
            let lanes = format!("{LOAD_ARGS} --lanes {}", random.among(1..=3));
            let mut child = spawn(&mut case.load_command(&lanes));
            thread::sleep(Duration::from_millis(random.among(50..=1200)));
            let _ = child.kill();
            child.wait().unwrap();
        }
        finish(spawn(&mut case.load_command(LOAD_ARGS))).success();
        assert_complete(&case, &format!("seed {seed}"));
    }
}

//! Other sessions, lost ones, and statistics that lie.

use std::fmt::Write as _;

use crate::run::{ask, session, wait_until};
use crate::support::LoadCase;
use crate::{command, counts, finish, interrupt, spawn};

fn rows(count: u32, add: u32) -> String {
    let mut text = "id,scope,n\n".to_owned();
    (0..count).for_each(|id| writeln!(text, "{id},{},{}", id % 10, id + add).unwrap());
    text
}

fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id int primary key, scope int, n int)");
    case.put("t.csv", rows(20_000, 0));
    counts(&case, "t.csv --scope all");
    case.put("t.csv", rows(20_000, 1));
    case
}

fn waits(case: &LoadCase) -> bool {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() \
               and wait_event_type = 'Lock'";
    case.value(sql) != "0"
}

#[test]
fn a_row_that_another_session_has_changed_meanwhile() {
    let case = case();
    let (runtime, other) = session(&case.db.dsn());
    runtime.block_on(other.batch_execute("begin; update t set n = -1 where id = 7")).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all --quiet"));
    wait_until("the sync waits for the row", || waits(&case));
    runtime.block_on(other.batch_execute("commit")).unwrap();
    // Its snapshot is older than the change: it begins again with another.
    finish(child).success();
    assert_eq!(case.value("select count(*) from t where n = id + 1"), "20000");
}

#[test]
fn two_syncs_of_one_scope_queue_up() {
    let case = case();
    let (runtime, other) = session(&case.db.dsn());
    runtime.block_on(other.batch_execute("begin; select from t where id = 7 for update")).unwrap();
    let first = spawn(&mut command(&case, "t.csv --scope all --quiet"));
    wait_until("the first sync waits for the row", || waits(&case));
    case.put("u.csv", rows(20_000, 2));
    let second = spawn(&mut command(&case, "u.csv --table t --scope all --quiet"));
    let advisory = "select count(*) from pg_locks l join pg_database d on d.oid = l.database \
                    where locktype = 'advisory' and not granted and datname = current_database()";
    wait_until("the second sync waits for the first", || case.value(advisory) == "1");
    runtime.block_on(other.batch_execute("commit")).unwrap();
    finish(first).success();
    finish(second).success();
    assert_eq!(case.value("select count(*) from t where n = id + 2"), "20000");
}

#[test]
fn a_sync_that_is_killed_leaves_the_old_rows() {
    let case = case();
    let (runtime, other) = session(&case.db.dsn());
    runtime
        .block_on(other.batch_execute("begin; select from t where id = 19999 for update"))
        .unwrap();
    let mut child = spawn(&mut command(&case, "t.csv --scope all --quiet"));
    wait_until("the sync waits for the last row", || waits(&case));
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(other.batch_execute("commit")).unwrap();
    wait_until("its session is gone", || case.is_quiet());
    assert_eq!(case.value("select count(*) from t where n = id"), "20000");
    assert_eq!(counts(&case, "t.csv --scope all"), [0, 20_000, 0, 0]);
}

#[test]
fn statistics_that_lie_do_not_lead_to_nested_loops() {
    let case = LoadCase::new("create table t (id int, scope int, n int)");
    // As if the table were empty, and without an index for the key.
    case.db.run("alter table t set (autovacuum_enabled = off); analyze t");
    case.db.run("insert into t select i, i % 10, i from generate_series(0, 19999) i");
    case.put("t.csv", rows(20_000, 1));
    let mut command = command(&case, "t.csv --key id --scope all --quiet");
    let child = spawn(command.env("PGOPTIONS", "-c enable_hashjoin=off -c enable_mergejoin=off"));
    // A nested loop would compare 400 million pairs, three times.
    finish(child).success();
    assert_eq!(ask(&case.db.dsn(), "select count(*) from t where n = id + 1"), "20000");
}

#[test]
fn an_interrupt_rolls_back() {
    let case = case();
    let (runtime, other) = session(&case.db.dsn());
    runtime.block_on(other.batch_execute("begin; select from t where id = 7 for update")).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all --quiet"));
    wait_until("the sync waits for the row", || waits(&case));
    interrupt(&child);
    assert_eq!(finish(child).status, Some(130));
    runtime.block_on(other.batch_execute("commit")).unwrap();
    assert_eq!(case.value("select count(*) from t where n = id"), "20000");
}

//! Tests of syncs beside other sessions, of killed syncs, and of wrong statistics.

use std::fmt::Write as _;

use crate::run::{ask, session, try_ask, wait_until};
use crate::support::LoadCase;
use crate::{command, counts, finish, interrupt, spawn};

fn csv_text(count: u32, add: u32) -> String {
    let mut text = "id,scope,n\n".to_owned();
    (0..count).for_each(|id| writeln!(text, "{id},{},{}", id % 10, id + add).unwrap());
    text
}

fn new_case() -> LoadCase {
    let case = LoadCase::new("create table t (id int primary key, scope int, n int)");
    case.put("t.csv", csv_text(20_000, 0));
    counts(&case, "t.csv --scope all");
    case.put("t.csv", csv_text(20_000, 1));
    case
}

/// Returns whether a session of the database waits for a lock.
fn is_waiting_for_lock(case: &LoadCase) -> bool {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() \
               and wait_event_type = 'Lock'";
    case.value(sql) != "0"
}

/// A small sync has one session, whose transaction cannot upgrade the ledger.
#[test]
fn a_small_sync_upgrades_the_ledger_before_it_writes() {
    let case = new_case();
    case.put("o.csv", "id\n1\n");
    case.load("o.csv --table o --create --quiet").success();
    case.db.run(
        "drop table pgspate.part, pgspate.fleet_job, pgspate.request, pgspate.stream_file; \
         update pgspate.version set version = 4",
    );
    finish(spawn(&mut command(&case, "t.csv --scope all --quiet"))).success();
    assert_eq!(case.value("select count(*) from t where n = id + 1"), "20000");
    assert_eq!(case.value("select version from pgspate.version"), "9");
}

#[test]
fn a_sync_retries_if_another_session_changed_a_row() {
    let case = new_case();
    let (runtime, other) = session(&case.db.dsn());
    runtime.block_on(other.batch_execute("begin; update t set n = -1 where id = 7")).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all --quiet"));
    wait_until("the sync waits for the row", || is_waiting_for_lock(&case));
    runtime.block_on(other.batch_execute("commit")).unwrap();
    // The snapshot of the sync is older than the change, so the sync retries with a new snapshot.
    finish(child).success();
    assert_eq!(case.value("select count(*) from t where n = id + 1"), "20000");
}

/// The snapshot of the sync does not have the other session's row, so the first INSERT is refused.
#[test]
fn a_sync_retries_if_another_session_inserted_a_key_of_the_source() {
    for args in ["", "--read-ahead always", "--transactions 2", "--lanes 2"] {
        let case = new_case();
        case.db.run("delete from t where id = 7");
        let (runtime, other) = session(&case.db.dsn());
        runtime.block_on(other.batch_execute("begin; insert into t values (7, 7, -1)")).unwrap();
        let child = spawn(&mut command(&case, &format!("t.csv --scope-by id {args} --quiet")));
        wait_until("the sync waits for the row", || is_waiting_for_lock(&case));
        runtime.block_on(other.batch_execute("commit")).unwrap();
        finish(child).success();
        assert_eq!(case.value("select count(*) from t where n = id + 1"), "20000", "{args}");
    }
}

/// The stage has the new type, and the rows are encoded for the old one.
#[test]
fn a_sync_refuses_another_type_of_a_column() {
    for args in ["", "--read-ahead always", "--transactions 2", "--lanes 2"] {
        let case = new_case();
        let (runtime, other) = session(&case.db.dsn());
        runtime.block_on(other.batch_execute("begin; lock table t")).unwrap();
        let args = format!("t.csv --scope-by id {args} --quiet");
        let child = spawn(&mut command(&case, &args));
        // The sync has read the catalog when it waits for the lock.
        wait_until("the sync waits for the table", || is_waiting_for_lock(&case));
        let alter = "alter table t alter n type real; commit";
        runtime.block_on(other.batch_execute(alter)).unwrap();
        let run = finish(child);
        assert_eq!(run.status, Some(2), "{args}: {}{}", run.stdout, run.stderr);
        let altered = "another session has changed the type of a column";
        assert!(run.stderr.contains(altered), "{args}: {}", run.stderr);
        assert_eq!(case.value("select count(*) from t where n = id"), "20000", "{args}");
        finish(spawn(&mut command(&case, &args))).success();
        assert_eq!(case.value("select count(*) from t where n = id + 1"), "20000", "{args}");
    }
}

/// A row outside of the scope has the unique value, so no retry helps.
#[test]
fn a_value_that_a_row_outside_of_the_scope_has_is_refused() {
    let case = LoadCase::new("create table t (id int primary key, scope int, n int unique)");
    case.db.run("insert into t values (1, 1, 5)");
    case.put("t.csv", "id,scope,n\n2,2,5\n");
    let run = finish(spawn(&mut command(&case, "t.csv --scope-by scope --quiet")));
    assert_eq!(run.status, Some(2));
    assert!(run.stderr.contains("could not insert rows"), "{}", run.stderr);
    assert_eq!(case.rows("t").join(" "), "(1,1,5)");
}

#[test]
fn two_syncs_of_one_scope_run_one_after_the_other() {
    let case = new_case();
    let (runtime, other) = session(&case.db.dsn());
    runtime.block_on(other.batch_execute("begin; select from t where id = 7 for update")).unwrap();
    let first = spawn(&mut command(&case, "t.csv --scope all --quiet"));
    wait_until("the first sync waits for the row", || is_waiting_for_lock(&case));
    case.put("u.csv", csv_text(20_000, 2));
    let second = spawn(&mut command(&case, "u.csv --table t --scope all --quiet"));
    let advisory = "select count(*) from pg_locks l join pg_database d on d.oid = l.database \
                    where locktype = 'advisory' and not granted and datname = current_database()";
    wait_until("the second sync waits for the first", || case.value(advisory) == "1");
    runtime.block_on(other.batch_execute("commit")).unwrap();
    finish(first).success();
    finish(second).success();
    assert_eq!(case.value("select count(*) from t where n = id + 2"), "20000");
}

/// No index refuses the key that the first sync inserts, and the second one would not see it.
#[test]
fn two_syncs_of_different_scopes_wait_for_each_other_without_a_unique_key() {
    let scopes = ["--scope all", "--no-delete", "--scope id>=0", "--scope-by scope"];
    for (nth, first) in scopes.iter().enumerate() {
        let second = scopes[(nth + 1) % scopes.len()];
        let case = LoadCase::new("create table t (id int, scope int, n int)");
        case.put("t.csv", csv_text(1000, 1));
        case.put("u.csv", csv_text(1000, 2));
        let (runtime, other) = session(&case.db.dsn());
        runtime.block_on(other.batch_execute("begin; lock table t in share mode")).unwrap();
        let first = spawn(&mut command(&case, &format!("t.csv --key id {first} --quiet")));
        wait_until("the first sync waits to insert", || is_waiting_for_lock(&case));
        let args = format!("u.csv --table t --key id {second} --quiet");
        let second = spawn(&mut command(&case, &args));
        let advisory = "select count(*) from pg_stat_activity \
                        where wait_event = 'advisory' and datname = current_database()";
        wait_until("the second sync waits for the first", || case.value(advisory) == "1");
        runtime.block_on(other.batch_execute("commit")).unwrap();
        finish(first).success();
        finish(second).success();
        let rows = "select count(*) || ' ' || count(distinct id) || ' ' || sum(n - id) from t";
        assert_eq!(case.value(rows), "1000 1000 2000", "{args}");
    }
}

#[test]
fn a_killed_sync_leaves_the_old_rows() {
    let case = new_case();
    let (runtime, other) = session(&case.db.dsn());
    runtime
        .block_on(other.batch_execute("begin; select from t where id = 19999 for update"))
        .unwrap();
    let mut child = spawn(&mut command(&case, "t.csv --scope all --quiet"));
    wait_until("the sync waits for the last row", || is_waiting_for_lock(&case));
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(other.batch_execute("commit")).unwrap();
    wait_until("its session is gone", || case.is_quiet());
    assert_eq!(case.value("select count(*) from t where n = id"), "20000");
    assert_eq!(counts(&case, "t.csv --scope all"), [0, 20_000, 0, 0]);
}

#[test]
fn wrong_statistics_do_not_lead_to_nested_loops() {
    let case = LoadCase::new("create table t (id int, scope int, n int)");
    // The statistics say that the table is empty, and no index has the key.
    case.db.run("alter table t set (autovacuum_enabled = off); analyze t");
    case.db.run("insert into t select i, i % 10, i from generate_series(0, 19999) i");
    case.put("t.csv", csv_text(20_000, 1));
    let mut command = command(&case, "t.csv --key id --scope all --quiet");
    let child = spawn(command.env("PGOPTIONS", "-c enable_hashjoin=off -c enable_mergejoin=off"));
    // A nested loop would compare 400 million pairs, three times.
    finish(child).success();
    assert_eq!(ask(&case.db.dsn(), "select count(*) from t where n = id + 1"), "20000");
}

#[test]
fn an_interrupt_rolls_back() {
    let case = new_case();
    let (runtime, other) = session(&case.db.dsn());
    runtime.block_on(other.batch_execute("begin; select from t where id = 7 for update")).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all --quiet"));
    wait_until("the sync waits for the row", || is_waiting_for_lock(&case));
    interrupt(&child);
    assert_eq!(finish(child).status, Some(130));
    runtime.block_on(other.batch_execute("commit")).unwrap();
    assert_eq!(case.value("select count(*) from t where n = id"), "20000");
}

/// The rows are committed before the vacuum, so its failure is only a warning.
#[test]
fn a_failed_vacuum_does_not_make_a_committed_sync_an_error() {
    let waiting = "select pid from pg_stat_activity where datname = current_database() \
                   and query like 'vacuum %' and wait_event_type = 'Lock'";
    for (ends_session, args) in [
        (false, "--scope all"),
        (true, "--scope all"),
        (false, "--scope all --read-ahead always"),
        (true, "--scope all --read-ahead always"),
        (false, "--scope-by id --transactions 2"),
        (true, "--scope-by id --lanes 2"),
    ] {
        let case = LoadCase::new("create table t (id int primary key, scope int, n int)");
        case.db.run("insert into t select i, i, 0 from generate_series(1, 40) i");
        let rows: String = (1..=40).map(|id| format!("{id},{id},5\n")).collect();
        case.put("t.csv", format!("id,scope,n\n{rows}"));
        let (runtime, other) = session(&case.db.dsn());
        // This lock conflicts with VACUUM, but not with writes.
        let lock = "begin; lock table t in share update exclusive mode";
        runtime.block_on(other.batch_execute(lock)).unwrap();
        let child = spawn(&mut command(&case, &format!("t.csv {args} --vacuum")));
        let is_waiting = || try_ask(&case.db.dsn(), waiting).is_ok_and(|pid| !pid.is_empty());
        wait_until("the vacuum waits", is_waiting);
        let is_first_of_two = args.contains("--transactions");
        match ends_session {
            true => case.db.run(&format!("select pg_terminate_backend(({waiting}))")),
            false if is_first_of_two => {
                case.db.run(&format!("select pg_cancel_backend(({waiting}))"));
                wait_until("the second transaction is written", || {
                    case.value("select count(*) from t where n = 5") == "40"
                });
                wait_until("the second vacuum waits", is_waiting);
                interrupt(&child);
            }
            false => interrupt(&child),
        }
        let run = finish(child);
        assert_eq!(run.status, Some(0), "{args}: {}", run.stderr);
        let warning = "could not vacuum public.t: ";
        assert!(run.stderr.contains(warning), "{args}: {}", run.stderr);
        assert!(run.stderr.contains("; the rows are written"), "{args}: {}", run.stderr);
        assert_eq!(case.value("select count(*) from t where n = 5"), "40", "{args}");
    }
}

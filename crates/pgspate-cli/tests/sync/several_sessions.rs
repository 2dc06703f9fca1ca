//! Tests of `--lanes`: several sessions share the scopes, each with its own transaction.

use std::fmt::Write as _;

use crate::run::{session, wait_until};
use crate::support::LoadCase;
use crate::{command, counts, finish, spawn, sync};

const CREATE_TABLE: &str = "create table t (meter int, at int, value int, primary key (meter, at))";

/// Returns ten rows for each meter.
fn csv_text(meters: std::ops::Range<u32>, value: u32) -> String {
    let mut text = "meter,at,value\n".to_owned();
    for meter in meters {
        (0..10).for_each(|at| writeln!(text, "{meter},{at},{value}").unwrap());
    }
    text
}

/// Creates a table with forty meters, whose rows have the value 1.
fn new_case(create: &str) -> LoadCase {
    let case = LoadCase::new(create);
    case.db
        .run("insert into t select m, a, 1 from generate_series(0, 39) m, generate_series(0, 9) a");
    case
}

fn sync_and_count_sessions(case: &LoadCase, args: &str) -> u64 {
    let run = sync(case, &format!("t.csv {args} --json --quiet"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    report["sessions"].as_u64().unwrap()
}

#[test]
fn several_sessions_make_the_same_changes_as_one() {
    let case = new_case(CREATE_TABLE);
    let source = csv_text(0..30, 1) + "7,10,1\n" + &csv_text(50..60, 2)["meter,at,value\n".len()..];
    let source = source.replace("\n3,4,1\n", "\n3,4,9\n").replace("\n5,5,1\n", "\n");
    case.put("t.csv", source);
    let check = counts(&case, "t.csv --scope-by meter --lanes 1 --max-delete 90%");
    case.db.run("truncate t");
    case.db
        .run("insert into t select m, a, 1 from generate_series(0, 39) m, generate_series(0, 9) a");
    let both = counts(&case, "t.csv --scope-by meter --lanes 3 --max-delete 90%");
    assert_eq!(both, check);
    assert_eq!(both[0], 101);
    assert_eq!(case.value("select count(*) from t where meter between 30 and 39"), "100");
    assert_eq!(sync_and_count_sessions(&case, "--scope-by meter --lanes 3"), 3);
    assert_eq!(counts(&case, "t.csv --scope-by meter --lanes 3")[..3], [0, 0, 0]);
}

#[test]
fn one_session_syncs_if_sessions_would_need_rows_of_other_scopes() {
    let said = |create: &str, args: &str| {
        let case = new_case(create);
        case.put("t.csv", csv_text(0..40, 1));
        let run = sync(&case, &format!("t.csv {args}"));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        let line = run.stderr.lines().find(|line| line.starts_with("one session: "));
        line.unwrap_or("several").to_owned()
    };
    assert_eq!(said(CREATE_TABLE, "--scope-by meter --lanes 2"), "several");
    // The order of the columns in `--scope-by` does not matter.
    let other = "create table t (meter int, at int, value int, primary key (at, meter))";
    assert_eq!(said(other, "--scope-by at,meter --lanes 2"), "several");
    let whole = "one session: only the scopes of `--scope-by` can be shared";
    assert_eq!(said(CREATE_TABLE, "--scope all --lanes 2"), whole);
    // A row may move from a scope of another session.
    let free = "create table t (meter int, at int, value int)";
    let none = said(free, "--scope-by value --key meter,at --lanes 2");
    assert!(none.contains("no column of the scope (value) is in the key"), "{none}");
    for (more, reason) in [
        (
            "create unique index on t (at, value, (meter + 1))",
            "a unique index does not contain meter",
        ),
        (
            "alter table t add foreign key (meter, value) references t (meter, at)",
            "a foreign key of the table refers to itself",
        ),
        (
            "create extension btree_gist; alter table t add exclude using gist (value with <>, \
             meter with =)",
            "the table has an exclusion constraint",
        ),
    ] {
        let found = said(&format!("{CREATE_TABLE}; {more}"), "--scope-by meter --lanes 2");
        assert_eq!(found, format!("one session: {reason}"));
    }
    // Equal values with different spellings would go to two sessions.
    let numeric = "create table t (meter numeric, at int, value int, primary key (meter, at))";
    assert!(
        said(numeric, "--scope-by meter --lanes 2")
            .contains("no column of the scope (meter) is in the key")
    );
    assert_eq!(said(numeric, "--scope-by meter,at --lanes 2"), "several");
    let scaled = "create table t (meter numeric(9,2), at int, value int, primary key (meter, at))";
    assert_eq!(said(scaled, "--scope-by meter --lanes 2"), "several");
}

#[test]
fn one_session_syncs_if_an_index_finds_different_values_equal() {
    let case = LoadCase::new(
        "create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
         create table t (name text, at int, v int, primary key (name, at)); \
         create unique index on t (name collate ci, at)",
    );
    case.db.run("insert into t values ('Cyd', 1, 1), ('Ada', 1, 1)");
    case.put("t.csv", "name,at,v\ncyd,1,2\nCyd,2,1\nAda,1,1\n");
    // With two sessions, one could insert `cyd` before the other deletes or changes `Cyd`.
    let run = sync(&case, "t.csv --scope-by name --lanes 4 --max-delete 90%");
    assert!(
        run.stderr.contains("one session: a unique index does not contain name"),
        "{}",
        run.stderr
    );
    let two = LoadCase::new(
        "create table t (a text collate \"C\", b text collate \"POSIX\", v int, \
                         primary key (a, b))",
    );
    two.put("t.csv", "a,b,v\nx,y,1\nz,w,2\n");
    assert_eq!(counts(&two, "t.csv --scope-by a,b --lanes 3"), [2, 0, 0, 0]);
}

#[test]
fn the_input_now_is_the_same_time_in_all_sessions() {
    let case = LoadCase::new(
        "create table t (meter int, at timestamptz, value int, primary key (meter, at))",
    );
    let mut text = "meter,at,value\n".to_owned();
    (0..12).for_each(|meter| writeln!(text, "{meter},now,1").unwrap());
    case.put("t.csv", text);
    for _ in 0..3 {
        let run = sync(&case, "t.csv --scope-by meter,at --lanes 3 --quiet");
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert_eq!(case.value("select count(distinct meter) || ' ' || count(*) from t"), "12 12");
        case.db.run("truncate t");
    }
    case.put("t.csv", "meter,at,value\n1,2026-01-01 00:00:00+00,1\n2,2026-01-02 00:00:00+00,1\n");
    assert_eq!(sync_and_count_sessions(&case, "--scope-by at --lanes 2"), 2);
}

#[test]
fn a_scope_of_null_is_synced() {
    let case = LoadCase::new("create table t (meter int, at int, value int)");
    case.db.run("insert into t values (null, 1, 1), (null, 2, 1), (1, 1, 1)");
    case.put("t.csv", "meter,at,value\n,1,2\n1,1,1\n,3,1\n");
    let args = "t.csv --key meter,at --scope-by meter --lanes 4";
    assert_eq!(counts(&case, args), [1, 1, 1, 1]);
    assert_eq!(counts(&case, args), [0, 0, 0, 3]);
}

#[test]
fn max_delete_counts_the_rows_of_all_sessions() {
    let case = new_case(CREATE_TABLE);
    // The sync deletes most rows of one meter, which is less than 3 % of all rows.
    let few = csv_text(1..40, 1) + "0,3,1\n";
    case.put("t.csv", few);
    assert_eq!(counts(&case, "t.csv --scope-by meter --lanes 4 --max-delete 3%"), [0, 0, 9, 391]);
    case.put("t.csv", csv_text(0..40, 1).replace(",7,1\n", ",77,1\n"));
    let refused = sync(&case, "t.csv --scope-by meter --lanes 4 --max-delete 9%");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("39 of 391 rows of the scope"), "{}", refused.stderr);
    assert_eq!(case.value("select count(*) from t where at = 77"), "0");
}

#[test]
fn other_sessions_commit_if_one_session_is_refused() {
    let case =
        new_case(&format!("{CREATE_TABLE}; alter table t add check (meter <> 17 or value < 5)"));
    case.put("t.csv", csv_text(0..40, 6));
    let refused = sync(&case, "t.csv --scope-by meter --lanes 4");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("violates check constraint"), "{}", refused.stderr);
    let hint = "3 of 4 sessions committed their scopes";
    assert!(refused.stderr.contains(hint), "{}", refused.stderr);
    // Each scope has either the old rows or the new rows.
    assert_eq!(
        case.value(
            "select count(*) from (select from t group by meter \
                           having min(value) <> max(value)) x"
        ),
        "0"
    );
    assert_ne!(case.value("select count(*) from t where value = 6"), "0");
    case.put("t.csv", csv_text(0..40, 4));
    assert_eq!(sync(&case, "t.csv --scope-by meter --lanes 4").status, Some(0));
    assert_eq!(case.value("select count(*) from t where value = 4"), "400");
    case.put("t.csv", csv_text(0..40, 6));
    assert_eq!(sync(&case, "t.csv --scope-by meter --lanes 1").status, Some(2));
    assert_eq!(case.value("select count(*) from t where value = 4"), "400");
}

#[test]
fn sessions_that_wait_for_each_other_or_for_another_session_finish() {
    let case = new_case(&format!(
        "{CREATE_TABLE}; create table counter (n int); insert into counter values (0); \
         create function f() returns trigger language plpgsql as \
         'begin update counter set n = n + 1; return new; end'; \
         create trigger g before update on t for each row execute function f()"
    ));
    case.put("t.csv", csv_text(0..40, 2));
    // Both sessions update the row of `counter` and wait for each other's commits.
    assert_eq!(counts(&case, "t.csv --scope-by meter --lanes 2"), [0, 400, 0, 0]);
    assert_eq!(case.value("select n from counter"), "400");
    case.put("t.csv", csv_text(0..40, 3));
    let (runtime, other) = session(&case.db.dsn());
    runtime.block_on(other.batch_execute("begin; update t set at = at where meter = 7")).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope-by meter --lanes 4 --quiet"));
    let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                 and wait_event_type = 'Lock'";
    wait_until("a session waits for the row", || case.value(waits) != "0");
    // The other session now updates rows of all scopes. The server chooses who fails in a deadlock.
    let all = runtime.block_on(other.batch_execute("update t set at = at; commit"));
    if all.is_err() {
        runtime.block_on(other.batch_execute("rollback")).unwrap();
    }
    finish(child).success();
    assert_eq!(case.value("select count(*) from t where value = 3"), "400");
}

#[test]
fn every_session_commits_synchronously() {
    let case = new_case(CREATE_TABLE);
    case.db.run(
        "create table seen (how text); \
         create function f() returns trigger language plpgsql as \
         'begin insert into seen values (current_setting(''synchronous_commit'')); \
                return null; end'; \
         create constraint trigger g after update on t deferrable initially deferred \
         for each row execute function f()",
    );
    case.put("t.csv", csv_text(0..40, 2));
    sync(&case, "t.csv --scope-by meter --lanes 2 --quiet").success();
    // The trigger recorded `synchronous_commit` at each commit.
    assert_eq!(case.value("select string_agg(distinct how, ',') from seen"), "on");
}

#[test]
fn duplicate_keys_are_refused_or_the_last_row_is_kept() {
    let case = new_case(CREATE_TABLE);
    case.put("t.csv", csv_text(0..40, 2) + "5,5,3\n38,1,4\n");
    let refused = sync(&case, "t.csv --scope-by meter --lanes 3");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("at least "), "{}", refused.stderr);
    assert_eq!(counts(&case, "t.csv --scope-by meter --lanes 3 --keep last"), [0, 400, 0, 0]);
    assert_eq!(
        case.value("select string_agg(value::text, ',' order by value) from t where value > 2"),
        "3,4"
    );
}

#[test]
fn all_sessions_retry_if_a_row_changed_for_one() {
    let case = new_case(CREATE_TABLE);
    case.put("t.csv", csv_text(0..40, 2));
    let (runtime, other) = session(&case.db.dsn());
    let change = "begin; update t set value = -1 where meter = 7 and at = 7";
    runtime.block_on(other.batch_execute(change)).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope-by meter --lanes 4 --quiet"));
    let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                 and wait_event_type = 'Lock'";
    wait_until("a session waits for the row", || case.value(waits) == "1");
    runtime.block_on(other.batch_execute("commit")).unwrap();
    finish(child).success();
    assert_eq!(case.value("select count(*) from t where value = 2"), "400");
}

//! Scopes shared out among sessions, each with a transaction of its own.

use std::fmt::Write as _;

use crate::run::{session, wait_until};
use crate::support::Case;
use crate::{command, counts, finish, spawn, sync};

const TABLE: &str = "create table t (meter int, at int, value int, primary key (meter, at))";

/// Rows of meters, ten of each.
fn rows(meters: std::ops::Range<u32>, value: u32) -> String {
    let mut text = "meter,at,value\n".to_owned();
    for meter in meters {
        (0..10).for_each(|at| writeln!(text, "{meter},{at},{value}").unwrap());
    }
    text
}

/// Forty meters of value 1.
fn case(create: &str) -> Case {
    let case = Case::new(create);
    case.db
        .run("insert into t select m, a, 1 from generate_series(0, 39) m, generate_series(0, 9) a");
    case
}

fn sessions(case: &Case, args: &str) -> u64 {
    let run = sync(case, &format!("t.csv {args} --json --quiet"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    report["sessions"].as_u64().unwrap()
}

#[test]
fn all_sessions_together_do_what_one_does() {
    let case = case(TABLE);
    let source = rows(0..30, 1) + "7,10,1\n" + &rows(50..60, 2)["meter,at,value\n".len()..];
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
    assert_eq!(sessions(&case, "--scope-by meter --lanes 3"), 3);
    assert_eq!(counts(&case, "t.csv --scope-by meter --lanes 3")[..3], [0, 0, 0]);
}

#[test]
fn one_session_where_others_might_wait_for_it() {
    let count = |create: &str, args: &str| {
        let case = case(create);
        case.put("t.csv", rows(0..40, 1));
        sessions(&case, args)
    };
    assert_eq!(count(TABLE, "--scope-by meter --lanes 2"), 2);
    // The order of the columns is nothing to the scopes.
    let other = "create table t (meter int, at int, value int, primary key (at, meter))";
    assert_eq!(count(other, "--scope-by at,meter --lanes 2"), 2);
    // The whole table is one scope.
    assert_eq!(count(TABLE, "--scope all --lanes 2"), 1);
    // Small inputs are not worth it, unless asked.
    assert_eq!(count(TABLE, "--scope-by meter"), 1);
    // A row might come from another scope.
    let free = "create table t (meter int, at int, value int)";
    assert_eq!(count(free, "--scope-by value --key meter,at --lanes 2"), 1);
    for more in [
        "create unique index on t (at, value, (meter + 1))",
        "create table x (m int, a int, foreign key (m, a) references t on delete cascade)",
        "alter table t add foreign key (meter, value) references t (meter, at)",
        "create function f() returns trigger language plpgsql as 'begin return new; end'; \
         create trigger g before update on t for each row execute function f()",
        "create extension btree_gist; alter table t add exclude using gist (value with <>, \
         meter with =)",
    ] {
        let found = count(&format!("{TABLE}; {more}"), "--scope-by meter --lanes 2");
        assert_eq!(found, 1, "{more}");
    }
    // Equal values with different spellings would be in two shares.
    let numeric = "create table t (meter numeric, at int, value int, primary key (meter, at))";
    assert_eq!(count(numeric, "--scope-by meter --lanes 2"), 1);
    assert_eq!(count(numeric, "--scope-by meter,at --lanes 2"), 2);
}

#[test]
fn scopes_that_are_null() {
    let case = Case::new("create table t (meter int, at int, value int)");
    case.db.run("insert into t values (null, 1, 1), (null, 2, 1), (1, 1, 1)");
    case.put("t.csv", "meter,at,value\n,1,2\n1,1,1\n,3,1\n");
    let args = "t.csv --key meter,at --scope-by meter --lanes 4";
    assert_eq!(counts(&case, args), [1, 1, 1, 1]);
    assert_eq!(counts(&case, args), [0, 0, 0, 3]);
}

#[test]
fn the_guard_is_about_all_of_it() {
    let case = case(TABLE);
    // Most of one meter goes, which is little of all.
    let few = rows(1..40, 1) + "0,3,1\n";
    case.put("t.csv", few);
    assert_eq!(counts(&case, "t.csv --scope-by meter --lanes 4 --max-delete 3%"), [0, 0, 9, 391]);
    case.put("t.csv", rows(0..40, 1).replace(",7,1\n", ",77,1\n"));
    let refused = sync(&case, "t.csv --scope-by meter --lanes 4 --max-delete 9%");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("39 of 391 rows of the scope"), "{}", refused.stderr);
    assert_eq!(case.value("select count(*) from t where at = 77"), "0");
}

#[test]
fn what_one_session_is_refused_no_session_writes() {
    let case = case(&format!("{TABLE}; alter table t add check (meter <> 17 or value < 5)"));
    case.put("t.csv", rows(0..40, 6));
    let refused = sync(&case, "t.csv --scope-by meter --lanes 4");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("violates check constraint"), "{}", refused.stderr);
    assert_eq!(case.value("select count(*) from t where value = 1"), "400");
    // Checked when a transaction ends, and so by the others too before they end theirs.
    case.db.run(
        "create table ok (v int primary key); insert into ok values (1), (6); \
         alter table t add foreign key (value) references ok deferrable initially deferred",
    );
    let last = rows(0..40, 6).replace("17,3,6\n", "17,3,4\n").replace("\n17,", "\n117,");
    case.put("t.csv", last);
    let refused = sync(&case, "t.csv --scope-by meter --lanes 4");
    assert!(refused.stderr.contains("violates foreign key constraint"), "{}", refused.stderr);
    assert_eq!(case.value("select count(*) from t where value = 1"), "400");
}

#[test]
fn equal_keys_are_told_and_the_last_of_them_kept() {
    let case = case(TABLE);
    case.put("t.csv", rows(0..40, 2) + "5,5,3\n38,1,4\n");
    let refused = sync(&case, "t.csv --scope-by meter --lanes 3");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("of the source occur more than once"), "{}", refused.stderr);
    assert_eq!(counts(&case, "t.csv --scope-by meter --lanes 3 --keep last"), [0, 400, 0, 0]);
    assert_eq!(
        case.value("select string_agg(value::text, ',' order by value) from t where value > 2"),
        "3,4"
    );
}

#[test]
fn all_begin_again_when_one_was_too_late() {
    let case = case(TABLE);
    case.put("t.csv", rows(0..40, 2));
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

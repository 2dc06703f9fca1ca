//! The table read ahead of the source.

use std::fmt::Write as _;

use crate::run::{session, wait_until};
use crate::support::LoadCase;
use crate::{command, finish, spawn, sync};

/// Meters of 500 rows each, in a table that is large enough to be read ahead.
const METERS: u32 = 120;
const EACH: u32 = 500;

fn case() -> LoadCase {
    let case = LoadCase::new(
        "create table t (meter int, at int, value numeric(8,2), note text, \
                         primary key (meter, at))",
    );
    case.db.run(&format!(
        "insert into t select m, a, m + a / 100.0, 'note ' || a \
         from generate_series(1, {METERS}) m, generate_series(1, {EACH}) a; analyze t"
    ));
    case
}

/// The rows of these meters as the table has them.
fn rows(meters: std::ops::RangeInclusive<u32>) -> String {
    let mut text = "meter,at,value,note\n".to_owned();
    for meter in meters {
        for at in 1..=EACH {
            let cents = meter * 100 + at;
            writeln!(text, "{meter},{at},{}.{:02},note {at}", cents / 100, cents % 100).unwrap();
        }
    }
    text
}

/// What was not staged, what was inserted, updated and deleted.
fn report(case: &LoadCase, args: &str) -> (Option<u64>, [u64; 3]) {
    let run = sync(case, &format!("t.csv {args} --json --quiet"));
    assert!(run.status.is_some_and(|status| status < 2), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let counts = ["inserted", "updated", "deleted"].map(|name| report[name].as_u64().unwrap());
    (report["rows_known"].as_u64(), counts)
}

/// What the table would have to be.
fn is_like_source(case: &LoadCase, meters: &str) {
    case.db.run("create table src (like t)");
    case.load("t.csv --table src --no-ledger").success();
    let differs = case.value(&format!(
        "select count(*) from (select * from t where {meters}) t full join src s \
         on (t.meter, t.at) = (s.meter, s.at) where t is distinct from s"
    ));
    assert_eq!(differs, "0");
}

#[test]
fn only_rows_that_the_table_does_not_have_are_staged() {
    let case = case();
    let source = rows(1..=METERS);
    // Another value, another note, no note; a row less in one meter, one more in another.
    let source = source
        .replace("\n3,4,3.04,note 4\n", "\n3,4,3.05,note 4\n")
        .replace("\n5,6,5.06,note 6\n", "\n5,6,5.06,Note 6\n")
        .replace("\n7,8,7.08,note 8\n", "\n7,8,7.08,\n")
        .replace("\n9,10,9.10,note 10\n", "\n");
    case.put("t.csv", source + "11,501,1.00,new\n");
    let all = u64::from(METERS * EACH);
    let check = report(&case, "--scope all --check");
    assert_eq!(check, (Some(all - 4), [1, 3, 1]));
    let args = "--scope all";
    assert_eq!(report(&case, args), check);
    is_like_source(&case, "true");
    assert_eq!(report(&case, args), (Some(all), [0, 0, 0]));
    assert_eq!(report(&case, "--scope all --read-ahead never"), (None, [0, 0, 0]));
}

#[test]
fn what_is_equal_and_not_the_same_is_for_the_server() {
    let case = case();
    // 1.5 is stored as 1.50: staged, and found equal.
    let source = rows(1..=METERS).replace("\n1,50,1.50,", "\n1,50,1.5,");
    case.put("t.csv", source);
    let all = u64::from(METERS * EACH);
    assert_eq!(report(&case, "--scope all"), (Some(all - 1), [0, 0, 0]));
}

#[test]
fn a_scope_is_in_the_source_by_any_of_its_rows() {
    let case = case();
    let source = rows(1..=METERS - 20).replace("\n3,4,3.04,note 4\n", "\n");
    // All that the source has of meter 5 is as it was; of meter 6 all is new.
    let cut = source.find("\n5,2,").unwrap()..source.find("\n7,1,").unwrap();
    let source = source.replace(&source[cut], "\n6,900,1,new");
    case.put("t.csv", source);
    let gone = 1 + (u64::from(EACH) - 1) + u64::from(EACH);
    let (known, counts) = report(&case, "--scope-by meter");
    assert_eq!(known, Some(u64::from((METERS - 20) * EACH) - gone));
    assert_eq!(counts, [1, 0, gone]);
    is_like_source(&case, &format!("meter <= {}", METERS - 20));
    let others = case.value(&format!("select count(*) from t where meter > {}", METERS - 20));
    assert_eq!(others, (20 * EACH).to_string());
}

#[test]
fn rows_outside_of_the_predicate_stay() {
    let case = case();
    case.put("t.csv", rows(1..=METERS - 20).replace(",note 4\n", ",note four\n"));
    let (known, counts) = report(&case, "--scope meter<=110");
    assert_eq!(counts, [0, 100, 10 * u64::from(EACH)]);
    assert_eq!(known, Some(100 * u64::from(EACH - 1)));
    assert_eq!(case.value("select count(*) from t where meter > 110"), (10 * EACH).to_string());
}

#[test]
fn nothing_is_deleted_by_an_upsert() {
    let case = case();
    case.put("t.csv", rows(2..=METERS).replace(",note 4\n", ",note four\n") + "1,999,1,new\n");
    let (known, counts) = report(&case, "--no-delete");
    assert_eq!(counts, [1, u64::from(METERS) - 1, 0]);
    assert_eq!(known, Some(u64::from((METERS - 1) * (EACH - 1))));
    assert_eq!(case.value("select count(*) from t where meter = 1"), (EACH + 1).to_string());
}

#[test]
fn keys_that_come_twice_are_refused_as_ever() {
    let case = case();
    for again in ["3,4,3.04,note 4\n", "3,4,9,another\n", "500,1,1,a\n500,1,2,b\n"] {
        // Last and first: which of them is met first is not to matter.
        let all = rows(1..=METERS);
        let (header, rest) = all.split_once('\n').unwrap();
        for source in [format!("{all}{again}"), format!("{header}\n{again}{rest}")] {
            case.put("t.csv", source);
            for flags in ["--scope all", "--scope-by meter", "--no-delete", "--scope all --check"] {
                let run = sync(&case, &format!("t.csv {flags}"));
                assert_eq!(run.status, Some(2), "{flags} {again}: {}", run.stderr);
                let words = "the source has 1 key more than once: ";
                assert!(run.stderr.contains(words), "{flags} {again}: {}", run.stderr);
            }
        }
    }
    assert_eq!(case.value("select count(*) from t"), (METERS * EACH).to_string());
}

#[test]
fn too_little_that_stays_is_staged_as_a_whole() {
    let case = case();
    case.put("t.csv", rows(1..=METERS).replace(",note ", ",Note "));
    let all = u64::from(METERS * EACH);
    assert_eq!(report(&case, "--scope all"), (None, [0, all, 0]));
}

#[test]
fn a_row_that_changes_after_it_was_read_is_seen() {
    let case = case();
    case.put("t.csv", rows(1..=METERS).replace("\n3,4,3.04,", "\n3,4,4,"));
    let (runtime, client) = session(&case.db.dsn());
    // It cannot write this row before the other session is done, which has changed it.
    runtime
        .block_on(client.batch_execute("begin; update t set note = 'x' where (meter, at) = (3, 4)"))
        .unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all --json --quiet"));
    wait_until("it waits for the row", || {
        case.value("select count(*) from pg_locks where not granted and locktype = 'transactionid'")
            == "1"
    });
    runtime.block_on(client.batch_execute("commit")).unwrap();
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    is_like_source(&case, "true");
}

#[test]
fn nothing_is_left_when_it_is_interrupted() {
    let case = case();
    case.put("t.csv", rows(1..=METERS).replace("\n3,4,3.04,", "\n3,4,4,"));
    let (runtime, client) = session(&case.db.dsn());
    // It waits for the lock of another sync before it has read anything.
    let lock = "select pg_advisory_lock(hashtextextended('pgspate sync all', 't'::regclass::int8))";
    runtime.block_on(client.batch_execute(lock)).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all"));
    wait_until("it waits for the lock", || {
        case.value("select count(*) from pg_locks where not granted and locktype = 'advisory'")
            == "1"
    });
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let run = finish(child);
    assert_eq!(run.status, Some(130), "{}", run.stderr);
    drop((client, runtime));
    wait_until("its sessions are gone", || case.is_quiet());
    assert_eq!(case.value("select count(*) from t where value = 4 and at = 4"), "0");
}

/// A case whose rows wait, as they are staged, for whoever holds the advisory lock 42.
fn waiting_case() -> LoadCase {
    let case = case();
    case.db.run(
        "create function free(text) returns boolean language plpgsql immutable as \
         'begin perform pg_advisory_xact_lock_shared(42); return true; end'; \
         create domain slow as text check (free(value)); \
         alter table t alter note type slow using note::slow",
    );
    case
}

#[test]
fn nobody_moves_or_empties_the_table_meanwhile() {
    let case = waiting_case();
    case.put("t.csv", rows(1..=METERS).replace("\n3,4,3.04,", "\n3,4,4.00,"));
    let (runtime, client) = session(&case.db.dsn());
    runtime.block_on(client.batch_execute("select pg_advisory_lock(42)")).unwrap();
    let args = "t.csv --scope all --read-ahead always --json --quiet";
    let child = spawn(&mut command(&case, args));
    wait_until("it waits as it stages", || {
        case.value("select count(*) from pg_locks where not granted and locktype = 'advisory'")
            == "1"
    });
    for sql in ["truncate t", "vacuum full t", "alter table t add z int"] {
        runtime.block_on(client.batch_execute("set lock_timeout = '100ms'")).unwrap();
        let refused = runtime.block_on(client.batch_execute(sql)).unwrap_err();
        let code = refused.code().map(|code| code.code().to_owned());
        assert_eq!(code.as_deref(), Some("55P03"), "{sql}");
    }
    runtime.block_on(client.batch_execute("select pg_advisory_unlock(42)")).unwrap();
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["rows_known"], METERS * EACH - 1);
    assert_eq!(report["updated"], 1);
}

#[test]
fn scopes_of_several_spellings_are_not_read_ahead() {
    let case = LoadCase::new("create table t (g numeric, id int, v text, primary key (g, id))");
    case.db.run("insert into t values (1.0, 1, 'a'), (1.00, 2, 'b'), (2, 3, 'c')");
    case.put("t.csv", "g,id,v\n1.0,1,a\n");
    let args = "--scope-by g --read-ahead always --max-delete 90%";
    assert_eq!(report(&case, args), (None, [0, 0, 1]));
    assert_eq!(case.value("select string_agg(id::text, ',' order by id) from t"), "1,3");
}

#[test]
fn a_table_of_one_row() {
    let case = LoadCase::new("create table t (id int primary key, tid int, is_in boolean)");
    case.db.run("insert into t values (1, 5, true)");
    case.put("t.csv", "id,tid,is_in\n2,5,t\n3,5,f\n");
    let args = "--read-ahead always --max-delete 100%";
    assert_eq!(report(&case, &format!("--scope tid=5 {args}")), (Some(0), [2, 0, 1]));
    case.put("t.csv", "id,tid,is_in\n2,5,t\n3,5,f\n4,5,f\n");
    assert_eq!(report(&case, &format!("--scope all {args}")), (Some(2), [1, 0, 0]));
}

#[test]
fn constraints_that_are_deferred_stay_so() {
    let case = LoadCase::new(
        "create table t (id int primary key, \
                         parent int references t deferrable initially deferred)",
    );
    case.db.run("insert into t values (1, null), (2, 1), (3, null)");
    // The parent goes before the child has another one.
    case.put("t.csv", "id,parent\n2,3\n3,\n");
    assert_eq!(report(&case, "--scope all --read-ahead always"), (Some(1), [0, 1, 1]));
}

#[test]
fn sessions_that_wait_for_each_other_are_not_ended() {
    let case = case();
    case.put("t.csv", rows(1..=METERS).replace("\n3,4,3.04,", "\n3,4,4.00,"));
    let name = case.value("select current_database()");
    case.db
        .run(&format!("alter database \"{name}\" set idle_in_transaction_session_timeout = '1ms'"));
    let known = u64::from(METERS * EACH) - 1;
    let done = report(&case, "--scope all");
    assert_eq!(done, (Some(known), [0, 1, 0]));
}

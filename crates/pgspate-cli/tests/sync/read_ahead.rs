//! Tests of `--read-ahead`: a sync reads the table first and stages only rows that differ.

use std::fmt::Write as _;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::run::{session, wait_until};
use crate::support::LoadCase;
use crate::{command, finish, interrupt, spawn, sync};

/// Meters in the table, which is large enough to be read ahead.
const METER_COUNT: u32 = 120;
/// Rows of each meter.
const ROWS_PER_METER: u32 = 500;

fn new_case() -> LoadCase {
    let case = LoadCase::new(
        "create table t (meter int, at int, value numeric(8,2), note text, \
                         primary key (meter, at))",
    );
    case.db.run(&format!(
        "insert into t select m, a, m + a / 100.0, 'note ' || a \
         from generate_series(1, {METER_COUNT}) m, generate_series(1, {ROWS_PER_METER}) a; \
         analyze t"
    ));
    case
}

/// Returns how many sessions of the case's database wait for a lock of this type. Other tests use
/// other databases of the server.
fn count_waits(case: &LoadCase, lock_type: &str) -> String {
    case.value(&format!(
        "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
         where not l.granted and l.locktype = '{lock_type}' and a.datname = current_database()"
    ))
}

/// Returns a file with the rows of these meters as they are in the table.
fn csv_text(meters: std::ops::RangeInclusive<u32>) -> String {
    let mut text = "meter,at,value,note\n".to_owned();
    for meter in meters {
        for at in 1..=ROWS_PER_METER {
            let cents = meter * 100 + at;
            writeln!(text, "{meter},{at},{}.{:02},note {at}", cents / 100, cents % 100).unwrap();
        }
    }
    text
}

/// Runs a sync. Returns the number of rows that were not staged, and the numbers of inserted,
/// updated and deleted rows. The first number is `None` if the table was not read ahead.
fn sync_and_read_report(case: &LoadCase, args: &str) -> (Option<u64>, [u64; 3]) {
    let run = sync(case, &format!("t.csv {args} --json --quiet"));
    assert!(run.status.is_some_and(|status| status < 2), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let counts = ["inserted", "updated", "deleted"].map(|name| report[name].as_u64().unwrap());
    (report["rows_known"].as_u64(), counts)
}

/// Checks that the rows of the table for which `meters` holds equal the rows of the source.
fn check_table_equals_source(case: &LoadCase, meters: &str) {
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
    let case = new_case();
    let source = csv_text(1..=METER_COUNT);
    // Three rows change, one row is missing in one meter, and one row is added to another meter.
    let source = source
        .replace("\n3,4,3.04,note 4\n", "\n3,4,3.05,note 4\n")
        .replace("\n5,6,5.06,note 6\n", "\n5,6,5.06,Note 6\n")
        .replace("\n7,8,7.08,note 8\n", "\n7,8,7.08,\n")
        .replace("\n9,10,9.10,note 10\n", "\n");
    case.put("t.csv", source + "11,501,1.00,new\n");
    let all = u64::from(METER_COUNT * ROWS_PER_METER);
    let check = sync_and_read_report(&case, "--scope all --check");
    assert_eq!(check, (Some(all - 4), [1, 3, 1]));
    let args = "--scope all";
    assert_eq!(sync_and_read_report(&case, args), check);
    check_table_equals_source(&case, "true");
    assert_eq!(sync_and_read_report(&case, args), (Some(all), [0, 0, 0]));
    assert_eq!(sync_and_read_report(&case, "--scope all --read-ahead never"), (None, [0, 0, 0]));
}

#[test]
fn equal_values_with_other_spellings_are_compared_by_the_server() {
    let case = new_case();
    // The row with 1.5 is staged. The server stores 1.50 and finds the row equal.
    let source = csv_text(1..=METER_COUNT).replace("\n1,50,1.50,", "\n1,50,1.5,");
    case.put("t.csv", source);
    let all = u64::from(METER_COUNT * ROWS_PER_METER);
    assert_eq!(sync_and_read_report(&case, "--scope all"), (Some(all - 1), [0, 0, 0]));
}

#[test]
fn any_row_of_a_scope_brings_the_scope_into_the_sync() {
    let case = new_case();
    let source = csv_text(1..=METER_COUNT - 20).replace("\n3,4,3.04,note 4\n", "\n");
    // The source has only an unchanged row of meter 5, and only a new row of meter 6.
    let cut = source.find("\n5,2,").unwrap()..source.find("\n7,1,").unwrap();
    let source = source.replace(&source[cut], "\n6,900,1,new");
    case.put("t.csv", source);
    let gone = 1 + (u64::from(ROWS_PER_METER) - 1) + u64::from(ROWS_PER_METER);
    let (known, counts) = sync_and_read_report(&case, "--scope-by meter");
    assert_eq!(known, Some(u64::from((METER_COUNT - 20) * ROWS_PER_METER) - gone));
    assert_eq!(counts, [1, 0, gone]);
    check_table_equals_source(&case, &format!("meter <= {}", METER_COUNT - 20));
    let others = case.value(&format!("select count(*) from t where meter > {}", METER_COUNT - 20));
    assert_eq!(others, (20 * ROWS_PER_METER).to_string());
}

#[test]
fn rows_outside_of_the_predicate_stay() {
    let case = new_case();
    case.put("t.csv", csv_text(1..=METER_COUNT - 20).replace(",note 4\n", ",note four\n"));
    let (known, counts) = sync_and_read_report(&case, "--scope meter<=110");
    assert_eq!(counts, [0, 100, 10 * u64::from(ROWS_PER_METER)]);
    assert_eq!(known, Some(100 * u64::from(ROWS_PER_METER - 1)));
    assert_eq!(
        case.value("select count(*) from t where meter > 110"),
        (10 * ROWS_PER_METER).to_string()
    );
}

#[test]
fn nothing_is_deleted_by_an_upsert() {
    let case = new_case();
    case.put(
        "t.csv",
        csv_text(2..=METER_COUNT).replace(",note 4\n", ",note four\n") + "1,999,1,new\n",
    );
    let (known, counts) = sync_and_read_report(&case, "--no-delete");
    assert_eq!(counts, [1, u64::from(METER_COUNT) - 1, 0]);
    assert_eq!(known, Some(u64::from((METER_COUNT - 1) * (ROWS_PER_METER - 1))));
    assert_eq!(
        case.value("select count(*) from t where meter = 1"),
        (ROWS_PER_METER + 1).to_string()
    );
}

#[test]
fn duplicate_keys_in_the_source_are_refused() {
    let case = new_case();
    for again in ["3,4,3.04,note 4\n", "3,4,9,another\n", "500,1,1,a\n500,1,2,b\n"] {
        // The order of the duplicate rows must not matter.
        let all = csv_text(1..=METER_COUNT);
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
    assert_eq!(case.value("select count(*) from t"), (METER_COUNT * ROWS_PER_METER).to_string());
}

#[test]
fn a_source_of_mostly_changed_rows_is_staged_whole() {
    let case = new_case();
    case.put("t.csv", csv_text(1..=METER_COUNT).replace(",note ", ",Note "));
    let all = u64::from(METER_COUNT * ROWS_PER_METER);
    assert_eq!(sync_and_read_report(&case, "--scope all"), (None, [0, all, 0]));
}

#[test]
fn a_row_that_changes_after_it_was_read_is_written() {
    let case = new_case();
    case.put("t.csv", csv_text(1..=METER_COUNT).replace("\n3,4,3.04,", "\n3,4,4,"));
    let (runtime, client) = session(&case.db.dsn());
    // The sync waits to write this row until the other session commits its change.
    runtime
        .block_on(client.batch_execute("begin; update t set note = 'x' where (meter, at) = (3, 4)"))
        .unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all --json --quiet"));
    wait_until("the sync waits for the row", || count_waits(&case, "transactionid") == "1");
    runtime.block_on(client.batch_execute("commit")).unwrap();
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    check_table_equals_source(&case, "true");
}

#[test]
fn an_interrupted_sync_leaves_nothing_behind() {
    let case = new_case();
    case.put("t.csv", csv_text(1..=METER_COUNT).replace("\n3,4,3.04,", "\n3,4,4,"));
    let (runtime, client) = session(&case.db.dsn());
    // The sync waits for this lock, which another sync would hold, before it reads the table.
    let lock = "select pg_advisory_lock(hashtextextended('pgspate sync all', 't'::regclass::int8))";
    runtime.block_on(client.batch_execute(lock)).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all"));
    wait_until("the sync waits for the lock", || count_waits(&case, "advisory") == "1");
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let run = finish(child);
    assert_eq!(run.status, Some(130), "{}", run.stderr);
    drop((client, runtime));
    wait_until("its sessions are gone", || case.is_quiet());
    assert_eq!(case.value("select count(*) from t where value = 4 and at = 4"), "0");
}

/// Creates a case in which staging a row waits for the advisory lock 42.
fn case_blocked_while_staging() -> LoadCase {
    let case = new_case();
    case.db.run(
        "create function free(text) returns boolean language plpgsql immutable as \
         'begin perform pg_advisory_xact_lock_shared(42); return true; end'; \
         create domain slow as text check (free(value)); \
         alter table t alter note type slow using note::slow",
    );
    case
}

#[test]
fn the_table_cannot_be_rewritten_or_truncated_during_a_sync() {
    let case = case_blocked_while_staging();
    case.put("t.csv", csv_text(1..=METER_COUNT).replace("\n3,4,3.04,", "\n3,4,4.00,"));
    let (runtime, client) = session(&case.db.dsn());
    runtime.block_on(client.batch_execute("select pg_advisory_lock(42)")).unwrap();
    let args = "t.csv --scope all --read-ahead always --json --quiet";
    let child = spawn(&mut command(&case, args));
    wait_until("the sync waits while it stages", || count_waits(&case, "advisory") == "1");
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
    assert_eq!(report["rows_known"], METER_COUNT * ROWS_PER_METER - 1);
    assert_eq!(report["updated"], 1);
}

/// Opens a session on a thread of its own, and runs statements that may wait.
fn run_in_background(case: &LoadCase, sql: &'static str) -> JoinHandle<(Runtime, Client)> {
    let dsn = case.db.dsn();
    std::thread::spawn(move || {
        let (runtime, client) = session(&dsn);
        runtime.block_on(client.batch_execute(sql)).unwrap();
        (runtime, client)
    })
}

/// A session that waits for a lock that conflicts with the sync's own lock blocks later readers.
#[test]
fn a_sync_does_not_wait_behind_a_session_that_waits_for_the_sync() {
    let case = new_case();
    case.put("t.csv", csv_text(1..=METER_COUNT).replace("\n3,4,3.04,", "\n3,4,4.00,"));
    let (runtime, client) = session(&case.db.dsn());
    let lock = "select pg_advisory_lock(hashtextextended('pgspate sync all', 't'::regclass::int8))";
    runtime.block_on(client.batch_execute(lock)).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all --read-ahead always --quiet"));
    wait_until("the sync waits before it reads the table", || {
        count_waits(&case, "advisory") == "1"
    });
    let is_waiting = |statement: &str| {
        let sql = format!(
            "select count(*) from pg_stat_activity where datname = current_database() \
             and wait_event = 'relation' and query like '{statement}' and pid <> pg_backend_pid()"
        );
        case.value(&sql) == "1"
    };
    let take_table = "begin; lock table t in access exclusive mode";
    let blocking = run_in_background(&case, take_table);
    let (mut runtime_of_blocker, mut blocker) = blocking.join().unwrap();
    runtime.block_on(client.batch_execute("select pg_advisory_unlock_all()")).unwrap();
    // Earlier statements of the sync wait for the table, too. Each gets its turn, until the sync
    // waits to lock the table.
    loop {
        wait_until("the sync waits for the table", || is_waiting("%"));
        if is_waiting("lock table public.t in access share mode") {
            break;
        }
        let next = run_in_background(&case, take_table);
        wait_until("another session waits, too", || is_waiting("begin; lock table t %"));
        runtime_of_blocker.block_on(blocker.batch_execute("rollback")).unwrap();
        (runtime_of_blocker, blocker) = next.join().unwrap();
    }
    let altering = run_in_background(&case, "alter table t add z int");
    wait_until("the ALTER TABLE waits", || is_waiting("alter table t add z int"));
    runtime_of_blocker.block_on(blocker.batch_execute("rollback")).unwrap();
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    altering.join().unwrap();
    assert_eq!(case.value("select value from t where (meter, at) = (3, 4)"), "4.00");
}

#[test]
fn a_sync_that_is_interrupted_while_it_stages_says_so_once() {
    let case = case_blocked_while_staging();
    case.put("t.csv", csv_text(1..=METER_COUNT).replace("\n3,4,3.04,", "\n3,4,4.00,"));
    let (runtime, client) = session(&case.db.dsn());
    runtime.block_on(client.batch_execute("select pg_advisory_lock(42)")).unwrap();
    let child = spawn(&mut command(&case, "t.csv --scope all --read-ahead always --quiet"));
    wait_until("the sync waits while it stages", || count_waits(&case, "advisory") == "1");
    interrupt(&child);
    let run = finish(child);
    assert_eq!(run.status, Some(130), "{}", run.stderr);
    assert_eq!(run.stderr.matches("could not sync").count(), 1, "{}", run.stderr);
}

#[test]
fn scopes_of_several_spellings_are_not_read_ahead() {
    let case = LoadCase::new("create table t (g numeric, id int, v text, primary key (g, id))");
    case.db.run("insert into t values (1.0, 1, 'a'), (1.00, 2, 'b'), (2, 3, 'c')");
    case.put("t.csv", "g,id,v\n1.0,1,a\n");
    let args = "--scope-by g --read-ahead always --max-delete 90%";
    assert_eq!(sync_and_read_report(&case, args), (None, [0, 0, 1]));
    assert_eq!(case.value("select string_agg(id::text, ',' order by id) from t"), "1,3");
}

#[test]
fn a_table_of_one_row_is_synced() {
    let case = LoadCase::new("create table t (id int primary key, tid int, is_in boolean)");
    case.db.run("insert into t values (1, 5, true)");
    case.put("t.csv", "id,tid,is_in\n2,5,t\n3,5,f\n");
    let args = "--read-ahead always --max-delete 100%";
    assert_eq!(sync_and_read_report(&case, &format!("--scope tid=5 {args}")), (Some(0), [2, 0, 1]));
    case.put("t.csv", "id,tid,is_in\n2,5,t\n3,5,f\n4,5,f\n");
    assert_eq!(sync_and_read_report(&case, &format!("--scope all {args}")), (Some(2), [1, 0, 0]));
}

#[test]
fn deferred_constraints_stay_deferred() {
    let case = LoadCase::new(
        "create table t (id int primary key, \
                         parent int references t deferrable initially deferred)",
    );
    case.db.run("insert into t values (1, null), (2, 1), (3, null)");
    // The sync deletes the parent 1 before it gives the child 2 another parent.
    case.put("t.csv", "id,parent\n2,3\n3,\n");
    assert_eq!(
        sync_and_read_report(&case, "--scope all --read-ahead always"),
        (Some(1), [0, 1, 1])
    );
}

#[test]
fn an_idle_in_transaction_timeout_does_not_end_a_sync() {
    let case = new_case();
    case.put("t.csv", csv_text(1..=METER_COUNT).replace("\n3,4,3.04,", "\n3,4,4.00,"));
    let name = case.value("select current_database()");
    case.db
        .run(&format!("alter database \"{name}\" set idle_in_transaction_session_timeout = '1ms'"));
    let known = u64::from(METER_COUNT * ROWS_PER_METER) - 1;
    let done = sync_and_read_report(&case, "--scope all");
    assert_eq!(done, (Some(known), [0, 1, 0]));
}

//! Tests of `--transactions`: one session writes the scopes in several transactions, one by one.

use std::fmt::Write as _;

use serde_json::Value;

use crate::run::{session, wait_until};
use crate::support::LoadCase;
use crate::{command, counts, finish, interrupt, spawn, sync};

const CREATE_TABLE: &str = "create table t (meter int, at int, value int, note text, \
                                     primary key (meter, at)); \
                     alter table t set (autovacuum_enabled = off)";
/// Inserts forty meters. The sixty rows of each meter fill one page.
const INSERT_METERS: &str = "insert into t select m, a, 1, repeat('x', 100) \
                    from generate_series(0, 39) m, generate_series(0, 59) a";
/// Counts scopes of which only some rows are written.
const COUNT_HALF_WRITTEN: &str = "select count(*) from (select from t group by meter \
                     having min(value) <> max(value)) x";

fn csv_text(value: u32) -> String {
    let (mut text, note) = ("meter,at,value,note\n".to_owned(), "x".repeat(100));
    for (meter, at) in (0..40).flat_map(|meter| (0..60).map(move |at| (meter, at))) {
        writeln!(text, "{meter},{at},{value},{note}").unwrap();
    }
    text
}

fn new_case() -> LoadCase {
    let case = LoadCase::new(CREATE_TABLE);
    case.db.run(INSERT_METERS);
    case.put("t.csv", csv_text(2));
    case
}

fn sync_and_read_report(case: &LoadCase, args: &str) -> Value {
    let run = sync(case, &format!("t.csv --scope-by meter --json --quiet {args}"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Returns the first meter that the transaction `turn` (0 or 1) of two transactions writes.
fn first_meter_of_transaction(case: &LoadCase, turn: u32) -> String {
    case.value(&format!(
        "select min(meter) from t \
         where (hashtext((coalesce(meter::text, '')) collate \"C\") & 2147483647) % 2 = {turn}"
    ))
}

/// Returns whether a session of the database waits for a lock.
fn is_waiting_for_lock(case: &LoadCase) -> bool {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() \
               and wait_event_type = 'Lock'";
    case.value(sql) != "0"
}

#[test]
fn each_scope_is_written_in_one_transaction() {
    for ahead in ["always", "never"] {
        let case = new_case();
        let source = csv_text(2) + "7,60,2,\n50,0,2,\n";
        let source: String = source
            .lines()
            .filter(|line| !line.starts_with("9,1"))
            .fold(String::new(), |text, line| text + line + "\n");
        case.put("t.csv", source);
        let report = sync_and_read_report(&case, &format!("--transactions 4 --read-ahead {ahead}"));
        let counted = ["inserted", "updated", "deleted", "unchanged", "rows_in", "transactions"];
        let counted = counted.map(|name| report[name].as_u64().unwrap());
        assert_eq!(counted, [2, 2389, 11, 0, 2391, 4], "{report}");
        assert_eq!(case.value("select count(*) from t where value = 2"), "2391");
        let scopes =
            "select max(n) from (select count(distinct xmin::text) n from t group by meter) x";
        assert_eq!(case.value(scopes), "1");
        assert_eq!(case.value("select count(distinct xmin::text) from t"), "4");
        let again = "t.csv --scope-by meter --transactions 4";
        assert_eq!(counts(&case, again), [0, 0, 0, 2391]);
    }
}

#[test]
fn a_vacuum_makes_room_for_the_next_transaction() {
    let (one, many) = (new_case(), new_case());
    for (case, transactions) in [(&one, 1), (&many, 8)] {
        let said =
            sync(case, &format!("t.csv --scope-by meter --vacuum --transactions {transactions}"));
        let said = said.success();
        let words =
            if transactions == 8 { " in 8 transactions, vacuumed in " } else { ", vacuumed in " };
        assert!(said.contains(words), "{said}");
        wait_until("its sessions are gone", || case.is_quiet());
        // Before version 15, a session may report its deleted rows after the vacuum's report.
        let dead = "select n_dead_tup from pg_stat_user_tables where relname = 't'";
        if case.value("select current_setting('server_version_num')::int >= 150000") == "t" {
            assert_eq!(case.value(dead), "0");
        }
    }
    let pages = |case: &LoadCase| -> u32 {
        case.value("select pg_relation_size('t') / 8192").parse().unwrap()
    };
    // One transaction needs pages for all old and all new rows. A vacuum between transactions frees
    // the pages that old rows occupy.
    assert!(3 * pages(&many) < 2 * pages(&one), "{} of {}", pages(&many), pages(&one));
}

#[test]
fn changes_of_another_session_between_transactions_are_found() {
    for ahead in ["always", "never"] {
        let case = new_case();
        let (first, last) =
            (first_meter_of_transaction(&case, 0), first_meter_of_transaction(&case, 1));
        let (runtime, other) = session(&case.db.dsn());
        let lock = format!("begin; select from t where meter = {first} for update");
        runtime.block_on(other.batch_execute(&lock)).unwrap();
        let args =
            format!("t.csv --scope-by meter --transactions 2 --json --quiet --read-ahead {ahead}");
        let child = spawn(&mut command(&case, &args));
        wait_until("the first transaction waits for the row", || is_waiting_for_lock(&case));
        // The last transaction has not begun, but the sync has already compared these rows.
        case.db.run(&format!(
            "update t set value = 9 where meter = {last} and at = 3; \
             delete from t where meter = {last} and at = 4"
        ));
        runtime.block_on(other.batch_execute("commit")).unwrap();
        let run = finish(child);
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        let report: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!([&report["updated"], &report["inserted"]], [2399, 1], "{report}");
        assert_eq!(case.value("select count(*) from t where value = 2"), "2400");
    }
}

#[test]
fn committed_transactions_stay_if_a_later_one_is_refused() {
    let case = new_case();
    let last = first_meter_of_transaction(&case, 1);
    case.db.run(&format!("alter table t add check (meter <> {last} or value = 1)"));
    let refused = sync(&case, "t.csv --scope-by meter --transactions 2");
    assert_eq!(refused.status, Some(2));
    let hint = "1 transaction is committed. Run the same command again to write the rest";
    assert!(refused.stderr.contains(hint), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("`--transactions 1` writes everything in one transaction"),
        "{}",
        refused.stderr
    );
    assert_eq!(case.value(COUNT_HALF_WRITTEN), "0");
    assert_ne!(case.value("select count(*) from t where value = 2"), "0");
    // No transaction writes anything if too many rows would be deleted.
    case.put("t.csv", csv_text(3).lines().take(900).collect::<Vec<_>>().join("\n"));
    case.db.run("update t set meter = 0, at = meter * 60 + at");
    let refused = sync(&case, "t.csv --scope-by meter --transactions 2");
    assert!(refused.stderr.contains("of the scope"), "{}", refused.stderr);
    assert_eq!(case.value("select count(*) from t where value = 3"), "0");
}

#[test]
fn an_interrupt_rolls_back_only_the_open_transaction() {
    let case = new_case();
    let last = first_meter_of_transaction(&case, 1);
    let (runtime, other) = session(&case.db.dsn());
    let lock = format!("begin; select from t where meter = {last} for update");
    runtime.block_on(other.batch_execute(&lock)).unwrap();
    let args = "t.csv --scope-by meter --transactions 2 --vacuum --quiet";
    let child = spawn(&mut command(&case, args));
    wait_until("the last transaction waits for the row", || is_waiting_for_lock(&case));
    interrupt(&child);
    let stopped = finish(child);
    assert_eq!(stopped.status, Some(130));
    assert!(stopped.stderr.contains("1 transaction is committed"), "{}", stopped.stderr);
    runtime.block_on(other.batch_execute("commit")).unwrap();
    assert_eq!(case.value(COUNT_HALF_WRITTEN), "0");
    let left = case.value("select count(*) from t where value = 1").parse().unwrap();
    assert!((60..2400).contains(&left), "{left}");
    assert_eq!(counts(&case, "t.csv --scope-by meter --transactions 2"), [0, left, 0, 2400 - left]);
}

#[test]
fn an_interrupt_ends_a_vacuum_between_transactions() {
    let case = new_case();
    let (runtime, other) = session(&case.db.dsn());
    // This lock blocks a vacuum and nothing else.
    let lock = "begin; lock table t in share update exclusive mode";
    runtime.block_on(other.batch_execute(lock)).unwrap();
    let args = "t.csv --scope-by meter --transactions 2 --vacuum --quiet";
    let child = spawn(&mut command(&case, args));
    wait_until("the vacuum waits", || is_waiting_for_lock(&case));
    interrupt(&child);
    let stopped = finish(child);
    assert_eq!(stopped.status, Some(130), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("1 transaction is committed"), "{}", stopped.stderr);
    runtime.block_on(other.batch_execute("commit")).unwrap();
    assert_ne!(case.value("select count(*) from t where value = 1"), "0");
}

#[test]
fn rows_that_another_session_inserts_between_transactions_are_found() {
    for unique in [true, false] {
        let case = new_case();
        if !unique {
            case.db.run("alter table t drop constraint t_pkey");
        }
        let (first, last) =
            (first_meter_of_transaction(&case, 0), first_meter_of_transaction(&case, 1));
        case.put("t.csv", csv_text(2) + &format!("{last},60,2,\n"));
        let (runtime, other) = session(&case.db.dsn());
        let lock = format!("begin; select from t where meter = {first} for update");
        runtime.block_on(other.batch_execute(&lock)).unwrap();
        let args = "t.csv --scope-by meter --key meter,at --transactions 2 --read-ahead never";
        let child = spawn(&mut command(&case, args));
        wait_until("the first transaction waits for the row", || is_waiting_for_lock(&case));
        case.db.run(&format!("insert into t values ({last}, 60, 7, '')"));
        runtime.block_on(other.batch_execute("commit")).unwrap();
        finish(child).success();
        assert_eq!(case.value("select count(*) from t where value = 2"), "2401");
        assert_eq!(case.value("select count(*) from t"), "2401");
    }
}

#[test]
fn equal_keys_are_refused_before_anything_is_written() {
    for ahead in ["always", "never"] {
        let case = new_case();
        let last = first_meter_of_transaction(&case, 1);
        let row = format!("\n{last},5,2,");
        // One of the two rows with this key equals a row of the table.
        let source = csv_text(2);
        let twice = source.replace(&row, &format!("\n{last},5,1,")) + row.trim_start() + "\n";
        case.put("t.csv", twice);
        let args = format!("t.csv --scope-by meter --transactions 2 --read-ahead {ahead}");
        let refused = sync(&case, &args);
        assert_eq!(refused.status, Some(2));
        assert!(refused.stderr.contains("more than once"), "{}", refused.stderr);
        assert_eq!(case.value("select count(*) from t where value = 1"), "2400");
    }
}

#[test]
fn a_trigger_that_moves_rows_is_not_reported_as_another_session() {
    let case = new_case();
    case.db.run(
        "create function f() returns trigger language plpgsql as \
         'begin update t set note = ''y'' where meter = old.meter and at = old.at + 1; \
                return null; end'; \
         create trigger g after delete on t for each row execute function f()",
    );
    let less: String = csv_text(2)
        .lines()
        .filter(|line| !line.starts_with("7,3,"))
        .fold(String::new(), |text, line| text + line + "\n");
    case.put("t.csv", less);
    let refused = sync(&case, "t.csv --scope-by meter --transactions 2 --retry-for 600");
    assert_eq!(refused.status, Some(2));
    assert!(!refused.stderr.contains("another session"), "{}", refused.stderr);
    assert_eq!(case.value(COUNT_HALF_WRITTEN), "0");
}

#[test]
fn one_transaction_writes_all_without_scope_by() {
    let case = new_case();
    let whole = sync(&case, "t.csv --scope all --transactions 2").success();
    assert!(whole.contains("one transaction: only the scopes of `--scope-by`"), "{whole}");
    let both = sync(&case, "t.csv --scope-by meter --transactions 2 --lanes 2");
    assert_eq!(both.status, Some(2));
    assert!(
        both.stderr.contains("`--lanes` and `--transactions` cannot be combined"),
        "{}",
        both.stderr
    );
    // Rows are found by ctid and key, because another row may have taken the ctid meanwhile.
    let plan = sync(&case, "t.csv --scope-by meter --transactions 2 --plan");
    let by_key = "where t.ctid = s.\"pgspate tid\" and t.tableoid = s.\"pgspate part\" \
                  and t.meter = s.meter and t.at = s.at"
        .replace(" = ", " operator(pg_catalog.=) ");
    assert_eq!(plan.stdout.matches(&by_key).count(), 2, "{}", plan.stdout);
    let check = sync(&case, "t.csv --scope-by meter --transactions 2 --check --quiet");
    assert_eq!(check.status, Some(0), "{}", check.stderr);
}

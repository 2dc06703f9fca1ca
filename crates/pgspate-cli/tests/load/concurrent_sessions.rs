//! Tests that other sessions can read and write during a load exactly as its plan says.

use std::process::Child;

use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::support::{LoadCase, finish, session, spawn, wait_until};

const ROWS: usize = 40_000;

/// Creates a table, and a function `hold` that waits for an advisory lock.
const CREATE_TABLE: &str = "\
create table t (id int primary key, note text);
create function hold(text) returns text immutable language plpgsql as
    'begin perform pg_advisory_xact_lock_shared(7); return $1; end';
insert into t values (-1, 'old')";

/// A load that is blocked, and the session that blocks it.
struct BlockedLoad<'a> {
    case: &'a LoadCase,
    child: Child,
    runtime: Runtime,
    holder: Client,
}

fn write_input(case: &LoadCase) {
    let rows: Vec<_> = (1..=ROWS).map(|id| format!("{id},{:>60}\n", "a note")).collect();
    case.put("t.csv", format!("id,note\n{}", rows.concat()));
}

/// Returns the line of the plan that says what other sessions can do.
fn read_planned_access(case: &LoadCase, args: &str) -> String {
    let plan = case.load(&format!("{args} --plan")).stdout;
    let line = plan.lines().find_map(|line| line.strip_prefix("others"));
    line.unwrap_or_else(|| panic!("{plan}")).trim().to_owned()
}

impl BlockedLoad<'_> {
    /// Starts a load and waits until a backend of the load is blocked.
    fn new<'a>(case: &'a LoadCase, args: &str) -> BlockedLoad<'a> {
        let (runtime, holder) = session(&case.db.dsn());
        runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
        let child = spawn(&mut case.load_command(&format!("{args} --quiet")));
        wait_until("the load is blocked", || {
            let sql = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event = 'advisory'";
            case.value(sql) != "0"
        });
        BlockedLoad { case, child, runtime, holder }
    }

    /// Returns whether another session can run `sql` while the load is blocked.
    fn can(&self, sql: &str) -> bool {
        let (runtime, client) = session(&self.case.db.dsn());
        let sql = format!("set lock_timeout = '500ms'; {sql}");
        match runtime.block_on(client.batch_execute(&sql)) {
            Ok(()) => true,
            Err(error) if error.code().is_some_and(|code| code.code() == "55P03") => false,
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    fn can_read(&self) -> bool {
        self.can("select * from t where id = -1")
    }

    fn can_write(&self) -> bool {
        self.can(
            "insert into t values (-2, 'another'); update t set note = 'new' where id = -2; \
             delete from t where id = -2",
        )
    }

    /// Unblocks the load, which must then succeed.
    fn release(self) {
        self.runtime.block_on(self.holder.batch_execute("commit")).unwrap();
        finish(self.child).success();
    }
}

#[test]
fn other_sessions_read_and_write_while_rows_are_added() {
    for args in ["", "--commit chunk", "--atomic"] {
        let case = LoadCase::new(CREATE_TABLE);
        case.db.run("alter table t add check (hold(note) is not null)");
        write_input(&case);
        let args = format!("t.csv --table t --rebuild-indexes never {args}");
        assert_eq!(read_planned_access(&case, &args), "read and write as always");
        let blocked = BlockedLoad::new(&case, &args);
        // Inserts would wait in the check constraint, so only a read and a delete are tried.
        assert!(blocked.can_read() && blocked.can("delete from t where id = -1"));
        blocked.release();
        assert_eq!(case.value("select count(*) from t"), ROWS.to_string());
    }
}

#[test]
fn other_sessions_read_but_do_not_write_while_indexes_are_built() {
    let case = LoadCase::new(CREATE_TABLE);
    write_input(&case);
    let args = "t.csv --table t --rebuild-indexes always";
    // This load creates the ledger before the load that the test blocks.
    case.load(args).success();
    case.db.run(
        "create function held() returns trigger language plpgsql as
             'begin perform public.hold(null); return new; end';
         create trigger held before update on pgspate.change for each row execute function held()",
    );
    case.put("more.csv", "id,note\n0,one more\n");
    let args = "more.csv --table t --rebuild-indexes always";
    assert_eq!(
        read_planned_access(&case, args),
        "can read, but without the dropped indexes; can write, except while indexes are built"
    );
    let blocked = BlockedLoad::new(&case, args);
    assert!(blocked.can_read());
    assert!(!blocked.can_write());
    blocked.release();
    assert_eq!(case.value("select count(*) from t"), (ROWS + 2).to_string());
}

#[test]
fn other_sessions_read_and_write_the_old_rows_while_a_shadow_table_fills() {
    let case = LoadCase::new(CREATE_TABLE);
    case.db.run("create index t_held on t (hold(note)) where id > 0");
    write_input(&case);
    let args = "t.csv --table t --replace=swap";
    assert_eq!(
        read_planned_access(&case, args),
        "read the old rows until the exchange; rows that they write until then are lost"
    );
    let blocked = BlockedLoad::new(&case, args);
    assert!(blocked.can_read() && blocked.can_write());
    assert!(blocked.can("insert into t values (-3, 'goes')"));
    blocked.release();
    assert_eq!(case.value("select min(id) from t"), "1");
}

#[test]
fn other_sessions_neither_read_nor_write_during_a_replace_in_one_transaction() {
    let case = LoadCase::new(CREATE_TABLE);
    case.db.run("create table o (id int references t); alter table t add check (hold(note) <> '')");
    write_input(&case);
    let args = "t.csv --table t --replace=truncate";
    assert_eq!(
        read_planned_access(&case, args),
        "can neither read nor write the table, nor public.o until the load is done"
    );
    let blocked = BlockedLoad::new(&case, args);
    assert!(
        !blocked.can_read() && !blocked.can("delete from t") && !blocked.can("select * from o")
    );
    blocked.release();
    assert_eq!(case.value("select count(*) from t"), ROWS.to_string());
}

/// The load has committed rows with a duplicate key and builds indexes. One session blocks the
/// load, and another session waits to update a row.
#[test]
fn a_failed_load_keeps_its_rows_if_other_sessions_changed_some() {
    let case = LoadCase::new(CREATE_TABLE);
    case.put("one.csv", "id,note\n0,one\n");
    // This load creates the ledger before the load that the test blocks.
    case.load("one.csv --table t").success();
    case.db.run(
        "truncate t; create index t_note on t (note);
         create function held() returns trigger language plpgsql as
             'begin perform public.hold(null); return new; end';
         create trigger held before update on pgspate.change for each row execute function held()",
    );
    let rows: Vec<_> = (1..=1000).map(|id| format!("{id},note\n")).collect();
    let rows = format!("id,note\n{}", rows.concat());
    case.put("t.csv", format!("{rows}3,twice\n"));
    let blocked = BlockedLoad::new(&case, "t.csv --rebuild-indexes always");
    let dsn = case.db.dsn();
    let update = std::thread::spawn(move || {
        let (runtime, client) = session(&dsn);
        runtime.block_on(client.batch_execute("update t set note = 'mine' where id = 5")).unwrap();
    });
    wait_until("the update waits for the index", || {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() \
                   and query like 'update t%' and wait_event_type = 'Lock'";
        case.value(sql) == "1"
    });
    blocked.runtime.block_on(blocked.holder.batch_execute("rollback")).unwrap();
    let said = finish(blocked.child).refusal();
    update.join().unwrap();
    assert!(said.contains("Key (id)=(3) is duplicated"), "{said}");
    let said = said.replace("\n      … ", " ");
    assert!(said.contains("because other sessions have changed or deleted 1 of them"), "{said}");
    assert_eq!(case.value("select count(*) || ' ' || min(note) from t"), "1001 mine");
    assert_eq!(case.value("select count(*) from pg_index where indrelid = 't'::regclass"), "1");
    // The user follows the hint and corrects the rows in the table.
    case.db.run("delete from t where id = 3 and note = 'twice'");
    assert_eq!(case.load("t.csv --quiet").status, Some(0));
    assert_eq!(case.value("select count(*) || ' ' || min(note) from t"), "1000 mine");
    assert_eq!(case.value("select count(*) from pg_index where indrelid = 't'::regclass"), "2");
    // Or the user empties the table and loads a corrected file.
    case.db.run("truncate t; update pgspate.job set finished = null");
    case.put("t.csv", rows);
    let mended = case.load("t.csv --quiet");
    assert_eq!(mended.status, Some(0), "{}", mended.stderr);
    assert_eq!(case.value("select count(*) || ' ' || min(note) from t"), "1000 note");
}

/// A table that appears while the load plans to create it, and one that appears between the plan
/// and its creation.
#[test]
fn a_table_that_another_session_creates_meanwhile_is_loaded() {
    let case = LoadCase::new(
        "create sequence tries;
         create function wait() returns event_trigger language plpgsql as $$
         begin
           if current_query() like '%late (%' and nextval('public.tries') = 2 then
             perform pg_advisory_lock(7);
           end if;
         end $$;",
    );
    case.put("early.csv", "id\n1\n");
    case.put("late.csv", "id\n1\n");
    let waits = |what: &str| {
        let sql = format!(
            "select count(*) from pg_stat_activity \
             where application_name like 'pgspate%' and wait_event = '{what}'"
        );
        wait_until("the load waits", || case.value(&sql) != "0");
    };
    let (runtime, client) = session(&case.db.dsn());
    let run = |sql: &str| runtime.block_on(client.batch_execute(sql)).unwrap();
    run("begin; create table early (id bigint)");
    let load = spawn(&mut case.load_command("early.csv --create"));
    waits("transactionid");
    run("commit");
    finish(load).success();
    run("select pg_advisory_lock(7); \
         create event trigger waits on ddl_command_start when tag in ('CREATE TABLE') \
         execute function wait()");
    let load = spawn(&mut case.load_command("late.csv --create"));
    waits("advisory");
    run("create table public.late(id bigint); select pg_advisory_unlock(7)");
    finish(load).success();
    assert_eq!((case.rows("early"), case.rows("late")), (vec!["(1)".into()], vec!["(1)".into()]));
}

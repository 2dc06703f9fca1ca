//! Tests of loads during which another session replaces or empties the table. No row may be loaded
//! twice, and no change may stay at the table that took the name.

use std::fmt::Write as _;
use std::process::Child;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error};

use crate::support::{LoadCase, finish, redact, session, spawn, wait_until};

const ROWS: usize = 200_000;

/// A load that commits each chunk.
const CHUNKED: &str = "t.csv --commit chunk --lanes 1 --rebuild-indexes never --quiet";

/// Renames the table, and gives its name to an empty table.
const REPLACE: &str = "begin; lock table t in access exclusive mode; \
                       alter table t rename to t_old; \
                       create table t (like t_old including all); commit";

/// Changes types to others of the same width, whose bytes mean other values.
const ALTER: &str = "alter table t alter id type real";

/// A load of five chunks that commits each chunk and waits in the third one for a key, which
/// another session has inserted without a commit.
struct HeldLoad {
    child: Child,
    runtime: Runtime,
    holder: Client,
}

impl HeldLoad {
    fn new(case: &LoadCase) -> HeldLoad {
        let mut rows = "id,note\n".to_owned();
        (0..ROWS).for_each(|row| writeln!(rows, "{row},{:>90}", row * 7).unwrap());
        case.put("t.csv", rows);
        let (runtime, holder) = session(&case.db.dsn());
        let insert = format!("begin; insert into t values ({}, '')", ROWS / 2);
        runtime.block_on(holder.batch_execute(&insert)).unwrap();
        let child = spawn(&mut case.load_command(CHUNKED));
        wait_until("a chunk waits", || {
            let sql = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event = 'transactionid'";
            case.value(sql) == "1"
        });
        HeldLoad { child, runtime, holder }
    }

    fn release(&self) {
        self.runtime.block_on(self.holder.batch_execute("rollback")).unwrap();
    }
}

/// Runs `sql` in a session of its own, and waits until it waits for a lock on a table.
fn start_waiting(case: &LoadCase, sql: &'static str) -> (Runtime, JoinHandle<Result<(), Error>>) {
    let (runtime, client) = session(&case.db.dsn());
    let task = runtime.spawn(async move { client.batch_execute(sql).await });
    wait_for_lock(case, 1);
    (runtime, task)
}

/// Waits until this number of sessions wait for a lock on a table.
fn wait_for_lock(case: &LoadCase, sessions: usize) {
    let waiting = "select count(*) from pg_stat_activity \
                   where datname = current_database() and wait_event = 'relation'";
    wait_until("sessions wait for the table", || case.value(waiting) == sessions.to_string());
}

fn count_rows(case: &LoadCase, table: &str) -> usize {
    case.value(&format!("select count(*) from {table}")).parse().unwrap()
}

#[test]
fn a_chunk_is_not_written_into_another_table_of_the_name() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    let held = HeldLoad::new(&case);
    let (runtime, replacing) = start_waiting(&case, REPLACE);
    held.release();
    runtime.block_on(replacing).unwrap().unwrap();
    let run = finish(held.child);
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    let rows = count_rows(&case, "t_old");
    insta::assert_snapshot!(redact(&run.stderr).replace(&rows.to_string(), "N"), @r#"
    error: could not load "t.csv" into public.t
      caused by: another session has put another table of this name in the table's place

    hint: N rows are in the table that had the name before. The same command, run
          … again, loads everything into the table that has the name now.
    "#);
    assert_eq!(count_rows(&case, "t"), 0);
    case.load(CHUNKED).success();
    assert_eq!((count_rows(&case, "t"), count_rows(&case, "t_old")), (ROWS, rows));
    case.load(CHUNKED).success();
    assert_eq!(count_rows(&case, "t"), ROWS);
}

#[test]
fn a_load_in_one_transaction_refuses_another_table_of_the_name() {
    let fresh = "create table t (id int primary key, note text); insert into t values (0, '')";
    for args in ["", "--no-ledger", "--pause-autovacuum always", "--rebuild-indexes always"] {
        let case = LoadCase::new(fresh);
        case.put("t.csv", "id,note\n1,a\n2,b\n");
        let (runtime, holder) = session(&case.db.dsn());
        let rename = "alter table t rename to t_old; \
                      create table t (like t_old including all)";
        // The load has read the catalog when it waits for the lock.
        runtime.block_on(holder.batch_execute("begin; lock table t")).unwrap();
        let child = spawn(&mut case.load_command(&format!("t.csv --quiet {args}")));
        wait_for_lock(&case, 1);
        runtime.block_on(holder.batch_execute(&format!("{rename}; commit"))).unwrap();
        let run = finish(child);
        assert_eq!(run.status, Some(2), "{args}: {}{}", run.stdout, run.stderr);
        let replaced = "another session has put another table of this name in the table's place";
        assert!(run.stderr.contains(replaced), "{args}: {}", run.stderr);
        assert_eq!(case.rows("t").len() + case.rows("t_old").len(), 1, "{args}");
        let options = "select count(*) from pg_class where reloptions is not null \
                       and relnamespace = 'public'::regnamespace";
        assert_eq!(case.value(options), "0", "{args}");
        let keys = "select count(*) from pg_index \
                    where indrelid in ('t'::regclass, 't_old'::regclass)";
        assert_eq!(case.value(keys), "2", "{args}");
        for _ in 0..2 {
            case.load(&format!("t.csv --quiet {}", args.replace("--no-ledger", ""))).success();
        }
        assert_eq!(case.rows("t").len(), 2, "{args}");
    }
}

#[test]
fn a_chunk_is_not_written_as_values_of_another_type() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    let held = HeldLoad::new(&case);
    let (runtime, altering) = start_waiting(&case, ALTER);
    held.release();
    runtime.block_on(altering).unwrap().unwrap();
    let run = finish(held.child);
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    let rows = count_rows(&case, "t");
    assert!((1..ROWS).contains(&rows), "{rows}");
    insta::assert_snapshot!(redact(&run.stderr).replace(&rows.to_string(), "N"), @r#"
    error: could not load "t.csv" into public.t
      caused by: another session has changed the type of a column of the table meanwhile

    hint: N rows are in the table; the same command, run again, encodes the rest for
          … the new type.
    "#);
    for _ in 0..2 {
        case.load(CHUNKED).success();
        let sums = "select concat_ws(' ', count(*), count(distinct id), min(id), max(id)) from t";
        assert_eq!(case.value(sums), format!("{ROWS} {ROWS} 0 {}", ROWS - 1));
    }
}

#[test]
fn a_load_in_one_transaction_refuses_another_type() {
    let fresh = "create table t (id int, note text); insert into t values (0, '')";
    for args in ["", "--no-ledger", "--pause-autovacuum always", "--replace=truncate"] {
        let case = LoadCase::new(fresh);
        case.put("t.csv", "id,note\n1,a\n2,b\n");
        let (runtime, holder) = session(&case.db.dsn());
        // The load has read the catalog when it waits for the lock.
        runtime.block_on(holder.batch_execute("begin; lock table t in share mode")).unwrap();
        let child = spawn(&mut case.load_command(&format!("t.csv --quiet {args}")));
        wait_for_lock(&case, 1);
        runtime.block_on(holder.batch_execute(&format!("{ALTER}; commit"))).unwrap();
        let run = finish(child);
        assert_eq!(run.status, Some(2), "{args}: {}{}", run.stdout, run.stderr);
        let altered = "another session has changed the type of a column";
        assert!(run.stderr.contains(altered), "{args}: {}", run.stderr);
        assert_eq!(case.rows("t"), ["(0,\"\")"], "{args}");
        case.load(&format!("t.csv --quiet {args}")).success();
        assert_eq!(case.value("select sum(id) || ' ' || max(id) from t"), "3 2", "{args}");
    }
}

/// The ledger's check sees what was committed while COPY waited for the table, whatever the default
/// isolation level is.
#[test]
fn a_load_that_waits_for_a_replace_sees_its_record() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    let database = case.db.name();
    let level = "default_transaction_isolation = 'repeatable read'";
    case.db.run(&format!("alter database \"{database}\" set {level}"));
    // Without a ledger, an empty COPY would wait before the job begins.
    case.put("first.csv", "id,note\n0,z\n");
    case.load("first.csv --table t --quiet").success();
    case.put("t.csv", "id,note\n1,a\n2,b\n");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; lock table t in share mode")).unwrap();
    let child = spawn(&mut case.load_command("t.csv --lanes 1 --rebuild-indexes never --quiet"));
    wait_until("COPY waits", || {
        let waiting = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event = 'relation' \
                         and query ilike 'copy %'";
        case.value(waiting) == "1"
    });
    // As a replace does. Another session records it, because the holder's snapshot is older.
    let (recording, recorder) = session(&case.db.dsn());
    let record = "insert into pgspate.emptied (table_oid, upto, but) \
                  select 't'::regclass, max(job), 0 from pgspate.job";
    recording.block_on(recorder.batch_execute(record)).unwrap();
    runtime.block_on(holder.batch_execute("truncate t; commit")).unwrap();
    let run = finish(child);
    assert_eq!(run.status, Some(2), "{}{}", run.stdout, run.stderr);
    let words = "another load has replaced all rows of the table";
    assert!(run.stderr.contains(words), "{}", run.stderr);
    assert_eq!(count_rows(&case, "t"), 0);
}

#[test]
fn rows_are_replaced_while_another_load_commits_chunks() {
    for method in ["truncate", "swap"] {
        let case = LoadCase::new("create table t (id int primary key, note text)");
        case.put("small.csv", "id,note\n-1,a\n-2,b\n");
        let held = HeldLoad::new(&case);
        let replace = format!("small.csv --table t --replace={method} --quiet");
        let replacing = spawn(&mut case.load_command(&replace));
        wait_for_lock(&case, 1);
        held.release();
        finish(replacing).success();
        let run = finish(held.child);
        // A shadow may also take the table's place after the last chunk.
        if method == "truncate" || run.status != Some(0) {
            assert_eq!(run.status, Some(2), "{method}: {}", run.stdout);
        }
        if method == "truncate" {
            insta::assert_snapshot!(redact(&run.stderr), @r#"
            error: could not load "t.csv" into public.t
              caused by: another load has replaced all rows of the table

            hint: Of this load, 129532 committed rows are removed, too. The same command, run
                  … again, loads everything.
            "#);
        }
        assert_eq!(count_rows(&case, "t"), 2, "{method}: {}", run.stderr);
        for _ in 0..2 {
            case.load(CHUNKED).success();
            assert_eq!(count_rows(&case, "t"), ROWS + 2, "{method}");
        }
    }
}

#[test]
fn a_replace_keeps_a_foreign_key_that_another_session_changes_meanwhile() {
    let case = LoadCase::new(
        "create table t (id int primary key); insert into t values (1); \
         create table other (t int constraint other_t references t)",
    );
    case.put("t.csv", "id\n1\n2\n");
    let (runtime, holder) = session(&case.db.dsn());
    let change = "begin; alter table other drop constraint other_t, \
                  add constraint other_t foreign key (t) references t on delete cascade";
    runtime.block_on(holder.batch_execute(change)).unwrap();
    let args = "t.csv --header yes --replace=truncate --quiet";
    let child = spawn(&mut case.load_command(args));
    // The load has read the foreign key, and asks whether the table has rows.
    wait_for_lock(&case, 1);
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    insta::assert_snapshot!(finish(child).refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: the foreign keys that refer to the table were changed during the load

    hint: Run the same command again.
    "#);
    let definition =
        "select pg_get_constraintdef(oid) from pg_constraint where conname = 'other_t'";
    assert_eq!(case.rows("t"), ["(1)"]);
    for _ in 0..2 {
        let expected = "FOREIGN KEY (t) REFERENCES t(id) ON DELETE CASCADE";
        assert_eq!(case.value(definition), expected);
        case.load(args).success();
        assert_eq!(case.rows("t"), ["(1)", "(2)"]);
    }
}

/// The shadow table has its keys and foreign keys before its rows. So the server refuses rows that
/// violate them one by one.
#[test]
fn rows_with_equal_keys_are_set_aside_from_a_shadow_table() {
    let case = LoadCase::new(
        "create table kinds (kind text primary key); insert into kinds values ('a'), ('b'); \
         create table t (id int constraint t_key primary key, kind text references kinds, n int); \
         create index t_n on t (n); alter table t cluster on t_n; \
         insert into t values (9, 'a', 0)",
    );
    case.put("t.csv", "id,kind,n\n1,a,1\n2,b,2\n1,b,3\n3,c,4\nx,a,5\n");
    let run = case.load("t.csv --replace --rejects r.csv --lanes 1 --quiet");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    let rejects = std::fs::read_to_string(case.path("r.csv")).unwrap();
    assert_eq!(rejects, "id,kind,n\n1,b,3\n3,c,4\nx,a,5\n");
    let rows = "select string_agg(concat_ws(' ', id, kind, n), ', ' order by id) from t";
    assert_eq!(case.value(rows), "1 a 1, 2 b 2");
    let indexes = "select string_agg(concat_ws(' ', indexrelid::regclass, indisclustered), ', ' \
                                     order by indexrelid::regclass::text) \
                   from pg_index where indrelid = 't'::regclass";
    assert_eq!(case.value(indexes), "t_key f, t_n t");
    let keys = "select string_agg(conname, ', ' order by conname) from pg_constraint \
                where conrelid = 't'::regclass and contype <> 'n'";
    assert_eq!(case.value(keys), "t_key, t_kind_fkey");
}

//! An index over an expression has statistics, which the server drops with the index.

use std::process::Stdio;

use crate::support::{LoadCase, finish, session, spawn, wait_until};

/// A table with an analyzed index over an expression, and a trigger that makes each inserted row
/// wait for an advisory lock.
const CREATE_TABLE: &str = "\
create table t (id int constraint t_key primary key, note text);
create index t_lower on t (lower(note));
insert into t select n, 'Note' from generate_series(1, 1000) n;
analyze t;
create function wait() returns trigger language plpgsql as
    'begin perform pg_advisory_xact_lock_shared(7); return new; end';
create trigger wait before insert on t for each row execute function wait()";

/// A load that drops the index, and writes too few rows to analyze the table for them.
const DROP_INDEX: &str = "t.csv --rebuild-indexes always --quiet";

fn new_case() -> LoadCase {
    let case = LoadCase::new(CREATE_TABLE);
    case.put("t.csv", "id,note\n2001,x\n");
    assert_eq!(case.value(COUNT_STATISTICS), "1");
    case
}

const COUNT_STATISTICS: &str = "select count(*) from pg_stats where tablename = 't_lower'";

/// Kills a load that has dropped the index.
fn kill_load(case: &LoadCase) {
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let mut child = spawn(case.load_command(DROP_INDEX).stdin(Stdio::null()));
    wait_until("a row waits", || {
        let sql = "select count(*) from pg_stat_activity \
                   where datname = current_database() and wait_event = 'advisory'";
        case.value(sql) != "0"
    });
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    assert_eq!(case.value("select count(*) from pg_class where relname = 't_lower'"), "0");
}

#[test]
fn a_failed_load_restores_the_statistics() {
    let case = new_case();
    case.put("bad.csv", "id,note\n2001,x\ny,y\n");
    let run = case.load("bad.csv --table t --rebuild-indexes always --quiet");
    assert!(run.stderr.contains("invalid input syntax"), "{}", run.stderr);
    assert_eq!(case.value(COUNT_STATISTICS), "1");
}

#[test]
fn status_restores_the_statistics() {
    let case = new_case();
    kill_load(&case);
    let restore = ["status", "--restore", "--to", &case.db.dsn()];
    let run = finish(spawn(&mut case.command(&restore)));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("index \"t_lower\" of job 1 is back"), "{}", run.stderr);
    assert_eq!(case.value(COUNT_STATISTICS), "1");
}

#[test]
fn a_load_that_takes_over_the_index_restores_the_statistics() {
    for args in [DROP_INDEX, "other.csv --table t --quiet", "bad.csv --table t --quiet"] {
        let case = new_case();
        case.put("other.csv", "id,note\n3001,x\n");
        case.put("bad.csv", "id,note\n3001,x\ny,y\n");
        kill_load(&case);
        let run = case.load(args);
        assert_eq!(run.status == Some(0), !args.starts_with("bad"), "{}", run.stderr);
        assert_eq!(case.value(COUNT_STATISTICS), "1", "{args}");
    }
}

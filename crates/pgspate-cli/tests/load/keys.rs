//! Keys that a load has dropped: no error, no rename, no second load may lose them.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};

use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::support::{Case, Run, finish, session, spawn, wait_until};

/// Indexes and constraints of table `t`, or of the table that has its oid now.
const SHAPE: &str = "\
select string_agg(line, E'\\n' order by line) from (
    select pg_get_indexdef(indexrelid) || coalesce(' ' || obj_description(indexrelid), '') as line
    from pg_index where indrelid = (select oid from noted)
    union all
    select conname || ' ' || pg_get_constraintdef(oid) || coalesce(' ' || obj_description(oid), '')
    from pg_constraint where conrelid = (select oid from noted) and contype <> 'n') lines";

/// A table whose rows wait, one by one, for a lock that the test has.
const TABLE: &str = "\
create table far (a int primary key); insert into far select generate_series(0, 6);
create table t (id int constraint t_key primary key, a int constraint t_far references far,
                b text, constraint t_both unique (id, a));
create index t_a on t (a);
create unique index t_b on t (b) where b <> '';
comment on index t_a is 'a'; comment on constraint t_key on t is 'key';
create table noted as select 't'::regclass::oid as oid;
create function wait() returns trigger language plpgsql as
    'begin perform pg_advisory_xact_lock_shared(7); return new; end';
create trigger wait before insert on t for each row execute function wait()";

fn rows(count: usize) -> String {
    let mut rows = "id,a,b\n".to_owned();
    (0..count).for_each(|row| writeln!(rows, "{row},{},b{row}", row % 7).unwrap());
    rows
}

/// A load that has dropped the keys, and of which no row is in before the session lets it go.
fn waiting(case: &Case, args: &str) -> (Child, Runtime, Client) {
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let child = spawn(&mut case.load_command(args));
    wait_until("a row waits", || {
        let sql = "select count(*) from pg_stat_activity \
                   where datname = current_database() and wait_event = 'advisory'";
        case.value(sql) != "0"
    });
    (child, runtime, holder)
}

const ALWAYS: &str = "t.csv --rebuild-indexes always --lanes 2 --quiet";

/// Kills a load that has dropped the keys.
fn kill_one(case: &Case) {
    let (mut child, runtime, holder) = waiting(case, ALWAYS);
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    assert_eq!(case.value("select count(*) from pg_index where indrelid = 't'::regclass"), "0");
}

fn restore(case: &Case) -> Run {
    let mut command = case.command(&["status", "--restore", "--to", &case.db.dsn()]);
    Run::of(command.output().unwrap())
}

fn case() -> (Case, String) {
    let case = Case::new(TABLE);
    case.put("t.csv", rows(1000));
    let shape = case.value(SHAPE);
    assert_eq!(shape.lines().count(), 7, "{shape}");
    (case, shape)
}

/// Loads that end before they have put back anything, or soon after.
fn early_errors(case: &Case) -> Vec<(&'static str, Command)> {
    let role = format!("{}_reader", case.db.name());
    let load = |args: &str| case.load_command(&format!("{ALWAYS} {args}"));
    let with = |mut command: Command, options: &str| {
        command.env("PGOPTIONS", options);
        command
    };
    let mut as_reader = case.command(&["load", "--to", &format!("{} user={role}", case.db.dsn())]);
    as_reader.args(ALWAYS.split(' '));
    vec![
        ("a rejects file that exists", load("--rejects there.csv")),
        ("a rejects file in no folder", load("--rejects no/such/folder.csv")),
        ("a rejects file that is the source", load("--rejects t.csv")),
        ("a bad option", load("--max-rejects many --rejects r.csv")),
        ("a bad delimiter", load("--delimiter xx")),
        ("a column that is not there", load("--columns id,a,nothing")),
        ("a source that is not there", load("nothing.csv")),
        ("an encoding that is none", load("--encoding nonsense")),
        ("a role that may not write", as_reader),
        ("a session that may not write", with(load(""), "-c default_transaction_read_only=on")),
        ("a statement timeout", with(load("--retry-for 0"), "-c statement_timeout=1")),
        ("no other job, and a rejects file", load("--restart --rejects there.csv")),
        ("other options, and a rejects file", load("--null x --rejects there.csv")),
        ("another file, and a rejects file", {
            case.load_command("other.csv --table t --quiet --rejects there.csv")
        }),
        ("a row that is refused", case.load_command("bad.csv --table t --quiet")),
        ("a swap that is refused", load("--replace=swap --columns id,a,nothing")),
        ("an atomic load, and a rejects file", load("--atomic --rejects there.csv")),
    ]
}

#[test]
fn keys_under_every_early_error() {
    let (case, shape) = case();
    case.put("there.csv", "somebody's rows\n");
    case.put("other.csv", "id,a,b\n5000,1,x\n");
    case.put("bad.csv", "id,a,b\nx,1,x\n");
    let role = format!("{}_reader", case.db.name());
    case.db.run(&format!("create role {role} login; grant select on t to {role}"));
    kill_one(&case);
    case.db.run(&format!(
        "grant usage on schema pgspate to {role}; \
         grant select, insert, update, delete on all tables in schema pgspate to {role}"
    ));
    for (nth, (what, mut command)) in early_errors(&case).into_iter().enumerate() {
        if nth > 0 {
            kill_one(&case);
        }
        let run = finish(spawn(command.stdin(Stdio::null())));
        assert!(matches!(run.status, Some(2)), "{what}: {:?} {}", run.status, run.stderr);
        if nth % 2 == 0 {
            let back = restore(&case);
            assert_eq!(back.status, Some(0), "{what}: {}", back.stderr);
            assert_eq!(case.value(SHAPE), shape, "{what}: {}", run.stderr);
        }
        let again = case.load(ALWAYS);
        assert_eq!(again.status, Some(0), "{what}: {}", again.stderr);
        assert_eq!(case.value(SHAPE), shape, "{what}: {}", run.stderr);
        assert_eq!(case.value("select count(*) from t"), "1000", "{what}");
        let empty = "truncate t, pgspate.job, pgspate.ledger, pgspate.reject, pgspate.change";
        case.db.run(empty);
    }
    case.db.run(&format!("drop owned by {role}; drop role {role}"));
}

#[test]
fn an_early_error_says_what_is_not_back() {
    let (case, _) = case();
    case.put("there.csv", "somebody's rows\n");
    kill_one(&case);
    let run = case.load(&format!("{ALWAYS} --rejects there.csv"));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("\"there.csv\" exists already"), "{said}");
    assert!(said.contains("primary key \"t_key\""), "{said}");
    assert!(said.contains("`pgspate status --restore 1`"), "{said}");
}

#[test]
fn old_jobs_keep_what_is_not_back() {
    let (case, shape) = case();
    kill_one(&case);
    // Long ago, and finished by a version that was too hasty.
    case.db.run("update pgspate.job set finished = now() - interval '8 days'");
    case.db.run("create table other (id int)");
    case.put("other.csv", "id\n1\n");
    case.load("other.csv --quiet --header yes").success();
    assert_eq!(restore(&case).status, Some(0));
    assert_eq!(case.value(SHAPE), shape);
}

#[test]
fn without_a_ledger_there_is_nothing_to_put_back() {
    let case = Case::new("create table t (id int)");
    let run = restore(&case);
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), "there is nothing to put back\n"));
}

#[test]
fn a_table_that_is_gone_is_no_trouble() {
    let (case, _) = case();
    kill_one(&case);
    case.db.run("drop table t");
    let run = restore(&case);
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), "there is nothing to put back\n"));
}

//! `--replace` by a shadow table: the table's properties are kept, and
//! other sessions see either the old rows or the new rows.

use std::fmt::Write as _;

use insta::assert_snapshot;

use crate::kept::{EVERYTHING, dump, signal, watch};
use crate::support::{LoadCase, finish, folded, redact, session, spawn, wait_until};

/// More than a megabyte, so that it is not one transaction by itself: this many rows, several
/// chunks.
const ROWS: usize = 120_000;

fn rows(from: usize) -> String {
    let mut text = "id,note\n".to_owned();
    for id in from..from + ROWS {
        writeln!(text, "{id},{:>80}", format!("note {id}")).unwrap();
    }
    text
}

fn sum(case: &LoadCase) -> String {
    case.value("select count(*) || ' from ' || coalesce(min(id), 0) from t")
}

fn shadows(case: &LoadCase) -> String {
    case.value("select count(*) from pg_namespace where nspname like 'pgspate\\_job%'")
}

#[test]
fn whatever_the_table_has_is_kept() {
    let case = LoadCase::new(EVERYTHING);
    let before = dump(&case);
    case.put("t.csv", "a,b,c\n1,x,0.5\n2,y,1.5\n");
    assert_snapshot!(folded(&case.load("t.csv --replace=swap --plan --header yes").stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 3 fields in each line
    input    header yes: as given
    table    public.t
    replace  shadow table, which takes the table's place: as asked
    path     binary COPY: every column has an exact encoder; unusual values go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   read the old rows until the exchange, which replaces what they write meanwhile
    columns  a  integer        binary (int4)
             b  text           binary (bytes)
             c  numeric(10,2)  binary (numeric)
             i                 not in the input: its identity sequence
             s                 not in the input: nextval('public.t_s_seq'::regclass)
             e                 not in the input: null
             r                 not in the input: null
    indexes  stay: rows become visible at once, with their indexes
    "#);
    let oid = case.value("select 't'::regclass::oid");
    case.load("t.csv --table t --replace=swap --header yes").success();
    assert_ne!(case.value("select 't'::regclass::oid"), oid);
    assert_eq!(dump(&case), before);
    assert_eq!(shadows(&case), "0");
    // The sequences continue from their last value, also for later sessions.
    assert_eq!(case.value("select string_agg(i || '/' || s, ' ' order by a) from t"), "13/3 15/4");
    case.db.run("insert into t (a, c) values (3, 1)");
    case.db.run("update t set c = 2 where a = 3");
    // Another time, from the copy of the copy.
    case.load("t.csv --table t --replace=swap --header yes").success();
    assert_eq!(dump(&case), before);
}

#[test]
fn readers_see_the_old_rows_or_the_new_ones() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); \
         insert into t select n, 'old' from generate_series(1, 50000) n",
    );
    case.put("t.csv", rows(1_000_000));
    let said = folded(&case.load("t.csv --replace --plan").stdout);
    let said: Vec<&str> = said.lines().filter(|line| line.starts_with("replace")).collect();
    assert_snapshot!(said.join("\n"), @"replace  shadow table, which takes the table's place: nothing is bound to the table");
    let load = spawn(&mut case.load_command("t.csv --table t --replace --quiet --commit chunk"));
    let new = format!("{ROWS} from 1000000");
    watch(&case, load, "select count(*) || ' from ' || min(id) from t", &["50000 from 1", &new]);
    assert_eq!(shadows(&case), "0");
    assert_eq!(case.value("select indisvalid from pg_index where indrelid = 't'::regclass"), "t");
    // It was analyzed before.
    assert_eq!(case.value("select reltuples from pg_class where relname = 't'"), ROWS.to_string());
    // Again, as that is what was asked for.
    case.db.run("delete from t where id > 1000005");
    case.load("t.csv --table t --replace").success();
    assert_eq!(sum(&case), new);
    // Without it the rows are not there yet.
    case.put("u.csv", rows(5_000_000));
    case.load("u.csv --table t").success();
    assert_eq!(case.value("select count(*) from t"), (2 * ROWS).to_string());
}

#[test]
fn an_empty_table_is_filled_at_once() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    case.put("t.csv", rows(1));
    let load = spawn(&mut case.load_command("t.csv --table t --atomic --quiet --lanes 2"));
    watch(&case, load, "select count(*) from t", &["0", &ROWS.to_string()]);
    // These sources are loaded, and the table is where they went.
    let again = case.load("t.csv --table t --atomic --lanes 2").success();
    assert!(again.contains("has loaded this"), "{again}");
    assert_eq!(shadows(&case), "0");
}

#[test]
fn rows_that_are_added_meanwhile_are_not_lost() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("t.csv", rows(1));
    let (child, holder) = before_the_exchange(&case, "t.csv --table t --atomic --quiet");
    holder("insert into t values (-1, 'mine'); commit");
    let said = redact(&finish(child).stderr);
    assert_snapshot!(said, @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put the new rows of public.t in place
      caused by: the table was changed during the load: it is no longer empty

    hint: Run the same command again; it starts from the beginning.
    "#);
    assert_eq!(case.rows("t"), ["(-1,mine)"]);
    case.load("t.csv --table t --atomic").success();
    assert_eq!(case.value("select count(*) from t"), (ROWS + 1).to_string());
    assert_eq!(shadows(&case), "0");
}

/// A load that waits for the lock on `t`, and a session that holds it and can be told more.
fn before_the_exchange(
    case: &LoadCase,
    args: &str,
) -> (std::process::Child, impl Fn(&str) + use<>) {
    let (runtime, holder) = session(&case.db.dsn());
    let child = spawn(&mut case.load_command(args));
    wait_until("a shadow is there", || shadows(case) == "1");
    runtime
        .block_on(holder.batch_execute("begin; lock table t in share row exclusive mode"))
        .unwrap();
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
                   and wait_event_type = 'Lock' and query like 'lock table%'";
    wait_until("the load waits for the lock", || case.value(waiting) == "1");
    (child, move |sql: &str| runtime.block_on(holder.batch_execute(sql)).unwrap())
}

#[test]
fn a_lock_that_is_not_let_go_costs_nothing() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); insert into t values (1, 'old')",
    );
    case.put("t.csv", rows(7));
    let args = "t.csv --table t --replace --quiet --lock-timeout 2";
    let (child, holder) = before_the_exchange(&case, args);
    let said = redact(&finish(child).stderr);
    assert_snapshot!(said, @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put the new rows of public.t in place
      caused by: canceling statement due to lock timeout (SQLSTATE 55P03)

    hint: The lock was held for [TIME] by session [N] (role [ROLE], idle in transaction).
          … End that session, or wait longer with `--lock-timeout`. 120000 rows are in the
          … shadow table pgspate_job_1.t; the same command, run again, loads the rest.
    "#);
    assert_eq!(sum(&case), "1 from 1");
    let status = case.command(&["status", "--to", &case.db.dsn()]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("so far in the shadow table in schema pgspate_job_1"), "{status}");
    holder("commit");
    // Nothing is loaded a second time.
    let again = case.load("t.csv --table t --replace").success();
    assert!(again.contains("resuming job 1"), "{again}");
    assert_eq!(sum(&case), format!("{ROWS} from 7"));
    assert_eq!(shadows(&case), "0");
}

#[test]
fn killed_at_any_moment_it_leaves_the_old_rows_and_goes_on() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); insert into t values (1, 'old'); \
         create index t_note on t (note)",
    );
    let before = dump(&case);
    case.put("t.csv", rows(7));
    let args = "t.csv --table t --replace --quiet --commit chunk --lanes 2";
    let chunk = "select count(*) > 0 from pgspate.ledger l join pgspate.job using (job) \
                 where finished is null";
    let moments = [
        "select count(*) > 0 from pg_namespace where nspname like 'pgspate\\_job%'",
        chunk,
        "select count(*) > 0 from pg_stat_activity where query like '%create index t_note%' \
         and pid <> pg_backend_pid() and state = 'active'",
        "select count(*) > 0 from pg_stat_activity where query like '%analyze pgspate%' \
         and pid <> pg_backend_pid() and state = 'active'",
    ];
    for moment in moments {
        let mut child = spawn(&mut case.load_command(args));
        let exists = "select to_regclass('pgspate.ledger') is not null";
        let mut ended = false;
        wait_until("the moment has come", || {
            ended = child.try_wait().unwrap().is_some();
            ended || (case.value(exists) == "t" && case.value(moment) == "t")
        });
        child.kill().unwrap();
        child.wait().unwrap();
        if !ended {
            assert_eq!(sum(&case), "1 from 1", "{moment}");
        }
        case.load(args).success();
        assert_eq!(sum(&case), format!("{ROWS} from 7"), "{moment}");
        assert_eq!((dump(&case), shadows(&case).as_str()), (before.clone(), "0"), "{moment}");
        case.db.run("truncate t; insert into t values (1, 'old')");
    }
}

#[test]
fn an_interrupt_while_it_waits_for_the_lock() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", rows(7));
    let (child, holder) = before_the_exchange(&case, "t.csv --table t --replace --quiet");
    signal(&child, "-INT");
    let run = finish(child);
    assert_eq!(run.status, Some(130));
    assert_snapshot!(redact(&run.stderr), @r#"

    rolling back; press Ctrl-C again to stop at once
    error: could not load "t.csv" into public.t
      caused by: stopped by the user

    hint: 120000 rows are in the shadow table pgspate_job_1.t; the same command, run again,
          … loads the rest.
    "#);
    holder("commit");
    assert_eq!((sum(&case).as_str(), shadows(&case).as_str()), ("1 from 1", "1"));
    // Another table by then, which a copy of the old one must not replace.
    case.db.run("alter table t add column more int");
    case.load("t.csv --table t --replace").success();
    assert_eq!(case.value("select count(*) from t where more is null"), ROWS.to_string());
    assert_eq!(shadows(&case), "0");
}

#[test]
fn bad_input_leaves_nothing_behind() {
    let case = LoadCase::new(
        "create table kind (id int primary key); insert into kind values (1); \
         create table t (id int primary key, note text, kind int references kind, check (id > 0)); \
         insert into t values (1, 'old', 1)",
    );
    let load = |bad: &str| {
        case.put("t.csv", rows(7) + bad);
        let run = case.load("t.csv --table t --replace --quiet --commit chunk --columns id,note");
        assert_eq!((sum(&case).as_str(), shadows(&case).as_str()), ("1 from 1", "0"));
        assert_eq!(case.value("select count(*) from pgspate.job"), "0");
        run.refusal()
    };
    assert_snapshot!(load("x,\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type integer: "x" (SQLSTATE 22P02)
      at: t.csv, line 120002, byte 10448933, column "id"
    "#);
    assert_snapshot!(load("-3,\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: new row for relation "t" violates check constraint "t_id_check" (SQLSTATE
          … 23514)
      caused by: Failing row contains (-3, null, null)
      at: t.csv, line 120002, byte 10448933
    "#);
    assert_snapshot!(load("9,\n"), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not complete the new rows of public.t
      caused by: could not create unique index "t_pkey" (SQLSTATE 23505)
      caused by: Key (id)=(9) is duplicated

    hint: Load with `--replace=truncate` to see which line it is.
    "#);
    case.put("t.csv", format!("kind,{}", rows(1).replace('\n', "\n2,")).trim_end_matches("2,"));
    assert_snapshot!(case.load("t.csv --table t --replace --quiet").refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not complete the new rows of public.t
      caused by: insert or update on table "t" violates foreign key constraint
          … "t_kind_fkey" (SQLSTATE 23503)
      caused by: Key (kind)=(2) is not present in table "kind"

    hint: Load with `--replace=truncate` to see which line it is.
    "#);
    assert_eq!((sum(&case).as_str(), shadows(&case).as_str()), ("1 from 1", "0"));
}

#[test]
fn shadows_are_dropped_on_demand() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", rows(7));
    let leave = || {
        let args = "t.csv --table t --replace --quiet --lock-timeout 1";
        let (child, holder) = before_the_exchange(&case, args);
        finish(child).refusal();
        holder("commit");
        assert_eq!(shadows(&case), "1");
    };
    leave();
    let job = case.value("select max(job) from pgspate.job");
    let args = ["status", &job, "--forget", "--to", &case.db.dsn()];
    assert!(case.command(&args).output().unwrap().status.success());
    assert_eq!(shadows(&case), "0");
    leave();
    let again = case.load("t.csv --table t --replace --restart").success();
    assert!(!again.contains("going on"), "{again}");
    assert_eq!((sum(&case), shadows(&case)), (format!("{ROWS} from 7"), "0".to_owned()));
    // Other content than was begun with.
    leave();
    case.put("t.csv", rows(3));
    case.load("t.csv --table t --replace").success();
    assert_eq!((sum(&case), shadows(&case)), (format!("{ROWS} from 3"), "0".to_owned()));
}

#[test]
fn what_depends_on_the_table_keeps_it_in_its_place() {
    let case = LoadCase::new(
        "create table t (id int, note text); insert into t values (1, 'old'); \
         create table u (like t); create table w (like t); create publication p for table w; \
         create view v as select count(*) as n from t",
    );
    case.put("t.csv", rows(7));
    let why = |table: &str| {
        let said = folded(&case.load(&format!("t.csv --table {table} --replace --plan")).stdout);
        let begin = said.find("replace ").unwrap();
        said[begin..said[begin..].find("\npath").unwrap() + begin].to_owned()
    };
    assert_snapshot!([why("t"), why("w")].join("\n"), @"
    replace  one transaction, truncate and COPY FREEZE: view public.v depends on it
    replace  one transaction, truncate and COPY FREEZE: publication p contains it
    ");
    assert_snapshot!(case.refusal("t.csv --table t --replace=swap"), @"
    error: no other table can take the place of public.t: view public.v depends on it

    hint: `--replace` alone replaces the rows in one transaction.
    ");
}

#[test]
fn what_comes_to_depend_on_it_meanwhile() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", rows(7));
    let (child, holder) = before_the_exchange(&case, "t.csv --table t --replace --quiet");
    holder("create view v as select count(*) as n from t; commit");
    assert_snapshot!(finish(child).refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put the new rows of public.t in place
      caused by: the table was changed during the load: view public.v depends on it

    hint: Run the same command again; it starts from the beginning.
    "#);
    assert_eq!((sum(&case).as_str(), shadows(&case).as_str()), ("1 from 1", "0"));
    case.load("t.csv --table t --replace --quiet").success();
    assert_eq!(case.value("select n from v"), ROWS.to_string());
}

#[test]
fn a_transaction_that_would_see_half_of_it() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", rows(7));
    let (runtime, reader) = session(&case.db.dsn());
    runtime
        .block_on(reader.batch_execute(
            "set application_name = 'old'; begin isolation level repeatable read; select 1",
        ))
        .unwrap();
    let args = "t.csv --table t --replace --atomic --lock-timeout 1 --quiet";
    // Nothing has been written since it began unless the load does.
    let said = case.load(args).stderr;
    assert_snapshot!(redact(&said), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put the new rows of public.t in place
      caused by: session [N] ('old', role [ROLE]) began before all rows were committed, and
          … would see only some of them

    hint: End that session, or wait longer with `--lock-timeout`. Without `--atomic`, the
          … load does not wait for it. 120000 rows are in the shadow table pgspate_job_1.t;
          … the same command, run again, loads the rest.
    "#);
    let row = runtime.block_on(reader.query_one("select count(*) from t", &[])).unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
    runtime.block_on(reader.batch_execute("commit")).unwrap();
    case.load(args).success();
    assert_eq!(sum(&case), format!("{ROWS} from 7"));
}

/// Statements as a role that owns little; its objects are dropped with the case.
struct DatabaseOwner {
    name: String,
    dsn: String,
}

impl DatabaseOwner {
    fn new(case: &LoadCase, rights: &str) -> DatabaseOwner {
        let name = format!("{}_owner", case.db.name());
        let dsn = format!("{} options='-c role={name}'", case.db.dsn());
        case.db.run(&format!("create role {name} login"));
        case.db.run(&rights.replace(":owner", &name));
        DatabaseOwner { name, dsn }
    }

    fn load(&self, case: &LoadCase, args: &str) -> crate::support::Run {
        let mut command = case.command(&["load", "--to", &self.dsn]);
        crate::support::Run::of(command.args(args.split_whitespace()).output().unwrap())
    }

    fn forget(self, case: &LoadCase) {
        case.db.run(&format!("drop owned by {0} cascade; drop role {0}", self.name));
    }
}

#[test]
fn a_role_with_few_rights() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", rows(7));
    let owner = DatabaseOwner::new(
        &case,
        "revoke create on schema public from public; create schema pgspate authorization :owner; \
         grant select, insert, truncate on t to :owner",
    );
    let method = |args: &str| {
        let json = owner.load(&case, &format!("t.csv --table t --plan --json {args}")).stdout;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let reason = json["at_once"]["reason"].as_str().unwrap().to_owned();
        format!("{}: {reason}\n", json["at_once"]["method"].as_str().unwrap())
    };
    let mut said = method("--replace");
    owner.load(&case, "t.csv --table t --replace").success();
    case.db.run(&format!("alter table t owner to {}", owner.name));
    said += &method("--replace");
    case.db.run(&format!("grant create on schema public to {}", owner.name));
    said += &method("--replace");
    let grant = format!("grant create on database \"{}\" to {}", case.db.name(), owner.name);
    case.db.run(&grant);
    said += &method("--replace");
    assert_snapshot!(folded(&said), @"
    transaction: this role does not own it; this role may not create tables in schema
          … public; this role may not create schemas in the database
    transaction: its owner may not create tables in schema public; this role may not create
          … tables in schema public; this role may not create schemas in the database
    transaction: this role may not create schemas in the database
    swap: nothing is bound to the table itself; readers wait for the exchange only
    ");
    owner.load(&case, "t.csv --table t --replace").success();
    assert_eq!(sum(&case), format!("{ROWS} from 7"));
    owner.forget(&case);
}

#[test]
fn the_owner_and_who_else_may_do_what() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", rows(7));
    let owner = DatabaseOwner::new(
        &case,
        "grant create on schema public to :owner; alter table t owner to :owner; \
         grant select on t to public; \
         alter default privileges grant all on tables to public; \
         alter default privileges grant all on sequences to public; \
         alter default privileges for role :owner grant insert on tables to pg_monitor",
    );
    let before = dump(&case);
    case.load("t.csv --table t --replace=swap").success();
    assert_eq!(dump(&case), before);
    assert_eq!(case.value("select tableowner from pg_tables where tablename = 't'"), owner.name);
    owner.forget(&case);
}

#[test]
fn sessions_that_are_ended_are_no_loss() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); insert into t values (1, 'old')",
    );
    case.put("t.csv", rows(7));
    for commit in ["chunk", "end"] {
        let args = format!("t.csv --table t --replace --quiet --commit {commit}");
        let (child, holder) = before_the_exchange(&case, &args);
        let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                   where datname = current_database() and application_name like 'pgspate load%'";
        assert_ne!(case.value(end), "0");
        holder("commit");
        finish(child).success();
        assert_eq!((sum(&case), shadows(&case)), (format!("{ROWS} from 7"), "0".to_owned()));
        case.db.run("truncate t; insert into t values (1, 'old')");
    }
}

#[test]
fn names_of_all_kinds() {
    let case = LoadCase::new(
        "create schema \"S.1\"; create unlogged table \"S.1\".\":table's\" (\"Id\" smallint \
             generated always as identity (minvalue -9 maxvalue 9 increment -1 start 2) \
             primary key, \
             \"a\"\"b\" text unique, \"select\" int[] default '{1}', at date) \
             with (toast_tuple_target = 200); \
         create index \":oid\" on \"S.1\".\":table's\" (\"select\", (lower(\"a\"\"b\"))); \
         create statistics \"S.1\".\"St at\" on \"select\", at from \"S.1\".\":table's\"; \
         create policy \"P.p\" on \"S.1\".\":table's\" using (\"a\"\"b\" <> ' :schema'); \
         insert into \"S.1\".\":table's\" (\"a\"\"b\") values ('old'), ('older')",
    );
    let before = dump(&case);
    case.put("t.csv", "\"a\"\"b\",at\nx,2024-01-01\ny,\n");
    let mut command = case.load_command("t.csv --replace=swap --quiet --header yes --table");
    let run = crate::support::Run::of(command.arg("\"S.1\".\":table's\"").output().unwrap());
    assert_eq!(run.success(), "");
    assert_eq!(dump(&case), before);
    assert_eq!(case.rows("\"S.1\".\":table's\""), ["(-1,y,{1},)", "(0,x,{1},2024-01-01)"]);
}

#[test]
fn what_a_copy_does_not_have_keeps_the_table_in_its_place() {
    let case = LoadCase::new(
        "create table t (id int, note text); insert into t values (-1, 'old'); \
         alter table t add constraint positive check (id > 0) not valid",
    );
    let before = dump(&case);
    let oid = case.value("select 't'::regclass::oid");
    case.put("t.csv", rows(7));
    let said = case.load("t.csv --table t --replace --lanes 2").success();
    let said: Vec<&str> = said.lines().filter(|line| line.contains("shadow")).collect();
    assert_snapshot!(said.join("\n"), @"warning: no shadow table: a copy of the table would not be exact: constraint positive");
    assert_eq!((sum(&case), shadows(&case)), (format!("{ROWS} from 7"), "0".to_owned()));
    assert_eq!((dump(&case), case.value("select 't'::regclass::oid")), (before, oid));
}

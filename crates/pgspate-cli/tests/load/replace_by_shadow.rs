//! Tests of `--replace` by a shadow table. The table keeps its properties, and other sessions see
//! either the old rows or the new rows.

use std::fmt::Write as _;

use insta::assert_snapshot;

use crate::support::{LoadCase, finish, folded, redact, session, spawn, wait_until};
use crate::table_properties::{EVERYTHING, check_answers_during_load, dump_schema, send_signal};

/// The rows of an input of several chunks, more than 1 MB. A load would replace a table by a
/// smaller input in one transaction.
pub(crate) const ROWS: usize = 120_000;

pub(crate) fn csv_text(from: usize) -> String {
    let mut text = "id,note\n".to_owned();
    for id in from..from + ROWS {
        writeln!(text, "{id},{:>80}", format!("note {id}")).unwrap();
    }
    text
}

pub(crate) fn summarize_table(case: &LoadCase) -> String {
    case.value("select count(*) || ' from ' || coalesce(min(id), 0) from t")
}

fn count_shadow_schemas(case: &LoadCase) -> String {
    case.value("select count(*) from pg_namespace where nspname like 'pgspate\\_job%'")
}

#[test]
fn a_shadow_table_keeps_all_properties_of_the_table() {
    let case = LoadCase::new(EVERYTHING);
    let before = dump_schema(&case);
    case.put("t.csv", "a,b,c\n1,x,0.5\n2,y,1.5\n");
    assert_snapshot!(folded(&case.load("t.csv --replace=swap --plan --header yes").stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 3 fields in each line
    input    header yes: as given
    table    public.t
    replace  shadow table, which takes the table's place: as asked
    path     binary COPY: all columns have exact encoders; unusual values go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   read the old rows until the exchange; rows that they write until then are lost
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
    assert_eq!(dump_schema(&case), before);
    assert_eq!(count_shadow_schemas(&case), "0");
    // The sequences continue from their last value, also for later sessions.
    assert_eq!(case.value("select string_agg(i || '/' || s, ' ' order by a) from t"), "13/3 15/4");
    case.db.run("insert into t (a, c) values (3, 1)");
    case.db.run("update t set c = 2 where a = 3");
    // A second exchange copies the properties of a table that was itself a copy.
    case.load("t.csv --table t --replace=swap --header yes").success();
    assert_eq!(dump_schema(&case), before);
}

#[test]
fn readers_see_either_the_old_rows_or_the_new_rows() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); \
         insert into t select n, 'old' from generate_series(1, 50000) n",
    );
    case.put("t.csv", csv_text(1_000_000));
    let said = folded(&case.load("t.csv --replace --plan").stdout);
    let said: Vec<&str> = said.lines().filter(|line| line.starts_with("replace")).collect();
    assert_snapshot!(said.join("\n"), @"replace  shadow table, which takes the table's place: nothing is bound to the table");
    let load = spawn(&mut case.load_command("t.csv --table t --replace --quiet --commit chunk"));
    let new = format!("{ROWS} from 1000000");
    check_answers_during_load(
        &case,
        load,
        "select count(*) || ' from ' || min(id) from t",
        &["50000 from 1", &new],
    );
    assert_eq!(count_shadow_schemas(&case), "0");
    assert_eq!(case.value("select indisvalid from pg_index where indrelid = 't'::regclass"), "t");
    // The shadow table was analyzed before the exchange.
    assert_eq!(case.value("select reltuples from pg_class where relname = 't'"), ROWS.to_string());
    // `--replace` loads the file again although it was loaded before.
    case.db.run("delete from t where id > 1000005");
    case.load("t.csv --table t --replace").success();
    assert_eq!(summarize_table(&case), new);
    // Without `--replace`, the rows of another file are added.
    case.put("u.csv", csv_text(5_000_000));
    case.load("u.csv --table t").success();
    assert_eq!(case.value("select count(*) from t"), (2 * ROWS).to_string());
}

#[test]
fn all_rows_of_an_atomic_load_become_visible_at_once() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    case.put("t.csv", csv_text(1));
    let load = spawn(&mut case.load_command("t.csv --table t --atomic --quiet --lanes 2"));
    check_answers_during_load(&case, load, "select count(*) from t", &["0", &ROWS.to_string()]);
    // The ledger knows that this file was loaded into this table.
    let again = case.load("t.csv --table t --atomic --lanes 2").success();
    assert!(again.contains("has loaded this"), "{again}");
    assert_eq!(count_shadow_schemas(&case), "0");
}

#[test]
fn rows_that_other_sessions_add_during_the_load_are_kept() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("t.csv", csv_text(1));
    let (child, holder) = start_load_blocked_at_exchange(&case, "t.csv --table t --atomic --quiet");
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
    assert_eq!(count_shadow_schemas(&case), "0");
}

/// Starts a load that waits for the lock on `t` before the exchange.
///
/// Returns the load, and a function that runs statements in the session that holds the lock.
fn start_load_blocked_at_exchange(
    case: &LoadCase,
    args: &str,
) -> (std::process::Child, impl Fn(&str) + use<>) {
    let (runtime, holder) = session(&case.db.dsn());
    let child = spawn(&mut case.load_command(args));
    wait_until("a shadow is there", || count_shadow_schemas(case) == "1");
    runtime
        .block_on(holder.batch_execute("begin; lock table t in share row exclusive mode"))
        .unwrap();
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
                   and wait_event_type = 'Lock' and query like 'lock table%'";
    wait_until("the load waits for the lock", || case.value(waiting) == "1");
    (child, move |sql: &str| runtime.block_on(holder.batch_execute(sql)).unwrap())
}

#[test]
fn a_load_that_waits_in_vain_for_the_lock_continues_later() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); insert into t values (1, 'old')",
    );
    case.put("t.csv", csv_text(7));
    let args = "t.csv --table t --replace --quiet --lock-timeout 2";
    let (child, holder) = start_load_blocked_at_exchange(&case, args);
    let said = redact(&finish(child).stderr);
    assert_snapshot!(said, @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put the new rows of public.t in place
      caused by: canceling statement due to lock timeout (SQLSTATE 55P03)

    hint: The lock was held for [TIME] by session [N] (role [ROLE], idle in transaction).
          … End that session, or wait longer with `--lock-timeout`. 120000 rows are in the
          … shadow table pgspate_job_1.t; the same command, run again, loads the rest.
    "#);
    assert_eq!(summarize_table(&case), "1 from 1");
    let status = case.command(&["status", "--to", &case.db.dsn()]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("so far in the shadow table in schema pgspate_job_1"), "{status}");
    holder("commit");
    // The load continues: the rows of the shadow table are not loaded again.
    let again = case.load("t.csv --table t --replace").success();
    assert!(again.contains("resuming job 1"), "{again}");
    assert_eq!(summarize_table(&case), format!("{ROWS} from 7"));
    assert_eq!(count_shadow_schemas(&case), "0");
}

#[test]
fn a_killed_load_leaves_the_old_rows_and_continues_later() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); insert into t values (1, 'old'); \
         create index t_note on t (note)",
    );
    let before = dump_schema(&case);
    case.put("t.csv", csv_text(7));
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
            assert_eq!(summarize_table(&case), "1 from 1", "{moment}");
        }
        case.load(args).success();
        assert_eq!(summarize_table(&case), format!("{ROWS} from 7"), "{moment}");
        assert_eq!(
            (dump_schema(&case), count_shadow_schemas(&case).as_str()),
            (before.clone(), "0"),
            "{moment}"
        );
        case.db.run("truncate t; insert into t values (1, 'old')");
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_the_lock_of_the_exchange() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", csv_text(7));
    let (child, holder) =
        start_load_blocked_at_exchange(&case, "t.csv --table t --replace --quiet");
    send_signal(&child, "-INT");
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
    assert_eq!(
        (summarize_table(&case).as_str(), count_shadow_schemas(&case).as_str()),
        ("1 from 1", "1")
    );
    // The table has another column now, so the shadow table must not replace it.
    case.db.run("alter table t add column more int");
    case.load("t.csv --table t --replace").success();
    assert_eq!(case.value("select count(*) from t where more is null"), ROWS.to_string());
    assert_eq!(count_shadow_schemas(&case), "0");
}

#[test]
fn a_load_of_bad_input_drops_its_shadow_table() {
    let case = LoadCase::new(
        "create table kind (id int primary key); insert into kind values (1); \
         create table t (id int primary key, note text, kind int references kind, check (id > 0)); \
         insert into t values (1, 'old', 1)",
    );
    let load = |bad: &str| {
        case.put("t.csv", csv_text(7) + bad);
        let run = case.load("t.csv --table t --replace --quiet --commit chunk --columns id,note");
        assert_eq!(
            (summarize_table(&case).as_str(), count_shadow_schemas(&case).as_str()),
            ("1 from 1", "0")
        );
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

    hint: Add `--rejects FILE` to set such rows aside, or use `--replace=truncate` to see
          … which line it is.
    "#);
    case.put("t.csv", format!("kind,{}", csv_text(1).replace('\n', "\n2,")).trim_end_matches("2,"));
    assert_snapshot!(case.load("t.csv --table t --replace --quiet").refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not complete the new rows of public.t
      caused by: insert or update on table "t" violates foreign key constraint
          … "t_kind_fkey" (SQLSTATE 23503)
      caused by: Key (kind)=(2) is not present in table "kind"

    hint: Add `--rejects FILE` to set such rows aside, or use `--replace=truncate` to see
          … which line it is.
    "#);
    assert_eq!(
        (summarize_table(&case).as_str(), count_shadow_schemas(&case).as_str()),
        ("1 from 1", "0")
    );
}

#[test]
fn forget_and_restart_drop_the_shadow_table() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", csv_text(7));
    let leave = || {
        let args = "t.csv --table t --replace --quiet --lock-timeout 1";
        let (child, holder) = start_load_blocked_at_exchange(&case, args);
        finish(child).refusal();
        holder("commit");
        assert_eq!(count_shadow_schemas(&case), "1");
    };
    leave();
    let job = case.value("select max(job) from pgspate.job");
    let args = ["status", &job, "--forget", "--to", &case.db.dsn()];
    assert!(case.command(&args).output().unwrap().status.success());
    assert_eq!(count_shadow_schemas(&case), "0");
    leave();
    let again = case.load("t.csv --table t --replace --restart").success();
    assert!(!again.contains("going on"), "{again}");
    assert_eq!(
        (summarize_table(&case), count_shadow_schemas(&case)),
        (format!("{ROWS} from 7"), "0".to_owned())
    );
    // The file has changed since the load began.
    leave();
    case.put("t.csv", csv_text(3));
    case.load("t.csv --table t --replace").success();
    assert_eq!(
        (summarize_table(&case), count_shadow_schemas(&case)),
        (format!("{ROWS} from 3"), "0".to_owned())
    );
}

#[test]
fn a_table_with_dependents_is_not_exchanged() {
    let case = LoadCase::new(
        "create table t (id int, note text); insert into t values (1, 'old'); \
         create table u (like t); create table w (like t); create publication p for table w; \
         create view v as select count(*) as n from t",
    );
    case.put("t.csv", csv_text(7));
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
fn a_view_created_during_the_load_prevents_the_exchange() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", csv_text(7));
    let (child, holder) =
        start_load_blocked_at_exchange(&case, "t.csv --table t --replace --quiet");
    holder("create view v as select count(*) as n from t; commit");
    assert_snapshot!(finish(child).refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put the new rows of public.t in place
      caused by: the table was changed during the load: view public.v depends on it

    hint: Run the same command again; it starts from the beginning.
    "#);
    assert_eq!(
        (summarize_table(&case).as_str(), count_shadow_schemas(&case).as_str()),
        ("1 from 1", "0")
    );
    case.load("t.csv --table t --replace --quiet").success();
    assert_eq!(case.value("select n from v"), ROWS.to_string());
}

#[test]
fn an_atomic_load_waits_for_transactions_that_would_see_only_some_rows() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", csv_text(7));
    let (runtime, reader) = session(&case.db.dsn());
    runtime
        .block_on(reader.batch_execute(
            "set application_name = 'old'; begin isolation level repeatable read; select 1",
        ))
        .unwrap();
    let args = "t.csv --table t --replace --atomic --lock-timeout 1 --quiet";
    // No other session writes, so the reader's snapshot conflicts only with rows of the load.
    let said = case.load(args).stderr;
    assert_snapshot!(redact(&said), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put the new rows of public.t in place
      caused by: the transaction of session [N] ('old', role [ROLE]) began before all rows
          … were committed, and would see only some of them

    hint: End that session, or wait longer with `--lock-timeout`. Without `--atomic`, the
          … load does not wait for it. 120000 rows are in the shadow table pgspate_job_1.t;
          … the same command, run again, loads the rest.
    "#);
    let row = runtime.block_on(reader.query_one("select count(*) from t", &[])).unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
    runtime.block_on(reader.batch_execute("commit")).unwrap();
    case.load(args).success();
    assert_eq!(summarize_table(&case), format!("{ROWS} from 7"));
}

/// A role with few privileges, and the connection string to act as this role.
pub(crate) struct DatabaseOwner {
    name: String,
    dsn: String,
}

impl DatabaseOwner {
    pub(crate) fn new(case: &LoadCase, rights: &str) -> DatabaseOwner {
        let name = format!("{}_owner", case.db.name());
        let dsn = format!("{} options='-c role={name}'", case.db.dsn());
        case.db.run(&format!("create role {name} login"));
        case.db.run(&rights.replace(":owner", &name));
        DatabaseOwner { name, dsn }
    }

    pub(crate) fn load(&self, case: &LoadCase, args: &str) -> crate::support::Run {
        let mut command = case.command(&["load", "--to", &self.dsn]);
        crate::support::Run::of(command.args(args.split_whitespace()).output().unwrap())
    }

    pub(crate) fn forget(self, case: &LoadCase) {
        case.db.run(&format!("drop owned by {0} cascade; drop role {0}", self.name));
    }
}

#[test]
fn the_replace_method_depends_on_the_rights_of_the_role() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", csv_text(7));
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
    assert_eq!(summarize_table(&case), format!("{ROWS} from 7"));
    owner.forget(&case);
}

#[test]
fn the_exchange_keeps_the_owner_and_the_privileges() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", csv_text(7));
    let owner = DatabaseOwner::new(
        &case,
        "grant create on schema public to :owner; alter table t owner to :owner; \
         grant select on t to public; \
         alter default privileges grant all on tables to public; \
         alter default privileges grant all on sequences to public; \
         alter default privileges for role :owner grant insert on tables to pg_monitor",
    );
    let before = dump_schema(&case);
    case.load("t.csv --table t --replace=swap").success();
    assert_eq!(dump_schema(&case), before);
    assert_eq!(case.value("select tableowner from pg_tables where tablename = 't'"), owner.name);
    owner.forget(&case);
}

#[test]
fn a_load_whose_sessions_are_terminated_still_replaces_the_rows() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); insert into t values (1, 'old')",
    );
    case.put("t.csv", csv_text(7));
    for commit in ["chunk", "end"] {
        let args = format!("t.csv --table t --replace --quiet --commit {commit}");
        let (child, holder) = start_load_blocked_at_exchange(&case, &args);
        let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                   where datname = current_database() and application_name like 'pgspate load%'";
        assert_ne!(case.value(end), "0");
        holder("commit");
        finish(child).success();
        assert_eq!(
            (summarize_table(&case), count_shadow_schemas(&case)),
            (format!("{ROWS} from 7"), "0".to_owned())
        );
        case.db.run("truncate t; insert into t values (1, 'old')");
    }
}

#[test]
fn names_that_need_quotes_are_kept() {
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
    let before = dump_schema(&case);
    case.put("t.csv", "\"a\"\"b\",at\nx,2024-01-01\ny,\n");
    let mut command = case.load_command("t.csv --replace=swap --quiet --header yes --table");
    let run = crate::support::Run::of(command.arg("\"S.1\".\":table's\"").output().unwrap());
    assert_eq!(run.success(), "");
    assert_eq!(dump_schema(&case), before);
    assert_eq!(case.rows("\"S.1\".\":table's\""), ["(-1,y,{1},)", "(0,x,{1},2024-01-01)"]);
}

#[test]
fn a_table_that_cannot_be_copied_exactly_is_not_exchanged() {
    let case = LoadCase::new(
        "create table t (id int, note text); insert into t values (-1, 'old'); \
         alter table t add constraint positive check (id > 0) not valid",
    );
    let before = dump_schema(&case);
    let oid = case.value("select 't'::regclass::oid");
    case.put("t.csv", csv_text(7));
    let said = case.load("t.csv --table t --replace --lanes 2").success();
    let said: Vec<&str> = said.lines().filter(|line| line.contains("shadow")).collect();
    assert_snapshot!(said.join("\n"), @"warning: no shadow table: a copy of the table would not be exact: constraint positive");
    assert_eq!(
        (summarize_table(&case), count_shadow_schemas(&case)),
        (format!("{ROWS} from 7"), "0".to_owned())
    );
    assert_eq!((dump_schema(&case), case.value("select 't'::regclass::oid")), (before, oid));
}

#[test]
fn a_table_with_a_foreign_key_that_is_not_validated_is_not_exchanged() {
    let case = LoadCase::new(
        "create table far (id int primary key); create table t (id int, note text); \
         alter table t add constraint t_far foreign key (id) references far not valid",
    );
    case.put("t.csv", csv_text(1));
    assert_snapshot!(case.refusal("t.csv --table t --replace=swap"), @"
    error: no other table can take the place of public.t: its foreign key t_far is not
          … validated

    hint: `--replace` alone replaces the rows in one transaction.
    ");
}

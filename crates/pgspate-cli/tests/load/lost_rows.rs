//! Loads into tables that have lost the rows of earlier loads.

use crate::support::{LoadCase, finish, session, spawn, wait_until};

const ROWS: usize = 200_000;

/// Makes a table and the files `a.csv` with three rows and `b.csv` with two.
fn case_with_files(create: &str) -> LoadCase {
    let case = LoadCase::new(create);
    case.put("a.csv", "id\n1\n2\n3\n");
    case.put("b.csv", "id\n4\n5\n");
    case
}

fn load(case: &LoadCase, file: &str) {
    case.load(&format!("{file} --table t --quiet")).success();
}

fn ids(case: &LoadCase) -> String {
    case.value("select coalesce(string_agg(id::text, ' ' order by id), '') from t")
}

#[test]
fn all_files_are_loaded_again_one_by_one_after_a_truncate() {
    for emptied_by in ["truncate t", "delete from t"] {
        let case = case_with_files("create table t (id int)");
        for _ in 0..3 {
            load(&case, "a.csv");
            load(&case, "b.csv");
            load(&case, "a.csv");
            assert_eq!(ids(&case), "1 2 3 4 5", "{emptied_by}");
            case.db.run(emptied_by);
        }
        // The status still has the names of the files.
        let files = "select count(*) from pgspate.source_file where source->>'name' like '%.csv'";
        assert_eq!(case.value(files), "6");
    }
}

#[test]
fn a_truncate_of_a_stream_counts_for_the_ledger() {
    let case = case_with_files("create table t (id int primary key)");
    load(&case, "a.csv");
    let action = |action: &str, more: &str| {
        format!(r#"{{"action":"{action}","schema":"public","table":"t"{more}}}"#)
    };
    let mark =
        |action: &str| format!(r#"{{"action":"{action}","xid":7,"lsn":"0/17","nextlsn":"0/20"}}"#);
    let column = r#","columns":[{"name":"id","type":"integer","value":9}]"#;
    let lines = [mark("B"), action("T", ""), action("I", column), mark("C")];
    case.put("events.json", lines.join("\n"));
    let dsn = case.db.dsn();
    let args = ["apply", "events.json", "--to", &dsn, "--quiet"];
    finish(spawn(&mut case.command(&args))).success();
    assert_eq!(ids(&case), "9");
    load(&case, "a.csv");
    assert_eq!(ids(&case), "1 2 3 9");
}

#[test]
fn an_unfinished_load_starts_over_if_its_rows_are_gone() {
    let case = case_with_files("create table t (id bigint primary key)");
    let rows: Vec<_> = (1..=ROWS).map(|id| format!("{:>80}\n", id * 10)).collect();
    let input = format!("id\n{}", rows.concat());
    case.put("big.csv", format!("{input}not a number\n"));
    case.load("big.csv --table t --commit chunk --lanes 1 --quiet").refusal();
    assert_ne!(case.value("select count(*) from t"), "0");
    case.db.run("truncate t");
    load(&case, "a.csv");
    case.put("big.csv", input);
    case.load("big.csv --table t --commit chunk --lanes 1 --quiet").success();
    assert_eq!(case.value("select count(*) from t"), (ROWS + 3).to_string());
}

#[test]
fn a_load_that_runs_keeps_what_it_has_written() {
    let case = case_with_files("create table t (id int primary key)");
    load(&case, "a.csv");
    case.db.run("truncate t");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; insert into t values (5)")).unwrap();
    let running = spawn(&mut case.load_command("b.csv --table t --quiet --rebuild-indexes never"));
    wait_until("the load waits for the key", || {
        let sql = "select count(*) from pg_stat_activity \
                   where datname = current_database() and wait_event_type = 'Lock'";
        case.value(sql) != "0"
    });
    // For this load the table is empty, as the rows of the other one are not committed.
    load(&case, "a.csv");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(running).success();
    load(&case, "a.csv");
    load(&case, "b.csv");
    assert_eq!(ids(&case), "1 2 3 4 5");
}

#[test]
fn triggers_that_may_move_rows_make_an_empty_table_unsure() {
    for time in ["before", "after"] {
        let case = case_with_files(&format!(
            "create table t (id int); \
             create function f() returns trigger language plpgsql as 'begin return new; end'; \
             create trigger f {time} insert on t for each row execute function f()"
        ));
        load(&case, "a.csv");
        load(&case, "a.csv");
        assert_eq!(ids(&case), "1 2 3");
        case.db.run("truncate t");
        let said = case.load("a.csv --table t --quiet").refusal();
        let expected = "cannot tell whether the rows of job 1 still exist: public.t is empty";
        assert!(said.contains(expected) && said.contains("`--restart`"), "{said}");
        assert_eq!(ids(&case), "");
        case.load("a.csv --table t --quiet --restart").success();
        assert_eq!(ids(&case), "1 2 3");
    }
}

#[test]
fn files_whose_rows_a_trigger_keeps_out_are_loaded_once() {
    let case = case_with_files(
        "create table t (id int); create table kept (id int); \
         create function f() returns trigger language plpgsql as \
             'begin insert into kept values (new.id); return null; end'; \
         create trigger f before insert on t for each row execute function f()",
    );
    let first = case.load("a.csv --table t --quiet");
    assert_eq!(first.status, Some(1), "{}", first.stderr);
    load(&case, "a.csv");
    assert_eq!(case.value("select count(*) from kept"), "3");
}

#[test]
fn a_locked_table_is_waited_for() {
    let case = case_with_files("create table t (id int)");
    load(&case, "a.csv");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; lock table t")).unwrap();
    let said = case.load("a.csv --table t --quiet --lock-timeout 1").refusal();
    assert!(said.contains("could not check whether public.t is empty"), "{said}");
    assert!(said.contains("The lock was held for [TIME] by session [N]"), "{said}");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    load(&case, "a.csv");
    assert_eq!(ids(&case), "1 2 3");
}

#[test]
fn rows_of_children_and_a_missing_privilege_do_not_hide_a_truncate() {
    let case = case_with_files("create table t (id int); create table child () inherits (t)");
    load(&case, "a.csv");
    case.db.run("insert into child values (7); truncate only t");
    load(&case, "a.csv");
    assert_eq!(ids(&case), "1 2 3 7");

    let case = case_with_files("create table t (id int)");
    let role = format!("{}_role", case.db.name());
    case.load("b.csv --table t --quiet").success();
    case.db.run(&format!(
        "truncate t; create role \"{role}\" login; grant insert on t to \"{role}\"; \
         grant usage on schema pgspate to \"{role}\"; \
         grant all on all tables in schema pgspate to \"{role}\"; \
         grant all on all sequences in schema pgspate to \"{role}\""
    ));
    let dsn = format!("{} user='{role}'", case.db.dsn());
    let load_as_role = || {
        let args = ["load", "a.csv", "--table", "t", "--quiet", "--to", &dsn];
        finish(spawn(&mut case.command(&args))).success();
    };
    load_as_role();
    load_as_role();
    assert_eq!(ids(&case), "1 2 3");
    case.db.run("truncate t");
    load_as_role();
    assert_eq!(ids(&case), "1 2 3");
    case.db.run(&format!("drop owned by \"{role}\"; drop role \"{role}\""));
}

#[test]
fn files_of_a_table_that_was_copied_are_warned_of() {
    let case = case_with_files("create table t (id int)");
    load(&case, "a.csv");
    case.db.run("create table copy as table t; drop table t; alter table copy rename to t");
    let run = case.load("a.csv --table t");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let expected = "job 1 has loaded files of this load into an earlier table public.t";
    assert!(run.stderr.contains(expected), "{}", run.stderr);
    // A new table without rows holds nothing twice.
    case.db.run("drop table t; create table t (id int)");
    let run = case.load("a.csv --table t");
    assert!(!run.stderr.contains("earlier table"), "{}", run.stderr);
    assert_eq!(ids(&case), "1 2 3");
}

#[test]
fn rows_that_a_policy_hides_are_not_lost() {
    let case = case_with_files("create table t (id int)");
    let role = format!("{}_role", case.db.name());
    load(&case, "b.csv");
    case.db.run(&format!(
        "create role \"{role}\" login; grant all on t to \"{role}\"; \
         grant usage on schema pgspate to \"{role}\"; \
         grant all on all tables in schema pgspate to \"{role}\"; \
         grant all on all sequences in schema pgspate to \"{role}\""
    ));
    let dsn = format!("{} user='{role}'", case.db.dsn());
    let load_as_role = |file: &str| {
        let args = ["load", file, "--table", "t", "--quiet", "--to", &dsn];
        finish(spawn(&mut case.command(&args))).status
    };
    assert_eq!(load_as_role("a.csv"), Some(0));
    case.db.run("alter table t enable row level security");
    case.put("c.csv", "id\n6\n");
    assert_eq!(load_as_role("c.csv"), Some(2));
    case.db.run("alter table t disable row level security");
    assert_eq!(load_as_role("a.csv"), Some(0));
    assert_eq!(ids(&case), "1 2 3 4 5");
    case.db.run(&format!("drop owned by \"{role}\"; drop role \"{role}\""));
}

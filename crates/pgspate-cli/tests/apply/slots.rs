//! Replication slots as sources: the snapshot, the changes after it, and refusals.

use insta::assert_snapshot;
use regex_lite::Regex;

use crate::run::wait_until;
use crate::source::{PublishedDatabase, apply_slot, apply_slot_and_report, follow};
use crate::support::{LoadCase, redact};
use crate::{Run, counts, finish, rows};

const CREATE_TABLES: &str = "\
create table parent (id int primary key, code text unique, note text);
create table t (id int primary key, parent int references parent, v int, big text);
alter table t alter big set storage external;
create table log (n int, what text);
alter table log replica identity full;
create table news (n int);
alter table news replica identity nothing;
";

const PUBLICATION: &str = "create publication p for table parent, t, log, news";

const INSERT_ROWS: &str = "\
insert into parent select n, 'c' || n, E'a\\tb\\\\ \\n' || n from generate_series(1, 50) n;
insert into t select n, n % 50 + 1, n, case n % 3 when 0 then repeat('x', 3000) end
    from generate_series(1, 3000) n;
insert into log values (1, 'a'), (1, 'a'), (2, null), (3, '');
";

const CHANGE_ROWS: &str = "\
begin; update t set v = v + 1 where id % 2 = 0; update t set id = id + 10000 where id < 10; \
    delete from t where id = 30; insert into parent values (51, 'new', null); commit;
update parent set code = 'x' where id = 1;
begin; update parent set code = 'tmp' where id = 2; update parent set code = 'c2' where id = 3; \
    update parent set code = 'c3' where id = 2; commit;
update log set what = 'b' where n = 2;
delete from log where ctid = (select min(ctid) from log);
insert into news values (1), (2);
";

/// Replaces log positions and slot names by placeholders.
fn redact_names(text: &str) -> String {
    let places = Regex::new(r"\b[0-9A-F]+/[0-9A-F]+\b").unwrap();
    let slots = Regex::new(r"\bs_source_\d+\b").unwrap();
    let text = places.replace_all(text, "[LSN]").into_owned();
    redact(&slots.replace_all(&text, "[SLOT]"))
}

/// Returns the message of a failed run with placeholders.
#[track_caller]
fn refusal_text(run: &Run) -> String {
    assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""), "{}", run.stderr);
    redact_names(&run.stderr)
}

/// Asserts that all tables are equal in source and target.
#[track_caller]
fn assert_same(source: &PublishedDatabase, case: &LoadCase) {
    for table in ["parent", "t", "log", "news"] {
        assert!(rows(case, table) == source.rows(table), "{table} differs");
    }
}

/// The first run copies the existing rows. Each later run applies the changes since the previous
/// run, each change once.
#[test]
fn each_run_applies_the_changes_since_the_previous_run() {
    let source = PublishedDatabase::new(&format!("{CREATE_TABLES}{INSERT_ROWS}{PUBLICATION};\n"));
    let case = LoadCase::new(CREATE_TABLES);
    let report = apply_slot_and_report(&source, &case, "--snapshot");
    assert_eq!(report["copied"].as_array().unwrap().len(), 4, "{report}");
    assert_eq!(report["events"], 0);
    assert_same(&source, &case);
    source.run(CHANGE_ROWS);
    let report = apply_slot_and_report(&source, &case, "--snapshot");
    assert!(report.get("copied").is_none() && report["events"].as_u64() > Some(1500), "{report}");
    assert_same(&source, &case);
    source.run("begin; truncate t, log; insert into t values (1, 1, 1, null); commit");
    let report = apply_slot_and_report(&source, &case, "");
    assert_eq!((&report["truncated"], &report["events"]), (&2.into(), &3.into()), "{report}");
    assert_same(&source, &case);
    // pgspate has confirmed the applied changes, so the source does not send them again.
    let behind = format!(
        "select confirmed_flush_lsn < '{}'::pg_lsn from pg_replication_slots \
         where slot_name = '{}'",
        report["position"].as_str().unwrap(),
        source.slot_name()
    );
    assert_eq!(source.value(&behind), "f");
    let report = apply_slot_and_report(&source, &case, "");
    assert_eq!((&report["events"], counts(&report)), (&0.into(), [0, 0, 0, 0]));
}

#[test]
fn a_slot_without_a_snapshot_applies_only_later_changes() {
    let source = PublishedDatabase::new(&format!("{CREATE_TABLES}{PUBLICATION};\n"));
    let case = LoadCase::new(CREATE_TABLES);
    apply_slot_and_report(&source, &case, "--create-slot");
    source.run(INSERT_ROWS);
    let report = apply_slot_and_report(&source, &case, "");
    assert_eq!(report["inserted"], 3054, "{report}");
    assert_same(&source, &case);
}

#[test]
fn tables_are_mapped_and_excluded() {
    let source = PublishedDatabase::new(&format!("{CREATE_TABLES}{INSERT_ROWS}{PUBLICATION};\n"));
    let case = LoadCase::new("create schema copy; create table copy.log (n int, what text)");
    let args = "--tables public.log --map public.*=copy.*";
    let report = apply_slot_and_report(&source, &case, &format!("--snapshot {args}"));
    assert_eq!(report["copied"][0]["table"], "copy.log");
    source.run(CHANGE_ROWS);
    let report = apply_slot_and_report(&source, &case, args);
    assert!(report["left_out"].as_u64() > Some(1500), "{report}");
    assert_eq!(rows(&case, "copy.log"), "(1,a) (2,b) (3,\"\")");
}

/// The source adds and drops a column. The target has another column of its own.
#[test]
fn columns_may_be_added_and_dropped_while_a_stream_runs() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key, a text);\ncreate publication p for table t",
    );
    let case = LoadCase::new("create table t (id int primary key, a text, own int default 7)");
    let mut child = follow(&source, &case, "--create-slot --follow --quiet");
    source.wait_for_reader();
    source.run("insert into t values (1, 'one')");
    wait_until("the target has the first row", || rows(&case, "t") == "(1,one,7)");
    // Add the column first to the target, then to the source.
    case.db.run("alter table t add b int");
    source.run("alter table t add b int;\ninsert into t values (2, 'two', 2)");
    source.run(
        "alter table t drop a;\ninsert into t values (3, 3);\nupdate t set b = 1 where id = 1",
    );
    wait_until("the target has all rows", || {
        rows(&case, "t") == "(1,one,7,1) (2,two,7,2) (3,,7,3)"
    });
    assert!(child.try_wait().unwrap().is_none());
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").arg(pid).status().unwrap().success());
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    // If the target lacks a column, the error says what to do.
    source.run("alter table t add c int;\ninsert into t values (4, 4, 4)");
    assert_snapshot!(refusal_text(&apply_slot(&source, &case, "--quiet")), @r#"
    error: column "c" of relation "t" does not exist
      at: slot [SLOT], transaction at [LSN]

    hint: Add the column to the table, or give `--unknown-columns ignore` or
          … `--unknown-columns add`.
    "#);
    apply_slot_and_report(&source, &case, "--unknown-columns add");
    assert_eq!(case.value("select c from t where id = 4"), "4");
}

#[test]
fn errors_name_what_is_missing_and_the_remedy() {
    let source = PublishedDatabase::new("create table t (id int primary key)");
    let case = LoadCase::new("create table t (id int primary key)");
    let refusal = |args: &str| {
        let run = apply_slot(&source, &case, &format!("--quiet {args}"));
        refusal_text(&run)
    };
    assert_snapshot!(refusal("--create-slot"), @r#"
    error: publication "p" does not exist

    hint: Create it on the source: `create publication p for all tables`, or for the tables
          … to read.
    "#);
    source.run("create publication p for table t");
    assert_snapshot!(refusal(""), @r#"
    error: replication slot "[SLOT]" does not exist

    hint: Create it with `--create-slot`, or with `--snapshot`, which also copies the
          … existing rows.
    "#);
    case.db.run("insert into t values (1)");
    assert_snapshot!(refusal("--snapshot"), @"
    error: could not copy rows into public.t: the table is not empty

    hint: Empty the table, leave it out with `--tables`, or give `--create-slot` instead of
          … `--snapshot` to apply only what changes from now on.
    ");
    case.db.run("truncate t");
    source.run(&format!(
        "select pg_create_logical_replication_slot('{}', 'pgoutput')",
        source.slot_name()
    ));
    assert_snapshot!(refusal("--snapshot"), @r#"
    error: replication slot "[SLOT]" exists, and the copy of rows needs a new slot

    hint: Leave `--snapshot` out, name another slot, or drop this one: `select
          … pg_drop_replication_slot('[SLOT]')`.
    "#);
    // Another client moves the slot forward, so pgspate cannot get the changes before that
    // position.
    apply_slot_and_report(&source, &case, "");
    source.run("insert into t values (1)");
    apply_slot_and_report(&source, &case, "");
    source.run("insert into t values (2)");
    source.run(&format!(
        "select pg_replication_slot_advance('{}', pg_current_wal_lsn())",
        source.slot_name()
    ));
    assert_snapshot!(refusal(""), @r#"
    error: replication slot "[SLOT]" was read up to [LSN], but the stream is applied up to
          … [LSN]: transactions in between cannot be read any more

    hint: Another program reads the slot, or the target was restored to an older state.
          … Empty the tables, drop slot [SLOT], and begin a new stream with `--stream NAME
          … --snapshot`.
    "#);
    source.run(&format!("select pg_drop_replication_slot('{}')", source.slot_name()));
    assert_snapshot!(refusal("--create-slot"), @r#"
    error: replication slot "[SLOT]" does not exist any more: what was committed after
          … [LSN] cannot be read

    hint: Empty the tables, and begin a new stream with `--stream NAME --snapshot`.
    "#);
}

#[test]
fn the_plan_says_what_the_run_would_do() {
    let source = PublishedDatabase::new(&format!("{CREATE_TABLES}{INSERT_ROWS}{PUBLICATION};\n"));
    let case = LoadCase::new(CREATE_TABLES);
    case.db.run("drop table news; alter table log drop what");
    let plan = apply_slot(&source, &case, "--snapshot --plan --tables parent,log,news,t --follow");
    assert_eq!(plan.status, Some(0), "{}", plan.stderr);
    assert_snapshot!(redact_names(&plan.stdout), @r#"
    stream slot [SLOT]
      reads   slot [SLOT] of publication p
      begins  create replication slot [SLOT]
              copy the rows of all tables, as of the start of the slot, through the lanes
          … of a load
              apply the transactions that commit later
      ends    never: new commits are applied when they arrive
      public.log -> public.log, rows found by all columns
        warning: the target table has no column "what"
      public.news has no target table
        warning: relation public.news does not exist
      public.parent -> public.parent, rows found by id
      public.t -> public.t, rows found by id
    "#);
    assert_eq!(
        source
            .value("select count(*) from pg_replication_slots where database = current_database()"),
        "0"
    );
    assert_eq!(case.value("select to_regnamespace('pgspate') is null"), "t");
}

#[test]
fn only_one_session_reads_a_slot() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key);\ncreate publication p for table t",
    );
    let case = LoadCase::new("create table t (id int primary key)");
    let mut first = follow(&source, &case, "--create-slot --follow --quiet");
    source.wait_for_reader();
    let second = apply_slot(&source, &case, "--quiet --follow --stream other --retry-for 1");
    let said = refusal_text(&second);
    let pid = Regex::new(r"PID \d+").unwrap();
    assert_snapshot!(pid.replace_all(&said, "PID [N]"), @r#"
    error: could not read replication slot "[SLOT]"
      caused by: replication slot "[SLOT]" is active for PID [N] (SQLSTATE 55006)

    hint: Another session reads this slot. End that session first.
    "#);
    first.kill().unwrap();
    first.wait().unwrap();
}

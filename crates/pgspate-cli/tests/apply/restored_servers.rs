//! Sources and targets that were restored from a backup, replaced, or created again.

use std::path::Path;
use std::process::{Child, Command};

use pgspate_embedded::{ThrowawayServer, silent, testing};

use crate::rows;
use crate::run::{ask, finish, spawn, wait_until};
use crate::source::{CONF, PublishedDatabase, follow};
use crate::support::LoadCase;

const CREATE_TABLE: &str = "create table t (id int primary key)";

/// Returns a source with a published table.
fn source() -> PublishedDatabase {
    PublishedDatabase::new(&format!("{CREATE_TABLE};\ncreate publication p for table t"))
}

/// Starts a stream and waits until the stream has applied a row.
fn start_stream(source: &PublishedDatabase, case: &LoadCase) -> Child {
    let child = follow(source, case, "--create-slot --follow --quiet");
    source.wait_for_reader();
    source.run("insert into t values (1)");
    wait_until("the target has the first row", || rows(case, "t") == "(1)");
    child
}

/// While a stream runs, the target is restored to an older state, together with its ledger. The
/// target lost the events applied since then, so the stream must not continue after these events.
#[test]
fn a_running_stream_notices_a_target_restored_to_an_older_state() {
    let source = source();
    let case = LoadCase::new(CREATE_TABLE);
    let child = start_stream(&source, &case);
    case.db.run("create table backup as select * from pgspate.stream");
    source.run("insert into t values (2)");
    wait_until("the target has the second row", || rows(&case, "t") == "(1) (2)");
    case.db.run(
        "delete from t where id = 2;
         update pgspate.stream s set (ordinal, source, digest, fence)
             = (select ordinal, source, digest, fence from backup);
         select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and application_name = 'pgspate apply'",
    );
    source.run("insert into t values (3)");
    let run = finish(child);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("but the ledger is now at "), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1)");
    // The source no longer has the second row.
    let again = finish(follow(&source, &case, "--quiet"));
    assert!(again.stderr.contains("cannot be read any more"), "{}", again.stderr);
    assert_eq!(rows(&case, "t"), "(1)");
}

/// The source was restored with its slot, so the ledger's position lies after the end of the
/// source's WAL. pgspate would silently skip all commits up to that position.
#[test]
fn a_source_restored_to_an_older_state_is_refused() {
    let old = server(None);
    ask(&old.dsn(), CREATE_TABLE);
    ask(&old.dsn(), "create publication p for table t");
    let case = LoadCase::new(CREATE_TABLE);
    let apply = |source: &ThrowawayServer, args: &str| {
        let address = format!("{}?slot=s&publication=p", source.tcp_dsn_for("postgres"));
        finish(spawn(crate::command(&case, &format!("--quiet {args}")).arg(address)))
    };
    assert_eq!(apply(&old, "--create-slot").status, Some(0));
    old.stop().unwrap();
    let new = server(Some(&old.data_folder()));
    old.restart().unwrap();
    ask(&old.dsn(), "insert into t select generate_series(1, 2000)");
    let run = apply(&old, "");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    ask(&new.dsn(), "insert into t values (5000)");
    for args in ["", "--follow", "--plan"] {
        let run = apply(&new, args);
        assert_eq!(run.status, Some(2), "{args}: {}", run.stderr);
        assert!(run.stderr.contains("the source has gone back"), "{args}: {}", run.stderr);
    }
    assert_eq!(case.value("select max(id) from t"), "2000");
}

/// Starts a server, with a copy of a data folder if one is given.
fn server(data: Option<&Path>) -> ThrowawayServer {
    let builder = testing::builder().conf(CONF);
    let builder = match data {
        Some(data) => builder.data_from(data),
        None => builder,
    };
    builder.start(&silent).unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// A slot is dropped and created again while pgspate is disconnected. The slot then lacks the
/// changes that were committed between.
#[test]
fn a_running_stream_notices_a_slot_that_was_created_again() {
    let source = source();
    let case = LoadCase::new(CREATE_TABLE);
    let child = start_stream(&source, &case);
    let slot = source.slot_name();
    let drop = format!(
        "do $$ begin
            perform pg_terminate_backend(active_pid) from pg_replication_slots
                where slot_name = '{slot}';
            loop
                begin
                    perform pg_drop_replication_slot('{slot}');
                    exit;
                exception when object_in_use then perform pg_sleep(0.002);
                end;
            end loop;
         end $$"
    );
    source.value(&drop);
    source.run(&format!(
        "insert into t values (2);\n\
         select pg_create_logical_replication_slot('{slot}', 'pgoutput');\n\
         insert into t values (3)"
    ));
    let run = finish(child);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("cannot be read"), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1)");
}

/// A second run waits for the slot and gives up. The first run is not disturbed.
#[test]
fn a_second_run_does_not_end_the_first() {
    let source = source();
    let case = LoadCase::new(CREATE_TABLE);
    let mut first = follow(&source, &case, "--create-slot --follow --quiet");
    source.wait_for_reader();
    let second = finish(follow(&source, &case, "--quiet --retry-for 1"));
    assert_eq!(second.status, Some(2), "{}", second.stderr);
    assert!(second.stderr.contains("is active for PID"), "{}", second.stderr);
    // A run on a terminal says what it waits for.
    let shell = "stty cols 120; \"$PGSPATE\" apply \"$SLOT\" --to \"$DSN\" --follow --retry-for 1";
    let mut on_terminal = Command::new("script");
    on_terminal.args(["-qec", shell, "/dev/null"]).env("PGSPATE", env!("CARGO_BIN_EXE_pgspate"));
    on_terminal.env("SLOT", source.slot()).env("DSN", case.db.dsn());
    match Command::new("script").arg("--version").output() {
        Err(_) => println!("not tested: there is no program `script`"),
        Ok(_) => {
            let waiting = finish(spawn(&mut on_terminal));
            let said = "waiting up to 1 s: another process reads the slot";
            assert!(waiting.stdout.contains(said), "{}", waiting.stdout);
        }
    }
    source.run("insert into t values (1)");
    wait_until("the first run applies more rows", || rows(&case, "t") == "(1)");
    assert!(first.try_wait().unwrap().is_none());
    // A run that waits until the slot is free continues at the ledger's position.
    let third = follow(&source, &case, "--quiet --retry-for 60");
    source.run("insert into t values (2)");
    wait_until("the first run applies more rows", || rows(&case, "t") == "(1) (2)");
    first.kill().unwrap();
    first.wait().unwrap();
    source.run("insert into t values (3)");
    let third = finish(third);
    assert_eq!(third.status, Some(0), "{}", third.stderr);
    assert_eq!(finish(follow(&source, &case, "--quiet")).status, Some(0));
    assert_eq!(rows(&case, "t"), "(1) (2) (3)");
}

/// An unfinished copy is repeated only on request. The repeated copy truncates only the tables that
/// the unfinished copy filled.
#[test]
fn a_repeated_copy_truncates_only_tables_that_it_filled() {
    let source = PublishedDatabase::new(
        "create table a (id int primary key);\ncreate table b (id int primary key);
         create table c (id int primary key);\ninsert into a values (1);
         insert into b values (2);\ninsert into c values (3);
         create publication p for table a, b",
    );
    let case = LoadCase::new(
        "create table a (id int primary key); create table b (id int primary key check (id < 2));
         create table c (id int primary key)",
    );
    let run = |args: &str| finish(follow(&source, &case, &format!("--quiet {args}")));
    let first = run("--snapshot");
    assert_eq!(first.status, Some(2), "{}", first.stderr);
    assert_eq!((rows(&case, "a"), rows(&case, "b")), ("(1)".to_owned(), String::new()));
    case.db.run("insert into c values (9); alter table b drop constraint b_id_check");
    source.run("alter publication p add table c");
    for (args, says) in [
        ("", "the initial copy of the rows is not complete"),
        ("--create-slot", "the initial copy of the rows is not complete"),
        ("--snapshot", "could not copy rows into public.c: the table is not empty"),
        ("--snapshot --map public.a=public.c", "into public.c: the table is not empty"),
    ] {
        let refused = run(args);
        assert_eq!(refused.status, Some(2), "{args}: {}", refused.stderr);
        assert!(refused.stderr.contains(says), "{args}: {}", refused.stderr);
    }
    assert_eq!((rows(&case, "a"), rows(&case, "c")), ("(1)".to_owned(), "(9)".to_owned()));
    case.db.run("truncate c");
    let done = run("--snapshot");
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    assert_eq!(["a", "b", "c"].map(|table| rows(&case, table)), ["(1)", "(2)", "(3)"]);
}

/// A copy that committed no row leaves neither a slot nor a position.
#[test]
fn a_copy_without_committed_rows_leaves_nothing() {
    let source = source();
    source.run("insert into t values (5)");
    let case = LoadCase::new("create table t (id int primary key check (id < 5))");
    let run = finish(follow(&source, &case, "--quiet --snapshot"));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let slots = "select count(*) from pg_replication_slots where database = current_database()";
    assert_eq!(source.value(slots), "0");
    assert_eq!(case.value("select source || digest from pgspate.stream"), "");
}

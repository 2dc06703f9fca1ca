//! The snapshot: the rows that exist when a slot is created, and what prevents copying them.

use crate::run::wait_until;
use crate::source::{PublishedDatabase, apply_slot, apply_slot_and_report, follow};
use crate::support::LoadCase;
use crate::{finish, rows};

const CREATE_FAMILY: &str = "create table parent (id int primary key, v int);
create table child (extra int, primary key (id)) inherits (parent);
";

/// Tables that inherit keep their own rows, even if `truncate only` empties the parent table.
#[test]
fn inheriting_tables_keep_their_own_rows() {
    let source = PublishedDatabase::new(&format!(
        "{CREATE_FAMILY}insert into parent values (1, 1);\ninsert into child values (2, 2, 2);\n\
         create publication p for table parent, child"
    ));
    let case = LoadCase::new(&CREATE_FAMILY.replace('\n', " "));
    apply_slot_and_report(&source, &case, "--snapshot");
    for table in ["only parent", "child"] {
        assert_eq!(rows(&case, table), source.rows(table), "{table}");
    }
    // Both tables have rows with the same keys. pgspate must write to the table that the event
    // names.
    source.run(
        "insert into parent values (2, 7), (3, 7);\ninsert into child values (3, 8, 8);\n\
         update only parent set v = 9;\ndelete from only parent where id = 2;\n\
         update only parent set id = 4 where id = 3;\nupdate child set v = 5 where id = 3",
    );
    apply_slot_and_report(&source, &case, "");
    for table in ["only parent", "child"] {
        assert_eq!(rows(&case, table), source.rows(table), "{table}");
    }
    source.run("truncate only parent;\ndelete from child where id = 3");
    apply_slot_and_report(&source, &case, "");
    assert_eq!(rows(&case, "parent"), "(2,2)");
}

/// A `regclass` value has the table's schema, whatever the search path of the source's role is.
#[test]
fn the_search_path_of_the_source_does_not_change_values() {
    let source = PublishedDatabase::new(
        "create schema shop;\ncreate table t (id int primary key, of regclass);\n\
         create table shop.goods (id int);\n\
         insert into t select n, 'shop.goods' from generate_series(1, 100) n;\n\
         create publication p for table t",
    );
    let name = source.value("select current_database()");
    source.run(&format!("alter database {name} set search_path = shop, public"));
    let case = LoadCase::new(
        "create schema shop; create table shop.goods (id int); \
         create table t (id int primary key, of regclass)",
    );
    apply_slot_and_report(&source, &case, "--snapshot");
    assert_eq!(case.value("select count(*) from t where of = 'shop.goods'::regclass"), "100");
    source.run("insert into public.t values (101, 'shop.goods')");
    apply_slot_and_report(&source, &case, "");
    assert_eq!(case.value("select count(*) from t where of = 'shop.goods'::regclass"), "101");
}

/// Replication sessions find operators only in `pg_catalog`.
#[test]
fn operators_of_the_source_do_not_replace_operators_of_postgresql() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key);\ninsert into t values (1);\n\
         create publication p for table t;\ncreate schema evil;\ncreate sequence evil.runs;\n\
         create function evil.same(text, text) returns bool language plpgsql as \
             $$begin perform nextval('evil.runs'); return $1 operator(pg_catalog.=) $2; end$$;\n\
         create operator evil.= (leftarg = text, rightarg = text, function = evil.same)",
    );
    let name = source.value("select current_database()");
    source.run(&format!("alter database {name} set search_path = evil, pg_catalog, public"));
    let was_run = || source.value("select is_called from evil.runs");
    let case = LoadCase::new("create table t (id int primary key)");
    apply_slot_and_report(&source, &case, "--snapshot");
    source.run("insert into t values (2)");
    apply_slot_and_report(&source, &case, "");
    assert_eq!(rows(&case, "t"), "(1) (2)");
    assert_eq!(was_run(), "f");
    source.run("select 'a'::text = 'a'::text");
    assert_eq!(was_run(), "t");
}

/// When the server plans a query, it may evaluate the condition of an index as the replicating
/// role.
#[test]
fn a_snapshot_runs_no_function_of_the_tables_owner() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key, n int);\ninsert into t values (1, 1), (2, null);\n\
         create sequence runs;\n\
         create function look() returns int immutable language plpgsql as \
             $$begin perform nextval('public.runs'); return 1; end$$;\n\
         create index on t (id) where look() = 1;\nalter sequence runs restart;\n\
         create publication p for table t",
    );
    let case = LoadCase::new("create table t (id int primary key, n int)");
    apply_slot_and_report(&source, &case, "--snapshot");
    assert_eq!(rows(&case, "t"), "(1,1) (2,)");
    assert_eq!(source.value("select is_called from runs"), "f");
}

/// From PostgreSQL 18 on, a publication may have stored generated columns: all, or those that a
/// column list names.
#[test]
fn a_snapshot_has_the_generated_columns_that_are_published() {
    let tables = "create table t (id int primary key, \
                                  twice int generated always as (id * 2) stored);\n\
                  create table u (id int primary key, n int, \
                                  twice int generated always as (n * 2) stored);\n";
    let source = PublishedDatabase::new(&format!(
        "{tables}insert into t values (1), (2);\ninsert into u values (1, 5), (2, 6)"
    ));
    if source.value("show server_version_num").parse::<u32>().unwrap() < 180_000 {
        return;
    }
    source.run(
        "create publication p for table t, u (id, twice) \
         with (publish_generated_columns = stored)",
    );
    let create = "create table t (id int primary key, twice int); \
                  create table u (id int primary key, twice int)";
    let case = LoadCase::new(create);
    apply_slot_and_report(&source, &case, "--snapshot");
    assert_eq!(rows(&case, "t"), "(1,2) (2,4)");
    assert_eq!(rows(&case, "u"), "(1,10) (2,12)");
    source.run("insert into t values (3);\nupdate u set n = 7 where id = 1");
    apply_slot_and_report(&source, &case, "");
    assert_eq!(rows(&case, "t"), "(1,2) (2,4) (3,6)");
    assert_eq!(rows(&case, "u"), "(1,14) (2,12)");
    // The target computes its own generated columns.
    let case = LoadCase::new(&tables.replace('\n', " "));
    let mut command = crate::command(&case, "--snapshot --quiet --stream other");
    let url = source.slot().replace("?slot=", "?slot=other_");
    finish(crate::spawn(command.arg(url))).success();
    assert_eq!(rows(&case, "t"), "(1,2) (2,4) (3,6)");
    source.run(&format!("select pg_drop_replication_slot('other_{}')", source.slot_name()));
}

#[test]
fn rows_hidden_by_a_policy_are_not_skipped_silently() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key);\ninsert into t select generate_series(1, 10);\n\
         create policy few on t using (id < 3);\nalter table t enable row level security;\n\
         create publication p for table t",
    );
    let reader = format!("reader_of_{}", source.value("select current_database()"));
    source.run(&format!("create role {reader} login replication password 'x'"));
    source.run(&format!("grant select on t to {reader}"));
    let case = LoadCase::new("create table t (id int primary key)");
    let url = source.slot();
    let (_, at) = url.split_once('@').unwrap_or_else(|| url.split_once("//").unwrap());
    let mut command = crate::command(&case, "--snapshot --quiet");
    let run = finish(crate::spawn(command.arg(format!("postgres://{reader}:x@{at}"))));
    source.run(&format!("drop owned by {reader};\ndrop role {reader}"));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("row-level security policy"), "{}", run.stderr);
    assert!(run.stderr.contains("bypassrls"), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "");
}

/// A signal ends a wait for other sessions. The server stops waiting, too, and creates no slot
/// later.
#[test]
fn a_signal_ends_a_wait_for_the_source() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key);\ncreate publication p for table t",
    );
    let case = LoadCase::new("create table t (id int primary key)");
    let slots = format!(
        "select count(*) from pg_replication_slots where slot_name = '{}'",
        source.slot_name()
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for args in ["--create-slot --quiet", "--snapshot --quiet"] {
        let blocker = runtime.block_on(async {
            let dsn = source.dsn();
            let connected = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await;
            let (client, driver) = connected.unwrap();
            tokio::spawn(driver);
            client.batch_execute("begin; select pg_current_xact_id()").await.unwrap();
            client
        });
        let child = follow(&source, &case, args);
        wait_until("the slot is being created", || source.value(&slots) == "1");
        let pid = child.id().to_string();
        assert!(std::process::Command::new("kill").arg(pid).status().unwrap().success());
        let run = finish(child);
        assert_eq!(run.status, Some(130), "{}", run.stderr);
        wait_until("no session creates the slot any more", || source.value(&slots) == "0");
        drop(blocker);
    }
    apply_slot_and_report(&source, &case, "--snapshot");
}

/// An unfinished copy starts again from scratch, whatever `application_name` the sessions have.
#[test]
fn an_unfinished_copy_starts_again_under_any_application_name() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key, v int);\ninsert into t values (1, 1), (2, 2);\n\
         create publication p for table t",
    );
    let case = LoadCase::new("create table t (id int primary key, v int check (v <> 2))");
    let snapshot = || {
        let mut command = crate::command(&case, "--snapshot --quiet");
        finish(crate::spawn(command.env("PGAPPNAME", "mine").arg(source.slot())))
    };
    assert_eq!(snapshot().status, Some(2));
    case.db.run("alter table t drop constraint t_v_check");
    let run = snapshot();
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1,1) (2,2)");
}

/// The source may have a ledger of its own, for streams into the source. A snapshot does not copy
/// this ledger.
#[test]
fn a_ledger_in_the_source_is_not_copied() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key);\ncreate schema pgspate;\n\
         create table pgspate.version (version int);\ninsert into pgspate.version values (1);\n\
         insert into t values (1);\ncreate publication p for all tables",
    );
    let case = LoadCase::new("create table t (id int primary key)");
    apply_slot_and_report(&source, &case, "--snapshot");
    source.run("insert into pgspate.version values (2);\ninsert into t values (2)");
    let report = apply_slot_and_report(&source, &case, "");
    assert_eq!((&report["left_out"], &report["events"]), (&1.into(), &2.into()), "{report}");
    assert_eq!(rows(&case, "t"), "(1) (2)");
}

#[test]
fn errors_say_why_a_slot_cannot_be_read() {
    let source = PublishedDatabase::new("create table t (id int primary key)");
    let slot = source.slot_name();
    let make = "select pg_create_logical_replication_slot";
    let case = LoadCase::new("create table t (id int primary key)");
    source.run(&format!("{make}('{slot}', 'pgoutput');\ninsert into t values (1)"));
    source.run("create publication p for table t");
    if source.value("show server_version_num").parse::<u32>().unwrap() < 180_000 {
        let young = apply_slot(&source, &case, "--quiet");
        assert_eq!(young.status, Some(2));
        assert!(
            young.stderr.contains("but did not exist when these changes were made"),
            "{}",
            young.stderr
        );
    }
    source.run(&format!("select pg_drop_replication_slot('{slot}')"));
    if source.value("show server_version_num").parse::<u32>().unwrap() < 140_000 {
        return;
    }
    source.run(&format!("{make}('{slot}', 'pgoutput', false, true)"));
    let two_phase = apply_slot(&source, &case, "--quiet --stream other");
    assert_eq!(two_phase.status, Some(2));
    assert!(two_phase.stderr.contains("sends prepared transactions"), "{}", two_phase.stderr);
    source.run(&format!("select pg_drop_replication_slot('{slot}')"));
    // A publication may get its tables after the slot was created.
    source.run("create publication q");
    let mut command = crate::command(&case, "--create-slot --quiet --stream q");
    let run = finish(crate::spawn(command.arg(source.slot().replace("=p", "=q"))));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
}

/// A run ends if its source stopped responding.
#[test]
fn a_source_that_stopped_responding_is_noticed() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key);\ncreate publication p for table t",
    );
    let name = source.value("select current_database()");
    source.run(&format!("alter database {name} set wal_sender_timeout = '2s'"));
    let case = LoadCase::new("create table t (id int primary key)");
    let child = follow(&source, &case, "--create-slot --follow --quiet --retry-for 1");
    source.wait_for_reader();
    let active = format!(
        "select active_pid from pg_replication_slots where slot_name = '{}'",
        source.slot_name()
    );
    let pid = source.value(&active);
    let kill = |signal: &str| {
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success())
    };
    kill("-STOP");
    let run = crate::run::finish_within(child, std::time::Duration::from_secs(60));
    kill("-CONT");
    let run = run.unwrap_or_else(|run| panic!("the run still waits: {}", run.stderr));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
}

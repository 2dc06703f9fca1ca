//! Checks of the whole server, on servers with bad settings.

use pgspate_embedded::ThrowawayServer;
use pgspate_embedded::testing;

use crate::run::{ask, session, wait_until};
use crate::{doctor, expect_no_finding, findings, remedy, wait_for_finding, warnings_and_notes};

/// Runs SQL on the server.
fn run(server: &ThrowawayServer, sql: &str) {
    let (runtime, client) = session(&server.dsn());
    runtime.block_on(client.batch_execute(sql)).unwrap();
}

#[test]
fn dangerous_settings_are_found() {
    let server = testing::server(
        "fsync = off\nfull_page_writes = off\nautovacuum = off\nsynchronous_commit = off",
    );
    let dsn = server.dsn();
    for id in ["fsync", "full-page-writes", "autovacuum", "synchronous-commit"] {
        let finding = wait_for_finding(&dsn, id, "");
        assert_eq!(finding["verdict"], "warning");
        for statement in remedy(&finding) {
            run(&server, &statement);
        }
        expect_no_finding(&dsn, id, "");
    }
}

#[test]
fn asynchronous_commits_of_a_database_or_a_role_are_found() {
    let db = testing::database();
    let (name, dsn) = (db.name().to_owned(), db.dsn());
    expect_no_finding(&dsn, "synchronous-commit", "");
    db.run(&format!("alter database \"{name}\" set synchronous_commit = off"));
    let finding = wait_for_finding(&dsn, "synchronous-commit", "");
    assert_eq!(finding["verdict"], "warning");
    remedy(&finding).iter().for_each(|statement| db.run(statement));
    db.run(&format!("create role \"{name}\"; alter role \"{name}\" set synchronous_commit = off"));
    let finding = wait_for_finding(&dsn, "synchronous-commit", "");
    assert_eq!(finding["verdict"], "note");
    remedy(&finding).iter().for_each(|statement| db.run(statement));
    expect_no_finding(&dsn, "synchronous-commit", "");
    db.run(&format!("drop role \"{name}\""));
}

#[test]
fn settings_that_increase_wal_are_found() {
    let server = testing::server(
        "fsync = on\nmin_wal_size = 32MB\nmax_wal_size = 32MB\nwal_buffers = 64kB\n\
         full_page_writes = on\nautovacuum = off",
    );
    let dsn = server.dsn();
    for id in ["checkpoints", "full-page-images", "wal-compression", "wal-buffers"] {
        assert_eq!(warnings_and_notes(&dsn, id, ""), Vec::<serde_json::Value>::new());
    }
    // The server may be a copy of another server, with old counters.
    let version: u32 = ask(&dsn, "show server_version_num").parse().unwrap();
    let counters = if version < 170_000 { "bgwriter" } else { "checkpointer" };
    run(&server, &format!("select pg_stat_reset_shared('{counters}')"));
    if version >= 140_000 {
        run(&server, "select pg_stat_reset_shared('wal')");
    }
    run(
        &server,
        "create table t (id int primary key, v text) with (fillfactor = 50); \
         insert into t select g, repeat('x', 500) from generate_series(1, 30000) g; checkpoint",
    );
    for _ in 0..6 {
        run(&server, "update t set v = v || 'y' where id % 7 = 0; checkpoint");
    }
    let finding = wait_for_finding(&dsn, "checkpoints", "");
    assert!(finding["numbers"]["requested"].as_f64().unwrap() >= 5.0, "{finding}");
    if version < 140_000 {
        // Without a known WAL rate there is no size to propose.
        assert_eq!(remedy(&finding), Vec::<String>::new());
        assert_eq!(findings(&dsn, "wal-buffers", "")[0]["verdict"], "cannot_see");
        return;
    }
    assert_eq!(remedy(&finding)[0], "alter system set max_wal_size = '1GB';");
    assert!(finding["advice"].as_str().unwrap().contains("may take 1GB of disk"), "{finding}");
    let images = wait_for_finding(&dsn, "full-page-images", "");
    assert!(images["numbers"]["share"].as_f64().unwrap() > 0.4, "{images}");
    wait_for_finding(&dsn, "wal-buffers", "");
    let compression = wait_for_finding(&dsn, "wal-compression", "");
    remedy(&compression).iter().for_each(|statement| run(&server, statement));
    expect_no_finding(&dsn, "wal-compression", "");
    // Once `max_wal_size` is large enough, the old checkpoint counts cause no finding. No setting
    // is lowered.
    for statement in remedy(&finding) {
        run(&server, &statement);
    }
    expect_no_finding(&dsn, "checkpoints", "");
    run(&server, "alter system set checkpoint_timeout = '1h'");
    run(&server, "alter system set wal_compression = 'off'");
    run(&server, "select pg_reload_conf()");
    expect_no_finding(&dsn, "full-page-images", "");
}

#[test]
fn too_little_memory_for_indexes_is_found() {
    let server = testing::server("maintenance_work_mem = 1MB");
    run(
        &server,
        "create table t (id int primary key); insert into t select generate_series(1, 900000)",
    );
    let dsn = server.dsn();
    let finding = wait_for_finding(&dsn, "maintenance-work-mem", "");
    assert!(finding["evidence"].as_str().unwrap().contains("public.t_pkey"), "{finding}");
    // The remedy is for a session only, because the server's memory is unknown.
    assert_eq!(remedy(&finding), ["set maintenance_work_mem = '64MB'; -- in a session"]);
    run(&server, "alter system set maintenance_work_mem = '64MB'");
    run(&server, "select pg_reload_conf()");
    expect_no_finding(&dsn, "maintenance-work-mem", "");
}

#[test]
fn sessions_that_wait_for_a_lock_are_found() {
    let server = testing::server("");
    run(&server, "create table t (id int primary key); insert into t values (1)");
    let dsn = server.dsn();
    expect_no_finding(&dsn, "storage-waits", "");
    let (runtime, holder) = session(&dsn);
    runtime.block_on(holder.batch_execute("begin; lock table t")).unwrap();
    let (other, waiter) = session(&dsn);
    let waiting = other.spawn(async move { waiter.batch_execute("select from t").await });
    wait_until("the other session waits", || {
        ask(&dsn, "select count(*) from pg_stat_activity where wait_event_type = 'Lock'") == "1"
    });
    let finding = wait_for_finding(&dsn, "storage-waits", "--watch 1s");
    assert!(finding["evidence"].as_str().unwrap().contains("Lock:relation"), "{finding}");
    assert_eq!(finding["verdict"], "warning");
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    other.block_on(waiting).unwrap().unwrap();
}

#[test]
fn the_report_says_how_much_io_a_volume_allows() {
    let db = testing::database();
    let run = doctor(&db.dsn(), "--watch 100ms --storage gp2:250GiB");
    let expected = "the volume allows 750 IOPS, 3,000 for 40:00 with full credits";
    assert!(run.stdout.contains(expected), "{}", run.stdout);
    for wrong in ["gp2", "gp7:1GiB", "io1:100GiB"] {
        let run = doctor(&db.dsn(), &format!("--storage {wrong}"));
        assert_eq!(run.status, Some(2), "{wrong}");
    }
}

#[test]
fn io_beyond_the_limit_of_a_volume_is_found() {
    let server = testing::server("fsync = on");
    run(&server, "create table t (id int, v text)");
    let dsn = server.dsn();
    let (other, writer) = session(&dsn);
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let writing = other.spawn(async move {
        // Each single commit is one I/O, on any disk.
        while stopped.try_recv().is_err() {
            writer.batch_execute("insert into t values (1, repeat('x', 9000))").await.unwrap();
        }
    });
    let finding = wait_for_finding(&dsn, "storage-limits", "--watch 1s --storage gp2:1GiB");
    stop.send(()).unwrap();
    other.block_on(writing).unwrap();
    assert!(finding["numbers"]["iops"].as_f64().unwrap() > 100.0, "{finding}");
    let advice = finding["advice"].as_str().unwrap();
    assert!(advice.contains("gp3:20GiB") || advice.contains("gp3:400GiB"), "{advice}");
    assert!(advice.contains("hold all databases ("), "{advice}");
    expect_no_finding(&dsn, "storage-limits", "--storage io2:1000GiB,100000iops");
}

#[test]
fn prepared_transactions_that_keep_dead_rows_are_found() {
    let server = testing::server("max_prepared_transactions = 3");
    let dsn = server.dsn();
    expect_no_finding(&dsn, "held-back", "");
    run(&server, "create table t (id int)");
    run(&server, "begin; insert into t values (1); prepare transaction 'it''s old'");
    run(
        &server,
        "create procedure burn() language plpgsql as $$ begin \
         for i in 1..100001 loop perform pg_current_xact_id(); commit; end loop; end $$",
    );
    run(&server, "call burn()");
    let finding = wait_for_finding(&dsn, "held-back", "");
    assert_eq!(finding["object"], "prepared transaction it's old");
    for statement in remedy(&finding) {
        run(&server, statement.split(" --").next().unwrap());
    }
    expect_no_finding(&dsn, "held-back", "");
}

#[test]
fn a_locked_table_does_not_block_the_checks() {
    let server = testing::server("");
    let dsn = server.dsn();
    run(&server, "create table t (id int primary key) with (autovacuum_enabled = off)");
    let (runtime, holder) = session(&dsn);
    runtime.block_on(holder.batch_execute("begin; lock table t")).unwrap();
    let finding = wait_for_finding(&dsn, "autovacuum", "");
    assert_eq!(finding["evidence"], "autovacuum is off for this table (locked by another session)");
    assert_eq!(findings(&dsn, "maintenance-work-mem", "")[0]["verdict"], "ok");
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    remedy(&finding).iter().for_each(|statement| run(&server, statement));
    expect_no_finding(&dsn, "autovacuum", "");
}

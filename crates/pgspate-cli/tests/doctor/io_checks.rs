//! I/O times, the processes that write pages, and the measured load of a volume.

use pgspate_embedded::testing;

use crate::busy_session::BusySession;
use crate::run::{ask, session, wait_until};
use crate::{expect_no_finding, findings, remedy, wait_for_finding};

/// Returns the server's version number.
fn version(dsn: &str) -> u32 {
    ask(dsn, "show server_version_num").parse().unwrap()
}

#[test]
fn io_times_are_reported_where_the_server_measures_them() {
    let server = testing::server("track_io_timing = on\nshared_buffers = 1MB");
    let dsn = server.dsn();
    ask(&dsn, "create table t as select g, repeat('x', 500) from generate_series(1, 30000) g");
    let told = || findings(&dsn, "io-times", "")[0]["evidence"].as_str().unwrap().to_owned();
    ask(&dsn, "select count(*) from t");
    wait_until("reads are timed", || told().starts_with("a page read "));
}

#[test]
fn sessions_that_write_pages_to_free_buffers_are_found() {
    let server = testing::server("shared_buffers = 1MB\nbgwriter_lru_maxpages = 0");
    let dsn = server.dsn();
    ask(
        &dsn,
        "create table t (id int primary key, v text) with (fillfactor = 50); \
         insert into t select g, repeat('x', 500) from generate_series(1, 30000) g; \
         analyze t",
    );
    expect_no_finding(&dsn, "page-writes", "");
    let writing = BusySession::new(
        &dsn,
        "set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off; \
         set synchronous_commit = off",
        "update t set v = v where id in (select (random() * 30000)::int \
                                         from generate_series(1, 3000))",
    );
    if version(&dsn) < 160_000 {
        let evidence = findings(&dsn, "page-writes", "--watch 1s")[0]["evidence"].to_string();
        assert!(evidence.contains("at most; only PostgreSQL 16 and later count"), "{evidence}");
        return writing.stop().unwrap();
    }
    let finding = wait_for_finding(&dsn, "page-writes", "--watch 1s");
    writing.stop().unwrap();
    assert_eq!(finding["verdict"], "note");
    assert_eq!(remedy(&finding)[0], "alter system set bgwriter_lru_maxpages = '1000';");
    expect_no_finding(&dsn, "page-writes", "");
}

#[test]
fn the_report_says_which_io_is_not_counted_yet() {
    // A running autovacuum worker would have started before.
    let server = testing::server("autovacuum = off");
    let dsn = server.dsn();
    ask(&dsn, "create role app login; grant pg_read_all_stats to app");
    // A role that may not see the path of the server's files uses the server's counters.
    let app = format!("{dsn} user=app");
    let asked = || {
        let found = findings(&app, "storage-limits", "--storage gp2:250GiB");
        found[0]["evidence"].as_str().unwrap().to_owned()
    };
    let evidence = asked();
    assert!(evidence.contains("as PostgreSQL counts, without temporary files"), "{evidence}");
    assert!(!evidence.contains("began before"), "{evidence}");
    let (runtime, client) = session(&dsn);
    let asleep = runtime.spawn(async move { client.batch_execute("select pg_sleep(600)").await });
    wait_until("a transaction is old enough", || {
        asked().contains("; a transaction that began before the sample is counted only when")
    });
    asleep.abort();
}

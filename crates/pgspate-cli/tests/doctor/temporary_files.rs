//! Temporary files, on servers that write many, lack disk space, or have unusable tablespaces.

use std::time::Duration;

use pgspate_embedded::testing;

use crate::busy_session::BusySession;
use crate::run::ask;
use crate::{doctor, expect_no_finding, findings, remedy, wait_for_finding, warnings_and_notes};

const SORT: &str = "\
select count(*) from (select repeat('x', 200) || g as v from generate_series(1, 600000) g
                      order by 1 offset 0) rows";

#[test]
fn sorts_that_write_temporary_files_are_found() {
    let server = testing::server("");
    let dsn = server.dsn();
    expect_no_finding(&dsn, "temporary-files", "");
    // A finished sort is counted, but causes no finding.
    ask(&dsn, &format!("set work_mem = '64kB'; {SORT}"));
    let seen = || findings(&dsn, "temporary-files", "")[0]["evidence"].to_string();
    crate::run::wait_until("the sort is counted", || {
        seen().contains(" of database postgres since")
    });
    assert_eq!(warnings_and_notes(&dsn, "temporary-files", ""), Vec::<serde_json::Value>::new());
    let sorting = BusySession::new(&dsn, "set work_mem = '64kB'", SORT);
    let finding = wait_for_finding(&dsn, "temporary-files", "--watch 3s");
    sorting.stop().unwrap();
    assert_eq!(finding["verdict"], "note", "{finding}");
    assert!(finding["evidence"].as_str().unwrap().contains("closed in"), "{finding}");
    assert!(finding["numbers"]["bytes"].as_f64().unwrap() > 1e8, "{finding}");
    let [larger] = &remedy(&finding)[..] else { panic!("{finding}") };
    // Repeat the sorts after the remedy.
    let sorting = BusySession::new(&dsn, larger, SORT);
    expect_no_finding(&dsn, "temporary-files", "--watch 3s");
    sorting.stop().unwrap();
}

#[test]
fn temporary_files_that_soon_fill_the_disk_are_found() {
    let server = testing::server("max_wal_size = 64MB");
    let dsn = server.dsn();
    let volume = "--watch 1s --storage gp2:0.2GiB";
    expect_no_finding(&dsn, "temporary-files", volume);
    // A scroll cursor keeps fetched rows, because the client may move back.
    let setup = "set work_mem = '64kB'; begin; \
                 declare c scroll cursor for select repeat('x', 1000) \
                 from generate_series(1, 3000) a join generate_series(1, 3000) b on true";
    let pause = Duration::from_millis(5);
    let filling = BusySession::with(&dsn, setup, "move 2000 in c", pause);
    let finding = wait_for_finding(&dsn, "temporary-files", volume);
    assert_eq!(finding["verdict"], "warning", "{finding}");
    let evidence = finding["evidence"].as_str().unwrap();
    assert!(evidence.contains("free on the volume as far as databases and WAL show"), "{evidence}");
    assert!(finding["numbers"]["growth_per_second"].as_f64().unwrap() > 0.0, "{finding}");
    let statements = remedy(&finding);
    let who = "select pid from pg_stat_activity where query like 'move%'";
    assert_eq!(ask(&dsn, &statements[0]), ask(&dsn, who));
    statements[1..].iter().for_each(|statement| drop(ask(&dsn, statement)));
    // The remedy ends that statement, and the server keeps running.
    let error = filling.wait_for_error().unwrap_err();
    assert_eq!(error.code().unwrap().code(), "53400", "{error}");
    expect_no_finding(&dsn, "temporary-files", "--watch 1s --storage gp2:2GiB");
}

#[test]
fn tablespaces_and_limits_without_effect_are_found() {
    let server = testing::server("temp_tablespaces = 'Nowhere, \"Not there\"'");
    let dsn = server.dsn();
    let finding = wait_for_finding(&dsn, "temporary-files", "");
    assert_eq!(finding["object"], "nowhere");
    assert_eq!(warnings_and_notes(&dsn, "temporary-files", "").len(), 2);
    for statement in remedy(&finding) {
        ask(&dsn, &statement);
    }
    expect_no_finding(&dsn, "temporary-files", "");
    let volume = "--storage gp2:50GiB";
    expect_no_finding(&dsn, "temporary-files", volume);
    ask(&dsn, "alter system set temp_file_limit = '1000GB'");
    ask(&dsn, "select pg_reload_conf()");
    let finding = wait_for_finding(&dsn, "temporary-files", volume);
    assert_eq!(finding["object"], "temp_file_limit");
    for statement in remedy(&finding) {
        ask(&dsn, &statement);
    }
    expect_no_finding(&dsn, "temporary-files", volume);
}

/// The remedy keeps the existing tablespaces of the list, wherever the list is set.
#[test]
fn a_missing_tablespace_of_several_is_found() {
    let server = testing::server("allow_in_place_tablespaces = on");
    let dsn = server.dsn();
    for sql in [
        "create tablespace scratch location ''",
        "create tablespace \"Fast, one\" location ''",
        "create role app login superuser",
    ] {
        ask(&dsn, sql);
    }
    let app = format!("{dsn} user=app");
    let list = "scratch, gone, \"Fast, one\", gone_too";
    for whose in
        ["system", "role all", "database postgres", "role app", "role app in database postgres"]
    {
        ask(&dsn, &format!("alter {whose} set temp_tablespaces = {list}"));
        ask(&dsn, "select pg_reload_conf()");
        let finding = wait_for_finding(&app, "temporary-files", "");
        assert_eq!(finding["object"], "gone");
        assert_eq!(warnings_and_notes(&app, "temporary-files", "").len(), 2);
        let expected = format!("alter {whose} set temp_tablespaces = scratch, \"Fast, one\";");
        assert_eq!(remedy(&finding)[0], expected);
        for statement in remedy(&finding) {
            ask(&dsn, &statement);
        }
        expect_no_finding(&app, "temporary-files", "");
        assert_eq!(ask(&app, "show temp_tablespaces"), "scratch, \"Fast, one\"");
    }
    let finding = wait_for_finding(
        &format!("{app} options='-c temp_tablespaces=gone'"),
        "temporary-files",
        "",
    );
    assert_eq!(remedy(&finding), Vec::<String>::new());
    let advice = finding["advice"].as_str().unwrap();
    assert!(advice.ends_with("It is set in the options of this session."), "{advice}");
}

#[test]
fn a_tablespace_without_the_grant_is_found() {
    let server = testing::server("allow_in_place_tablespaces = on");
    let dsn = server.dsn();
    ask(&dsn, "create role sorter login");
    ask(&dsn, "create tablespace scratch location ''");
    ask(&dsn, "alter role sorter set temp_tablespaces = 'scratch'");
    let sorter = format!("{dsn} user=sorter");
    let finding = wait_for_finding(&sorter, "temporary-files", "");
    assert_eq!(finding["object"], "scratch");
    assert_eq!(remedy(&finding), ["grant create on tablespace scratch to sorter;"]);
    ask(&dsn, &remedy(&finding)[0]);
    expect_no_finding(&sorter, "temporary-files", "");
    // The role may not list the files, and the finding says so.
    let evidence = findings(&sorter, "temporary-files", "")[0]["evidence"].to_string();
    let hidden = "in tablespace scratch, their size now is visible only to pg_monitor";
    assert!(evidence.contains(hidden), "{evidence}");
}

#[test]
fn the_report_knows_auroras_local_disk() {
    let server = testing::server(
        "fsync = off\nfull_page_writes = off\nmax_wal_size = 32MB\nmin_wal_size = 32MB\n\
         allow_in_place_tablespaces = on",
    );
    let dsn = server.dsn();
    assert!(!warnings_and_notes(&dsn, "full-page-writes", "").is_empty());
    ask(
        &dsn,
        "set allow_system_table_mods = on; \
         create function pg_catalog.aurora_version() returns text language sql \
         as $$ select '16.3' $$",
    );
    // On Aurora, these settings are neither dangerous nor costly.
    for id in ["fsync", "full-page-writes", "checkpoints", "wal-compression", "wal-buffers"] {
        let found = findings(&dsn, id, "");
        assert_eq!((found.len(), &found[0]["verdict"]), (1, &"ok".into()), "{found:?}");
        assert!(found[0]["evidence"].as_str().unwrap().contains("Aurora"), "{found:?}");
    }
    let run = doctor(&dsn, "--watch 100ms --storage gp3:100GiB");
    let told = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("has no volume that could be the limit"), "{told}");
    assert!(told.contains(
        "temporary objects not on the instance's own disk: temp_tablespaces is empty; tiered \
             cache off"
    ));
    ask(
        &dsn,
        "set allow_system_table_mods = on; \
         create function pg_catalog.aurora_stat_optimized_reads_cache(out total_size bigint, \
         out used_size bigint) returns setof record language sql as $$ \
         select 1054000000000, 975000000000 $$",
    );
    ask(&dsn, "create tablespace aurora_temp_tablespace location ''");
    ask(&dsn, "alter system set temp_tablespaces = 'aurora_temp_tablespace'");
    ask(&dsn, "select pg_reload_conf()");
    let expected = "temporary objects on the instance's own disk (aurora_temp_tablespace); tiered \
                    cache on, 975 GB of 1.05 TB used";
    crate::run::wait_until("doctor shows the disk usage", || {
        findings(&dsn, "optimized-reads", "")[0]["evidence"].as_str().unwrap() == expected
    });
    let files = findings(&dsn, "temporary-files", "--storage gp2:0.1GiB").swap_remove(0);
    assert_eq!(files["verdict"], "ok", "{files}");
    let expected = "in tablespace aurora_temp_tablespace, 0 B now, ";
    assert!(files["evidence"].as_str().unwrap().contains(expected), "{files}");
}

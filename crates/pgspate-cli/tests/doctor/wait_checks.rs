//! Checks of what sessions wait for, on servers where sessions have to wait.

use pgspate_embedded::testing;
use tokio_postgres::CopyInSink;

use crate::busy_session::BusySession;
use crate::run::{ask, session, wait_until};
use crate::{expect_no_finding, remedy, wait_for_finding};

/// Waits for the finding about waits for this event.
#[track_caller]
fn find_waits(dsn: &str, event: &str) -> serde_json::Value {
    let finding = wait_for_finding(dsn, "storage-waits", "--watch 1s");
    assert!(finding["evidence"].as_str().unwrap().contains(event), "{finding}");
    finding
}

/// `commit_delay` delays every commit, so that even a fast disk causes waits.
#[test]
fn waits_for_the_wal_of_single_commits_are_found() {
    let server = testing::server("fsync = on\ncommit_delay = 100000\ncommit_siblings = 0");
    let dsn = server.dsn();
    ask(&dsn, "create table t (id int)");
    let start = |setup: &str| -> Vec<BusySession> {
        (0..4).map(|_| BusySession::new(&dsn, setup, "insert into t values (1)")).collect()
    };
    let busy = start("");
    let finding = find_waits(&dsn, "WALWrite");
    busy.into_iter().for_each(|it| it.stop().unwrap());
    let busy = start(&remedy(&finding)[0]);
    expect_no_finding(&dsn, "storage-waits", "--watch 1s");
    busy.into_iter().for_each(|it| it.stop().unwrap());
}

#[test]
fn waits_for_a_synchronous_standby_are_found() {
    let server = testing::server("synchronous_standby_names = 'nobody'");
    let dsn = server.dsn();
    ask(&dsn, "set synchronous_commit = local; create table t (id int)");
    let waiting = BusySession::new(&dsn, "", "insert into t values (1)");
    let finding = find_waits(&dsn, "IPC:SyncRep");
    assert_eq!(finding["verdict"], "warning");
    // A session with the remedy does not wait. The other session waits until the setting names no
    // standby.
    ask(&dsn, &format!("{}\n; insert into t values (2)", remedy(&finding)[0]));
    ask(&dsn, "alter system set synchronous_standby_names = ''");
    ask(&dsn, "select pg_reload_conf()");
    expect_no_finding(&dsn, "storage-waits", "--watch 1s");
    waiting.stop().unwrap();
}

#[test]
fn waits_for_a_silent_client_are_found() {
    let server = testing::server("");
    let dsn = server.dsn();
    ask(&dsn, "create table t (id int)");
    let (runtime, client) = session(&dsn);
    let copying = client.copy_in("copy t from stdin");
    let stalled: CopyInSink<std::io::Cursor<Vec<u8>>> = runtime.block_on(copying).unwrap();
    let finding = find_waits(&dsn, "Client:ClientRead");
    assert_eq!(finding["verdict"], "warning");
    assert!(finding["evidence"].as_str().unwrap().contains("waits for its clients"), "{finding}");
    drop(stalled);
    drop(client);
    drop(runtime);
    wait_until("the copy has ended", || {
        ask(&dsn, "select count(*) from pg_stat_activity where query like 'copy%'") == "0"
    });
    expect_no_finding(&dsn, "storage-waits", "");
}

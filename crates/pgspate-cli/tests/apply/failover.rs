//! The source of a slot dies, and a standby with the slot takes over.

use std::fs;

use pgspate_embedded::{ThrowawayServer, testing};

use crate::run::{Run, ask, finish, spawn, try_ask, wait_until};
use crate::source::CONF;
use crate::support::LoadCase;
use crate::{command, rows};

/// Access rules that let every client connect, also for replication.
const HBA: &str =
    "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 trust\n";

/// Returns a server builder that lets every client connect.
fn trusting_server() -> pgspate_embedded::ThrowawayBuilder {
    testing::builder().hba(HBA)
}

/// Starts a server with a table and its publication.
fn primary() -> ThrowawayServer {
    let primary = trusting_server().conf(CONF).start(&|_| {}).unwrap();
    ask(&primary.dsn(), "create table t (id int primary key)");
    ask(&primary.dsn(), "create publication p for table t");
    primary
}

/// Starts a standby with the primary's data and slots. If `follows` is false, the standby does not
/// replicate later changes.
fn standby_of(primary: &ThrowawayServer, follows: bool) -> ThrowawayServer {
    // Copy the data folder while the primary is stopped.
    primary.stop().unwrap();
    let (folder, port) = (primary.socket_folder(), primary.port());
    let folder = folder.display();
    let follow = format!("primary_conninfo = 'host={folder} port={port} user=postgres'\n");
    let conf = if follows { format!("{CONF}{follow}") } else { CONF.to_owned() };
    let standby = trusting_server()
        .data_from(&primary.data_folder())
        .file("standby.signal", "")
        .conf(&conf)
        .start(&|_| {})
        .unwrap();
    primary.restart().unwrap();
    standby
}

/// Runs `pgspate apply` from the server's slot.
fn apply_from(server: &ThrowawayServer, case: &LoadCase, args: &str) -> Run {
    let port = server.port();
    let source = format!("postgres://postgres@127.0.0.1:{port}/postgres?slot=s&publication=p");
    finish(spawn(command(case, &format!("--quiet {args}")).arg(source)))
}

/// Runs `pgspate apply` from the server's slot, which must succeed.
#[track_caller]
fn apply_successfully_from(server: &ThrowawayServer, case: &LoadCase, args: &str) {
    let run = apply_from(server, case, args);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
}

fn insert(server: &ThrowawayServer, from: u32, upto: u32) {
    ask(&server.dsn(), &format!("insert into t select generate_series({from}, {upto})"));
}

/// Promotes a standby. Its sessions may be lost meanwhile, so each query is sent again. After a
/// failure, prints the log of the standby.
fn promote(standby: &ThrowawayServer) {
    let promoted = || {
        if let Err(lost) = try_ask(&standby.dsn(), "select pg_promote()") {
            let log = fs::read_to_string(standby.log()).unwrap_or_default();
            eprintln!("pg_promote failed: {lost}\nThe standby's log:\n{log}");
        }
        try_ask(&standby.dsn(), "select pg_is_in_recovery()").is_ok_and(|answer| answer == "f")
    };
    wait_until("the standby is promoted", promoted);
}

/// The new primary may lack changes that pgspate applied, even if its WAL is longer than the
/// stream.
#[test]
fn a_promoted_standby_that_lacks_changes_is_refused() {
    let primary = primary();
    let case = LoadCase::new("create table t (id int primary key)");
    apply_successfully_from(&primary, &case, "--create-slot");
    insert(&primary, 1, 3);
    apply_successfully_from(&primary, &case, "");
    let standby = standby_of(&primary, false);
    insert(&primary, 4, 5);
    apply_successfully_from(&primary, &case, "");
    primary.kill().unwrap();
    promote(&standby);
    insert(&standby, 100, 20_000);
    let run = apply_from(&standby, &case, "");
    assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""), "{}", run.stderr);
    assert!(run.stderr.contains("failed over to a server that was behind"), "{}", run.stderr);
    assert!(run.stderr.contains("--snapshot"), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1) (2) (3) (4) (5)");
}

#[test]
fn a_promoted_standby_that_had_all_changes_continues_the_stream() {
    let primary = primary();
    let case = LoadCase::new("create table t (id int primary key)");
    apply_successfully_from(&primary, &case, "--create-slot");
    let standby = standby_of(&primary, true);
    insert(&primary, 1, 3);
    apply_successfully_from(&primary, &case, "");
    let end = ask(&primary.dsn(), "select pg_current_wal_lsn()");
    let has_all = format!("select pg_last_wal_replay_lsn() >= '{end}'");
    wait_until("the standby has all changes", || ask(&standby.dsn(), &has_all) == "t");
    primary.kill().unwrap();
    promote(&standby);
    for nth in [4, 5] {
        insert(&standby, nth, nth);
        apply_successfully_from(&standby, &case, "");
    }
    assert_eq!(rows(&case, "t"), "(1) (2) (3) (4) (5)");
    let digest = ask(&case.db.dsn(), "select digest from pgspate.stream");
    assert!(digest.contains("/postgres/s timeline 2 from 0/"), "{digest}");
}

/// Two standbys become primaries one after the other. Both are on a timeline 2, which begins where
/// each had stopped to replicate.
#[test]
fn a_second_standby_with_a_timeline_of_the_same_number_is_refused() {
    let primary = primary();
    let case = LoadCase::new("create table t (id int primary key)");
    apply_successfully_from(&primary, &case, "--create-slot");
    let behind = standby_of(&primary, false);
    insert(&primary, 1, 3);
    apply_successfully_from(&primary, &case, "");
    let first = standby_of(&primary, false);
    primary.kill().unwrap();
    promote(&first);
    insert(&first, 4, 5);
    apply_successfully_from(&first, &case, "");
    first.kill().unwrap();
    promote(&behind);
    insert(&behind, 100, 20_000);
    let run = apply_from(&behind, &case, "");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("its timeline 2 begins at"), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1) (2) (3) (4) (5)");
}

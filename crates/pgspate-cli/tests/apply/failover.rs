//! The source of a slot dies, and a standby that has the slot takes over.

use pgspate_embedded::{ThrowawayServer, testing};

use crate::run::{Run, ask, finish, spawn, wait_until};
use crate::source::CONF;
use crate::support::Case;
use crate::{command, rows};

/// Whoever comes is let in: to look and to replicate.
const HBA: &str =
    "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 trust\n";

fn builder() -> pgspate_embedded::ThrowawayBuilder {
    testing::builder().hba(HBA)
}

/// A server with a table and its publication.
fn primary() -> ThrowawayServer {
    let primary = builder().conf(CONF).start(&|_| {}).unwrap();
    ask(&primary.dsn(), "create table t (id int primary key)");
    ask(&primary.dsn(), "create publication p for table t");
    primary
}

/// A standby that has what the primary has by now, its slots too, and `follows` it or not.
fn standby_of(primary: &ThrowawayServer, follows: bool) -> ThrowawayServer {
    // What is copied is that of a stopped server.
    primary.stop().unwrap();
    let (folder, port) = (primary.socket_folder(), primary.port());
    let folder = folder.display();
    let follow = format!("primary_conninfo = 'host={folder} port={port} user=postgres'\n");
    let conf = if follows { format!("{CONF}{follow}") } else { CONF.to_owned() };
    let standby = builder()
        .data_from(&primary.data_folder())
        .file("standby.signal", "")
        .conf(&conf)
        .start(&|_| {})
        .unwrap();
    primary.restart().unwrap();
    standby
}

fn apply_from(server: &ThrowawayServer, case: &Case, args: &str) -> Run {
    let port = server.port();
    let source = format!("postgres://postgres@127.0.0.1:{port}/postgres?slot=s&publication=p");
    finish(spawn(command(case, &format!("--quiet {args}")).arg(source)))
}

#[track_caller]
fn applied_from(server: &ThrowawayServer, case: &Case, args: &str) {
    let run = apply_from(server, case, args);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
}

fn insert(server: &ThrowawayServer, from: u32, upto: u32) {
    ask(&server.dsn(), &format!("insert into t select generate_series({from}, {upto})"));
}

fn promote(standby: &ThrowawayServer) {
    ask(&standby.dsn(), "select pg_promote()");
    wait_until("the standby has taken over", || {
        ask(&standby.dsn(), "select pg_is_in_recovery()") == "f"
    });
}

/// The new primary's log may reach further than the stream, and yet lack what was applied.
#[test]
fn a_standby_that_was_behind_is_no_source_any_more() {
    let primary = primary();
    let case = Case::new("create table t (id int primary key)");
    applied_from(&primary, &case, "--create-slot");
    insert(&primary, 1, 3);
    applied_from(&primary, &case, "");
    let standby = standby_of(&primary, false);
    insert(&primary, 4, 5);
    applied_from(&primary, &case, "");
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
fn a_standby_that_had_all_goes_on() {
    let primary = primary();
    let case = Case::new("create table t (id int primary key)");
    applied_from(&primary, &case, "--create-slot");
    let standby = standby_of(&primary, true);
    insert(&primary, 1, 3);
    applied_from(&primary, &case, "");
    let end = ask(&primary.dsn(), "select pg_current_wal_lsn()");
    let has_all = format!("select pg_last_wal_replay_lsn() >= '{end}'");
    wait_until("the standby has all", || ask(&standby.dsn(), &has_all) == "t");
    primary.kill().unwrap();
    promote(&standby);
    for nth in [4, 5] {
        insert(&standby, nth, nth);
        applied_from(&standby, &case, "");
    }
    assert_eq!(rows(&case, "t"), "(1) (2) (3) (4) (5)");
    let digest = ask(&case.db.dsn(), "select digest from pgspate.stream");
    assert!(digest.ends_with("/postgres/s timeline 2"), "{digest}");
}

//! Two `tune --apply` at the same time, in two databases. No lock covers several databases.

use super::roles::apply_beside;
use super::{OUTSTANDING, run, server_with_settings, settings_state, start_tune, tune};
use crate::run::{ask, finish, session, wait_until};

#[test]
fn an_apply_stops_if_another_database_was_faster() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    run(&server, "create database other");
    let other = server.dsn_for("other");
    // The first run creates the ledger.
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    // The lock stops the run after it has read the old values.
    let (runtime, holder) = session(&dsn);
    let lock = "begin; lock table pgspate.change in row exclusive mode";
    runtime.block_on(holder.batch_execute(lock)).unwrap();
    let child = start_tune(&dsn, "--apply --memory 16GiB");
    wait_until("the run waits for the lock", || {
        ask(&other, "select count(*) from pg_locks where not granted") == "1"
    });
    assert_eq!(tune(&other, "--apply --memory 64GiB").status, Some(0));
    let tuned = settings_state(&server);
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    let refused = finish(child);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let expected = "another `pgspate tune` or another session has changed";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    assert_eq!(settings_state(&server), tuned);
    assert_eq!(ask(&dsn, OUTSTANDING), "0");
    assert_eq!(tune(&other, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
}

#[test]
fn an_apply_whose_marker_is_replaced_changes_nothing() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    // Repeat if the test was so slow that `tune` gave up waiting for the server.
    let refused = loop {
        let replace = ["set pgspate.tuned = ''", "alter system set pgspate.tuned = 'other 1 1-1'"];
        let run_once = apply_beside(&server, "postgres", &replace);
        if !run_once.stderr.contains("the server has not read its settings") {
            break run_once;
        }
    };
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let expected = "another `pgspate tune` or another session has changed";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    assert_eq!(ask(&dsn, OUTSTANDING), "0");
    let marker = "select setting from pg_file_settings where name = 'pgspate.tuned'";
    assert_eq!(ask(&dsn, marker), "other 1 1-1");
    run(&server, "alter system reset pgspate.tuned; select pg_reload_conf()");
    wait_until("the server has read its settings", || settings_state(&server) == before);
}

//! `tune` by roles that are no superusers: the grants that they need, and changes of other roles.

use pgspate_embedded::{ThrowawayServer, testing};
use serde_json::Value;

use super::{OUTSTANDING, run, server_with_settings, settings_state, start_tune, tune};
use crate::run::{Run, ask, finish, session, wait_until};
use crate::{expect_no_finding, wait_for_finding};

/// Returns the statements of a hint.
fn statements_of_hint(refused: &Run) -> String {
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let lines: Vec<_> =
        refused.stderr.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    assert!(!lines.is_empty(), "{}", refused.stderr);
    lines.concat()
}

/// Grants a role the rights that the refusal names. Before version 15, PostgreSQL has no such
/// grants, and the refusal must say so. In this case the function returns false.
fn grant_named_rights(server: &ThrowawayServer, role: &str) -> bool {
    let refused = tune(&format!("{} user={role}", server.dsn()), "--apply --memory 16GiB");
    let version = ask(&server.dsn(), "show server_version_num").parse::<u32>().unwrap();
    if version < 150_000 {
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        let expected = "hint: Before PostgreSQL 15 only a superuser may";
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
        return false;
    }
    run(server, &statements_of_hint(&refused));
    true
}

#[test]
fn a_role_needs_exactly_the_grants_that_the_refusal_names() {
    let server = server_with_settings();
    let dsn = server.dsn();
    run(&server, "create role plain login");
    let before = settings_state(&server);
    let plain = format!("{dsn} user=plain");
    assert_eq!(tune(&plain, "").status, Some(0));
    assert_eq!(tune(&plain, "--apply").status, Some(2));
    assert_eq!(settings_state(&server), before);
    assert_eq!(
        ask(&dsn, "select to_regnamespace('pgspate')"),
        "",
        "tune must not create the ledger"
    );
    expect_no_finding(&dsn, "not-put-back", "");
    if !grant_named_rights(&server, "plain") {
        return;
    }
    let applied = tune(&plain, "--apply --memory 16GiB");
    assert_eq!(applied.status, Some(0), "{}", applied.stderr);
    assert_eq!(ask(&plain, "show maintenance_work_mem"), "1GB");
    wait_for_finding(&plain, "not-put-back", "");
    let reverted = tune(&plain, "--revert");
    assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
    assert_eq!(settings_state(&server), before);
    assert_eq!(ask(&dsn, OUTSTANDING), "0");
    expect_no_finding(&plain, "not-put-back", "");
}

/// The right to write to the ledger is no right to change settings.
#[test]
fn a_change_that_another_role_records_is_not_reverted() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    let forged = "insert into pgspate.change \
                  (job, ordinal, table_oid, kind, object, steps, beside) \
                  select 0, max(ordinal) + 1000, max(table_oid), 'setting', 'max_wal_size', \
                         '{32MB,16GB}', false from pgspate.change where job = 0";
    assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
    run(
        &server,
        "create role other login; grant usage on schema pgspate to other; \
         grant select, insert, update, delete on all tables in schema pgspate to other",
    );
    ask(&format!("{dsn} user=other"), &format!("{forged} returning job"));
    let reverted = tune(&dsn, "--revert");
    assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
    assert_eq!(settings_state(&server), before);
    // Another `--apply` does not run the forged change either.
    assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
}

#[test]
fn whoever_may_change_settings_puts_them_back() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    run(
        &server,
        "create role app login; create role tuner login; alter schema pgspate owner to app; \
         alter table pgspate.change owner to app; alter table pgspate.version owner to app",
    );
    // A role with fewer rights owns the ledger.
    for way in ["--apply", "--revert"] {
        let refused = tune(&dsn, way);
        assert_eq!(refused.status, Some(2), "{}", refused.stdout);
        assert!(refused.stderr.contains("is not trusted"), "{}", refused.stderr);
    }
    assert_eq!(settings_state(&server), before);
    run(
        &server,
        "alter schema pgspate owner to postgres; alter table pgspate.change owner to postgres; \
         alter table pgspate.version owner to postgres",
    );
    // A role may put back what another role has changed, without being a member of that role.
    let tuner = format!("{dsn} user=tuner");
    if !grant_named_rights(&server, "tuner") {
        return;
    }
    for (applies, reverts) in [(&dsn, &tuner), (&tuner, &dsn), (&dsn, &tuner), (&dsn, &dsn)] {
        let applied = tune(applies, "--apply --memory 16GiB");
        assert_eq!(applied.status, Some(0), "{}", applied.stderr);
        let reverted = tune(reverts, "--revert");
        assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
        assert!(reverted.stderr.contains("maintenance_work_mem is back at 65MB"));
        assert_eq!(settings_state(&server), before);
        expect_no_finding(&dsn, "not-put-back", "");
        let proposed: Value = serde_json::from_str(&tune(&dsn, "--json").stdout).unwrap();
        assert_eq!(proposed["outstanding"], serde_json::json!([]));
        assert_eq!(tune(reverts, "--revert").stderr, "there is nothing to put back\n");
    }
}

#[test]
fn a_later_apply_does_not_revert_changes_of_an_earlier_one() {
    let server = server_with_settings();
    let dsn = server.dsn();
    run(&server, "create role tuner login");
    // The first run creates the ledger.
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    if !grant_named_rights(&server, "tuner") {
        return;
    }
    let tuner = format!("{dsn} user=tuner");
    assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
    assert_eq!(tune(&tuner, "--revert").status, Some(0));
    assert_ne!(ask(&dsn, OUTSTANDING), "0", "the changes of the first role must still be recorded");
    // One setting gets the first run's value, another one a new value. The second role's runs must
    // leave both alone.
    run(
        &server,
        "alter system set max_wal_size = '16GB'; alter system set checkpoint_timeout = '1h'; \
         select pg_reload_conf()",
    );
    wait_until("the server has read the setting", || ask(&dsn, "show checkpoint_timeout") == "1h");
    let before = settings_state(&server);
    let applied = tune(&tuner, "--apply --memory 16GiB");
    assert_eq!(applied.status, Some(0), "{}", applied.stderr);
    let evidence =
        wait_for_finding(&dsn, "not-put-back", "")["evidence"].as_str().unwrap().to_owned();
    assert!(evidence.contains("maintenance_work_mem"), "{evidence}");
    let reverted = tune(&tuner, "--revert");
    assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
    assert!(reverted.stderr.contains("maintenance_work_mem is back at 65MB"));
    for text in [applied.stderr, evidence, reverted.stderr] {
        assert!(!text.contains("max_wal_size"), "{text}");
        assert!(!text.contains("checkpoint_timeout"), "{text}");
    }
    assert_eq!(settings_state(&server), before);
    expect_no_finding(&dsn, "not-put-back", "");
}

/// Runs `--apply` as a role. Runs statements after the marker is set, while the server does not
/// read its files. Returns the result.
pub(super) fn apply_beside(server: &ThrowawayServer, role: &str, statements: &[&str]) -> Run {
    let (runtime, client) = session(&server.dsn());
    let signal = |name: &str| {
        let pid = server.pid().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    let count = |sql: &str| -> i64 {
        runtime.block_on(client.query_one(&format!("select count(*) {sql}"), &[])).unwrap().get(0)
    };
    // The lock of `tune`, for which `tune` waits directly before the first change.
    let key = "8099569381357675892";
    count(&format!("from (select pg_advisory_lock({key})) _"));
    let child = start_tune(&format!("{} user={role}", server.dsn()), "--apply --memory 16GiB");
    let waits = "from pg_stat_activity where query like '%pg_try_advisory_lock%' \
                 and application_name = 'pgspate tune'";
    wait_until("tune waits for the lock", || count(waits) > 0);
    signal("-STOP");
    count(&format!("from (select pg_advisory_unlock({key})) _"));
    let started = std::time::Instant::now();
    while count("from pg_file_settings where name = 'pgspate.tuned'") == 0
        && started.elapsed() < crate::run::PATIENCE
    {}
    let done = statements.iter().try_for_each(|sql| runtime.block_on(client.batch_execute(sql)));
    signal("-CONT");
    done.unwrap();
    finish(child)
}

#[test]
fn an_apply_that_fails_half_way_leaves_nothing() {
    let server = server_with_settings();
    let dsn = server.dsn();
    run(&server, "create role plain login");
    let before = settings_state(&server);
    if !grant_named_rights(&server, "plain") {
        return;
    }
    // Repeat if the test was so slow that `tune` gave up waiting for the server.
    let revoke = "revoke alter system on parameter maintenance_work_mem from plain";
    let refused = loop {
        let run_once = apply_beside(&server, "plain", &[revoke]);
        if !run_once.stderr.contains("the server has not read its settings") {
            break run_once;
        }
        assert_eq!(tune(&dsn, "--revert").status, Some(0));
        run(&server, "grant alter system on parameter maintenance_work_mem to plain");
    };
    let expected = "error: could not change maintenance_work_mem";
    assert!(refused.stderr.starts_with(expected), "{}", refused.stderr);
    assert!(!refused.stderr.contains("--revert"), "{}", refused.stderr);
    assert_eq!(settings_state(&server), before);
    assert_eq!(ask(&dsn, OUTSTANDING), "0");
    expect_no_finding(&dsn, "not-put-back", "");
}

/// Others have the server's values. Of three settings, a role or a database has smaller ones.
#[test]
fn a_smaller_value_of_a_role_or_a_database_makes_no_setting_smaller() {
    let server = testing::server(
        "maintenance_work_mem = 4GB\nvacuum_cost_limit = 9000\n\
         max_parallel_maintenance_workers = 20",
    );
    let dsn = server.dsn();
    run(
        &server,
        "create role tuner superuser login; create role plain login; \
         alter role tuner set maintenance_work_mem = '64MB'; \
         alter role plain set maintenance_work_mem = '64MB'; \
         alter role all set max_parallel_maintenance_workers = 1; \
         alter database postgres set vacuum_cost_limit = 100",
    );
    let before = settings_state(&server);
    let names = ["maintenance_work_mem", "max_parallel_maintenance_workers"];
    let kept = [&names[..], &["autovacuum_work_mem", "autovacuum_vacuum_cost_limit"]].concat();
    let tuner = format!("{dsn} user=tuner");
    for dsn in [&tuner, &format!("{dsn} user=plain")] {
        let proposed: Value =
            serde_json::from_str(&tune(dsn, "--json --memory 16GiB --cpus 8").stdout).unwrap();
        let proposals = proposed["proposals"].as_array().unwrap();
        assert!(proposals.iter().any(|it| it["name"] == "max_wal_size"), "{proposed}");
        assert!(!proposals.iter().any(|it| kept.iter().any(|name| it["name"] == *name)));
    }
    // The role `plain` may not read the server's own value.
    let text = tune(&format!("{dsn} user=plain"), "--memory 16GiB").stdout;
    assert!(text.contains("warning: maintenance_work_mem: this role or database"), "{text}");
    let applied = tune(&tuner, "--apply --memory 16GiB --cpus 8");
    assert_eq!(applied.status, Some(0), "{}", applied.stderr);
    assert!(!applied.stderr.contains("warning"), "{}", applied.stderr);
    for name in names {
        let written = format!(
            "select count(*) from pg_file_settings where name = '{name}' \
               and sourcefile like '%auto.conf'"
        );
        assert_eq!(ask(&dsn, &written), "0");
    }
    assert_eq!(tune(&tuner, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
}

/// The role's own value is no value of the server, before `apply` or after `revert`.
#[test]
fn the_values_that_are_named_are_those_of_the_server() {
    let server = testing::server("maintenance_work_mem = 65MB");
    run(
        &server,
        "create role tuner superuser login; alter role tuner set maintenance_work_mem = '2GB'",
    );
    let tuner = format!("{} user=tuner", server.dsn());
    let proposed = tune(&tuner, "--memory 16GiB").stdout;
    assert!(proposed.contains("maintenance_work_mem  1GB instead of 65MB"), "{proposed}");
    let applied = tune(&tuner, "--apply --memory 16GiB").stderr;
    let warning = "maintenance_work_mem was set, but has no effect on this session";
    assert!(applied.contains(warning), "{applied}");
    assert_eq!(ask(&server.dsn(), "show maintenance_work_mem"), "1GB");
    let reverted = tune(&tuner, "--revert").stderr;
    assert!(reverted.contains("maintenance_work_mem is back at 65MB"), "{reverted}");
}

//! `pgspate tune`: settings are applied and reverted, also after a kill in between.

mod races;
mod roles;

use std::fs;

use insta::assert_snapshot;
use pgspate_embedded::{ThrowawayServer, testing};
use serde_json::Value;

use crate::run::{Run, ask, command, finish, session, spawn, wait_until};
use crate::support::LoadCase;
use crate::{expect_no_finding, findings, remedy, wait_for_finding};

/// Starts `pgspate tune`. `args` are split at spaces.
fn start_tune(dsn: &str, args: &str) -> std::process::Child {
    let folder = std::env::temp_dir();
    let mut command = command(&folder, &["tune", "--to", dsn]);
    spawn(command.args(args.split_whitespace()))
}

/// Runs `pgspate tune` to its end.
pub(crate) fn tune(dsn: &str, args: &str) -> Run {
    finish(start_tune(dsn, args))
}

/// Runs statements one by one.
fn run(server: &ThrowawayServer, sql: &str) {
    let (runtime, client) = session(&server.dsn());
    for statement in sql.split(';').filter(|it| !it.trim().is_empty()) {
        runtime.block_on(client.batch_execute(statement)).unwrap();
    }
}

/// Returns the server's settings with their sources, and the sorted lines of the file that `alter
/// system` writes.
fn settings_state(server: &ThrowawayServer) -> (String, Vec<String>) {
    let settings = "select string_agg(concat_ws(' ', name, setting, source), ';' order by name) \
                    from pg_settings where source <> 'client' and name <> 'in_hot_standby'";
    let file = server.data_folder().join("postgresql.auto.conf");
    let mut lines: Vec<String> =
        fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    (ask(&server.dsn(), settings), lines)
}

/// Starts a server with settings that a user changed before. `tune` changes one of them, too.
fn server_with_settings() -> ThrowawayServer {
    let server = testing::server("");
    run(
        &server,
        "alter system set maintenance_work_mem = '65MB'; alter system set work_mem = '5MB'; \
         alter system set search_path = '\"$user\"', 'it''s'; select pg_reload_conf()",
    );
    wait_until("the server has read its settings", || ask(&server.dsn(), "show work_mem") == "5MB");
    server
}

#[test]
fn settings_are_applied_and_reverted() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    let applied = tune(&dsn, "--apply --memory 16GiB --cpus 8");
    assert_eq!(applied.status, Some(0), "{}", applied.stderr);
    assert!(!applied.stderr.contains("warning"), "{}", applied.stderr);
    assert_eq!(ask(&dsn, "show maintenance_work_mem"), "1GB");
    assert_eq!(ask(&dsn, "show max_wal_size"), "16GB");
    assert_eq!(ask(&dsn, "show max_parallel_maintenance_workers"), "4");
    assert_ne!(ask(&dsn, "show wal_buffers"), "64MB", "wal_buffers changes only at a restart");
    for name in ["fsync", "full_page_writes", "autovacuum", "synchronous_commit"] {
        let sql = format!(
            "select count(*) from pg_file_settings where name = '{name}' \
                           and sourcefile like '%auto.conf'"
        );
        assert_eq!(ask(&dsn, &sql), "0");
    }
    let finding = wait_for_finding(&dsn, "not-put-back", "");
    assert_eq!(finding["remedy"][0], "pgspate tune --revert");
    let status =
        finish(spawn(&mut command(&std::env::temp_dir(), &["status", "--json", "--to", &dsn])));
    let known: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    let settings = known[0]["settings"].as_array().unwrap();
    assert!(settings.iter().any(|name| name == "max_wal_size"), "{known}");
    let again = tune(&dsn, "--apply --memory 64GiB");
    assert_eq!(again.status, Some(2));
    let hint = "hint: Put the old values back with `pgspate tune --revert` first";
    assert!(again.stderr.contains(hint), "{}", again.stderr);
    assert!(tune(&dsn, "").stdout.contains("already tuned"));
    let reverted = tune(&dsn, "--revert");
    assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
    assert!(reverted.stderr.contains("maintenance_work_mem is back at 65MB"));
    assert_eq!(settings_state(&server), before);
    expect_no_finding(&dsn, "not-put-back", "");
    assert_eq!(tune(&dsn, "--revert").stderr, "there is nothing to put back\n");
}

#[test]
fn only_the_database_that_applied_settings_can_revert_them() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    run(&server, "create database \"it's\"");
    let other = format!("{dsn} dbname='it\\'s'");
    assert_eq!(tune(&other, "--apply --memory 8GiB --cpus 8").status, Some(0));
    run(&server, "create role plain login");
    for dsn in [dsn.clone(), format!("{dsn} user=plain")] {
        let finding = wait_for_finding(&dsn, "not-put-back", "");
        let evidence = finding["evidence"].as_str().unwrap();
        assert!(evidence.contains("from database \"it's\""), "{evidence}");
    }
    for args in ["--apply --memory 64GiB --cpus 16", "--revert"] {
        let refused = tune(&dsn, args);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        let expected = "the server was tuned from database \"it's\"";
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    run(&server, "alter database \"it's\" rename to \"our own\"");
    let refused = tune(&dsn, "--revert");
    let expected = "the server was tuned from database \"our own\"";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    let other = format!("{dsn} dbname='our own'");
    assert_eq!(remedy(&wait_for_finding(&other, "not-put-back", "")), ["pgspate tune --revert"]);
    assert_eq!(tune(&other, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
    expect_no_finding(&dsn, "not-put-back", "");
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
}

#[test]
fn settings_that_another_user_changed_later_are_kept() {
    let server = server_with_settings();
    let dsn = server.dsn();
    assert_eq!(tune(&dsn, "--apply --memory 16GiB --cpus 8").status, Some(0));
    run(&server, "alter system set max_wal_size = '3GB'; select pg_reload_conf()");
    let reverted = tune(&dsn, "--revert");
    assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
    let said = "max_wal_size was changed by another session since, and keeps its value";
    assert!(reverted.stderr.contains(said), "{}", reverted.stderr);
    assert_eq!(ask(&dsn, "show max_wal_size"), "3GB");
    assert_eq!(ask(&dsn, "show maintenance_work_mem"), "65MB");
    expect_no_finding(&dsn, "not-put-back", "");
}

#[test]
fn settings_are_reverted_after_a_kill_at_any_point() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    run(&server, "create role plain login; create database other");
    let elsewhere = server.dsn_for("other");
    // The first run creates the ledger.
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    let changed = "select count(*) from pg_file_settings where sourcefile like '%auto.conf'";
    let clean = ask(&dsn, changed).parse::<u32>().unwrap();
    let mut seen = Vec::new();
    // Kill the run when this number of settings, or more, has changed.
    for more in 0..5 {
        let mut child = start_tune(&dsn, "--apply --memory 64GiB --cpus 16");
        wait_until("the run has changed settings", || {
            let is_over = child.try_wait().unwrap().is_some();
            is_over || ask(&dsn, changed).parse::<u32>().unwrap() >= clean + more
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let outstanding = ask(&dsn, OUTSTANDING);
        if ask(&dsn, changed).parse::<u32>().unwrap() > clean {
            assert_ne!(outstanding, "0", "the ledger must record a setting before it changes");
            wait_for_finding(&dsn, "not-put-back", "");
            wait_for_finding(&elsewhere, "not-put-back", "");
        }
        if ask(&dsn, changed).parse::<u32>().unwrap() > clean + 1 {
            // The marker is a setting that `tune` changes early. A role without the right to read
            // configuration files sees the marker, too.
            wait_for_finding(&format!("{elsewhere} user=plain"), "not-put-back", "");
        }
        seen.push(outstanding);
        let reverted = tune(&dsn, "--revert");
        assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
        assert_eq!(settings_state(&server), before, "{seen:?}");
        expect_no_finding(&dsn, "not-put-back", "");
    }
}

#[test]
fn reverted_settings_that_the_server_has_not_read_are_found() {
    let server = testing::server("");
    let dsn = server.dsn();
    run(&server, "create role plain login");
    let before = settings_state(&server);
    assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
    // This is the state after a `--revert` was killed before its last step.
    run(&server, "alter system reset all");
    assert_eq!(ask(&dsn, "show max_wal_size"), "16GB");
    for dsn in [dsn.clone(), format!("{dsn} user=plain")] {
        assert_eq!(remedy(&wait_for_finding(&dsn, "not-put-back", "")), ["pgspate tune --revert"]);
    }
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
    expect_no_finding(&dsn, "not-put-back", "");
}

#[test]
fn a_server_that_cannot_read_its_settings_is_reported() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    let file = server.data_folder().join("postgresql.conf");
    let conf = fs::read_to_string(&file).unwrap();
    let spoil = |line: &str| fs::write(&file, format!("{conf}\n{line}\n")).unwrap();
    let fails = |args: &str, said: &str| {
        let refused = tune(&dsn, args);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
        assert!(refused.stderr.contains("pg_file_settings where error is not null"));
    };
    assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
    let (slow, broken) = ("has not read its settings in", "cannot read its settings");
    // The server knows no setting of this name.
    spoil("nonsense = 1");
    fails("--revert", slow);
    // The server cannot parse this line.
    spoil("nonsense");
    fails("--revert", broken);
    assert_eq!(
        ask(&dsn, "show max_wal_size"),
        "16GB",
        "sessions must still have the applied setting"
    );
    let finding = wait_for_finding(&dsn, "not-put-back", "");
    assert!(finding["evidence"].as_str().unwrap().contains("max_wal_size"), "{finding}");
    assert_eq!(remedy(&finding), ["pgspate tune --revert"]);
    fs::write(&file, &conf).unwrap();
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
    assert_eq!(ask(&dsn, OUTSTANDING), "0");
    spoil("nonsense");
    fails("--apply --memory 16GiB", broken);
    assert_eq!(settings_state(&server), before);
    spoil("nonsense = 1");
    fails("--apply --memory 16GiB", slow);
    assert_eq!(
        settings_state(&server),
        before,
        "tune must set nothing until sessions see the marker"
    );
    fs::write(&file, &conf).unwrap();
    assert_eq!(tune(&dsn, "--revert").stderr, "there is nothing to put back\n");
    assert_eq!(ask(&dsn, OUTSTANDING), "0");
    expect_no_finding(&dsn, "not-put-back", "");
}

#[test]
fn settings_are_reverted_after_the_server_crashed() {
    let server = server_with_settings();
    let before = settings_state(&server);
    assert_eq!(tune(&server.dsn(), "--apply").status, Some(0));
    server.kill().unwrap();
    server.restart().unwrap();
    wait_for_finding(&server.dsn(), "not-put-back", "");
    assert_eq!(tune(&server.dsn(), "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
}

/// Counts the recorded changes that are not reverted.
const OUTSTANDING: &str = "select count(*) from pgspate.change where done < cardinality(steps)";

#[test]
fn an_apply_that_the_server_refuses_leaves_nothing() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    // The path at which the server would write the new file.
    let blocked = server.data_folder().join("postgresql.auto.conf.tmp");
    fs::create_dir(&blocked).unwrap();
    let refused = tune(&dsn, "--apply");
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("could not change pgspate.tuned"), "{}", refused.stderr);
    assert_eq!(settings_state(&server), before);
    assert_eq!(ask(&dsn, OUTSTANDING), "0");
    expect_no_finding(&dsn, "not-put-back", "");
    assert_eq!(tune(&dsn, "--revert").stderr, "there is nothing to put back\n");
    fs::remove_dir(&blocked).unwrap();
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    fs::create_dir(&blocked).unwrap();
    assert_eq!(tune(&dsn, "--revert").status, Some(2));
    wait_for_finding(&dsn, "not-put-back", "");
    fs::remove_dir(&blocked).unwrap();
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
}

#[test]
fn a_server_without_alter_system_is_refused() {
    let version = testing::server("");
    if ask(&version.dsn(), "show server_version_num").parse::<u32>().unwrap() < 170_000 {
        return;
    }
    let server = testing::server("allow_alter_system = off");
    let refused = tune(&server.dsn(), "--apply");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("allow_alter_system is off"), "{}", refused.stderr);
    assert_eq!(ask(&server.dsn(), "select to_regnamespace('pgspate')"), "");
    expect_no_finding(&server.dsn(), "not-put-back", "");
}

#[test]
fn the_summary_lists_only_settings_that_take_effect() {
    let server = server_with_settings();
    let dsn = server.dsn();
    run(&server, "alter database postgres set maintenance_work_mem = '32MB'");
    let applied = tune(&dsn, "--apply --memory 16GiB");
    assert_eq!(applied.status, Some(0));
    assert!(applied.stderr.contains("max_wal_size is 16GB"), "{}", applied.stderr);
    assert!(!applied.stderr.contains("maintenance_work_mem is"), "{}", applied.stderr);
    let warning = "warning: maintenance_work_mem was set, but has no effect";
    assert!(applied.stderr.contains(warning), "{}", applied.stderr);
}

#[test]
fn no_sql_from_the_ledger_is_run() {
    let server = server_with_settings();
    let dsn = server.dsn();
    let before = settings_state(&server);
    // In earlier versions the marker was the database's name, without the rows of the ledger.
    let formerly = "set pgspate.tuned = ''; alter system set pgspate.tuned = 'postgres'; \
                    select pg_reload_conf()";
    assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
    run(&server, formerly);
    wait_for_finding(&dsn, "not-put-back", "");
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
    assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
    run(&server, formerly);
    // Still earlier versions recorded SQL statements.
    run(
        &server,
        "update pgspate.change set steps = array[case steps[1] \
             when '' then 'alter system reset ' || object \
             else 'alter system set ' || object || ' = ' || quote_literal(steps[1]) end \
             || ' -- instead of ' || steps[2]]",
    );
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    assert_eq!(settings_state(&server), before);
    for evil in [
        "object = 'archive_command', steps = array['', 'evil']",
        "steps = array['alter system set archive_command = ''evil'' -- instead of 16GB']",
    ] {
        assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
        run(
            &server,
            &format!(
                "create table public.was as select * from pgspate.change where done = 0; \
                 update pgspate.change set {evil} where done = 0 and object = 'max_wal_size'"
            ),
        );
        let refused = tune(&dsn, "--revert");
        assert_eq!(refused.status, Some(2));
        assert!(refused.stderr.contains("is not from `pgspate tune`"), "{}", refused.stderr);
        assert!(!settings_state(&server).0.contains("evil"));
        run(
            &server,
            "update pgspate.change c set object = was.object, steps = was.steps from public.was \
             where (c.job, c.ordinal) = (was.job, was.ordinal); drop table public.was",
        );
        assert_eq!(tune(&dsn, "--revert").status, Some(0));
        assert_eq!(settings_state(&server), before);
    }
}

#[test]
fn a_lost_ledger_is_reported_with_the_statements_to_reset() {
    let server = testing::server("");
    let dsn = server.dsn();
    let before = settings_state(&server);
    assert_eq!(tune(&dsn, "--apply --memory 16GiB").status, Some(0));
    run(&server, "drop schema pgspate cascade");
    let refused = tune(&dsn, "--revert");
    assert_eq!(refused.status, Some(2));
    let expected = "does not have the old values of the settings";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    assert_eq!(tune(&dsn, "--apply --memory 64GiB").status, Some(2));
    let finding = wait_for_finding(&dsn, "not-put-back", "");
    let [look, reset, reload] = &remedy(&finding)[..] else { panic!("{finding}") };
    let names = format!("select string_agg(name, ' ') from ({}) _", look.trim_end_matches(';'));
    for name in ask(&dsn, &names).split(' ').filter(|name| *name != "pgspate.tuned") {
        run(&server, &format!("alter system reset {name}"));
    }
    // Run each statement as shown, in one session.
    let (runtime, client) = session(&dsn);
    for statement in [reset, reload] {
        runtime.block_on(client.batch_execute(statement)).unwrap();
    }
    expect_no_finding(&dsn, "not-put-back", "");
    assert_eq!(settings_state(&server), before);
}

#[test]
fn a_running_load_reverts_its_own_changes() {
    let case = LoadCase::new(
        "create table t (id int, note text);
         create function wait() returns trigger language plpgsql as
             'begin perform pg_advisory_xact_lock_shared(7); return new; end';
         create trigger wait before insert on t for each row execute function wait()",
    );
    let dsn = case.db.dsn();
    case.put("t.csv", "id,note\n1,a\n");
    let (runtime, holder) = session(&dsn);
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let mut child = spawn(&mut case.load_command("t.csv --quiet --pause-autovacuum always"));
    let under_way = || {
        let found = findings(&dsn, "not-put-back", "");
        let text = found[0]["evidence"].as_str().unwrap().to_owned();
        (found.len() == 1 && found[0]["verdict"] == "ok").then_some(text)
    };
    let said = "job 1 is running and will put back autovacuum";
    wait_until("the load has changed the table", || under_way().is_some_and(|text| text == said));
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    let finding = wait_for_finding(&dsn, "not-put-back", "");
    assert_eq!(finding["evidence"], "job 1 has not put back autovacuum");
    assert_eq!(remedy(&finding), ["pgspate status --restore 1"]);
    wait_until("the change can be reverted", || {
        let status = ["status", "--restore", "1", "--to", &dsn];
        finish(spawn(&mut command(&std::env::temp_dir(), &status))).status == Some(0)
    });
    expect_no_finding(&dsn, "not-put-back", "");
}

/// Replaces compression methods, which depend on the server's build, and server versions.
fn redact_methods_and_versions(text: &str) -> String {
    let methods =
        regex_lite::Regex::new(r"\b(lz4|zstd|pglz|on)\b instead|'(lz4|zstd|pglz|on)'").unwrap();
    let text = methods.replace_all(text, "[METHOD]");
    let version = regex_lite::Regex::new(r"PostgreSQL \d+|postgres\d+").unwrap();
    let text = version.replace_all(&text, "[VERSION]");
    let word = regex_lite::Regex::new("\"(lz4|zstd|pglz|on|1)\"").unwrap();
    word.replace_all(&text, "\"[METHOD]\"").into_owned()
}

#[test]
fn proposed_settings_fit_the_server() {
    // The default from PostgreSQL 14 on.
    let server = testing::server("checkpoint_completion_target = 0.9");
    let dsn = server.dsn();
    let size = "--memory 16GiB --cpus 8";
    assert_snapshot!(redact_methods_and_versions(&tune(&dsn, size).stdout), @"
    [VERSION] with 16.0 GiB of memory (as given) and 8 CPUs (as given)

    max_wal_size  16GB instead of 1GB
      checkpoints start after checkpoint_timeout and not because WAL reaches its
      limit, so fewer pages are written twice, and WAL has fewer full-page images
      risk: pg_wal may take this much disk, and recovery after a crash may read as
      much: usually about ten seconds for each GiB

    checkpoint_timeout  900s instead of 300s
      a page that changes all the time is written only once in fifteen minutes
      risk: recovery after a crash may have to repeat up to fifteen minutes of work

    wal_compression  [METHOD] of off
      full-page images in WAL are compressed before they are written
      risk: some CPU time of the sessions that write

    wal_buffers  64MB instead of 2MB  (after a restart)
      sessions need not write WAL themselves when they fill the WAL buffers faster
      than the WAL writer empties them
      risk: 64 MiB of memory

    maintenance_work_mem  1GB instead of 64MB
      indexes are sorted in one pass, and VACUUM scans each index only once
      risk: each index build and each VACUUM may take that much memory

    autovacuum_work_mem  256MB instead of -1 (maintenance_work_mem, 64MB)
      each autovacuum worker gets enough memory, but not as much as an index build
      risk: each autovacuum worker may take that much memory

    max_parallel_maintenance_workers  4 instead of 2
      half as many workers as CPUs build an index, but at least 2 and at most 8
      risk: less CPU time for other sessions while indexes are built

    autovacuum_vacuum_cost_limit  2000 instead of -1 (vacuum_cost_limit, 200)
      autovacuum does more before it pauses, and keeps up with the load
      risk: more I/O by autovacuum during the load

    Apply them with --apply, or print them with --emit sql, rds or terraform.
    ");
    assert_snapshot!(redact_methods_and_versions(&tune(&dsn, &format!("{size} --emit sql")).stdout), @"
    alter system set max_wal_size = '16GB';
    alter system set checkpoint_timeout = '900s';
    alter system set wal_compression = [METHOD];
    alter system set wal_buffers = '64MB'; -- takes effect after a restart
    alter system set maintenance_work_mem = '1GB';
    alter system set autovacuum_work_mem = '256MB';
    alter system set max_parallel_maintenance_workers = '4';
    alter system set autovacuum_vacuum_cost_limit = '2000';
    select pg_reload_conf();
    ");
    let json = tune(&dsn, &format!("{size} --emit rds --parameter-group mine")).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["DBParameterGroupName"], "mine");
    for parameter in json["Parameters"].as_array().unwrap() {
        let is_static = parameter["ParameterName"] == "wal_buffers";
        let method = if is_static { "pending-reboot" } else { "immediate" };
        assert_eq!(parameter["ApplyMethod"], method);
        let value = parameter["ParameterValue"].as_str().unwrap();
        let is_word = parameter["ParameterName"] == "wal_compression";
        assert!(is_word || value.parse::<u64>().is_ok(), "{parameter}");
    }
    let terraform = tune(&dsn, &format!("{size} --emit terraform")).stdout;
    let terraform = redact_methods_and_versions(&terraform);
    assert_snapshot!(terraform.split("\n\n").take(2).collect::<Vec<_>>().join("\n\n"), @r#"
    resource "aws_db_parameter_group" "bulk_load" {
      name   = "bulk-load"
      family = "[VERSION]"

      parameter {
        name         = "max_wal_size"
        value        = "16384"
        apply_method = "immediate"
      }
    "#);
    let json: Value = serde_json::from_str(&tune(&dsn, &format!("{size} --json")).stdout).unwrap();
    assert_eq!(json["machine"]["cpus"], 8);
    if cfg!(target_os = "linux") {
        let json: Value = serde_json::from_str(&tune(&dsn, "--json").stdout).unwrap();
        assert_eq!(json["machine"]["memory_from"], "this machine's");
    }
    assert_eq!(tune(&dsn, "--apply --revert").status, Some(2));
}

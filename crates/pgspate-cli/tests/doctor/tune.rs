//! `pgspate tune`: applied and put back, also after a kill in between.

use std::fs;

use insta::assert_snapshot;
use pgspate_embedded::{Throwaway, testing};
use serde_json::Value;

use crate::run::{Run, ask, command, finish, session, spawn, wait_until};
use crate::{found, silent};

fn start(dsn: &str, args: &str) -> std::process::Child {
    let folder = std::env::temp_dir();
    let mut command = command(&folder, &["tune", "--to", dsn]);
    spawn(command.args(args.split_whitespace()))
}

pub(crate) fn tune(dsn: &str, args: &str) -> Run {
    finish(start(dsn, args))
}

fn run(server: &Throwaway, sql: &str) {
    let (runtime, client) = session(&server.dsn());
    for statement in sql.split(';').filter(|it| !it.trim().is_empty()) {
        runtime.block_on(client.batch_execute(statement)).unwrap();
    }
}

/// What the server is set to, from where, and what ALTER SYSTEM has left: its lines may come in
/// another order.
fn state(server: &Throwaway) -> (String, Vec<String>) {
    let settings = "select string_agg(concat_ws(' ', name, setting, source), ';' order by name) \
                    from pg_settings where source <> 'client' and name <> 'in_hot_standby'";
    let file = server.data_folder().join("postgresql.auto.conf");
    let mut lines: Vec<String> =
        fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    (ask(&server.dsn(), settings), lines)
}

/// A server on which somebody has changed settings already, one of them among those of `tune`.
fn server() -> Throwaway {
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
fn applied_and_put_back() {
    let server = server();
    let dsn = server.dsn();
    let before = state(&server);
    let applied = tune(&dsn, "--apply --memory 16GiB --cpus 8");
    assert_eq!(applied.status, Some(0), "{}", applied.stderr);
    assert!(!applied.stderr.contains("warning"), "{}", applied.stderr);
    assert_eq!(ask(&dsn, "show maintenance_work_mem"), "1GB");
    assert_eq!(ask(&dsn, "show max_wal_size"), "16GB");
    assert_eq!(ask(&dsn, "show max_parallel_maintenance_workers"), "4");
    assert_ne!(ask(&dsn, "show wal_buffers"), "64MB", "that needs a restart");
    for name in ["fsync", "full_page_writes", "autovacuum", "synchronous_commit"] {
        let sql = format!(
            "select count(*) from pg_file_settings where name = '{name}' \
                           and sourcefile like '%auto.conf'"
        );
        assert_eq!(ask(&dsn, &sql), "0");
    }
    let finding = found(&dsn, "not-put-back", "");
    assert_eq!(finding["remedy"][0], "pgspate tune --revert");
    let status =
        finish(spawn(&mut command(&std::env::temp_dir(), &["status", "--json", "--to", &dsn])));
    let known: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    let settings = known[0]["settings"].as_array().unwrap();
    assert!(settings.iter().any(|name| name == "max_wal_size"), "{known}");
    let again = tune(&dsn, "--apply --memory 64GiB");
    assert_eq!(again.status, Some(2));
    assert!(again.stderr.contains("hint: Put back what was with `pgspate tune --revert` first"));
    assert!(tune(&dsn, "").stdout.contains("tuned before"));
    let reverted = tune(&dsn, "--revert");
    assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
    assert!(reverted.stderr.contains("maintenance_work_mem is back at 65MB"));
    assert_eq!(state(&server), before);
    silent(&dsn, "not-put-back", "");
    assert_eq!(tune(&dsn, "--revert").stderr, "there is nothing to put back\n");
}

#[test]
fn settings_are_the_servers_and_the_way_back_is_in_one_database() {
    let server = server();
    let dsn = server.dsn();
    let before = state(&server);
    run(&server, "create database \"it's\"");
    let other = format!("{dsn} dbname='it\\'s'");
    assert_eq!(tune(&other, "--apply --memory 8GiB --cpus 8").status, Some(0));
    for args in ["--apply --memory 64GiB --cpus 16", "--revert"] {
        let refused = tune(&dsn, args);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        let expected = "the server was tuned from database \"it's\"";
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    assert_eq!(tune(&other, "--revert").status, Some(0));
    assert_eq!(state(&server), before);
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    assert_eq!(state(&server), before);
}

#[test]
fn what_somebody_else_has_set_since_stays() {
    let server = server();
    let dsn = server.dsn();
    assert_eq!(tune(&dsn, "--apply --memory 16GiB --cpus 8").status, Some(0));
    run(&server, "alter system set max_wal_size = '3GB'; select pg_reload_conf()");
    let reverted = tune(&dsn, "--revert");
    assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
    let said = "max_wal_size was changed by somebody else since, and stays as it is";
    assert!(reverted.stderr.contains(said), "{}", reverted.stderr);
    assert_eq!(ask(&dsn, "show max_wal_size"), "3GB");
    assert_eq!(ask(&dsn, "show maintenance_work_mem"), "65MB");
    silent(&dsn, "not-put-back", "");
}

#[test]
fn put_back_after_a_kill_at_any_point() {
    let server = server();
    let dsn = server.dsn();
    let before = state(&server);
    // The ledger is made by the first.
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    assert_eq!(tune(&dsn, "--revert").status, Some(0));
    let changed = "select count(*) from pg_file_settings where sourcefile like '%auto.conf'";
    let clean = ask(&dsn, changed).parse::<u32>().unwrap();
    let mut seen = Vec::new();
    // Killed as soon as so many settings are changed, or at whatever point it is by then.
    for more in 0..5 {
        let mut child = start(&dsn, "--apply --memory 64GiB --cpus 16");
        wait_until("it is under way", || {
            let is_over = child.try_wait().unwrap().is_some();
            is_over || ask(&dsn, changed).parse::<u32>().unwrap() >= clean + more
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let outstanding =
            ask(&dsn, "select count(*) from pgspate.change where done < cardinality(steps)");
        if ask(&dsn, changed).parse::<u32>().unwrap() > clean {
            assert_ne!(outstanding, "0", "nothing is changed that the ledger does not know");
            found(&dsn, "not-put-back", "");
        }
        seen.push(outstanding);
        let reverted = tune(&dsn, "--revert");
        assert_eq!(reverted.status, Some(0), "{}", reverted.stderr);
        assert_eq!(state(&server), before, "{seen:?}");
        silent(&dsn, "not-put-back", "");
    }
}

#[test]
fn put_back_after_the_server_crashed() {
    let server = server();
    let before = state(&server);
    assert_eq!(tune(&server.dsn(), "--apply").status, Some(0));
    server.kill().unwrap();
    server.restart().unwrap();
    found(&server.dsn(), "not-put-back", "");
    assert_eq!(tune(&server.dsn(), "--revert").status, Some(0));
    assert_eq!(state(&server), before);
}

#[test]
fn a_role_that_may_not_change_settings() {
    let server = server();
    run(&server, "create role plain login; grant create on database postgres to plain");
    let before = state(&server);
    let plain = format!("{} user=plain", server.dsn());
    assert_eq!(tune(&plain, "").status, Some(0));
    let refused = tune(&plain, "--apply");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("grant select on pg_file_settings"), "{}", refused.stderr);
    run(
        &server,
        "grant select on pg_file_settings to plain; \
         grant execute on function pg_show_all_file_settings() to plain",
    );
    let refused = tune(&plain, "--apply");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("grant alter system on parameter"), "{}", refused.stderr);
    assert_eq!(state(&server), before);
}

#[test]
fn statements_of_a_lesser_role_are_not_run() {
    let server = server();
    let dsn = server.dsn();
    assert_eq!(tune(&dsn, "--apply").status, Some(0));
    run(
        &server,
        "create role plain login; update pgspate.change set role = 'plain', \
         steps = array['alter system set archive_command = ''evil''']",
    );
    let refused = tune(&dsn, "--revert");
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("whose statements this role does not run"));
    assert_ne!(ask(&dsn, "show archive_command"), "evil");
}

/// Which method there is for compressing depends on how the server was built.
fn plain(text: &str) -> String {
    let methods =
        regex_lite::Regex::new(r"\b(lz4|zstd|pglz|on)\b instead|'(lz4|zstd|pglz|on)'").unwrap();
    let text = methods.replace_all(text, "[METHOD]");
    let version = regex_lite::Regex::new(r"PostgreSQL \d+|postgres\d+").unwrap();
    let text = version.replace_all(&text, "[VERSION]");
    let word = regex_lite::Regex::new("\"(lz4|zstd|pglz|on|1)\"").unwrap();
    word.replace_all(&text, "\"[METHOD]\"").into_owned()
}

#[test]
fn what_is_proposed() {
    let server = testing::server("");
    let dsn = server.dsn();
    let size = "--memory 16GiB --cpus 8";
    assert_snapshot!(plain(&tune(&dsn, size).stdout), @"
    [VERSION] with 16.0 GiB of memory (as said) and 8 processors (as said)

    max_wal_size  16GB instead of 1GB
      checkpoints come by the clock and not because the WAL is full, so fewer pages are
      written twice, and fewer whole ones to the WAL
      risk: that much more disk for pg_wal, and recovery after a crash reads as much: about
      ten seconds for each GiB, as a rule

    checkpoint_timeout  900s instead of 300s
      a page that changes all the time is written once in fifteen minutes
      risk: recovery after a crash has up to fifteen minutes of work to do again

    wal_compression  [METHOD] of off
      whole pages in the WAL are compressed before they are written
      risk: some processor time of the sessions that write

    wal_buffers  64MB instead of 2MB  after a restart
      sessions need not write WAL themselves when they fill its buffers faster than the WAL
      writer empties them
      risk: 64 MiB of memory

    maintenance_work_mem  1GB instead of 64MB
      indexes are sorted in one pass, and vacuum passes over them once
      risk: each index build and each VACUUM may take that much memory

    autovacuum_work_mem  256MB instead of -1
      autovacuum gets enough memory of its own, and not that of index builds times its
      workers
      risk: each autovacuum worker may take that much memory

    max_parallel_maintenance_workers  4 instead of 2
      an index is built by half of the processors
      risk: less processor time for others while indexes are built

    autovacuum_vacuum_cost_limit  2000 instead of -1
      autovacuum keeps up with the load, ten times faster than by itself
      risk: more reading and writing beside the load

    Apply it with --apply, or print it with --emit sql, rds or terraform.
    ");
    assert_snapshot!(plain(&tune(&dsn, &format!("{size} --emit sql")).stdout), @"
    alter system set max_wal_size = '16GB';
    alter system set checkpoint_timeout = '900s';
    alter system set wal_compression = [METHOD];
    alter system set wal_buffers = '64MB'; -- counts after a restart
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
    let terraform = plain(&terraform);
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
    assert_eq!(tune(&dsn, "--apply --revert").status, Some(2));
}

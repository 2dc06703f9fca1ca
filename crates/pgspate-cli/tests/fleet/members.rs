//! Members together do what one sync does, each exactly once; the report says which are missing.

use crate::run::{finish, spawn, wait_until};
use crate::scene::{FleetScene, parse};

#[test]
fn members_at_once_leave_the_table_as_one_sync_does() {
    let scene = FleetScene::new(6, 20);
    let expected = scene.counts_of_one_sync("a");
    let dsn = scene.case.db.dsn();
    let start = |member| spawn(&mut scene.command(&dsn, "a", "2026-11-22", member, "--vacuum"));
    let members: Vec<_> = (0..6).rev().map(start).collect();
    let reports: Vec<_> = members.into_iter().map(|child| parse(&finish(child))).collect();
    scene.assert_complete(expected);
    let completed = reports.iter().filter(|it| it["fleet"]["completed"] == true).count();
    assert_eq!(completed, 1, "one member does what belongs to the table");
    let vacuums = "select vacuum_count from pg_stat_user_tables where relname = 'reading'";
    wait_until("the vacuum is counted", || scene.case.value(vacuums) == "1");
}

#[test]
fn a_member_that_is_done_finds_nothing_to_do() {
    let scene = FleetScene::new(3, 7);
    let expected = scene.counts_of_one_sync("a");
    for member in [2, 0, 1] {
        scene.report("a", "7", member);
    }
    scene.assert_complete(expected);
    for member in 0..3 {
        let again = scene.report("a", "7", member);
        assert_eq!(again["fleet"]["was_done"], true);
        assert_eq!(again["fleet"]["attempt"], 2);
        assert_eq!(again["fleet"]["completed"], false);
    }
    scene.assert_complete(expected);
}

#[test]
fn the_summary_of_a_member_has_only_what_is_known_of_the_member() {
    let scene = FleetScene::new(2, 4);
    let dsn = scene.case.db.dsn();
    let text = "--table reading --scope-by meter --max-delete 100% --fleet nights \
                --generation 1 --members 2 --member 0";
    let source = ["sync", "--to", &dsn, "a/{member}.csv"];
    let run = finish(spawn(scene.case.command(&source).args(text.split_whitespace())));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let said = [" of WAL, ", "member 0 of 2 of fleet nights, 1"];
    assert!(said.iter().all(|it| run.stderr.contains(it)), "{}", run.stderr);
    assert!(!run.stderr.contains("unknown"), "{}", run.stderr);
    assert!(!run.stderr.contains("  table "), "{}", run.stderr);
}

#[test]
fn a_missing_a_failed_and_a_lost_member_are_reported() {
    let scene = FleetScene::new(5, 5);
    scene.report("a", "2026-11-22", 0);
    scene.case.put("a/1.csv", "meter,day,use\n1,1,x\n");
    assert_eq!(scene.sync("a", "2026-11-22", 1).status, Some(2));
    // The session of member 2 has ended, and has recorded no failure.
    scene.case.db.run(
        "insert into pgspate.member (fleet, generation, member, waited_ms) \
         values ('nights', '2026-11-22', 2, 0)",
    );
    let (status, report) = scene.fleet();
    assert_eq!(status, Some(1));
    assert_eq!((&report["done"], &report["missing"]), (&1.into(), &vec![3, 4].into()));
    let failed: Vec<_> = report["failed"].as_array().unwrap().iter().collect();
    assert_eq!(failed[0]["failure"], "server error, SQLSTATE 22P02");
    assert_eq!(failed[1]["failure"], "its session has ended");

    let dsn = scene.case.db.dsn();
    let run = finish(spawn(&mut scene.case.command(&["fleet", "nights", "--to", &dsn])));
    assert_eq!(run.status, Some(1));
    let lines: Vec<_> = run.stdout.lines().map(str::trim).collect();
    assert_eq!(lines[0], "fleet nights  generation 2026-11-22  sync of public.reading");
    assert_eq!(lines[1], "1 of 5 members done, 2 failed, 2 missing");
    assert_eq!(lines[2], "missing: 3-4");
    assert_eq!(lines[3], "failed: member 1 after 1 attempt: server error, SQLSTATE 22P02");
    let status = finish(spawn(&mut scene.case.command(&["status", "--to", &dsn])));
    assert!(status.stdout.contains("1 of 5 members done, 2 failed, 2 missing"));

    let run = finish(spawn(&mut scene.case.command(&["fleet", "days", "--to", &dsn])));
    assert!(run.refusal().contains("has no fleet \"days\""), "{}", run.stderr);
}

#[test]
fn a_running_member_is_reported_and_is_done_by_a_retry_after_a_kill() {
    let scene = FleetScene::new(2, 2);
    let dsn = scene.case.db.dsn();
    let (runtime, other) = crate::run::session(&dsn);
    runtime.block_on(other.batch_execute("begin; lock table reading in exclusive mode")).unwrap();
    let mut child = spawn(&mut scene.command(&dsn, "a", "1", 1, ""));
    wait_until("the member waits for the table", || {
        scene.case.value("select count(*) from pg_locks where not granted") != "0"
    });
    let (status, report) = scene.fleet();
    assert_eq!((status, &report["running"]), (Some(1), &vec![1].into()));
    let second = finish(spawn(&mut scene.command(&dsn, "a", "1", 1, "--retry-for 1")));
    let said = second.json_refusal();
    assert!(said.contains("member 1 of fleet \"nights\" is running in session"), "{said}");
    // The member has claimed its scopes, and waits within its transaction.
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(other.batch_execute("rollback")).unwrap();
    let report = scene.report("a", "1", 1);
    assert_eq!(
        (&report["fleet"]["attempt"], &report["fleet"]["was_done"]),
        (&2.into(), &false.into())
    );
    scene.report("a", "1", 0);
    assert_eq!(scene.differences(), "0");
}

#[test]
fn the_index_comes_from_the_array_s_variables() {
    let scene = FleetScene::new(3, 3);
    for (index, variables) in [
        (0, vec![("AWS_BATCH_JOB_ARRAY_INDEX", "0"), ("AWS_BATCH_JOB_ARRAY_SIZE", "3")]),
        (1, vec![("JOB_COMPLETION_INDEX", "1")]),
        (2, vec![("CLOUD_RUN_TASK_INDEX", "2"), ("CLOUD_RUN_TASK_COUNT", "3")]),
    ] {
        let dsn = scene.case.db.dsn();
        let args = ["sync", "--to", &dsn, "a/{member}.csv", "--table", "reading", "--json"];
        let mut command = scene.case.command(&args);
        command.args(["--scope-by", "meter", "--fleet", "nights", "--generation", "1", "--quiet"]);
        command.args(["--max-delete", "100%"]);
        if variables.len() == 1 {
            command.args(["--members", "3"]);
        }
        let report = parse(&finish(spawn(command.envs(variables))));
        assert_eq!(report["fleet"]["member"], index);
    }
    assert_eq!(scene.fleet().0, Some(0));
}

#[test]
fn options_that_a_member_cannot_have_are_refused() {
    let scene = FleetScene::new(2, 2);
    let dsn = scene.case.db.dsn();
    for (more, words) in [
        ("--lanes 2", "`--fleet` and `--lanes` cannot be combined"),
        ("--create", "`--fleet` and `--create` cannot be combined"),
        ("--transactions 2", "`--fleet` and `--transactions` cannot be combined"),
        ("--connections 1", "a member needs 2 connections, not 1"),
    ] {
        let run = finish(spawn(&mut scene.command(&dsn, "a", "1", 0, more)));
        assert!(run.json_refusal().contains(words), "{}", run.stderr);
    }
    let args = ["sync", "--to", &dsn, "a/0.csv", "--table", "reading", "--scope", "all"];
    let mut command = scene.case.command(&args);
    command.args(["--fleet", "n", "--generation", "1", "--members", "2", "--member", "0"]);
    let run = finish(spawn(&mut command));
    assert_eq!(run.status, Some(2));
    assert!(run.stderr.contains("each member would delete the others' rows"), "{}", run.stderr);
    assert_eq!(scene.case.value("select to_regclass('pgspate.fleet') is null"), "t");
}

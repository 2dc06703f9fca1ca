//! No member undoes what a newer generation, or another member of its generation, has written.

use std::process::{Child, Command};

use crate::run::{finish, session, spawn, wait_until};
use crate::scene::{FleetScene, parse};

#[test]
fn a_late_retry_of_an_older_generation_is_refused_and_changes_nothing() {
    let scene = FleetScene::new(2, 4);
    scene.report("a", "2026-11-21", 0);
    scene.write_files("b", 100);
    scene.report("b", "2026-11-22", 0);
    scene.report("b", "2026-11-22", 1);
    scene.expect(100);
    for member in [1, 0] {
        let before = scene.case.contents();
        let said = scene.sync("a", "2026-11-21", member).json_refusal();
        let expected = "generation 2026-11-22 of fleet \"nights\" has replaced the rows of member";
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("Do not retry this member"), "{said}");
        assert_eq!(scene.case.contents(), before);
    }
    assert_eq!(scene.differences(), "0");
    // Numbers in a generation's name count by value.
    let said = scene.sync("a", "2026-9-30", 0).json_refusal();
    assert!(said.contains("generation 2026-9-30 is older"), "{said}");
    parse(&scene.sync("b", "2026-11-23", 0));
}

#[test]
fn a_scope_of_a_newer_generation_is_refused_whichever_member_has_it() {
    let scene = FleetScene::new(2, 4);
    scene.report("a", "2026-11-22", 0);
    // Meter 0 was in member 1 yesterday.
    scene.case.put("old/1.csv", "meter,day,use\n0,0,1\n");
    let before = scene.case.rows("reading");
    let said = scene.sync("old", "2026-11-21", 1).json_refusal();
    assert!(said.contains("generation 2026-11-22 of fleet \"nights\" has replaced"), "{said}");
    assert_eq!(scene.case.rows("reading"), before);
    // A meter that the newer generation does not have is free.
    scene.case.put("old/1.csv", "meter,day,use\n4,0,1\n");
    scene.report("old", "2026-11-21", 1);
}

#[test]
fn a_member_that_began_before_a_newer_generation_was_done_is_refused() {
    let scene = FleetScene::new(1, 1);
    scene.write_files("b", 100);
    let dsn = scene.case.db.dsn();
    let (runtime, other) = session(&dsn);
    let lock = "begin; lock table reading in access exclusive mode";
    runtime.block_on(other.batch_execute(lock)).unwrap();
    let late = spawn(&mut scene.command(&dsn, "a", "1", 0, ""));
    let holds_lock = "select count(*) from pg_locks join pg_stat_activity using (pid) \
                      where locktype = 'advisory' and application_name = 'pgspate fleet' \
                        and pg_locks.database = (select oid from pg_database \
                                                 where datname = current_database())";
    wait_until("the late member has its lock", || scene.case.value(holds_lock) == "1");
    signal(&late, "STOP");
    runtime.block_on(other.batch_execute("rollback")).unwrap();
    scene.report("b", "2", 0);
    signal(&late, "CONT");
    let said = finish(late).json_refusal();
    assert!(said.contains("generation 1 is older"), "{said}");
    scene.expect(100);
    assert_eq!(scene.differences(), "0");
}

/// Sends a signal, such as STOP.
fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
}

#[test]
fn a_scope_in_two_members_is_refused() {
    let scene = FleetScene::new(2, 4);
    scene.report("a", "1", 0);
    let before = scene.case.rows("reading");
    for scope in ["2", "02"] {
        scene.case.put("a/1.csv", format!("meter,day,use\n1,0,1\n{scope},0,1\n"));
        let said = scene.sync("a", "1", 1).json_refusal();
        let expected = "member 0 of generation 1 has written a scope of member 1";
        assert!(said.contains(expected), "{said}");
        assert_eq!(scene.case.rows("reading"), before);
    }
}

/// Equal values are one scope, even if their text differs.
#[test]
fn equal_numbers_with_different_text_are_one_scope() {
    let scene = FleetScene::new(2, 2);
    scene.case.db.run(
        "drop table reading; create table reading (meter numeric, at timestamptz, use int, \
         primary key (meter, at))",
    );
    let member = |member, text: &str, zone: &str| {
        scene.case.put(&format!("a/{member}.csv"), format!("meter,at,use\n{text}"));
        let dsn = format!("{} options='-c TimeZone={zone}'", scene.case.db.dsn());
        let mut command = scene.command(&dsn, "a", "1", member, "");
        finish(spawn(command.args(["--scope-by", "at"])))
    };
    parse(&member(0, "1.0,2026-11-22T12:00:00Z,1\n", "UTC"));
    let said = member(1, "1.00,2026-11-22T17:30:00+05:30,1\n", "Asia/Kolkata").json_refusal();
    assert!(said.contains("has written a scope of member 1"), "{said}");
    parse(&member(1, "1.00,2026-11-22T18:30:00+05:30,1\n", "Asia/Kolkata"));
}

#[test]
fn a_generation_is_for_one_table_and_one_number_of_members() {
    let scene = FleetScene::new(2, 4);
    scene.report("a", "1", 0);
    scene.case.db.run("create table other (like reading including all)");
    let dsn = scene.case.db.dsn();
    let args = ["sync", "--to", &dsn, "a/1.csv", "--scope-by", "meter", "--fleet", "nights"];
    for (more, words) in [
        ("--table other --members 2", "is a sync of public.reading, not a sync of public.other"),
        ("--table reading --members 3", "has members 0 to 1, not 0 to 2"),
    ] {
        let mut command = scene.case.command(&args);
        command.args(["--generation", "1", "--member", "1"]).args(more.split(' '));
        let run = finish(spawn(&mut command));
        assert_eq!(run.status, Some(2));
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
}

/// Slurm starts one member again as an array of its index alone.
#[test]
fn a_member_of_a_slurm_array_can_run_alone_again() {
    let scene = FleetScene::new(3, 6);
    let run = |index: u32, first: u32, last: u32| {
        let dsn = scene.case.db.dsn();
        let mut command = scene.case.command(&["sync", "--to", &dsn, "a/{member}.csv"]);
        let args = "--table reading --scope-by meter --max-delete 100% --fleet nights --json \
                    --generation 1 --quiet";
        command.args(args.split_whitespace());
        command.env("SLURM_ARRAY_TASK_ID", index.to_string());
        command.env("SLURM_ARRAY_TASK_COUNT", (last - first + 1).to_string());
        command.env("SLURM_ARRAY_TASK_MIN", first.to_string());
        command.env("SLURM_ARRAY_TASK_MAX", last.to_string());
        finish(spawn(&mut command))
    };
    parse(&run(0, 0, 2));
    parse(&run(1, 0, 2));
    assert_eq!(parse(&run(2, 2, 2))["fleet"]["members"], 3);
    let (status, report) = scene.fleet();
    assert_eq!((status, &report["done"], &report["tended"]), (Some(0), &3.into(), &true.into()));
    scene.case.put("a/3.csv", "meter,day,use\n3,1,1.00\n");
    let refused = run(3, 3, 3).json_refusal();
    assert!(refused.contains("has members 0 to 2, not 3 to 3"), "{refused}");
}

/// Slurm starts some members again as an array whose indexes have gaps.
#[test]
fn some_members_of_a_slurm_array_can_run_again() {
    let scene = FleetScene::new(4, 8);
    let run = |index: u32, count: u32, first: u32, last: u32| {
        let dsn = scene.case.db.dsn();
        let mut command = scene.case.command(&["sync", "--to", &dsn, "a/{member}.csv"]);
        let args = "--table reading --scope-by meter --max-delete 100% --fleet nights --json \
                    --generation 1 --quiet";
        command.args(args.split_whitespace());
        let values = [("ID", index), ("COUNT", count), ("MIN", first), ("MAX", last)];
        for (name, value) in values {
            command.env(format!("SLURM_ARRAY_TASK_{name}"), value.to_string());
        }
        finish(spawn(&mut command))
    };
    let refused = run(1, 2, 1, 3).json_refusal();
    assert!(
        refused.contains("has not begun, and the indexes of this array have gaps"),
        "{refused}"
    );
    for member in [0, 2] {
        parse(&run(member, 4, 0, 3));
    }
    for member in [1, 3] {
        assert_eq!(parse(&run(member, 2, 1, 3))["fleet"]["members"], 4);
    }
    let (status, report) = scene.fleet();
    assert_eq!((status, &report["done"], &report["tended"]), (Some(0), &4.into(), &true.into()));
    scene.case.put("a/5.csv", "meter,day,use\n5,1,1.00\n");
    let refused = run(5, 2, 2, 5).json_refusal();
    assert!(refused.contains("has members 0 to 3, not 2 to 5"), "{refused}");
}

/// The variables of such an array of one do not say that it has other members.
#[test]
fn a_member_of_several_that_runs_alone_again_is_not_the_whole_table() {
    let scene = FleetScene::new(2, 2);
    scene.report("a", "1", 0);
    let before = scene.case.value("select count(*) from reading");
    let dsn = scene.case.db.dsn();
    let mut command = scene.case.command(&["sync", "--to", &dsn, "a/{member}.csv"]);
    let args = "--table reading --scope all --max-delete 100% --fleet nights --json --generation 1";
    command.args(args.split_whitespace());
    for (name, value) in [("ID", "1"), ("COUNT", "1"), ("MIN", "1"), ("MAX", "1")] {
        command.env(format!("SLURM_ARRAY_TASK_{name}"), value);
    }
    let refused = finish(spawn(&mut command)).json_refusal();
    assert!(refused.contains("each member would delete the others' rows"), "{refused}");
    assert_eq!(scene.case.value("select count(*) from reading"), before);
}

#[test]
fn a_forgotten_generation_no_longer_refuses_older_ones() {
    let scene = FleetScene::new(1, 2);
    scene.report("a", "2062-11-22", 0);
    scene.sync("a", "2026-11-22", 0).json_refusal();
    let dsn = scene.case.db.dsn();
    let args = ["fleet", "nights", "--generation", "2062-11-22", "--forget", "--to", &dsn];
    assert_eq!(finish(spawn(&mut scene.case.command(&args))).status, Some(0));
    scene.report("a", "2026-11-22", 0);
}

/// Returns a sync of a member that deletes no rows. Its file has these rows.
fn upsert(
    scene: &FleetScene,
    generation: &str,
    (member, members): (u32, u32),
    how: &str,
    rows: &str,
) -> Command {
    scene.case.put(&format!("g{generation}/{member}.csv"), format!("meter,day,use\n{rows}\n"));
    let source = format!("g{generation}/{{member}}.csv");
    let mut command = scene.case.command(&["sync", "--to", &scene.case.db.dsn(), &source]);
    let args = format!(
        "--table reading {how} --fleet nights --quiet --json --generation {generation} \
         --members {members} --member {member}"
    );
    command.args(args.split_whitespace());
    command
}

/// Such a member has no scope, and its keys may be in another member of the newer generation.
#[test]
fn a_late_member_that_deletes_nothing_does_not_undo_a_newer_generation() {
    for how in ["--no-delete", "--insert-only"] {
        let scene = FleetScene::new(1, 1);
        let run = |generation, member, rows| {
            finish(spawn(&mut upsert(&scene, generation, member, how, rows)))
        };
        parse(&run("1", (0, 4), "7,1,1"));
        parse(&run("2", (0, 3), "7,1,2\n8,1,2"));
        parse(&run("2", (2, 3), "9,1,2"));
        let before = scene.case.rows("reading");
        // The newer generation has no member 3, and member 1 is not done.
        for member in [3, 1] {
            let said = run("1", (member, 4), "7,1,1\n8,1,1\n9,1,1\n10,1,1").json_refusal();
            let expected = "generation 2 of fleet \"nights\" has begun to write; generation 1 is";
            assert!(said.contains(expected), "{said}");
            assert!(said.contains("Do not retry this member"), "{said}");
        }
        assert_eq!(scene.case.rows("reading"), before);
        // Neither does a member with scopes.
        let said = run("1", (1, 4), "11,1,1").json_refusal();
        assert!(said.contains("generation 1 is older"), "{said}");
        let said = scene.sync("a", "0", 0).json_refusal();
        assert!(said.contains("generation 0 is older"), "{said}");
        parse(&run("2", (1, 3), "10,1,2"));
        let dsn = scene.case.db.dsn();
        let args = ["fleet", "nights", "--generation", "2", "--forget", "--to", &dsn];
        assert_eq!(finish(spawn(&mut scene.case.command(&args))).status, Some(0));
        parse(&run("1", (3, 4), "10,1,1\n12,1,1"));
    }
}

/// Otherwise the newer member could find a row equal that the older one is about to change.
#[test]
fn a_newer_generation_begins_after_the_older_members_that_write() {
    let scene = FleetScene::new(1, 1);
    scene.case.db.run("insert into reading values (7, 1, 2)");
    let start = |generation, member, rows| {
        spawn(&mut upsert(&scene, generation, member, "--no-delete", rows))
    };
    let waiting = || {
        scene.case.value(
            "select count(*) from pg_stat_activity \
             where datname = current_database() and wait_event_type = 'Lock'",
        )
    };
    let (runtime, holder) = session(&scene.case.db.dsn());
    let hold = "begin; select from reading where meter = 7 for update";
    runtime.block_on(holder.batch_execute(hold)).unwrap();
    let old = start("1", (3, 4), "7,1,1");
    wait_until("the older member waits for the row", || waiting() == "1");
    // Members of one generation do not wait for each other.
    parse(&finish(start("1", (0, 4), "8,1,1")));
    let new = ["0", "1"].map(|member| {
        start("2", (member.parse().unwrap(), 3), if member == "0" { "7,1,2" } else { "9,1,2" })
    });
    wait_until("the newer members wait", || waiting() == "3");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    assert_eq!(parse(&finish(old))["updated"], 1);
    let [first, second] = new.map(|it| parse(&finish(it)));
    assert_eq!((&first["updated"], &second["inserted"]), (&1.into(), &1.into()));
    assert_eq!(scene.case.value("select use from reading where meter = 7"), "2.00");
}

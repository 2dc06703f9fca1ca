//! Loads as members: each member's files are loaded once in each generation.

use std::io::Write;
use std::process::Command;

use serde_json::Value;

use crate::run::{finish, spawn, wait_until};
use crate::scene::parse;
use crate::support::LoadCase;

const ROWS: u64 = 50;

fn case(members: u64) -> LoadCase {
    let case = LoadCase::new("create table t (member int, id int)");
    for member in 0..members {
        let rows: Vec<_> = (0..ROWS).map(|id| format!("{member},{id}\n")).collect();
        case.put(&format!("in/{member}.csv"), format!("member,id\n{}", rows.concat()));
    }
    case
}

fn member(case: &LoadCase, generation: &str, member: u64, source: &str) -> Command {
    let args = format!(
        "{source} --table t --fleet files --members 4 --connections 6 --quiet --json \
         --generation {generation} --member {member}"
    );
    case.load_command(&args)
}

#[test]
fn each_member_s_file_is_loaded_once_in_a_generation() {
    let case = case(4);
    let source = "in/{member}.csv";
    for round in 0..2 {
        let members: Vec<_> =
            (0..4).map(|nth| spawn(&mut member(&case, "1", nth, source))).collect();
        for child in members {
            let report = parse(&finish(child));
            assert_eq!(report["fleet"]["was_done"], round == 1);
        }
        assert_eq!(
            case.value("select count(*) || ' ' || count(distinct (member, id)) from t"),
            "200 200"
        );
    }
    let analyzed = "select analyze_count from pg_stat_user_tables where relname = 't'";
    wait_until("the last member has analyzed the table", || case.value(analyzed) == "1");
    // The next generation loads the same files again. A member that runs again in the earlier
    // generation loads nothing.
    for generation in ["2", "1"] {
        parse(&finish(spawn(&mut member(&case, generation, 0, source))));
    }
    assert_eq!(case.value("select count(*) from t"), "250");
    let dsn = case.db.dsn();
    let args = ["fleet", "files", "--generation", "1", "--json", "--to", &dsn];
    let report = parse(&finish(spawn(&mut case.command(&args))));
    assert_eq!((&report["done"], &report["inserted"]), (&4.into(), &(4 * ROWS).into()));
    assert_eq!(report["tended"], true);
}

#[test]
fn a_source_of_two_members_is_refused() {
    let case = case(4);
    parse(&finish(spawn(&mut member(&case, "1", 0, "in/0.csv"))));
    let said = finish(spawn(&mut member(&case, "1", 1, "in/0.csv"))).json_refusal();
    assert!(said.contains("member 0 of generation 1 loads a source of member 1"), "{said}");
    assert!(said.contains("`{member}`"), "{said}");
    assert_eq!(case.value("select count(*) from t"), "50");
    let said = finish(spawn(&mut member(&case, "1", 0, "in/1.csv"))).json_refusal();
    assert!(said.contains("is done in generation 1, and has loaded other sources"), "{said}");
    assert_eq!(case.value("select count(*) from t"), "50");
}

#[test]
fn the_files_of_a_member_are_known_in_its_generation_only() {
    let case = case(4);
    let count = || case.value("select count(*) from t");
    let load = |generation: &str| parse(&finish(spawn(&mut member(&case, generation, 0, "in"))));
    assert_eq!(load("1")["files"]["new"], 4);
    assert_eq!(load("1")["files"]["skipped"], 4);
    assert_eq!(count(), "200");
    // A load without a fleet knows only the files of other loads without a fleet. The next
    // generation knows only its own files.
    for _ in 0..2 {
        case.load("in --table t --quiet").success();
        assert_eq!(count(), "400");
    }
    assert_eq!(load("2")["files"]["new"], 4);
    assert_eq!(count(), "600");
    case.put("in/4.csv", "member,id\n4,0\n");
    let said = finish(spawn(&mut member(&case, "1", 0, "in"))).json_refusal();
    assert!(said.contains("is done in generation 1, and has loaded other sources"), "{said}");
    case.load("in --table t --quiet").success();
    assert_eq!(count(), "601");
}

#[test]
fn a_load_whose_generation_was_forgotten_is_done_without_loading_again() {
    let case = case(4);
    let dsn = case.db.dsn();
    let fleet = |more: &[&str]| {
        let args = [&["fleet", "files", "--json", "--to", &dsn], more].concat();
        serde_json::from_str::<Value>(&finish(spawn(&mut case.command(&args))).stdout).unwrap()
    };
    parse(&finish(spawn(&mut member(&case, "1", 0, "in/0.csv"))));
    assert_eq!(fleet(&["--forget"])["forgotten"], true);
    let again = parse(&finish(spawn(&mut member(&case, "1", 0, "in/0.csv"))));
    assert_eq!(again["fleet"]["was_done"], false);
    assert_eq!(case.value("select count(*) from t"), "50");
    let report = fleet(&[]);
    assert_eq!((&report["done"], &report["inserted"]), (&1.into(), &ROWS.into()), "{report}");
}

#[test]
fn a_killed_load_is_done_by_a_retry() {
    let case = case(4);
    let source = "in/{member}.csv";
    for millis in [30, 90, 150, 400] {
        let mut child = spawn(&mut member(&case, "1", 0, source));
        std::thread::sleep(std::time::Duration::from_millis(millis));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    parse(&finish(spawn(&mut member(&case, "1", 0, source))));
    assert_eq!(case.value("select count(*) from t"), "50");
}

#[test]
fn options_that_do_not_fit_a_member_are_refused() {
    let case = case(1);
    for (more, words) in [
        ("--replace", "each member would replace the others' rows"),
        ("--create", "create the table before the members begin"),
        ("--no-ledger", "the ledger knows the members"),
    ] {
        let mut command = member(&case, "1", 0, "in/{member}.csv");
        let run = finish(spawn(command.arg(more)));
        assert_eq!(run.status, Some(2));
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
    let mut child = spawn(&mut member(&case, "1", 0, "-"));
    child.stdin.take().unwrap().write_all(b"member,id\n0,0\n").unwrap();
    let said = finish(child).json_refusal();
    assert!(said.contains("loads sources that can be read again"), "{said}");
}

#[test]
fn a_member_that_is_done_says_why_it_does_not_load_again() {
    let case = case(4);
    parse(&finish(spawn(&mut member(&case, "1", 0, "in/0.csv"))));
    // The refused run claims no source of another member.
    let said = finish(spawn(&mut member(&case, "1", 0, "in/1.csv"))).json_refusal();
    assert!(said.contains("and has loaded other sources"), "{said}");
    parse(&finish(spawn(&mut member(&case, "1", 1, "in/1.csv"))));
    case.db.run("truncate t");
    let said = finish(spawn(&mut member(&case, "1", 0, "in/0.csv"))).json_refusal();
    let words = "but its sources have changed since, or rows were removed from the table";
    assert!(said.contains(words), "{said}");
    parse(&finish(spawn(&mut member(&case, "2", 0, "in/0.csv"))));
    assert_eq!(case.value("select count(*) from t"), "50");
}

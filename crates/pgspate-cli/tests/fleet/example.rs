//! `examples/array.sh` runs an array of jobs on one machine.

use std::process::Command;

use pgspate_embedded::testing;

use crate::run::{ask, finish, spawn};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/array.sh");

#[test]
fn the_example_s_members_write_once_and_nothing_when_run_again() {
    let db = testing::database();
    let folder = tempfile::tempdir().unwrap();
    for round in 1..=2 {
        let mut command = Command::new("sh");
        command.args([SCRIPT, env!("CARGO_BIN_EXE_pgspate"), &db.dsn(), "12"]);
        command.current_dir(folder.path()).env("TMPDIR", folder.path());
        let run = finish(spawn(&mut command));
        assert_eq!(run.status, Some(0), "{}{}", run.stdout, run.stderr);
        assert!(run.stdout.contains("12 of 12 members done\n"), "{}", run.stdout);
        // A member that finds nothing to do keeps the counts of the attempt that wrote.
        let expected = format!("{} inserted", 11 * 24);
        assert!(run.stdout.contains(&expected), "round {round}: {}", run.stdout);
    }
    assert_eq!(ask(&db.dsn(), "select count(*) from array_readings"), (12 * 24).to_string());
    assert!(folder.path().read_dir().unwrap().next().is_none(), "files are left");
}

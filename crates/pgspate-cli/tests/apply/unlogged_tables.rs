//! Unlogged tables, which the server empties after a crash. No stream may continue after its rows
//! are lost.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::Command;

use pgspate_embedded::{ThrowawayServer, testing};
use tempfile::TempDir;

use crate::run::{ask, command, finish, spawn, wait_until};

/// A server that the test may kill, and a folder with the events.
struct UnloggedApply {
    server: ThrowawayServer,
    folder: TempDir,
}

impl UnloggedApply {
    fn new(sql: &str) -> UnloggedApply {
        let server = testing::server("");
        ask(&server.dsn(), sql);
        UnloggedApply { server, folder: TempDir::with_prefix("pgspate-crash-").unwrap() }
    }

    /// Appends inserts of rows with these ids to the file.
    fn append(&self, ids: std::ops::Range<u32>) {
        let path = self.folder.path().join("s.ndjson");
        let mut events = String::new();
        for id in ids {
            let line = format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id}}}}}");
            writeln!(events, "{line}").unwrap();
        }
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.unwrap().write_all(events.as_bytes()).unwrap();
    }

    fn apply(&self, args: &str) -> Command {
        let args = format!("apply s.ndjson --quiet {args}");
        let mut command = command(self.folder.path(), &args.split(' ').collect::<Vec<_>>());
        command.args(["--to", &self.server.dsn()]);
        command
    }

    /// Applies the file, after which the table must have these rows.
    #[track_caller]
    fn assert_applies(&self, args: &str, rows: &str) {
        let run = finish(spawn(&mut self.apply(args)));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert_eq!(self.rows(), rows);
    }

    /// Asserts that the stream is refused because a crash emptied its tables.
    #[track_caller]
    fn assert_refused(&self) {
        let run = finish(spawn(&mut self.apply("--stream s")));
        let said = "since stream \"s\" wrote to unlogged tables, and has emptied them";
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(said), "{}", run.stderr);
        let mut status = command(self.folder.path(), &["status", "--to", &self.server.dsn()]);
        let status = finish(spawn(&mut status)).stdout;
        assert!(status.contains("emptied since: the server has crashed"), "{status}");
    }

    fn rows(&self) -> String {
        ask(&self.server.dsn(), "select count(*) from t")
    }

    fn crash(&self) {
        self.server.kill().unwrap();
        self.server.restart().unwrap();
    }
}

#[test]
fn a_stream_does_not_continue_after_a_crash_lost_its_rows() {
    for how in ["", " --direct-rows 0"] {
        let scene = UnloggedApply::new("create unlogged table t (id int primary key)");
        let args = format!("--stream s{how}");
        scene.append(0..100);
        scene.assert_applies(&args, "100");
        // A clean restart loses no rows.
        scene.server.restart().unwrap();
        scene.append(100..200);
        scene.assert_applies(&args, "200");
        scene.crash();
        scene.assert_refused();
        scene.append(200..300);
        scene.assert_refused();
        assert_eq!(scene.rows(), "0");
        ask(&scene.server.dsn(), "delete from pgspate.stream where stream = 's'");
        scene.assert_applies(&args, "300");
        scene.crash();
        scene.assert_refused();
        ask(&scene.server.dsn(), "delete from pgspate.bound where stream = 's'");
        scene.append(300..301);
        scene.assert_applies(&args, "1");
    }
}

#[test]
fn a_running_stream_ends_when_a_crash_loses_its_rows() {
    let scene = UnloggedApply::new("create unlogged table t (id int primary key)");
    scene.append(0..100);
    let child = spawn(&mut scene.apply("--stream s --follow"));
    wait_until("the table has the rows", || scene.rows() == "100");
    scene.crash();
    scene.append(100..200);
    let run = finish(child);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("has emptied them"), "{}", run.stderr);
    assert_eq!(scene.rows(), "0");
}

#[test]
fn a_stream_into_logged_tables_survives_a_crash() {
    let scene = UnloggedApply::new("create table t (id int primary key)");
    scene.append(0..100);
    scene.assert_applies("--stream s", "100");
    scene.crash();
    scene.append(100..200);
    scene.assert_applies("--stream s", "200");
}

#[test]
fn a_running_stream_notices_that_its_table_becomes_unlogged() {
    for how in ["", " --direct-rows 0"] {
        let scene = UnloggedApply::new("create table t (id int primary key)");
        scene.append(0..100);
        let child = spawn(&mut scene.apply(&format!("--stream s --follow{how}")));
        wait_until("the table has the rows", || scene.rows() == "100");
        ask(&scene.server.dsn(), "alter table t set unlogged");
        scene.append(100..200);
        wait_until("the table has more rows", || scene.rows() == "200");
        scene.crash();
        scene.append(200..300);
        let run = finish(child);
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("has emptied them"), "{}", run.stderr);
        assert_eq!(scene.rows(), "0");
    }
}

//! Unlogged tables, which a crash of the server empties: no stream goes on as if their rows were
//! there.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::Command;

use pgspate_embedded::{ThrowawayServer, testing};
use tempfile::TempDir;

use crate::run::{ask, command, finish, spawn, wait_until};

struct Scene {
    server: ThrowawayServer,
    folder: TempDir,
}

impl Scene {
    fn new(sql: &str) -> Scene {
        let server = testing::server("");
        ask(&server.dsn(), sql);
        Scene { server, folder: TempDir::with_prefix("pgspate-crash-").unwrap() }
    }

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

    /// Applies what there is, which must come to this.
    #[track_caller]
    fn applies(&self, args: &str, rows: &str) {
        let run = finish(spawn(&mut self.apply(args)));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert_eq!(self.rows(), rows);
    }

    #[track_caller]
    fn refuses(&self) {
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
fn a_stream_does_not_go_on_after_rows_that_a_crash_has_taken() {
    for how in ["", " --direct-rows 0"] {
        let scene = Scene::new("create unlogged table t (id int primary key)");
        let args = format!("--stream s{how}");
        scene.append(0..100);
        scene.applies(&args, "100");
        // A restart in good order takes nothing.
        scene.server.restart().unwrap();
        scene.append(100..200);
        scene.applies(&args, "200");
        scene.crash();
        scene.refuses();
        scene.append(200..300);
        scene.refuses();
        assert_eq!(scene.rows(), "0");
        ask(&scene.server.dsn(), "delete from pgspate.stream where stream = 's'");
        scene.applies(&args, "300");
        scene.crash();
        scene.refuses();
        ask(&scene.server.dsn(), "delete from pgspate.bound where stream = 's'");
        scene.append(300..301);
        scene.applies(&args, "1");
    }
}

#[test]
fn a_stream_that_runs_ends_when_a_crash_takes_its_rows() {
    let scene = Scene::new("create unlogged table t (id int primary key)");
    scene.append(0..100);
    let child = spawn(&mut scene.apply("--stream s --follow"));
    wait_until("the rows are there", || scene.rows() == "100");
    scene.crash();
    scene.append(100..200);
    let run = finish(child);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("has emptied them"), "{}", run.stderr);
    assert_eq!(scene.rows(), "0");
}

#[test]
fn logged_tables_bear_a_crash() {
    let scene = Scene::new("create table t (id int primary key)");
    scene.append(0..100);
    scene.applies("--stream s", "100");
    scene.crash();
    scene.append(100..200);
    scene.applies("--stream s", "200");
}

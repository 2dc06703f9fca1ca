//! Tests of server crashes that lose rows of unlogged tables, or commits not yet on disk. No load
//! may report success for lost rows.

use std::fmt::Write as _;
use std::fs;
use std::process::{Child, Stdio};

use pgspate_embedded::{ThrowawayServer, testing};
use tempfile::TempDir;

use crate::support::{Run, ask, command, finish, session, spawn, wait_until};

const ROWS: usize = 30_000;

/// Trigger functions that wait for an advisory lock: at every row, or from the third chunk on.
const CREATE_WAITING_TRIGGERS: &str = "\
create function waits() returns trigger language plpgsql as \
    'begin perform pg_advisory_xact_lock_shared(42); return new; end'; \
create function waits_late() returns trigger language plpgsql as \
    'begin if new.chunk >= 2 then perform pg_advisory_xact_lock_shared(42); end if; \
     return new; end'";

/// Selects whether a session waits for the advisory lock.
const SELECT_IS_WAITING: &str = "select count(*) > 0 from pg_stat_activity \
                       where wait_event_type = 'Lock' and wait_event = 'advisory'";

/// A server to crash, and a file of several chunks.
struct CrashScene {
    server: ThrowawayServer,
    folder: TempDir,
}

impl CrashScene {
    fn new(conf: &str, sql: &str) -> CrashScene {
        let server = testing::server(conf);
        ask(&server.dsn(), &format!("{CREATE_WAITING_TRIGGERS}; {sql}"));
        let folder = TempDir::with_prefix("pgspate-crash-").unwrap();
        let mut rows = "id,note\n".to_owned();
        (0..ROWS).for_each(|id| writeln!(rows, "{id},{:>999}", "").unwrap());
        fs::write(folder.path().join("t.csv"), rows).unwrap();
        fs::write(folder.path().join("one.csv"), "id,note\n-1,one\n").unwrap();
        CrashScene { server, folder }
    }

    fn ask(&self, sql: &str) -> String {
        ask(&self.server.dsn(), sql)
    }

    fn start(&self, args: &str) -> Child {
        let mut load = command(self.folder.path(), &["load", "--to", &self.server.dsn()]);
        load.args(args.split_whitespace());
        spawn(load.stdin(Stdio::null()))
    }

    fn load(&self, args: &str) -> Run {
        finish(self.start(args))
    }

    fn status(&self) -> String {
        let mut status = command(self.folder.path(), &["status", "--to", &self.server.dsn()]);
        finish(spawn(&mut status)).stdout
    }

    /// Starts a load and crashes the server when the load waits for the lock. Runs `sql` before.
    fn run_and_crash_while_waiting(&self, sql: &str, args: &str) -> Child {
        let (runtime, holder) = session(&self.server.dsn());
        runtime.block_on(holder.batch_execute("select pg_advisory_lock(42)")).unwrap();
        let load = self.start(args);
        wait_until("the load waits", || self.ask(SELECT_IS_WAITING) == "t");
        self.ask(sql);
        self.crash();
        load
    }

    fn crash_while_waiting(&self, args: &str) -> Child {
        self.run_and_crash_while_waiting("", args)
    }

    fn crash(&self) {
        self.server.kill().unwrap();
        self.server.restart().unwrap();
    }

    /// Returns the number of rows and the number of distinct rows.
    fn rows(&self) -> String {
        self.ask("select count(*) || ' ' || count(distinct id) from t where id >= 0")
    }

    /// Loads one row, which creates the ledger.
    fn load_one(&self) {
        assert_eq!(self.load("one.csv --table t --quiet").status, Some(0));
    }

    /// Makes later loads wait between building an index and its commit.
    fn hold_index(&self) {
        self.load_one();
        self.ask(
            "truncate t; create trigger waits before update on pgspate.change for each row \
             execute function waits()",
        );
    }

    /// Makes later loads wait before the third chunk is recorded in the ledger.
    fn hold_third_chunk(&self) {
        self.load_one();
        self.ask(
            "create trigger waits before insert on pgspate.ledger for each row \
             execute function waits_late()",
        );
    }
}

fn count_of_all_rows() -> String {
    format!("{ROWS} {ROWS}")
}

#[track_caller]
fn check_loaded_once(scene: &CrashScene, run: &Run) {
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(scene.rows(), count_of_all_rows(), "{}", run.stderr);
    let written = "select max(rows_written) from pgspate.job where finished is not null";
    assert_eq!(scene.ask(written), ROWS.to_string());
}

#[test]
fn a_crash_that_empties_the_table_while_indexes_are_built_is_noticed() {
    for commit in ["chunk", "end"] {
        let table = "create unlogged table t (id int, note text); create index i on t (id)";
        let scene = CrashScene::new("", table);
        scene.hold_index();
        let args = format!("t.csv --table t --commit {commit} --rebuild-indexes always");
        let run = finish(scene.crash_while_waiting(&args));
        check_loaded_once(&scene, &run);
        assert!(
            run.stderr.contains("the server crashed and emptied unlogged table public.t"),
            "{}",
            run.stderr
        );
        assert!(run.stderr.contains("public.t: 30,000 rows"), "{}", run.stderr);
        assert_eq!(
            scene
                .ask("select count(*) from pg_index where indisvalid and indrelid = 't'::regclass"),
            "1"
        );
        assert_eq!(
            scene.ask("select count(*) from pgspate.change where done < cardinality(steps)"),
            "0"
        );
    }
}

#[test]
fn all_chunks_are_loaded_again_after_a_crash_between_chunks() {
    let scene = CrashScene::new("", "create unlogged table t (id int, note text)");
    scene.hold_third_chunk();
    let run = finish(scene.crash_while_waiting("t.csv --table t --commit chunk --lanes 2"));
    check_loaded_once(&scene, &run);
}

#[test]
fn rows_rejected_before_a_crash_are_set_aside_once() {
    let scene = CrashScene::new("", "create unlogged table t (id int check (id <> 3), note text)");
    scene.hold_third_chunk();
    let args = "t.csv --table t --commit chunk --lanes 2 --rejects bad.csv";
    let run = finish(scene.crash_while_waiting(args));
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert_eq!(scene.rows(), format!("{0} {0}", ROWS - 1));
    let bad = fs::read_to_string(scene.folder.path().join("bad.csv")).unwrap();
    assert_eq!(bad.lines().count(), 2);
}

#[test]
fn a_load_killed_before_a_crash_starts_over() {
    let scene = CrashScene::new("", "create unlogged table t (id int, note text)");
    scene.hold_third_chunk();
    let (runtime, holder) = session(&scene.server.dsn());
    runtime.block_on(holder.batch_execute("select pg_advisory_lock(42)")).unwrap();
    let mut load = scene.start("t.csv --table t --commit chunk --lanes 2");
    wait_until("the load waits", || scene.ask(SELECT_IS_WAITING) == "t");
    load.kill().unwrap();
    load.wait().unwrap();
    scene.crash();
    let said = scene.status();
    assert!(said.contains("unfinished, and emptied since: the server has crashed"), "{said}");
    // A row of another session does not make the table count as loaded.
    scene.ask("insert into t values (-2)");
    check_loaded_once(&scene, &scene.load("t.csv --table t --commit chunk --quiet"));
    assert_eq!(scene.ask("select count(*) from t where id = -2"), "1");
}

#[test]
fn a_finished_load_is_loaded_again_after_a_crash() {
    let scene = CrashScene::new("", "create unlogged table t (id int, note text)");
    check_loaded_once(&scene, &scene.load("t.csv --table t --quiet"));
    assert!(!scene.status().contains("emptied"));
    let again = scene.load("t.csv --table t");
    assert!(again.stderr.contains("has loaded this"), "{}", again.stderr);
    // A regular restart keeps the rows of unlogged tables.
    scene.server.restart().unwrap();
    check_loaded_once(&scene, &scene.load("t.csv --table t --quiet"));
    scene.crash();
    assert!(scene.status().contains("and emptied since: the server has crashed"));
    scene.ask("insert into t values (-2)");
    check_loaded_once(&scene, &scene.load("t.csv --table t --quiet"));
    check_loaded_once(&scene, &scene.load("t.csv --table t --quiet"));
}

const CREATE_PARTLY_UNLOGGED: &str = "\
create table t (id int, note text) partition by range (id); \
create table kept partition of t for values from (minvalue) to (15000); \
create unlogged table gone partition of t for values from (15000) to (maxvalue)";

/// Without a written chunk, no row of the load exists in a logged partition either.
#[test]
fn a_load_into_a_partly_unlogged_table_starts_again_if_a_crash_left_no_chunk() {
    let scene = CrashScene::new("", CREATE_PARTLY_UNLOGGED);
    scene.load_one();
    scene.ask(
        "truncate t; create trigger waits before insert on pgspate.ledger for each row \
         execute function waits()",
    );
    let run = finish(scene.crash_while_waiting("t.csv --table t --commit chunk --quiet"));
    check_loaded_once(&scene, &run);
}

#[test]
fn a_load_into_a_partly_unlogged_table_does_not_continue_after_a_crash() {
    let scene = CrashScene::new("", CREATE_PARTLY_UNLOGGED);
    scene.hold_third_chunk();
    // Chunks are committed without waiting for the disk. The first chunk shall survive.
    let args = "t.csv --table t --commit chunk --quiet";
    let run = finish(scene.run_and_crash_while_waiting("checkpoint", args));
    let said = "unlogged tables are empty, and other rows of the job may still exist";
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains(said), "{}", run.stderr);
    let run = scene.load("t.csv --table t --commit chunk --quiet");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains(said) && run.stderr.contains("--restart"), "{}", run.stderr);
    scene.ask("truncate t");
    check_loaded_once(&scene, &scene.load("t.csv --table t --commit chunk --quiet --restart"));
}

#[test]
fn a_load_without_a_ledger_fails_if_the_server_crashes_after_the_commit() {
    let scene = CrashScene::new("", "create unlogged table t (id int, note text)");
    let (runtime, holder) = session(&scene.server.dsn());
    // ANALYZE waits for this lock, and COPY does not.
    let lock = "begin; lock table t in share update exclusive mode";
    runtime.block_on(holder.batch_execute(lock)).unwrap();
    let load = scene.start("t.csv --table t --no-ledger --analyze always");
    wait_until("ANALYZE waits", || {
        scene.ask(
            "select count(*) from pg_stat_activity where query like '%analyze%' \
             and wait_event_type = 'Lock' and pid <> pg_backend_pid()",
        ) != "0"
    });
    assert_eq!(scene.rows(), count_of_all_rows());
    scene.crash();
    let run = finish(load);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert_eq!(scene.rows(), "0 0");
}

#[test]
fn commits_lost_in_a_crash_are_repeated() {
    let conf = "wal_writer_delay = 10s\nwal_writer_flush_after = 1GB\nwal_buffers = 128MB\n";
    let table = "create table t (id int, note text); create index i on t (id)";
    let scene = CrashScene::new(conf, table);
    scene.hold_index();
    let args = "t.csv --table t --commit chunk --rebuild-indexes always";
    let run = finish(scene.crash_while_waiting(args));
    check_loaded_once(&scene, &run);
    assert!(run.stderr.contains("public.t: 30,000 rows"), "{}", run.stderr);
}

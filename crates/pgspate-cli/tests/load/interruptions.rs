//! Tests of loads that the user stops, or whose server, backend or disk fails. Such a load ends
//! soon and leaves no rows, except for committed chunks, which its message counts.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use pgspate_embedded::{ThrowawayServer, testing};
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::disk::Disk;
use crate::growing_folders::{BIG_ROWS, assert_big, block_at, put_big};
use crate::support::{LoadCase, Run, ask, finish, session, spawn, wait_until};

fn send_signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}

/// The `from` and `where` clauses that select the backends of loads that are in a transaction.
const FROM_LANES: &str = "from pg_stat_activity where datname = current_database() \
                     and application_name like 'pgspate load%' and xact_start is not null \
                     and pid <> pg_backend_pid()";

fn count_lanes(case: &LoadCase) -> usize {
    case.value(&format!("select count(*) {FROM_LANES}")).parse().unwrap()
}

/// Writes about 10 MB of rows: several chunks, after which the lanes wait for more input.
fn write_rows(pipe: &mut ChildStdin) {
    let mut rows = "id,note\n".to_owned();
    (0..100_000).for_each(|row| writeln!(rows, "{row},{:>99}", "").unwrap());
    pipe.write_all(rows.as_bytes()).unwrap();
}

/// Starts a load that has read some rows and waits for more.
///
/// The load waits for as long as the caller keeps the returned pipe.
fn start_load_waiting_for_input(case: &LoadCase, args: &str) -> (Child, ChildStdin) {
    let mut child = spawn(&mut case.load_command(args));
    let mut pipe = child.stdin.take().unwrap();
    write_rows(&mut pipe);
    wait_until("a lane is at work", || count_lanes(case) > 0);
    (child, pipe)
}

#[test]
fn an_interrupt_rolls_back_while_the_input_is_slow() {
    let case = LoadCase::new("create table t (id int, note text)");
    let said = ["-INT", "-TERM"].map(|name| {
        let (child, pipe) = start_load_waiting_for_input(&case, "- --table t --quiet");
        send_signal(&child, name);
        let run = finish(child);
        assert_eq!((run.status, run.stdout.as_str()), (Some(130), ""));
        drop(pipe);
        wait_until("its sessions are gone", || count_lanes(&case) == 0);
        assert_eq!(case.rows("t").len(), 0);
        run.stderr
    });
    assert_eq!(said[0], said[1]);
    assert_snapshot!(said[0], @r#"

    rolling back; press Ctrl-C again to stop at once
    error: could not load "-" into public.t
      caused by: stopped by the user; nothing was loaded
    "#);
}

#[test]
fn an_interrupt_drops_the_table_that_the_load_created() {
    let case = LoadCase::new("");
    let (child, pipe) = start_load_waiting_for_input(&case, "- --table made --create --quiet");
    send_signal(&child, "-INT");
    assert_eq!(finish(child).status, Some(130));
    drop(pipe);
    assert_eq!(case.contents(), []);
}

#[test]
fn a_second_interrupt_stops_the_load_at_once() {
    let case = LoadCase::new("create table t (id int, note text)");
    let (child, pipe) = start_load_waiting_for_input(&case, "- --table t --quiet");
    // A stopped process cannot act on the first signal before the second signal arrives.
    send_signal(&child, "-STOP");
    send_signal(&child, "-INT");
    send_signal(&child, "-TERM");
    send_signal(&child, "-CONT");
    assert_eq!(finish(child).status, Some(130));
    drop(pipe);
    wait_until("its sessions are gone", || count_lanes(&case) == 0);
    assert_eq!(case.rows("t").len(), 0);
}

#[test]
fn an_interrupt_ends_the_wait_for_a_lock() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\n2\n");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; lock table t")).unwrap();
    let child = spawn(&mut case.load_command("t.csv --header yes --quiet"));
    let blocked = "select count(*) from pg_stat_activity where datname = current_database() \
                   and wait_event_type = 'Lock' and query like 'copy%'";
    wait_until("the load waits for the lock", || case.value(blocked) == "1");
    send_signal(&child, "-INT");
    assert_eq!(finish(child).status, Some(130));
    assert_eq!(case.value(blocked), "0");
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    assert_eq!(case.rows("t").len(), 0);
}

#[test]
fn a_load_waits_for_a_lock_beyond_the_timeouts_of_the_role() {
    // Looking up a partitioned table locks its partitions.
    let tables = [
        "create table t (id int)",
        "create table t (id int) partition by range (id); create table p partition of t default",
    ];
    for create in tables {
        let case = LoadCase::new(create);
        case.put("t.csv", "id\n1\n2\n");
        let (runtime, holder) = session(&case.db.dsn());
        runtime.block_on(holder.batch_execute("begin; lock table t")).unwrap();
        // A load ignores timeouts that the role, the database or the session sets.
        let mut command = case.load_command("t.csv --header yes --quiet");
        let child = spawn(command.env("PGOPTIONS", "-c lock_timeout=300 -c statement_timeout=700"));
        std::thread::sleep(Duration::from_millis(1000));
        runtime.block_on(holder.batch_execute("commit")).unwrap();
        finish(child).success();
        assert_eq!(case.rows("t").len(), 2, "{create}");
    }
}

#[test]
fn a_load_whose_backend_is_terminated_writes_no_row() {
    let case = LoadCase::new("create table t (id int, note text)");
    let (child, mut pipe) = start_load_waiting_for_input(&case, "- --table t --quiet --lanes 2");
    case.db.run(&format!("select pg_terminate_backend(pid) {FROM_LANES}"));
    // The load notices the lost session with the next chunk at the latest.
    let writer = std::thread::spawn(move || {
        let rows = format!("1,{:>999}\n", "").repeat(10_000);
        while pipe.write_all(rows.as_bytes()).is_ok() {}
    });
    let run = finish(child);
    writer.join().unwrap();
    // The reason depends on whether the server's last message arrives before the connection ends.
    let refusal = run.refusal();
    let words = "error: could not load \"-\" into public.t\n  caused by: could not copy\n";
    assert!(refusal.starts_with(words), "{refusal}");
    assert!(refusal.contains(" was lost:") || refusal.contains("SQLSTATE 57P01"), "{refusal}");
    assert_eq!(case.rows("t").len(), 0);
}

#[test]
fn a_load_fails_within_a_minute_if_the_server_dies() {
    let case = LoadCase::new("");
    let server = testing::server("");
    let sql = "create table t (id int, note text)";
    let run = |sql: &str| ask(&server.dsn(), sql);
    run(sql);
    let mut child =
        spawn(&mut case.command(&["load", "-q", "--to", &server.dsn(), "--table", "t", "-"]));
    let mut pipe = child.stdin.take().unwrap();
    write_rows(&mut pipe);
    let lanes = "select count(*) from pg_stat_activity where application_name like 'pgspate load%' \
                 and xact_start is not null";
    wait_until("a lane is at work", || run(lanes) != "0");
    server.kill().unwrap();
    drop(pipe);
    let begin = Instant::now();
    let said = finish(child);
    assert!(begin.elapsed() < Duration::from_secs(60));
    let said = said.refusal();
    let (said, _) = said.split_once(" was lost: ").unwrap();
    assert_snapshot!(said, @r#"
    error: could not load "-" into public.t
      caused by: could not copy
      caused by: connection to server on socket "[DIR]/run/.s.[PORT]"
    "#);
    server.restart().unwrap();
    assert_eq!(run("select count(*) from t"), "0");
}

#[test]
fn a_load_that_fills_the_disk_leaves_nothing_behind() {
    let case = LoadCase::new("");
    let server = testing::server("");
    let Some(disk) = Disk::mount(server.folder().join("small"), &server.data_folder()) else {
        println!("not tested: only root may mount a small disk");
        return;
    };
    let run = |sql: &str| ask(&server.dsn(), sql);
    run(&format!("create tablespace small location '{}'", disk.path().display()));
    run("create table t (id int, note text) tablespace small");
    let mut rows = "id,note\n".to_owned();
    (0..150_000).for_each(|row| writeln!(rows, "{row},{:>99}", "").unwrap());
    case.put("t.csv", rows);
    let load = |more: &[&str]| {
        let to = server.dsn();
        let args = [&["load", "-q", "--to", &to, "t.csv"], more].concat();
        Run::of(case.command(&args).output().unwrap()).refusal()
    };
    let said = load(&[]).replace("\n      … ", " ");
    // The rest of the message differs between versions of PostgreSQL.
    assert!(said.contains("No space left on device (SQLSTATE 53100)"), "{said}");
    assert!(said.ends_with("\n\nhint: Check free disk space.\n"), "{said}");
    assert_eq!(run("select count(*) from t"), "0");
    run("create table made (id int) tablespace small; drop table t");
    // A table that the load created is dropped, too.
    run("alter database postgres set default_tablespace = small");
    load(&["--create"]);
    assert_eq!(run("select to_regclass('t') is null"), "t");
}

#[test]
fn a_load_succeeds_if_nobody_reads_its_output() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\n");
    let mut child = spawn(&mut case.load_command("t.csv --header yes --json --quiet"));
    drop(child.stdout.take());
    assert_snapshot!(finish(child).stderr, @"");
    let mut child = spawn(&mut case.load_command("t.csv --header yes --restart"));
    drop(child.stderr.take());
    assert_eq!(finish(child).status, Some(0));
    assert_eq!(case.rows("t").len(), 2);
}

/// A load into its own server that has committed two chunks and is blocked in the third chunk.
/// A trigger ignores cancel requests while a session holds an advisory lock.
struct BlockedThirdChunk {
    server: ThrowawayServer,
    case: LoadCase,
    child: Child,
    _holder: (Runtime, Client),
}

impl BlockedThirdChunk {
    fn new(args: &str) -> BlockedThirdChunk {
        let (server, case) = (testing::server(""), LoadCase::new(""));
        let run = |sql: &str| ask(&server.dsn(), sql);
        run("create table t (id int, note text); \
             create function hold() returns trigger language plpgsql as $$ begin \
                 if new.chunk < 2 then return new; end if; \
                 loop begin perform pg_advisory_xact_lock_shared(42); return new; \
                      exception when query_canceled then perform 1; end; end loop; end $$");
        case.put("one.csv", "id,note\n-1,one\n");
        let mut rows = "id,note\n".to_owned();
        (0..15_000).for_each(|row| writeln!(rows, "{row},{:>999}", "").unwrap());
        case.put("t.csv", rows);
        let load = |args: &str| {
            let mut load = case.command(&["load", "--to", &server.dsn(), "--table", "t"]);
            spawn(load.args(args.split_whitespace()))
        };
        assert_eq!(finish(load("one.csv --quiet")).status, Some(0));
        run("create trigger hold before insert on pgspate.ledger for each row \
             execute function hold()");
        let holder = session(&server.dsn());
        holder.0.block_on(holder.1.batch_execute("select pg_advisory_lock(42)")).unwrap();
        let child = load(&format!("t.csv --commit chunk --lanes 1 --quiet {args}"));
        wait_until("two chunks are in", || {
            run("select count(*) from pgspate.ledger where job > 1") == "2"
                && run("select count(*) from pg_stat_activity where wait_event = 'advisory'") != "0"
        });
        BlockedThirdChunk { server, case, child, _holder: holder }
    }

    /// Returns the number of rows of `t.csv` in the table.
    fn rows(&self) -> String {
        ask(&self.server.dsn(), "select count(*) from t where id >= 0")
    }
}

#[test]
fn a_second_interrupt_reports_the_committed_rows_and_how_to_continue() {
    let BlockedThirdChunk { server, case, mut child, _holder } = BlockedThirdChunk::new("");
    let rows = ask(&server.dsn(), "select count(*) from t where id >= 0");
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    send_signal(&child, "-TERM");
    let first = said.find_map(|line| line.ok().filter(|line| line.contains("press Ctrl-C again")));
    assert!(first.is_some());
    send_signal(&child, "-TERM");
    let last: Vec<_> = said.map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let words = format!(
        "stopped at once; {rows} rows in 2 committed chunks stay; the same command, run again, \
         loads the rest"
    );
    assert_eq!(last, [words]);
    drop(case);
}

#[test]
fn a_load_whose_server_vanishes_reports_the_last_known_committed_rows() {
    let blocked = BlockedThirdChunk::new("--retry-for 1");
    let rows = blocked.rows();
    let BlockedThirdChunk { server, case, child, .. } = blocked;
    server.kill().unwrap();
    let said = finish(child).refusal().replace("\n      … ", " ");
    let words = format!(
        "{rows} rows in 2 committed chunks were in the table when the server last answered; \
         the same command, run again, finds out and loads what is missing."
    );
    assert!(said.contains(&words), "{said}");
    server.restart().unwrap();
    let mut again = case.command(&["load", "--to", &server.dsn(), "--table", "t", "-q", "t.csv"]);
    assert_eq!(finish(spawn(again.args(["--commit", "chunk"]))).status, Some(0));
    assert_eq!(ask(&server.dsn(), "select count(*) from t where id >= 0"), "15000");
}

#[test]
fn the_hint_says_whether_the_role_or_the_database_is_out_of_connections() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\n");
    let name = format!("{}_limit", case.db.name());
    case.db.run(&format!("create role {name} login; alter role {name} connection limit 0"));
    case.db.run(&format!("create database {name} connection limit 0"));
    let load = |more: String| {
        let dsn = format!("{} {more}", case.db.dsn());
        let said = Run::of(case.command(&["load", "t.csv", "--to", &dsn]).output().unwrap());
        said.refusal().replace("\n      … ", " ").replace("[DATABASE]_limit", &name)
    };
    let role = load(format!("user={name}"));
    assert!(role.contains("with `alter role"), "{role}");
    case.db.run(&format!("alter role {name} connection limit 9"));
    let database = load(format!("user={name} dbname={name}"));
    case.db.run(&format!("drop database {name}"));
    case.db.run(&format!("drop role {name}"));
    assert!(database.contains("with `alter database"), "{database}");
}

/// With the flag, the rows that are committed would be loaded again.
#[test]
fn an_interrupted_restart_is_continued_without_the_flag() {
    let case = LoadCase::new("create table t (id bigint, note text)");
    (0..2).for_each(|file| put_big(&case, &format!("in/{file}"), file));
    let flags = "--commit chunk --lanes 1";
    let (child, release) = block_at(&case, BIG_ROWS + 3_000, &format!("{flags} --restart"));
    let chunks = "select count(*) from pgspate.ledger";
    wait_until("a chunk is committed", || case.value(chunks) != "0");
    send_signal(&child, "-TERM");
    let said = finish(child).stderr;
    release();
    let hint = "in the table; the same command without `--restart`, run again, loads the rest.";
    assert!(said.contains(hint), "{said}");
    let status = case.command(&["status", "--to", &case.db.dsn()]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("again, without `--restart`, to continue"), "{status}");
    case.load(&format!("in --format csv --table t --quiet {flags}")).success();
    assert_big(&case, 2);
}

//! The start, the end, and times without the server.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::thread;

use pgspate_embedded::testing;
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{ask, command, finish, session, spawn, wait_until};
use crate::scene::{ServeProcess, ServeScene, TABLES, send_to_socket};

const ROWS: &str = "/tables/note/rows";
const BODY: &str = r#"{"text":"x"}"#;

#[test]
fn the_end_answers_requests_in_flight_and_prints_a_summary() {
    let mut scene = ServeScene::new(&["--json"]);
    assert_eq!(scene.post(ROWS, BODY).status, 201);
    let dsn = scene.db.dsn();
    let (runtime, locker) = session(&dsn);
    runtime.block_on(locker.batch_execute("begin; lock table note")).unwrap();
    let (process, address) = (&scene.process, scene.process.authority().to_owned());
    let answers: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(|| process.post(ROWS, &[], BODY))).collect();
        wait_until("the requests are in flight", || {
            process.get("/stats").json()["in_flight"].as_u64() == Some(4)
        });
        process.signal(Signal::TERM);
        wait_until("no client can connect", || TcpStream::connect(&address).is_err());
        runtime.block_on(locker.batch_execute("commit")).unwrap();
        calls.into_iter().map(|call| call.join().unwrap().status).collect()
    });
    assert_eq!(answers, [201, 201, 201]);
    let run = scene.process.wait();
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("stopping after the requests in flight"), "{}", run.stderr);
    assert!(run.stderr.contains("public.note: 4 rows"), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["tables"][1]["rows"], 4);
    assert_eq!(report["statuses"]["201"], 4);
    assert_eq!(ask(&dsn, "select count(*) from note"), "4");
    let left = "select count(*) from pg_stat_activity where application_name like 'pgspate %' \
                and datname = current_database()";
    wait_until("the sessions have ended", || ask(&dsn, left) == "0");
}

#[test]
fn a_connection_without_a_request_does_not_delay_the_end() {
    let mut scene = ServeScene::new(&[]);
    let idle = scene.process.connect();
    let run = scene.process.stop();
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    drop(idle);
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    let mut scene = ServeScene::new(&[]);
    let dsn = scene.db.dsn();
    let (runtime, locker) = session(&dsn);
    runtime.block_on(locker.batch_execute("begin; lock table note")).unwrap();
    let process = &scene.process;
    thread::scope(|scope| {
        let call = scope.spawn(|| process.try_post(ROWS, &[], BODY));
        wait_until("the request is in flight", || {
            process.get("/stats").json()["in_flight"].as_u64() == Some(2)
        });
        process.signal(Signal::INT);
        wait_until("the first signal is obeyed", || process.stderr().contains("stopping after"));
        process.signal(Signal::INT);
        assert!(call.join().unwrap().is_none());
    });
    assert_eq!(scene.process.wait().status, Some(130));
}

#[test]
fn a_unix_socket_is_served_replaced_and_removed() {
    let db = testing::database();
    db.run(TABLES);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("serve.sock");
    // Left by a process that was killed.
    drop(UnixListener::bind(&path).unwrap());
    let listen = format!("unix:{}", path.display());
    let args = ["--table", "note", "--listen", &listen];
    let mut process = ServeProcess::start(&db.dsn(), folder, &args);
    assert_eq!(process.address, listen);
    let facts = fs::metadata(&path).unwrap();
    assert!(facts.file_type().is_socket());
    assert_eq!(facts.permissions().mode() & 0o777, 0o600);
    assert_eq!(send_to_socket(&path, ROWS, BODY).status, 201);
    // A second process does not take the address away.
    let dsn = db.dsn();
    let again = [&["serve", "--to", &dsn], &args[..]].concat();
    let run = finish(spawn(&mut command(process.folder.path(), &again)));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("another process listens on it"), "{}", run.stderr);
    assert_eq!(send_to_socket(&path, ROWS, BODY).status, 201);
    assert_eq!(process.stop().status, Some(0));
    assert!(!path.exists());
}

#[test]
fn a_file_in_the_place_of_the_socket_is_kept() {
    let db = testing::database();
    db.run(TABLES);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "data").unwrap();
    let dsn = db.dsn();
    let args = ["serve", "--to", &dsn, "--table", "note", "--listen", "unix:file"];
    let run = finish(spawn(&mut command(folder.path(), &args)));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert_eq!(fs::read_to_string(folder.path().join("file")).unwrap(), "data");
}

#[test]
fn while_the_server_is_away_requests_are_refused_and_then_written() {
    let server = testing::server("");
    ask(&server.dsn(), "create table note (id bigint generated always as identity, text text)");
    let folder = tempfile::tempdir().unwrap();
    let process = ServeProcess::start(&server.dsn(), folder, &["--table", "note"]);
    assert_eq!(process.post(ROWS, &[], BODY).status, 201);
    server.kill().unwrap();
    wait_until("the server is missed", || process.get("/readyz").status == 503);
    let refused = process.post(ROWS, &[], BODY);
    assert_eq!((refused.status, refused.code().as_str()), (503, "server_away"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(process.get("/healthz").status, 200);
    server.restart().unwrap();
    wait_until("the server is back", || process.get("/readyz").status == 200);
    wait_until("records are written", || process.post(ROWS, &[], BODY).status == 201);
    assert_eq!(ask(&server.dsn(), "select count(*) > 1 from note"), "t");
    assert!(process.stderr().contains("the server does not answer"), "{}", process.stderr());
    assert!(process.stderr().contains("the server answers again"), "{}", process.stderr());
}

#[test]
fn a_server_that_stands_still_is_missed_and_found_again() {
    let server = testing::server("");
    ask(&server.dsn(), "create table note (id bigint generated always as identity, text text)");
    let folder = tempfile::tempdir().unwrap();
    let process = ServeProcess::start(&server.dsn(), folder, &["--table", "note"]);
    assert_eq!(process.post(ROWS, &[], BODY).status, 201);
    let watchers = "select count(*) from pg_stat_activity where application_name = 'pgspate serve'";
    wait_until("the server is watched", || ask(&server.dsn(), watchers) == "1");
    let sessions = "select string_agg(pid::text, ' ') from pg_stat_activity \
                    where backend_type = 'client backend' and pid <> pg_backend_pid()";
    let sessions = ask(&server.dsn(), sessions);
    let pids = sessions.split(' ').map(|pid| pid.parse().unwrap());
    // The first process accepts connections.
    let pids: Vec<i32> = pids.chain(server.pid()).collect();
    let signal = |signal: Signal| {
        for pid in &pids {
            // Ignored: a session may have ended meanwhile.
            let _ = kill_process(Pid::from_raw(*pid).unwrap(), signal);
        }
    };
    signal(Signal::STOP);
    wait_until("the server is missed", || process.get("/readyz").status == 503);
    let refused = process.post(ROWS, &[], BODY);
    assert_eq!((refused.status, refused.code().as_str()), (503, "server_away"));
    signal(Signal::CONT);
    wait_until("the server is back", || process.get("/readyz").status == 200);
    wait_until("records are written", || process.post(ROWS, &[], BODY).status == 201);
}

#[test]
fn a_lost_connection_leaves_an_unknown_outcome_that_a_key_resolves() {
    let scene = ServeScene::new(&[]);
    let dsn = scene.db.dsn();
    let (runtime, holder) = session(&dsn);
    // The record waits for the transaction that has inserted its key. So its statement was sent.
    let end_writers = "select count(pg_terminate_backend(l.pid)) from pg_locks l \
                       join pg_stat_activity a on a.pid = l.pid \
                       where a.datname = current_database() and l.locktype = 'transactionid' \
                         and not l.granted";
    let lock_waits =
        || scene.process.get("/stats").json()["writer"]["lock_waits"].as_u64().unwrap();
    let call = |headers: &[(&str, &str)]| {
        let before = lock_waits();
        let hold = "begin; insert into account values (1, 'held')";
        runtime.block_on(holder.batch_execute(hold)).unwrap();
        let process = &scene.process;
        thread::scope(|scope| {
            let body = r#"{"id":1,"name":"a"}"#;
            let call = scope.spawn(|| process.post("/tables/account/rows", headers, body));
            // From now on the record waits as long as it takes.
            wait_until("the record has left its lane", || lock_waits() > before);
            wait_until("its session waits and is ended", || ask(&dsn, end_writers) != "0");
            runtime.block_on(holder.batch_execute("rollback")).unwrap();
            call.join().unwrap()
        })
    };
    let unknown = call(&[]);
    assert_eq!((unknown.status, unknown.code().as_str()), (504, "outcome_unknown"));
    assert_eq!(unknown.header("retry-after"), "");
    assert_eq!(scene.value("select count(*) from account"), "0");
    assert_eq!(call(&[("idempotency-key", "k")]).status, 201);
    assert_eq!(scene.value("select count(*) from account"), "1");
}

#[test]
fn a_server_that_accepts_no_writes_is_not_ready() {
    let scene = ServeScene::new(&[]);
    let dsn = scene.db.dsn();
    let set_default = |setting: &str| {
        let alter = format!("begin read write; alter database \"{}\"", scene.db.name());
        let setting = format!("{setting} default_transaction_read_only");
        let (runtime, client) = session(&dsn);
        let is_on = if setting.starts_with("set") { "= on" } else { "" };
        let sql = format!("{alter} {setting} {is_on}; commit");
        runtime.block_on(client.batch_execute(&sql)).unwrap();
    };
    set_default("set");
    // As after a failover to a standby.
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where datname = current_database() and application_name like 'pgspate %'";
    ask(&dsn, end);
    wait_until("the server is not ready", || scene.process.get("/readyz").status == 503);
    let refused = scene.post(ROWS, BODY);
    assert_eq!((refused.status, refused.code().as_str()), (503, "read_only"), "{refused:?}");
    let reason = "the server accepts no writes; nothing was written";
    assert_eq!(scene.process.get("/stats").json()["not_ready"], reason);
    set_default("reset");
    wait_until("the server is ready", || scene.process.get("/readyz").status == 200);
    wait_until("records are written", || scene.post(ROWS, BODY).status == 201);
}

//! The user's embedded server: starts, concurrent starts, crashes and stops.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use pgspate_embedded::{EmbeddedServer, ServerState, ServerStatus, silent};
use tokio_postgres::NoTls;

/// An embedded server in a folder of its own. It is stopped and removed at the end of the test.
struct ServerInTempFolder {
    server: EmbeddedServer,
    folder: PathBuf,
}

impl ServerInTempFolder {
    fn new(name: &str) -> ServerInTempFolder {
        let folder = tempfile::Builder::new().prefix("pgspate-").tempdir_in("/tmp").unwrap();
        let folder = folder.keep();
        // As root, the server runs as another user, who must be able to enter the folder.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let server = EmbeddedServer::open_in(&folder.join(name)).unwrap();
        ServerInTempFolder { server, folder }
    }

    fn start(&self) -> ServerStatus {
        self.server.start(&silent).unwrap_or_else(|e| panic!("{}", e.chain()))
    }
}

impl Drop for ServerInTempFolder {
    fn drop(&mut self) {
        let _ = self.server.stop(&silent);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs one query and returns the first value of its first row.
fn ask(dsn: &str, sql: &str) -> Result<String, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
        tokio::spawn(connection);
        for message in client.simple_query(sql).await? {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                return Ok(row.get(0).unwrap_or_default().to_string());
            }
        }
        Ok(String::new())
    })
}

fn send_signal(signal: &str, pid: i32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn the_server_starts_stops_and_keeps_its_data_over_a_restart() {
    let own = ServerInTempFolder::new("it's a home");
    let server = &own.server;
    assert_eq!(server.status().unwrap().state, ServerState::Absent);
    assert!(!server.stop(&silent).unwrap());
    let error = server.dsn().unwrap_err();
    assert_eq!(error.hint_text(), Some("Start it with `pgspate server start`."));

    let status = own.start();
    assert_eq!(status.state, ServerState::Running);
    let dsn = server.secret_dsn().unwrap();
    assert_eq!(ask(&dsn, "show fsync").unwrap(), "on");
    assert_eq!(ask(&dsn, "show max_wal_size").unwrap(), "4GB");
    assert_eq!(ask(&dsn, "show listen_addresses").unwrap(), "127.0.0.1");
    assert_eq!(ask(&dsn, "show server_encoding").unwrap(), "UTF8");
    ask(&dsn, "create table t as select 7 as n").unwrap();
    assert_eq!(own.start().pid, status.pid, "a second start must not start another server");

    assert!(server.stop(&silent).unwrap());
    assert_eq!(server.status().unwrap().state, ServerState::Stopped);
    let again = own.start();
    assert_eq!(again.port, status.port, "a restart must keep the port");
    assert_eq!(ask(&server.secret_dsn().unwrap(), "select n from t").unwrap(), "7");
}

#[test]
fn tcp_requires_the_password_and_the_files_are_private() {
    let own = ServerInTempFolder::new("home");
    let status = own.start();
    let url = own.server.tcp_dsn().unwrap();
    assert_eq!(ask(&url, "select 1").unwrap(), "1");
    let without = format!("host=127.0.0.1 port={} user=postgres", status.port.unwrap());
    assert!(ask(&without, "select 1").is_err());
    assert!(!own.server.dsn().unwrap().contains("password="));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let major = status.major.unwrap();
    assert_eq!(mode(&own.folder.join(format!("home/password-{major}"))), 0o600);
    assert_eq!(mode(status.socket_folder.as_deref().unwrap()), 0o700);
    assert_eq!(mode(status.data_folder.as_deref().unwrap()), 0o700);
    let text = serde_json::to_string(&status).unwrap();
    assert!(text.contains("\"state\":\"running\""), "{text}");
    let psql = own.server.psql_command().unwrap();
    assert!(psql.starts_with("psql 'host=/") && psql.contains(" passfile=/"), "{psql}");
}

#[test]
fn concurrent_starts_share_one_server() {
    let own = ServerInTempFolder::new("home");
    let pids: Vec<Option<i32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| own.start().pid)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(pids[0].is_some());
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
}

#[test]
fn the_server_recovers_after_a_crash() {
    let own = ServerInTempFolder::new("home");
    let pid = own.start().pid.unwrap();
    ask(&own.server.secret_dsn().unwrap(), "create table t as select 7 as n").unwrap();
    send_signal("-KILL", pid);
    // The server starts again at once, while children of the killed server may still run.
    let status = own.start();
    assert_ne!(status.pid, Some(pid));
    assert_eq!(ask(&own.server.secret_dsn().unwrap(), "select n from t").unwrap(), "7");
}

#[test]
fn a_stale_process_id_is_not_taken_for_a_server() {
    let own = ServerInTempFolder::new("home");
    let status = own.start();
    own.server.stop(&silent).unwrap();
    let path = status.data_folder.unwrap().join("postmaster.pid");
    for pid in [std::process::id(), 1, 4_194_305] {
        let rest = "/data\n1700000000\n5432\n/tmp\n127.0.0.1\n  1   1\nready   \n";
        fs::write(&path, format!("{pid}\n{rest}")).unwrap();
        assert_eq!(own.server.status().unwrap().state, ServerState::Stopped);
        assert!(!own.server.stop(&silent).unwrap());
    }
    fs::write(&path, "").unwrap();
    assert_eq!(own.start().state, ServerState::Running);
}

#[test]
fn the_server_has_a_session_of_its_own() {
    let own = ServerInTempFolder::new("home");
    let pid = own.start().pid.unwrap();
    let session = |pid: &str| {
        let output = Command::new("ps").args(["-o", "sess=", "-p", pid]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    let server_session = session(&pid.to_string());
    assert!(!server_session.is_empty());
    assert_ne!(server_session, session(&std::process::id().to_string()));
}

#[test]
fn the_error_of_a_failed_start_quotes_the_log() {
    let own = ServerInTempFolder::new("home");
    let status = own.start();
    own.server.stop(&silent).unwrap();
    let path = status.data_folder.unwrap().join("postgresql.auto.conf");
    fs::write(&path, "shared_buffers = 'nonsense'\n").unwrap();
    let error = own.server.start(&silent).unwrap_err();
    assert!(error.chain().contains("shared_buffers"), "{}", error.chain());
    assert!(error.hint_text().unwrap().contains("log"));
    fs::write(&path, "").unwrap();
    assert_eq!(own.start().state, ServerState::Running);
}

#[test]
fn steps_are_reported_and_a_long_path_gets_no_socket() {
    let own = ServerInTempFolder::new(&"long".repeat(25));
    let steps = std::cell::RefCell::new(Vec::new());
    own.server.start(&|step| steps.borrow_mut().push(step.to_string())).unwrap();
    let steps = steps.into_inner();
    // Before these two steps, PostgreSQL may have been fetched.
    let last = &steps[steps.len() - 2..];
    assert!(last[0].starts_with("creating \"/tmp/pgspate-"), "{steps:?}");
    assert!(last[1].starts_with("starting PostgreSQL "), "{steps:?}");
    assert_eq!(own.server.status().unwrap().socket_folder, None);
    assert_eq!(ask(&own.server.secret_dsn().unwrap(), "select 1").unwrap(), "1");
}

#[test]
fn existing_data_of_an_older_version_is_used() {
    let own = ServerInTempFolder::new("home");
    let (home, absent) = (own.folder.join("home"), own.server.status().unwrap());
    assert_eq!((absent.state, absent.major), (ServerState::Absent, None));
    for (name, has_data) in [("data-13", true), ("data-17", false), ("data-x", true)] {
        fs::create_dir_all(home.join(name)).unwrap();
        if has_data {
            fs::write(home.join(name).join("PG_VERSION"), "13\n").unwrap();
        }
    }
    let has_wanted_version = std::env::var("PGSPATE_PG_VERSION").is_ok();
    let status = own.server.status().unwrap();
    if !has_wanted_version {
        assert_eq!((status.state, status.major), (ServerState::Stopped, Some(13)));
    }
}

#[test]
fn the_data_folder_keeps_its_owner() {
    let own = ServerInTempFolder::new("home");
    let status = own.start();
    let data = status.data_folder.unwrap();
    own.server.stop(&silent).unwrap();
    let is_root = fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
    if is_root {
        // The owner is another user than the one that pgspate would choose now.
        let status = Command::new("chown").arg("-R").arg("4242:4242").arg(&data).status();
        assert!(status.unwrap().success());
        fs::remove_dir_all(own.folder.join(format!("home/run-{}", status_major(&own)))).unwrap();
    }
    assert_eq!(own.start().state, ServerState::Running);
}

fn status_major(own: &ServerInTempFolder) -> u32 {
    own.server.status().unwrap().major.unwrap()
}

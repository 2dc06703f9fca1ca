//! Tests with the real PgBouncer, if it is installed.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tokio_postgres::config::Host;

use crate::poolers::{COMMANDS, SELECT_SESSION_STATE, case, run};
use crate::run::{ask, try_ask, wait_until};

/// A PgBouncer process, which is killed when the value is dropped.
struct PgBouncer {
    process: Child,
    _folder: TempDir,
    dsn: String,
}

impl PgBouncer {
    /// Starts PgBouncer for a server. Returns `None` if PgBouncer is not installed.
    fn start(dsn: &str, settings: &str) -> Option<PgBouncer> {
        let config: tokio_postgres::Config = dsn.parse().unwrap();
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"]
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())?;
        let host = match &config.get_hosts()[0] {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        };
        let server = config.get_ports().first().copied().unwrap_or(5432);
        let (user, name) = (config.get_user().unwrap(), config.get_dbname().unwrap());
        // The port is free now. If another process takes the port first, the test fails.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = TempDir::with_prefix("pgspate-pgbouncer-").unwrap();
        let file = folder.path().join("pgbouncer.ini");
        let password = config.get_password().map(String::from_utf8_lossy);
        let password = password.map(|text| format!(" password='{}'", text.replace('\'', "''")));
        let password = password.unwrap_or_default();
        let text = format!(
            "[databases]\n{name} = host={host} port={server} user={user}{password}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\n{settings}\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if owner("/proc/self") == Some(0) {
            // PgBouncer refuses to run as root. The user who runs the server can open the server's
            // socket.
            let user = owner(&host).unwrap_or(NOBODY);
            std::os::unix::fs::chown(folder.path(), Some(user), None).unwrap();
            command.uid(user);
        }
        let process = command.spawn().unwrap();
        let dsn = format!("host=127.0.0.1 port={port} user={user} dbname={name}");
        let started = PgBouncer { process, _folder: folder, dsn };
        wait_until("PgBouncer answers", || try_ask(&started.dsn, "select 1").is_ok());
        Some(started)
    }
}

/// The user id of `nobody` on every Linux.
const NOBODY: u32 = 65_534;

/// Returns the user id of a file's owner.
fn owner(path: &str) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|it| it.uid())
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn transaction_pooling_is_refused_and_changes_no_session() {
    let case = case();
    for settings in ["pool_mode = transaction", "pool_mode = transaction\nserver_round_robin = 1"] {
        let Some(pooler) = PgBouncer::start(&case.db.dsn(), settings) else {
            eprintln!("skipped: PgBouncer is not installed (apt-get install pgbouncer)");
            return;
        };
        let before = ask(&pooler.dsn, SELECT_SESSION_STATE);
        for command in COMMANDS {
            let run = run(&case, &pooler.dsn, command);
            assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""), "{command}");
            let refused = "is a connection pooler that gives each transaction another session";
            assert!(run.stderr.contains(refused), "{command}: {}", run.stderr);
            for _ in 0..6 {
                assert_eq!(ask(&pooler.dsn, SELECT_SESSION_STATE), before, "{command}");
            }
        }
    }
}

#[test]
fn a_pooler_without_a_connection_for_the_test_is_refused() {
    let case = case();
    let settings = "pool_mode = transaction\nmax_client_conn = 1";
    let Some(pooler) = PgBouncer::start(&case.db.dsn(), settings) else { return };
    for command in COMMANDS {
        let run = run(&case, &pooler.dsn, command);
        assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""), "{command}");
        let untested =
            "a connection pooler, gives each transaction another session: it had no second";
        assert!(run.stderr.contains(untested), "{command}: {}", run.stderr);
    }
}

#[test]
fn session_pooling_is_accepted_and_leaves_no_session_state() {
    let case = case();
    let Some(pooler) = PgBouncer::start(&case.db.dsn(), "pool_mode = session") else { return };
    let before = ask(&pooler.dsn, SELECT_SESSION_STATE);
    for command in COMMANDS {
        let run = run(&case, &pooler.dsn, command);
        assert!(matches!(run.status, Some(0 | 1)), "{command}: {}", run.stderr);
        for _ in 0..6 {
            assert_eq!(ask(&pooler.dsn, SELECT_SESSION_STATE), before, "{command}");
        }
    }
    assert_eq!(case.value("select count(*) from t"), "3");
}

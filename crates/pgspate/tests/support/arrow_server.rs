//! A throwaway PostgreSQL and a database for each test.
//!
//! Uses the server of `PGSPATE_TEST_DSN` if this variable is set. Otherwise starts a server in a
//! temporary folder. Tests that run at the same time share the server, and the last test stops it.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Config, NoTls};

static SHARED: Mutex<Weak<ArrowServer>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);
/// The user to run the server as if the tests run as root. PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

struct ArrowServer {
    config: Config,
    own: Option<(Child, tempfile::TempDir)>,
}

/// A database for one test. Dropping the value drops the database.
pub(crate) struct Database {
    runtime: Runtime,
    pub(crate) client: Client,
    name: String,
    server: Arc<ArrowServer>,
}

impl Database {
    /// Creates an empty database.
    pub(crate) fn new() -> Database {
        let server = ArrowServer::shared();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let ordinal = DATABASES.fetch_add(1, Ordering::Relaxed);
        let name = format!("pgspate_arrow_{}_{ordinal}", std::process::id());
        let client = runtime.block_on(async {
            let create = format!("create database {name} template template0 encoding 'UTF8'");
            connect(&server.config).await.batch_execute(&create).await.unwrap();
            connect(server.config.clone().dbname(&name)).await
        });
        Database { runtime, client, name, server }
    }

    pub(crate) fn run(&self, sql: &str) {
        let result = self.runtime.block_on(self.client.batch_execute(sql));
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Returns the first two columns of each row as text.
    pub(crate) fn rows(&self, sql: &str) -> Vec<(String, Option<String>)> {
        let rows = self.runtime.block_on(self.client.query(sql, &[])).unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Runs COPY with these bytes. Returns the number of rows, or the SQLSTATE.
    pub(crate) fn copy(&self, sql: &str, bytes: Vec<u8>) -> Result<u64, String> {
        let code = |error: tokio_postgres::Error| match error.code() {
            Some(code) => code.code().to_owned(),
            None => panic!("{sql}: {error:?}"),
        };
        self.runtime.block_on(async {
            let sink = self.client.copy_in::<_, Bytes>(sql).await.map_err(code)?;
            let mut sink = std::pin::pin!(sink);
            sink.send(Bytes::from(bytes)).await.map_err(code)?;
            sink.finish().await.map_err(code)
        })
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("drop database {} with (force)", self.name);
        let dropped = self
            .runtime
            .block_on(async { connect(&self.server.config).await.batch_execute(&sql).await });
        if !std::thread::panicking() {
            dropped.unwrap();
        }
    }
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl ArrowServer {
    fn shared() -> Arc<ArrowServer> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(match std::env::var("PGSPATE_TEST_DSN") {
            Ok(dsn) => ArrowServer { config: dsn.parse().unwrap(), own: None },
            Err(_) => ArrowServer::start(),
        });
        *shared = Arc::downgrade(&server);
        server
    }

    fn start() -> ArrowServer {
        let bin = bin_dir();
        let folder = tempfile::Builder::new().prefix("pgspate-arrow").tempdir().unwrap();
        let is_root = std::fs::metadata("/proc/self")
            .is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
        if is_root {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let command = |program: &str| {
            let mut command = Command::new(bin.join(program));
            command.current_dir(folder.path()).stdin(Stdio::null());
            if is_root {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        let data = folder.path().join("data");
        let made = command("initdb")
            .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8"])
            .args(["--locale=C", "--pgdata"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let child = command("postgres")
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(folder.path())
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "timezone=UTC"])
            .stdout(Stdio::null())
            .stderr(Stdio::from(std::fs::File::create(folder.path().join("log")).unwrap()))
            .spawn()
            .unwrap();
        let mut config = Config::new();
        config.host_path(folder.path()).user("postgres").dbname("postgres");
        wait_until_ready(folder.path());
        ArrowServer { config, own: Some((child, folder)) }
    }
}

impl Drop for ArrowServer {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.own {
            // An immediate shutdown is enough, because the data is no longer needed.
            let pid = child.id().to_string();
            let _ = Command::new("kill").args(["-QUIT", &pid]).status();
            let _ = child.wait();
        }
    }
}

fn wait_until_ready(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut config = Config::new();
    config.host_path(folder).user("postgres").dbname("postgres");
    while runtime.block_on(config.connect(NoTls)).is_err() {
        let log = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(Instant::now() < deadline, "the server does not answer: {}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn bin_dir() -> PathBuf {
    let config = Command::new("pg_config").arg("--bindir").output();
    let named = config.ok().map(|out| String::from_utf8_lossy(&out.stdout).trim().into());
    let mut found: Vec<PathBuf> = named.into_iter().collect();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        found.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    found.sort();
    let has_server = |bin: &&PathBuf| bin.join("initdb").exists() && bin.join("postgres").exists();
    found
        .iter()
        .rev()
        .find(has_server)
        .expect("the tests need an installed PostgreSQL, or PGSPATE_TEST_DSN")
        .clone()
}

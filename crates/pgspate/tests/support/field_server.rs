//! A PostgreSQL server for the field tests. `PGSPATE_TEST_DSN` names a server. Without this
//! variable, the tests start a server in a temporary folder. Dropping the value stops and removes
//! this server.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

pub(crate) struct FieldServer {
    dsn: String,
    own: Option<OwnPostmaster>,
}

struct OwnPostmaster {
    bin: PathBuf,
    folder: TempDir,
    user: Option<(u32, u32)>,
    postmaster: Child,
}

impl FieldServer {
    pub(crate) fn start() -> FieldServer {
        if let Ok(dsn) = std::env::var("PGSPATE_TEST_DSN") {
            return FieldServer { dsn, own: None };
        }
        let own = OwnPostmaster::start();
        let dsn = format!("host={} user=postgres dbname=postgres", own.folder.path().display());
        FieldServer { dsn, own: Some(own) }
    }

    /// Opens a session. The tests create only temporary objects in it.
    pub(crate) async fn connect(&self) -> Client {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match tokio_postgres::connect(&self.dsn, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return client;
                }
                Err(error) if Instant::now() > deadline || self.own.is_none() => {
                    panic!("could not connect to the test server: {error}")
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

impl OwnPostmaster {
    fn start() -> OwnPostmaster {
        let bin =
            bin_folder().expect("the tests need an installed PostgreSQL, or PGSPATE_TEST_DSN");
        let folder = tempfile::Builder::new().prefix("pgspate-field-").tempdir().unwrap();
        let user = unprivileged_user(folder.path());
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let data = folder.path().join("data");
        let made = as_user(&bin.join("initdb"), user)
            .args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(made.success(), "initdb failed");
        let postmaster = as_user(&bin.join("postgres"), user)
            .args(["-F", "-c", "listen_addresses=", "-c", "max_wal_size=256MB", "-k"])
            .arg(folder.path())
            .arg("-D")
            .arg(&data)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        OwnPostmaster { bin, folder, user, postmaster }
    }
}

impl Drop for OwnPostmaster {
    fn drop(&mut self) {
        let _ = as_user(&self.bin.join("pg_ctl"), self.user)
            .args(["stop", "-m", "immediate", "-D"])
            .arg(self.folder.path().join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let _ = self.postmaster.wait();
    }
}

fn as_user(program: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").env_remove("PGDATA").env("LC_ALL", "C");
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command
}

/// Returns the user to run the server as if the tests run as root: `postgres` or `nobody`.
/// PostgreSQL refuses to run as root.
fn unprivileged_user(folder: &Path) -> Option<(u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    if folder.metadata().unwrap().uid() != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let ids = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(|id| id.parse().unwrap());
        Some((ids.next()?, ids.next()?))
    };
    Some(
        ids("postgres")
            .or_else(|| ids("nobody"))
            .expect("the system must have the user postgres or nobody"),
    )
}

fn bin_folder() -> Option<PathBuf> {
    let has_server = |folder: &PathBuf| folder.join("initdb").exists();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        if has_server(&folder) {
            return Some(folder);
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = std::env::split_paths(&path).find(has_server) {
        return Some(folder);
    }
    let mut installed: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(has_server)
        .collect();
    installed.sort();
    installed.pop()
}

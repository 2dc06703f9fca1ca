//! A PostgreSQL for one test binary: the one in `PGSPATE_TEST_DSN`, or a throwaway one on a socket
//! in a temporary folder, stopped and removed when dropped.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server; `dsn` says how to connect to it.
pub(crate) struct Server {
    pub(crate) dsn: String,
    running: Option<(Child, TempDir)>,
}

impl Server {
    /// The server, or `None` where there is no PostgreSQL to start.
    pub(crate) fn start() -> Option<Server> {
        if let Ok(dsn) = std::env::var("PGSPATE_TEST_DSN") {
            return Some(Server { dsn, running: None });
        }
        let bin = bin_dir()?;
        let folder = tempfile::Builder::new().prefix("pgspate-json").tempdir_in("/tmp").ok()?;
        let data = folder.path().join("data");
        let user = unprivileged();
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).expect("the folder can be given away");
        }
        let made = command(&bin.join("initdb"), user)
            .args(["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8"])
            .args(["--locale=C", "--pgdata"])
            .arg(&data)
            .output()
            .expect("initdb starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let child = command(&bin.join("postgres"), user)
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(folder.path())
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .stderr(Stdio::null())
            .spawn()
            .expect("postgres starts");
        let dsn = format!("host={} user=postgres dbname=postgres", folder.path().display());
        let server = Server { dsn, running: Some((child, folder)) };
        server.wait();
        Some(server)
    }

    /// Waits until the socket is there and the server is past its start.
    fn wait(&self) {
        let Some((_, folder)) = &self.running else { return };
        let state = folder.path().join("data/postmaster.pid");
        let until = Instant::now() + Duration::from_secs(60);
        while !std::fs::read_to_string(&state).is_ok_and(|text| text.contains("ready")) {
            assert!(Instant::now() < until, "the server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((child, folder)) = &mut self.running {
            // SIGINT is a fast shutdown; its children would outlive a SIGKILL for a moment.
            let pid = child.id().to_string();
            let asked = Command::new("kill").args(["-INT", &pid]).status();
            if !asked.is_ok_and(|status| status.success()) {
                let _ = child.kill();
            }
            let _ = child.wait();
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
}

fn bin_dir() -> Option<PathBuf> {
    let told = Command::new("pg_config").arg("--bindir").output().ok();
    let told = told.and_then(|out| String::from_utf8(out.stdout).ok());
    let told = told.map(|dir| PathBuf::from(dir.trim()));
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = installed.map(|dir| dir.path().join("bin")).collect();
    dirs.sort();
    dirs.extend(told);
    dirs.into_iter().rev().find(|dir| dir.join("postgres").exists() && dir.join("initdb").exists())
}

/// The ids that the server runs under when we are root, which it refuses to be.
fn unprivileged() -> Option<(u32, u32)> {
    let id = Command::new("id").arg("-u").output().ok()?;
    (id.stdout.trim_ascii() == b"0").then_some((65534, 65534))
}

fn command(program: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

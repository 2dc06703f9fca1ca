//! A PostgreSQL server for tests in a temporary folder. Dropping the value stops the server.
//!
//! PostgreSQL refuses to run as root. If the tests run as root, the server runs as another user.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pgspate_embedded::{silent, testing};
use tempfile::TempDir;

/// A running server. The superuser `postgres` can always log in through the socket.
pub(crate) struct Server {
    process: Child,
    folder: TempDir,
    port: u16,
}

impl Server {
    /// Starts a server with lines for `postgresql.conf` and `pg_hba.conf`, and with files that are
    /// put into its data folder.
    pub(crate) fn start(conf: &str, hba: &str, files: &[(&str, &str)]) -> Server {
        let bin = testing::installation(&silent).unwrap().bin_dir;
        let owner = unprivileged_owner();
        let folder = tempfile::Builder::new().prefix("pgspate-").tempdir().unwrap();
        set_owner(folder.path(), owner);
        let data = folder.path().join("data");
        let mut initdb = command(&bin.join("initdb"), owner, folder.path());
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N", "-D"]);
        let made = initdb.arg(&data).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        for (name, text) in files {
            write_file(&data.join(name), text, owner);
        }
        let hba = format!("local all postgres trust\n{hba}");
        write_file(&data.join("pg_hba.conf"), &hba, owner);
        let template = fs::read_to_string(data.join("postgresql.conf")).unwrap();
        let (process, port) = launch(&bin, folder.path(), owner, &format!("{template}\n{conf}\n"));
        Server { process, folder, port }
    }

    /// Returns the port on which the server listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the folder of the server's socket. Tests may put files into this folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs SQL as the superuser. Returns the first value, or an empty text if there is no value.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.folder()).port(self.port).user("postgres").dbname("postgres");
        // The server's default may be read-only.
        config.options("-c default_transaction_read_only=off");
        let work = async {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
            let connection = tokio::spawn(connection);
            let messages = client.simple_query(sql).await.unwrap();
            drop(client);
            connection.await.unwrap().unwrap();
            let value = messages.iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            });
            value.unwrap_or_default()
        };
        // The caller may be inside a runtime, so the query runs on another thread.
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work)
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// Puts a file into the data folder of the running server.
    pub(crate) fn put(&self, name: &str, text: &str) {
        write_file(&self.folder().join("data").join(name), text, unprivileged_owner());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGINT is a fast shutdown: the server ends all sessions and then stops cleanly.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").args(["-INT", &pid]).status();
        for _ in 0..500 {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts the server on a free port. If another process takes the port first, tries another port.
fn launch(bin: &Path, folder: &Path, owner: Option<(u32, u32)>, conf: &str) -> (Child, u16) {
    let data = folder.join("data");
    for _ in 0..5 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let own_lines = format!(
            "port = {port}\nunix_socket_directories = '{}'\nlisten_addresses = 'localhost'\n\
             fsync = off\nshared_buffers = '16MB'\nmax_connections = 40\n",
            folder.display()
        );
        write_file(&data.join("postgresql.conf"), &format!("{conf}{own_lines}"), owner);
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut postgres = command(&bin.join("postgres"), owner, folder);
        postgres.arg("-D").arg(&data).stdout(Stdio::null()).stderr(log);
        let mut process = postgres.spawn().unwrap();
        while process.try_wait().unwrap().is_none() {
            let state = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
            if state.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
                return (process, port);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!(
        "could not start the server: {}",
        fs::read_to_string(folder.join("log")).unwrap_or_default()
    );
}

fn command(program: &Path, owner: Option<(u32, u32)>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").current_dir(folder);
    if let Some((uid, gid)) = owner {
        command.uid(uid).gid(gid);
    }
    command
}

fn set_owner(path: &Path, owner: Option<(u32, u32)>) {
    if let Some((uid, gid)) = owner {
        chown(path, Some(uid), Some(gid)).unwrap();
    }
}

fn write_file(path: &Path, text: &str, owner: Option<(u32, u32)>) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    set_owner(path, owner);
}

/// Returns the user to run the server as if the tests run as root: the user of PostgreSQL's
/// package, or `nobody`.
fn unprivileged_owner() -> Option<(u32, u32)> {
    if fs::metadata("/proc/self").map_or(true, |facts| facts.uid() != 0) {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let find = |user: &str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(user))?;
        let mut fields = line.split(':').skip(2).map(|field| field.parse().ok());
        Some((fields.next()??, fields.next()??))
    };
    Some(
        find("postgres")
            .or_else(|| find("nobody"))
            .expect("the system must have the user postgres or nobody"),
    )
}

//! The user's embedded server: its data stays, and it runs until `pgspate server stop`.
//!
//! A process holds a lock while it creates, starts or stops the server. So processes that start the
//! server at once share one server. The server is not a child of pgspate and has its own session:
//! neither Ctrl-C nor the end of pgspate stops it. The names of data folders end with the major
//! version. By default the existing data folder is used, even if a newer PostgreSQL is installed.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgspate_base::shell_word;
use serde::Serialize;

use crate::account::ServerAccount;
use crate::error::{self, Result};
use crate::find::{Installation, check_given_folder, locate_major, wanted_major};
use crate::folder::OpenFolder;
use crate::home::EmbeddedHome;
use crate::pidfile::{PidFile, disarm_stale};
use crate::progress::{Progress, ServerStep};
use crate::{dsn, folder, initdb, launch, process, sys};

/// The time limit of a stop. The server ends all sessions, then writes a checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// The pause between two checks of a busy server.
const POLL: Duration = Duration::from_millis(50);
/// How many ports are tried. Another process may take a free port before the server binds it.
const PORTS_MAX: u32 = 8;
/// How often a start waits until the children of a killed server release its memory.
const MEMORY_WAITS_MAX: u32 = 40;
/// A longer log is renamed to `log.old` at the next start.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// The state of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// There is no data: the server was never started.
    Absent,
    /// There is data, but no server process.
    Stopped,
    /// The server process accepts no connections: the server starts, recovers, or stops.
    Busy,
    /// The server accepts connections.
    Running,
}

/// The state of the server, and its address and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerStatus {
    /// The state of the server.
    pub state: ServerState,
    /// The major version of the data.
    pub major: Option<u32>,
    /// The process id, if there is a process.
    pub pid: Option<i32>,
    /// The TCP port on 127.0.0.1, if there is a process.
    pub port: Option<u16>,
    /// The folder of the Unix socket, if there is a process. There is no socket if the path is too
    /// long.
    pub socket_folder: Option<PathBuf>,
    /// The data folder.
    pub data_folder: Option<PathBuf>,
    /// The server's log file.
    pub log: Option<PathBuf>,
}

/// The user's embedded server. The value is a handle: dropping it does not stop the server.
#[derive(Debug, Clone)]
pub struct EmbeddedServer {
    home: EmbeddedHome,
    /// The major version in `PGSPATE_PG_VERSION`, if set.
    wanted_major: Option<u32>,
}

/// The files and folders of one major version.
struct VersionPaths {
    /// The data folder.
    data: PathBuf,
    /// The folder of the socket and the log.
    run: PathBuf,
    log: PathBuf,
    /// The password file.
    password: PathBuf,
    /// The temporary folder in which a new data folder is created.
    staging: PathBuf,
}

impl EmbeddedServer {
    /// Returns the server in pgspate's data folder: `PGSPATE_DATA_DIR`, else `pgspate` in
    /// `XDG_DATA_HOME`, else `~/.local/share/pgspate` (for root `/var/lib/pgspate`). If
    /// `PGSPATE_PG_VERSION` is set, the server has this major version. Creates and starts nothing.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if an environment variable is invalid, or the server's
    /// user cannot enter the folder.
    pub fn open() -> Result<EmbeddedServer> {
        Ok(EmbeddedServer {
            home: EmbeddedHome::from_environment()?,
            wanted_major: wanted_major("PGSPATE_PG_VERSION")?,
        })
    }

    /// Returns the server with its data in another folder. Fetched programs are still stored in
    /// pgspate's data folder, so that they are fetched once.
    ///
    /// # Errors
    /// The errors of [`EmbeddedServer::open`].
    pub fn open_in(folder: &Path) -> Result<EmbeddedServer> {
        Ok(EmbeddedServer {
            home: EmbeddedHome::at(folder)?,
            wanted_major: wanted_major("PGSPATE_PG_VERSION")?,
        })
    }

    /// Starts the server, if it does not run, and creates its data folder, if that is absent.
    /// Returns when the server accepts connections.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if no installation was found and none could be fetched,
    /// the folder cannot be written, or the server does not start. In the last case the end of the
    /// log is the cause.
    pub fn start(&self, progress: &Progress<'_>) -> Result<ServerStatus> {
        let status = self.status()?;
        if status.state == ServerState::Running && !self.is_of_earlier_version(&status)? {
            return Ok(status);
        }
        self.home.create()?;
        let _lock = self.lock()?;
        // Another process may have started the server while this process waited for the lock.
        let status = self.status()?;
        if status.state == ServerState::Running {
            self.upgrade(&status)?;
            return Ok(status);
        }
        let major = status.major.or(self.wanted_major);
        if let (Some(pid), Some(major)) = (status.pid, major) {
            progress(&ServerStep::Recovering);
            if self.wait_while_busy(&self.paths(major), pid) {
                return self.status();
            }
        }
        check_given_folder(self.wanted_major)?;
        let installation = locate_major(major, progress)?;
        let paths = self.paths(installation.major);
        if !paths.data.join("PG_VERSION").is_file() {
            self.create_data_folder(&installation, &paths, progress)?;
        }
        self.launch(&installation, &paths, progress)?;
        self.status()
    }

    /// Stops the server with a fast shutdown, which ends all sessions. Returns whether the server
    /// was running.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if the server belongs to another user, or still runs
    /// after two minutes.
    pub fn stop(&self, progress: &Progress<'_>) -> Result<bool> {
        if self.status()?.pid.is_none() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        let Some(pid) = self.status()?.pid else { return Ok(false) };
        progress(&ServerStep::Stopping);
        let failed = || error::new("could not stop the embedded PostgreSQL");
        sys::signal(pid, libc::SIGINT).map_err(|e| failed().because(e))?;
        if process::wait_for_end(pid, STOP_LIMIT) {
            return Ok(true);
        }
        let seconds = STOP_LIMIT.as_secs();
        let cause = error::new(format!("process {pid} still runs after {seconds} s"));
        Err(failed().because(cause))
    }

    /// Returns the state of the server. Changes nothing.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if the data folder cannot be read.
    pub fn status(&self) -> Result<ServerStatus> {
        let mut status = ServerStatus {
            state: ServerState::Absent,
            major: None,
            pid: None,
            port: None,
            socket_folder: None,
            data_folder: None,
            log: None,
        };
        let Some((major, file)) = self.current_major()? else { return Ok(status) };
        let paths = self.paths(major);
        status.state = ServerState::Stopped;
        if let Some(file) = file {
            let sockets = file.socket_folder.as_deref();
            let accepts = |port| file.is_ready && launch::accepts_connections(sockets, port);
            let is_running = file.port.is_some_and(accepts);
            status.state = if is_running { ServerState::Running } else { ServerState::Busy };
            (status.pid, status.port) = (Some(file.pid), file.port);
            status.socket_folder = file.socket_folder;
        }
        (status.major, status.log) = (Some(major), Some(paths.log));
        status.data_folder = Some(paths.data);
        Ok(status)
    }

    /// Returns a `key=value` string for the database `postgres` of the running server: over the
    /// Unix socket if there is one, else over TCP. The string names the password file, which psql
    /// and all clients with libpq read. For them `PGPASSWORD` has priority over the file.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if the server is not running, or the password file
    /// cannot be read.
    pub fn dsn(&self) -> Result<String> {
        let (address, paths) = self.address_and_paths()?;
        read_passfile(&paths)?;
        Ok(dsn::with_passfile(&address, &paths.password))
    }

    /// Returns a string like [`EmbeddedServer::dsn`], but with the password itself. Used for
    /// connections of this process, so that `PGPASSWORD` does not matter. Must not be printed.
    ///
    /// # Errors
    /// The errors of [`EmbeddedServer::dsn`].
    pub fn secret_dsn(&self) -> Result<String> {
        let (address, paths) = self.address_and_paths()?;
        let text = read_passfile(&paths)?;
        Ok(dsn::with_password(&address, dsn::password_in(&text)))
    }

    /// Returns a URL for the database `postgres` over TCP on 127.0.0.1. The URL contains the
    /// password.
    ///
    /// # Errors
    /// The errors of [`EmbeddedServer::dsn`].
    pub fn tcp_dsn(&self) -> Result<String> {
        let (status, port) = self.running()?;
        let text = read_passfile(&self.paths(status.major.unwrap_or_default()))?;
        Ok(dsn::for_tcp(port, dsn::password_in(&text), "postgres"))
    }

    /// Returns a shell command that opens the database with `psql`.
    ///
    /// # Errors
    /// The errors of [`EmbeddedServer::dsn`].
    pub fn psql_command(&self) -> Result<String> {
        Ok(format!("psql {}", shell_word(&self.dsn()?)))
    }

    /// Returns host, port, role and database of the running server, and its files and folders.
    fn address_and_paths(&self) -> Result<(String, VersionPaths)> {
        let (status, port) = self.running()?;
        let address = dsn::for_server(status.socket_folder.as_deref(), port, "postgres");
        Ok((address, self.paths(status.major.unwrap_or_default())))
    }

    /// Returns whether an earlier version of pgspate created the data. Servers of that version
    /// trusted all connections to the socket.
    fn is_of_earlier_version(&self, status: &ServerStatus) -> Result<bool> {
        Ok(!dsn::is_passfile(&read_passfile(&self.paths(status.major.unwrap_or_default()))?))
    }

    /// Makes a running server of an earlier version require the password.
    fn upgrade(&self, status: &ServerStatus) -> Result<()> {
        let paths = self.paths(status.major.unwrap_or_default());
        let account = self.account_of(&paths.data)?;
        require_password(&paths, account.as_ref(), status.pid)
    }

    /// Returns the status and the port of the server, which must be running.
    fn running(&self) -> Result<(ServerStatus, u16)> {
        let status = self.status()?;
        match status.port {
            Some(port) if status.state == ServerState::Running => Ok((status, port)),
            _ => Err(error::new("the embedded PostgreSQL is not running")
                .hint("Start it with `pgspate server start`.")),
        }
    }

    /// Returns the user that owns the data, if pgspate runs as root. The server refuses data of
    /// another user, so it must run as the user who created the data, also if
    /// [`ServerAccount::for_server`] now chooses another user. Only pgspate's user can write to the
    /// root folder, so the owner is trusted.
    fn account_of(&self, data: &Path) -> Result<Option<ServerAccount>> {
        let folder = OpenFolder::open(data)?;
        let Some(account) = &self.home.account else {
            folder.require_safe(&[sys::effective_uid()])?;
            return Ok(None);
        };
        let metadata = folder.metadata()?;
        folder.require_safe(&[metadata.uid()])?;
        if metadata.uid() == account.uid || metadata.uid() == 0 {
            return Ok(Some(account.clone()));
        }
        let name = format!("user {}", metadata.uid());
        Ok(Some(ServerAccount { name, uid: metadata.uid(), gid: metadata.gid() }))
    }

    /// Waits for the lock that a process holds while it creates, starts or stops the server.
    fn lock(&self) -> Result<File> {
        let path = self.home.root.join("lock-server");
        let file = folder::lock_file(&path)?;
        file.lock().map_err(|e| error::could_not("lock", &path, e))?;
        Ok(file)
    }

    /// Returns the files and folders of a major version.
    fn paths(&self, major: u32) -> VersionPaths {
        let run = self.home.root.join(format!("run-{major}"));
        VersionPaths {
            data: self.home.root.join(format!("data-{major}")),
            log: run.join("log"),
            run,
            password: self.home.root.join(format!("password-{major}")),
            staging: self.home.root.join(format!("new-{major}")),
        }
    }

    /// Returns the major version in use, and its `postmaster.pid` if its server is running: the
    /// version in `PGSPATE_PG_VERSION`, else the running one, else the newest version with data.
    fn current_major(&self) -> Result<Option<(u32, Option<PidFile>)>> {
        let mut majors = self.majors()?;
        majors.retain(|major| self.wanted_major.is_none_or(|wanted| wanted == *major));
        let majors_and_files: Vec<_> = majors
            .into_iter()
            .map(|major| (major, PidFile::of_running(&self.paths(major).data)))
            .collect();
        let running = majors_and_files.iter().position(|(_, file)| file.is_some());
        Ok(majors_and_files.into_iter().nth(running.unwrap_or(0)))
    }

    /// Returns the major versions that have data, newest first.
    fn majors(&self) -> Result<Vec<u32>> {
        let entries = match fs::read_dir(&self.home.root) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(error::could_not("read", &self.home.root, e)),
            Ok(entries) => entries,
        };
        self.home.require_own()?;
        let major = |name: String| name.strip_prefix("data-")?.parse().ok();
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut majors: Vec<u32> = names.filter_map(major).collect();
        majors.retain(|major| self.paths(*major).data.join("PG_VERSION").is_file());
        majors.sort_by(|a, b| b.cmp(a));
        Ok(majors)
    }

    /// Creates the data folder, first under another name: so an existing data folder is always
    /// complete.
    fn create_data_folder(
        &self,
        installation: &Installation,
        paths: &VersionPaths,
        progress: &Progress<'_>,
    ) -> Result<()> {
        progress(&ServerStep::Creating { folder: paths.data.clone() });
        let account = self.home.account.as_ref();
        folder::remove_tree(&paths.staging)?;
        folder::make_own(&paths.staging, account)?;
        let password = folder::random_password()?;
        write_passfile(paths, &password)?;
        initdb::make_data_folder(installation, &paths.staging, &password, true, account)?;
        fs::rename(paths.staging.join("data"), &paths.data)
            .map_err(|e| error::could_not("create", &paths.data, e))?;
        folder::remove_tree(&paths.staging)
    }

    /// Starts the server. Tries again if the port is taken, or if the shared memory of a killed
    /// server is still in use.
    fn launch(
        &self,
        installation: &Installation,
        paths: &VersionPaths,
        progress: &Progress<'_>,
    ) -> Result<()> {
        let account = self.account_of(&paths.data)?;
        let account = account.as_ref();
        folder::make_private(&paths.run, account)?;
        disarm_stale(&paths.data, account)?;
        if fs::symlink_metadata(&paths.password).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            // The password file was removed: the user gets a new password.
            let password = folder::random_password()?;
            initdb::set_password(installation, &paths.data, &password, account)?;
            write_passfile(paths, &password)?;
        }
        require_password(paths, account, None)?;
        if folder::log_size(&paths.log) > LOG_BYTES_MAX {
            let old = paths.run.join("log.old");
            fs::rename(&paths.log, &old).map_err(|e| error::could_not("write", &old, e))?;
        }
        let fits = paths.run.as_os_str().len() <= folder::SOCKET_FOLDER_BYTES_MAX;
        let sockets = fits.then_some(paths.run.as_path());
        progress(&ServerStep::Starting { version: installation.version.clone() });
        let (mut ports, mut waits) = (0, 0);
        loop {
            let earlier = initdb::port_in(&paths.data).filter(|port| folder::is_free(*port));
            let port = earlier.map_or_else(folder::free_port, Ok)?;
            let settings = initdb::settings(port, sockets);
            let file = paths.data.join(initdb::SETTINGS_FILE);
            folder::write_private(&file, settings.as_bytes(), account)?;
            folder::remove_sockets(&paths.run)?;
            disarm_stale(&paths.data, account)?;
            let from = folder::log_size(&paths.log);
            let Err(error) = self.run_pg_ctl(installation, paths, account, progress) else {
                return Ok(());
            };
            let tail = folder::log_tail(&paths.log, from);
            if launch::says_port_is_taken(&tail) && ports < PORTS_MAX {
                ports += 1;
            } else if launch::says_memory_is_in_use(&tail) && waits < MEMORY_WAITS_MAX {
                waits += 1;
                std::thread::sleep(Duration::from_millis(250));
            } else if tail.trim().is_empty() {
                return Err(error);
            } else {
                let message = format!("could not start PostgreSQL {}", installation.version);
                let hint = format!("See the log \"{}\".", paths.log.display());
                let cause = error::new(launch::describe_log_tail(&tail));
                return Err(error::new(message).because(cause).hint(hint));
            }
        }
    }

    /// Starts the server with `pg_ctl`, which gives the server a session of its own. The server is
    /// no child of pgspate, so pgspate need not wait for its end.
    fn run_pg_ctl(
        &self,
        installation: &Installation,
        paths: &VersionPaths,
        account: Option<&ServerAccount>,
        progress: &Progress<'_>,
    ) -> Result<()> {
        let mut command = launch::command(installation, "pg_ctl", account);
        command.arg("-D").arg(&paths.data).arg("-l").arg(&paths.log);
        command.args(["-s", "-w", "-t", "30", "start"]);
        let what = format!("start PostgreSQL {}", installation.version);
        let Err(error) = launch::run(command, &what) else { return Ok(()) };
        // `pg_ctl` waits for 30 s. The recovery from a crash may take longer.
        let Some(file) = PidFile::of_running(&paths.data) else { return Err(error) };
        progress(&ServerStep::Recovering);
        if self.wait_while_busy(paths, file.pid) { Ok(()) } else { Err(error) }
    }

    /// Waits while a server process accepts no connections. Returns true when the server accepts
    /// connections, and false when the process has ended. There is no time limit: a recovery may
    /// take long.
    fn wait_while_busy(&self, paths: &VersionPaths, pid: i32) -> bool {
        loop {
            let Some(file) = PidFile::of_running(&paths.data).filter(|file| file.pid == pid) else {
                // The server has removed its pid file, but the process may still be ending.
                if process::is_server_of(pid, &paths.data) {
                    std::thread::sleep(POLL);
                    continue;
                }
                return false;
            };
            let port = file.port.filter(|_| file.is_ready);
            if port.is_some_and(|port| {
                launch::accepts_connections(file.socket_folder.as_deref(), port)
            }) {
                return true;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Writes and syncs the password file. The file must be as durable as the data.
fn write_passfile(paths: &VersionPaths, password: &str) -> Result<()> {
    folder::write_private(&paths.password, dsn::passfile_line(password).as_bytes(), None)?;
    let sync = File::open(&paths.password).and_then(|file| file.sync_all());
    sync.map_err(|e| error::could_not("write", &paths.password, e))
}

/// Makes a server whose data an earlier version created require the password on the socket. Such
/// data is recognized by the format of its password file, which is rewritten last. With `pid`, a
/// running server reloads `pg_hba.conf`.
fn require_password(
    paths: &VersionPaths,
    account: Option<&ServerAccount>,
    pid: Option<i32>,
) -> Result<()> {
    let text = read_passfile(paths)?;
    if dsn::is_passfile(&text) {
        return Ok(());
    }
    initdb::require_password_on_socket(&paths.data, account)?;
    if let Some(pid) = pid {
        let failed = |e| error::new("could not reload the embedded PostgreSQL").because(e);
        sys::signal(pid, libc::SIGHUP).map_err(failed)?;
    }
    write_passfile(paths, dsn::password_in(&text))
}

/// Reads the password file.
fn read_passfile(paths: &VersionPaths) -> Result<String> {
    folder::read_secret(&paths.password).map_err(|e| match paths.password.exists() {
        true => e,
        false => e.hint(
            "Stop the server with `pgspate server stop` and start it with `pgspate server start`: \
             the server then gets a new password.",
        ),
    })
}

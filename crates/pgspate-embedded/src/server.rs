//! The user's own server: its data outlives every run, and it runs until it is told to stop.
//!
//! Whoever starts, creates or stops it holds a lock, so any number of processes that start it at
//! once share one server. It is nobody's child and in no terminal's session: neither Ctrl-C nor
//! the end of pgspate ends it. Data folders are named by major version; unless told otherwise, the
//! one that exists is used, so that a newer PostgreSQL on the machine does not hide older data.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::account::Account;
use crate::error::{self, Result};
use crate::find::{Installation, locate_major, wanted_major};
use crate::folder::Folder;
use crate::home::Home;
use crate::pidfile::{PidFile, disarm_stale};
use crate::progress::{Progress, Step};
use crate::{dsn, folder, initdb, launch, process, sys};

/// A server that has open sessions ends them first, then writes a checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
/// Ports tried before giving up: each was free when asked for, and taken when the server came.
const PORTS_MAX: u32 = 8;
/// Waits for children of a killed server to let go of its memory.
const MEMORY_WAITS_MAX: u32 = 40;
/// A log longer than this is set aside at the next start.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// What the server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It was never started, so there is no data.
    Absent,
    /// Its data is there; no process is.
    Stopped,
    /// Its process is there but takes no connections: it starts, recovers, or stops.
    Busy,
    /// It takes connections.
    Running,
}

/// What the server is doing, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Major version of its data.
    pub major: Option<u32>,
    /// Process id, while there is a process.
    pub pid: Option<i32>,
    /// TCP port on 127.0.0.1, while there is a process.
    pub port: Option<u16>,
    /// Folder of the Unix socket, while there is a process and if its path is short enough.
    pub socket_folder: Option<PathBuf>,
    /// The data folder.
    pub data_folder: Option<PathBuf>,
    /// The file that it logs to.
    pub log: Option<PathBuf>,
}

/// The user's own server. The value is a handle: dropping it stops nothing.
#[derive(Debug, Clone)]
pub struct Server {
    home: Home,
    wanted: Option<u32>,
}

/// The paths of one major version.
struct Paths {
    data: PathBuf,
    run: PathBuf,
    log: PathBuf,
    password: PathBuf,
    staging: PathBuf,
}

impl Server {
    /// The server in pgspate's data folder: `PGSPATE_DATA_DIR`, else `pgspate` in
    /// `XDG_DATA_HOME`, else `~/.local/share/pgspate` (for root `/var/lib/pgspate`). Of the major
    /// version in `PGSPATE_PG_VERSION`, if that is set. Neither makes nor starts anything.
    ///
    /// # Errors
    /// The environment makes no sense, or the folder is closed to the user that the server runs as.
    pub fn open() -> Result<Server> {
        Ok(Server { home: Home::from_environment()?, wanted: wanted_major("PGSPATE_PG_VERSION")? })
    }

    /// The server with its data in another folder. Programs that have to be fetched still go to
    /// pgspate's own, so that they are fetched once.
    ///
    /// # Errors
    /// As [`Server::open`].
    pub fn open_in(folder: &Path) -> Result<Server> {
        Ok(Server { home: Home::at(folder)?, wanted: wanted_major("PGSPATE_PG_VERSION")? })
    }

    /// Starts the server, unless it runs, and makes its data folder first if there is none.
    /// Returns when it takes connections.
    ///
    /// # Errors
    /// No installation was found and none could be fetched, the folder cannot be written, or the
    /// server does not start: then the end of its log is the cause.
    pub fn start(&self, progress: &Progress<'_>) -> Result<Status> {
        let status = self.status()?;
        if status.state == State::Running && !self.is_of_earlier_version(&status)? {
            return Ok(status);
        }
        self.home.create()?;
        let _lock = self.lock()?;
        // Another process may have started it while this one waited for the lock.
        let status = self.status()?;
        if status.state == State::Running {
            self.upgrade(&status)?;
            return Ok(status);
        }
        let major = status.major.or(self.wanted);
        if let (Some(pid), Some(major)) = (status.pid, major) {
            progress(&Step::Recovering);
            if self.wait_while_busy(&self.paths(major), pid) {
                return self.status();
            }
        }
        let found = locate_major(major, progress)?;
        let paths = self.paths(found.major);
        if !paths.data.join("PG_VERSION").is_file() {
            self.create(&found, &paths, progress)?;
        }
        self.launch(&found, &paths, progress)?;
        self.status()
    }

    /// Stops the server in good order, ending its sessions; returns whether it was running.
    ///
    /// # Errors
    /// The server belongs to another user, or does not end within two minutes.
    pub fn stop(&self, progress: &Progress<'_>) -> Result<bool> {
        if self.status()?.pid.is_none() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        let Some(pid) = self.status()?.pid else { return Ok(false) };
        progress(&Step::Stopping);
        let failed = || error::new("could not stop the embedded PostgreSQL");
        sys::signal(pid, libc::SIGINT).map_err(|e| failed().because(e))?;
        if process::wait_for_end(pid, STOP_LIMIT) {
            return Ok(true);
        }
        let seconds = STOP_LIMIT.as_secs();
        Err(failed().because(error::new(format!("process {pid} runs on after {seconds} s"))))
    }

    /// What the server is doing. Changes nothing.
    ///
    /// # Errors
    /// The data folder cannot be read.
    pub fn status(&self) -> Result<Status> {
        let mut status = Status {
            state: State::Absent,
            major: None,
            pid: None,
            port: None,
            socket_folder: None,
            data_folder: None,
            log: None,
        };
        let Some((major, file)) = self.current()? else { return Ok(status) };
        let paths = self.paths(major);
        status.state = State::Stopped;
        if let Some(file) = file {
            let sockets = file.socket_folder.as_deref();
            let accepts = |port| file.is_ready && launch::accepts(sockets, port);
            let is_running = file.port.is_some_and(accepts);
            status.state = if is_running { State::Running } else { State::Busy };
            (status.pid, status.port) = (Some(file.pid), file.port);
            status.socket_folder = file.socket_folder;
        }
        (status.major, status.log) = (Some(major), Some(paths.log));
        status.data_folder = Some(paths.data);
        Ok(status)
    }

    /// A `key=value` string for the database `postgres` of the running server: over the Unix
    /// socket where there is one, else over TCP. It names the password file, which psql and all
    /// clients with libpq read. A password in `PGPASSWORD` counts more than the file's.
    ///
    /// # Errors
    /// The server is not running, or the password file cannot be read.
    pub fn dsn(&self) -> Result<String> {
        let (address, paths) = self.address()?;
        read_passfile(&paths)?;
        Ok(dsn::with_passfile(&address, &paths.password))
    }

    /// As [`Server::dsn`], but with the password itself: for a connection of this process, whatever
    /// its environment says. Not to be printed.
    ///
    /// # Errors
    /// As [`Server::dsn`].
    pub fn secret_dsn(&self) -> Result<String> {
        let (address, paths) = self.address()?;
        let text = read_passfile(&paths)?;
        Ok(dsn::with_password(&address, dsn::password_in(&text)))
    }

    /// A URL for the database `postgres` over TCP on 127.0.0.1. It carries the password.
    ///
    /// # Errors
    /// As [`Server::dsn`].
    pub fn tcp_dsn(&self) -> Result<String> {
        let (status, port) = self.running()?;
        let text = read_passfile(&self.paths(status.major.unwrap_or_default()))?;
        Ok(dsn::for_tcp(port, dsn::password_in(&text), "postgres"))
    }

    /// A shell command that opens the database with `psql`.
    ///
    /// # Errors
    /// As [`Server::dsn`].
    pub fn psql_command(&self) -> Result<String> {
        Ok(format!("psql {}", shell_word(&self.dsn()?)))
    }

    /// Host, port, role and database of the running server, and its paths.
    fn address(&self) -> Result<(String, Paths)> {
        let (status, port) = self.running()?;
        let address = dsn::for_server(status.socket_folder.as_deref(), port, "postgres");
        Ok((address, self.paths(status.major.unwrap_or_default())))
    }

    /// Whether a version of pgspate made the data whose servers trusted the socket.
    fn is_of_earlier_version(&self, status: &Status) -> Result<bool> {
        Ok(!dsn::is_passfile(&read_passfile(&self.paths(status.major.unwrap_or_default()))?))
    }

    /// Makes a running server of an earlier version ask for the password.
    fn upgrade(&self, status: &Status) -> Result<()> {
        let paths = self.paths(status.major.unwrap_or_default());
        let account = self.account_of(&paths.data)?;
        distrust_earlier(&paths, account.as_ref(), status.pid)
    }

    fn running(&self) -> Result<(Status, u16)> {
        let status = self.status()?;
        match status.port {
            Some(port) if status.state == State::Running => Ok((status, port)),
            _ => Err(error::new("the embedded PostgreSQL is not running")
                .hint("Start it with `pgspate server start`.")),
        }
    }

    /// The user that owns the data, under root. It stays the one that made it, even if a better
    /// one has since come to the machine: the server refuses data that is not its own. The root
    /// folder is ours alone, so nobody else has put the data there.
    fn account_of(&self, data: &Path) -> Result<Option<Account>> {
        let folder = Folder::open(data)?;
        let Some(account) = &self.home.account else {
            folder.require_safe(&[sys::effective_uid()])?;
            return Ok(None);
        };
        let facts = folder.facts()?;
        folder.require_safe(&[facts.uid()])?;
        if facts.uid() == account.uid || facts.uid() == 0 {
            return Ok(Some(account.clone()));
        }
        let name = format!("user {}", facts.uid());
        Ok(Some(Account { name, uid: facts.uid(), gid: facts.gid() }))
    }

    fn lock(&self) -> Result<File> {
        let path = self.home.root.join("lock-server");
        let file = folder::lock_file(&path)?;
        file.lock().map_err(|e| error::file("lock", &path, e))?;
        Ok(file)
    }

    fn paths(&self, major: u32) -> Paths {
        let run = self.home.root.join(format!("run-{major}"));
        Paths {
            data: self.home.root.join(format!("data-{major}")),
            log: run.join("log"),
            run,
            password: self.home.root.join(format!("password-{major}")),
            staging: self.home.root.join(format!("new-{major}")),
        }
    }

    /// The major version in use, and its process if there is one: the version wished for, else
    /// the one that runs, else the newest that has data.
    fn current(&self) -> Result<Option<(u32, Option<PidFile>)>> {
        let mut majors = self.majors()?;
        majors.retain(|major| self.wanted.is_none_or(|wanted| wanted == *major));
        let found: Vec<_> = majors
            .into_iter()
            .map(|major| (major, PidFile::of_running(&self.paths(major).data)))
            .collect();
        let runs = found.iter().position(|(_, file)| file.is_some());
        Ok(found.into_iter().nth(runs.unwrap_or(0)))
    }

    /// Major versions that have data, newest first.
    fn majors(&self) -> Result<Vec<u32>> {
        let entries = match fs::read_dir(&self.home.root) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(error::file("read", &self.home.root, e)),
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

    /// Makes the data folder under another name first: one that exists is always whole.
    fn create(&self, found: &Installation, paths: &Paths, progress: &Progress<'_>) -> Result<()> {
        progress(&Step::Creating { folder: paths.data.clone() });
        let account = self.home.account.as_ref();
        folder::remove_tree(&paths.staging)?;
        folder::make_own(&paths.staging, account)?;
        let password = folder::random_password()?;
        write_passfile(paths, &password)?;
        initdb::make_data_folder(found, &paths.staging, &password, true, account)?;
        fs::rename(paths.staging.join("data"), &paths.data)
            .map_err(|e| error::file("create", &paths.data, e))?;
        folder::remove_tree(&paths.staging)
    }

    fn launch(&self, found: &Installation, paths: &Paths, progress: &Progress<'_>) -> Result<()> {
        let account = self.account_of(&paths.data)?;
        let account = account.as_ref();
        folder::make_private(&paths.run, account)?;
        disarm_stale(&paths.data, account)?;
        if fs::symlink_metadata(&paths.password).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            // Whoever may start the server may have a new password for it.
            let password = folder::random_password()?;
            initdb::set_password(found, &paths.data, &password, account)?;
            write_passfile(paths, &password)?;
        }
        distrust_earlier(paths, account, None)?;
        if folder::log_end(&paths.log) > LOG_BYTES_MAX {
            let old = paths.run.join("log.old");
            fs::rename(&paths.log, &old).map_err(|e| error::file("write", &old, e))?;
        }
        let fits = paths.run.as_os_str().len() <= folder::SOCKET_FOLDER_BYTES_MAX;
        let sockets = fits.then_some(paths.run.as_path());
        progress(&Step::Starting { version: found.version.clone() });
        let (mut ports, mut waits) = (0, 0);
        loop {
            let earlier = initdb::port_in(&paths.data).filter(|port| folder::is_free(*port));
            let port = earlier.map_or_else(folder::free_port, Ok)?;
            let settings = initdb::settings(port, sockets);
            let file = paths.data.join(initdb::SETTINGS_FILE);
            folder::write_private(&file, settings.as_bytes(), account)?;
            folder::remove_sockets(&paths.run)?;
            disarm_stale(&paths.data, account)?;
            let from = folder::log_end(&paths.log);
            let Err(error) = self.run_pg_ctl(found, paths, account, progress) else {
                return Ok(());
            };
            let tail = folder::log_tail(&paths.log, from);
            if launch::says_port_taken(&tail) && ports < PORTS_MAX {
                ports += 1;
            } else if launch::says_memory_used(&tail) && waits < MEMORY_WAITS_MAX {
                waits += 1;
                std::thread::sleep(Duration::from_millis(250));
            } else if tail.trim().is_empty() {
                return Err(error);
            } else {
                let message = format!("could not start PostgreSQL {}", found.version);
                let hint = format!("The whole log is in \"{}\".", paths.log.display());
                let cause = error::new(launch::log_says(&tail));
                return Err(error::new(message).because(cause).hint(hint));
            }
        }
    }

    /// `pg_ctl` puts the server into a session of its own and is its parent, so that it is not
    /// ours to wait for.
    fn run_pg_ctl(
        &self,
        found: &Installation,
        paths: &Paths,
        account: Option<&Account>,
        progress: &Progress<'_>,
    ) -> Result<()> {
        let mut command = launch::command(found, "pg_ctl", account);
        command.arg("-D").arg(&paths.data).arg("-l").arg(&paths.log);
        command.args(["-s", "-w", "-t", "30", "start"]);
        let what = format!("start PostgreSQL {}", found.version);
        let Err(error) = launch::run(command, &what) else { return Ok(()) };
        // It waits for half a minute; to recover from a crash may take many.
        let Some(file) = PidFile::of_running(&paths.data) else { return Err(error) };
        progress(&Step::Recovering);
        if self.wait_while_busy(paths, file.pid) { Ok(()) } else { Err(error) }
    }

    /// Waits for a process that is there but takes no connections; whether it does in the end.
    /// Recovery takes as long as it takes, so the process itself is the limit.
    fn wait_while_busy(&self, paths: &Paths, pid: i32) -> bool {
        loop {
            let Some(file) = PidFile::of_running(&paths.data).filter(|file| file.pid == pid) else {
                // It no longer says that it is the server, but may still be ending.
                if process::is_server_of(pid, &paths.data) {
                    std::thread::sleep(POLL);
                    continue;
                }
                return false;
            };
            let port = file.port.filter(|_| file.is_ready);
            if port.is_some_and(|port| launch::accepts(file.socket_folder.as_deref(), port)) {
                return true;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Writes the password file. It is needed as long as the data, so it must be as durable.
fn write_passfile(paths: &Paths, password: &str) -> Result<()> {
    folder::write_private(&paths.password, dsn::passfile_line(password).as_bytes(), None)?;
    let sync = File::open(&paths.password).and_then(|file| file.sync_all());
    sync.map_err(|e| error::file("write", &paths.password, e))
}

/// Changes data of an earlier version, which trusted whoever reached the socket, once: its password
/// file, which changes last, tells such data apart. A running server is told to read its rules.
fn distrust_earlier(paths: &Paths, account: Option<&Account>, pid: Option<i32>) -> Result<()> {
    let text = read_passfile(paths)?;
    if dsn::is_passfile(&text) {
        return Ok(());
    }
    initdb::distrust_socket(&paths.data, account)?;
    if let Some(pid) = pid {
        let failed = |e| error::new("could not reload the embedded PostgreSQL").because(e);
        sys::signal(pid, libc::SIGHUP).map_err(failed)?;
    }
    write_passfile(paths, dsn::password_in(&text))
}

fn read_passfile(paths: &Paths) -> Result<String> {
    folder::read_secret(&paths.password).map_err(|e| match paths.password.exists() {
        true => e,
        false => e.hint(
            "Stop the server with `pgspate server stop` and start it with `pgspate server start`: \
             it gets a new password.",
        ),
    })
}

/// A word for a shell, quoted where it must be.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_string();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_and_quotes_are_quoted_for_the_shell() {
        assert_eq!(shell_word("/tmp/a-b_c.d"), "/tmp/a-b_c.d");
        assert_eq!(shell_word("it's here"), "'it'\\''s here'");
        assert_eq!(shell_word(""), "''");
    }
}

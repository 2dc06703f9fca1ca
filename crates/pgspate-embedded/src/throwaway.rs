//! A throwaway server for one test or experiment, removed when its value is dropped.
//!
//! Server and folder are also removed if the process dies, even by SIGKILL. A watchdog shell reads
//! from a pipe, which closes when the process dies. Then the shell stops the server and removes the
//! folder. A parent-death signal would depend on the thread that started the server, would not work
//! for another user, and would not remove the folder.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::account::{ServerAccount, blocked_at};
use crate::clone::clone_for;
use crate::error::{self, Result};
use crate::find::{Installation, locate};
use crate::pidfile::{PidFile, disarm_stale};
use crate::progress::{Progress, ServerStep};
use crate::{dsn, folder, initdb, launch, process, sys, template};

const SETTINGS_FILE: &str = "throwaway.conf";
const SOCKET_FOLDER: &str = "run";
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const KILL_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// How many ports are tried. Another process may take a free port before the server binds it.
const PORTS_MAX: u32 = 8;
/// How often a start waits until the children of a killed server release its memory, or until
/// another process releases the server's fixed port.
const WAITS_MAX: u32 = 40;

/// The data need not survive a crash of the machine. Shared memory is in the data folder, so that
/// it is removed with the folder even after SIGKILL.
const SETTINGS: &str = "fsync = off\n\
    dynamic_shared_memory_type = mmap\n\
    shared_buffers = 64MB\n\
    max_connections = 200\n\
    timezone = 'UTC'\n\
    log_timezone = 'UTC'\n\
    logging_collector = off\n\
    log_destination = stderr\n\
    log_line_prefix = '%m [%p] '\n";

/// The default `pg_hba.conf`. The socket requires the password too: other programs may run as the
/// server's user.
const HBA: &str = "local all all scram-sha-256\n\
    local replication all scram-sha-256\n\
    host all all 127.0.0.1/32 scram-sha-256\n\
    host replication all 127.0.0.1/32 scram-sha-256\n";

/// The `pg_hba.conf` of tests. Only the superuser needs the password on the socket: the roles that
/// tests create have no password.
const HBA_OF_TESTS: &str = "local all postgres scram-sha-256\n\
    local replication postgres scram-sha-256\n\
    local all,replication all trust\n\
    host all all 127.0.0.1/32 scram-sha-256\n\
    host replication all 127.0.0.1/32 scram-sha-256\n";

/// The watchdog's script: waits for the end of the pipe, stops the server and removes the folder.
/// On systems with `/proc`, the process id in `postmaster.pid` counts only if the process works in
/// the data folder.
const WATCHDOG: &str = r#"
read -r _
data=$1/data
pid=$(head -n 1 "$data/postmaster.pid" 2>/dev/null)
alive() {
    if [ -d /proc/self ]
    then [ "$(readlink "/proc/$pid/cwd")" = "$data" ]
    else kill -0 "$pid"
    fi
}
if [ "${pid:-0}" -gt 1 ] && alive
then
    kill -QUIT "$pid"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20
    do alive || break; sleep 0.25
    done
    alive && kill -KILL "$pid"
fi
rm -rf "$1"
"#;

/// Options of a throwaway server.
#[derive(Debug, Clone, Default)]
pub struct ThrowawayBuilder {
    installation: Option<Installation>,
    settings: String,
    hba: Option<String>,
    /// Whether all roles but the superuser may use the socket without a password.
    trusts_roles: bool,
    files: Vec<(String, Vec<u8>)>,
    /// A data folder to copy, instead of an empty server.
    data_from: Option<PathBuf>,
}

impl ThrowawayBuilder {
    /// Uses this installation. The default is the one that [`locate`] finds.
    #[must_use]
    pub fn installation(mut self, installation: Installation) -> ThrowawayBuilder {
        self.installation = Some(installation);
        self
    }

    /// Adds lines for `postgresql.conf`. They override the default settings, but not address, port
    /// and socket folder.
    #[must_use]
    pub fn conf(mut self, lines: &str) -> ThrowawayBuilder {
        self.settings.push_str(lines);
        self.settings.push('\n');
        self
    }

    /// Replaces `pg_hba.conf`. The default requires the password on the socket and on TCP.
    #[must_use]
    pub fn hba(mut self, content: &str) -> ThrowawayBuilder {
        self.hba = Some(content.to_string());
        self
    }

    /// Lets all roles but the superuser use the socket without a password. For tests, whose roles
    /// have no password.
    #[must_use]
    pub(crate) fn trust_roles(mut self) -> ThrowawayBuilder {
        self.trusts_roles = true;
        self
    }

    /// Puts a file into the data folder, with mode 0600 and the server's user as owner, as the
    /// server requires for keys. Settings can name the file without a folder:
    /// `ssl_key_file = 'server.key'`.
    #[must_use]
    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> ThrowawayBuilder {
        self.files.push((name.to_string(), content.into()));
        self
    }

    /// Starts with a copy of a stopped server's data folder. The default is an empty server.
    #[must_use]
    pub fn data_from(mut self, data_folder: &Path) -> ThrowawayBuilder {
        self.data_from = Some(data_folder.to_path_buf());
        self
    }

    /// Creates the folder and starts the server. Returns when the server accepts connections.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if no installation was found, the temporary folder
    /// cannot be used, or the server does not start. In the last case the end of the log is the
    /// cause.
    pub fn start(self, progress: &Progress<'_>) -> Result<ThrowawayServer> {
        let installation = match &self.installation {
            Some(installation) => installation.clone(),
            None => locate(progress)?,
        };
        let account = ServerAccount::for_server()?;
        installation.require_executable(account.as_ref())?;
        let base = temporary_folder(account.as_ref())?;
        let private = fs::Permissions::from_mode(0o700);
        let mut temporary = tempfile::Builder::new();
        let folder = temporary.prefix("pgspate-").permissions(private).tempdir_in(&base);
        let folder = folder.map_err(|e| error::could_not("create a folder in", &base, e))?.keep();
        // From here on, dropping the value removes everything that was created.
        let mut server = ThrowawayServer {
            installation,
            account,
            folder,
            port: 0,
            password: String::new(),
            postmaster: Mutex::new(None),
            watchdog: None,
        };
        // pgspate's user stays the owner: in /tmp, an owner could replace the folder by a link.
        folder::make_own(&server.folder, server.account.as_ref())?;
        folder::make_private(&server.socket_folder(), server.account.as_ref())?;
        server.watchdog = Some(start_watchdog(&server.folder)?);
        progress(&ServerStep::Creating { folder: server.folder.clone() });
        server.create_files(&self, &base)?;
        progress(&ServerStep::Starting { version: server.installation.version.clone() });
        if self.data_from.is_some() && self.hba.is_none() {
            let (data, account) = (server.data_folder(), server.account.as_ref());
            initdb::set_password(&server.installation, &data, &server.password, account)?;
        }
        server.port = server.launch(None)?;
        Ok(server)
    }
}

/// A throwaway server. It is stopped and removed when the value is dropped. Its superuser is
/// `postgres`.
#[derive(Debug)]
pub struct ThrowawayServer {
    installation: Installation,
    account: Option<ServerAccount>,
    folder: PathBuf,
    port: u16,
    password: String,
    postmaster: Mutex<Option<Child>>,
    watchdog: Option<Child>,
}

impl ThrowawayServer {
    /// Returns the folder in which new throwaway servers are created.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if no temporary folder can be used.
    pub fn temporary_folder() -> Result<PathBuf> {
        temporary_folder(ServerAccount::for_server()?.as_ref())
    }

    /// Starts a server with default options: no fsync, 200 connections, UTC.
    ///
    /// # Errors
    /// The errors of [`ThrowawayBuilder::start`].
    pub fn start(progress: &Progress<'_>) -> Result<ThrowawayServer> {
        ThrowawayBuilder::default().start(progress)
    }

    /// Returns a builder for a server with other options.
    pub fn builder() -> ThrowawayBuilder {
        ThrowawayBuilder::default()
    }

    /// Returns a `key=value` string for the database `postgres`, over the Unix socket. The string
    /// contains the password.
    pub fn dsn(&self) -> String {
        self.dsn_for("postgres")
    }

    /// Returns a `key=value` string for a database, over the Unix socket. The string contains the
    /// password.
    pub fn dsn_for(&self, database: &str) -> String {
        dsn::with_password(&self.address(database), &self.password)
    }

    /// Returns a string like [`ThrowawayServer::dsn`], but with the path of a password file instead
    /// of the password. For clients with libpq.
    pub fn passfile_dsn(&self) -> String {
        dsn::with_passfile(&self.address("postgres"), &self.passfile())
    }

    /// Returns a connection string without a password.
    fn address(&self, database: &str) -> String {
        dsn::for_server(Some(&self.socket_folder()), self.port, database)
    }

    /// Returns the path of the password file.
    fn passfile(&self) -> PathBuf {
        self.folder.join("password")
    }

    /// Returns a URL for a database over TCP on 127.0.0.1. The URL contains the password.
    pub fn tcp_dsn_for(&self, database: &str) -> String {
        dsn::for_tcp(self.port, &self.password, database)
    }

    /// Returns the TCP port on 127.0.0.1. A restart keeps the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the password of `postgres`.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Returns the folder of all files of the server. The user who runs pgspate owns this folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the Unix socket. The server's user owns this folder.
    pub fn socket_folder(&self) -> PathBuf {
        self.folder.join(SOCKET_FOLDER)
    }

    /// Returns the data folder.
    pub fn data_folder(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Returns the path of the server's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Returns the installation that the server runs.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// Returns the process id of the running server, or `None` if the server was stopped or has
    /// crashed.
    pub fn pid(&self) -> Option<i32> {
        let mut postmaster = self.postmaster();
        let child = postmaster.as_mut()?;
        matches!(child.try_wait(), Ok(None)).then_some(child.id() as i32)
    }

    /// Stops the server with a fast shutdown, which ends all sessions. The folder stays until the
    /// drop.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if the server still runs after a minute.
    pub fn stop(&self) -> Result<()> {
        self.end(libc::SIGINT, STOP_LIMIT)
    }

    /// Kills all processes of the server at once, as in a crash of the machine.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if the server is not running, or its processes do not
    /// end.
    pub fn kill(&self) -> Result<()> {
        let mut postmaster = self.postmaster();
        let failed = || error::new("could not kill the server");
        let mut child = postmaster.take().ok_or_else(|| failed().because("it is not running"))?;
        let children = process::kill_with_children(child.id() as i32);
        let children = children.map_err(|e| failed().because(e))?;
        child.wait().map_err(|e| failed().because(e))?;
        match children.into_iter().all(|child| process::wait_for_end(child, KILL_LIMIT)) {
            true => Ok(()),
            false => Err(failed().because("a child process still runs")),
        }
    }

    /// Stops the server, if it runs, and starts it again on the same port.
    ///
    /// # Errors
    /// The errors of [`ThrowawayBuilder::start`], also if another process keeps the port.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.launch(Some(self.port)).map(drop)
    }

    /// Locks and returns the server process.
    fn postmaster(&self) -> MutexGuard<'_, Option<Child>> {
        self.postmaster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal to the server and waits for its end.
    fn end(&self, signal: i32, limit: Duration) -> Result<()> {
        let mut postmaster = self.postmaster();
        let Some(child) = postmaster.as_mut() else { return Ok(()) };
        let failed = || error::new("could not stop the server");
        if child.try_wait().map_err(|e| failed().because(e))?.is_none() {
            let pid = child.id() as i32;
            sys::signal(pid, signal).map_err(|e| failed().because(e))?;
            if !process::wait_for_end(pid, limit) {
                return Err(failed().because(format!("it still runs after {limit:?}")));
            }
            child.wait().map_err(|e| failed().because(e))?;
        }
        *postmaster = None;
        Ok(())
    }

    /// Creates the data folder and all files that the server needs.
    fn create_files(&mut self, options: &ThrowawayBuilder, base: &Path) -> Result<()> {
        let (data, account) = (self.data_folder(), self.account.as_ref());
        self.password = match &options.data_from {
            None => template::make_data_folder(&self.installation, base, &self.folder, account)?,
            Some(from) => {
                clone_for(from, &data, account)?;
                folder::random_password()?
            }
        };
        let line = dsn::passfile_line(&self.password);
        folder::write_private(&self.passfile(), line.as_bytes(), None)?;
        initdb::include_settings(&data, SETTINGS_FILE)?;
        let settings = format!("{SETTINGS}{}", options.settings);
        folder::write_private(&data.join(SETTINGS_FILE), settings.as_bytes(), account)?;
        let hba =
            options.hba.as_deref().unwrap_or(if options.trusts_roles { HBA_OF_TESTS } else { HBA });
        folder::write_private(&data.join("pg_hba.conf"), hba.as_bytes(), account)?;
        for (name, content) in &options.files {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(error::new(format!("\"{name}\" is not a plain file name")));
            }
            folder::write_private(&data.join(name), content, account)?;
        }
        Ok(())
    }

    /// Starts the server process, waits until it is ready, and returns its port.
    fn launch(&self, fixed_port: Option<u16>) -> Result<u16> {
        let (data, log) = (self.data_folder(), self.log());
        let failed =
            || error::new(format!("could not start PostgreSQL {}", self.installation.version));
        let (mut ports, mut waits) = (0, 0);
        loop {
            let port = fixed_port.map_or_else(folder::free_port, Ok)?;
            folder::remove_sockets(&self.socket_folder())?;
            disarm_stale(&data, self.account.as_ref())?;
            let from = folder::log_size(&log);
            let mut child = self.spawn(port).map_err(|e| failed().because(e))?;
            let is_ready = self.wait_until_ready(&mut child);
            if is_ready {
                *self.postmaster() = Some(child);
                return Ok(port);
            }
            let tail = folder::log_tail(&log, from);
            let is_taken = launch::says_port_is_taken(&tail);
            if is_taken && fixed_port.is_none() && ports < PORTS_MAX {
                ports += 1;
                std::thread::sleep(POLL);
            } else if (is_taken || launch::says_memory_is_in_use(&tail)) && waits < WAITS_MAX {
                waits += 1;
                std::thread::sleep(Duration::from_millis(250));
            } else {
                return Err(failed().because(error::new(launch::describe_log_tail(&tail))));
            }
        }
    }

    /// Starts the server process.
    fn spawn(&self, port: u16) -> Result<Child> {
        let log = self.log();
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&log);
        let file = file.map_err(|e| error::could_not("open", &log, e))?;
        let copy = file.try_clone().map_err(|e| error::could_not("open", &log, e))?;
        let mut command = launch::command(&self.installation, "postgres", self.account.as_ref());
        command.arg("-D").arg(self.data_folder());
        // Options of the command line override the caller's settings and those of a copied folder.
        command.arg("-c").arg(format!("port={port}")).args(["-c", "listen_addresses=127.0.0.1"]);
        let sockets = initdb::socket_list(Some(&self.socket_folder()));
        command.arg("-c").arg(format!("unix_socket_directories={sockets}"));
        // An own process group: Ctrl-C in the terminal stops pgspate, which then stops the server.
        command.stdout(file).stderr(copy).process_group(0);
        command
            .spawn()
            .map_err(|e| error::could_not("run", &self.installation.program("postgres"), e))
    }

    /// Waits until the server is ready. Returns false if the server has ended, or was killed after
    /// [`START_LIMIT`].
    fn wait_until_ready(&self, child: &mut Child) -> bool {
        let (data, pid) = (self.data_folder(), child.id() as i32);
        let begin = Instant::now();
        loop {
            let file = PidFile::read(&data).filter(|file| file.pid == pid);
            if file.is_some_and(|file| file.is_ready) {
                return true;
            }
            let is_late = begin.elapsed() > START_LIMIT;
            if is_late {
                let _ = process::kill_with_children(pid);
            }
            if is_late || !matches!(child.try_wait(), Ok(None)) {
                let _ = child.wait();
                return false;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for ThrowawayServer {
    fn drop(&mut self) {
        // A drop cannot report errors. Each step is tried even if the previous one has failed.
        if self.end(libc::SIGQUIT, KILL_LIMIT).is_err() {
            let _ = self.kill();
        }
        // The file exists only if the server was killed. Then its shared memory remains too.
        if let Some(id) = PidFile::read(&self.data_folder()).and_then(|file| file.shared_memory_id)
        {
            let owner = self.account.as_ref().map_or_else(sys::effective_uid, |user| user.uid);
            let _ = sys::remove_shared_memory(id, owner);
        }
        let _ = folder::remove_tree(&self.folder);
        if let Some(mut watchdog) = self.watchdog.take() {
            drop(watchdog.stdin.take());
            let _ = watchdog.wait();
        }
    }
}

/// Starts the watchdog shell. The shell has a process group of its own, so that a signal to
/// pgspate's group does not end it.
fn start_watchdog(folder: &Path) -> Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHDOG, "sh"]).arg(folder).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|e| error::could_not("run", Path::new("sh"), e))
}

/// Returns the temporary folder. If the server's user cannot enter it, or its path is too long for
/// sockets, returns `/tmp`.
///
/// # Errors
/// If the temporary folder does not exist, or no folder can be used.
fn temporary_folder(account: Option<&ServerAccount>) -> Result<PathBuf> {
    let own_name = "/pgspate-xxxxxx/".len() + SOCKET_FOLDER.len();
    let fits = |path: &PathBuf| {
        path.as_os_str().len() + own_name <= folder::SOCKET_FOLDER_BYTES_MAX
            && account.is_none_or(|account| blocked_at(path, account).is_none())
    };
    let wanted = std::env::temp_dir();
    let missing = |cause| {
        error::new(format!("the temporary folder {} cannot be used", wanted.display()))
            .because(cause)
            .hint("Create the folder, or set TMPDIR to another one.")
    };
    let wanted = wanted.canonicalize().map_err(missing)?;
    [wanted, PathBuf::from("/tmp")].into_iter().find(fits).ok_or_else(|| {
        error::new("no temporary folder can be used for a server")
            .hint("Set TMPDIR to a folder with a short path that all users can enter.")
    })
}

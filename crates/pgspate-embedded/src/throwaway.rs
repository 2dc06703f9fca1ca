//! A server for one test or one experiment, gone without a trace when its value is dropped.
//!
//! It also goes when the process dies, even by SIGKILL: a shell waits at the end of a pipe that
//! closes with us, and then stops the server and removes the folder. Unlike a parent-death signal
//! this does not depend on which thread started the server, survives the change of user, and
//! removes the folder too.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::account::{Account, blocked_at};
use crate::clone::clone_for;
use crate::error::{self, Result};
use crate::find::{Installation, locate};
use crate::pidfile::{PidFile, disarm_stale};
use crate::progress::{Progress, Step};
use crate::{dsn, folder, initdb, launch, process, sys, template};

const SETTINGS_FILE: &str = "throwaway.conf";
const SOCKET_FOLDER: &str = "run";
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const KILL_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// Ports tried before giving up: each was free when asked for, and taken when the server came.
const PORTS_MAX: u32 = 8;
/// Waits for children of a killed server to let go of its memory, and for somebody's connection to
/// let go of the port that is to stay the same.
const WAITS_MAX: u32 = 40;

/// Nothing here needs to survive a crash of the machine. Shared memory lies in the data folder,
/// where it goes with it even after SIGKILL.
const SETTINGS: &str = "fsync = off\n\
    dynamic_shared_memory_type = mmap\n\
    shared_buffers = 64MB\n\
    max_connections = 200\n\
    timezone = 'UTC'\n\
    log_timezone = 'UTC'\n\
    logging_collector = off\n\
    log_destination = stderr\n\
    log_line_prefix = '%m [%p] '\n";

/// The socket wants the password, too: other programs may run as the server's user.
const HBA: &str = "local all all scram-sha-256\n\
    local replication all scram-sha-256\n\
    host all all 127.0.0.1/32 scram-sha-256\n\
    host replication all 127.0.0.1/32 scram-sha-256\n";

/// As above for the superuser alone. The roles that a test makes have no password.
const HBA_OF_TESTS: &str = "local all postgres scram-sha-256\n\
    local replication postgres scram-sha-256\n\
    local all,replication all trust\n\
    host all all 127.0.0.1/32 scram-sha-256\n\
    host replication all 127.0.0.1/32 scram-sha-256\n";

/// Runs after our death, or at once when the folder is gone. The process id is believed only if
/// that process works in the data folder, where the system can tell.
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

/// How a throwaway server shall differ from the plain one.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    installation: Option<Installation>,
    settings: String,
    hba: Option<String>,
    trusts_roles: bool,
    files: Vec<(String, Vec<u8>)>,
    data_from: Option<PathBuf>,
}

impl Builder {
    /// Uses this installation instead of the one that [`locate`] finds.
    #[must_use]
    pub fn installation(mut self, installation: Installation) -> Builder {
        self.installation = Some(installation);
        self
    }

    /// Adds lines for `postgresql.conf`. They win over the plain settings, but address, port and
    /// socket folder stay what they are.
    #[must_use]
    pub fn conf(mut self, lines: &str) -> Builder {
        self.settings.push_str(lines);
        self.settings.push('\n');
        self
    }

    /// Replaces `pg_hba.conf`, by default the password on the socket and on TCP.
    #[must_use]
    pub fn hba(mut self, content: &str) -> Builder {
        self.hba = Some(content.to_string());
        self
    }

    /// Lets every role but the superuser in by the socket without a password: for tests, which
    /// make roles that have none.
    #[must_use]
    pub(crate) fn trust_roles(mut self) -> Builder {
        self.trusts_roles = true;
        self
    }

    /// Puts a file into the data folder, mode 0600 and owned by the server's user as it demands
    /// of keys. Settings can name it without a folder: `ssl_key_file = 'server.key'`.
    #[must_use]
    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> Builder {
        self.files.push((name.to_string(), content.into()));
        self
    }

    /// Starts on a copy of a stopped server's data folder instead of an empty server.
    #[must_use]
    pub fn data_from(mut self, data_folder: &Path) -> Builder {
        self.data_from = Some(data_folder.to_path_buf());
        self
    }

    /// Makes the folder and starts the server; returns when it takes connections.
    ///
    /// # Errors
    /// No installation was found, the temporary folder is closed or full, or the server does not
    /// start: then the end of its log is the cause.
    pub fn start(self, progress: &Progress<'_>) -> Result<Throwaway> {
        let found = match &self.installation {
            Some(found) => found.clone(),
            None => locate(progress)?,
        };
        let account = Account::for_server()?;
        found.require_open(account.as_ref())?;
        let base = temporary_folder(account.as_ref())?;
        let private = fs::Permissions::from_mode(0o700);
        let mut temporary = tempfile::Builder::new();
        let folder = temporary.prefix("pgspate-").permissions(private).tempdir_in(&base);
        let folder = folder.map_err(|e| error::file("create a folder in", &base, e))?.keep();
        // From here on, dropping the value cleans up whatever was reached.
        let mut server = Throwaway {
            found,
            account,
            folder,
            port: 0,
            password: String::new(),
            postmaster: Mutex::new(None),
            watchdog: None,
        };
        // It stays ours: in /tmp, the owner of a folder could put a link in its place.
        folder::make_own(&server.folder, server.account.as_ref())?;
        folder::make_private(&server.socket_folder(), server.account.as_ref())?;
        server.watchdog = Some(watch(&server.folder)?);
        progress(&Step::Creating { folder: server.folder.clone() });
        server.fill(&self, &base)?;
        progress(&Step::Starting { version: server.found.version.clone() });
        if self.data_from.is_some() && self.hba.is_none() {
            let (data, account) = (server.data_folder(), server.account.as_ref());
            initdb::set_password(&server.found, &data, &server.password, account)?;
        }
        server.port = server.launch(None)?;
        Ok(server)
    }
}

/// A running server that is stopped and removed when dropped. Its superuser is `postgres`.
#[derive(Debug)]
pub struct Throwaway {
    found: Installation,
    account: Option<Account>,
    folder: PathBuf,
    port: u16,
    password: String,
    postmaster: Mutex<Option<Child>>,
    watchdog: Option<Child>,
}

impl Throwaway {
    /// The folder that those are made in which are started now.
    ///
    /// # Errors
    /// There is none that a server could use.
    pub fn temporary_folder() -> Result<PathBuf> {
        temporary_folder(Account::for_server()?.as_ref())
    }

    /// Starts a plain server: durability off, 200 connections, UTC.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn start(progress: &Progress<'_>) -> Result<Throwaway> {
        Builder::default().start(progress)
    }

    /// Starts a server that differs from the plain one.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A `key=value` string for the database `postgres`, over the Unix socket.
    pub fn dsn(&self) -> String {
        self.dsn_for("postgres")
    }

    /// A `key=value` string for a database, over the Unix socket; it carries the password.
    pub fn dsn_for(&self, database: &str) -> String {
        dsn::with_password(&self.address(database), &self.password)
    }

    /// As [`Throwaway::dsn`], but with the path of a password file instead of the password, for
    /// clients with libpq.
    pub fn passfile_dsn(&self) -> String {
        dsn::with_passfile(&self.address("postgres"), &self.passfile())
    }

    fn address(&self, database: &str) -> String {
        dsn::for_server(Some(&self.socket_folder()), self.port, database)
    }

    fn passfile(&self) -> PathBuf {
        self.folder.join("password")
    }

    /// A URL for a database over TCP on 127.0.0.1; it carries the password.
    pub fn tcp_dsn_for(&self, database: &str) -> String {
        dsn::for_tcp(self.port, &self.password, database)
    }

    /// The TCP port, on 127.0.0.1. It stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The password of `postgres`.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The parent of everything the server writes. It belongs to the user who started the server.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the Unix socket. It belongs to the server's user.
    pub fn socket_folder(&self) -> PathBuf {
        self.folder.join(SOCKET_FOLDER)
    }

    /// The data folder.
    pub fn data_folder(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The file that the server logs to.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The programs it runs.
    pub fn installation(&self) -> &Installation {
        &self.found
    }

    /// The process id of the running server; `None` when it was stopped or has crashed.
    pub fn pid(&self) -> Option<i32> {
        let mut postmaster = self.postmaster();
        let child = postmaster.as_mut()?;
        matches!(child.try_wait(), Ok(None)).then_some(child.id() as i32)
    }

    /// Stops the server in good order, ending its sessions. The folder stays until the drop.
    ///
    /// # Errors
    /// The server does not end within a minute.
    pub fn stop(&self) -> Result<()> {
        self.end(libc::SIGINT, STOP_LIMIT)
    }

    /// Kills the server and all its processes at once, as a crash of the machine would.
    ///
    /// # Errors
    /// The server is not running, or its processes do not end.
    pub fn kill(&self) -> Result<()> {
        let mut postmaster = self.postmaster();
        let failed = || error::new("could not kill the server");
        let mut child = postmaster.take().ok_or_else(|| failed().because("it is not running"))?;
        let children = process::kill_with_children(child.id() as i32);
        let children = children.map_err(|e| failed().because(e))?;
        child.wait().map_err(|e| failed().because(e))?;
        match children.into_iter().all(|child| process::wait_for_end(child, KILL_LIMIT)) {
            true => Ok(()),
            false => Err(failed().because("a child lives on")),
        }
    }

    /// Starts the server again on the same port, after stopping it if it runs.
    ///
    /// # Errors
    /// As [`Builder::start`]; also when something else has taken the port.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.launch(Some(self.port)).map(drop)
    }

    fn postmaster(&self) -> MutexGuard<'_, Option<Child>> {
        self.postmaster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, signal: i32, limit: Duration) -> Result<()> {
        let mut postmaster = self.postmaster();
        let Some(child) = postmaster.as_mut() else { return Ok(()) };
        let failed = || error::new("could not stop the server");
        if child.try_wait().map_err(|e| failed().because(e))?.is_none() {
            let pid = child.id() as i32;
            sys::signal(pid, signal).map_err(|e| failed().because(e))?;
            if !process::wait_for_end(pid, limit) {
                return Err(failed().because(format!("it runs on after {limit:?}")));
            }
            child.wait().map_err(|e| failed().because(e))?;
        }
        *postmaster = None;
        Ok(())
    }

    /// Puts everything into the folder that the server needs.
    fn fill(&mut self, wishes: &Builder, base: &Path) -> Result<()> {
        let (data, account) = (self.data_folder(), self.account.as_ref());
        self.password = match &wishes.data_from {
            None => template::make_data_folder(&self.found, base, &self.folder, account)?,
            Some(from) => {
                clone_for(from, &data, account)?;
                folder::random_password()?
            }
        };
        let line = dsn::passfile_line(&self.password);
        folder::write_private(&self.passfile(), line.as_bytes(), None)?;
        initdb::include_settings(&data, SETTINGS_FILE)?;
        let settings = format!("{SETTINGS}{}", wishes.settings);
        folder::write_private(&data.join(SETTINGS_FILE), settings.as_bytes(), account)?;
        let hba =
            wishes.hba.as_deref().unwrap_or(if wishes.trusts_roles { HBA_OF_TESTS } else { HBA });
        folder::write_private(&data.join("pg_hba.conf"), hba.as_bytes(), account)?;
        for (name, content) in &wishes.files {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(error::new(format!("\"{name}\" is not a plain file name")));
            }
            folder::write_private(&data.join(name), content, account)?;
        }
        Ok(())
    }

    /// Starts the process and waits until it is ready; returns its port.
    fn launch(&self, fixed_port: Option<u16>) -> Result<u16> {
        let (data, log) = (self.data_folder(), self.log());
        let failed = || error::new(format!("could not start PostgreSQL {}", self.found.version));
        let (mut ports, mut waits) = (0, 0);
        loop {
            let port = fixed_port.map_or_else(folder::free_port, Ok)?;
            folder::remove_sockets(&self.socket_folder())?;
            disarm_stale(&data, self.account.as_ref())?;
            let from = folder::log_end(&log);
            let mut child = self.spawn(port).map_err(|e| failed().because(e))?;
            let is_ready = self.wait_until_ready(&mut child);
            if is_ready {
                *self.postmaster() = Some(child);
                return Ok(port);
            }
            let tail = folder::log_tail(&log, from);
            let is_taken = launch::says_port_taken(&tail);
            if is_taken && fixed_port.is_none() && ports < PORTS_MAX {
                ports += 1;
                std::thread::sleep(POLL);
            } else if (is_taken || launch::says_memory_used(&tail)) && waits < WAITS_MAX {
                waits += 1;
                std::thread::sleep(Duration::from_millis(250));
            } else {
                return Err(failed().because(error::new(launch::log_says(&tail))));
            }
        }
    }

    fn spawn(&self, port: u16) -> Result<Child> {
        let log = self.log();
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&log);
        let file = file.map_err(|e| error::file("open", &log, e))?;
        let copy = file.try_clone().map_err(|e| error::file("open", &log, e))?;
        let mut command = launch::command(&self.found, "postgres", self.account.as_ref());
        command.arg("-D").arg(self.data_folder());
        // On the command line, so that neither settings nor a copied folder can change them.
        command.arg("-c").arg(format!("port={port}")).args(["-c", "listen_addresses=127.0.0.1"]);
        let sockets = initdb::socket_list(Some(&self.socket_folder()));
        command.arg("-c").arg(format!("unix_socket_directories={sockets}"));
        // A group of its own: Ctrl-C in the terminal is for us, and we stop the server.
        command.stdout(file).stderr(copy).process_group(0);
        command.spawn().map_err(|e| error::file("run", &self.found.program("postgres"), e))
    }

    /// `false` if it ended instead, or was ended because it took too long.
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

impl Drop for Throwaway {
    fn drop(&mut self) {
        // A drop cannot report; each step is tried whatever became of the one before.
        if self.end(libc::SIGQUIT, KILL_LIMIT).is_err() {
            let _ = self.kill();
        }
        // The file is still there only if the server was killed, and then so is its memory.
        if let Some(id) = PidFile::read(&self.data_folder()).and_then(|file| file.shared_memory) {
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

/// Starts the shell that outlives us by a moment. Its group is its own, so that what ends us does
/// not end it as well.
fn watch(folder: &Path) -> Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHDOG, "sh"]).arg(folder).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|e| error::file("run", Path::new("sh"), e))
}

/// The temporary folder, or `/tmp` when that one is closed to the server or its path too long
/// for sockets.
fn temporary_folder(account: Option<&Account>) -> Result<PathBuf> {
    let own_name = "/pgspate-xxxxxx/".len() + SOCKET_FOLDER.len();
    let fits = |path: &PathBuf| {
        path.as_os_str().len() + own_name <= folder::SOCKET_FOLDER_BYTES_MAX
            && account.is_none_or(|account| blocked_at(path, account).is_none())
    };
    let choices = [std::env::temp_dir(), PathBuf::from("/tmp")];
    let real = choices.iter().filter_map(|path| path.canonicalize().ok());
    real.into_iter().find(fits).ok_or_else(|| {
        error::new("there is no temporary folder that a server could use")
            .hint("Set TMPDIR to a folder with a short path that all users can reach.")
    })
}

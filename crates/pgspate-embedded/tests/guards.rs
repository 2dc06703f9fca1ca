//! Protection against other users of the machine: they cannot log in, and files that they have
//! planted are rejected.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pgspate_embedded::{EmbeddedServer, ServerState, ThrowawayServer, silent, testing};
use tokio_postgres::{Config, NoTls};

/// An embedded server in a folder of its own. It is stopped and removed at the end of the test.
struct GuardedServer {
    server: EmbeddedServer,
    folder: PathBuf,
}

impl GuardedServer {
    fn new() -> GuardedServer {
        let folder = tempfile::Builder::new().prefix("pgspate-").tempdir_in("/tmp").unwrap();
        let folder = folder.keep();
        // As root, the server runs as another user, who must be able to enter the folder.
        set_mode(&folder, 0o755);
        let server = EmbeddedServer::open_in(&folder.join("home")).unwrap();
        GuardedServer { server, folder }
    }

    /// Creates a server and stops it again, so that all of its files exist.
    fn stopped() -> GuardedServer {
        let own = GuardedServer::new();
        own.start();
        own.server.stop(&silent).unwrap();
        own
    }

    fn start(&self) {
        let started = self.server.start(&silent).unwrap_or_else(|e| panic!("{}", e.chain()));
        assert_eq!(started.state, ServerState::Running);
    }

    /// Returns a path in the root folder. `N` in the name stands for the major version.
    fn path(&self, name: &str) -> PathBuf {
        let major = self.server.status().unwrap().major.unwrap().to_string();
        self.folder.join("home").join(name.replace('N', &major))
    }

    /// Returns error and hint of a start that must fail.
    #[track_caller]
    fn start_error(&self) -> (String, String) {
        let error = self.server.start(&silent).unwrap_err();
        (error.chain(), error.hint_text().unwrap_or_default().to_string())
    }
}

impl Drop for GuardedServer {
    fn drop(&mut self) {
        let home = self.folder.join("home");
        let _ = chown(&home, Some(own_uid()), None);
        let _ = fs::set_permissions(&home, Permissions::from_mode(0o755));
        let _ = self.server.stop(&silent);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn own_uid() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}

/// Returns whether the test runs as root. Otherwise prints that the test is skipped.
fn is_root() -> bool {
    let is_root = own_uid() == 0;
    if !is_root {
        eprintln!("skipped: only root has a server that runs as another user");
    }
    is_root
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn ask(config: &Config, sql: &str) -> Result<String, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        for message in client.simple_query(sql).await? {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                return Ok(row.get(0).unwrap_or_default().to_string());
            }
        }
        Ok(String::new())
    })
}

/// Checks that both addresses accept only the right password.
#[track_caller]
fn assert_password_is_required(dsn: &str, url: &str) {
    for address in [dsn, url] {
        let right: Config = address.parse().unwrap();
        assert_eq!(ask(&right, "select 'in'").unwrap(), "in");
        let mut wrong = right.clone();
        let error = ask(wrong.password("wrong"), "select 'in'").unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("28P01"), "{error}");
        let mut none = Config::new();
        none.user("postgres").dbname("postgres").port(right.get_ports()[0]);
        match &right.get_hosts()[0] {
            tokio_postgres::config::Host::Unix(folder) => none.host_path(folder),
            tokio_postgres::config::Host::Tcp(name) => none.host(name),
        };
        assert!(ask(&none, "select 'in'").is_err());
    }
}

/// Runs a shell command as the user with this id.
fn as_user(uid: u32, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir("/").env_remove("PGPASSWORD");
    if uid != own_uid() {
        command.uid(uid).gid(uid);
    }
    command.output().unwrap()
}

#[test]
fn all_servers_require_the_password() {
    let own = GuardedServer::new();
    own.start();
    assert_password_is_required(&own.server.secret_dsn().unwrap(), &own.server.tcp_dsn().unwrap());
    let server = ThrowawayServer::start(&silent).unwrap();
    assert_password_is_required(&server.dsn(), &server.tcp_dsn_for("postgres"));
    // Replication requires the password too: the rules for it are separate.
    for dsn in [own.server.secret_dsn().unwrap(), server.dsn()] {
        let trusted = "select count(*) from pg_hba_file_rules where auth_method <> 'scram-sha-256'";
        assert_eq!(ask(&dsn.parse().unwrap(), trusted).unwrap(), "0");
    }
    let server = testing::server("");
    assert_password_is_required(&server.dsn(), &server.tcp_dsn_for("postgres"));
}

#[test]
fn a_copy_of_a_data_folder_gets_a_new_password() {
    let first = ThrowawayServer::start(&silent).unwrap();
    first.stop().unwrap();
    let copy = ThrowawayServer::builder().data_from(&first.data_folder()).start(&silent).unwrap();
    assert_password_is_required(&copy.dsn(), &copy.tcp_dsn_for("postgres"));
    assert_ne!(copy.password(), first.password());
}

#[test]
fn the_servers_user_cannot_read_the_password() {
    if !is_root() {
        return;
    }
    let own = GuardedServer::new();
    own.start();
    let user = fs::metadata(own.path("data-N")).unwrap().uid();
    assert_ne!(user, 0);
    let throwaway = ThrowawayServer::start(&silent).unwrap();
    for file in [own.path("password-N"), throwaway.folder().join("password")] {
        let output = as_user(user, &format!("cat '{}'", file.display()));
        assert!(!output.status.success() && output.stdout.is_empty());
        assert_eq!((mode(&file), fs::metadata(&file).unwrap().uid()), (0o600, 0));
    }
    // That user cannot replace a folder that root opens by its path either.
    for folder in [own.path("."), throwaway.folder().to_path_buf()] {
        let output = as_user(user, &format!("touch '{}/x'", folder.display()));
        assert!(!output.status.success());
        let shown = folder.display();
        assert!(!as_user(user, &format!("mv '{shown}' '{shown}-gone'")).status.success());
    }
}

#[test]
fn the_printed_psql_command_opens_the_server() {
    let own = GuardedServer::new();
    own.start();
    let psql = own.server.psql_command().unwrap();
    let dsn = own.server.dsn().unwrap();
    assert!(!dsn.contains("password="), "{dsn}");
    if !as_user(own_uid(), "command -v psql").status.success() {
        eprintln!("skipped: psql is not installed");
        return;
    }
    let scripts =
        [format!("{psql} -XwAtc 'select 7'"), format!("psql -XwAtc 'select 7' \"{dsn}\"")];
    for script in scripts {
        let output = as_user(own_uid(), &script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "7\n", "{script}: {output:?}");
    }
    let throwaway = ThrowawayServer::start(&silent).unwrap();
    let script = format!("psql -XwAtc 'select 7' \"{}\"", throwaway.passfile_dsn());
    assert_eq!(as_user(own_uid(), &script).stdout, b"7\n");
}

#[test]
fn links_in_place_of_pgspates_files_are_not_followed() {
    let own = GuardedServer::stopped();
    let owner = fs::metadata(own.path("data-N")).unwrap();
    let victim = own.folder.join("victim");
    for name in ["pgspate.conf", "pgspate.conf.new", "postmaster.pid", "postmaster.pid.new"] {
        fs::write(&victim, "4711\n").unwrap();
        set_mode(&victim, 0o600);
        let link = own.path("data-N").join(name);
        let _ = fs::remove_file(&link);
        symlink(&victim, &link).unwrap();
        lchown(&link, Some(owner.uid()), Some(owner.gid())).unwrap();
        let started = own.server.start(&silent);
        let facts = fs::metadata(&victim).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "4711\n", "{name}");
        assert_eq!((facts.uid(), facts.mode() & 0o777), (own_uid(), 0o600), "{name}");
        if name == "postmaster.pid" {
            assert!(started.unwrap_err().chain().contains("it is a symbolic link"));
            fs::remove_file(&link).unwrap();
        } else {
            started.unwrap_or_else(|e| panic!("{name}: {}", e.chain()));
            own.server.stop(&silent).unwrap();
        }
    }
}

#[test]
fn a_link_in_place_of_the_log_is_not_followed() {
    if !is_root() {
        return;
    }
    let own = GuardedServer::stopped();
    let owner = fs::metadata(own.path("data-N")).unwrap();
    let victim = own.folder.join("victim");
    fs::write(&victim, "untouched").unwrap();
    set_mode(&victim, 0o600);
    let log = own.path("run-N/log");
    fs::remove_file(&log).unwrap();
    symlink(&victim, &log).unwrap();
    lchown(&log, Some(owner.uid()), Some(owner.gid())).unwrap();
    let (chain, _) = own.start_error();
    assert!(!chain.contains("untouched"), "{chain}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    // Root opens the log of a throwaway server. It is in a folder where its user cannot put a link.
    let server = ThrowawayServer::start(&silent).unwrap();
    let script = format!("ln -sf '{}' '{}'", victim.display(), server.log().display());
    assert!(!as_user(owner.uid(), &script).status.success());
}

#[test]
fn folders_of_another_owner_are_rejected() {
    if !is_root() {
        return;
    }
    let own = GuardedServer::stopped();
    let run = own.path("run-N");
    chown(&run, Some(4242), Some(4242)).unwrap();
    let (chain, hint) = own.start_error();
    assert_eq!(chain, format!("\"{}\" belongs to the user with uid 4242", run.display()));
    assert!(hint.contains("PGSPATE_DATA_DIR") && hint.contains("chown"), "{hint}");
    fs::remove_dir_all(&run).unwrap();
    own.start();
    own.server.stop(&silent).unwrap();

    let home = own.folder.join("home");
    chown(&home, Some(4242), Some(4242)).unwrap();
    let expected = format!("\"{}\" belongs to the user with uid 4242", home.display());
    assert_eq!(own.start_error().0, expected);
    assert_eq!(own.server.status().unwrap_err().to_string(), expected);
    assert_eq!(own.server.dsn().unwrap_err().to_string(), expected);
    assert_eq!(own.server.stop(&silent).unwrap_err().to_string(), expected);
}

#[test]
fn loosened_modes_are_repaired_or_rejected() {
    let own = GuardedServer::stopped();
    let (home, run, password) =
        (own.folder.join("home"), own.path("run-N"), own.path("password-N"));
    set_mode(&run, 0o755);
    own.start();
    assert_eq!(mode(&run), 0o700);
    own.server.stop(&silent).unwrap();

    set_mode(&run, 0o777);
    let (chain, hint) = own.start_error();
    assert_eq!(chain, format!("other users can write to \"{}\" (mode 0777)", run.display()));
    assert!(hint.contains("chmod go-w"), "{hint}");
    set_mode(&run, 0o700);

    set_mode(&password, 0o644);
    let (chain, hint) = own.start_error();
    assert_eq!(chain, format!("other users can read \"{}\" (mode 0644)", password.display()));
    assert!(hint.contains("chmod 600"), "{hint}");
    set_mode(&password, 0o600);

    set_mode(&home, 0o777);
    let (chain, _) = own.start_error();
    assert_eq!(chain, format!("other users can write to \"{}\" (mode 0777)", home.display()));
    set_mode(&home, 0o755);
    own.start();
}

/// Changes the data folder to the form of an earlier version of pgspate: trust on the socket, and a
/// password file with only the password.
fn downgrade_data(own: &GuardedServer) {
    let (rules, file) = (own.path("data-N/pg_hba.conf"), own.path("password-N"));
    let text = fs::read_to_string(&rules).unwrap();
    let lines: Vec<String> = text
        .lines()
        .map(|line| match line.starts_with("local") {
            true => line.replace("scram-sha-256", "trust"),
            false => line.to_string(),
        })
        .collect();
    fs::write(&rules, lines.join("\n") + "\nlocal sales bob trust\n").unwrap();
    let line = fs::read_to_string(&file).unwrap();
    fs::write(&file, line.trim().strip_prefix("*:*:*:postgres:").unwrap()).unwrap();
}

#[test]
fn data_of_earlier_versions_is_upgraded_at_the_start_or_while_running() {
    let own = GuardedServer::stopped();
    downgrade_data(&own);
    own.start();
    let rules = fs::read_to_string(own.path("data-N/pg_hba.conf")).unwrap();
    assert!(rules.ends_with("\nlocal sales bob trust\n"), "{rules}");
    assert_password_is_required(&own.server.secret_dsn().unwrap(), &own.server.tcp_dsn().unwrap());

    downgrade_data(&own);
    let config: Config = own.server.secret_dsn().unwrap().parse().unwrap();
    ask(&config, "select pg_reload_conf()").unwrap();
    own.start();
    let rules = "select count(*) from pg_hba_file_rules \
                 where type = 'local' and database = '{all}' and auth_method = 'trust'";
    assert_eq!(ask(&config, rules).unwrap(), "0");
    // The server reloads its rules a moment after the signal.
    let mut wrong = config.clone();
    wrong.password("wrong");
    let begin = std::time::Instant::now();
    while ask(&wrong, "select 1").is_ok() {
        assert!(
            begin.elapsed() < std::time::Duration::from_secs(60),
            "the socket must require the password"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_password_is_required(&own.server.secret_dsn().unwrap(), &own.server.tcp_dsn().unwrap());
}

#[test]
fn an_absent_password_is_replaced_at_the_next_start() {
    let own = GuardedServer::new();
    own.start();
    let old = own.server.secret_dsn().unwrap();
    fs::remove_file(own.path("password-N")).unwrap();
    let error = own.server.dsn().unwrap_err();
    assert!(error.hint_text().unwrap().contains("gets a new password"));
    assert!(own.server.start(&silent).is_err());
    own.server.stop(&silent).unwrap();
    own.start();
    assert_ne!(own.server.secret_dsn().unwrap(), old);
    assert_password_is_required(&own.server.secret_dsn().unwrap(), &own.server.tcp_dsn().unwrap());
}

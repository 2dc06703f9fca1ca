//! Creates data folders with `initdb`, and writes pgspate's settings file in them.
//!
//! The server requires the password also on the socket, because the server's user may run other
//! programs too. That user never learns the password: `initdb` gets a SCRAM verifier. The server
//! can check a password against the verifier, but the verifier is no password. pgspate's settings
//! are in `pgspate.conf`, which `postgresql.conf` includes last. Settings of `alter system`
//! override them.

use std::fs;
use std::io::Write;
use std::path::Path;

use rustix::fs::OFlags;

use crate::account::ServerAccount;
use crate::error::{self, Result};
use crate::find::Installation;
use crate::folder::OpenFolder;
use crate::{folder, launch};

/// The name of pgspate's settings file in a data folder.
pub(crate) const SETTINGS_FILE: &str = "pgspate.conf";

/// Creates a data folder `parent/data` that `account` owns. `parent` must be new, belong to
/// pgspate's user, and be open to `account`. Nothing else remains in `parent`.
pub(crate) fn make_data_folder(
    installation: &Installation,
    parent: &Path,
    password: &str,
    is_durable: bool,
    account: Option<&ServerAccount>,
) -> Result<()> {
    let (data, secret) = (parent.join("data"), parent.join("verifier"));
    // Before version 14, `initdb` reads only 99 bytes of the file, and a verifier is longer. So
    // `initdb` gets another password, which is replaced afterwards.
    let reads_verifier = installation.major >= 14;
    let first = if reads_verifier { verifier(password) } else { folder::random_password()? };
    folder::write_private(&secret, format!("{first}\n").as_bytes(), account)?;
    let mut result = Ok(());
    for locale in locales(installation.major) {
        folder::remove_tree(&data)?;
        folder::make_private(&data, account)?;
        let mut command = launch::command(installation, "initdb", account);
        command.arg("-D").arg(&data).arg("--pwfile").arg(&secret).args(*locale);
        command.args(["-U", "postgres", "-E", "UTF8"]);
        command.args(["--auth-local=scram-sha-256", "--auth-host=scram-sha-256"]);
        if !is_durable {
            command.arg("--no-sync");
        }
        result = launch::run(command, "create a PostgreSQL data folder").map(drop);
        if result.is_ok() {
            break;
        }
    }
    folder::remove_file(&secret)?;
    result?;
    if !reads_verifier {
        set_password(installation, &data, password, account)?;
    }
    include_settings(&data, SETTINGS_FILE)
}

/// Returns options of `initdb` for the locale, the best first. All sort by code point, which is the
/// same on every machine. The first choice classifies the letters of all languages, where the
/// system can. The last choice works on every system.
fn locales(major: u32) -> &'static [&'static [&'static str]] {
    match major {
        17.. => &[
            &["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"],
            &["--locale=C"],
        ],
        _ => &[&["--locale=C", "--lc-ctype=C.UTF-8"], &["--locale=C"]],
    }
}

/// Makes `postgresql.conf` include another file of its folder, after all other lines.
pub(crate) fn include_settings(data: &Path, name: &str) -> Result<()> {
    let path = data.join("postgresql.conf");
    let line = format!("\ninclude_if_exists '{name}'\n");
    let folder = OpenFolder::open(data)?;
    let append = || {
        let mut file = folder.open_file("postgresql.conf", OFlags::WRONLY | OFlags::APPEND)?;
        file.write_all(line.as_bytes())
    };
    append().map_err(|e| error::could_not("write", &path, e))
}

/// Returns the SCRAM verifier that the server stores for a password: `SCRAM-SHA-256$4096:…`.
fn verifier(password: &str) -> String {
    postgres_protocol::password::scram_sha_256(password.as_bytes())
}

/// Sets the superuser's password in the data folder of a stopped server.
pub(crate) fn set_password(
    installation: &Installation,
    data: &Path,
    password: &str,
    account: Option<&ServerAccount>,
) -> Result<()> {
    let mut command = launch::command(installation, "postgres", account);
    command.args(["--single", "-D"]).arg(data).arg("postgres");
    let sql = format!("alter role postgres password '{}'\n", verifier(password));
    let output = launch::run_with_input(command, "set the password of PostgreSQL", &sql)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The exit status does not show whether a statement has failed.
    match stderr.lines().find(|line| line.contains("ERROR:")) {
        Some(line) => {
            Err(error::new("could not set the password of PostgreSQL").because(error::new(line)))
        }
        None => Ok(()),
    }
}

/// Changes `pg_hba.conf`: the socket requires the password. Earlier versions of pgspate trusted
/// every connection to the socket. Other lines stay.
pub(crate) fn require_password_on_socket(
    data: &Path,
    account: Option<&ServerAccount>,
) -> Result<()> {
    const NAME: &str = "pg_hba.conf";
    let folder = OpenFolder::open(data)?;
    let bytes = folder.read(NAME).map_err(|e| error::could_not("read", &data.join(NAME), e))?;
    let before = String::from_utf8_lossy(&bytes);
    let after = without_trust(&before);
    if after == before { Ok(()) } else { folder.write(NAME, after.as_bytes(), account) }
}

/// Changes only lines as `initdb --auth-local=trust` writes them.
fn without_trust(rules: &str) -> String {
    let change = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            ["local", "all" | "replication", "all", "trust"] => {
                line.replace("trust", "scram-sha-256")
            }
            _ => line.to_owned(),
        }
    };
    rules.split_inclusive('\n').map(change).collect()
}

/// Quotes a value for a settings file.
pub(crate) fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''"))
}

/// Returns the value of `unix_socket_directories`. The setting is a list, so the folder is quoted:
/// its name may contain a comma.
pub(crate) fn socket_list(folder: Option<&Path>) -> String {
    let name = |folder: &Path| folder.to_string_lossy().replace('"', "\"\"");
    folder.map_or(String::new(), |folder| format!("\"{}\"", name(folder)))
}

/// Returns the settings of the user's server. They fit this machine's memory; durability stays as
/// PostgreSQL's defaults have it.
pub(crate) fn settings(port: u16, socket_folder: Option<&Path>) -> String {
    let megabytes = shared_buffers_megabytes(memory_bytes());
    let sockets = quote(&socket_list(socket_folder));
    format!(
        "# Written by pgspate at every start. Use `alter system` for settings of your own.\n\
         listen_addresses = '127.0.0.1'\n\
         port = {port}\n\
         unix_socket_directories = {sockets}\n\
         shared_buffers = {megabytes}MB\n\
         max_wal_size = 4GB\n\
         checkpoint_timeout = 15min\n\
         maintenance_work_mem = 256MB\n\
         logging_collector = off\n\
         log_destination = stderr\n\
         log_line_prefix = '%m [%p] '\n"
    )
}

/// Returns the port in the settings file of a data folder.
pub(crate) fn port_in(data: &Path) -> Option<u16> {
    let text = String::from_utf8(OpenFolder::open(data).ok()?.read(SETTINGS_FILE).ok()?).ok()?;
    text.lines().find_map(|line| line.strip_prefix("port = ")?.parse().ok())
}

/// Returns an eighth of the memory, at least PostgreSQL's default of 128 MB and at most 1 GB. The
/// rest is for other programs and the caches of the system.
fn shared_buffers_megabytes(memory: Option<u64>) -> u64 {
    memory.map_or(128, |bytes| ((bytes / 8) >> 20).clamp(128, 1024))
}

/// Returns the memory of the machine, or of the container if that has less.
fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    Some((kilobytes << 10).min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_grow_with_memory_within_limits() {
        assert_eq!(shared_buffers_megabytes(None), 128);
        assert_eq!(shared_buffers_megabytes(Some(512 << 20)), 128);
        assert_eq!(shared_buffers_megabytes(Some(4 << 30)), 512);
        assert_eq!(shared_buffers_megabytes(Some(64 << 30)), 1024);
    }

    #[test]
    fn socket_folders_are_quoted_as_list_element_and_as_setting() {
        let list = socket_list(Some(Path::new("/tmp/it's, \"here\"")));
        assert_eq!(list, "\"/tmp/it's, \"\"here\"\"\"");
        assert_eq!(quote(&list), "'\"/tmp/it''s, \"\"here\"\"\"'");
        assert_eq!(socket_list(None), "");
    }

    #[test]
    fn only_trust_rules_of_initdb_are_changed() {
        let rules = "# local all all trust\n\
            local   all             all                                     trust\n\
            local   replication     all                                     trust\n\
            host    all             all             127.0.0.1/32            scram-sha-256\n\
            local sales bob trust\nlocal all all peer";
        let expected = "# local all all trust\n\
            local   all             all                                     scram-sha-256\n\
            local   replication     all                                     scram-sha-256\n\
            host    all             all             127.0.0.1/32            scram-sha-256\n\
            local sales bob trust\nlocal all all peer";
        assert_eq!(without_trust(rules), expected);
        assert_eq!(without_trust(expected), expected);
    }

    #[test]
    fn port_in_finds_the_port_of_the_settings_file() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(port_in(temp.path()), None);
        fs::write(temp.path().join(SETTINGS_FILE), settings(6543, None)).unwrap();
        assert_eq!(port_in(temp.path()), Some(6543));
        let durable = settings(1, None);
        assert!(!durable.contains("fsync") && !durable.contains("synchronous_commit"));
    }
}

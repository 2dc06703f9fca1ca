//! Finding PostgreSQL's server programs on this machine, or fetching them.
//!
//! Looked at in this order: the folder in `PGSPATE_PG_BIN`, what `pg_config` names, `PATH`, the
//! folders of the usual packages (newest version first), what was fetched earlier, and last the
//! network. `PGSPATE_PG_VERSION` (a major version) rules out everything else. An installation
//! counts when it has all three programs, is new enough, and the server's user may execute it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::account::{Account, blocked_at};
use crate::error::{self, Error, Result};
use crate::fetch;
use crate::home::Home;
use crate::progress::Progress;

/// The oldest major version that pgspate works with.
pub const MAJOR_MIN: u32 = 13;
/// The major version that is fetched when nothing was found and none was asked for.
pub const MAJOR_FETCHED: u32 = 18;

/// The programs that make a server.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// Where packages put their programs; `*` stands for any name.
const USUAL_FOLDERS: [(&str, &str); 6] = [
    ("/usr/lib/postgresql", "bin"),
    ("/usr", "bin"),
    ("/opt/homebrew/opt", "bin"),
    ("/usr/local/opt", "bin"),
    ("/Applications/Postgres.app/Contents/Versions", "bin"),
    ("/opt", "bin"),
];

/// The server programs of one PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// The folder that holds `initdb`, `postgres` and `pg_ctl`.
    pub bin_dir: PathBuf,
    /// The full version as `postgres --version` gives it, for example `15.14` or `19devel`.
    pub version: String,
    /// The major version, which names data folders.
    pub major: u32,
}

impl Installation {
    /// The installation in a folder.
    ///
    /// # Errors
    /// A program is missing or does not run, or the version is older than [`MAJOR_MIN`].
    pub fn at(bin_dir: &Path) -> Result<Installation> {
        let folder = bin_dir.display();
        let missing = PROGRAMS.iter().find(|program| !bin_dir.join(program).is_file());
        if let Some(program) = missing {
            return Err(error::new(format!("there is no program \"{program}\" in \"{folder}\"")));
        }
        let output = Command::new(bin_dir.join("postgres"))
            .arg("--version")
            .current_dir("/")
            .output()
            .map_err(|e| error::file("run", &bin_dir.join("postgres"), e))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some((version, major)) = parse_version(&text) else {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = if text.trim().is_empty() { said.trim() } else { text.trim() };
            return Err(error::new(format!("\"{folder}/postgres\" did not tell its version"))
                .because(error::new(said)));
        };
        if major < MAJOR_MIN {
            let message = format!("PostgreSQL {version} in \"{folder}\" is too old");
            return Err(error::new(message)
                .hint(format!("pgspate works with PostgreSQL {MAJOR_MIN} and newer.")));
        }
        Ok(Installation { bin_dir: bin_dir.to_path_buf(), version, major })
    }

    /// The path of one of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }

    /// Refuses an installation that the server's user may not execute.
    pub(crate) fn require_open(&self, account: Option<&Account>) -> Result<()> {
        let Some(account) = account else { return Ok(()) };
        let Some(part) = blocked_at(&self.program("postgres"), account) else { return Ok(()) };
        let (name, part) = (&account.name, part.display());
        let message = format!("user \"{name}\" may not execute PostgreSQL: \"{part}\" is closed");
        Err(error::new(message).hint(format!(
            "PostgreSQL does not run as root, so the server runs as \"{name}\". Open \"{part}\" \
             to other users, or set PGSPATE_PG_BIN to another installation."
        )))
    }
}

/// Finds an installation, or fetches one. Honours `PGSPATE_PG_BIN` and `PGSPATE_PG_VERSION`.
///
/// # Errors
/// `PGSPATE_PG_BIN` or `PGSPATE_PG_VERSION` makes no sense, or nothing was found and fetching
/// did not work.
pub fn locate(progress: &Progress<'_>) -> Result<Installation> {
    locate_major(wanted_major("PGSPATE_PG_VERSION")?, progress)
}

/// As [`locate`], but of the major version given, whatever `PGSPATE_PG_VERSION` says.
///
/// # Errors
/// As [`locate`].
pub fn locate_major(major: Option<u32>, progress: &Progress<'_>) -> Result<Installation> {
    let account = Account::for_server()?;
    let account = account.as_ref();
    // Where there is a PostgreSQL on the machine, nothing depends on a folder of our own.
    let home = Home::from_environment();
    let fits = |found: &Installation| major.is_none_or(|major| major == found.major);
    if let Some(folder) = env::var_os("PGSPATE_PG_BIN").filter(|folder| !folder.is_empty()) {
        let cannot = |e: Error| error::new("could not use the folder in PGSPATE_PG_BIN").because(e);
        let found = Installation::at(Path::new(&folder)).map_err(cannot)?;
        if fits(&found) {
            found.require_open(account).map_err(cannot)?;
            return Ok(found);
        }
    }
    // What lies in a folder of another user's is not run.
    let fetched = |home: &Home| fetch::fetched_folders(&home.root);
    let local = from_pg_config().into_iter().chain(from_path()).chain(from_packages());
    let found = local
        .chain(home.iter().filter(|home| home.require_own().is_ok()).flat_map(fetched))
        .filter_map(|folder| Installation::at(&folder).ok())
        .find(|found| fits(found) && found.require_open(account).is_ok());
    match found {
        Some(found) => Ok(found),
        None => fetch::fetch_into(&home?, major.unwrap_or(MAJOR_FETCHED), progress),
    }
}

/// The major version in an environment variable, if it is set.
pub(crate) fn wanted_major(variable: &str) -> Result<Option<u32>> {
    let Ok(text) = env::var(variable) else { return Ok(None) };
    parse_wanted(variable, text.trim())
}

fn parse_wanted(variable: &str, text: &str) -> Result<Option<u32>> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<u32>() {
        Ok(major) if (MAJOR_MIN..1000).contains(&major) => Ok(Some(major)),
        _ => Err(error::new(format!("invalid value for {variable}: \"{text}\"")).hint(format!(
            "Give a major version of {MAJOR_MIN} or more, for example {MAJOR_FETCHED}."
        ))),
    }
}

/// Version and major from `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`.
fn parse_version(text: &str) -> Option<(String, u32)> {
    let (_, rest) = text.split_once("(PostgreSQL)")?;
    let version = rest.split_whitespace().next()?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    Some((version.to_string(), version[..digits].parse().ok()?))
}

fn from_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    Some(folder.trim()).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Folders that `PATH` leads to. A link there points at the real folder, which alone also holds
/// what the programs look for beside themselves.
fn from_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let real = |folder: PathBuf| folder.join("postgres").canonicalize().ok();
    let folders = env::split_paths(&path).filter_map(real);
    folders.filter_map(|program| Some(program.parent()?.to_path_buf())).collect()
}

fn from_packages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (parent, inner) in USUAL_FOLDERS {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            // `/usr/lib/postgresql/15`, `/usr/pgsql-15`, `postgresql@15`; never `/usr/local`.
            let named = name.starts_with("pgsql") || name.starts_with("postgresql");
            if named || name.starts_with(|c: char| c.is_ascii_digit()) {
                let number: String = name.chars().filter(char::is_ascii_digit).collect();
                found.push((number.parse().unwrap_or(0u64), entry.path().join(inner)));
            }
        }
    }
    // Stable, so that folders listed first win among equals.
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    found.into_iter().map(|(_, folder)| folder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_packages_and_of_developers_are_read() {
        let cases = [
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n", ("15.14", 15)),
            ("postgres (PostgreSQL) 18.1\n", ("18.1", 18)),
            ("postgres (PostgreSQL) 19devel", ("19devel", 19)),
            ("postgres (PostgreSQL) 18rc1", ("18rc1", 18)),
            ("postgres (PostgreSQL) 9.6.24", ("9.6.24", 9)),
        ];
        for (text, (version, major)) in cases {
            assert_eq!(parse_version(text), Some((version.to_string(), major)));
        }
        for text in ["", "postgres (Greenplum Database) 6.0", "postgres (PostgreSQL) beta"] {
            assert_eq!(parse_version(text), None);
        }
    }

    #[test]
    fn only_a_supported_major_version_can_be_wished_for() {
        assert_eq!(parse_wanted("V", "18").unwrap(), Some(18));
        assert_eq!(parse_wanted("V", "").unwrap(), None);
        for text in ["12", "18.1", "latest", "-18", "99999"] {
            let error = parse_wanted("V", text).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid value for V: \"{text}\""));
            assert!(error.hint_text().is_some());
        }
    }

    #[test]
    fn a_folder_without_programs_is_refused_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let error = Installation::at(temp.path()).unwrap_err();
        assert!(error.to_string().starts_with("there is no program \"initdb\" in"));
    }
}

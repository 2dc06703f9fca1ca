//! Finds PostgreSQL's server programs on this machine, or fetches them.
//!
//! The places are tried in this order:
//! 1. the folder in `PGSPATE_PG_BIN`,
//! 2. the folder that `pg_config` names,
//! 3. the folders of `PATH`,
//! 4. the folders of the usual packages, newest version first,
//! 5. earlier fetched releases,
//! 6. the network.
//!
//! With `PGSPATE_PG_VERSION`, only that major version is accepted. An installation must have all
//! three programs, be new enough, and be executable for the server's user.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::account::{ServerAccount, blocked_at};
use crate::error::{self, Error, Result};
use crate::fetch;
use crate::home::EmbeddedHome;
use crate::progress::Progress;

/// The oldest major version that pgspate supports.
pub const MAJOR_MIN: u32 = 13;
/// The major version that is fetched if none is installed and none is requested.
pub const MAJOR_FETCHED: u32 = 18;

/// The programs that a server needs.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// Where packages install their programs: a parent folder with one folder per version, and the name
/// of the programs' folder within the version's folder.
const USUAL_FOLDERS: [(&str, &str); 6] = [
    ("/usr/lib/postgresql", "bin"),
    ("/usr", "bin"),
    ("/opt/homebrew/opt", "bin"),
    ("/usr/local/opt", "bin"),
    ("/Applications/Postgres.app/Contents/Versions", "bin"),
    ("/opt", "bin"),
];

/// The server programs of one PostgreSQL installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// The folder with `initdb`, `postgres` and `pg_ctl`.
    pub bin_dir: PathBuf,
    /// The full version as `postgres --version` prints it, for example `15.14` or `19devel`.
    pub version: String,
    /// The major version. The names of data folders end with it.
    pub major: u32,
}

impl Installation {
    /// Returns the installation in a folder.
    ///
    /// # Errors
    /// [`pgspate_base::ErrorKind::Connect`] if a program is missing or does not run, or the version
    /// is older than [`MAJOR_MIN`].
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
            .map_err(|e| error::could_not("run", &bin_dir.join("postgres"), e))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some((version, major)) = parse_version(&text) else {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let printed = if text.trim().is_empty() { stderr.trim() } else { text.trim() };
            let message = format!("could not read the version of \"{folder}/postgres\"");
            return Err(error::new(message).because(error::new(printed)));
        };
        if major < MAJOR_MIN {
            let message = format!("PostgreSQL {version} in \"{folder}\" is too old");
            return Err(error::new(message)
                .hint(format!("pgspate supports PostgreSQL {MAJOR_MIN} and newer.")));
        }
        Ok(Installation { bin_dir: bin_dir.to_path_buf(), version, major })
    }

    /// Returns the path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }

    /// Checks that the server's user may execute the installation.
    pub(crate) fn require_executable(&self, account: Option<&ServerAccount>) -> Result<()> {
        let Some(account) = account else { return Ok(()) };
        let Some(part) = blocked_at(&self.program("postgres"), account) else { return Ok(()) };
        let (name, part) = (&account.name, part.display());
        let message = format!(
            "user \"{name}\" cannot execute PostgreSQL: \"{part}\" is closed to other users"
        );
        Err(error::new(message).hint(format!(
            "PostgreSQL does not run as root, so the server runs as \"{name}\". Open \"{part}\" \
             to other users, or set PGSPATE_PG_BIN to the program folder of another installation."
        )))
    }
}

/// Finds an installation, or fetches one. Uses `PGSPATE_PG_BIN` and `PGSPATE_PG_VERSION`.
///
/// # Errors
/// [`pgspate_base::ErrorKind::Connect`] if `PGSPATE_PG_BIN` or `PGSPATE_PG_VERSION` is invalid, if
/// the two variables name different versions, or if no installation was found and none could be
/// fetched.
pub fn locate(progress: &Progress<'_>) -> Result<Installation> {
    let wanted = wanted_major("PGSPATE_PG_VERSION")?;
    check_given_folder(wanted)?;
    locate_major(wanted, progress)
}

/// Refuses a folder in `PGSPATE_PG_BIN` with another major version than `PGSPATE_PG_VERSION` wants.
pub(crate) fn check_given_folder(wanted: Option<u32>) -> Result<()> {
    let (Some(folder), Some(wanted)) = (given_folder(), wanted) else { return Ok(()) };
    match Installation::at(Path::new(&folder)) {
        Ok(found) if found.major != wanted => Err(contradiction(&found, wanted)),
        // The search for an installation reports an unusable folder.
        _ => Ok(()),
    }
}

/// Returns the folder of programs that the user gives.
fn given_folder() -> Option<OsString> {
    env::var_os("PGSPATE_PG_BIN").filter(|folder| !folder.is_empty())
}

fn contradiction(found: &Installation, wanted: u32) -> Error {
    let (version, folder) = (&found.version, found.bin_dir.display());
    let message = format!(
        "PGSPATE_PG_BIN names PostgreSQL {version} in \"{folder}\", but PGSPATE_PG_VERSION asks \
         for version {wanted}"
    );
    error::new(message).hint("Unset one of the two variables.")
}

/// Finds or fetches an installation of the given major version, or of any supported version without
/// one. Searches as [`locate`] does, but ignores `PGSPATE_PG_VERSION`.
///
/// # Errors
/// The errors of [`locate`].
pub fn locate_major(major: Option<u32>, progress: &Progress<'_>) -> Result<Installation> {
    let account = ServerAccount::for_server()?;
    let account = account.as_ref();
    // If pgspate's folder cannot be used, this is an error only if PostgreSQL must be fetched. An
    // installed PostgreSQL needs no folder of pgspate.
    let home = EmbeddedHome::from_environment();
    let fits = |found: &Installation| major.is_none_or(|major| major == found.major);
    if let Some(folder) = given_folder() {
        let cannot = |e: Error| error::new("could not use the folder in PGSPATE_PG_BIN").because(e);
        let found = Installation::at(Path::new(&folder)).map_err(cannot)?;
        if fits(&found) {
            found.require_executable(account).map_err(cannot)?;
            return Ok(found);
        }
    }
    // Programs in a folder that another user could have changed are not run.
    let fetched = |home: &EmbeddedHome| fetch::fetched_folders(&home.root);
    let local = from_pg_config().into_iter().chain(from_path()).chain(from_packages());
    let found = local
        .chain(home.iter().filter(|home| home.require_own().is_ok()).flat_map(fetched))
        .filter_map(|folder| Installation::at(&folder).ok())
        .find(|found| fits(found) && found.require_executable(account).is_ok());
    match found {
        Some(found) => Ok(found),
        None => fetch::fetch_into(&home?, major.unwrap_or(MAJOR_FETCHED), progress),
    }
}

/// Returns the major version in an environment variable, if the variable is set.
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
            "Set {variable} to a major version from {MAJOR_MIN} on, for example {MAJOR_FETCHED}."
        ))),
    }
}

/// Parses the output of `postgres --version`, for example `postgres (PostgreSQL) 15.14 (Debian
/// 15.14-0+deb12u1)`. Returns the full version and the major version.
fn parse_version(text: &str) -> Option<(String, u32)> {
    let (_, rest) = text.split_once("(PostgreSQL)")?;
    let version = rest.split_whitespace().next()?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    Some((version.to_string(), version[..digits].parse().ok()?))
}

/// Returns the folder that `pg_config` names.
fn from_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    Some(folder.trim()).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Returns the folders of `PATH` with a program `postgres`. Links are resolved: the programs look
/// for other files beside the real file.
fn from_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let real = |folder: PathBuf| folder.join("postgres").canonicalize().ok();
    let folders = env::split_paths(&path).filter_map(real);
    folders.filter_map(|program| Some(program.parent()?.to_path_buf())).collect()
}

/// Returns the program folders of installed packages, the newest version first.
fn from_packages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (parent, inner) in USUAL_FOLDERS {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            // `/usr/lib/postgresql/15`, `/usr/pgsql-15`, `postgresql@15`; never `/usr/local`.
            let is_postgresql = name.starts_with("pgsql") || name.starts_with("postgresql");
            if is_postgresql || name.starts_with(|c: char| c.is_ascii_digit()) {
                let number: String = name.chars().filter(char::is_ascii_digit).collect();
                found.push((number.parse().unwrap_or(0u64), entry.path().join(inner)));
            }
        }
    }
    // A stable sort: among equal versions, the order of USUAL_FOLDERS stays.
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    found.into_iter().map(|(_, folder)| folder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_and_development_versions_are_parsed() {
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
    fn only_a_supported_major_version_can_be_requested() {
        assert_eq!(parse_wanted("V", "18").unwrap(), Some(18));
        assert_eq!(parse_wanted("V", "").unwrap(), None);
        for text in ["12", "18.1", "latest", "-18", "99999"] {
            let error = parse_wanted("V", text).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid value for V: \"{text}\""));
            assert!(error.hint_text().is_some());
        }
    }

    #[test]
    fn the_error_for_a_folder_names_the_missing_program() {
        let temp = tempfile::tempdir().unwrap();
        let error = Installation::at(temp.path()).unwrap_err();
        assert!(error.to_string().starts_with("there is no program \"initdb\" in"));
    }
}

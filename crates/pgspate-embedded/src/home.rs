//! The root folder of the embedded servers, and the user that the servers run as.
//!
//! The user who runs pgspate owns the root folder, and no other user can write to it. It contains
//! pgspate's own files: passwords and locks. The server writes to the folders `data-<major>` and
//! `run-<major>` in it. The user that the server runs as owns these two folders.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::account::{ServerAccount, blocked_at};
use crate::error::{self, Result};
use crate::{folder, sys};

/// The root folder if pgspate runs as root. Root's home folder is closed to other users.
const ROOT_OF_ROOT: &str = "/var/lib/pgspate";

/// The root folder and the user that servers run as.
#[derive(Debug, Clone)]
pub(crate) struct EmbeddedHome {
    pub(crate) root: PathBuf,
    /// The user that servers run as, if pgspate runs as root.
    pub(crate) account: Option<ServerAccount>,
}

/// The environment variables that choose the root folder.
#[derive(Debug, Default)]
struct FolderVariables {
    data_dir: Option<OsString>,
    xdg_data_home: Option<OsString>,
    home: Option<OsString>,
}

impl EmbeddedHome {
    /// Chooses the root folder from the environment: `PGSPATE_DATA_DIR`, then `XDG_DATA_HOME`, then
    /// the default.
    pub(crate) fn from_environment() -> Result<EmbeddedHome> {
        let account = ServerAccount::for_server()?;
        let variables = FolderVariables {
            data_dir: env::var_os("PGSPATE_DATA_DIR"),
            xdg_data_home: env::var_os("XDG_DATA_HOME"),
            home: env::var_os("HOME"),
        };
        let root = choose_root(&variables, account.as_ref(), blocked_at)?;
        Ok(EmbeddedHome { root, account })
    }

    /// Uses this root folder. The server's user must be able to enter it.
    pub(crate) fn at(folder: &Path) -> Result<EmbeddedHome> {
        let account = ServerAccount::for_server()?;
        let root = std::path::absolute(folder).map_err(|e| error::could_not("find", folder, e))?;
        if let Some(account) = &account {
            require_open(&root, account, blocked_at)?;
        }
        Ok(EmbeddedHome { root, account })
    }

    /// Creates the root folder, if it is absent.
    pub(crate) fn create(&self) -> Result<()> {
        // If pgspate runs as root, the server's user must be able to enter the folder.
        let mode = if self.account.is_some() { 0o755 } else { 0o700 };
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&self.root)
            .map_err(|e| error::could_not("create", &self.root, e))?;
        self.require_own()?;
        if let Some(account) = &self.account {
            require_open(&self.root, account, blocked_at)?;
        }
        Ok(())
    }

    /// Checks that pgspate's user owns the root folder, and that no other user can write to it. An
    /// absent folder passes.
    pub(crate) fn require_own(&self) -> Result<()> {
        match fs::metadata(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(error::could_not("read", &self.root, e)),
            Ok(metadata) => folder::require_safe(&self.root, &metadata, &[sys::effective_uid()]),
        }
    }
}

/// Chooses the root folder. `blocked` returns the folder that keeps a user out of a path.
fn choose_root(
    variables: &FolderVariables,
    account: Option<&ServerAccount>,
    blocked: impl Fn(&Path, &ServerAccount) -> Option<PathBuf>,
) -> Result<PathBuf> {
    let set = |value: &Option<OsString>| {
        value.as_ref().filter(|value| !value.is_empty()).map(PathBuf::from)
    };
    if let Some(folder) = set(&variables.data_dir) {
        let folder =
            std::path::absolute(&folder).map_err(|e| error::could_not("find", &folder, e))?;
        if let Some(account) = account {
            require_open(&folder, account, blocked)?;
        }
        return Ok(folder);
    }
    // The XDG specification says that relative paths are ignored.
    let xdg = set(&variables.xdg_data_home).filter(|path| path.is_absolute());
    let xdg = xdg.map(|path| path.join("pgspate"));
    if let Some(account) = account {
        let open = xdg.filter(|path| blocked(path, account).is_none());
        return Ok(open.unwrap_or_else(|| PathBuf::from(ROOT_OF_ROOT)));
    }
    let home = set(&variables.home).filter(|path| path.is_absolute());
    xdg.or_else(|| Some(home?.join(".local/share/pgspate"))).ok_or_else(|| {
        error::new("could not find a folder for the embedded PostgreSQL: HOME is not set")
            .hint("Set PGSPATE_DATA_DIR to a folder of your own.")
    })
}

/// Checks that the server's user can enter a folder.
fn require_open(
    folder: &Path,
    account: &ServerAccount,
    blocked: impl Fn(&Path, &ServerAccount) -> Option<PathBuf>,
) -> Result<()> {
    let Some(part) = blocked(folder, account) else { return Ok(()) };
    let (folder, part, name) = (folder.display(), part.display(), &account.name);
    let message =
        format!("user \"{name}\" cannot reach \"{folder}\": \"{part}\" is closed to other users");
    Err(error::new(message).hint(format!(
        "PostgreSQL does not run as root, so the server runs as \"{name}\". Set \
         PGSPATE_DATA_DIR to a folder that this user can reach, for example {ROOT_OF_ROOT}."
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(data_dir: &str, xdg: &str, home: &str) -> FolderVariables {
        let os = |text: &str| Some(OsString::from(text));
        FolderVariables { data_dir: os(data_dir), xdg_data_home: os(xdg), home: os(home) }
    }

    fn root_is_closed(path: &Path, _: &ServerAccount) -> Option<PathBuf> {
        path.starts_with("/root").then(|| PathBuf::from("/root"))
    }

    fn choose(variables: &FolderVariables, root: bool) -> Result<PathBuf> {
        let account = ServerAccount { name: "nobody".into(), uid: 65_534, gid: 65_534 };
        choose_root(variables, root.then_some(&account), root_is_closed)
    }

    #[test]
    fn an_ordinary_user_gets_a_folder_in_xdg_or_home() {
        let path = choose(&variables("", "", "/home/ada"), false).unwrap();
        assert_eq!(path, Path::new("/home/ada/.local/share/pgspate"));
        let path = choose(&variables("", "/xdg", "/home/ada"), false).unwrap();
        assert_eq!(path, Path::new("/xdg/pgspate"));
        let path = choose(&variables("", "relative", "/home/ada"), false).unwrap();
        assert_eq!(path, Path::new("/home/ada/.local/share/pgspate"));
        let path = choose(&variables("/mine", "/xdg", "/home/ada"), false).unwrap();
        assert_eq!(path, Path::new("/mine"));
    }

    #[test]
    fn without_a_home_folder_the_error_has_a_hint() {
        let error = choose(&FolderVariables::default(), false).unwrap_err();
        assert!(error.hint_text().unwrap().contains("PGSPATE_DATA_DIR"));
    }

    #[test]
    fn root_gets_a_folder_that_the_server_can_reach() {
        let path = choose(&variables("", "", "/root"), true).unwrap();
        assert_eq!(path, Path::new(ROOT_OF_ROOT));
        let path = choose(&variables("", "/root/.local/share", "/root"), true).unwrap();
        assert_eq!(path, Path::new(ROOT_OF_ROOT));
        let path = choose(&variables("", "/srv", "/root"), true).unwrap();
        assert_eq!(path, Path::new("/srv/pgspate"));
    }

    #[test]
    fn a_closed_data_dir_is_an_error_that_names_the_closed_folder() {
        let error = choose(&variables("/root/pg", "/srv", "/root"), true).unwrap_err();
        assert_eq!(
            error.to_string(),
            "user \"nobody\" cannot reach \"/root/pg\": \"/root\" is closed to other users"
        );
        assert!(error.hint_text().unwrap().contains("PGSPATE_DATA_DIR"));
    }
}

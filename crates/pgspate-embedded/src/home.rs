//! Where pgspate keeps its servers: one root folder, and the user that owns what servers write.
//!
//! Files that pgspate itself reads back (passwords, locks) lie in the root folder, which belongs
//! to whoever runs pgspate and to which nobody else can write; what the server writes lies in
//! `data-<major>` and `run-<major>`, which belong to the user that the server runs as.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::account::{Account, blocked_at};
use crate::error::{self, Result};
use crate::{folder, sys};

/// The root folder used by root, whose own home is closed to other users.
const ROOT_OF_ROOT: &str = "/var/lib/pgspate";

/// The root folder and the user that servers run as.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) root: PathBuf,
    pub(crate) account: Option<Account>,
}

/// What the environment says about folders.
#[derive(Debug, Default)]
struct Wishes {
    data_dir: Option<OsString>,
    xdg_data_home: Option<OsString>,
    home: Option<OsString>,
}

impl Home {
    /// Reads the environment: `PGSPATE_DATA_DIR`, else `XDG_DATA_HOME`, else the usual place.
    pub(crate) fn from_environment() -> Result<Home> {
        let account = Account::for_server()?;
        let wishes = Wishes {
            data_dir: env::var_os("PGSPATE_DATA_DIR"),
            xdg_data_home: env::var_os("XDG_DATA_HOME"),
            home: env::var_os("HOME"),
        };
        let root = choose_root(&wishes, account.as_ref(), blocked_at)?;
        Ok(Home { root, account })
    }

    /// A home at a given folder, made if it is missing. The folder must let the server's user in.
    pub(crate) fn at(folder: &Path) -> Result<Home> {
        let account = Account::for_server()?;
        let root = std::path::absolute(folder).map_err(|e| error::file("find", folder, e))?;
        if let Some(account) = &account {
            require_open(&root, account, blocked_at)?;
        }
        Ok(Home { root, account })
    }

    /// Makes the root folder, if it is missing.
    pub(crate) fn create(&self) -> Result<()> {
        // Under root, another user must be able to pass; otherwise nobody else need look.
        let mode = if self.account.is_some() { 0o755 } else { 0o700 };
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&self.root)
            .map_err(|e| error::file("create", &self.root, e))?;
        self.require_own()?;
        if let Some(account) = &self.account {
            require_open(&self.root, account, blocked_at)?;
        }
        Ok(())
    }

    /// Refuses a root folder that others could have put something into. None at all is fine.
    pub(crate) fn require_own(&self) -> Result<()> {
        match fs::metadata(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(error::file("read", &self.root, e)),
            Ok(facts) => folder::require_safe(&self.root, &facts, &[sys::effective_uid()]),
        }
    }
}

fn choose_root(
    wishes: &Wishes,
    account: Option<&Account>,
    blocked: impl Fn(&Path, &Account) -> Option<PathBuf>,
) -> Result<PathBuf> {
    let set = |value: &Option<OsString>| {
        value.as_ref().filter(|value| !value.is_empty()).map(PathBuf::from)
    };
    if let Some(folder) = set(&wishes.data_dir) {
        let folder = std::path::absolute(&folder).map_err(|e| error::file("find", &folder, e))?;
        if let Some(account) = account {
            require_open(&folder, account, blocked)?;
        }
        return Ok(folder);
    }
    // The XDG rules say that a relative path counts as unset.
    let xdg = set(&wishes.xdg_data_home).filter(|path| path.is_absolute());
    let xdg = xdg.map(|path| path.join("pgspate"));
    if let Some(account) = account {
        let open = xdg.filter(|path| blocked(path, account).is_none());
        return Ok(open.unwrap_or_else(|| PathBuf::from(ROOT_OF_ROOT)));
    }
    let home = set(&wishes.home).filter(|path| path.is_absolute());
    xdg.or_else(|| Some(home?.join(".local/share/pgspate"))).ok_or_else(|| {
        error::new("could not find a folder for the embedded PostgreSQL: HOME is not set")
            .hint("Set PGSPATE_DATA_DIR to a folder of yours.")
    })
}

fn require_open(
    folder: &Path,
    account: &Account,
    blocked: impl Fn(&Path, &Account) -> Option<PathBuf>,
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

    fn wishes(data_dir: &str, xdg: &str, home: &str) -> Wishes {
        let os = |text: &str| Some(OsString::from(text));
        Wishes { data_dir: os(data_dir), xdg_data_home: os(xdg), home: os(home) }
    }

    fn root_is_closed(path: &Path, _: &Account) -> Option<PathBuf> {
        path.starts_with("/root").then(|| PathBuf::from("/root"))
    }

    fn choose(wishes: &Wishes, root: bool) -> Result<PathBuf> {
        let account = Account { name: "nobody".into(), uid: 65_534, gid: 65_534 };
        choose_root(wishes, root.then_some(&account), root_is_closed)
    }

    #[test]
    fn an_ordinary_user_gets_xdg_or_home() {
        let path = choose(&wishes("", "", "/home/ada"), false).unwrap();
        assert_eq!(path, Path::new("/home/ada/.local/share/pgspate"));
        let path = choose(&wishes("", "/xdg", "/home/ada"), false).unwrap();
        assert_eq!(path, Path::new("/xdg/pgspate"));
        let path = choose(&wishes("", "relative", "/home/ada"), false).unwrap();
        assert_eq!(path, Path::new("/home/ada/.local/share/pgspate"));
        let path = choose(&wishes("/mine", "/xdg", "/home/ada"), false).unwrap();
        assert_eq!(path, Path::new("/mine"));
    }

    #[test]
    fn no_home_at_all_is_an_error_with_a_remedy() {
        let error = choose(&Wishes::default(), false).unwrap_err();
        assert!(error.hint_text().unwrap().contains("PGSPATE_DATA_DIR"));
    }

    #[test]
    fn root_gets_a_folder_that_the_server_can_reach() {
        let path = choose(&wishes("", "", "/root"), true).unwrap();
        assert_eq!(path, Path::new(ROOT_OF_ROOT));
        let path = choose(&wishes("", "/root/.local/share", "/root"), true).unwrap();
        assert_eq!(path, Path::new(ROOT_OF_ROOT));
        let path = choose(&wishes("", "/srv", "/root"), true).unwrap();
        assert_eq!(path, Path::new("/srv/pgspate"));
    }

    #[test]
    fn a_wished_folder_that_is_closed_is_an_error_that_names_the_closed_part() {
        let error = choose(&wishes("/root/pg", "/srv", "/root"), true).unwrap_err();
        assert_eq!(
            error.to_string(),
            "user \"nobody\" cannot reach \"/root/pg\": \"/root\" is closed to other users"
        );
        assert!(error.hint_text().unwrap().contains("PGSPATE_DATA_DIR"));
    }
}

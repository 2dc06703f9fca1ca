//! A snapshot of the process environment, as far as it concerns connections. Connection strings are
//! parsed with the snapshot, so that the result depends only on arguments.
//!
//! Only variables whose names begin with `PG` are kept. Their values are never printed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::{Error, ErrorKind, Result};

/// The environment from which libpq takes its defaults.
#[derive(Clone, Default)]
pub struct Environment {
    /// The `PG*` variables by name.
    pub variables: BTreeMap<String, String>,
    /// The user's home folder, which has `.pgpass`, `.pg_service.conf` and `.postgresql/`.
    pub home: Option<PathBuf>,
    /// The name of the operating system user.
    pub user: Option<String>,
    /// Folders to search for a server's socket if no host is named. The first folder with a socket
    /// for the port is used, otherwise the first folder.
    pub socket_dirs: Vec<PathBuf>,
    /// Folders to search for `pg_service.conf` after the user's own file, unless `PGSYSCONFDIR`
    /// names a folder.
    pub sysconf_dirs: Vec<PathBuf>,
}

impl Environment {
    /// Captures the environment of this process.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a `PG*` variable is not UTF-8.
    pub fn capture() -> Result<Environment> {
        let mut variables = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str().filter(|name| name.starts_with("PG")) else { continue };
            let value = value.into_string().map_err(|_| {
                Error::new(
                    ErrorKind::Usage,
                    format!("environment variable {name} is not valid UTF-8"),
                )
            })?;
            variables.insert(name.to_owned(), value);
        }
        Ok(Environment {
            variables,
            home: std::env::home_dir().filter(|home| !home.as_os_str().is_empty()),
            user: whoami::username().ok(),
            socket_dirs: vec![PathBuf::from("/var/run/postgresql"), PathBuf::from("/tmp")],
            sysconf_dirs: vec![
                PathBuf::from("/etc/postgresql-common"),
                PathBuf::from("/etc/sysconfig/pgsql"),
                PathBuf::from("/etc"),
            ],
        })
    }

    /// Returns a variable's value. `None` if it is unset or empty.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns whether a variable names a server, database or role.
    pub(super) fn names_a_server(&self) -> bool {
        ["PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"]
            .into_iter()
            .any(|name| self.variable(name).is_some())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("variables", &self.variables.keys().collect::<Vec<_>>())
            .field("home", &self.home)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

//! Progress: the caller is notified before each step that takes noticeable time.
//!
//! So the last reported step is the one that the program waits for.

use std::fmt;
use std::path::PathBuf;

/// Called with each [`ServerStep`] before the step begins. Pass [`silent`] to ignore the steps.
pub type Progress<'a> = dyn Fn(&ServerStep) + 'a;

/// A step of starting or stopping a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerStep {
    /// The pinned release of `major` is being downloaded.
    Fetching {
        /// Major version, for example 18.
        major: u32,
    },
    /// The archive is downloaded and verified, and is being unpacked.
    Unpacking {
        /// Full version, for example `18.1.0`.
        version: String,
        /// Size of the archive.
        bytes: u64,
    },
    /// A new data folder is being created.
    Creating {
        /// The data folder.
        folder: PathBuf,
    },
    /// The server process is being started.
    Starting {
        /// Version of the server.
        version: String,
    },
    /// The server runs but is not ready: it recovers from a crash. That may take minutes.
    Recovering,
    /// The server is being stopped.
    Stopping,
}

impl fmt::Display for ServerStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerStep::Fetching { major } => write!(f, "fetching PostgreSQL {major} …"),
            ServerStep::Unpacking { version, bytes } => {
                let megabytes = *bytes as f64 / 1e6;
                write!(f, "unpacking PostgreSQL {version} ({megabytes:.1} MB) …")
            }
            ServerStep::Creating { folder } => write!(f, "creating \"{}\" …", folder.display()),
            ServerStep::Starting { version } => write!(f, "starting PostgreSQL {version} …"),
            ServerStep::Recovering => f.write_str("waiting for PostgreSQL to recover …"),
            ServerStep::Stopping => f.write_str("stopping PostgreSQL …"),
        }
    }
}

/// Ignores every step.
pub fn silent(_: &ServerStep) {}

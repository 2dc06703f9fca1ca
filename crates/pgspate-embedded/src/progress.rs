//! What takes noticeable time, told to the caller as it begins.
//!
//! A step is announced before its work starts, so the last one seen is what the program waits for.

use std::fmt;
use std::path::PathBuf;

/// Told each [`Step`] as it begins. Pass [`silent`] to ignore them.
pub type Progress<'a> = dyn Fn(&Step) + 'a;

/// One step of getting a server up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The pinned release of `major` is downloaded.
    Fetching {
        /// Major version, for example 18.
        major: u32,
    },
    /// The archive is here, its checksum is right, and it is being unpacked.
    Unpacking {
        /// Full version, for example `18.1.0`.
        version: String,
        /// Size of the archive.
        bytes: u64,
    },
    /// A new data folder is being made.
    Creating {
        /// The data folder.
        folder: PathBuf,
    },
    /// The server process is being started.
    Starting {
        /// Version of the server.
        version: String,
    },
    /// The server is up but not ready: it recovers from a crash, which may take minutes.
    Recovering,
    /// The server is being stopped.
    Stopping,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Fetching { major } => write!(f, "fetching PostgreSQL {major} …"),
            Step::Unpacking { version, bytes } => {
                let megabytes = *bytes as f64 / 1e6;
                write!(f, "unpacking PostgreSQL {version} ({megabytes:.1} MB) …")
            }
            Step::Creating { folder } => write!(f, "creating \"{}\" …", folder.display()),
            Step::Starting { version } => write!(f, "starting PostgreSQL {version} …"),
            Step::Recovering => f.write_str("waiting for PostgreSQL to recover …"),
            Step::Stopping => f.write_str("stopping PostgreSQL …"),
        }
    }
}

/// Ignores every step.
pub fn silent(_: &Step) {}

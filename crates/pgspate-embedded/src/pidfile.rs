//! Reads `postmaster.pid`, and makes a stale file harmless.
//!
//! The file remains after a crash. Its process id may then belong to another process, or to a
//! process that has ended but that its parent has not waited for. A new server cannot tell these
//! cases apart and refuses to start. [`disarm_stale`] replaces the process id and keeps the rest of
//! the file: from its last lines the server learns whether old child processes still use the shared
//! memory.

use std::io;
use std::path::{Path, PathBuf};

use crate::account::ServerAccount;
use crate::error::{self, Result};
use crate::folder::OpenFolder;
use crate::process;

const NAME: &str = "postmaster.pid";
/// A process id that no process can have: the largest limit of a kernel is 4,194,304.
const UNUSED_PID: &str = "2147483647";

/// The content of `postmaster.pid`. The server writes the file in steps, so lines may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidFile {
    pub(crate) pid: i32,
    pub(crate) port: Option<u16>,
    pub(crate) socket_folder: Option<PathBuf>,
    /// The System V id of the shared memory segment that locks the data folder.
    pub(crate) shared_memory_id: Option<i32>,
    pub(crate) is_ready: bool,
}

impl PidFile {
    /// Reads the file of a data folder. Returns `None` if the file is absent or invalid.
    pub(crate) fn read(data: &Path) -> Option<PidFile> {
        let bytes = OpenFolder::open(data).ok()?.read(NAME).ok()?;
        parse(std::str::from_utf8(&bytes).ok()?)
    }

    /// Reads the file of a data folder, if its server is running.
    pub(crate) fn of_running(data: &Path) -> Option<PidFile> {
        PidFile::read(data).filter(|file| process::is_server_of(file.pid, data))
    }
}

/// Parses the lines: process id, data folder, start time, port, socket folder, listen address,
/// shared memory key and id, status. The server has not yet written lines that are missing.
fn parse(text: &str) -> Option<PidFile> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let line = |number: usize| lines.get(number - 1).copied().filter(|line| !line.is_empty());
    let pid: i32 = line(1)?.parse().ok()?;
    Some(PidFile {
        // A single-user server writes its process id with a minus sign.
        pid: pid.checked_abs()?,
        port: line(4).and_then(|text| text.parse().ok()),
        socket_folder: line(5).map(PathBuf::from),
        shared_memory_id: line(7).and_then(|text| text.split_whitespace().nth(1)?.parse().ok()),
        is_ready: line(8) == Some("ready"),
    })
}

/// Changes a stale `postmaster.pid` in `data`, so that the next server can start. Call this only if
/// no server runs in `data`.
pub(crate) fn disarm_stale(data: &Path, account: Option<&ServerAccount>) -> Result<()> {
    let folder = OpenFolder::open(data)?;
    let text = match folder.read(NAME) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(error::could_not("read", &data.join(NAME), e)),
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    match parse(&text) {
        // The file is incomplete, after a full disk or a crash of the machine.
        None => folder.remove(NAME),
        Some(file) if process::exists(file.pid) && !process::is_server_of(file.pid, data) => {
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
            let text = format!("{UNUSED_PID}\n{rest}");
            folder.write(NAME, text.as_bytes(), account)
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const READY: &str =
        "4711\n/data\n1700000000\n5433\n/run\n127.0.0.1\n  5432001   98305\nready   \n";

    #[test]
    fn parses_a_complete_and_an_incomplete_file() {
        let file = parse(READY).unwrap();
        assert_eq!((file.pid, file.port, file.shared_memory_id), (4711, Some(5433), Some(98_305)));
        assert_eq!(file.socket_folder.as_deref(), Some(Path::new("/run")));
        assert!(file.is_ready);
        let file = parse("4711\n/data\n1700000000\n5433\n\n").unwrap();
        assert_eq!((file.port, file.socket_folder, file.is_ready), (Some(5433), None, false));
        assert_eq!(parse("-12\n").unwrap().pid, 12);
    }

    #[test]
    fn invalid_files_are_rejected() {
        for text in ["", "\n", "abc\n", "99999999999\n", "-2147483648\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_process_id_of_another_process_is_replaced_and_the_rest_kept() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("postmaster.pid");
        // This test's process is alive, and is not a server.
        let text = READY.replacen("4711", &std::process::id().to_string(), 1);
        fs::write(&path, text).unwrap();
        assert_eq!(PidFile::of_running(temp.path()), None);
        disarm_stale(temp.path(), None).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, READY.replacen("4711", UNUSED_PID, 1));
    }

    #[test]
    fn an_empty_file_is_removed_and_an_absent_file_ignored() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("postmaster.pid"), "").unwrap();
        disarm_stale(temp.path(), None).unwrap();
        assert!(!temp.path().join("postmaster.pid").exists());
        disarm_stale(temp.path(), None).unwrap();
    }
}

//! `postmaster.pid`: what a running server says about itself, and whether that is still true.
//!
//! The file outlives a crash, and its process id may by then belong to somebody else, or to a
//! process that has ended but was never waited for. The server itself cannot tell these apart and
//! refuses to start. [`disarm_stale`] takes the process id out of its way but keeps the rest of
//! the file: its last lines let the server find out whether old children still use its memory.

use std::io;
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::error::{self, Result};
use crate::folder::Folder;
use crate::process;

const NAME: &str = "postmaster.pid";
/// No kernel gives out this process id: the largest limit is 4,194,304.
const PID_OF_NOBODY: &str = "2147483647";

/// The facts in `postmaster.pid`, as far as they have been written yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidFile {
    pub(crate) pid: i32,
    pub(crate) port: Option<u16>,
    pub(crate) socket_folder: Option<PathBuf>,
    /// System V id of the segment that guards the data folder.
    pub(crate) shared_memory: Option<i32>,
    pub(crate) is_ready: bool,
}

impl PidFile {
    /// Reads the file of a data folder; `None` if there is none, or none that makes sense.
    pub(crate) fn read(data: &Path) -> Option<PidFile> {
        let bytes = Folder::open(data).ok()?.read(NAME).ok()?;
        parse(std::str::from_utf8(&bytes).ok()?)
    }

    /// Reads the file, if the server that wrote it is running.
    pub(crate) fn of_running(data: &Path) -> Option<PidFile> {
        PidFile::read(data).filter(|file| process::is_server_of(file.pid, data))
    }
}

/// Line by line: process id, data folder, start time, port, socket folder, listen address,
/// shared memory key and id, status. Missing lines are not written yet.
fn parse(text: &str) -> Option<PidFile> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let line = |number: usize| lines.get(number - 1).copied().filter(|line| !line.is_empty());
    let pid: i32 = line(1)?.parse().ok()?;
    Some(PidFile {
        // A single-user server writes its process id with a minus sign.
        pid: pid.checked_abs()?,
        port: line(4).and_then(|text| text.parse().ok()),
        socket_folder: line(5).map(PathBuf::from),
        shared_memory: line(7).and_then(|text| text.split_whitespace().nth(1)?.parse().ok()),
        is_ready: line(8) == Some("ready"),
    })
}

/// Makes sure that what a dead server left in `data` does not keep the next one from starting.
/// Call it only when no server runs there.
pub(crate) fn disarm_stale(data: &Path, account: Option<&Account>) -> Result<()> {
    let folder = Folder::open(data)?;
    let text = match folder.read(NAME) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(error::file("read", &data.join(NAME), e)),
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    match parse(&text) {
        // Cut short by a full disk or a crash of the machine: it says nothing.
        None => folder.remove(NAME),
        Some(file) if process::exists(file.pid) && !process::is_server_of(file.pid, data) => {
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
            let text = format!("{PID_OF_NOBODY}\n{rest}");
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
    fn reads_a_full_file_and_a_beginning() {
        let file = parse(READY).unwrap();
        assert_eq!((file.pid, file.port, file.shared_memory), (4711, Some(5433), Some(98_305)));
        assert_eq!(file.socket_folder.as_deref(), Some(Path::new("/run")));
        assert!(file.is_ready);
        let file = parse("4711\n/data\n1700000000\n5433\n\n").unwrap();
        assert_eq!((file.port, file.socket_folder, file.is_ready), (Some(5433), None, false));
        assert_eq!(parse("-12\n").unwrap().pid, 12);
    }

    #[test]
    fn nonsense_is_no_file() {
        for text in ["", "\n", "abc\n", "99999999999\n", "-2147483648\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_process_id_taken_by_another_is_disarmed_and_the_rest_kept() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("postmaster.pid");
        // This very test process is alive and no server.
        let text = READY.replacen("4711", &std::process::id().to_string(), 1);
        fs::write(&path, text).unwrap();
        assert_eq!(PidFile::of_running(temp.path()), None);
        disarm_stale(temp.path(), None).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, READY.replacen("4711", PID_OF_NOBODY, 1));
    }

    #[test]
    fn an_empty_file_is_removed_and_a_missing_one_is_fine() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("postmaster.pid"), "").unwrap();
        disarm_stale(temp.path(), None).unwrap();
        assert!(!temp.path().join("postmaster.pid").exists());
        disarm_stale(temp.path(), None).unwrap();
    }
}

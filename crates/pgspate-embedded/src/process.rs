//! Server processes that are not children of pgspate: checks whether they run, and kills them.
//!
//! A process that has ended counts as dead even if its parent has not waited for it. The kernel
//! still accepts signals for such a process, and in a container its parent may never wait.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::sys;

const POLL: Duration = Duration::from_millis(5);

/// Returns whether a process with this id exists. Ended processes that their parent has not waited
/// for exist too. The server checks in the same way.
pub(crate) fn exists(pid: i32) -> bool {
    match sys::signal(pid, 0) {
        Ok(()) => true,
        Err(e) => e.raw_os_error() == Some(libc::EPERM),
    }
}

/// Returns whether a process runs.
pub(crate) fn is_alive(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !matches!(state_and_parent(&stat), Some(('Z' | 'X', _))),
        Err(_) => !has_proc() && exists(pid),
    }
}

/// Returns whether `pid` is a running server process of the data folder `data`.
pub(crate) fn is_server_of(pid: i32, data: &Path) -> bool {
    if !is_alive(pid) {
        return false;
    }
    if has_proc() {
        // The working folder of each server process is the data folder. If the link cannot be read,
        // the process belongs to another user.
        let folder = fs::read_link(format!("/proc/{pid}/cwd"));
        return match (folder, data.canonicalize()) {
            (Ok(folder), Ok(data)) => folder == data,
            _ => false,
        };
    }
    let output = Command::new("ps").args(["-o", "comm=", "-p", &pid.to_string()]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("postgres"))
}

/// Waits until a process has ended. Returns false if the process still runs after `limit`.
pub(crate) fn wait_for_end(pid: i32, limit: Duration) -> bool {
    let begin = Instant::now();
    while is_alive(pid) {
        if begin.elapsed() > limit {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// Kills a server as a crash would: the postmaster and all its children, without any cleanup.
/// Returns the children, which may take a moment to end.
pub(crate) fn kill_with_children(pid: i32) -> io::Result<Vec<i32>> {
    // A stopped postmaster cannot start new children before it is killed.
    sys::signal(pid, libc::SIGSTOP)?;
    let children = children_of(pid);
    sys::signal(pid, libc::SIGKILL)?;
    for child in &children {
        // The child may have ended meanwhile.
        let _ = sys::signal(*child, libc::SIGKILL);
    }
    Ok(children)
}

/// Returns the child processes of a process.
fn children_of(parent: i32) -> Vec<i32> {
    if !has_proc() {
        let output = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        return String::from_utf8_lossy(&text)
            .lines()
            .filter_map(|line| line.trim().split_once(char::is_whitespace))
            .filter(|(_, ppid)| ppid.trim().parse() == Ok(parent))
            .filter_map(|(pid, _)| pid.parse().ok())
            .collect();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state_and_parent(&stat).is_some_and(|(_, ppid)| ppid == parent)
    };
    pids.filter(is_child).collect()
}

/// Parses state and parent from `/proc/<pid>/stat`. The command before them may contain spaces and
/// parentheses, so the search begins after the last parenthesis.
fn state_and_parent(stat: &str) -> Option<(char, i32)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Returns whether the system has `/proc` as on Linux.
fn has_proc() -> bool {
    Path::new("/proc/self/stat").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_parentheses_in_the_command_are_parsed() {
        assert_eq!(state_and_parent("12 (a) Z 9 (x)) S 34 12 12"), Some(('S', 34)));
        assert_eq!(state_and_parent("12 (postgres) Z 1 2"), Some(('Z', 1)));
        assert_eq!(state_and_parent(""), None);
    }

    #[test]
    fn an_ended_child_that_was_not_waited_for_is_dead() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(wait_for_end(pid, Duration::from_secs(10)));
        assert!(!is_alive(pid));
        child.wait().unwrap();
    }

    #[test]
    fn the_test_process_is_alive_and_no_server() {
        let own = std::process::id() as i32;
        assert!(is_alive(own) && exists(own));
        assert!(!is_server_of(own, &std::env::temp_dir()));
        assert!(!exists(i32::MAX));
    }

    #[test]
    fn children_are_found_and_killed() {
        let script = "sleep 600 & sleep 600 & wait";
        let mut shell = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = shell.id() as i32;
        let begin = Instant::now();
        while children_of(pid).len() < 2 {
            assert!(begin.elapsed() < Duration::from_secs(30));
            std::thread::sleep(POLL);
        }
        let children = kill_with_children(pid).unwrap();
        shell.wait().unwrap();
        assert_eq!(children.len(), 2);
        for child in children {
            assert!(wait_for_end(child, Duration::from_secs(10)));
        }
    }
}

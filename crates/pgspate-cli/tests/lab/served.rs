//! Contenders that the lab starts as processes.

use std::fs;

use crate::run::finish;
use crate::{result_lines, start_with};

#[test]
fn callers_send_records_to_a_process_that_ends_with_its_trial() {
    let temp = tempfile::tempdir().unwrap();
    let mut args = vec!["run", "callers", "--scale", "0.00001", "--repeats", "1"];
    for level in [
        "table=account",
        "callers=1",
        "callers=16",
        "flush=flush as it is",
        "round trip=1 ms round trip",
        "sending=pgspate serve",
        "sending=pgspate serve, 100 rows a request",
    ] {
        args.extend(["--only", level]);
    }
    let done = finish(start_with(temp.path(), &args));
    // The lab compares the table with the answered requests.
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let lines = result_lines(temp.path());
    assert_eq!(lines.len(), 4, "{}", done.stderr);
    for line in &lines {
        assert!(line.get("skipped").is_none(), "{line}");
        let text = line.to_string();
        for name in ["calls", "records a second", "serve CPU per record", "lanes"] {
            assert!(text.contains(&format!("\"{name}\"")), "{line}");
        }
    }
    let own = fs::canonicalize(temp.path()).unwrap();
    let left = processes_in(&own);
    assert!(left.is_empty(), "{left:?}");
}

/// Returns the command lines of processes that work in this folder.
fn processes_in(folder: &std::path::Path) -> Vec<String> {
    let is_inside = |process: &fs::DirEntry| {
        fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == folder)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let command = |process: fs::DirEntry| fs::read(process.path().join("cmdline")).ok();
    let lines = entries.filter(is_inside).filter_map(command);
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

//! Tests that memory depends on limits and not on the size of the input.

use std::io::Write;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::support::{LoadCase, finish, spawn};

/// Returns the highest resident memory that a process has had, in MiB.
fn peak_mib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

/// Waits for the end of a command. Returns the larger of `peak` and the command's highest memory,
/// in MiB.
fn measure_peak_mib(child: &Child, mut peak: u64) -> u64 {
    let begin = Instant::now();
    // The file in /proc disappears when the command ends.
    while let Some(now) = peak_mib(child.id()) {
        peak = now.max(peak);
        assert!(begin.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
    peak
}

#[test]
fn a_long_pipe_takes_less_than_256_mib() {
    let case = LoadCase::new("create unlogged table t (id int, note text)");
    let mut child = spawn(&mut case.load_command("- --table t --quiet --lanes 4"));
    let mut pipe = child.stdin.take().unwrap();
    let (mut block, mut rows) = (Vec::new(), 0);
    while block.len() < 1 << 20 {
        writeln!(block, "{rows},{:>999}", "").unwrap();
        rows += 1;
    }
    let mut peak = 0;
    for nth in 0..300 {
        pipe.write_all(&block).unwrap();
        if nth % 10 == 0 {
            peak = peak_mib(child.id()).unwrap_or(0).max(peak);
        }
    }
    drop(pipe);
    peak = measure_peak_mib(&child, peak);
    finish(child).success();
    assert_eq!(case.value("select count(*) from t"), (rows * 300).to_string());
    assert!(peak > 0 && peak < 256, "the load took {peak} MiB");
}

#[test]
fn the_memory_of_committed_chunks_is_released() {
    let case = LoadCase::new("create unlogged table t (id int, note text)");
    let row = |id: u32| format!("{id},{:>999}\n", "");
    case.put("t.csv", (0..200_000).map(row).collect::<String>());
    let child = spawn(&mut case.load_command("t.csv --commit chunk --lanes 1 --header no --quiet"));
    let peak = measure_peak_mib(&child, 0);
    finish(child).success();
    assert_eq!(case.value("select count(*) from t"), "200000");
    assert!(peak > 0 && peak < 128, "200 MB took {peak} MiB");
}

#[test]
fn a_record_longer_than_many_chunks_is_loaded() {
    let case = LoadCase::new("create table t (id int, note text)");
    let long = "x".repeat(30 << 20);
    case.put("t.csv", format!("id,note\n1,a\n2,\"{long}\n\"\n3,c\n"));
    case.load("t.csv").success();
    let told = case.value("select string_agg(id || ' ' || length(note), ', ' order by id) from t");
    assert_eq!(told, format!("1 1, 2 {}, 3 1", long.len() + 1));
}

//! Tests of files that state absurd sizes. A load with a small address space must refuse each file,
//! name the file and the fault, and store nothing.

#[path = "hostile/arrow.rs"]
mod arrow;
#[path = "hostile/parquet.rs"]
mod parquet;
#[path = "hostile/streams.rs"]
mod streams;

use std::process::{Command, Stdio};

use crate::support::{LoadCase, Run, finish};

/// The limit of address space, in KiB: enough for a load, and far less than the stated sizes.
const ADDRESS_SPACE_KIB: u32 = 2_000_000;

/// Creates a table with one row. No refused file may add a row.
fn new_case() -> LoadCase {
    LoadCase::new("create table t (v text); insert into t values ('kept')")
}

/// Runs a load with the small address space.
fn load_in_small_memory(case: &LoadCase, args: &str) -> Run {
    let full = case.load_command(args);
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -v {ADDRESS_SPACE_KIB} && exec \"$0\" \"$@\""));
    command.arg(full.get_program()).args(full.get_args());
    command.current_dir(full.get_current_dir().unwrap()).env_clear();
    for (name, value) in full.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    // Each additional malloc arena would reserve address space.
    command.env("MALLOC_ARENA_MAX", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

/// Loads a file. The load must fail, and the error must contain all `words` and the file's name.
#[track_caller]
fn check_refused(case: &LoadCase, name: &str, content: impl AsRef<[u8]>, words: &[&str]) {
    case.put(name, content);
    let run = load_in_small_memory(case, &format!("--quiet {name} --table t"));
    assert_eq!(run.status, Some(2), "{name}: {:?} {}{}", run.status, run.stdout, run.stderr);
    assert!(run.stderr.starts_with("error: "), "{name}: {}", run.stderr);
    for words in words.iter().chain(&[name]) {
        assert!(run.stderr.contains(words), "{name}: \"{words}\" is not in: {}", run.stderr);
    }
    assert!(!run.stderr.contains("panicked"), "{name}: {}", run.stderr);
    assert_eq!(case.rows("t"), ["(kept)"], "{name}");
}

/// Loads a valid file. The load must succeed, so the limit of address space alone refuses no file.
#[track_caller]
fn check_loaded(case: &LoadCase, name: &str, content: impl AsRef<[u8]>, rows: u64) {
    case.put(name, content);
    let before: u64 = case.value("select count(*) from t").parse().unwrap();
    let run = load_in_small_memory(case, &format!("--quiet {name} --table t"));
    assert_eq!(run.status, Some(0), "{name}: {}{}", run.stdout, run.stderr);
    assert_eq!(case.value("select count(*) from t"), (before + rows).to_string(), "{name}");
    case.db.run("delete from t where v is distinct from 'kept'");
}

//! Files that state absurd sizes: each is refused in a small address space, with its name and what
//! was found, and nothing is stored.

#[path = "hostile/arrow.rs"]
mod arrow;
#[path = "hostile/parquet.rs"]
mod parquet;
#[path = "hostile/streams.rs"]
mod streams;

use std::process::{Command, Stdio};

use crate::support::{LoadCase, Run, finish};

/// Kilobytes of address space: what a load needs, and far less than what is stated.
const ADDRESS_KIB: u32 = 2_000_000;

/// A table with a row, which must stay alone.
fn case() -> LoadCase {
    LoadCase::new("create table t (v text); insert into t values ('kept')")
}

/// The command with little address space.
fn load(case: &LoadCase, args: &str) -> Run {
    let full = case.load_command(args);
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -v {ADDRESS_KIB} && exec \"$0\" \"$@\""));
    command.arg(full.get_program()).args(full.get_args());
    command.current_dir(full.get_current_dir().unwrap()).env_clear();
    for (name, value) in full.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    // Each thread's arena would take address space of its own.
    command.env("MALLOC_ARENA_MAX", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

/// Loads a file that must be refused with these words.
#[track_caller]
fn refused(case: &LoadCase, name: &str, content: impl AsRef<[u8]>, words: &[&str]) {
    case.put(name, content);
    let run = load(case, &format!("--quiet {name} --table t"));
    assert_eq!(run.status, Some(2), "{name}: {:?} {}{}", run.status, run.stdout, run.stderr);
    assert!(run.stderr.starts_with("error: "), "{name}: {}", run.stderr);
    for words in words.iter().chain(&[name]) {
        assert!(run.stderr.contains(words), "{name}: \"{words}\" is not in: {}", run.stderr);
    }
    assert!(!run.stderr.contains("panicked"), "{name}: {}", run.stderr);
    assert_eq!(case.rows("t"), ["(kept)"], "{name}");
}

/// Loads a file that must be taken, as what is refused must not be refused for want of memory.
#[track_caller]
fn taken(case: &LoadCase, name: &str, content: impl AsRef<[u8]>, rows: u64) {
    case.put(name, content);
    let before: u64 = case.value("select count(*) from t").parse().unwrap();
    let run = load(case, &format!("--quiet {name} --table t"));
    assert_eq!(run.status, Some(0), "{name}: {}{}", run.stdout, run.stderr);
    assert_eq!(case.value("select count(*) from t"), (before + rows).to_string(), "{name}");
    case.db.run("delete from t where v is distinct from 'kept'");
}

//! The bodies of the fuzz targets, run without a fuzzer: on what they were once found to fail with,
//! and on mutations of small files that are in order.
//!
//! The mutations are the same in each run. With `PGSPATE_TEST_FUZZ=60` each target runs for 60
//! seconds with new mutations, and `PGSPATE_TEST_SEED` sets their seed. The seed files for a fuzzer
//! are written to the folder `PGSPATE_TEST_FUZZ_SEEDS`.

#[path = "targets/arrow.rs"]
mod arrow;
#[path = "targets/conninfo.rs"]
mod conninfo;
#[path = "targets/delimited.rs"]
mod delimited;
#[path = "targets/events.rs"]
mod events;
#[path = "targets/json.rs"]
mod json;
mod mutate;
#[path = "targets/parquet.rs"]
mod parquet;
mod seeds;
#[path = "targets/server.rs"]
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mutate::FuzzRandom;

/// A target: its name, and what it does with an input.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 7] = [
    ("arrow", arrow::run),
    ("conninfo", conninfo::run),
    ("delimited", delimited::run),
    ("events", events::run),
    ("json", json::run),
    ("parquet", parquet::run),
    ("server", server::run),
];

/// Mutations of each target in an ordinary run.
const MUTATIONS: usize = 1_500;

fn seconds() -> Option<u64> {
    std::env::var("PGSPATE_TEST_FUZZ").ok().map(|text| text.parse().expect("a number of seconds"))
}

fn seed() -> u64 {
    match std::env::var("PGSPATE_TEST_SEED") {
        Ok(text) => text.parse().expect("a number"),
        Err(_) if seconds().is_some() => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.unwrap().as_secs()
        }
        Err(_) => 1,
    }
}

/// Leaves the input behind where the target fails, by whatever end.
struct FuzzTrial(PathBuf);

impl FuzzTrial {
    fn run(&self, (name, run): Target, input: &[u8]) {
        fs::write(&self.0, input).unwrap();
        if std::panic::catch_unwind(|| run(input)).is_err() {
            panic!("{name} fails with the file {}", self.0.display());
        }
    }
}

fn mutated(target: Target) {
    pgspate::format::silence_contained_panics();
    let name = target.0;
    let seeds = seeds::of(name);
    let trial = FuzzTrial(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzzed-{name}")));
    seeds.iter().for_each(|seed| trial.run(target, seed));
    let seed = seed();
    let mut random = FuzzRandom::new(seed);
    let end = seconds().map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut runs = 0;
    while end.map_or(runs < MUTATIONS, |end| Instant::now() < end) {
        trial.run(target, &random.mutated(&seeds));
        runs += 1;
    }
    println!("{name}: {runs} inputs from seed {seed}");
}

#[test]
fn arrow() {
    mutated(TARGETS[0]);
}

#[test]
fn conninfo() {
    mutated(TARGETS[1]);
}

#[test]
fn delimited() {
    mutated(TARGETS[2]);
}

#[test]
fn events() {
    mutated(TARGETS[3]);
}

#[test]
fn json() {
    mutated(TARGETS[4]);
}

#[test]
fn parquet() {
    mutated(TARGETS[5]);
}

#[test]
fn server() {
    mutated(TARGETS[6]);
}

/// Files in `regressions/` are called after their target, and what they were.
#[test]
fn what_once_failed() {
    pgspate::format::silence_contained_panics();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzzed/regressions");
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let target = name.split('-').next().unwrap();
        let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).expect(name);
        println!("{name}");
        run(&fs::read(&file).unwrap());
    }
}

#[test]
fn seeds_are_written_where_a_fuzzer_wants_them() {
    let Ok(folder) = std::env::var("PGSPATE_TEST_FUZZ_SEEDS") else {
        assert!(TARGETS.iter().all(|(name, _)| !seeds::of(name).is_empty()));
        return;
    };
    for (name, _) in TARGETS {
        let folder = Path::new(&folder).join(name);
        fs::create_dir_all(&folder).unwrap();
        for (nth, seed) in seeds::of(name).iter().enumerate() {
            fs::write(folder.join(format!("seed{nth}")), seed).unwrap();
        }
    }
}

//! The bodies of the fuzz targets, run without a fuzzer: on inputs that failed once, and on
//! mutations of valid small files.
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

/// The name of a target, and the function that runs the target with an input.
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

/// The number of mutations for each target in an ordinary run.
const MUTATIONS: usize = 1_500;

fn seconds() -> Option<u64> {
    std::env::var("PGSPATE_TEST_FUZZ")
        .ok()
        .map(|text| text.parse().expect("PGSPATE_TEST_FUZZ must be a number of seconds"))
}

fn seed() -> u64 {
    match std::env::var("PGSPATE_TEST_SEED") {
        Ok(text) => text.parse().expect("PGSPATE_TEST_SEED must be a number"),
        Err(_) if seconds().is_some() => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.unwrap().as_secs()
        }
        Err(_) => 1,
    }
}

/// Runs a target with inputs. Writes each input to the file at this path first, so that the file
/// holds the input even if the target aborts.
struct FuzzTrial(PathBuf);

impl FuzzTrial {
    fn run(&self, (name, run): Target, input: &[u8]) {
        fs::write(&self.0, input).unwrap();
        if std::panic::catch_unwind(|| run(input)).is_err() {
            panic!("target {name} panicked with the input in {}", self.0.display());
        }
    }
}

/// Runs a target with its seeds, and with mutations of the seeds.
fn run_mutations(target: Target) {
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
    println!("{name}: ran {runs} mutations with seed {seed}");
}

#[test]
fn arrow() {
    run_mutations(TARGETS[0]);
}

#[test]
fn conninfo() {
    run_mutations(TARGETS[1]);
}

#[test]
fn delimited() {
    run_mutations(TARGETS[2]);
}

#[test]
fn events() {
    run_mutations(TARGETS[3]);
}

#[test]
fn json() {
    run_mutations(TARGETS[4]);
}

#[test]
fn parquet() {
    run_mutations(TARGETS[5]);
}

#[test]
fn server() {
    run_mutations(TARGETS[6]);
}

/// Each file in `regressions/` is named after its target and its fault.
#[test]
fn inputs_that_failed_once_do_not_panic() {
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
fn seeds_are_written_to_the_folder_for_a_fuzzer() {
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

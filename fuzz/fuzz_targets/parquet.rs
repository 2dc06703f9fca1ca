#![no_main]

#[path = "../../crates/pgspate/tests/fuzzed/targets/parquet.rs"]
mod target;

// pgspate turns a decoder's panic on damaged input into an error.
libfuzzer_sys::fuzz_target!(
    init: pgspate::format::silence_contained_panics(),
    |data: &[u8]| target::run(data)
);

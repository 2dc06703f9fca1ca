#![no_main]

#[path = "../../crates/pgspate/tests/fuzzed/targets/parquet.rs"]
mod target;

// A panic of a decoder at damaged input becomes an error.
libfuzzer_sys::fuzz_target!(
    init: pgspate::format::silence_contained_panics(),
    |data: &[u8]| target::run(data)
);

#![no_main]

#[path = "../../crates/pgspate/tests/fuzzed/targets/events.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));

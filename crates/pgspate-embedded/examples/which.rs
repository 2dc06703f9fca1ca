//! Prints version and folder of the PostgreSQL that the tests use. Fetches PostgreSQL if necessary.

use std::process::ExitCode;

use pgspate_embedded::{ServerStep, testing};

fn main() -> ExitCode {
    match testing::installation(&|step: &ServerStep| eprintln!("{step}")) {
        Ok(found) => {
            println!("{} {}", found.version, found.bin_dir.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", error.chain());
            ExitCode::FAILURE
        }
    }
}

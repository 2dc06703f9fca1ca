//! Prints which PostgreSQL the tests would run with: version and folder, fetched if need be.

use std::process::ExitCode;

use pgspate_embedded::{Step, testing};

fn main() -> ExitCode {
    match testing::installation(&|step: &Step| eprintln!("{step}")) {
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

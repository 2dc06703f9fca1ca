//! The `pgspate` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(pgspate_cli::run(std::env::args_os()))
}

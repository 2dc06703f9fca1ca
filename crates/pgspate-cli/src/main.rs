//! The `pgspate` command: arguments, progress, tables, errors. No logic of its own.
//!
//! stdout is data, stderr is everything else. Exit status: 0 done, 1 done but the answer is "no",
//! 2 error, 130 interrupted.

mod args;
mod errors;
mod generate;
mod load;
mod numbers;
mod output;
mod progress;
mod server;
mod summary;
mod target;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    pgspate::format::silence_contained_panics();
    let style = errors::Style::of_stderr();
    let result = match args.command {
        Command::Load(args) => load::run(*args, style),
        Command::Server { action } => server::run(action, style),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man => generate::man(),
        Command::Reference => generate::reference(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errors::print(&error, style);
            ExitCode::from(errors::status(&error))
        }
    }
}

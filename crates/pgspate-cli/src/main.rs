//! The `pgspate` command: arguments, progress, tables, errors. No logic of its own.
//!
//! stdout is data, stderr is everything else. Exit status: 0 done, 1 done but the answer is "no",
//! 2 error, 130 interrupted.

mod apply;
mod args;
mod errors;
mod generate;
mod load;
mod numbers;
mod output;
mod progress;
mod server;
mod status;
mod summary;
mod sync;
mod target;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

/// How a command that did what it should ended.
pub(crate) enum Answer {
    Yes,
    /// The question's answer is "no", or not all rows were written.
    No,
}

fn main() -> ExitCode {
    let args = Args::parse();
    pgspate::format::silence_contained_panics();
    let style = errors::Style::of_stderr();
    let yes = |()| Answer::Yes;
    let result = match args.command {
        Command::Load(args) => load::run(*args, style),
        Command::Sync(args) => sync::run(*args, style),
        Command::Apply(args) => apply::run(*args, style),
        Command::Status(args) => status::run(&args, style),
        Command::Server { action } => server::run(action, style).map(yes),
        Command::Completions { shell } => generate::completions(shell).map(yes),
        Command::Man => generate::man().map(yes),
        Command::Reference => generate::reference().map(yes),
    };
    match result {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Err(error) => {
            errors::print(&error, style);
            ExitCode::from(errors::status(&error))
        }
    }
}

//! The `pgspate` command: arguments, progress, tables, errors. No logic of its own.
//!
//! stdout is data, stderr is everything else. Exit status: 0 done, 1 done but the answer is "no",
//! 2 error, 130 interrupted. A library, so that the Python package carries the same command and
//! takes the same options.

mod apply;
mod args;
mod doctor;
mod errors;
mod flags;
mod generate;
#[cfg(feature = "lab")]
mod lab;
mod load;
mod metrics;
mod output;
mod progress;
mod server;
mod status;
mod summary;
mod sync;
mod target;
mod tune;

use std::ffi::OsString;
use std::net::SocketAddr;

use clap::{Args as _, FromArgMatches, Parser};
use pgspate::target::connect::Dsn;
use pgspate::{Error, Kind, Result};

use args::{Args, Command};
use flags::{ApplyArgs, DoctorArgs, Flagged, FromFlags, LoadArgs, SyncArgs, TuneArgs};

pub use load::runtime;
pub use metrics::{Server, serve as serve_metrics};

/// How a command that did what it should ended.
pub(crate) enum Answer {
    Yes,
    /// The question's answer is "no", or not all rows were written.
    No,
}

/// Runs the command with its arguments, the first of which is its own name; gives the exit status.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(said) => {
            // Help and usage that nobody takes change nothing.
            let _ = said.print();
            return u8::try_from(said.exit_code()).unwrap_or(2);
        }
    };
    pgspate::format::silence_contained_panics();
    let style = errors::Style::of_stderr();
    let yes = |()| Answer::Yes;
    let result = match args.command {
        Command::Load(args) => load::run(args.0, style),
        Command::Sync(args) => sync::run(args.0, style),
        Command::Apply(args) => apply::run(args.0, style),
        Command::Doctor(args) => doctor::run(args.0, style),
        Command::Tune(args) => tune::run(&args.0, style),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::run(args, style),
        Command::Status(args) => status::run(&args, style),
        Command::Server { action } => server::run(action, style).map(yes),
        Command::Completions { shell } => generate::completions(shell).map(yes),
        Command::Man => generate::man().map(yes),
        Command::Reference => generate::reference().map(yes),
    };
    match result {
        Ok(Answer::Yes) => 0,
        Ok(Answer::No) => 1,
        Err(error) => {
            errors::print(&error, style);
            errors::status(&error)
        }
    }
}

/// What the arguments of `pgspate load` ask for, without the words `pgspate load`.
///
/// # Errors
/// Kind `Usage` for what the command would not take.
pub fn load_options(args: &[String]) -> Result<pgspate::load::Options> {
    let args: LoadArgs = parse(args)?;
    args.common.check_program()?;
    Ok(args.options)
}

/// What the arguments of `pgspate sync` ask for, without the words `pgspate sync`.
///
/// # Errors
/// As [`load_options`].
pub fn sync_options(args: &[String]) -> Result<pgspate::sync::Options> {
    let args: SyncArgs = parse(args)?;
    args.common.check_program()?;
    Ok(args.options)
}

/// What the arguments of `pgspate apply` ask for, without the words `pgspate apply`; and where
/// [`serve_metrics`] is to serve them, if anywhere.
///
/// # Errors
/// As [`load_options`].
pub fn apply_options(args: &[String]) -> Result<(pgspate::apply::Options, Option<SocketAddr>)> {
    let args: ApplyArgs = parse(args)?;
    args.common.check_program()?;
    Ok((args.options, args.metrics))
}

/// What `pgspate doctor` with these arguments finds on a server.
///
/// # Errors
/// As [`load_options`], and as [`pgspate_doctor::doctor::examine`].
pub async fn doctor(args: &[String], dsn: &Dsn) -> Result<pgspate_doctor::doctor::Examination> {
    let args: DoctorArgs = parse(args)?;
    let dsn = dsn.with_stall_timeout(args.stall);
    let connection = dsn.connect("pgspate doctor").await?;
    Ok(doctor::examine(&args, &connection).await?.0)
}

/// What `pgspate tune` with these arguments proposes, prints or does.
///
/// # Errors
/// As [`load_options`], and what the server refuses.
pub async fn tune(args: &[String], dsn: &Dsn) -> Result<impl serde::Serialize + use<>> {
    let args: TuneArgs = parse(args)?;
    let dsn = dsn.with_stall_timeout(args.stall);
    let connection = dsn.connect("pgspate tune").await?;
    tune::carry_out(&args, &connection).await
}

/// The server named by `to` or by the environment, else the embedded one, started. `quiet` says
/// nothing on stderr meanwhile.
///
/// # Errors
/// Settings that cannot be understood, or an embedded server that does not start.
pub fn server(to: Option<&str>, quiet: bool) -> Result<Dsn> {
    Ok(target::resolve(to, quiet, errors::Style::of_stderr())?.dsn)
}

/// What a program asks of a command. Unlike people, it gives a name of a list each time that it
/// gives the flag: names may have commas in them.
fn parse<T: Flagged>(args: &[String]) -> Result<T> {
    let command = clap::Command::new("pgspate").no_binary_name(true);
    let command = FromFlags::<T>::augment_args(command);
    let command = command.mut_args(|arg| arg.value_delimiter(None));
    let found = command.try_get_matches_from(args);
    let asked = found.and_then(|found| FromFlags::from_arg_matches(&found));
    asked.map(|asked| asked.0).map_err(|said| usage(&said.to_string()))
}

/// What clap says to people at a terminal, as an error: its first paragraph.
fn usage(said: &str) -> Error {
    let paragraph = said.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = paragraph.trim_start_matches("error:").split_whitespace().collect();
    Error::new(Kind::Usage, words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gives_names_whole() {
        let words = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let lists = ["--columns=a,b", "--columns=c", "--force-null=a,b", "--force-not-null=c", "-"];
        let load = load_options(&words(&lists)).unwrap();
        let rows = load.reading.rows;
        assert_eq!(rows.columns, Some(words(&["a,b", "c"])));
        assert_eq!((rows.force_null, rows.force_not_null), (words(&["a,b"]), words(&["c"])));
        let (apply, _) =
            apply_options(&words(&["--tables=a,b", "--dms-columns=c,d", "-"])).unwrap();
        assert_eq!(
            (apply.tables, apply.decode.dms.columns),
            (words(&["a,b"]), Some(words(&["c,d"])))
        );
    }
}

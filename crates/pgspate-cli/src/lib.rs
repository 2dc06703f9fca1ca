//! The `pgspate` command: arguments, progress, reports, errors. The work is done by other crates.
//!
//! stdout is data, stderr is everything else. Exit status: 0 done, 1 done but the answer is "no",
//! 2 error, 130 interrupted. The command is a library, so that the Python package has the same
//! command and the same options.

mod allocator;
mod apply;
mod args;
mod doctor;
mod errors;
mod flags;
mod fleet;
mod foreign_words;
mod generate;
mod help;
#[cfg(feature = "lab")]
mod lab;
mod load;
mod metrics;
mod output;
mod progress;
mod serve;
mod server;
mod status;
mod summary;
mod sync;
mod target;
mod terminal;
mod tune;

use std::ffi::OsString;
use std::net::SocketAddr;

use clap::{Args as _, FromArgMatches};
use pgspate::target::connect::Dsn;
use pgspate::{Error, ErrorKind, Result};

use args::{Args, Command};
use flags::{
    ApplyArgs, CommandFlags, DoctorArgs, FleetArgs, LoadArgs, ParsedFlags, SyncArgs, TuneArgs,
};

pub use load::runtime;
pub use metrics::{MetricsServer, serve as serve_metrics};

/// The answer of a command that ended without an error.
pub(crate) enum CommandAnswer {
    /// Done, and the answer is "yes": exit status 0.
    Yes,
    /// Done, but the answer is "no", or not all rows were written: exit status 1.
    No,
}

/// Runs the command. The first argument is the command's own name. Returns the exit status.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let wants_json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    let found = args::command().try_get_matches_from(args);
    let args = match found.and_then(|found| Args::from_arg_matches(&found)) {
        Ok(args) => args,
        Err(usage) => {
            let usage = foreign_words::explain(usage);
            // Ignored: the reader of the help may have closed the pipe.
            let _ = usage.print();
            if wants_json && usage.use_stderr() {
                let text = usage.to_string();
                errors::print_json(&usage_error(&text).hint_if(usage_tip(&text)));
            }
            return u8::try_from(usage.exit_code()).unwrap_or(2);
        }
    };
    pgspate::format::silence_contained_panics();
    let style = errors::TerminalStyle::of_stderr();
    let yes = |()| CommandAnswer::Yes;
    let result = match args.command {
        Command::Load(args) => load::run(args.0, style),
        Command::Sync(args) => sync::run(args.0, style),
        Command::Apply(args) => apply::run(args.0, style),
        Command::Serve(args) => serve::run(args.0, style),
        Command::Doctor(args) => doctor::run(args.0, style),
        Command::Tune(args) => tune::run(&args.0, style),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::run(args, style),
        Command::Fleet(args) => fleet::run(&args.0, style),
        Command::Status(args) => status::run(&args, style),
        Command::Server { action, quiet } => server::run(action, quiet, style).map(yes),
        Command::Completions { shell } => generate::completions(shell).map(yes),
        Command::Man => generate::man().map(yes),
        Command::Reference => generate::reference().map(yes),
    };
    match result {
        Ok(CommandAnswer::Yes) => 0,
        Ok(CommandAnswer::No) => 1,
        Err(error) => {
            errors::print(&error, style);
            if wants_json {
                errors::print_json(&error);
            }
            errors::status(&error)
        }
    }
}

/// Parses the arguments of `pgspate load`, without the words `pgspate load`.
///
/// # Errors
/// [`ErrorKind::Usage`] if the command would refuse the arguments.
pub fn load_options(args: &[String]) -> Result<pgspate::load::LoadOptions> {
    let args: LoadArgs = parse(args)?;
    args.common.check_program()?;
    Ok(args.options)
}

/// Parses the arguments of `pgspate sync`, without the words `pgspate sync`.
///
/// # Errors
/// The errors of [`load_options`].
pub fn sync_options(args: &[String]) -> Result<pgspate::sync::SyncOptions> {
    let args: SyncArgs = parse(args)?;
    args.common.check_program()?;
    Ok(args.options)
}

/// Parses the arguments of `pgspate apply`, without the words `pgspate apply`. Also returns the
/// address for [`serve_metrics`], if one is given.
///
/// # Errors
/// The errors of [`load_options`].
pub fn apply_options(
    args: &[String],
) -> Result<(pgspate::apply::ApplyOptions, Option<SocketAddr>)> {
    let args: ApplyArgs = parse(args)?;
    args.common.check_program()?;
    Ok((args.options, args.metrics))
}

/// Runs the checks of `pgspate doctor` with these arguments.
///
/// # Errors
/// The errors of [`load_options`] and of [`pgspate_doctor::doctor::examine`].
pub async fn doctor(args: &[String], dsn: &Dsn) -> Result<pgspate_doctor::doctor::Examination> {
    let args: DoctorArgs = parse(args)?;
    let dsn = dsn.with_stall_timeout(args.stall);
    let connection = dsn.connect("pgspate doctor").await?;
    Ok(doctor::examine(&args, &connection).await?.0)
}

/// Reads the report of `pgspate fleet` with these arguments.
///
/// # Errors
/// The errors of [`load_options`] and of [`pgspate::ledger::read_fleet`].
pub async fn fleet(args: &[String], dsn: &Dsn) -> Result<pgspate::ledger::FleetReport> {
    let args: FleetArgs = parse(args)?;
    let connection = dsn.with_stall_timeout(args.stall).connect("pgspate status").await?;
    let generation = args.generation.as_deref();
    pgspate::ledger::read_fleet(&connection.client, &args.fleet, generation).await
}

/// Carries out `pgspate tune` with these arguments, and returns its result.
///
/// # Errors
/// The errors of [`load_options`]; [`ErrorKind::Server`] if the server refuses a change.
pub async fn tune(args: &[String], dsn: &Dsn) -> Result<impl serde::Serialize + use<>> {
    let args: TuneArgs = parse(args)?;
    let dsn = dsn.with_stall_timeout(args.stall);
    let connection = dsn.connect("pgspate tune").await?;
    tune::carry_out(&args, &connection).await
}

/// Returns the server of `to` or of the environment; if neither names one, starts the embedded
/// server. With `quiet`, nothing is written to stderr.
///
/// # Errors
/// [`ErrorKind::Usage`] if the connection settings are invalid; [`ErrorKind::Connect`] if the
/// embedded server does not start.
pub fn server(to: Option<&str>, quiet: bool) -> Result<Dsn> {
    Ok(target::resolve(to, quiet, errors::TerminalStyle::of_stderr())?.dsn)
}

/// Returns whether the variables of the environment name a server.
///
/// # Errors
/// [`ErrorKind::Usage`] if the connection settings are invalid.
pub fn is_server_named() -> Result<bool> {
    target::is_named()
}

/// Parses the arguments that a program gives for a command. A program repeats the flag for each
/// name of a list, because names may contain commas.
fn parse<T: CommandFlags>(args: &[String]) -> Result<T> {
    let command = clap::Command::new("pgspate").no_binary_name(true);
    let command = ParsedFlags::<T>::augment_args(command);
    let command = command.mut_args(flags::with_whole_names);
    let found = command.try_get_matches_from(args);
    let asked = found.and_then(|found| ParsedFlags::from_arg_matches(&found));
    asked.map(|asked| asked.0).map_err(|error| usage_error(&error.to_string()))
}

/// Converts the text of clap's error into an error with its first paragraph as the message.
fn usage_error(text: &str) -> Error {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = paragraph.trim_start_matches("error:").split_whitespace().collect();
    Error::new(ErrorKind::Usage, words.join(" "))
}

/// Returns what clap's error proposes, such as a flag with a similar name.
fn usage_tip(text: &str) -> Option<String> {
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let sentences: Vec<String> = tips
        .filter_map(|tip| tip.split_at_checked(1))
        .map(|(first, rest)| format!("{}{rest}.", first.to_uppercase()))
        .collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_given_by_a_program_are_not_split() {
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

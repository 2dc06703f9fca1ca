//! Flags that several commands share.

use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::value_parser;
use pgspate::load::NewTableOptions;
use pgspate::plan::AutoChoice;
use pgspate::reading::{self, InputOrigin};
use pgspate::session::WaitLimits;
use pgspate::source;
use pgspate::{Error, ErrorKind, Result};

use super::source_option::SourceOption;
use super::{CommandFlags, Flag, choice, column_names, part, switch, text, under, value, values};

/// The arguments that concern the command and not the engine.
#[derive(Default)]
pub(crate) struct CommonArgs {
    pub(crate) to: Option<String>,
    pub(crate) plan: bool,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

impl CommonArgs {
    /// Refuses arguments that only make sense at a terminal, for calls by a program.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if such an argument is given.
    pub(crate) fn check_program(&self) -> Result<()> {
        let switches = [("plan", self.plan), ("json", self.json), ("quiet", self.quiet)];
        match switches.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((name, _)) => {
                let message = format!("`{name}` is an option of the command line only");
                Err(Error::new(ErrorKind::Usage, message).hint(
                    "`pgspate.plan` shows what a load would do, and every call returns a report.",
                ))
            }
        }
    }
}

fn to(help: &'static str) -> Flag<CommonArgs> {
    value("to", "DSN", text(), |it: &mut CommonArgs, to| it.to = Some(to)).help(help)
}

/// Returns `--to` of the commands that examine a server.
pub(super) fn server() -> Flag<CommonArgs> {
    to("Connect to this URL or key=value; by default as for load")
}

/// Returns `--to` of the commands that write rows.
pub(super) fn target() -> Flag<CommonArgs> {
    to("Connect to this URL or key=value; by default PG* variables, else the embedded PostgreSQL")
}

pub(super) fn plan(help: &'static str) -> Flag<CommonArgs> {
    switch("plan", |it: &mut CommonArgs| it.plan = true).help(help)
}

pub(super) fn json(help: &'static str) -> Flag<CommonArgs> {
    switch("json", |it: &mut CommonArgs| it.json = true).help(help)
}

/// Returns `--quiet`.
pub(super) fn quiet(help: &'static str) -> Flag<CommonArgs> {
    let quiet = switch("quiet", |it: &mut CommonArgs| it.quiet = true);
    quiet.with(|arg| arg.short('q')).help(help)
}

/// Returns `--json` and `--quiet`.
pub(super) fn output(json_help: &'static str) -> Vec<Flag<CommonArgs>> {
    under("Output", vec![json(json_help), quiet("Print errors only")])
}

/// Returns the positional argument for sources.
pub(super) fn sources<T: 'static>(
    help: &'static str,
    set: impl Fn(&mut T, Vec<String>) + 'static,
) -> Flag<T> {
    values("sources", "SOURCE", text(), set)
        .with(|arg| arg.long(None).required(true).num_args(1..))
        .help(help)
}

/// Returns the positional argument for the files to read.
pub(super) fn files() -> Vec<Flag<reading::ReadingOptions>> {
    let help = "Files, globs, folders, `-` for stdin, s3://, gs://, az:// or https:// URLs";
    vec![sources(help, |it: &mut reading::ReadingOptions, all| {
        it.origin = InputOrigin::Sources(all)
    })]
}

/// Returns `--table`, the table to write into.
pub(super) fn table() -> Vec<Flag<Option<String>>> {
    let flag = value("table", "TABLE", text(), |it: &mut Option<String>, name| *it = Some(name))
        .with(|arg| arg.short('t'))
        .help("Write into this table, spelled as in SQL [default: the name of the source]");
    vec![flag]
}

/// Returns the flags for columns that `--create` or `--add-columns` makes. `key_help` is the help
/// of `--primary-key`.
pub(super) fn new_table(key_help: &'static str) -> Vec<Flag<NewTableOptions>> {
    let types = values("type", "COLUMN=TYPE", column_type, |it: &mut NewTableOptions, types| {
        it.types = types
    });
    let key = column_names("primary-key", "COLUMNS", |it: &mut NewTableOptions, names| {
        it.primary_key = names
    });
    let types = types.help("Give a created or added column this type, spelled as in SQL");
    vec![types, key.with(|arg| arg.requires("create")).help(key_help)]
}

fn column_type(value: &str) -> std::result::Result<(String, String), &'static str> {
    // A type has no `=`, but a name may have one.
    match value.rsplit_once('=') {
        Some((column, ty)) if !column.is_empty() && !ty.trim().is_empty() => {
            Ok((column.to_owned(), ty.trim().to_owned()))
        }
        _ => Err("expected COLUMN=TYPE, such as 'price=numeric(10,2)'"),
    }
}

/// The stall timeout, a flag of every command that connects to a server.
#[derive(Default)]
pub(crate) struct StallArgs(pub(crate) Duration);

impl CommandFlags for StallArgs {
    fn flags() -> Vec<Vec<Flag<StallArgs>>> {
        vec![part(|it: &mut StallArgs| &mut it.0, stall_timeout())]
    }
}

pub(super) fn stall_timeout() -> Vec<Flag<Duration>> {
    let seconds = value_parser!(u32).range(1..).map(|it| Duration::from_secs(it.into()));
    let flag = value("stall-timeout", "SECONDS", seconds, |it: &mut Duration, limit| *it = limit)
        .default("60")
        .help("Drop a connection on which nothing arrives for this long");
    under("Safety", vec![flag])
}

/// Returns the flags for timeouts. `retry_help` is the help of `--retry-for`.
pub(super) fn limits(retry_help: &'static str) -> Vec<Flag<WaitLimits>> {
    let seconds = || value_parser!(u32).map(|it| Duration::from_secs(it.into()));
    let mut flags = part(|it: &mut WaitLimits| &mut it.stall_timeout, stall_timeout());
    let retry = value("retry-for", "SECONDS", seconds(), |it: &mut WaitLimits, s| it.retry_for = s);
    flags.insert(0, retry.default("60").help(retry_help));
    flags.push(
        value("lock-timeout", "SECONDS", seconds(), |it: &mut WaitLimits, s| it.lock_timeout = s)
            .default("300")
            .help("Wait this long for a lock that another session holds; 0 waits for ever"),
    );
    under("Safety", flags)
}

/// Parses `auto`, `always` or `never`. `auto_help` says when `auto` means yes.
pub(super) fn when(auto_help: &'static str) -> impl TypedValueParser<Value = AutoChoice> {
    choice([
        ("auto", auto_help, AutoChoice::Auto),
        ("always", "Wherever possible", AutoChoice::Always),
        ("never", "Never", AutoChoice::Never),
    ])
}

pub(super) fn source_option() -> Flag<source::SourceOptions> {
    values("source-option", "KEY=VALUE", SourceOption, |it: &mut source::SourceOptions, pairs| {
        it.store = pairs
    })
    .help("Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME")
}

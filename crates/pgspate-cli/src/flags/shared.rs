//! Flags that several commands have.

use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::value_parser;
use pgspate::plan::When;
use pgspate::reading::{self, InputOrigin};
use pgspate::session::Limits;
use pgspate::source;
use pgspate::{Error, Kind, Result};

use super::source_option::SourceOption;
use super::{Flag, Flagged, choice, part, switch, text, under, value, values};

/// What concerns the command rather than the engine.
#[derive(Default)]
pub(crate) struct CommonArgs {
    pub(crate) to: Option<String>,
    pub(crate) plan: bool,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

impl CommonArgs {
    /// Refuses what is for people at a terminal, and would be passed over where a program gives it.
    pub(crate) fn check_program(&self) -> Result<()> {
        let given = [("plan", self.plan), ("json", self.json), ("quiet", self.quiet)];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((name, _)) => {
                let message = format!("`{name}` is an option of the command alone");
                Err(Error::new(Kind::Usage, message).hint(
                    "`pgspate.plan` shows what a load would do, and every call gives a report.",
                ))
            }
        }
    }
}

fn to(help: &'static str) -> Flag<CommonArgs> {
    value("to", "DSN", text(), |it: &mut CommonArgs, to| it.to = Some(to)).help(help)
}

/// `--to` of the commands that look at a server.
pub(super) fn server() -> Flag<CommonArgs> {
    to("The server: a URL or key=value; by default as for load")
}

/// `--to` of the commands that move rows.
pub(super) fn target() -> Flag<CommonArgs> {
    to("Where to: a URL or key=value; by default PG* variables, else the embedded PostgreSQL")
}

pub(super) fn plan(help: &'static str) -> Flag<CommonArgs> {
    switch("plan", |it: &mut CommonArgs| it.plan = true).help(help)
}

pub(super) fn json(help: &'static str) -> Flag<CommonArgs> {
    switch("json", |it: &mut CommonArgs| it.json = true).help(help)
}

/// `--json` and `--quiet`.
pub(super) fn output(json_help: &'static str) -> Vec<Flag<CommonArgs>> {
    let quiet = switch("quiet", |it: &mut CommonArgs| it.quiet = true).with(|arg| arg.short('q'));
    under("Output", vec![json(json_help), quiet.help("Print errors only")])
}

/// What is read.
pub(super) fn sources<T: 'static>(
    help: &'static str,
    set: impl Fn(&mut T, Vec<String>) + 'static,
) -> Flag<T> {
    values("sources", "SOURCE", text(), set)
        .with(|arg| arg.long(None).required(true).num_args(1..))
        .help(help)
}

/// The files that are read.
pub(super) fn files() -> Vec<Flag<reading::Options>> {
    let help = "Files, globs, folders, `-` for stdin, s3://, gs://, az:// or https:// URLs";
    vec![sources(help, |it: &mut reading::Options, all| it.origin = InputOrigin::Sources(all))]
}

/// The table that they are for.
pub(super) fn table() -> Vec<Flag<Option<String>>> {
    let flag = value("table", "TABLE", text(), |it: &mut Option<String>, name| *it = Some(name))
        .with(|arg| arg.short('t'))
        .help("The table, as SQL writes it; named after the first source by default");
    vec![flag]
}

/// When a connection is given up: the same for every command that talks to a server.
#[derive(Default)]
pub(crate) struct StallArgs(pub(crate) Duration);

impl Flagged for StallArgs {
    fn flags() -> Vec<Vec<Flag<StallArgs>>> {
        vec![part(|it: &mut StallArgs| &mut it.0, stall_timeout())]
    }
}

pub(super) fn stall_timeout() -> Vec<Flag<Duration>> {
    let seconds = value_parser!(u32).range(1..).map(|it| Duration::from_secs(it.into()));
    let flag = value("stall-timeout", "SECONDS", seconds, |it: &mut Duration, limit| *it = limit)
        .default("60")
        .help("How long to wait for a connection over which nothing comes any more");
    under("Safety", vec![flag])
}

/// How long to wait; `retry_help` says what for `--retry-for` waits.
pub(super) fn limits(retry_help: &'static str) -> Vec<Flag<Limits>> {
    let seconds = || value_parser!(u32).map(|it| Duration::from_secs(it.into()));
    let mut flags = part(|it: &mut Limits| &mut it.stall_timeout, stall_timeout());
    let retry = value("retry-for", "SECONDS", seconds(), |it: &mut Limits, s| it.retry_for = s);
    flags.insert(0, retry.default("60").help(retry_help));
    flags.push(
        value("lock-timeout", "SECONDS", seconds(), |it: &mut Limits, s| it.lock_timeout = s)
            .default("300")
            .help("How long to wait for a lock that another session holds; 0 for ever"),
    );
    under("Safety", flags)
}

/// What is a matter of judgement.
pub(super) fn when() -> impl TypedValueParser<Value = When> {
    choice([
        ("auto", "Where it pays", When::Auto),
        ("always", "Wherever it can be done", When::Always),
        ("never", "Not at all", When::Never),
    ])
}

pub(super) fn source_option() -> Flag<source::Options> {
    values("source-option", "KEY=VALUE", SourceOption, |it: &mut source::Options, pairs| {
        it.store = pairs
    })
    .help("Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME")
}

//! The commands and their arguments, as clap parses them.

use clap::{CommandFactory, Parser, Subcommand};

use crate::flags::{
    ApplyArgs, DoctorArgs, FleetArgs, LoadArgs, ParsedFlags, ServeArgs, StallArgs, SyncArgs,
    TuneArgs,
};
#[cfg(feature = "lab")]
use crate::lab::LabArgs;

/// The fastest safe way to write into PostgreSQL.
#[derive(Parser)]
#[command(name = "pgspate", version, max_term_width = 100)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Returns the command with all its arguments and help.
pub(crate) fn command() -> clap::Command {
    crate::help::add_sections(Args::command())
}

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Load files into a table, in parallel, exactly as \copy would
    Load(Box<ParsedFlags<LoadArgs>>),
    /// Make rows of a table equal to a source, writing only what differs
    Sync(Box<ParsedFlags<SyncArgs>>),
    /// Apply a stream of changes to tables, exactly once
    Apply(Box<ParsedFlags<ApplyArgs>>),
    /// Take records over HTTP, and answer each when it is durable
    Serve(Box<ParsedFlags<ServeArgs>>),
    /// Find what slows writes on a server and what helps; change nothing
    Doctor(ParsedFlags<DoctorArgs>),
    /// Set a server up for a bulk load, and put the old settings back
    Tune(ParsedFlags<TuneArgs>),
    /// Measure ways of writing on your own server, and report them on one page
    #[cfg(feature = "lab")]
    Lab(LabArgs),
    /// Show what the members of an array of jobs have done, and which are missing
    Fleet(ParsedFlags<FleetArgs>),
    /// Show the jobs, streams and changed settings that the ledger knows
    Status(StatusArgs),
    /// Start, stop and inspect the embedded PostgreSQL
    Server {
        /// The action on the server.
        #[command(subcommand)]
        action: ServerAction,

        /// Print errors and results only
        #[arg(long, short, global = true)]
        quiet: bool,
    },
    /// Print completions for a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Print the reference of all options in Markdown
    #[command(hide = true)]
    Reference,
}

/// The actions on the embedded server.
#[derive(Subcommand, Clone, Copy)]
pub(crate) enum ServerAction {
    /// Start the server if it is not running
    Start,
    /// Stop the server
    Stop,
    /// Show whether the server is running, and where its data is
    Status {
        /// Print the status as JSON on stdout
        #[arg(long)]
        json: bool,
    },
    /// Print the connection string of the server
    Dsn,
}

/// Arguments of `pgspate status`.
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// Show only this job
    #[arg(value_parser = parse_job)]
    pub(crate) job: Option<i64>,

    /// Connect to the database with the ledger, by URL or key=value; by default as for load
    #[arg(long, value_name = "DSN")]
    pub(crate) to: Option<String>,

    /// The stall timeout.
    #[command(flatten)]
    pub(crate) stall: ParsedFlags<StallArgs>,

    /// Put back what interrupted loads have left, such as indexes and prepared transactions
    #[arg(long, conflicts_with = "forget")]
    pub(crate) restore: bool,

    /// Forget the job: its rows stay, and its sources can be loaded again
    #[arg(long, requires = "job")]
    pub(crate) forget: bool,

    /// Print the jobs as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,

    /// Print errors and results only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Parses the number of a job.
fn parse_job(value: &str) -> Result<i64, String> {
    let expected = "expected the number of a job; `pgspate status` lists the jobs";
    value.parse().map_err(|_| expected.to_owned())
}

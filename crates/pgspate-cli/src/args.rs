//! What can be said on the command line.

use clap::{Parser, Subcommand};

use crate::flags::{ApplyArgs, DoctorArgs, FromFlags, LoadArgs, StallArgs, SyncArgs, TuneArgs};
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

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Load files into a table, in parallel, exactly as \copy would
    Load(Box<FromFlags<LoadArgs>>),
    /// Make rows of a table like a source: only what differs is written
    Sync(Box<FromFlags<SyncArgs>>),
    /// Apply a stream of changes to tables, exactly once
    Apply(Box<FromFlags<ApplyArgs>>),
    /// Find what slows writes on a server, and what to do; changes nothing
    Doctor(FromFlags<DoctorArgs>),
    /// Set a server up for a bulk load, and put it back
    Tune(FromFlags<TuneArgs>),
    /// Measure ways of writing on a server of your own, and make a page of it
    #[cfg(feature = "lab")]
    Lab(LabArgs),
    /// Say what the ledger knows of loads, finished or not
    Status(StatusArgs),
    /// Start, stop and ask after the embedded PostgreSQL
    Server {
        /// What to do with it.
        #[command(subcommand)]
        action: ServerAction,
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

/// What can be done with the embedded server.
#[derive(Subcommand, Clone, Copy)]
pub(crate) enum ServerAction {
    /// Start it, if it is not running
    Start,
    /// Stop it
    Stop,
    /// Say whether it runs, and where its data is
    Status {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print how to connect to it
    Dsn,
}

/// Arguments of `pgspate status`.
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// Only this job
    pub(crate) job: Option<i64>,

    /// Where the ledger is: a URL or key=value; by default as for load
    #[arg(long, value_name = "DSN")]
    pub(crate) to: Option<String>,

    /// When a connection is given up.
    #[command(flatten)]
    pub(crate) stall: FromFlags<StallArgs>,

    /// Put back what loads that did not end well have changed on tables: indexes, options
    #[arg(long, conflicts_with = "forget")]
    pub(crate) restore: bool,

    /// Forget the job: its rows stay, and its sources can be loaded again
    #[arg(long, requires = "job")]
    pub(crate) forget: bool,

    /// Print it as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

//! The commands and their arguments, as clap parses them.

use clap::{Parser, Subcommand};

use crate::flags::{
    ApplyArgs, DoctorArgs, FleetArgs, LoadArgs, ParsedFlags, StallArgs, SyncArgs, TuneArgs,
};
#[cfg(feature = "lab")]
use crate::lab::LabArgs;

const LOAD_EXAMPLES: &str = "\
Examples:
  pgspate load orders.csv --table orders
  pgspate load 's3://sales/2026/*.parquet' --table events --create --plan
  pgspate load orders.csv --table orders --rejects bad.csv --max-rejects 1%";
const SYNC_EXAMPLES: &str = "\
Examples:
  pgspate sync prices.csv --table prices --scope all --check
  pgspate sync today.parquet --table readings --scope-by day
  pgspate sync new.csv --table customers --key email --no-delete";
const APPLY_EXAMPLES: &str = "\
Examples:
  pgspate apply changes.ndjson --plan
  pgspate apply changes.ndjson --map 'shop.*=public.*'
  pgspate apply 'postgres://repl@source/shop?slot=s&publication=p' --snapshot --follow";
const DOCTOR_EXAMPLES: &str = "\
Examples:
  pgspate doctor --watch 60s
  pgspate doctor --table sales.orders --picture orders.svg
  pgspate doctor --watch 60s --storage gp3:500GiB,12000iops,500MiB/s";
const TUNE_EXAMPLES: &str = "\
Examples:
  pgspate tune --memory 64GiB --cpus 16
  pgspate tune --apply
  pgspate tune --revert";
const FLEET_EXAMPLES: &str = "\
Examples:
  pgspate sync results/{member}.parquet --table readings --scope-by meter \\
      --fleet nights --generation 2026-11-22 --members 300 --connections 8
  pgspate fleet nights
  pgspate fleet nights --generation 2026-11-21 --json";

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
    #[command(after_help = LOAD_EXAMPLES)]
    Load(Box<ParsedFlags<LoadArgs>>),
    /// Make rows of a table equal to a source, writing only what differs
    #[command(after_help = SYNC_EXAMPLES)]
    Sync(Box<ParsedFlags<SyncArgs>>),
    /// Apply a stream of changes to tables, exactly once
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(Box<ParsedFlags<ApplyArgs>>),
    /// Find what slows writes on a server and what helps; change nothing
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(ParsedFlags<DoctorArgs>),
    /// Set a server up for a bulk load, and put the old settings back
    #[command(after_help = TUNE_EXAMPLES)]
    Tune(ParsedFlags<TuneArgs>),
    /// Measure ways of writing on your own server, and report them on one page
    #[cfg(feature = "lab")]
    Lab(LabArgs),
    /// Show what the members of an array of jobs have done, and which are missing
    #[command(after_help = FLEET_EXAMPLES)]
    Fleet(ParsedFlags<FleetArgs>),
    /// Show the loads in the ledger, finished or not
    Status(StatusArgs),
    /// Start, stop and inspect the embedded PostgreSQL
    Server {
        /// The action on the server.
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
    pub(crate) job: Option<i64>,

    /// Connect to the database with the ledger, by URL or key=value; by default as for load
    #[arg(long, value_name = "DSN")]
    pub(crate) to: Option<String>,

    /// The stall timeout.
    #[command(flatten)]
    pub(crate) stall: ParsedFlags<StallArgs>,

    /// Put back what interrupted loads have changed on tables, such as indexes and options
    #[arg(long, conflicts_with = "forget")]
    pub(crate) restore: bool,

    /// Forget the job: its rows stay, and its sources can be loaded again
    #[arg(long, requires = "job")]
    pub(crate) forget: bool,

    /// Print the jobs as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

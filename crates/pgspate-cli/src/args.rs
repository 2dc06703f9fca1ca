//! What can be said on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use pgspate::copy::RejectsMax;

use crate::apply_args::ApplyArgs;
use crate::doctor::DoctorArgs;
use crate::lab::LabArgs;
use crate::source_option::SourceOption;
use crate::sync::SyncArgs;
use crate::tune::TuneArgs;

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
    Load(Box<LoadArgs>),
    /// Make rows of a table like a source: only what differs is written
    Sync(Box<SyncArgs>),
    /// Apply a stream of changes to tables, exactly once
    Apply(Box<ApplyArgs>),
    /// Find what slows writes on a server, and what to do; changes nothing
    Doctor(DoctorArgs),
    /// Set a server up for a bulk load, and put it back
    Tune(TuneArgs),
    /// Measure ways of writing on a server of your own, and make a page of it
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

/// Formats by name.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FormatArg {
    /// Delimited, quoted as COPY's csv
    Csv,
    /// Delimited by tabs
    Tsv,
    /// COPY's text: tabs, \N and backslash escapes
    Text,
    /// One object per line, or an array of objects
    Json,
    /// Parquet
    Parquet,
    /// Arrow IPC, file or stream
    Arrow,
}

/// Whether the first record names the columns.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum HeaderArg {
    /// Find out
    Auto,
    /// It does
    Yes,
    /// It does not
    No,
}

/// `--replace`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ReplaceArg {
    /// As the table allows
    Auto,
    /// In one transaction that empties the table first; readers wait for its end
    Truncate,
    /// By a shadow table that takes its place; readers wait for the exchange only
    Swap,
}

/// From where, and to where.
#[derive(clap::Args)]
pub(crate) struct EndsArgs {
    /// Files, globs, folders, `-` for stdin, s3://, gs://, az:// or https:// URLs
    #[arg(required = true, value_name = "SOURCE")]
    pub(crate) sources: Vec<String>,

    /// The table, as SQL writes it; named after the first source by default
    #[arg(long, short, value_name = "TABLE")]
    pub(crate) table: Option<String>,

    /// Where to: a URL or key=value; by default PG* variables, else the embedded PostgreSQL
    #[arg(long, value_name = "DSN")]
    pub(crate) to: Option<String>,
}

/// When a connection is given up: the same for every command that talks to a server.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct StallArgs {
    /// How long to wait for a connection over which nothing comes any more
    #[arg(
        long, default_value = "60", value_name = "SECONDS", help_heading = "Safety",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) stall_timeout: u32,
}

impl StallArgs {
    pub(crate) fn limit(self) -> Duration {
        Duration::from_secs(self.stall_timeout.into())
    }
}

/// How sources are read: the same for every command that has some.
#[derive(clap::Args)]
#[command(next_help_heading = "Reading")]
pub(crate) struct ReadArgs {
    /// Format of the input; found out by default
    #[arg(long, value_enum)]
    pub(crate) format: Option<FormatArg>,

    /// Whether the first record names the columns
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) header: HeaderArg,

    /// Between two fields: one byte, or \t
    #[arg(long, value_name = "CHAR", value_parser = byte)]
    pub(crate) delimiter: Option<u8>,

    /// Around a field: one byte, or none
    #[arg(long, value_name = "CHAR", value_parser = quote)]
    pub(crate) quote: Option<QuoteArg>,

    /// Before a quote that is data; the quote itself by default
    #[arg(long, value_name = "CHAR", value_parser = byte)]
    pub(crate) escape: Option<u8>,

    /// The unquoted field that means NULL
    #[arg(long, value_name = "STRING")]
    pub(crate) null: Option<String>,

    /// Columns in which a quoted NULL string is NULL too
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub(crate) force_null: Vec<String>,

    /// Columns in which an unquoted NULL string is itself
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub(crate) force_not_null: Vec<String>,

    /// Pass over lines that begin with this
    #[arg(long, value_name = "CHAR", value_parser = byte)]
    pub(crate) comment: Option<u8>,

    /// Pass over empty lines, which to COPY are records of one empty field
    #[arg(long)]
    pub(crate) skip_blank_lines: bool,

    /// Encoding of the input, as PostgreSQL names it
    #[arg(long, value_name = "ENCODING")]
    pub(crate) encoding: Option<String>,

    /// The columns that the fields go to, in the fields' order
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub(crate) columns: Option<Vec<String>>,

    /// Pass over fields and keys that no column is named after
    #[arg(long)]
    pub(crate) ignore_unknown: bool,

    /// Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME
    #[arg(long, value_name = "KEY=VALUE", value_parser = SourceOption)]
    pub(crate) source_option: Vec<(String, String)>,
}

/// `--commit`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum CommitArg {
    /// At the end below 1 GiB, with each chunk above
    Auto,
    /// All at the end: a load that fails leaves nothing behind
    End,
    /// Each chunk: a load that stops goes on from there when it is run again
    Chunk,
}

/// Whether to do what is a matter of judgement.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum WhenArg {
    /// Where it pays
    Auto,
    /// Wherever it can be done
    Always,
    /// Not at all
    Never,
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
    pub(crate) stall: StallArgs,

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

/// Arguments of `pgspate load`.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// From where, and to where.
    #[command(flatten)]
    pub(crate) ends: EndsArgs,

    /// Make the table when it is missing, with the types that the input needs
    #[arg(long)]
    pub(crate) create: bool,

    /// The input's rows instead of those that the table has, which stay until all are there
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto"
    )]
    pub(crate) replace: Option<ReplaceArg>,

    /// All rows become visible at once, or with --replace instead of the old ones
    #[arg(long)]
    pub(crate) atomic: bool,

    /// Show what would be done, and why, and stop
    #[arg(long)]
    pub(crate) plan: bool,

    /// Connections that load at the same time: a number, or auto
    #[arg(long, default_value = "auto", value_name = "N", value_parser = lanes)]
    pub(crate) lanes: LanesArg,

    /// When to commit: at the end, with each chunk, or auto by the size of the input
    #[arg(long, value_enum, default_value = "auto", help_heading = "Safety")]
    pub(crate) commit: CommitArg,

    /// Set rows that are refused aside in this file, and load the rest
    #[arg(long, value_name = "FILE", help_heading = "Safety")]
    pub(crate) rejects: Option<PathBuf>,

    /// Stop when more rows are refused than this: a number, or a share such as 0.5%
    #[arg(
        long, value_name = "N|P%", value_parser = rejects_max, requires = "rejects",
        help_heading = "Safety"
    )]
    pub(crate) max_rejects: Option<RejectsMax>,

    /// Begin anew, whatever the ledger says of earlier runs; what they wrote stays
    #[arg(long, help_heading = "Safety")]
    pub(crate) restart: bool,

    /// Keep no ledger: in one piece, not resumable, and loaded as often as it is asked for
    #[arg(long, help_heading = "Safety")]
    pub(crate) no_ledger: bool,

    /// How long to go on trying when the server is away
    #[arg(long, default_value = "60", value_name = "SECONDS", help_heading = "Safety")]
    pub(crate) retry_for: u32,

    /// When a connection is given up.
    #[command(flatten)]
    pub(crate) stall: StallArgs,

    /// How long to wait for a lock that another session holds; 0 for ever
    #[arg(long, default_value = "300", value_name = "SECONDS", help_heading = "Safety")]
    pub(crate) lock_timeout: u32,
    /// Drop indexes and foreign keys for the load and make them again: auto where that pays
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", help_heading = "Table")]
    pub(crate) rebuild_indexes: WhenArg,

    /// Switch autovacuum off for the table meanwhile: auto from 8 GiB of input on
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", help_heading = "Table")]
    pub(crate) pause_autovacuum: WhenArg,

    /// Run ANALYZE afterwards: auto when a tenth of the rows is new
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", help_heading = "Table")]
    pub(crate) analyze: WhenArg,

    /// Run VACUUM (FREEZE, ANALYZE) afterwards
    #[arg(long, help_heading = "Table")]
    pub(crate) vacuum: bool,

    /// How the sources are read.
    #[command(flatten)]
    pub(crate) read: ReadArgs,

    /// Print the report, or with --plan the plan, as JSON on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// Print errors only
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// `--lanes`: so many, or as many as help.
#[derive(Clone, Copy)]
pub(crate) struct LanesArg(pub(crate) Option<usize>);

/// `--quote`.
#[derive(Clone, Copy)]
pub(crate) enum QuoteArg {
    None,
    Byte(u8),
}

fn lanes(value: &str) -> Result<LanesArg, String> {
    match value.parse() {
        _ if value == "auto" => Ok(LanesArg(None)),
        Ok(lanes @ 1..=64) => Ok(LanesArg(Some(lanes))),
        _ => Err("expected auto, or a number from 1 to 64".to_owned()),
    }
}

fn rejects_max(value: &str) -> Result<RejectsMax, String> {
    let expected = || "expected a number of rows, or a share of them such as 0.5%".to_owned();
    match value.strip_suffix('%') {
        None => value.parse().map(RejectsMax::Rows).map_err(|_| expected()),
        Some(share) => match share.trim().parse::<f64>() {
            Ok(share) if (0.0..=100.0).contains(&share) => Ok(RejectsMax::Percent(share)),
            _ => Err(expected()),
        },
    }
}

fn quote(value: &str) -> Result<QuoteArg, String> {
    match value {
        "none" | "" => Ok(QuoteArg::None),
        _ => byte(value).map(QuoteArg::Byte),
    }
}

/// As in COPY: one byte that is neither a line end nor, for a delimiter, hard to tell from data.
pub(crate) fn byte(value: &str) -> Result<u8, String> {
    match value {
        "\\t" | "tab" => Ok(b'\t'),
        "\n" | "\r" | "\\n" | "\\r" => Err("a line end cannot be one".to_owned()),
        _ => match value.as_bytes() {
            [byte] => Ok(*byte),
            _ => Err("expected one single-byte character, or \\t".to_owned()),
        },
    }
}

pub(crate) fn pair(value: &str) -> Result<(String, String), String> {
    let (key, value) = value.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

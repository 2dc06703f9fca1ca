//! What can be said to `pgspate apply`.

use std::net::SocketAddr;

use clap::ValueEnum;
use pgspate::apply::Format;

use crate::args::{StallArgs, byte};
use crate::source_option::SourceOption;

/// Arguments of `pgspate apply`.
#[derive(clap::Args)]
pub(crate) struct ApplyArgs {
    /// Files in the stream's order, globs, folders, `-` for stdin, or URLs as for load; or a
    /// replication slot, postgres://user@host/dbname?slot=NAME&publication=NAME; or topics,
    /// kafka://broker:9092/topic,topic, in a build with the feature `kafka`
    #[arg(required = true, value_name = "SOURCE")]
    pub(crate) sources: Vec<String>,

    /// Where to: a URL or key=value; by default PG* variables, else the embedded PostgreSQL
    #[arg(long, value_name = "DSN")]
    pub(crate) to: Option<String>,

    /// The name by which the ledger knows the stream; the first source's by default
    #[arg(long, value_name = "NAME")]
    pub(crate) stream: Option<String>,

    /// Format of the events; found out by default
    #[arg(long, value_name = "FORMAT", value_parser = stream_format())]
    pub(crate) format: Option<String>,

    /// Apply the events of a table to another one; `*` on both sides stands for the same
    #[arg(long, value_name = "FROM=TO", help_heading = "Tables")]
    pub(crate) map: Vec<String>,

    /// Apply the events of these tables only, as the stream names them; `*` stands for anything
    #[arg(long, value_name = "TABLES", value_delimiter = ',', help_heading = "Tables")]
    pub(crate) tables: Vec<String>,

    /// What to do about columns that the table does not have
    #[arg(long, value_enum, default_value = "fail", value_name = "WHAT", help_heading = "Tables")]
    pub(crate) unknown_columns: UnknownColumnsArg,

    /// What to do when the input ends within a transaction of the source
    #[arg(long, value_enum, default_value = "hold", value_name = "WHAT", help_heading = "Safety")]
    pub(crate) at_end: AtEndArg,

    /// Set up to so many bad events aside in pgspate.dead_letter, and apply the others
    #[arg(long, default_value = "0", value_name = "N", help_heading = "Safety")]
    pub(crate) max_dead_letters: u64,

    /// How long to go on trying when the server is away or another session in the way
    #[arg(long, default_value = "60", value_name = "SECONDS", help_heading = "Safety")]
    pub(crate) retry_for: u32,

    /// When a connection is given up.
    #[command(flatten)]
    pub(crate) stall: StallArgs,

    /// How long to wait for a lock that another session holds; 0 for ever
    #[arg(long, default_value = "300", value_name = "SECONDS", help_heading = "Safety")]
    pub(crate) lock_timeout: u32,

    /// Events that are committed together, at most
    #[arg(
        long, default_value = "500000", value_name = "N", help_heading = "Batches",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) batch_rows: u64,

    /// MiB of input that are committed together, at most, and of what its events take; memory is
    /// some eight times that
    #[arg(
        long, default_value = "64", value_name = "MIB", help_heading = "Batches",
        value_parser = clap::value_parser!(u64).range(1..=1024)
    )]
    pub(crate) batch_bytes: u64,

    /// Batches of up to so many rows are written without a temporary table
    #[arg(long, default_value = "1000", value_name = "N", help_heading = "Batches")]
    pub(crate) direct_rows: u64,

    /// How many milliseconds an event waits for others when nothing is being written
    #[arg(long, default_value = "2", value_name = "MS", help_heading = "Batches")]
    pub(crate) batch_delay: u64,

    /// Go on when the input ends, until stopped: with what is appended to the last file, what is
    /// committed on the source, or what is written to the topics
    #[arg(long)]
    pub(crate) follow: bool,

    /// Show what would be done, and stop
    #[arg(long)]
    pub(crate) plan: bool,

    /// Make the replication slot when it is not there, and apply what changes from then on
    #[arg(long, help_heading = "Replication slot")]
    pub(crate) create_slot: bool,

    /// Make the replication slot when it is not there, and copy the rows of its tables first
    #[arg(long, help_heading = "Replication slot")]
    pub(crate) snapshot: bool,

    /// What some formats do not say of themselves.
    #[command(flatten)]
    pub(crate) formats: FormatsArgs,

    /// Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME
    #[arg(long, value_name = "KEY=VALUE", value_parser = SourceOption)]
    pub(crate) source_option: Vec<(String, String)>,

    /// Serve metrics for Prometheus at http://ADDR/metrics, such as 127.0.0.1:9187
    #[arg(long, value_name = "ADDR", help_heading = "Output")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Print the report as JSON on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// Print errors only
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// `--unknown-columns`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum UnknownColumnsArg {
    /// Refuse the event
    Fail,
    /// Pass over the column
    Ignore,
    /// Add the column to the table, of type text
    Add,
}

/// `--at-end`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum AtEndArg {
    /// Leave the transaction out, and end with an error
    Hold,
    /// Apply what there is of it
    Apply,
}

/// What some formats do not say of themselves.
#[derive(clap::Args)]
#[command(next_help_heading = "Formats")]
pub(crate) struct FormatsArgs {
    /// The table of rows that do not name theirs: flattened rows of Debezium, files of DMS
    #[arg(long, value_name = "TABLE")]
    pub(crate) source_table: Option<String>,

    /// Debezium's `unavailable.value.placeholder`, where the connector sets it
    #[arg(long, value_name = "TEXT")]
    pub(crate) debezium_placeholder: Option<String>,

    /// What Debezium's times are counted in, where no schema says it
    #[arg(long, value_enum, value_name = "UNIT")]
    pub(crate) debezium_time: Option<UnitArg>,

    /// What Debezium's decimals are, where no schema says it
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) debezium_decimals: Option<DecimalsArg>,

    /// What Debezium's bytes are, where no schema says it
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) debezium_bytes: Option<BytesArg>,

    /// The columns of DMS's csv, where no header names them
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', conflicts_with = "dms_header")]
    pub(crate) dms_columns: Option<Vec<String>>,

    /// The first line of DMS's csv names the columns, even if `Op` is not the first of them
    #[arg(long)]
    pub(crate) dms_header: bool,

    /// The unquoted field of DMS's csv that means NULL (`CsvNullValue`)
    #[arg(long, value_name = "STRING", default_value = "NULL")]
    pub(crate) dms_null: String,

    /// The unquoted field of DMS's csv for a column that is not told (`CsvNoSupValue`)
    #[arg(long, value_name = "STRING")]
    pub(crate) dms_absent: Option<String>,

    /// Between two fields of DMS's csv: one byte, or \t (`CsvDelimiter`)
    #[arg(long, value_name = "CHAR", value_parser = byte, default_value = ",")]
    pub(crate) dms_delimiter: u8,
}

/// `--debezium-time`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum UnitArg {
    /// Milliseconds, as with `time.precision.mode=connect`
    Ms,
    /// Microseconds
    Us,
    /// Nanoseconds
    Ns,
}

/// `--debezium-decimals`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum DecimalsArg {
    /// Bytes, as with `decimal.handling.mode=precise`
    Bytes,
    /// Digits, as with `decimal.handling.mode=string`
    Text,
}

/// `--debezium-bytes`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum BytesArg {
    /// Base64, as with `binary.handling.mode=bytes` and `base64`
    Base64,
    /// Hexadecimal digits, as with `binary.handling.mode=hex`
    Hex,
}

/// The formats of streams by their names.
fn stream_format() -> clap::builder::PossibleValuesParser {
    Format::ALL.map(Format::name).into()
}

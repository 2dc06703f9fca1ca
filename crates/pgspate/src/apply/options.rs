//! What to apply, and how.

use std::time::Duration;

use super::route::UnknownColumns;
use crate::source::{self, Input};
use pgspate_events::decode::{DecodeOptions, EventFormat};
use pgspate_target::session::Limits;

/// What to apply, and how.
#[derive(Debug, Clone)]
pub struct ApplyOptions {
    /// Paths, globs, folders, `-`, or URLs, in the order of the stream; or one replication slot,
    /// `postgres://...?slot=...&publication=...`; or topics of Kafka,
    /// `kafka://broker:port/topic,topic`, where the feature `kafka` is on.
    pub sources: Vec<String>,
    /// Inputs that a program has itself, after those.
    pub inputs: Vec<Input>,
    /// How they are found and read.
    pub source: source::Options,
    /// The format; found out by default.
    pub format: Option<EventFormat>,
    /// What it does not say of itself.
    pub decode: DecodeOptions,
    /// `from=to`, with `*` for parts of names.
    pub maps: Vec<String>,
    /// Patterns of the tables whose events count; all by default.
    pub tables: Vec<String>,
    /// What becomes of columns that the target does not have.
    pub unknown_columns: UnknownColumns,
    /// What becomes of a transaction of the source that the input ends within.
    pub at_end: AtEnd,
    /// The name under which the ledger keeps the position; made from the sources' names by default.
    pub stream: Option<String>,
    /// So many events may be set aside.
    pub dead_letters_max: u64,
    /// Events of a batch, at most.
    pub batch_rows: u64,
    /// Bytes of input of a batch, at most, and of what its events take. A batch takes about four
    /// times as much memory, twice.
    pub batch_bytes: u64,
    /// Batches of up to so many rows are written without a temporary table.
    pub direct_rows: u64,
    /// How long a batch waits for more events when nothing is being written.
    pub batch_delay: Duration,
    /// Go on when the input ends: what is appended to the last file is applied, too. A slot and
    /// topics are read up to where they ended at first otherwise.
    pub follows: bool,
    /// Make the slot when it is not there.
    pub creates_slot: bool,
    /// Make the slot, and copy the rows that there are first.
    pub copies_rows: bool,
    /// How long to wait for what may never come.
    pub limits: Limits,
}

impl Default for ApplyOptions {
    fn default() -> ApplyOptions {
        ApplyOptions {
            sources: Vec::new(),
            inputs: Vec::new(),
            source: source::Options::default(),
            format: None,
            decode: DecodeOptions::default(),
            maps: Vec::new(),
            tables: Vec::new(),
            unknown_columns: UnknownColumns::default(),
            at_end: AtEnd::default(),
            stream: None,
            dead_letters_max: 0,
            batch_rows: 500_000,
            batch_bytes: 64 << 20,
            direct_rows: 1000,
            batch_delay: Duration::from_millis(2),
            follows: false,
            creates_slot: false,
            copies_rows: false,
            limits: Limits::default(),
        }
    }
}

/// What becomes of a transaction of the source that the input ends within.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtEnd {
    /// It is not applied, and the run ends with an error.
    #[default]
    Hold,
    /// What there is of it is applied.
    Apply,
}

//! The options of `apply`.

use std::time::Duration;

use super::route::UnknownColumns;
use crate::source::{self, Input};
use pgspate_events::decode::{DecodeOptions, EventFormat};
use pgspate_target::session::WaitLimits;

/// What `apply` reads, and how it applies events.
#[derive(Debug, Clone)]
pub struct ApplyOptions {
    /// The sources of events, one of:
    ///
    /// - paths, globs, folders, `-` or URLs, in the order of the stream
    /// - one replication slot: `postgres://...?slot=...&publication=...`
    /// - Kafka topics, with the feature `kafka`: `kafka://broker:port/topic,topic`
    pub sources: Vec<String>,
    /// Inputs that the calling program passes. They are read after `sources`.
    pub inputs: Vec<Input>,
    /// How sources are found and read.
    pub source: source::SourceOptions,
    /// The format of the events. By default, pgspate detects the format.
    pub format: Option<EventFormat>,
    /// Options of the decoder: facts about the events that the format does not state.
    pub decode: DecodeOptions,
    /// Mappings `from=to` of table names, with `*` for parts of names.
    pub maps: Vec<String>,
    /// Patterns of the tables whose events are applied. The default is all tables.
    pub tables: Vec<String>,
    /// What to do with columns that the target lacks.
    pub unknown_columns: UnknownColumns,
    /// What to do with a source transaction that is incomplete at the end of the input.
    pub at_end: AtEnd,
    /// The stream's name in the ledger. By default, the name of the first source.
    pub stream: Option<String>,
    /// How many events may be set aside as dead letters.
    pub dead_letters_max: u64,
    /// The most events in a batch.
    pub batch_rows: u64,
    /// The most bytes in a batch. For each event, its bytes of input or its bytes in memory count,
    /// whichever is more. A batch takes about four times as much memory, and there are two batches
    /// at a time.
    pub batch_bytes: u64,
    /// The most rows of a batch that is written without a temporary table.
    pub direct_rows: u64,
    /// How long a batch waits for more events while the writer is idle.
    pub batch_delay: Duration,
    /// Whether to wait for new events at the end of the input, such as lines appended to the last
    /// file. If false, a slot and topics are read up to the position where they end when the run
    /// starts.
    pub follows: bool,
    /// Whether to create the slot if it is missing.
    pub creates_slot: bool,
    /// Whether to create the slot and first copy the tables' rows.
    pub copies_rows: bool,
    /// The timeouts for locks, for replies and for retries.
    pub limits: WaitLimits,
}

impl Default for ApplyOptions {
    fn default() -> ApplyOptions {
        ApplyOptions {
            sources: Vec::new(),
            inputs: Vec::new(),
            source: source::SourceOptions::default(),
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
            limits: WaitLimits::default(),
        }
    }
}

/// What to do with a source transaction that is incomplete at the end of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtEnd {
    /// Do not apply the transaction's events, and end the run with an error.
    #[default]
    Hold,
    /// Apply the events that the input has of the transaction.
    Apply,
}

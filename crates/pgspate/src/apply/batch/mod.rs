//! Batches: events that are applied together, folded and encoded, with the stream's position after
//! them.
//!
//! Each kind of source has a feed (`lines/`, `slot.rs`, `topics.rs`) that decodes events. All feeds
//! use the same builder.

mod builder;
mod cuts;
mod encode;
mod feed;
mod lines;
mod replay;
mod slot;
mod topics;

use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use builder::{BatchBuilder, BuilderContext, with_dead_letter_hint};
pub(crate) use encode::{ColumnPresence, EncodedTable, RowAction, encode_folded_rows};
pub(crate) use feed::{SourceFeed, run_feed};
pub(crate) use lines::LineFeed;
pub(crate) use slot::SlotFeed;
pub(crate) use topics::TopicFeed;

use super::route::ApplyTable;
use pgspate_events::decode::{self, Decode, EventFormat};
use pgspate_events::log::EventLog;
use pgspate_replication::SourcePoint;
use pgspate_target::ledger::{DeadLetter, PartitionMove, StreamPosition};

/// A batch on its way from the builder to the writer.
#[derive(Debug, Default)]
pub(crate) struct EventBatch {
    /// All events, so that refused events can be found.
    pub(crate) log: EventLog,
    /// How many changes of the log are applied. The changes after belong to an incomplete
    /// transaction.
    pub(crate) complete_changes: usize,
    /// The target tables of the events.
    pub(crate) tables: Vec<Arc<ApplyTable>>,
    /// The folded and encoded rows of all events.
    pub(crate) encoded_tables: Vec<EncodedTable>,
    /// Statements that add unknown columns, to run first.
    pub(crate) column_additions: Vec<String>,
    /// Records that could not be decoded or routed.
    pub(crate) rejected: Vec<DeadLetter>,
    /// The stream's position after the batch.
    pub(crate) end_mark: StreamPosition,
    /// For topics: the changed positions of partitions.
    pub(crate) partition_moves: Vec<PartitionMove>,
    /// Whether a source transaction ends with the batch. If not, the next batch continues it.
    pub(crate) ends_transaction: bool,
    /// Bytes of input.
    pub(crate) bytes: u64,
    /// The size that limits a batch: for each event its bytes as input or in the log, whichever is
    /// more.
    pub(crate) held_bytes: u64,
    /// Events of tables that `--tables` leaves out.
    pub(crate) left_out: u64,
    /// All events and records of the input, left out or not.
    pub(crate) events: u64,
    /// For slots and topics: the position that may be confirmed after the commit.
    pub(crate) reached: Option<SourcePoint>,
    /// For slots and topics: when the source committed or wrote the last event.
    pub(crate) committed_at: Option<SystemTime>,
}

impl EventBatch {
    /// Counts an event of `input_bytes` bytes. `before` is the log's size without it.
    pub(crate) fn count_event(&mut self, input_bytes: u64, before: u64) {
        self.events += 1;
        self.bytes += input_bytes;
        self.held_bytes += input_bytes.max(self.log.held_bytes().saturating_sub(before));
    }

    /// Checks whether the batch has nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.events == 0 && self.reached.is_none() && self.partition_moves.is_empty()
    }
}

impl BuilderContext {
    /// Returns the decoder of a format. pgspate's own format is the default.
    fn decoder(&self, format: EventFormat) -> Box<dyn Decode> {
        let decoder = decode::decoder_of(format, &self.options.decode);
        let decoder = decoder.unwrap_or_else(|| Box::new(decode::own_format::OwnFormat::default()));
        if decoder.omits_unchanged() {
            self.router.expect_omitted_columns();
        }
        decoder
    }
}

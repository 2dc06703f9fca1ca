//! Batches: folded and encoded events that are applied together, with the stream's position after
//! the last event.
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

pub(crate) use builder::{
    BatchBuilder, BuilderContext, too_many_dead_letters_hint, with_dead_letter_hint,
};
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
    /// All events of the batch. If the server refuses a row, its events are looked up here.
    pub(crate) log: EventLog,
    /// How many changes of the log are applied. Later changes belong to an incomplete transaction.
    pub(crate) complete_changes: usize,
    /// The target tables of the events.
    pub(crate) tables: Vec<Arc<ApplyTable>>,
    /// The folded and encoded rows of all events.
    pub(crate) encoded_tables: Vec<EncodedTable>,
    /// Statements that add unknown columns. They run before the rows are written.
    pub(crate) column_additions: Vec<String>,
    /// Records that could not be decoded or routed.
    pub(crate) rejected: Vec<DeadLetter>,
    /// The stream's position after the batch.
    pub(crate) end_position: StreamPosition,
    /// For topics: the changed positions of partitions.
    pub(crate) partition_moves: Vec<PartitionMove>,
    /// Whether a source transaction ends with the batch. If not, the next batch continues it.
    pub(crate) ends_transaction: bool,
    /// Bytes of input that the events took.
    pub(crate) bytes: u64,
    /// The size that `--batch-bytes` limits. For each event, its bytes of input or its bytes in the
    /// log count, whichever is more.
    pub(crate) held_bytes: u64,
    /// Events of tables that `--tables` leaves out.
    pub(crate) left_out: u64,
    /// All events and undecodable records of the input, including events that are left out.
    pub(crate) events: u64,
    /// For slots and topics: the position that pgspate may confirm to the source after the commit.
    pub(crate) reached: Option<SourcePoint>,
    /// For slots and topics: when the source committed or wrote the last event.
    pub(crate) committed_at: Option<SystemTime>,
}

impl EventBatch {
    /// Counts an event of `input_bytes` bytes. `log_bytes_before` is the log's size without the
    /// event.
    pub(crate) fn count_event(&mut self, input_bytes: u64, log_bytes_before: u64) {
        self.events += 1;
        self.bytes += input_bytes;
        self.held_bytes += input_bytes.max(self.log.held_bytes().saturating_sub(log_bytes_before));
    }

    /// Returns the tables whose rows the batch writes.
    pub(crate) fn written_tables(&self) -> impl Iterator<Item = &ApplyTable> {
        self.encoded_tables.iter().map(|it| &*self.tables[it.table])
    }

    /// Returns whether the batch has nothing to write.
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

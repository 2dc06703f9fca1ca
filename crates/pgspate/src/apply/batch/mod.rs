//! What is applied together: events, folded and encoded, and where the stream is after them.
//!
//! Each sort of source has its feed (`lines/`, `slot.rs`, `topics.rs`), which makes events of
//! what the source hands on. All of them give these to the one builder.

mod builder;
mod cuts;
mod feed;
mod lines;
mod prepare;
mod replay;
mod slot;
mod topics;

use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use builder::{BatchBuilder, BuilderContext, no_event};
pub(crate) use feed::{SourceFeed, run};
pub(crate) use lines::LineFeed;
pub(crate) use prepare::{ColumnPresence, EncodedTable, RowAction, prepare};
pub(crate) use slot::SlotFeed;
pub(crate) use topics::TopicFeed;

use super::route::ApplyTable;
use pgspate_events::decode::{self, Decode, EventFormat};
use pgspate_events::log::EventLog;
use pgspate_replication::SourcePoint;
use pgspate_target::ledger::{DeadLetter, Mark, PartMove};

/// A batch on its way from the reader to the writer.
#[derive(Debug, Default)]
pub(crate) struct EventBatch {
    /// Its events, for a second look at those that are refused.
    pub(crate) log: EventLog,
    /// So many of them; the others are of a transaction that has not ended.
    pub(crate) upto: usize,
    /// The tables that events point to.
    pub(crate) tables: Vec<Arc<ApplyTable>>,
    /// What is left of all events.
    pub(crate) prepared: Vec<EncodedTable>,
    /// Statements that add columns, to be run first.
    pub(crate) additions: Vec<String>,
    /// Records that are no events.
    pub(crate) rejected: Vec<DeadLetter>,
    /// Where the stream is after it.
    pub(crate) end: Mark,
    /// Of topics: what becomes of their partitions.
    pub(crate) parts: Vec<PartMove>,
    /// A transaction of the source ends with it; else the next batch belongs to the same one.
    pub(crate) commits: bool,
    /// Bytes of input.
    pub(crate) bytes: u64,
    /// Bytes that its events take, or had as input, whichever is more: what batches are cut by.
    pub(crate) weight: u64,
    /// Events that `--tables` leaves out.
    pub(crate) left_out: u64,
    /// Records of the input, with those that are left out.
    pub(crate) events: u64,
    /// Of a slot and of topics: what may be confirmed once it is committed.
    pub(crate) reached: Option<SourcePoint>,
    /// Of a slot and of topics: when the last event was committed or written there.
    pub(crate) committed: Option<SystemTime>,
}

impl EventBatch {
    /// Counts an event that had so many bytes as input. The log took `before` without it.
    pub(crate) fn count(&mut self, input_bytes: u64, before: u64) {
        self.events += 1;
        self.bytes += input_bytes;
        self.weight += input_bytes.max(self.log.held_bytes().saturating_sub(before));
    }

    /// Whether there is nothing to tell the server.
    pub(crate) fn is_empty(&self) -> bool {
        self.events == 0 && self.reached.is_none() && self.parts.is_empty()
    }
}

impl BuilderContext {
    /// The decoder of a format; where it has none of its own, that of pgspate's.
    fn decoder(&self, format: EventFormat) -> Box<dyn Decode> {
        let decoder = decode::of(format, &self.options.decode);
        let decoder = decoder.unwrap_or_else(|| Box::new(decode::own_format::OwnFormat::default()));
        if decoder.leaves_out() {
            self.router.expect_left_out();
        }
        decoder
    }
}

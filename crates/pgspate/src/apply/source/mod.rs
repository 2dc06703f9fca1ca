//! Sources of events: files, replication slots of PostgreSQL, topics of Kafka.
//!
//! A source reads on a thread of its own and hands on pieces. A piece has events, or records that
//! are yet to be decoded. Each has its position by the source's own measure: a line, a place in a
//! server's log, an offset. Nothing here knows of batches, of the target's tables or of rows.

mod digest;
mod gauge;
pub(crate) mod kafka;
pub(crate) mod lines;
mod names;
pub mod replication;
pub(crate) mod slot;

use std::sync::mpsc::SyncSender;
use std::time::Duration;

pub(crate) use digest::{Digest, Trail};
pub use gauge::Lag;
pub(crate) use gauge::{Gauge, Reached};
pub(crate) use names::SourceNames;

use crate::{Error, Result};
use pgspate_events::Stand;
use pgspate_target::ledger::{Mark, PartMove};

/// Where the pieces of a source go.
pub(crate) type Pieces<T> = SyncSender<Result<T>>;

/// A source of events.
pub(crate) trait Source: Send + 'static {
    /// How far its events have come.
    type Position: Position;
    /// What it hands on.
    type Piece: Send + 'static;
    /// Reading ends when nobody wants more; else it may be silent for ever, and is left to itself.
    const HEEDS_STOP: bool = true;

    /// Reads until the end or until nobody wants more. What cannot be read is handed on, too.
    fn read(&mut self, pieces: &Pieces<Self::Piece>);

    /// Ends it after the last commit, of which it hears.
    fn close(self);
}

/// How far the events of a source have come, record by record: what the ledger keeps of it.
pub(crate) trait Position: Send {
    /// Where one of its events stands, or up to where all of them have come.
    type Stand: Copy + Into<Stand>;

    /// All of a record has been taken.
    fn arrive(&mut self, stand: Self::Stand);

    /// All that has arrived is of whole transactions.
    fn settle(&mut self);

    /// After so many events: where the last whole transaction has ended.
    fn mark(&self, ordinal: u64, names: &SourceNames) -> Mark;

    /// What tells all records so far from those of another stream.
    fn digest(&self) -> String {
        String::new()
    }

    /// What becomes of the stream's parts with a batch, which may have no events.
    fn moves(&mut self, _has_events: bool) -> Vec<PartMove> {
        Vec::new()
    }

    /// The same place as [`Gauge`] counts it.
    fn reached(&self) -> Option<Reached> {
        None
    }

    /// How long a batch may wait as it is late anyway.
    fn delay(&self, _gauge: &Gauge) -> Duration {
        Duration::ZERO
    }
}

/// What an error says with its causes, as one text.
pub(crate) fn words(error: &Error) -> String {
    let mut words = error.to_string();
    let mut last = words.clone();
    let mut cause = std::error::Error::source(error);
    while let Some(current) = cause {
        let message = current.to_string();
        // A layer that only repeats the one beneath it says nothing.
        if message != last {
            words = format!("{words}: {message}");
        }
        last = message;
        cause = current.source();
    }
    words
}

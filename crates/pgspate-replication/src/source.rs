//! Sources of events, which read on their own thread, and positions in them.
//!
//! A source sends pieces. A piece has events, or records that are not decoded yet. Each record has
//! a place in the source's own measure: a line, an LSN, or an offset.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::{LagMeter, Result, SourceNames, SourcePoint};
use pgspate_events::EventPlace;
use pgspate_target::ledger::{PartitionMove, StreamPosition};
use pgspate_target::session::StopFlag;

/// The sending end of the channel for a source's pieces. The sender also tells whether more pieces
/// are wanted.
#[derive(Debug)]
pub struct EventSender<T> {
    to: SyncSender<Result<T>>,
    unwanted: StopFlag,
}

impl<T> EventSender<T> {
    /// Returns a sender to `to`. The source stops when `unwanted` is requested.
    pub fn new(to: SyncSender<Result<T>>, unwanted: StopFlag) -> EventSender<T> {
        EventSender { to, unwanted }
    }

    /// Sends a piece, or the error that ended reading. Waits until the receiver has room.
    ///
    /// # Errors
    /// [`ReceiverGone`] if the receiver was dropped.
    pub fn send(&self, piece: Result<T>) -> Result<(), ReceiverGone> {
        self.to.send(piece).map_err(|_| ReceiverGone)
    }

    /// Returns whether more pieces are wanted.
    pub fn are_wanted(&self) -> bool {
        !self.unwanted.is_requested()
    }
}

/// The error for a piece whose receiver was dropped.
#[derive(Debug)]
pub struct ReceiverGone;

/// A source of events.
pub trait EventSource: Send + 'static {
    /// The position in this source.
    type Position: SourcePosition;
    /// The pieces that the source sends.
    type Piece: Send + 'static;
    /// Whether reading ends soon after no more pieces are wanted. If false, reading may wait for
    /// input for ever, so the caller does not wait for the reading thread.
    const ENDS_ON_STOP: bool = true;

    /// Reads until the end, or until no more pieces are wanted. Sends pieces, and the error that
    /// ended reading.
    fn read(&mut self, pieces: &EventSender<Self::Piece>);

    /// Closes the source. The caller confirms the last commit to the source before.
    fn close(self);
}

/// A position in a source, updated record by record. The ledger stores the position.
pub trait SourcePosition: Send {
    /// The place of an event in this source.
    type EventPlace: Copy + Into<EventPlace>;

    /// Notes that all events of the record at `event_place` have been taken.
    fn note_record(&mut self, event_place: Self::EventPlace);

    /// Notes that the last record ended a transaction.
    fn note_transaction_end(&mut self);

    /// Returns the position after the last whole transaction, for the ledger. `ordinal` is the
    /// number of events before the position.
    fn mark(&self, ordinal: u64, names: &SourceNames) -> StreamPosition;

    /// Returns a digest of all records so far, which differs from the digest of another stream.
    fn digest(&self) -> String {
        String::new()
    }

    /// Returns the changes of the partitions' positions, which the next batch commits. That batch
    /// may have no events.
    fn partition_moves(&mut self, _has_events: bool) -> Vec<PartitionMove> {
        Vec::new()
    }

    /// Returns the end of the last whole transaction, as [`LagMeter`] counts it.
    fn point(&self) -> Option<SourcePoint> {
        None
    }

    /// Returns how long a batch may wait for more events. A stream that lags far behind may wait
    /// longer.
    fn delay(&self, _lag: &LagMeter) -> Duration {
        Duration::ZERO
    }
}

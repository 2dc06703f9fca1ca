//! What reads events on a thread of its own, and how far it has come.
//!
//! A source hands on pieces. A piece has events, or records that are yet to be decoded. Each has
//! its position by the source's own measure: a line, a place in a server's log, an offset.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::{LagMeter, Result, SourceNames, SourcePoint};
use pgspate_events::EventPlace;
use pgspate_target::ledger::{Mark, PartMove};
use pgspate_target::session::Stop;

/// Where a source sends its pieces, and whether more of them are wanted.
#[derive(Debug)]
pub struct Pieces<T> {
    to: SyncSender<Result<T>>,
    unwanted: Stop,
}

impl<T> Pieces<T> {
    /// Sends to `to`, until `unwanted` is requested.
    pub fn new(to: SyncSender<Result<T>>, unwanted: Stop) -> Pieces<T> {
        Pieces { to, unwanted }
    }

    /// Sends a piece, or why there is none. Waits for room.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn send(&self, piece: Result<T>) -> Result<(), Gone> {
        self.to.send(piece).map_err(|_| Gone)
    }

    /// Returns whether more pieces are wanted.
    pub fn are_wanted(&self) -> bool {
        !self.unwanted.is_requested()
    }
}

/// Nobody takes pieces any more.
#[derive(Debug)]
pub struct Gone;

/// A source of events.
pub trait EventSource: Send + 'static {
    /// How far its events have come.
    type Position: SourcePosition;
    /// What it hands on.
    type Piece: Send + 'static;
    /// Whether reading ends soon after no more pieces are wanted. If false, reading may wait for
    /// input for ever, and its thread is not waited for.
    const HEEDS_STOP: bool = true;

    /// Reads until the end, or until no more pieces are wanted. Sends errors as well.
    fn read(&mut self, pieces: &Pieces<Self::Piece>);

    /// Ends the source after the last commit, of which it is told.
    fn close(self);
}

/// How far the events of a source have come, record by record: what the ledger keeps of it.
pub trait SourcePosition: Send {
    /// Where one of its events stands, or up to where all of them have come.
    type EventPlace: Copy + Into<EventPlace>;

    /// Notes that all of a record has been taken.
    fn arrive(&mut self, event_place: Self::EventPlace);

    /// Notes that all that has arrived is of whole transactions.
    fn settle(&mut self);

    /// Returns where the last whole transaction has ended, which is after so many events.
    fn mark(&self, ordinal: u64, names: &SourceNames) -> Mark;

    /// Returns what tells all records so far from those of another stream.
    fn digest(&self) -> String {
        String::new()
    }

    /// Returns what becomes of the stream's parts with a batch, which may have no events.
    fn moves(&mut self, _has_events: bool) -> Vec<PartMove> {
        Vec::new()
    }

    /// Returns where the last whole transaction has ended, as [`LagMeter`] counts it.
    fn point(&self) -> Option<SourcePoint> {
        None
    }

    /// Returns how long a batch may wait for more events because the stream lags anyway.
    fn delay(&self, _lag: &LagMeter) -> Duration {
        Duration::ZERO
    }
}

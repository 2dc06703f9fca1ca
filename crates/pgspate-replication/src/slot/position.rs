//! The position in a slot's stream: the end of the last whole transaction in the server's log.

use std::time::Duration;

use super::Slot;
use super::timeline::{CurrentTimeline, digest};
use crate::{LagMeter, SourceNames, SourcePoint, SourcePosition};
use pgspate_events::Lsn;
use pgspate_target::ledger::StreamPosition;

/// A batch may wait one microsecond for each 400 bytes of lag. With 200 MB of lag, which are about
/// ten seconds of work, a batch waits half a second.
const BEHIND_BYTES_PER_MICRO: u64 = 400;
/// The longest time that a batch waits.
const BEHIND_MAX: Duration = Duration::from_secs(1);

/// The position in a slot's stream.
#[derive(Debug)]
pub struct SlotPosition {
    /// The identity of the slot: server, database and slot name.
    identity: String,
    /// The timeline that is read.
    read_from: CurrentTimeline,
    /// The end of the last record.
    last: Option<Lsn>,
    /// The end of the last whole transaction.
    whole: Option<Lsn>,
}

impl SlotPosition {
    /// Returns the position before the first transaction of `slot`.
    pub fn new(slot: &Slot) -> SlotPosition {
        let (identity, read_from) = (slot.identity.clone(), slot.read_from.clone());
        SlotPosition { identity, read_from, last: None, whole: None }
    }
}

impl SourcePosition for SlotPosition {
    type EventPlace = Lsn;

    fn note_record(&mut self, end: Lsn) {
        self.last = Some(end);
    }

    fn note_transaction_end(&mut self) {
        self.whole = self.last;
    }

    fn mark(&self, ordinal: u64, _: &SourceNames) -> StreamPosition {
        let source = self.whole.unwrap_or_default().to_string();
        StreamPosition { ordinal, source, digest: digest(&self.identity, self.read_from.get()) }
    }

    fn point(&self) -> Option<SourcePoint> {
        self.whole.map(SourcePoint::Log)
    }

    /// Returns a small part of the time that catching up takes. Larger batches fold more events of
    /// the same row into one.
    fn delay(&self, lag: &LagMeter) -> Duration {
        let Some(end) = self.last else { return Duration::ZERO };
        let bytes = lag.bytes_behind(end);
        Duration::from_micros(bytes / BEHIND_BYTES_PER_MICRO).min(BEHIND_MAX)
    }
}

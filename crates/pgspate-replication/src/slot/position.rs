//! How far a slot's stream has come: where the last whole transaction ends in its server's log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use super::Slot;
use super::timeline::digest;
use crate::{LagMeter, SourceNames, SourcePoint, SourcePosition};
use pgspate_events::Lsn;
use pgspate_target::ledger::Mark;

/// A source that is 200 MB ahead, some ten seconds of work, may be half a second more.
const BEHIND_BYTES_PER_MICRO: u64 = 400;
const BEHIND_MAX: Duration = Duration::from_secs(1);

/// Where transactions end.
#[derive(Debug)]
pub struct SlotPosition {
    /// Tells the slot from others.
    identity: String,
    /// The timeline that is read.
    read_from: Arc<AtomicU32>,
    last: Option<Lsn>,
    whole: Option<Lsn>,
}

impl SlotPosition {
    /// Begins with no transaction of `slot`.
    pub fn new(slot: &Slot) -> SlotPosition {
        let (identity, read_from) = (slot.identity.clone(), Arc::clone(&slot.read_from));
        SlotPosition { identity, read_from, last: None, whole: None }
    }
}

impl SourcePosition for SlotPosition {
    type EventPlace = Lsn;

    fn arrive(&mut self, end: Lsn) {
        self.last = Some(end);
    }

    fn settle(&mut self) {
        self.whole = self.last;
    }

    fn mark(&self, ordinal: u64, _: &SourceNames) -> Mark {
        let source = self.whole.unwrap_or_default().to_string();
        Mark { ordinal, source, digest: digest(&self.identity, self.read_from.load(Relaxed)) }
    }

    fn point(&self) -> Option<SourcePoint> {
        self.whole.map(SourcePoint::Log)
    }

    /// A small part of the time that it takes to catch up with a source which is far ahead, so that
    /// many events of a row are one.
    fn delay(&self, lag: &LagMeter) -> Duration {
        let Some(end) = self.last else { return Duration::ZERO };
        let bytes = lag.bytes_behind(end);
        Duration::from_micros(bytes / BEHIND_BYTES_PER_MICRO).min(BEHIND_MAX)
    }
}

//! Events of a slot to batches, which end where the slot can go on.
//!
//! The server says where it goes on only after a whole transaction that it has sent, so there and
//! nowhere else a batch ends. When nothing comes the position is moved on all the same, from time
//! to time, so that the server need not keep its log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use super::{Feed, Making, Told};
use crate::Result;
use crate::apply::replication::{Lsn, Received};
use crate::apply::route::Stand;
use crate::apply::slot::digest;
use pgspate_events::{Event, Row, Value};

/// How often the position is written when no events come.
const IDLE: Duration = Duration::from_secs(10);
/// A source that is 200 MB ahead, some ten seconds of work, may be half a second more.
const BEHIND_BYTES_PER_MICRO: u64 = 400;
const BEHIND_MAX: Duration = Duration::from_secs(1);
/// About what a column costs besides its text.
const COLUMN_BYTES: u64 = 8;

/// What is to be known of a slot to make batches of what it sends.
#[derive(Debug, Clone)]
pub(crate) struct SlotFeed {
    /// Tells the slot from others.
    pub(crate) identity: String,
    /// The timeline that is read.
    pub(crate) read_from: Arc<AtomicU32>,
    /// All up to here is applied already.
    pub(crate) from: Lsn,
    /// Where to end; nowhere by default.
    pub(crate) until: Option<Lsn>,
}

impl SlotFeed {
    /// The digest of its marks.
    pub(super) fn digest(&self) -> String {
        digest(&self.identity, self.read_from.load(Relaxed))
    }

    /// Nothing is left to be read. The server would not say so: it has told us before.
    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| self.from >= until)
    }
}

/// Where a slot is.
#[derive(Debug)]
pub(super) struct State {
    /// When the last whole transaction was committed.
    pub(super) committed: Option<SystemTime>,
    /// The commit of the open transaction, as text and as a number.
    commit: (Box<str>, Lsn),
    /// When the position was last handed on.
    moved: Instant,
}

impl Default for State {
    fn default() -> State {
        State { committed: None, commit: (Box::default(), Lsn(0)), moved: Instant::now() }
    }
}

impl Feed {
    /// False when no more is wanted.
    pub(super) fn received(&mut self, received: &Received, making: &mut Making) -> Result<bool> {
        let events = &received.events;
        let whole = events.iter().rposition(|event| event.ends_transaction).map_or(0, |at| at + 1);
        for event in &events[..whole] {
            self.change(event, making)?;
        }
        // What the log is passed over for says nothing within a transaction that is sent again.
        if let Some(end) = received.end.filter(|_| making.is_between) {
            making.last.end = Some(end);
            making.note_boundary();
            making.slot.committed = received.committed.or(making.slot.committed);
            if !self.reached(end, making) {
                return Ok(false);
            }
        }
        for event in &events[whole..] {
            self.change(event, making)?;
        }
        Ok(!self.is_due(making) || self.hand_over(making).is_ok())
    }

    /// All up to `end` has been received. False when no more is wanted.
    fn reached(&self, end: Lsn, making: &mut Making) -> bool {
        let Some(slot) = &self.slot else { return false };
        let is_last = slot.until.is_some_and(|until| end >= until);
        if making.batch.is_empty() {
            if !self.watch.has_batch() {
                self.watch.reach(end);
            }
            if end <= slot.from || !(is_last || making.slot.moved.elapsed() >= IDLE) {
                return !is_last;
            }
            making.batch.lsn = Some(end);
        } else if !is_last && !self.is_due(making) {
            return true;
        }
        making.slot.moved = Instant::now();
        self.hand_over(making).is_ok() && !is_last
    }

    /// How long a batch may wait as it is late anyway: for a small part of the time that it takes
    /// to catch up with a source which is far ahead, so that many events of a row are one.
    pub(super) fn behind(&self, making: &Making) -> Duration {
        let (Some(_), Some(end)) = (&self.slot, making.last.end) else { return Duration::ZERO };
        let bytes = self.watch.bytes_behind(end);
        Duration::from_micros(bytes / BEHIND_BYTES_PER_MICRO).min(BEHIND_MAX)
    }

    fn change(&self, event: &Event, making: &mut Making) -> Result<()> {
        let commit = &mut making.slot.commit;
        if commit.0 != event.position.source {
            let lsn = event.position.source.parse()?;
            *commit = (event.position.source.clone(), lsn);
        }
        let stand = (0, commit.1.0);
        let ordinal = making.ordinal;
        making.ordinal += 1;
        making.is_between = event.ends_transaction;
        Self::begin(making);
        let at = Stand { input: 0, line: stand.1, ordinal };
        let before = making.batch.log.held_bytes();
        match self.router.add(event, &mut making.batch.log, at) {
            Ok(true) => {}
            Ok(false) => making.batch.left_out += 1,
            Err(error) => {
                let error = error.at(self.place(stand));
                self.set_aside(error, &Told::Event(event), stand, making)?;
            }
        }
        if event.ends_transaction {
            making.batch.log.end_transaction();
        }
        making.batch.count(bytes(event), before);
        Ok(())
    }
}

/// About how many bytes of batches an event takes.
fn bytes(event: &Event) -> u64 {
    let cell = |value: &Value| match value {
        Value::Text(text) => text.len() as u64 + COLUMN_BYTES,
        Value::Null | Value::Absent => COLUMN_BYTES,
    };
    let row = |row: &Row| row.values.iter().map(cell).sum::<u64>();
    [&event.new, &event.old].into_iter().flatten().map(row).sum()
}

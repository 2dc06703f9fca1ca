//! Events of a slot to batches, which end where the slot can go on.
//!
//! The server says where it goes on only after a whole transaction that it has sent, so there and
//! nowhere else a batch ends. When nothing comes the position is moved on all the same, from time
//! to time, so that the server need not keep its log.

use std::time::{Duration, Instant};

use super::{BatchBuilder, SourceFeed};
use crate::Result;
use pgspate_events::{ChangeEvent, Lsn, EventRow, EventValue};
use pgspate_replication::SourcePoint;
use pgspate_replication::postgres::Received;
use pgspate_replication::slot::{SlotPosition, SlotSource};

/// How often the position is written when no events come.
const IDLE: Duration = Duration::from_secs(10);
/// About what a column costs besides its text.
const COLUMN_BYTES: u64 = 8;

/// Takes what a slot sends.
pub(crate) struct SlotFeed {
    builder: BatchBuilder<SlotPosition>,
    /// All up to here is applied already.
    from: Lsn,
    /// Where to end; nowhere by default.
    until: Option<Lsn>,
    is_done: bool,
    /// The commit of the open transaction, as text and as a number.
    commit: (Box<str>, Lsn),
    /// When the position was last handed on.
    moved: Instant,
}

impl SourceFeed<SlotSource> for SlotFeed {
    fn builder(&mut self) -> &mut BatchBuilder<SlotPosition> {
        &mut self.builder
    }

    fn take(&mut self, received: Received) -> Result<()> {
        let events = &received.events;
        let whole = events.iter().rposition(|event| event.ends_transaction).map_or(0, |at| at + 1);
        for event in &events[..whole] {
            self.change(event)?;
        }
        // What the log is passed over for says nothing within a transaction that is sent again.
        if let Some(end) = received.end.filter(|_| self.builder.is_between()) {
            self.builder.note(end);
            self.builder.committed = received.committed.or(self.builder.committed);
            self.reach(end)?;
            if self.is_done {
                return Ok(());
            }
        }
        for event in &events[whole..] {
            self.change(event)?;
        }
        self.builder.hand_over_if_due()
    }

    /// The server would not say that nothing is left: it has told us before.
    fn is_done(&self) -> bool {
        self.is_done
    }
}

impl SlotFeed {
    /// Goes on after `from`, up to `until`.
    pub(crate) fn new(builder: BatchBuilder<SlotPosition>, from: Lsn, until: Option<Lsn>) -> SlotFeed {
        let is_done = until.is_some_and(|until| from >= until);
        let commit = (Box::default(), Lsn(0));
        SlotFeed { builder, from, until, is_done, commit, moved: Instant::now() }
    }

    /// All up to `end` has been received.
    fn reach(&mut self, end: Lsn) -> Result<()> {
        let builder = &mut self.builder;
        let is_last = self.until.is_some_and(|until| end >= until);
        self.is_done = is_last;
        if builder.batch.is_empty() {
            if !builder.with.watch.has_batch() {
                builder.with.watch.lag.note_applied(SourcePoint::Log(end));
            }
            if end <= self.from || !(is_last || self.moved.elapsed() >= IDLE) {
                return Ok(());
            }
            builder.batch.reached = Some(SourcePoint::Log(end));
        } else if !is_last && !builder.is_due() {
            return Ok(());
        }
        self.moved = Instant::now();
        builder.hand_over()
    }

    fn change(&mut self, event: &ChangeEvent) -> Result<()> {
        let commit = &mut self.commit;
        if commit.0 != event.position.source {
            *commit = (event.position.source.clone(), event.position.source.parse()?);
        }
        self.builder.push(event, bytes(event), commit.1)
    }
}

/// About how many bytes of batches an event takes.
fn bytes(event: &ChangeEvent) -> u64 {
    let cell = |value: &EventValue| match value {
        EventValue::Text(text) => text.len() as u64 + COLUMN_BYTES,
        EventValue::Null | EventValue::Absent => COLUMN_BYTES,
    };
    let row = |row: &EventRow| row.values.iter().map(cell).sum::<u64>();
    [&event.new, &event.old].into_iter().flatten().map(row).sum()
}

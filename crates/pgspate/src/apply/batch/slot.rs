//! Decodes the events of a replication slot into batches.
//!
//! The server can resume a slot only after a complete transaction, so batches end only after a
//! complete transaction. While no events arrive, the feed still advances the position from time to
//! time, so that the server can remove old WAL.

use std::time::{Duration, Instant};

use super::{BatchBuilder, SourceFeed};
use crate::Result;
use pgspate_events::{ChangeEvent, EventRow, EventValue, Lsn};
use pgspate_replication::SourcePoint;
use pgspate_replication::postgres::ReceivedEvents;
use pgspate_replication::slot::{SlotPosition, SlotSource};

/// How often the position is written to the ledger when no events arrive.
const IDLE_MARK_INTERVAL: Duration = Duration::from_secs(10);
/// The approximate size of a column without its text.
const COLUMN_BYTES: u64 = 8;

/// Decodes the messages of a slot.
pub(crate) struct SlotFeed {
    builder: BatchBuilder<SlotPosition>,
    /// All transactions up to this position are applied already.
    from: Lsn,
    /// The position at which the run ends; `None` if it has no end.
    until: Option<Lsn>,
    is_done: bool,
    /// The commit position of the open transaction, as text and as a number.
    commit: (Box<str>, Lsn),
    /// When the position was last sent to the writer.
    sent_at: Instant,
}

impl SourceFeed<SlotSource> for SlotFeed {
    fn builder(&mut self) -> &mut BatchBuilder<SlotPosition> {
        &mut self.builder
    }

    fn take_piece(&mut self, received: ReceivedEvents) -> Result<()> {
        let events = &received.events;
        let complete =
            events.iter().rposition(|event| event.ends_transaction).map_or(0, |at| at + 1);
        for event in &events[..complete] {
            self.take_event(event)?;
        }
        // A position within a transaction is no position from which the slot can resume.
        if let Some(end) = received.end.filter(|_| self.builder.is_between_transactions()) {
            self.builder.note_position(end);
            self.builder.committed_at = received.committed.or(self.builder.committed_at);
            self.reach_position(end)?;
            if self.is_done {
                return Ok(());
            }
        }
        for event in &events[complete..] {
            self.take_event(event)?;
        }
        self.builder.send_batch_if_due()
    }

    /// A run that starts at its end is done at once: the server does not report that position
    /// again.
    fn is_done(&self) -> bool {
        self.is_done
    }
}

impl SlotFeed {
    /// Returns a feed that continues after `from` and ends at `until`.
    pub(crate) fn new(
        builder: BatchBuilder<SlotPosition>,
        from: Lsn,
        until: Option<Lsn>,
    ) -> SlotFeed {
        let is_done = until.is_some_and(|until| from >= until);
        let commit = (Box::default(), Lsn(0));
        SlotFeed { builder, from, until, is_done, commit, sent_at: Instant::now() }
    }

    /// Records that all transactions up to `end` have been received. Sends the batch if it is due.
    fn reach_position(&mut self, end: Lsn) -> Result<()> {
        let builder = &mut self.builder;
        let is_last = self.until.is_some_and(|until| end >= until);
        self.is_done = is_last;
        if builder.batch.is_empty() {
            if !builder.context.watch.writer_has_batch() {
                builder.context.watch.lag.note_applied(SourcePoint::Log(end));
            }
            if end <= self.from || !(is_last || self.sent_at.elapsed() >= IDLE_MARK_INTERVAL) {
                return Ok(());
            }
            builder.batch.reached = Some(SourcePoint::Log(end));
        } else if !is_last && !builder.is_batch_due() {
            return Ok(());
        }
        self.sent_at = Instant::now();
        builder.send_batch()
    }

    /// Takes an event of the open transaction.
    fn take_event(&mut self, event: &ChangeEvent) -> Result<()> {
        let commit = &mut self.commit;
        if commit.0 != event.origin.source {
            *commit = (event.origin.source.clone(), event.origin.source.parse()?);
        }
        self.builder.push_event(event, event_bytes(event), commit.1)
    }
}

/// Returns the approximate size of an event in a batch.
fn event_bytes(event: &ChangeEvent) -> u64 {
    let cell = |value: &EventValue| match value {
        EventValue::Text(text) => text.len() as u64 + COLUMN_BYTES,
        EventValue::Null | EventValue::Absent => COLUMN_BYTES,
    };
    let row = |row: &EventRow| row.values.iter().map(cell).sum::<u64>();
    [&event.new, &event.old].into_iter().flatten().map(row).sum()
}

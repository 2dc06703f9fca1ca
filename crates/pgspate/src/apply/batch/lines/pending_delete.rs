//! Handles transaction marks between events, and deletes that are half of a key change.
//!
//! A source may describe a key change as a delete and an insert, and leave out large values that
//! did not change. The feed then replaces both events by one change of the key, before the delete
//! is committed.

use std::time::{Duration, Instant};

use super::LineFeed;
use crate::apply::batch::builder::{DeadLetterSource, SourceTransaction};
use crate::apply::line_source::InputLine;
use crate::{Error, ErrorKind, Result};
use pgspate_events::ChangeEvent;
use pgspate_events::decode::RecordGrouping;

/// How long a delete waits for the insert that completes the key change. A source writes the delete
/// and the insert together.
const PENDING_DELETE_WAIT: Duration = Duration::from_secs(1);

/// A delete that may be the first half of a key change.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingDelete {
    since: Instant,
    place: DeletePlace,
}

/// Where a pending delete is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum DeletePlace {
    /// The delete is the last event of the log.
    InLog,
    /// An earlier run applied the delete.
    Applied,
    /// The router left the delete out, or the delete was set aside as a dead letter.
    Skipped,
}

impl PendingDelete {
    /// Returns whether the delete has waited long enough, so that no insert completes it any more.
    pub(super) fn is_expired(self) -> bool {
        self.since.elapsed() >= PENDING_DELETE_WAIT
    }
}

impl LineFeed {
    /// Takes the events of a record of `bytes` bytes, and its transaction marks.
    pub(super) fn take_record(
        &mut self,
        events: &[ChangeEvent],
        grouping: RecordGrouping,
        bytes: usize,
        event_place: InputLine,
    ) -> Result<()> {
        match grouping {
            RecordGrouping::OpensTransaction => self.builder.open_transaction(),
            RecordGrouping::ClosesTransaction => {
                self.builder.close_transaction();
                self.builder.confirm_replayed_digest();
                self.builder.note_position(event_place);
                return Ok(());
            }
            RecordGrouping::SecondHalf => return self.take_second_half(events, bytes, event_place),
            RecordGrouping::ByEvents | RecordGrouping::MayBeFirstHalf => {}
        }
        let may_be_half = grouping == RecordGrouping::MayBeFirstHalf;
        if !events.is_empty() {
            self.keep_pending_delete();
            self.builder.may_take_back_last = may_be_half;
        }
        let (before, is_replayed) = (self.logged_events(), self.builder.is_replaying());
        self.builder.take_events(events, bytes, event_place)?;
        if may_be_half {
            let place = match self.logged_events() > before {
                true => DeletePlace::InLog,
                false if is_replayed => DeletePlace::Applied,
                false => DeletePlace::Skipped,
            };
            self.pending_delete = Some(PendingDelete { since: Instant::now(), place });
            self.builder.transaction = SourceTransaction::Within;
        }
        Ok(())
    }

    /// Returns the number of events in the log.
    fn logged_events(&self) -> usize {
        self.builder.batch.log.changes().len()
    }

    /// Takes the second half of a key change: an update of the key. The previous event was the
    /// delete.
    fn take_second_half(
        &mut self,
        events: &[ChangeEvent],
        bytes: usize,
        event_place: InputLine,
    ) -> Result<()> {
        let place = self.pending_delete.take().map(|pending_delete| pending_delete.place);
        let builder = &mut self.builder;
        builder.may_take_back_last = false;
        match place {
            Some(DeletePlace::InLog) => builder.batch.log.remove_last_event(),
            Some(DeletePlace::Skipped) => {}
            None | Some(DeletePlace::Applied) if builder.is_replaying() => {}
            None | Some(DeletePlace::Applied) => {
                builder.ordinal += 1;
                let message = "the old row is already deleted, and only that row had the values \
                               that the event leaves out";
                let error = Error::new(ErrorKind::Format, message).hint(
                    "The delete and the insert of a changed key came more than a second apart, or \
                     in two runs. Set the event aside with `--max-dead-letters`, and correct the \
                     row with the source's values.",
                );
                builder.set_aside(error, &DeadLetterSource::Event(&events[0]), event_place)?;
                builder.batch.events += 1;
                builder.close_transaction();
                builder.note_position(event_place);
                return Ok(());
            }
        }
        builder.take_events(events, bytes, event_place)
    }

    /// Keeps the pending delete as an event of its own.
    pub(super) fn keep_pending_delete(&mut self) {
        if self.pending_delete.take().is_some() {
            self.builder.may_take_back_last = false;
            self.builder.close_transaction();
            self.builder.note_boundary();
        }
    }
}

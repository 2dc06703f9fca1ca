//! What records say of transactions beside their events, and deletes that are half of a change.
//!
//! A source may tell a change of a row's key as a delete and an insert that leaves out large values
//! of the old row. Both become one change: the delete is taken back before anything is committed.

use std::time::{Duration, Instant};

use super::LineFeed;
use crate::apply::batch::builder::{SetAside, SourceTransaction};
use crate::apply::inputs::Line;
use crate::{Error, ErrorKind, Result};
use pgspate_events::ChangeEvent;
use pgspate_events::decode::Grouping;

/// A delete that the next record may take back waits so long for it. Both are written at once.
const WAIT: Duration = Duration::from_secs(1);

/// A delete that may be the first half of a change of its row's key.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingDelete {
    since: Instant,
    half: DeletePlace,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum DeletePlace {
    /// It is the last event of the log.
    InLog,
    /// It was applied by a run before.
    Applied,
    /// It is left out, or set aside.
    Elsewhere,
}

impl PendingDelete {
    /// Whether nothing is to be expected any more.
    pub(super) fn has_waited(self) -> bool {
        self.since.elapsed() >= WAIT
    }
}

impl LineFeed {
    /// Takes the events of a record of so many bytes, and what it says of transactions beside them.
    pub(super) fn take_grouped(
        &mut self,
        events: &[ChangeEvent],
        grouping: Grouping,
        bytes: usize,
        event_place: InputLine,
    ) -> Result<()> {
        match grouping {
            Grouping::Opens => self.builder.open_transaction(),
            Grouping::Closes => {
                self.builder.close_transaction();
                self.builder.end_doubt()?;
                self.builder.note(event_place);
                return Ok(());
            }
            Grouping::Pairs => return self.take_pair(events, bytes, event_place),
            Grouping::AsEvents | Grouping::MayPair => {}
        }
        if !events.is_empty() {
            self.end_pairing();
        }
        let (before, is_again) = (self.logged(), self.builder.is_again());
        self.builder.take(events, bytes, event_place)?;
        if grouping == Grouping::MayPair {
            let half = match self.logged() > before {
                true => DeletePlace::InLog,
                false if is_again => DeletePlace::Applied,
                false => DeletePlace::Elsewhere,
            };
            self.pairing = Some(PendingDelete { since: Instant::now(), half });
            self.builder.is_held = true;
            self.builder.transaction = SourceTransaction::Within;
        }
        Ok(())
    }

    /// Events of the log.
    fn logged(&self) -> usize {
        self.builder.batch.log.changes().len()
    }

    /// Takes an event that says all of a change whose first half was the event before.
    fn take_pair(&mut self, events: &[ChangeEvent], bytes: usize, event_place: InputLine) -> Result<()> {
        let half = self.pairing.take().map(|pairing| pairing.half);
        let builder = &mut self.builder;
        builder.is_held = false;
        match half {
            Some(DeletePlace::InLog) => builder.batch.log.take_back(),
            Some(DeletePlace::Elsewhere) => {}
            None | Some(DeletePlace::Applied) if builder.is_again() => {}
            None | Some(DeletePlace::Applied) => {
                builder.ordinal += 1;
                let message = "the row from which unchanged values are to be taken is deleted \
                               already";
                let error = Error::new(ErrorKind::Format, message).hint(
                    "The delete and the insert of a key that was changed came more than a second \
                     apart, or in two runs. Set the event aside with `--max-dead-letters`, and \
                     mend it with the values that the source has.",
                );
                builder.set_aside(error, &SetAside::Event(&events[0]), event_place)?;
                builder.batch.events += 1;
                builder.close_transaction();
                builder.note(event_place);
                return Ok(());
            }
        }
        builder.take(events, bytes, event_place)
    }

    /// The last event stays by itself: nothing is to be paired with it.
    pub(super) fn end_pairing(&mut self) {
        if self.pairing.take().is_some() {
            self.builder.is_held = false;
            self.builder.close_transaction();
            self.builder.note_boundary();
        }
    }
}

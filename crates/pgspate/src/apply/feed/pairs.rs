//! What records say of transactions beside their events, and deletes that are half of a change.
//!
//! A source may tell a change of a row's key as a delete and an insert that leaves out large values
//! of the old row. Both become one change: the delete is taken back before anything is committed.

use std::time::{Duration, Instant};

use super::{Feed, Making, Told};
use crate::{Error, Kind, Result};
use pgspate_events::Event;
use pgspate_events::decode::Grouping;

/// A delete that the next record may take back waits so long for it. Both are written at once.
const WAIT: Duration = Duration::from_secs(1);

/// A delete that may be the first half of a change of its row's key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pairing {
    since: Instant,
    half: Half,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Half {
    /// It is the last event of the log.
    InLog,
    /// It was applied by a run before.
    Applied,
    /// It is left out, or set aside.
    Elsewhere,
}

impl Pairing {
    /// Whether nothing is to be expected any more.
    pub(super) fn has_waited(self) -> bool {
        self.since.elapsed() >= WAIT
    }
}

impl Feed {
    /// Takes the events of a record, and what it says of transactions beside them.
    pub(super) fn take_grouped(
        &self,
        events: &[Event],
        grouping: Grouping,
        line: &[u8],
        stand: (u32, u64),
        making: &mut Making,
    ) -> Result<()> {
        match grouping {
            Grouping::Opens => making.open(),
            Grouping::Closes => {
                (making.is_between, making.has_begun) = (true, false);
                self.end_doubt(making)?;
                making.note(stand);
                return Ok(());
            }
            Grouping::Pairs => return self.take_pair(events, line, stand, making),
            Grouping::AsEvents | Grouping::MayPair => {}
        }
        if !events.is_empty() {
            making.end_pairing();
        }
        let before = making.batch.log.changes().len();
        self.take(events, line, stand, making)?;
        if grouping == Grouping::MayPair {
            let half = match making.batch.log.changes().len() > before {
                true => Half::InLog,
                false if making.ordinal <= self.from.ordinal => Half::Applied,
                false => Half::Elsewhere,
            };
            making.pairing = Some(Pairing { since: Instant::now(), half });
            making.is_between = false;
        }
        Ok(())
    }

    /// Takes an event that says all of a change whose first half was the event before.
    fn take_pair(
        &self,
        events: &[Event],
        line: &[u8],
        stand: (u32, u64),
        making: &mut Making,
    ) -> Result<()> {
        let half = making.pairing.take().map(|pairing| pairing.half);
        let is_again = making.ordinal < self.from.ordinal;
        match half {
            Some(Half::InLog) => making.batch.log.take_back(),
            Some(Half::Elsewhere) => {}
            None | Some(Half::Applied) if is_again => {}
            None | Some(Half::Applied) => {
                making.ordinal += 1;
                let message = "the row from which unchanged values are to be taken is deleted \
                               already";
                let error = Error::new(Kind::Format, message).hint(
                    "The delete and the insert of a key that was changed came more than a second \
                     apart, or in two runs. Set the event aside with `--max-dead-letters`, and \
                     mend it with the values that the source has.",
                );
                Self::begin(making);
                self.set_aside(error, &Told::Event(&events[0]), stand, making)?;
                making.batch.events += 1;
                making.is_between = true;
                making.note(stand);
                return Ok(());
            }
        }
        self.take(events, line, stand, making)
    }
}

impl Making {
    /// A transaction of the source begins. One that is open, and did not end, goes on.
    pub(super) fn open(&mut self) {
        self.has_begun = self.is_between;
        self.is_between = false;
    }

    /// The last event stays by itself: nothing is to be paired with it.
    pub(super) fn end_pairing(&mut self) {
        if self.pairing.take().is_some() {
            self.is_between = true;
            self.note_boundary();
        }
    }
}

//! When a batch is cut, and where.
//!
//! While the writer is busy with a batch the next one grows; when it is idle, a batch is handed
//! over as soon as a transaction of the source has ended and the delay is over. A batch ends
//! between transactions, but for one that is larger than batches may be: its parts are written in
//! one transaction of the target.

use std::time::Duration;

use super::prepare::prepare;
use super::{EventBatch, BatchBuilder};
use crate::apply::options::{AtEnd, ApplyOptions};
use crate::{Error, ErrorKind, Result};
use pgspate_events::ChangeKind;
use pgspate_replication::SourcePosition;

/// How often the wish to stop is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Time is looked at after so many events.
const EVENTS_BETWEEN_LOOKS: u64 = 64;

/// The batch as it was when a transaction had ended.
#[derive(Debug, Default)]
pub(super) struct BatchBoundary {
    ordinal: u64,
    changes: usize,
    events: u64,
    bytes: u64,
    weight: u64,
    left_out: u64,
    rejected: usize,
}

impl<P: SourcePosition> BatchBuilder<P> {
    /// How long to wait for the next piece.
    pub(super) fn may_wait(&self) -> Duration {
        match self.began {
            Some(began) if self.is_between() && !self.batch.is_empty() => {
                self.delay().saturating_sub(began.elapsed()).min(LOOK)
            }
            _ => LOOK,
        }
    }

    /// How long a batch waits for more events.
    fn delay(&self) -> Duration {
        self.with.options.batch_delay.max(self.position.delay(&self.with.watch.lag))
    }

    fn is_old(&self) -> bool {
        self.began.is_some_and(|began| began.elapsed() >= self.delay())
    }

    pub(super) fn is_due(&mut self) -> bool {
        let (rows, bytes) = (self.batch.events, self.batch.weight);
        let ApplyOptions { batch_rows, batch_bytes, .. } = *self.with.options;
        if self.is_held {
            return false;
        }
        if !self.is_between() {
            let is_large = rows >= 2 * batch_rows || bytes >= 2 * batch_bytes;
            return is_large && rows >= self.looked + self.grows_by;
        }
        if rows >= batch_rows || bytes >= batch_bytes {
            return true;
        }
        if rows < self.looked + EVENTS_BETWEEN_LOOKS || self.with.watch.is_writing() {
            return false;
        }
        self.looked = rows;
        self.is_old()
    }

    /// Hands the batch over if it is large, or old.
    ///
    /// # Errors
    /// As [`BatchBuilder::hand_over`].
    pub(super) fn hand_over_if_due(&mut self) -> Result<()> {
        if self.is_due() { self.hand_over() } else { Ok(()) }
    }

    /// The same when no more events are there.
    pub(super) fn hand_over_if_old(&mut self) -> Result<()> {
        if self.is_between() && self.is_old() { self.hand_over() } else { Ok(()) }
    }

    /// Notes where the stream is after a record.
    pub(super) fn note(&mut self, event_place: P::EventPlace) {
        self.position.arrive(event_place);
        if self.is_between() {
            self.note_boundary();
        }
    }

    /// A transaction of the source has ended.
    pub(super) fn note_boundary(&mut self) {
        self.position.settle();
        self.batch.log.end_transaction();
        let batch = &self.batch;
        self.boundary = BatchBoundary {
            ordinal: self.ordinal,
            changes: batch.log.changes().len(),
            events: batch.events,
            bytes: batch.bytes,
            weight: batch.weight,
            left_out: batch.left_out,
            rejected: batch.rejected.len(),
        };
    }

    /// The input has ended, and what of it is no whole transaction is applied or is an error.
    pub(super) fn end(&mut self) -> Result<()> {
        self.end_doubt()?;
        if self.with.options.at_end == AtEnd::Apply && !self.is_between() {
            self.close_transaction();
            self.note_boundary();
        }
        self.end_replay()?;
        if self.is_between() {
            return Ok(());
        }
        let message = "the input ends within a transaction of the source";
        Err(Error::new(ErrorKind::Format, message).hint(
            "The events of that transaction are not applied. Run the same command again when the \
             input has its end, or apply what there is of it with `--at-end apply`.",
        ))
    }

    /// Hands over the whole transactions before an error, and then the error, unless that says only
    /// that nobody listens.
    pub(super) fn fail(&mut self, error: Error) {
        if error.kind() == ErrorKind::Cancelled {
            return;
        }
        let (batch, boundary) = (&mut self.batch, &self.boundary);
        self.ordinal = boundary.ordinal;
        batch.events = boundary.events;
        (batch.bytes, batch.weight) = (boundary.bytes, boundary.weight);
        batch.left_out = boundary.left_out;
        batch.rejected.truncate(boundary.rejected);
        self.close_transaction();
        self.has_spilled = false;
        if self.hand_over().is_ok() {
            let _ = self.with.batches.send(Err(error));
        }
    }

    /// Hands the batch over to the writer.
    ///
    /// # Errors
    /// Of [`ErrorKind::Cancelled`] when the writer, which says why, is gone.
    pub(super) fn hand_over(&mut self) -> Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.commits = self.is_between();
        if batch.commits {
            batch.parts = self.position.moves(batch.events > 0);
        }
        let ends = self.has_spilled && batch.commits;
        if batch.is_empty() && !ends {
            return Ok(());
        }
        if !batch.commits {
            let prepared =
                prepare(&batch.log, 0..batch.log.changes().len(), &self.with.router.tables());
            let may_go_on = batch.log.changes().last().is_some_and(|it| it.op == ChangeKind::Truncate);
            if may_go_on || prepared.is_ok_and(|all| all.iter().any(|it| it.is_in_suspense)) {
                // An event to come may be about a row that another one has taken the key of, or
                // about a table that is to be emptied with others that refer to it.
                self.looked = batch.events;
                self.grows_by = batch.events;
                self.batch = batch;
                return Ok(());
            }
        }
        self.began = None;
        self.has_spilled = !batch.commits;
        (self.looked, self.grows_by) = (0, 0);
        let boundary = std::mem::take(&mut self.boundary);
        batch.upto = match batch.commits {
            true => boundary.changes,
            false => batch.log.changes().len(),
        };
        batch.end = self.position.mark(self.ordinal, &self.with.names);
        batch.reached = self.position.point();
        batch.committed = self.committed;
        batch.tables = self.with.router.tables();
        batch.additions = self.with.router.take_additions();
        let prepared = prepare(&batch.log, 0..batch.upto, &batch.tables);
        let made = prepared.map(|prepared| EventBatch { prepared, ..batch });
        // Before it is taken: the next one is not to be cut short meanwhile.
        self.with.watch.begin_batch();
        self.with
            .batches
            .send(made)
            .map_err(|_| Error::new(ErrorKind::Cancelled, "nobody takes batches any more"))
    }
}

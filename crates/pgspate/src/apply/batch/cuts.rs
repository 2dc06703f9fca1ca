//! Decides when and where a batch is cut.
//!
//! While the writer is busy, the next batch grows. When the writer is idle, it gets
//! the batch as soon as a source transaction has ended and the delay is over. A batch ends between
//! source transactions. A transaction larger than the limits spans batches, which share one target
//! transaction.

use std::time::Duration;

use super::{BatchBuilder, EventBatch, encode_folded_rows};
use crate::apply::options::{ApplyOptions, AtEnd};
use crate::{Error, ErrorKind, Result};
use pgspate_events::ChangeKind;
use pgspate_replication::SourcePosition;

/// How often to check for a request to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How many events may come between two checks of the delay.
const EVENTS_BETWEEN_CHECKS: u64 = 64;

/// The counts of a batch at the end of a source transaction.
#[derive(Debug, Default)]
pub(super) struct BatchBoundary {
    ordinal: u64,
    changes: usize,
    events: u64,
    bytes: u64,
    held_bytes: u64,
    left_out: u64,
    rejected: usize,
}

impl<P: SourcePosition> BatchBuilder<P> {
    /// Returns how long to wait for the next piece.
    pub(super) fn wait_limit(&self) -> Duration {
        match self.began_at {
            Some(began_at) if self.is_between_transactions() && !self.batch.is_empty() => {
                self.delay().saturating_sub(began_at.elapsed()).min(STOP_CHECK_INTERVAL)
            }
            _ => STOP_CHECK_INTERVAL,
        }
    }

    /// Returns how long a batch waits for more events.
    fn delay(&self) -> Duration {
        self.context.options.batch_delay.max(self.position.delay(&self.context.watch.lag))
    }

    /// Checks whether the batch has waited long enough.
    fn delay_is_over(&self) -> bool {
        self.began_at.is_some_and(|began_at| began_at.elapsed() >= self.delay())
    }

    /// Checks whether the batch is large enough, or has waited long enough, to be sent.
    pub(super) fn is_batch_due(&mut self) -> bool {
        let (rows, bytes) = (self.batch.events, self.batch.held_bytes);
        let ApplyOptions { batch_rows, batch_bytes, .. } = *self.context.options;
        if self.may_take_back_last {
            return false;
        }
        if !self.is_between_transactions() {
            let is_large = rows >= 2 * batch_rows || bytes >= 2 * batch_bytes;
            return is_large && rows >= self.events_at_check + self.events_before_recut;
        }
        // The rest of a transaction is sent at once, because the target's transaction is open.
        if rows >= batch_rows || bytes >= batch_bytes || self.has_spilled {
            return true;
        }
        if rows < self.events_at_check + EVENTS_BETWEEN_CHECKS
            || self.context.watch.writer_stays_busy()
        {
            return false;
        }
        self.events_at_check = rows;
        self.delay_is_over()
    }

    /// Sends the batch if it is large enough or has waited long enough.
    ///
    /// # Errors
    /// As [`BatchBuilder::send_batch`].
    pub(super) fn send_batch_if_due(&mut self) -> Result<()> {
        if self.is_batch_due() { self.send_batch() } else { Ok(()) }
    }

    /// Sends the batch if it has waited long enough, when no events arrive.
    pub(super) fn send_batch_if_delay_over(&mut self) -> Result<()> {
        if self.is_between_transactions() && (self.delay_is_over() || self.has_spilled) {
            self.send_batch()
        } else {
            Ok(())
        }
    }

    /// Notes the source's position after a record.
    pub(super) fn note_position(&mut self, event_place: P::EventPlace) {
        self.position.note_record(event_place);
        if self.is_between_transactions() {
            self.note_boundary();
        }
    }

    /// Notes the end of a source transaction, unless the next record may replace the last event.
    pub(super) fn note_boundary(&mut self) {
        if self.may_take_back_last {
            return;
        }
        self.position.note_transaction_end();
        self.batch.log.end_transaction();
        let batch = &self.batch;
        self.boundary = BatchBoundary {
            ordinal: self.ordinal,
            changes: batch.log.changes().len(),
            events: batch.events,
            bytes: batch.bytes,
            held_bytes: batch.held_bytes,
            left_out: batch.left_out,
            rejected: batch.rejected.len(),
        };
    }

    /// Ends the input. With `--at-end apply` an incomplete transaction is applied, otherwise it is
    /// an error.
    pub(super) fn end_input(&mut self) -> Result<()> {
        self.check_replayed_digest()?;
        if self.context.options.at_end == AtEnd::Apply && !self.is_between_transactions() {
            self.close_transaction();
            self.note_boundary();
        }
        self.check_replay_finished()?;
        if self.is_between_transactions() {
            return Ok(());
        }
        let message = "the input ends within a source transaction";
        Err(Error::new(ErrorKind::Format, message).hint(
            "The events of that transaction are not applied. Run the same command again when the \
             input is complete, or apply the incomplete transaction with `--at-end apply`.",
        ))
    }

    /// Sends the complete transactions before an error, and then the error. An error of kind
    /// [`ErrorKind::Cancelled`] is dropped: the writer has ended.
    pub(super) fn send_error(&mut self, error: Error) {
        if error.kind() == ErrorKind::Cancelled {
            return;
        }
        let (batch, boundary) = (&mut self.batch, &self.boundary);
        self.ordinal = boundary.ordinal;
        batch.events = boundary.events;
        (batch.bytes, batch.held_bytes) = (boundary.bytes, boundary.held_bytes);
        batch.left_out = boundary.left_out;
        batch.rejected.truncate(boundary.rejected);
        self.close_transaction();
        // A transaction that was sent in part is committed only if its end has come since.
        self.has_spilled &= self.boundary.ordinal > 0;
        if self.send_batch().is_ok() {
            let _ = self.context.batches.send(Err(error));
        }
    }

    /// Sends the batch to the writer.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when the writer has ended. The writer reports why.
    pub(super) fn send_batch(&mut self) -> Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.ends_transaction = self.is_between_transactions();
        if batch.ends_transaction {
            batch.partition_moves = self.position.partition_moves(batch.events > 0);
        }
        let ends = self.has_spilled && batch.ends_transaction;
        if batch.is_empty() && !ends {
            return Ok(());
        }
        if !batch.ends_transaction {
            let encoded_tables = encode_folded_rows(
                &batch.log,
                0..batch.log.changes().len(),
                &self.context.router.tables(),
            );
            let ends_with_truncate =
                batch.log.changes().last().is_some_and(|it| it.op == ChangeKind::Truncate);
            if ends_with_truncate
                || encoded_tables.is_ok_and(|all| all.iter().any(|it| it.needs_later_events))
            {
                // A later event may move the row whose key was taken, or truncate a table that
                // refers to the truncated table. So wait for more events.
                self.events_at_check = batch.events;
                self.events_before_recut = batch.events;
                self.batch = batch;
                return Ok(());
            }
        }
        self.began_at = None;
        self.has_spilled = !batch.ends_transaction;
        (self.events_at_check, self.events_before_recut) = (0, 0);
        let boundary = std::mem::take(&mut self.boundary);
        batch.complete_changes = match batch.ends_transaction {
            true => boundary.changes,
            false => batch.log.changes().len(),
        };
        batch.end_position = self.position.mark(self.ordinal, &self.context.names);
        batch.reached = self.position.point();
        batch.committed_at = self.committed_at;
        batch.tables = self.context.router.tables();
        batch.column_additions = self.context.router.take_column_additions();
        let encoded_tables =
            encode_folded_rows(&batch.log, 0..batch.complete_changes, &batch.tables);
        let encoded_batch =
            encoded_tables.map(|encoded_tables| EventBatch { encoded_tables, ..batch });
        // Count the batch before the writer takes it, so that the next batch is not cut early.
        self.context.watch.begin_batch();
        self.context
            .batches
            .send(encoded_batch)
            .map_err(|_| Error::new(ErrorKind::Cancelled, "the writer has ended"))
    }
}

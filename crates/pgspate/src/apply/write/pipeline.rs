//! Sends small batches before earlier ones are answered.
//!
//! A batch that one statement can write is sent, and kept until it is answered. All other batches
//! wait until nothing is in flight. If a statement fails, all statements behind it fail, since the
//! position has not advanced. Then the first batch is written as if it had come alone, which finds
//! the event at fault, and the others are sent again.

use std::collections::VecDeque;

use super::BatchWriter;
use super::altered_tables::has_altered_tables;
use super::one_statement::{self, BATCH_TASK, PendingAnswer};
use crate::apply::batch::EventBatch;
use crate::apply::watch::ApplyWatch;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::StreamPosition;
use pgspate_target::session::ReconnectBackoff;

/// The most statements that may be in flight. More would not keep the server busier.
const IN_FLIGHT_MAX: usize = 16;
/// Once there are as many, the writer waits until no more than these are left. So client and server
/// wake each other less often.
const IN_FLIGHT_LEFT: usize = 8;
/// The most bytes of batches in flight, counted as for `--batch-bytes`.
const IN_FLIGHT_BYTES_MAX: u64 = 16 << 20;
/// After a failure, as many batches are written one by one. The number doubles with each failure in
/// a row, up to two to this power.
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// The batches that were handed to the writer and are not reported as applied yet, in the order of
/// the stream.
#[derive(Default)]
pub(super) struct BatchPipeline {
    /// Batches that are applied, and not reported yet.
    applied: VecDeque<EventBatch>,
    /// Batches whose statements were sent.
    sent: VecDeque<SentBatch>,
    /// Batches to send, or to send again.
    waiting: VecDeque<EventBatch>,
    /// How many batches are still to be written one by one.
    pause: u32,
    /// The number of failures in a row.
    failures: u32,
}

/// A batch whose statement was sent.
struct SentBatch {
    batch: EventBatch,
    answer: PendingAnswer,
}

impl BatchWriter {
    /// Applies a batch, or sends it. Blocks.
    ///
    /// # Errors
    /// As [`BatchWriter::apply`], also for batches that were sent before.
    pub(crate) fn push(&mut self, batch: EventBatch, watch: &ApplyWatch) -> Result<()> {
        self.pipeline.waiting.push_back(batch);
        self.send_waiting(watch)
    }

    /// Waits until all batches are applied. Blocks.
    ///
    /// # Errors
    /// As [`BatchWriter::apply`].
    pub(crate) fn finish(&mut self, watch: &ApplyWatch) -> Result<()> {
        while self.has_batches_in_flight() {
            self.settle_first(watch)?;
            self.send_waiting(watch)?;
        }
        Ok(())
    }

    /// Takes the answers that have arrived. Does not wait for others.
    ///
    /// # Errors
    /// As [`BatchWriter::apply`].
    pub(crate) fn take_answers(&mut self, watch: &ApplyWatch) -> Result<()> {
        while let Some(first) = self.pipeline.sent.front_mut() {
            if !self.runtime.block_on(first.answer.has_arrived()) {
                break;
            }
            self.settle_first(watch)?;
            self.send_waiting(watch)?;
        }
        Ok(())
    }

    /// Checks whether batches are not applied for certain yet.
    pub(crate) fn has_batches_in_flight(&self) -> bool {
        !self.pipeline.sent.is_empty()
    }

    /// Returns the next batch that was applied, to be reported.
    pub(crate) fn take_applied(&mut self) -> Option<EventBatch> {
        self.pipeline.applied.pop_front()
    }

    /// Sends or applies all waiting batches.
    fn send_waiting(&mut self, watch: &ApplyWatch) -> Result<()> {
        let runtime = self.runtime.clone();
        while let Some(mut batch) = self.pipeline.waiting.pop_front() {
            // A statement that cannot be sent need not be explained: the other way is tried.
            if let Ok(Some(answer)) = runtime.block_on(self.try_to_send(&batch)) {
                self.pipeline.sent.push_back(SentBatch { batch, answer });
                if self.pipeline.sent.len() >= IN_FLIGHT_MAX {
                    while self.pipeline.sent.len() > IN_FLIGHT_LEFT {
                        self.settle_first(watch)?;
                    }
                }
            } else if self.has_batches_in_flight() {
                self.pipeline.waiting.push_front(batch);
                self.settle_first(watch)?;
            } else {
                self.apply(&mut batch, watch)?;
                watch.end_batch();
                self.pipeline.pause = self.pipeline.pause.saturating_sub(1);
                self.pipeline.applied.push_back(batch);
            }
        }
        Ok(())
    }

    /// Sends the batch as one statement. Returns `None` if the batch must be applied alone.
    async fn try_to_send(&mut self, batch: &EventBatch) -> Result<Option<PendingAnswer>> {
        let bytes: u64 = self.pipeline.sent.iter().map(|sent| sent.batch.held_bytes).sum();
        let is_alone = self.pipeline.pause > 0
            || self.uncommitted.spilled_batches > 0
            || bytes.saturating_add(batch.held_bytes) > IN_FLIGHT_BYTES_MAX
            || has_altered_tables(batch);
        let (false, Some(table), Some(session)) = (
            is_alone,
            one_statement::only_table(batch, self.settings.direct_rows),
            self.session.as_mut(),
        ) else {
            return Ok(None);
        };
        if session.in_transaction || !session.may_use_parameters {
            return Ok(None);
        }
        let from = self.pipeline.sent.back().map_or(&self.stream.mark, |it| &it.batch.end_position);
        one_statement::send(session, batch, table, &self.stream, from).await
    }

    /// Waits for the answer to the first statement in flight.
    fn settle_first(&mut self, watch: &ApplyWatch) -> Result<()> {
        let Some(mut first) = self.pipeline.sent.pop_front() else { return Ok(()) };
        self.runtime.block_on(first.answer.wait());
        let SentBatch { batch, answer } = first;
        match answer.take() {
            Some(Ok(counts)) => {
                self.pipeline.failures = 0;
                self.uncommitted.counts = counts;
                self.note_commit(&batch);
                watch.end_batch();
                self.pipeline.applied.push_back(batch);
                Ok(())
            }
            Some(Err(error)) => self.recover(batch, error, watch),
            None => Err(Error::new(ErrorKind::Bug, "an answer was taken before it arrived")),
        }
    }

    /// After a failed statement: takes back all batches in flight that are not applied.
    fn recover(
        &mut self,
        first: EventBatch,
        error: tokio_postgres::Error,
        watch: &ApplyWatch,
    ) -> Result<()> {
        let mut batches = VecDeque::from([first]);
        while let Some(mut sent) = self.pipeline.sent.pop_front() {
            self.runtime.block_on(sent.answer.wait());
            batches.push_back(sent.batch);
        }
        self.pipeline.pause = 1 << self.pipeline.failures.min(PAUSE_DOUBLINGS_MAX);
        self.pipeline.failures += 1;
        let Some(session) = &mut self.session else {
            return Err(Error::new(ErrorKind::Bug, "batches were sent without a session"));
        };
        session.forget_definition_marks();
        let error = session.connection.explain(format!("could not {BATCH_TASK}"), error);
        match error.kind() {
            ErrorKind::Server => {}
            ErrorKind::Connect => self.find_committed(&mut batches, watch)?,
            _ => return Err(error),
        }
        while let Some(batch) = batches.pop_back() {
            self.pipeline.waiting.push_front(batch);
        }
        Ok(())
    }

    /// After a lost session: opens another one, and removes the batches that were committed.
    fn find_committed(
        &mut self,
        batches: &mut VecDeque<EventBatch>,
        watch: &ApplyWatch,
    ) -> Result<()> {
        self.drop_session();
        let ends: Vec<StreamPosition> = batches.iter().map(|it| it.end_position.clone()).collect();
        let ends: Vec<&StreamPosition> = ends.iter().collect();
        let (runtime, mut backoff) =
            (self.runtime.clone(), ReconnectBackoff::new(self.settings.limits.retry_for));
        while let Err(error) = runtime.block_on(self.reopen_session(&ends)) {
            if !error.is_retryable() || !backoff.wait(|| watch.is_cancelled()) {
                return Err(error);
            }
        }
        let committed = ends.iter().rposition(|end| **end == self.stream.mark);
        for batch in batches.drain(..committed.map_or(0, |last| last + 1)) {
            self.uncommitted.may_lack_counts = true;
            self.note_commit(&batch);
            watch.end_batch();
            self.pipeline.applied.push_back(batch);
        }
        Ok(())
    }
}

//! Sends small batches before earlier ones are answered, and lets their commits wait for the disk
//! together.
//!
//! A batch that one statement can write is sent, and kept until its commit is on the disk. All
//! other batches wait until nothing is in flight. If a statement fails, all statements behind it
//! fail, since the position has not advanced. Then the first batch is written as if it had come
//! alone, which finds the event at fault, and the others are sent again.
//!
//! Rows and position are in one transaction, so a crash of the server loses both or none. Only
//! batches that a crash cannot lose any more are reported as applied. After a crash, the ledger's
//! position tells which of the others are sent again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::altered_tables::has_altered_tables;
use super::one_statement::{self, BATCH_TASK, CommitWait, PendingAnswer};
use super::{ApplyCounts, BatchWriter};
use crate::apply::batch::EventBatch;
use crate::apply::watch::ApplyWatch;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::StreamPosition;
use pgspate_target::session::ReconnectBackoff;
use tokio_postgres::error::SqlState;

/// The most statements that may be in flight. More would not keep the server busier.
const IN_FLIGHT_MAX: usize = 16;
/// Once there are as many, the writer waits until no more than these are left. So client and server
/// wake each other less often.
const IN_FLIGHT_LEFT: usize = 8;
/// How many commits in a row there are for each that waits for the disk.
const COMMITS_PER_WAIT: usize = 64;
/// A commit waits for the disk if the last one that did was sent so long ago.
const WAIT_INTERVAL: Duration = Duration::from_millis(100);
/// If no batch comes for so long, the writer waits for the disk.
const IDLE_TIME: Duration = Duration::from_millis(4);
/// The most bytes of batches that are kept, counted as for `--batch-bytes`.
const KEPT_BYTES_MAX: u64 = 16 << 20;
/// After a failure, as many batches are written one by one. The number doubles with each failure in
/// a row, up to two to this power.
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// The batches that the writer has, in the order of the stream.
pub(super) struct BatchPipeline {
    /// Batches that are on the disk, and not reported yet.
    applied: VecDeque<EventBatch>,
    /// Committed batches that a crash of the server may lose.
    committed: VecDeque<AnsweredBatch>,
    /// Batches whose statements were sent.
    sent: VecDeque<SentBatch>,
    /// Batches to send, or to send again.
    waiting: VecDeque<EventBatch>,
    /// When a batch came last.
    pushed_at: Instant,
    /// When a commit that waits for the disk was sent last.
    waited_at: Instant,
    /// How many batches are still to be written one by one.
    pause: u32,
    /// The number of failures in a row.
    failures: u32,
}

/// A batch whose statement was sent.
struct SentBatch {
    batch: EventBatch,
    answer: PendingAnswer,
    wait: CommitWait,
}

/// A batch whose statement was answered, or will not be answered any more.
struct AnsweredBatch {
    batch: EventBatch,
    /// What the batch did, if this part of the answer has arrived.
    counts: Option<ApplyCounts>,
}

impl Default for BatchPipeline {
    fn default() -> BatchPipeline {
        let now = Instant::now();
        BatchPipeline {
            applied: VecDeque::new(),
            committed: VecDeque::new(),
            sent: VecDeque::new(),
            waiting: VecDeque::new(),
            pushed_at: now,
            waited_at: now,
            pause: 0,
            failures: 0,
        }
    }
}

impl BatchPipeline {
    /// Returns the batches that are not applied for certain.
    fn kept(&self) -> impl DoubleEndedIterator<Item = &EventBatch> {
        let committed = self.committed.iter().map(|it| &it.batch);
        committed.chain(self.sent.iter().map(|it| &it.batch))
    }

    /// Lets the next batches be applied one by one.
    fn note_failure(&mut self) {
        self.pause = 1 << self.failures.min(PAUSE_DOUBLINGS_MAX);
        self.failures += 1;
    }

    /// Returns whether the commit of the next statement waits for the disk. A lone batch waits, so
    /// that nothing is left to do behind it.
    fn next_wait(&self) -> CommitWait {
        let kept = self.committed.len() + self.sent.len();
        let late = self.sent.iter().rev().take_while(|it| it.wait == CommitWait::None).count();
        let late = if late == self.sent.len() { kept } else { late };
        match kept == 0 || late + 1 >= COMMITS_PER_WAIT || self.waited_at.elapsed() >= WAIT_INTERVAL
        {
            true => CommitWait::Disk,
            false => CommitWait::None,
        }
    }
}

impl BatchWriter {
    /// Applies a batch, or sends it. Blocks.
    ///
    /// # Errors
    /// As [`BatchWriter::apply`], also for batches that were sent before.
    pub(crate) fn push(&mut self, batch: EventBatch, watch: &ApplyWatch) -> Result<()> {
        self.pipeline.pushed_at = Instant::now();
        self.pipeline.waiting.push_back(batch);
        self.send_waiting(watch)
    }

    /// Waits until all batches are applied. Blocks.
    ///
    /// # Errors
    /// As [`BatchWriter::apply`].
    pub(crate) fn finish(&mut self, watch: &ApplyWatch) -> Result<()> {
        while self.keeps_batches() {
            self.settle_next(watch)?;
            self.send_waiting(watch)?;
        }
        Ok(())
    }

    /// Takes the answers that have arrived. If none is left to come, and no batch has come for a
    /// while, waits for the disk.
    ///
    /// # Errors
    /// As [`BatchWriter::apply`].
    pub(crate) fn take_answers(&mut self, watch: &ApplyWatch) -> Result<()> {
        // A statement in flight may wait for a lock. More batches can be sent behind it.
        if self.pipeline.sent.is_empty() && self.pipeline.pushed_at.elapsed() >= IDLE_TIME {
            return self.finish(watch);
        }
        while let Some(first) = self.pipeline.sent.front() {
            if !first.answer.has_arrived() {
                break;
            }
            self.settle_next(watch)?;
            self.send_waiting(watch)?;
        }
        Ok(())
    }

    /// Checks whether there are batches that are not applied for certain.
    pub(crate) fn keeps_batches(&self) -> bool {
        self.pipeline.kept().next().is_some()
    }

    /// Returns the next batch that was applied, to be reported.
    pub(crate) fn take_applied(&mut self) -> Option<EventBatch> {
        self.pipeline.applied.pop_front()
    }

    /// Sends or applies all waiting batches.
    fn send_waiting(&mut self, watch: &ApplyWatch) -> Result<()> {
        let runtime = self.runtime.clone();
        while let Some(mut batch) = self.pipeline.waiting.pop_front() {
            let sent = match runtime.block_on(self.try_to_send(&batch)) {
                Ok(sent) => sent,
                Err(error) if error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    while self.keeps_batches() {
                        self.settle_next(watch)?;
                    }
                    return Err(runtime.block_on(self.name_lock_holder(&batch, error)));
                }
                Err(_) => {
                    // The error need not be reported: the batch is applied alone.
                    self.pipeline.note_failure();
                    None
                }
            };
            if let Some((answer, wait)) = sent {
                self.pipeline.sent.push_back(SentBatch { batch, answer, wait });
                if self.pipeline.sent.len() >= IN_FLIGHT_MAX {
                    while self.pipeline.sent.len() > IN_FLIGHT_LEFT {
                        self.settle_next(watch)?;
                    }
                }
            } else if self.keeps_batches() {
                self.pipeline.waiting.push_front(batch);
                self.settle_next(watch)?;
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
    async fn try_to_send(
        &mut self,
        batch: &EventBatch,
    ) -> Result<Option<(PendingAnswer, CommitWait)>> {
        let pipeline = &mut self.pipeline;
        let bytes: u64 = pipeline.kept().map(|it| it.held_bytes).sum();
        let is_alone = pipeline.pause > 0
            || self.uncommitted.spilled_batches > 0
            || bytes.saturating_add(batch.held_bytes) > KEPT_BYTES_MAX
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
        let wait = if session.may_commit_late { pipeline.next_wait() } else { CommitWait::Disk };
        let from = pipeline.kept().next_back().map_or(&self.stream.mark, |it| &it.end_position);
        let sent = one_statement::send(session, batch, table, (&self.stream, from), wait).await?;
        if wait == CommitWait::Disk && sent.is_some() {
            self.pipeline.waited_at = Instant::now();
        }
        Ok(sent.map(|answer| (answer, wait)))
    }

    /// Waits for the answer to the first statement in flight. If there is none, waits for the disk.
    fn settle_next(&mut self, watch: &ApplyWatch) -> Result<()> {
        let Some(SentBatch { batch, answer, wait }) = self.pipeline.sent.pop_front() else {
            return self.wait_for_disk(watch);
        };
        let (counts, end) = self.runtime.block_on(answer.wait());
        let batch = AnsweredBatch { batch, counts };
        if let Err(error) = end {
            return self.recover(batch, error, watch);
        }
        if batch.counts.is_none() {
            return Err(Error::new(ErrorKind::Bug, "a batch was answered without its counts"));
        }
        self.pipeline.failures = 0;
        watch.end_batch();
        self.pipeline.committed.push_back(batch);
        if wait == CommitWait::Disk {
            self.note_committed();
        }
        Ok(())
    }

    /// Waits until all committed batches are on the disk.
    fn wait_for_disk(&mut self, watch: &ApplyWatch) -> Result<()> {
        let Some(last) = self.pipeline.committed.back() else { return Ok(()) };
        let Some(session) = &self.session else { return self.find_committed(Vec::new(), watch) };
        let client = &session.connection.client;
        let waited = self.stream.wait_for_disk(client, &last.batch.end_position);
        match self.runtime.block_on(waited) {
            Ok(()) => {
                self.note_committed();
                Ok(())
            }
            Err(error) if error.is_retryable() => self.find_committed(Vec::new(), watch),
            Err(error) => Err(error),
        }
    }

    /// Counts the committed batches, which are on the disk.
    fn note_committed(&mut self) {
        while let Some(answered) = self.pipeline.committed.pop_front() {
            self.note_answered(answered);
        }
    }

    /// Counts a batch that is on the disk.
    fn note_answered(&mut self, AnsweredBatch { batch, counts }: AnsweredBatch) {
        self.uncommitted.may_lack_counts = counts.is_none();
        self.uncommitted.counts = counts.unwrap_or_default();
        self.note_commit(&batch);
        self.pipeline.applied.push_back(batch);
    }

    /// After a failed statement: takes back all batches in flight that are not committed.
    fn recover(
        &mut self,
        first: AnsweredBatch,
        error: tokio_postgres::Error,
        watch: &ApplyWatch,
    ) -> Result<()> {
        let is_locked = error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        let has_timed_out = is_locked || error.code() == Some(&SqlState::QUERY_CANCELED);
        let mut answered = vec![first];
        while let Some(SentBatch { batch, answer, .. }) = self.pipeline.sent.pop_front() {
            // The statements behind one that has waited in vain would each wait as long.
            let counts = match has_timed_out {
                true => None,
                false => self.runtime.block_on(answer.wait()).0,
            };
            answered.push(AnsweredBatch { batch, counts });
        }
        self.pipeline.note_failure();
        let Some(session) = &mut self.session else {
            return Err(Error::new(ErrorKind::Bug, "batches were sent without a session"));
        };
        for facts in answered[0].batch.written_tables() {
            session.forget_batch_statements(facts);
        }
        let error = session.connection.explain(format!("could not {BATCH_TASK}"), error);
        match error.kind() {
            ErrorKind::Server if is_locked => {
                self.find_committed(answered, watch)?;
                Err(match self.pipeline.waiting.front() {
                    Some(first) => self.runtime.block_on(self.name_lock_holder(first, error)),
                    None => error,
                })
            }
            ErrorKind::Server if has_timed_out => self.find_committed(answered, watch),
            ErrorKind::Server => {
                self.send_again(answered);
                Ok(())
            }
            ErrorKind::Connect => self.find_committed(answered, watch),
            _ => Err(error),
        }
    }

    /// Puts batches before those that are waiting.
    fn send_again(&mut self, batches: Vec<AnsweredBatch>) {
        for AnsweredBatch { batch, .. } in batches.into_iter().rev() {
            self.pipeline.waiting.push_front(batch);
        }
    }

    /// After a lost session: opens another one, and sends the batches again that are not committed.
    /// `unknown` are the batches after those that were committed.
    fn find_committed(&mut self, unknown: Vec<AnsweredBatch>, watch: &ApplyWatch) -> Result<()> {
        self.drop_session();
        let done = self.pipeline.committed.len();
        let mut batches: Vec<AnsweredBatch> = self.pipeline.committed.drain(..).collect();
        batches.extend(unknown);
        let ends: Vec<StreamPosition> =
            batches.iter().map(|it| it.batch.end_position.clone()).collect();
        let ends: Vec<&StreamPosition> = ends.iter().collect();
        let (runtime, mut backoff) =
            (self.runtime.clone(), ReconnectBackoff::new(self.settings.limits.retry_for));
        while let Err(error) = runtime.block_on(self.reopen_session(&ends)) {
            if !error.is_retryable() || !backoff.wait(|| watch.is_cancelled()) {
                return Err(error);
            }
        }
        // The server waited for the disk when it raised the fence.
        let reached = ends.iter().rposition(|end| **end == self.stream.mark);
        let reached = reached.map_or(0, |last| last + 1);
        for (nth, answered) in batches.drain(..reached).enumerate() {
            if nth >= done {
                watch.end_batch();
            }
            self.note_answered(answered);
        }
        watch.reopen_batches(done.saturating_sub(reached) as u64);
        self.send_again(batches);
        Ok(())
    }
}

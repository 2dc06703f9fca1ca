//! The batches that were sent and are not yet known to be durable.
//!
//! A batch is sent by a single statement (`single_statement.rs`) without waiting for the answer to
//! the one before. While answers are outstanding, commits do not wait for the disk. The last batch,
//! or a flush after it, waits. WAL is one sequence, so the batches before are durable, too. A batch
//! is kept until then: a crash of the server may undo it, and the ledger tells whether it did.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;

use futures_util::future::{MaybeDone, maybe_done};

use super::session::WriterSession;
use super::single_statement::{self, BatchAnswer, SingleAnswer, definition_numbers};
use super::{BatchWriter, altered_tables, direct};
use crate::apply::batch::EventBatch;
use crate::apply::watch::ApplyWatch;
use crate::apply::write::ApplyCounts;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::DefinitionCheck;
use pgspate_target::session::ReconnectBackoff;

/// The most batches without an answer. The server needs the next ones while it writes one.
const UNANSWERED_MAX: usize = 16;
/// The most bytes of input in batches without an answer, unless there is only one.
const UNANSWERED_BYTES_MAX: u64 = 4 << 20;
/// After this many batches, a commit waits for the disk.
const UNFLUSHED_MAX: usize = 64;
/// After this many bytes of input, a commit waits for the disk.
const UNFLUSHED_BYTES_MAX: u64 = 8 << 20;
/// The most batches during which definitions are compared, after another transaction ran.
const COMPARED_MAX: u32 = 64;
/// After so many batches without another transaction, the next one does not count as a repetition.
const CALM_MIN: u32 = 1024;

/// A batch that was sent.
struct SentBatch {
    batch: EventBatch,
    check: DefinitionCheck,
    /// Whether its commit waits for the disk.
    is_flushed: bool,
    state: SentState,
}

/// What is known of a sent batch.
enum SentState {
    Waiting(MaybeDone<SingleAnswer>),
    /// The batch is committed, but may not be durable.
    Committed(ApplyCounts),
    /// The batch is not committed, or its answer was lost, perhaps after its counts.
    Unknown(Option<ApplyCounts>),
}

/// The batches that were sent, and the batches to send again.
#[derive(Default)]
pub(super) struct BatchWindow {
    sent: VecDeque<SentBatch>,
    /// How many of them, from the first on, are committed.
    committed: usize,
    /// Batches that were not written, each with whether it must be written by a transaction of
    /// several statements.
    unwritten: VecDeque<(EventBatch, bool)>,
    /// Durable batches that [`BatchWriter::take_durable`] has not returned yet.
    durable: Vec<EventBatch>,
    /// The numbers of the definitions that the session has checked.
    checked: HashSet<u32>,
    /// For how many batches definitions are compared, whatever was checked.
    compares_for: u32,
    /// How often another transaction ran meanwhile, with fewer than [`CALM_MIN`] batches between.
    disturbances: u32,
    /// How many batches were written since without comparing definitions.
    calm: u32,
}

impl BatchWindow {
    fn unanswered(&self) -> impl Iterator<Item = &SentBatch> {
        self.sent.iter().skip(self.committed)
    }

    /// Returns whether a batch of `bytes` bytes must wait for an answer.
    fn is_full(&self, bytes: u64) -> bool {
        let waiting = self.sent.len() - self.committed;
        let waiting_bytes: u64 = self.unanswered().map(|it| it.batch.held_bytes).sum();
        waiting >= UNANSWERED_MAX || waiting > 0 && waiting_bytes + bytes > UNANSWERED_BYTES_MAX
    }

    /// Returns whether the commit of the next batch need not wait for the disk.
    fn may_commit_later(&self, bytes: u64) -> bool {
        let after_flush = self.sent.iter().rev().take_while(|it| !it.is_flushed);
        let (count, held) =
            after_flush.fold((0, bytes), |(n, held), it| (n + 1, held + it.batch.held_bytes));
        self.sent.len() > self.committed && count < UNFLUSHED_MAX && held <= UNFLUSHED_BYTES_MAX
    }

    /// Chooses how the next batch makes sure that its tables were not altered.
    fn choose_check(&self, batch: &EventBatch) -> DefinitionCheck {
        let is_known = definition_numbers(batch).all(|number| self.checked.contains(&number));
        match is_known && self.compares_for == 0 {
            true => DefinitionCheck::NothingElseRan,
            false => DefinitionCheck::Compare,
        }
    }

    /// Adds a batch that was sent.
    fn add(&mut self, sent: SentBatch) {
        self.compares_for = self.compares_for.saturating_sub(1);
        self.checked.extend(definition_numbers(&sent.batch));
        self.sent.push_back(sent);
    }

    /// Notes that a batch was not written, because another transaction ran.
    fn note_disturbance(&mut self) {
        self.checked.clear();
        self.compares_for = (1 << self.disturbances.min(16)).min(COMPARED_MAX);
        self.disturbances += 1;
        self.calm = 0;
    }

    /// Notes that a batch was written without comparing definitions.
    fn note_calm(&mut self) {
        self.calm = self.calm.saturating_add(1);
        if self.calm == CALM_MIN {
            self.disturbances = 0;
        }
    }

    /// Moves the batches that are not committed back, to be written again. `needs_transaction` is
    /// for the first of them.
    fn take_back_uncommitted(&mut self, needs_transaction: bool) {
        let uncommitted = self.sent.split_off(self.committed);
        for (at, sent) in uncommitted.into_iter().enumerate().rev() {
            self.unwritten.push_front((sent.batch, at == 0 && needs_transaction));
        }
    }
}

impl BatchWriter {
    /// Returns whether a batch was sent that is not yet durable.
    pub(crate) fn has_sent_batches(&self) -> bool {
        !self.window.sent.is_empty()
    }

    /// Takes the batches that have become durable, in their order.
    pub(crate) fn take_durable(&mut self) -> Vec<EventBatch> {
        std::mem::take(&mut self.window.durable)
    }

    /// Writes a batch, or sends it without waiting for the answer. Blocks.
    ///
    /// # Errors
    /// Those of [`BatchWriter::apply`], also for earlier batches.
    pub(crate) fn write(&mut self, batch: EventBatch, watch: &ApplyWatch) -> Result<()> {
        self.window.unwritten.push_back((batch, false));
        self.write_unwritten(watch)
    }

    /// Waits for the next answer, but not longer than until the builder sends another batch than
    /// the first `received`. If all answers have arrived, makes the batches durable. Blocks.
    ///
    /// # Errors
    /// Those of [`BatchWriter::write`].
    pub(crate) fn wait_for_answer(&mut self, watch: &ApplyWatch, received: u64) -> Result<()> {
        let runtime = self.runtime.clone();
        let at = self.window.committed;
        let Some(SentState::Waiting(answer)) = self.window.sent.get_mut(at).map(|it| &mut it.state)
        else {
            self.settle_sent(watch)?;
            return self.write_unwritten(watch);
        };
        let answered = runtime.block_on(async {
            tokio::select! {
                biased;
                () = watch.wait_for_batch(received) => None,
                answered = finish(answer) => Some(answered),
            }
        });
        match answered {
            Some(answered) => {
                self.note_answer(answered, watch)?;
                self.write_unwritten(watch)
            }
            None => Ok(()),
        }
    }

    /// Writes all batches, and makes them durable.
    pub(crate) fn finish(&mut self, watch: &ApplyWatch) -> Result<()> {
        while self.has_sent_batches() {
            self.settle_sent(watch)?;
            self.write_unwritten(watch)?;
        }
        Ok(())
    }

    /// Writes or sends the batches that are not written.
    fn write_unwritten(&mut self, watch: &ApplyWatch) -> Result<()> {
        while let Some((mut batch, mut needs_transaction)) = self.window.unwritten.pop_front() {
            if !needs_transaction && self.may_send(&batch) {
                if self.window.is_full(batch.held_bytes) {
                    self.window.unwritten.push_front((batch, false));
                    self.take_answer(watch)?;
                    continue;
                }
                match self.send(batch) {
                    Ok(()) => continue,
                    Err(unsent) => (batch, needs_transaction) = *unsent,
                }
            }
            if !self.window.sent.is_empty() {
                self.window.unwritten.push_front((batch, needs_transaction));
                self.settle_sent(watch)?;
                continue;
            }
            self.window.checked.clear();
            self.apply(&mut batch, watch)?;
            self.add_durable(batch, watch);
        }
        Ok(())
    }

    /// Checks whether a single statement can write the batch.
    fn may_send(&self, batch: &EventBatch) -> bool {
        self.session.as_ref().is_some_and(WriterSession::may_use_single_statements)
            && self.uncommitted.spilled_batches == 0
            && batch.end_position.ordinal > self.last_sent_ordinal()
            && direct::can_write_directly(batch, self.settings.direct_rows)
            && single_statement::may_share_statement(batch)
            && !altered_tables::has_altered_tables(batch)
    }

    /// Returns the number of events before the end of the last batch that was sent.
    fn last_sent_ordinal(&self) -> u64 {
        self.window.sent.back().map_or(self.mark().ordinal, |it| it.batch.end_position.ordinal)
    }

    /// Sends a batch. If that is not possible, gives the batch back, and tells whether it needs a
    /// transaction. If not, it can be sent once nothing else is sent.
    fn send(&mut self, batch: EventBatch) -> Result<(), Box<(EventBatch, bool)>> {
        let check = self.window.choose_check(&batch);
        let sql = single_statement::single_statement_sql(&batch, check);
        let from = self.last_sent_ordinal();
        let Some(session) = &mut self.session else { return Err(Box::new((batch, true))) };
        // While a statement is prepared, no answer is taken.
        if !session.has_prepared(&sql) && self.window.unanswered().next().is_some() {
            return Err(Box::new((batch, false)));
        }
        let commits_later =
            session.may_commit_later && self.window.may_commit_later(batch.held_bytes);
        let stream_move = self.stream.move_to(from, &batch.end_position);
        let answer = self.runtime.block_on(async {
            session.use_single_statements(true).await?;
            let statement = session.prepare(&sql, single_statement::TASK).await?;
            let how = (check, stream_move, commits_later);
            let mut answer = maybe_done(single_statement::send(session, statement, &batch, how)?);
            // The first poll sends the message.
            direct::poll_once(Pin::new(&mut answer)).await;
            Ok::<_, Error>(answer)
        });
        match answer {
            Ok(answer) => {
                let state = SentState::Waiting(answer);
                self.window.add(SentBatch { batch, check, is_flushed: !commits_later, state });
                Ok(())
            }
            Err(error) => {
                // A transaction finds out why.
                session.may_share_statements &= error.kind() != ErrorKind::Server;
                Err(Box::new((batch, true)))
            }
        }
    }

    /// Waits for the next answer.
    fn take_answer(&mut self, watch: &ApplyWatch) -> Result<()> {
        let at = self.window.committed;
        let Some(SentState::Waiting(answer)) = self.window.sent.get_mut(at).map(|it| &mut it.state)
        else {
            return Ok(());
        };
        let answered = self.runtime.clone().block_on(finish(answer));
        self.note_answer(answered, watch)
    }

    /// Waits for all answers, and makes the batches durable. Writes the batches that were not
    /// written.
    fn settle_sent(&mut self, watch: &ApplyWatch) -> Result<()> {
        while self.window.unanswered().next().is_some() {
            self.take_answer(watch)?;
        }
        if self.window.committed > 0 {
            match self.flush() {
                Ok(()) => self.note_durable(watch),
                Err(error) => self.recover_sent(error, watch)?,
            }
        }
        Ok(())
    }

    /// Notes the answer to the first batch without one.
    fn note_answer(&mut self, answer: BatchAnswer, watch: &ApplyWatch) -> Result<()> {
        let Some(sent) = self.window.sent.get_mut(self.window.committed) else { return Ok(()) };
        let BatchAnswer { counts, outcome } = answer;
        let counts = match (outcome, counts) {
            (Ok(()), Some(counts)) => counts,
            (outcome, counts) => {
                sent.state = SentState::Unknown(counts);
                return self.give_up_unanswered(outcome.err(), watch);
            }
        };
        sent.state = SentState::Committed(counts);
        let is_flushed = sent.is_flushed;
        if sent.check == DefinitionCheck::NothingElseRan {
            self.window.note_calm();
        }
        self.window.committed += 1;
        if is_flushed {
            self.note_durable(watch);
        }
        Ok(())
    }

    /// The first batch without an answer was not written, so none after it was. Takes them back.
    /// `refusal`: why the server refused the first of them, if it did.
    fn give_up_unanswered(&mut self, refusal: Option<Error>, watch: &ApplyWatch) -> Result<()> {
        let at = self.window.committed;
        let was_compared =
            self.window.sent.get(at).is_some_and(|it| it.check == DefinitionCheck::Compare);
        let needs_transaction = refusal.is_some() || was_compared;
        if !needs_transaction {
            self.window.note_disturbance();
        }
        let lost = refusal.filter(|error| error.kind() == ErrorKind::Connect);
        match self.drain_answers().or(lost) {
            Some(error) => self.recover_sent(error, watch),
            None => {
                self.window.take_back_uncommitted(needs_transaction);
                Ok(())
            }
        }
    }

    /// Waits for the answers to all batches, without using them. Returns the error if the session
    /// was lost.
    fn drain_answers(&mut self) -> Option<Error> {
        let mut lost = None;
        for sent in self.window.sent.iter_mut().skip(self.window.committed) {
            let SentState::Waiting(answer) = &mut sent.state else { continue };
            let BatchAnswer { counts, outcome } = self.runtime.block_on(finish(answer));
            sent.state = SentState::Unknown(counts);
            lost = lost.or(outcome.err().filter(|error| error.kind() == ErrorKind::Connect));
        }
        lost
    }

    /// Makes the committed batches durable.
    fn flush(&self) -> Result<()> {
        let Some(session) = &self.session else {
            return Err(Error::new(ErrorKind::Bug, "there is no session to flush commits in"));
        };
        self.runtime.block_on(self.stream.flush(&session.connection.client))
    }

    /// Counts the committed batches, which are durable now.
    fn note_durable(&mut self, watch: &ApplyWatch) {
        for sent in self.window.sent.drain(..self.window.committed).collect::<Vec<_>>() {
            self.note_sent_commit(sent, watch);
        }
        self.window.committed = 0;
    }

    fn add_durable(&mut self, batch: EventBatch, watch: &ApplyWatch) {
        watch.end_batch();
        self.window.durable.push(batch);
    }

    /// Counts a batch that is committed and durable.
    fn note_sent_commit(&mut self, sent: SentBatch, watch: &ApplyWatch) {
        let has_rows = sent.batch.encoded_tables.iter().any(|it| it.deletes + it.upserts > 0);
        (self.uncommitted.counts, self.uncommitted.may_lack_counts) = match sent.state {
            SentState::Committed(counts) | SentState::Unknown(Some(counts)) => (counts, false),
            SentState::Waiting(_) | SentState::Unknown(None) => (ApplyCounts::default(), has_rows),
        };
        self.note_commit(&sent.batch);
        self.add_durable(sent.batch, watch);
    }

    /// Opens another session, and asks the ledger which of the batches are committed. Takes the
    /// others back. All answers have arrived or are lost.
    fn recover_sent(&mut self, mut error: Error, watch: &ApplyWatch) -> Result<()> {
        let runtime = self.runtime.clone();
        self.window.checked.clear();
        let mut backoff = ReconnectBackoff::new(self.settings.limits.retry_for);
        let positions: Vec<_> =
            self.window.sent.iter().map(|it| it.batch.end_position.clone()).collect();
        let positions: Vec<_> = positions.iter().collect();
        loop {
            if self.session.is_some() {
                runtime.block_on(self.pin_search_path());
                error = runtime.block_on(self.explain_stream_error(error));
                self.drop_session();
            }
            if !error.is_retryable() || !backoff.wait(|| watch.is_cancelled()) {
                return Err(error);
            }
            match runtime.block_on(self.reopen_session(&positions)) {
                Ok(()) => break,
                Err(next) => error = next,
            }
        }
        // The stream was opened again by a commit that waited for the disk. So all commits before
        // are durable.
        let reached = self.mark().ordinal;
        let is_committed = |it: &&SentBatch| it.batch.end_position.ordinal <= reached;
        self.window.committed = self.window.sent.iter().take_while(is_committed).count();
        self.note_durable(watch);
        // The first of the others is written by a transaction, which repeats a lost connection.
        self.window.take_back_uncommitted(true);
        Ok(())
    }
}

/// Waits for the answer to a batch.
async fn finish(answer: &mut MaybeDone<SingleAnswer>) -> BatchAnswer {
    (&mut *answer).await;
    let bug = || Error::new(ErrorKind::Bug, "an answer was taken twice");
    let taken = Pin::new(answer).take_output();
    taken.unwrap_or_else(|| BatchAnswer { counts: None, outcome: Err(bug()) })
}

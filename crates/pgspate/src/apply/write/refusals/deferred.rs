//! Finds the events that violate deferred constraints. The server does not say which events these
//! are.
//!
//! An event is set aside if the batch passes without it and fails with it. A source without known
//! transactions may send a row before the row that it needs. So a violation in a part of the batch
//! may vanish with later events.

use std::ops::Range;

use super::{
    EventRefusal, RangeChecks, RefusalSearch, RoundOptions, check_deferred, is_row_refusal,
    nearest_cut, round,
};
use crate::apply::batch::encode_folded_rows;
use crate::apply::write::ApplyCounts;
use crate::apply::write::session::WriterSession;
use crate::{Error, Result};
use pgspate_target::ledger::DeadLetter;

/// The longest source transaction that is searched. Each of its events is left out in turn, and all
/// others are written again each time.
const TRANSACTION_EVENTS_MAX: usize = 100;

/// How often the events of a batch may be written again in this search.
const BATCH_TRIES_MAX: u32 = 10_000;

/// How many events may be left out at first, even if fewer may be set aside in the end.
const LEFT_OUT_MAX: u64 = 1000;

/// Positions of the events that are left out, and their dead letters.
pub(super) type LeftOutEvents = Vec<(usize, DeadLetter)>;

impl RefusalSearch<'_> {
    /// Writes the batch without the events that violate deferred constraints. The whole batch
    /// failed with `refused`. At most `dead_letters_left` events may be set aside.
    pub(super) async fn find_deferred_refusals(
        &mut self,
        session: &mut WriterSession,
        refused: Error,
        dead_letters_left: u64,
    ) -> Result<ApplyCounts> {
        let mut left_out = LeftOutEvents::new();
        self.restart_transaction(session, dead_letters_left).await?;
        let mut counts = self.write_by_transactions(session, &mut left_out).await?;
        if left_out.len() > 1 {
            // Try to keep the last events first: earlier events may fail only without them.
            for nth in (0..left_out.len()).rev() {
                let event = left_out.remove(nth);
                if self.passes_without(session, &left_out, dead_letters_left).await?.is_some() {
                    continue;
                }
                left_out.insert(nth, event);
                if (self.batch.rejected.len() + left_out.len() - nth) as u64 > dead_letters_left {
                    return Err(self.refused_event_error(left_out[nth].0, refused));
                }
            }
            let Some(passed) = self.passes_without(session, &left_out, dead_letters_left).await?
            else {
                return Err(self.unknown_event_error(0..self.batch.complete_changes, refused));
            };
            counts = passed;
        } else if check_deferred(session).await?.is_some() {
            return Err(self.unknown_event_error(0..self.batch.complete_changes, refused));
        }
        let all = (self.dead_letters.len() + left_out.len()) as u64;
        if let Some((at, _)) = left_out.last().filter(|_| all > dead_letters_left) {
            return Err(self.refused_event_error(*at, refused));
        }
        self.dead_letters_left = dead_letters_left.saturating_sub(all);
        self.dead_letters.extend(left_out.into_iter().map(|(_, letter)| letter));
        self.dead_letters.sort_by_key(|letter| letter.position);
        Ok(counts)
    }

    /// Writes the batch without the events in `left_out`. Returns `None` if the server still
    /// refuses the batch, or if there were too many tries.
    async fn passes_without(
        &mut self,
        session: &mut WriterSession,
        left_out: &LeftOutEvents,
        dead_letters_left: u64,
    ) -> Result<Option<ApplyCounts>> {
        if !self.count_try()? {
            return Ok(None);
        }
        let left_out: Vec<usize> = left_out.iter().map(|(at, _)| *at).collect();
        self.restart_transaction(session, dead_letters_left).await?;
        let mut ranges = ranges_without(0..self.batch.complete_changes, &left_out);
        ranges.reverse();
        let cuts = self.find_cuts()?;
        match self.write_by_halves(session, ranges, None, &cuts).await {
            Ok(counts) => Ok(check_deferred(session).await?.is_none().then_some(counts)),
            Err(error) if is_row_refusal(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Counts a try. Returns false if there were too many.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when the run is to stop.
    fn count_try(&mut self) -> Result<bool> {
        self.check_stop()?;
        self.tries += 1;
        Ok(self.tries <= BATCH_TRIES_MAX)
    }

    fn check_stop(&self) -> Result<()> {
        self.watch.stop.check()
    }

    /// Restarts the transaction. The limit of dead letters is applied at the end of the search.
    async fn restart_transaction(
        &mut self,
        session: &mut WriterSession,
        dead_letters_left: u64,
    ) -> Result<()> {
        session.roll_back().await?;
        session.begin().await?;
        self.add_columns(session).await?;
        self.dead_letters.clone_from(&self.batch.rejected);
        self.dead_letters_left = dead_letters_left.max(LEFT_OUT_MAX);
        Ok(())
    }

    /// Writes all events, and checks deferred constraints at the end of each source transaction.
    /// Leaves out the events that violate them.
    async fn write_by_transactions(
        &mut self,
        session: &mut WriterSession,
        left_out: &mut LeftOutEvents,
    ) -> Result<ApplyCounts> {
        let cuts = self.find_cuts()?;
        let boundaries: Vec<usize> =
            cuts.iter().copied().filter(|at| self.is_boundary(*at)).collect();
        let mut counts = ApplyCounts::default();
        let mut ranges = Vec::from([(0, self.batch.complete_changes)]);
        while let Some((start, end)) = ranges.pop() {
            self.check_stop()?;
            let checks = RangeChecks { deferred: true, actions: false };
            let written = self.write_range(session, start..end, &mut counts, checks).await?;
            let Some(refused) = written else { continue };
            if let Some(middle) = nearest_cut(&boundaries, start, end) {
                ranges.push((middle, end));
                ranges.push((start, middle));
                continue;
            }
            counts.add(
                &self
                    .write_refused_transaction(session, start..end, &cuts, refused, left_out)
                    .await?,
            );
        }
        Ok(counts)
    }

    /// Writes one refused transaction. First leaves out the events that the server refuses at once.
    /// If deferred constraints still fail, leaves out further events.
    async fn write_refused_transaction(
        &mut self,
        session: &mut WriterSession,
        range: Range<usize>,
        cuts: &[usize],
        refused: EventRefusal,
        left_out: &mut LeftOutEvents,
    ) -> Result<ApplyCounts> {
        let EventRefusal { error, is_deferred } = refused;
        if is_deferred {
            return self.find_left_out(session, range, &[], cuts, error, left_out).await;
        }
        let dead_letters = self.dead_letters.len();
        session.set_savepoint().await?;
        let ranges = Vec::from([(range.start, range.end)]);
        let counts = self.write_by_halves(session, ranges, Some(error), cuts).await?;
        let Some(error) = check_deferred(session).await? else {
            session.release_savepoint().await?;
            return Ok(counts);
        };
        session.roll_back_to_savepoint().await?;
        let changes = self.batch.log.changes();
        let place = |letter: &DeadLetter| {
            changes.binary_search_by_key(&letter.position, |change| change.ordinal).ok()
        };
        let without: Vec<usize> =
            self.dead_letters[dead_letters..].iter().filter_map(place).collect();
        self.find_left_out(session, range, &without, cuts, error, left_out).await
    }

    /// Writes a source transaction without the events in `without`. Also leaves out the first event
    /// without which the server accepts the transaction. If leaving out one event is not enough,
    /// leaves out a minimal set of events.
    async fn find_left_out(
        &mut self,
        session: &mut WriterSession,
        range: Range<usize>,
        without: &[usize],
        cuts: &[usize],
        refused: Error,
        left_out: &mut LeftOutEvents,
    ) -> Result<ApplyCounts> {
        let may_cut =
            |at: usize| [range.start, range.end].contains(&at) || cuts.binary_search(&at).is_ok();
        if self.dead_letters_left == 0 || range.len() > TRANSACTION_EVENTS_MAX {
            return Err(self.unknown_event_error(range, refused));
        }
        let may_be_left_out = |at: &usize| may_cut(*at) && may_cut(at + 1) && !without.contains(at);
        let candidates: Vec<usize> = range.clone().filter(may_be_left_out).collect();
        for at in &candidates {
            let places = merge_places(without, &[*at]);
            if let Some(written) = self.try_without(session, &range, &places).await? {
                self.dead_letters_left -= 1;
                left_out.push((*at, self.dead_letter(*at, &refused)));
                return Ok(written);
            }
        }
        let places = self.minimize_left_out(session, &range, without, candidates).await?;
        let written = self.try_without(session, &range, &merge_places(without, &places)).await?;
        let Some(written) = written.filter(|_| places.len() as u64 <= self.dead_letters_left)
        else {
            return Err(self.unknown_event_error(range, refused));
        };
        self.dead_letters_left -= places.len() as u64;
        for at in places {
            left_out.push((at, self.dead_letter(at, &refused)));
        }
        Ok(written)
    }

    /// Shrinks `left_out`: keeps each event with which the server still accepts the transaction,
    /// until no further event can be kept.
    async fn minimize_left_out(
        &mut self,
        session: &mut WriterSession,
        range: &Range<usize>,
        without: &[usize],
        mut left_out: Vec<usize>,
    ) -> Result<Vec<usize>> {
        loop {
            let before = left_out.len();
            for at in left_out.clone() {
                let fewer: Vec<usize> = left_out.iter().copied().filter(|it| *it != at).collect();
                session.set_savepoint().await?;
                let written =
                    self.try_without(session, range, &merge_places(without, &fewer)).await?;
                session.roll_back_to_savepoint().await?;
                if written.is_some() {
                    left_out = fewer;
                }
            }
            if left_out.len() == before {
                return Ok(left_out);
            }
        }
    }

    /// Writes a transaction without some events. Returns `None` if the rest is refused, or if there
    /// were too many tries.
    async fn try_without(
        &mut self,
        session: &mut WriterSession,
        range: &Range<usize>,
        left_out: &[usize],
    ) -> Result<Option<ApplyCounts>> {
        if !self.count_try()? {
            return Ok(None);
        }
        session.set_savepoint().await?;
        match self.write_without(session, range, left_out).await {
            Ok(counts) => {
                session.release_savepoint().await?;
                Ok(Some(counts))
            }
            Err(error) if is_row_refusal(&error) => {
                session.roll_back_to_savepoint().await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the error if the event at fault could not be found.
    fn unknown_event_error(&self, range: Range<usize>, error: Error) -> Error {
        let change = &self.batch.log.changes()[range.start];
        let table = &self.batch.tables[change.table].table.sql_name;
        let message = format!(
            "could not apply the {} events that begin with the {} of {table}",
            range.len(),
            change.op.name()
        );
        Error::new(error.kind(), message)
            .at(self.inputs.place(change.event_place))
            .hint(
                "A deferred constraint refuses them, and the event at fault could not be found. \
                 Nothing of their batch is applied. Correct the event at fault.",
            )
            .because(error)
    }

    /// Writes a range without some events, and checks deferred constraints.
    async fn write_without(
        &self,
        session: &mut WriterSession,
        range: &Range<usize>,
        left_out: &[usize],
    ) -> Result<ApplyCounts> {
        let batch = self.batch;
        let mut counts = ApplyCounts::default();
        for (start, end) in ranges_without(range.clone(), left_out) {
            let encoded = encode_folded_rows(&batch.log, start..end, &batch.tables)?;
            let how = RoundOptions { reinserts: true, checks_actions: false };
            let written =
                round::write_tables(session, &batch.tables, &encoded, how, self.watch).await?;
            session.clear_stages().await?;
            counts.add(&written);
        }
        match check_deferred(session).await? {
            Some(error) => Err(error),
            None => Ok(counts),
        }
    }
}

/// Merges two lists of positions, sorted.
fn merge_places(one: &[usize], other: &[usize]) -> Vec<usize> {
    let mut both = [one, other].concat();
    both.sort_unstable();
    both
}

/// Returns the parts of a range without the sorted positions.
fn ranges_without(range: Range<usize>, without: &[usize]) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let mut start = range.start;
    for at in without.iter().copied().chain([range.end]) {
        if start < at {
            parts.push((start, at));
        }
        start = at + 1;
    }
    parts
}

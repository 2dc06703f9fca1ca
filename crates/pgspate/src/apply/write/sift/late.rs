//! Events that are refused only when deferred constraints are checked: the server does not say
//! which.
//!
//! One is set aside if the others pass without it, and do not with it. A source whose transactions
//! are not known may say first what is right only with an event to come, so that what a part of the
//! events lacks is not yet what all of them lack.

use std::ops::Range;

use super::{EventRefusal, BatchSift, check, is_of_data, middle, round, verb};
use crate::apply::batch::prepare;
use crate::apply::write::ApplyCounts;
use crate::apply::write::session::WriterSession;
use crate::{Error, Result};
use pgspate_target::ledger::DeadLetter;

/// Events of one transaction of which each is left out in turn, at most: all others are written
/// for each of them.
const TRIES_MAX: usize = 100;

/// So often the events of a batch are written again, at most.
const TRIES_OF_BATCH_MAX: u32 = 10_000;

/// Events that are left out at first, if no more than that may be set aside in the end.
const LATE_MAX: u64 = 1000;

/// Events that are left out for others to pass, and what becomes of them.
pub(super) type LateEvents = Vec<(usize, DeadLetter)>;

impl BatchSift<'_> {
    /// Writes what passes without the events that deferred constraints refuse, after all of them
    /// were `refused`. So many may be set aside.
    pub(super) async fn find_late(
        &mut self,
        session: &mut WriterSession,
        refused: Error,
        room: u64,
    ) -> Result<ApplyCounts> {
        let mut late = LateEvents::new();
        self.start_over(session, room).await?;
        let mut counts = self.by_transactions(session, &mut late).await?;
        if late.len() > 1 {
            // Those at the end first: what they are may be what others lack.
            for nth in (0..late.len()).rev() {
                let left_out = late.remove(nth);
                if self.passes(session, &late, room).await?.is_some() {
                    continue;
                }
                late.insert(nth, left_out);
                if (self.batch.rejected.len() + late.len() - nth) as u64 > room {
                    return Err(self.refuse(late[nth].0, refused));
                }
            }
            let Some(passed) = self.passes(session, &late, room).await? else {
                return Err(self.refuse_whole(0..self.batch.upto, refused));
            };
            counts = passed;
        } else if check(session).await?.is_some() {
            return Err(self.refuse_whole(0..self.batch.upto, refused));
        }
        let all = (self.letters.len() + late.len()) as u64;
        if let Some((at, _)) = late.last().filter(|_| all > room) {
            return Err(self.refuse(*at, refused));
        }
        self.room = room.saturating_sub(all);
        self.letters.extend(late.into_iter().map(|(_, letter)| letter));
        self.letters.sort_by_key(|letter| letter.position);
        Ok(counts)
    }

    /// Writes all others, if nothing is refused then but what is refused at once.
    async fn passes(
        &mut self,
        session: &mut WriterSession,
        left_out: &LateEvents,
        room: u64,
    ) -> Result<Option<ApplyCounts>> {
        if !self.may_try()? {
            return Ok(None);
        }
        let left_out: Vec<usize> = left_out.iter().map(|(at, _)| *at).collect();
        self.start_over(session, room).await?;
        let mut ranges = parts(0..self.batch.upto, &left_out);
        ranges.reverse();
        let cuts = self.cuts()?;
        match self.by_halves(session, ranges, None, &cuts).await {
            Ok(counts) => Ok(check(session).await?.is_none().then_some(counts)),
            Err(error) if is_of_data(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether events may be written once more to see whether they pass.
    ///
    /// # Errors
    /// Of [`ErrorKind::Cancelled`] when the run is to stop.
    fn may_try(&mut self) -> Result<bool> {
        self.heed_stop()?;
        self.tries += 1;
        Ok(self.tries <= TRIES_OF_BATCH_MAX)
    }

    fn heed_stop(&self) -> Result<()> {
        self.watch.stop.check()
    }

    /// Begins anew. What is set aside is counted when it is known what that is.
    async fn start_over(&mut self, session: &mut WriterSession, room: u64) -> Result<()> {
        session.roll_back().await?;
        session.begin().await?;
        self.add_columns(session).await?;
        self.letters.clone_from(&self.batch.rejected);
        self.room = room.max(LATE_MAX);
        Ok(())
    }

    /// Writes all events, and has deferred constraints checked where transactions end. What is
    /// refused there is left out.
    async fn by_transactions(&mut self, session: &mut WriterSession, late: &mut LateEvents) -> Result<ApplyCounts> {
        let cuts = self.cuts()?;
        let wholes: Vec<usize> = cuts.iter().copied().filter(|at| self.is_boundary(*at)).collect();
        let mut counts = ApplyCounts::default();
        let mut ranges = Vec::from([(0, self.batch.upto)]);
        while let Some((start, end)) = ranges.pop() {
            self.heed_stop()?;
            let Some(refused) = self.some(session, start..end, &mut counts, true).await? else {
                continue;
            };
            if let Some(middle) = middle(&wholes, start, end) {
                ranges.push((middle, end));
                ranges.push((start, middle));
                continue;
            }
            counts.add(&self.transaction(session, start..end, &cuts, refused, late).await?);
        }
        Ok(counts)
    }

    /// Writes one transaction that was refused: without what is refused at once, and if that does
    /// not pass either, without what passes then.
    async fn transaction(
        &mut self,
        session: &mut WriterSession,
        range: Range<usize>,
        cuts: &[usize],
        refused: EventRefusal,
        late: &mut LateEvents,
    ) -> Result<ApplyCounts> {
        let EventRefusal { error, is_late } = refused;
        if is_late {
            return self.leave_out(session, range, &[], cuts, error, late).await;
        }
        let letters = self.letters.len();
        session.set_savepoint().await?;
        let ranges = Vec::from([(range.start, range.end)]);
        let counts = self.by_halves(session, ranges, Some(error), cuts).await?;
        let Some(error) = check(session).await? else {
            session.release().await?;
            return Ok(counts);
        };
        session.go_back().await?;
        let changes = self.batch.log.changes();
        let place = |letter: &DeadLetter| {
            changes.binary_search_by_key(&letter.position, |change| change.ordinal).ok()
        };
        let without: Vec<usize> = self.letters[letters..].iter().filter_map(place).collect();
        self.leave_out(session, range, &without, cuts, error, late).await
    }

    /// Writes a transaction `without` the events that were refused at once, and without the first
    /// other one that it passes without; or, if there is none, without all that it does not pass
    /// with.
    async fn leave_out(
        &mut self,
        session: &mut WriterSession,
        range: Range<usize>,
        without: &[usize],
        cuts: &[usize],
        refused: Error,
        late: &mut LateEvents,
    ) -> Result<ApplyCounts> {
        let may_cut =
            |at: usize| [range.start, range.end].contains(&at) || cuts.binary_search(&at).is_ok();
        if self.room == 0 || range.len() > TRIES_MAX {
            return Err(self.refuse_whole(range, refused));
        }
        let may_go = |at: &usize| may_cut(*at) && may_cut(at + 1) && !without.contains(at);
        let candidates: Vec<usize> = range.clone().filter(may_go).collect();
        for at in &candidates {
            let left_out = both(without, &[*at]);
            if let Some(written) = self.rest(session, &range, &left_out).await? {
                self.room -= 1;
                late.push((*at, self.letter(*at, &refused)));
                return Ok(written);
            }
        }
        let left_out = self.least(session, &range, without, candidates).await?;
        let written = self.rest(session, &range, &both(without, &left_out)).await?;
        let Some(written) = written.filter(|_| left_out.len() as u64 <= self.room) else {
            return Err(self.refuse_whole(range, refused));
        };
        self.room -= left_out.len() as u64;
        for at in left_out {
            late.push((at, self.letter(at, &refused)));
        }
        Ok(written)
    }

    /// Takes those back of the events that are `left_out` with which a transaction passes, until
    /// there are none.
    async fn least(
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
                let written = self.rest(session, range, &both(without, &fewer)).await?;
                session.go_back().await?;
                if written.is_some() {
                    left_out = fewer;
                }
            }
            if left_out.len() == before {
                return Ok(left_out);
            }
        }
    }

    /// Writes a transaction but for some events, if that passes.
    async fn rest(
        &mut self,
        session: &mut WriterSession,
        range: &Range<usize>,
        left_out: &[usize],
    ) -> Result<Option<ApplyCounts>> {
        if !self.may_try()? {
            return Ok(None);
        }
        session.set_savepoint().await?;
        match self.write_rest(session, range, left_out).await {
            Ok(counts) => {
                session.release().await?;
                Ok(Some(counts))
            }
            Err(error) if is_of_data(&error) => {
                session.go_back().await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The error for events of which it cannot be told which are refused.
    fn refuse_whole(&self, range: Range<usize>, error: Error) -> Error {
        let change = &self.batch.log.changes()[range.start];
        let table = &self.batch.tables[change.table].table.sql_name;
        let message = format!(
            "could not apply the {} events that begin with the {} of {table}",
            range.len(),
            verb(change.op)
        );
        Error::new(error.kind(), message)
            .at(self.inputs.place(change.event_place))
            .hint(
                "A deferred constraint refuses them, and which of them are to be set aside cannot \
                 be told: nothing of their batch is applied. Mend the one that is refused.",
            )
            .because(error)
    }

    /// Writes events but some, and has what is deferred checked.
    async fn write_rest(
        &self,
        session: &mut WriterSession,
        range: &Range<usize>,
        left_out: &[usize],
    ) -> Result<ApplyCounts> {
        let batch = self.batch;
        let mut counts = ApplyCounts::default();
        for (start, end) in parts(range.clone(), left_out) {
            let prepared = prepare(&batch.log, start..end, &batch.tables)?;
            let written = round::write(session, &batch.tables, &prepared, true, self.watch).await?;
            session.clear_stages().await?;
            counts.add(&written);
        }
        match check(session).await? {
            Some(error) => Err(error),
            None => Ok(counts),
        }
    }
}

/// Places of two lists, in their order.
fn both(one: &[usize], other: &[usize]) -> Vec<usize> {
    let mut both = [one, other].concat();
    both.sort_unstable();
    both
}

/// What is left of a range without some places, which are in their order.
fn parts(range: Range<usize>, without: &[usize]) -> Vec<(usize, usize)> {
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

//! Events that are refused only when deferred constraints are checked: the server does not say
//! which.
//!
//! One is set aside if the others pass without it, and do not with it. A source whose transactions
//! are not known may say first what is right only with an event to come, so that what a part of the
//! events lacks is not yet what all of them lack.

use std::ops::Range;

use super::{Sifting, check, is_of_data, round};
use crate::apply::prepare::prepare;
use crate::apply::report::Counts;
use crate::apply::write::session::Session;
use crate::ledger::DeadLetter;
use crate::{Error, Result};

/// Events of one transaction of which each is left out in turn, at most: all others are written
/// for each of them.
const TRIES_MAX: usize = 100;

/// Events that are left out for others to pass, and what becomes of them.
pub(super) type Late = Vec<(usize, DeadLetter)>;

impl Sifting<'_> {
    /// Writes what passes without the events that deferred constraints refuse, after all of them
    /// were `refused`. So many may be set aside.
    pub(super) async fn find_late(
        &mut self,
        session: &mut Session,
        refused: Error,
        room: u64,
    ) -> Result<Counts> {
        if room <= self.batch.rejected.len() as u64 {
            return Err(refused);
        }
        let mut late = Late::new();
        let found = self.again(session, &[], Some(&mut late), room).await;
        let mut counts = match found {
            Ok(counts) => counts,
            // More than may be set aside, or than can be told apart.
            Err(error) if is_of_data(&error) => return Err(refused),
            Err(error) => return Err(error),
        };
        if late.len() > 1 {
            for nth in (0..late.len()).rev() {
                let left_out = late.remove(nth);
                if self.passes(session, &late, room).await?.is_none() {
                    late.insert(nth, left_out);
                }
            }
            let Some(passed) = self.passes(session, &late, room).await? else {
                return Err(refused);
            };
            counts = passed;
        } else if check(session).await?.is_some() {
            return Err(refused);
        }
        self.room = self.room.min(room.saturating_sub((self.letters.len() + late.len()) as u64));
        self.letters.extend(late.into_iter().map(|(_, letter)| letter));
        self.letters.sort_by_key(|letter| letter.position);
        Ok(counts)
    }

    /// Writes all others, if nothing is refused then.
    async fn passes(
        &mut self,
        session: &mut Session,
        left_out: &Late,
        room: u64,
    ) -> Result<Option<Counts>> {
        let left_out: Vec<usize> = left_out.iter().map(|(at, _)| *at).collect();
        match self.again(session, &left_out, None, room).await {
            Ok(counts) => Ok(check(session).await?.is_none().then_some(counts)),
            Err(error) if is_of_data(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Begins anew, and writes all but these events, as [`Sifting::by_halves`] does.
    async fn again(
        &mut self,
        session: &mut Session,
        left_out: &[usize],
        late: Option<&mut Late>,
        room: u64,
    ) -> Result<Counts> {
        session.roll_back().await?;
        session.begin().await?;
        self.add_columns(session).await?;
        self.letters.clone_from(&self.batch.rejected);
        self.room = room.saturating_sub((self.letters.len() + left_out.len()) as u64);
        let mut ranges = Vec::new();
        let mut start = 0;
        for at in left_out.iter().copied().chain([self.batch.upto]) {
            if start < at {
                ranges.push((start, at));
            }
            start = at + 1;
        }
        ranges.reverse();
        self.by_halves(session, ranges, None, late).await
    }

    /// Writes a transaction without the first event that it passes without, which is set aside.
    pub(super) async fn leave_out(
        &mut self,
        session: &mut Session,
        range: Range<usize>,
        cuts: &[usize],
        refused: Error,
        late: &mut Late,
        counts: &mut Counts,
    ) -> Result<()> {
        let may_cut =
            |at: usize| [range.start, range.end].contains(&at) || cuts.binary_search(&at).is_ok();
        if self.room == 0 || range.len() > TRIES_MAX {
            return Err(self.refuse(range.start, refused));
        }
        for at in range.clone().filter(|at| may_cut(*at) && may_cut(at + 1)) {
            session.set_savepoint().await?;
            let written = match self.without(session, range.clone(), at).await {
                Err(error) if is_of_data(&error) => {
                    session.go_back().await?;
                    continue;
                }
                written => written?,
            };
            session.release().await?;
            counts.add(&written);
            self.room -= 1;
            late.push((at, self.letter(at, &refused)));
            return Ok(());
        }
        Err(self.refuse(range.start, refused))
    }

    /// Writes events but one, and has what is deferred checked.
    async fn without(
        &self,
        session: &mut Session,
        range: Range<usize>,
        at: usize,
    ) -> Result<Counts> {
        let batch = self.batch;
        let mut counts = Counts::default();
        for part in [range.start..at, at + 1..range.end] {
            if part.is_empty() {
                continue;
            }
            let prepared = prepare(&batch.log, part, &batch.tables)?;
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

//! A batch in the open transaction; and where the server refuses it, its events but for those that
//! are refused.
//!
//! Events are looked at by halves, each under a savepoint and in their order, until one alone is
//! refused. So also what only works one after the other is applied: values that move between rows
//! of a unique index, rows that change what they refer to while that goes. A row that is refused
//! under another key, as others still refer to it, is given that key where it is. What is refused
//! only when deferred constraints are checked is looked for after that.

mod late;

use std::ops::Range;

use tokio_postgres::error::SqlState;

use super::session::WriterSession;
use super::{is_of_data, round};
use crate::apply::batch::{EventBatch, EncodedTable, no_event, prepare};
use crate::apply::watch::ApplyWatch;
use crate::apply::write::ApplyCounts;
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_events::ChangeKind;
use pgspate_events::decode::own_format;
use pgspate_events::fold;
use pgspate_replication::SourceNames;
use pgspate_target::ledger::DeadLetter;

/// A batch that is written.
pub(super) struct BatchSift<'a> {
    pub(super) batch: &'a EventBatch,
    pub(super) inputs: &'a SourceNames,
    /// So many events more may be set aside.
    pub(super) room: u64,
    /// Those that are.
    pub(super) letters: Vec<DeadLetter>,
    pub(super) watch: &'a ApplyWatch,
    /// How often events were written to find those that the commit would refuse.
    pub(super) tries: u32,
}

/// What the server refuses, and whether it does so only when it checks what is deferred.
struct EventRefusal {
    error: Error,
    is_late: bool,
}

impl BatchSift<'_> {
    /// Writes the batch into a transaction, an open one or a new one, and leaves that open.
    pub(super) async fn write(&mut self, session: &mut WriterSession, is_open: bool) -> Result<ApplyCounts> {
        let (rejected, room) = (self.batch.rejected.len() as u64, self.room);
        if let Some(first) = self.batch.rejected.get(usize::try_from(room).unwrap_or(usize::MAX)) {
            let place = InputPlace {
                source: Some(first.source.clone()),
                line: Some(first.line).filter(|line| *line > 0),
                ..InputPlace::default()
            };
            return Err(no_event(Error::new(ErrorKind::Format, first.message.clone()).at(place)));
        }
        self.letters.clone_from(&self.batch.rejected);
        self.room -= rejected;
        if !is_open && self.batch.additions.is_empty() {
            // Made outside of the transaction, they outlive it.
            for prepared in &self.batch.prepared {
                session.stage(&self.batch.tables[prepared.table]).await?;
            }
        }
        let EventBatch { tables, prepared, upto, .. } = self.batch;
        let mut frees = false;
        loop {
            session.begin().await?;
            self.add_columns(session).await?;
            if is_open {
                session.set_savepoint().await?;
            }
            let error = match round::write(session, tables, prepared, frees, self.watch).await {
                Ok(counts) if is_open => {
                    session.release().await?;
                    return Ok(counts);
                }
                Ok(counts) => return self.end(session, counts, room).await,
                Err(error) => error,
            };
            if !is_of_data(&error) || *upto == 0 {
                return Err(error);
            }
            match is_open {
                true => session.go_back().await?,
                false => session.roll_back().await?,
            }
            let may_free = prepared.iter().any(|it| tables[it.table].may_free());
            if frees || !may_free || error.sqlstate() != Some(&SqlState::UNIQUE_VIOLATION) {
                session.begin().await?;
                self.add_columns(session).await?;
                let (all, cuts) = (Vec::from([(0, *upto)]), self.cuts()?);
                let counts = self.by_halves(session, all, Some(error), &cuts).await?;
                return match is_open {
                    true => Ok(counts),
                    false => self.end(session, counts, room).await,
                };
            }
            // Values may have moved between rows that stay.
            frees = true;
        }
    }

    async fn add_columns(&self, session: &WriterSession) -> Result<()> {
        for addition in &self.batch.additions {
            session.run(addition, "add a column").await?;
        }
        Ok(())
    }

    /// All is written but for the position: whether it may be committed so.
    async fn end(&mut self, session: &mut WriterSession, counts: ApplyCounts, room: u64) -> Result<ApplyCounts> {
        match self.batch.commits {
            true => match check(session).await? {
                None => Ok(counts),
                Some(refused) => self.find_late(session, refused, room).await,
            },
            false => Ok(counts),
        }
    }

    /// Where the batch may be cut.
    fn cuts(&self) -> Result<Vec<usize>> {
        let keyings: Vec<_> = self.batch.tables.iter().map(|facts| &facts.keying).collect();
        fold::cuts(&self.batch.log, 0..self.batch.upto, &keyings)
    }

    /// Writes ranges of events, the last one first; the first of them is `known` to be refused.
    /// Deferred constraints are not checked.
    async fn by_halves(
        &mut self,
        session: &mut WriterSession,
        mut ranges: Vec<(usize, usize)>,
        mut known: Option<Error>,
        cuts: &[usize],
    ) -> Result<ApplyCounts> {
        let mut counts = ApplyCounts::default();
        while let Some((start, end)) = ranges.pop() {
            // One event alone has not been tried in every way.
            let error = match known.take().filter(|_| end - start > 1) {
                Some(error) => error,
                None => match self.some(session, start..end, &mut counts, false).await? {
                    None => continue,
                    Some(refused) => refused.error,
                },
            };
            if let Some(middle) = middle(cuts, start, end) {
                ranges.push((middle, end));
                ranges.push((start, middle));
                continue;
            }
            if end - start > 1 {
                let hint = format!(
                    "Keys change hands in this and the {} events after it, so that none of them is \
                     set aside alone. Mend the one that is refused.",
                    end - start - 1
                );
                return Err(self.refuse(start, error).hint(hint));
            }
            if self.room == 0 {
                return Err(self.refuse(start, error));
            }
            self.room -= 1;
            self.letters.push(self.letter(start, &error));
        }
        Ok(counts)
    }

    /// Whether no transaction of the source is open before an event.
    fn is_boundary(&self, at: usize) -> bool {
        let before = at.checked_sub(1).and_then(|before| self.batch.log.changes().get(before));
        at == self.batch.upto || before.is_none_or(|change| change.ends)
    }

    /// Writes some events. What is refused of them leaves nothing behind. `checks`: also by
    /// deferred constraints, if these are whole transactions.
    async fn some(
        &self,
        session: &mut WriterSession,
        range: Range<usize>,
        counts: &mut ApplyCounts,
        checks: bool,
    ) -> Result<Option<EventRefusal>> {
        let batch = self.batch;
        let checks = checks && self.is_boundary(range.start) && self.is_boundary(range.end);
        let prepared = prepare(&batch.log, range, &batch.tables)?;
        session.set_savepoint().await?;
        let written = match round::write(session, &batch.tables, &prepared, true, self.watch).await
        {
            Ok(written) => written,
            Err(error) if is_of_data(&error) => {
                session.go_back().await?;
                if !self.move_row(session, &prepared).await? {
                    return Ok(Some(EventRefusal { error, is_late: false }));
                }
                ApplyCounts { updated: 1, ..ApplyCounts::default() }
            }
            Err(error) => return Err(error),
        };
        if checks && let Some(error) = check(session).await? {
            session.go_back().await?;
            return Ok(Some(EventRefusal { error, is_late: true }));
        }
        session.release().await?;
        session.clear_stages().await?;
        counts.add(&written);
        Ok(None)
    }

    /// Gives the row of one event that was refused its new key in place, so that its unique values
    /// stay its own and foreign keys do what they did in the source: rows that follow it by
    /// `on update cascade` refer to the old key until events to come say otherwise. The savepoint
    /// is set then. False, and nothing done, where that is not what the event asks for or does not
    /// work either.
    async fn move_row(&self, session: &mut WriterSession, prepared: &[EncodedTable]) -> Result<bool> {
        let [prepared] = prepared else { return Ok(false) };
        let has_key = self.batch.tables[prepared.table].has_key();
        if has_key && !prepared.has_left || (prepared.goes, prepared.comes) != (1, 1) {
            return Ok(false);
        }
        // A deferrable key would let it share the key of another row, to be lost with that.
        if prepared.has_takes || prepared.has_clash {
            return Ok(false);
        }
        session.set_savepoint().await?;
        match round::move_row(session, &self.batch.tables[prepared.table], prepared).await {
            Ok(true) => return Ok(true),
            Err(error) if !is_of_data(&error) => return Err(error),
            Ok(false) | Err(_) => session.go_back().await?,
        }
        Ok(false)
    }

    fn refuse(&self, at: usize, error: Error) -> Error {
        let change = &self.batch.log.changes()[at];
        let table = &self.batch.tables[change.table].table.sql_name;
        let place = self.inputs.place(change.event_place);
        let kind = error.kind();
        let own = error.hint_text().map_or_else(String::new, |hint| format!("{hint} "));
        Error::new(kind, format!("could not apply the {} of {table}", verb(change.op)))
            .at(place)
            .hint(format!(
                "{own}Nothing of its batch is applied. With `--max-dead-letters N` up to N such \
                 events are set aside in pgspate.dead_letter, and the others applied."
            ))
            .because(error)
    }

    fn letter(&self, at: usize, error: &Error) -> DeadLetter {
        let change = &self.batch.log.changes()[at];
        let facts = &self.batch.tables[change.table];
        let InputPlace { source, line, .. } = self.inputs.place(change.event_place);
        let table = (facts.table.schema.as_str(), facts.table.name.as_str());
        let columns = facts.columns.iter().map(|column| column.name.as_str());
        DeadLetter {
            position: change.ordinal,
            source: source.unwrap_or_default(),
            line: line.unwrap_or_default(),
            table: Some(facts.table.sql_name.clone()),
            sqlstate: error.sqlstate().map(|code| code.code().to_owned()),
            message: error.messages().join(": "),
            payload: own_format::write(&self.batch.log, change, table, columns),
        }
    }
}

/// Has what is deferred checked, which stays deferred. What is refused of it.
async fn check(session: &WriterSession) -> Result<Option<Error>> {
    let sql = "set constraints all immediate; set constraints all deferred";
    match session.run(sql, "check deferred constraints").await {
        Err(error) if is_of_data(&error) => Ok(Some(error)),
        done => done.map(|()| None),
    }
}

/// The place nearest to the middle of a range where it may be cut.
fn middle(cuts: &[usize], start: usize, end: usize) -> Option<usize> {
    let middle = start.midpoint(end);
    let at = cuts.partition_point(|cut| *cut < middle);
    let (before, after) = (at.checked_sub(1).map(|at| cuts[at]), cuts.get(at).copied());
    let within = |cut: &usize| start < *cut && *cut < end;
    let near = [before, after].into_iter().flatten().filter(within);
    near.min_by_key(|cut| cut.abs_diff(middle))
}

fn verb(op: ChangeKind) -> &'static str {
    op.name()
}

#[cfg(test)]
mod tests;

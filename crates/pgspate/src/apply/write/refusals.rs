//! Writes a batch in the open transaction, and finds the events that the server refuses.
//!
//! A refused batch is halved again and again, under savepoints and in the order of events, until
//! one event alone is refused. This also applies events that work only one after the other.
//! Examples: unique values that move between rows, and rows that change their reference before the
//! referenced row is deleted. If a row cannot take a new key because other rows refer to it, its
//! key is updated in place. `deferred.rs` finds events that only deferred constraints refuse.

mod deferred;

use std::ops::Range;

use tokio_postgres::error::SqlState;

use super::round::RoundOptions;
use super::session::WriterSession;
use super::{is_row_refusal, round};
use crate::apply::batch::{
    EncodedTable, EventBatch, encode_folded_rows, too_many_dead_letters_hint, with_dead_letter_hint,
};
use crate::apply::watch::ApplyWatch;
use crate::apply::write::ApplyCounts;
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_events::decode::own_format;
use pgspate_events::fold;
use pgspate_replication::SourceNames;
use pgspate_target::ledger::DeadLetter;

/// The writing of a batch and the search for its refused events.
pub(super) struct RefusalSearch<'a> {
    pub(super) batch: &'a EventBatch,
    pub(super) inputs: &'a SourceNames,
    /// How many events the run may set aside.
    pub(super) dead_letters_max: u64,
    /// How many more events may be set aside.
    pub(super) dead_letters_left: u64,
    /// The events set aside so far.
    pub(super) dead_letters: Vec<DeadLetter>,
    pub(super) watch: &'a ApplyWatch,
    /// How often events were written again in the search of `deferred.rs`.
    pub(super) tries: u32,
}

/// What is checked when a range of events is written.
#[derive(Debug, Clone, Copy)]
struct RangeChecks {
    /// Deferred constraints.
    deferred: bool,
    /// Whether the actions of foreign keys may follow the wrong rows.
    actions: bool,
}

/// The server's error for some events, and whether deferred constraints raised it.
struct EventRefusal {
    error: Error,
    is_deferred: bool,
}

impl RefusalSearch<'_> {
    /// Writes the batch into the open transaction or a new one. Leaves the transaction open.
    pub(super) async fn write_batch(
        &mut self,
        session: &mut WriterSession,
        is_open: bool,
    ) -> Result<ApplyCounts> {
        let dead_letters_left = self.dead_letters_left;
        self.set_aside_rejected()?;
        if !is_open && self.batch.column_additions.is_empty() {
            // Stages created outside of the transaction survive its rollback.
            for encoded in &self.batch.encoded_tables {
                session.ensure_stage(&self.batch.tables[encoded.table]).await?;
            }
        }
        let EventBatch { tables, encoded_tables, complete_changes, .. } = self.batch;
        let mut reinserts = false;
        loop {
            session.begin().await?;
            self.add_columns(session).await?;
            if is_open {
                session.set_savepoint().await?;
            }
            let how = RoundOptions { reinserts, checks_actions: true };
            let error =
                match round::write_tables(session, tables, encoded_tables, how, self.watch).await {
                    Ok(counts) if is_open => {
                        session.release_savepoint().await?;
                        return Ok(counts);
                    }
                    Ok(counts) => {
                        return self.check_before_commit(session, counts, dead_letters_left).await;
                    }
                    Err(error) => error,
                };
            if !is_row_refusal(&error) || *complete_changes == 0 {
                return Err(error);
            }
            match is_open {
                true => session.roll_back_to_savepoint().await?,
                false => session.roll_back().await?,
            }
            let may_reinsert = encoded_tables.iter().any(|it| tables[it.table].may_reinsert());
            if reinserts || !may_reinsert || error.sqlstate() != Some(&SqlState::UNIQUE_VIOLATION) {
                session.begin().await?;
                self.add_columns(session).await?;
                let (all, cuts) = (Vec::from([(0, *complete_changes)]), self.find_cuts()?);
                let counts = self.write_by_halves(session, all, Some(error), &cuts).await?;
                return match is_open {
                    true => Ok(counts),
                    false => self.check_before_commit(session, counts, dead_letters_left).await,
                };
            }
            // Unique values may have moved between rows that stay.
            reinserts = true;
        }
    }

    /// Sets aside the records that could not be decoded or routed.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if that is more than the run may set aside.
    fn set_aside_rejected(&mut self) -> Result<()> {
        let rejected = &self.batch.rejected;
        let left = usize::try_from(self.dead_letters_left).unwrap_or(usize::MAX);
        if let Some(first) = rejected.get(left) {
            let place = InputPlace {
                source: Some(first.source.clone()),
                line: Some(first.line).filter(|line| *line > 0),
                ..InputPlace::default()
            };
            return Err(with_dead_letter_hint(
                Error::new(ErrorKind::Format, first.message.clone()).at(place),
                self.dead_letters_max,
            ));
        }
        self.dead_letters.clone_from(rejected);
        self.dead_letters_left -= rejected.len() as u64;
        Ok(())
    }

    /// Runs the statements that add unknown columns.
    async fn add_columns(&self, session: &WriterSession) -> Result<()> {
        for addition in &self.batch.column_additions {
            session.run(addition, "add a column").await.map_err(hint_pending_checks)?;
        }
        Ok(())
    }

    /// Checks deferred constraints of a batch that is written, if the batch commits.
    async fn check_before_commit(
        &mut self,
        session: &mut WriterSession,
        counts: ApplyCounts,
        dead_letters_left: u64,
    ) -> Result<ApplyCounts> {
        match self.batch.ends_transaction {
            true => match check_deferred(session).await? {
                None => Ok(counts),
                Some(refused) => {
                    self.find_deferred_refusals(session, refused, dead_letters_left).await
                }
            },
            false => Ok(counts),
        }
    }

    /// Returns the places where the batch may be cut.
    fn find_cuts(&self) -> Result<Vec<usize>> {
        let fold_keys: Vec<_> = self.batch.tables.iter().map(|facts| &facts.fold_key).collect();
        fold::find_cuts(&self.batch.log, 0..self.batch.complete_changes, &fold_keys)
    }

    /// Writes ranges of events, the last range first. `known` is the error of that range if it was
    /// tried already. Deferred constraints are not checked.
    async fn write_by_halves(
        &mut self,
        session: &mut WriterSession,
        mut ranges: Vec<(usize, usize)>,
        mut known: Option<Error>,
        cuts: &[usize],
    ) -> Result<ApplyCounts> {
        let mut counts = ApplyCounts::default();
        while let Some((start, end)) = ranges.pop() {
            // A single event is always tried, because ranges and single events are written in
            // different ways.
            let error = match known.take().filter(|_| end - start > 1) {
                Some(error) => error,
                None => {
                    let checks = RangeChecks { deferred: false, actions: true };
                    match self.write_range(session, start..end, &mut counts, checks).await? {
                        None => continue,
                        Some(refused) => refused.error,
                    }
                }
            };
            if let Some(middle) = nearest_cut(cuts, start, end) {
                ranges.push((middle, end));
                ranges.push((start, middle));
                continue;
            }
            if end - start > 1 {
                // These events cannot be written one by one, so no action can follow each of them.
                let checks = RangeChecks { deferred: false, actions: false };
                let written = self.write_range(session, start..end, &mut counts, checks).await?;
                let Some(EventRefusal { error, .. }) = written else { continue };
                let hint = format!(
                    "This event and the {} events after it exchange keys, so none of them can be \
                     set aside alone. Correct the event that the server refuses.",
                    end - start - 1
                );
                return Err(self.refused_event_error(start, error).hint(hint));
            }
            if self.dead_letters_left == 0 {
                return Err(self.refused_event_error(start, error));
            }
            self.dead_letters_left -= 1;
            self.dead_letters.push(self.dead_letter(start, &error));
        }
        Ok(counts)
    }

    /// Checks whether the event at `at` begins a source transaction.
    fn is_boundary(&self, at: usize) -> bool {
        let before = at.checked_sub(1).and_then(|before| self.batch.log.changes().get(before));
        at == self.batch.complete_changes || before.is_none_or(|change| change.ends_transaction)
    }

    /// Writes a range of events. A refused range leaves nothing behind. Deferred constraints are
    /// checked only if the range consists of whole source transactions.
    async fn write_range(
        &self,
        session: &mut WriterSession,
        range: Range<usize>,
        counts: &mut ApplyCounts,
        checks: RangeChecks,
    ) -> Result<Option<EventRefusal>> {
        let batch = self.batch;
        let is_whole = self.is_boundary(range.start) && self.is_boundary(range.end);
        let encoded = encode_folded_rows(&batch.log, range, &batch.tables)?;
        session.set_savepoint().await?;
        let how = RoundOptions { reinserts: true, checks_actions: checks.actions };
        let written =
            match round::write_tables(session, &batch.tables, &encoded, how, self.watch).await {
                Ok(written) => written,
                Err(error) if is_row_refusal(&error) => {
                    session.roll_back_to_savepoint().await?;
                    if !self.move_row_in_place(session, &encoded).await? {
                        return Ok(Some(EventRefusal { error, is_deferred: false }));
                    }
                    ApplyCounts { updated: 1, ..ApplyCounts::default() }
                }
                Err(error) => return Err(error),
            };
        if checks.deferred
            && is_whole
            && let Some(error) = check_deferred(session).await?
        {
            session.roll_back_to_savepoint().await?;
            return Ok(Some(EventRefusal { error, is_deferred: true }));
        }
        session.release_savepoint().await?;
        session.clear_stages().await?;
        counts.add(&written);
        Ok(None)
    }

    /// Updates the key of a refused event's row in place. So the row keeps its unique values, and
    /// foreign keys act as they did in the source: `on update cascade` moves the referencing rows.
    /// The savepoint is then set. Returns false, with nothing written, if the event is no change of
    /// a key or if the update fails too.
    async fn move_row_in_place(
        &self,
        session: &mut WriterSession,
        encoded_tables: &[EncodedTable],
    ) -> Result<bool> {
        let [encoded] = encoded_tables else { return Ok(false) };
        let has_key = self.batch.tables[encoded.table].has_key();
        if has_key && !encoded.has_moved_away || (encoded.deletes, encoded.upserts) != (1, 1) {
            return Ok(false);
        }
        // With a deferrable key, two rows may have the same key for a moment. Deleting the other
        // row by its key would then delete this row, too.
        if encoded.has_key_claims || encoded.has_key_conflict {
            return Ok(false);
        }
        session.set_savepoint().await?;
        match round::move_row(session, &self.batch.tables[encoded.table], encoded).await {
            Ok(true) => return Ok(true),
            Err(error) if !is_row_refusal(&error) => return Err(error),
            Ok(false) | Err(_) => session.roll_back_to_savepoint().await?,
        }
        Ok(false)
    }

    /// Returns the error for a refused event.
    fn refused_event_error(&self, at: usize, error: Error) -> Error {
        let change = &self.batch.log.changes()[at];
        let table = &self.batch.tables[change.table].table.sql_name;
        let place = self.inputs.place(change.event_place);
        let kind = error.kind();
        let own = error.hint_text().map_or_else(String::new, |hint| format!("{hint} "));
        let how = match self.dead_letters_max {
            0 => "With `--max-dead-letters N` up to N such events are set aside in \
                  pgspate.dead_letter, and the others applied."
                .to_owned(),
            max => too_many_dead_letters_hint(max),
        };
        Error::new(kind, format!("could not apply the {} of {table}", change.op.name()))
            .at(place)
            .hint(format!("{own}Nothing of its batch is applied. {how}"))
            .because(error)
    }

    /// Returns the dead letter for a refused event.
    fn dead_letter(&self, at: usize, error: &Error) -> DeadLetter {
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
            payload: own_format::write_logged_event(&self.batch.log, change, table, columns),
        }
    }
}

/// Adds a hint if no column can be added because deferred constraints of the open transaction are
/// still to be checked. The transaction then has rows of earlier batches.
fn hint_pending_checks(error: Error) -> Error {
    match error.sqlstate() {
        Some(code) if *code == SqlState::OBJECT_IN_USE => error.hint(
            "The transaction of the source is larger than a batch, and a deferrable constraint of \
             the table is checked at its end. Add the column to the table before the run, or raise \
             `--batch-rows` and `--batch-bytes`, so that one batch has the whole transaction.",
        ),
        _ => error,
    }
}

/// Checks deferred constraints, which stay deferred. Returns the violation, if any.
async fn check_deferred(session: &WriterSession) -> Result<Option<Error>> {
    let sql = "set constraints all immediate; set constraints all deferred";
    match session.run(sql, "check deferred constraints").await {
        Err(error) if is_row_refusal(&error) => Ok(Some(error)),
        done => done.map(|()| None),
    }
}

/// Returns the cut that is nearest to the middle of a range.
fn nearest_cut(cuts: &[usize], start: usize, end: usize) -> Option<usize> {
    let middle = start.midpoint(end);
    let at = cuts.partition_point(|cut| *cut < middle);
    let (before, after) = (at.checked_sub(1).map(|at| cuts[at]), cuts.get(at).copied());
    let within = |cut: &usize| start < *cut && *cut < end;
    let near = [before, after].into_iter().flatten().filter(within);
    near.min_by_key(|cut| cut.abs_diff(middle))
}

#[cfg(test)]
mod tests;

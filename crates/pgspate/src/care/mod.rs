//! Changes a table to make a load faster, records the changes, and undoes them.
//!
//! - Indexes and constraints are dropped and created again.
//! - Autovacuum is switched off and on again.
//! - A shadow table is filled and takes the table's place.
//! - After the last row the table is analyzed.
//!
//! The plan decides what is done. Every change is recorded in the ledger in the same transaction,
//! with the way to undo it. A run ends only when all changes are undone, also when it fails. If
//! that is impossible, the error says how to do it, and [`restore()`] does it later from the ledger
//! alone.
//!
//! This module knows neither the source of rows, nor their format, nor how they are sent.

mod follow_up;
mod index_builders;
mod indexes;
mod prepare;
mod put_back;
mod restore;
mod shadow;

pub use follow_up::MovedSequence;
pub use restore::restore;
pub(crate) use shadow::copy_target_name;

use crate::copy::CopyProgress;
use crate::job::{JobSession, OwnSession, RetryWhileAway};
use crate::numbers::counted;
use crate::plan::maintenance::{MaintenanceInputs, MaintenancePlan};
use crate::plan::{AtomicMethod, InputFacts, LoadPlan, PlanRequest};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{ChunkRecord, JobLookup};
use pgspate_target::session::StopFlag;
use pgspate_target::{MaintenanceFacts, SessionSettings, TargetTable};

/// The changes that a run has made to its table, and the state of undoing them.
#[derive(Debug, Default)]
pub(crate) struct TableChanges {
    /// Indexes, sequences and options of the table.
    pub(crate) upkeep: MaintenanceFacts,
    /// Whether this run or an earlier one has changes that are not undone.
    is_altered: bool,
    /// Whether every row is written and the table is being restored.
    pub(crate) is_finishing: bool,
    /// Whether the shadow table has taken the table's place.
    is_exchanged: bool,
    /// Number of the load's rows that other sessions have changed. The load's rows cannot be
    /// removed then.
    rows_changed_by_others: u64,
    /// Whether expression indexes were dropped, together with their ANALYZE statistics.
    lost_statistics: bool,
    /// Facts for the final report.
    pub(crate) summary: CareSummary,
}

/// Work done on the table, for the report.
#[derive(Debug, Clone, Default)]
pub(crate) struct CareSummary {
    /// Indexes and foreign keys that were created again.
    pub(crate) rebuilt: Vec<String>,
    pub(crate) rebuild_seconds: f64,
    pub(crate) after: follow_up::AfterLoad,
}

/// The parts of a run that restoring its table needs.
pub(crate) struct TableCare<'a> {
    pub(crate) changes: &'a mut TableChanges,
    pub(crate) job: &'a mut JobSession,
    pub(crate) table: &'a TargetTable,
    /// The session's settings at the time of planning.
    pub(crate) session: &'a SessionSettings,
    pub(crate) input: InputFacts,
    pub(crate) request: &'a mut PlanRequest,
    pub(crate) plan: &'a mut LoadPlan,
    pub(crate) progress: &'a CopyProgress,
}

/// Everything that long work on a table needs.
#[derive(Clone)]
struct TableWork<'a> {
    /// The target for more sessions.
    dsn: &'a Dsn,
    /// The progress to display.
    progress: &'a CopyProgress,
    /// The user's request to stop; or one that is never raised, for work that must not be
    /// interrupted.
    stop: StopFlag,
}

impl RetryWhileAway for TableCare<'_> {
    fn own(&self) -> &OwnSession {
        &self.job.own
    }

    fn restore_session(&mut self) -> Result<()> {
        self.job.restore_session()
    }
}

impl TableCare<'_> {
    /// Plans the changes, from the table and the ledger as they are before the load.
    pub(crate) fn plan(&mut self) -> Result<()> {
        let facts = self.facts(&self.changes.upkeep);
        let care = MaintenancePlan::make(&facts, &self.plan.rows.columns, self.request)?;
        self.plan.set_maintenance(care);
        Ok(())
    }

    fn facts<'a>(&'a self, upkeep: &'a MaintenanceFacts) -> MaintenanceInputs<'a> {
        let chunks = match (&self.job.opened, &self.job.known.found) {
            (Some(opened), _) => opened.done.chunks(),
            (None, JobLookup::Unfinished(_, chunks, _)) => *chunks,
            _ => 0,
        };
        MaintenanceInputs {
            table: self.table,
            upkeep,
            input_bytes: self.input.stored_bytes,
            is_stream: self.input.is_stream,
            bytes_done: chunks * self.plan.rows.chunk_bytes as u64,
            commit: self.plan.commit,
            has_ledger: self.plan.ledger,
            is_atomic: self.plan.at_once.is_some(),
            writer: None,
        }
    }

    fn work(&self, is_cancellable: bool) -> TableWork<'_> {
        let stop = if is_cancellable { self.progress.stop.clone() } else { StopFlag::default() };
        TableWork { dsn: &self.job.own.dsn, progress: self.progress, stop }
    }

    /// Returns whether a server crash has lost chunks that can be loaded again.
    ///
    /// # Errors
    /// When the chunks cannot be loaded again, because the input or the table they belong to is no
    /// longer available.
    pub(crate) fn has_lost_chunks(&self, chunks: u64) -> Result<bool> {
        let Some(opened) = &self.job.opened else { return Ok(false) };
        let kept = opened.done.chunks();
        if kept >= chunks || !self.job.own.was_away {
            return Ok(false);
        }
        let lost = chunks - kept;

        let message = format!("the server lost {lost} of {} in a crash", counted(chunks, "chunk"));
        let lost = Error::new(ErrorKind::Server, message);
        if self.input.is_stream {
            return Err(lost.hint(
                "Their commits had not reached the disk, or the table is unlogged. A stream cannot \
                 be read again: load the rows from a file.",
            ));
        }
        let is_swap = self.plan.at_once.as_ref().is_some_and(|it| it.method == AtomicMethod::Swap);
        match is_swap && self.changes.is_exchanged {
            true => Err(lost.hint("The same command, run again, loads all rows.")),
            false => Ok(true),
        }
    }

    /// Checks that the ledger's rows add up to the rows that were read.
    pub(crate) fn reconcile(&self, sums: &ChunkRecord) -> Result<()> {
        let (rows_in, out) = (sums.rows_in, sums.rows_written + sums.rows_rejected);
        if rows_in == out || (self.plan.may_drop_rows && out < rows_in) {
            return Ok(());
        }
        let message = format!(
            "read {rows_in} rows, but {} are written and {} rejected",
            sums.rows_written, sums.rows_rejected
        );
        Err(Error::new(ErrorKind::Bug, message))
    }
}

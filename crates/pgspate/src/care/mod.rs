//! Changes a table to make a load faster, records the changes, and undoes them.
//!
//! - Indexes and constraints are dropped and created again.
//! - Autovacuum is switched off and on again.
//! - A shadow table is filled and takes the table's place.
//! - After the last row the table is analyzed.
//!
//! The plan decides which changes are made. Each change is recorded in the ledger in the
//! transaction that makes the change, together with the way to undo it. A run undoes all changes
//! before it ends, also if the run fails. If undoing is impossible, the error says how to restore
//! the table, and [`restore()`] can restore it later from the ledger alone.
//!
//! This module does not depend on the source of the rows, their format, or how they are sent.

mod follow_up;
mod index_builders;
mod indexes;
mod kept_settings;
mod prepare;
mod restore_table;
mod restorer;
mod shadow;

pub use follow_up::MovedSequence;
pub(crate) use follow_up::advance_sequences;
pub use restorer::restore;
pub(crate) use shadow::{JobShadow, copy_target_name};

use tokio_postgres::Client;

use crate::copy::CopyProgress;
use crate::job::{ControlSession, JobSession, RetryAfterConnectionLoss};
use crate::numbers::counted;
use crate::plan::maintenance::{MaintenanceInputs, MaintenancePlan};
use crate::plan::{AtomicMethod, InputFacts, LoadPlan, PlanRequest};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, ChunkRecord, JobLookup};
use pgspate_target::session::StopFlag;
use pgspate_target::{MaintenanceFacts, SessionSettings, TargetTable};

/// The changes that a run has made to its table, and whether they are undone.
#[derive(Debug, Default)]
pub(crate) struct TableChanges {
    /// Indexes, sequences and options of the table.
    pub(crate) maintenance_facts: MaintenanceFacts,
    /// Whether this run or an earlier one has changes that are not undone.
    is_altered: bool,
    /// Whether every row is written, and the work after the last row is not done yet.
    pub(crate) is_finishing: bool,
    /// Whether the shadow table has taken the table's place.
    is_exchanged: bool,
    /// Number of the load's rows that other sessions have changed or deleted. If there are any, the
    /// load's rows cannot be removed.
    rows_changed_by_others: u64,
    /// Whether the connection was lost while the load's rows were removed.
    pub(crate) may_have_removed_rows: bool,
    /// Whether this run or an earlier one has dropped indexes on expressions, together with their
    /// statistics.
    lost_statistics: bool,
    /// Facts for the final report.
    pub(crate) summary: CareSummary,
}

/// The work on the table, for the report.
#[derive(Debug, Clone, Default)]
pub(crate) struct CareSummary {
    /// Indexes, foreign keys and options that were restored.
    pub(crate) rebuilt: Vec<String>,
    /// Seconds for restoring them.
    pub(crate) rebuild_seconds: f64,
    pub(crate) after: follow_up::AfterLoad,
}

/// The parts of a run that are needed to change its table and to restore the table.
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

/// Everything that long work on a table, such as building an index, needs.
#[derive(Clone)]
struct TableWork<'a> {
    /// The target, for opening more sessions.
    dsn: &'a Dsn,
    /// The progress to display.
    progress: &'a CopyProgress,
    /// The user's request to stop. For work that must not be interrupted, a flag that is never set.
    stop: StopFlag,
}

impl RetryAfterConnectionLoss for TableCare<'_> {
    fn control_session(&self) -> &ControlSession {
        &self.job.control_session
    }

    fn restore_session(&mut self) -> Result<()> {
        self.job.restore_session()
    }
}

impl TableCare<'_> {
    /// Plans the changes, from the table and the ledger as they are before the load.
    pub(crate) fn plan(&mut self) -> Result<()> {
        let facts = self.facts(&self.changes.maintenance_facts);
        let maintenance = MaintenancePlan::make(&facts, &self.plan.rows.columns, self.request)?;
        self.plan.set_maintenance(maintenance);
        Ok(())
    }

    fn facts<'a>(&'a self, maintenance_facts: &'a MaintenanceFacts) -> MaintenanceInputs<'a> {
        let chunks = match (&self.job.opened, &self.job.ledger_state.found) {
            (Some(opened), _) => opened.done.chunks(),
            (None, JobLookup::Unfinished(_, chunks, _)) => *chunks,
            _ => 0,
        };
        MaintenanceInputs {
            table: self.table,
            maintenance_facts,
            input_bytes: self.input.stored_bytes,
            is_stream: self.input.is_stream,
            bytes_done: chunks * self.plan.rows.chunk_bytes as u64,
            commit: self.plan.commit,
            has_ledger: self.plan.ledger,
            is_atomic: self.plan.atomic_plan.is_some(),
            writer: None,
        }
    }

    fn work(&self, is_cancellable: bool) -> TableWork<'_> {
        let stop = if is_cancellable { self.progress.stop.clone() } else { StopFlag::default() };
        TableWork { dsn: &self.job.control_session.dsn, progress: self.progress, stop }
    }

    /// Returns whether the ledger has changes to the table that are not put back. A crash or a
    /// failover may undo the commit that has put them back.
    pub(crate) fn has_lost_restored_objects(&mut self) -> Result<bool> {
        let Some(job) = self.job.id() else { return Ok(false) };
        let changes = self.job.with_client_and_retry(self.progress, async |client: &Client| {
            ledger::outstanding_changes(client, Some(job.0)).await
        })?;
        self.changes.is_altered = !changes.is_empty();
        Ok(self.changes.is_altered)
    }

    /// Returns whether a server crash has removed some of the `chunks` chunks, and these chunks can
    /// be loaded again.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if removed chunks cannot be loaded again: the input is a stream, or
    /// the shadow table has already taken the table's place.
    pub(crate) fn has_lost_chunks(&self, chunks: u64) -> Result<bool> {
        let Some(opened) = &self.job.opened else { return Ok(false) };
        let kept = opened.done.chunks();
        if kept >= chunks || !self.job.control_session.connection_was_lost {
            return Ok(false);
        }
        let lost = chunks - kept;
        let message = format!("the server lost {lost} of {} in a crash", counted(chunks, "chunk"));
        let lost = Error::new(ErrorKind::Server, message);
        if self.input.is_stream {
            return Err(lost.hint(
                "The commits of these chunks had not reached the disk, or the table is unlogged. A \
                 stream cannot be read again: load the rows from a file.",
            ));
        }
        let is_swap =
            self.plan.atomic_plan.as_ref().is_some_and(|it| it.method == AtomicMethod::Swap);
        match is_swap && self.changes.is_exchanged {
            true => Err(lost.hint("The same command, run again, loads all rows.")),
            false => Ok(true),
        }
    }

    /// Checks that every row that was read is written or rejected, according to the ledger's sums.
    pub(crate) fn reconcile(&self, sums: &ChunkRecord) -> Result<()> {
        let (rows_in, out) = (sums.rows_in, sums.rows_written + sums.rows_rejected);
        if rows_in == out || (self.plan.may_skip_rows && out < rows_in) {
            return Ok(());
        }
        let message = format!(
            "read {rows_in} rows, but {} are written and {} rejected",
            sums.rows_written, sums.rows_rejected
        );
        Err(Error::new(ErrorKind::Bug, message))
    }
}

//! What is done to a table for speed, its record, and its way back.
//!
//! Indexes and constraints are dropped and built again. Autovacuum is switched off and on. A shadow
//! table is filled and exchanged for the table. AfterLoad the last row the table is analyzed. All
//! of it is for a run that writes many rows: the plan says what is to be done, and this does it.
//!
//! Whatever is changed is in the ledger in the same transaction, with the way back. A run ends only
//! when everything is back, also when it fails. Where this cannot be done the error says how, and
//! [`restore()`] does it later, from the ledger alone.
//!
//! It must never know where rows come from, what format they have, or how they reach the table.

mod after;
mod back;
mod before;
mod builders;
mod indexes;
mod restore;
mod shadow;

pub use after::MovedSequence;
pub use restore::restore;
pub(crate) use shadow::destination;

use crate::copy::CopyProgress;
use crate::job::{JobSession, OwnSession, RetryWhileAway};
use crate::plan::care::{MaintenancePlan, MaintenanceFacts};
use crate::plan::{InputFacts, AtomicMethod, LoadPlan, PlanRequest};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{Found, Seal};
use pgspate_target::session::Stop;
use pgspate_target::{Session, Table, Upkeep};

/// Where a run stands with what it has changed on its table.
#[derive(Debug, Default)]
pub(crate) struct TableChanges {
    /// What the table needs before and after.
    pub(crate) upkeep: Upkeep,
    /// Something is changed, by this run or one before.
    is_altered: bool,
    /// Every row is written.
    pub(crate) is_finishing: bool,
    /// The shadow table has taken the table's place.
    is_exchanged: bool,
    /// Rows of the load that other sessions have changed, so that none can be taken back.
    rows_changed: u64,
    /// Expression indexes were dropped, and what ANALYZE knew of them.
    lost_statistics: bool,
    /// What is to be told in the end.
    pub(crate) done: CareSummary,
}

/// What was done with the table, for the report.
#[derive(Debug, Clone, Default)]
pub(crate) struct CareSummary {
    /// Indexes and foreign keys that were made again.
    pub(crate) rebuilt: Vec<String>,
    pub(crate) rebuild_seconds: f64,
    pub(crate) after: after::AfterLoad,
}

/// A run, as far as its table is cared for.
pub(crate) struct TableCare<'a> {
    pub(crate) standing: &'a mut TableChanges,
    pub(crate) job: &'a mut JobSession,
    pub(crate) table: &'a Table,
    /// The session's settings when it was planned.
    pub(crate) session: &'a Session,
    pub(crate) input: InputFacts,
    pub(crate) request: &'a mut PlanRequest,
    pub(crate) plan: &'a mut LoadPlan,
    pub(crate) progress: &'a CopyProgress,
}

/// What work on a table that may take hours is done with.
#[derive(Clone)]
struct TableWork<'a> {
    /// Where sessions are opened.
    dsn: &'a Dsn,
    /// Shows what is done.
    progress: &'a CopyProgress,
    /// The user's wish to stop, or another that nobody has, where it is not to count.
    stop: Stop,
}

impl RetryWhileAway for TableCare<'_> {
    fn own(&self) -> &OwnSession {
        &self.job.own
    }

    fn come_back(&mut self) -> Result<()> {
        self.job.come_back()
    }
}

impl TableCare<'_> {
    /// Plans it, from what table and ledger are like before the load.
    pub(crate) fn plan(&mut self) -> Result<()> {
        let facts = self.facts(&self.standing.upkeep);
        let care = MaintenancePlan::make(&facts, &self.plan.rows.columns, self.request)?;
        self.plan.take_care(care);
        Ok(())
    }

    fn facts<'a>(&'a self, upkeep: &'a Upkeep) -> MaintenanceFacts<'a> {
        let chunks = match (&self.job.opened, &self.job.known.found) {
            (Some(opened), _) => opened.done.chunks(),
            (None, Found::Unfinished(_, chunks, _)) => *chunks,
            _ => 0,
        };
        MaintenanceFacts {
            table: self.table,
            upkeep,
            input_bytes: self.input.stored_bytes,
            is_stream: self.input.is_stream,
            bytes_done: chunks * self.plan.rows.chunk_bytes as u64,
            commit: self.plan.commit,
            has_ledger: self.plan.ledger,
            is_at_once: self.plan.at_once.is_some(),
            writer: None,
        }
    }

    fn work(&self, heeds_cancel: bool) -> TableWork<'_> {
        let stop = if heeds_cancel { self.progress.stop.clone() } else { Stop::default() };
        TableWork { dsn: &self.job.own.dsn, progress: self.progress, stop }
    }

    /// Whether a crash of the server has taken some of the chunks, which can be loaded again.
    ///
    /// # Errors
    /// When they cannot: the input is gone, or where they were to go.
    pub(crate) fn lacks(&self, chunks: u64) -> Result<bool> {
        let Some(opened) = &self.job.opened else { return Ok(false) };
        let kept = opened.done.chunks();
        if kept >= chunks || !self.job.own.was_away {
            return Ok(false);
        }
        let lost = chunks - kept;
        let s = if lost == 1 { "" } else { "s" };
        let message = format!("the server has lost {lost} of {chunks} chunk{s} in a crash");
        let lost = Error::new(ErrorKind::Server, message);
        if self.input.is_stream {
            return Err(lost.hint(
                "Their commits had not reached the disk, or their table is unlogged. They cannot \
                 be read again: load them from a file.",
            ));
        }
        let is_swap = self.plan.at_once.as_ref().is_some_and(|it| it.method == AtomicMethod::Swap);
        match is_swap && self.standing.is_exchanged {
            true => Err(lost.hint("The same command, run again, loads all of it.")),
            false => Ok(true),
        }
    }

    /// Compares what the ledger has with what was read.
    pub(crate) fn reconcile(&self, sums: &Seal) -> Result<()> {
        let (rows_in, out) = (sums.rows_in, sums.rows_written + sums.rows_rejected);
        if rows_in == out || (self.plan.may_drop_rows && out < rows_in) {
            return Ok(());
        }
        let message = format!(
            "read {rows_in} rows, but {} are written and {} set aside",
            sums.rows_written, sums.rows_rejected
        );
        Err(Error::new(ErrorKind::Bug, message))
    }
}

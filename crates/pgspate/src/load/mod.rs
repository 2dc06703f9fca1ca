//! Files to table.
//!
//! [`prepare`] looks at the inputs and the table and makes the plan; [`Load::run`] carries it out
//! through [`copy`]. A load that fails leaves the table as it was.

mod attempt;
mod create;
mod failed;
mod prepare;
mod record;
mod rejects;
mod replace;
mod report;
mod trial;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

pub use crate::reading::LoadWatch;
pub use create::{NewTable, WidenedColumn};
pub use prepare::prepare;
pub use report::{PlanReport, LoadReport};

use crate::Result;
use crate::care::{self, TableCare};
use crate::copy::{EarlySession, CopyOutcome, RejectsMax};
use crate::job::{JobSession, OwnSession, RetryWhileAway};
use crate::plan::{self, LoadPlan, PlanRequest};
use crate::reading::{self, SniffedInputs};
use pgspate_target::ledger::Found;
use pgspate_target::measure::wal_position;
use pgspate_target::session::Limits;
use pgspate_target::{Session, Table};

/// What to load, and how to read it.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// What is read, and how.
    pub reading: reading::ReadingOptions,
    /// The table, as SQL writes it; by default named after the first source.
    pub table: Option<String>,
    /// How the table is loaded.
    pub plan: plan::PlanOptions,
    /// Make the table when it is missing.
    pub create: bool,
    /// Begin anew, whatever the ledger says of earlier runs.
    pub restart: bool,
    /// The file for rows that are refused; the load stops at the first one otherwise.
    pub rejects: Option<PathBuf>,
    /// How many rows may be set aside; any number otherwise.
    pub rejects_max: Option<RejectsMax>,
    /// How long to wait for what may never come.
    pub limits: Limits,
}

/// A load that is ready to run.
pub struct Load {
    options: LoadOptions,
    reading: SniffedInputs,
    session: Session,
    table: Table,
    new_table: Option<NewTable>,
    /// The oid of the new table, once it is made: by this run, or by one that was stopped.
    made: Option<u32>,
    request: PlanRequest,
    plan: LoadPlan,
    job: JobSession,
    /// The first lane's session, if it is being opened already.
    early: EarlySession,
    /// Keeps other loads from the file for rejects.
    rejects_guard: Option<rejects::RejectsFileGuard>,
    care: care::TableChanges,
}

impl RetryWhileAway for Load {
    fn own(&self) -> &OwnSession {
        &self.job.own
    }

    fn come_back(&mut self) -> Result<()> {
        self.job.come_back()
    }
}

impl Load {
    /// What it will do.
    pub fn plan(&self) -> &LoadPlan {
        &self.plan
    }

    /// The same, to be written as JSON.
    pub fn plan_report(&self) -> PlanReport {
        PlanReport::new(self)
    }

    /// What was found out about the input, in words.
    pub fn evidence(&self) -> &[String] {
        &self.reading.sniffed.evidence
    }

    /// The table that it makes first, if there is none yet.
    pub fn new_table(&self) -> Option<&NewTable> {
        self.new_table.as_ref().filter(|_| self.made.is_none())
    }

    /// Loads. Blocks until everything is committed or rolled back.
    ///
    /// # Errors
    /// The first refusal in the order of the input, under a message that names input and table.
    pub fn run(mut self, watch: &Arc<LoadWatch>) -> Result<LoadReport> {
        let started = Instant::now();
        if let Some(report) = self.loaded_already(watch)? {
            return Ok(report);
        }
        self.job.settle_identity(&watch.copy)?;
        self.open_early();
        let wal_before = self.job.own.runtime.block_on(wal_position(self.job.client()));
        let mut widened = Vec::new();
        let outcome = match self.carry_out(watch, &mut widened) {
            Ok(outcome) => outcome,
            Err(error) => return Err(self.failed(error, watch)),
        };
        if let Some(report) = self.loaded_already(watch)? {
            return Ok(report);
        }
        let seconds = started.elapsed().as_secs_f64();
        let wal_after = self.job.own.runtime.block_on(wal_position(self.job.client()));
        let wal_bytes = wal_after.zip(wal_before).and_then(|(now, then)| now.checked_sub(then));
        Ok(LoadReport::new(&self, outcome, watch, widened, seconds, wal_bytes))
    }

    /// The report, if the ledger says that all of it is loaded.
    fn loaded_already(&self, watch: &LoadWatch) -> Result<Option<LoadReport>> {
        let Found::Finished(record) = &self.job.known.found else { return Ok(None) };
        self.write_rejects_again(record.job, record.rows_rejected.unsigned_abs())?;
        Ok(Some(LoadReport::new(self, CopyOutcome::default(), watch, Vec::new(), 0.0, None)))
    }

    /// Itself, as far as its table is cared for.
    fn caring<'a>(&'a mut self, watch: &'a LoadWatch) -> TableCare<'a> {
        TableCare {
            standing: &mut self.care,
            job: &mut self.job,
            table: &self.table,
            session: &self.session,
            input: self.reading.facts(),
            request: &mut self.request,
            plan: &mut self.plan,
            progress: &watch.copy,
        }
    }

    fn carry_out(&mut self, watch: &Arc<LoadWatch>, widened: &mut Vec<WidenedColumn>) -> Result<CopyOutcome> {
        let tries_out = self.new_table.is_none() && self.changes_first();
        match self.new_table {
            Some(_) if self.made.is_none() => self.again(&watch.copy, Load::make_table)?,
            None if tries_out => self.try_out()?,
            _ => {}
        }
        let oid = self.made.unwrap_or(self.table.oid);
        let how = (self.options.restart, self.made.is_some());
        if self.job.opened.is_none() && !self.job.open(oid, how, &watch.copy)? {
            return Ok(CopyOutcome::default());
        }
        if let (Some(path), Some(opened)) = (&self.options.rejects, &self.job.opened) {
            let guard = rejects::reserve(path, opened.job.0, &self.reading.names())?;
            self.rejects_guard = Some(guard);
        }
        self.caring(watch).prepare()?;
        self.caring(watch).prepare_shadow()?;
        loop {
            let mut outcome = self.attempts(watch, widened)?;
            if !self.caring(watch).put_all_back(outcome.chunks)? {
                continue;
            }
            let identity = self.job.identity.take();
            self.job.identity = identity.map(|it| it.with_contents(&outcome.contents));
            if outcome.chunks == 0 && self.new_table.is_none() && !tries_out {
                // No lane has asked the server.
                self.try_out()?;
            }
            self.again(&watch.copy, |load| load.write_rejects())?;
            if !self.caring(watch).complete_shadow(outcome.chunks)? {
                continue;
            }
            self.caring(watch).finish(&outcome)?;
            if self.finish_job(&mut outcome, watch)? {
                return Ok(outcome);
            }
        }
    }
}

//! Attempts at copying the rows: what is tried again after which end.
//!
//! Every attempt begins with what the ledger has then, so that none writes a row twice.

use std::sync::Arc;
use std::time::Instant;

use super::{Load, LoadWatch, WidenedColumn, create};
use crate::copy::{
    self, SessionOpener, CopySetup, Destination, EarlySession, CopyEnd, CopyJob, Lanes, LedgerJob, CopyOutcome, RejectsMax,
};
use crate::format::Mode;
use crate::job::RetryWhileAway;
use crate::plan::{AtomicMethod, LoadPlan};
use crate::{Error, ErrorKind, Result, care};
use pgspate_target::Table;
use pgspate_target::ledger::Opened;
use pgspate_target::session::Patience;

impl Load {
    /// Starts over while that promises to help.
    pub(super) fn attempts(
        &mut self,
        watch: &Arc<LoadWatch>,
        widened: &mut Vec<WidenedColumn>,
    ) -> Result<CopyOutcome> {
        let mut patience = Patience::new(self.job.own.limits.retry_for);
        loop {
            watch.start_over(self.reading.stored_bytes());
            if let Some(Opened { done, .. }) = &self.job.opened {
                watch.copy.kept.begin(done.rows_written(), done.chunks());
            }
            let began = Instant::now();
            self.job.own.was_away = false;
            let attempt = self.attempt(watch);
            if began.elapsed() > self.job.own.limits.retry_for {
                // The server was there for long enough to be waited for anew.
                patience.renew();
            }
            match attempt {
                Ok(CopyEnd::Done(outcome, _)) => return Ok(outcome),
                Ok(CopyEnd::LanesConflict) if self.reading.is_stream() => {
                    return Err(Error::new(ErrorKind::Server, "two rows have the same unique key")
                        .hint("Load with `--lanes 1` to be told which."));
                }
                Ok(CopyEnd::LanesConflict) => {
                    self.plan.lanes = Lanes::Fixed(1);
                    "two lanes met the same unique key".clone_into(&mut self.plan.lanes_reason);
                }
                Ok(CopyEnd::Interrupted(error)) => self.wait(error, &mut patience, &watch.copy)?,
                Err(error) if self.add_key(&error)? => {}
                Err(error) => match self.widen(&error)? {
                    Some(step) => widened.push(step),
                    None => return Err(error),
                },
            }
        }
    }

    fn attempt(&mut self, watch: &Arc<LoadWatch>) -> Result<CopyEnd> {
        let job = self.copy_job()?;
        let cutter = self.reading.cutter(&self.plan.rows, watch);
        copy::run(&job, cutter, &watch.copy, &self.job.own.runtime)
    }

    fn copy_job(&mut self) -> Result<CopyJob> {
        let rejects_max = self.options.rejects_max.unwrap_or(RejectsMax::Any);
        let (reading, rows) = (self.reading.clone(), self.plan.rows.clone());
        let (version, ignores) = (self.session.server_version, self.request.rows.ignore_unknown);
        Ok(CopyJob {
            early: std::mem::take(&mut self.early),
            connect: self.connect(),
            copying: self.copying(),
            control: Arc::clone(&self.job.own.connection),
            encoder: reading.encoder(&rows, &self.table, version, ignores)?,
            mode: rows.mode,
            one_statement: self.plan.one_statement,
            lanes: self.plan.lanes,
            table_name: self.table.name.clone(),
            columns: rows.names(),
            input_names: reading.names(),
            may_drop_rows: self.plan.may_drop_rows,
            is_stream: reading.is_stream(),
            commit: self.plan.commit,
            ledger: self.job.opened.as_ref().map(|opened| LedgerJob {
                id: opened.job,
                is_bound: opened.is_bound,
                done: opened.done.clone(),
                rejects: self.options.rejects.as_ref().map(|_| rejects_max),
            }),
            unchanged: Box::new(move |read| reading.check_unchanged(&rows, read)),
            destination: Destination::Table {
                oid: self.made.unwrap_or(self.table.oid),
                around: self.around()?,
            },
        })
    }

    /// After a refusal in a table of our own making: a wider type for the column, if that would
    /// help and the input can be read again.
    fn widen(&mut self, error: &Error) -> Result<Option<WidenedColumn>> {
        let Some(new) = &self.new_table else { return Ok(None) };
        if self.reading.is_stream() {
            return Ok(None);
        }
        let widen = create::widen(self.job.connection(), new, &self.table, error);
        let Some(widened) = self.job.own.runtime.block_on(widen)? else { return Ok(None) };
        let table = Table::read(self.job.client(), &self.table.sql_name);
        if let Some(table) = self.job.own.runtime.block_on(table)? {
            self.table = table;
        }
        self.plan_anew()?;
        Ok(Some(widened))
    }

    /// After a key of JSON that is not in the sample: plans with it. Whether it did.
    fn add_key(&mut self, error: &Error) -> Result<bool> {
        if !self.reading.learn_key(error) {
            return Ok(false);
        }
        let place = error.place().cloned().unwrap_or_default();
        self.plan_anew().map_err(|refused| refused.at(place))?;
        Ok(true)
    }

    fn plan_anew(&mut self) -> Result<()> {
        let lanes = (self.plan.lanes, self.plan.lanes_reason.clone());
        let care = std::mem::take(&mut self.plan.care);
        let facts = self.reading.facts();
        self.plan = LoadPlan::make(&self.table, &self.session, &facts, &self.request)?;
        (self.plan.lanes, self.plan.lanes_reason) = lanes;
        self.plan.take_care(care);
        Ok(())
    }

    /// How sessions for the rows are opened.
    pub(super) fn connect(&self) -> SessionOpener {
        let name = format!("pgspate load {}", self.table.name);
        SessionOpener::new(&self.job.own.dsn, name)
    }

    /// The statements of these sessions, once the job is open.
    pub(super) fn copying(&self) -> CopySetup {
        let destination = care::destination(&self.plan, &self.table, self.job.opened.as_ref());
        CopySetup {
            text_sql: self.plan.copy_sql(Mode::Text, &destination),
            binary_sql: self.plan.copy_sql(Mode::Binary, &destination),
            limits: self.options.limits,
            lock_key: self.job.lock_key(),
        }
    }

    /// Begins to open the first lane's session, while there is still something else to do. Not
    /// where its statements are not known before the job is.
    pub(super) fn open_early(&mut self) {
        if !self.is_swap() {
            self.early = EarlySession::start(self.connect(), self.copying(), &self.job.own.runtime);
        }
    }

    /// Whether the rows go to a shadow table, if the server lets it be made.
    pub(super) fn is_swap(&self) -> bool {
        self.plan.at_once.as_ref().is_some_and(|at_once| at_once.method == AtomicMethod::Swap)
    }
}

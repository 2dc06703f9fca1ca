//! Attempts at copying the rows: what is tried again after which end.
//!
//! Every attempt begins with what the ledger has then, so that none writes a row twice.

use std::sync::Arc;
use std::time::Instant;

use super::{Load, Watch, Widened, create};
use crate::copy::{
    self, Connect, Copying, Early, End, Job, LaneSession, Lanes, Outcome, RejectsMax,
};
use crate::format::Mode;
use crate::job::Persistent;
use crate::ledger::Opened;
use crate::plan::{Method, Plan};
use crate::session::Patience;
use crate::target::Table;
use crate::{Error, Kind, Result, care, stage};

impl Load {
    /// Starts over while that promises to help.
    pub(super) fn attempts(
        &mut self,
        watch: &Arc<Watch>,
        widened: &mut Vec<Widened>,
    ) -> Result<(Outcome, Vec<LaneSession>)> {
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
                Ok(End::Done(outcome, sessions)) => return Ok((outcome, sessions)),
                Ok(End::LanesConflict) if self.reading.is_stream() => {
                    return Err(Error::new(Kind::Server, "two rows have the same unique key")
                        .hint("Load with `--lanes 1` to be told which."));
                }
                Ok(End::LanesConflict) => {
                    self.plan.lanes = Lanes::Fixed(1);
                    "two lanes met the same unique key".clone_into(&mut self.plan.lanes_reason);
                }
                // What was known of the table is known no more.
                Ok(End::Interrupted(error)) | Err(error) if self.ahead().is_some() => {
                    return Err(error);
                }
                Ok(End::Interrupted(error)) => self.wait(error, &mut patience, &watch.copy)?,
                Err(error) if self.add_key(&error)? => {}
                Err(error) => match self.widen(&error)? {
                    Some(step) => widened.push(step),
                    None => return Err(error),
                },
            }
        }
    }

    fn attempt(&mut self, watch: &Arc<Watch>) -> Result<End> {
        let job = self.job()?;
        let cutter = self.reading.cutter(&self.plan, watch);
        copy::run(&job, cutter, &watch.copy, &self.job.own.runtime)
    }

    fn job(&mut self) -> Result<Job> {
        let early = std::mem::take(&mut self.early);
        let (connect, copying) = (self.connect(), self.copying());
        Ok(Job {
            connect,
            early,
            control: Arc::clone(&self.job.own.connection),
            encoder: self.winnowed(self.encoder()?),
            binary_sql: copying.binary_sql,
            text_sql: copying.text_sql,
            mode: self.plan.mode,
            one_statement: self.plan.one_statement,
            lanes: self.plan.lanes,
            table_name: self.table.name.clone(),
            table_oid: if self.stage.is_some() { 0 } else { self.made.unwrap_or(self.table.oid) },
            columns: self.plan.columns.iter().map(|column| column.name.clone()).collect(),
            input_names: self.reading.names(),
            may_drop_rows: self.plan.may_drop_rows,
            is_stream: self.reading.is_stream(),
            commit: self.plan.commit,
            ledger: self.job.id(),
            is_bound: self.job.is_bound(),
            lock_key: self.job.lock_key(),
            done: self.job.opened.as_ref().map(|opened| opened.done.clone()).unwrap_or_default(),
            rejects: self
                .options
                .rejects
                .as_ref()
                .map(|_| self.options.rejects_max.unwrap_or(RejectsMax::Any)),
            limits: self.options.limits,
            unchanged: {
                let (reading, plan) = (self.reading.clone(), self.plan.clone());
                Box::new(move |read| reading.check_unchanged(&plan, read))
            },
            around: self.around()?.or_else(|| self.around_staging()),
            afterwards: self.after_staging(),
            shares: self.stage.as_ref().map(|stage| stage.shares.clone()).unwrap_or_default(),
        })
    }

    /// After a refusal in a table of our own making: a wider type for the column, if that would
    /// help and the input can be read again.
    fn widen(&mut self, error: &Error) -> Result<Option<Widened>> {
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

    /// After a key of JSON that names a column but is not in the sample: plans with it, if the
    /// input can be read again.
    fn add_key(&mut self, error: &Error) -> Result<bool> {
        let key = error.place().and_then(|place| place.column.as_deref());
        let (Some(key), Kind::Plan, false) = (key, error.kind(), self.reading.is_stream()) else {
            return Ok(false);
        };
        if !self.reading.add_key(key) {
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
        self.plan = Plan::make(&self.table, &self.session, &facts, &self.request)?;
        (self.plan.lanes, self.plan.lanes_reason) = lanes;
        self.plan.take_care(care);
        Ok(())
    }

    /// How sessions for the rows are opened.
    pub(super) fn connect(&self) -> Connect {
        let name = format!("pgspate load {}", self.table.name);
        Connect::new(&self.job.own.dsn, name).with_stage(self.stage.as_ref())
    }

    /// The statements of these sessions, once the job is open.
    pub(super) fn copying(&self) -> Copying {
        let destination = match &self.stage {
            Some(_) => stage::NAME.to_owned(),
            None => care::destination(&self.plan, &self.table, self.job.opened.as_ref()),
        };
        Copying {
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
            self.early = Early::start(self.connect(), self.copying(), &self.job.own.runtime);
        }
    }

    /// Whether the rows go to a shadow table, if the server lets it be made.
    pub(super) fn is_swap(&self) -> bool {
        self.plan.at_once.as_ref().is_some_and(|at_once| at_once.method == Method::Swap)
    }
}

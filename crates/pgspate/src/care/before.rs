//! Before the first row: takes over what earlier runs have left changed on the table, and drops and
//! switches off what the plan says.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::{TableCare, indexes};
use crate::job::RetryWhileAway;
use crate::plan::AutoChoice;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{self, Change, JobId};

/// Between two looks whether keys are back.
const KEYS_PAUSE: Duration = Duration::from_millis(500);

impl TableCare<'_> {
    /// Drops and switches off what the plan says, unless an earlier run has.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        self.again(self.progress, |caring| {
            let result = caring.try_to_prepare();
            caring.progress.set_phase(None);
            result
        })
    }

    fn try_to_prepare(&mut self) -> Result<()> {
        let is_clean = self.job.opened.as_ref().is_some_and(|opened| opened.is_clean);
        if !is_clean {
            self.wait_for_keys()?;
        }
        let (Some(job), table) = (self.job.id(), self.table.oid) else { return Ok(()) };
        if !is_clean && self.take_over(job, table)? {
            return Ok(());
        }
        match self.plan.care.alters_table() {
            true => self.alter_table(job),
            false => Ok(()),
        }
    }

    /// Waits while a load that is under way has dropped the table's keys, as long as for a lock:
    /// nothing would refuse a row that both have.
    fn wait_for_keys(&mut self) -> Result<()> {
        let (table, job) = (self.table.oid, self.job.id().map_or(0, |job| job.0));
        let (limit, started) = (self.job.own.limits.lock_timeout, Instant::now());
        loop {
            let down = self
                .job
                .ask(async |client: &Client| ledger::keys_down(client, Some(table), job).await)?;
            let Some(busy) = down.iter().find(|it| it.is_under_way()) else {
                // What nobody is at work on a load with a ledger takes over.
                let left = down.first().filter(|_| job == 0);
                return left.map_or(Ok(()), |left| Err(left.refuse()));
            };
            if !limit.is_zero() && started.elapsed() >= limit {
                return Err(busy.refuse().hint_also("`--lock-timeout` says how long to wait."));
            }
            let phase = format!("waiting for {}, which has dropped keys of the table", busy.who());
            self.progress.set_phase(Some(phase));
            self.progress.stop.pause(KEYS_PAUSE)?;
        }
    }

    /// Takes over what earlier loads have changed on the table. Whether that is all there is to do.
    fn take_over(&mut self, job: JobId, table: u32) -> Result<bool> {
        let others =
            self.job.ask(async |client: &Client| ledger::adopt(client, job, table).await)?;
        let down = self
            .job
            .ask(async |client: &Client| ledger::keys_down(client, Some(table), job.0).await)?;
        if let Some(down) = down.first() {
            return Err(down.refuse());
        }
        if let Some(other) = others.first() {
            if self.plan.at_once.is_some() {
                let message = format!("{other} has changed the table, and not put it back yet");
                return Err(Error::new(ErrorKind::Ledger, message)
                    .hint("Wait until it has, or see `pgspate status` for how to."));
            }
            self.leave_table(format!("{other} has changed the table already, and puts it back"));
            return Ok(true);
        }
        let left =
            self.job.ask(async |client: &Client| ledger::outstanding(client, Some(job.0)).await)?;
        self.standing.is_altered = !left.is_empty();
        let is_new = self.job.opened.as_ref().is_none_or(|opened| opened.done.chunks() == 0);
        let guards_rows = is_new
            && !self.standing.upkeep.is_empty
            && self.request.options.rebuild_indexes != AutoChoice::Always
            && left.iter().any(Change::refuses);
        // A copy of the table is one of all its indexes.
        let must_be_back = self.request.options.rebuild_indexes == AutoChoice::Never
            || guards_rows
            || self.request.rejects
            || self.plan.at_once.is_some();
        match self.standing.is_altered && must_be_back {
            true => self.restore(true).map(|()| true),
            false => Ok(self.standing.is_altered),
        }
    }

    fn alter_table(&mut self, job: JobId) -> Result<()> {
        self.progress.set_phase(Some("dropping indexes".to_owned()));
        if let Some(opened) = &mut self.job.opened {
            // Whether it is still, nobody knows when the answer gets lost.
            opened.is_clean = false;
        }
        let facts = self.facts(&self.standing.upkeep);
        let altering = indexes::alter(self.job.connection(), job, facts, self.plan, self.request);
        match self.job.own.runtime.block_on(altering) {
            Ok((care, upkeep)) => {
                let mut all = upkeep.indexes.iter().zip(&care.indexes);
                self.standing.lost_statistics =
                    all.any(|(index, choice)| index.has_expression && choice.stays.is_none());
                self.standing.is_altered = care.alters_table();
                self.progress.note_altered(Some(format!(
                    "what was dropped or switched off for the load is not back: run the same \
                     command again, or `pgspate status --restore {}`",
                    job.0
                )));
                self.plan.take_care(care);
                self.standing.upkeep = upkeep;
                Ok(())
            }
            Err(error) if self.insists() || error.is_retryable() => Err(error),
            Err(error) => {
                self.leave_table(error.to_string());
                Ok(())
            }
        }
    }

    /// Whether the user would rather have no load than one without changes to the table.
    fn insists(&self) -> bool {
        [self.request.options.rebuild_indexes, self.request.options.pause_autovacuum]
            .contains(&AutoChoice::Always)
    }

    fn leave_table(&mut self, why: String) {
        if self.plan.care.drops_indexes() {
            self.job.warnings.push(format!("indexes stay: {why}"));
        }
        self.plan.alter_nothing(&why);
    }
}

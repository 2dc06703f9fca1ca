//! Before the first row: takes over changes that earlier runs did not undo, and makes the changes
//! that the plan decides.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::{TableCare, indexes};
use crate::job::RetryAfterConnectionLoss;
use crate::plan::AutoChoice;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{self, JobId, RecordedChange};

/// Time between two checks whether another load has created its keys again.
const KEYS_PAUSE: Duration = Duration::from_millis(500);

impl TableCare<'_> {
    /// Makes the changes of the plan, unless an earlier run has made them.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        self.retry_after_connection_loss(self.progress, |care| {
            let result = care.try_to_prepare();
            care.progress.set_phase(None);
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
        match self.plan.maintenance.alters_table() {
            true => self.alter_table(job),
            false => Ok(()),
        }
    }

    /// Waits, up to the lock timeout, while another running load has dropped the table's keys:
    /// without keys the server would not refuse a row that both loads write.
    fn wait_for_keys(&mut self) -> Result<()> {
        let (table, job) = (self.table.oid, self.job.id().map_or(0, |job| job.0));
        let (limit, started) = (self.job.control_session.limits.lock_timeout, Instant::now());
        loop {
            let down = self.job.ask(async |client: &Client| {
                ledger::dropped_keys(client, Some(table), job).await
            })?;
            let Some(busy) = down.iter().find(|it| it.has_worker()) else {
                // A load with a ledger takes over the changes of loads that no longer run.
                let left = down.first().filter(|_| job == 0);
                return left.map_or(Ok(()), |left| Err(left.to_error()));
            };
            if !limit.is_zero() && started.elapsed() >= limit {
                return Err(busy.to_error().hint_also("`--lock-timeout` sets how long to wait."));
            }
            let phase =
                format!("waiting for {}, which has dropped keys of the table", busy.describe_job());
            self.progress.set_phase(Some(phase));
            self.progress.stop.sleep_unless_requested(KEYS_PAUSE)?;
        }
    }

    /// Takes over changes of earlier loads. Returns whether the plan's own changes are to be
    /// skipped.
    fn take_over(&mut self, job: JobId, table: u32) -> Result<bool> {
        let others = self
            .job
            .ask(async |client: &Client| ledger::adopt_changes(client, job, table).await)?;
        let down = self
            .job
            .ask(async |client: &Client| ledger::dropped_keys(client, Some(table), job.0).await)?;
        if let Some(down) = down.first() {
            return Err(down.to_error());
        }
        if let Some(other) = others.first() {
            if self.plan.atomic_plan.is_some() {
                let message = format!("{other} has changed the table and not restored it yet");
                return Err(Error::new(ErrorKind::Ledger, message)
                    .hint("Wait until it is restored, or see `pgspate status`."));
            }
            self.skip_changes(format!("{other} has already changed the table and will restore it"));
            return Ok(true);
        }
        let left = self
            .job
            .ask(async |client: &Client| ledger::outstanding_changes(client, Some(job.0)).await)?;
        self.changes.is_altered = !left.is_empty();
        let is_new = self.job.opened.as_ref().is_none_or(|opened| opened.done.chunks() == 0);
        let guards_rows = is_new
            && !self.changes.maintenance_facts.is_empty
            && self.request.options.rebuild_indexes != AutoChoice::Always
            && left.iter().any(RecordedChange::can_reject_rows);
        // The copy of a table includes all of its indexes.
        let must_be_back = self.request.options.rebuild_indexes == AutoChoice::Never
            || guards_rows
            || self.request.rejects
            || self.plan.atomic_plan.is_some();
        match self.changes.is_altered && must_be_back {
            true => self.restore(true).map(|()| true),
            false => Ok(self.changes.is_altered),
        }
    }

    fn alter_table(&mut self, job: JobId) -> Result<()> {
        self.progress.set_phase(Some("dropping indexes".to_owned()));
        if let Some(opened) = &mut self.job.opened {
            // If the reply is lost, the table may be changed or not.
            opened.is_clean = false;
        }
        let facts = self.facts(&self.changes.maintenance_facts);
        let altering = indexes::alter(self.job.connection(), job, facts, self.plan, self.request);
        match self.job.control_session.runtime.block_on(altering) {
            Ok((care, maintenance_facts)) => {
                let mut all = maintenance_facts.indexes.iter().zip(&care.indexes);
                self.changes.lost_statistics = all
                    .any(|(index, choice)| index.has_expression && choice.kept_because.is_none());
                self.changes.is_altered = care.alters_table();
                self.progress.note_table_changes(Some(format!(
                    "indexes or autovacuum of the table are not restored: run the same command \
                     again, or `pgspate status --restore {}`",
                    job.0
                )));
                self.plan.set_maintenance(care);
                self.changes.maintenance_facts = maintenance_facts;
                Ok(())
            }
            Err(error) if self.are_changes_demanded() || error.is_retryable() => Err(error),
            Err(error) => {
                self.skip_changes(error.to_string());
                Ok(())
            }
        }
    }

    /// Returns whether the user demands the changes: the load fails if they cannot be made.
    fn are_changes_demanded(&self) -> bool {
        [self.request.options.rebuild_indexes, self.request.options.pause_autovacuum]
            .contains(&AutoChoice::Always)
    }

    fn skip_changes(&mut self, why: String) {
        if self.plan.maintenance.drops_indexes() {
            self.job.warnings.push(format!("indexes are kept: {why}"));
        }
        self.plan.cancel_table_changes(&why);
    }
}

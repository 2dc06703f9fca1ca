//! Work on the table before the first row: takes over changes that earlier runs did not undo, and
//! makes the changes of the plan.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::follow_up::has_expression;
use super::{TableCare, indexes};
use crate::job::RetryAfterConnectionLoss;
use crate::plan::AutoChoice;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{self, JobId, RecordedChange};

/// Time between two checks whether another load has created the keys again.
const KEYS_POLL: Duration = Duration::from_millis(500);

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

    /// Waits, up to the lock timeout, until another running load has created the table's keys
    /// again. Without the keys, the server would accept rows with the same key from this load and
    /// the other load.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the other load does not create the keys in time. Or, if this load
    /// keeps no ledger, if a load that has ended left the keys dropped.
    fn wait_for_keys(&mut self) -> Result<()> {
        let (table, job) = (self.table.oid, self.job.id().map_or(0, |job| job.0));
        let (limit, started) = (self.job.control_session.limits.lock_timeout, Instant::now());
        loop {
            let dropped_keys = self.job.with_client(async |client: &Client| {
                ledger::dropped_keys(client, Some(table), job).await
            })?;
            let Some(running) = dropped_keys.iter().find(|it| it.has_worker()) else {
                // A load with a ledger takes over the changes of loads that no longer run.
                let ended = dropped_keys.first().filter(|_| job == 0);
                return ended.map_or(Ok(()), |ended| Err(ended.to_error()));
            };
            if !limit.is_zero() && started.elapsed() >= limit {
                return Err(running
                    .to_error()
                    .hint_also("`--lock-timeout` sets how long to wait."));
            }
            let phase = format!(
                "waiting for {}, which has dropped keys of the table",
                running.describe_job()
            );
            self.progress.set_phase(Some(phase));
            self.progress.stop.sleep_unless_requested(KEYS_POLL)?;
        }
    }

    /// Takes over changes that earlier loads have not undone. Returns true if the changes of the
    /// plan must not be made.
    fn take_over(&mut self, job: JobId, table: u32) -> Result<bool> {
        let others = self
            .job
            .with_client(async |client: &Client| ledger::adopt_changes(client, job, table).await)?;
        let dropped_keys = self.job.with_client(async |client: &Client| {
            ledger::dropped_keys(client, Some(table), job.0).await
        })?;
        if let Some(first) = dropped_keys.first() {
            return Err(first.to_error());
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
        let outstanding = self.job.with_client(async |client: &Client| {
            ledger::outstanding_changes(client, Some(job.0)).await
        })?;
        self.changes.is_altered = !outstanding.is_empty();
        self.changes.lost_statistics |= outstanding.iter().any(has_expression);
        let is_new = self.job.opened.as_ref().is_none_or(|opened| opened.done.chunks() == 0);
        // Existing rows of the table must be protected by its keys during a new load.
        let keys_protect_rows = is_new
            && !self.changes.maintenance_facts.is_empty
            && self.request.options.rebuild_indexes != AutoChoice::Always
            && outstanding.iter().any(RecordedChange::can_reject_rows);
        // A shadow table gets all indexes of the table, so the table must have them.
        let must_restore = self.request.options.rebuild_indexes == AutoChoice::Never
            || keys_protect_rows
            || self.request.rejects
            || self.plan.atomic_plan.is_some();
        match self.changes.is_altered && must_restore {
            true => {
                self.restore(true).map_err(|error| self.hint_violated_key(error)).map(|()| true)
            }
            false => Ok(self.changes.is_altered),
        }
    }

    /// Adds a hint if rows that the load is to replace violate a key that an earlier load has
    /// dropped. The key cannot be created as long as the table has these rows, so the load does not
    /// try again.
    fn hint_violated_key(&mut self, error: Error) -> Error {
        let is_about_rows = error.sqlstate().is_some_and(|code| code.code().starts_with("23"));
        let replaces = self.plan.atomic_plan.as_ref().is_some_and(|it| it.replaces);
        if !is_about_rows || !replaces {
            return error;
        }
        self.changes.is_altered = false;
        let table = &self.plan.table;
        error.hint(format!(
            "The rows in {table} violate a key that an earlier load has dropped. Run `truncate \
             {table}`, and then the same command again."
        ))
    }

    /// Makes the changes of the plan. If the user has not demanded them, an error is only a
    /// warning.
    fn alter_table(&mut self, job: JobId) -> Result<()> {
        self.progress.set_phase(Some("dropping indexes".to_owned()));
        if let Some(opened) = &mut self.job.opened {
            // If the reply is lost, it is unknown whether the table is changed.
            opened.is_clean = false;
        }
        let facts = self.facts(&self.changes.maintenance_facts);
        let altering = indexes::alter(self.job.connection(), job, facts, self.plan, self.request);
        match self.job.control_session.runtime.block_on(altering) {
            Ok((maintenance, maintenance_facts)) => {
                let mut all = maintenance_facts.indexes.iter().zip(&maintenance.indexes);
                self.changes.lost_statistics = all.any(|(index, choice)| {
                    index.recipe.expression && choice.kept_because.is_none()
                });
                self.changes.is_altered = maintenance.alters_table();
                if self.plan.maintenance.drops_indexes() && !maintenance.drops_indexes() {
                    let why = &maintenance.indexes_reason;
                    self.job.warnings.push(format!("indexes are kept: {why}"));
                }
                let again = self.progress.command_to_resume();
                self.progress.note_table_changes(Some(format!(
                    "indexes or autovacuum of the table are not restored; {again}, restores them, \
                     and so does `pgspate status --restore {}`",
                    job.0
                )));
                self.plan.set_maintenance(maintenance);
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

    /// Returns whether the user demands the changes. If so, the load fails if a change cannot be
    /// made.
    fn are_changes_demanded(&self) -> bool {
        [self.request.options.rebuild_indexes, self.request.options.pause_autovacuum]
            .contains(&AutoChoice::Always)
    }

    /// Removes the changes from the plan, with the reason `why`.
    fn skip_changes(&mut self, why: String) {
        if self.plan.maintenance.drops_indexes() {
            self.job.warnings.push(format!("indexes are kept: {why}"));
        }
        self.plan.cancel_table_changes(&why);
    }
}

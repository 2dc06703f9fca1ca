//! Work on the table after the last row or a failure: restores the table, and reports what could
//! not be restored.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::TableCare;
use super::follow_up::{AfterLoad, analyze};
use super::indexes::{self, LOCK_TIMEOUT_DEMANDED, RowRemoval};
use super::restorer::{self, Restorer};
use crate::copy::{Commit, CopyOutcome};
use crate::job::RetryAfterConnectionLoss;
use crate::numbers::counted;
use crate::plan::AutoChoice;
use crate::{Error, Result};
use pgspate_target::ledger::{self, RecordedChange};
use pgspate_target::session::{ReconnectBackoff, StopFlag};

/// Time that a failed load waits for locks on its table.
const FAILED_LOCK_TIMEOUT: Duration = Duration::from_secs(20);

impl TableCare<'_> {
    /// Undoes all changes to the table, after the last row.
    ///
    /// Returns false if the rows must be copied again. Either an index refused the load's rows, and
    /// the rows were removed; the next attempt finds the bad row with all indexes in place. Or a
    /// server crash has removed chunks.
    pub(crate) fn restore_table(&mut self, chunks: u64) -> Result<bool> {
        let mut backoff = ReconnectBackoff::new(self.job.control_session.limits.retry_for);
        self.changes.is_finishing = true;
        while self.changes.is_altered {
            let started = Instant::now();
            let restored = self.restore(true);
            self.changes.summary.rebuild_seconds += started.elapsed().as_secs_f64();
            match restored {
                Ok(()) => {}
                Err(error) if error.is_retryable() => {
                    self.wait_and_restore_session(error, &mut backoff, self.progress)?;
                    if self.has_lost_chunks(chunks)? {
                        self.changes.is_finishing = false;
                        return Ok(false);
                    }
                }
                Err(error) if !self.may_remove_rows(&error) => return Err(error),
                Err(error) => match self.remove_rows(LOCK_TIMEOUT_DEMANDED) {
                    Ok(Ok(())) => return self.restart_with_indexes().map(|()| false),
                    // The load reports why it must remove the rows, not why it cannot.
                    Ok(Err(_)) => return Err(error),
                    Err(lost) => {
                        self.wait_and_restore_session(lost, &mut backoff, self.progress)?;
                        if self.has_lost_chunks(chunks)? {
                            self.changes.is_finishing = false;
                            return Ok(false);
                        }
                    }
                },
            }
        }
        self.changes.is_finishing = false;
        Ok(true)
    }

    /// Prepares an attempt in which no index is dropped, after the load's rows were removed.
    fn restart_with_indexes(&mut self) -> Result<()> {
        self.changes.is_finishing = false;
        self.restore(true)?;
        self.job.reopen()?;
        self.plan.cancel_table_changes("they could not be created again with the load's rows");
        Ok(())
    }

    /// Advances sequences, and vacuums or analyzes the table, after the last row.
    pub(crate) fn finish(&mut self, outcome: &CopyOutcome) -> Result<()> {
        let before = match &self.job.opened {
            Some(opened) if outcome.chunks_before > 0 => opened.done.rows_written(),
            _ => 0,
        };
        self.changes.summary.after = self.follow_up_with_retry(outcome.rows_written + before)?;
        Ok(())
    }

    /// Vacuums or analyzes the table after all members of a fleet have written `written` rows.
    pub(crate) fn tend(&mut self, written: u64) -> Result<()> {
        let mut after = self.follow_up_with_retry(written)?;
        let earlier = std::mem::take(&mut self.changes.summary.after);
        after.sequences.splice(..0, earlier.sequences);
        after.warnings.splice(..0, earlier.warnings);
        self.changes.summary.after = after;
        Ok(())
    }

    fn follow_up_with_retry(&mut self, written: u64) -> Result<AfterLoad> {
        self.changes.is_finishing = true;
        let after = self.retry_after_connection_loss(self.progress, |care| {
            let done = care.job.control_session.runtime.block_on(care.follow_up(written));
            care.progress.set_phase(None);
            done
        })?;
        self.changes.is_finishing = false;
        Ok(after)
    }

    /// Undoes all changes that the job has recorded. If the load does not continue, because it has
    /// failed, waits only briefly for locks and ignores the user's request to stop.
    pub(super) fn restore(&mut self, load_continues: bool) -> Result<()> {
        self.job.reconnect()?;
        let Some(job) = self.job.id() else { return Ok(()) };
        let changes = self.job.with_client(async |client: &Client| {
            // A failed transaction may still be open.
            let _ = client.batch_execute("rollback").await;
            ledger::forget_changes_of_dropped_tables(client).await?;
            ledger::outstanding_changes(client, Some(job.0)).await
        })?;
        let limit = self.job.control_session.limits.lock_timeout;
        let restorer = Restorer {
            runtime: &self.job.control_session.runtime,
            control: self.job.connection(),
            work: self.work(load_continues),
            lock_timeout: match load_continues {
                true => Some(limit).filter(|limit| !limit.is_zero()),
                false => Some(FAILED_LOCK_TIMEOUT),
            },
            changed_settings: Mutex::default(),
        };
        restorer.run(changes.clone())?;
        let kept = restorer.changed_settings.into_inner().unwrap_or_default();
        let back = changes.iter().filter(|change| kept.is_back(change));
        let names: Vec<String> = back.map(RecordedChange::name).collect();
        self.job.warnings.extend(
            kept.into_settings()
                .map(|what| format!("{what} was changed during the load, and stays as it is")),
        );
        self.changes.is_altered = false;
        self.progress.note_table_changes(None);
        let rebuilt = &mut self.changes.summary.rebuilt;
        rebuilt.extend(names);
        rebuilt.sort();
        rebuilt.dedup();
        Ok(())
    }

    /// Returns whether the load's rows may be removed and copied again after this error. This helps
    /// if a row caused the error. It also helps if there was no space to sort keys: inserting rows
    /// into an existing index needs no sort. Rows are removed only if the load commits at the
    /// end, where a failed load keeps no rows anyway.
    fn may_remove_rows(&self, error: &Error) -> bool {
        let operational = ["08", "40", "42", "53", "55", "57", "58", "XX"];
        self.plan.commit == Commit::AtEnd
            && error.sqlstate().is_some_and(|code| {
                restorer::is_out_of_space(code)
                    || !operational.iter().any(|class| code.code().starts_with(class))
            })
    }

    /// Removes the rows that the job has committed, and its chunks in the ledger. Returns the
    /// reason if the rows stay.
    ///
    /// # Errors
    /// A retryable error if the connection was lost. The rows may be removed then.
    fn remove_rows(&mut self, lock_timeout: &str) -> Result<Result<(), String>> {
        let Some(job) = self.job.id() else { return Ok(Err("there is no ledger".to_owned())) };
        self.progress.set_phase(Some("removing the load's rows".to_owned()));
        let work = indexes::remove_rows(self.job.connection(), job, self.table, lock_timeout);
        let removal = match self.job.control_session.runtime.block_on(work) {
            Err(error) if error.is_retryable() => {
                self.changes.may_have_removed_rows = true;
                return Err(error);
            }
            removal => removal,
        };
        self.changes.may_have_removed_rows = false;
        Ok(match removal {
            Ok(RowRemoval::Done) => Ok(()),
            Ok(RowRemoval::Refused) => Err("foreign keys refer to the table, writing or deleting \
                                            its rows has effects elsewhere, or other rows would be \
                                            removed, too"
                .to_owned()),
            Ok(RowRemoval::Unknown) => {
                Err("they cannot be told from other rows, because some were \
                                            rejected, the table has partitions or row-level \
                                            security, or an extension stores its rows"
                    .to_owned())
            }
            Ok(RowRemoval::ChangedByOthers(rows)) => {
                self.changes.rows_changed_by_others = rows;
                let rows = counted(rows, "row");
                Err(format!("other sessions have changed or deleted {rows}"))
            }
            Err(error) => Err(error.chain()),
        })
    }

    /// Removes the rows that the job has committed, so that all rows are copied again. Returns the
    /// reason if the rows stay.
    ///
    /// # Errors
    /// A retryable error if the connection was lost. The rows may be removed then.
    pub(crate) fn remove_rows_to_start_over(&mut self) -> Result<Result<(), String>> {
        let limit = self.job.control_session.limits.lock_timeout_millis();
        let removed = self.remove_rows(&format!("{limit}ms"))?;
        if removed.is_ok() {
            self.job.reopen()?;
        }
        self.progress.set_phase(None);
        Ok(removed)
    }

    /// Describes where the rows are, after all rows were committed.
    fn describe_committed_rows(&self, error: &Error) -> String {
        let again = self.progress.command_to_resume();
        if self.changes.may_have_removed_rows {
            return format!(
                "The connection was lost while the load removed its rows; {again}, finds out \
                 whether they are in the table"
            );
        }
        let may_be_lost = self.plan.commit == Commit::EachChunk || self.job.crash_removes_rows();
        match error.is_retryable() && may_be_lost {
            // The connection was lost, and the server may have crashed.
            true => format!(
                "Every row was written to the table. The server may have lost some of them in a \
                 crash; {again}, finds out and loads those again"
            ),
            false => "Every row is in the table".to_owned(),
        }
    }

    /// Restores the table after a failure. Returns the error, and whether everything is restored.
    /// If something is not restored, the error has a hint.
    pub(crate) fn restore_after_failure(&mut self, error: Error) -> (Error, bool) {
        let (error, is_restored) = self.undo_after_failure(error);
        let analyzes = self.plan.maintenance.analyze != AutoChoice::Never;
        if !self.changes.lost_statistics || self.changes.is_finishing || !analyzes {
            return (error, is_restored);
        }
        let analysis = async {
            let connection = self.job.connection();
            // A failed transaction may still be open.
            let _ = connection.client.batch_execute("rollback").await;
            analyze(connection, &self.plan.table, &StopFlag::default()).await
        };
        match self.job.control_session.runtime.block_on(analysis) {
            Err(failed) if !failed.is_retryable() => {
                let why = failed.messages().join(": ");
                let hint = format!("Indexes over expressions have lost their statistics: {why}.");
                (error.hint_also(&hint), is_restored)
            }
            // Without the server, the next run of the load analyzes the table.
            _ => (error, is_restored),
        }
    }

    fn undo_after_failure(&mut self, error: Error) -> (Error, bool) {
        let (true, Some(job)) = (self.changes.is_altered, self.job.id()) else {
            let error = match self.changes.is_finishing {
                true => {
                    let kept = self.describe_committed_rows(&error);
                    error.hint_also(&format!("{kept}."))
                }
                false => error,
            };
            return (error, true);
        };
        let how = format!("`pgspate status --restore {}`", job.0);
        let again = self.progress.command_to_resume();
        if self.changes.is_finishing {
            let which = match duplicate_keys_sql(&error, &self.plan.table) {
                Some(sql) => format!("`{sql}` finds duplicate keys. "),
                None => String::new(),
            };
            let hint = match self.changes.rows_changed_by_others {
                0 => format!(
                    "{}, but some of its indexes are missing. {which}{how} creates them, and so \
                     does {again}.",
                    self.describe_committed_rows(&error)
                ),
                rows => format!(
                    "Every row was written to the table, but some of its indexes are missing. The \
                     rows were not removed, because other sessions have changed or deleted {rows} \
                     of them. {which}Correct the rows in the table, and run {how} to create the \
                     indexes. Or empty the table, and load a corrected input."
                ),
            };
            return (error.hint_also(&hint), false);
        }
        let Err(refused) = self.restore(false) else {
            return (error, true);
        };
        let hint = format!(
            "Not everything that was dropped for the load is restored: {refused}. {how} restores \
             the rest, and so does {again}."
        );
        (error.hint_also(&hint), false)
    }
}

/// Returns SQL that finds all duplicate keys, for a unique violation.
fn duplicate_keys_sql(error: &Error, table: &str) -> Option<String> {
    if error.sqlstate() != Some(&SqlState::UNIQUE_VIOLATION) {
        return None;
    }
    // The detail is `Key (a, b)=(1, 2) is duplicated`, in any language.
    let detail = std::error::Error::source(error.refusal()?)?.to_string();
    let (_, key) = detail.split_once('(')?;
    let (key, _) = key.split_once(")=(")?;
    Some(format!("select {key}, count(*) from {table} group by {key} having count(*) > 1"))
}

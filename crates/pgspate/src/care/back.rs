//! After the last row, or after a failure: puts back what was changed, and says what could not be.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::TableCare;
use super::indexes::{self, TakeBack};
use super::restore::{self, Restorer};
use crate::copy::{Commit, CopyOutcome};
use crate::job::RetryWhileAway;
use crate::{Error, Result};
use pgspate_target::ledger::{self, Change};
use pgspate_target::session::Patience;

/// How long a load that has failed waits for locks on its table.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);

impl TableCare<'_> {
    /// Puts back what was changed. False when rows had to be taken back, and the load is to be
    /// done again with every index in its place, which then says what is wrong with which row; or
    /// when a crash of the server has taken some of the chunks.
    pub(crate) fn put_all_back(&mut self, chunks: u64) -> Result<bool> {
        let mut patience = Patience::new(self.job.own.limits.retry_for);
        self.standing.is_finishing = true;
        while self.standing.is_altered {
            let started = Instant::now();
            let restored = self.restore(true);
            self.standing.done.rebuild_seconds += started.elapsed().as_secs_f64();
            match restored {
                Ok(()) => {}
                Err(error) if error.is_retryable() => {
                    self.wait(error, &mut patience, self.progress)?;
                    if self.lacks(chunks)? {
                        self.standing.is_finishing = false;
                        return Ok(false);
                    }
                }
                // What cannot be taken back is no other error.
                Err(error) => match self.may_take_back(&error) && self.take_back() {
                    false => return Err(error),
                    true => return self.begin_over().map(|()| false),
                },
            }
        }
        self.standing.is_finishing = false;
        Ok(true)
    }

    /// After rows were taken back.
    fn begin_over(&mut self) -> Result<()> {
        self.standing.is_finishing = false;
        self.restore(true)?;
        self.job.reopen()?;
        self.plan.alter_nothing("they could not be made again over the rows of the load");
        Ok(())
    }

    /// Counts, vacuums and moves sequences, after the last row.
    pub(crate) fn finish(&mut self, outcome: &CopyOutcome) -> Result<()> {
        let before = match &self.job.opened {
            Some(opened) if outcome.chunks_before > 0 => opened.done.rows_written(),
            _ => 0,
        };
        let written = outcome.rows_written + before;
        self.standing.is_finishing = true;
        self.standing.done.after = self.again(self.progress, |caring| {
            let done = caring.job.own.runtime.block_on(caring.follow_up(written));
            caring.progress.set_phase(None);
            done
        })?;
        self.standing.is_finishing = false;
        Ok(())
    }

    /// Puts back everything that the job has changed. After a failure locks are not waited for for
    /// long, and the user's wish to stop has been heeded.
    pub(super) fn restore(&mut self, is_going_on: bool) -> Result<()> {
        self.job.reconnect()?;
        let Some(job) = self.job.id() else { return Ok(()) };
        let changes = self.job.ask(async |client: &Client| {
            // A transaction that failed may still be open.
            let _ = client.batch_execute("rollback").await;
            ledger::forget_void(client).await?;
            ledger::outstanding(client, Some(job.0)).await
        })?;
        let limit = self.job.own.limits.lock_timeout;
        let restorer = Restorer {
            runtime: &self.job.own.runtime,
            control: self.job.connection(),
            work: self.work(is_going_on),
            lock_patience: match is_going_on {
                true => Some(limit).filter(|limit| !limit.is_zero()),
                false => Some(LOCK_PATIENCE),
            },
        };
        let names: Vec<String> = changes.iter().map(Change::name).collect();
        restorer.run(changes)?;
        self.standing.is_altered = false;
        self.progress.note_altered(None);
        let rebuilt = &mut self.standing.done.rebuilt;
        rebuilt.extend(names);
        rebuilt.sort();
        rebuilt.dedup();
        Ok(())
    }

    /// Whether a row is to blame, or there is no space to sort keys, which rows that come one by
    /// one do not need; and nothing of the load was to be kept if it fails.
    fn may_take_back(&self, error: &Error) -> bool {
        let operational = ["08", "40", "42", "53", "55", "57", "58", "XX"];
        self.plan.commit == Commit::AtEnd
            && error.sqlstate().is_some_and(|code| {
                restore::is_scarce(code)
                    || !operational.iter().any(|class| code.code().starts_with(class))
            })
    }

    fn take_back(&mut self) -> bool {
        let Some(job) = self.job.id() else { return false };
        self.progress.set_phase(Some("taking rows back".to_owned()));
        let work = indexes::take_back(self.job.connection(), job, self.table);
        let taken = self.job.own.runtime.block_on(work).unwrap_or(TakeBack::WouldBeNoticed);
        if let TakeBack::ChangedByOthers(rows) = taken {
            self.standing.rows_changed = rows;
        }
        taken == TakeBack::Done
    }

    /// Of a load all of whose rows are committed.
    fn where_all_rows_are(&self, error: &Error) -> &'static str {
        let may_be_lost = self.plan.commit == Commit::EachChunk || self.job.is_bound();
        match error.is_retryable() && may_be_lost {
            // The server is away, and may have crashed.
            true => {
                "Every row was written to the table, and the same command, run again, finds out \
                 whether a crash of the server has taken any of them, and loads those again. They \
                 are in the table otherwise"
            }
            false => "Every row is in the table",
        }
    }

    /// After a failure: the error, and whether nothing is left changed on the table.
    pub(crate) fn put_back(&mut self, error: Error) -> (Error, bool) {
        let (true, Some(job)) = (self.standing.is_altered, self.job.id()) else {
            let error = match self.standing.is_finishing {
                true => {
                    let kept = self.where_all_rows_are(&error);
                    error.hint_also(&format!("{kept}."))
                }
                false => error,
            };
            return (error, true);
        };
        let how = format!("`pgspate status --restore {}`", job.0);
        if self.standing.is_finishing {
            let which = match twice(&error, &self.plan.table) {
                Some(sql) => format!("`{sql}` finds keys that are there twice. "),
                None => String::new(),
            };
            let hint = match self.standing.rows_changed {
                0 => format!(
                    "{}, but not all of its indexes are. {which}{how} makes the rest, and so does \
                     the same command, run again.",
                    self.where_all_rows_are(&error)
                ),
                rows => format!(
                    "Every row was written to the table. Other sessions have changed or deleted \
                     {rows} of them since, so they were not taken back, and not all indexes are \
                     there. {which}Mend the rows in the table, and {how} makes the rest. Or empty \
                     the table, and load a mended input."
                ),
            };
            return (error.hint_also(&hint), false);
        }
        let Err(refused) = self.restore(false) else {
            return (error, true);
        };
        let hint = format!(
            "What was dropped for the load is not all back: {refused}. {how} makes the rest, and \
             so does the same command, run again."
        );
        (error.hint_also(&hint), false)
    }
}

/// For a key that is there twice: the SQL that finds all of them.
fn twice(error: &Error, table: &str) -> Option<String> {
    if error.sqlstate() != Some(&SqlState::UNIQUE_VIOLATION) {
        return None;
    }
    // `Key (a, b)=(1, 2) is duplicated`, in any language.
    let detail = std::error::Error::source(error.refusal()?)?.to_string();
    let (_, key) = detail.split_once('(')?;
    let (key, _) = key.split_once(")=(")?;
    Some(format!("select {key}, count(*) from {table} group by {key} having count(*) > 1"))
}

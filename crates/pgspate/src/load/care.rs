//! A load's care for its table: what is changed before the first row, and put back after the last.
//!
//! A load whose table was changed ends only when everything is back, also when it fails; where
//! that cannot be done, the ledger knows how, and the error says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::indexes::Taken;
use super::patient::Patient;
use super::restore::{self, Restorer};
use super::{Load, Watch, Widened, after, indexes};
use crate::copy::{Commit, Outcome};
use crate::ledger::{self, Change, Found, JobId};
use crate::plan::When;
use crate::plan::care::{Care, Facts};
use crate::session::{Patience, Stop};
use crate::target::Upkeep;
use crate::{Error, Kind, Result};

/// How long a load that has failed waits for locks on its table.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks whether keys are back.
const KEYS_PAUSE: Duration = Duration::from_millis(500);

/// Where a load stands with what it has changed on its table.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Something is changed, by this run or one before.
    is_altered: bool,
    /// Every row is written.
    pub(super) is_finishing: bool,
    /// The shadow table has taken the table's place.
    pub(super) is_exchanged: bool,
    /// Rows of the load that other sessions have changed, so that none can be taken back.
    rows_changed: u64,
    /// Expression indexes were dropped, and what ANALYZE knew of them.
    lost_statistics: bool,
    /// What is to be told in the end.
    pub(super) done: Done,
}

/// What was done with the table, for the report.
#[derive(Debug, Clone, Default)]
pub(super) struct Done {
    /// Indexes and foreign keys that were made again.
    pub(super) rebuilt: Vec<String>,
    pub(super) rebuild_seconds: f64,
    pub(super) after: after::After,
    pub(super) warnings: Vec<String>,
}

impl Load {
    /// Loads, and puts back what was changed for it.
    pub(super) fn load_with_care(
        &mut self,
        watch: &Arc<Watch>,
        widened: &mut Vec<Widened>,
    ) -> Result<Outcome> {
        loop {
            let (outcome, _) = self.attempts(watch, widened)?;
            if self.put_all_back(outcome.chunks, watch)? {
                return Ok(outcome);
            }
        }
    }

    /// Puts back what was changed. False when rows had to be taken back, and the load is to be
    /// done again with every index in its place, which then says what is wrong with which row; or
    /// when a crash of the server has taken some of the chunks.
    fn put_all_back(&mut self, chunks: u64, watch: &Watch) -> Result<bool> {
        let mut patience = Patience::new(self.options.limits.retry_for);
        self.standing.is_finishing = true;
        while self.standing.is_altered {
            let started = Instant::now();
            let restored = self.restore(watch, true);
            self.standing.done.rebuild_seconds += started.elapsed().as_secs_f64();
            match restored {
                Ok(()) => {}
                Err(error) if error.is_retryable() => {
                    self.wait(error, &mut patience, watch)?;
                    if self.lacks(chunks)? {
                        self.standing.is_finishing = false;
                        return Ok(false);
                    }
                }
                // What cannot be taken back is no other error.
                Err(error) => match self.may_take_back(&error) && self.take_back(watch) {
                    false => return Err(error),
                    true => return self.begin_over(watch).map(|()| false),
                },
            }
        }
        self.standing.is_finishing = false;
        Ok(true)
    }

    /// After rows were taken back.
    fn begin_over(&mut self, watch: &Watch) -> Result<()> {
        self.standing.is_finishing = false;
        self.restore(watch, true)?;
        self.reopen_job()?;
        self.plan.alter_nothing("they could not be made again over the rows of the load");
        Ok(())
    }

    /// Counts, vacuums and moves sequences, after the last row.
    pub(super) fn care_after(&mut self, outcome: &Outcome, watch: &Watch) -> Result<()> {
        let mut patience = Patience::new(self.options.limits.retry_for);
        let before = if outcome.chunks_before == 0 { 0 } else { self.rows_before() };
        let written = outcome.rows_written + before;
        self.standing.is_finishing = true;
        loop {
            let subject = after::Subject {
                table: &self.table,
                upkeep: &self.upkeep,
                plan: &self.plan,
                patient: self.patient(watch, true),
            };
            let lost_statistics = self.standing.lost_statistics;
            let work = after::run(&self.connection, &subject, written, lost_statistics);
            let done = self.runtime.block_on(work);
            watch.copy.set_phase(None);
            match done {
                Ok(done) => {
                    self.standing.done.after = done;
                    self.standing.is_finishing = false;
                    return Ok(());
                }
                Err(error) if error.is_retryable() => self.wait(error, &mut patience, watch)?,
                Err(error) => return Err(error),
            }
        }
    }

    fn job_id(&self) -> Option<JobId> {
        self.opened.as_ref().map(|opened| opened.job)
    }

    /// Drops and switches off what the plan says, unless an earlier run has.
    pub(super) fn prepare_table(&mut self, watch: &Watch) -> Result<()> {
        let mut patience = Patience::new(self.options.limits.retry_for);
        loop {
            let result = self.try_to_prepare(watch);
            watch.copy.set_phase(None);
            match result {
                Err(error) if error.is_retryable() => self.wait(error, &mut patience, watch)?,
                result => return result,
            }
        }
    }

    fn try_to_prepare(&mut self, watch: &Watch) -> Result<()> {
        let is_clean = self.opened.as_ref().is_some_and(|opened| opened.is_clean);
        if !is_clean {
            self.wait_for_keys(watch)?;
        }
        let (Some(job), table) = (self.job_id(), self.table.oid) else { return Ok(()) };
        if !is_clean && self.take_over(job, table, watch)? {
            return Ok(());
        }
        match self.plan.care.alters_table() {
            true => self.alter_table(job, watch),
            false => Ok(()),
        }
    }

    /// Waits while a load that is under way has dropped the table's keys, as long as for a lock:
    /// nothing would refuse a row that both have.
    fn wait_for_keys(&mut self, watch: &Watch) -> Result<()> {
        let (table, job) = (self.table.oid, self.job_id().map_or(0, |job| job.0));
        let (limit, started) = (self.options.limits.lock_timeout, Instant::now());
        loop {
            let down = self
                .ask(async |client: &Client| ledger::keys_down(client, Some(table), job).await)?;
            let Some(busy) = down.iter().find(|it| it.is_under_way()) else {
                // What nobody is at work on a load with a ledger takes over.
                let left = down.first().filter(|_| job == 0);
                return left.map_or(Ok(()), |left| Err(left.refuse()));
            };
            if !limit.is_zero() && started.elapsed() >= limit {
                return Err(with_more(busy.refuse(), "`--lock-timeout` says how long to wait."));
            }
            let phase = format!("waiting for {}, which has dropped keys of the table", busy.who());
            watch.copy.set_phase(Some(phase));
            watch.copy.stop.pause(KEYS_PAUSE)?;
        }
    }

    /// Takes over what earlier loads have changed on the table. Whether that is all there is to do.
    fn take_over(&mut self, job: JobId, table: u32, watch: &Watch) -> Result<bool> {
        let others = self.ask(async |client: &Client| ledger::adopt(client, job, table).await)?;
        let down =
            self.ask(async |client: &Client| ledger::keys_down(client, Some(table), job.0).await)?;
        if let Some(down) = down.first() {
            return Err(down.refuse());
        }
        if let Some(other) = others.first() {
            if self.plan.at_once.is_some() {
                let message = format!("{other} has changed the table, and not put it back yet");
                return Err(Error::new(Kind::Ledger, message)
                    .hint("Wait until it has, or see `pgspate status` for how to."));
            }
            self.leave_table(format!("{other} has changed the table already, and puts it back"));
            return Ok(true);
        }
        let left =
            self.ask(async |client: &Client| ledger::outstanding(client, Some(job.0)).await)?;
        self.standing.is_altered = !left.is_empty();
        let is_new = self.opened.as_ref().is_none_or(|opened| opened.done.chunks() == 0);
        let guards_rows = is_new
            && !self.upkeep.is_empty
            && self.request.rebuild_indexes != When::Always
            && left.iter().any(Change::refuses);
        // A copy of the table is one of all its indexes.
        let must_be_back = self.request.rebuild_indexes == When::Never
            || guards_rows
            || self.request.rejects
            || self.plan.at_once.is_some();
        match self.standing.is_altered && must_be_back {
            true => self.restore(watch, true).map(|()| true),
            false => Ok(self.standing.is_altered),
        }
    }

    fn alter_table(&mut self, job: JobId, watch: &Watch) -> Result<()> {
        watch.copy.set_phase(Some("dropping indexes".to_owned()));
        if let Some(opened) = &mut self.opened {
            // Whether it is still, nobody knows when the answer gets lost.
            opened.is_clean = false;
        }
        let (connection, ask) = (Arc::clone(&self.connection), self.request.clone());
        let (plan, table, upkeep) = (self.plan.clone(), self.table.clone(), self.upkeep.clone());
        let facts = Facts { table: &table, ..self.care_facts(&upkeep) };
        let altering = indexes::alter(&connection, job, facts, &plan, &ask);
        match self.runtime.block_on(altering) {
            Ok((care, upkeep)) => {
                let mut all = upkeep.indexes.iter().zip(&care.indexes);
                self.standing.lost_statistics =
                    all.any(|(index, choice)| index.has_expression && choice.stays.is_none());
                self.standing.is_altered = care.alters_table();
                watch.copy.note_altered(Some(format!(
                    "what was dropped or switched off for the load is not back: run the same \
                     command again, or `pgspate status --restore {}`",
                    job.0
                )));
                self.plan.take_care(care);
                self.upkeep = upkeep;
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
        [self.request.rebuild_indexes, self.request.pause_autovacuum].contains(&When::Always)
    }

    fn leave_table(&mut self, why: String) {
        if self.plan.care.drops_indexes() {
            self.standing.done.warnings.push(format!("indexes stay: {why}"));
        }
        self.plan.alter_nothing(&why);
    }

    /// Plans it, from what table and ledger are like before the load.
    pub(super) fn plan_care(&self) -> Result<Care> {
        Care::make(&self.care_facts(&self.upkeep), &self.plan.columns, &self.request)
    }

    fn care_facts<'a>(&'a self, upkeep: &'a Upkeep) -> Facts<'a> {
        let chunks = match (&self.opened, &self.known.found) {
            (Some(opened), _) => opened.done.chunks(),
            (None, Found::Unfinished(_, chunks, _)) => *chunks,
            _ => 0,
        };
        Facts {
            table: &self.table,
            upkeep,
            input_bytes: self.reading.stored_bytes(),
            is_stream: self.reading.is_stream(),
            bytes_done: chunks * self.plan.chunk_bytes as u64,
            commit: self.plan.commit,
            has_ledger: self.plan.ledger,
            is_at_once: self.plan.at_once.is_some(),
            writer: None,
        }
    }

    pub(super) fn patient<'a>(&'a self, watch: &'a Watch, heeds_cancel: bool) -> Patient<'a> {
        let stop = if heeds_cancel { watch.copy.stop.clone() } else { Stop::default() };
        Patient { dsn: &self.dsn, progress: &watch.copy, stop }
    }

    fn rows_before(&self) -> u64 {
        self.opened.as_ref().map_or(0, |opened| opened.done.rows_written())
    }

    /// Puts back everything that the job has changed. After a failure locks are not waited for for
    /// long, and the user's wish to stop has been heeded.
    fn restore(&mut self, watch: &Watch, is_going_on: bool) -> Result<()> {
        self.reconnect()?;
        let Some(job) = self.job_id() else { return Ok(()) };
        let changes = self.ask(async |client: &Client| {
            // A transaction that failed may still be open.
            let _ = client.batch_execute("rollback").await;
            ledger::forget_void(client).await?;
            ledger::outstanding(client, Some(job.0)).await
        })?;
        let limit = self.options.limits.lock_timeout;
        let restorer = Restorer {
            runtime: &self.runtime,
            control: &self.connection,
            patient: self.patient(watch, is_going_on),
            lock_patience: match is_going_on {
                true => Some(limit).filter(|limit| !limit.is_zero()),
                false => Some(LOCK_PATIENCE),
            },
        };
        let names: Vec<String> = changes.iter().map(Change::name).collect();
        restorer.run(changes)?;
        self.standing.is_altered = false;
        watch.copy.note_altered(None);
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

    fn take_back(&mut self, watch: &Watch) -> bool {
        let Some(job) = self.job_id() else { return false };
        watch.copy.set_phase(Some("taking rows back".to_owned()));
        let work = indexes::take_back(&self.connection, job, &self.table);
        let taken = self.runtime.block_on(work).unwrap_or(Taken::Noticed);
        if let Taken::Changed(rows) = taken {
            self.standing.rows_changed = rows;
        }
        taken == Taken::Back
    }

    /// Of a load all of whose rows are committed.
    fn where_all_rows_are(&self, error: &Error) -> &'static str {
        let is_bound = self.opened.as_ref().is_some_and(|opened| opened.is_bound);
        let may_be_lost = self.plan.commit == Commit::EachChunk || is_bound;
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
    pub(super) fn put_back(&mut self, error: Error, watch: &Watch) -> (Error, bool) {
        let (true, Some(job)) = (self.standing.is_altered, self.job_id()) else {
            let error = match self.standing.is_finishing {
                true => {
                    let kept = self.where_all_rows_are(&error);
                    with_more(error, &format!("{kept}."))
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
            return (with_more(error, &hint), false);
        }
        let Err(refused) = self.restore(watch, false) else {
            return (error, true);
        };
        let hint = format!(
            "What was dropped for the load is not all back: {refused}. {how} makes the rest, and \
             so does the same command, run again."
        );
        (with_more(error, &hint), false)
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

/// The error with one more hint behind those that it has.
pub(super) fn with_more(error: Error, more: &str) -> Error {
    match error.hint_text().map(|hint| format!("{hint} {more}")) {
        Some(hint) => error.hint(hint),
        None => error.hint(more),
    }
}

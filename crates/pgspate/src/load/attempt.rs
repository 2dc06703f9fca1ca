//! Attempts to copy the rows, and decides which errors lead to another attempt.
//!
//! Every attempt skips the chunks that the ledger has, so that no row is written twice.

use std::sync::Arc;
use std::time::Instant;

use tokio_postgres::Client;

use super::{Load, LoadWatch, WidenedColumn, create};
use crate::copy::{
    self, CopyEnd, CopyJob, CopyOutcome, CopySetup, Destination, EarlySession, Lanes, LedgerJob,
    RejectsMax, SessionOpener,
};
use crate::format::EncodeMode;
use crate::job::RetryAfterConnectionLoss;
use crate::plan::{AtomicMethod, LoadPlan};
use crate::{Error, ErrorKind, Result, care};
use pgspate_target::ledger::{ChunkRecorder, OpenJob};
use pgspate_target::session::ReconnectBackoff;
use pgspate_target::{TargetTable, TypedQuery, WrittenTable, server_error, value_settings_sql};

/// The result of an attempt to widen a column.
enum Widening {
    /// The column was widened.
    Done(WidenedColumn),
    /// The error is not about a column that this load can widen.
    Impossible,
    /// The load's rows could not be removed before, for this reason.
    RowsStay(String),
}

impl Load {
    /// Copies the rows. Repeats this after errors that another attempt may avoid.
    pub(super) fn copy_rows(
        &mut self,
        watch: &Arc<LoadWatch>,
        widened: &mut Vec<WidenedColumn>,
    ) -> Result<CopyOutcome> {
        let mut backoff = ReconnectBackoff::new(self.job.control_session.limits.retry_for);
        loop {
            watch.start_over(self.reading.stored_bytes());
            if let Some(OpenJob { done, .. }) = &self.job.opened {
                // Rows of earlier runs may have been removed since the job was opened. Without a
                // reply, only the ledger knows.
                self.chunks_before.keep_only(done);
                self.job.totals_before = self.chunks_before.totals();
                self.table_changes.may_have_removed_rows = false;
                watch.copy.committed.reset_to(done.rows_written(), done.chunks());
            }
            let began = Instant::now();
            self.job.control_session.connection_was_lost = false;
            let attempt = self.attempt(watch);
            if began.elapsed() > self.job.control_session.limits.retry_for {
                // The server was reachable for a while, so the time limit starts again.
                backoff.reset();
            }
            match attempt {
                Ok(CopyEnd::Done(outcome, _)) => return Ok(outcome),
                Ok(CopyEnd::LanesConflict) if self.reading.is_stream() => {
                    return Err(Error::new(ErrorKind::Server, "two rows have the same unique key")
                        .hint("Load with `--lanes 1` to see which rows."));
                }
                Ok(CopyEnd::LanesConflict) => {
                    self.plan.lanes = Lanes::Fixed(1);
                    "two lanes had rows with the same unique key"
                        .clone_into(&mut self.plan.lanes_reason);
                }
                Ok(CopyEnd::NotRoutable(error)) => {
                    self.route_by_coordinator(&error);
                    self.retry_after_connection_loss(&watch.copy, Load::restore_session)?;
                }
                Ok(CopyEnd::Interrupted(error)) => {
                    self.wait_and_restore_session(error, &mut backoff, &watch.copy)?
                }
                Err(error) if self.reading.late_key(&error).is_some() => {
                    match self.add_late_key(error, watch) {
                        Err(lost) if lost.is_retryable() => {
                            self.wait_and_restore_session(lost, &mut backoff, &watch.copy)?
                        }
                        added => added?,
                    }
                }
                Err(error) => match self.widen_column(&error, watch) {
                    Ok(Widening::Done(step)) => widened.push(step),
                    Ok(Widening::Impossible) => return Err(error),
                    Ok(Widening::RowsStay(why)) => {
                        let hint = format!(
                            "The column was not widened, because the load could not remove its \
                             rows: {why}."
                        );
                        return Err(error.hint_also(&hint));
                    }
                    Err(lost) if lost.is_retryable() => {
                        self.wait_and_restore_session(lost, &mut backoff, &watch.copy)?
                    }
                    Err(refused) => return Err(refused),
                },
            }
        }
    }

    fn attempt(&mut self, watch: &Arc<LoadWatch>) -> Result<CopyEnd> {
        let job = match self.resolve_own_prepared().and_then(|()| self.copy_job()) {
            Ok(job) => job,
            Err(error) if error.is_retryable() => return Ok(CopyEnd::Interrupted(error)),
            Err(error) => return Err(error),
        };
        let cutter = self.reading.cutter(&self.plan.rows, watch, self.inputs_side_by_side());
        copy::run(&job, cutter, &watch.copy, &self.job.control_session.runtime)
    }

    /// Returns how many inputs are cut side by side, if threads read them ahead: one for each lane,
    /// as far as there are processors. One lane writes the rows in the order of the inputs.
    fn inputs_side_by_side(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        match self.plan.one_statement {
            true => 1,
            false => self.plan.lanes.max().min(processors),
        }
    }

    fn copy_job(&mut self) -> Result<CopyJob> {
        let rejects_max = self.options.rejects_max.unwrap_or(RejectsMax::Any);
        let (reading, rows) = (self.reading.clone(), self.plan.rows.clone());
        let (version, ignores) = (self.session.server_version, self.request.rows.ignore_unknown);
        let table = self.written_table()?;
        Ok(CopyJob {
            early_session: std::mem::take(&mut self.early_session),
            session_opener: self.session_opener(),
            setup: self.copy_setup(),
            control_connection: Some(Arc::clone(&self.job.control_session.connection)),
            make_encoder: reading.encoder(&rows, &self.table, version, ignores)?,
            mode: rows.mode,
            one_statement: self.plan.one_statement,
            lanes: self.plan.lanes,
            table_name: self.table.name.clone(),
            columns: rows.column_names(),
            input_names: reading.names(),
            may_skip_rows: self.plan.may_skip_rows,
            storage: self.table.storage.facts(),
            is_stream: reading.is_stream(),
            commit: self.plan.commit,
            ledger: self.job.opened.as_ref().map(|opened| LedgerJob {
                recorder: ChunkRecorder {
                    job: opened.job,
                    table: table.clone(),
                    crash_removes_rows: opened.crash_removes_rows,
                },
                written_chunks: opened.done.clone(),
                chunks_before: self.chunks_before.clone(),
                rejects_max: self.options.rejects.as_ref().map(|_| rejects_max),
            }),
            check_unchanged: Box::new(move |read| reading.check_unchanged(&rows, read)),
            destination: Destination::Table { table, surrounding: self.surrounding_sql()? },
            shard_route: self.shard_route(),
        })
    }

    /// Returns the table that COPY writes into: the shadow or the table.
    fn written_table(&self) -> Result<WrittenTable> {
        let sql_name = care::copy_target_name(&self.plan, &self.table, self.job.opened.as_ref());
        let binary_columns = self.plan.rows.binary_columns();
        if !self.is_swap() {
            let oid = self.created_oid.unwrap_or(self.table.oid);
            return Ok(WrittenTable { sql_name, oid, binary_columns });
        }
        let failed = server_error(format!("could not look up the shadow table {sql_name}"));
        let look = "select to_regclass($1)::oid";
        let oid = self.job.with_client(async |client: &Client| {
            client.fetch_one(look, &[&sql_name]).await.map_err(failed)
        })?;
        // COPY reports a missing shadow.
        let oid = oid.get::<_, Option<u32>>(0).unwrap_or_default();
        Ok(WrittenTable { sql_name, oid, binary_columns })
    }

    /// Widens the column whose value was refused, if this load created the table and the input can
    /// be read again.
    ///
    /// Rows that the load has committed are removed before, and copied again: in the narrower type,
    /// values such as `0.50` have lost their spelling. Without those rows, a load gives the same
    /// table however it commits.
    fn widen_column(&mut self, error: &Error, watch: &Arc<LoadWatch>) -> Result<Widening> {
        let Some(new) = self.new_table.clone() else { return Ok(Widening::Impossible) };
        if self.reading.is_stream() || create::wider_type(&new, &self.table, error).is_none() {
            return Ok(Widening::Impossible);
        }
        self.job.reopen()?;
        if self.job.opened.as_ref().is_some_and(|opened| opened.done.chunks() > 0)
            && let Err(why) = self.table_care(watch).remove_rows_to_start_over()?
        {
            return Ok(Widening::RowsStay(why));
        }
        let widen = create::widen(self.job.connection(), &new, &self.table, error);
        let Some(widened) = self.job.control_session.runtime.block_on(widen)? else {
            return Ok(Widening::Impossible);
        };
        let table = TargetTable::read(self.job.client(), &self.table.sql_name);
        if let Some(table) = self.job.control_session.runtime.block_on(table)? {
            self.table = table;
        }
        self.plan_again()?;
        Ok(Widening::Done(widened))
    }

    /// Plans the columns again, and keeps the planned lanes and changes to the table.
    pub(super) fn plan_again(&mut self) -> Result<()> {
        let lanes = (self.plan.lanes, self.plan.lanes_reason.clone());
        let maintenance = std::mem::take(&mut self.plan.maintenance);
        let facts = self.reading.facts();
        self.plan = LoadPlan::make(&self.table, &self.session, &facts, &self.request)?;
        (self.plan.lanes, self.plan.lanes_reason) = lanes;
        self.plan.set_maintenance(maintenance);
        Ok(())
    }

    /// Returns the opener of the lanes' sessions.
    pub(super) fn session_opener(&self) -> SessionOpener {
        let name = format!("pgspate load {}", self.table.name);
        SessionOpener::new(&self.job.control_session.dsn, name)
    }

    /// Returns the settings and COPY statements of the lanes' sessions.
    pub(super) fn copy_setup(&self) -> CopySetup {
        let target = care::copy_target_name(&self.plan, &self.table, self.job.opened.as_ref());
        CopySetup {
            text_sql: self.plan.copy_sql(EncodeMode::Text, &target),
            binary_sql: self.plan.copy_sql(EncodeMode::Binary, &target),
            limits: self.options.limits,
            value_settings: value_settings_sql(&self.session),
            lock_key: self.job.lock_key(),
            commits_across_nodes: self.table.commits_across_nodes,
            has_other_work: false,
        }
    }

    /// Starts to open the first lane's session in the background. Does nothing for a shadow table,
    /// whose name is known only once the job is open.
    pub(super) fn open_early_session(&mut self) {
        if !self.is_swap() {
            self.early_session = EarlySession::start(
                self.session_opener(),
                self.copy_setup(),
                &self.job.control_session.runtime,
            );
        }
    }

    /// Returns whether the plan writes to a shadow table.
    pub(super) fn is_swap(&self) -> bool {
        self.plan
            .atomic_plan
            .as_ref()
            .is_some_and(|atomic_plan| atomic_plan.method == AtomicMethod::Swap)
    }
}

//! Loads an input into a table.
//!
//! [`prepare`] inspects the inputs and the table, and plans the load. [`Load::run`] executes the
//! plan through [`copy`](crate::copy). A load that fails leaves the table as it was, unless the
//! load commits each chunk.

pub(crate) mod add_columns;
mod attempt;
pub(crate) mod create;
mod empty_copy;
mod failure;
mod files;
mod late_keys;
mod ledger_job;
mod member;
mod prepare;
mod reject_flags;
mod rejects;
mod replace;
mod report;
mod routing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub use crate::reading::LoadWatch;
pub use add_columns::AddedColumn;
pub use create::{NewTable, NewTableOptions, WidenedColumn};
pub use files::{ChangedFiles, FileCounts};
pub use prepare::prepare;
pub use report::{LoadReport, PlanReport};

use add_columns::ColumnsToAdd;

use crate::care::{self, TableCare};
use crate::copy::{CopyOutcome, EarlySession, RejectsMax};
use crate::fleet::MemberOptions;
use crate::job::{ControlSession, JobSession, RetryAfterConnectionLoss};
use crate::plan::{self, LoadPlan, PlanRequest};
use crate::reading::{self, SniffedInputs};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{JobLookup, OpenMember, OpenOptions, WrittenChunks};
use pgspate_target::measure::wal_position;
use pgspate_target::session::WaitLimits;
use pgspate_target::{SessionSettings, TargetTable};

/// The input of a load, its table and its options.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// The sources, and how to read them.
    pub reading: reading::ReadingOptions,
    /// The table's name in SQL. The default is the name of the sources, if it is the
    /// same for all of them.
    pub table: Option<String>,
    /// Options of the plan, such as the number of lanes.
    pub plan: plan::PlanOptions,
    /// Create the table if it is missing.
    pub create: bool,
    /// How the table is created.
    pub new_table: NewTableOptions,
    /// What to do with files that have changed since they were loaded.
    pub changed: ChangedFiles,
    /// Whether no rows may replace the rows of the table.
    pub may_empty: bool,
    /// Load from the beginning, even if the ledger knows an earlier run.
    pub restart: bool,
    /// The file for rejected rows. Without a file, the load stops at the first bad row.
    pub rejects: Option<PathBuf>,
    /// The number of rows that may be rejected; any number by default.
    pub rejects_max: Option<RejectsMax>,
    /// Timeouts.
    pub limits: WaitLimits,
    /// Which member of a fleet the load is, if any.
    pub fleet: MemberOptions,
}

/// A load that is ready to run.
pub struct Load {
    options: LoadOptions,
    reading: SniffedInputs,
    session: SessionSettings,
    table: TargetTable,
    new_table: Option<NewTable>,
    /// The columns that are to be added to the table.
    to_add: Option<ColumnsToAdd>,
    /// The columns that this load has added.
    added_columns: Vec<AddedColumn>,
    /// The oid of the new table, once this run or an interrupted earlier run has created it.
    created_oid: Option<u32>,
    request: PlanRequest,
    plan: LoadPlan,
    /// The number of connections that the server could accept when the load was prepared.
    free_connections: i64,
    /// How many files are new, skipped and changed.
    files: FileCounts,
    job: JobSession,
    /// Chunks that earlier runs of the job have written.
    chunks_before: WrittenChunks,
    /// The first lane's session, if that session was opened in advance.
    early_session: EarlySession,
    /// The lock that prevents other loads from writing the file of rejects.
    rejects_guard: Option<rejects::RejectsFileGuard>,
    table_changes: care::TableChanges,
    /// The member's attempt, once it is recorded, if the load is a member of a fleet.
    member: Option<OpenMember>,
    /// What the last member of the fleet does for the table.
    tending: member::TableTending,
}

impl RetryAfterConnectionLoss for Load {
    fn control_session(&self) -> &ControlSession {
        &self.job.control_session
    }

    fn restore_session(&mut self) -> Result<()> {
        self.job.restore_session()
    }
}

impl Load {
    /// Returns the plan.
    pub fn plan(&self) -> &LoadPlan {
        &self.plan
    }

    /// Returns the plan for `--json`.
    pub fn plan_report(&self) -> PlanReport {
        PlanReport::new(self)
    }

    /// Returns the facts that were found about the input, in words.
    pub fn evidence(&self) -> &[String] {
        &self.reading.sniffed.evidence
    }

    /// Returns the table that the load will create; `None` if the table exists.
    pub fn new_table(&self) -> Option<&NewTable> {
        self.new_table.as_ref().filter(|_| self.created_oid.is_none())
    }

    /// Returns the statement that adds columns to the table, if the load will add columns.
    pub fn add_columns_sql(&self) -> Option<String> {
        self.to_add.as_ref().filter(|_| !self.is_loaded()).map(ColumnsToAdd::sql)
    }

    /// Returns the plan as text. Before it comes what was found about the input, and the SQL for a
    /// new table or new columns. After it comes what the ledger knows about earlier runs.
    pub fn describe_plan(&self) -> String {
        let evidence = self.evidence().iter().map(|found| format!("input    {found}\n"));
        let created = self.new_table().map(|new| new.sql.clone());
        let statements = [created, self.add_columns_sql()].into_iter().flatten();
        let earlier = self.earlier_runs().map(|earlier| format!("ledger   {earlier}\n"));
        evidence
            .chain(statements.map(|sql| format!("{sql};\n")))
            .chain([self.plan().to_string()])
            .chain(earlier)
            .collect()
    }

    /// Loads the input. Blocks until everything is committed or rolled back.
    ///
    /// # Errors
    /// An error that names the input and the table. Its cause is the first refusal in input order,
    /// or another error that ended the load.
    pub fn run(mut self, watch: &Arc<LoadWatch>) -> Result<LoadReport> {
        // A member claims its sources by their complete identities.
        self.job.complete_identity(&watch.copy)?;
        self.open_member(watch)?;
        let record_failure = self.failure_recorder();
        self.run_to_end(watch).inspect_err(record_failure)
    }

    fn run_to_end(mut self, watch: &Arc<LoadWatch>) -> Result<LoadReport> {
        watch.copy.is_restarted.store(self.options.restart, Relaxed);
        if let Some(report) = self.report_if_loaded(watch)? {
            return Ok(report);
        }
        if let Some(to_add) = self.to_add.clone() {
            let added = to_add.add(&mut self, &watch.copy);
            match added.map_err(|error| self.explain_failure(error, watch))? {
                true => self.added_columns = to_add.columns,
                false if self.reading.is_stream() => {
                    return Err(add_columns::added_meanwhile_error(&self.plan.table));
                }
                false => return self.prepare_again()?.run(watch),
            }
        }
        self.open_early_session();
        let wal_before = self.job.control_session.runtime.block_on(wal_position(self.job.client()));
        let mut widened = Vec::new();
        let outcome = match self.execute(watch, &mut widened) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return self.prepare_again()?.run(watch),
            Err(error) => return Err(self.explain_failure(error, watch)),
        };
        let seconds = self.reading.began.elapsed().as_secs_f64();
        let wal_after = self.job.control_session.runtime.block_on(wal_position(self.job.client()));
        let wal_bytes = wal_after.zip(wal_before).and_then(|(now, then)| now.checked_sub(then));
        let fleet = self.report_member(watch);
        Ok(LoadReport::new(&self, outcome, watch, widened, seconds, wal_bytes).of_member(fleet))
    }

    /// Returns the number of rows that earlier runs of the job have rejected.
    fn rejected_before(&self) -> u64 {
        match self.job.opened.is_some() {
            true => self.job.totals_before.rows_rejected,
            false => self.job.earlier_rejects(),
        }
    }

    /// Prepares the load again, after another run has loaded or begins to load some of its files. A
    /// member of a fleet keeps its session, which holds the member's lock.
    fn prepare_again(self) -> Result<Load> {
        if self.reading.is_stream() || self.member.is_some() {
            let message = "another load has begun to load some of these files";
            return Err(Error::new(ErrorKind::Ledger, message)
                .hint("Wait until that load is done. Then run the same command again."));
        }
        let Load { options, job, .. } = self;
        let ControlSession { dsn, runtime, connection, .. } = job.control_session;
        // The server may notice late that this session has ended. Its locks must be free before the
        // next session asks for them. If the connection is lost, the server frees them by itself.
        let unlock = connection.client.batch_execute("select pg_advisory_unlock_all()");
        let _ = runtime.block_on(unlock);
        prepare(options, dsn, &runtime)
    }

    /// Returns `None`, so that the load is prepared again, if another session has created the table
    /// meanwhile. Rows that can be read only once need another run.
    ///
    /// # Errors
    /// `error`, with which the table's creation failed.
    fn give_way_to_creator(&mut self, error: Error) -> Result<Option<CopyOutcome>> {
        let (session, table) = (&self.job.control_session, &self.table.sql_name);
        let reading = create::read_created_meanwhile(&session.connection, table, error);
        session.runtime.block_on(reading)?;
        if self.reading.is_stream() || self.member.is_some() {
            let message = match self.job.control_session.connection_was_lost {
                false => "another session has created the table meanwhile",
                true => {
                    "the connection was lost while the table was created; by now this load or \
                     another session has created the table"
                }
            };
            return Err(Error::new(ErrorKind::Plan, message).hint("Run the same command again."));
        }
        Ok(None)
    }

    /// Returns the report, if the ledger says that the input is already loaded.
    fn report_if_loaded(&mut self, watch: &LoadWatch) -> Result<Option<LoadReport>> {
        let JobLookup::Finished(finished) = &self.job.ledger_state.found else { return Ok(None) };
        let writes_rejects = self.write_rejects_again(&finished.jobs)?;
        let fleet = self.report_member(watch);
        let report = LoadReport::new(self, CopyOutcome::default(), watch, Vec::new(), 0.0, None);
        Ok(Some(LoadReport { writes_rejects, ..report }.of_member(fleet)))
    }

    /// Borrows the parts of the load that `care` needs.
    fn table_care<'a>(&'a mut self, watch: &'a LoadWatch) -> TableCare<'a> {
        TableCare {
            changes: &mut self.table_changes,
            job: &mut self.job,
            table: &self.table,
            session: &self.session,
            input: self.reading.facts(),
            request: &mut self.request,
            plan: &mut self.plan,
            progress: &watch.copy,
        }
    }

    /// Prepares the table, copies the rows, restores the table and marks the job as finished.
    /// Returns `None` and changes nothing if the load must be prepared again.
    fn execute(
        &mut self,
        watch: &Arc<LoadWatch>,
        widened: &mut Vec<WidenedColumn>,
    ) -> Result<Option<CopyOutcome>> {
        let tries_first = self.new_table.is_none() && self.needs_empty_copy();
        match self.new_table {
            Some(_) if self.created_oid.is_none() => {
                let created = self.retry_after_connection_loss(&watch.copy, Load::create_table);
                if let Err(error) = created {
                    return self.give_way_to_creator(error);
                }
            }
            None if tries_first => self.try_empty_copy()?,
            _ => {}
        }
        let oid = self.created_oid.unwrap_or(self.table.oid);
        let options = OpenOptions {
            restart: self.options.restart,
            has_created_table: self.created_oid.is_some(),
            in_transaction: false,
        };
        if self.job.identity.is_some()
            && self.job.opened.is_none()
            && !self.job.open(oid, options, &watch.copy)?
        {
            return Ok(None);
        }
        if self.new_table.is_some() {
            self.retry_after_connection_loss(&watch.copy, Load::read_new_sequences)?;
        }
        if let (Some(path), Some(opened)) = (&self.options.rejects, &self.job.opened) {
            let guard = rejects::lock_rejects_file(path, opened.job.0, &self.reading.names())?;
            self.rejects_guard = Some(guard);
        }
        if let Some(opened) = &self.job.opened {
            self.chunks_before = opened.done.clone();
        }
        self.table_care(watch).prepare()?;
        self.table_care(watch).prepare_shadow()?;
        loop {
            let mut outcome = self.copy_rows(watch, widened)?;
            if !self.table_care(watch).restore_table(outcome.chunks)? {
                continue;
            }
            let identity = self.job.identity.take();
            self.job.identity = identity.map(|it| it.with_contents(&outcome.contents));
            if outcome.chunks == 0 && self.new_table.is_none() && !tries_first {
                // The input had no chunk, so no COPY has checked permissions on the table.
                self.try_empty_copy()?;
            }
            self.retry_after_connection_loss(&watch.copy, |load| load.write_rejects())?;
            self.check_not_emptied_by(&outcome)?;
            if !self.table_care(watch).complete_shadow(outcome.chunks)? {
                continue;
            }
            self.table_care(watch).finish(&outcome)?;
            if self.finish_job(&mut outcome, watch)? {
                return Ok(Some(outcome));
            }
        }
    }
}

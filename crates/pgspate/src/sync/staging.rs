//! Stages the rows of the source in one session, or in several sessions that share the rows.
//!
//! Staging writes no row to the table, so there is no job in the ledger. A failed copy begins again
//! with the first row.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;

use super::SyncOptions;
use super::ahead::TableReadAhead;
use super::created_table::CreatedTable;
use crate::copy::{
    self, CopyEnd, CopyJob, CopyOutcome, Destination, EarlySession, LaneSession, PIECE_BYTES,
    ReadySession,
};
use crate::encode::Encoded;
use crate::fleet::FleetEntry;
use crate::format::EncodeMode;
use crate::job::{ControlSession, RetryAfterConnectionLoss};
use crate::load::add_columns::ColumnsToAdd;
use crate::load::create::{self, check_typed_columns};
use crate::plan::{RowPlan, RowRequest, hint_date_format};
use crate::reading::{
    LoadWatch, MakeEncoder, SniffedInputs, StageCopy, Survey, check_constants, hint_value,
    missing_table_error, name_lock_holder, parse_name,
};
use crate::stage::known_rows::KnownRowFilter;
use crate::stage::{self, StageTable};
use crate::{Error, ErrorKind, Result, did_you_mean};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::check_no_dropped_keys;
use pgspate_target::session::ReconnectBackoff;
use pgspate_target::{SessionSettings, TargetTable, suggest_table};

/// Maximum stored bytes of a source that is staged in the control session. The server needs more
/// CPU time for a second session than for the rows of a smaller source. For a larger source, the
/// control session shows meanwhile what the copy waits for.
const ONE_SESSION_BYTES_MAX: u64 = 16 << 20;

/// Which rows of the source are staged, and in how many sessions.
pub(super) enum StagedRows {
    /// All rows, in one session.
    All,
    /// All rows, with one session for each condition. A session keeps the rows for which its
    /// condition is true. Exactly one condition is true for each row.
    Shared(Vec<String>),
    /// Only the rows that were not found in the table read ahead. One session stages these rows in
    /// the snapshot of the reading, and keeps its transaction open.
    Missing(TableReadAhead),
}

/// The source, the table to sync, and the plan for staging.
pub(super) struct Staging {
    pub(super) control_session: ControlSession,
    pub(super) reading: SniffedInputs,
    session: SessionSettings,
    pub(super) table: TargetTable,
    /// The columns that are to be added to the table.
    pub(super) to_add: Option<ColumnsToAdd>,
    request: RowRequest,
    pub(super) plan: RowPlan,
    pub(super) stage: StageTable,
    pub(super) rows: StagedRows,
}

impl Staging {
    /// Reads the first bytes of the source, looks up the table or creates it, and plans the rows.
    /// Also returns the table if it was created. Blocks the calling thread.
    ///
    /// # Errors
    /// The errors of [`Survey::take`]. [`ErrorKind::Plan`] if the table does not exist, if it is a
    /// view, or if row-level security may hide rows of it. The errors of [`RowPlan::make`] if the
    /// source does not fit the table.
    pub(super) fn prepare(
        options: &SyncOptions,
        dsn: Dsn,
        fleet: Option<FleetEntry>,
        runtime: &Handle,
    ) -> Result<(Staging, Option<CreatedTable>)> {
        let table = options.table.as_deref();
        let survey =
            Survey::take(&options.reading, table, options.limits, dsn, fleet, false, runtime)?;
        let Survey {
            control_session, mut reading, session, name, table, rows: mut request, ..
        } = survey;
        let types = &options.new_table.types;
        reading.name_columns(types);
        let (mut table, created) = match table {
            Some(table) => (table, None),
            None => create_table(&control_session, &name, &reading.inferred, options)?,
        };
        check_can_compare(&table)?;
        let to_add = match &created {
            None => {
                let connection = &control_session.connection;
                let unused = create::unused_choices(connection, &table, &options.new_table);
                reading.unused_options = runtime.block_on(unused)?;
                let adding =
                    ColumnsToAdd::plan(connection, &mut table, &reading, &mut request, types);
                runtime.block_on(adding)?
            }
            Some(created) => {
                request.guessed_columns = created.new.guessed_columns().to_vec();
                None
            }
        };
        if request.add_columns {
            check_typed_columns(&table, &reading.inferred, types)?;
        }
        let plan = RowPlan::make(&table, &session, &reading.facts(), &request);
        let mut plan = plan.map_err(|error| reading.hint_header(error))?;
        runtime.block_on(check_constants(&control_session.connection, &mut plan))?;
        if options.keeps_last {
            // In binary mode, rows that go as text would be staged after the chunk's other rows.
            plan.mode = EncodeMode::Text;
        }
        let columns = plan.columns.iter().map(|column| column.name.as_str());
        let stage = StageTable::of(&table, columns, options.keeps_last);
        let stage = stage.for_source(reading.stored_bytes().filter(|_| !reading.is_stream()));
        let rows = StagedRows::All;
        let staging = Staging {
            control_session,
            reading,
            session,
            table,
            to_add,
            request,
            plan,
            stage,
            rows,
        };
        Ok((staging, created))
    }

    /// Returns the error for a column of the scope that the source does not have.
    pub(super) fn missing_scope_column(&self, name: &str) -> Error {
        let message = format!("column \"{name}\" of the scope is not in the source");
        let is_in_table = self.table.columns.iter().any(|column| column.name == name);
        let hint = if is_in_table {
            Some(format!("Give the rows of the source a value with `--set {name}=...`."))
        } else {
            did_you_mean("column", name, self.plan.columns.iter().map(|it| it.name.as_str()))
        };
        Error::new(ErrorKind::Usage, message).hint_if(hint)
    }

    /// Explains the server's error about a predicate of `--scope` that was tried on the source,
    /// if the predicate has a column that only the table has.
    pub(super) fn explain_scope_error(&self, error: Error) -> Error {
        let is_staged = |name: &str| self.plan.columns.iter().any(|it| it.name == name);
        let messages = error.messages();
        let is_unknown = |name: &str| {
            let quoted = format!("\"{name}\"");
            messages.iter().any(|message| message.contains(&quoted))
        };
        let missing =
            self.table.columns.iter().find(|it| !is_staged(&it.name) && is_unknown(&it.name));
        match missing {
            Some(column) if error.sqlstate() == Some(&SqlState::UNDEFINED_COLUMN) => {
                self.missing_scope_column(&column.name)
            }
            // The server's hint names the stage, which the user does not see.
            _ => match error.hint_text().map(|hint| hint.replace("\"source.", "\"")) {
                Some(hint) => error.hint(hint),
                None => error,
            },
        }
    }

    /// Refuses the sync if a load has dropped keys, before rows are staged. The transaction of a
    /// single session checks again, but cannot upgrade the ledger. A member has upgraded it.
    pub(super) fn check_keys_early(&mut self, is_check: bool, watch: &LoadWatch) -> Result<()> {
        let is_member = self.control_session.fleet.is_some();
        if !self.has_one_session() || is_member || is_check {
            return Ok(());
        }
        let oid = self.table.oid;
        let checked = self.control_session.retry_after_connection_loss(&watch.copy, |session| {
            session.with_client(async |client| check_no_dropped_keys(client, oid).await)
        });
        checked.map_err(|error| self.explain_failure(error))
    }

    /// Stages the rows. Returns the sessions that hold them, and the result of the copy.
    pub(super) fn stage(
        &mut self,
        watch: &Arc<LoadWatch>,
    ) -> Result<(Vec<LaneSession>, CopyOutcome)> {
        let (outcome, sessions) =
            self.copy_rows(watch).map_err(|error| self.explain_failure(error))?;
        let is_committed = self.ahead().is_some() || outcome.chunks > 0;
        for LaneSession { connection, .. } in sessions.iter().filter(|_| !is_committed) {
            // Without rows, nothing was committed. A session may have begun a transaction.
            let ended =
                self.control_session.runtime.block_on(connection.client.batch_execute("commit"));
            ended.map_err(|error| connection.explain("could not stage rows", error))?;
        }
        match sessions.is_empty() {
            true => Err(Error::new(ErrorKind::Bug, "the session with the staged rows was closed")),
            false => Ok((sessions, outcome)),
        }
    }

    /// Copies the rows to the stage. Copies again after errors that another attempt may avoid.
    fn copy_rows(&mut self, watch: &Arc<LoadWatch>) -> Result<(CopyOutcome, Vec<LaneSession>)> {
        let mut backoff = ReconnectBackoff::new(self.control_session.limits.retry_for);
        loop {
            watch.start_over(self.reading.stored_bytes());
            watch.copy.set_phase(None);
            let began = Instant::now();
            let attempt = match self.copy_job() {
                Ok(job) => {
                    let cutter = self.reading.cutter(&self.plan, watch, 1);
                    copy::run(&job, cutter, &watch.copy, &self.control_session.runtime)
                }
                Err(error) if error.is_retryable() => Ok(CopyEnd::Interrupted(error)),
                // This asks the control session, which is given up below.
                Err(error) => {
                    Err(self.control_session.runtime.block_on(self.name_lock_holder(error)))
                }
            };
            if self.has_one_session() && !matches!(attempt, Ok(CopyEnd::Done(..))) {
                // The session may be in the middle of a COPY.
                self.control_session.connection.abandon("staging has failed");
            }
            if began.elapsed() > self.control_session.limits.retry_for {
                // The server was reachable for a while, so the time limit starts again.
                backoff.reset();
            }
            match attempt {
                Ok(CopyEnd::Done(outcome, sessions)) => return Ok((outcome, sessions)),
                Ok(CopyEnd::LanesConflict) => {
                    return Err(Error::new(
                        ErrorKind::Server,
                        "the sessions that stage rows wait for each other",
                    ));
                }
                // If the table was read ahead, its snapshot is lost with the session, so the copy
                // is not repeated.
                Ok(CopyEnd::Interrupted(error)) if self.ahead().is_none() => {
                    self.control_session.wait_and_restore_session(
                        error,
                        &mut backoff,
                        &watch.copy,
                    )?;
                }
                Ok(CopyEnd::Interrupted(error) | CopyEnd::NotRoutable(error)) | Err(error) => {
                    return Err(error);
                }
            }
        }
    }

    fn copy_job(&self) -> Result<CopyJob> {
        let make_encoder = self.make_encoder()?;
        let (make_encoder, destination) = match &self.rows {
            StagedRows::All => (make_encoder, Destination::Stage { where_conditions: Vec::new() }),
            StagedRows::Shared(conditions) => {
                (make_encoder, Destination::Stage { where_conditions: conditions.clone() })
            }
            StagedRows::Missing(TableReadAhead { known, snapshot, .. }) => {
                let known = Arc::clone(known);
                let make_filter: MakeEncoder = Box::new(move || {
                    Box::new(KnownRowFilter::new(make_encoder(), Arc::clone(&known)))
                });
                let before = format!(
                    "set transaction isolation level repeatable read; \
                     set transaction snapshot '{snapshot}'; \
                     lock table {} in access share mode nowait",
                    self.table.sql_name
                );
                (make_filter, Destination::OpenTransaction { before, is_partial: true })
            }
        };
        let copy = StageCopy {
            dsn: &self.control_session.dsn,
            limits: self.control_session.limits,
            reading: &self.reading,
            plan: &self.plan,
            session: &self.session,
            table: &self.table,
            stage: stage::STAGE_NAME,
            relation: stage::STAGE_RELATION,
        };
        let mut job = copy.job(make_encoder, destination);
        job.session_opener =
            job.session_opener.with_stage(&self.stage, self.control_session.limits);
        let control = &self.control_session.connection;
        if !self.has_one_session() {
            return Ok(CopyJob { control_connection: Some(Arc::clone(control)), ..job });
        }
        job.setup.has_other_work = true;
        let runtime = &self.control_session.runtime;
        let ready = runtime.block_on(async {
            self.stage.create_in(&control.client, &self.control_session.limits).await?;
            ReadySession::of_connection(Arc::clone(control), &job.setup).await
        })?;
        Ok(CopyJob { early_session: EarlySession::from_open(ready, runtime), ..job })
    }

    /// Returns whether the transaction that writes locks the table before its snapshot, against
    /// loads that drop its keys. A lock of a partitioned table would lock each partition, and Citus
    /// would lock the table on each node.
    pub(super) fn locks_table(&self) -> bool {
        self.table.kind == 'r' && !self.table.commits_across_nodes
    }

    /// Returns whether the control session also stages the rows, compares and writes. Its own
    /// transaction cannot see keys that are dropped after the snapshot, so the table is locked.
    pub(super) fn has_one_session(&self) -> bool {
        matches!(self.rows, StagedRows::All) && self.locks_table() && self.is_small()
    }

    /// Returns whether the source has few bytes. Then temporary space is not looked up.
    pub(super) fn is_small(&self) -> bool {
        !self.reading.is_stream()
            && self.reading.stored_bytes().is_some_and(|bytes| bytes <= ONE_SESSION_BYTES_MAX)
    }

    /// Adds which sessions lock the table to the error of a lock that was not granted in time.
    pub(super) async fn name_lock_holder(&self, error: Error) -> Error {
        let ControlSession { connection, limits, .. } = &self.control_session;
        name_lock_holder(&connection.client, self.table.oid, limits, error).await
    }

    fn explain_failure(&self, error: Error) -> Error {
        let message =
            format!("could not sync {} with {}", self.table.sql_name, self.reading.title());
        let error = self.control_session.runtime.block_on(self.name_lock_holder(error));
        let kind = error.kind();
        let error = match &self.to_add {
            Some(to_add) => to_add.hint_type(error),
            None => create::hint_chosen_type(error, &self.table),
        };
        let error = hint_date_format(error, &self.plan.columns, &self.reading.facts());
        Error::new(kind, message).because(self.reading.hint_title(hint_value(error, &self.plan)))
    }

    fn make_encoder(&self) -> Result<MakeEncoder> {
        let version = self.session.server_version;
        self.reading.encoder(&self.plan, &self.table, version, self.request.ignore_unknown)
    }

    /// Encodes the first rows of the source, and returns them.
    pub(super) fn first_rows(&self, watch: &Arc<LoadWatch>) -> Result<Encoded> {
        let (mut encoder, mut out) = (self.make_encoder()?(), Encoded::default());
        if let Some(chunk) = self.reading.cutter(&self.plan, watch, 1).next()? {
            encoder.begin(Arc::new(chunk), EncodeMode::Binary)?;
            encoder.fill(&mut out, PIECE_BYTES)?;
        }
        Ok(out)
    }

    /// Returns the table that was read ahead, if it was.
    pub(super) fn ahead(&self) -> Option<&TableReadAhead> {
        match &self.rows {
            StagedRows::Missing(ahead) => Some(ahead),
            StagedRows::All | StagedRows::Shared(_) => None,
        }
    }

    /// Returns whether several sessions share the rows.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.rows, StagedRows::Shared(_))
    }

    /// Returns whether all rows are sent as text, so that the server parses every value.
    pub(super) fn is_text(&self) -> bool {
        self.plan.mode == EncodeMode::Text
    }

    /// Returns the stored bytes of the source, or 0 if they are unknown.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.reading.stored_bytes().unwrap_or_default()
    }

    /// Returns the control connection. It has the stage if [`Staging::has_one_session`].
    pub(super) fn control(&self) -> &Connection {
        &self.control_session.connection
    }
}

/// Creates the missing table `name` for the inferred columns of the source. Returns the table alone
/// if another session has created it meanwhile.
///
/// # Errors
/// The error for a missing table, without `--create`. The errors of [`CreatedTable::create`].
fn create_table(
    control_session: &ControlSession,
    name: &str,
    columns: &[(String, String)],
    options: &SyncOptions,
) -> Result<(TargetTable, Option<CreatedTable>)> {
    let ControlSession { connection, dsn, runtime, .. } = control_session;
    let name = runtime.block_on(parse_name(connection, name))?;
    if !options.create {
        let hint = "`--create` creates the table with types that fit the source.";
        let error = missing_table_error(&name).hint(hint);
        return Err(runtime.block_on(suggest_table(&connection.client, &name, error)));
    }
    CreatedTable::create(connection, &name, columns, options, (dsn.clone(), runtime.clone()))
}

/// Checks that the target is a table, all of whose rows this role sees. The sync would count a row
/// that a policy hides as absent: it would insert the row again, and say that the table equals the
/// source.
///
/// # Errors
/// [`ErrorKind::Plan`] if the target is a view or has rules, or if row-level security applies to
/// this role.
pub(crate) fn check_can_compare(table: &TargetTable) -> Result<()> {
    if table.kind == 'v' {
        let message = format!("{} is a view, and sync writes only into tables", table.sql_name);
        return Err(Error::new(ErrorKind::Plan, message).hint("Sync the table behind it."));
    }
    table.check_no_rule()?;
    if !table.row_security {
        return Ok(());
    }
    let message = format!(
        "row-level security of {} applies to this role and may hide rows of the table",
        table.sql_name
    );
    Err(Error::new(ErrorKind::Plan, message)
        .hint("Sync as a role that sees all rows: `alter role ... bypassrls`."))
}

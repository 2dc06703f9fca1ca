//! Makes a scope of a table equal to a source, writing only the differences.
//!
//! The source is staged in a temporary table. Then one transaction deletes rows that the source
//! does not have, updates rows that differ, and inserts missing rows. Unchanged rows are only read:
//! they cause no lock, no WAL and no dead row version. A reader sees the old rows or the new rows.
//! If several sessions share the scopes, this holds for each scope.

mod ahead;
mod attempts;
mod columns;
mod created_table;
pub(crate) mod fleet_job;
mod member;
mod refusal;
mod report;
mod script;
mod session_part;
mod shares;
mod staging;
mod statements;
mod swap_values;
mod transactions;
mod vacuum;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::time::timeout;

pub use refusal::SyncRefusal;
pub use report::{Examples, SyncReport};
pub use script::SyncScript;
pub(crate) use staging::check_can_compare;
pub use statements::Scope;

use crate::copy::{CopyOutcome, LaneSession};
use crate::fleet::MemberOptions;
use crate::job::{ControlSession, RetryAfterConnectionLoss};
use crate::load::NewTableOptions;
use crate::load::add_columns::{ColumnsToAdd, added_meanwhile_error};
use crate::plan::AutoChoice;
use crate::reading::{self, InputOrigin, LoadWatch};
use crate::stage::{self, temp_space::TempSpace};
use crate::{Error, ErrorKind, Result};
use ahead::{HeldSnapshot, TableExtent, TableReadAhead};
use attempts::SyncAttempts;
use columns::SyncColumns;
use created_table::CreatedTable;
use fleet_job::FleetJobRows;
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::OpenMember;
use pgspate_target::measure::Measurement;
use pgspate_target::session::{ReconnectBackoff, WaitLimits};
use shares::ScopeShares;
use staging::{StagedRows, Staging};
use statements::SyncStatements;
use transactions::{CommittedTransactions, TransactionSplit};

/// The user's options: the source, the table, and how to compare and write.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// The source, and how to read it.
    pub reading: reading::ReadingOptions,
    /// The table's name in SQL. The default is the name of the sources, if it is the
    /// same for all of them.
    pub table: Option<String>,
    /// Create the table if it is missing.
    pub create: bool,
    /// How the table is created. Without a primary key, the key becomes the primary key.
    pub new_table: NewTableOptions,
    /// Number of sessions that share the scopes of [`Scope::By`].
    pub lanes: usize,
    /// The timeouts for locks, for replies and for retries.
    pub limits: WaitLimits,
    /// Columns that identify a row. The default is the primary key's columns.
    pub key: Vec<String>,
    /// The table's rows to compare with the source.
    pub scope: Scope,
    /// Columns that are not compared. An update writes these columns only if another column of the
    /// row differs.
    pub ignored: Vec<String>,
    /// Maximum percentage of the scope's rows that may be deleted.
    pub max_delete: f64,
    /// Whether a source without rows may delete all rows of the scope.
    pub may_empty: bool,
    /// Whether the last of several source rows with the same key is written. If false, a source
    /// with such rows is refused.
    pub keeps_last: bool,
    /// Whether to read the table first, and to stage only rows that the table does not have.
    pub read_ahead: AutoChoice,
    /// Whether to report differences without writing.
    pub is_check: bool,
    /// Whether to vacuum the table after each transaction that updated or deleted rows.
    pub vacuums: bool,
    /// Number of consecutive transactions that write the scopes of [`Scope::By`].
    pub transactions: usize,
    /// Price of a million I/Os, for the estimate in the report.
    pub price_per_million: f64,
    /// Which member of a fleet the sync is, if any.
    pub fleet: MemberOptions,
}

impl Default for SyncOptions {
    fn default() -> SyncOptions {
        SyncOptions {
            reading: reading::ReadingOptions::default(),
            table: None,
            create: false,
            new_table: NewTableOptions::default(),
            lanes: 1,
            limits: WaitLimits::default(),
            key: Vec::new(),
            scope: Scope::NoDelete,
            ignored: Vec::new(),
            max_delete: 50.0,
            may_empty: false,
            keeps_last: false,
            read_ahead: AutoChoice::default(),
            is_check: false,
            vacuums: false,
            transactions: 1,
            price_per_million: 0.20,
            fleet: MemberOptions::default(),
        }
    }
}

/// A sync that is ready to run.
pub struct PreparedSync {
    /// The table, if this sync has created it.
    created: Option<CreatedTable>,
    staging: Staging,
    options: SyncOptions,
    columns: SyncColumns,
    evidence: Vec<String>,
    /// Whether scopes are assigned to sessions by date or time columns. Then the server must not
    /// parse the values of these columns, because `now` differs between sessions.
    shares_by_time: bool,
    /// The split of the differences into several transactions, if there are several.
    split: Option<TransactionSplit>,
    /// Transactions that were committed by a failed attempt that read the table ahead.
    committed: CommittedTransactions,
    /// Server counters from before the failed attempt.
    before: Option<Measurement>,
    /// Size of the table, if it is to be read ahead of the source.
    extent: Option<TableExtent>,
    /// The member's attempt, once it is recorded, if the sync is a member of a fleet.
    member: Option<OpenMember>,
    /// The job of a distributed engine such as Spark, if its rows are the source.
    fleet_job: Option<FleetJobRows>,
    runtime: Handle,
}

/// Reads the first bytes of the source, looks up the table, and returns a sync that is ready to
/// run. Changes nothing, except that a missing table is created if the options ask for it. Blocks
/// the calling thread, which must not belong to `runtime`.
///
/// # Errors
/// The errors of [`load::prepare`](crate::load::prepare). [`ErrorKind::Usage`] or
/// [`ErrorKind::Plan`] if columns or scopes do not fit the table and the source.
pub fn prepare(mut options: SyncOptions, dsn: Dsn, runtime: &Handle) -> Result<PreparedSync> {
    if matches!(&options.reading.origin, InputOrigin::Sources(sources) if sources.is_empty()) {
        return Err(Error::new(ErrorKind::Usage, "no source is named"));
    }
    if options.transactions > 1 && options.lanes > 1 {
        let message = "`--lanes` and `--transactions` cannot be combined";
        return Err(
            Error::new(ErrorKind::Usage, message).hint("Leave out `--lanes` or `--transactions`.")
        );
    }
    if options.is_check && options.reading.rows.add_columns {
        let message = "`--add-columns` and `--check` cannot be combined: a check changes nothing";
        return Err(Error::new(ErrorKind::Usage, message).hint("Leave out `--add-columns`."));
    }
    options.new_table.check_use(options.create, options.reading.rows.add_columns)?;
    let fleet = member::prepare(&mut options)?;
    let (mut staging, created) = Staging::prepare(&options, dsn, fleet, runtime)?;
    let columns = runtime.block_on(columns::classify_columns(&staging, &options))?;
    let mut evidence = staging.reading.sniffed.evidence.clone();
    let (lanes, transactions) = (options.lanes, options.transactions);
    let (mut shares_by_time, mut split) = (false, None);
    if lanes > 1 || transactions > 1 {
        match runtime.block_on(choose_shares(&staging, &options, &columns))? {
            Ok(shares) if lanes > 1 => {
                shares_by_time = shares.has_time_columns;
                staging.rows = StagedRows::Shared(shares.conditions(lanes));
            }
            Ok(shares) => split = Some(TransactionSplit { shares, count: transactions }),
            Err(reason) if lanes > 1 => evidence.push(format!("one session: {reason}")),
            Err(reason) => evidence.push(format!("one transaction: {reason}")),
        }
    }
    let (runtime, committed) = (runtime.clone(), CommittedTransactions::default());
    let mut sync = PreparedSync {
        created,
        staging,
        options,
        columns,
        evidence,
        shares_by_time,
        split,
        committed,
        before: None,
        extent: None,
        member: None,
        fleet_job: None,
        runtime,
    };
    let chosen = sync.runtime.block_on(ahead::choose_extent(&sync));
    sync.extent = chosen.map_err(|error| sync.explain_failure(error))?;
    if let (Some(to_add), Some(_)) = (&sync.staging.to_add, sync.extent) {
        // No row of the table has the new columns, and reading them would fail.
        sync.extent = None;
        let name = &to_add.columns[0].name;
        sync.evidence.push(format!(
            "the table is not read ahead in this run: it does not have column \"{name}\" yet"
        ));
    }
    Ok(sync)
}

/// Returns how sessions or transactions can share the scopes, or the reason why they cannot.
async fn choose_shares(
    staging: &Staging,
    options: &SyncOptions,
    columns: &SyncColumns,
) -> Result<Result<ScopeShares, String>> {
    let Scope::By(names) = &options.scope else {
        return Ok(Err("only the scopes of `--scope-by` can be shared".to_owned()));
    };
    let storage = staging.table.storage.facts();
    if let (Some(extension), false) = (storage.extension, storage.has_row_addresses) {
        return Ok(Err(format!("{extension} stores the table's rows")));
    }
    // With several transactions, the rows are divided after staging, when all values are parsed.
    let server_parses_values =
        options.transactions <= 1 && (staging.is_text() || staging.reading.is_stream());
    let (client, table) = (&staging.control().client, &staging.table);
    shares::choose(client, table, names, &columns.key, server_parses_values).await
}

impl PreparedSync {
    /// Returns whether a source without rows is refused, because it would delete all rows of the
    /// scope.
    fn must_have_rows(&self) -> bool {
        matches!(self.options.scope, Scope::All | Scope::Where(_)) && !self.options.may_empty
    }

    /// Returns the table's name in SQL.
    pub fn table(&self) -> &str {
        &self.staging.table.sql_name
    }

    /// Returns facts about the input, and the reason if there is only one session or transaction.
    pub fn evidence(&self) -> &[String] {
        &self.evidence
    }

    /// Returns the SQL statements of the sync, for `--plan`.
    pub fn statements(&self) -> Vec<String> {
        let statements = self.build_statements();
        let mut all: Vec<String> = self.staging.to_add.iter().map(ColumnsToAdd::sql).collect();
        all.push(statements.diff());
        let (deletes, updates) = self.allowed_writes();
        all.extend(deletes.then(|| statements.delete()));
        all.extend(updates.then(|| statements.update()));
        all.push(statements.insert());
        all
    }

    /// Returns whether rows may be deleted, and whether they may be updated.
    fn allowed_writes(&self) -> (bool, bool) {
        let has_more = self.columns.set().next().is_some();
        match self.options.scope {
            Scope::By(_) | Scope::Where(_) | Scope::All => (true, has_more),
            Scope::NoDelete => (false, has_more),
            Scope::InsertOnly => (false, false),
        }
    }

    /// Makes the scope equal to the source. Blocks until everything is committed or rolled back.
    ///
    /// # Errors
    /// If staging fails, if the server refuses a statement, if the source has duplicate keys, or if
    /// more rows would be deleted than `max_delete` allows. After an error the table is unchanged,
    /// except for scopes that this sync has committed already.
    pub fn run(mut self, watch: &Arc<LoadWatch>) -> Result<SyncReport> {
        let created = self.created.take();
        let done = self.run_with_member(watch);
        let Some(mut created) = created else { return done };
        match done {
            Ok(report) => {
                created.keep();
                Ok(SyncReport { created: true, ..report })
            }
            Err(error) => Err(created.drop_after(error)),
        }
    }

    fn run_with_member(mut self, watch: &Arc<LoadWatch>) -> Result<SyncReport> {
        self.open_member(&watch.copy)?;
        let record_failure = self.failure_recorder();
        let to_add = self.staging.to_add.clone();
        if let Some(to_add) = &to_add
            && !to_add.add(&mut self.staging.control_session, &watch.copy)?
        {
            return Err(added_meanwhile_error(self.table()));
        }
        let done = self.run_to_end(watch).inspect_err(record_failure);
        match (done, to_add) {
            (done, None) => done,
            (Ok(report), Some(ColumnsToAdd { columns, .. })) => {
                Ok(SyncReport { added_columns: columns, ..report })
            }
            (Err(error), Some(to_add)) => Err(to_add.hint_stays(error)),
        }
    }

    fn run_to_end(mut self, watch: &Arc<LoadWatch>) -> Result<SyncReport> {
        let started = Instant::now();
        self.staging.check_keys_early(self.options.is_check, watch)?;
        if !self.staging.is_small() {
            let reading = TempSpace::read(self.staging.control(), &self.staging.table);
            let space = self.runtime.block_on(reading)?;
            // The stored bytes of a compressed source are a lower bound of the staged bytes.
            space
                .check(self.staging.stored_bytes())
                .map_err(|error| self.explain_failure(error))?;
        }
        if let Some(extent) = self.extent {
            match self.run_with_read_ahead(extent, watch, started)? {
                Some(report) => return Ok(report),
                None => self.staging.rows = StagedRows::All,
            }
        }
        self.run_with_all_rows(watch, started)
    }

    /// Stages only rows that the table does not have, and compares them with the table's rows that
    /// the source does not have.
    ///
    /// Returns `None` if all rows must be staged: because reading ahead saves no time, because a
    /// check needs the whole source, or because an error occurred. If the error persists, the
    /// attempt with all rows reports it.
    fn run_with_read_ahead(
        &mut self,
        extent: TableExtent,
        watch: &Arc<LoadWatch>,
        started: Instant,
    ) -> Result<Option<SyncReport>> {
        let runtime = self.runtime.clone();
        let holder = runtime.block_on(until_cancelled(watch, &[], ahead::open_session(self)));
        let Some(holder) = self.some_unless_failed(holder)? else { return Ok(None) };
        let result = self.run_with_snapshot(extent, &holder, watch, started);
        // A lost connection of the holder may mean that the control connection is lost, too.
        let _ = self.staging.control_session.reconnect();
        let limit = self.options.limits.stall_timeout;
        runtime.block_on(async {
            let unlocked = timeout(limit, attempts::unlock_scope(&holder, self)).await;
            if !matches!(unlocked, Ok(Ok(()))) {
                // The server may not have noticed that the holder's connection is lost. Until the
                // holder's backend ends, its lock would block the writing session.
                self.staging.control().terminate_lost_backend(holder.backend_pid()).await;
            }
        });
        result
    }

    /// Runs a sync with a table that is read ahead. `holder` is the session that exports the
    /// snapshot and holds the lock on the scope.
    fn run_with_snapshot(
        &mut self,
        extent: TableExtent,
        holder: &Connection,
        watch: &Arc<LoadWatch>,
        started: Instant,
    ) -> Result<Option<SyncReport>> {
        let runtime = self.runtime.clone();
        watch.copy.set_phase(Some("reading the table".to_owned()));
        let read = self.read_ahead(extent, holder, watch);
        let read = self.some_unless_failed(read)?;
        let Some((ahead, before)) = read.flatten() else { return Ok(None) };
        self.staging.rows = StagedRows::Missing(ahead);
        let staged = self.staging.stage(watch);
        // The session with the stage now has its own lock and snapshot.
        let limit = self.options.limits.stall_timeout;
        let releasing = async { drop(timeout(limit, ahead::release_snapshot(holder)).await) };
        runtime.block_on(releasing);
        // An error of staging names the table already.
        let Some((sessions, outcome)) = some_unless_failed(staged)? else { return Ok(None) };
        if self.staging.ahead().is_none_or(|ahead| ahead.known.is_useless()) {
            return Ok(None);
        }
        let (stage_seconds, written) = (started.elapsed().as_secs_f64(), Instant::now());
        let work = SyncAttempts::new(self, &sessions, outcome.bytes_sent, watch);
        let mut work = work.resuming(before, CommittedTransactions::default());
        let (connections, attempt) = (connections(&sessions), work.locked_attempt());
        let done = runtime.block_on(until_cancelled(watch, &connections, attempt));
        let (has_begun, committed, before) = (work.has_begun, work.committed, work.before);
        (self.committed, self.before) = (committed, before);
        let is_final = |error: &Error| has_begun && !attempts::may_succeed_with_all_rows(error);
        match done {
            Err(error) if is_final(&error) => Err(self.explain_failure(error)),
            done => Ok(self.some_unless_failed(done)?.map(|mut report| {
                report.set_seconds(stage_seconds, written.elapsed(), None);
                report
            })),
        }
    }

    /// Reads the table while the session `holder` keeps the snapshot. Returns `None` if reading
    /// ahead saves no time.
    fn read_ahead(
        &self,
        extent: TableExtent,
        holder: &Connection,
        watch: &Arc<LoadWatch>,
    ) -> Result<Option<(TableReadAhead, Option<Measurement>)>> {
        let runtime = &self.runtime;
        let sessions = [holder];
        if extent.needs_probe() {
            let first = self.staging.first_rows(watch)?;
            let probing = ahead::saves_time(self, holder, &first);
            if !runtime.block_on(until_cancelled(watch, &sessions, probing))? {
                return Ok(None);
            }
        }
        let holding = until_cancelled(watch, &sessions, ahead::hold_snapshot(self, holder));
        let HeldSnapshot { snapshot, before } = runtime.block_on(holding)?;
        let connecting = until_cancelled(watch, &[], ahead::connect_readers(self, extent));
        let readers = runtime.block_on(connecting)?;
        let sessions: Vec<_> = readers.iter().map(|reader| reader.connection.as_ref()).collect();
        let reading = ahead::read_table(self, &readers, &snapshot);
        let known = runtime.block_on(until_cancelled(watch, &sessions, reading))?;
        Ok(Some((TableReadAhead { snapshot, known: Arc::new(known) }, before)))
    }

    /// Stages all rows of the source, compares and writes.
    fn run_with_all_rows(mut self, watch: &Arc<LoadWatch>, started: Instant) -> Result<SyncReport> {
        let staged = self.stage(watch);
        let (mut sessions, outcome) = staged.map_err(|error| self.committed.explain(error))?;
        self.runtime.block_on(self.stage_fleet_job(&mut sessions))?;
        let stage_seconds = started.elapsed().as_secs_f64();
        let found = self
            .staging
            .control_session
            .retry_after_connection_loss(&watch.copy, ControlSession::restore_session);
        found.map_err(|error| self.explain_failure(error))?;
        let mut backoff = ReconnectBackoff::new(self.options.limits.retry_for);
        let runtime = self.runtime.clone();
        let written = Instant::now();
        let (committed, before) = (mem::take(&mut self.committed), self.before.take());
        let (vacuumed, mut known) = (committed.written.vacuum_seconds, committed.transactions);
        let work = SyncAttempts::new(&self, &sessions, outcome.bytes_sent, watch);
        let mut work = work.resuming(before, committed);
        let mut may_insert_again = true;
        let mut report = loop {
            let attempt = work.attempt();
            match runtime.block_on(until_cancelled(watch, &connections(&sessions), attempt)) {
                Ok(report) => break report,
                Err(error)
                    if attempts::is_transient_conflict(&error) && !is_any_closed(&sessions) =>
                {
                    let is_cancelled = || watch.copy.is_cancelled();
                    if work.committed.transactions > known {
                        known = work.committed.transactions;
                        backoff.reset();
                    }
                    if !backoff.wait(is_cancelled) && !is_cancelled() {
                        return Err(self.explain_failure(error));
                    }
                }
                Err(error)
                    if session_part::is_refused_as_duplicate(&error)
                        && mem::take(&mut may_insert_again) => {}
                Err(error) => return Err(self.explain_failure(error)),
            }
        };
        report.set_seconds(stage_seconds, written.elapsed(), vacuumed);
        Ok(report)
    }

    /// Stages all rows. Returns the sessions that hold them, and the result of the copy.
    fn stage(&mut self, watch: &Arc<LoadWatch>) -> Result<(Vec<LaneSession>, CopyOutcome)> {
        let is_unchanged = self.committed.is_empty();
        let hint_space =
            |error| stage::hint_space(error, watch.copy.sent.load(Relaxed), is_unchanged);
        let staged = self.staging.stage(watch).map_err(hint_space);
        let server_parsed_nothing = match &staged {
            Ok((_, outcome)) => outcome.rows_as_text == 0,
            Err(error) => error.kind() == ErrorKind::Cancelled,
        };
        if !self.shares_by_time || server_parsed_nothing {
            return staged;
        }
        // Each session parses `now` at another time, so a row could belong to no share, or to two
        // shares. One session stages all rows instead.
        drop(staged);
        self.staging.rows = StagedRows::All;
        self.staging.stage(watch).map_err(hint_space)
    }

    /// Returns "at least " if the count comes from one of several sessions.
    fn at_least(&self) -> &'static str {
        if self.staging.is_shared() { "at least " } else { "" }
    }

    fn build_statements(&self) -> SyncStatements<'_> {
        SyncStatements {
            table: &self.staging.table.sql_name,
            storage: self.staging.table.storage.facts(),
            columns: &self.columns,
            scope: &self.options.scope,
            keeps_last: self.options.keeps_last,
            was_read_ahead: self.staging.ahead().is_some(),
            split: self.split.as_ref(),
            transaction: None,
        }
    }

    /// Returns the number of source rows that were not staged, because the table has these rows.
    fn known_rows(&self) -> u64 {
        self.staging.ahead().map_or(0, |ahead| ahead.known.matched())
    }

    fn explain_failure(&self, error: Error) -> Error {
        let error = self.runtime.block_on(self.staging.name_lock_holder(error));
        Error::new(error.kind(), format!("could not sync {}", self.table())).because(error)
    }

    /// Turns errors into `None` like [`some_unless_failed`], and names the table in other errors.
    fn some_unless_failed<T>(&self, result: Result<T>) -> Result<Option<T>> {
        some_unless_failed(result).map_err(|error| self.explain_failure(error))
    }
}

/// Turns every error into `None`, except the user's request to stop, which stays an error.
fn some_unless_failed<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind() != ErrorKind::Cancelled => Ok(None),
        done => done.map(Some),
    }
}

fn connections(sessions: &[LaneSession]) -> Vec<&Connection> {
    sessions.iter().map(|session| &*session.connection).collect()
}

fn is_any_closed(sessions: &[LaneSession]) -> bool {
    sessions.iter().any(|session| session.connection.is_closed())
}

/// Runs `work`. If the user stops the sync, its statements are cancelled and rolled back.
async fn until_cancelled<T>(
    watch: &LoadWatch,
    connections: &[&Connection],
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let cancellers: Vec<_> = connections.iter().map(|it| it.canceller()).collect();
    watch.copy.stop.cancel_on_stop(&cancellers, work).await
}

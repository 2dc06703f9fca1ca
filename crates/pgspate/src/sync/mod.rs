//! A scope of a table made equal to a source: only what differs is written.
//!
//! The source is staged in a temporary table; then one transaction deletes what the source does
//! not have, updates what differs and inserts what is missing. Unchanged rows are read and nothing
//! else: no lock, no WAL, no dead version. A reader sees the old rows or the new ones; where
//! sessions share the scopes, of each scope.

mod ahead;
mod columns;
mod doubt;
mod exchange;
mod part;
mod report;
mod script;
mod shares;
mod staging;
mod statements;
mod turns;
mod vacuum;
mod write;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::time::timeout;

pub use doubt::SyncRefusal;
pub use report::{Examples, SyncReport};
pub use script::Script;
pub use statements::Scope;

use crate::copy::{LaneSession, CopyOutcome};
use crate::job::{OwnSession, RetryWhileAway};
use crate::plan::AutoChoice;
use crate::reading::{self, InputOrigin, LoadWatch};
use crate::stage::{self, keys, space::TempSpace};
use crate::{Error, ErrorKind, Result};
use ahead::{TableReadAhead, TableExtent, HeldSnapshot};
use columns::SyncColumns;
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::distributed_by;
use pgspate_target::measure::Measurement;
use pgspate_target::session::{Limits, Patience};
use shares::ScopeShares;
use staging::{StagedRows, Staging};
use statements::SyncStatements;
use turns::{CommittedTransactions, TransactionSplit};
use write::SyncAttempts;

/// From here on COPY takes a condition.
const HAS_COPY_WHERE: u32 = 120_000;

/// What to make equal to what.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// The source, and how to read it.
    pub reading: reading::ReadingOptions,
    /// The table, as SQL writes it; by default named after the first source.
    pub table: Option<String>,
    /// So many sessions share the scopes of [`Scope::By`].
    pub lanes: usize,
    /// How long to wait for what may never come.
    pub limits: Limits,
    /// The columns that identify a row; the primary key's by default.
    pub key: Vec<String>,
    /// The rows that are to be as in the source.
    pub scope: Scope,
    /// SyncColumns that are not compared, and written only with a row of which something else
    /// differs.
    pub ignored: Vec<String>,
    /// At most such a share of the scope may be deleted, in percent.
    pub max_delete: f64,
    /// A source without rows may empty the scope.
    pub may_empty: bool,
    /// Of rows with the same key the last one counts; they are refused otherwise.
    pub keeps_last: bool,
    /// Whether to read the table first, and to stage only rows that it does not have.
    pub read_ahead: AutoChoice,
    /// Change nothing; say what differs.
    pub is_check: bool,
    /// Vacuum the table when rows of it were updated or deleted, after each transaction.
    pub vacuums: bool,
    /// Write the scopes of [`Scope::By`] in so many transactions, one after the other.
    pub transactions: usize,
    /// What a million I/Os cost, for the estimate in the report.
    pub price_per_million: f64,
}

impl Default for SyncOptions {
    fn default() -> SyncOptions {
        SyncOptions {
            reading: reading::ReadingOptions::default(),
            table: None,
            lanes: 1,
            limits: Limits::default(),
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
        }
    }
}

/// A sync that is ready to run.
pub struct PreparedSync {
    staging: Staging,
    options: SyncOptions,
    columns: SyncColumns,
    evidence: Vec<String>,
    /// Scopes are told apart by moments, too: the server must not be left to read these.
    shares_moments: bool,
    /// What differs is written in several transactions.
    turns: Option<TransactionSplit>,
    /// What an attempt that failed has committed of them.
    committed: CommittedTransactions,
    /// What was counted before it.
    before: Option<Measurement>,
    /// What there is of the table to be read ahead, if it is to be.
    extent: Option<TableExtent>,
    runtime: Handle,
}

/// Looks at source and table. Changes nothing. Blocks; call it from a thread that is not one of
/// `runtime`'s.
///
/// # Errors
/// As [`load::prepare`](crate::load::prepare); and columns or scopes that do not fit the table and
/// the source.
pub fn prepare(options: SyncOptions, dsn: Dsn, runtime: &Handle) -> Result<PreparedSync> {
    if matches!(&options.reading.origin, InputOrigin::Sources(sources) if sources.is_empty()) {
        return Err(Error::new(ErrorKind::Usage, "no source is named"));
    }
    if options.transactions > 1 && options.lanes > 1 {
        let message = "sessions and transactions cannot both share the scopes";
        return Err(
            Error::new(ErrorKind::Usage, message).hint("Leave `--lanes` or `--transactions` out.")
        );
    }
    let mut staging = Staging::prepare(&options, dsn, runtime)?;
    let columns = runtime.block_on(sort_columns(&staging, &options))?;
    let mut evidence = staging.reading.sniffed.evidence.clone();
    let (lanes, transactions) = (options.lanes, options.transactions);
    let (mut shares_moments, mut turns) = (false, None);
    if lanes > 1 || transactions > 1 {
        match runtime.block_on(share(&staging, &options, &columns))? {
            Ok(shares) if lanes > 1 => {
                shares_moments = shares.has_moments;
                staging.rows = StagedRows::Shared(shares.conditions(lanes));
            }
            Ok(shares) => turns = Some(TransactionSplit { shares, count: transactions }),
            Err(reason) if lanes > 1 => evidence.push(format!("one session: {reason}")),
            Err(reason) => evidence.push(format!("one transaction: {reason}")),
        }
    }
    let (runtime, committed, before, extent) = (runtime.clone(), CommittedTransactions::default(), None, None);
    let mut sync = PreparedSync {
        staging,
        options,
        columns,
        evidence,
        shares_moments,
        turns,
        committed,
        before,
        extent,
        runtime,
    };
    sync.extent = sync.runtime.block_on(ahead::extent(&sync))?;
    Ok(sync)
}

/// Which columns are keys, and what is done with the others.
async fn sort_columns(staging: &Staging, options: &SyncOptions) -> Result<SyncColumns> {
    let (table, client) = (&staging.table, &staging.control().client);
    if options.vacuums && !vacuum::is_allowed(staging.control(), table.oid).await? {
        let message = format!("this role may not vacuum {}", table.sql_name);
        return Err(Error::new(ErrorKind::Plan, message)
            .hint("Leave `--vacuum` out, or run it as the table's owner."));
    }
    let lenient = keys::lenient(client, table).await?;
    let key = match options.key.is_empty() {
        false => options.key.clone(),
        true => keys::primary_key(client, table).await?,
    };
    let is_unique = columns::is_unique(client, table, &key).await?;
    let keeper = distributed_by(client, table).await?;
    if let (Some(keeper), false) = (keeper, is_unique) {
        let message = format!(
            "{} is kept on several servers by {keeper}, where a row is found by its key alone, and \
             no unique index says that a key is one row's",
            table.sql_name
        );
        return Err(Error::new(ErrorKind::Plan, message).hint("Name such a key with `--key`."));
    }
    let operators = keys::operators(client, table).await?;
    let (written, ignored) = (&staging.plan.columns, &options.ignored);
    let columns = SyncColumns::sort(table, written, &key, ignored, &lenient, &operators)?;
    if let Scope::By(names) = &options.scope {
        for name in names {
            if !staging.plan.columns.iter().any(|column| column.name == *name) {
                let message = format!("column \"{name}\" of the scope is not in the source");
                return Err(Error::new(ErrorKind::Usage, message));
            }
        }
    }
    Ok(SyncColumns { key_is_unique: is_unique, found_by_key: keeper.is_some(), ..columns })
}

/// How sessions can share the scopes, or why one has to do it all.
async fn share(
    staging: &Staging,
    options: &SyncOptions,
    columns: &SyncColumns,
) -> Result<Result<ScopeShares, String>> {
    let Scope::By(names) = &options.scope else {
        return Ok(Err("only with `--scope-by` there are scopes to share".to_owned()));
    };
    if columns.found_by_key || staging.control().server_version() < HAS_COPY_WHERE {
        return Ok(Err("this server cannot do with more".to_owned()));
    }
    // What several transactions share is staged already.
    let reads_moments =
        options.transactions <= 1 && (staging.is_text() || staging.reading.is_stream());
    let (client, table) = (&staging.control().client, &staging.table);
    shares::choose(client, table, names, &columns.key, reads_moments).await
}

impl PreparedSync {
    /// The table, as SQL writes it.
    pub fn table(&self) -> &str {
        &self.staging.table.sql_name
    }

    /// What was found out about the input, and why one session or transaction does it all.
    pub fn evidence(&self) -> &[String] {
        &self.evidence
    }

    /// The statements, in words that SQL knows; for `--plan`.
    pub fn statements(&self) -> Vec<String> {
        let statements = self.build();
        let mut all = vec![statements.diff()];
        let (deletes, updates) = self.writes();
        all.extend(deletes.then(|| statements.delete()));
        all.extend(updates.then(|| statements.update()));
        all.push(statements.insert());
        all
    }

    /// Whether rows may be deleted, and whether they may be updated.
    fn writes(&self) -> (bool, bool) {
        let has_more = self.columns.set().next().is_some();
        match self.options.scope {
            Scope::By(_) | Scope::Where(_) | Scope::All => (true, has_more),
            Scope::NoDelete => (false, has_more),
            Scope::InsertOnly => (false, false),
        }
    }

    /// Makes the scope equal to the source. Blocks until that is committed or rolled back.
    ///
    /// # Errors
    /// Whatever staging or the server refuses; a source with equal keys; more rows to delete than
    /// may be. The table is as it was then, but for scopes that another session has committed.
    pub fn run(mut self, watch: &Arc<LoadWatch>) -> Result<SyncReport> {
        let started = Instant::now();
        let look = TempSpace::look(self.staging.control(), &self.staging.table);
        let space = self.runtime.block_on(look)?;
        // Compressed it is more: what is known now is the least that it takes.
        space.check(self.staging.stored_bytes()).map_err(|error| self.failed(error))?;
        if let Some(extent) = self.extent {
            match self.run_ahead(extent, watch, started) {
                Ok(Some(report)) => return Ok(report),
                Ok(None) => self.staging.rows = StagedRows::All,
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.run_whole(watch, started)
    }

    /// Stages only what the table does not have, and compares with what the source does not have.
    /// `None` when nothing has come of it, and all is to be staged: as that would not pay, as the
    /// source has to be seen as a whole for the answer, or as something was in its way. If it is
    /// still there, it is told then.
    fn run_ahead(
        &mut self,
        extent: TableExtent,
        watch: &Arc<LoadWatch>,
        started: Instant,
    ) -> Result<Option<SyncReport>> {
        let runtime = self.runtime.clone();
        let holder = runtime.block_on(until_cancelled(watch, &[], ahead::open(self)));
        let Some(holder) = unless_cancelled(holder)? else { return Ok(None) };
        let done = self.run_held(extent, &holder, watch, started);
        // What has lost the holder may have lost this session, too.
        let _ = self.staging.own.reconnect();
        let limit = self.options.limits.stall_timeout;
        runtime.block_on(async {
            let unlocked = timeout(limit, write::unlock(&holder, self)).await;
            if !matches!(unlocked, Ok(Ok(()))) {
                // The server may not have noticed that the session is lost, and the session that
                // writes would wait for its lock.
                self.staging.control().end_lost_backend(holder.backend_pid()).await;
            }
        });
        done
    }

    fn run_held(
        &mut self,
        extent: TableExtent,
        holder: &Connection,
        watch: &Arc<LoadWatch>,
        started: Instant,
    ) -> Result<Option<SyncReport>> {
        let runtime = self.runtime.clone();
        let read = self.read_ahead(extent, holder, watch);
        let Some((ahead, before)) = unless_cancelled(read)?.flatten() else { return Ok(None) };
        self.staging.rows = StagedRows::Missing(ahead);
        let staged = self.staging.stage(watch);
        // The session with the stage has its own lock and snapshot by now.
        let limit = self.options.limits.stall_timeout;
        let handing = async { drop(timeout(limit, ahead::hand_over(holder)).await) };
        runtime.block_on(handing);
        let Some((sessions, outcome)) = unless_cancelled(staged)? else { return Ok(None) };
        if self.staging.ahead().is_none_or(|ahead| ahead.known.is_futile()) {
            return Ok(None);
        }
        let (stage_seconds, written) = (started.elapsed().as_secs_f64(), Instant::now());
        let work = SyncAttempts::new(self, &sessions, outcome.bytes_sent, watch);
        let mut work = work.since(before, CommittedTransactions::default());
        let (connections, attempt) = (connections(&sessions), work.locked_attempt());
        let done = runtime.block_on(until_cancelled(watch, &connections, attempt));
        let (has_begun, committed, before) = (work.has_begun, work.committed, work.before);
        (self.committed, self.before) = (committed, before);
        let is_over = |error: &Error| has_begun && !write::may_pass_as_a_whole(error);
        match done {
            Err(error) if is_over(&error) => Err(error),
            done => Ok(unless_cancelled(done)?.map(|mut report| {
                report.set_seconds(stage_seconds, written.elapsed(), None);
                report
            })),
        }
    }

    /// Reads the table, while `holder` holds what keeps it as it is. `None` if that does not pay.
    fn read_ahead(
        &self,
        extent: TableExtent,
        holder: &Connection,
        watch: &Arc<LoadWatch>,
    ) -> Result<Option<(TableReadAhead, Option<Measurement>)>> {
        let runtime = &self.runtime;
        let sessions = [holder];
        if extent.is_doubtful() {
            let first = self.staging.first_rows(watch)?;
            let probing = ahead::pays(self, holder, &first);
            if !runtime.block_on(until_cancelled(watch, &sessions, probing))? {
                return Ok(None);
            }
        }
        let holding = until_cancelled(watch, &sessions, ahead::hold(self, holder));
        let HeldSnapshot { snapshot, before } = runtime.block_on(holding)?;
        let connecting = until_cancelled(watch, &[], ahead::connect(self, extent));
        let readers = runtime.block_on(connecting)?;
        let sessions: Vec<_> = readers.iter().map(|reader| reader.connection.as_ref()).collect();
        let reading = ahead::read(self, &readers, &snapshot);
        let known = runtime.block_on(until_cancelled(watch, &sessions, reading))?;
        Ok(Some((TableReadAhead { snapshot, known: Arc::new(known) }, before)))
    }

    /// Stages all rows.
    fn run_whole(mut self, watch: &Arc<LoadWatch>, started: Instant) -> Result<SyncReport> {
        let staged = self.stage(watch);
        let (sessions, outcome) = staged.map_err(|error| self.committed.explain(error))?;
        let stage_seconds = started.elapsed().as_secs_f64();
        let found = self.staging.own.again(&watch.copy, OwnSession::come_back);
        found.map_err(|error| self.failed(error))?;
        let mut patience = Patience::new(self.options.limits.retry_for);
        let runtime = self.runtime.clone();
        let written = Instant::now();
        let (committed, before) = (mem::take(&mut self.committed), self.before.take());
        let (vacuumed, mut known) = (committed.written.vacuum_seconds, committed.transactions);
        let work = SyncAttempts::new(&self, &sessions, outcome.bytes_sent, watch);
        let mut work = work.since(before, committed);
        let mut report = loop {
            let attempt = work.attempt();
            match runtime.block_on(until_cancelled(watch, &connections(&sessions), attempt)) {
                Ok(report) => break report,
                Err(error) if write::may_pass(&error) && !is_any_closed(&sessions) => {
                    let is_cancelled = || watch.copy.is_cancelled();
                    if work.committed.transactions > known {
                        known = work.committed.transactions;
                        patience.renew();
                    }
                    if !patience.wait(is_cancelled) && !is_cancelled() {
                        return Err(self.failed(error));
                    }
                }
                Err(error) => return Err(self.failed(error)),
            }
        };
        report.set_seconds(stage_seconds, written.elapsed(), vacuumed);
        Ok(report)
    }

    /// Stages all rows; the sessions that have them, and what it took.
    fn stage(&mut self, watch: &Arc<LoadWatch>) -> Result<(Vec<LaneSession>, CopyOutcome)> {
        let is_untouched = self.committed.is_empty();
        let no_space =
            |error| stage::hint_space(error, watch.copy.sent.load(Relaxed), is_untouched);
        let staged = self.staging.stage(watch).map_err(no_space);
        let is_sure = match &staged {
            Ok((_, outcome)) => outcome.rows_as_text == 0,
            Err(error) => error.kind() == ErrorKind::Cancelled,
        };
        if !self.shares_moments || is_sure {
            return staged;
        }
        // `now` is another moment in each session, so that its row may be of no share, or of two.
        drop(staged);
        self.staging.rows = StagedRows::All;
        self.staging.stage(watch).map_err(no_space)
    }

    /// Before a number that one of several sessions has counted.
    fn at_least(&self) -> &'static str {
        if self.staging.is_shared() { "at least " } else { "" }
    }

    fn build(&self) -> SyncStatements<'_> {
        SyncStatements {
            table: &self.staging.table.sql_name,
            columns: &self.columns,
            scope: &self.options.scope,
            keeps_last: self.options.keeps_last,
            is_ahead: self.staging.ahead().is_some(),
            turns: self.turns.as_ref(),
            turn: None,
        }
    }

    /// Rows of the source that were not staged.
    fn known(&self) -> u64 {
        self.staging.ahead().map_or(0, |ahead| ahead.known.met())
    }

    fn failed(&self, error: Error) -> Error {
        let kind = error.kind();
        Error::new(kind, format!("could not sync {}", self.table())).because(error)
    }
}

/// What came of it, if it was not the user who ended it.
fn unless_cancelled<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind() != ErrorKind::Cancelled => Ok(None),
        done => done.map(Some),
    }
}

fn connections(sessions: &[LaneSession]) -> Vec<&Connection> {
    sessions.iter().map(|session| &session.connection).collect()
}

fn is_any_closed(sessions: &[LaneSession]) -> bool {
    sessions.iter().any(|session| session.connection.is_closed())
}

/// What `work` gives; when the user stops it, the statement is cancelled and rolled back.
async fn until_cancelled<T>(
    watch: &LoadWatch,
    connections: &[&Connection],
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let cancellers: Vec<_> = connections.iter().map(|it| it.canceller()).collect();
    watch.copy.stop.heed(&cancellers, work).await
}

//! A scope of a table made equal to a source: only what differs is written.
//!
//! The source is staged in a temporary table; then one transaction deletes what the source does
//! not have, updates what differs and inserts what is missing. Unchanged rows are read and nothing
//! else: no lock, no WAL, no dead version. A reader sees the old rows or the new ones.

mod columns;
mod group;
mod report;
mod script;
mod shares;
mod statements;
mod write;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use futures_util::future::join_all;
use tokio::runtime::Handle;

pub use report::{Examples, Report};
pub use script::Script;
pub use statements::Scope;

use crate::copy::{Kept, LOOK, Patience};
use crate::load::{self, Load, Watch};
use crate::plan::LANES_MAX;
use crate::stage::{self, keys, space::Space};
use crate::target::connect::Dsn;
use crate::target::is_distributed;
use crate::{Error, Kind, Result};
use columns::Columns;
use statements::Statements;

/// An input of fewer stored bytes is one session's: others would cost more than they bring.
const SMALL_BYTES: u64 = 1 << 20;
/// Sessions on a server of which the processors are not known.
const REMOTE_SESSIONS: usize = 4;

/// What to make equal to what.
#[derive(Debug, Clone)]
pub struct Options {
    /// The source, how to read it, and the table.
    pub load: load::Options,
    /// The columns that identify a row; the primary key's by default.
    pub key: Vec<String>,
    /// The rows that are to be as in the source.
    pub scope: Scope,
    /// Columns that are not compared, and written only with a row of which something else differs.
    pub ignored: Vec<String>,
    /// At most such a share of the scope may be deleted, in percent.
    pub max_delete: f64,
    /// A source without rows may empty the scope.
    pub may_empty: bool,
    /// Of rows with the same key the last one counts; they are refused otherwise.
    pub keeps_last: bool,
    /// Change nothing; say what differs.
    pub is_check: bool,
    /// Vacuum the table when rows of it were updated or deleted.
    pub vacuums: bool,
    /// What a million I/Os cost, for the estimate in the report.
    pub price_per_million: f64,
}

/// A sync that is ready to run.
pub struct Sync {
    load: Load,
    options: Options,
    columns: Columns,
    runtime: Handle,
}

/// Looks at source and table. Changes nothing. Blocks; call it from a thread that is not one of
/// `runtime`'s.
///
/// # Errors
/// As [`load::prepare`]; and columns or scopes that do not fit the table and the source.
pub fn prepare(options: Options, dsn: Dsn, runtime: &Handle) -> Result<Sync> {
    if options.load.sources.is_empty() && options.load.batches.is_none() {
        return Err(Error::new(Kind::Usage, "no source is named"));
    }
    let mut load = load::prepare_stage(options.load.clone(), dsn, runtime)?;
    let (table, client) = (load.table(), &load.control().client);
    if options.vacuums && !runtime.block_on(write::may_vacuum(client, table.oid))? {
        let message = format!("this role may not vacuum {}", table.sql_name);
        return Err(Error::new(Kind::Plan, message)
            .hint("Leave `--vacuum` out, or run it as the table's owner."));
    }
    let lenient = runtime.block_on(keys::lenient(client, table))?;
    let key = match options.key.is_empty() {
        false => options.key.clone(),
        true => runtime.block_on(keys::primary_key(client, table))?,
    };
    let is_unique = runtime.block_on(columns::is_unique(client, table, &key))?;
    let mut columns =
        Columns::sort(table, load.columns(), &key, &options.ignored, &lenient, is_unique)?;
    if let Scope::By(names) = &options.scope {
        for name in names {
            if !load.columns().iter().any(|column| column.name == *name) {
                let message = format!("column \"{name}\" of the scope is not in the source");
                return Err(Error::new(Kind::Usage, message));
            }
        }
    }
    columns.found_by_key = runtime.block_on(is_distributed(client, table))?;
    let most = if columns.found_by_key { 1 } else { sessions(&load, options.load.lanes) };
    if let (Scope::By(names), 2..) = (&options.scope, most) {
        let told = shares::columns(&load.control().client, load.table(), names, &columns.key);
        load.share_stage(shares::conditions(&runtime.block_on(told)?, most));
    }
    Ok(Sync { load, options, columns, runtime: runtime.clone() })
}

/// How many sessions may share the scopes of such an input.
fn sessions(load: &Load, asked: Option<usize>) -> usize {
    match (asked, load.shared_cores()) {
        // COPY has no WHERE there.
        _ if load.control().server_version() < 120_000 => 1,
        (Some(lanes), _) => lanes,
        _ if load.stored_bytes() < SMALL_BYTES => 1,
        (None, Some(cores)) => cores.clamp(1, LANES_MAX),
        (None, None) => REMOTE_SESSIONS,
    }
}

impl Sync {
    /// The table, as SQL writes it.
    pub fn table(&self) -> &str {
        &self.load.table().sql_name
    }

    /// What was found out about the input, in words.
    pub fn evidence(&self) -> &[String] {
        self.load.evidence()
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
    /// may be. The table is as it was then.
    pub fn run(mut self, watch: &Arc<Watch>) -> Result<Report> {
        let started = Instant::now();
        let look = Space::look(self.load.control(), self.load.table());
        let space = self.runtime.block_on(look)?;
        // Compressed it is more: what is known now is the least that it takes.
        space.check(self.load.stored_bytes()).map_err(|error| self.failed(error))?;
        let staged = self.load.stage(watch);
        let (sessions, outcome) =
            staged.map_err(|error| stage::hint_space(error, watch.copy.sent.load(Relaxed)))?;
        let stage_seconds = started.elapsed().as_secs_f64();
        let mut patience = Patience::new(self.options.load.limits.retry_for);
        let runtime = self.runtime.clone();
        let written = Instant::now();
        let mut report = loop {
            let attempt = write::write(&sessions, &self, outcome.bytes_sent);
            match runtime.block_on(until_cancelled(watch, &sessions, attempt)) {
                Ok(report) => break report,
                Err(error) if write::may_pass(&error) && !is_any_closed(&sessions) => {
                    let is_cancelled = || watch.copy.is_cancelled();
                    if !patience.wait(is_cancelled) && !is_cancelled() {
                        return Err(self.failed(error));
                    }
                }
                Err(error) => return Err(self.failed(error)),
            }
        };
        report.stage_seconds = stage_seconds;
        let vacuumed = report.vacuum_seconds.unwrap_or_default();
        report.write_seconds = written.elapsed().as_secs_f64() - vacuumed;
        Ok(report)
    }

    fn build(&self) -> Statements<'_> {
        Statements {
            table: &self.load.table().sql_name,
            columns: &self.columns,
            scope: &self.options.scope,
            keeps_last: self.options.keeps_last,
        }
    }

    fn failed(&self, error: Error) -> Error {
        let kind = error.kind();
        Error::new(kind, format!("could not sync {}", self.table())).because(error)
    }
}

fn is_any_closed(sessions: &[Kept]) -> bool {
    sessions.iter().any(|kept| kept.connection.is_closed())
}

/// What `work` gives; when the user stops it, the statement is cancelled and rolled back.
async fn until_cancelled<T>(
    watch: &Watch,
    sessions: &[Kept],
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(LOOK, work.as_mut()).await {
            Ok(done) if watch.copy.is_cancelled() => {
                return done.map_err(|_| Error::new(Kind::Cancelled, "stopped by the user"));
            }
            Ok(done) => return done,
            // A request that gets lost is made again.
            Err(_) if watch.copy.is_cancelled() => {
                drop(join_all(sessions.iter().map(|kept| kept.connection.cancel())).await);
            }
            Err(_) => {}
        }
    }
}

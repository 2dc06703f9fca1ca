//! Puts back what was changed on tables for the time of a load.
//!
//! Indexes are built beside each other, in connections of their own; what needs the table for
//! itself comes after them, one by one. Every step is counted in the ledger in its own
//! transaction, so this can be stopped and begun again at any point. A lock is asked for in short
//! turns, between which other sessions go first.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::TableWork;
use super::builders::{BUILDERS_MAX, IndexBuilders};
use crate::copy::CopyProgress;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::{self, Change};
use pgspate_target::session::Timeouts;
use pgspate_target::{
    Ask, DEFINITION_SETTINGS, Parameter, PresentNames, Recipe, present_names, server_error, users,
};

/// Sorting takes no less time for more memory than one pass of merging needs; beyond a GiB that
/// is terabytes.
const MEMORY_KB_MAX: u64 = 1 << 20;
/// The server gives each parallel worker no less, and uses fewer workers instead.
const WORKER_KB: u64 = 32 << 10;
/// One turn of waiting for a lock, during which others wait behind us; and a pause for them.
const LOCK_TURN: &str = "2s";
const LOCK_PAUSE: Duration = Duration::from_millis(500);
/// What puts changes back.
pub(super) struct Restorer<'a> {
    pub(super) runtime: &'a Handle,
    pub(super) control: &'a Connection,
    pub(super) work: TableWork<'a>,
    /// How long to wait for locks; for as long as it takes by default.
    pub(super) lock_patience: Option<Duration>,
}

/// What the server is set to, for building indexes.
struct BuildSettings {
    builders: usize,
    settings: String,
}

/// For an index for which disk or `temp_file_limit` did not suffice: nothing is built beside it.
/// With so much memory one process alone mostly needs no files, which parallel workers always
/// write. As the limit is for each process, many workers may write more than one.
const WAYS_ALONE: [&str; 2] = [
    "set local maintenance_work_mem = '1GB'; set local max_parallel_maintenance_workers = 0",
    "set local maintenance_work_mem = '1GB'; set local max_parallel_maintenance_workers = 8",
];

impl Restorer<'_> {
    /// Puts changes back. Blocks.
    ///
    /// # Errors
    /// The first refusal, after everything else is back.
    pub(super) fn run(&self, changes: Vec<Change>) -> Result<()> {
        let result = self.runtime.block_on(self.put_back(changes));
        self.work.progress.set_phase(None);
        result
    }

    async fn put_back(&self, changes: Vec<Change>) -> Result<()> {
        let (changes, doubtful): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.check_trust().is_ok());
        let means = self.means(&changes).await?;
        let (beside, mut rest): (Vec<_>, Vec<_>) = changes.into_iter().partition(Change::is_beside);
        let mut failure = doubtful.first().and_then(|change| change.check_trust().err());
        let mut scarce = HashSet::new();
        for built in self.build(beside, &means).await? {
            match built {
                Ok(IndexBuild::Built(change)) => rest.push(change),
                Ok(IndexBuild::OutOfSpace(change)) => {
                    scarce.insert(change.order());
                    rest.push(change);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        rest.sort_by_key(Change::order);
        for mut change in rest {
            let usual = Some(means.settings.as_str()).filter(|_| !scarce.contains(&change.order()));
            let ways: Vec<&str> = usual.into_iter().chain(WAYS_ALONE).collect();
            while change.step().is_some() {
                self.work.progress.set_phase(Some(format!("putting back {}", change.name())));
                match self.step_somehow(change.clone(), &ways).await {
                    Ok(after) => change = after,
                    Err(error) => {
                        failure = failure.or(Some(error));
                        break;
                    }
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Takes the change's next step by the first way that has enough space.
    async fn step_somehow(&self, change: Change, ways: &[&str]) -> Result<Change> {
        let mut stepped = Ok(change.clone());
        for settings in ways {
            stepped = self.step(self.control, change.clone(), settings).await;
            let is_short = stepped.as_ref().is_err_and(|it| it.sqlstate().is_some_and(is_scarce));
            if !is_short {
                break;
            }
        }
        stepped
    }

    /// How many builders, and with how much memory: no less than is set, and for btrees as much as
    /// it takes to sort the table in one pass.
    async fn means(&self, changes: &[Change]) -> Result<BuildSettings> {
        let failed = || server_error("could not look up the server's settings".to_owned());
        let client = &self.control.client;
        let tables: Vec<u32> = changes.iter().map(|it| it.table_oid).collect();
        let sql = "select current_setting('max_parallel_maintenance_workers')::int8, \
                   (select setting::int8 from pg_settings where name = 'maintenance_work_mem'), \
                   coalesce((select max(pg_table_size(oid)) from pg_class where oid = any($1)), 0)";
        let row = client.ask_one(sql, &[&tables]).await.map_err(failed())?;
        let number = |nth: usize| row.get::<_, i64>(nth).unsigned_abs();
        let (workers, set_kb, table_bytes) = (number(0), number(1), number(2));
        let cores = || std::thread::available_parallelism().map_or(2, usize::from).max(2) + 1;
        let most = if self.control.is_local() { cores() } else { BUILDERS_MAX };
        let beside = changes.iter().filter(|it| it.is_beside()).count();
        let memory_kb = memory_kb(table_bytes, workers).max(set_kb);
        Ok(BuildSettings {
            builders: beside.clamp(1, most.min(BUILDERS_MAX)),
            settings: format!("set local maintenance_work_mem = '{memory_kb}kB'"),
        })
    }

    /// Builds indexes beside each other, each as far as that goes.
    async fn build(&self, changes: Vec<Change>, means: &BuildSettings) -> Result<Vec<Result<IndexBuild>>> {
        let builders = IndexBuilders {
            work: self.work.clone(),
            application_name: "pgspate load: building indexes",
            count: means.builders,
            first: Some(self.control),
            stops: false,
        };
        let queue = changes.into_iter().map(|change| (change.name(), change)).collect();
        builders
            .run(queue, async |connection: &Connection, change: Change| {
                match self.step(connection, change.clone(), &means.settings).await {
                    Err(error) if error.sqlstate().is_some_and(is_scarce) => {
                        Ok(IndexBuild::OutOfSpace(change))
                    }
                    stepped => stepped.map(IndexBuild::Built),
                }
            })
            .await
    }

    /// Takes the change's next step. Waits for locks.
    async fn step(
        &self,
        connection: &Connection,
        change: Change,
        settings: &str,
    ) -> Result<Change> {
        let started = Instant::now();
        let what = format!("could not put back {}", change.name());
        let failed = || server_error(what.clone());
        connection.client.batch_execute(&Timeouts::OfSession.off()).await.map_err(failed())?;
        loop {
            self.work.stop.check()?;
            let Some(step) = written(&connection.client, &change).await? else {
                // Its table is no more.
                return Ok(change.after_step());
            };
            let begin = format!(
                "begin isolation level read committed; {DEFINITION_SETTINGS}; {settings}; \
                 set local lock_timeout = '{LOCK_TURN}'"
            );
            let sql = format!("{}; {}; commit", step.sql, step.count);
            // Apart: the server reads all of a message before it does any of it.
            let done = match self.work.stop.run(connection, &begin, &what).await {
                Ok(()) => self.work.stop.run(connection, &sql, &what).await,
                refused => refused,
            };
            let Err(error) = done else { return Ok(change.after_step()) };
            if error.kind() == ErrorKind::Connect {
                return Err(error);
            }
            connection.client.batch_execute("rollback").await.map_err(failed())?;
            self.work.stop.check()?;
            let code = error.sqlstate().cloned();
            if ledger::is_renamed(&error) {
                continue;
            }
            if code.as_ref().is_some_and(is_there) {
                if !self.is_back(connection, &change).await? {
                    return Err(hint_name(error, &change));
                }
                connection.client.batch_execute(&step.count).await.map_err(failed())?;
                return Ok(change.after_step());
            }
            if error.sqlstate().is_some_and(is_scarce) {
                return Err(hint_space(error, &change));
            }
            if !code.as_ref().is_some_and(is_locked) {
                return Err(error);
            }
            self.wait_for_lock(connection, &change, error, started).await?;
        }
    }

    /// Waits before the lock is asked for again.
    async fn wait_for_lock(
        &self,
        connection: &Connection,
        change: &Change,
        error: Error,
        started: Instant,
    ) -> Result<()> {
        let who = users(&connection.client, change.table_oid).await?;
        let who = who.first().map_or("another session", String::as_str);
        let name = change.name();
        if self.lock_patience.is_some_and(|limit| started.elapsed() > limit) {
            let message = format!("could not put back {name}: {who} uses the table");
            return Err(Error::new(ErrorKind::Server, message).because(error));
        }
        self.work.progress.set_phase(Some(format!("{name} waits for {who}")));
        tokio::time::sleep(LOCK_PAUSE).await;
        Ok(())
    }

    /// Whether somebody else has made the same thing again.
    async fn is_back(&self, connection: &Connection, change: &Change) -> Result<bool> {
        let failed = || server_error(format!("could not look up {}", change.name()));
        let sql = "select exists (select from pg_index i join pg_class c on c.oid = i.indexrelid \
                   where i.indrelid = $1 and c.relname = $2 and i.indisvalid \
                     and right(pg_get_indexdef(c.oid), length($3)) = $3 \
                     and i.indisunique = ($4 <> 'index')) \
                   or exists (select from pg_constraint where conrelid = $1 and conname = $2 \
                              and contype in ('p', 'u', 'x', 'f'))";
        let definition = change.recipe().map(|recipe| recipe.definition).unwrap_or_default();
        let client = &connection.client;
        let begin = format!("begin; {DEFINITION_SETTINGS}");
        client.batch_execute(&begin).await.map_err(failed())?;
        let values: [&dyn Parameter; 4] =
            [&change.table_oid, &change.object, &definition, &change.kind];
        let row = client.ask_one(sql, &values).await;
        client.batch_execute("rollback").await.map_err(failed())?;
        Ok(row.map_err(failed())?.get(0))
    }
}

/// KiB for sorting that many bytes in one pass: runs are as long as memory, and as many of them
/// are merged at once as buffers of 256 KiB fit.
fn memory_kb(table_bytes: u64, workers: u64) -> u64 {
    let one_pass = ((table_bytes >> 10) as f64 * 256.0).sqrt() as u64;
    one_pass.max(WORKER_KB * (workers + 1)).min(MEMORY_KB_MAX)
}

/// What has become of an index.
enum IndexBuild {
    Made(Change),
    /// There was not enough space for sorting its keys.
    Scarce(Change),
}

/// A step in SQL, and what counts it.
struct RestoreStep {
    sql: String,
    count: String,
}

/// The step that is due, with the names that everything has now; none if its table is gone.
async fn written(client: &Client, change: &Change) -> Result<Option<RestoreStep>> {
    if change.step().is_none() {
        return Ok(None);
    }
    let Some(recipe) = change.recipe() else { return Err(no_recipe(change)) };
    let Some(now) = present_names(client, change.table_oid, &recipe).await? else {
        return Ok(None);
    };
    let sql = recipe.statements(&change.kind, &change.object, &now, change.done);
    let sql = sql.map_err(|error| by_hand(error, change, &recipe, &now))?.join("; ");
    Ok(Some(RestoreStep { sql, count: change.count_sql(&now.table) }))
}

/// For what is no recipe: no text of the ledger is run. An earlier version recorded statements.
fn no_recipe(change: &Change) -> Error {
    let (name, (job, ordinal)) = (change.name(), change.order());
    let message = format!("could not put back {name}: the ledger has no recipe for it");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Read what it has with `select steps from pgspate.change where (job, ordinal) = ({job}, \
         {ordinal})`. If that is what you want, run it yourself, and then run `delete from \
         pgspate.change where (job, ordinal) = ({job}, {ordinal})`."
    ))
}

/// For what cannot be made of its recipe: how else it can be.
fn by_hand(error: Error, change: &Change, recipe: &Recipe, now: &PresentNames) -> Error {
    let (name, (job, ordinal)) = (change.name(), change.order());
    Error::new(ErrorKind::Ledger, format!("could not put back {name}")).because(error).hint(format!(
        "It was `{}` on {}. Give the column its old name for the time of `pgspate status --restore \
         {job}`. Or make the object yourself, and then run `delete from pgspate.change where \
         (job, ordinal) = ({job}, {ordinal})`.",
        recipe.definition, now.table
    ))
}

/// For a name that something else has by now.
fn hint_name(error: Error, change: &Change) -> Error {
    let (job, _) = change.order();
    let codes = [SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];
    if !error.sqlstate().is_some_and(|code| codes.contains(code)) {
        return error;
    }
    error.hint(format!(
        "Something else has been given the name \"{}\". Rename or drop that, then run `pgspate \
         status --restore {job}`.",
        change.object
    ))
}

/// For an index whose keys could not be sorted.
fn hint_space(error: Error, change: &Change) -> Error {
    let (job, _) = change.order();
    let more = match error.sqlstate() {
        Some(&SqlState::CONFIGURATION_LIMIT_EXCEEDED) => {
            "Have a superuser raise `temp_file_limit` for this role"
        }
        _ => "Make room on the server's disk",
    };
    error.hint(format!("{more}, then run `pgspate status --restore {job}`."))
}

/// The disk is full, or what `temp_file_limit` lets sessions use of it.
pub(super) fn is_scarce(code: &SqlState) -> bool {
    [SqlState::CONFIGURATION_LIMIT_EXCEEDED, SqlState::DISK_FULL].contains(code)
}

/// Something of that name is there already.
fn is_there(code: &SqlState) -> bool {
    let codes = [
        SqlState::DUPLICATE_TABLE,
        SqlState::DUPLICATE_OBJECT,
        SqlState::INVALID_TABLE_DEFINITION,
        // An index that has its constraint already.
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    ];
    codes.contains(code)
}

/// Another session is in the way.
fn is_locked(code: &SqlState) -> bool {
    [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
}

/// Puts back what loads have changed on tables and left so: those of one job, or of every job that
/// no session works on. Gives what is back. Blocks.
///
/// # Errors
/// When the job is not known or under way, or the server refuses something; the rest is back then.
pub fn restore(
    dsn: &Dsn,
    job: Option<i64>,
    runtime: &Handle,
    progress: &CopyProgress,
) -> Result<Vec<Change>> {
    let control = runtime.block_on(dsn.connect("pgspate status"))?;
    let changes = runtime.block_on(ledger::claim(&control.client, job))?;
    let restorer = Restorer {
        runtime,
        control: &control,
        work: TableWork { dsn, progress, stop: progress.stop.clone() },
        lock_patience: None,
    };
    restorer.run(changes.clone())?;
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::memory_kb;

    #[test]
    fn memory_is_for_one_pass_and_bounded() {
        assert_eq!(memory_kb(0, 0), 32 << 10);
        assert_eq!(memory_kb(400 << 20, 2), 96 << 10);
        assert_eq!(memory_kb(100 << 30, 2) >> 10, 160);
        assert_eq!(memory_kb(u64::MAX >> 1, 8), 1 << 20);
    }
}

//! Undoes the changes that loads made to tables.
//!
//! Indexes are built in parallel, over several connections. Then the steps that need an exclusive
//! lock on the table follow one by one. Each step and its count in the ledger are one transaction,
//! so restoring can be stopped and resumed at any point. A lock is requested with a short timeout.
//! After a timeout there is a pause, in which other sessions get the lock.

use std::collections::HashSet;
use std::iter;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::TableWork;
use super::follow_up::restore_statistics;
use super::index_builders::{BUILDERS_MAX, IndexBuilders};
use super::kept_settings::KeptSettings;
use crate::copy::CopyProgress;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::ledger::{self, RecordedChange};
use pgspate_target::session::TimeoutScope;
use pgspate_target::{
    CurrentNames, DEFINITION_SETTINGS, RestoreRecipe, StepStatements, TableLocks, TypedParameter,
    TypedQuery, locking_sessions, read_current_names, server_error,
};

/// Maximum memory for sorting. Sorting needs only enough memory for a single merge pass; 1 GiB is
/// enough for terabytes.
const MEMORY_KB_MAX: u64 = 1 << 20;
/// Minimum memory per parallel worker. With less, the server uses fewer workers.
const WORKER_KB: u64 = 32 << 10;
/// Lock timeout of one attempt. Other sessions queue behind the lock request for this time.
const LOCK_ATTEMPT: &str = "2s";
/// Pause between two attempts, in which other sessions get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(500);

/// Undoes recorded changes.
pub(super) struct Restorer<'a> {
    pub(super) runtime: &'a Handle,
    /// The connection for queries, for the first builder, and for steps that run one by one.
    pub(super) control: &'a Connection,
    pub(super) work: TableWork<'a>,
    /// Time to wait for locks; `None` for no limit.
    pub(super) lock_timeout: Option<Duration>,
    /// Settings that were changed since a load changed them. They stay as they are.
    pub(super) changed_settings: Mutex<KeptSettings>,
}

/// Number of parallel builders, and the settings of their sessions.
struct BuildSettings {
    builders: usize,
    /// SQL for the beginning of a transaction.
    settings: String,
}

/// Settings to build an index again after a full disk or `temp_file_limit` stopped its build. No
/// other index is built in parallel then. The first settings use one process: with so much memory,
/// one process mostly needs no temporary files. The second settings use many workers, which always
/// write temporary files. But `temp_file_limit` applies to each process, so many workers together
/// may write more than one process.
const LARGE_SORT_SETTINGS: [&str; 2] = [
    "set local maintenance_work_mem = '1GB'; set local max_parallel_maintenance_workers = 0",
    "set local maintenance_work_mem = '1GB'; set local max_parallel_maintenance_workers = 8",
];

impl Restorer<'_> {
    /// Undoes the changes. Blocks.
    ///
    /// # Errors
    /// The first refusal, after all other changes are undone.
    pub(super) fn run(&self, changes: Vec<RecordedChange>) -> Result<()> {
        let result = self.runtime.block_on(self.restore_all(changes));
        self.work.progress.set_phase(None);
        result
    }

    /// Undoes the changes: first those that can run in parallel, then the rest one by one. Changes
    /// of untrusted roles are not undone.
    async fn restore_all(&self, changes: Vec<RecordedChange>) -> Result<()> {
        let (changes, untrusted): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.check_trust().is_ok());
        let build_settings = self.build_settings(&changes).await?;
        let (in_parallel, mut rest): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(RecordedChange::can_run_in_parallel);
        let mut failure = untrusted.first().and_then(|change| change.check_trust().err());
        let mut out_of_space = HashSet::new();
        for built in self.build(in_parallel, &build_settings).await? {
            match built {
                Ok(IndexBuild::Built(change)) => rest.push(change),
                Ok(IndexBuild::OutOfSpace(change)) => {
                    out_of_space.insert(change.order());
                    rest.push(change);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        rest.sort_by_key(RecordedChange::order);
        for mut change in rest {
            let usual = Some(build_settings.settings.as_str())
                .filter(|_| !out_of_space.contains(&change.order()));
            let settings_to_try: Vec<&str> = usual.into_iter().chain(LARGE_SORT_SETTINGS).collect();
            while change.step().is_some() {
                self.work.progress.set_phase(Some(format!("putting back {}", change.name())));
                match self.step_with_any_settings(change.clone(), &settings_to_try).await {
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

    /// Runs the change's next step. Tries the settings in order, until there is enough space.
    async fn step_with_any_settings(
        &self,
        change: RecordedChange,
        settings_to_try: &[&str],
    ) -> Result<RecordedChange> {
        let mut stepped = Ok(change.clone());
        for settings in settings_to_try {
            stepped = self.run_next_step(self.control, change.clone(), settings).await;
            let is_short =
                stepped.as_ref().is_err_and(|it| it.sqlstate().is_some_and(is_out_of_space));
            if !is_short {
                break;
            }
        }
        stepped
    }

    /// Returns the number of builders, and the settings of their sessions. The memory is at least
    /// the server's setting, and enough to sort the largest table in one merge pass.
    async fn build_settings(&self, changes: &[RecordedChange]) -> Result<BuildSettings> {
        let failed = || server_error("could not look up the server's settings".to_owned());
        let client = &self.control.client;
        let tables: Vec<u32> = changes.iter().map(|it| it.table_oid).collect();
        let sql = "select current_setting('max_parallel_maintenance_workers')::int8, \
                   (select setting::int8 from pg_settings where name = 'maintenance_work_mem'), \
                   coalesce((select max(pg_table_size(oid)) from pg_class where oid = any($1)), 0)";
        let row = client.fetch_one(sql, &[&tables]).await.map_err(failed())?;
        let number = |column: usize| row.get::<_, i64>(column).unsigned_abs();
        let (workers, set_kb, table_bytes) = (number(0), number(1), number(2));
        let cores = || std::thread::available_parallelism().map_or(2, usize::from).max(2) + 1;
        let most = if self.control.is_local() { cores() } else { BUILDERS_MAX };
        let parallel = changes.iter().filter(|it| it.can_run_in_parallel()).count();
        let memory_kb = memory_kb(table_bytes, workers).max(set_kb);
        Ok(BuildSettings {
            builders: parallel.clamp(1, most.min(BUILDERS_MAX)),
            settings: format!("set local maintenance_work_mem = '{memory_kb}kB'"),
        })
    }

    /// Builds indexes in parallel, and returns the result of each build.
    async fn build(
        &self,
        changes: Vec<RecordedChange>,
        build_settings: &BuildSettings,
    ) -> Result<Vec<Result<IndexBuild>>> {
        let builders = IndexBuilders {
            work: self.work.clone(),
            application_name: "pgspate load: building indexes",
            count: build_settings.builders,
            first_connection: Some(self.control),
            stops_at_first_error: false,
        };
        let queue = changes.into_iter().map(|change| (change.name(), change)).collect();
        builders
            .run(queue, async |connection: &Connection, change: RecordedChange| {
                match self.run_next_step(connection, change.clone(), &build_settings.settings).await
                {
                    Err(error) if error.sqlstate().is_some_and(is_out_of_space) => {
                        Ok(IndexBuild::OutOfSpace(change))
                    }
                    stepped => stepped.map(IndexBuild::Built),
                }
            })
            .await
    }

    /// Runs the change's next step, and counts it in the ledger. Repeats the step while another
    /// session holds a lock. Returns the change with one more step done.
    async fn run_next_step(
        &self,
        connection: &Connection,
        change: RecordedChange,
        settings: &str,
    ) -> Result<RecordedChange> {
        let started = Instant::now();
        let what = format!("could not put back {}", change.name());
        let failed = || server_error(what.clone());
        let mut existing = None;
        connection
            .client
            .batch_execute(&TimeoutScope::Session.disable_sql())
            .await
            .map_err(failed())?;
        loop {
            self.work.stop.check()?;
            let Some(step) = next_step(&connection.client, &change, existing).await? else {
                // The table no longer exists.
                return Ok(change.after_step());
            };
            let begin = format!(
                "begin isolation level read committed; {DEFINITION_SETTINGS}; {settings}; \
                 set local lock_timeout = '{LOCK_ATTEMPT}'"
            );
            let count = format!("{}; commit", step.count_sql);
            // The settings are a separate message: the server parses all statements of a message
            // before it runs the first one, and parsing depends on the settings. Each statement is
            // a separate message for Citus, which sends a message's whole text to its workers.
            let statements = step.statements.iter().map(String::as_str);
            let all: Vec<&str> = iter::once(&*begin).chain(statements).chain([&*count]).collect();
            let Err(error) = self.run_statements(connection, &all, &what).await else {
                let mut changed = self.changed_settings.lock().expect("no panic while held");
                changed.note(&change, step.changed_settings);
                return Ok(change.after_step());
            };
            if error.kind() == ErrorKind::Connect {
                return Err(error);
            }
            connection.client.batch_execute("rollback").await.map_err(failed())?;
            self.work.stop.check()?;
            let code = error.sqlstate().cloned();
            if ledger::is_table_renamed(&error) {
                continue;
            }
            if existing.is_none() && code.as_ref().is_some_and(is_duplicate) {
                existing = self.find_existing(connection, &change).await?;
                if existing.is_none() {
                    return Err(hint_name_taken(error, &change));
                }
                continue;
            }
            if error.sqlstate().is_some_and(is_out_of_space) {
                return Err(hint_space(error, &change));
            }
            if !code.as_ref().is_some_and(is_lock_error) {
                return Err(error);
            }
            self.wait_for_lock(connection, &change, error, started).await?;
        }
    }

    /// Runs statements one by one until one fails.
    async fn run_statements(
        &self,
        connection: &Connection,
        all: &[&str],
        what: &str,
    ) -> Result<()> {
        for sql in all {
            connection.execute_until_stopped(sql, &self.work.stop, what).await?;
        }
        Ok(())
    }

    /// Waits for `LOCK_PAUSE` before the lock is requested again.
    ///
    /// # Errors
    /// [`ErrorKind::Server`], which names the session that uses the table, if the time limit for
    /// locks has passed.
    async fn wait_for_lock(
        &self,
        connection: &Connection,
        change: &RecordedChange,
        error: Error,
        started: Instant,
    ) -> Result<()> {
        let who = locking_sessions(&connection.client, change.table_oid, TableLocks::All).await?;
        let who = who.first().map_or("another session", String::as_str);
        let name = change.name();
        if self.lock_timeout.is_some_and(|limit| started.elapsed() > limit) {
            let message = format!("could not put back {name}: {who} is using the table");
            return Err(Error::new(ErrorKind::Server, message).because(error));
        }
        self.work.progress.set_phase(Some(format!("{name} waits for {who}")));
        tokio::time::sleep(LOCK_PAUSE).await;
        Ok(())
    }

    /// Returns how the object of the change exists already, because another session created it.
    /// `None` if it does not exist. For a step that adds a constraint with an index, only the
    /// constraint counts.
    async fn find_existing(
        &self,
        connection: &Connection,
        change: &RecordedChange,
    ) -> Result<Option<ExistingObject>> {
        let failed = || server_error(format!("could not look up {}", change.name()));
        let step = i32::try_from(change.done).unwrap_or(i32::MAX);
        let recipe = change.recipe().unwrap_or_default();
        let numbers = |columns: &[(i16, String)]| -> Vec<i32> {
            columns.iter().map(|(number, _)| i32::from(*number)).collect()
        };
        let (own, other) = (numbers(&recipe.columns), numbers(&recipe.referenced_columns));
        let client = &connection.client;
        let begin = format!("begin; {DEFINITION_SETTINGS}");
        client.batch_execute(&begin).await.map_err(failed())?;
        let values: [&dyn TypedParameter; 10] = [
            &change.table_oid,
            &change.object,
            &recipe.definition,
            &change.kind,
            &step,
            &recipe.deferrable,
            &recipe.deferred,
            &recipe.referenced_table,
            &own,
            &other,
        ];
        let row = client.fetch_one(EXISTING_SQL, &values).await;
        client.batch_execute("rollback").await.map_err(failed())?;
        let is_same: Option<bool> = row.map_err(failed())?.get(0);
        Ok(is_same.map(|is_same| match is_same {
            true => ExistingObject::Same,
            false => ExistingObject::Other,
        }))
    }
}

/// Query for an object that another session has created. The column is NULL if there is none;
/// otherwise, whether the object has the recorded definition. An index counts only if it has.
const EXISTING_SQL: &str = "\
select case
  when $5 = 0 and exists (
    select from pg_index i join pg_class c on c.oid = i.indexrelid
    where i.indrelid = $1 and c.relname = $2 and i.indisvalid
      and right(pg_get_indexdef(c.oid), length($3)) = $3
      and i.indisunique = ($4 <> 'index')) then true
  else (
    select case contype
             when 'x' then pg_get_constraintdef(oid) = $3
             when 'f' then confrelid = $8 and conkey::int4[] = $9 and confkey::int4[] = $10
               and pg_get_constraintdef(oid)
                   = format('FOREIGN KEY (%s) REFERENCES %s(%s)%s%s',
                            (select string_agg(quote_ident(attname), ', ' order by nth)
                             from unnest(conkey) with ordinality as k(number, nth)
                             join pg_attribute on attrelid = conrelid and attnum = number),
                            confrelid::regclass,
                            (select string_agg(quote_ident(attname), ', ' order by nth)
                             from unnest(confkey) with ordinality as k(number, nth)
                             join pg_attribute on attrelid = confrelid and attnum = number),
                            $3, case when convalidated then '' else ' NOT VALID' end)
             else condeferrable = $6 and condeferred = $7
               and right(pg_get_indexdef(conindid), length($3)) = $3 end
    from pg_constraint where conrelid = $1 and conname = $2
      and contype = case $4 when 'primary key' then 'p' when 'unique constraint' then 'u'
                            when 'exclusion constraint' then 'x' when 'foreign key' then 'f' end)
  end";

/// Returns the memory in KiB that sorts this many bytes in one merge pass. Each sorted run has the
/// size of the memory. One pass can merge as many runs as the memory has buffers of 256 KiB.
fn memory_kb(table_bytes: u64, workers: u64) -> u64 {
    let one_pass = ((table_bytes >> 10) as f64 * 256.0).sqrt() as u64;
    one_pass.max(WORKER_KB * (workers + 1)).min(MEMORY_KB_MAX)
}

/// The result of building an index.
enum IndexBuild {
    /// The index is built; the change may have more steps.
    Built(RecordedChange),
    /// There was not enough space to sort the keys.
    OutOfSpace(RecordedChange),
}

/// A step's SQL, and the SQL that counts the step in the ledger.
struct RestoreStep {
    statements: Vec<String>,
    count_sql: String,
    /// The settings and objects that stay as they are, because they were changed since.
    changed_settings: Vec<String>,
}

/// How another session has created the object of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExistingObject {
    /// With the recorded definition. It lacks attributes such as the comment.
    Same,
    /// With another definition. It stays as it is.
    Other,
}

/// Returns the change's next step, with the current names of the objects. Returns `None` if the
/// change has no more steps, or if the table no longer exists. A step whose object is `existing`
/// does not create the object.
async fn next_step(
    client: &Client,
    change: &RecordedChange,
    existing: Option<ExistingObject>,
) -> Result<Option<RestoreStep>> {
    if change.step().is_none() {
        return Ok(None);
    }
    let Some(recipe) = change.recipe() else { return Err(missing_recipe_error(change)) };
    let Some(now) = read_current_names(client, change.table_oid, &recipe).await? else {
        return Ok(None);
    };
    let statements = recipe.statements(&change.kind, &change.object, &now, change.done);
    let statements = statements.map_err(|error| hint_by_hand(error, change, &recipe, &now))?;
    let mut changed_settings = recipe.changed_settings(&change.kind, &now, change.done);
    let StepStatements { creation, attributes } = statements;
    let statements = match existing {
        None => [creation, attributes].concat(),
        Some(ExistingObject::Same) => attributes,
        Some(ExistingObject::Other) => {
            changed_settings = vec![change.name()];
            Vec::new()
        }
    };
    let count_sql = change.count_step_sql(&now.table);
    Ok(Some(RestoreStep { statements, count_sql, changed_settings }))
}

/// Returns the error for a change without a recipe, which an earlier version recorded as SQL. SQL
/// text from the ledger is never run.
fn missing_recipe_error(change: &RecordedChange) -> Error {
    let (name, (job, ordinal)) = (change.name(), change.order());
    let message = format!("could not put back {name}: the ledger has no recipe for it");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Read the recorded SQL with `select steps from pgspate.change where (job, ordinal) = \
         ({job}, {ordinal})`. If it is right, run it yourself. Then run `delete from \
         pgspate.change where (job, ordinal) = ({job}, {ordinal})`."
    ))
}

/// Returns the error for an object that cannot be created from its recipe. A hint says how the user
/// can create the object.
fn hint_by_hand(
    error: Error,
    change: &RecordedChange,
    recipe: &RestoreRecipe,
    now: &CurrentNames,
) -> Error {
    let (name, (job, ordinal)) = (change.name(), change.order());
    Error::new(ErrorKind::Ledger, format!("could not put back {name}")).because(error).hint(
        format!(
            "The definition was `{}` on {}. Rename the column back to its old name while you run \
         `pgspate status --restore {job}`. Or create the object yourself, and then run `delete \
         from pgspate.change where (job, ordinal) = ({job}, {ordinal})`.",
            recipe.definition, now.table
        ),
    )
}

/// Adds a hint if another object has taken the name of the change's object.
fn hint_name_taken(error: Error, change: &RecordedChange) -> Error {
    let (job, _) = change.order();
    let codes = [SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];
    if !error.sqlstate().is_some_and(|code| codes.contains(code)) {
        return error;
    }
    error.hint(format!(
        "Another object has the name \"{}\" now. Rename or drop that object, then run `pgspate \
         status --restore {job}`.",
        change.object
    ))
}

/// Adds a hint if there was no space to sort an index's keys.
fn hint_space(error: Error, change: &RecordedChange) -> Error {
    let (job, _) = change.order();
    let more = match error.sqlstate() {
        Some(&SqlState::CONFIGURATION_LIMIT_EXCEEDED) => {
            "Have a superuser raise `temp_file_limit` for this role"
        }
        _ => "Free space on the server's disk",
    };
    error.hint(format!("{more}, then run `pgspate status --restore {job}`."))
}

/// Returns whether the disk is full or `temp_file_limit` is reached.
pub(super) fn is_out_of_space(code: &SqlState) -> bool {
    [SqlState::CONFIGURATION_LIMIT_EXCEEDED, SqlState::DISK_FULL].contains(code)
}

/// Returns whether the error may mean that the object exists already.
fn is_duplicate(code: &SqlState) -> bool {
    let codes = [
        SqlState::DUPLICATE_TABLE,
        SqlState::DUPLICATE_OBJECT,
        SqlState::INVALID_TABLE_DEFINITION,
        // The index belongs to a constraint already.
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    ];
    codes.contains(code)
}

/// Returns whether another session holds a conflicting lock.
fn is_lock_error(code: &SqlState) -> bool {
    [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
}

/// Undoes the changes that one earlier load left on its table. Without a `job`, undoes the changes
/// of every load that no session works on. Returns the undone changes, and warnings: settings that
/// stay as they are, because they were changed since, and tables that could not be analyzed.
/// Blocks.
///
/// # Errors
/// If the job is unknown or still running, or if the server refuses a step. After a refused step,
/// all other changes are undone nevertheless.
pub fn restore(
    dsn: &Dsn,
    job: Option<i64>,
    runtime: &Handle,
    progress: &CopyProgress,
) -> Result<(Vec<RecordedChange>, Vec<String>)> {
    let control = runtime.block_on(dsn.connect("pgspate status"))?;
    let changes = runtime.block_on(ledger::claim_changes(&control.client, job))?;
    let restorer = Restorer {
        runtime,
        control: &control,
        work: TableWork { dsn, progress, stop: progress.stop.clone() },
        lock_timeout: None,
        changed_settings: Mutex::default(),
    };
    let restored = restorer.run(changes.clone());
    let unanalyzed =
        runtime.block_on(restore_statistics(restorer.control, &changes, &restorer.work));
    restored?;
    let kept = restorer.changed_settings.into_inner().unwrap_or_default();
    let changes = changes.into_iter().filter(|change| kept.is_back(change)).collect();
    let kept = kept.into_settings();
    let kept =
        kept.map(|it| format!("{it} was changed since the load changed it, and stays as it is"));
    Ok((changes, kept.chain(unanalyzed).collect()))
}

#[cfg(test)]
mod tests {
    use super::memory_kb;

    #[test]
    fn index_memory_grows_with_the_rows_within_limits() {
        assert_eq!(memory_kb(0, 0), 32 << 10);
        assert_eq!(memory_kb(400 << 20, 2), 96 << 10);
        assert_eq!(memory_kb(100 << 30, 2) >> 10, 160);
        assert_eq!(memory_kb(u64::MAX >> 1, 8), 1 << 20);
    }
}

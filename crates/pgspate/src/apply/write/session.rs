//! The writer's session with its stages, prepared statements and transaction.

use std::collections::HashMap;

use tokio_postgres::Statement;

use super::altered_tables::CHECK_TASK;
use super::{ApplyCounts, WriterSettings};
use crate::Result;
use crate::apply::route::ApplyTable;
use crate::apply::write::statements;
use crate::stage::{TEMP_BUFFERS, planner, set_temp_buffers};
use pgspate_target::connect::Connection;
use pgspate_target::{COMMITS_WAIT, TypedQuery, find_definition_mark_sql, users_path_sql};

/// Makes the planner look up a few rows by index, whatever the statistics say. Larger batches never
/// reuse such a plan, as their statements are not kept.
const PLAN_BY_INDEX: &str = "\
set local jit = off; set local enable_nestloop = on; set local enable_hashjoin = off; \
set local enable_mergejoin = off; set local enable_seqscan = off";

/// Makes the server plan each prepared statement only once.
const PLAN_ONCE: &str = "set plan_cache_mode = force_generic_plan";

/// Gives each statement without a transaction a snapshot that is taken after the statement's locks.
const READ_COMMITTED: &str = "set default_transaction_isolation = 'read committed'";

/// Asks whether commits wait for the disk of this server, and for nothing else, and whether the
/// server counts the rows that it writes.
const SERVER_SETTINGS: &str = "\
select current_setting('synchronous_commit') in ('on', 'local', 'remote_write')
       and current_setting('synchronous_standby_names') = '',
       current_setting('track_counts')::bool";

/// The rows of a table that the session has inserted and deleted. The numbers grow while a
/// transaction is open.
const COUNT_WRITTEN: &str = "\
select pg_catalog.pg_stat_get_xact_tuples_inserted($1),
       pg_catalog.pg_stat_get_xact_tuples_deleted($1)";

/// The first version of PostgreSQL whose MERGE returns what it did.
const MERGE_RETURNING_VERSION: u32 = 170_000;

/// Makes Citus write the shards of a table one after the other, if the database has foreign keys.
/// Otherwise a transaction may not write to a distributed table and to a reference table that the
/// distributed table refers to.
const WRITE_SHARDS_IN_TURN: &str = "\
select set_config('citus.multi_shard_modify_mode', 'sequential', false)
where to_regclass('pg_catalog.pg_dist_partition') is not null
  and exists (select 1 from pg_constraint where contype = 'f')";

/// Checks whether the server has MERGE without two errors of earlier releases. One joined a row
/// that another session had changed with a wrong staged row. The other left generated columns NULL.
fn has_sound_merge(version: u32) -> bool {
    version >= 150_005 && version != 160_000
}

/// How the server plans the statements of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatementPlanning {
    /// For a few rows, by index. The statements are prepared once.
    ByIndex,
    /// For many rows, after a check of each plan.
    Checked,
    /// For many rows of a table whose statements the server cannot explain.
    Unchecked,
}

/// The stage of a target table: a temporary table for the rows of a batch.
pub(super) struct BatchStage {
    pub(super) binary: Statement,
    pub(super) text: Statement,
    version: u32,
    sql_name: String,
    rows: u64,
    scope: StageScope,
}

/// The scope whose rollback drops a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StageScope {
    /// Only the end of the session drops the stage.
    Session,
    Transaction,
    /// The first savepoint, or a savepoint nested within it.
    Savepoint(u8),
}

impl StageScope {
    /// Returns the enclosing scope.
    fn enclosing(self) -> StageScope {
        match self {
            StageScope::Savepoint(depth) if depth > 1 => StageScope::Savepoint(depth - 1),
            StageScope::Savepoint(_) | StageScope::Transaction => StageScope::Transaction,
            StageScope::Session => StageScope::Session,
        }
    }

    /// Returns the scope of a savepoint that is set in this scope.
    fn nested(self) -> StageScope {
        match self {
            StageScope::Savepoint(depth) => StageScope::Savepoint(depth + 1),
            StageScope::Transaction | StageScope::Session => StageScope::Savepoint(1),
        }
    }
}

// A repeated name means the savepoint that was set last.
const SAVEPOINT: &str = "savepoint pgspate_apply";
const RELEASE_SAVEPOINT: &str = "release savepoint pgspate_apply";
const ROLLBACK_TO_SAVEPOINT: &str =
    "rollback to savepoint pgspate_apply; release savepoint pgspate_apply";

/// The session that writes to the target.
pub(super) struct WriterSession {
    pub(super) connection: Connection,
    pub(super) in_transaction: bool,
    /// Stages by the tables' OIDs.
    stages: HashMap<u32, BatchStage>,
    /// Prepared statements of small batches, by their text.
    statements: HashMap<String, Statement>,
    /// Statements that write whole batches, by the version of the table and their text.
    batch_statements: HashMap<(u32, String), BatchStatement>,
    /// The scope in which a stage would be created now.
    scope: StageScope,
    lock_timeout: i32,
    planning: StatementPlanning,
    /// Whether rows may be sent as parameters of statements.
    pub(super) may_use_parameters: bool,
    /// Whether a commit may be answered before it is on the disk. Commits that wait for a standby
    /// always wait.
    pub(super) may_commit_late: bool,
    /// Whether the server has MERGE, and counts what it does.
    pub(super) may_merge: bool,
    /// Whether MERGE returns what it did.
    pub(super) may_return_merged: bool,
}

/// A prepared statement that writes a whole batch of a table.
#[derive(Clone)]
pub(super) struct BatchStatement {
    pub(super) statement: Statement,
    /// The mark of the definition for which the statement was prepared.
    pub(super) definition_mark: String,
}

/// The most prepared statements to keep. A table has about five for each set of columns.
const STATEMENTS_MAX: usize = 500;

impl WriterSession {
    /// Connects, and sets up the session.
    pub(super) async fn open(settings: &WriterSettings) -> Result<WriterSession> {
        let connection = settings.dsn.connect("pgspate apply").await?;
        let version = connection.server_version();
        let mut session = WriterSession {
            connection,
            in_transaction: false,
            stages: HashMap::new(),
            statements: HashMap::new(),
            batch_statements: HashMap::new(),
            scope: StageScope::Session,
            lock_timeout: settings.limits.lock_timeout_millis(),
            planning: StatementPlanning::Checked,
            may_use_parameters: true,
            may_commit_late: false,
            may_merge: false,
            may_return_merged: version >= MERGE_RETURNING_VERSION,
        };
        let sql = format!(
            "{}; {}; {}; {PLAN_ONCE}; {READ_COMMITTED}; {COMMITS_WAIT}",
            settings.limits.session_sql(),
            settings.value_settings,
            PLAN_BY_INDEX.replace("set local", "set")
        );
        // The source discards events that are reported as applied. So commits must reach the disk.
        set_temp_buffers(&session.connection.client, TEMP_BUFFERS).await;
        session.run(&sql, "set up the session").await?;
        session.run(WRITE_SHARDS_IN_TURN, "set up the session").await?;
        let row = session.connection.client.fetch_one(SERVER_SETTINGS, &[]).await;
        let failed = |error| session.connection.explain("could not set up the session", error);
        let row = row.map_err(failed)?;
        session.may_commit_late = row.get(0);
        session.may_merge = has_sound_merge(version) && row.get(1);
        Ok(session)
    }

    /// Runs statements without rows. `task` completes "could not".
    pub(super) async fn run(&self, sql: &str, task: &str) -> Result<()> {
        let done = self.connection.client.batch_execute(sql).await;
        done.map_err(|error| self.connection.explain(format!("could not {task}"), error))
    }

    /// Begins a transaction, unless one is open.
    pub(super) async fn begin(&mut self) -> Result<()> {
        if self.in_transaction {
            return Ok(());
        }
        self.run(&self.begin_sql(), "begin a transaction").await?;
        self.in_transaction = true;
        self.scope = StageScope::Transaction;
        Ok(())
    }

    /// Returns the SQL that begins a transaction. Triggers run under the user's search path.
    pub(super) fn begin_sql(&self) -> String {
        format!(
            "begin isolation level read committed; set local lock_timeout = {}; \
             set constraints all deferred; {}",
            self.lock_timeout,
            users_path_sql(true)
        )
    }

    /// Sets a savepoint, nested within the current one if there is one.
    pub(super) async fn set_savepoint(&mut self) -> Result<()> {
        self.run(SAVEPOINT, "set a savepoint").await?;
        self.scope = self.scope.nested();
        Ok(())
    }

    /// Keeps the work since the last savepoint.
    pub(super) async fn release_savepoint(&mut self) -> Result<()> {
        self.run(RELEASE_SAVEPOINT, "release a savepoint").await?;
        self.widen_stage_scopes(self.scope.enclosing());
        Ok(())
    }

    /// Undoes the work since the last savepoint.
    pub(super) async fn roll_back_to_savepoint(&mut self) -> Result<()> {
        self.run(ROLLBACK_TO_SAVEPOINT, "roll back to a savepoint").await?;
        self.forget_stages_within(self.scope.enclosing());
        Ok(())
    }

    /// Moves the stages of inner scopes to `scope`, and makes `scope` the current scope.
    fn widen_stage_scopes(&mut self, scope: StageScope) {
        self.stages.values_mut().for_each(|staged| staged.scope = staged.scope.min(scope));
        self.scope = scope;
    }

    /// Forgets the stages within `scope`, and the statements that use them. Makes `scope` the
    /// current scope.
    fn forget_stages_within(&mut self, scope: StageScope) {
        let gone = self.stages.extract_if(|_, staged| staged.scope > scope);
        let gone: Vec<_> = gone.map(|(_, staged)| staged.sql_name).collect();
        self.statements.retain(|sql, _| !gone.iter().any(|stage| sql.contains(stage)));
        self.scope = scope;
    }

    /// Commits the open transaction.
    pub(super) async fn commit(&mut self) -> Result<()> {
        self.run("commit", "commit").await?;
        self.in_transaction = false;
        self.widen_stage_scopes(StageScope::Session);
        self.stages.values_mut().for_each(|staged| staged.rows = 0);
        Ok(())
    }

    /// Rolls back the open transaction. After an error the session cannot be used any more.
    pub(super) async fn roll_back(&mut self) -> Result<()> {
        self.forget_stages_within(StageScope::Session);
        self.in_transaction = false;
        self.stages.values_mut().for_each(|staged| staged.rows = 0);
        self.run("rollback", "roll back").await
    }

    /// Sets how the next statements are planned.
    pub(super) async fn set_planning(&mut self, planning: StatementPlanning) -> Result<()> {
        self.planning = planning;
        let settings = match planning {
            StatementPlanning::ByIndex => PLAN_BY_INDEX,
            StatementPlanning::Checked | StatementPlanning::Unchecked => planner::SETTINGS,
        };
        self.run(settings, "set planner options").await
    }

    /// Creates the table's stage if it does not exist.
    pub(super) async fn ensure_stage(&mut self, facts: &ApplyTable) -> Result<()> {
        let oid = facts.table.oid;
        if self.stages.get(&oid).is_some_and(|staged| staged.version == facts.version) {
            return Ok(());
        }
        let task = "make a temporary table to stage rows in";
        self.run(&statements::create_stage_sql(facts), task).await?;
        let client = &self.connection.client;
        let explain = |error| self.connection.explain("could not prepare to stage rows", error);
        let binary = client
            .prepare(&statements::copy_into_stage_sql(facts, "binary"))
            .await
            .map_err(explain)?;
        let text = client
            .prepare(&statements::copy_into_stage_sql(facts, "text"))
            .await
            .map_err(explain)?;
        let sql_name = format!("pg_temp.{}", statements::stage_name(facts));
        let staged = BatchStage {
            binary,
            text,
            version: facts.version,
            sql_name,
            rows: 0,
            scope: self.scope,
        };
        self.stages.insert(oid, staged);
        Ok(())
    }

    /// Returns the table's stage, to which `rows` rows will be copied.
    pub(super) fn stage_for_rows(&mut self, oid: u32, rows: u64) -> Option<&BatchStage> {
        let staged = self.stages.get_mut(&oid)?;
        staged.rows += rows;
        Some(staged)
    }

    /// Empties all stages for the next rows of the same transaction.
    pub(super) async fn clear_stages(&mut self) -> Result<()> {
        let mut sql = String::new();
        for staged in self.stages.values_mut().filter(|staged| staged.rows > 0) {
            // TRUNCATE gives the table a new file and changes the catalog, so it pays for many rows
            // only.
            let verb = if staged.rows > 10_000 { "truncate" } else { "delete from" };
            sql += &format!("{verb} {};", staged.sql_name);
            staged.rows = 0;
        }
        self.run(&sql, "empty the stage").await
    }

    /// Runs a statement. Returns the number of rows written.
    pub(super) async fn execute(&mut self, sql: &str, task: &str) -> Result<u64> {
        let failed = |this: &WriterSession, error| {
            Err(this.connection.explain(format!("could not {task}"), error))
        };
        if self.planning != StatementPlanning::ByIndex {
            let client = &self.connection.client;
            if let Err(error) = self.check_plan(sql).await {
                return failed(self, error);
            }
            return match client.execute(sql, &[]).await {
                Ok(rows) => Ok(rows),
                Err(error) => failed(self, error),
            };
        }
        let statement = self.prepare(sql, task).await?;
        match self.connection.client.execute(&statement, &[]).await {
            Ok(rows) => Ok(rows),
            Err(error) => failed(self, error),
        }
    }

    /// Checks the plan of a statement, if plans are checked now.
    async fn check_plan(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        if self.planning == StatementPlanning::Checked {
            planner::allow_nested_loop(&self.connection.client, sql).await?;
        }
        Ok(())
    }

    /// Prepares a statement of small batches once.
    pub(super) async fn prepare(&mut self, sql: &str, task: &str) -> Result<Statement> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.prepare_anew(sql, task).await?;
        if self.statements.len() < STATEMENTS_MAX {
            self.statements.insert(sql.to_owned(), statement.clone());
        }
        Ok(statement)
    }

    /// Prepares a statement, even if a statement with this text is prepared already.
    async fn prepare_anew(&self, sql: &str, task: &str) -> Result<Statement> {
        let prepared = self.connection.client.prepare(sql).await;
        prepared.map_err(|error| self.connection.explain(format!("could not {task}"), error))
    }

    /// Prepares a statement that writes whole batches of a table, once. `None` if the table was
    /// altered since it was read.
    pub(super) async fn prepare_for_batches(
        &mut self,
        facts: &ApplyTable,
        sql: String,
        task: &str,
    ) -> Result<Option<BatchStatement>> {
        let key = (facts.version, sql);
        if let Some(prepared) = self.batch_statements.get(&key) {
            return Ok(Some(prepared.clone()));
        }
        let statement = self.prepare_anew(&key.1, task).await?;
        // The server compares the statement's columns with those that it had when it was prepared.
        // So the table is compared with what was read only now.
        let sql = find_definition_mark_sql(facts.needs_columns_mark());
        let known = ApplyTable::known_definitions([facts]);
        let row = self.connection.client.query_opt(&sql, &known.parameters()).await;
        let failed = |error| self.connection.explain(format!("could not {CHECK_TASK}"), error);
        let Some(row) = row.map_err(failed)? else { return Ok(None) };
        let prepared = BatchStatement { statement, definition_mark: row.get(0) };
        if self.batch_statements.len() >= STATEMENTS_MAX {
            self.batch_statements.clear();
        }
        self.batch_statements.insert(key, prepared.clone());
        Ok(Some(prepared))
    }

    /// Forgets the statements for whole batches of a table, as its definition may have changed.
    pub(super) fn forget_batch_statements(&mut self, facts: &ApplyTable) {
        self.batch_statements.retain(|(version, _), _| *version != facts.version);
    }

    /// Returns how many rows of a table the session has inserted and deleted. Only the difference
    /// of two such counts within a transaction has a meaning.
    pub(super) async fn count_written(&self, table: u32) -> Result<ApplyCounts> {
        let row = self.connection.client.fetch_one(COUNT_WRITTEN, &[&table]).await;
        let failed = |error| self.connection.explain("could not count written rows", error);
        let row = row.map_err(failed)?;
        let [inserted, deleted] = [0, 1].map(|at| row.get::<_, i64>(at).unsigned_abs());
        Ok(ApplyCounts { inserted, deleted, ..ApplyCounts::default() })
    }

    /// Returns the first value of a query.
    pub(super) async fn query_value<T>(&mut self, sql: &str, task: &str) -> Result<T>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let client = &self.connection.client;
        let explain = |error| self.connection.explain(format!("could not {task}"), error);
        self.check_plan(sql).await.map_err(explain)?;
        let row = client.query_one(sql, &[]).await.map_err(explain)?;
        row.try_get(0).map_err(explain)
    }
}

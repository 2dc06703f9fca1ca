//! The writer's session: its stages, its statements, its transaction.

use std::collections::HashMap;

use tokio_postgres::Statement;

use super::WriterSettings;
use crate::Result;
use crate::apply::route::ApplyTable;
use crate::apply::write::statements;
use crate::stage::{TEMP_BUFFERS, pin};
use pgspate_target::connect::Connection;
use pgspate_target::use_users_path;

/// Whatever the statistics say, a few rows are looked up in an index, one by one. A plan made so is
/// not left for later batches, as statements of larger ones are not kept.
const BY_INDEX: &str = "\
set local jit = off; set local enable_nestloop = on; set local enable_hashjoin = off; \
set local enable_mergejoin = off; set local enable_seqscan = off";

/// What is kept is planned once.
const PLAN_ONCE: &str = "set plan_cache_mode = force_generic_plan";

/// The stage of a table.
pub(super) struct StageTable {
    pub(super) binary: Statement,
    pub(super) text: Statement,
    version: u32,
    clear: String,
    rows: u64,
    made: StageScope,
}

/// With what a stage is gone if that is rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StageScope {
    /// With the session only.
    Outside,
    InTransaction,
    /// In the first savepoint, or in one within that.
    InSavepoint(u8),
}

impl StageScope {
    /// One further out.
    fn outside(self) -> StageScope {
        match self {
            StageScope::InSavepoint(depth) if depth > 1 => StageScope::InSavepoint(depth - 1),
            StageScope::InSavepoint(_) | StageScope::InTransaction => StageScope::InTransaction,
            StageScope::Outside => StageScope::Outside,
        }
    }

    /// In a savepoint that is set there.
    fn inside(self) -> StageScope {
        match self {
            StageScope::InSavepoint(depth) => StageScope::InSavepoint(depth + 1),
            StageScope::InTransaction | StageScope::Outside => StageScope::InSavepoint(1),
        }
    }
}

// The name means the last one that is set.
const SAVEPOINT: &str = "savepoint pgspate_apply";
const KEEP: &str = "release savepoint pgspate_apply";
const BACK: &str = "rollback to savepoint pgspate_apply; release savepoint pgspate_apply";

/// A session with the target.
pub(super) struct WriterSession {
    pub(super) connection: Connection,
    pub(super) in_transaction: bool,
    /// By the tables' oids.
    stages: HashMap<u32, StageTable>,
    /// Statements of small batches, by their text.
    kept: HashMap<String, Statement>,
    /// What a stage would be made in now.
    inside: StageScope,
    lock_timeout: i32,
    is_small: bool,
    /// Rows may be parameters of statements.
    pub(super) takes_parameters: bool,
}

/// At most so many statements are kept: a table has about five for each set of columns.
const KEPT_MAX: usize = 500;

impl WriterSession {
    pub(super) async fn open(settings: &WriterSettings) -> Result<WriterSession> {
        let connection = settings.dsn.connect("pgspate apply").await?;
        let session = WriterSession {
            connection,
            in_transaction: false,
            stages: HashMap::new(),
            kept: HashMap::new(),
            inside: StageScope::Outside,
            lock_timeout: settings.limits.lock_timeout_millis(),
            is_small: false,
            takes_parameters: true,
        };
        let sql = format!(
            "{}; set temp_buffers = '{TEMP_BUFFERS}'; {}; {PLAN_ONCE}",
            settings.limits.session_sql(),
            BY_INDEX.replace("set local", "set")
        );
        session.run(&sql, "set up the session").await?;
        // A source forgets what it was told is applied: that must be on the disk.
        let durable = "select set_config('synchronous_commit', 'on', false) \
                       where current_setting('synchronous_commit') = 'off'";
        session.run(durable, "set up the session").await?;
        Ok(session)
    }

    /// Runs statements without rows.
    pub(super) async fn run(&self, sql: &str, what: &str) -> Result<()> {
        let done = self.connection.client.batch_execute(sql).await;
        done.map_err(|error| self.connection.explain(format!("could not {what}"), error))
    }

    /// Begins a transaction, unless one is open.
    pub(super) async fn begin(&mut self) -> Result<()> {
        if self.in_transaction {
            return Ok(());
        }
        self.run(&self.begins(), "begin to apply").await?;
        self.in_transaction = true;
        self.inside = StageScope::InTransaction;
        Ok(())
    }

    /// What begins a transaction: triggers are run under the user's search path.
    pub(super) fn begins(&self) -> String {
        format!(
            "begin isolation level read committed; set local lock_timeout = {}; \
             set constraints all deferred; {}",
            self.lock_timeout,
            use_users_path(true)
        )
    }

    /// Sets a savepoint, within the one that is set, if any.
    pub(super) async fn set_savepoint(&mut self) -> Result<()> {
        self.run(SAVEPOINT, "set a savepoint").await?;
        self.inside = self.inside.inside();
        Ok(())
    }

    /// Keeps what was done since the last savepoint.
    pub(super) async fn release(&mut self) -> Result<()> {
        self.run(KEEP, "release a savepoint").await?;
        self.keep(self.inside.outside());
        Ok(())
    }

    /// Undoes what was done since the last savepoint.
    pub(super) async fn go_back(&mut self) -> Result<()> {
        self.run(BACK, "go back to a savepoint").await?;
        self.forget(self.inside.outside());
        Ok(())
    }

    /// Stages are now as if made there.
    fn keep(&mut self, there: StageScope) {
        self.stages.values_mut().for_each(|staged| staged.made = staged.made.min(there));
        self.inside = there;
    }

    /// Forgets the stages that were made further inside, and the statements that use them.
    fn forget(&mut self, there: StageScope) {
        let gone = self.stages.extract_if(|_, staged| staged.made > there);
        let gone: Vec<_> = gone.map(|(_, staged)| staged.clear).collect();
        self.kept.retain(|sql, _| !gone.iter().any(|stage| sql.contains(stage)));
        self.inside = there;
    }

    pub(super) async fn commit(&mut self) -> Result<()> {
        self.run("commit", "commit").await?;
        self.in_transaction = false;
        self.keep(StageScope::Outside);
        self.stages.values_mut().for_each(|staged| staged.rows = 0);
        Ok(())
    }

    /// Rolls back what is open. An error: the session is of no use any more.
    pub(super) async fn roll_back(&mut self) -> Result<()> {
        self.forget(StageScope::Outside);
        self.in_transaction = false;
        self.stages.values_mut().for_each(|staged| staged.rows = 0);
        self.run("rollback", "roll back").await
    }

    /// Says how statements to come are planned: for a few rows, or for many.
    pub(super) async fn plan_for(&mut self, is_small: bool) -> Result<()> {
        self.is_small = is_small;
        let settings = if is_small { BY_INDEX } else { pin::SETTINGS };
        self.run(settings, "set how to plan").await
    }

    /// The table's stage, made at first need.
    pub(super) async fn stage(&mut self, facts: &ApplyTable) -> Result<()> {
        let oid = facts.table.oid;
        if self.stages.get(&oid).is_some_and(|staged| staged.version == facts.version) {
            return Ok(());
        }
        let what = "make a temporary table to stage rows in";
        self.run(&statements::make_stage(facts), what).await?;
        let client = &self.connection.client;
        let explain = |error| self.connection.explain("could not prepare to stage rows", error);
        let binary = client.prepare(&statements::copy(facts, "binary")).await.map_err(explain)?;
        let text = client.prepare(&statements::copy(facts, "text")).await.map_err(explain)?;
        let clear = format!("pg_temp.{}", statements::stage_name(facts));
        let staged =
            StageTable { binary, text, version: facts.version, clear, rows: 0, made: self.inside };
        self.stages.insert(oid, staged);
        Ok(())
    }

    /// The table's stage, to which so many rows go.
    pub(super) fn staged(&mut self, oid: u32, rows: u64) -> Option<&StageTable> {
        let staged = self.stages.get_mut(&oid)?;
        staged.rows += rows;
        Some(staged)
    }

    /// Empties all stages, for what comes in the same transaction.
    pub(super) async fn clear_stages(&mut self) -> Result<()> {
        let mut sql = String::new();
        for staged in self.stages.values_mut().filter(|staged| staged.rows > 0) {
            // A truncated table is a new file, for which the catalog has to change.
            let verb = if staged.rows > 10_000 { "truncate" } else { "delete from" };
            sql += &format!("{verb} {};", staged.clear);
            staged.rows = 0;
        }
        self.run(&sql, "empty the stage").await
    }

    /// Runs a statement; the rows that it wrote.
    pub(super) async fn execute(&mut self, sql: &str, what: &str) -> Result<u64> {
        let failed = |this: &WriterSession, error| {
            Err(this.connection.explain(format!("could not {what}"), error))
        };
        if !self.is_small {
            let client = &self.connection.client;
            if let Err(error) = pin::allow_nested_loop(client, sql).await {
                return failed(self, error);
            }
            return match client.execute(sql, &[]).await {
                Ok(rows) => Ok(rows),
                Err(error) => failed(self, error),
            };
        }
        let statement = self.prepare(sql, what).await?;
        match self.connection.client.execute(&statement, &[]).await {
            Ok(rows) => Ok(rows),
            Err(error) => failed(self, error),
        }
    }

    /// A statement of small batches, which is prepared once.
    pub(super) async fn prepare(&mut self, sql: &str, what: &str) -> Result<Statement> {
        if let Some(statement) = self.kept.get(sql) {
            return Ok(statement.clone());
        }
        let prepared = self.connection.client.prepare(sql).await;
        let statement = prepared
            .map_err(|error| self.connection.explain(format!("could not {what}"), error))?;
        if self.kept.len() < KEPT_MAX {
            self.kept.insert(sql.to_owned(), statement.clone());
        }
        Ok(statement)
    }

    /// The first value of a query.
    pub(super) async fn ask<T>(&mut self, sql: &str, what: &str) -> Result<T>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let client = &self.connection.client;
        let explain = |error| self.connection.explain(format!("could not {what}"), error);
        if !self.is_small {
            pin::allow_nested_loop(client, sql).await.map_err(explain)?;
        }
        let row = client.query_one(sql, &[]).await.map_err(explain)?;
        row.try_get(0).map_err(explain)
    }
}

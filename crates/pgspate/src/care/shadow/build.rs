//! Completes a shadow table after its last row, and exchanges it for the table.
//!
//! Builds the shadow's indexes, constraints and statistics. Then waits for transactions that could
//! see only some of the rows, and for the lock on the table.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::exchange::{self, ExchangeError, run};
use super::recipe::{self, ShadowNames, generate};
use super::{TableCare, begin_sql};
use crate::care::index_builders::{BUILDERS_MAX, IndexBuilders};
use crate::copy::Lanes;
use crate::job::RetryAfterConnectionLoss;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, describe_session_sql};
use pgspate_target::ledger::{self, JobId};
use pgspate_target::session::{POLL_INTERVAL, TimeoutScope};
use pgspate_target::{TypedQuery, server_error};

/// Lock timeout of one attempt. Other sessions queue behind the lock request for this time.
pub(super) const LOCK_ATTEMPT: Duration = Duration::from_secs(1);

/// Pause between two attempts, in which other sessions get the lock.
pub(super) const LOCK_PAUSE: Duration = Duration::from_secs(1);

/// Time to wait for transactions that could see only some of the rows, without `--atomic`.
pub(super) const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

impl TableCare<'_> {
    /// Completes the shadow, which has `chunks` chunks, and puts it in the table's place. Retries
    /// after a lost connection, within the time limit that lanes have for reconnecting. Returns
    /// false if chunks are missing and must be loaded again.
    pub(crate) fn complete_shadow(&mut self, chunks: u64) -> Result<bool> {
        let Some((job, names)) = self.shadow_names() else { return Ok(true) };
        let progress = self.progress;
        let completed = self.retry_after_connection_loss(progress, |care| {
            // The reply to the last commit may have been lost.
            if care
                .job
                .with_client(async |client: &Client| ledger::is_job_finished(client, job).await)?
            {
                care.changes.is_exchanged = true;
                return Ok(true);
            }
            if care.has_lost_chunks(chunks)? {
                return Ok(false);
            }
            care.build_and_analyze(&names)?;
            let warning = care.wait_for_older_transactions(&names)?;
            care.plan.warnings.extend(warning);
            let is_exchanged = care.exchange_tables(job, &names, chunks)?;
            care.changes.is_exchanged = is_exchanged;
            if !is_exchanged {
                care.job.reopen()?;
            }
            match is_exchanged || care.has_lost_chunks(chunks)? {
                true => Ok(is_exchanged),
                false => Err(ledger::missing_chunks_error(job, chunks)),
            }
        });
        progress.set_phase(None);
        completed
    }

    /// Builds the shadow's missing indexes and constraints, and analyzes it.
    fn build_and_analyze(&self, names: &ShadowNames) -> Result<()> {
        let message = || format!("could not complete {}", names.shadow);
        let build = async {
            let client = self.job.client();
            client.batch_execute(&format!("{}; {}", begin_sql(), no_timeouts_sql())).await?;
            // A backend of an interrupted run may still build an index. The lock waits for the end
            // of this build.
            let lock = format!("lock table {} in share row exclusive mode", names.shadow);
            client.batch_execute(&lock).await?;
            let indexes = generate(client, names, recipe::BUILD_INDEXES).await?;
            client.batch_execute("rollback").await?;
            Ok(indexes)
        };
        let indexes = self.cancellable(self.incomplete_message(), build)?;
        let indexes: Option<Vec<String>> = indexes.into_iter().collect();
        let indexes = indexes.ok_or_else(|| {
            ExchangeError::Changed(
                "an index has a definition that pgspate does not know".to_owned(),
            )
            .into_error(message())
        })?;
        self.build_indexes(indexes).map_err(|error| self.hint_how_to_find_line(error))?;
        let complete = async {
            let client = self.job.client();
            let timeout = self.job.control_session.limits.lock_timeout_millis();
            let limits = TimeoutScope::Transaction.disable_with_lock_timeout_sql(timeout);
            client.batch_execute(&format!("{}; {limits}", begin_sql())).await?;
            let constrained =
                run(client, generate(client, names, recipe::ADD_CONSTRAINTS).await?).await;
            let end = if constrained.is_ok() { "commit" } else { "rollback" };
            client.batch_execute(end).await?;
            constrained?;
            let analyze = format!("begin; {}; analyze {}; commit", no_timeouts_sql(), names.shadow);
            client.batch_execute(&analyze).await?;
            Ok(())
        };
        self.cancellable(self.incomplete_message(), complete)
            .map_err(|error| self.hint_how_to_find_line(error))
    }

    /// Adds a hint how to find the input's line, if a row violates a constraint.
    fn hint_how_to_find_line(&self, error: Error) -> Error {
        let is_about_rows = error.sqlstate().is_some_and(|code| code.code().starts_with("23"));
        let replaces =
            self.plan.atomic_plan.as_ref().is_some_and(|atomic_plan| atomic_plan.replaces);
        match is_about_rows && replaces {
            true => error.hint(
                "Add `--rejects FILE` to set such rows aside, or use `--replace=truncate` to see \
                 which line it is.",
            ),
            false => error,
        }
    }

    /// Builds indexes in parallel. If one build fails, the other builds end.
    fn build_indexes(&self, indexes: Vec<String>) -> Result<()> {
        let most = match self.plan.lanes {
            Lanes::Fixed(lanes) => lanes,
            Lanes::Auto(_, most) => most,
        };
        let work = self.work(true);
        let builders = IndexBuilders {
            work: work.clone(),
            application_name: &format!("pgspate load {}", self.table.name),
            count: indexes.len().min(most).min(BUILDERS_MAX),
            first_connection: None,
            stops_at_first_error: true,
        };
        let message = self.incomplete_message();
        // The query lists the largest index first.
        let queue = (1..).zip(indexes).map(|(nth, sql)| (format!("index {nth}"), sql)).collect();
        let built = builders.run(queue, async |connection: &Connection, sql: String| {
            // The settings are a separate message, because they decide how `sql` is parsed.
            let begin = format!("{}; {}", begin_sql(), no_timeouts_sql());
            for sql in [begin, format!("{sql}; commit")] {
                connection.execute_until_stopped(&sql, &work.stop, &message).await?;
            }
            Ok(())
        });
        self.job.control_session.runtime.block_on(built).map(drop)
    }

    fn incomplete_message(&self) -> String {
        format!("could not complete the new rows of {}", self.plan.table)
    }

    /// Waits until every transaction that could see only some of the rows has ended. A
    /// repeatable-read transaction sees only rows that were committed before its snapshot. This
    /// also holds for the shadow's rows, once the shadow has the table's name.
    ///
    /// Without `--atomic`, waits only briefly, and returns a warning if a transaction is left.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] with `--atomic`, if a transaction is left after the lock timeout.
    /// [`ErrorKind::Cancelled`] if the user stops the load.
    fn wait_for_older_transactions(&self, names: &ShadowNames) -> Result<Option<String>> {
        let is_strict =
            self.plan.atomic_plan.as_ref().is_some_and(|atomic_plan| atomic_plan.is_strict);
        let limit = match self.job.control_session.limits.lock_timeout {
            Duration::ZERO if is_strict => Duration::MAX,
            Duration::ZERO => SNAPSHOT_TIMEOUT,
            limit if is_strict => limit,
            limit => limit.min(SNAPSHOT_TIMEOUT),
        };
        let client = self.job.client();
        let started = Instant::now();
        let read_older =
            || self.job.control_session.runtime.block_on(read_older_transactions(client));
        let mut older = read_older()?;
        while !older.is_empty() {
            if started.elapsed() >= limit {
                let first = &older[0];
                if !is_strict {
                    return Ok(Some(format!(
                        "the transaction of {} began before all rows were committed; if it is \
                         repeatable read, and reads the table only now, it sees only some of the \
                         rows; `--atomic` waits for such transactions",
                        first.session
                    )));
                }
                let message = format!("could not put the new rows of {} in place", names.table);
                let cause = format!(
                    "the transaction of {} began before all rows were committed, and would see \
                     only some of them",
                    first.session
                );
                return Err(Error::new(ErrorKind::Server, message)
                    .because(Error::new(ErrorKind::Server, cause))
                    .with_sqlstate(SqlState::LOCK_NOT_AVAILABLE)
                    .hint(
                        "End that session, or wait longer with `--lock-timeout`. Without \
                         `--atomic`, the load does not wait for it.",
                    ));
            }
            let who = &older[0].session;
            self.progress.set_phase(Some(format!("exchange waits for a transaction of {who}")));
            self.progress.stop.sleep_unless_requested(POLL_INTERVAL)?;
            let still_open = read_older()?;
            older.retain(|it| still_open.contains(it));
        }
        Ok(None)
    }

    /// Exchanges the tables as soon as the lock is granted. Returns false if chunks are missing.
    fn exchange_tables(&self, job: JobId, names: &ShadowNames, chunks: u64) -> Result<bool> {
        let limit = self.job.control_session.limits.lock_timeout;
        let started = Instant::now();
        let message = format!("could not put the new rows of {} in place", names.table);
        self.progress.set_phase(Some("exchanging the tables".to_owned()));
        loop {
            let attempt = async {
                let client = self.job.client();
                let left = limit.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
                let left = if limit.is_zero() { LOCK_ATTEMPT } else { left.min(LOCK_ATTEMPT) };
                client.batch_execute(&format!("{}; {}", begin_sql(), no_timeouts_sql())).await?;
                let sql = format!("set local lock_timeout = {}", left.as_millis());
                client.batch_execute(&sql).await?;
                let exchanged = self.exchange_and_finish_job(job, names, chunks).await;
                if exchanged.is_err() {
                    client.batch_execute("rollback").await?;
                }
                exchanged
            };
            let error = match self.cancellable(message.clone(), attempt) {
                Ok(Some(sums)) => return self.reconcile(&sums).map(|()| true),
                Ok(None) => return Ok(false),
                Err(error) => error,
            };
            let codes = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
            if !error.sqlstate().is_some_and(|code| codes.contains(code)) {
                return Err(error);
            }
            let holders = self.lock_holders(names);
            if !limit.is_zero() && started.elapsed() >= limit {
                return Err(error.hint(format!(
                    "The lock was held for {} s by {holders}. End that session, or wait longer \
                     with `--lock-timeout`.",
                    limit.as_secs()
                )));
            }
            self.progress.set_phase(Some(format!("exchange waits for a lock of {holders}")));
            self.progress.stop.sleep_unless_requested(LOCK_PAUSE)?;
        }
    }

    /// Exchanges the tables and marks the job as finished, in one transaction. Returns the job's
    /// sums. Returns `None` if chunks are missing; nothing is changed then.
    async fn exchange_and_finish_job(
        &self,
        job: JobId,
        names: &ShadowNames,
        chunks: u64,
    ) -> Result<Option<ledger::ChunkRecord>, ExchangeError> {
        let client = self.job.client();
        exchange::lock(client, job, names).await?;
        self.check_dependents(names).await?;
        if self.plan.atomic_plan.as_ref().is_some_and(|atomic_plan| !atomic_plan.replaces) {
            let look = format!("select exists (select from {})", names.table);
            if client.fetch_one(&look, &[]).await?.get(0) {
                return Err(ExchangeError::Changed("it is no longer empty".to_owned()));
            }
        }
        let new = exchange::exchange(client, names, self.session.server_version).await?;
        let Some(identity) = &self.job.identity else {
            let error = Error::new(ErrorKind::Bug, "a shadow table without a job");
            return Err(ExchangeError::Other(error));
        };
        // A policy of the ledger refuses to change a job whose table does not exist.
        ledger::move_job_to(client, job, new).await.map_err(ExchangeError::Other)?;
        let crash_removes_rows = self.job.crash_removes_rows();
        let finished = ledger::finish_job(client, job, chunks, identity, crash_removes_rows).await;
        let sums = finished.map_err(ExchangeError::Other)?;
        if sums.is_none() {
            client.batch_execute("rollback").await?;
            return Ok(None);
        }
        ledger::move_fleet_jobs(client, names.oid, new, job).await.map_err(ExchangeError::Other)?;
        client.batch_execute("commit").await?;
        Ok(sums)
    }

    /// Returns the sessions that hold locks on the table, in words.
    fn lock_holders(&self, names: &ShadowNames) -> String {
        let client = self.job.client();
        let query = async { client.fetch_one(&lock_holders_sql(), &[&names.oid]).await };
        let row = self.job.control_session.runtime.block_on(query).ok();
        row.and_then(|row| row.get(0)).unwrap_or_else(|| "other sessions in turn".to_owned())
    }

    /// Runs `work`. If the user stops the load, cancels the statement that `work` runs. `message`
    /// is the message of an error.
    fn cancellable<T>(
        &self,
        message: String,
        work: impl Future<Output = Result<T, ExchangeError>>,
    ) -> Result<T> {
        let sessions = [self.job.connection().canceller()];
        let work = async { work.await.map_err(|refused| refused.into_error(message)) };
        self.job
            .control_session
            .runtime
            .block_on(self.progress.stop.cancel_on_stop(&sessions, work))
    }
}

/// Returns SQL that removes all timeouts from a transaction.
pub(super) fn no_timeouts_sql() -> String {
    TimeoutScope::Transaction.disable_with_lock_timeout_sql(0)
}

/// A transaction that began before the last row was committed.
#[derive(PartialEq, Eq)]
pub(super) struct OlderTransaction {
    pid: i32,
    transaction: String,
    xmin: String,
    /// The session and its role, in words.
    pub(super) session: String,
}

/// Reads the transactions that hold an older snapshot than this query. Must not run in a
/// transaction, which would see the sessions as they were at first.
pub(super) async fn read_older_transactions(client: &Client) -> Result<Vec<OlderTransaction>> {
    let failed = server_error("could not look up other sessions' snapshots".to_owned());
    let rows = client.fetch_all(OLDER_TRANSACTIONS_SQL, &[]).await.map_err(failed)?;
    Ok(rows.iter().map(OlderTransaction::read).collect())
}

impl OlderTransaction {
    fn read(row: &tokio_postgres::Row) -> OlderTransaction {
        OlderTransaction {
            pid: row.get(0),
            transaction: row.get(1),
            xmin: row.get(2),
            session: row.get(3),
        }
    }
}

/// Query for the transactions that hold an older snapshot than this query. Columns: the fields of
/// [`OlderTransaction`]. The query leaves out vacuums, which return no rows to a user. It also
/// leaves out parallel workers, because their leader is in the result.
///
/// Without `pg_read_all_stats`, `backend_type` is NULL for sessions of other roles. Such a session
/// counts. Autovacuum has no role.
const OLDER_TRANSACTIONS_SQL: &str = "\
select a.pid, l.virtualtransaction, a.backend_xmin::text,
       format('session %s (%s)', a.pid, concat_ws(', ',
              quote_literal(nullif(a.application_name, '')), 'role ' || a.usename))
from pg_stat_activity a join pg_locks l on l.pid = a.pid and l.locktype = 'virtualxid'
  and l.granted and l.mode = 'ExclusiveLock'
where a.datname = current_database() and a.pid <> pg_backend_pid()
  and age(a.backend_xmin) > age(pg_snapshot_xmax(pg_current_snapshot())::xid)
  and a.usesysid is not null
  and coalesce(a.backend_type, 'client backend') not in ('autovacuum worker', 'parallel worker')
  and not exists (select from pg_stat_progress_vacuum v where v.pid = a.pid)";

/// Returns the query for the sessions that hold locks on a table, as one text.
fn lock_holders_sql() -> String {
    format!(
        "select string_agg(distinct {}, ', ') \
         from pg_locks l join pg_stat_activity a on a.pid = l.pid \
         where l.locktype = 'relation' and l.granted and l.relation = $1 \
           and a.pid <> pg_backend_pid() \
           and l.database = (select oid from pg_database where datname = current_database())",
        describe_session_sql("a")
    )
}

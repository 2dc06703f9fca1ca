//! The shadow of a job of a distributed engine such as Spark. Tasks fill the shadow. The
//! transaction that completes the job builds its indexes and exchanges it for the table.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::build::{
    LOCK_ATTEMPT, LOCK_PAUSE, SNAPSHOT_TIMEOUT, no_timeouts_sql, read_older_transactions,
};
use super::exchange::{self, ExchangeError, run};
use super::recipe::{self, ShadowNames, generate};
use super::{begin_sql, local_settings_sql};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{self, BegunFleetJob, JobId, shadow};
use pgspate_target::session::POLL_INTERVAL;
use pgspate_target::{TypedQuery, replace_obstacles, server_error};

/// A job's table and its shadow.
pub(crate) struct JobShadow {
    job: JobId,
    names: ShadowNames,
    server_version: u32,
}

impl JobShadow {
    /// Returns the shadow of the table with this oid. `table` is the table's name in SQL, and
    /// `name` is that name without the schema.
    pub(crate) fn new(
        job: i64,
        (oid, table, name): (u32, &str, &str),
        server_version: u32,
    ) -> JobShadow {
        let job = JobId(job);
        let schema = shadow::schema_name(job);
        let shadow = format!("{schema}.{name}");
        let names = ShadowNames { oid, table: table.to_owned(), schema, shadow };
        JobShadow { job, names, server_version }
    }

    /// Returns the shadow's name in SQL.
    pub(crate) fn name(&self) -> &str {
        &self.names.shadow
    }

    /// Creates the shadow, after a trial of the exchange. Drops one of an earlier run. Returns the
    /// reason if no other table can take the table's place.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if the connection fails, [`ErrorKind::Server`] if the shadow cannot
    /// be created, [`ErrorKind::Ledger`] if the driver has begun the job again.
    pub(crate) async fn create(
        &self,
        client: &Client,
        begun: &BegunFleetJob,
    ) -> Result<Option<String>> {
        let JobShadow { job, names, server_version } = self;
        let failed = || server_error(format!("could not create a shadow of {}", names.table));
        self.drop_earlier(client, begun).await?;
        client.batch_execute(&begin_sql()).await.map_err(failed())?;
        let obstacles = replace_obstacles(client, names.oid).await;
        client.batch_execute("rollback").await.map_err(failed())?;
        if let Some(obstacle) = obstacles.map_err(failed())?.into_iter().next() {
            return Ok(Some(obstacle));
        }
        let tried = exchange::try_exchange(client, *job, names, *server_version).await;
        if let Some(refused) = exchange::trial_refusal(tried).map_err(failed())? {
            return Ok(Some(refused.to_string()));
        }
        self.in_fence(client, begun, async || {
            exchange::create_in_transaction(client, *job, names, "fleet").await
        })
        .await
        .map(|()| None)
    }

    /// Drops the shadow or the stages of earlier runs of the driver.
    async fn drop_earlier(&self, client: &Client, begun: &BegunFleetJob) -> Result<()> {
        if shadow::read_state(client, self.job).await?.is_none() {
            return Ok(());
        }
        let drop = format!(
            "set local lock_timeout = '20s'; drop schema if exists {} cascade",
            self.names.schema
        );
        self.in_fence(client, begun, async || Ok(client.batch_execute(&drop).await?)).await
    }

    /// Does `work` in a transaction in which this run of the driver is the latest.
    async fn in_fence(
        &self,
        client: &Client,
        begun: &BegunFleetJob,
        work: impl AsyncFnOnce() -> Result<(), ExchangeError>,
    ) -> Result<()> {
        let message = || format!("could not create a shadow of {}", self.names.table);
        client.batch_execute(&begin_sql()).await.map_err(server_error(message()))?;
        let done = match ledger::lock_fence(client, begun).await {
            Ok(true) => work().await,
            Ok(false) => {
                let fenced = format!("job {} was begun again", self.job.0);
                let hint = "Only the driver's latest run counts.";
                Err(ExchangeError::Other(Error::new(ErrorKind::Ledger, fenced).hint(hint)))
            }
            Err(error) => Err(ExchangeError::Other(error)),
        };
        let end = if done.is_ok() { "commit" } else { "rollback" };
        let ended = client.batch_execute(end).await;
        done.map_err(|refused| refused.into_error(message()))?;
        ended.map_err(server_error(message()))
    }

    /// Waits for transactions that could see only some of the rows, for a few seconds. Returns a
    /// warning if one is left.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if sessions cannot be looked up.
    pub(crate) async fn wait_for_older_transactions(client: &Client) -> Result<Option<String>> {
        let started = Instant::now();
        let mut older = read_older_transactions(client).await?;
        while let Some(first) = older.first() {
            if started.elapsed() >= SNAPSHOT_TIMEOUT {
                return Ok(Some(format!(
                    "the transaction of {} began before all rows were committed; if it is \
                     repeatable read, and reads the table only now, it sees only some of the rows",
                    first.session
                )));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            let still_open = read_older_transactions(client).await?;
            older.retain(|it| still_open.contains(it));
        }
        Ok(None)
    }

    /// Builds the shadow's indexes and constraints, and exchanges the tables, in the open
    /// transaction. Waits for the lock on the table for as long as `lock_timeout`; 0 is no limit.
    /// Returns the new oid of the table, or the reason why the shadow cannot take its place.
    ///
    /// # Errors
    /// The server's error, if rows violate a constraint or if the lock is not granted in time.
    pub(crate) async fn exchange(
        &self,
        client: &Client,
        lock_timeout: Duration,
        must_be_empty: bool,
    ) -> Result<Result<u32, String>> {
        let message = format!("could not put the new rows of {} in place", self.names.table);
        let exchanged = async {
            self.build(client).await?;
            self.exchange_when_locked(client, lock_timeout, must_be_empty).await
        };
        match exchanged.await {
            Ok(oid) => Ok(Ok(oid)),
            Err(refused @ (ExchangeError::Differs(_) | ExchangeError::Changed(_))) => {
                Ok(Err(refused.to_string()))
            }
            Err(failed) => Err(failed.into_error(message)),
        }
    }

    async fn build(&self, client: &Client) -> Result<(), ExchangeError> {
        let settings = format!("{}; {}", local_settings_sql(), no_timeouts_sql());
        client.batch_execute(&settings).await?;
        run(client, generate(client, &self.names, recipe::BUILD_INDEXES).await?).await?;
        run(client, generate(client, &self.names, recipe::ADD_CONSTRAINTS).await?).await?;
        client.batch_execute(&format!("analyze {}", self.names.shadow)).await?;
        Ok(())
    }

    /// Exchanges the tables as soon as all locks are granted. Other sessions queue behind the
    /// requests for a second at most, and get their locks in between.
    async fn exchange_when_locked(
        &self,
        client: &Client,
        timeout: Duration,
        must_be_empty: bool,
    ) -> Result<u32, ExchangeError> {
        let started = Instant::now();
        let attempt = format!(
            "savepoint pgspate_lock; set local lock_timeout = {}",
            LOCK_ATTEMPT.as_millis()
        );
        let codes = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
        loop {
            client.batch_execute(&attempt).await?;
            let is_late = !timeout.is_zero() && started.elapsed() >= timeout;
            match self.exchange_locked(client, must_be_empty).await {
                Err(ExchangeError::Server(error))
                    if error.code().is_some_and(|code| codes.contains(code)) && !is_late =>
                {
                    client.batch_execute("rollback to savepoint pgspate_lock").await?;
                    tokio::time::sleep(LOCK_PAUSE).await;
                }
                exchanged => return exchanged,
            }
        }
    }

    async fn exchange_locked(
        &self,
        client: &Client,
        must_be_empty: bool,
    ) -> Result<u32, ExchangeError> {
        exchange::lock(client, self.job, &self.names).await?;
        if let Some(obstacle) = replace_obstacles(client, self.names.oid).await?.into_iter().next()
        {
            return Err(ExchangeError::Changed(obstacle));
        }
        // A policy may hide rows.
        let look = format!(
            "select row_security_active($1::oid) or exists (select from {})",
            self.names.table
        );
        if must_be_empty && client.fetch_one(&look, &[&self.names.oid]).await?.get(0) {
            return Err(ExchangeError::Changed("it is no longer empty".to_owned()));
        }
        exchange::exchange(client, &self.names, self.server_version).await
    }
}

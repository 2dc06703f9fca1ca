//! The shadow of a job of an engine with a driver. Tasks fill it, and the transaction that
//! completes the job builds its indexes and exchanges it for the table.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::build::{
    LOCK_ATTEMPT, LOCK_PAUSE, SNAPSHOT_TIMEOUT, no_timeouts_sql, read_older_transactions,
};
use super::exchange::{self, ExchangeError, run};
use super::recipe::{self, ShadowNames, generate};
use super::{BEGIN, LOCAL_SETTINGS};
use crate::Result;
use pgspate_target::ledger::{JobId, shadow};
use pgspate_target::session::POLL_INTERVAL;
use pgspate_target::{TypedQuery, ends_session, replace_obstacles, server_error};

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
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the shadow cannot be created.
    pub(crate) async fn create(&self, client: &Client) -> Result<Option<String>> {
        let JobShadow { job, names, server_version } = self;
        let failed = || server_error(format!("could not create a shadow of {}", names.table));
        shadow::drop_shadow(client, *job).await?;
        client.batch_execute(BEGIN).await.map_err(failed())?;
        let obstacles = replace_obstacles(client, names.oid).await;
        client.batch_execute("rollback").await.map_err(failed())?;
        if let Some(obstacle) = obstacles.map_err(failed())?.into_iter().next() {
            return Ok(Some(obstacle));
        }
        match exchange::try_exchange(client, *job, names, *server_version).await {
            Ok(()) => {}
            Err(ExchangeError::Server(error)) if error.code().is_none_or(ends_session) => {
                return Err(failed()(error));
            }
            // A lock that blocks the trial may be free when it is needed.
            Err(ExchangeError::Server(error))
                if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {}
            Err(refused) => return Ok(Some(refused.to_string())),
        }
        let created = exchange::create_shadow(client, *job, names, "fleet").await;
        created.map(|()| None).map_err(|refused| {
            refused.into_error(format!("could not create a shadow of {}", names.table))
        })
    }

    /// Waits for transactions that could see only some of the rows, for a few seconds. Returns a
    /// warning if one is left.
    ///
    /// # Errors
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if sessions cannot be looked up.
    pub(crate) async fn wait_for_older_transactions(client: &Client) -> Result<Option<String>> {
        let started = Instant::now();
        let mut older = read_older_transactions(client).await?;
        while let Some(first) = older.first() {
            if started.elapsed() >= SNAPSHOT_TIMEOUT {
                return Ok(Some(format!(
                    "the transaction of {} began before all rows were committed; if it reads the \
                     table from now on, it sees only some of the rows",
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
            self.lock(client, lock_timeout).await?;
            self.exchange_locked(client, must_be_empty).await
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
        let settings = format!("{LOCAL_SETTINGS}; {}", no_timeouts_sql());
        client.batch_execute(&settings).await?;
        run(client, generate(client, &self.names, recipe::BUILD_INDEXES).await?).await?;
        run(client, generate(client, &self.names, recipe::ADD_CONSTRAINTS).await?).await?;
        client.batch_execute(&format!("analyze {}", self.names.shadow)).await?;
        Ok(())
    }

    /// Locks the table. Other sessions queue behind the request for a second at most, and get the
    /// lock in between.
    async fn lock(&self, client: &Client, timeout: Duration) -> Result<(), ExchangeError> {
        let started = Instant::now();
        let attempt = format!(
            "savepoint pgspate_lock; set local lock_timeout = {}",
            LOCK_ATTEMPT.as_millis()
        );
        loop {
            client.batch_execute(&attempt).await?;
            let locked = exchange::lock(client, &self.names).await;
            let is_late = !timeout.is_zero() && started.elapsed() >= timeout;
            match locked {
                Err(ExchangeError::Server(error))
                    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) && !is_late =>
                {
                    client.batch_execute("rollback to savepoint pgspate_lock").await?;
                    tokio::time::sleep(LOCK_PAUSE).await;
                }
                locked => return locked,
            }
        }
    }

    async fn exchange_locked(
        &self,
        client: &Client,
        must_be_empty: bool,
    ) -> Result<u32, ExchangeError> {
        if let Some(obstacle) = replace_obstacles(client, self.names.oid).await?.into_iter().next()
        {
            return Err(ExchangeError::Changed(obstacle));
        }
        let look = format!("select exists (select from {})", self.names.table);
        if must_be_empty && client.fetch_one(&look, &[]).await?.get(0) {
            return Err(ExchangeError::Changed("it is no longer empty".to_owned()));
        }
        exchange::exchange(client, &self.names, self.server_version).await
    }
}

//! Tries a COPY of no rows, so that the server can refuse before anything is changed.
//!
//! If COPY is the load's first change anyway, there is no need to try.

use bytes::Bytes;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::Load;
use crate::Result;
use crate::copy::{EarlySession, ReadySession, copy_error};
use pgspate_target::ledger::JobLookup;

impl Load {
    /// Returns whether the load changes something before the first COPY, or whether the first row
    /// arrives late. A new job in the ledger is not a change: it is deleted if the load fails.
    pub(super) fn changes_before_copy(&self) -> bool {
        let known = &self.job.known;
        let is_new_job =
            known.exists && matches!(known.found, JobLookup::Nothing) && !self.options.restart;
        (self.job.identity.is_some() && !is_new_job)
            || self.plan.maintenance.alters_table()
            || self.plan.at_once.is_some()
            || self.options.rejects.is_some()
            || self.reading.is_stream()
    }

    /// Copies no rows, and rolls back. Does nothing if that would fire statement triggers. A lock
    /// timeout is ignored, because the lanes will wait for the lock.
    pub(super) fn try_empty_copy(&mut self) -> Result<()> {
        if self.plan.one_statement {
            return Ok(());
        }
        let (sql, early) = (self.plan.trial_sql(), std::mem::take(&mut self.early_session));
        let ready = self.job.own.runtime.block_on(async {
            let ready = match early.take().await {
                Some(ready) => ready?,
                None => ReadySession::open(&self.session_opener(), &self.copy_setup()).await?,
            };
            let Err(error) = copy_nothing(&ready.connection.client, &sql).await else {
                return Ok(Some(ready));
            };
            // A connection is unusable after a refused COPY.
            match error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
                true => Ok(None),
                false => Err(copy_error(&ready.connection, error)),
            }
        })?;
        match ready.filter(|_| !self.is_swap()) {
            Some(ready) => {
                self.early_session = EarlySession::from_open(ready, &self.job.own.runtime)
            }
            None => self.open_early_session(),
        }
        Ok(())
    }
}

async fn copy_nothing(client: &Client, sql: &str) -> Result<(), tokio_postgres::Error> {
    let (begun, sink) = tokio::join!(
        biased;
        client.batch_execute("begin; set local lock_timeout = '500ms'"),
        client.copy_in::<_, Bytes>(sql)
    );
    begun?;
    let mut sink = std::pin::pin!(sink?);
    let (tried, ended) =
        tokio::join!(biased; sink.as_mut().finish(), client.batch_execute("rollback"));
    tried.and(ended)
}

//! Has the server say no before anything is changed.
//!
//! Where the first COPY is the first change, it says so itself, and there is no trial.

use bytes::Bytes;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::Load;
use crate::Result;
use crate::copy::{EarlySession, ReadySession, refused_copy};
use pgspate_target::ledger::Found;

impl Load {
    /// Whether something is changed before the first COPY, or that one is late, as the first row
    /// is. A new job in the ledger is no change: it goes again when the load fails.
    pub(super) fn changes_first(&self) -> bool {
        let known = &self.job.known;
        let is_new_job =
            known.is_there && matches!(known.found, Found::Nothing) && !self.options.restart;
        (self.job.identity.is_some() && !is_new_job)
            || self.plan.care.alters_table()
            || self.plan.at_once.is_some()
            || self.options.rejects.is_some()
            || self.reading.is_stream()
    }

    /// Copies no rows, and rolls back. Not where that would run triggers; and a lock is for the
    /// lanes to wait for.
    pub(super) fn try_out(&mut self) -> Result<()> {
        if self.plan.one_statement {
            return Ok(());
        }
        let (sql, early) = (self.plan.trial_sql(), std::mem::take(&mut self.early));
        let ready = self.job.own.runtime.block_on(async {
            let ready = match early.take().await {
                Some(ready) => ready?,
                None => ReadySession::open(&self.connect(), &self.copying()).await?,
            };
            let Err(error) = copy_nothing(&ready.connection.client, &sql).await else {
                return Ok(Some(ready));
            };
            // The connection is of no use after a refused COPY.
            match error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
                true => Ok(None),
                false => Err(refused_copy(&ready.connection, error)),
            }
        })?;
        match ready.filter(|_| !self.is_swap()) {
            Some(ready) => self.early = EarlySession::of(ready, &self.job.own.runtime),
            None => self.open_early(),
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

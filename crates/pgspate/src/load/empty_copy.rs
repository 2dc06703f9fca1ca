//! Runs a COPY without rows before the load changes anything.
//!
//! If the server refuses the load's COPY, for example because a privilege is missing, it refuses
//! this COPY, too. No COPY without rows is needed if the load's first change is a COPY anyway.

use bytes::Bytes;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::Load;
use crate::Result;
use crate::copy::{EarlySession, ReadySession, copy_error};
use pgspate_target::ledger::JobLookup;

impl Load {
    /// Returns whether to try a COPY without rows: the load changes something before its first
    /// COPY, or the input is a stream whose first row may arrive late. A new job in the ledger does
    /// not count as a change, because a failed load deletes its new job.
    pub(super) fn needs_empty_copy(&self) -> bool {
        let known = &self.job.ledger_state;
        let is_new_job =
            known.exists && matches!(known.found, JobLookup::Nothing) && !self.options.restart;
        (self.job.identity.is_some() && !is_new_job)
            || self.plan.maintenance.alters_table()
            || self.plan.atomic_plan.is_some()
            || self.options.rejects.is_some()
            || self.reading.is_stream()
    }

    /// Runs a COPY without rows, and rolls back. Does nothing if all chunks share one COPY, because
    /// an extra COPY would fire statement triggers. Ignores a lock timeout, because lanes wait
    /// longer for a lock.
    ///
    /// # Errors
    /// The server's refusal of the COPY, or an error of connecting.
    pub(super) fn try_empty_copy(&mut self) -> Result<()> {
        if self.plan.one_statement {
            return Ok(());
        }
        let (sql, early) = (self.plan.trial_copy_sql(), std::mem::take(&mut self.early_session));
        let ready = self.job.control_session.runtime.block_on(async {
            let ready = match early.take().await {
                Some(ready) => ready?,
                None => ReadySession::open(&self.session_opener(), &self.copy_setup()).await?,
            };
            let Err(error) = copy_no_rows(&ready.connection.client, &sql).await else {
                return Ok(Some(ready));
            };
            // After a refused COPY, the session is unusable. So a new session is opened below.
            match error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
                true => Ok(None),
                false => Err(copy_error(&ready.connection, error)),
            }
        })?;
        match ready.filter(|_| !self.is_swap()) {
            Some(ready) => {
                self.early_session =
                    EarlySession::from_open(ready, &self.job.control_session.runtime)
            }
            None => self.open_early_session(),
        }
        Ok(())
    }
}

/// Runs the COPY statement `sql` without rows, and rolls back.
async fn copy_no_rows(client: &Client, sql: &str) -> Result<(), tokio_postgres::Error> {
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

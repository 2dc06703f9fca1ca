//! A run's control session: the session for queries, for the ledger and for changes to the table.
//! Other sessions write the rows, except those of a small sync.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_postgres::Client;

use crate::Result;
use crate::copy::CopyProgress;
use crate::fleet::FleetEntry;
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::server_error;
use pgspate_target::session::{ReconnectBackoff, WaitLimits};

/// A run's control session. pgspate opens it again after the connection was lost.
pub(crate) struct ControlSession {
    pub(crate) dsn: Dsn,
    /// The name that `pg_stat_activity` shows.
    pub(crate) application_name: &'static str,
    pub(crate) runtime: Handle,
    pub(crate) connection: Arc<Connection>,
    pub(crate) limits: WaitLimits,
    /// Whether the connection was lost since the caller last set this flag to false.
    pub(crate) connection_was_lost: bool,
    /// The member of a fleet that this run is, if any. The session holds the member's lock and its
    /// slot.
    pub(crate) fleet: Option<FleetEntry>,
}

impl ControlSession {
    /// Runs `work` with the session's client. Blocks.
    pub(crate) fn with_client<T>(&self, work: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.runtime.block_on(work(&self.connection.client))
    }

    /// Connects again if the connection was lost, and terminates the lost session's backend.
    /// Returns whether the connection was lost.
    pub(crate) fn reconnect(&mut self) -> Result<bool> {
        if !self.connection.is_closed() {
            return Ok(false);
        }
        let connection = self.runtime.block_on(self.dsn.connect(self.application_name))?;
        let limit = self.limits.lock_timeout_sql();
        let limiting = connection.client.batch_execute(&limit);
        let failed = server_error("could not limit the time to wait for locks".to_owned());
        self.runtime.block_on(limiting).map_err(failed)?;
        self.connection_was_lost = true;
        let lost_pid = self.connection.backend_pid();
        // The lost session's backend may still hold the job's lock. It may also have an open
        // transaction in which it created the table.
        self.runtime.block_on(connection.terminate_lost_backend(lost_pid));
        if let Some(fleet) = &mut self.fleet {
            self.runtime.block_on(fleet.enter_again(&connection))?;
        }
        self.connection = connection.into();
        Ok(true)
    }
}

impl RetryAfterConnectionLoss for ControlSession {
    fn control_session(&self) -> &ControlSession {
        self
    }

    fn restore_session(&mut self) -> Result<()> {
        self.reconnect().map(drop)
    }
}

/// Retries work on a control session whose connection may be lost.
pub(crate) trait RetryAfterConnectionLoss {
    /// Returns the control session.
    fn control_session(&self) -> &ControlSession;

    /// Connects again if the connection was lost. A run with a job also takes the job's lock again,
    /// and reads which chunks are written.
    fn restore_session(&mut self) -> Result<()>;

    /// Waits, and restores the session. Repeats this while restoring the session fails with a
    /// retryable error and `backoff` allows another attempt.
    ///
    /// # Errors
    /// `interruption`, if `backoff` allows no more attempts.
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if the user stops the run. An error of
    /// restoring the session that is not retryable.
    fn wait_and_restore_session(
        &mut self,
        interruption: crate::Error,
        backoff: &mut ReconnectBackoff,
        progress: &CopyProgress,
    ) -> Result<()> {
        while backoff.wait(|| progress.is_cancelled()) {
            match self.restore_session() {
                Ok(()) => return Ok(()),
                Err(error) if error.is_retryable() => {
                    // Other members have taken the slot of this member, and work as long as they
                    // need.
                    let fleet = self.control_session().fleet.as_ref();
                    if fleet.is_some_and(FleetEntry::lacks_slot) {
                        backoff.restart_limit();
                    }
                }
                Err(error) => return Err(error),
            }
        }
        progress.stop.check()?;
        Err(interruption)
    }

    /// Runs `work`. After a retryable error, such as a lost connection, restores the session and
    /// runs `work` again. Gives up after the time limit that lanes have for reconnecting.
    fn retry_after_connection_loss<T>(
        &mut self,
        progress: &CopyProgress,
        mut work: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let mut backoff = ReconnectBackoff::new(self.control_session().limits.retry_for);
        loop {
            match work(self) {
                Err(error) if error.is_retryable() => {
                    self.wait_and_restore_session(error, &mut backoff, progress)?;
                }
                result => return result,
            }
        }
    }
}

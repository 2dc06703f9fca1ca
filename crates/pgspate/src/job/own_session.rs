//! A run's own session, besides the sessions that write its rows.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_postgres::Client;

use crate::Result;
use crate::copy::CopyProgress;
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::session::{ReconnectBackoff, WaitLimits};

/// A run's own session. It is opened again after a lost connection.
pub(crate) struct OwnSession {
    pub(crate) dsn: Dsn,
    pub(crate) runtime: Handle,
    pub(crate) connection: Arc<Connection>,
    pub(crate) limits: WaitLimits,
    /// Whether the connection was lost since this was last set to false.
    pub(crate) was_away: bool,
}

impl OwnSession {
    /// Runs `question` on the session. Blocks.
    pub(crate) fn ask<T>(&self, question: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.runtime.block_on(question(&self.connection.client))
    }

    /// Connects again if the connection was lost, and terminates the lost session's backend.
    /// Returns whether the connection was lost.
    pub(crate) fn reconnect(&mut self) -> Result<bool> {
        if !self.connection.is_closed() {
            return Ok(false);
        }
        let connection = self.runtime.block_on(self.dsn.connect("pgspate load"))?;
        self.was_away = true;
        let before = self.connection.backend_pid();
        self.connection = connection.into();
        // The lost session may still hold the job's lock, or a table that it created and did not
        // commit.
        self.runtime.block_on(self.connection.terminate_lost_backend(before));
        Ok(true)
    }
}

impl RetryWhileAway for OwnSession {
    fn own(&self) -> &OwnSession {
        self
    }

    fn restore_session(&mut self) -> Result<()> {
        self.reconnect().map(drop)
    }
}

/// Work on a session of its own that continues after the session was lost.
pub(crate) trait RetryWhileAway {
    /// Returns the session.
    fn own(&self) -> &OwnSession;

    /// Connects again if the connection was lost, and reads which chunks are written now.
    fn restore_session(&mut self) -> Result<()>;

    /// Waits until the server may be reachable, and restores the session.
    ///
    /// # Errors
    /// Returns `interrupted` if the server stays away for too long, an error of restoring the
    /// session, or [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    fn wait(
        &mut self,
        interrupted: crate::Error,
        backoff: &mut ReconnectBackoff,
        progress: &CopyProgress,
    ) -> Result<()> {
        while backoff.wait(|| progress.is_cancelled()) {
            match self.restore_session() {
                Ok(()) => return Ok(()),
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
        }
        progress.stop.check()?;
        Err(interrupted)
    }

    /// Runs `work`, again while the server is away. Gives up after the time for which lanes would
    /// retry.
    fn retry_while_away<T>(
        &mut self,
        progress: &CopyProgress,
        mut work: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let mut backoff = ReconnectBackoff::new(self.own().limits.retry_for);
        loop {
            match work(self) {
                Err(error) if error.is_retryable() => self.wait(error, &mut backoff, progress)?,
                result => return result,
            }
        }
    }
}

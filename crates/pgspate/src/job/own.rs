//! The session that a run has for itself, beside those that write its rows.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_postgres::Client;

use crate::Result;
use crate::copy::CopyProgress;
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::session::{Limits, Patience};

/// A run's own session, opened again when it is lost.
pub(crate) struct OwnSession {
    pub(crate) dsn: Dsn,
    pub(crate) runtime: Handle,
    pub(crate) connection: Arc<Connection>,
    pub(crate) limits: Limits,
    /// The connection was lost since this was last set to false.
    pub(crate) was_away: bool,
}

impl OwnSession {
    /// Asks the server. Blocks.
    pub(crate) fn ask<T>(&self, question: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.runtime.block_on(question(&self.connection.client))
    }

    /// Connects anew where the connection was lost, and ends the session that was lost. Whether it
    /// was.
    pub(crate) fn reconnect(&mut self) -> Result<bool> {
        if !self.connection.is_closed() {
            return Ok(false);
        }
        let connection = self.runtime.block_on(self.dsn.connect("pgspate load"))?;
        self.was_away = true;
        let before = self.connection.backend_pid();
        self.connection = connection.into();
        // It may hold the job, or a table that it has made and not committed.
        self.runtime.block_on(self.connection.end_lost_backend(before));
        Ok(true)
    }
}

impl RetryWhileAway for OwnSession {
    fn own(&self) -> &OwnSession {
        self
    }

    fn come_back(&mut self) -> Result<()> {
        self.reconnect().map(drop)
    }
}

/// What works with a session of its own, and goes on when that is lost.
pub(crate) trait RetryWhileAway {
    /// The session.
    fn own(&self) -> &OwnSession;

    /// Connects anew where the connection was lost, and reads what is written by now.
    fn come_back(&mut self) -> Result<()>;

    /// Waits until the server may be back, and comes back.
    ///
    /// # Errors
    /// `interrupted`, if the server stays away for too long; what coming back was refused with; or
    /// of [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    fn wait(
        &mut self,
        interrupted: crate::Error,
        patience: &mut Patience,
        progress: &CopyProgress,
    ) -> Result<()> {
        while patience.wait(|| progress.is_cancelled()) {
            match self.come_back() {
                Ok(()) => return Ok(()),
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
        }
        progress.stop.check()?;
        Err(interrupted)
    }

    /// Does something, again while the server is away, as long as lanes would try.
    fn again<T>(
        &mut self,
        progress: &CopyProgress,
        mut work: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let mut patience = Patience::new(self.own().limits.retry_for);
        loop {
            match work(self) {
                Err(error) if error.is_retryable() => self.wait(error, &mut patience, progress)?,
                result => return result,
            }
        }
    }
}

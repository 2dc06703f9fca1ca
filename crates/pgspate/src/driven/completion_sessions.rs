//! The sessions of the tries to complete one job.
//!
//! A completion holds the lock on the job's row. The server may not notice that a connection is
//! lost, and keep that lock. So each session ends the backend of the session before.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use crate::Result;
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::session::{ReconnectBackoff, WaitLimits};

/// Opens the sessions of one completion.
pub(super) struct CompletionSessions<'a> {
    pub(super) dsn: &'a Dsn,
    /// The backend of the last session that may have locked the job's row; 0 if there was none.
    pub(super) last_backend: Arc<AtomicI32>,
    /// When this try first reached the server.
    reached_at: Cell<Option<Instant>>,
}

impl CompletionSessions<'_> {
    pub(super) fn new(dsn: &Dsn) -> CompletionSessions<'_> {
        CompletionSessions { dsn, last_backend: Arc::default(), reached_at: Cell::new(None) }
    }

    /// Connects, and ends the backend of the session before.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the server cannot be reached.
    pub(super) async fn open(&self) -> Result<Connection> {
        let connection = self.dsn.connect("pgspate fleet").await?;
        let last_backend = self.last_backend.swap(connection.backend_pid(), Ordering::Relaxed);
        if last_backend != 0 {
            connection.terminate_lost_backend(last_backend).await;
        }
        self.reached_at.set(self.reached_at.get().or_else(|| Some(Instant::now())));
        Ok(connection)
    }

    /// Blocks until the next try. Returns false if the time limit has passed. The time limit starts
    /// again after a try in which the server was reachable for longer than that.
    pub(super) fn wait(&self, backoff: &mut ReconnectBackoff, limits: WaitLimits) -> bool {
        if self.reached_at.take().is_some_and(|since| since.elapsed() > limits.retry_for) {
            backoff.reset();
        }
        backoff.wait(|| false)
    }
}

//! The user's request to stop a run, and how the request ends running work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_postgres::error::SqlState;

use crate::connect::{Canceller, Connection};
use crate::{Error, ErrorKind, Result, server_error};

/// How often a waiting task checks whether it should stop.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long to wait before a cancel request is sent again: a request can get lost.
const CANCEL_RETRY_AFTER: Duration = Duration::from_millis(250);

/// A flag that asks a run to stop. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

/// Returns the error of a run that the user stopped.
pub fn stopped_error() -> Error {
    Error::new(ErrorKind::Cancelled, "stopped by the user")
}

impl StopFlag {
    /// Requests the stop. The request cannot be withdrawn. A thread that sees the request also sees
    /// everything that the requesting thread wrote before.
    pub fn request(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Fails if a stop was requested.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] if a stop was requested.
    pub fn check(&self) -> Result<()> {
        if self.is_requested() { Err(stopped_error()) } else { Ok(()) }
    }

    /// Waits until a stop is requested.
    pub async fn wait_until_requested(&self) {
        while !self.is_requested() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Blocks the thread for the time `pause`, or until a stop is requested.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] as soon as a stop is requested.
    pub fn sleep_unless_requested(&self, pause: Duration) -> Result<()> {
        if sleep_unless(pause, || self.is_requested()) { Ok(()) } else { Err(stopped_error()) }
    }

    /// Runs `work`. If a stop is requested, cancels the statements of `sessions`. If `work` then
    /// fails, the error is [`stopped_error`] with the hint of the original error.
    pub async fn cancel_on_stop<T>(
        &self,
        sessions: &[Canceller],
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let result = cancel_when(|| self.is_requested(), sessions, work).await;
        result.map_err(|error| match (self.is_requested(), error.hint_text()) {
            (false, _) => error,
            (true, None) => stopped_error(),
            (true, Some(hint)) => stopped_error().hint(hint.to_owned()),
        })
    }
}

impl Connection {
    /// Runs statements that may take hours, such as building an index. Cancels the statements if a
    /// stop is requested. `message` is the error's text if a statement fails otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] if a stop was requested, [`ErrorKind::Server`] if the server
    /// refused a statement, [`ErrorKind::Connect`] if the connection was lost.
    pub async fn execute_until_stopped(
        &self,
        sql: &str,
        stop: &StopFlag,
        message: &str,
    ) -> Result<()> {
        let sessions = [self.canceller()];
        let statements = self.client.batch_execute(sql);
        match cancel_when(|| stop.is_requested(), &sessions, statements).await {
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
                stop.check()?;
                Err(server_error(message.to_owned())(error))
            }
            result => result.map_err(server_error(message.to_owned())),
        }
    }
}

/// Runs `work` and returns the result of `work`. Once `should_stop` is true, sends cancel requests
/// to `sessions` until `work` ends. `work` may still succeed: the caller decides what a result
/// after a cancel request means.
pub async fn cancel_when<T>(
    should_stop: impl Fn() -> bool,
    sessions: &[Canceller],
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(result) = tokio::time::timeout(POLL_INTERVAL, work.as_mut()).await {
            return result;
        }
        if should_stop() {
            let requests = join_all(sessions.iter().map(Canceller::cancel));
            tokio::select! {
                biased;
                result = work.as_mut() => return result,
                _ = tokio::time::timeout(CANCEL_RETRY_AFTER, requests) => {}
            }
        }
    }
}

/// Blocks the thread for the time `pause`. Returns false as soon as `should_stop` is true.
pub(super) fn sleep_unless(pause: Duration, should_stop: impl Fn() -> bool) -> bool {
    let until = Instant::now() + pause;
    loop {
        if should_stop() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
}

//! The user's request to stop a run, and work that ends because of it.

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
    /// Requests the stop, which cannot be taken back. A thread that sees the request also sees all
    /// earlier writes of the requester.
    pub fn request(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Checks the flag.
    ///
    /// # Errors
    /// Of [`stopped_error`], if a stop was requested.
    pub fn check(&self) -> Result<()> {
        if self.is_requested() { Err(stopped_error()) } else { Ok(()) }
    }

    /// Waits until a stop is requested.
    pub async fn wait_until_requested(&self) {
        while !self.is_requested() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Blocks the thread for the time `pause`.
    ///
    /// # Errors
    /// Of [`stopped_error`], as soon as a stop is requested.
    pub fn pause(&self, pause: Duration) -> Result<()> {
        if sleep_unless(pause, || self.is_requested()) { Ok(()) } else { Err(stopped_error()) }
    }

    /// Runs `work`. If a stop is requested, cancels the statements of `sessions`. If `work` then
    /// fails, the error is [`stopped_error`] with the hint of the original error.
    pub async fn cancel_on_stop<T>(
        &self,
        sessions: &[Canceller],
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let done = cancel_when(|| self.is_requested(), sessions, work).await;
        done.map_err(|error| match (self.is_requested(), error.hint_text()) {
            (false, _) => error,
            (true, None) => stopped_error(),
            (true, Some(hint)) => stopped_error().hint(hint.to_owned()),
        })
    }

    /// Runs statements that may take hours, such as building an index. `message` says what could
    /// not be done.
    ///
    /// # Errors
    /// Of [`stopped_error`] if a stop was requested, or if the statements fail.
    pub async fn run(&self, connection: &Connection, sql: &str, message: &str) -> Result<()> {
        let sessions = [connection.canceller()];
        let work = connection.client.batch_execute(sql);
        match cancel_when(|| self.is_requested(), &sessions, work).await {
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
                self.check()?;
                Err(server_error(message.to_owned())(error))
            }
            done => done.map_err(server_error(message.to_owned())),
        }
    }
}

/// Runs `work` and returns its result. Once `should_stop` is true, cancels the statements of
/// `sessions` until `work` ends. The caller decides what its result means.
pub async fn cancel_when<T>(
    should_stop: impl Fn() -> bool,
    sessions: &[Canceller],
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(POLL_INTERVAL, work.as_mut()).await {
            return done;
        }
        if should_stop() {
            let requests = join_all(sessions.iter().map(Canceller::cancel));
            tokio::select! {
                biased;
                done = work.as_mut() => return done,
                _ = tokio::time::timeout(CANCEL_RETRY_AFTER, requests) => {}
            }
        }
    }
}

/// Blocks the thread for the time `pause`. Returns false if `should_stop` became true.
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

//! The user's wish that a run ends, and work that ends by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_postgres::error::SqlState;

use crate::connect::{Canceller, Connection};
use crate::{Error, ErrorKind, Result, server_error};

/// How often one that waits looks whether it should.
pub const LOOK: Duration = Duration::from_millis(50);
/// How long a request to cancel may take before it is made again: one may get lost.
const AGAIN: Duration = Duration::from_millis(250);

/// The user's wish that a run ends. Clones are the same wish; a new one is never fulfilled unless
/// somebody asks for it.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

/// The run ends because the user wants it to.
pub fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "stopped by the user")
}

impl Stop {
    /// Asks for the end. There is no way back. Whoever sees it, sees what was written before.
    pub fn request(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether that is asked for.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// # Errors
    /// [`stopped`], once that is asked for.
    pub fn check(&self) -> Result<()> {
        if self.is_requested() { Err(stopped()) } else { Ok(()) }
    }

    /// Waits until it is asked for.
    pub async fn requested(&self) {
        while !self.is_requested() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits for so long. Blocks.
    ///
    /// # Errors
    /// [`stopped`], as soon as that is asked for.
    pub fn pause(&self, pause: Duration) -> Result<()> {
        if pause_for(pause, || self.is_requested()) { Ok(()) } else { Err(stopped()) }
    }

    /// What `work` gives. Once the end is asked for, the statements of `sessions` are cancelled;
    /// the error of work that fails then is [`stopped`], with the hint that it had.
    pub async fn heed<T>(
        &self,
        sessions: &[Canceller],
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let done = heeding(|| self.is_requested(), sessions, work).await;
        done.map_err(|error| match (self.is_requested(), error.hint_text()) {
            (false, _) => error,
            (true, None) => stopped(),
            (true, Some(hint)) => stopped().hint(hint.to_owned()),
        })
    }

    /// Runs statements that may take hours, such as building an index.
    ///
    /// # Errors
    /// [`stopped`]; or `what` could not be done.
    pub async fn run(&self, connection: &Connection, sql: &str, what: &str) -> Result<()> {
        let sessions = [connection.canceller()];
        let work = connection.client.batch_execute(sql);
        match heeding(|| self.is_requested(), &sessions, work).await {
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
                self.check()?;
                Err(server_error(what.to_owned())(error))
            }
            done => done.map_err(server_error(what.to_owned())),
        }
    }
}

/// What `work` gives. Once it `is_over`, the statements of `sessions` are cancelled until it gives
/// something, which is then for the caller to judge.
pub async fn heeding<T>(
    is_over: impl Fn() -> bool,
    sessions: &[Canceller],
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK, work.as_mut()).await {
            return done;
        }
        if is_over() {
            let requests = join_all(sessions.iter().map(Canceller::cancel));
            tokio::select! {
                biased;
                done = work.as_mut() => return done,
                _ = tokio::time::timeout(AGAIN, requests) => {}
            }
        }
    }
}

/// Waits for so long, unless it `is_over` meanwhile: false then.
pub(super) fn pause_for(pause: Duration, is_over: impl Fn() -> bool) -> bool {
    let until = Instant::now() + pause;
    loop {
        if is_over() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(LOOK));
    }
}

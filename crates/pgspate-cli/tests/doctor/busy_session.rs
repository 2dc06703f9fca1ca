//! Sessions that run statements while doctor examines the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio_postgres::Error;

use crate::run::session;

/// A session that repeats a statement until it is stopped or a statement fails.
pub(crate) struct BusySession {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), Error>>,
}

impl BusySession {
    /// Starts a session that runs `setup` once and then repeats `work`, with pauses in between.
    pub(crate) fn with(dsn: &str, setup: &str, work: &str, pause: Duration) -> BusySession {
        let (dsn, setup, work) = (dsn.to_owned(), setup.to_owned(), work.to_owned());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (runtime, client) = session(&dsn);
            runtime.block_on(client.batch_execute(&setup))?;
            while !stopped.load(Ordering::Relaxed) {
                runtime.block_on(client.batch_execute(&work))?;
                std::thread::sleep(pause);
            }
            Ok(())
        });
        BusySession { stop, thread }
    }

    /// Starts a session that repeats `work` without pauses.
    pub(crate) fn new(dsn: &str, setup: &str, work: &str) -> BusySession {
        BusySession::with(dsn, setup, work, Duration::ZERO)
    }

    /// Stops the session. Returns an error if a statement failed.
    pub(crate) fn stop(self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        self.wait_for_error()
    }

    /// Waits until a statement fails, and returns its error.
    pub(crate) fn wait_for_error(self) -> Result<(), Error> {
        self.thread.join().unwrap()
    }
}

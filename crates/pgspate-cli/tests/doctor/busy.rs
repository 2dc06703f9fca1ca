//! Sessions that are at work while doctor looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio_postgres::Error;

use crate::run::session;

/// A session that runs statements again and again, until it is told to stop or one fails.
pub(crate) struct Busy {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), Error>>,
}

impl Busy {
    /// First `setup`, then `work` for ever, with a pause in between.
    pub(crate) fn with(dsn: &str, setup: &str, work: &str, pause: Duration) -> Busy {
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
        Busy { stop, thread }
    }

    /// The same without a pause.
    pub(crate) fn new(dsn: &str, setup: &str, work: &str) -> Busy {
        Busy::with(dsn, setup, work, Duration::ZERO)
    }

    /// Ends it; what it ended with.
    pub(crate) fn end(self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        self.failed()
    }

    /// Waits until a statement fails.
    pub(crate) fn failed(self) -> Result<(), Error> {
        self.thread.join().unwrap()
    }
}

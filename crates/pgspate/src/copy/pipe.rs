//! Chunks of an input that may make its reader wait for ever, such as a terminal.
//!
//! A thread of its own cuts, at most one chunk ahead of the lanes, so that a load that is over need
//! not wait for it. Then it is left behind, and ends with its next read.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::format::{Chunk, Cutter};
use crate::{Error, ErrorKind, Result};

/// How long a load may go on after it is over.
const LOOK: Duration = Duration::from_millis(50);

/// Chunks, cut elsewhere.
pub(super) struct CutterThread {
    chunks: Receiver<Result<Option<Chunk>>>,
}

impl CutterThread {
    pub(super) fn new(mut cutter: Box<dyn Cutter>) -> CutterThread {
        let (sender, chunks) = sync_channel(0);
        std::thread::spawn(move || {
            loop {
                let next = cutter.next();
                let is_last = !matches!(next, Ok(Some(_)));
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        });
        CutterThread { chunks }
    }

    /// The next chunk; `None` after the last one, and as soon as `is_over`.
    pub(super) fn next(&self, is_over: impl Fn() -> bool) -> Result<Option<Chunk>> {
        loop {
            match self.chunks.recv_timeout(LOOK) {
                Ok(next) => return next,
                Err(RecvTimeoutError::Timeout) if is_over() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(
                        ErrorKind::Bug,
                        "the thread that reads the input panicked",
                    ));
                }
            }
        }
    }
}

//! Cuts a stream into chunks in a separate thread, because reading a stream, such as a terminal,
//! can block forever.
//!
//! The thread is at most one chunk ahead of the lanes. A load that has ended does not wait for the
//! thread. The thread ends after its current read.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::format::{Chunk, Cutter};
use crate::{Error, ErrorKind, Result};

/// Time after which a waiting lane checks again whether the load has ended.
const OVER_POLL: Duration = Duration::from_millis(50);

/// A thread that cuts chunks, and the channel that they arrive on.
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

    /// Returns the next chunk; `None` after the last chunk, or as soon as `is_over` returns true.
    pub(super) fn next(&self, is_over: impl Fn() -> bool) -> Result<Option<Chunk>> {
        loop {
            match self.chunks.recv_timeout(OVER_POLL) {
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

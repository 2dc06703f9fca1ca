//! Decompression on a thread of its own, ahead of whoever reads.
//!
//! At most [`BLOCKS_MAX`] blocks of [`BLOCK_BYTES`] are decoded ahead. What was decoded before a
//! fault is yielded before the fault. A thread that ends without a word is an error, not an end.

use std::io::{BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use tokio::task::AbortHandle;

use super::decode::Decoded;
use super::{error_of, fault};
use crate::{Error, ErrorKind, Result};

/// Large enough that handing a block over costs nothing beside decoding it.
const BLOCK_BYTES: usize = 1 << 20;

/// Eight blocks hide the pauses of a consumer without holding much memory.
const BLOCKS_MAX: usize = 8;

/// Decoded blocks, in order.
pub(super) struct Ahead {
    full: Option<Receiver<Piece>>,
    empty: Sender<Vec<u8>>,
    block: Vec<u8>,
    len: usize,
    at: usize,
    done: bool,
    name: Arc<str>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    fetch: Option<AbortHandle>,
}

enum Piece {
    Data(Vec<u8>, usize),
    End,
    Failed(Error),
}

/// How the thread can be made to let go of its source.
pub(super) enum Release {
    /// Its reads return by themselves, soon.
    Soon,
    /// Aborting this task ends them.
    Abort(AbortHandle),
    /// They may block for ever: the thread is left behind.
    Never,
}

impl Ahead {
    /// Starts decoding `decoded`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start<R: BufRead + Send + 'static>(
        decoded: Decoded<R>,
        name: Arc<str>,
        release: Release,
    ) -> Result<Ahead> {
        let (full_tx, full) = sync_channel(BLOCKS_MAX - 1);
        let (empty, empty_rx) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_thread, name_thread) = (Arc::clone(&stop), Arc::clone(&name));
        let thread = std::thread::Builder::new()
            .name("pgspate-decode".to_owned())
            .spawn(move || run(decoded, &full_tx, &empty_rx, &stop_thread, &name_thread))
            .map_err(|e| {
                Error::new(ErrorKind::Source, "could not start a thread for decompression")
                    .because(e)
            })?;
        let (thread, fetch) = match release {
            Release::Soon => (Some(thread), None),
            Release::Abort(task) => (Some(thread), Some(task)),
            Release::Never => (None, None),
        };
        Ok(Ahead {
            full: Some(full),
            empty,
            block: Vec::new(),
            len: 0,
            at: 0,
            done: false,
            name,
            stop,
            thread,
            fetch,
        })
    }

    /// Decoded bytes that are next, empty at the end. [`Ahead::consume`] them.
    pub(super) fn fill(&mut self) -> Result<&[u8]> {
        if self.at == self.len && !self.done {
            let used = std::mem::take(&mut self.block);
            if used.len() == BLOCK_BYTES {
                // The thread may have ended; then nobody wants the block back.
                let _ = self.empty.send(used);
            }
            (self.len, self.at) = (0, 0);
            let next = self.full.as_ref().and_then(|full| full.recv().ok());
            match next {
                Some(Piece::Data(block, len)) => (self.block, self.len) = (block, len),
                Some(Piece::End) => self.done = true,
                Some(Piece::Failed(error)) => return Err(error),
                None => {
                    let message =
                        format!("decompression of \"{}\" stopped unexpectedly", self.name);
                    return Err(Error::new(ErrorKind::Bug, message));
                }
            }
        }
        Ok(&self.block[self.at..self.len])
    }

    /// Marks `count` of the bytes that [`Ahead::fill`] gave as used.
    pub(super) fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.len);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.full = None;
        if let Some(task) = &self.fetch {
            task.abort();
        }
        if let Some(thread) = self.thread.take() {
            // A panic there was already reported as an error by `fill`, or nobody reads any more.
            let _ = thread.join();
        }
    }
}

fn run<R: BufRead>(
    mut decoded: Decoded<R>,
    full: &SyncSender<Piece>,
    empty: &Receiver<Vec<u8>>,
    stop: &AtomicBool,
    name: &str,
) {
    while !stop.load(Ordering::Relaxed) {
        let mut block = empty.try_recv().unwrap_or_else(|_| vec![0; BLOCK_BYTES]);
        let mut len = 0;
        let last = loop {
            match decoded.read(&mut block[len..]) {
                Ok(0) => break Some(Piece::End),
                Ok(count) => len += count,
                Err(error) => break Some(Piece::Failed(error_of(error, name))),
            }
            if len == block.len() {
                break None;
            }
        };
        if len > 0 && full.send(Piece::Data(block, len)).is_err() {
            return;
        }
        if let Some(last) = last {
            let _ = full.send(last);
            return;
        }
    }
    let _ = full.try_send(Piece::Failed(fault(name, "reading was stopped")));
}

//! Reading an object ahead: ranges fetched in parallel, yielded in order.
//!
//! At most `in_flight` ranges are fetched or waiting to be taken. Async code stays in here: the
//! reading side blocks on an ordinary channel, so it works on any thread. Every byte of the
//! object is yielded or there is an error.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::{Buf, Bytes};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use super::fault;
use super::remote::{Remote, unframed};
use crate::{Error, Result};

/// How many pieces of a streamed body may wait; the client hands them out in well under 1 MiB.
const PIECES_MAX: usize = 64;

/// How far ahead to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Bytes of one range.
    pub(super) range_bytes: u64,
    /// Ranges fetched at the same time or waiting.
    pub(super) in_flight: usize,
}

enum Piece {
    /// A range being fetched.
    Later(Receiver<Result<Bytes>>),
    /// The next bytes of a streamed body.
    Now(Result<Bytes>),
    /// There is no more, and whether the server has said so.
    End { is_proven: bool },
}

/// The stored bytes of a remote object, from the first to the last.
pub(super) struct Fetch {
    pieces: Receiver<Piece>,
    room: Arc<Semaphore>,
    current: Bytes,
    remote: Arc<Remote>,
    task: AbortHandle,
    done: bool,
    is_unproven: bool,
}

impl Fetch {
    /// Starts reading `remote` on `runtime`.
    pub(super) fn start(runtime: &Handle, remote: Arc<Remote>, pace: Pace) -> Fetch {
        let (tx, pieces) = channel();
        let ranged = remote.ranged_size();
        let permits = if ranged.is_some() { pace.in_flight.max(1) } else { PIECES_MAX };
        let room = Arc::new(Semaphore::new(permits));
        let task = match ranged {
            Some(size) => runtime.spawn(ranges(
                Arc::clone(&remote),
                size,
                pace.range_bytes.max(1),
                Arc::clone(&room),
                tx,
            )),
            None => runtime.spawn(stream(Arc::clone(&remote), Arc::clone(&room), tx)),
        };
        let task = task.abort_handle();
        Fetch { pieces, room, current: Bytes::new(), remote, task, done: false, is_unproven: false }
    }

    /// Aborting it ends this reader with an error.
    pub(super) fn abort_handle(&self) -> AbortHandle {
        self.task.clone()
    }

    /// The bytes that are next, empty at the end. [`Fetch::take`] them.
    pub(super) fn fill(&mut self) -> Result<&[u8]> {
        while self.current.is_empty() && !self.done {
            let piece = self.pieces.recv().map_err(|_| self.stopped())?;
            self.current = match piece {
                Piece::Later(bytes) => bytes.recv().map_err(|_| self.stopped())??,
                Piece::Now(bytes) => bytes?,
                Piece::End { is_proven } => {
                    self.done = true;
                    self.is_unproven = !is_proven;
                    Bytes::new()
                }
            };
            self.room.add_permits(1);
        }
        Ok(&self.current)
    }

    /// Refuses an end that may be anywhere, for data that do not tell their own end.
    ///
    /// # Errors
    /// When the server does not say where the body ends.
    pub(super) fn check_end(&self) -> Result<()> {
        match self.is_unproven || self.remote.may_end_anywhere() {
            true => Err(unframed(self.remote.name())),
            false => Ok(()),
        }
    }

    /// Marks `count` of the bytes that [`Fetch::fill`] gave as used.
    pub(super) fn take(&mut self, count: usize) {
        self.current.advance(count.min(self.current.len()));
    }

    /// The first `len` bytes or more, fewer only if there are no more; they stay to be read.
    pub(super) fn peek(&mut self, len: usize) -> Result<&[u8]> {
        self.fill()?;
        if self.current.len() < len {
            // A streamed body may come in crumbs.
            let mut head = std::mem::take(&mut self.current).to_vec();
            while head.len() < len && !self.done {
                head.extend_from_slice(self.fill()?);
                self.current.clear();
            }
            self.current = head.into();
        }
        Ok(&self.current)
    }

    fn stopped(&self) -> Error {
        let name = self.remote.name();
        fault(name, format!("reading \"{name}\" was stopped"))
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Read for Fetch {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let count = bytes.len().min(out.len());
        out[..count].copy_from_slice(&bytes[..count]);
        self.take(count);
        Ok(count)
    }
}

impl BufRead for Fetch {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill().map_err(io::Error::other)
    }

    fn consume(&mut self, count: usize) {
        self.take(count);
    }
}

/// Each range is a task of its own: it then runs to its end whether or not the reader is slow,
/// where a request that nobody polls would be taken for a stalled one.
async fn ranges(
    remote: Arc<Remote>,
    size: u64,
    range_bytes: u64,
    room: Arc<Semaphore>,
    tx: Sender<Piece>,
) {
    let mut tasks = JoinSet::new();
    let mut start = 0;
    while start < size {
        let Ok(permit) = room.acquire().await else { return };
        permit.forget();
        while tasks.try_join_next().is_some() {}
        let end = size.min(start + range_bytes);
        let (done, later) = channel();
        let remote = Arc::clone(&remote);
        tasks.spawn(async move {
            let _ = done.send(remote.range(start..end).await);
        });
        if tx.send(Piece::Later(later)).is_err() {
            return;
        }
        start = end;
    }
    let _ = tx.send(Piece::End { is_proven: true });
    while tasks.join_next().await.is_some() {}
}

async fn stream(remote: Arc<Remote>, room: Arc<Semaphore>, tx: Sender<Piece>) {
    let mut body = match remote.stream().await {
        Ok(body) => body,
        Err(error) => {
            let _ = tx.send(Piece::Now(Err(error)));
            return;
        }
    };
    loop {
        let Ok(permit) = room.acquire().await else { return };
        permit.forget();
        let piece = match body.next().await {
            Ok(Some(bytes)) => Piece::Now(Ok(bytes)),
            Ok(None) => Piece::End { is_proven: body.is_framed },
            Err(error) => Piece::Now(Err(error)),
        };
        let last = !matches!(piece, Piece::Now(Ok(_)));
        if tx.send(piece).is_err() || last {
            return;
        }
    }
}

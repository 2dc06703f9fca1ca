//! Reads an object ahead: fetches ranges in parallel and returns their bytes in order.
//!
//! At most `in_flight_max` ranges are being fetched or waiting for the reader. The reader blocks on
//! a plain channel, so the reader works on any thread. The reader gets every byte of the object, or
//! an error.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::{Buf, Bytes};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use super::remote::{RemoteObject, unframed_body_error};
use super::source_error;
use crate::{Error, Result};

/// The most pieces of a streamed body that wait for the reader. The HTTP client returns pieces well
/// below 1 MiB.
const PIECES_MAX: usize = 64;

/// How far ahead an object is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct FetchLimits {
    /// The bytes of one range.
    pub(super) range_bytes: u64,
    /// The most ranges that are being fetched or waiting for the reader.
    pub(super) in_flight_max: usize,
}

impl FetchLimits {
    /// Returns the most bytes that are read ahead.
    pub(super) fn bytes(self) -> u64 {
        self.range_bytes.saturating_mul(self.in_flight_max as u64)
    }
}

/// A message from the fetching task to the reader.
enum FetchMessage {
    /// The receiver of the bytes of the next range, which may still be in flight.
    Range(Receiver<Result<Bytes>>),
    /// The next bytes of a streamed body.
    BodyPiece(Result<Bytes>),
    /// The end of the data. `is_framed`: the server announced the end by a length or by chunks, or
    /// the user allows a body without an announced end.
    End { is_framed: bool },
}

/// A reader of the stored bytes of a remote object, from the first byte to the last.
pub(super) struct ObjectFetcher {
    pieces: Receiver<FetchMessage>,
    free_slots: Arc<Semaphore>,
    current: Bytes,
    remote: Arc<RemoteObject>,
    task: AbortHandle,
    done: bool,
    /// Whether the body ended without an announced end.
    ended_unframed: bool,
}

impl ObjectFetcher {
    /// Starts reading `remote` on `runtime`.
    pub(super) fn start(
        runtime: &Handle,
        remote: Arc<RemoteObject>,
        limits: FetchLimits,
    ) -> ObjectFetcher {
        let (sender, pieces) = channel();
        let ranged_size = remote.ranged_size();
        let permits = if ranged_size.is_some() { limits.in_flight_max.max(1) } else { PIECES_MAX };
        let free_slots = Arc::new(Semaphore::new(permits));
        let task = match ranged_size {
            Some(size) => runtime.spawn(fetch_ranges(
                Arc::clone(&remote),
                size,
                limits.range_bytes.max(1),
                Arc::clone(&free_slots),
                sender,
            )),
            None => {
                runtime.spawn(fetch_stream(Arc::clone(&remote), Arc::clone(&free_slots), sender))
            }
        };
        let task = task.abort_handle();
        ObjectFetcher {
            pieces,
            free_slots,
            current: Bytes::new(),
            remote,
            task,
            done: false,
            ended_unframed: false,
        }
    }

    /// Returns a handle to abort the fetching task. After an abort, this reader returns an error.
    pub(super) fn abort_handle(&self) -> AbortHandle {
        self.task.clone()
    }

    /// Returns the next bytes, or an empty slice at the end. Call [`ObjectFetcher::mark_used`]
    /// afterwards.
    pub(super) fn fill(&mut self) -> Result<&[u8]> {
        while self.current.is_empty() && !self.done {
            let piece = self.pieces.recv().map_err(|_| self.stopped_error())?;
            self.current = match piece {
                FetchMessage::Range(bytes) => bytes.recv().map_err(|_| self.stopped_error())??,
                FetchMessage::BodyPiece(bytes) => bytes?,
                FetchMessage::End { is_framed } => {
                    self.done = true;
                    self.ended_unframed = !is_framed;
                    Bytes::new()
                }
            };
            self.free_slots.add_permits(1);
        }
        Ok(&self.current)
    }

    /// Checks that the server announces the end of the body, unless the user allows a body without
    /// an announced end. Without this check, a lost connection would look like the end of
    /// uncompressed data.
    ///
    /// # Errors
    /// [`ErrorKind::Source`](crate::ErrorKind::Source) if the server does not say where the body
    /// ends.
    pub(super) fn check_framed(&self) -> Result<()> {
        match self.ended_unframed || self.remote.refuses_unframed_body() {
            true => Err(unframed_body_error(self.remote.name())),
            false => Ok(()),
        }
    }

    /// Marks `count` of the bytes that [`ObjectFetcher::fill`] returned as used.
    pub(super) fn mark_used(&mut self, count: usize) {
        self.current.advance(count.min(self.current.len()));
    }

    /// Returns at least the next `len` bytes without marking them as used. Returns fewer only at
    /// the end.
    pub(super) fn peek(&mut self, len: usize) -> Result<&[u8]> {
        self.fill()?;
        if self.current.len() < len {
            // A streamed body may arrive in pieces smaller than `len`.
            let mut head = std::mem::take(&mut self.current).to_vec();
            while head.len() < len && !self.done {
                head.extend_from_slice(self.fill()?);
                self.current.clear();
            }
            self.current = head.into();
        }
        Ok(&self.current)
    }

    fn stopped_error(&self) -> Error {
        let name = self.remote.name();
        source_error(name, format!("reading \"{name}\" was stopped"))
    }
}

impl Drop for ObjectFetcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Read for ObjectFetcher {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let count = bytes.len().min(out.len());
        out[..count].copy_from_slice(&bytes[..count]);
        self.mark_used(count);
        Ok(count)
    }
}

impl BufRead for ObjectFetcher {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill().map_err(io::Error::other)
    }

    fn consume(&mut self, count: usize) {
        self.mark_used(count);
    }
}

/// Fetches all ranges, each in its own task. The runtime polls the tasks even while the reader is
/// slow. An unpolled request receives no bytes, so the request would count as stalled.
async fn fetch_ranges(
    remote: Arc<RemoteObject>,
    size: u64,
    range_bytes: u64,
    free_slots: Arc<Semaphore>,
    sender: Sender<FetchMessage>,
) {
    let mut tasks = JoinSet::new();
    let mut start = 0;
    while start < size {
        let Ok(permit) = free_slots.acquire().await else { return };
        permit.forget();
        while tasks.try_join_next().is_some() {}
        let end = size.min(start + range_bytes);
        let (range_sender, range_receiver) = channel();
        let remote = Arc::clone(&remote);
        tasks.spawn(async move {
            let _ = range_sender.send(remote.range(start..end).await);
        });
        if sender.send(FetchMessage::Range(range_receiver)).is_err() {
            return;
        }
        start = end;
    }
    let _ = sender.send(FetchMessage::End { is_framed: true });
    while tasks.join_next().await.is_some() {}
}

/// Fetches the body of one request, piece by piece.
async fn fetch_stream(
    remote: Arc<RemoteObject>,
    free_slots: Arc<Semaphore>,
    sender: Sender<FetchMessage>,
) {
    let mut body = match remote.stream().await {
        Ok(body) => body,
        Err(error) => {
            let _ = sender.send(FetchMessage::BodyPiece(Err(error)));
            return;
        }
    };
    loop {
        let Ok(permit) = free_slots.acquire().await else { return };
        permit.forget();
        let piece = match body.next().await {
            Ok(Some(bytes)) => FetchMessage::BodyPiece(Ok(bytes)),
            Ok(None) => FetchMessage::End { is_framed: body.is_framed },
            Err(error) => FetchMessage::BodyPiece(Err(error)),
        };
        let is_last = !matches!(piece, FetchMessage::BodyPiece(Ok(_)));
        if sender.send(piece).is_err() || is_last {
            return;
        }
    }
}

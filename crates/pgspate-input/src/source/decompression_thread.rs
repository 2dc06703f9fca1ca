//! Decompresses an input on a separate thread, ahead of the reader.
//!
//! At most [`BLOCKS_MAX`] blocks of up to [`BLOCK_BYTES`] are decompressed ahead. Bytes before a
//! fault are returned before the error. A thread that ends without a final message is an error, not
//! the end of the data.

use std::io::{BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use tokio::task::AbortHandle;

use super::decompress::DecompressedReader;
use super::{read_error, source_error};
use crate::{Error, ErrorKind, Result};

/// Large enough that passing a block to the reader costs little compared with decompressing it.
const BLOCK_BYTES: usize = 1 << 20;

/// Eight blocks bridge the pauses of a reader and take little memory.
const BLOCKS_MAX: usize = 8;

/// The smallest block, for small inputs.
const BLOCK_BYTES_MIN: usize = 64 << 10;

/// The usual factor by which compressed rows grow when they are decompressed.
const INFLATION: u64 = 8;

/// Returns how many bytes of an input of `stored` compressed bytes are decompressed ahead, as far
/// as its size tells.
pub(super) fn bytes_ahead(stored: u64) -> u64 {
    stored.saturating_mul(INFLATION).min((BLOCKS_MAX * BLOCK_BYTES) as u64)
}

/// Returns the size of the blocks for an input of `stored` compressed bytes. A small input needs no
/// large block.
fn block_bytes(stored: Option<u64>) -> usize {
    let expected = stored.map_or(BLOCK_BYTES as u64, bytes_ahead);
    (expected as usize).next_power_of_two().clamp(BLOCK_BYTES_MIN, BLOCK_BYTES)
}

/// The reader's side of a decompression thread: decompressed blocks, in order.
pub(super) struct DecompressionThread {
    full_blocks: Option<Receiver<DecompressionMessage>>,
    empty_blocks: Sender<Vec<u8>>,
    /// The current block. Its first `len` bytes are decompressed, and `used` of them were returned.
    block: Vec<u8>,
    len: usize,
    used: usize,
    done: bool,
    name: Arc<str>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    fetch_task: Option<AbortHandle>,
}

/// A message from the decompression thread to the reader.
enum DecompressionMessage {
    /// A block, and the number of decompressed bytes in the block.
    Data(Vec<u8>, usize),
    End,
    Failed(Error),
}

/// How to interrupt a thread that waits in a read of its source.
pub(super) enum ReadInterrupt {
    /// The source's reads return soon by themselves.
    NotNeeded,
    /// Aborting this task ends the source's reads.
    AbortTask(AbortHandle),
    /// The source's reads may block for ever, so nothing waits for the thread to end.
    Impossible,
}

impl DecompressionThread {
    /// Starts a thread that decompresses by reading `decoded`. `stored` is the size of the
    /// compressed input in bytes, if it is known.
    ///
    /// # Errors
    /// [`ErrorKind::Source`] if the thread cannot be started.
    pub(super) fn start<R: BufRead + Send + 'static>(
        decoded: DecompressedReader<R>,
        name: Arc<str>,
        interrupt: ReadInterrupt,
        stored: Option<u64>,
    ) -> Result<DecompressionThread> {
        let block_bytes = block_bytes(stored);
        let (full_sender, full_blocks) = sync_channel(BLOCKS_MAX - 1);
        let (empty_blocks, empty_receiver) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_in_thread, name_in_thread) = (Arc::clone(&stop), Arc::clone(&name));
        let thread = std::thread::Builder::new()
            .name("pgspate-decode".to_owned())
            .spawn(move || {
                decompress_blocks(
                    decoded,
                    block_bytes,
                    &full_sender,
                    &empty_receiver,
                    &stop_in_thread,
                    &name_in_thread,
                )
            })
            .map_err(|e| {
                Error::new(ErrorKind::Source, "could not start a thread for decompression")
                    .because(e)
            })?;
        let (thread, fetch_task) = match interrupt {
            ReadInterrupt::NotNeeded => (Some(thread), None),
            ReadInterrupt::AbortTask(task) => (Some(thread), Some(task)),
            ReadInterrupt::Impossible => (None, None),
        };
        Ok(DecompressionThread {
            full_blocks: Some(full_blocks),
            empty_blocks,
            block: Vec::new(),
            len: 0,
            used: 0,
            done: false,
            name,
            stop,
            thread,
            fetch_task,
        })
    }

    /// Returns the next decompressed bytes, or an empty slice at the end. Call
    /// [`DecompressionThread::mark_used`] afterwards.
    pub(super) fn fill(&mut self) -> Result<&[u8]> {
        if self.used == self.len && !self.done {
            let empty = std::mem::take(&mut self.block);
            if !empty.is_empty() {
                // If the thread has ended, the block is dropped.
                let _ = self.empty_blocks.send(empty);
            }
            (self.len, self.used) = (0, 0);
            let next = self.full_blocks.as_ref().and_then(|full_blocks| full_blocks.recv().ok());
            match next {
                Some(DecompressionMessage::Data(block, len)) => {
                    (self.block, self.len) = (block, len)
                }
                Some(DecompressionMessage::End) => self.done = true,
                Some(DecompressionMessage::Failed(error)) => return Err(error),
                None => {
                    let message =
                        format!("decompression of \"{}\" stopped unexpectedly", self.name);
                    return Err(Error::new(ErrorKind::Bug, message));
                }
            }
        }
        Ok(&self.block[self.used..self.len])
    }

    /// Marks `count` of the bytes that [`DecompressionThread::fill`] returned as used.
    pub(super) fn mark_used(&mut self, count: usize) {
        self.used = (self.used + count).min(self.len);
    }
}

impl Drop for DecompressionThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.full_blocks = None;
        if let Some(task) = &self.fetch_task {
            task.abort();
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is ignored: `fill` reports the panic if the reader still reads.
            let _ = thread.join();
        }
    }
}

/// Decompresses block after block, until the end of the data, an error, or `stop`.
fn decompress_blocks<R: BufRead>(
    mut decoded: DecompressedReader<R>,
    block_bytes: usize,
    full_blocks: &SyncSender<DecompressionMessage>,
    empty_blocks: &Receiver<Vec<u8>>,
    stop: &AtomicBool,
    name: &str,
) {
    while !stop.load(Ordering::Relaxed) {
        let mut block = empty_blocks.try_recv().unwrap_or_else(|_| vec![0; block_bytes]);
        let mut len = 0;
        let last = loop {
            match decoded.read(&mut block[len..]) {
                Ok(0) => break Some(DecompressionMessage::End),
                Ok(count) => len += count,
                Err(error) => break Some(DecompressionMessage::Failed(read_error(error, name))),
            }
            if len == block.len() {
                break None;
            }
        };
        if len > 0 && full_blocks.send(DecompressionMessage::Data(block, len)).is_err() {
            return;
        }
        if let Some(last) = last {
            let _ = full_blocks.send(last);
            return;
        }
    }
    let _ = full_blocks
        .try_send(DecompressionMessage::Failed(source_error(name, "reading was stopped")));
}

//! Cuts several inputs one after the other, like one input.
//!
//! Opening an input takes time: an object store answers after tens of milliseconds, and compressed
//! data must be decompressed before the first record is known. So threads open the next inputs
//! while earlier ones are cut. The order of the chunks does not depend on them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::{Chunk, Cutter};
use crate::{Error, ErrorKind, Result};

/// The most inputs that are opened before their turn.
const AHEAD_MAX: usize = 8;

/// The most memory that inputs are expected to take which are opened before their turn, in bytes.
/// Data that compress unusually well take more.
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// What an open input takes beside the bytes that it reads ahead: buffers and a thread's stack.
const INPUT_BYTES: u64 = 1 << 20;

type OpenedCutter = Result<Box<dyn Cutter>>;

/// Opens the cutter of the input with the given index.
pub type OpenCutter = Arc<dyn Fn(usize) -> OpenedCutter + Send + Sync>;

/// Cuts the inputs in order and numbers the chunks of all inputs consecutively.
pub struct ChainCutter {
    open: OpenCutter,
    /// For each input, the memory that it takes if it is opened before its turn, in bytes. `None`:
    /// it is opened in its turn.
    ahead_bytes: Vec<Option<u64>>,
    /// The next inputs, which threads open.
    ahead: VecDeque<JoinHandle<OpenedCutter>>,
    /// The index of the next input.
    next_input: usize,
    current: Option<Box<dyn Cutter>>,
    seq: u64,
}

impl ChainCutter {
    /// Returns a cutter over inputs, which `open` opens. `ahead_bytes` has, for each input, the
    /// memory in bytes that it takes if it is opened before its turn, or `None` for an input that
    /// is not.
    pub fn new(ahead_bytes: Vec<Option<u64>>, open: OpenCutter) -> ChainCutter {
        ChainCutter {
            open,
            ahead_bytes,
            ahead: VecDeque::new(),
            next_input: 0,
            current: None,
            seq: 0,
        }
    }

    /// Returns the cutter of the next input, and lets threads open the inputs after it.
    fn open_next(&mut self) -> OpenedCutter {
        let opened = self.ahead.pop_front();
        let index = self.next_input;
        self.next_input += 1;
        self.open_ahead();
        match opened {
            Some(thread) => thread.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Bug, "the thread that opens the input panicked"))
            }),
            None => (self.open)(index),
        }
    }

    fn open_ahead(&mut self) {
        let next = self.next_input + self.ahead.len();
        let opened = &self.ahead_bytes[self.next_input..next];
        let mut bytes: u64 = opened.iter().flatten().map(|more| more + INPUT_BYTES).sum();
        for index in next..self.ahead_bytes.len() {
            let Some(more) = self.ahead_bytes[index] else { return };
            bytes = bytes.saturating_add(more + INPUT_BYTES);
            if bytes > AHEAD_BYTES_MAX || self.ahead.len() == AHEAD_MAX {
                return;
            }
            let open = Arc::clone(&self.open);
            let builder = std::thread::Builder::new().name("pgspate-open".to_owned());
            // Without another thread, the input is opened in its turn.
            let Ok(thread) = builder.spawn(move || open(index)) else { return };
            self.ahead.push_back(thread);
        }
    }
}

impl Cutter for ChainCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        loop {
            let Some(cutter) = &mut self.current else {
                if self.next_input == self.ahead_bytes.len() {
                    return Ok(None);
                }
                match self.open_next() {
                    Ok(cutter) => self.current = Some(cutter),
                    Err(error) => {
                        // No input after this one is cut.
                        self.next_input = self.ahead_bytes.len();
                        self.ahead.clear();
                        return Err(error);
                    }
                }
                continue;
            };
            let Some(mut chunk) = cutter.next()? else {
                self.current = None;
                continue;
            };
            chunk.seq = self.seq;
            chunk.input = self.next_input - 1;
            self.seq += 1;
            return Ok(Some(chunk));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::format::ChunkData;

    /// Returns one chunk, whose line is the input's number.
    struct OneChunk(Option<u64>);

    impl Cutter for OneChunk {
        fn next(&mut self) -> Result<Option<Chunk>> {
            Ok(self.0.take().map(|line| {
                let data = ChunkData::Bytes(Vec::new());
                Chunk { seq: 0, input: 0, byte: 0, line, first_row: 0, digest: None, data }
            }))
        }
    }

    /// Which inputs were opened.
    #[derive(Default)]
    struct OpenedInputs {
        opened: Mutex<Vec<usize>>,
        changed: Condvar,
    }

    impl OpenedInputs {
        fn add(&self, index: usize) {
            self.opened.lock().unwrap().push(index);
            self.changed.notify_all();
        }

        /// Waits until `count` inputs are opened. Returns their number.
        fn wait_for(&self, count: usize) -> usize {
            let limit = Duration::from_secs(60);
            let is_waiting = |opened: &mut Vec<usize>| opened.len() < count;
            let opened = self.opened.lock().unwrap();
            self.changed.wait_timeout_while(opened, limit, is_waiting).unwrap().0.len()
        }
    }

    fn lines(cutter: &mut ChainCutter) -> (Vec<(u64, usize, u64)>, Option<String>) {
        let mut lines = Vec::new();
        loop {
            match cutter.next() {
                Ok(Some(chunk)) => lines.push((chunk.seq, chunk.input, chunk.line)),
                Ok(None) => return (lines, None),
                Err(error) => return (lines, Some(error.to_string())),
            }
        }
    }

    #[test]
    fn next_inputs_are_opened_while_one_is_read() {
        let inputs = Arc::new(OpenedInputs::default());
        let seen = Arc::clone(&inputs);
        let open: OpenCutter = Arc::new(move |index| {
            seen.add(index);
            // The first input is opened only after the two inputs that may be opened early.
            assert!(index > 0 || seen.wait_for(3) == 3);
            Ok(Box::new(OneChunk(Some(index as u64))) as _)
        });
        let large = AHEAD_BYTES_MAX;
        let mut cutter = ChainCutter::new(vec![None, Some(1), Some(2), Some(large), None], open);
        let chunk = cutter.next().unwrap().unwrap();
        assert_eq!((chunk.seq, chunk.input, chunk.line), (0, 0, 0));
        let rest = vec![(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4)];
        assert_eq!(lines(&mut cutter), (rest, None));
        let mut opened = inputs.opened.lock().unwrap().clone();
        opened.sort_unstable();
        assert_eq!(opened, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_error_follows_the_chunks_of_earlier_inputs() {
        let open: OpenCutter = Arc::new(|index| match index {
            2 => Err(Error::new(ErrorKind::Source, "no such file")),
            _ => Ok(Box::new(OneChunk(Some(index as u64)))),
        });
        let mut cutter = ChainCutter::new(vec![Some(1); 20], open);
        let before = vec![(0, 0, 0), (1, 1, 1)];
        assert_eq!(lines(&mut cutter), (before, Some("no such file".to_owned())));
        assert!(cutter.next().unwrap().is_none());
    }
}

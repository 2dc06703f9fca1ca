//! Cuts several inputs into chunks, as if they were one input.
//!
//! Opening an input takes time: an object store answers after tens of milliseconds, and compressed
//! data must be decompressed before the first record is known. So threads open the next inputs
//! while earlier ones are cut. One thread decompresses an input, often slower than the server
//! writes. So several such inputs are cut side by side, a chunk of each in turn.
//!
//! A chunk's number depends on its input and its place there alone, and not on the turns.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::{Chunk, Cutter};
use crate::{Error, ErrorKind, Result};

/// The most inputs that are opened before their turn.
const AHEAD_MAX: usize = 8;

/// The most memory that all open inputs but the first are expected to take, in bytes. More inputs
/// that are cut side by side may take more: this much for each two of them. Data that compress
/// unusually well take more, too.
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// What an open input takes beside the bytes that it reads ahead: buffers and a thread's stack.
const INPUT_BYTES: u64 = 1 << 20;

type OpenedCutter = Result<Box<dyn Cutter>>;

/// Opens the cutter of the input with the given index.
pub type OpenCutter = Arc<dyn Fn(usize) -> OpenedCutter + Send + Sync>;

/// Cuts the inputs, and numbers the chunks in the order of the inputs.
pub struct ChainCutter {
    open: OpenCutter,
    /// For each input, the memory that it takes if it is opened before its turn, in bytes. `None`:
    /// it is opened in its turn, when all inputs before it are cut.
    ahead_bytes: Vec<Option<u64>>,
    /// The next inputs, which threads open.
    ahead: VecDeque<JoinHandle<OpenedCutter>>,
    /// The index of the next input.
    next_input: usize,
    /// The inputs that are being cut, each with its index. The first one is cut next.
    current: VecDeque<(usize, Box<dyn Cutter>)>,
    /// The most inputs that are cut side by side.
    side_by_side_max: usize,
}

impl ChainCutter {
    /// Returns a cutter over inputs, which `open` opens. `ahead_bytes` has, for each input, the
    /// memory in bytes that it takes if it is opened before its turn, or `None` for an input that
    /// is not. At most `side_by_side_max` inputs are cut side by side. With 1, the chunks have the
    /// order of the inputs.
    pub fn new(
        ahead_bytes: Vec<Option<u64>>,
        side_by_side_max: usize,
        open: OpenCutter,
    ) -> ChainCutter {
        ChainCutter {
            open,
            ahead_bytes,
            ahead: VecDeque::new(),
            next_input: 0,
            current: VecDeque::new(),
            side_by_side_max,
        }
    }

    /// Opens the next input if no input is being cut. Adds inputs that threads have opened.
    fn add_inputs(&mut self) -> Result<()> {
        while self.next_input < self.ahead_bytes.len() {
            let is_opened = self.ahead.front().is_some_and(JoinHandle::is_finished);
            let has_room = self.current.len() < self.side_by_side_max;
            let may_add = self.current.is_empty() || is_opened && has_room;
            if !may_add {
                break;
            }
            let index = self.next_input;
            let cutter = self.open_next()?;
            self.current.push_back((index, cutter));
        }
        if !self.current.is_empty() {
            self.open_ahead();
        }
        Ok(())
    }

    /// Returns the cutter of the next input. If it is opened now, lets threads open the inputs
    /// after it meanwhile.
    fn open_next(&mut self) -> OpenedCutter {
        let opened = self.ahead.pop_front();
        let index = self.next_input;
        self.next_input += 1;
        match opened {
            Some(thread) => thread.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Bug, "the thread that opens the input panicked"))
            }),
            None => {
                self.open_ahead();
                (self.open)(index)
            }
        }
    }

    fn open_ahead(&mut self) {
        let next = self.next_input + self.ahead.len();
        let current = self.current.iter().skip(1).map(|(index, _)| *index);
        let opened = current.chain(self.next_input..next).filter_map(|it| self.ahead_bytes[it]);
        let mut bytes: u64 = opened.map(|more| more + INPUT_BYTES).sum();
        let bytes_max = AHEAD_BYTES_MAX * (self.side_by_side_max as u64).div_ceil(2);
        for index in next..self.ahead_bytes.len() {
            let Some(more) = self.ahead_bytes[index] else { return };
            bytes = bytes.saturating_add(more + INPUT_BYTES);
            if bytes > bytes_max || self.ahead.len() == AHEAD_MAX {
                return;
            }
            let open = Arc::clone(&self.open);
            let builder = std::thread::Builder::new().name("pgspate-open".to_owned());
            // Without another thread, the input is opened in its turn.
            let Ok(thread) = builder.spawn(move || open(index)) else { return };
            self.ahead.push_back(thread);
        }
    }

    /// Returns the next chunk of the inputs that are being cut.
    fn next_chunk(&mut self) -> Result<Option<Chunk>> {
        loop {
            self.add_inputs()?;
            let Some((index, mut cutter)) = self.current.pop_front() else { return Ok(None) };
            if let Some(chunk) = cutter.next()? {
                self.current.push_back((index, cutter));
                return Ok(Some(chunk.of_input(index)));
            }
        }
    }
}

impl Cutter for ChainCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        let chunk = self.next_chunk();
        if chunk.is_err() {
            // No input is cut any more.
            self.next_input = self.ahead_bytes.len();
            self.ahead.clear();
            self.current.clear();
        }
        chunk
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::format::ChunkData;

    /// Returns chunks of an input. Their line is the input's number.
    struct TestInput {
        line: u64,
        chunks: std::ops::Range<u64>,
    }

    impl TestInput {
        fn boxed(index: usize, chunks: u64) -> Box<dyn Cutter> {
            Box::new(TestInput { line: index as u64, chunks: 0..chunks })
        }
    }

    impl Cutter for TestInput {
        fn next(&mut self) -> Result<Option<Chunk>> {
            let line = self.line;
            Ok(self.chunks.next().map(|seq| {
                let data = ChunkData::Bytes(Vec::new());
                Chunk { seq, input: 0, byte: 0, line, first_row: 0, digest: None, data }
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

    /// Returns the input and the number within the input of the next chunk.
    fn next_of(cutter: &mut ChainCutter) -> Result<Option<(usize, u64)>> {
        Ok(cutter.next()?.map(|chunk| {
            assert_eq!((Chunk::input_of(chunk.seq), chunk.line), (chunk.input, chunk.input as u64));
            (chunk.input, chunk.seq_in_input())
        }))
    }

    fn rest_of(cutter: &mut ChainCutter) -> (Vec<(usize, u64)>, Option<String>) {
        let mut chunks = Vec::new();
        loop {
            match next_of(cutter) {
                Ok(Some(chunk)) => chunks.push(chunk),
                Ok(None) => return (chunks, None),
                Err(error) => return (chunks, Some(error.to_string())),
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
            Ok(TestInput::boxed(index, 1))
        });
        let large = AHEAD_BYTES_MAX;
        let ahead_bytes = vec![None, Some(1), Some(2), Some(large), None];
        let mut cutter = ChainCutter::new(ahead_bytes, 1, open);
        assert_eq!(next_of(&mut cutter).unwrap(), Some((0, 0)));
        assert_eq!(rest_of(&mut cutter), (vec![(1, 0), (2, 0), (3, 0), (4, 0)], None));
        let mut opened = inputs.opened.lock().unwrap().clone();
        opened.sort_unstable();
        assert_eq!(opened, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_error_follows_the_chunks_of_earlier_inputs() {
        let open: OpenCutter = Arc::new(|index| match index {
            2 => Err(Error::new(ErrorKind::Source, "no such file")),
            _ => Ok(TestInput::boxed(index, 1)),
        });
        let mut cutter = ChainCutter::new(vec![Some(1); 20], 1, open);
        let before = vec![(0, 0), (1, 0)];
        assert_eq!(rest_of(&mut cutter), (before, Some("no such file".to_owned())));
        assert!(cutter.next().unwrap().is_none());
    }

    #[test]
    fn inputs_that_are_opened_are_cut_side_by_side() {
        let open: OpenCutter = Arc::new(|index| Ok(TestInput::boxed(index, 3)));
        let mut cutter = ChainCutter::new(vec![Some(1), Some(1), Some(1), None], 2, open);
        assert_eq!(next_of(&mut cutter).unwrap(), Some((0, 0)));
        let is_opened = |thread: &JoinHandle<OpenedCutter>| thread.is_finished();
        while !cutter.ahead.iter().all(is_opened) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (rest, error) = rest_of(&mut cutter);
        assert_eq!(error, None);
        let at = |chunk| rest.iter().position(|it| *it == chunk).unwrap();
        for input in 0..4 {
            let chunks = rest.iter().filter(|chunk| chunk.0 == input).map(|chunk| chunk.1);
            let from = u64::from(input == 0);
            assert!(chunks.eq(from..3), "{rest:?}");
        }
        // There is room for two inputs. The last one is opened in its turn.
        assert!(at((1, 0)) < at((0, 2)) && at((0, 2)) < at((2, 0)), "{rest:?}");
        assert_eq!(at((3, 0)), rest.len() - 3, "{rest:?}");
    }

    #[test]
    fn open_inputs_take_no_more_memory_than_planned() {
        let open: OpenCutter = Arc::new(|index| Ok(TestInput::boxed(index, 100)));
        let half = AHEAD_BYTES_MAX / 2 - INPUT_BYTES;
        for (side_by_side, inputs) in [(2, 3), (4, 5)] {
            let mut cutter =
                ChainCutter::new(vec![Some(half); 20], side_by_side, Arc::clone(&open));
            for _ in 0..100 {
                cutter.next().unwrap();
                assert!(cutter.current.len() <= side_by_side);
                assert!(cutter.current.len() + cutter.ahead.len() <= inputs);
                while !cutter.ahead.iter().all(JoinHandle::is_finished) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}

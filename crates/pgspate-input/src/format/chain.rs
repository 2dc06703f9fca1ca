//! Cuts several inputs one after the other, like one input.

use super::{Chunk, Cutter};
use crate::Result;

/// Opens the cutter of the input with the given index.
pub type OpenCutter = Box<dyn FnMut(usize) -> Result<Box<dyn Cutter>> + Send>;

/// Cuts the inputs in order and numbers the chunks of all inputs consecutively.
pub struct ChainCutter {
    open: OpenCutter,
    input_count: usize,
    /// The index of the next input.
    next_input: usize,
    current: Option<Box<dyn Cutter>>,
    seq: u64,
}

impl ChainCutter {
    /// Returns a cutter over `input_count` inputs, which `open` opens.
    pub fn new(input_count: usize, open: OpenCutter) -> ChainCutter {
        ChainCutter { open, input_count, next_input: 0, current: None, seq: 0 }
    }
}

impl Cutter for ChainCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        loop {
            let Some(cutter) = &mut self.current else {
                if self.next_input == self.input_count {
                    return Ok(None);
                }
                self.current = Some((self.open)(self.next_input)?);
                self.next_input += 1;
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

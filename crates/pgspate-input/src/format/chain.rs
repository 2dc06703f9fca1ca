//! Several inputs, one after the other, as if they were one.

use super::{Chunk, Cutter};
use crate::Result;

/// Opens the cutter of an input when its turn comes.
pub type OpenCutter = Box<dyn FnMut(usize) -> Result<Box<dyn Cutter>> + Send>;

/// Cuts the inputs in their order and numbers the chunks through.
pub struct ChainCutter {
    open: OpenCutter,
    inputs: usize,
    /// The input after the current one.
    next_input: usize,
    current: Option<Box<dyn Cutter>>,
    seq: u64,
}

impl ChainCutter {
    /// A cutter over `inputs` inputs, which `open` opens by their index.
    pub fn new(inputs: usize, open: OpenCutter) -> ChainCutter {
        ChainCutter { open, inputs, next_input: 0, current: None, seq: 0 }
    }
}

impl Cutter for ChainCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        loop {
            let Some(cutter) = &mut self.current else {
                if self.next_input == self.inputs {
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

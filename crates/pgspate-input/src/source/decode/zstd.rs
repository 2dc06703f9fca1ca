//! Zstandard frames, one after the other, skippable ones among them.
//!
//! A frame's window may be at most 128 MiB, the library's own limit, which bounds the memory.

use zstd::stream::raw::{Decoder as Raw, InBuffer, Operation, OutBuffer};

use super::{Decoder, Fault, Step};
use crate::{Error, ErrorKind, Result};

pub(super) struct Zstd {
    raw: Raw<'static>,
    whole: bool,
}

impl Zstd {
    pub(super) fn new() -> Result<Zstd> {
        let raw = Raw::new().map_err(|e| {
            Error::new(ErrorKind::Source, "could not start zstd decoding").because(e)
        })?;
        Ok(Zstd { raw, whole: false })
    }
}

impl Decoder for Zstd {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        if self.whole && input.is_empty() {
            return Ok(Step { read: 0, written: 0 });
        }
        let mut input = InBuffer::around(input);
        let mut output = OutBuffer::around(output);
        match self.raw.run(&mut input, &mut output) {
            Ok(hint) => self.whole = hint == 0,
            Err(error) => return Err(Fault { read: input.pos(), why: error.to_string() }),
        }
        Ok(Step { read: input.pos(), written: output.pos() })
    }

    fn is_whole(&self) -> bool {
        self.whole
    }
}

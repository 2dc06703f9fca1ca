//! Decompresses Zstandard: any number of frames in a row, skippable frames included.
//!
//! Memory is bounded: the library refuses frames with a window above 128 MiB.

use zstd::stream::raw::{Decoder as Raw, InBuffer, Operation, OutBuffer};

use super::{DecompressFault, DecompressStep, Decompressor};
use crate::{Error, ErrorKind, Result};

pub(super) struct ZstdDecompressor {
    raw: Raw<'static>,
    is_complete: bool,
}

impl ZstdDecompressor {
    pub(super) fn new() -> Result<ZstdDecompressor> {
        let raw = Raw::new().map_err(|e| {
            Error::new(ErrorKind::Source, "could not start zstd decoding").because(e)
        })?;
        Ok(ZstdDecompressor { raw, is_complete: false })
    }
}

impl Decompressor for ZstdDecompressor {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecompressStep, DecompressFault> {
        if self.is_complete && input.is_empty() {
            return Ok(DecompressStep { read: 0, written: 0 });
        }
        let mut input = InBuffer::around(input);
        let mut output = OutBuffer::around(output);
        match self.raw.run(&mut input, &mut output) {
            Ok(hint) => self.is_complete = hint == 0,
            Err(error) => {
                return Err(DecompressFault { offset: input.pos(), why: error.to_string() });
            }
        }
        Ok(DecompressStep { read: input.pos(), written: output.pos() })
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

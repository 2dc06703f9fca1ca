//! Decompresses xz: any number of streams in a row, with the padding that the format allows between
//! them.
//!
//! Memory is bounded: a dictionary may need at most [`MEMORY_BYTES_MAX`]. `xz -9` needs 65 MiB.

use liblzma::stream::{Action, CONCATENATED, Error as LzmaError, Status, Stream};

use super::{DecompressFault, DecompressStep, Decompressor};
use crate::{Error, ErrorKind, Result};

/// Four times the memory that the strongest preset needs.
const MEMORY_BYTES_MAX: u64 = 256 << 20;

pub(super) struct XzDecompressor {
    raw: Stream,
    is_complete: bool,
}

impl XzDecompressor {
    pub(super) fn new() -> Result<XzDecompressor> {
        let raw = Stream::new_stream_decoder(MEMORY_BYTES_MAX, CONCATENATED)
            .map_err(|e| Error::new(ErrorKind::Source, "could not start xz decoding").because(e))?;
        Ok(XzDecompressor { raw, is_complete: false })
    }
}

impl Decompressor for XzDecompressor {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecompressStep, DecompressFault> {
        if self.is_complete {
            return Ok(DecompressStep { read: 0, written: 0 });
        }
        let action = if input.is_empty() { Action::Finish } else { Action::Run };
        let (read_before, written_before) = (self.raw.total_in(), self.raw.total_out());
        let status = self.raw.process(input, output, action);
        let read = (self.raw.total_in() - read_before) as usize;
        let written = (self.raw.total_out() - written_before) as usize;
        match status {
            Ok(Status::StreamEnd) => self.is_complete = true,
            Ok(_) => {}
            Err(error) => {
                let why = match error {
                    LzmaError::MemLimit => format!(
                        "the dictionary needs more than {} MiB of memory",
                        MEMORY_BYTES_MAX >> 20
                    ),
                    LzmaError::Format => "other bytes follow the end of the data".to_owned(),
                    LzmaError::Data => "a block or its checksum is not valid".to_owned(),
                    other => other.to_string(),
                };
                return Err(DecompressFault { offset: read, why });
            }
        }
        Ok(DecompressStep { read, written })
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

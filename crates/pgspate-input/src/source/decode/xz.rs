//! xz streams, one after the other, with the padding that the format allows between them.
//!
//! The dictionary may need at most [`MEMORY_BYTES_MAX`]; `xz -9` needs 65 MiB.

use liblzma::stream::{Action, CONCATENATED, Error as LzmaError, Status, Stream};

use super::{Decoder, Fault, Step};
use crate::{Error, ErrorKind, Result};

/// Four times what the strongest preset needs, and still a bound.
const MEMORY_BYTES_MAX: u64 = 256 << 20;

pub(super) struct Xz {
    raw: Stream,
    whole: bool,
}

impl Xz {
    pub(super) fn new() -> Result<Xz> {
        let raw = Stream::new_stream_decoder(MEMORY_BYTES_MAX, CONCATENATED)
            .map_err(|e| Error::new(ErrorKind::Source, "could not start xz decoding").because(e))?;
        Ok(Xz { raw, whole: false })
    }
}

impl Decoder for Xz {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        if self.whole {
            return Ok(Step { read: 0, written: 0 });
        }
        let action = if input.is_empty() { Action::Finish } else { Action::Run };
        let (read_before, written_before) = (self.raw.total_in(), self.raw.total_out());
        let status = self.raw.process(input, output, action);
        let read = (self.raw.total_in() - read_before) as usize;
        let written = (self.raw.total_out() - written_before) as usize;
        match status {
            Ok(Status::StreamEnd) => self.whole = true,
            Ok(_) => {}
            Err(error) => {
                let why = match error {
                    LzmaError::MemLimit => format!(
                        "its dictionary needs more than {} MiB of memory",
                        MEMORY_BYTES_MAX >> 20
                    ),
                    LzmaError::Format => "other bytes follow the end of the data".to_owned(),
                    LzmaError::Data => "a block or its checksum is not valid".to_owned(),
                    other => other.to_string(),
                };
                return Err(Fault { read, why });
            }
        }
        Ok(Step { read, written })
    }

    fn is_whole(&self) -> bool {
        self.whole
    }
}

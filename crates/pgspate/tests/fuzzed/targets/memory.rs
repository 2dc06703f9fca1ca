//! A file in memory.

use bytes::Bytes;
use pgspate::source::RangeReader;
use pgspate::{Error, ErrorKind, Result};

#[derive(Debug)]
pub(crate) struct FuzzMemory(pub(crate) Bytes);

impl RangeReader for FuzzMemory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, start: u64, len: usize) -> Result<Bytes> {
        let start = start as usize;
        match start.checked_add(len).filter(|end| *end <= self.0.len()) {
            Some(end) => Ok(self.0.slice(start..end)),
            None => Err(Error::new(ErrorKind::Source, "beyond the end")),
        }
    }
}

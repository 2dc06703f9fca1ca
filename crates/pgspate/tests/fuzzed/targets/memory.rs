//! A file in memory.

use bytes::Bytes;
use pgspate::source::Ranges;
use pgspate::{Error, Kind, Result};

#[derive(Debug)]
pub(crate) struct Memory(pub(crate) Bytes);

impl Ranges for Memory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, start: u64, len: usize) -> Result<Bytes> {
        let start = start as usize;
        match start.checked_add(len).filter(|end| *end <= self.0.len()) {
            Some(end) => Ok(self.0.slice(start..end)),
            None => Err(Error::new(Kind::Source, "beyond the end")),
        }
    }
}

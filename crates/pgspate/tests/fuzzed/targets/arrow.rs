//! Any bytes as an Arrow file and as an Arrow stream: no panic, no abort.

use std::io::Cursor;
use std::sync::Arc;

use bytes::Bytes;
use pgspate::format::arrow::{ArrowCutter, ArrowFile, ArrowStreamCutter};
use pgspate::format::{ChunkData, Cutter};
use pgspate::source::Ranges;
use pgspate::{Error, Kind, Result};

/// A column of NULLs may have any number of rows, and so of chunks.
const CHUNKS_MAX: usize = 4;

#[derive(Debug)]
struct Memory(Bytes);

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

pub(crate) fn run(data: &[u8]) {
    drop(file(data));
    drop(stream(data));
}

fn file(data: &[u8]) -> Result<()> {
    let ranges = Arc::new(Memory(Bytes::copy_from_slice(data)));
    read(&mut ArrowCutter::new(Arc::new(ArrowFile::open("in", ranges)?), 0))
}

fn stream(data: &[u8]) -> Result<()> {
    read(&mut ArrowStreamCutter::open("in", Box::new(Cursor::new(data.to_vec())), 0)?)
}

fn read(cutter: &mut dyn Cutter) -> Result<()> {
    for _ in 0..CHUNKS_MAX {
        let Some(chunk) = cutter.next()? else { return Ok(()) };
        let ChunkData::Rows(source) = chunk.data else { panic!("rows") };
        let mut rows = 0;
        for batch in source.open()? {
            rows += batch?.num_rows() as u64;
        }
        assert_eq!(rows, source.rows());
    }
    Ok(())
}

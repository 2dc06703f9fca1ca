//! Any bytes as an Arrow file and as an Arrow stream: no panic, no abort.

/// Each target is a program of its own, too, which brings all it uses.
#[allow(clippy::duplicate_mod)]
#[path = "memory.rs"]
mod memory;

use std::io::Cursor;
use std::sync::Arc;

use bytes::Bytes;
use pgspate::Result;
use pgspate::format::arrow::{ArrowCutter, ArrowFile, ArrowStreamCutter};
use pgspate::format::{ChunkData, Cutter};

use memory::FuzzMemory;

/// A column of NULLs may have any number of rows, and so of chunks.
const CHUNKS_MAX: usize = 4;

pub(crate) fn run(data: &[u8]) {
    drop(file(data));
    drop(stream(data));
}

fn file(data: &[u8]) -> Result<()> {
    let ranges = Arc::new(FuzzMemory(Bytes::copy_from_slice(data)));
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

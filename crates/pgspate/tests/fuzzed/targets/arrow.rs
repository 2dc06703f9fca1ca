//! Any bytes as an Arrow file and as an Arrow stream: no panic, no abort, and each chunk has as
//! many rows as it states.

/// Each target is also compiled as a program of its own (`fuzz/`), so each target includes this
/// module itself.
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

/// The most chunks to read. A column of NULLs takes no bytes, so an input may state any number of
/// rows, and so any number of chunks.
const CHUNKS_MAX: usize = 4;

pub(crate) fn run(data: &[u8]) {
    drop(read_file(data));
    drop(read_stream(data));
}

fn read_file(data: &[u8]) -> Result<()> {
    let ranges = Arc::new(FuzzMemory(Bytes::copy_from_slice(data)));
    read_chunks(&mut ArrowCutter::new(Arc::new(ArrowFile::open("in", ranges)?), 0))
}

fn read_stream(data: &[u8]) -> Result<()> {
    read_chunks(&mut ArrowStreamCutter::open("in", Box::new(Cursor::new(data.to_vec())), 0)?)
}

fn read_chunks(cutter: &mut dyn Cutter) -> Result<()> {
    for _ in 0..CHUNKS_MAX {
        let Some(chunk) = cutter.next()? else { return Ok(()) };
        let ChunkData::Rows(source) = chunk.data else { panic!("a chunk of Arrow must hold rows") };
        let mut rows = 0;
        for batch in source.open()? {
            rows += batch?.num_rows() as u64;
        }
        assert_eq!(rows, source.rows());
    }
    Ok(())
}

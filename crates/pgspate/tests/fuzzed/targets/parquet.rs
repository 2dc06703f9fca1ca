//! Any bytes as a Parquet file: no panic, no abort, and each chunk has as many rows as it states.

/// Each target is also compiled as a program of its own (`fuzz/`), so each target includes this
/// module itself.
#[allow(clippy::duplicate_mod)]
#[path = "memory.rs"]
mod memory;

use std::sync::Arc;

use bytes::Bytes;
use pgspate::Result;
use pgspate::format::parquet::{ParquetCutter, ParquetFile};
use pgspate::format::{ChunkData, Cutter};

use memory::FuzzMemory;

/// The most chunks to read. A file may state any number of rows, and so any number of chunks.
const CHUNKS_MAX: usize = 4;

pub(crate) fn run(data: &[u8]) {
    drop(read(data));
}

fn read(data: &[u8]) -> Result<()> {
    let ranges = Arc::new(FuzzMemory(Bytes::copy_from_slice(data)));
    let file = Arc::new(ParquetFile::open("in", ranges)?);
    let all = file.rows();
    let mut cutter = ParquetCutter::new(file, 0);
    for _ in 0..CHUNKS_MAX {
        let Some(chunk) = cutter.next()? else { return Ok(()) };
        let ChunkData::Rows(source) = chunk.data else {
            panic!("a chunk of Parquet must hold rows")
        };
        assert!(chunk.first_row + source.rows() <= all);
        let mut rows = 0;
        for batch in source.open()? {
            rows += batch?.num_rows() as u64;
        }
        assert_eq!(rows, source.rows());
    }
    Ok(())
}

//! Cuts record batches that arrive in sequence: from a program, or decoded from a stream.
//!
//! Chunks hold their rows, because the rows cannot be read again. A chunk ends at a limit of rows
//! or bytes, independent of time and lanes. Small batches share a chunk.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};

use super::guessed_type::GuessedType;
use super::{BatchSource, Chunk, Cutter};
use crate::Result;
use crate::encode::arrow::schema_types;
use crate::types::PgType;

/// The approximate maximum size of a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchChunkLimits {
    rows: u64,
    bytes: u64,
}

/// The limits for files.
pub(super) const FILE_CHUNKS: BatchChunkLimits =
    BatchChunkLimits { rows: 131_072, bytes: 16 << 20 };
/// The limits for programs, which generate rows while other rows are written. With small chunks
/// lanes start early and finish at about the same time.
const PROGRAM_CHUNKS: BatchChunkLimits = BatchChunkLimits { rows: 32_768, bytes: 4 << 20 };

/// An iterator over record batches, in their order.
pub type BatchIter = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// The column of a table that gets the values of a column of batches.
#[derive(Debug, Clone)]
pub struct BatchTarget {
    /// The column's type.
    pub ty: PgType,
    /// The column's type, if it was guessed from the first rows.
    pub guessed_type: Option<GuessedType>,
}

/// Rows of a program that uses this library, as record batches.
pub trait ProgramBatches: Send + Sync + fmt::Debug {
    /// Returns the name that messages use for the rows.
    fn name(&self) -> &str;

    /// Returns the columns of every batch.
    fn schema(&self) -> SchemaRef;

    /// Returns whether the columns have names of table columns. If not, they fill the table's
    /// columns in order.
    fn has_names(&self) -> bool {
        true
    }

    /// Returns the name and SQL type of each column of a table that pgspate creates for the rows.
    /// Decimals are `numeric` without precision. Libraries infer the precision from the values, and
    /// the values of later rows may have more digits.
    fn types(&self) -> Vec<(String, String)> {
        let mut types = schema_types(&self.schema());
        for ((_, ty), field) in types.iter_mut().zip(self.schema().fields()) {
            if field.data_type().is_decimal() {
                "numeric".clone_into(ty);
            }
        }
        types
    }

    /// Returns the approximate number of bytes of the rows, if it is known.
    fn bytes(&self) -> Option<u64>;

    /// Returns when the program began to read the rows, if it did so before the call of pgspate.
    fn began(&self) -> Option<Instant> {
        None
    }

    /// Returns whether the rows can be read only once.
    fn is_stream(&self) -> bool;

    /// Reads batches of about this number of bytes, or all of them if there are fewer. They are the
    /// first batches of [`ProgramBatches::open`]. Batches that depend on the table's types are not
    /// read. May block.
    ///
    /// # Errors
    /// An error if the rows cannot be read.
    fn read_ahead(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Returns the batches from the first one on. For each column, `targets` has its table column,
    /// or `None` if the column is not loaded. May be called on any thread, and may
    /// block.
    ///
    /// # Errors
    /// An error if the rows cannot be read, or cannot be read again.
    fn open(&self, targets: &[Option<BatchTarget>]) -> Result<BatchIter>;
}

/// Cuts a sequence of batches into chunks.
pub struct BatchesCutter {
    batches: BatchIter,
    limits: BatchChunkLimits,
    /// A batch that was read but belongs to the next chunk, and its size in bytes.
    rest: Option<(RecordBatch, u64)>,
    is_done: bool,
    input: usize,
    first_row: u64,
    seq: u64,
}

impl BatchesCutter {
    /// Returns a cutter of `batches`, which are input number `input` of the load. Chunks are
    /// numbered from 0.
    pub fn new(batches: BatchIter, input: usize) -> BatchesCutter {
        let limits = FILE_CHUNKS;
        BatchesCutter { batches, limits, rest: None, is_done: false, input, first_row: 0, seq: 0 }
    }

    /// Sets the smaller chunk limits for the rows of a program.
    pub fn of_program(self) -> BatchesCutter {
        BatchesCutter { limits: PROGRAM_CHUNKS, ..self }
    }

    fn read(&mut self) -> Result<Option<(RecordBatch, u64)>> {
        if self.rest.is_some() || self.is_done {
            return Ok(self.rest.take());
        }
        let batch = self.batches.next().transpose();
        self.is_done = !matches!(batch, Ok(Some(_)));
        Ok(batch?.map(|batch| {
            let bytes = bytes_of(&batch);
            (batch, bytes)
        }))
    }
}

impl Cutter for BatchesCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        let mut held = HeldBatches { batches: Vec::new(), rows: 0, bytes: 0 };
        while let Some((batch, bytes)) = self.read()? {
            let rows = batch.num_rows() as u64;
            if rows == 0 {
                continue;
            }
            if self.limits.are_exceeded(held.rows + rows, held.bytes + bytes)
                && !held.batches.is_empty()
            {
                self.rest = Some((batch, bytes));
                break;
            }
            // Slices share the buffers of a large batch. Cutting the batch costs no memory and lets
            // several lanes work on it.
            let part = rows.div_ceil(self.limits.chunk_count(rows, bytes));
            let part_bytes = (u128::from(bytes) * u128::from(part) / u128::from(rows)) as u64;
            held.batches.push(batch.slice(0, part as usize));
            held.rows += part;
            held.bytes += part_bytes;
            if part < rows {
                let rest = batch.slice(part as usize, (rows - part) as usize);
                self.rest = Some((rest, bytes - part_bytes));
                break;
            }
        }
        if held.batches.is_empty() {
            return Ok(None);
        }
        let (seq, first_row, rows) = (self.seq, self.first_row, held.rows);
        self.seq += 1;
        self.first_row += rows;
        Ok(Some(Chunk::of_rows(seq, self.input, first_row, Arc::new(held))))
    }
}

impl BatchChunkLimits {
    /// Returns the number of chunks into which a batch is cut.
    pub(super) fn chunk_count(self, rows: u64, bytes: u64) -> u64 {
        rows.div_ceil(self.rows).max(bytes.div_ceil(self.bytes)).clamp(1, rows.max(1))
    }

    /// Returns whether a chunk with `rows` rows and `bytes` bytes is too large.
    pub(super) fn are_exceeded(self, rows: u64, bytes: u64) -> bool {
        rows > self.rows || bytes > self.bytes
    }
}

/// Returns the size of a batch's rows in bytes. Whole buffers do not count, because other batches
/// may share them.
pub fn bytes_of(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|array| column_bytes(array) as u64).sum()
}

fn column_bytes(array: &ArrayRef) -> usize {
    let views = array.len() * size_of::<u128>();
    match array.data_type() {
        DataType::Utf8View => views + array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => views + array.as_binary_view().total_buffer_bytes_used(),
        _ => {
            let slice_bytes = array.to_data().get_slice_memory_size();
            slice_bytes.unwrap_or_else(|_| array.get_array_memory_size())
        }
    }
}

/// The record batches of a chunk, in memory.
#[derive(Debug)]
struct HeldBatches {
    batches: Vec<RecordBatch>,
    rows: u64,
    bytes: u64,
}

impl BatchSource for HeldBatches {
    fn open(&self) -> Result<BatchIter> {
        Ok(Box::new(self.batches.clone().into_iter().map(Ok)))
    }

    fn rows(&self) -> u64 {
        self.rows
    }

    fn stored_bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Int64Array;

    use super::*;
    use crate::format::ChunkData;

    fn chunks(batches: Vec<RecordBatch>) -> Vec<(u64, u64)> {
        let mut cutter = BatchesCutter::new(Box::new(batches.into_iter().map(Ok)), 0);
        let mut chunks = Vec::new();
        while let Some(chunk) = cutter.next().unwrap() {
            let ChunkData::Rows(rows) = &chunk.data else { panic!("the chunk must hold rows") };
            assert_eq!(chunk.seq, chunks.len() as u64);
            let held: usize = rows.open().unwrap().map(|batch| batch.unwrap().num_rows()).sum();
            assert_eq!(held as u64, rows.rows());
            chunks.push((chunk.first_row, rows.rows()));
        }
        chunks
    }

    fn batch(rows: i64) -> RecordBatch {
        let values: Int64Array = (0..rows).collect();
        RecordBatch::try_from_iter([("a", Arc::new(values) as _)]).unwrap()
    }

    #[test]
    fn small_batches_share_a_chunk_and_large_batches_are_cut() {
        assert_eq!(chunks(vec![]), []);
        assert_eq!(chunks(vec![batch(0), batch(3), batch(4)]), [(0, 7)]);
        let half = 131_072 / 2 + 1;
        assert_eq!(
            chunks(vec![batch(5), batch(200_000)]),
            [(0, 5), (5, 100_000), (100_005, 100_000)]
        );
        assert_eq!(
            chunks(vec![batch(half), batch(half)]),
            [(0, half as u64), (half as u64, half as u64)]
        );
    }

    #[test]
    fn a_slice_counts_only_the_bytes_of_its_own_rows() {
        let large = batch(4_000_000);
        let parts = (0..400).map(|index| large.slice(index * 100, 100)).collect();
        assert_eq!(chunks(parts), [(0, 40_000)]);
    }
}

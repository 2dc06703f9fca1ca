//! Record batches that come one after the other: handed over by a program, or decoded from a
//! stream.
//!
//! Chunks hold their rows, as nothing could read them again. A chunk ends where rows or bytes
//! reach their limit, whoever asks for it and whenever; small batches share one.

use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};

use super::{BatchSource, Chunk, Cutter};
use crate::Result;
use crate::encode::arrow::schema_types;
use crate::types::PgType;

/// How large a chunk is, at most, or about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    rows: u64,
    bytes: u64,
}

/// Of files.
pub(super) const FILES: Limits = Limits { rows: 131_072, bytes: 16 << 20 };
/// Of programs, which make rows while others are written: a lane begins as soon as there is a
/// chunk, and the last ones are done at about the same time.
const PROGRAMS: Limits = Limits { rows: 32_768, bytes: 4 << 20 };

/// Batches in their order, each once.
pub type BatchIter = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// Rows of a program that uses this library, as record batches.
pub trait Batches: Send + Sync + fmt::Debug {
    /// What messages call them.
    fn name(&self) -> &str;

    /// The columns of every batch.
    fn schema(&self) -> SchemaRef;

    /// Whether the columns' names are those of a table's columns. If not, they go to the table's
    /// columns in their order.
    fn has_names(&self) -> bool {
        true
    }

    /// Name and SQL type of each column that a table made for them has.
    fn types(&self) -> Vec<(String, String)> {
        schema_types(&self.schema())
    }

    /// About how many bytes they are, where that is known.
    fn bytes(&self) -> Option<u64>;

    /// Whether they can be opened only once.
    fn is_stream(&self) -> bool;

    /// The batches from the first one on. `types` has, for each column, the type of the table's
    /// column that it goes to; `None` for one that goes nowhere. Called on any thread, and may
    /// block.
    ///
    /// # Errors
    /// They cannot be had (again).
    fn open(&self, types: &[Option<PgType>]) -> Result<BatchIter>;
}

/// Cuts batches into chunks.
pub struct BatchesCutter {
    batches: BatchIter,
    limits: Limits,
    /// What has been read but belongs to the next chunk, and its bytes.
    rest: Option<(RecordBatch, u64)>,
    is_done: bool,
    input: usize,
    first_row: u64,
    seq: u64,
}

impl BatchesCutter {
    /// A cutter of `batches`, the load's input number `input`. Chunks are numbered from 0.
    pub fn new(batches: BatchIter, input: usize) -> BatchesCutter {
        let limits = FILES;
        BatchesCutter { batches, limits, rest: None, is_done: false, input, first_row: 0, seq: 0 }
    }

    /// The same, in the smaller chunks of what a program makes.
    pub fn of_program(self) -> BatchesCutter {
        BatchesCutter { limits: PROGRAMS, ..self }
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
        let mut held = Held { batches: Vec::new(), rows: 0, bytes: 0 };
        while let Some((batch, bytes)) = self.read()? {
            let rows = batch.num_rows() as u64;
            if rows == 0 {
                continue;
            }
            if self.limits.are_passed(held.rows + rows, held.bytes + bytes)
                && !held.batches.is_empty()
            {
                self.rest = Some((batch, bytes));
                break;
            }
            // The buffers of a large batch live on in each of its slices: to cut it costs no
            // memory, and spreads the work.
            let part = rows.div_ceil(self.limits.pieces(rows, bytes));
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

impl Limits {
    /// Into how many chunks a batch is cut.
    pub(super) fn pieces(self, rows: u64, bytes: u64) -> u64 {
        rows.div_ceil(self.rows).max(bytes.div_ceil(self.bytes)).clamp(1, rows.max(1))
    }

    /// Whether a chunk with so many rows and bytes has no room for more.
    pub(super) fn are_passed(self, rows: u64, bytes: u64) -> bool {
        rows > self.rows || bytes > self.bytes
    }
}

/// The bytes of a batch's rows; not of the buffers, of which other batches may be parts as well.
pub fn bytes_of(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|array| column_bytes(array) as u64).sum()
}

fn column_bytes(array: &ArrayRef) -> usize {
    let views = array.len() * size_of::<u128>();
    match array.data_type() {
        DataType::Utf8View => views + array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => views + array.as_binary_view().total_buffer_bytes_used(),
        _ => {
            let own = array.to_data().get_slice_memory_size();
            own.unwrap_or_else(|_| array.get_array_memory_size())
        }
    }
}

/// Record batches in memory.
#[derive(Debug)]
struct Held {
    batches: Vec<RecordBatch>,
    rows: u64,
    bytes: u64,
}

impl BatchSource for Held {
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
            let ChunkData::Rows(rows) = &chunk.data else { panic!("not rows") };
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
    fn small_batches_share_a_chunk_and_large_ones_are_cut() {
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
    fn slices_of_a_large_batch_are_as_large_as_their_own_rows() {
        let large = batch(4_000_000);
        let parts = (0..400).map(|nth| large.slice(nth * 100, 100)).collect();
        assert_eq!(chunks(parts), [(0, 40_000)]);
    }
}

//! Formats: where records begin and end, and what their fields are called.
//!
//! A [`Cutter`] turns input into [`Chunk`]s by position alone, so that the same input gives the
//! same chunks; a [`ChunkEncoder`] turns chunks into COPY bytes, one encoder per lane.

pub mod arrow;
pub mod batches;
mod chain;
mod contain;
pub mod delimited;
mod digest;
pub mod infer;
pub mod json;
pub mod memory;
pub mod nearest;
pub mod parquet;
pub mod sniff;
mod stated;

use std::sync::Arc;

pub use chain::{ChainCutter, OpenCutter};
pub use contain::silence_contained_panics;
pub use digest::Contents;
pub(crate) use digest::of_stored;

use crate::encode::Encoded;
use crate::{Error, ErrorKind, InputPlace, Result};

/// Whole records of one input: the unit of work and of retry.
#[derive(Debug)]
pub struct Chunk {
    /// Ordinal over the whole load, from 0.
    pub seq: u64,
    /// Which input it is from: an index into the load's inputs.
    pub input: usize,
    /// Offset of its first byte in the decompressed input (0 for formats cut by rows).
    pub byte: u64,
    /// Line of its first record, from 1 (0 for formats without lines).
    pub line: u64,
    /// Row ordinal of its first record within the input, from 0, where the format knows it.
    pub first_row: u64,
    /// The digest of its content, where the ledger is to know it.
    pub digest: Option<u128>,
    /// The records.
    pub data: ChunkData,
}

impl Chunk {
    /// Rows of a columnar file, or of a program.
    fn of_rows(seq: u64, input: usize, first_row: u64, rows: Arc<dyn BatchSource>) -> Chunk {
        let data = ChunkData::Rows(rows);
        Chunk { seq, input, byte: 0, line: 0, first_row, digest: None, data }
    }

    /// Where it begins in its input, by which it is known again when it is cut again.
    pub fn position(&self) -> u64 {
        match &self.data {
            ChunkData::Rows(_) => self.first_row,
            _ => self.byte,
        }
    }

    /// About how many bytes of decompressed (or, of a columnar file, stored) input it covers.
    pub fn stored_bytes(&self) -> u64 {
        match &self.data {
            ChunkData::Delimited(bytes, _) | ChunkData::Bytes(bytes) => bytes.len() as u64,
            ChunkData::Rows(rows) => rows.stored_bytes(),
        }
    }
}

/// The records of a chunk, as its format carries them.
#[derive(Debug)]
pub enum ChunkData {
    /// Bytes of whole lines, and how they are laid out.
    Delimited(Vec<u8>, Arc<delimited::Layout>),
    /// Bytes of whole JSON values.
    Bytes(Vec<u8>),
    /// Rows of a columnar file, read again from it each time they are encoded.
    Rows(Arc<dyn BatchSource>),
}

/// Yields the record batches of one chunk, from the start, as often as asked.
pub trait BatchSource: Send + Sync + std::fmt::Debug {
    /// Opens the chunk's batches.
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<arrow_array::RecordBatch>> + Send>>;
    /// How many rows it holds.
    fn rows(&self) -> u64;
    /// About how many stored bytes it covers, for progress.
    fn stored_bytes(&self) -> u64;
    /// The digest of the stored bytes that begin with it: those of a part that several chunks
    /// share count for the first of them. `None` where nothing is stored, or need not be read.
    ///
    /// # Errors
    /// When they cannot be read.
    fn content_digest(&self) -> Result<Option<u128>> {
        Ok(None)
    }
}

/// Cuts inputs into chunks. Lanes call it in turn, behind a lock, so it does no more than it must.
pub trait Cutter: Send {
    /// The next chunk, or `None` after the last one.
    fn next(&mut self) -> Result<Option<Chunk>>;
}

/// How the rows of a format are written.
#[derive(Clone, Copy)]
pub enum RowForm {
    /// Lines of fields.
    Delimited,
    /// Records whose keys name columns.
    Keyed(&'static KeyedFormat),
    /// Record batches.
    Columnar,
}

/// What reads a format of records whose keys name columns.
pub struct KeyedFormat {
    /// Returns the columns for the records of a sample, which may end within one.
    pub columns: fn(&[u8]) -> Vec<infer::NewColumn>,
    /// Makes a cutter of an input, into chunks of about so many bytes.
    pub cutter: fn(json::JsonInput, usize) -> Box<dyn Cutter>,
    /// Makes an encoder for one lane.
    pub encoder: fn(json::JsonOptions) -> Box<dyn ChunkEncoder>,
}

/// Whether rows become binary where that is exact, or all go to the server as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Binary, and text for the rows that the encoder leaves to the server.
    Binary,
    /// COPY text for every row, in input order: the server judges each value.
    Text,
}

impl Mode {
    /// COPY's name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Binary => "binary",
            Mode::Text => "text",
        }
    }
}

/// A record of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where it begins: line and byte, or row.
    pub place: InputPlace,
    /// Its bytes as they stand in the input, with a line end. Of a columnar file, a JSON object
    /// and a newline.
    pub bytes: Vec<u8>,
}

/// Turns chunks into COPY bytes. One per lane; keeps its scratch memory between chunks.
pub trait ChunkEncoder: Send {
    /// Starts over at the first record of `chunk`.
    fn begin(&mut self, chunk: Arc<Chunk>, mode: Mode) -> Result<()>;

    /// Appends further rows to `out` until it holds about `piece` bytes. False when the chunk is
    /// at its end.
    ///
    /// # Errors
    /// The row after those already appended is none: [`is_of_row`] is true then, the row counts
    /// as one, and the next call goes on with the record after it. A record that does not end,
    /// such as one with an open quote, is all that is left of the chunk. Any other error is about
    /// the chunk, of which no more rows must be asked for.
    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool>;

    /// Where row `row` (ordinal within the chunk) stands in the input.
    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace;

    /// The records of rows, whose ordinals within the chunk ascend, refused ones included. Put
    /// together behind what the first input begins with, they can be loaded again.
    ///
    /// # Errors
    /// The chunk cannot be read once more, or does not have such a row.
    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<Record>>;
}

/// Whether an encoder's error is about one row, so that the chunk's other rows can be had: it has
/// an SQLSTATE of class 22, as the server's refusals of what a row says have.
pub fn is_of_row(error: &Error) -> bool {
    error.sqlstate().is_some_and(|code| code.code().starts_with("22"))
}

/// For a row that a chunk does not have.
fn no_such_row(row: u64) -> Error {
    Error::new(ErrorKind::Bug, format!("the chunk has no row {row}"))
}

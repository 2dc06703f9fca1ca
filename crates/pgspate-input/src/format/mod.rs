//! Formats: find the records of an input and the names of their fields.
//!
//! A [`Cutter`] cuts an input into [`Chunk`]s by position alone, so that the same input always
//! gives the same chunks. A [`ChunkEncoder`] encodes chunks into the bytes of COPY. Each lane has
//! an encoder of its own.

pub mod arrow;
pub mod batches;
mod chain;
pub mod constants;
mod contained_panic;
mod date_class;
pub mod delimited;
mod digest;
pub mod guessed_type;
pub mod infer;
pub mod json;
pub mod keyed;
pub mod memory;
mod number_class;
pub mod parquet;
pub mod sniff;
mod stated_size;

use std::sync::Arc;

use tokio_postgres::error::SqlState;

pub use chain::{ChainCutter, OpenCutter};
pub use contained_panic::silence_contained_panics;
pub use digest::ContentDigests;
pub(crate) use digest::{digest_of_stored, schema_seed};

use crate::encode::Encoded;
use crate::encode::date_format::DateFormat;
use crate::{Error, ErrorKind, InputPlace, Result};

/// Whole records of one input: the unit of work and of retry.
#[derive(Debug)]
pub struct Chunk {
    /// The chunk's number within the load. Numbers ascend with the inputs, and within an input. See
    /// [`Chunk::of_input`].
    pub seq: u64,
    /// The chunk's input: an index into the load's inputs.
    pub input: usize,
    /// The offset of the first byte in the decompressed input (0 for formats cut by rows).
    pub byte: u64,
    /// The line of the first record, from 1 (0 for formats without lines).
    pub line: u64,
    /// The row number of the first record within the input, from 0, if the format knows it.
    pub first_row: u64,
    /// The digest of the content, if the ledger stores it.
    pub digest: Option<u128>,
    /// The records.
    pub data: ChunkData,
}

/// Bits of a chunk's number for its place in its input. The bits above have the input's index.
const CHUNK_BITS: u32 = 40;

impl Chunk {
    /// Returns a chunk of rows of a columnar file or a program.
    fn of_rows(seq: u64, input: usize, first_row: u64, rows: Arc<dyn BatchSource>) -> Chunk {
        let data = ChunkData::Rows(rows);
        Chunk { seq, input, byte: 0, line: 0, first_row, digest: None, data }
    }

    /// Returns the chunk of the input with this index. `self.seq` is the chunk's number within the
    /// input, from 0, and becomes the number within the load: the first chunk of input `index` has
    /// `index` times 2^40. So a number depends on no other input.
    fn of_input(self, index: usize) -> Chunk {
        Chunk { seq: (index as u64) << CHUNK_BITS | self.seq, input: index, ..self }
    }

    /// Returns the index of the input that has a chunk of this number.
    pub fn input_of(seq: u64) -> usize {
        (seq >> CHUNK_BITS) as usize
    }

    /// Returns the chunk's number within its input, from 0.
    pub fn seq_in_input(&self) -> u64 {
        self.seq & ((1 << CHUNK_BITS) - 1)
    }

    /// Returns where the chunk begins in its input. The position identifies the chunk when the
    /// input is cut again.
    pub fn position(&self) -> u64 {
        match &self.data {
            ChunkData::Rows(_) => self.first_row,
            _ => self.byte,
        }
    }

    /// Returns the approximate number of input bytes of the chunk: decompressed bytes, or stored
    /// bytes of a columnar file.
    pub fn stored_bytes(&self) -> u64 {
        match &self.data {
            ChunkData::Delimited(bytes, _) | ChunkData::Bytes(bytes) => bytes.len() as u64,
            ChunkData::Rows(rows) => rows.stored_bytes(),
        }
    }
}

/// The records of a chunk, in the form of the format.
#[derive(Debug)]
pub enum ChunkData {
    /// The bytes of whole lines, and their layout.
    Delimited(Vec<u8>, Arc<delimited::RecordLayout>),
    /// The bytes of whole JSON values.
    Bytes(Vec<u8>),
    /// Rows of a columnar file, which are read from the file each time they are encoded, or rows of
    /// a program.
    Rows(Arc<dyn BatchSource>),
}

/// The rows of one chunk as record batches, which can be read any number of times.
pub trait BatchSource: Send + Sync + std::fmt::Debug {
    /// Returns an iterator over the chunk's batches.
    ///
    /// # Errors
    /// An error if the batches cannot be read.
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<arrow_array::RecordBatch>> + Send>>;
    /// Returns the number of rows.
    fn rows(&self) -> u64;
    /// Returns the approximate number of stored bytes, for the progress line.
    fn stored_bytes(&self) -> u64;
    /// Returns the digest of the chunk's stored bytes and of the columns. If several chunks share a
    /// part of the file, the part belongs to the first chunk. Returns `None` if no bytes are
    /// stored, or their digest is not needed.
    ///
    /// # Errors
    /// [`ErrorKind::Source`] if the stored bytes cannot be read.
    fn content_digest(&self) -> Result<Option<u128>> {
        Ok(None)
    }
}

/// Cuts inputs into chunks. All lanes share a cutter behind a lock, so `next` must be fast.
pub trait Cutter: Send {
    /// Returns the next chunk, or `None` after the last chunk.
    ///
    /// # Errors
    /// An error if the input cannot be read or cut.
    fn next(&mut self) -> Result<Option<Chunk>>;
}

/// The form in which a format writes rows.
#[derive(Clone, Copy)]
pub enum RowForm {
    /// Lines of fields.
    Delimited,
    /// Records whose keys name columns.
    Keyed(&'static keyed::KeyedFormat),
    /// Record batches.
    Columnar,
}

/// Whether rows are sent in binary where binary is exact, or all rows are sent as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeMode {
    /// Binary. Rows that the encoder cannot encode exactly are sent as text.
    Binary,
    /// COPY text for every row, in input order. The server converts each value.
    Text,
}

impl EncodeMode {
    /// Returns the name of the COPY format.
    pub fn name(self) -> &'static str {
        match self {
            EncodeMode::Binary => "binary",
            EncodeMode::Text => "text",
        }
    }
}

/// A record of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRecord {
    /// Where the record begins: line and byte, or row.
    pub place: InputPlace,
    /// The record's bytes in the input, with a line end. For a columnar file, a JSON object and a
    /// newline.
    pub bytes: Vec<u8>,
}

/// Encodes chunks into the bytes of COPY. Each lane has one encoder, which keeps its scratch memory
/// between chunks.
pub trait ChunkEncoder: Send {
    /// Starts at the first record of `chunk`.
    ///
    /// # Errors
    /// An error if the chunk cannot be read or is of another format.
    fn begin(&mut self, chunk: Arc<Chunk>, mode: EncodeMode) -> Result<()>;

    /// Appends about `piece` bytes of rows to `out`, whatever it has already, and at least one row.
    /// Returns false at the end of the chunk.
    ///
    /// # Errors
    /// If the next record cannot become a row, [`is_row_error`] is true for the error. This record
    /// counts as a row, and the next call continues with the following record. A record without an
    /// end, such as a record with an open quote, is the whole rest of the chunk. Any other error
    /// concerns the whole chunk, and `fill` must not be called again.
    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool>;

    /// Returns the place in the input of row number `row` of the chunk.
    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace;

    /// Returns the records of rows, refused rows included. `rows` are ascending row numbers within
    /// the chunk. Written to a file after the header of the first input, the records can be loaded
    /// again.
    ///
    /// # Errors
    /// An error if the chunk cannot be read again or does not have one of the rows.
    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<InputRecord>>;
}

/// Returns whether an encoder's error concerns one row, so that the chunk's other rows can still be
/// encoded. Such errors have an SQLSTATE of class 22, like the server's errors about values.
pub fn is_row_error(error: &Error) -> bool {
    error.sqlstate().is_some_and(|code| code.code().starts_with("22"))
}

/// The most characters of a value in a message.
const SHOWN_CHARS_MAX: usize = 64;

/// Returns the first characters of a text, as messages show them.
fn first_chars(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// Returns the error for a value that does not have the format of its column's dates.
fn date_format_error(value: &[u8], format: Option<&DateFormat>) -> Error {
    let shown = first_chars(&String::from_utf8_lossy(value));
    let pattern = format.map_or("", DateFormat::pattern);
    let message = format!("\"{shown}\" does not have the date format \"{pattern}\"");
    Error::new(ErrorKind::Type, message)
        .with_sqlstate(SqlState::INVALID_DATETIME_FORMAT)
        .hint("Give a column another format with `--date-format COLUMN=FORMAT`.")
}

/// Returns the error for a row that a chunk does not have.
fn no_such_row_error(row: u64) -> Error {
    Error::new(ErrorKind::Bug, format!("the chunk has no row {row}"))
}

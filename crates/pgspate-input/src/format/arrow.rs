//! The format Arrow IPC: files, read with random access, and streams, read in sequence.
//!
//! A record batch is the smallest unit that can be decoded. Small batches share a chunk. A large
//! batch is cut into several chunks, which share the decoded batch.

mod message;
mod stream;

use std::fmt;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, MetadataVersion};
use arrow_schema::{ArrowError, SchemaRef};

use self::message::{BATCH_BYTES_MAX, check_body, parse_description};
use self::stream::ArrowStream;
use super::contained_panic::catch_panic;
use super::memory::{BatchesCutter, FILE_CHUNKS};
use super::stated_size::check_memory;
use super::{BatchSource, Chunk, Cutter, digest_of_stored, schema_seed};
use crate::source::RangeReader;
use crate::{Error, ErrorKind, InputPlace, Result};

/// The largest footer or description of a message. A larger footer or description counts as damage.
const DESCRIPTION_BYTES_MAX: u64 = 256 << 20;
const MAGIC: &[u8; 6] = b"ARROW1";

/// An Arrow IPC file whose footer and dictionaries have been read.
pub struct ArrowFile {
    name: String,
    ranges: Arc<dyn RangeReader>,
    schema: SchemaRef,
    decoder: FileDecoder,
    blocks: Vec<Block>,
    /// The most recently decoded block that is cut into several chunks.
    recent: Mutex<Option<(usize, RecordBatch)>>,
}

impl fmt::Debug for ArrowFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ArrowFile {
    /// Reads the footer and the dictionaries of a file. Errors show `name` as the file's name.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the file is not an Arrow file, is truncated, is damaged, or uses an
    /// unsupported feature.
    pub fn open(name: &str, ranges: Arc<dyn RangeReader>) -> Result<ArrowFile> {
        let len = ranges.len();
        if len < 20 || ranges.read(0, 6)?[..] != MAGIC[..] {
            return Err(Error::new(ErrorKind::Format, "not an Arrow file")
                .at(place(name))
                .hint("Name the format of the file with `--format`."));
        }
        let tail = ranges.read(len - 10, 10)?;
        let tail: [u8; 10] = tail[..].try_into().map_err(|_| damaged_error(name))?;
        let footer_len = read_footer_length(tail).map_err(|_| truncated_error(name))? as u64;
        if footer_len > (len - 20).min(DESCRIPTION_BYTES_MAX) {
            return Err(damaged_error(name)
                .because(format!("the footer states {footer_len} bytes, but the file has {len}")));
        }
        let footer = ranges.read(len - 10 - footer_len, footer_len as usize)?;
        let parts = run_decoder(name, || parse_footer(&footer))?;
        let mut decoder = FileDecoder::new(parts.schema.clone(), parts.version);
        for block in &parts.dictionaries {
            let data = read_block(name, ranges.as_ref(), block)?;
            run_decoder(name, || {
                check_block(block, &data)?;
                decoder.read_dictionary(block, &data)
            })?;
        }
        let (name, recent) = (name.to_owned(), Mutex::new(None));
        let (schema, blocks) = (parts.schema, parts.blocks);
        Ok(ArrowFile { name, ranges, schema, decoder, blocks, recent })
    }

    /// Returns the columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the number of rows of a block. Only the block's description is read.
    fn block_rows(&self, block: &Block) -> Result<u64> {
        let (start, len, _) = block_extent(&self.name, self.ranges.as_ref(), block)?;
        let bytes = self.ranges.read(start, len)?;
        run_decoder(&self.name, || {
            let batch = parse_description(&bytes)?.header_as_record_batch();
            let rows = batch.and_then(|batch| u64::try_from(batch.length()).ok());
            rows.ok_or_else(|| ArrowError::IpcError("not a record batch".to_owned()))
        })
    }

    fn decode(&self, block: usize) -> Result<RecordBatch> {
        let place = &self.blocks[block];
        let data = read_block(&self.name, self.ranges.as_ref(), place)?;
        let batch = run_decoder(&self.name, || {
            check_block(place, &data)?;
            self.decoder.read_record_batch(place, &data)
        })?;
        batch.ok_or_else(|| damaged_error(&self.name).because("an empty message"))
    }

    /// Returns rows of a block. If another lane is decoding the block, the caller waits for the
    /// block instead of decoding it again.
    fn rows(&self, part: BlockRows) -> Result<RecordBatch> {
        let batch = if part.is_whole {
            self.decode(part.block)?
        } else {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            match recent.as_ref().filter(|(block, _)| *block == part.block) {
                Some((_, batch)) => batch.clone(),
                None => recent.insert((part.block, self.decode(part.block)?)).1.clone(),
            }
        };
        if part.row + part.rows > batch.num_rows() as u64 {
            return Err(damaged_error(&self.name)
                .because("a record batch has fewer rows than its description states"));
        }
        Ok(batch.slice(part.row as usize, part.rows as usize))
    }
}

/// Cuts an Arrow IPC file into chunks.
pub struct ArrowCutter {
    file: Arc<ArrowFile>,
    input: usize,
    block: usize,
    /// The next row within the block.
    row: u64,
    /// The number of rows of the block, once it is known.
    rows: Option<u64>,
    first_row: u64,
    seq: u64,
}

impl ArrowCutter {
    /// Returns a cutter of `file`, which is input number `input` of the load. Chunks are numbered
    /// from 0.
    pub fn new(file: Arc<ArrowFile>, input: usize) -> ArrowCutter {
        ArrowCutter { file, input, block: 0, row: 0, rows: None, first_row: 0, seq: 0 }
    }
}

impl Cutter for ArrowCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        let mut parts: Vec<BlockRows> = Vec::new();
        let (mut taken, mut stored) = (0, 0);
        while let Some(block) = self.file.blocks.get(self.block) {
            let rows = match self.rows {
                Some(rows) => rows,
                None => *self.rows.insert(self.file.block_rows(block)?),
            };
            let bytes = u64::try_from(block.bodyLength()).unwrap_or(0);
            let (rows_with_block, bytes_with_block) =
                (rows.saturating_add(taken), bytes.saturating_add(stored));
            if FILE_CHUNKS.are_exceeded(rows_with_block, bytes_with_block) && !parts.is_empty() {
                break;
            }
            let part = rows.div_ceil(FILE_CHUNKS.chunk_count(rows, bytes)).min(rows - self.row);
            if part > 0 {
                parts.push(BlockRows {
                    block: self.block,
                    row: self.row,
                    rows: part,
                    is_whole: part == rows,
                });
                taken += part;
                stored += (u128::from(bytes) * u128::from(part) / u128::from(rows)) as u64;
            }
            self.row += part;
            if self.row < rows {
                break;
            }
            (self.block, self.row, self.rows) = (self.block + 1, 0, None);
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let chunk_rows = ArrowChunkRows { file: self.file.clone(), parts, rows: taken, stored };
        let chunk = Chunk::of_rows(self.seq, self.input, self.first_row, Arc::new(chunk_rows));
        self.seq += 1;
        self.first_row += taken;
        Ok(Some(chunk))
    }
}

/// A range of rows of a block.
#[derive(Debug, Clone, Copy)]
struct BlockRows {
    block: usize,
    row: u64,
    rows: u64,
    is_whole: bool,
}

/// The rows of a chunk: rows of consecutive blocks.
#[derive(Debug)]
struct ArrowChunkRows {
    file: Arc<ArrowFile>,
    parts: Vec<BlockRows>,
    rows: u64,
    stored: u64,
}

impl BatchSource for ArrowChunkRows {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
        let file = self.file.clone();
        Ok(Box::new(self.parts.clone().into_iter().map(move |part| file.rows(part))))
    }

    fn rows(&self) -> u64 {
        self.rows
    }

    fn stored_bytes(&self) -> u64 {
        self.stored
    }

    /// Returns the digest of the chunk's stored bytes. Bytes between two blocks, such as
    /// dictionaries, belong to the second block.
    fn content_digest(&self) -> Result<Option<u128>> {
        let (file, byte_range) = (&self.file, |block: &Block| {
            let (start, description, body) =
                block_extent(&self.file.name, self.file.ranges.as_ref(), block)?;
            Ok::<_, Error>((start, start + description as u64 + body as u64))
        });
        let mut byte_ranges = Vec::new();
        for part in self.parts.iter().filter(|part| part.row == 0) {
            let (start, end_here) = byte_range(&file.blocks[part.block])?;
            let end_before = match part.block.checked_sub(1) {
                Some(previous) => byte_range(&file.blocks[previous])?.1,
                None => 0,
            };
            byte_ranges.push((if end_before <= start { end_before } else { start }, end_here));
        }
        digest_of_stored(file.ranges.as_ref(), schema_seed(&file.schema), byte_ranges)
    }
}

/// Cuts an Arrow IPC stream into chunks that hold the decoded rows.
pub struct ArrowStreamCutter {
    schema: SchemaRef,
    cutter: BatchesCutter,
}

impl ArrowStreamCutter {
    /// Reads the schema of a stream, which is input number `input` of the load. Errors show `name`
    /// as the stream's name. Chunks are numbered from 0.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the stream does not begin with a schema.
    pub fn open(
        name: &str,
        reader: Box<dyn Read + Send>,
        input: usize,
    ) -> Result<ArrowStreamCutter> {
        ArrowStreamCutter::of_stream(ArrowStream::open(name, reader)?, input)
    }

    /// Reads the schema of a stream that must be whole: it has an end marker, and nothing follows
    /// the marker. Compressed buffers have at most `bytes_max` bytes after decompression.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the stream does not begin with a schema.
    pub fn open_whole(
        name: &str,
        reader: Box<dyn Read + Send>,
        bytes_max: u64,
    ) -> Result<ArrowStreamCutter> {
        ArrowStreamCutter::of_stream(ArrowStream::open(name, reader)?.limited(bytes_max), 0)
    }

    fn of_stream(stream: ArrowStream, input: usize) -> Result<ArrowStreamCutter> {
        let schema = stream.schema();
        let cutter = BatchesCutter::new(Box::new(stream), input);
        Ok(ArrowStreamCutter { schema, cutter })
    }

    /// Returns the columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl Cutter for ArrowStreamCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        self.cutter.next()
    }
}

/// The content of a file's footer.
struct ArrowFooter {
    schema: SchemaRef,
    version: MetadataVersion,
    dictionaries: Vec<Block>,
    blocks: Vec<Block>,
}

fn parse_footer(bytes: &[u8]) -> Result<ArrowFooter, ArrowError> {
    let bad = |what: &str| ArrowError::ParseError(what.to_owned());
    let footer = arrow_ipc::root_as_footer(bytes).map_err(|error| bad(&error.to_string()))?;
    let schema = footer.schema().ok_or_else(|| bad("the footer has no schema"))?;
    if !schema.endianness().equals_to_target_endianness() {
        return Err(ArrowError::NotYetImplemented("big-endian Arrow files".to_owned()));
    }
    let blocks = footer.recordBatches().ok_or_else(|| bad("the footer lists no batches"))?;
    Ok(ArrowFooter {
        schema: Arc::new(arrow_ipc::convert::try_fb_to_schema(schema)?),
        version: footer.version(),
        dictionaries: footer.dictionaries().iter().flatten().copied().collect(),
        blocks: blocks.iter().copied().collect(),
    })
}

/// Returns a block's offset, the length of its description, and the length of its body.
fn block_extent(
    name: &str,
    ranges: &dyn RangeReader,
    block: &Block,
) -> Result<(u64, usize, usize)> {
    let start = u64::try_from(block.offset()).ok();
    let description = u64::try_from(block.metaDataLength()).ok().filter(|len| *len >= 8);
    let body = u64::try_from(block.bodyLength()).ok();
    if let (Some(start), Some(description), Some(body)) = (start, description, body) {
        let end = start.checked_add(description).and_then(|end| end.checked_add(body));
        if description <= DESCRIPTION_BYTES_MAX && end.is_some_and(|end| end <= ranges.len()) {
            return Ok((start, description as usize, body as usize));
        }
    }
    let (start, body) = (block.offset(), block.bodyLength());
    Err(damaged_error(name).because(format!(
        "the footer states a batch at byte {start} with {} bytes and a body of {body} bytes, but \
         the file has {}",
        block.metaDataLength(),
        ranges.len(),
    )))
}

fn read_block(name: &str, ranges: &dyn RangeReader, block: &Block) -> Result<Buffer> {
    let (start, description, body) = block_extent(name, ranges, block)?;
    let len = description + body;
    check_memory(len as u64).map_err(|why| {
        damaged_error(name).because(format!("the footer states a batch of {len} bytes, {why}"))
    })?;
    Ok(Buffer::from(ranges.read(start, len)?))
}

/// Checks the sizes that a block states, before the block is decoded.
fn check_block(block: &Block, data: &Buffer) -> Result<(), ArrowError> {
    let start = usize::try_from(block.metaDataLength()).unwrap_or(0).min(data.len());
    let (message, body) = (parse_description(&data[..start])?, data.slice(start));
    check_body(&message, &body, BATCH_BYTES_MAX).map(drop)
}

/// Runs the decoder, which may panic on damaged input, and converts its error.
fn run_decoder<T>(name: &str, run: impl FnOnce() -> Result<T, ArrowError>) -> Result<T> {
    match catch_panic(run) {
        Some(Ok(value)) => Ok(value),
        Some(Err(ArrowError::IoError(_, error))) => Err(read_error(name, error)),
        Some(Err(error @ ArrowError::NotYetImplemented(_))) => {
            let unsupported = "the Arrow data uses a feature that is not supported";
            Err(Error::new(ErrorKind::Format, unsupported).at(place(name)).because(error))
        }
        Some(Err(error)) => Err(damaged_error(name).because(error)),
        None => Err(damaged_error(name).because("the decoder failed on invalid data")),
    }
}

/// Converts an I/O error of a stream. A pgspate error inside it is returned unchanged. An early end
/// becomes the error for truncated data.
fn read_error(name: &str, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return truncated_error(name).because(error);
    }
    let error = match error.downcast::<Error>() {
        Ok(own) => return own,
        Err(error) => error,
    };
    Error::new(ErrorKind::Source, "could not read the Arrow data").at(place(name)).because(error)
}

fn truncated_error(name: &str) -> Error {
    Error::new(ErrorKind::Format, "the Arrow data is truncated")
        .at(place(name))
        .hint("The data ends early. Copy or write the file again.")
}

fn damaged_error(name: &str) -> Error {
    Error::new(ErrorKind::Format, "could not decode the Arrow data")
        .at(place(name))
        .hint("Write the file again, or check it with another program.")
}

fn place(name: &str) -> InputPlace {
    InputPlace { source: Some(name.to_owned()), ..InputPlace::default() }
}

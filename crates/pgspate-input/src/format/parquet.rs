//! The format Parquet: opens files, cuts them into chunks, and decodes batch by batch.
//!
//! A chunk is a row group, or a slice of a large row group. The file's metadata alone decides where
//! chunks begin. A chunk is decoded while it is encoded, a few megabytes at a time, so memory does
//! not grow with the row group.

mod delta;
mod metadata;
mod pages;
mod read;
mod thrift;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, RowSelection, RowSelector,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Type as Physical;
use parquet::errors::ParquetError;
use pgspate_base::numbers::counted;

use self::metadata::read_metadata;
use self::pages::CheckedGroup;
use self::read::ParquetBytes;
use super::contained_panic::catch_panic;
use super::{BatchSource, Chunk, Cutter, digest_of_stored, schema_seed};
use crate::source::RangeReader;
use crate::{Error, ErrorKind, InputPlace, Result};

/// The most rows of a slice. Slices decode some pages and dictionaries twice. With a page index,
/// slices of this size cost 15 % more CPU than whole row groups (2.4 M rows of TPC-H lineitem, 0.44
/// s against 0.38 s).
const CHUNK_ROWS_MAX: u64 = 131_072;
/// The approximate number of decoded bytes of a slice. A slice has at least [`CHUNK_ROWS_MIN`]
/// rows.
const CHUNK_BYTES: u64 = 32 << 20;
/// The fewest rows of a slice.
const CHUNK_ROWS_MIN: u64 = 1_024;
/// The factor by which slices are larger if the file has no page index. The factor reduces the
/// additional CPU from 35 % to 15 %.
const NO_INDEX_FACTOR: u64 = 2;
/// The most rows and bytes that are decoded at a time.
const BATCH_ROWS_MAX: u64 = 8_192;
const BATCH_BYTES: u64 = 4 << 20;

/// A Parquet file whose metadata has been read.
pub struct ParquetFile {
    name: String,
    ranges: Arc<dyn RangeReader>,
    metadata: ArrowReaderMetadata,
    schema_seed: u64,
}

impl fmt::Debug for ParquetFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ParquetFile {
    /// Reads the metadata of a file. Errors show `name` as the file's name.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the file is not a Parquet file, is truncated, damaged or encrypted,
    /// or has unsupported columns.
    pub fn open(name: &str, ranges: Arc<dyn RangeReader>) -> Result<ParquetFile> {
        check_ends(name, ranges.as_ref())?;
        let stored = ParquetBytes::whole(ranges.clone());
        let metadata = run_decoder(name, &stored, || read_metadata(&stored))?;
        let schema_seed = schema_seed(metadata.schema());
        Ok(ParquetFile { name: name.to_owned(), ranges, metadata, schema_seed })
    }

    /// Returns the columns as they are decoded. Strings and bytes are views. Logical types without
    /// an Arrow type (JSON, UUID) are extension types.
    pub fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    /// Returns the number of rows of the file.
    pub fn rows(&self) -> u64 {
        (0..self.row_groups()).map(|group| self.group_rows(group)).sum()
    }

    /// Returns the number of row groups.
    pub fn row_groups(&self) -> usize {
        self.metadata.metadata().num_row_groups()
    }

    fn group_rows(&self, group: usize) -> u64 {
        u64::try_from(self.metadata.metadata().row_group(group).num_rows()).unwrap_or(0)
    }

    /// Returns the size of a row group, stored and decoded.
    fn group_bytes(&self, group: usize) -> RowGroupBytes {
        let schema = self.metadata.parquet_schema();
        let mut bytes = RowGroupBytes { stored: 0, decoded: 0, nested: false };
        for (leaf, chunk) in self.metadata.metadata().row_group(group).columns().iter().enumerate()
        {
            let width = match chunk.column_type() {
                Physical::BOOLEAN => 1,
                Physical::INT32 | Physical::FLOAT => 4,
                Physical::INT64 | Physical::DOUBLE => 8,
                // With a dictionary, each value may be stored as a few bits.
                Physical::FIXED_LEN_BYTE_ARRAY => {
                    u64::try_from(schema.column(leaf).type_length()).unwrap_or(0).max(16)
                }
                _ => 16,
            };
            let plain = u64::try_from(chunk.num_values()).unwrap_or(0).saturating_mul(width);
            let decoded = u64::try_from(chunk.uncompressed_size()).unwrap_or(0).max(plain);
            bytes.decoded = bytes.decoded.saturating_add(decoded);
            let stored = u64::try_from(chunk.compressed_size()).unwrap_or(0);
            bytes.stored = bytes.stored.saturating_add(stored);
            bytes.nested |= schema.column(leaf).max_rep_level() > 0;
        }
        bytes
    }
}

/// The size of a row group, and whether it has nested columns.
#[derive(Debug, Clone, Copy)]
struct RowGroupBytes {
    stored: u64,
    decoded: u64,
    nested: bool,
}

/// Cuts a Parquet file into chunks.
pub struct ParquetCutter {
    file: Arc<ParquetFile>,
    input: usize,
    group: usize,
    /// The next row within the row group.
    row: u64,
    /// The next row within the file.
    first_row: u64,
    seq: u64,
}

impl ParquetCutter {
    /// Returns a cutter of `file`, which is input number `input` of the load. Chunks are numbered
    /// from 0.
    pub fn new(file: Arc<ParquetFile>, input: usize) -> ParquetCutter {
        ParquetCutter { file, input, group: 0, row: 0, first_row: 0, seq: 0 }
    }

    /// Returns how many of the row group's `rows` rows a chunk takes.
    fn slice_rows(&self, rows: u64, bytes: RowGroupBytes) -> u64 {
        let per_row = (bytes.decoded / rows.max(1)).saturating_add(1);
        let mut target = (CHUNK_BYTES / per_row).clamp(CHUNK_ROWS_MIN, CHUNK_ROWS_MAX);
        let group = self.file.metadata.metadata().row_group(self.group);
        if group.columns().iter().any(|chunk| chunk.offset_index_range().is_none()) {
            // For nested columns a page header does not state its rows. Without an index every
            // slice would decode all pages before it.
            if bytes.nested {
                return rows;
            }
            target *= NO_INDEX_FACTOR;
        }
        // Slightly more than one slice is not cut in two.
        if rows <= target + target / 2 {
            return rows;
        }
        rows.div_ceil(rows.div_ceil(target))
    }
}

impl Cutter for ParquetCutter {
    fn next(&mut self) -> Result<Option<Chunk>> {
        while self.group < self.file.row_groups() {
            let rows = self.file.group_rows(self.group);
            if self.row >= rows {
                self.group += 1;
                self.row = 0;
                continue;
            }
            let bytes = self.file.group_bytes(self.group);
            let taken = self.slice_rows(rows, bytes).min(rows - self.row);
            let per_row = (bytes.decoded / rows).saturating_add(1);
            let slice = RowGroupSlice {
                file: self.file.clone(),
                group: self.group,
                rows: self.row..self.row + taken,
                group_rows: rows,
                batch_rows: (BATCH_BYTES / per_row).clamp(1, BATCH_ROWS_MAX) as usize,
                stored: (u128::from(bytes.stored) * u128::from(taken) / u128::from(rows)) as u64,
            };
            let chunk = Chunk::of_rows(self.seq, self.input, self.first_row, Arc::new(slice));
            self.seq += 1;
            self.row += taken;
            self.first_row += taken;
            return Ok(Some(chunk));
        }
        Ok(None)
    }
}

/// A range of rows of one row group.
#[derive(Debug)]
struct RowGroupSlice {
    file: Arc<ParquetFile>,
    group: usize,
    rows: Range<u64>,
    group_rows: u64,
    batch_rows: usize,
    stored: u64,
}

impl BatchSource for RowGroupSlice {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
        let file = &self.file;
        let metadata = file.metadata.metadata().row_group(self.group);
        let slice_rows = self.rows.end - self.rows.start;
        let stored =
            ParquetBytes::windowed(file.ranges.clone(), metadata, &self.rows, self.group_rows)?;
        let reader = run_decoder(&file.name, &stored, || {
            let mask = ProjectionMask::all();
            let hint = Some(file.metadata.schema().fields());
            let levels = parquet_to_arrow_field_levels(file.metadata.parquet_schema(), mask, hint)?;
            let batch_rows = self.batch_rows.min(slice_rows as usize);
            let group = CheckedGroup {
                stored: stored.clone(),
                metadata: file.metadata.metadata().clone(),
                group: self.group,
                batch_rows,
            };
            let selection = (slice_rows < self.group_rows).then(|| {
                RowSelection::from(vec![
                    RowSelector::skip(self.rows.start as usize),
                    RowSelector::select(slice_rows as usize),
                ])
            });
            ParquetRecordBatchReader::try_new_with_row_groups(
                &levels, &group, batch_rows, selection,
            )
        })?;
        Ok(Box::new(SliceBatches {
            file: file.clone(),
            stored,
            reader: Some(reader),
            left: slice_rows,
        }))
    }

    fn rows(&self) -> u64 {
        self.rows.end - self.rows.start
    }

    fn stored_bytes(&self) -> u64 {
        self.stored
    }

    fn content_digest(&self) -> Result<Option<u128>> {
        let group = self.file.metadata.metadata().row_group(self.group);
        let byte_range = |start: i64, len: i64| {
            let start = u64::try_from(start).unwrap_or(0);
            (start, start.saturating_add(u64::try_from(len).unwrap_or(0)))
        };
        let columns = group.columns().iter().map(|column| {
            let first = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            byte_range(first.min(column.data_page_offset()), column.compressed_size())
        });
        let columns = columns.take_while(|_| self.rows.start == 0);
        digest_of_stored(self.file.ranges.as_ref(), self.file.schema_seed, columns)
    }
}

/// An iterator over the batches of a slice. The iterator ends after an error.
struct SliceBatches<R> {
    file: Arc<ParquetFile>,
    stored: ParquetBytes,
    reader: Option<R>,
    /// The number of rows that are not decoded yet.
    left: u64,
}

impl<R> Iterator for SliceBatches<R>
where
    R: Iterator<Item = Result<RecordBatch, arrow_schema::ArrowError>>,
{
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = self.reader.as_mut()?;
        let batch = run_decoder(&self.file.name, &self.stored, || Ok(reader.next().transpose()?));
        let batch = match batch {
            Ok(Some(batch)) => {
                self.left = self.left.saturating_sub(batch.num_rows() as u64);
                return Some(Ok(batch));
            }
            Ok(None) if self.left == 0 => None,
            Ok(None) => Some(Err(damaged_error(&self.file.name)
                .because(format!("the row group lacks {}", counted(self.left, "row"))))),
            Err(error) => Some(Err(error)),
        };
        self.reader = None;
        batch
    }
}

/// Checks the magic bytes at both ends. The decoder's message would be less clear.
fn check_ends(name: &str, ranges: &dyn RangeReader) -> Result<()> {
    let len = ranges.len();
    if len < 12 {
        let message = format!("a file of {len} bytes cannot be a Parquet file");
        return Err(Error::new(ErrorKind::Format, message)
            .at(place(name))
            .hint("Name the format of the file with `--format`."));
    }
    let (head, tail) = (ranges.read(0, 4)?, ranges.read(len - 4, 4)?);
    match (&head[..], &tail[..]) {
        (b"PAR1", b"PAR1") => Ok(()),
        (b"PARE", _) | (_, b"PARE") => {
            let error = Error::new(ErrorKind::Format, "encrypted Parquet files are not supported");
            Err(error.at(place(name)).hint("Write the file again without encryption."))
        }
        (b"PAR1", _) => Err(Error::new(ErrorKind::Format, "the Parquet file is truncated")
            .at(place(name))
            .hint("The file does not end with its footer. Copy or write the file again.")),
        ([0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd], _) => {
            let message = "the Parquet file is compressed as a whole, by gzip or zstd";
            Err(Error::new(ErrorKind::Format, message)
                .at(place(name))
                .hint("Decompress it first. Parquet itself compresses the columns."))
        }
        _ => Err(Error::new(ErrorKind::Format, "not a Parquet file")
            .at(place(name))
            .hint("Name the format of the file with `--format`.")),
    }
}

/// Runs the decoder, which may panic on a damaged file, and converts its error.
fn run_decoder<T>(
    name: &str,
    stored: &ParquetBytes,
    run: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T> {
    let result = catch_panic(run);
    if let Some(error) = stored.take_failure() {
        return Err(error);
    }
    match result {
        Some(Ok(value)) => Ok(value),
        Some(Err(error @ ParquetError::NYI(_))) => {
            let unsupported = "the Parquet file uses a feature that is not supported";
            Err(Error::new(ErrorKind::Format, unsupported).at(place(name)).because(error))
        }
        Some(Err(error)) => Err(damaged_error(name).because(error)),
        None => Err(damaged_error(name).because("the decoder failed on invalid data")),
    }
}

fn damaged_error(name: &str) -> Error {
    Error::new(ErrorKind::Format, "could not decode the Parquet file")
        .at(place(name))
        .hint("Write the file again, or check it with another program.")
}

fn place(name: &str) -> InputPlace {
    InputPlace { source: Some(name.to_owned()), ..InputPlace::default() }
}

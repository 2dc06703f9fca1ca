//! Parquet files: opening, cutting into chunks, decoding batch by batch.
//!
//! Chunks are row groups, or slices of row groups that are larger than a chunk should be; where
//! they begin follows from the file's metadata alone. A chunk is decoded while it is encoded, a
//! few megabytes at a time, so memory does not grow with the row group.

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

use self::metadata::load;
use self::pages::CheckedGroup;
use self::read::Stored;
use super::contain::contain;
use super::{BatchSource, Chunk, Cutter, of_stored};
use crate::source::Ranges;
use crate::{Error, ErrorKind, InputPlace, Result};

/// Rows in a slice, at most. Slices decode some pages and dictionaries twice: with an index of
/// pages this many rows cost 15 % more CPU than whole row groups do (2.4 M rows of TPC-H lineitem,
/// 0.44 s against 0.38 s).
const CHUNK_ROWS_MAX: u64 = 131_072;
/// Decoded bytes in a slice, about, unless that is fewer rows than the next constant.
const CHUNK_BYTES: u64 = 32 << 20;
/// Rows in a slice, at least.
const CHUNK_ROWS_MIN: u64 = 1_024;
/// Slices are this many times larger where the file has no index of pages: it takes that much to
/// come down from 35 % to the same 15 %.
const WITHOUT_INDEX: u64 = 2;
/// Rows and bytes decoded at a time.
const BATCH_ROWS_MAX: u64 = 8_192;
const BATCH_BYTES: u64 = 4 << 20;

/// A Parquet file whose metadata has been read.
pub struct ParquetFile {
    name: String,
    ranges: Arc<dyn Ranges>,
    metadata: ArrowReaderMetadata,
    schema: SchemaRef,
}

impl fmt::Debug for ParquetFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ParquetFile {
    /// Reads the metadata of the file that errors will call `name`.
    ///
    /// # Errors
    /// ErrorKind `Format` when it is no Parquet file, is cut short, damaged, encrypted, or has
    /// columns of kinds that are not supported.
    pub fn open(name: &str, ranges: Arc<dyn Ranges>) -> Result<ParquetFile> {
        check_ends(name, ranges.as_ref())?;
        let stored = Stored::whole(ranges.clone());
        let (metadata, schema) = guarded(name, &stored, || load(&stored))?;
        Ok(ParquetFile { name: name.to_owned(), ranges, metadata, schema })
    }

    /// The columns as they are decoded. Strings and bytes come as views, and the logical types
    /// that Arrow has no type for (JSON, UUID) as extension types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// How many rows the file has.
    pub fn rows(&self) -> u64 {
        (0..self.row_groups()).map(|group| self.group_rows(group)).sum()
    }

    /// How many row groups it has.
    pub fn row_groups(&self) -> usize {
        self.metadata.metadata().num_row_groups()
    }

    fn group_rows(&self, group: usize) -> u64 {
        u64::try_from(self.metadata.metadata().row_group(group).num_rows()).unwrap_or(0)
    }

    /// What a row group takes, stored and decoded.
    fn group_bytes(&self, group: usize) -> GroupBytes {
        let schema = self.metadata.parquet_schema();
        let mut bytes = GroupBytes { stored: 0, decoded: 0, nested: false };
        for (leaf, chunk) in self.metadata.metadata().row_group(group).columns().iter().enumerate()
        {
            let width = match chunk.column_type() {
                Physical::BOOLEAN => 1,
                Physical::INT32 | Physical::FLOAT => 4,
                Physical::INT64 | Physical::DOUBLE => 8,
                // By a dictionary, each may come of a few bits.
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

#[derive(Debug, Clone, Copy)]
struct GroupBytes {
    stored: u64,
    decoded: u64,
    nested: bool,
}

/// Cuts a Parquet file into chunks.
pub struct ParquetCutter {
    file: Arc<ParquetFile>,
    input: usize,
    group: usize,
    /// The next row, within the group and within the file.
    row: u64,
    first_row: u64,
    seq: u64,
}

impl ParquetCutter {
    /// A cutter of `file`, the load's input number `input`. Chunks are numbered from 0.
    pub fn new(file: Arc<ParquetFile>, input: usize) -> ParquetCutter {
        ParquetCutter { file, input, group: 0, row: 0, first_row: 0, seq: 0 }
    }

    /// How many rows of the group are left for a chunk, of how many it should take.
    fn slice(&self, rows: u64, bytes: GroupBytes) -> u64 {
        let per_row = (bytes.decoded / rows.max(1)).saturating_add(1);
        let mut target = (CHUNK_BYTES / per_row).clamp(CHUNK_ROWS_MIN, CHUNK_ROWS_MAX);
        let group = self.file.metadata.metadata().row_group(self.group);
        if group.columns().iter().any(|chunk| chunk.offset_index_range().is_none()) {
            // Rows of nested columns have no place in a page header: without an index every slice
            // would decode all that stands before it.
            if bytes.nested {
                return rows;
            }
            target *= WITHOUT_INDEX;
        }
        // A little more than one slice is not worth two.
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
            let taken = self.slice(rows, bytes).min(rows - self.row);
            let per_row = (bytes.decoded / rows).saturating_add(1);
            let slice = Slice {
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

/// Some rows of one row group.
#[derive(Debug)]
struct Slice {
    file: Arc<ParquetFile>,
    group: usize,
    rows: Range<u64>,
    group_rows: u64,
    batch_rows: usize,
    stored: u64,
}

impl BatchSource for Slice {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
        let file = &self.file;
        let metadata = file.metadata.metadata().row_group(self.group);
        let share = self.rows.end - self.rows.start;
        let stored = Stored::windowed(file.ranges.clone(), metadata, share, self.group_rows);
        let reader = guarded(&file.name, &stored, || {
            let mask = ProjectionMask::all();
            let hint = Some(file.metadata.schema().fields());
            let levels = parquet_to_arrow_field_levels(file.metadata.parquet_schema(), mask, hint)?;
            let batch_rows = self.batch_rows.min(share as usize);
            let group = CheckedGroup {
                stored: stored.clone(),
                metadata: file.metadata.metadata().clone(),
                group: self.group,
                batch_rows,
            };
            let selection = (share < self.group_rows).then(|| {
                RowSelection::from(vec![
                    RowSelector::skip(self.rows.start as usize),
                    RowSelector::select(share as usize),
                ])
            });
            ParquetRecordBatchReader::try_new_with_row_groups(
                &levels, &group, batch_rows, selection,
            )
        })?;
        Ok(Box::new(Batches { file: file.clone(), stored, reader: Some(reader), left: share }))
    }

    fn rows(&self) -> u64 {
        self.rows.end - self.rows.start
    }

    fn stored_bytes(&self) -> u64 {
        self.stored
    }

    fn content_digest(&self) -> Result<Option<u128>> {
        let group = self.file.metadata.metadata().row_group(self.group);
        let stretch = |start: i64, len: i64| {
            let start = u64::try_from(start).unwrap_or(0);
            (start, start.saturating_add(u64::try_from(len).unwrap_or(0)))
        };
        let columns = group.columns().iter().map(|column| {
            let first = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            stretch(first.min(column.data_page_offset()), column.compressed_size())
        });
        of_stored(self.file.ranges.as_ref(), columns.take_while(|_| self.rows.start == 0))
    }
}

/// The batches of a slice. Ends after an error.
struct Batches<R> {
    file: Arc<ParquetFile>,
    stored: Stored,
    reader: Option<R>,
    left: u64,
}

impl<R> Iterator for Batches<R>
where
    R: Iterator<Item = Result<RecordBatch, arrow_schema::ArrowError>>,
{
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = self.reader.as_mut()?;
        let batch = guarded(&self.file.name, &self.stored, || Ok(reader.next().transpose()?));
        let batch = match batch {
            Ok(Some(batch)) => {
                self.left = self.left.saturating_sub(batch.num_rows() as u64);
                return Some(Ok(batch));
            }
            Ok(None) if self.left == 0 => None,
            Ok(None) => Some(Err(damaged(&self.file.name)
                .because(format!("the data ends {} rows before the row group does", self.left)))),
            Err(error) => Some(Err(error)),
        };
        self.reader = None;
        batch
    }
}

/// Looks at the magic bytes, whose absence the decoder would report less plainly.
fn check_ends(name: &str, ranges: &dyn Ranges) -> Result<()> {
    let len = ranges.len();
    if len < 12 {
        let message = format!("a file of {len} bytes cannot be a Parquet file");
        return Err(Error::new(ErrorKind::Format, message)
            .at(place(name))
            .hint("Use `--format` to say which format it is in."));
    }
    let (head, tail) = (ranges.read(0, 4)?, ranges.read(len - 4, 4)?);
    match (&head[..], &tail[..]) {
        (b"PAR1", b"PAR1") => Ok(()),
        (b"PARE", _) | (_, b"PARE") => {
            let error = Error::new(ErrorKind::Format, "encrypted Parquet files are not supported");
            Err(error.at(place(name)).hint("Write the file again without encryption."))
        }
        (b"PAR1", _) => Err(Error::new(ErrorKind::Format, "the Parquet file is cut short")
            .at(place(name))
            .hint("Copy or write the file again: it does not end with its footer.")),
        _ => Err(Error::new(ErrorKind::Format, "not a Parquet file")
            .at(place(name))
            .hint("Use `--format` to say which format it is in.")),
    }
}

/// Runs the decoder, which may panic on a damaged file, and turns what it says into our error.
fn guarded<T>(
    name: &str,
    stored: &Stored,
    run: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T> {
    let result = contain(run);
    if let Some(error) = stored.take_failure() {
        return Err(error);
    }
    match result {
        Some(Ok(value)) => Ok(value),
        Some(Err(error @ ParquetError::NYI(_))) => {
            let unsupported = "the Parquet file uses a feature that is not supported";
            Err(Error::new(ErrorKind::Format, unsupported).at(place(name)).because(error))
        }
        Some(Err(error)) => Err(damaged(name).because(error)),
        None => Err(damaged(name).because("the decoder could not make sense of it")),
    }
}

fn damaged(name: &str) -> Error {
    Error::new(ErrorKind::Format, "could not decode the Parquet file")
        .at(place(name))
        .hint("Write the file again, or read it with another program to see what is wrong.")
}

fn place(name: &str) -> InputPlace {
    InputPlace { source: Some(name.to_owned()), ..InputPlace::default() }
}

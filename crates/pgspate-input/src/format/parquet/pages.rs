//! Checks the sizes that pages state, before the decoder allocates memory for them.
//!
//! The decoder allocates memory for a page by the page's header, for a dictionary by its number of
//! values, and for lengths by their own header. All these headers are checked here first.

use std::sync::Arc;

use bytes::Bytes;
use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::{Compression, Encoding, Type as Physical};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};
use parquet::schema::types::ColumnDescriptor;

use super::super::stated_size::{ColumnCodec, check_memory, check_stated_size};
use super::delta;
use super::read::{ParquetBytes, SequentialBytes};
use super::thrift::{PageHeader, PageKind, ThriftError, page_header};

/// The most bytes of a page: the longest value of PostgreSQL, and 1 MiB for its overhead.
pub(super) const PAGE_BYTES_MAX: u64 = (1 << 30) + (1 << 20);
/// The most values of a page: the most elements of a PostgreSQL array.
const VALUES_MAX: u64 = 1 << 27;
/// The most bytes of a page's header, which may contain the least and the greatest value.
const HEADER_BYTES_MAX: usize = 16 << 20;
/// The memory of the decoder for a value in addition to the value's bytes: a view and two levels,
/// in growing vectors.
const VALUE_MEMORY_BYTES: u64 = 40;

/// The properties of a column that its pages are checked against.
#[derive(Debug)]
pub(super) struct ColumnPages {
    name: String,
    codec: Option<ColumnCodec>,
    /// The fewest bytes of a value in a dictionary.
    width: u64,
    descriptor: Arc<ColumnDescriptor>,
    /// The number of values that are decoded at a time.
    batch_rows: u64,
}

impl ColumnPages {
    fn of(group: &RowGroupMetaData, column: usize, batch_rows: u64) -> ColumnPages {
        let chunk = group.column(column);
        let descriptor = chunk.column_descr_ptr();
        let codec = match chunk.compression() {
            Compression::UNCOMPRESSED => None,
            Compression::SNAPPY => Some(ColumnCodec::Snappy),
            Compression::GZIP(_) => Some(ColumnCodec::Gzip),
            Compression::LZ4 | Compression::LZ4_RAW => Some(ColumnCodec::Lz4),
            Compression::ZSTD(_) => Some(ColumnCodec::Zstd),
            // The decoder refuses LZO.
            Compression::BROTLI(_) | Compression::LZO => Some(ColumnCodec::Brotli),
        };
        let width = match descriptor.physical_type() {
            Physical::BOOLEAN => 1,
            Physical::INT32 | Physical::FLOAT | Physical::BYTE_ARRAY => 4,
            Physical::INT64 | Physical::DOUBLE => 8,
            Physical::INT96 => 12,
            Physical::FIXED_LEN_BYTE_ARRAY => {
                u64::try_from(descriptor.type_length()).unwrap_or(0).max(1)
            }
        };
        let name = descriptor.path().string();
        ColumnPages { name, codec, width, descriptor, batch_rows }
    }

    /// Reads and checks the header at the start of `bytes`. `offset` is the offset of `bytes` in
    /// the file. `stored` is the length of the page, if the file's index states it. Returns `None`
    /// if the header does not end within `bytes`.
    pub(super) fn check_header(
        &self,
        bytes: &[u8],
        offset: u64,
        stored: Option<u64>,
    ) -> Result<Option<PageHeader>> {
        let header = match page_header(bytes) {
            Ok(header) => header,
            Err(ThriftError::Truncated) if bytes.len() < HEADER_BYTES_MAX => return Ok(None),
            Err(ThriftError::Truncated) => {
                return self
                    .refuse(offset, format!("has a header of over {HEADER_BYTES_MAX} bytes"));
            }
            Err(ThriftError::Invalid) => return self.refuse(offset, "has no valid header"),
        };
        let stored = stored.map(|len| len.saturating_sub(header.len as u64));
        match self.check(header, stored) {
            Ok(()) => Ok(Some(header)),
            Err(why) => self.refuse(offset, why),
        }
    }

    fn check(&self, header: PageHeader, stored: Option<u64>) -> std::result::Result<(), String> {
        let size = |what: &str, stated: i64| {
            u64::try_from(stated).map_err(|_| format!("states {stated} {what}"))
        };
        let stored = match stored {
            Some(len) => len,
            None => size("stored bytes", header.stored)?,
        };
        let decompressed = match self.codec {
            Some(codec) if !header.is_uncompressed => {
                let stated = size("bytes", header.decompressed)?;
                check_stated_size(stated, codec, stored, PAGE_BYTES_MAX)?;
                stated
            }
            _ => stored,
        };
        let values = size("values", header.values)?;
        match header.kind {
            PageKind::Data if values > VALUES_MAX => {
                Err(format!("states {values} values, expected at most {VALUES_MAX}"))
            }
            PageKind::Data if self.descriptor.max_rep_level() > 0 => {
                check_memory(values * VALUE_MEMORY_BYTES)
                    .map_err(|why| format!("states {values} values, {why}"))
            }
            PageKind::Dictionary if values.saturating_mul(self.width) > decompressed => {
                Err(format!("states {values} values in {decompressed} bytes"))
            }
            PageKind::Dictionary => check_memory(values.saturating_mul(VALUE_MEMORY_BYTES))
                .map_err(|why| format!("states {values} values, {why}")),
            _ => Ok(()),
        }
    }

    /// Checks the lengths within a decompressed page.
    fn check_page(&self, page: &Page) -> Result<()> {
        let (values, start) = match page {
            Page::DictionaryPage { .. } => return Ok(()),
            Page::DataPage { buf, .. } => (page.num_values(), self.values_start(page, buf)),
            Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => (
                page.num_values(),
                Some(*def_levels_byte_len as usize + *rep_levels_byte_len as usize),
            ),
        };
        let bytes = start.and_then(|start| page.buffer().get(start..)).unwrap_or_default();
        let batch = self.batch_rows.min(u64::from(values));
        let checked = match page.encoding() {
            Encoding::DELTA_BINARY_PACKED | Encoding::DELTA_LENGTH_BYTE_ARRAY => {
                delta::check_lengths(bytes, u64::from(values))
            }
            Encoding::DELTA_BYTE_ARRAY => {
                delta::check_prefixes(bytes, u64::from(values), batch, PAGE_BYTES_MAX)
            }
            _ => Ok(()),
        };
        checked.map_err(|why| self.error(&format!("a page {why}")))
    }

    /// Returns where the values of a page of version 1 begin, after its levels.
    fn values_start(&self, page: &Page, buf: &Bytes) -> Option<usize> {
        let Page::DataPage { num_values, def_level_encoding, rep_level_encoding, .. } = page else {
            return None;
        };
        let mut at = 0_usize;
        let levels = [
            (self.descriptor.max_rep_level(), *rep_level_encoding),
            (self.descriptor.max_def_level(), *def_level_encoding),
        ];
        for (most, encoding) in levels.into_iter().filter(|(most, _)| *most > 0) {
            at += if encoding == Encoding::RLE {
                let len = buf.get(at..)?.first_chunk::<4>()?;
                4 + u32::from_le_bytes(*len) as usize
            } else {
                let bits = 16 - most.cast_unsigned().leading_zeros() as usize;
                (*num_values as usize * bits).div_ceil(8)
            };
        }
        Some(at)
    }

    fn refuse<T>(&self, offset: u64, why: impl AsRef<str>) -> Result<T> {
        Err(self.error(&format!("the page at byte {offset} {}", why.as_ref())))
    }

    fn error(&self, why: &str) -> ParquetError {
        ParquetError::General(format!("column \"{}\": {why}", self.name))
    }
}

/// The columns of one row group, whose pages are checked.
pub(super) struct CheckedGroup {
    pub(super) stored: ParquetBytes,
    pub(super) metadata: Arc<ParquetMetaData>,
    pub(super) group: usize,
    pub(super) batch_rows: usize,
}

impl RowGroups for CheckedGroup {
    fn num_rows(&self) -> usize {
        usize::try_from(self.metadata.row_group(self.group).num_rows()).unwrap_or(0)
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        let group = self.metadata.row_group(self.group);
        let index = self.metadata.page_index();
        let locations = index.and_then(|index| index.page_locations(self.group, column).cloned());
        let pages = Arc::new(ColumnPages::of(group, column, self.batch_rows as u64));
        let bytes = ColumnBytes {
            stored: self.stored.clone(),
            pages: pages.clone(),
            is_located: locations.is_some(),
        };
        let rows = self.num_rows();
        let reader =
            SerializedPageReader::new(Arc::new(bytes), group.column(column), rows, locations)?;
        let checked: Box<dyn PageReader> = Box::new(CheckedPages { reader, pages });
        Ok(Box::new(SingleColumnPages(Some(checked))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.group)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// An iterator over the single page reader of a column.
struct SingleColumnPages(Option<Box<dyn PageReader>>);

impl Iterator for SingleColumnPages {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for SingleColumnPages {}

/// The stored bytes of a column. Page headers are checked before the decoder gets them.
struct ColumnBytes {
    stored: ParquetBytes,
    pages: Arc<ColumnPages>,
    /// Whether the file has a page index. If so, the decoder reads header and page at once.
    is_located: bool,
}

impl Length for ColumnBytes {
    fn len(&self) -> u64 {
        self.stored.len()
    }
}

impl ChunkReader for ColumnBytes {
    type T = SequentialBytes;

    fn get_read(&self, start: u64) -> Result<SequentialBytes> {
        Ok(self.stored.page_headers(start, self.pages.clone()))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.stored.get_bytes(start, length)?;
        if self.is_located && self.pages.check_header(&bytes, start, Some(length as u64))?.is_none()
        {
            return self.pages.refuse(start, "ends within its header");
        }
        Ok(bytes)
    }
}

/// The pages of a column, which are checked again after decompression.
struct CheckedPages {
    reader: SerializedPageReader<ColumnBytes>,
    pages: Arc<ColumnPages>,
}

impl CheckedPages {
    fn check_optional_page(&self, page: Option<Page>) -> Result<Option<Page>> {
        page.iter().try_for_each(|page| self.pages.check_page(page))?;
        Ok(page)
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.reader.get_next_page()?;
        self.check_optional_page(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.reader.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.reader.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.reader.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        let page = self.reader.take_deferred_dictionary()?;
        self.check_optional_page(page)
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.reader.at_record_boundary()
    }
}

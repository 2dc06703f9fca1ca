//! Reads the metadata of a Parquet file, after checking the sizes that the metadata states.

use std::cell::Cell;
use std::slice;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, TimeUnit};
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor, Type, TypePtr};

use super::read::ParquetBytes;
use super::thrift::{check_schema, index_pages};
use crate::encode::arrow::{EXTENSION, PARQUET_INTERVAL};

/// The deepest nesting of columns. A list counts as two levels.
const NESTED_MAX: usize = 100;
/// The most bytes of all page indexes together. Larger indexes are not used.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Reads the metadata, first to check the stated sizes, then with the page index, and again if the
/// schema must be changed.
pub(super) fn read_metadata(stored: &ParquetBytes) -> Result<ArrowReaderMetadata, ParquetError> {
    check_footer(stored)?;
    let index = {
        let policy = PageIndexPolicy::Skip;
        let options = ArrowReaderOptions::new().with_offset_index_policy(policy);
        let metadata = ArrowReaderMetadata::load(stored, options)?;
        check_groups(metadata.metadata(), stored.len())?;
        check_indexes(metadata.metadata(), stored)?
    };
    let options = || ArrowReaderOptions::new().with_offset_index_policy(index);
    let mut metadata = ArrowReaderMetadata::load(stored, options())?;
    let pairs = metadata.metadata().file_metadata().key_value_metadata();
    let is_of_arrow =
        pairs.is_some_and(|pairs| pairs.iter().any(|pair| pair.key == ARROW_SCHEMA_META_KEY));
    // An Arrow writer stores its own interval type in the file, and fills only the parts of this
    // type. Other writers fill all three parts. No Arrow type can decode all three parts, so
    // columns of other writers are read as bytes.
    let intervals = match is_of_arrow {
        true => Vec::new(),
        false => metadata.parquet_schema().columns().iter().map(is_interval).collect(),
    };
    if intervals.contains(&true) {
        let amended = Arc::new(without_intervals(metadata.parquet_schema())?);
        metadata = ArrowReaderMetadata::load(stored, options().with_parquet_schema(amended))?;
    }
    let wanted = decoded_fields(metadata.schema(), metadata.parquet_schema(), is_of_arrow);
    let wanted = mark_extension_types(&wanted, metadata.parquet_schema(), &intervals);
    let wanted = Schema::new_with_metadata(wanted, metadata.schema().metadata().clone());
    let parsed: Arc<ParquetMetaData> = metadata.metadata().clone();
    ArrowReaderMetadata::try_new(parsed, options().with_schema(Arc::new(wanted)))
}

fn invalid<T>(why: impl Into<String>) -> Result<T, ParquetError> {
    Err(ParquetError::General(why.into()))
}

/// Checks the length of the footer, and the schema in the footer.
fn check_footer(stored: &ParquetBytes) -> Result<(), ParquetError> {
    let len = stored.len();
    let tail = stored.get_bytes(len - 8, 8)?;
    let footer = tail.first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    // 12 bytes are the magic bytes at both ends and the length of the footer.
    let most = len.saturating_sub(12);
    if footer > most {
        return invalid(format!("the footer states {footer} bytes, expected at most {most}"));
    }
    let footer = stored.get_bytes(len - 8 - footer, footer as usize)?;
    check_schema(&footer, NESTED_MAX).or_else(invalid)
}

/// Checks the number of rows and the positions of columns.
fn check_groups(metadata: &ParquetMetaData, len: u64) -> Result<(), ParquetError> {
    let mut rows = 0_i64;
    for (group_index, group) in metadata.row_groups().iter().enumerate() {
        let group_rows = group.num_rows();
        let sum = rows.checked_add(group_rows).filter(|_| group_rows >= 0);
        let Some(sum) = sum else {
            return invalid(format!(
                "row group {group_index} states {group_rows} rows, after {rows} rows"
            ));
        };
        rows = sum;
        for column in group.columns() {
            let name = column.column_path().string();
            let column_name = format!("column \"{name}\" of row group {group_index}");
            if !is_within(column, len) {
                let (start, size) = (first_page(column), column.compressed_size());
                return invalid(format!(
                    "{column_name} states {size} bytes from byte {start} on, but the file has {len}"
                ));
            }
            if column.num_values() < 0 || column.uncompressed_size() < 0 {
                let (values, size) = (column.num_values(), column.uncompressed_size());
                return invalid(format!("{column_name} states {values} values of {size} bytes"));
            }
        }
    }
    Ok(())
}

fn first_page(column: &ColumnChunkMetaData) -> i64 {
    column.dictionary_page_offset().unwrap_or(column.data_page_offset())
}

fn is_within(column: &ColumnChunkMetaData, len: u64) -> bool {
    let start = u64::try_from(first_page(column)).ok();
    let size = u64::try_from(column.compressed_size()).ok();
    let end = start.zip(size).and_then(|(start, size)| start.checked_add(size));
    end.is_some_and(|end| end <= len)
}

/// Checks the page indexes, because the decoder allocates memory for the number of pages that an
/// index states. Returns whether to read the indexes.
fn check_indexes(
    metadata: &ParquetMetaData,
    stored: &ParquetBytes,
) -> Result<PageIndexPolicy, ParquetError> {
    let groups = metadata.row_groups().iter().enumerate();
    let mut ranges = Vec::new();
    for (group_index, column) in
        groups.flat_map(|(index, group)| group.columns().iter().map(move |c| (index, c)))
    {
        let (Some(start), Some(size)) =
            (column.offset_index_offset(), column.offset_index_length())
        else {
            continue;
        };
        let range = u64::try_from(start).ok().zip(u64::try_from(size).ok());
        let range = range.filter(|(start, size)| {
            start.checked_add(*size).is_some_and(|end| end <= stored.len())
        });
        let Some((start, size)) = range else {
            let (name, len) = (column.column_path().string(), stored.len());
            return invalid(format!(
                "column \"{name}\" of row group {group_index} states an index of {size} bytes \
                 at byte {start}, but the file has {len}"
            ));
        };
        ranges.push((start, size));
    }
    let start = ranges.iter().map(|(start, _)| *start).min().unwrap_or(0);
    let end = ranges.iter().map(|(start, size)| start + size).max().unwrap_or(0);
    if end - start > INDEX_BYTES_MAX {
        return Ok(PageIndexPolicy::Skip);
    }
    let bytes = stored.get_bytes(start, (end - start) as usize)?;
    for (at, size) in ranges {
        let index = &bytes[(at - start) as usize..][..size as usize];
        // Each page has at least one byte. An invalid index is left to the decoder.
        if let Ok(pages) = index_pages(index)
            && pages > size
        {
            return invalid(format!("the index at byte {at} states {pages} pages in {size} bytes"));
        }
    }
    Ok(PageIndexPolicy::Optional)
}

/// Returns the columns as fields with the Arrow types to which they are decoded.
fn decoded_fields(schema: &Schema, parquet: &SchemaDescriptor, is_of_arrow: bool) -> Vec<Field> {
    let decoded = |field: Field, leaf: &ColumnDescPtr| {
        let ty = match field.data_type() {
            // 64 bits of nanoseconds end in 2262, and later timestamps would wrap around without an
            // error. An Arrow writer had its INT96 values in the type that it stored.
            DataType::Timestamp(TimeUnit::Nanosecond, None)
                if leaf.physical_type() == Physical::INT96 && !is_of_arrow =>
            {
                DataType::Timestamp(TimeUnit::Microsecond, None)
            }
            DataType::Binary if leaf.converted_type() == ConvertedType::ENUM => DataType::Utf8,
            ty => ty.clone(),
        };
        field.with_data_type(ty)
    };
    let mut leaves = parquet.columns().iter();
    let fields = schema.fields().iter().map(|root| with_leaves(root, &mut leaves, &decoded));
    let with_views = |field: Field| {
        let ty = match field.data_type() {
            // Views refer to the pages; other strings would be copied.
            DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
            ty => ty.clone(),
        };
        field.with_data_type(ty)
    };
    fields.map(with_views).collect()
}

/// Returns a field with its leaves changed. Takes the columns of the leaves from `leaves`.
fn with_leaves(
    field: &Field,
    leaves: &mut slice::Iter<'_, ColumnDescPtr>,
    change: &dyn Fn(Field, &ColumnDescPtr) -> Field,
) -> Field {
    let mut inner = |field: &FieldRef| Arc::new(with_leaves(field, leaves, change));
    let ty = match field.data_type() {
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        DataType::List(item) => DataType::List(inner(item)),
        DataType::LargeList(item) => DataType::LargeList(inner(item)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(inner(item), *len),
        DataType::Map(entries, is_sorted) => DataType::Map(inner(entries), *is_sorted),
        _ => {
            let field = field.clone();
            return match leaves.next() {
                Some(leaf) => change(field, leaf),
                None => field,
            };
        }
    };
    field.clone().with_data_type(ty)
}

fn is_interval(leaf: &ColumnDescPtr) -> bool {
    leaf.converted_type() == ConvertedType::INTERVAL
}

/// Returns the schema with INTERVAL columns as plain bytes.
fn without_intervals(schema: &SchemaDescriptor) -> Result<SchemaDescriptor, ParquetError> {
    Ok(SchemaDescriptor::new(without_interval_type(&schema.root_schema_ptr())?))
}

fn without_interval_type(ty: &TypePtr) -> Result<TypePtr, ParquetError> {
    let info = ty.get_basic_info();
    let id = info.has_id().then(|| info.id());
    match ty.as_ref() {
        Type::PrimitiveType { physical_type, type_length, .. } => {
            if info.converted_type() != ConvertedType::INTERVAL {
                return Ok(ty.clone());
            }
            let built = Type::primitive_type_builder(info.name(), *physical_type)
                .with_repetition(info.repetition())
                .with_length(*type_length)
                .with_id(id)
                .build()?;
            Ok(Arc::new(built))
        }
        Type::GroupType { fields, .. } => {
            let fields = fields.iter().map(without_interval_type).collect::<Result<Vec<_>, _>>()?;
            let mut builder = Type::group_type_builder(info.name())
                .with_fields(fields)
                .with_converted_type(info.converted_type())
                .with_logical_type(info.logical_type_ref().cloned())
                .with_id(id);
            if info.has_repetition() {
                builder = builder.with_repetition(info.repetition());
            }
            Ok(Arc::new(builder.build()?))
        }
    }
}

/// Marks the leaves whose logical type Arrow does not have as extension types. `intervals` says of
/// each leaf whether it was an interval, or is empty.
fn mark_extension_types(
    fields: &[Field],
    parquet: &SchemaDescriptor,
    intervals: &[bool],
) -> Vec<Field> {
    let ordinal = Cell::new(0);
    let marked = |field: Field, leaf: &ColumnDescPtr| {
        let was_interval = intervals.get(ordinal.replace(ordinal.get() + 1)) == Some(&true);
        let extension = match leaf.logical_type_ref() {
            Some(LogicalType::Json) => "arrow.json",
            Some(LogicalType::Uuid) => "arrow.uuid",
            None if leaf.converted_type() == ConvertedType::JSON => "arrow.json",
            None if was_interval => PARQUET_INTERVAL,
            _ => return field,
        };
        let mut metadata = field.metadata().clone();
        metadata.insert(EXTENSION.to_owned(), extension.to_owned());
        field.with_metadata(metadata)
    };
    let mut leaves = parquet.columns().iter();
    fields.iter().map(|root| with_leaves(root, &mut leaves, &marked)).collect()
}

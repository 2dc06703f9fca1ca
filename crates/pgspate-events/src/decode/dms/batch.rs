//! Decodes Parquet files of DMS. Files of changes have a column `Op`; files of the initial load do
//! not.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;

use super::super::json::malformed;
use super::super::json_values::{TypeFamily, text};
use super::{Dms, no_table_error};
use crate::decode::TargetTypes;
use crate::{ChangeEvent, ChangeKind, EventRow, EventValue, Result, SourceTable};
use pgspate_input::encode::arrow::AppendText;
use pgspate_input::encode::arrow::text::{byte_values, scalar_writer, with_nulls, write_hex};

/// Rows of a batch are decoded until their events take this much memory.
const PART_BYTES: usize = 1 << 20;

/// The table and columns of the last batch, shared by its events.
#[derive(Debug, Default)]
pub(super) struct LastBatchColumns {
    table: Option<Arc<SourceTable>>,
    columns: Option<Arc<[Box<str>]>>,
}

impl Dms {
    /// Adds the events of a batch's first rows, and returns the number of these rows. All rows
    /// belong to the table that the options name. Decoding stops after 1 MiB of events, because
    /// rows may share the bytes of a value and events do not. Decoding also stops before a row that
    /// is refused.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Format`] if the first row has an unknown operation, or if a column has a
    /// type without a text form. `events` is unchanged then.
    pub fn batch(
        &mut self,
        batch: &RecordBatch,
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<usize> {
        let Some(name) = &self.options.table else { return Err(no_table_error()) };
        let table = match &self.batches.table {
            Some(table) => table.clone(),
            None => self.batches.table.insert(Arc::new(name.clone())).clone(),
        };
        let mut ops = None;
        let (mut names, mut writers) = (Vec::new(), Vec::new());
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            if field.name() == "Op" {
                ops = scalar_writer(column.as_ref());
                continue;
            }
            let family = types
                .type_of(&table, field.name())
                .map_or(TypeFamily::Other, |ty| TypeFamily::of(&ty));
            let Some(write) = write(column.as_ref(), &family) else {
                let (name, ty) = (field.name(), field.data_type());
                return Err(malformed(format!(
                    "column \"{name}\" has type {ty}, which is not supported"
                )));
            };
            names.push(Box::<str>::from(field.name().as_str()));
            writers.push(write);
        }
        let columns = self.batches.columns(names);
        let mut scratch = Vec::new();
        let mut held = 0;
        for row in 0..batch.num_rows() {
            let (op, values) = match cells(ops.as_ref(), &writers, row, &mut scratch) {
                Err(_) if row > 0 => return Ok(row),
                cells => cells?,
            };
            let columns = Some(EventRow { columns: columns.clone(), values });
            let (new, old) =
                if op == ChangeKind::Delete { (None, columns) } else { (columns, None) };
            let event = ChangeEvent::of(table.clone(), op, old, new);
            held += event.held_bytes();
            events.push(event);
            if held >= PART_BYTES {
                return Ok(row + 1);
            }
        }
        Ok(batch.num_rows())
    }
}

impl LastBatchColumns {
    fn columns(&mut self, names: Vec<Box<str>>) -> Arc<[Box<str>]> {
        match &self.columns {
            Some(columns) if **columns == *names => columns.clone(),
            _ => self.columns.insert(names.into()).clone(),
        }
    }
}

/// Returns the writer of the text of a column's values.
fn write<'a>(column: &'a dyn Array, family: &TypeFamily) -> Option<AppendText<'a>> {
    let is_binary = matches!(
        column.data_type(),
        DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_)
    );
    if is_binary && *family == TypeFamily::Bytea {
        let bytes = byte_values(column)?;
        return Some(with_nulls(column, move |row, out| write_hex(bytes(row), out)));
    }
    scalar_writer(column)
}

/// Reads the operation and the values of a row.
fn cells(
    ops: Option<&AppendText<'_>>,
    writers: &[AppendText<'_>],
    row: usize,
    scratch: &mut Vec<u8>,
) -> Result<(ChangeKind, Vec<EventValue>)> {
    let op = operation(ops, row, scratch)?;
    let mut values = Vec::with_capacity(writers.len());
    for write in writers {
        values.push(value(write, row, scratch)?);
    }
    Ok((op, values))
}

fn value(write: &AppendText<'_>, row: usize, scratch: &mut Vec<u8>) -> Result<EventValue> {
    scratch.clear();
    if !write(row, scratch) {
        return Ok(EventValue::Null);
    }
    match std::str::from_utf8(scratch) {
        Ok(value) if !value.contains('\0') => Ok(text(value)),
        _ => Err(malformed("a value is not valid text")),
    }
}

fn operation(
    ops: Option<&AppendText<'_>>,
    row: usize,
    scratch: &mut Vec<u8>,
) -> Result<ChangeKind> {
    let Some(ops) = ops else { return Ok(ChangeKind::Snapshot) };
    scratch.clear();
    match (ops(row, scratch), scratch.as_slice()) {
        (true, b"I") => Ok(ChangeKind::Insert),
        (true, b"U") => Ok(ChangeKind::Update),
        (true, b"D") => Ok(ChangeKind::Delete),
        (false, _) => Ok(ChangeKind::Snapshot),
        _ => Err(malformed("expected \"Op\" to be I, U or D")),
    }
}

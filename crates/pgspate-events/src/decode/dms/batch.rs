//! Rows of Parquet files, which DMS writes with a column `ChangeKind` for changes and without for a
//! load.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;

use super::super::cast::{TypeFamily, text};
use super::super::json::malformed;
use super::{Dms, unnamed};
use crate::decode::TargetTypes;
use crate::{ChangeEvent, SourceTable, ChangeKind, Result, EventRow, EventValue};
use pgspate_input::encode::arrow::Write;
use pgspate_input::encode::arrow::text::{bytes, scalar, write_hex, writer};

/// Rows are decoded until their events take so many bytes.
const PART_BYTES: usize = 1 << 20;

/// The table and columns of the last batch.
#[derive(Debug, Default)]
pub(super) struct Names {
    table: Option<Arc<SourceTable>>,
    columns: Option<Arc<[Box<str>]>>,
}

impl Dms {
    /// Adds the events of a batch's first rows, and returns how many rows that is. All rows are of
    /// the table that the options name. It takes as many as fit into 1 MiB, because rows may share
    /// the bytes of a value and events do not, and stops before a row that is refused.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Format`] for a first row whose operation is none of DMS's, and for a
    /// column of a type that has no text. `events` is then as it was.
    pub fn batch(
        &mut self,
        batch: &RecordBatch,
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<usize> {
        let Some(name) = &self.options.table else { return Err(unnamed()) };
        let table = match &self.batches.table {
            Some(table) => table.clone(),
            None => self.batches.table.insert(Arc::new(name.clone())).clone(),
        };
        let mut ops = None;
        let (mut names, mut writers) = (Vec::new(), Vec::new());
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            if field.name() == "Op" {
                ops = scalar(column.as_ref());
                continue;
            }
            let form = types.of(&table, field.name()).map_or(TypeFamily::Other, |ty| TypeFamily::of(&ty));
            let Some(write) = write(column.as_ref(), &form) else {
                let (name, ty) = (field.name(), field.data_type());
                return Err(malformed(format!("column \"{name}\" of type {ty} is not read")));
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
            let (new, old) = if op == ChangeKind::Delete { (None, columns) } else { (columns, None) };
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

impl Names {
    fn columns(&mut self, names: Vec<Box<str>>) -> Arc<[Box<str>]> {
        match &self.columns {
            Some(columns) if **columns == *names => columns.clone(),
            _ => self.columns.insert(names.into()).clone(),
        }
    }
}

/// What writes the text of a column's values.
fn write<'a>(column: &'a dyn Array, form: &TypeFamily) -> Option<Write<'a>> {
    let is_binary = matches!(
        column.data_type(),
        DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_)
    );
    if is_binary && *form == TypeFamily::Bytea {
        let bytes = bytes(column)?;
        return Some(writer(column, move |row, out| write_hex(bytes(row), out)));
    }
    scalar(column)
}

/// What a row says.
fn cells(
    ops: Option<&Write<'_>>,
    writers: &[Write<'_>],
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

fn value(write: &Write<'_>, row: usize, scratch: &mut Vec<u8>) -> Result<EventValue> {
    scratch.clear();
    if !write(row, scratch) {
        return Ok(EventValue::Null);
    }
    match std::str::from_utf8(scratch) {
        Ok(value) if !value.contains('\0') => Ok(text(value)),
        _ => Err(malformed("a value is no text")),
    }
}

fn operation(ops: Option<&Write<'_>>, row: usize, scratch: &mut Vec<u8>) -> Result<ChangeKind> {
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

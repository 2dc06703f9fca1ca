//! A row whose key changed, told as a delete and an insert: which two belong together.
//!
//! Headers say it. Records that have none are told apart by the place in the source's log, which
//! both have from the one change. Two that are not known to be one are never joined: an insert that
//! leaves a value out is then refused.

use std::sync::Arc;

use super::super::json::Json;
use super::super::shape::cells;
use super::message::{Message, find};
use super::{Debezium, has_absent};
use crate::decode::Grouping;
use crate::{ChangeEvent, SourceTable, ChangeKind, Result, EventRow, EventValue};

/// A row that was deleted by the last event.
#[derive(Debug)]
pub(super) struct Deleted {
    table: Arc<SourceTable>,
    /// What is known of it that tells it from others.
    row: EventRow,
    /// Where the change stands in the source's log.
    written: Option<Box<str>>,
}

impl Debezium {
    /// Makes an insert an update if it is the other half of the delete before, and keeps a delete
    /// that may be the first half of a change.
    pub(super) fn pair(
        &mut self,
        mut event: ChangeEvent,
        written: Option<Box<str>>,
        message: &Message<'_>,
    ) -> Result<ChangeEvent> {
        let deleted = self.deleted.take().filter(|deleted| deleted.table == event.table);
        if message.is_scattered {
            return Ok(event);
        }
        let Some(new) = &event.new else {
            self.keep(&event, written, message);
            return Ok(event);
        };
        let Some(deleted) = deleted else { return Ok(event) };
        let is_moved = message.header("__debezium.oldkey")?.is_some();
        match event.op {
            // The header says which row; its tombstone had none.
            ChangeKind::Update
                if is_moved && event.old.as_ref().is_some_and(|old| is_same(old, &deleted.row)) =>
            {
                self.grouping = Grouping::Pairs;
            }
            ChangeKind::Insert | ChangeKind::Update
                if event.old.is_none()
                    && has_absent(new)
                    && written.is_some()
                    && written == deleted.written =>
            {
                event.op = ChangeKind::Update;
                event.old = Some(deleted.row);
                self.grouping = Grouping::Pairs;
            }
            _ => {}
        }
        Ok(event)
    }

    fn keep(&mut self, event: &ChangeEvent, written: Option<Box<str>>, message: &Message<'_>) {
        // With headers one that is half of a change would have said so.
        let (ChangeKind::Delete, Some(old), false) = (event.op, &event.old, message.has_headers()) else {
            return;
        };
        if !may_be_half(message, written.is_some()) {
            return;
        }
        let cells = old.columns.iter().zip(&old.values);
        let told = cells.filter(|(_, value)| matches!(value, EventValue::Text(_)));
        let (columns, values): (Vec<_>, Vec<_>) =
            told.map(|(column, value)| (column.clone(), value.clone())).unzip();
        self.grouping = Grouping::MayPair;
        let row = EventRow { columns: columns.into(), values };
        self.deleted = Some(Deleted { table: event.table.clone(), row, written });
    }
}

/// Whether the delete that a message tells may be half of a change whose other half leaves values
/// out. A row that was told whole before is told whole after.
fn may_be_half(message: &Message<'_>, is_placed: bool) -> bool {
    let Some(value) = &message.value else { return true };
    let before = match find(value, "before").map(|before| cells(before, "a row")) {
        Some(Ok(before)) => before,
        Some(Err(_)) => return is_placed,
        None => value.clone(),
    };
    is_placed && before.iter().any(|(_, value)| *value == Json::Null)
}

/// Whether what is told of a row is all of the key of the other one.
fn is_same(key: &EventRow, row: &EventRow) -> bool {
    let mut cells = key.columns.iter().zip(&key.values);
    !key.columns.is_empty()
        && cells.all(|(column, value)| {
            let at = row.columns.iter().position(|name| name == column);
            at.is_some_and(|at| row.values[at] == *value)
        })
}

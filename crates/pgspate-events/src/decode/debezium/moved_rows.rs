//! Joins the delete and the insert that Debezium writes for a changed key to one update.
//!
//! Headers tell which two records belong together. Without headers, a delete and an insert belong
//! together if the insert omits a value and both records have the same place in the source's log.
//! Other records are never joined. If an insert that is not joined omits a value, the insert is
//! refused.

use std::sync::Arc;

use super::super::json::Json;
use super::super::source_tables::cells;
use super::message::{DebeziumMessage, find};
use super::{Debezium, has_absent};
use crate::decode::RecordGrouping;
use crate::{ChangeEvent, ChangeKind, EventRow, EventValue, Result, SourceTable};

/// The row that the last event deleted.
#[derive(Debug)]
pub(super) struct DeletedRow {
    table: Arc<SourceTable>,
    /// The columns of the deleted row whose values the delete gave.
    row: EventRow,
    /// The place of the change in the source's log.
    log_place: Option<Box<str>>,
}

impl Debezium {
    /// Turns an insert into an update if the insert is the second half of a changed key. Keeps a
    /// delete that may be the first half of a changed key.
    pub(super) fn join_moved_row(
        &mut self,
        mut event: ChangeEvent,
        log_place: Option<Box<str>>,
        message: &DebeziumMessage<'_>,
    ) -> Result<ChangeEvent> {
        let deleted = self.deleted.take().filter(|deleted| deleted.table == event.table);
        if message.is_unordered {
            return Ok(event);
        }
        let Some(new) = &event.new else {
            self.keep_delete(&event, log_place, message);
            return Ok(event);
        };
        let Some(deleted) = deleted else { return Ok(event) };
        let is_moved = message.header("__debezium.oldkey")?.is_some();
        match event.op {
            // The header of this insert gives the old key, but the previous delete had no headers.
            ChangeKind::Update
                if is_moved && event.old.as_ref().is_some_and(|old| is_same(old, &deleted.row)) =>
            {
                self.grouping = RecordGrouping::SecondHalf;
            }
            ChangeKind::Insert | ChangeKind::Update
                if event.old.is_none()
                    && has_absent(new)
                    && log_place.is_some()
                    && log_place == deleted.log_place =>
            {
                event.op = ChangeKind::Update;
                event.old = Some(deleted.row);
                self.grouping = RecordGrouping::SecondHalf;
            }
            _ => {}
        }
        Ok(event)
    }

    /// Keeps a delete that may be the first half of a changed key.
    fn keep_delete(
        &mut self,
        event: &ChangeEvent,
        log_place: Option<Box<str>>,
        message: &DebeziumMessage<'_>,
    ) {
        // Only a delete without headers is kept. If the message has headers, they tell whether the
        // delete is half of a changed key.
        let (ChangeKind::Delete, Some(old), false) = (event.op, &event.old, message.has_headers())
        else {
            return;
        };
        if !may_be_half(message, log_place.is_some()) {
            return;
        }
        let cells = old.columns.iter().zip(&old.values);
        let texts = cells.filter(|(_, value)| matches!(value, EventValue::Text(_)));
        let (columns, values): (Vec<_>, Vec<_>) =
            texts.map(|(column, value)| (column.clone(), value.clone())).unzip();
        self.grouping = RecordGrouping::MayBeFirstHalf;
        let row = EventRow { columns: columns.into(), values };
        self.deleted = Some(DeletedRow { table: event.table.clone(), row, log_place });
    }
}

/// Returns whether a delete may be the first half of a changed key whose insert omits values. If
/// the source sends whole old rows, the source sends whole new rows, too. `is_placed`: the delete
/// gives its place in the source's log.
fn may_be_half(message: &DebeziumMessage<'_>, is_placed: bool) -> bool {
    let Some(value) = &message.value else { return true };
    let before = match find(value, "before").map(|before| cells(before, "a row")) {
        Some(Ok(before)) => before,
        Some(Err(_)) => return is_placed,
        None => value.clone(),
    };
    is_placed && before.iter().any(|(_, value)| *value == Json::Null)
}

/// Returns whether a row has all columns of a key, with the values of the key.
fn is_same(key: &EventRow, row: &EventRow) -> bool {
    let mut cells = key.columns.iter().zip(&key.values);
    !key.columns.is_empty()
        && cells.all(|(column, value)| {
            let at = row.columns.iter().position(|name| name == column);
            at.is_some_and(|at| row.values[at] == *value)
        })
}

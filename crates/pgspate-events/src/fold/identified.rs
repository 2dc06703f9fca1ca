//! Checks that an event says which row it is about.

use super::FoldKey;
use crate::event::ChangeKind;
use crate::log::{EventLog, LoggedEvent, LoggedValue, RowImage};
use crate::{Error, ErrorKind, Result};

/// Checks that an event identifies its row, before the event is added to a log. `all` are the
/// table's columns.
///
/// # Errors
/// [`ErrorKind::Format`] for an event without a row, without its key, or, where the table has no
/// key, without its whole old row.
pub fn check_row_is_identified(
    log: &EventLog,
    change: &LoggedEvent,
    fold_key: &FoldKey,
    all: &[usize],
) -> Result<()> {
    let is_there =
        |image, column| matches!(log.cell_in_either(change, image, column), LoggedValue::Text(_));
    let refuse = |message: &str| Err(Error::new(ErrorKind::Format, message));
    if change.op == ChangeKind::Truncate {
        return Ok(());
    }
    let is_new =
        matches!(change.op, ChangeKind::Insert | ChangeKind::Snapshot | ChangeKind::Update);
    if is_new && change.new.is_none() {
        return refuse("the event has no row");
    }
    if change.op == ChangeKind::Delete && change.old.is_none() && change.new.is_none() {
        return refuse("the event does not say which row is deleted");
    }
    if fold_key.columns.is_empty() {
        let is_whole = || {
            change.old.is_some_and(|old| {
                all.iter().all(|column| log.cell(change.width, old, *column) != LoggedValue::Absent)
            })
        };
        if matches!(change.op, ChangeKind::Update | ChangeKind::Delete) && !is_whole() {
            let message = "the table has no primary key, and the event does not have the whole old \
                           row";
            return refuse(message).map_err(|error| {
                error.hint(
                    "Give the table a primary key, or have the source send whole old rows, with \
                     all columns of the target: in PostgreSQL, `alter table ... replica identity \
                     full`.",
                )
            });
        }
        return Ok(());
    }
    let image = if change.op == ChangeKind::Delete { RowImage::Old } else { RowImage::New };
    match fold_key.columns.iter().all(|(column, _)| is_there(image, *column)) {
        true => Ok(()),
        false => refuse("the event does not have all columns of the key"),
    }
}

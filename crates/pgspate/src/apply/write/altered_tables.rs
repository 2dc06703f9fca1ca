//! Notices that a target table was altered after its columns were read, and encodes a batch again.
//!
//! The definitions are compared after the batch is written and before its commit. By then the
//! transaction holds locks on the tables, so no table is altered in between. A batch that is sent
//! at once has a statement that the server refuses if a table was altered.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::session::WriterSession;
use crate::apply::batch::{EventBatch, encode_folded_rows};
use crate::apply::route::ApplyTable;
use crate::reading::missing_table_error;
use crate::{Error, ErrorKind, Result};
use pgspate_target::{ALTERED_TABLES, KnownDefinitions, read_session};

/// What the checks do, in words that follow "could not".
pub(super) const CHECK_TASK: &str = "check whether tables were altered";

/// Returns the tables that a batch changes and whose columns are known as the server has them.
fn checked_tables(batch: &EventBatch) -> impl Iterator<Item = &ApplyTable> {
    batch.written_tables().filter(|facts| facts.has_fingerprint())
}

/// Returns the definitions of the tables that a batch changes.
pub(super) fn checked_definitions(batch: &EventBatch) -> KnownDefinitions<'_> {
    ApplyTable::known_definitions(checked_tables(batch))
}

/// Returns whether a table of the batch is known to be altered.
pub(super) fn has_altered_tables(batch: &EventBatch) -> bool {
    batch.column_additions.is_empty()
        && checked_tables(batch).any(|facts| facts.is_outdated.load(Relaxed))
}

/// Asks the server whether a table of the batch was altered, and marks such tables.
pub(super) async fn find_altered(session: &mut WriterSession, batch: &EventBatch) -> Result<bool> {
    let known = checked_definitions(batch);
    if known.is_empty() || !batch.column_additions.is_empty() {
        return Ok(false);
    }
    let statement = session.prepare(&ALTERED_TABLES, CHECK_TASK).await?;
    let rows = session.connection.client.query(&statement, &known.parameters()).await;
    let failed = |error| session.connection.explain(format!("could not {CHECK_TASK}"), error);
    let altered: Vec<u32> = rows.map_err(failed)?.iter().map(|row| row.get(0)).collect();
    for facts in checked_tables(batch).filter(|facts| altered.contains(&facts.table.oid)) {
        facts.is_outdated.store(true, Relaxed);
    }
    Ok(!altered.is_empty())
}

/// Marks tables that got columns by the batch, so that the router reads the columns' types.
pub(super) fn mark_widened_tables(batch: &EventBatch) {
    for facts in batch.tables.iter().filter(|facts| !facts.has_fingerprint()) {
        facts.is_outdated.store(true, Relaxed);
    }
}

/// Reads the altered tables of a batch again, and encodes the batch again. No transaction is open.
///
/// # Errors
/// [`ErrorKind::Plan`] if a table has lost a column that an event gives, or has another key, or if
/// one of its columns is no longer generated.
pub(super) async fn encode_again(session: &WriterSession, batch: &mut EventBatch) -> Result<()> {
    let client = &session.connection.client;
    let settings = read_session(client).await?;
    for (at, facts) in batch.tables.iter_mut().enumerate() {
        if !facts.is_outdated.load(Relaxed) || !facts.has_fingerprint() {
            continue;
        }
        let name = &facts.table.sql_name;
        let Some(mut new) = ApplyTable::read(client, &settings, name).await? else {
            return Err(missing_table_error(name));
        };
        let place = |name: &str| new.columns.iter().position(|column| column.name == name);
        let places: Vec<_> =
            facts.columns.iter().map(|it| place(&it.name).map(|at| at as u16)).collect();
        if !batch.log.move_columns(at, &places, new.columns.len() as u16) {
            return Err(altered_table_error(name));
        }
        if let Some(column) = facts.generated.iter().find(|it| place(it).is_some()) {
            return Err(no_longer_generated_error(name, column));
        }
        if !new.has_key_of(facts) {
            return Err(altered_key_error(name));
        }
        if new.table.fingerprint == facts.table.fingerprint {
            // The batch's own statements change the definition, for example by a trigger. So the
            // table is not checked again.
            new.table.fingerprint.clear();
        }
        *facts = Arc::new(new);
    }
    batch.encoded_tables =
        encode_folded_rows(&batch.log, 0..batch.complete_changes, &batch.tables)?;
    Ok(())
}

/// Returns the error for events that were read for columns that the table no longer has.
fn altered_table_error(name: &str) -> Error {
    let message = format!("a column of {name} was dropped or renamed while its events were read");
    Error::new(ErrorKind::Plan, message)
        .hint("The events are not applied. Run the same command again.")
}

/// Returns the error for events that were read without the values of a column.
fn no_longer_generated_error(name: &str, column: &str) -> Error {
    let message = format!("column {column} of {name} is no longer generated");
    Error::new(ErrorKind::Plan, message).hint(
        "The events were read without its values, and are not applied. Run the same command again.",
    )
}

/// Returns the error for events that were checked against another key. An event that identified its
/// row by the old key may not identify the row by the new key, or without a key.
fn altered_key_error(name: &str) -> Error {
    let message = format!("the key of {name} changed while its events were read");
    Error::new(ErrorKind::Plan, message).hint(
        "The events are not applied. Run the same command again, which reads the key that the \
         table has now. A table without a key needs whole old rows from the source.",
    )
}

/// Returns the error for a source transaction of which a part was written before the alteration was
/// noticed.
pub(super) fn altered_within_transaction_error() -> Error {
    let message = "a target table was altered while a source transaction was read";
    Error::new(ErrorKind::Plan, message).hint(
        "The transaction was larger than a batch and is no longer in memory. Run the same command \
         again.",
    )
}

//! Sends a small batch of one table as one statement, which also moves the stream's position.
//!
//! The statement is a transaction of its own. So the next statement may be sent before this one is
//! answered. A statement fails if the stream is not where its batch begins. So all statements behind
//! a failed one fail, too.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _, MaybeDone, maybe_done};
use tokio_postgres::types::ToSql;

use super::direct::{RowParameters, can_write_directly, poll_once};
use super::session::WriterSession;
use super::statements::{ApplyStatements, ROWS_PARAMETER, RowSource};
use crate::Result;
use crate::apply::batch::{EncodedTable, EventBatch};
use crate::apply::route::ApplyTable;
use crate::apply::write::ApplyCounts;
use pgspate_target::ledger::{AppliedStream, StreamPosition};

/// What a statement does, in words that follow "could not".
pub(super) const BATCH_TASK: &str = "apply a batch of events";

/// Returns the table and rows of a batch that one statement can write.
pub(super) fn only_table(
    batch: &EventBatch,
    rows_max: u64,
) -> Option<(&ApplyTable, &EncodedTable)> {
    let [encoded] = &batch.encoded_tables[..] else { return None };
    let facts = &*batch.tables[encoded.table];
    let rows = encoded.deletes + encoded.upserts;
    let may_repeat_keys = encoded.may_repeat_keys && rows > 1;
    let is_possible = facts.may_write_by_one_statement()
        && rows > 0
        && batch.events > 0
        && !may_repeat_keys
        && can_write_directly(batch, rows_max);
    is_possible.then_some((facts, encoded))
}

/// The answer to a statement that was sent.
pub(super) struct PendingAnswer(
    MaybeDone<BoxFuture<'static, Result<ApplyCounts, tokio_postgres::Error>>>,
);

impl PendingAnswer {
    /// Returns whether the answer has arrived.
    pub(super) async fn has_arrived(&mut self) -> bool {
        poll_once(std::pin::Pin::new(&mut self.0)).await;
        matches!(self.0, MaybeDone::Done(_))
    }

    /// Waits for the answer.
    pub(super) async fn wait(&mut self) {
        (&mut self.0).await;
    }

    /// Returns the answer that has arrived.
    pub(super) fn take(mut self) -> Option<Result<ApplyCounts, tokio_postgres::Error>> {
        std::pin::Pin::new(&mut self.0).take_output()
    }
}

/// Sends the batch, whose only table is `facts`, as one statement. The stream is at the position
/// `from` when the statements before have been executed. Returns `None`, with nothing sent, if the
/// table was altered.
///
/// # Errors
/// When the statement cannot be prepared. Nothing is sent then.
pub(super) async fn send(
    session: &mut WriterSession,
    batch: &EventBatch,
    (facts, encoded): (&ApplyTable, &EncodedTable),
    stream: &AppliedStream,
    from: &StreamPosition,
) -> Result<Option<PendingAnswer>> {
    let Some(mark) = session.definition_mark(facts).await? else { return Ok(None) };
    let statements = ApplyStatements::new(facts, encoded, RowSource::Parameters, false);
    if statements.identity_changes().is_some() {
        return Ok(None);
    }
    let statement = session.prepare(&statements.whole_batch(encoded), BATCH_TASK).await?;
    let mut parameters = stream.move_parameters(from, &batch.end_position);
    let rows = RowParameters::new(facts, encoded, statement.params().get(ROWS_PARAMETER))?;
    parameters.extend(rows.into_boxes());
    parameters.push(Box::new(facts.table.oid));
    parameters.push(Box::new(mark));
    parameters.push(Box::new(false));
    let mut known = ApplyCounts { missing: encoded.missing, ..ApplyCounts::default() };
    let client = Arc::clone(&session.connection.client);
    let answer = async move {
        let values = parameters.iter().map(|it| &**it as &(dyn ToSql + Sync));
        let row = client.query_one(&statement, &values.collect::<Vec<_>>()).await?;
        let count = |at: usize| row.get::<_, i64>(at).unsigned_abs();
        (known.deleted, known.updated, known.inserted) = (count(0), count(1), count(2));
        known.missing += count(3);
        Ok(known)
    };
    let mut pending = PendingAnswer(maybe_done(answer.boxed()));
    // The first poll sends the statement.
    pending.has_arrived().await;
    Ok(Some(pending))
}

//! Sends a small batch of one table as one statement, which also moves the stream's position.
//!
//! The statement is a transaction of its own. So the next statement may be sent before this one is
//! answered. A statement fails if the stream is not where its batch begins. So all statements
//! behind a failed one fail, too.

use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use futures_util::TryStreamExt as _;
use futures_util::future::FutureExt as _;
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::direct::{RowParameters, can_write_directly};
use super::session::{BatchStatement, WriterSession};
use super::statements::{ApplyStatements, ROWS_PARAMETER, RowSource};
use crate::Result;
use crate::apply::batch::{EncodedTable, EventBatch};
use crate::apply::route::ApplyTable;
use crate::apply::write::ApplyCounts;
use pgspate_target::ledger::{AppliedStream, OwnedParameters, StreamPosition};

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitWait {
    /// Until the server's settings say that the commit is safe: on the disk, or on a standby.
    Disk,
    None,
}

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

/// The answer to a statement that was sent. A task of its own receives it: while another statement
/// is prepared, the session would otherwise stop reading at an answer that no one takes.
pub(super) struct PendingAnswer {
    /// What the batch did. Set before the server has said that it is committed.
    counts: Arc<OnceLock<ApplyCounts>>,
    end: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.end.abort();
    }
}

impl PendingAnswer {
    /// Returns whether the answer has arrived.
    pub(super) fn has_arrived(&self) -> bool {
        self.end.is_finished()
    }

    /// Waits for the answer. Returns the counts, if they have arrived, and whether the batch is
    /// committed.
    pub(super) async fn wait(mut self) -> (Option<ApplyCounts>, Result<(), tokio_postgres::Error>) {
        let end = (&mut self.end).await;
        let end = end.unwrap_or_else(|failed| resume_unwind(failed.into_panic()));
        (self.counts.get().cloned(), end)
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
    (stream, from): (&AppliedStream, &StreamPosition),
    wait: CommitWait,
) -> Result<Option<PendingAnswer>> {
    let statements = ApplyStatements::new(facts, encoded, RowSource::Parameters, false);
    if statements.identity_changes().is_some() {
        return Ok(None);
    }
    let sql = statements.whole_batch(encoded, session.may_return_merged);
    let prepared = session.prepare_for_batches(facts, sql, BATCH_TASK).await?;
    let Some(BatchStatement { statement, definition_mark }) = prepared else { return Ok(None) };
    let mut parameters = stream.move_parameters(from, &batch.end_position);
    let rows = RowParameters::new(facts, encoded, statement.params().get(ROWS_PARAMETER))?;
    parameters.extend(rows.into_boxes());
    parameters.push(Box::new(facts.table.oid));
    parameters.push(Box::new(definition_mark));
    parameters.push(Box::new(wait == CommitWait::None));
    let counts = Arc::new(OnceLock::new());
    let answer = BatchAnswer {
        client: Arc::clone(&session.connection.client),
        known_missing: encoded.missing,
        counts: Arc::clone(&counts),
    };
    let mut end = answer.receive(statement, parameters).boxed();
    // The first poll sends the statement, before any later one.
    let first = poll_fn(|context| Poll::Ready(end.poll_unpin(context))).await;
    let end = tokio::spawn(async move {
        match first {
            Poll::Ready(received) => received,
            Poll::Pending => end.await,
        }
    });
    Ok(Some(PendingAnswer { counts, end }))
}

/// Where the answer to a statement goes.
struct BatchAnswer {
    client: Arc<Client>,
    /// Updates of rows that are known to be absent.
    known_missing: u64,
    counts: Arc<OnceLock<ApplyCounts>>,
}

impl BatchAnswer {
    /// Sends the statement, and receives its answer up to the end of its transaction.
    async fn receive(
        self,
        statement: Statement,
        parameters: OwnedParameters,
    ) -> Result<(), tokio_postgres::Error> {
        let values = parameters.iter().map(|it| &**it as &(dyn ToSql + Sync));
        let mut rows = pin!(self.client.query_raw(&statement, values).await?);
        while let Some(row) = rows.try_next().await? {
            let count = |at: usize| row.get::<_, i64>(at).unsigned_abs();
            let _ = self.counts.set(ApplyCounts {
                deleted: count(0),
                updated: count(1),
                inserted: count(2),
                missing: count(3) + self.known_missing,
                ..ApplyCounts::default()
            });
        }
        Ok(())
    }
}

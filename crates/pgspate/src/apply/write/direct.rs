//! Writes a small batch without a stage: all messages are sent before the first reply arrives.
//!
//! The messages are the statements of a round with the rows as parameters, a check that no table
//! was altered, the new position, and the commit. A refused statement aborts the transaction, so
//! the commit behind it commits nothing.
//! A refused batch is then written again with a stage. So this module need not find the event at
//! fault.

use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::{BufMut, BytesMut};
use futures_util::future::{MaybeDone, maybe_done};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, Kind as TypeKind, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Statement};

use super::altered_tables::{CHECK_TASK, checked_definitions};
use super::is_row_refusal;
use super::round::may_act_on_wrong_rows;
use super::session::WriterSession;
use super::steps::{self, RoundStep, RoundTable};
use crate::apply::batch::{ColumnPresence, EncodedTable, EventBatch};
use crate::apply::route::ApplyTable;
use crate::apply::write::ApplyCounts;
use crate::apply::write::statements::RowSource;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{AppliedStream, OwnedParameters};
use pgspate_target::{KnownDefinitions, REFUSE_ALTERED_TABLES};

/// Larger batches are staged, because parameters are held in memory as a whole.
const DIRECT_BYTES_MAX: usize = 4 << 20;

/// Checks whether a batch is a whole transaction whose rows can be sent as parameters.
pub(super) fn can_write_directly(batch: &EventBatch, rows_max: u64) -> bool {
    let rows: u64 = batch.encoded_tables.iter().map(|it| it.deletes + it.upserts).sum();
    let takes = |it: &EncodedTable| {
        let facts = &batch.tables[it.table];
        let may_cascade = it.has_moved_away && !facts.cascading_referrers.is_empty();
        let may_take_keys = it.has_key_conflict || it.has_key_claims;
        let fills_columns = it.has_moved_rows || it.has_defaults;
        let gives = |at: &usize| it.presence[*at] != ColumnPresence::Never;
        let may_act =
            may_act_on_wrong_rows(facts, it) || rows > 1 && facts.acting_columns.iter().any(gives);
        let needs_stage = it.truncates || fills_columns || may_cascade || may_take_keys || may_act;
        let has_text = !it.copy_data.text_rows.is_empty();
        facts.record_types.is_some() && facts.has_key() && !needs_stage && !has_text
    };
    let bytes: usize = batch.encoded_tables.iter().map(|it| it.copy_data.binary.len()).sum();
    // Positions of partitions are written with staged batches only.
    let is_plain = batch.column_additions.is_empty()
        && batch.rejected.is_empty()
        && batch.partition_moves.is_empty();
    (batch.ends_transaction && is_plain)
        && (rows <= rows_max && bytes <= DIRECT_BYTES_MAX)
        && batch.encoded_tables.iter().all(takes)
}

/// Writes and commits a batch. Sets `outcome` to what the batch did. Returns false if the server
/// refused a statement and nothing was written. The session then stops using parameters, unless a
/// row or a cancel request is the cause.
///
/// # Errors
/// When the session is lost, when the whole batch may be retried, when a lock is not granted in
/// time, and when another process took the stream over. If the batch was committed all the same,
/// `outcome` has the replies up to then.
pub(super) async fn write(
    session: &mut WriterSession,
    batch: &EventBatch,
    stream: &AppliedStream,
    outcome: &mut DirectOutcome,
) -> Result<bool> {
    let round_tables =
        steps::order_tables(&batch.tables, &batch.encoded_tables, RowSource::Parameters, false);
    let steps = steps::round_steps(&round_tables, false);
    let mut answers = Vec::with_capacity(steps.len());
    let sent = send_batch(session, &round_tables, &steps, batch, stream, &mut answers).await;
    outcome.is_complete = answers.len() == steps.len();
    outcome.counts.missing +=
        round_tables.iter().map(|round_table| round_table.encoded.missing).sum::<u64>();
    for (step, rows) in steps.iter().zip(answers) {
        steps::count_step(step, &round_tables[step.round_table], rows, &mut outcome.counts);
    }
    match sent {
        Ok(()) => Ok(true),
        Err(error) if error.is_retryable() || error.kind() != ErrorKind::Server => Err(error),
        // The stage would wait for the lock once more.
        Err(error) if error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Err(error),
        Err(error) => {
            *outcome = DirectOutcome::default();
            let is_cancelled = error.sqlstate() == Some(&SqlState::QUERY_CANCELED);
            // For example, a new column changes the table's row type.
            session.may_use_parameters &= is_row_refusal(&error) || is_cancelled;
            Ok(false)
        }
    }
}

/// What a batch did, by the server's replies.
#[derive(Debug, Default)]
pub(super) struct DirectOutcome {
    pub(super) counts: ApplyCounts,
    /// Whether all replies arrived.
    pub(super) is_complete: bool,
}

/// Sends the whole transaction. `answers` gets each step's reply, also when later replies are lost.
async fn send_batch(
    session: &mut WriterSession,
    round_tables: &[RoundTable<'_>],
    steps: &[RoundStep],
    batch: &EventBatch,
    stream: &AppliedStream,
    answers: &mut Vec<u64>,
) -> Result<()> {
    let mut statements = Vec::with_capacity(steps.len());
    for step in steps {
        statements.push(session.prepare(&step.sql, &step.task).await?);
    }
    let check = session.prepare(&REFUSE_ALTERED_TABLES, CHECK_TASK).await?;
    let advance = session.prepare(&AppliedStream::advance_sql(), "advance the stream").await?;
    let mut rows: Vec<Option<RowParameters>> = round_tables.iter().map(|_| None).collect();
    for (step, statement) in steps.iter().zip(&statements) {
        if rows[step.round_table].is_none() {
            let RoundTable { facts, encoded, .. } = &round_tables[step.round_table];
            rows[step.round_table] =
                Some(RowParameters::new(facts, encoded, statement.params().first())?);
        }
    }
    let begin = format!("{}; {}", session.begin_sql(), stream.mark_transaction_sql());
    let connection = &session.connection;
    let mut begin = pin!(maybe_done(run_sql(connection, &begin, "begin a transaction")));
    let mut asked: Vec<Pin<Box<MaybeDone<_>>>> = Vec::with_capacity(steps.len());
    for (step, statement) in steps.iter().zip(&statements) {
        let rows = rows[step.round_table].as_ref();
        asked.push(Box::pin(maybe_done(run_step(connection, step, statement, rows))));
    }
    let definitions = checked_definitions(batch);
    let mut checked = pin!(maybe_done(check_definitions(connection, &check, &definitions)));
    let mut moved =
        pin!(maybe_done(stream.advance_within(&connection.client, &advance, &batch.end_position)));
    let mut commit = pin!(maybe_done(run_sql(connection, "commit", "commit")));
    // The first poll of a future sends its message. So this is the order of the messages.
    poll_once(begin.as_mut()).await;
    for one in &mut asked {
        poll_once(one.as_mut()).await;
    }
    poll_once(checked.as_mut()).await;
    poll_once(moved.as_mut()).await;
    poll_once(commit.as_mut()).await;
    // Wait for all replies before using any of them.
    begin.as_mut().await;
    for one in &mut asked {
        one.as_mut().await;
    }
    checked.as_mut().await;
    moved.as_mut().await;
    commit.as_mut().await;
    take_answer(begin.take_output())?;
    for one in &mut asked {
        answers.push(take_answer(one.as_mut().take_output())?);
    }
    take_answer(checked.take_output())?;
    take_answer(moved.take_output())?;
    take_answer(commit.take_output())
}

/// Returns the reply of a future that has finished.
fn take_answer<T>(output: Option<Result<T>>) -> Result<T> {
    output.unwrap_or_else(|| Err(Error::new(ErrorKind::Bug, "a reply was taken before it arrived")))
}

/// Polls a future once, which sends its message.
async fn poll_once<F: Future>(mut future: Pin<&mut MaybeDone<F>>) {
    std::future::poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

/// Runs statements without rows. `task` completes "could not".
async fn run_sql(connection: &Connection, sql: &str, task: &str) -> Result<()> {
    let outcome = connection.client.batch_execute(sql).await;
    outcome.map_err(|error| connection.explain(format!("could not {task}"), error))
}

/// Runs the statement that the server refuses if a table was altered.
async fn check_definitions(
    connection: &Connection,
    check: &Statement,
    known: &KnownDefinitions<'_>,
) -> Result<()> {
    let outcome = connection.client.execute(check, &known.parameters()).await;
    outcome.map(drop).map_err(|error| connection.explain(format!("could not {CHECK_TASK}"), error))
}

/// Runs a step. Returns the number of rows written, or the number that the step asks for.
async fn run_step(
    connection: &Connection,
    step: &RoundStep,
    statement: &Statement,
    rows: Option<&RowParameters>,
) -> Result<u64> {
    let Some(rows) = rows else { return Err(Error::new(ErrorKind::Bug, "a step has no rows")) };
    let values: [&(dyn ToSql + Sync); 3] = [&rows.rows, &rows.actions, &rows.presence];
    let client: &Client = &connection.client;
    let answer = match step.action {
        action if action.returns_count() => client.query_one(statement, &values).await.map(|row| {
            let count: i64 = row.get(0);
            count.unsigned_abs()
        }),
        action if action.returns_value() => client.query_one(statement, &values).await.map(|_| 0),
        _ => client.execute(statement, &values).await,
    };
    answer.map_err(|error| connection.explain(format!("could not {}", step.task), error))
}

/// The rows of a table as parameters of a statement.
pub(super) struct RowParameters {
    rows: ParameterArray,
    actions: ParameterArray,
    presence: ParameterArray,
}

/// A parameter of an array type, in the binary format of the server.
#[derive(Debug)]
struct ParameterArray(BytesMut);

impl ParameterArray {
    /// Begins an array of `elements` elements of the type with OID `element`. The elements follow.
    fn new(element: u32, elements: u64) -> ParameterArray {
        let mut out = BytesMut::new();
        // One dimension, no NULL, the element type; then the length and the first index, 1.
        out.put_i32(1);
        out.put_i32(0);
        out.put_u32(element);
        out.put_i32(elements as i32);
        out.put_i32(1);
        ParameterArray(out)
    }
}

impl ToSql for ParameterArray {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(ty.kind(), TypeKind::Array(_))
    }

    to_sql_checked!();
}

impl RowParameters {
    /// Makes parameters of rows that were encoded for a stage. The statement has the rows in a
    /// parameter of type `array`.
    pub(super) fn new(
        facts: &ApplyTable,
        encoded: &EncodedTable,
        array: Option<&Type>,
    ) -> Result<RowParameters> {
        let bug =
            || Error::new(ErrorKind::Bug, "the encoded rows of a batch do not fit their statement");
        let element = array.and_then(|ty| match ty.kind() {
            TypeKind::Array(element) => Some(element.oid()),
            _ => None,
        });
        let copy_data = &encoded.copy_data;
        let count = copy_data.binary_rows;
        let mut rows = RowParameters {
            rows: ParameterArray::new(element.ok_or_else(bug)?, count),
            actions: ParameterArray::new(Type::INT2.oid(), count),
            presence: ParameterArray::new(Type::BYTEA.oid(), count),
        };
        let mut rest = &copy_data.binary[..];
        for _ in 0..count {
            rest = rows.add(facts, rest).ok_or_else(bug)?;
        }
        Ok(rows)
    }

    /// Returns the parameters in their order.
    pub(super) fn into_boxes(self) -> OwnedParameters {
        vec![Box::new(self.rows), Box::new(self.actions), Box::new(self.presence)]
    }

    /// Adds the first row of `bytes`. Returns the bytes after the row.
    fn add<'a>(&mut self, facts: &ApplyTable, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let record_types = facts.record_types.as_ref()?;
        // Skip the number of fields.
        let mut rest = bytes.get(2..)?;
        let out = &mut self.rows.0;
        let start = out.len();
        out.put_i32(0);
        out.put_i32(record_types.len() as i32);
        for (ty, is_written) in record_types {
            out.put_u32(*ty);
            match is_written {
                true => out.put_slice(take_field(&mut rest)?),
                // Generated columns are NULL.
                false => out.put_i32(-1),
            }
        }
        let len = (out.len() - start - 4) as i32;
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        self.actions.0.put_slice(take_field(&mut rest)?);
        self.presence.0.put_slice(take_field(&mut rest)?);
        for _ in &facts.fold_key.columns {
            take_field(&mut rest)?;
        }
        Some(rest)
    }
}

/// Takes a field with its length off the bytes.
fn take_field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = i32::from_be_bytes(*rest.first_chunk::<4>()?);
    let (field, after) = rest.split_at_checked(4 + usize::try_from(len).unwrap_or(0))?;
    *rest = after;
    Some(field)
}

//! A small batch, sent as a whole: the statements of a round with its rows as their parameters, the
//! position, and the commit, without waiting for an answer in between.
//!
//! A statement that is refused ends the transaction, so that the commit which was sent after it
//! commits nothing. Whatever the server refuses is then done step by step, as other batches are:
//! so nothing here need find out which event it was.

use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::{BufMut, BytesMut};
use futures_util::future::{MaybeDone, maybe_done};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{Kind as TypeKind, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Statement};

use super::is_of_data;
use super::round::{self, StepAction, RoundTable, RoundStep};
use super::session::WriterSession;
use crate::apply::batch::{EventBatch, EncodedTable};
use crate::apply::route::ApplyTable;
use crate::apply::write::ApplyCounts;
use crate::apply::write::statements::RowSource;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::Stream;

/// Larger batches are staged, however few rows they have: parameters are in memory as a whole.
const BYTES_MAX: usize = 4 << 20;

/// Whether a batch is one transaction of rows that can be given as parameters.
pub(super) fn takes(batch: &EventBatch, rows_max: u64) -> bool {
    let takes = |it: &EncodedTable| {
        let facts = &batch.tables[it.table];
        let follows = it.has_left && !facts.followers.is_empty();
        let asks = it.has_clash || it.has_takes;
        let is_staged = it.truncates || it.has_moves || it.has_fresh || follows || asks;
        let has_text = !it.encoded.text_rows.is_empty();
        facts.record.is_some() && facts.has_key() && !is_staged && !has_text
    };
    let rows: u64 = batch.prepared.iter().map(|it| it.goes + it.comes).sum();
    let bytes: usize = batch.prepared.iter().map(|it| it.encoded.binary.len()).sum();
    // What moves parts of a stream on is written with a stage.
    let is_plain =
        batch.additions.is_empty() && batch.rejected.is_empty() && batch.parts.is_empty();
    (batch.commits && is_plain)
        && (rows <= rows_max && bytes <= BYTES_MAX)
        && batch.prepared.iter().all(takes)
}

/// Writes and commits a batch, of which `done` then says what it did. False: nothing of it is
/// there, as the server refuses something. What is no fault of the rows, and will not pass, keeps
/// the session from trying again.
///
/// # Errors
/// A session that is lost, and what may be tried again as a whole; a stream that is another's now.
/// If it was committed all the same, `done` is what the server had said by then.
pub(super) async fn write(
    session: &mut WriterSession,
    batch: &EventBatch,
    stream: &Stream,
    done: &mut DirectOutcome,
) -> Result<bool> {
    let parts = round::parts(&batch.tables, &batch.prepared, RowSource::Parameters, false);
    let steps = round::steps(&parts);
    let mut answers = Vec::with_capacity(steps.len());
    let sent = send(session, &parts, &steps, batch, stream, &mut answers).await;
    done.is_all = answers.len() == steps.len();
    done.counts.missing += parts.iter().map(|part| part.prepared.missing).sum::<u64>();
    for (step, rows) in steps.iter().zip(answers) {
        round::count(step, &parts[step.part], rows, &mut done.counts);
    }
    match sent {
        Ok(()) => Ok(true),
        Err(error) if error.is_retryable() || error.kind() != ErrorKind::Server => Err(error),
        Err(error) => {
            *done = DirectOutcome::default();
            // Such as a table that has got a column: its rows are other ones now.
            session.takes_parameters &= is_of_data(&error) || is_passing(&error);
            Ok(false)
        }
    }
}

/// What a batch did, by the server's answers.
#[derive(Debug, Default)]
pub(super) struct DirectOutcome {
    pub(super) counts: ApplyCounts,
    /// All have come.
    pub(super) is_all: bool,
}

/// Whether another batch may well be taken: a lock came too late, or somebody ended a statement.
fn is_passing(error: &Error) -> bool {
    let passing = [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED];
    error.sqlstate().is_some_and(|code| passing.contains(code))
}

/// Sends all that makes up the transaction. `answers`: what steps have given, also when what came
/// after them was lost.
async fn send(
    session: &mut WriterSession,
    parts: &[RoundTable<'_>],
    steps: &[RoundStep],
    batch: &EventBatch,
    stream: &Stream,
    answers: &mut Vec<u64>,
) -> Result<()> {
    let mut statements = Vec::with_capacity(steps.len());
    for step in steps {
        statements.push(session.prepare(&step.sql, &step.what).await?);
    }
    let advance = session.prepare(&Stream::advance_sql(), "move the stream on").await?;
    let mut rows: Vec<Option<RowParameters>> = parts.iter().map(|_| None).collect();
    for (step, statement) in steps.iter().zip(&statements) {
        if rows[step.part].is_none() {
            rows[step.part] = Some(RowParameters::new(&parts[step.part], statement)?);
        }
    }
    let begin = format!("{}; {}", session.begins(), stream.call_transaction());
    let connection = &session.connection;
    let mut begin = pin!(maybe_done(run(connection, &begin, "begin to apply")));
    let mut asked: Vec<Pin<Box<MaybeDone<_>>>> = Vec::with_capacity(steps.len());
    for (step, statement) in steps.iter().zip(&statements) {
        let rows = rows[step.part].as_ref();
        asked.push(Box::pin(maybe_done(ask(connection, step, statement, rows))));
    }
    let mut moved =
        pin!(maybe_done(stream.advance_within(&connection.client, &advance, &batch.end)));
    let mut commit = pin!(maybe_done(run(connection, "commit", "commit")));
    // What is looked at for the first time sends its message: in this order.
    start(begin.as_mut()).await;
    for one in &mut asked {
        start(one.as_mut()).await;
    }
    start(moved.as_mut()).await;
    start(commit.as_mut()).await;
    // All is answered before anything is made of it.
    begin.as_mut().await;
    for one in &mut asked {
        one.as_mut().await;
    }
    moved.as_mut().await;
    commit.as_mut().await;
    taken(begin.take_output())?;
    for one in &mut asked {
        answers.push(taken(one.as_mut().take_output())?);
    }
    taken(moved.take_output())?;
    taken(commit.take_output())
}

fn taken<T>(output: Option<Result<T>>) -> Result<T> {
    output.unwrap_or_else(|| Err(Error::new(ErrorKind::Bug, "an answer was taken before it came")))
}

async fn start<F: Future>(mut future: Pin<&mut MaybeDone<F>>) {
    std::future::poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

async fn run(connection: &Connection, sql: &str, what: &str) -> Result<()> {
    let done = connection.client.batch_execute(sql).await;
    done.map_err(|error| connection.explain(format!("could not {what}"), error))
}

/// Runs a step; the rows that it wrote, or the number that it asks for.
async fn ask(
    connection: &Connection,
    step: &RoundStep,
    statement: &Statement,
    rows: Option<&RowParameters>,
) -> Result<u64> {
    let Some(rows) = rows else { return Err(Error::new(ErrorKind::Bug, "a step has no rows")) };
    let values: [&(dyn ToSql + Sync); 3] = [&rows.rows, &rows.what, &rows.given];
    let client: &Client = &connection.client;
    let answer = match step.does {
        StepAction::AskMissing => client.query_one(statement, &values).await.map(|row| {
            let missing: i64 = row.get(0);
            missing.unsigned_abs()
        }),
        does if does.asks() => client.query_one(statement, &values).await.map(|_| 0),
        _ => client.execute(statement, &values).await,
    };
    answer.map_err(|error| connection.explain(format!("could not {}", step.what), error))
}

/// The rows of a part, as a statement takes them.
struct RowParameters {
    rows: ParameterArray,
    what: ParameterArray,
    given: ParameterArray,
}

/// An array, as the server receives it.
#[derive(Debug)]
struct ParameterArray(BytesMut);

impl ParameterArray {
    /// Of so many elements, which are to follow.
    fn new(element: u32, elements: u64) -> ParameterArray {
        let mut out = BytesMut::new();
        // One dimension, whose elements are counted from 1; no NULL.
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
    /// Of rows that were encoded for a stage.
    fn new(part: &RoundTable<'_>, statement: &Statement) -> Result<RowParameters> {
        let bug = || Error::new(ErrorKind::Bug, "the rows of a batch are not as they were encoded");
        let element = statement.params().first().and_then(|ty| match ty.kind() {
            TypeKind::Array(element) => Some(element.oid()),
            _ => None,
        });
        let (facts, encoded) = (part.facts, &part.prepared.encoded);
        let count = encoded.binary_rows;
        let mut rows = RowParameters {
            rows: ParameterArray::new(element.ok_or_else(bug)?, count),
            what: ParameterArray::new(Type::INT2.oid(), count),
            given: ParameterArray::new(Type::BYTEA.oid(), count),
        };
        let mut rest = &encoded.binary[..];
        for _ in 0..count {
            rest = rows.add(facts, rest).ok_or_else(bug)?;
        }
        Ok(rows)
    }

    /// Adds the row that the bytes begin with; those after it.
    fn add<'a>(&mut self, facts: &ApplyTable, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let record = facts.record.as_ref()?;
        // Behind the number of its fields.
        let mut rest = bytes.get(2..)?;
        let out = &mut self.rows.0;
        let start = out.len();
        out.put_i32(0);
        out.put_i32(record.len() as i32);
        for (ty, is_written) in record {
            out.put_u32(*ty);
            match is_written {
                true => out.put_slice(field(&mut rest)?),
                // What is generated is nobody's to give.
                false => out.put_i32(-1),
            }
        }
        let len = (out.len() - start - 4) as i32;
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        self.what.0.put_slice(field(&mut rest)?);
        self.given.0.put_slice(field(&mut rest)?);
        for _ in &facts.keying.columns {
            field(&mut rest)?;
        }
        Some(rest)
    }
}

/// Takes a field with its length off the bytes.
fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = i32::from_be_bytes(*rest.first_chunk::<4>()?);
    let (field, after) = rest.split_at_checked(4 + usize::try_from(len).unwrap_or(0))?;
    *rest = after;
    Some(field)
}

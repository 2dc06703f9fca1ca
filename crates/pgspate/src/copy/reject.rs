//! Writes the good rows of a chunk, and collects its rejected rows.
//!
//! Rows are sent as COPY text in input order. So the server checks every value, and refuses the
//! second of two equal keys. Each COPY runs under a savepoint, so that a refused COPY leaves
//! nothing behind. In the end every row is either written or rejected with the server's message.
//! The number of rows per COPY does not change which rows are rejected, unless a row depends on a
//! later row.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;

use super::batch_size::BatchSize;
use super::error_context::{CopyContext, refused_column};
use super::stream::copy_error;
use super::{CopyJob, PIECE_BYTES};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, EncodeMode, is_row_error};
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::Reject;
use pgspate_target::server_error;

/// Bytes of encoded rows that wait to be written. A refusal may send as many bytes again.
const QUEUE_BYTES: usize = 1 << 20;
/// Maximum number of provisional rejects: rows that may have to be tried again because of one other
/// row.
const PROVISIONAL_REJECTS_MAX: usize = 8;

const BEGIN: &str = "savepoint pgspate_reject";
const KEEP: &str = "release savepoint pgspate_reject";
const KEEP_AND_BEGIN: &str = "release savepoint pgspate_reject; savepoint pgspate_reject";
const ROLL_BACK: &str = "rollback to savepoint pgspate_reject";
const ROLL_BACK_AND_END: &str =
    "rollback to savepoint pgspate_reject; release savepoint pgspate_reject";

/// A chunk that is written without its bad rows.
#[derive(Debug)]
pub(super) struct ChunkWithRejects {
    /// Rows in the chunk.
    pub(super) rows_in: u64,
    /// Rows that the server reported as written. This excludes rejected rows and rows that a
    /// trigger skipped.
    pub(super) rows_written: u64,
    /// The rejected rows, in input order.
    pub(super) rejects: Vec<Reject>,
    /// Number of COPY statements; each takes two round trips.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests look at how much work it was"))]
    pub(super) copies: u64,
}

/// Writes the good rows of `chunk` in the open transaction. Deferred constraints are checked
/// immediately from here to the transaction's end. Encoding blocks the thread.
///
/// # Errors
/// When the error is not about a row. Examples are a lost connection, a full disk, a missing
/// permission, a deadlock, or a statement that is refused before a row is read. The transaction and
/// the connection must not be used then.
pub(super) async fn write_with_rejects(
    connection: &Connection,
    job: &CopyJob,
    encoder: &mut dyn ChunkEncoder,
    chunk: &Arc<Chunk>,
) -> Result<ChunkWithRejects> {
    let what = || "could not prepare a session to copy".to_owned();
    let client = &connection.client;
    let immediate = client.batch_execute("set constraints all immediate").await;
    immediate.map_err(server_error(what()))?;
    let statement = client.prepare(&job.setup.text_sql).await.map_err(server_error(what()))?;
    encoder.begin(Arc::clone(chunk), EncodeMode::Text)?;
    let mut writer = RejectingWriter {
        connection,
        job,
        statement,
        queue: RowQueue::default(),
        savepoint: SavepointState::Unset,
        batch_size: BatchSize::default(),
        rejects: Vec::new(),
        provisional: Vec::new(),
        rows_sent: 0,
        rows_written: 0,
        copies: 0,
    };
    writer.run(encoder).await?;
    writer.finish(encoder, chunk)
}

/// A rejected row whose bytes are not yet looked up.
#[derive(Debug)]
struct RefusedRow {
    row: u64,
    sqlstate: SqlState,
    message: String,
    column: Option<String>,
}

/// What was written since the savepoint.
#[derive(Clone, Copy, PartialEq)]
enum SavepointState {
    /// There is no savepoint yet.
    Unset,
    /// Rows were written after the savepoint and are kept.
    AfterWrite,
    /// Rows were refused after the savepoint.
    AfterRefusal,
    /// Nothing was sent after the savepoint.
    Empty,
}

struct RejectingWriter<'a> {
    connection: &'a Connection,
    job: &'a CopyJob,
    statement: Statement,
    queue: RowQueue,
    savepoint: SavepointState,
    batch_size: BatchSize,
    rejects: Vec<RefusedRow>,
    /// Provisional rejects, with the rows' bytes. The cause may be an earlier row that is not
    /// written yet and may be rejected itself, such as a row with the same key.
    provisional: Vec<(RefusedRow, Bytes)>,
    /// Rows in successful COPY statements.
    rows_sent: u64,
    rows_written: u64,
    copies: u64,
}

impl RejectingWriter<'_> {
    async fn run(&mut self, encoder: &mut dyn ChunkEncoder) -> Result<()> {
        loop {
            self.queue.fill(encoder, self.batch_size.rows_to_try(), &mut self.rejects)?;
            let rows = self.batch_size.rows_to_try().min(self.queue.rows.len());
            if rows == 0 {
                break;
            }
            self.copies += 1;
            match self.copy(rows).await? {
                Ok(written) => self.note_written(rows, written)?,
                Err(refusal) => self.handle_refusal(rows, refusal).await?,
            }
        }
        let end = match self.savepoint {
            SavepointState::Unset => return Ok(()),
            SavepointState::AfterWrite | SavepointState::Empty => KEEP,
            SavepointState::AfterRefusal => ROLL_BACK_AND_END,
        };
        let ended = self.connection.client.batch_execute(end).await;
        ended.map_err(|error| self.connection.explain("could not end a savepoint", error))
    }

    /// Copies the first rows of the queue. Returns the number of rows that the server reported, or
    /// its refusal.
    async fn copy(&mut self, rows: usize) -> Result<Result<u64, Error>> {
        let client = &self.connection.client;
        let failed = |error| self.connection.explain("could not copy", error);
        let before = match self.savepoint {
            SavepointState::Unset => BEGIN,
            SavepointState::AfterWrite => KEEP_AND_BEGIN,
            SavepointState::AfterRefusal => ROLL_BACK,
            SavepointState::Empty => "",
        };
        let prepare = async {
            match before {
                "" => Ok(()),
                sql => client.batch_execute(sql).await,
            }
        };
        // The savepoint cannot fail here, so both statements share a round trip.
        let (prepared, begun) =
            tokio::join!(biased; prepare, client.copy_in::<_, Bytes>(&self.statement));
        prepared.map_err(failed)?;
        self.savepoint = SavepointState::Empty;
        let mut sink = Box::pin(begun.map_err(failed)?);
        let mut piece = Vec::new();
        let rows = self.queue.rows.iter().take(rows).map(|(_, row)| row);
        for row in rows {
            if !piece.is_empty() && piece.len() + row.len() > PIECE_BYTES {
                // If the server has refused a row, `finish` returns the error.
                if sink.feed(std::mem::take(&mut piece).into()).await.is_err() {
                    break;
                }
            }
            piece.extend_from_slice(row);
        }
        let _ = sink.feed(piece.into()).await;
        let finished = sink.as_mut().finish().await;
        Ok(finished.map_err(|error| copy_error(self.connection, error)))
    }

    fn note_written(&mut self, rows: usize, written: u64) -> Result<()> {
        let sent = rows as u64;
        if written > sent || (written < sent && !self.job.may_drop_rows) {
            let message = format!("sent {sent} rows but the server wrote {written}");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.savepoint = SavepointState::AfterWrite;
        self.queue.take(rows);
        self.rows_sent += sent;
        self.rows_written += written;
        self.batch_size.note_written(rows);
        // All rows before the next row are written, so provisional rejects before it are final.
        let next = self.queue.rows.front().map_or(u64::MAX, |(row, _)| *row);
        let sure = self.provisional.extract_if(.., |(refused, _)| refused.row < next);
        self.rejects.extend(sure.map(|(refused, _)| refused));
        Ok(())
    }

    /// Rejects the row to blame, if it is known.
    async fn handle_refusal(&mut self, rows: usize, refusal: Error) -> Result<()> {
        let context = CopyContext::of_unless_ambiguous(&refusal, self.job);
        let nth = context.line.and_then(|line| usize::try_from(line.checked_sub(1)?).ok());
        let nth = nth.filter(|nth| *nth < rows);
        let is_named = nth.is_some();
        let said = refusal.refusal().map(|said| (said.code().clone(), said.message().to_owned()));
        let Some((sqlstate, message)) = said.filter(|(code, _)| is_row_error_code(code, is_named))
        else {
            return Err(refusal);
        };
        self.savepoint = SavepointState::AfterRefusal;
        if !is_named && !self.roll_back_in_step().await? {
            return Err(refusal);
        }
        let Some(nth) = nth.or((rows == 1).then_some(0)) else {
            self.batch_size.note_unnamed_refusal(rows);
            return Ok(());
        };
        match is_named {
            true => self.batch_size.note_named_refusal(nth),
            false => self.batch_size.note_single_refusal(),
        }
        let Some((row, text)) = self.queue.remove(nth) else { return Err(refusal) };
        self.retry_provisional_after(row);
        let depends = context.is_nested
            || matches!(sqlstate, SqlState::UNIQUE_VIOLATION | SqlState::EXCLUSION_VIOLATION);
        let column = refused_column(&refusal, self.job);
        let refused = RefusedRow { row, sqlstate, message, column };
        if nth == 0 || !depends {
            self.rejects.push(refused);
            return Ok(());
        }
        self.provisional.push((refused, text));
        if self.provisional.len() >= PROVISIONAL_REJECTS_MAX {
            self.batch_size.try_known_next();
        }
        Ok(())
    }

    /// Puts provisional rejects after `row` back into the queue, because the rejected `row` may
    /// have caused them.
    fn retry_provisional_after(&mut self, row: u64) {
        let again = self.provisional.extract_if(.., |(refused, _)| refused.row > row);
        for (refused, text) in again {
            let place = self.queue.put_back(refused.row, text);
            self.batch_size.note_put_back(place);
        }
    }

    /// Rolls back to the savepoint after a refusal that names no row, and returns whether the
    /// connection is still in step. If the server refused the statement before it read a byte, it
    /// sends one reply too many. The connection is unusable then, and the refusal is not about a
    /// row.
    async fn roll_back_in_step(&mut self) -> Result<bool> {
        match self.connection.client.simple_query(ROLL_BACK).await {
            Ok(answers) => {
                self.savepoint = SavepointState::Empty;
                Ok(!answers.is_empty())
            }
            Err(error) if error.as_db_error().is_some() => {
                Err(self.connection.explain("could not roll back to a savepoint", error))
            }
            Err(_) => Ok(false),
        }
    }

    fn finish(mut self, encoder: &dyn ChunkEncoder, chunk: &Chunk) -> Result<ChunkWithRejects> {
        let rows_in = self.queue.rows_in;
        let accounted = self.rows_sent + self.rejects.len() as u64;
        if accounted != rows_in {
            let message =
                format!("a chunk has {rows_in} rows, but {accounted} are written or rejected");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.rejects.sort_by_key(|refused| refused.row);
        let rows: Vec<u64> = self.rejects.iter().map(|refused| refused.row).collect();
        let records = encoder.records(chunk, &rows)?;
        let source = self.job.input_names.get(chunk.input);
        let rejects = self.rejects.into_iter().zip(records).map(|(refused, record)| {
            let RefusedRow { row, sqlstate, message, column } = refused;
            let place = InputPlace { source: source.cloned(), column, ..record.place };
            Reject { row, place, sqlstate, message, record: record.bytes }
        });
        Ok(ChunkWithRejects {
            rows_in,
            rows_written: self.rows_written,
            rejects: rejects.collect(),
            copies: self.copies,
        })
    }
}

/// Rows that are encoded and not written yet, in input order.
#[derive(Default)]
struct RowQueue {
    rows: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Number of rows that the encoder has read, including malformed ones.
    rows_in: u64,
    at_end: bool,
    out: Encoded,
}

impl RowQueue {
    /// Encodes until there are `wanted` rows, or enough bytes.
    fn fill(
        &mut self,
        encoder: &mut dyn ChunkEncoder,
        wanted: usize,
        rejects: &mut Vec<RefusedRow>,
    ) -> Result<()> {
        while !self.at_end && self.rows.len() < wanted && self.bytes < QUEUE_BYTES {
            let filled = encoder.fill(&mut self.out, PIECE_BYTES);
            self.split()?;
            match filled {
                Ok(more) => self.at_end = !more,
                Err(error) => {
                    let code = error.sqlstate().filter(|_| is_row_error(&error)).cloned();
                    let Some(sqlstate) = code else { return Err(error) };
                    let column = error.place().and_then(|place| place.column.clone());
                    let message = error.to_string();
                    rejects.push(RefusedRow { row: self.rows_in, sqlstate, message, column });
                    self.rows_in += 1;
                }
            }
        }
        Ok(())
    }

    /// Splits the encoder's output into rows.
    fn split(&mut self) -> Result<()> {
        let text = Bytes::from(std::mem::take(&mut self.out.text));
        let mut start = 0;
        for row in self.out.text_rows.drain(..) {
            let end = line_end(&text, start).filter(|_| row == self.rows_in);
            let Some(end) = end else {
                return Err(Error::new(ErrorKind::Bug, "rows as text are not one line each"));
            };
            self.rows.push_back((row, text.slice(start..end)));
            self.rows_in += 1;
            start = end;
        }
        self.bytes += text.len();
        if start != text.len() || self.out.binary_rows > 0 {
            return Err(Error::new(ErrorKind::Bug, "rows as text are not one line each"));
        }
        Ok(())
    }

    fn take(&mut self, rows: usize) {
        self.bytes -= self.rows.drain(..rows).map(|(_, row)| row.len()).sum::<usize>();
    }

    fn remove(&mut self, nth: usize) -> Option<(u64, Bytes)> {
        let removed = self.rows.remove(nth)?;
        self.bytes -= removed.1.len();
        Some(removed)
    }

    /// Puts a row back at its place; returns its index.
    fn put_back(&mut self, row: u64, text: Bytes) -> usize {
        let place = self.rows.partition_point(|(other, _)| *other < row);
        self.bytes += text.len();
        self.rows.insert(place, (row, text));
        place
    }
}

/// Returns the end of the line of COPY text that begins at `start`. A newline after a backslash is
/// data.
fn line_end(text: &[u8], start: usize) -> Option<usize> {
    let newlines = memchr::memchr_iter(b'\n', &text[start..]).map(|at| start + at);
    let escapes = |at: usize| text[start..at].iter().rev().take_while(|byte| **byte == b'\\');
    newlines
        .map(|at| (at, escapes(at).count()))
        .find(|(_, escapes)| escapes % 2 == 0)
        .map(|(at, _)| at + 1)
}

/// Returns whether a load's error is about one row, so that the row can be rejected.
pub(crate) fn blames_one_row(error: &Error) -> bool {
    let names_row = error.place().is_some_and(|place| place.line.or(place.row).is_some());
    let is_refused = |code| is_row_error_code(code, names_row);
    is_row_error(error) || error.sqlstate().is_some_and(is_refused)
}

/// Returns whether an error with this SQLSTATE depends on a row's content, so that other rows may
/// succeed. Most codes count if the server names a row, because input functions and triggers may
/// raise any code: `regclass` raises one of class 42, extensions raise internal errors.
pub(crate) fn is_row_error_code(code: &SqlState, names_row: bool) -> bool {
    let code = code.code();
    let Some((class, _)) = code.split_at_checked(2) else { return false };
    match class {
        // Classes about the connection, the transaction, permissions, other sessions, resources and
        // the server.
        "08" | "25" | "28" | "40" | "53" | "55" | "57" | "58" | "72" | "F0" => false,
        // A missing permission; corrupted data and indexes.
        _ if matches!(code, "42501" | "XX001" | "XX002") => false,
        // Classes about triggers and their routines, values, constraints, check options and limits
        // of a row.
        "20" | "21" | "22" | "23" | "27" | "2F" | "38" | "39" | "44" | "54" | "P0" => true,
        "XX" | "HV" => names_row,
        // Classes that neither the SQL standard nor PostgreSQL uses are raised by triggers.
        _ => names_row || matches!(code.as_bytes()[0], b'5'..=b'9' | b'I'..=b'Z'),
    }
}

#[cfg(test)]
mod tests;

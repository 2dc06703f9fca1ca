//! Writes the good rows of a chunk, and collects its rejected rows.
//!
//! Rows are sent as COPY text in input order. So the server checks every value, and refuses the
//! second of two rows with the same key. Each COPY runs under a savepoint, so that a refused COPY
//! leaves nothing behind. In the end every row is either written, or rejected with the server's
//! message. The number of rows per COPY does not change which rows are rejected, unless a row
//! depends on a later row.

use std::collections::VecDeque;
use std::error::Error as _;
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
use pgspate_target::{ServerRefusal, server_error};

/// Bytes of encoded rows in the queue. After a refusal, as many bytes may be sent again.
const QUEUE_BYTES: usize = 1 << 20;
/// Maximum number of provisional rejects. A provisional reject is tried again if a row before it is
/// rejected.
const PROVISIONAL_REJECTS_MAX: usize = 8;

const BEGIN: &str = "savepoint pgspate_reject";
const RELEASE: &str = "release savepoint pgspate_reject";
const RELEASE_AND_BEGIN: &str = "release savepoint pgspate_reject; savepoint pgspate_reject";
const ROLL_BACK: &str = "rollback to savepoint pgspate_reject";
const ROLL_BACK_AND_END: &str =
    "rollback to savepoint pgspate_reject; release savepoint pgspate_reject";

/// The result of writing a chunk's good rows.
#[derive(Debug)]
pub(super) struct ChunkWithRejects {
    /// Rows in the chunk.
    pub(super) rows_in: u64,
    /// Rows that the server reported as written. This excludes rejected rows and rows that a
    /// trigger skipped.
    pub(super) rows_written: u64,
    /// The rejected rows, in input order.
    pub(super) rejects: Vec<Reject>,
    /// Number of COPY statements; each COPY takes two round trips.
    #[cfg_attr(not(test), allow(dead_code, reason = "only tests check the number of statements"))]
    pub(super) copies: u64,
}

/// Writes the good rows of `chunk` in the open transaction, and returns the bad rows as rejects.
/// Makes deferred constraints immediate until the transaction ends. Encoding blocks the thread.
///
/// # Errors
/// An error that is not about a row. Examples are a lost connection, a full disk, a missing
/// permission, a deadlock, or a statement that is refused before a row is read. The caller must not
/// use the transaction or the connection after an error.
pub(super) async fn write_good_rows(
    connection: &Connection,
    job: &CopyJob,
    encoder: &mut dyn ChunkEncoder,
    chunk: &Arc<Chunk>,
) -> Result<ChunkWithRejects> {
    let message = || "could not prepare a session to copy".to_owned();
    let client = &connection.client;
    let immediate = client.batch_execute("set constraints all immediate").await;
    immediate.map_err(server_error(message()))?;
    let statement = client.prepare(&job.setup.text_sql).await.map_err(server_error(message()))?;
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

/// A row that the server or the encoder refused.
#[derive(Debug)]
struct RefusedRow {
    /// The row's ordinal in the chunk.
    row: u64,
    sqlstate: SqlState,
    message: String,
    column: Option<String>,
}

/// What happened since the savepoint was set.
#[derive(Clone, Copy, PartialEq)]
enum SavepointState {
    /// There is no savepoint yet.
    Unset,
    /// Rows were written, which are kept.
    AfterWrite,
    /// A row was refused, so the transaction must be rolled back to the savepoint.
    AfterRefusal,
    /// Nothing was written.
    Empty,
}

/// Writes the rows of one chunk, and collects rejects.
struct RejectingWriter<'a> {
    connection: &'a Connection,
    job: &'a CopyJob,
    statement: Statement,
    queue: RowQueue,
    savepoint: SavepointState,
    batch_size: BatchSize,
    /// Final rejects.
    rejects: Vec<RefusedRow>,
    /// Provisional rejects, with the rows' bytes. Such a row may be refused because of an earlier
    /// row that is not written yet, such as a row with the same key. If the earlier row is
    /// rejected, the provisional reject is tried again.
    provisional: Vec<(RefusedRow, Bytes)>,
    /// Rows in successful COPY statements.
    rows_sent: u64,
    /// Rows that the server reported as written.
    rows_written: u64,
    /// Number of COPY statements.
    copies: u64,
}

impl RejectingWriter<'_> {
    /// Writes or rejects every row of the chunk.
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
            SavepointState::AfterWrite | SavepointState::Empty => RELEASE,
            SavepointState::AfterRefusal => ROLL_BACK_AND_END,
        };
        let ended = self.connection.client.batch_execute(end).await;
        ended.map_err(|error| self.connection.explain("could not end a savepoint", error))
    }

    /// Copies the first `rows` rows of the queue. Returns the number of rows that the server
    /// reported as written, or the server's refusal.
    async fn copy(&mut self, rows: usize) -> Result<Result<u64, Error>> {
        let client = &self.connection.client;
        let failed = |error| self.connection.explain("could not copy", error);
        let before = match self.savepoint {
            SavepointState::Unset => BEGIN,
            SavepointState::AfterWrite => RELEASE_AND_BEGIN,
            SavepointState::AfterRefusal => ROLL_BACK,
            SavepointState::Empty => "",
        };
        let prepare = async {
            match before {
                "" => Ok(()),
                sql => client.batch_execute(sql).await,
            }
        };
        // The savepoint's statement cannot fail here, so it shares a round trip with the COPY.
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

    /// Removes the first `rows` rows from the queue, because a COPY has written them. `written` is
    /// the number of rows that the server reported.
    fn note_written(&mut self, rows: usize, written: u64) -> Result<()> {
        let sent = rows as u64;
        if written > sent || (written < sent && !self.job.may_skip_rows) {
            let message = format!("sent {sent} rows but the server wrote {written}");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.savepoint = SavepointState::AfterWrite;
        self.queue.remove_first(rows);
        self.rows_sent += sent;
        self.rows_written += written;
        self.batch_size.note_written(rows);
        // All rows before the queue's first row are written or rejected. So provisional rejects
        // before that row are final.
        let next = self.queue.rows.front().map_or(u64::MAX, |(row, _)| *row);
        let confirmed = self.provisional.extract_if(.., |(refused, _)| refused.row < next);
        self.rejects.extend(confirmed.map(|(refused, _)| refused));
        Ok(())
    }

    /// Handles the refusal of a COPY of the first `rows` rows. Rejects the refused row if it is
    /// known; otherwise fewer rows are tried next.
    ///
    /// # Errors
    /// The refusal, if it is not about a row.
    async fn handle_refusal(&mut self, rows: usize, refusal: Error) -> Result<()> {
        let context = CopyContext::of_unless_ambiguous(&refusal, self.job);
        let index = context.line.and_then(|line| usize::try_from(line.checked_sub(1)?).ok());
        let index = index.filter(|index| *index < rows);
        let is_named = index.is_some();
        let reported = refusal.refusal().filter(|it| {
            is_row_error_code(it.code(), is_named)
                || self.job.storage.hides_sqlstate_of_violations && is_hidden_violation(it)
        });
        let Some((sqlstate, message)) =
            reported.map(|it| (it.code().clone(), it.message().to_owned()))
        else {
            return Err(refusal);
        };
        self.savepoint = SavepointState::AfterRefusal;
        if !is_named && !self.roll_back_unnamed_refusal().await? {
            return Err(refusal);
        }
        let Some(index) = index.or((rows == 1).then_some(0)) else {
            self.batch_size.note_unnamed_refusal(rows);
            return Ok(());
        };
        match is_named {
            true => self.batch_size.note_named_refusal(index),
            false => self.batch_size.note_single_refusal(),
        }
        let Some((row, text)) = self.queue.remove(index) else { return Err(refusal) };
        self.retry_provisional_after(row);
        let may_depend_on_other_row = context.is_nested
            || matches!(sqlstate, SqlState::UNIQUE_VIOLATION | SqlState::EXCLUSION_VIOLATION);
        let column = refused_column(&refusal, self.job);
        let refused = RefusedRow { row, sqlstate, message, column };
        if index == 0 || !may_depend_on_other_row {
            self.rejects.push(refused);
            return Ok(());
        }
        self.provisional.push((refused, text));
        if self.provisional.len() >= PROVISIONAL_REJECTS_MAX {
            self.batch_size.try_accepted_next();
        }
        Ok(())
    }

    /// Inserts the provisional rejects after `row` into the queue again. The server may have
    /// refused them because of `row`, which is rejected now.
    fn retry_provisional_after(&mut self, row: u64) {
        let again = self.provisional.extract_if(.., |(refused, _)| refused.row > row);
        for (refused, text) in again {
            let index = self.queue.insert(refused.row, text);
            self.batch_size.note_requeued(index);
        }
    }

    /// Rolls back to the savepoint after a refusal that names no row. Returns whether the
    /// connection is still usable.
    ///
    /// If the server refuses the COPY statement before it reads any data, it sends one reply more
    /// than the client expects. Then the connection is unusable, and the refusal is not about a
    /// row.
    async fn roll_back_unnamed_refusal(&mut self) -> Result<bool> {
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

    /// Checks that every row is written or rejected, and looks up the bytes of the rejected rows.
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
    /// Each row's ordinal in the chunk, and the row as one line of COPY text.
    rows: VecDeque<(u64, Bytes)>,
    /// Bytes of all rows in the queue.
    bytes: usize,
    /// Number of rows that the encoder has read, including malformed rows.
    rows_in: u64,
    /// Whether the encoder has reached the chunk's end.
    at_end: bool,
    out: Encoded,
}

impl RowQueue {
    /// Encodes until the queue has `wanted` rows or `QUEUE_BYTES` bytes. Rows that the encoder
    /// refuses become rejects.
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

    /// Splits the encoder's output into rows, and appends them to the queue.
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

    /// Removes the first `rows` rows.
    fn remove_first(&mut self, rows: usize) {
        self.bytes -= self.rows.drain(..rows).map(|(_, row)| row.len()).sum::<usize>();
    }

    fn remove(&mut self, index: usize) -> Option<(u64, Bytes)> {
        let removed = self.rows.remove(index)?;
        self.bytes -= removed.1.len();
        Some(removed)
    }

    /// Inserts a row in input order; returns the row's index in the queue.
    fn insert(&mut self, row: u64, text: Bytes) -> usize {
        let index = self.rows.partition_point(|(other, _)| *other < row);
        self.bytes += text.len();
        self.rows.insert(index, (row, text));
        index
    }
}

/// Returns the offset after the line of COPY text that begins at `start`. A newline after a
/// backslash is data.
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

/// Returns whether an internal error reports a violated constraint. Of the errors that another
/// server may have reported, only violations have a DETAIL.
fn is_hidden_violation(refusal: &ServerRefusal) -> bool {
    *refusal.code() == SqlState::INTERNAL_ERROR && refusal.source().is_some()
}

/// Returns whether an error with this SQLSTATE depends on a row's content, so that other rows may
/// be accepted. `names_row` says whether the server names a row. If it does, most codes depend on
/// the row, because input functions and triggers may raise any code. For example, the type
/// `regclass` raises codes of class 42, and extensions raise internal errors.
pub(crate) fn is_row_error_code(code: &SqlState, names_row: bool) -> bool {
    let code = code.code();
    let Some((class, _)) = code.split_at_checked(2) else { return false };
    match class {
        // Errors of the connection, the transaction, permissions, other sessions, resources and the
        // server.
        "08" | "25" | "28" | "40" | "53" | "55" | "57" | "58" | "72" | "F0" => false,
        // A missing permission, corrupted data or corrupted indexes.
        _ if matches!(code, "42501" | "XX001" | "XX002") => false,
        // Errors of triggers and their functions, values, constraints, check options and limits of
        // a row.
        "20" | "21" | "22" | "23" | "27" | "2F" | "38" | "39" | "44" | "54" | "P0" => true,
        "XX" | "HV" => names_row,
        // Neither the SQL standard nor PostgreSQL uses codes that begin with 5 to 9 or I to Z,
        // except for those above. So a trigger has raised such a code.
        _ => names_row || matches!(code.as_bytes()[0], b'5'..=b'9' | b'I'..=b'Z'),
    }
}

#[cfg(test)]
mod tests;

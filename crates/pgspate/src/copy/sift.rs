//! Writes the rows of a chunk that the server takes, and sets aside those that it refuses.
//!
//! Rows go as COPY text and in input order, so that the server judges every value, and of two
//! equal keys the second is refused. Each COPY stands under a savepoint: what it refuses leaves
//! nothing behind, and every row is in the end either written or set aside with the server's
//! words. How many rows go together changes nothing about which are refused, unless rows depend
//! on rows behind them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;

use super::context::{CopyContext, refused_column};
use super::pace::BatchSize;
use super::stream::refused_copy;
use super::{CopyJob, PIECE_BYTES};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, Mode, is_of_row};
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::Reject;
use pgspate_target::server_error;

/// Rows that wait to be written: what a refusal may cost once more.
const QUEUE_BYTES: usize = 1 << 20;
/// So many rows may at most have to be judged once more because of one.
const DOUBTS_MAX: usize = 8;

const BEGIN: &str = "savepoint pgspate_sift";
const KEEP: &str = "release savepoint pgspate_sift";
const KEEP_AND_BEGIN: &str = "release savepoint pgspate_sift; savepoint pgspate_sift";
const BACK: &str = "rollback to savepoint pgspate_sift";
const BACK_AND_END: &str = "rollback to savepoint pgspate_sift; release savepoint pgspate_sift";

/// What became of a chunk's rows.
#[derive(Debug)]
pub(super) struct ChunkWithRejects {
    /// Rows that the chunk has.
    pub(super) rows_in: u64,
    /// Rows that the server says it wrote: all that were not refused, but for those that a
    /// trigger kept out.
    pub(super) rows_written: u64,
    /// The others, in input order.
    pub(super) rejects: Vec<Reject>,
    /// COPY statements that it took; two round trips each.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests look at how much work it was"))]
    pub(super) copies: u64,
}

/// Writes the rows of `chunk` that can be written, in the transaction that is open. Deferred
/// constraints are checked at once from here to its end. Encoding blocks.
///
/// # Errors
/// What is about no row: a lost connection, a full disk, a missing permission, a deadlock, a
/// statement that is refused before it reads a row. The transaction must be given up then, and
/// the connection with it.
pub(super) async fn sift(
    connection: &Connection,
    job: &CopyJob,
    encoder: &mut dyn ChunkEncoder,
    chunk: &Arc<Chunk>,
) -> Result<ChunkWithRejects> {
    let what = || "could not prepare to copy".to_owned();
    let client = &connection.client;
    let at_once = client.batch_execute("set constraints all immediate").await;
    at_once.map_err(server_error(what()))?;
    let statement = client.prepare(&job.copying.text_sql).await.map_err(server_error(what()))?;
    encoder.begin(Arc::clone(chunk), Mode::Text)?;
    let mut sifter = RejectingWriter {
        connection,
        job,
        statement,
        queue: RowQueue::default(),
        savepoint: SavepointState::Unset,
        pace: BatchSize::default(),
        rejects: Vec::new(),
        doubts: Vec::new(),
        rows_sent: 0,
        rows_written: 0,
        copies: 0,
    };
    sifter.run(encoder).await?;
    sifter.finish(encoder, chunk)
}

/// A refused row whose record is not yet at hand.
#[derive(Debug)]
struct RefusedRow {
    row: u64,
    sqlstate: SqlState,
    message: String,
    column: Option<String>,
}

/// What the savepoint is good for.
#[derive(Clone, Copy, PartialEq)]
enum SavepointState {
    /// There is none yet.
    None,
    /// What came after it was written and is to be kept.
    Written,
    /// What came after it was refused.
    AfterRefusal,
    /// Nothing came after it.
    Fresh,
}

struct RejectingWriter<'a> {
    connection: &'a Connection,
    job: &'a CopyJob,
    statement: Statement,
    queue: RowQueue,
    savepoint: SavepointState,
    pace: BatchSize,
    rejects: Vec<RefusedRow>,
    /// Rows that were refused for what may be one of the rows before them, such as one with the
    /// same key, which are not written yet and may themselves be refused.
    doubts: Vec<(RefusedRow, Bytes)>,
    /// Rows in COPY statements that succeeded.
    rows_sent: u64,
    rows_written: u64,
    copies: u64,
}

impl RejectingWriter<'_> {
    async fn run(&mut self, encoder: &mut dyn ChunkEncoder) -> Result<()> {
        loop {
            self.queue.fill(encoder, self.pace.next(), &mut self.rejects)?;
            let rows = self.pace.next().min(self.queue.rows.len());
            if rows == 0 {
                break;
            }
            self.copies += 1;
            match self.copy(rows).await? {
                Ok(written) => self.written(rows, written)?,
                Err(refusal) => self.refused(rows, refusal).await?,
            }
        }
        let end = match self.savepoint {
            SavepointState::Unset => return Ok(()),
            SavepointState::AfterWrite | SavepointState::Empty => KEEP,
            SavepointState::AfterRefusal => BACK_AND_END,
        };
        let ended = self.connection.client.batch_execute(end).await;
        ended.map_err(|error| self.connection.explain("could not end a savepoint", error))
    }

    /// Copies the first rows of the queue. The count that the server gives, or its refusal.
    async fn copy(&mut self, rows: usize) -> Result<Result<u64, Error>> {
        let client = &self.connection.client;
        let failed = |error| self.connection.explain("could not copy", error);
        let before = match self.savepoint {
            SavepointState::Unset => BEGIN,
            SavepointState::AfterWrite => KEEP_AND_BEGIN,
            SavepointState::AfterRefusal => BACK,
            SavepointState::Empty => "",
        };
        let prepare = async {
            match before {
                "" => Ok(()),
                sql => client.batch_execute(sql).await,
            }
        };
        // The savepoint is in order, so they may travel together.
        let (prepared, begun) =
            tokio::join!(biased; prepare, client.copy_in::<_, Bytes>(&self.statement));
        prepared.map_err(failed)?;
        self.savepoint = SavepointState::Empty;
        let mut sink = Box::pin(begun.map_err(failed)?);
        let mut piece = Vec::new();
        let rows = self.queue.rows.iter().take(rows).map(|(_, row)| row);
        for row in rows {
            if !piece.is_empty() && piece.len() + row.len() > PIECE_BYTES {
                // When the server has refused a row, `finish` tells.
                if sink.feed(std::mem::take(&mut piece).into()).await.is_err() {
                    break;
                }
            }
            piece.extend_from_slice(row);
        }
        let _ = sink.feed(piece.into()).await;
        let finished = sink.as_mut().finish().await;
        Ok(finished.map_err(|error| refused_copy(self.connection, error)))
    }

    fn written(&mut self, rows: usize, written: u64) -> Result<()> {
        let sent = rows as u64;
        if written > sent || (written < sent && !self.job.may_drop_rows) {
            let message = format!("sent {sent} rows but the server wrote {written}");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.savepoint = SavepointState::AfterWrite;
        self.queue.take(rows);
        self.rows_sent += sent;
        self.rows_written += written;
        self.pace.written(rows);
        // All that was before them is written.
        let next = self.queue.rows.front().map_or(u64::MAX, |(row, _)| *row);
        let sure = self.doubts.extract_if(.., |(refused, _)| refused.row < next);
        self.rejects.extend(sure.map(|(refused, _)| refused));
        Ok(())
    }

    /// Sets a row aside if it is known which one is to blame.
    async fn refused(&mut self, rows: usize, refusal: Error) -> Result<()> {
        let context = CopyContext::surely_of(&refusal, self.job);
        let nth = context.line.and_then(|line| usize::try_from(line.checked_sub(1)?).ok());
        let nth = nth.filter(|nth| *nth < rows);
        let is_named = nth.is_some();
        let said = refusal.refusal().map(|said| (said.code().clone(), said.message().to_owned()));
        let Some((sqlstate, message)) = said.filter(|(code, _)| is_about_a_row(code, is_named))
        else {
            return Err(refusal);
        };
        self.savepoint = SavepointState::AfterRefusal;
        if !is_named && !self.is_in_step().await? {
            return Err(refusal);
        }
        let Some(nth) = nth.or((rows == 1).then_some(0)) else {
            self.pace.refused_some(rows);
            return Ok(());
        };
        match is_named {
            true => self.pace.refused_one(nth),
            false => self.pace.refused_alone(),
        }
        let Some((row, text)) = self.queue.remove(nth) else { return Err(refusal) };
        self.judge_again_from(row);
        let depends = context.is_within
            || matches!(sqlstate, SqlState::UNIQUE_VIOLATION | SqlState::EXCLUSION_VIOLATION);
        let column = refused_column(&refusal, self.job);
        let refused = RefusedRow { row, sqlstate, message, column };
        if nth == 0 || !depends {
            self.rejects.push(refused);
            return Ok(());
        }
        self.doubts.push((refused, text));
        if self.doubts.len() >= DOUBTS_MAX {
            self.pace.take_known();
        }
        Ok(())
    }

    /// Rows after one that is gone may have been refused because of it.
    fn judge_again_from(&mut self, row: u64) {
        let again = self.doubts.extract_if(.., |(refused, _)| refused.row > row);
        for (refused, text) in again {
            let place = self.queue.put_back(refused.row, text);
            self.pace.put_back(place);
        }
    }

    /// Goes back to the savepoint after a refusal that names no row. When the server has refused
    /// the statement before it read a byte, it answers once more than it was asked: then the
    /// connection is of no more use, and the refusal is about no row.
    async fn is_in_step(&mut self) -> Result<bool> {
        match self.connection.client.simple_query(BACK).await {
            Ok(answers) => {
                self.savepoint = SavepointState::Empty;
                Ok(!answers.is_empty())
            }
            Err(error) if error.as_db_error().is_some() => {
                Err(self.connection.explain("could not go back to a savepoint", error))
            }
            Err(_) => Ok(false),
        }
    }

    fn finish(mut self, encoder: &dyn ChunkEncoder, chunk: &Chunk) -> Result<ChunkWithRejects> {
        let rows_in = self.queue.rows_in;
        let accounted = self.rows_sent + self.rejects.len() as u64;
        if accounted != rows_in {
            let message = format!("of {rows_in} rows of a chunk {accounted} are accounted for");
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

/// Rows that are encoded and not yet written, in input order.
#[derive(Default)]
struct RowQueue {
    rows: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Rows that the encoder has come by, those included that are none.
    rows_in: u64,
    at_end: bool,
    out: Encoded,
}

impl RowQueue {
    /// Encodes until there are `wanted` rows, or enough bytes of them.
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
                    let code = error.sqlstate().filter(|_| is_of_row(&error)).cloned();
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

    /// Takes over what was encoded, row by row.
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

    /// Puts a row where it was; gives its index.
    fn put_back(&mut self, row: u64, text: Bytes) -> usize {
        let place = self.rows.partition_point(|(other, _)| *other < row);
        self.bytes += text.len();
        self.rows.insert(place, (row, text));
        place
    }
}

/// The end of the line of COPY text that begins at `start`. A newline after a backslash is data.
fn line_end(text: &[u8], start: usize) -> Option<usize> {
    let newlines = memchr::memchr_iter(b'\n', &text[start..]).map(|at| start + at);
    let escapes = |at: usize| text[start..at].iter().rev().take_while(|byte| **byte == b'\\');
    newlines
        .map(|at| (at, escapes(at).count()))
        .find(|(_, escapes)| escapes % 2 == 0)
        .map(|(at, _)| at + 1)
}

/// Whether a row is to blame for this error of a load, so that the row can be set aside.
pub(crate) fn is_about_one_row(error: &Error) -> bool {
    let names_row = error.place().is_some_and(|place| place.line.or(place.row).is_some());
    let is_refused = |code| is_about_a_row(code, names_row);
    is_of_row(error) || error.sqlstate().is_some_and(is_refused)
}

/// Whether such a refusal depends on what a row says, so that other rows may be taken. Of most
/// errors that is so if the server was at a row, as input functions and triggers may raise any:
/// `regclass` one of class 42, extensions internal ones.
pub(crate) fn is_about_a_row(code: &SqlState, names_row: bool) -> bool {
    let code = code.code();
    let Some((class, _)) = code.split_at_checked(2) else { return false };
    match class {
        // The connection, the transaction, permissions, other sessions, resources, the server.
        "08" | "25" | "28" | "40" | "53" | "55" | "57" | "58" | "72" | "F0" => false,
        // A permission; damaged data and indexes.
        _ if matches!(code, "42501" | "XX001" | "XX002") => false,
        // Triggers and their routines, values, constraints, check options, limits of a row.
        "20" | "21" | "22" | "23" | "27" | "2F" | "38" | "39" | "44" | "54" | "P0" => true,
        "XX" | "HV" => names_row,
        // Classes that neither the standard nor the server uses are raised by triggers.
        _ => names_row || matches!(code.as_bytes()[0], b'5'..=b'9' | b'I'..=b'Z'),
    }
}

#[cfg(test)]
mod tests;

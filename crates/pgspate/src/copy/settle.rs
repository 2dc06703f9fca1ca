//! Which row is to blame: the first one in the input that PostgreSQL refuses, in its own words.
//!
//! A chunk is sent in two parts and several chunks at once, so the refusal that arrives first need
//! not be the one that COPY of the same input would have met first. The chunk is read out to the
//! server again as text, in input order, in a transaction that is rolled back.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;

use super::shared::{Failure, Refused, RefusedBy, Shared};
use super::stream::refused_copy;
use super::{Job, PIECE_BYTES};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, Mode};
use crate::{Error, Place, Result};

/// The error to report for the load's first failure.
pub(super) fn settle(
    shared: &Shared<'_>,
    failure: Failure,
    runtime: &tokio::runtime::Handle,
) -> Error {
    let job = shared.job;
    let Failure { error, refused, .. } = failure;
    let Some(Refused { chunk, by }) = refused else { return error };
    let mut encoder = (job.encoder)();
    let row = match by {
        RefusedBy::BinaryCopy(line) => {
            line.and_then(|line| binary_row(encoder.as_mut(), &chunk, line))
        }
        RefusedBy::TextCopy(line) if job.one_statement => {
            return place_in_statement(error, job, line);
        }
        RefusedBy::TextCopy(line) => line.and_then(|line| text_row(encoder.as_mut(), &chunk, line)),
        RefusedBy::Encoder => None,
    };
    // A server that cannot be asked again changes nothing about the first answer.
    let judged = runtime.block_on(judge(job, encoder.as_mut(), &chunk)).unwrap_or(None);
    let (error, row) = match judged {
        Some((judged, at)) if row.is_none_or(|row| at <= row) => (judged, Some(at)),
        _ => (error, row),
    };
    let mut place = match (row, error.place()) {
        (Some(row), _) => encoder.place(&chunk, row),
        (None, Some(place)) => place.clone(),
        // It is about no row: a permission, for example.
        (None, None) => return error,
    };
    place.source = job.input_names.get(chunk.input).cloned();
    place.column = refused_column(&error).or(place.column);
    error.at(place)
}

/// All chunks in one COPY: the server's line is the row of the whole input.
fn place_in_statement(error: Error, job: &Job, line: Option<u64>) -> Error {
    let column = refused_column(&error);
    let source = match job.input_names.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    error.at(Place { source, row: line, column, ..Place::default() })
}

/// The chunk's row that is the `line`-th of its binary rows.
fn binary_row(encoder: &mut dyn ChunkEncoder, chunk: &Arc<Chunk>, line: u64) -> Option<u64> {
    let left = rows_left_to_server(encoder, chunk)?;
    let mut row = line.checked_sub(1)?;
    for skipped in left {
        if skipped > row {
            break;
        }
        row += 1;
    }
    Some(row)
}

/// The chunk's row that is the `line`-th of those left to the server.
fn text_row(encoder: &mut dyn ChunkEncoder, chunk: &Arc<Chunk>, line: u64) -> Option<u64> {
    let nth = usize::try_from(line.checked_sub(1)?).ok()?;
    rows_left_to_server(encoder, chunk)?.get(nth).copied()
}

fn rows_left_to_server(encoder: &mut dyn ChunkEncoder, chunk: &Arc<Chunk>) -> Option<Vec<u64>> {
    let mut out = Encoded::default();
    let mut left = Vec::new();
    encoder.begin(Arc::clone(chunk), Mode::Binary).ok()?;
    loop {
        // A structural error ends the chunk, and what was sent of it.
        let more = encoder.fill(&mut out, PIECE_BYTES).unwrap_or(false);
        left.append(&mut out.text_rows);
        out.clear();
        if !more {
            return Some(left);
        }
    }
}

/// Asks the server about the chunk's rows as text, in order. The first refusal and its row, or
/// `None` when the server takes them all.
async fn judge(
    job: &Job,
    encoder: &mut dyn ChunkEncoder,
    chunk: &Arc<Chunk>,
) -> Result<Option<(Error, u64)>> {
    let connection = (job.connect)().await?;
    let begin = connection.client.batch_execute("begin").await;
    begin.map_err(refused_copy)?;
    let sink = connection.client.copy_in::<_, Bytes>(&job.text_sql).await.map_err(refused_copy)?;
    let mut sink = Box::pin(sink);
    let mut out = Encoded::default();
    encoder.begin(Arc::clone(chunk), Mode::Text)?;
    loop {
        let more = encoder.fill(&mut out, PIECE_BYTES).unwrap_or(false);
        let piece = Bytes::from(std::mem::take(&mut out.text));
        out.clear();
        if sink.feed(piece).await.is_err() || !more {
            break;
        }
    }
    let refused = sink.as_mut().finish().await.err().map(refused_copy);
    // The transaction ends with the connection.
    Ok(refused.and_then(|error| copy_line(&error).map(|line| (error, line.saturating_sub(1)))))
}

/// The line that the server's context names: `COPY t, line 5, column a`, in any language.
pub(super) fn copy_line(error: &Error) -> Option<u64> {
    let context = copy_context(error)?;
    let after_table = context.split(", ").nth(1)?;
    let digits: String = after_table
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

/// The column that the server names, in a field of its own or in the context.
fn refused_column(error: &Error) -> Option<String> {
    if let Some(column) = error.refusal()?.column() {
        return Some(column.to_owned());
    }
    let context = copy_context(error)?;
    let after_line = context.split(", ").nth(2)?;
    let (_, rest) = after_line.split_once(' ')?;
    Some(rest.split(':').next().unwrap_or(rest).to_owned())
}

fn copy_context(error: &Error) -> Option<&str> {
    let context = error.refusal()?.context()?;
    context.lines().find(|line| line.starts_with("COPY "))
}

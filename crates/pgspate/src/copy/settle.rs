//! Which row is to blame: the first one in the input that PostgreSQL refuses, in its own words.
//!
//! A chunk is sent in two parts and several chunks at once, so the refusal that arrives first need
//! not be the one that COPY of the same input would have met first. The chunk is read out to the
//! server again as text, in input order, in a transaction that is rolled back.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;

use super::context::{CopyContext, refused_column};
use super::ready::limits;
use super::shared::{LaneFailure, RefusedChunk, RefusedBy, SharedRun};
use super::stream::refused_copy;
use super::{CopyJob, PIECE_BYTES};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, Mode};
use crate::{Error, InputPlace, Result};

/// The error to report for the load's first failure.
pub(super) fn settle(
    shared: &SharedRun<'_>,
    failure: LaneFailure,
    runtime: &tokio::runtime::Handle,
) -> Error {
    let job = shared.job;
    let LaneFailure { error, refused, .. } = failure;
    let Some(RefusedChunk { chunk, by }) = refused else { return error };
    if job.stays_open() {
        // Not all rows were sent: it is done again with all of them.
        return error;
    }
    let mut encoder = (job.encoder)();
    let line = CopyContext::of(&error, job).line;
    let row = match by {
        RefusedBy::BinaryCopy => line.and_then(|line| binary_row(encoder.as_mut(), &chunk, line)),
        RefusedBy::WholeText if job.one_statement => return place_in_statement(error, job, line),
        RefusedBy::WholeText => line.and_then(|line| line.checked_sub(1)),
        RefusedBy::LeftOverText => line.and_then(|line| text_row(encoder.as_mut(), &chunk, line)),
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
    place.column = refused_column(&error, job).or(place.column);
    error.at(place)
}

/// All chunks in one COPY: the server's line is the row of the whole input.
fn place_in_statement(error: Error, job: &CopyJob, line: Option<u64>) -> Error {
    let column = refused_column(&error, job);
    let source = match job.input_names.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    error.at(InputPlace { source, row: line, column, ..InputPlace::default() })
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
    job: &CopyJob,
    encoder: &mut dyn ChunkEncoder,
    chunk: &Arc<Chunk>,
) -> Result<Option<(Error, u64)>> {
    let connection = job.connect.open().await?;
    let failed = |error| refused_copy(&connection, error);
    connection.client.batch_execute(&limits(&job.copying.limits)).await.map_err(failed)?;
    connection.client.batch_execute("begin").await.map_err(failed)?;
    if let Some(before) = job.before() {
        connection.client.batch_execute(before).await.map_err(failed)?;
    }
    let sink =
        connection.client.copy_in::<_, Bytes>(&job.copying.text_sql).await.map_err(failed)?;
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
    let refused = sink.as_mut().finish().await.err().map(failed);
    // The transaction ends with the connection.
    let line = refused.as_ref().and_then(|error| CopyContext::of(error, job).line);
    Ok(refused.zip(line.map(|line| line.saturating_sub(1))))
}

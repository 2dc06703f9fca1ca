//! Finds the error to report: the first row of the input that PostgreSQL refuses, with the server's
//! message.
//!
//! A chunk's rows are sent in two formats, and several chunks are sent in parallel. So the first
//! refusal to arrive need not be the refusal that `\copy` of the input would report. Therefore
//! pgspate sends the chunk again as text, in input order, in a transaction that is rolled back.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;

use super::error_context::{CopyContext, refused_column};
use super::reject::is_row_error_code;
use super::shared::{LaneFailure, RefusedBy, RefusedChunk, SharedRun};
use super::stream::copy_error;
use super::{CopyJob, Destination, PIECE_BYTES};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, EncodeMode};
use crate::{Error, InputPlace, Result};

/// Returns the error to report for the load's first failure.
pub(super) fn find_first_refusal(
    shared: &SharedRun<'_>,
    failure: LaneFailure,
    runtime: &tokio::runtime::Handle,
) -> Error {
    let job = shared.job;
    let LaneFailure { error, refused, .. } = failure;
    let Some(RefusedChunk { chunk, by }) = refused else { return error };
    if matches!(job.destination, Destination::OpenTransaction { is_partial: true, .. }) {
        return error;
    }
    let mut encoder = (job.make_encoder)();
    let line = CopyContext::of(&error, job).line;
    let row = match by {
        RefusedBy::BinaryCopy => line.and_then(|line| binary_row(encoder.as_mut(), &chunk, line)),
        RefusedBy::WholeText if job.one_statement => return place_in_statement(error, job, line),
        RefusedBy::WholeText => line.and_then(|line| line.checked_sub(1)),
        RefusedBy::LeftOverText => line.and_then(|line| text_row(encoder.as_mut(), &chunk, line)),
        RefusedBy::Encoder => None,
    };
    // If the server cannot be asked again, the first error is reported. A lock, for example, would
    // be waited for once more.
    let may_be_about_row = error.sqlstate().is_none_or(|code| is_row_error_code(code, true));
    let resent = match may_be_about_row {
        true => runtime.block_on(resend_as_text(job, encoder.as_mut(), &chunk)).unwrap_or(None),
        false => None,
    };
    let (error, row) = match resent {
        Some((refusal, at)) if row.is_none_or(|row| at <= row) => (refusal, Some(at)),
        _ => (error, row),
    };
    let mut place = match (row, error.place()) {
        (Some(row), _) => encoder.place(&chunk, row),
        (None, Some(place)) => place.clone(),
        // The error is not about a row. A permission may be missing, for example.
        (None, None) => return error,
    };
    place.source = job.input_names.get(chunk.input).cloned();
    place.column = refused_column(&error, job).or(place.column);
    error.at(place)
}

/// Adds the place to an error of a COPY that all chunks share. The server's line number is the row
/// number in the whole input there.
fn place_in_statement(error: Error, job: &CopyJob, line: Option<u64>) -> Error {
    let column = refused_column(&error, job);
    let source = match job.input_names.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    error.at(InputPlace { source, row: line, column, ..InputPlace::default() })
}

/// Converts a line number of the binary COPY to the row's ordinal in the chunk. This COPY lacks the
/// rows that are sent as text.
fn binary_row(encoder: &mut dyn ChunkEncoder, chunk: &Arc<Chunk>, line: u64) -> Option<u64> {
    let text_rows = rows_left_to_server(encoder, chunk)?;
    let mut row = line.checked_sub(1)?;
    for text_row in text_rows {
        if text_row > row {
            break;
        }
        row += 1;
    }
    Some(row)
}

/// Converts a line number of the text COPY to the row's ordinal in the chunk. This COPY has only
/// the rows that are left to the server.
fn text_row(encoder: &mut dyn ChunkEncoder, chunk: &Arc<Chunk>, line: u64) -> Option<u64> {
    let index = usize::try_from(line.checked_sub(1)?).ok()?;
    rows_left_to_server(encoder, chunk)?.get(index).copied()
}

/// Encodes the chunk again, and returns the ordinals of the rows that cannot be encoded in binary
/// and are sent as text.
fn rows_left_to_server(encoder: &mut dyn ChunkEncoder, chunk: &Arc<Chunk>) -> Option<Vec<u64>> {
    let mut out = Encoded::default();
    let mut left = Vec::new();
    encoder.begin(Arc::clone(chunk), EncodeMode::Binary).ok()?;
    loop {
        // If the chunk is malformed, encoding stops here, as it did when the chunk was sent.
        let more = encoder.fill(&mut out, PIECE_BYTES).unwrap_or(false);
        left.append(&mut out.text_rows);
        out.clear();
        if !more {
            return Some(left);
        }
    }
}

/// Sends the chunk's rows to the server as text, in order. Returns the first refusal and the
/// refused row's ordinal; `None` if the server accepts all rows.
async fn resend_as_text(
    job: &CopyJob,
    encoder: &mut dyn ChunkEncoder,
    chunk: &Arc<Chunk>,
) -> Result<Option<(Error, u64)>> {
    let connection = job.session_opener.open().await?;
    let failed = |error| copy_error(&connection, error);
    connection.client.batch_execute(&job.setup.session_settings_sql()).await.map_err(failed)?;
    connection.client.batch_execute(&job.setup.begin_sql("begin")).await.map_err(failed)?;
    if let Some(before) = job.sql_before() {
        connection.client.batch_execute(before).await.map_err(failed)?;
    }
    let sink = connection.client.copy_in::<_, Bytes>(&job.setup.text_sql).await.map_err(failed)?;
    let mut sink = Box::pin(sink);
    let mut out = Encoded::default();
    encoder.begin(Arc::clone(chunk), EncodeMode::Text)?;
    loop {
        let more = encoder.fill(&mut out, PIECE_BYTES).unwrap_or(false);
        let piece = Bytes::from(std::mem::take(&mut out.text));
        out.clear();
        if sink.feed(piece).await.is_err() || !more {
            break;
        }
    }
    let refused = sink.as_mut().finish().await.err().map(failed);
    // Closing the connection rolls the transaction back.
    let line = refused.as_ref().and_then(|error| CopyContext::of(error, job).line);
    Ok(refused.zip(line.map(|line| line.saturating_sub(1))))
}

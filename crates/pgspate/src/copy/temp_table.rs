//! Copies rows into a temporary table of the session, in the open transaction.

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::Statement;

use super::{BINARY_HEADER, BINARY_TRAILER, PIECE_BYTES, copy_error};
use crate::format::EncodeMode;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;

/// Copies the encoded `rows`, and checks that the server wrote `count` rows. Binary rows are passed
/// without header and trailer.
///
/// # Errors
/// [`ErrorKind::Bug`] if the server wrote another number of rows. The driver's error if the server
/// refuses a row or the connection is lost.
pub(crate) async fn copy_rows(
    connection: &Connection,
    statement: &Statement,
    mode: EncodeMode,
    rows: &[u8],
    count: u64,
) -> Result<()> {
    let parts: &[&[u8]] = match mode {
        EncodeMode::Binary => &[BINARY_HEADER, rows, BINARY_TRAILER],
        EncodeMode::Text => &[rows],
    };
    let failed = |error| copy_error(connection, error);
    let sink = connection.client.copy_in::<_, Bytes>(statement).await.map_err(failed)?;
    let mut sink = Box::pin(sink);
    for piece in parts.iter().flat_map(|part| part.chunks(PIECE_BYTES)) {
        sink.feed(Bytes::copy_from_slice(piece)).await.map_err(failed)?;
    }
    match sink.as_mut().finish().await.map_err(failed)? {
        written if written == count => Ok(()),
        written => {
            let message = format!("sent {count} rows to the stage, but the server wrote {written}");
            Err(Error::new(ErrorKind::Bug, message))
        }
    }
}

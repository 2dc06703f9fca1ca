//! The thread that decodes a source's pieces and builds batches of the events.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use super::BatchBuilder;
use crate::Result;
use pgspate_replication::EventSource;

/// Decodes a source's pieces into events, and passes the events to the batch builder.
pub(crate) trait SourceFeed<S: EventSource>: Send + 'static {
    /// Returns the batch builder.
    fn builder(&mut self) -> &mut BatchBuilder<S::Position>;

    /// Decodes a piece, and passes its events to the builder.
    ///
    /// # Errors
    /// If the piece is invalid. Events before the invalid record are still applied.
    fn take_piece(&mut self, piece: S::Piece) -> Result<()>;

    /// Returns whether the feed has received all events that the run should read.
    fn is_done(&self) -> bool {
        false
    }

    /// Called when no piece has arrived for a moment.
    fn idle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called at the end of the source.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Receives pieces and builds batches until the source ends or fails. Sends an error to the writer.
pub(crate) fn run_feed<S: EventSource>(
    mut feed: impl SourceFeed<S>,
    pieces: &Receiver<Result<S::Piece>>,
) {
    if let Err(error) = take_all_pieces(&mut feed, pieces) {
        feed.builder().send_error(error);
    }
}

fn take_all_pieces<S: EventSource>(
    feed: &mut impl SourceFeed<S>,
    pieces: &Receiver<Result<S::Piece>>,
) -> Result<()> {
    let watch = Arc::clone(&feed.builder().context.watch);
    while !feed.is_done() && !watch.end_reading.is_requested() {
        match pieces.recv_timeout(feed.builder().wait_limit()) {
            Ok(piece) => feed.take_piece(piece?)?,
            Err(RecvTimeoutError::Timeout) => {
                feed.idle()?;
                feed.builder().send_batch_if_delay_over()?;
            }
            Err(RecvTimeoutError::Disconnected) if watch.is_cancelled() => break,
            Err(RecvTimeoutError::Disconnected) => return feed.end(),
        }
    }
    Ok(())
}

//! From a source's pieces to batches, on a thread of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use super::BatchBuilder;
use crate::Result;
use pgspate_replication::EventSource;

/// Makes events of what a source hands on, and gives them to the builder.
pub(crate) trait SourceFeed<S: EventSource>: Send + 'static {
    /// The builder that it gives them to.
    fn builder(&mut self) -> &mut BatchBuilder<S::Position>;

    /// Takes a piece.
    ///
    /// # Errors
    /// What is wrong with it. What came before it is applied.
    fn take(&mut self, piece: S::Piece) -> Result<()>;

    /// Whether all that the run is to read has been taken.
    fn is_done(&self) -> bool {
        false
    }

    /// Nothing has come for a moment.
    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    /// The source has ended.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Makes batches until the source ends, or something is wrong with it.
pub(crate) fn run<S: EventSource>(mut feed: impl SourceFeed<S>, pieces: &Receiver<Result<S::Piece>>) {
    if let Err(error) = take_all(&mut feed, pieces) {
        feed.builder().fail(error);
    }
}

fn take_all<S: EventSource>(
    feed: &mut impl SourceFeed<S>,
    pieces: &Receiver<Result<S::Piece>>,
) -> Result<()> {
    let watch = Arc::clone(&feed.builder().with.watch);
    while !feed.is_done() && !watch.unwanted.is_requested() {
        match pieces.recv_timeout(feed.builder().may_wait()) {
            Ok(piece) => feed.take(piece?)?,
            Err(RecvTimeoutError::Timeout) => {
                feed.wait()?;
                feed.builder().hand_over_if_old()?;
            }
            Err(RecvTimeoutError::Disconnected) if watch.is_cancelled() => break,
            Err(RecvTimeoutError::Disconnected) => return feed.end(),
        }
    }
    Ok(())
}

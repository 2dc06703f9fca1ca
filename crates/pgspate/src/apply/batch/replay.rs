//! Skips events that are applied already, if the source is read from its start again.

use super::BatchBuilder;
use crate::{Error, ErrorKind, Result};
use pgspate_replication::SourcePosition;
use pgspate_target::ledger::StreamPosition;

/// How much of the input was applied by earlier runs.
#[derive(Debug)]
pub(super) enum ReplayState {
    /// All events read so far were applied by earlier runs. The position says how many events
    /// earlier runs applied.
    Replaying(StreamPosition),
    /// The applied events were read again, but their digest differs. The digest may still match at
    /// the end of the current transaction, or of a later one without events.
    Unverified(StreamPosition),
    /// The next events are new.
    Finished,
}

impl ReplayState {
    pub(super) fn of(from: &StreamPosition) -> ReplayState {
        match from.ordinal {
            0 => ReplayState::Finished,
            _ => ReplayState::Replaying(from.clone()),
        }
    }
}

impl<P: SourcePosition> BatchBuilder<P> {
    /// Returns whether the next event is applied already.
    pub(super) fn is_replaying(&self) -> bool {
        matches!(self.replay, ReplayState::Replaying(_))
    }

    /// Counts an event or an undecodable record. Returns whether the event is applied already.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the events that were read again differ from the applied events.
    pub(super) fn skip_replayed(&mut self) -> Result<bool> {
        self.ordinal += 1;
        let ReplayState::Replaying(from) = &self.replay else {
            return self.check_replayed_digest().map(|()| false);
        };
        if self.ordinal < from.ordinal {
            return Ok(true);
        }
        // All applied events were read again. Check that they are the events that were applied.
        self.context.router.forget_replayed_layouts();
        let is_same = from.digest.is_empty() || from.digest == self.position.digest();
        if let ReplayState::Replaying(from) =
            std::mem::replace(&mut self.replay, ReplayState::Finished)
            && !is_same
        {
            self.replay = ReplayState::Unverified(from);
            if self.is_between_transactions() {
                self.check_replayed_digest()?;
            }
        }
        Ok(true)
    }

    /// Notes, at the end of a transaction, whether the events that were read again are the events
    /// that were applied. If not, transactions without events may follow that belong to the
    /// position.
    pub(super) fn confirm_replayed_digest(&mut self) {
        if let ReplayState::Unverified(from) = &self.replay
            && from.digest == self.position.digest()
        {
            self.replay = ReplayState::Finished;
        }
    }

    /// Checks, before the first new event, that the events that were read again are the events that
    /// were applied.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if they differ.
    pub(super) fn check_replayed_digest(&mut self) -> Result<()> {
        let ReplayState::Unverified(from) = &self.replay else { return Ok(()) };
        if from.digest != self.position.digest() {
            let message = format!(
                "the input is not the stream that was applied before: its first {} events differ",
                from.ordinal
            );
            return Err(Error::new(ErrorKind::Ledger, message).hint(
                "Give the same files in the same order, or begin a stream of its own with \
                 `--stream NAME`.",
            ));
        }
        self.replay = ReplayState::Finished;
        Ok(())
    }

    /// Checks, when all bytes of the input are read, that the input had all applied events.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the input had fewer events.
    pub(super) fn check_replay_finished(&mut self) -> Result<()> {
        let ReplayState::Replaying(from) = &self.replay else { return Ok(()) };
        let message = format!(
            "the input has {} events, but {} of the stream are applied already",
            self.ordinal, from.ordinal
        );
        Err(Error::new(ErrorKind::Ledger, message).hint(
            "Name all files of the stream in their order, or give these files a stream of their \
             own with `--stream NAME`.",
        ))
    }
}

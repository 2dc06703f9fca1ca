//! Events that are applied already, where the source is read from its beginning again.

use super::BatchBuilder;
use crate::{Error, ErrorKind, Result};
use pgspate_replication::SourcePosition;
use pgspate_target::ledger::Mark;

/// How much of what is read was read by a run before.
#[derive(Debug)]
pub(super) enum ReplayState {
    /// All so far: there are as many events as the mark has.
    Until(Mark),
    /// All that is applied has been read again, but is not what it was, unless a transaction ends
    /// here.
    InDoubt(Mark),
    /// Nothing any more.
    Over,
}

impl ReplayState {
    pub(super) fn of(from: &Mark) -> ReplayState {
        match from.ordinal {
            0 => ReplayState::Over,
            _ => ReplayState::Until(from.clone()),
        }
    }
}

impl<P: SourcePosition> BatchBuilder<P> {
    /// Whether the next event is applied already.
    pub(super) fn is_again(&self) -> bool {
        matches!(self.replay, ReplayState::Until(_))
    }

    /// Counts an event, or a record that is none. Whether it is applied already.
    pub(super) fn passes_over(&mut self) -> Result<bool> {
        self.ordinal += 1;
        let ReplayState::Until(from) = &self.replay else { return self.end_doubt().map(|()| false) };
        if self.ordinal < from.ordinal {
            return Ok(true);
        }
        // All that is applied already has been read: whether it is still what it was.
        self.with.router.end_of_seen();
        let is_same = from.digest.is_empty() || from.digest == self.position.digest();
        if let ReplayState::Until(from) = std::mem::replace(&mut self.replay, ReplayState::Over)
            && !is_same
        {
            self.replay = ReplayState::InDoubt(from);
            if self.is_between() {
                self.end_doubt()?;
            }
        }
        Ok(true)
    }

    /// Events to come are new ones: those that were read again must be the same as before.
    pub(super) fn end_doubt(&mut self) -> Result<()> {
        let ReplayState::InDoubt(from) = &self.replay else { return Ok(()) };
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
        self.replay = ReplayState::Over;
        Ok(())
    }

    /// The input has ended: all that is applied must have been in it.
    pub(super) fn end_replay(&mut self) -> Result<()> {
        let ReplayState::Until(from) = &self.replay else { return Ok(()) };
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

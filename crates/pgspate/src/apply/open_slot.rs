//! Makes one process the only writer of a stream.
//!
//! A stream of files or topics is taken over by the process that started last. The stream of a slot
//! is taken over by the process that reads the slot, or that locks the stream while it creates the
//! slot. Only then does this process raise the ledger's fence, which ends the previous writer. So a
//! second process that fails to start does not end a running process.

use std::time::Duration;

use super::plan::read_position_in_ledger;
use super::run::ApplyRun;
use super::write::BatchWriter;
use crate::Result;
use pgspate_replication::postgres::SlotStream;
use pgspate_replication::slot::{Slot, SlotStart, is_active};
use pgspate_target::ledger::StreamPosition;
use pgspate_target::session::{ReconnectBackoff, stopped_error};

/// How long the source may take to notice that the previous reader of the slot has ended. A host
/// that lost its power closes no connection, and `wal_sender_timeout` is one minute by default.
const SLOT_RELEASE_WAIT: Duration = Duration::from_secs(75);

impl ApplyRun<'_> {
    /// Takes over the stream of a slot. `mark` is the stream's last known position in the ledger.
    /// Returns the writer, where to begin, and the stream if this process reads the slot already.
    /// Blocks the calling thread.
    ///
    /// # Errors
    /// If another process reads or creates the slot, or if [`SlotStart::choose`] or [`Slot::check`]
    /// refuses the slot.
    pub(super) fn open_slot(
        &self,
        slot: &mut Slot,
        mark: &StreamPosition,
    ) -> Result<(BatchWriter, SlotStart, Option<SlotStream>)> {
        let (mut mark, mut begin) = (mark.clone(), self.choose_begin(slot, mark)?);
        let stream = self.start_reading(slot, &mut begin, &mut mark)?;
        let writer = self.open_writer(stream.is_none())?;
        if stream.is_some() && *writer.mark() == mark {
            return Ok((writer, begin, stream));
        }
        // The previous writer has advanced the position. Now the fence prevents it from advancing
        // the position again.
        if let Some(stream) = stream {
            self.runtime.block_on(stream.close());
        }
        *slot = self.runtime.block_on(slot.inspect_again())?;
        let begin = self.choose_begin(slot, writer.mark())?;
        Ok((writer, begin, None))
    }

    /// Starts reading the slot. Returns `None` if the slot must be created first. Sets `mark` to
    /// the ledger's position, and `begin` to the start that belongs to this position.
    fn start_reading(
        &self,
        slot: &mut Slot,
        begin: &mut SlotStart,
        mark: &mut StreamPosition,
    ) -> Result<Option<SlotStream>> {
        let limit = SLOT_RELEASE_WAIT.min(self.options.limits.retry_for);
        let mut backoff = ReconnectBackoff::new(limit);
        loop {
            let SlotStart::ContinueStream(from) = *begin else { return Ok(None) };
            let error = match self.runtime.block_on(slot.start(from, || from)) {
                Ok(stream) => {
                    self.watch.show_wait(None);
                    return Ok(Some(stream));
                }
                Err(error) => error,
            };
            let may_pass = error.is_retryable() || is_active(&error);
            if may_pass {
                let seconds = limit.as_secs();
                self.watch.show_wait(Some(match is_active(&error) {
                    true => format!("waiting up to {seconds} s: another process reads the slot"),
                    false => format!("waiting up to {seconds} s: the source does not answer"),
                }));
            }
            if may_pass && !backoff.wait(|| self.watch.is_cancelled()) {
                return Err(match self.watch.is_cancelled() {
                    true => stopped_error(),
                    false => error,
                });
            }
            // Another process that reads the slot advances the ledger's position. So the ledger is
            // read after the slot.
            let slot_again = match self.runtime.block_on(slot.inspect_again()) {
                Err(error) if error.is_retryable() => continue,
                result => result?,
            };
            let now = read_position_in_ledger(&self.settings.dsn, &self.stream);
            let now = self.runtime.block_on(now)?;
            if !may_pass && now == *mark {
                return Err(error);
            }
            (*slot, *mark) = (slot_again, now);
            *begin = self.choose_begin(slot, mark)?;
        }
    }

    /// Chooses where the stream of the slot begins.
    fn choose_begin(&self, slot: &Slot, mark: &StreamPosition) -> Result<SlotStart> {
        SlotStart::choose(slot, mark, self.options.creates_slot, self.options.copies_rows)
    }

    /// Takes over the stream and returns its writer. With `only_if_free`, fails if another session
    /// has locked the stream.
    pub(super) fn open_writer(&self, only_if_free: bool) -> Result<BatchWriter> {
        let settings = self.settings.clone();
        let writer =
            BatchWriter::open(settings, &self.stream, "", self.runtime.clone(), only_if_free);
        self.runtime.block_on(writer)
    }
}

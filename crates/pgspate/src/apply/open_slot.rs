//! Makes one process the only writer of a stream.
//!
//! For files and topics, the process that started last takes over. For a slot, the process that
//! reads the slot takes over, or the process that holds the stream while it creates the slot. The
//! ledger's fence is raised only after that. So a second start that fails never ends a running one.

use std::time::Duration;

use super::plan::read_mark;
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
    /// Takes over the stream of a slot. `mark` is the position that the ledger had last. Returns
    /// the writer, where to begin, and the open stream if the slot exists. Blocks.
    ///
    /// # Errors
    /// When another process reads or creates the slot, and when [`SlotStart::choose`] or
    /// [`Slot::check`] refuses the slot.
    pub(super) fn open_slot(
        &self,
        slot: &mut Slot,
        mark: &StreamPosition,
    ) -> Result<(BatchWriter, SlotStart, Option<SlotStream>)> {
        let (mut mark, mut begin) = (mark.clone(), self.choose_begin(slot, mark)?);
        let won = self.start_reading(slot, &mut begin, &mut mark)?;
        let writer = self.open_writer(won.is_none())?;
        if won.is_some() && *writer.mark() == mark {
            return Ok((writer, begin, won));
        }
        // The previous owner may have moved the position on. It cannot do so any more.
        if let Some(stream) = won {
            self.runtime.block_on(stream.close());
        }
        *slot = self.runtime.block_on(slot.inspect_again())?;
        let begin = self.choose_begin(slot, writer.mark())?;
        Ok((writer, begin, None))
    }

    /// Starts reading the slot, unless the slot has yet to be created. Sets `mark` to the ledger's
    /// position at that moment.
    fn start_reading(
        &self,
        slot: &mut Slot,
        begin: &mut SlotStart,
        mark: &mut StreamPosition,
    ) -> Result<Option<SlotStream>> {
        let mut backoff =
            ReconnectBackoff::new(SLOT_RELEASE_WAIT.min(self.options.limits.retry_for));
        loop {
            let SlotStart::ContinueStream(from) = *begin else { return Ok(None) };
            let error = match self.runtime.block_on(slot.start(from, || from)) {
                Ok(stream) => return Ok(Some(stream)),
                Err(error) => error,
            };
            let may_pass = error.is_retryable() || is_active(&error);
            if may_pass && !backoff.wait(|| self.watch.is_cancelled()) {
                return Err(match self.watch.is_cancelled() {
                    true => stopped_error(),
                    false => error,
                });
            }
            // The process that reads the slot moves the position on. So the ledger is read last.
            let again = match self.runtime.block_on(slot.inspect_again()) {
                Err(error) if error.is_retryable() => continue,
                again => again?,
            };
            let now = read_mark(&self.settings.dsn, &self.stream);
            let now = self.runtime.block_on(now)?;
            if !may_pass && now == *mark {
                return Err(error);
            }
            (*slot, *mark) = (again, now);
            *begin = self.choose_begin(slot, mark)?;
        }
    }

    /// Chooses where the stream of the slot begins.
    fn choose_begin(&self, slot: &Slot, mark: &StreamPosition) -> Result<SlotStart> {
        SlotStart::choose(slot, mark, self.options.creates_slot, self.options.copies_rows)
    }

    /// Takes over the stream. `holds`: takes the stream only if no other session holds it.
    pub(super) fn open_writer(&self, holds: bool) -> Result<BatchWriter> {
        let settings = self.settings.clone();
        let writer = BatchWriter::open(settings, &self.stream, "", self.runtime.clone(), holds);
        self.runtime.block_on(writer)
    }
}

//! Who applies a stream: one process at a time.
//!
//! Of files and topics it is the one that was started last. Of a slot it is the one that reads it,
//! or holds the stream while a slot is made: the fence is raised when that is won and not before,
//! so that a second start, or one that is refused, ends nobody's work.

use std::time::Duration;

use super::plan::read_mark;
use super::run::ApplyRun;
use super::write::BatchWriter;
use crate::Result;
use pgspate_replication::postgres::Replication;
use pgspate_replication::slot::{Begin, Slot, is_active};
use pgspate_target::ledger::Mark;
use pgspate_target::session::{Patience, stopped};

/// How long the source may take to notice that the session which read the slot before is gone: a
/// host that lost its power does not say so, and `wal_sender_timeout` is a minute by default.
const LINGER: Duration = Duration::from_secs(75);

impl ApplyRun<'_> {
    /// Takes the stream of a slot over, which was last seen at `mark`. What writes it, where it
    /// begins, and what reads the slot if that is there. Blocks.
    ///
    /// # Errors
    /// Somebody else reads the slot or makes it; what [`Begin::choose`] and [`Slot::check`] refuse.
    pub(super) fn open_slot(
        &self,
        slot: &mut Slot,
        mark: &Mark,
    ) -> Result<(BatchWriter, Begin, Option<Replication>)> {
        let (mut mark, mut begin) = (mark.clone(), self.choose(slot, mark)?);
        let won = self.win(slot, &mut begin, &mut mark)?;
        let writer = self.writer(won.is_none())?;
        if won.is_some() && *writer.mark() == mark {
            return Ok((writer, begin, won));
        }
        // Whoever had it before may have moved it on, and cannot any more.
        if let Some(stream) = won {
            self.runtime.block_on(stream.close());
        }
        *slot = self.runtime.block_on(slot.again())?;
        let begin = self.choose(slot, writer.mark())?;
        Ok((writer, begin, None))
    }

    /// Begins to read the slot, unless it is yet to be made. `mark` is then where the ledger was.
    fn win(
        &self,
        slot: &mut Slot,
        begin: &mut Begin,
        mark: &mut Mark,
    ) -> Result<Option<Replication>> {
        let mut patience = Patience::new(LINGER.min(self.options.limits.retry_for));
        loop {
            let Begin::Stream(from) = *begin else { return Ok(None) };
            let error = match self.runtime.block_on(slot.start(from, || from)) {
                Ok(stream) => return Ok(Some(stream)),
                Err(error) => error,
            };
            let may_pass = error.is_retryable() || is_active(&error);
            if may_pass && !patience.wait(|| self.watch.is_cancelled()) {
                return Err(match self.watch.is_cancelled() {
                    true => stopped(),
                    false => error,
                });
            }
            // Whoever reads it moves it on; so the ledger is asked last.
            let again = match self.runtime.block_on(slot.again()) {
                Err(error) if error.is_retryable() => continue,
                again => again?,
            };
            let now = read_mark(&self.settings.dsn, &self.stream);
            let now = self.runtime.block_on(now)?;
            if !may_pass && now == *mark {
                return Err(error);
            }
            (*slot, *mark) = (again, now);
            *begin = self.choose(slot, mark)?;
        }
    }

    fn choose(&self, slot: &Slot, mark: &Mark) -> Result<Begin> {
        Begin::choose(slot, mark, self.options.creates_slot, self.options.copies_rows)
    }

    /// Takes the stream over. `holds`: only if no session holds it.
    pub(super) fn writer(&self, holds: bool) -> Result<BatchWriter> {
        let settings = self.settings.clone();
        let writer = BatchWriter::open(settings, &self.stream, "", self.runtime.clone(), holds);
        self.runtime.block_on(writer)
    }
}

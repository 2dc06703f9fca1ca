//! Builds batches of a source's events. All sources use this builder.
//!
//! The builder routes, counts and numbers events. If `--max-dead-letters` allows it, the builder
//! sets aside records that cannot be decoded and events that cannot be applied. `cuts.rs` decides
//! when a batch ends.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Instant, SystemTime};

use super::EventBatch;
use super::cuts::BatchBoundary;
use super::replay::ReplayState;
use crate::apply::options::ApplyOptions;
use crate::apply::route::{LoggedPlace, Router, is_missing_table};
use crate::apply::watch::ApplyWatch;
use crate::numbers::counted;
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_events::ChangeEvent;
use pgspate_replication::{SourceNames, SourcePosition};
use pgspate_target::ledger::{DeadLetter, StreamPosition};

/// The state of the source's transaction after the last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceTransaction {
    /// No transaction is open.
    Between,
    /// A transaction has begun, but has no event yet.
    Begun,
    /// A transaction with events is open.
    Within,
}

/// The record or event that becomes a dead letter.
pub(super) enum DeadLetterSource<'a> {
    /// The bytes of a record that could not be decoded.
    Record(&'a [u8]),
    /// An event that could not be applied.
    Event(&'a ChangeEvent),
}

/// The options and channels of a builder.
pub(crate) struct BuilderContext {
    pub(crate) options: Arc<ApplyOptions>,
    pub(crate) router: Router,
    pub(crate) names: SourceNames,
    pub(crate) batches: SyncSender<Result<EventBatch>>,
    pub(crate) watch: Arc<ApplyWatch>,
}

/// Builds batches of the events of one source.
pub(crate) struct BatchBuilder<P> {
    pub(super) context: BuilderContext,
    /// The position in the source.
    pub(super) position: P,
    /// The batch being built.
    pub(super) batch: EventBatch,
    /// When the batch got its first event.
    pub(super) began_at: Option<Instant>,
    /// The number of events of the stream so far.
    pub(super) ordinal: u64,
    pub(super) replay: ReplayState,
    pub(super) transaction: SourceTransaction,
    /// The source's name for the transaction of the last event.
    transaction_name: Option<Box<str>>,
    /// Whether the next record may replace the last event. If so, no batch is cut.
    pub(super) may_take_back_last: bool,
    dead_letters: u64,
    /// The number of the batch's events when the delay was last checked.
    pub(super) events_at_check: u64,
    /// Whether a part of the open transaction was sent to the writer already.
    pub(super) has_spilled: bool,
    /// How many more events an open transaction must have before the next try to cut the batch
    /// within it.
    pub(super) events_before_recut: u64,
    /// When the source committed or wrote the last event.
    pub(super) committed_at: Option<SystemTime>,
    pub(super) boundary: BatchBoundary,
}

impl<P: SourcePosition> BatchBuilder<P> {
    /// Returns a builder that continues after `from`. `reads_again` says that the source is read
    /// from its start, so that the first events are events that earlier runs applied.
    pub(crate) fn new(
        context: BuilderContext,
        from: &StreamPosition,
        position: P,
        reads_again: bool,
    ) -> BatchBuilder<P> {
        BatchBuilder {
            context,
            position,
            batch: EventBatch::default(),
            began_at: None,
            ordinal: if reads_again { 0 } else { from.ordinal },
            replay: if reads_again { ReplayState::of(from) } else { ReplayState::Finished },
            transaction: SourceTransaction::Between,
            transaction_name: None,
            may_take_back_last: false,
            dead_letters: 0,
            events_at_check: 0,
            has_spilled: false,
            events_before_recut: 0,
            committed_at: None,
            boundary: BatchBoundary::default(),
        }
    }

    /// Returns whether no source transaction is open.
    pub(super) fn is_between_transactions(&self) -> bool {
        self.transaction == SourceTransaction::Between
    }

    /// Records the start of a source transaction. If a transaction is open, it continues.
    pub(super) fn open_transaction(&mut self) {
        self.transaction = match self.transaction {
            SourceTransaction::Between => SourceTransaction::Begun,
            SourceTransaction::Begun | SourceTransaction::Within => SourceTransaction::Within,
        };
    }

    /// Records that no source transaction is open.
    pub(super) fn close_transaction(&mut self) {
        self.transaction = SourceTransaction::Between;
    }

    /// Returns the place of an event for messages.
    pub(super) fn place(&self, event_place: P::EventPlace) -> InputPlace {
        self.context.names.place(event_place.into())
    }

    /// Adds the place to an error that has none.
    pub(super) fn with_place(&self, error: Error, event_place: P::EventPlace) -> Error {
        match error.place() {
            None => error.at(self.place(event_place)),
            Some(_) => error,
        }
    }

    /// Takes the events of a record of `bytes` bytes.
    pub(super) fn take_events(
        &mut self,
        events: &[ChangeEvent],
        bytes: usize,
        event_place: P::EventPlace,
    ) -> Result<()> {
        for (index, event) in events.iter().enumerate() {
            let transaction_name = &event.origin.transaction;
            let is_another =
                transaction_name.is_some() && *transaction_name != self.transaction_name;
            if is_another && self.transaction == SourceTransaction::Within {
                self.close_transaction();
                match index {
                    0 => self.note_boundary(),
                    _ => self.note_position(event_place),
                }
                self.send_batch_if_due()?;
            }
            self.transaction_name.clone_from(transaction_name);
            let was_replaying = self.is_replaying();
            self.push_event(event, bytes as u64 / events.len() as u64 + 1, event_place)?;
            if was_replaying && !self.is_replaying() {
                // The position is the end of this record. An earlier run that set the record aside
                // counted it as one event.
                let ends = events.last().is_some_and(|last| last.ends_transaction);
                self.transaction = match ends {
                    true => SourceTransaction::Between,
                    false => SourceTransaction::Within,
                };
                break;
            }
            if index + 1 < events.len() && !self.is_between_transactions() {
                self.send_batch_if_due()?;
            }
        }
        if !events.is_empty() {
            self.note_position(event_place);
        }
        Ok(())
    }

    /// Adds an event of `bytes` bytes to the batch, unless the event is applied already.
    pub(super) fn push_event(
        &mut self,
        event: &ChangeEvent,
        bytes: u64,
        event_place: P::EventPlace,
    ) -> Result<()> {
        self.transaction = match event.ends_transaction {
            true => SourceTransaction::Between,
            false => SourceTransaction::Within,
        };
        if self.is_replaying() {
            self.context.router.note_columns(event)?;
        }
        let ordinal = self.ordinal;
        if self.skip_replayed()? {
            return Ok(());
        }
        self.note_begin();
        let before = self.batch.log.held_bytes();
        let at = LoggedPlace { event_place: event_place.into(), ordinal };
        match self.context.router.add(event, &mut self.batch.log, at) {
            Ok(true) => {}
            Ok(false) => self.batch.left_out += 1,
            Err(error) => self.set_aside(error, &DeadLetterSource::Event(event), event_place)?,
        }
        if event.ends_transaction {
            self.batch.log.end_transaction();
        }
        self.batch.count_event(bytes, before);
        Ok(())
    }

    /// Sets aside a record that cannot be decoded. The record counts as an event and gets a number
    /// in the stream.
    pub(super) fn take_undecoded(
        &mut self,
        error: Error,
        line: &[u8],
        event_place: P::EventPlace,
    ) -> Result<()> {
        if self.skip_replayed()? {
            return Ok(());
        }
        self.set_aside(error, &DeadLetterSource::Record(line), event_place)?;
        let before = self.batch.log.held_bytes();
        self.batch.count_event(line.len() as u64 + 1, before);
        self.note_position(event_place);
        Ok(())
    }

    /// Records the time of the batch's first event.
    fn note_begin(&mut self) {
        self.began_at.get_or_insert_with(Instant::now);
    }

    /// Sets the last event or record aside as a dead letter.
    ///
    /// # Errors
    /// `error`, if it is neither about the record's format nor about a table that the target does
    /// not have, or if there are too many dead letters.
    pub(super) fn set_aside(
        &mut self,
        error: Error,
        rejected: &DeadLetterSource<'_>,
        event_place: P::EventPlace,
    ) -> Result<()> {
        self.dead_letters += 1;
        let is_about_event = error.kind() == ErrorKind::Format || is_missing_table(&error);
        let max = self.context.options.dead_letters_max;
        if !is_about_event || self.dead_letters > max {
            return Err(with_dead_letter_hint(self.with_place(error, event_place), max));
        }
        self.note_begin();
        let InputPlace { source, line, .. } = self.place(event_place);
        let (table, payload) = match rejected {
            DeadLetterSource::Record(line) => (None, String::from_utf8_lossy(line).into_owned()),
            DeadLetterSource::Event(event) => self.context.router.describe_dead_letter(event),
        };
        self.batch.rejected.push(DeadLetter {
            position: self.ordinal - 1,
            source: source.unwrap_or_default(),
            line: line.unwrap_or_default(),
            table,
            sqlstate: error.sqlstate().map(|code| code.code().to_owned()),
            message: error.messages().join(": "),
            payload,
        });
        Ok(())
    }
}

/// Returns the hint for a run that has `max` dead letters and needs another one.
pub(crate) fn too_many_dead_letters_hint(max: u64) -> String {
    format!(
        "More than {} cannot be applied. Raise `--max-dead-letters`, or correct the events.",
        counted(max, "event")
    )
}

/// Adds a hint about `--max-dead-letters`, which is `max`, to an error of a record.
pub(crate) fn with_dead_letter_hint(error: Error, max: u64) -> Error {
    match error.kind() {
        ErrorKind::Format if max > 0 => error.hint_also(&too_many_dead_letters_hint(max)),
        ErrorKind::Format if error.hint_text().is_none() => error.hint(
            "With `--max-dead-letters N`, up to N such records are set aside in \
             pgspate.dead_letter, and the other records are applied.",
        ),
        _ => error,
    }
}

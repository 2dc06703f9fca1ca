//! Builds batches of a source's events: the one way from any source to the writer.
//!
//! Events are routed to their tables, and counted where they stand. What is no event, or cannot be
//! applied, is set aside if that may be. When a batch is cut is in `cuts.rs`.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Instant, SystemTime};

use super::EventBatch;
use super::cuts::Boundary;
use super::replay::Replay;
use crate::apply::options::ApplyOptions;
use crate::apply::route::{Router, EventPlace};
use crate::apply::watch::ApplyWatch;
use crate::{Error, ErrorKind, InputPlace, Result};
use pgspate_events::ChangeEvent;
use pgspate_replication::{SourceNames, SourcePosition};
use pgspate_target::ledger::{DeadLetter, Mark};

/// Between which events of the source the next one comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceTransaction {
    /// The last one ended its transaction.
    Between,
    /// One has begun, and none of its events came yet.
    Begun,
    /// One is open.
    Within,
}

/// What is set aside.
pub(super) enum SetAside<'a> {
    /// A record that cannot be decoded, as it came.
    Record(&'a [u8]),
    Event(&'a ChangeEvent),
}

/// What a builder works with.
pub(crate) struct BuilderContext {
    pub(crate) options: Arc<ApplyOptions>,
    pub(crate) router: Router,
    pub(crate) names: SourceNames,
    pub(crate) batches: SyncSender<Result<EventBatch>>,
    pub(crate) watch: Arc<ApplyWatch>,
}

/// Builds batches of the events of one source.
pub(crate) struct BatchBuilder<P> {
    pub(super) with: BuilderContext,
    /// How far the source has come.
    pub(super) position: P,
    /// The batch that is being built.
    pub(super) batch: EventBatch,
    /// When its first event came.
    pub(super) began: Option<Instant>,
    /// Events of the stream so far.
    pub(super) ordinal: u64,
    pub(super) replay: ReplayState,
    pub(super) transaction: SourceTransaction,
    /// What the source calls the last event's transaction.
    called: Option<Box<str>>,
    /// The last event may be taken back: no batch ends with it.
    pub(super) is_held: bool,
    letters: u64,
    /// Events of the batch when time was last looked at.
    pub(super) looked: u64,
    /// A part of the open transaction was handed over.
    pub(super) has_spilled: bool,
    /// Within a transaction, a batch is not cut before it has so many events more.
    pub(super) grows_by: u64,
    /// When the last event was committed or written on the source.
    pub(super) committed: Option<SystemTime>,
    pub(super) boundary: BatchBoundary,
}

impl<P: SourcePosition> BatchBuilder<P> {
    /// Goes on after `from`. `reads_again`: the source begins with what is applied already.
    pub(crate) fn new(with: BuilderContext, from: &Mark, position: P, reads_again: bool) -> BatchBuilder<P> {
        BatchBuilder {
            with,
            position,
            batch: EventBatch::default(),
            began: None,
            ordinal: if reads_again { 0 } else { from.ordinal },
            replay: if reads_again { ReplayState::of(from) } else { ReplayState::Over },
            transaction: SourceTransaction::Between,
            called: None,
            is_held: false,
            letters: 0,
            looked: 0,
            has_spilled: false,
            grows_by: 0,
            committed: None,
            boundary: BatchBoundary::default(),
        }
    }

    pub(super) fn is_between(&self) -> bool {
        self.transaction == SourceTransaction::Between
    }

    /// A transaction of the source begins. One that is open, and did not end, goes on.
    pub(super) fn open_transaction(&mut self) {
        self.transaction = match self.transaction {
            SourceTransaction::Between => SourceTransaction::Begun,
            SourceTransaction::Begun | SourceTransaction::Within => SourceTransaction::Within,
        };
    }

    /// The transaction of the events before ends, or none is open.
    pub(super) fn close_transaction(&mut self) {
        self.transaction = SourceTransaction::Between;
    }

    pub(super) fn place(&self, event_place: P::EventPlace) -> InputPlace {
        self.with.names.place(event_place.into())
    }

    /// The error with its place, if it has none.
    pub(super) fn placed(&self, error: Error, event_place: P::EventPlace) -> Error {
        match error.place() {
            None => error.at(self.place(event_place)),
            Some(_) => error,
        }
    }

    /// Takes the events of a record of so many bytes.
    pub(super) fn take(&mut self, events: &[ChangeEvent], bytes: usize, event_place: P::EventPlace) -> Result<()> {
        for (nth, event) in events.iter().enumerate() {
            let called = &event.position.transaction;
            let is_another = called.is_some() && *called != self.called;
            if is_another && self.transaction == SourceTransaction::Within {
                self.close_transaction();
                match nth {
                    0 => self.note_boundary(),
                    _ => self.note(event_place),
                }
                self.hand_over_if_due()?;
            }
            self.called.clone_from(called);
            self.push(event, bytes as u64 / events.len() as u64 + 1, event_place)?;
            if nth + 1 < events.len() && !self.is_between() {
                self.hand_over_if_due()?;
            }
        }
        if !events.is_empty() {
            self.note(event_place);
        }
        Ok(())
    }

    /// Takes an event of so many bytes, unless it is applied already.
    pub(super) fn push(&mut self, event: &ChangeEvent, bytes: u64, event_place: P::EventPlace) -> Result<()> {
        self.transaction = match event.ends_transaction {
            true => SourceTransaction::Between,
            false => SourceTransaction::Within,
        };
        if self.is_again() {
            self.with.router.see(event)?;
        }
        let ordinal = self.ordinal;
        if self.passes_over()? {
            return Ok(());
        }
        self.begin();
        let before = self.batch.log.held_bytes();
        let at = EventPlace { event_place: event_place.into(), ordinal };
        match self.with.router.add(event, &mut self.batch.log, at) {
            Ok(true) => {}
            Ok(false) => self.batch.left_out += 1,
            Err(error) => self.set_aside(error, &SetAside::Event(event), event_place)?,
        }
        if event.ends_transaction {
            self.batch.log.end_transaction();
        }
        self.batch.count(bytes, before);
        Ok(())
    }

    /// A record that cannot be decoded counts as an event, so that it has a place in the stream.
    pub(super) fn take_unread(&mut self, error: Error, line: &[u8], event_place: P::EventPlace) -> Result<()> {
        if self.passes_over()? {
            return Ok(());
        }
        self.set_aside(error, &SetAside::Record(line), event_place)?;
        let before = self.batch.log.held_bytes();
        self.batch.count(line.len() as u64 + 1, before);
        self.note(event_place);
        Ok(())
    }

    fn begin(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    /// Sets the last event aside, if that may be.
    pub(super) fn set_aside(
        &mut self,
        error: Error,
        told: &SetAside<'_>,
        event_place: P::EventPlace,
    ) -> Result<()> {
        self.letters += 1;
        if error.kind() != ErrorKind::Format || self.letters > self.with.options.dead_letters_max {
            return Err(no_event(self.placed(error, event_place)));
        }
        self.begin();
        let InputPlace { source, line, .. } = self.place(event_place);
        let (table, payload) = match told {
            SetAside::Record(line) => (None, String::from_utf8_lossy(line).into_owned()),
            SetAside::Event(event) => self.with.router.letter(event),
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

/// The error for records that are no events, when there are too many.
pub(crate) fn no_event(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Format if error.hint_text().is_none() => error.hint(
            "With `--max-dead-letters N` up to N such records are set aside in \
             pgspate.dead_letter, and the others applied.",
        ),
        _ => error,
    }
}

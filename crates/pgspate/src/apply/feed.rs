//! The input to batches: read on one thread, decoded, folded and encoded on another.
//!
//! While the writer is busy with a batch the next one grows; when it is idle, a batch is handed
//! over as soon as a transaction of the source has ended and the delay is over. A batch ends
//! between transactions, but for one that is larger than batches may be: its parts are written in
//! one transaction of the target.

mod detect;
mod digest;
mod messages;
mod pairs;
mod received;
mod rows;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::inputs::Inputs;
use super::lines::Lines;
use super::piece::Piece;
use super::prepare::prepare;
use super::replication::Lsn;
use super::route::{Router, Stand};
use super::watch::Watch;
use super::write::{no_event, words};
use crate::ledger::{DeadLetter, Mark};
use crate::{Error, Kind, Place, Result};
use detect::Unknown;
use digest::Digest;
use pairs::Pairing;
use pgspate_events::decode::{self, Decode, Dms};
use pgspate_events::{Event, Op};
pub(crate) use received::SlotFeed;

/// How often the wish to stop is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Time is looked at after so many events.
const EVENTS_BETWEEN_LOOKS: u64 = 64;

/// What becomes of a transaction of the source that the input ends within.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtEnd {
    /// It is not applied, and the run ends with an error.
    #[default]
    Hold,
    /// What there is of it is applied.
    Apply,
}

/// When batches are cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cuts {
    /// Events of a batch, at most.
    pub(crate) rows: u64,
    /// Bytes of input of a batch, or of what its events take, at most.
    pub(crate) bytes: u64,
    /// How long a batch waits for more when the writer is idle.
    pub(crate) delay: Duration,
}

/// Makes batches.
pub(crate) struct Feed {
    pub(crate) pieces: Receiver<Result<Piece>>,
    pub(crate) batches: SyncSender<Result<Batch>>,
    pub(crate) router: Router,
    pub(crate) decoder: Option<Box<dyn Decode>>,
    /// Of rows of Parquet files.
    pub(crate) dms: Option<Dms>,
    pub(crate) format: Option<decode::Format>,
    /// The format that a record was found to be in, and by what.
    pub(crate) found: Option<(decode::Format, &'static str)>,
    pub(crate) decode: decode::DecodeOptions,
    pub(crate) cuts: Cuts,
    pub(crate) at_end: AtEnd,
    pub(crate) inputs: Inputs,
    /// Where events come from a slot.
    pub(crate) slot: Option<SlotFeed>,
    /// Events before this are applied already.
    pub(crate) from: Mark,
    /// The stream's name.
    pub(crate) stream: String,
    pub(crate) dead_letters_max: u64,
    pub(crate) watch: Arc<Watch>,
}

/// What is being made.
struct Making {
    batch: Batch,
    began: Option<Instant>,
    /// Events of the stream so far.
    ordinal: u64,
    /// The last event ended its transaction.
    is_between: bool,
    /// A transaction has begun, and none of its events came yet.
    has_begun: bool,
    /// Records whose format is not known.
    unknown: Unknown,
    /// The last event is a delete that the next record may take back.
    pairing: Option<Pairing>,
    /// What was read again may be another stream, unless a transaction ends here.
    is_in_doubt: bool,
    transaction: Option<Box<str>>,
    letters: u64,
    events: Vec<Event>,
    looked: u64,
    /// A part of the open transaction was handed over.
    has_spilled: bool,
    /// Within a transaction, a batch is not cut before it has so many events more.
    grows_by: u64,
    digest: Digest,
    last: Last,
    boundary: Boundary,
    slot: received::State,
    topics: messages::State,
}

/// Where a record stands, and what all records up to it are.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    stand: (u32, u64),
    digest: Digest,
    /// Of a slot: where it goes on after this.
    end: Option<Lsn>,
}

/// The batch as it was when a transaction had ended.
#[derive(Default)]
struct Boundary {
    ordinal: u64,
    changes: usize,
    events: u64,
    bytes: u64,
    weight: u64,
    left_out: u64,
    rejected: usize,
    last: Last,
}

/// What is set aside.
enum Told<'a> {
    /// A record that cannot be decoded, as it came.
    Record(&'a [u8]),
    Event(&'a Event),
}

/// The batch could not be handed over: the writer is gone.
struct Gone;

impl Feed {
    /// Makes batches until the input ends, or something is wrong with it.
    pub(crate) fn run(mut self) {
        let mut making = Making {
            batch: Batch::default(),
            began: None,
            // A slot sends nothing again that is applied, nor are topics read again.
            ordinal: if self.inputs.are_files() { 0 } else { self.from.ordinal },
            is_between: true,
            has_begun: false,
            unknown: Unknown::default(),
            pairing: None,
            is_in_doubt: false,
            transaction: None,
            letters: 0,
            events: Vec::new(),
            looked: 0,
            has_spilled: false,
            grows_by: 0,
            digest: Digest::default(),
            last: Last::default(),
            boundary: Boundary::default(),
            slot: received::State::default(),
            topics: messages::State::default(),
        };
        let mut lines = Lines::default();
        let error = match self.read(&mut lines, &mut making) {
            Err(error) if error.kind() != Kind::Cancelled => error,
            _ => return,
        };
        // Whole transactions before it are applied first.
        making.go_back();
        if self.hand_over(&mut making).is_ok() {
            let _ = self.batches.send(Err(error));
        }
    }

    fn read(&mut self, lines: &mut Lines, making: &mut Making) -> Result<()> {
        if self.slot.as_ref().is_some_and(SlotFeed::is_over) {
            return Ok(());
        }
        loop {
            if self.watch.is_unwanted() {
                return Ok(());
            }
            let wait = match (making.began, making.is_between && !making.batch.is_empty()) {
                (Some(began), true) => self.delay(making).saturating_sub(began.elapsed()).min(LOOK),
                _ => LOOK,
            };
            match self.pieces.recv_timeout(wait) {
                Ok(Err(error)) => return Err(error),
                Ok(Ok(Piece::Received(received))) => {
                    if !self.received(&received, making)? {
                        return Ok(());
                    }
                }
                Ok(Ok(Piece::Topics(taken))) => {
                    if !self.topics(taken, making)? {
                        return Ok(());
                    }
                }
                Ok(Ok(Piece::Rows { input, first, batch })) => {
                    if !self.rows(input, first, &batch, making)? {
                        return Ok(());
                    }
                }
                Ok(Ok(Piece::Block(block))) => {
                    lines.add(block)?;
                    while let Some((line, stand)) = lines.next() {
                        self.record(line, stand, making)?;
                        if self.is_due(making) && self.hand_over(making).is_err() {
                            return Ok(());
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    making.unknown.check_wait()?;
                    if making.pairing.is_some_and(|pairing| pairing.has_waited()) {
                        making.end_pairing();
                    }
                    let is_due = making.is_between
                        && making.began.is_some_and(|began| began.elapsed() >= self.delay(making));
                    if is_due && self.hand_over(making).is_err() {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Disconnected) if self.slot.is_some() => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return self.end(making),
            }
        }
    }

    /// The input has ended.
    fn end(&self, making: &mut Making) -> Result<()> {
        if self.watch.is_cancelled() {
            return Ok(());
        }
        making.unknown.check_none()?;
        making.end_pairing();
        self.end_doubt(making)?;
        if self.at_end == AtEnd::Apply && !making.is_between {
            (making.is_between, making.has_begun) = (true, false);
            making.note_boundary();
        }
        if making.ordinal < self.from.ordinal {
            let message = format!(
                "the input has {} events, but {} of the stream are applied already",
                making.ordinal, self.from.ordinal
            );
            return Err(Error::new(Kind::Ledger, message).hint(
                "Name all files of the stream in their order, or give these files a stream of \
                 their own with `--stream NAME`.",
            ));
        }
        if !making.is_between {
            let message = "the input ends within a transaction of the source";
            return Err(Error::new(Kind::Format, message).hint(
                "The events of that transaction are not applied. Run the same command again when \
                 the input has its end, or apply what there is of it with `--at-end apply`.",
            ));
        }
        making.topics.wind_up();
        // The writer says why, if it is gone.
        let _ = self.hand_over(making);
        Ok(())
    }

    fn is_due(&self, making: &mut Making) -> bool {
        let (rows, bytes) = (making.batch.events, making.batch.weight);
        if making.pairing.is_some() {
            return false;
        }
        if !making.is_between {
            let is_large = rows >= 2 * self.cuts.rows || bytes >= 2 * self.cuts.bytes;
            return is_large && rows >= making.looked + making.grows_by;
        }
        if rows >= self.cuts.rows || bytes >= self.cuts.bytes {
            return true;
        }
        if rows < making.looked + EVENTS_BETWEEN_LOOKS || self.watch.is_writing() {
            return false;
        }
        making.looked = rows;
        making.began.is_some_and(|began| began.elapsed() >= self.delay(making))
    }

    /// How long a batch waits for more events.
    fn delay(&self, making: &Making) -> Duration {
        self.cuts.delay.max(self.behind(making))
    }

    fn record(&mut self, line: &[u8], stand: (u32, u64), making: &mut Making) -> Result<()> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        if self.decoder.is_none() && !self.detect(line, stand, making)? {
            return Ok(());
        }
        self.decode_line(line, stand, making)
    }

    /// Decodes a record and takes what it says.
    fn decode_line(&mut self, line: &[u8], stand: (u32, u64), making: &mut Making) -> Result<()> {
        making.digest.add(line);
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        let mut events = std::mem::take(&mut making.events);
        events.clear();
        let decoded = decoder.decode(line, &self.router, &mut events);
        let grouping = decoder.grouping();
        if let Some(fault) = self.router.take_fault() {
            return Err(fault);
        }
        let outcome = match decoded {
            Ok(()) => self.take_grouped(&events, grouping, line, stand, making),
            Err(error) => {
                making.end_pairing();
                self.no_event(self.unreadable(error), line, stand, making)
            }
        };
        making.events = events;
        outcome.map_err(
            |error| if error.place().is_none() { error.at(self.place(stand)) } else { error },
        )
    }

    fn place(&self, stand: (u32, u64)) -> Place {
        self.inputs.place(stand.0, stand.1)
    }

    fn take(
        &self,
        events: &[Event],
        line: &[u8],
        stand: (u32, u64),
        making: &mut Making,
    ) -> Result<()> {
        for (nth, event) in events.iter().enumerate() {
            let tx = &event.position.transaction;
            let has_begun = std::mem::take(&mut making.has_begun);
            if tx.is_some() && *tx != making.transaction && !making.is_between && !has_begun {
                // Another one has begun.
                making.is_between = true;
                match nth {
                    0 => making.note_boundary(),
                    _ => making.note(stand),
                }
                if self.is_due(making) {
                    // The writer says why, if it is gone.
                    let _ = self.hand_over(making);
                }
            }
            making.transaction.clone_from(tx);
            making.is_between = event.ends_transaction;
            let ordinal = making.ordinal;
            making.ordinal += 1;
            if ordinal >= self.from.ordinal {
                self.end_doubt(making)?;
            } else {
                self.router.see(event)?;
                if making.ordinal == self.from.ordinal {
                    self.reach(making)?;
                }
                continue;
            }
            Self::begin(making);
            let stand_of = Stand { input: stand.0, line: stand.1, ordinal };
            let before = making.batch.log.held_bytes();
            match self.router.add(event, &mut making.batch.log, stand_of) {
                Ok(true) => {}
                Ok(false) => making.batch.left_out += 1,
                Err(error) => self.set_aside(error, &Told::Event(event), stand, making)?,
            }
            if event.ends_transaction {
                making.batch.log.end_transaction();
            }
            making.batch.count(line.len() as u64 / events.len() as u64 + 1, before);
            let has_more = nth + 1 < events.len() && !making.is_between;
            if has_more && self.is_due(making) && self.hand_over(making).is_err() {
                return Ok(());
            }
        }
        if !events.is_empty() {
            making.note(stand);
        }
        Ok(())
    }

    /// A record that cannot be decoded counts as an event, so that it has a place in the stream.
    fn no_event(
        &self,
        error: Error,
        line: &[u8],
        stand: (u32, u64),
        making: &mut Making,
    ) -> Result<()> {
        making.ordinal += 1;
        if making.ordinal <= self.from.ordinal {
            let is_last = making.ordinal == self.from.ordinal;
            return if is_last { self.reach(making) } else { Ok(()) };
        }
        self.end_doubt(making)?;
        self.set_aside(error, &Told::Record(line), stand, making)?;
        let before = making.batch.log.held_bytes();
        making.batch.count(line.len() as u64 + 1, before);
        making.note(stand);
        Ok(())
    }

    fn begin(making: &mut Making) {
        if making.began.is_none() {
            making.began = Some(Instant::now());
        }
    }

    /// Sets an event aside, if that may be.
    fn set_aside(
        &self,
        error: Error,
        told: &Told<'_>,
        stand: (u32, u64),
        making: &mut Making,
    ) -> Result<()> {
        let position = making.ordinal - 1;
        making.letters += 1;
        if error.kind() != Kind::Format || making.letters > self.dead_letters_max {
            return Err(no_event(error));
        }
        Self::begin(making);
        let (source, line_number) = self.inputs.source(stand.0, stand.1);
        let (table, payload) = match told {
            Told::Record(line) => (None, String::from_utf8_lossy(line).into_owned()),
            Told::Event(event) => self.router.letter(event),
        };
        making.batch.rejected.push(DeadLetter {
            position,
            source,
            line: line_number,
            table,
            sqlstate: error.sqlstate().map(|code| code.code().to_owned()),
            message: words(&error),
            payload,
        });
        Ok(())
    }

    /// All that is applied already has been read: whether it is still what it was.
    fn reach(&self, making: &mut Making) -> Result<()> {
        self.router.end_of_seen();
        making.is_in_doubt = !self.from.digest.is_empty();
        if self.is_same(making) || !making.is_between {
            making.is_in_doubt &= !self.is_same(making);
            return Ok(());
        }
        self.end_doubt(making)
    }

    fn is_same(&self, making: &Making) -> bool {
        self.from.digest == making.digest.to_string()
    }

    /// Events to come are new ones: those that were read again must be the same as before.
    fn end_doubt(&self, making: &mut Making) -> Result<()> {
        if !std::mem::take(&mut making.is_in_doubt) || self.is_same(making) {
            return Ok(());
        }
        let message = format!(
            "the input is not the stream that was applied before: its first {} events differ",
            self.from.ordinal
        );
        Err(Error::new(Kind::Ledger, message).hint(
            "Give the same files in the same order, or begin a stream of its own with \
             `--stream NAME`.",
        ))
    }

    /// Where the stream is after a record.
    fn mark(&self, ordinal: u64, last: &Last) -> Mark {
        if let (Some(slot), Some(end)) = (&self.slot, last.end) {
            return Mark { ordinal, source: end.to_string(), digest: slot.digest() };
        }
        let source = self.inputs.words(last.stand.0, last.stand.1);
        Mark { ordinal, source, digest: last.digest.to_string() }
    }

    fn hand_over(&self, making: &mut Making) -> Result<(), Gone> {
        let mut batch = std::mem::take(&mut making.batch);
        if making.is_between {
            batch.parts = making.topics.moves(batch.events > 0);
        }
        let ends = making.has_spilled && making.is_between;
        if batch.is_empty() && !ends {
            return Ok(());
        }
        batch.commits = making.is_between;
        if !batch.commits {
            let prepared = prepare(&batch.log, 0..batch.log.changes().len(), &self.router.tables());
            let may_go_on = batch.log.changes().last().is_some_and(|it| it.op == Op::Truncate);
            if may_go_on || prepared.is_ok_and(|all| all.iter().any(|it| it.is_in_suspense)) {
                // An event to come may be about a row that another one has taken the key of, or
                // about a table that is to be emptied with others that refer to it.
                making.looked = batch.events;
                making.grows_by = batch.events;
                making.batch = batch;
                return Ok(());
            }
        }
        making.began = None;
        making.has_spilled = !batch.commits;
        (making.looked, making.grows_by) = (0, 0);
        let boundary = std::mem::take(&mut making.boundary);
        batch.upto = batch.log.changes().len();
        batch.end = self.mark(making.ordinal, &boundary.last);
        batch.lsn = boundary.last.end;
        if batch.lsn.is_none() {
            batch.lsn = making.topics.reached();
        }
        batch.committed = making.slot.committed;
        batch.tables = self.router.tables();
        batch.additions = self.router.take_additions();
        if batch.commits {
            batch.upto = boundary.changes;
        }
        let made = match prepare(&batch.log, 0..batch.upto, &batch.tables) {
            Ok(prepared) => {
                batch.prepared = prepared;
                Ok(batch)
            }
            Err(error) => Err(error),
        };
        // Before it is taken: the next one is not to be cut short meanwhile.
        self.watch.begin_batch();
        self.batches.send(made).map_err(|_| Gone)
    }
}

impl Making {
    /// A transaction of the source has ended.
    fn note_boundary(&mut self) {
        self.topics.settle();
        self.batch.log.end_transaction();
        let (batch, boundary) = (&self.batch, &mut self.boundary);
        boundary.ordinal = self.ordinal;
        boundary.changes = batch.log.changes().len();
        boundary.events = batch.events;
        (boundary.bytes, boundary.weight) = (batch.bytes, batch.weight);
        boundary.left_out = batch.left_out;
        boundary.rejected = batch.rejected.len();
        boundary.last = self.last;
    }

    /// Notes where the stream is after a record.
    fn note(&mut self, stand: (u32, u64)) {
        self.topics.arrive();
        self.last = Last { stand, digest: self.digest, end: None };
        if self.is_between {
            self.note_boundary();
        }
    }

    /// Forgets what came after the last whole transaction.
    fn go_back(&mut self) {
        let (batch, boundary) = (&mut self.batch, &self.boundary);
        self.ordinal = boundary.ordinal;
        batch.events = boundary.events;
        (batch.bytes, batch.weight) = (boundary.bytes, boundary.weight);
        batch.left_out = boundary.left_out;
        batch.rejected.truncate(boundary.rejected);
        self.is_between = true;
        self.has_spilled = false;
    }
}

//! Messages of topics to batches, and where each partition is after them.
//!
//! A message is taken whole or not at all: what it says is one transaction. Where all comes from
//! one partition, transactions that a format marks are kept; between partitions there is no order,
//! and so none of them ends where another one has a part.

use std::sync::PoisonError;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::digest::Digest;
use super::{Feed, Making};
use crate::apply::inputs::Inputs;
use crate::apply::kafka::{Message, Partition, Taken, is_another, next_of, source_of};
use crate::apply::replication::Lsn;
use crate::ledger::{Mark, PartMove};
use crate::{Error, Kind, Result};
use pgspate_events::Event;
use pgspate_events::decode::{self, Debezium, Decode, Grouping, KeyedRecord};

/// How often places are written where there are no events.
const IDLE: Duration = Duration::from_secs(10);
/// How values begin that are written with a registry of schemas.
const REGISTERED: u8 = 0;

/// Where partitions are.
pub(super) struct State {
    parts: Vec<Part>,
    /// The part of the message that is being taken, and where that will be.
    arriving: Option<(usize, Place)>,
    /// Parts whose place is further than that of the last whole transaction.
    unsettled: Vec<usize>,
    /// What is known is handed on with no event, too.
    is_due: bool,
    /// When places were last handed on.
    moved: Instant,
}

impl Default for State {
    fn default() -> State {
        State {
            parts: Vec::new(),
            arriving: None,
            unsettled: Vec::new(),
            is_due: false,
            moved: Instant::now(),
        }
    }
}

/// A partition.
struct Part {
    name: String,
    topic: String,
    now: Place,
    /// After the last whole transaction.
    whole: Place,
    /// As the ledger has it, once all that was handed on is committed.
    handed: Option<Mark>,
    decoder: Option<Box<dyn Decode>>,
    /// What the last message was that is applied already, if that comes again.
    check: Option<String>,
}

/// A place in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Events before it.
    events: u64,
    next: i64,
    /// Of the message before it; empty where that is not known.
    digest: String,
}

impl Place {
    fn mark(&self) -> Mark {
        let digest = self.digest.clone();
        Mark { ordinal: self.events, source: source_of(self.next), digest }
    }
}

impl State {
    fn add(&mut self, partition: Partition) -> Result<()> {
        let mark = partition.mark.clone().unwrap_or_default();
        let next = match &partition.mark {
            Some(mark) => next_of(&mark.source)?,
            None => partition.next,
        };
        let place = Place { events: mark.ordinal, next, digest: mark.digest.clone() };
        self.parts.push(Part {
            name: partition.name(),
            whole: place.clone(),
            now: place,
            decoder: None,
            check: partition.reads_again.then_some(mark.digest),
            handed: partition.mark,
            topic: partition.topic,
        });
        Ok(())
    }

    /// The message that was being taken has been.
    pub(super) fn arrive(&mut self) {
        if let Some((part, place)) = self.arriving.take() {
            self.parts[part].now = place;
            self.unsettled.push(part);
        }
    }

    /// All that has arrived is of whole transactions.
    pub(super) fn settle(&mut self) {
        for part in self.unsettled.drain(..) {
            let part = &mut self.parts[part];
            part.whole.clone_from(&part.now);
        }
    }

    /// The input has ended.
    pub(super) fn wind_up(&mut self) {
        self.is_due = true;
    }

    /// What is handed on now: with events, or from time to time.
    pub(super) fn moves(&mut self, has_events: bool) -> Vec<PartMove> {
        let mut moves = Vec::new();
        if !has_events && !self.is_due {
            return moves;
        }
        for part in &mut self.parts {
            let to = part.whole.mark();
            if part.handed.as_ref() != Some(&to) {
                let from = part.handed.replace(to.clone());
                moves.push(PartMove { part: part.name.clone(), from, to });
            }
        }
        (self.is_due, self.moved) = (false, Instant::now());
        moves
    }

    /// The sum of all places, which grows with each.
    pub(super) fn reached(&self) -> Option<Lsn> {
        let sum = self.parts.iter().map(|part| part.whole.next.unsigned_abs()).sum();
        (!self.parts.is_empty()).then_some(Lsn(sum))
    }
}

impl Feed {
    /// False when no more is wanted.
    pub(super) fn topics(&mut self, taken: Taken, making: &mut Making) -> Result<bool> {
        match taken {
            Taken::Partition(partition) => {
                if let Inputs::Topics(names) = &self.inputs {
                    let mut names = names.write().unwrap_or_else(PoisonError::into_inner);
                    names.push(partition.name());
                }
                making.topics.add(partition)?;
                if making.topics.parts.len() == 1 {
                    making.digest = Digest::parse(&self.from.digest);
                }
                Ok(true)
            }
            Taken::Messages(messages) => {
                for message in &messages {
                    self.message(message, making)?;
                    if self.is_due(making) && self.hand_over(making).is_err() {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Taken::Passed(passed) => Ok(self.passed(&passed, making)),
        }
    }

    fn message(&mut self, message: &Message, making: &mut Making) -> Result<()> {
        let at = message.part as usize;
        let stand = (message.part, message.offset.unsigned_abs());
        let digest = digest(message);
        let state = &mut making.topics;
        let is_ordered = state.parts.len() == 1;
        let Some(part) = state.parts.get_mut(at) else {
            return Err(Error::new(Kind::Bug, "a message of a partition that is not read"));
        };
        let is_again = message.offset < part.now.next;
        if let Some(expected) = part.check.take()
            && is_again
            && expected != digest
        {
            return Err(self.is_not_the_same(&part.name, stand));
        }
        let events = part.now.events;
        let mut decoder = part.decoder.take();
        let record = KeyedRecord {
            topic: &part.topic,
            key: message.key.as_deref(),
            value: message.value.as_deref().filter(|value| !decode::is_nothing(value)),
            headers: &message.headers,
            is_ordered,
        };
        let mut found = std::mem::take(&mut making.events);
        found.clear();
        let decoded = self.decode_record(&record, &mut decoder, &mut found);
        let grouping = decoder.as_ref().map_or(Grouping::AsEvents, |decoder| decoder.grouping());
        part.decoder = decoder;
        if is_again {
            // It is applied. What it tells of the messages to come is all that was wanted of it.
            making.events = found;
            return Ok(());
        }
        let decoded = match decoded {
            Err(error) if error.kind() != Kind::Format => return Err(error.at(self.place(stand))),
            decoded => decoded,
        };
        let count = if decoded.is_err() { 1 } else { found.len() as u64 };
        let place = Place { events: events + count, next: message.offset + 1, digest };
        making.topics.arriving = Some((at, place));
        making.digest.mix(message.offset.unsigned_abs() ^ (u64::from(message.part) << 48));
        if let Some(written) = message.written.filter(|written| *written > 0) {
            making.slot.committed =
                UNIX_EPOCH.checked_add(Duration::from_millis(written.unsigned_abs()));
        }
        match grouping {
            Grouping::Opens if is_ordered => making.open(),
            Grouping::Closes if is_ordered => {
                (making.is_between, making.has_begun) = (true, false);
            }
            _ => make_one(&mut found, is_ordered),
        }
        let line = message.value.as_deref().or(message.key.as_deref()).unwrap_or_default();
        let outcome = match decoded {
            Ok(()) if found.is_empty() => {
                making.note(stand);
                Ok(())
            }
            Ok(()) => self.take(&found, line, stand, making),
            Err(error) => self.no_event(error, line, stand, making),
        };
        making.events = found;
        outcome.map_err(
            |error| if error.place().is_none() { error.at(self.place(stand)) } else { error },
        )
    }

    fn decode_record(
        &self,
        record: &KeyedRecord<'_>,
        decoder: &mut Option<Box<dyn Decode>>,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        if decoder.is_none() {
            let format = match (self.format, record.value) {
                (Some(format), _) => format,
                (None, Some(value)) => {
                    decode::sniff(value).map_err(|error| unread(error, value))?.0
                }
                // Rows of Debezium's are all whose end a key alone may tell.
                (None, None) => {
                    let mut debezium = Debezium::new(self.decode.debezium.clone());
                    return debezium.decode_keyed(record, &self.router, events);
                }
            };
            let found = decode::of(format, &self.decode);
            let found = found.unwrap_or_else(|| Box::new(decode::plain::Plain::default()));
            if found.leaves_out() {
                self.router.expect_left_out();
            }
            *decoder = Some(found);
        }
        let Some(decoder) = decoder else { return Ok(()) };
        let decoded = decoder.decode_keyed(record, &self.router, events);
        self.router.take_fault().map_or(decoded, Err)
    }

    /// Partitions have nothing that is wanted before these places. False when nobody listens.
    fn passed(&self, passed: &[(u32, i64)], making: &mut Making) -> bool {
        for (part, next) in passed {
            let Some(found) = making.topics.parts.get(*part as usize) else { continue };
            if *next <= found.now.next {
                continue;
            }
            let place = Place { events: found.now.events, next: *next, digest: String::new() };
            making.topics.arriving = Some((*part as usize, place));
            making.digest.mix(next.unsigned_abs() ^ (u64::from(*part) << 48));
            making.note((*part, next.unsigned_abs() - 1));
        }
        let is_idle = making.is_between && making.batch.events == 0;
        if let Some(reached) = making.topics.reached().filter(|_| is_idle)
            && !self.watch.has_batch()
        {
            self.watch.reach(reached);
        }
        if !making.is_between || making.topics.moved.elapsed() < IDLE {
            return true;
        }
        making.topics.is_due = true;
        self.hand_over(making).is_ok()
    }

    fn is_not_the_same(&self, name: &str, stand: (u32, u64)) -> Error {
        let message = format!("offset {} of {name} is not what was applied before", stand.1);
        let Inputs::Topics(_) = &self.inputs else {
            return Error::new(Kind::Bug, "a message that is of no topic");
        };
        Error::new(Kind::Ledger, message).hint(is_another(name, &self.stream))
    }
}

/// What tells a message from another one at its place.
fn digest(message: &Message) -> String {
    let mut digest = Digest::default();
    for part in [&message.key, &message.value] {
        digest.mix(u64::from(part.is_some()));
        digest.add(part.as_deref().unwrap_or_default());
    }
    digest.mix(message.written.unwrap_or(-1).cast_unsigned());
    digest.to_string()
}

/// Makes one transaction of what a message says, or a part of one.
fn make_one(events: &mut [Event], is_ordered: bool) {
    let Some((last, rest)) = events.split_last_mut() else { return };
    for event in rest {
        event.ends_transaction = false;
        event.position.transaction.clone_from(&last.position.transaction);
    }
    last.ends_transaction |= !is_ordered;
}

/// A record that is in none of the formats.
fn unread(error: Error, value: &[u8]) -> Error {
    if value.first() != Some(&REGISTERED) {
        return error;
    }
    Error::new(Kind::Format, "messages that need a registry of schemas are not read").hint(
        "Let the connector write JSON, its keys too: `value.converter` and `key.converter` are \
         org.apache.kafka.connect.json.JsonConverter then.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(offset: i64, value: Option<&str>) -> Message {
        Message {
            part: 0,
            offset,
            written: Some(17),
            key: Some(b"{}".to_vec()),
            value: value.map(|value| value.as_bytes().to_vec()),
            headers: Vec::new(),
        }
    }

    fn state(count: i32) -> State {
        let mut state = State::default();
        for number in 0..count {
            let (topic, mark) = ("t".to_owned(), Some(Mark::default()));
            let found = Partition { topic, number, mark, next: 0, reads_again: false, end: 9 };
            state.add(found).unwrap();
        }
        state
    }

    fn arrive(state: &mut State, part: usize, next: i64) {
        let place = Place { events: next.unsigned_abs(), next, digest: String::new() };
        state.arriving = Some((part, place));
        state.arrive();
    }

    #[test]
    fn places_move_with_whole_transactions() {
        let mut state = state(2);
        arrive(&mut state, 0, 3);
        assert!(state.moves(true).is_empty());
        arrive(&mut state, 0, 4);
        state.settle();
        arrive(&mut state, 0, 5);
        assert!(state.moves(false).is_empty());
        let moves = state.moves(true);
        assert_eq!(moves.len(), 1);
        assert_eq!((moves[0].part.as_str(), moves[0].to.source.as_str()), ("t/0", "offset 3"));
        assert_eq!(moves[0].from, Some(Mark::default()));
        assert_eq!(state.reached(), Some(Lsn(4)));
        state.settle();
        state.wind_up();
        let moves = state.moves(false);
        assert_eq!((moves[0].to.ordinal, moves[0].to.source.as_str()), (5, "offset 4"));
        assert!(state.moves(true).is_empty());
    }

    #[test]
    fn messages_are_told_apart() {
        let one = digest(&message(1, Some("{}")));
        assert_eq!(one, digest(&message(2, Some("{}"))));
        let mut later = message(1, Some("{}"));
        later.written = Some(18);
        for other in [message(1, None), message(1, Some("")), message(1, Some("{} ")), later] {
            assert_ne!(digest(&other), one);
        }
    }
}

//! Where each partition of a stream is, and what the ledger has of that.

use std::time::{Duration, Instant};

use super::read::{Partition, next_of, source_of};
use crate::{Digest, Result, SourceNames, SourcePoint, SourcePosition, Trail};
use pgspate_events::EventPlace;
use pgspate_target::ledger::{Mark, PartMove};

/// How often places are written where there are no events.
const IDLE: Duration = Duration::from_secs(10);

/// An offset of one of the run's partitions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offset {
    /// Which of the run's partitions.
    pub part: u32,
    /// Its place in the partition.
    pub offset: i64,
}

impl From<Offset> for EventPlace {
    fn from(Offset { part, offset }: Offset) -> EventPlace {
        EventPlace::Offset { part, offset }
    }
}

/// Where partitions are.
#[derive(Debug)]
pub struct TopicPosition {
    parts: Vec<Part>,
    /// The part of the message that is being taken, and where that will be.
    arriving: Option<(usize, Place)>,
    /// Parts whose place is further than that of the last whole transaction.
    unsettled: Vec<usize>,
    /// What is known is handed on with no event, too.
    is_due: bool,
    /// When places were last handed on.
    moved: Instant,
    trail: Trail<Offset>,
}

/// A partition.
#[derive(Debug)]
struct Part {
    name: String,
    now: Place,
    /// After the last whole transaction.
    whole: Place,
    /// As the ledger has it, once all that was handed on is committed.
    handed: Option<Mark>,
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

impl TopicPosition {
    /// Begins with no partitions, of a stream which is at `from`.
    pub fn new(from: &Mark) -> TopicPosition {
        TopicPosition {
            parts: Vec::new(),
            arriving: None,
            unsettled: Vec::new(),
            is_due: false,
            moved: Instant::now(),
            trail: Trail::after(Digest::parse(&from.digest)),
        }
    }

    /// Adds the next partition. Returns the digest of the last message that is applied already, if
    /// that is read again.
    ///
    /// # Errors
    /// Of [`crate::ErrorKind::Ledger`] when the ledger's place is no offset.
    pub fn add(&mut self, partition: Partition) -> Result<Option<String>> {
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
            handed: partition.mark,
        });
        Ok(partition.reads_again.then_some(mark.digest))
    }

    /// Returns whether a message, or what comes before it, was taken before.
    pub fn is_before(&self, at: Offset) -> bool {
        self.parts.get(at.part as usize).is_some_and(|part| at.offset < part.now.next)
    }

    /// Begins to take a message, which is so many events. `digest`: what tells it from another one
    /// at its place.
    pub fn begin(&mut self, at: Offset, events: u64, digest: String) {
        let Some(part) = self.parts.get(at.part as usize) else { return };
        let place = Place { events: part.now.events + events, next: at.offset + 1, digest };
        self.arriving = Some((at.part as usize, place));
        self.trail.digest.mix(at.offset.unsigned_abs() ^ (u64::from(at.part) << 48));
    }

    /// Notes that a partition has nothing before `next` that is wanted. Returns its place, if that
    /// is further now.
    pub fn pass(&mut self, part: u32, next: i64) -> Option<Offset> {
        let found = self.parts.get(part as usize).filter(|found| next > found.now.next)?;
        let place = Place { events: found.now.events, next, digest: String::new() };
        self.arriving = Some((part as usize, place));
        self.trail.digest.mix(next.unsigned_abs() ^ (u64::from(part) << 48));
        Some(Offset { part, offset: next - 1 })
    }

    /// Has the next batch say where all parts are, if that is due, or if the input has ended
    /// (`winds_up`). Returns whether it will.
    pub fn hand_on(&mut self, winds_up: bool) -> bool {
        self.is_due |= winds_up || self.moved.elapsed() >= IDLE;
        self.is_due
    }
}

impl SourcePosition for TopicPosition {
    type EventPlace = Offset;

    fn arrive(&mut self, event_place: Offset) {
        if let Some((part, place)) = self.arriving.take() {
            self.parts[part].now = place;
            self.unsettled.push(part);
        }
        self.trail.arrive(event_place);
    }

    fn settle(&mut self) {
        for part in self.unsettled.drain(..) {
            let part = &mut self.parts[part];
            part.whole.clone_from(&part.now);
        }
        self.trail.settle();
    }

    fn mark(&self, ordinal: u64, names: &SourceNames) -> Mark {
        self.trail.mark(ordinal, names)
    }

    fn moves(&mut self, has_events: bool) -> Vec<PartMove> {
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
        if !has_events && !moves.is_empty() {
            // An attempt to write them is told from one that has written them by the mark alone.
            self.trail.advance();
        }
        (self.is_due, self.moved) = (false, Instant::now());
        moves
    }

    fn point(&self) -> Option<SourcePoint> {
        let sum = self.parts.iter().map(|part| part.whole.next.unsigned_abs()).sum();
        (!self.parts.is_empty()).then_some(SourcePoint::Messages(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(count: i32) -> TopicPosition {
        let mut position = TopicPosition::new(&Mark::default());
        for number in 0..count {
            let (topic, mark) = ("t".to_owned(), Some(Mark::default()));
            let found = Partition { topic, number, mark, next: 0, reads_again: false, end: 9 };
            position.add(found).unwrap();
        }
        position
    }

    fn arrive(state: &mut TopicPosition, part: usize, next: i64) {
        let place = Place { events: next.unsigned_abs(), next, digest: String::new() };
        state.arriving = Some((part, place));
        state.arrive(Offset::default());
    }

    #[test]
    fn places_move_with_whole_transactions() {
        let mut state = position(2);
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
        assert_eq!(state.point(), Some(SourcePoint::Messages(4)));
        state.settle();
        assert!(state.hand_on(true));
        let moves = state.moves(false);
        assert_eq!((moves[0].to.ordinal, moves[0].to.source.as_str()), (5, "offset 4"));
        assert!(state.moves(true).is_empty());
    }
    /// By its mark alone a commit is known to have happened.
    #[test]
    fn moves_without_events_change_the_mark() {
        let (mut state, names) = (position(0), SourceNames::new(vec!["t/0".to_owned()]));
        let mut marks = vec![state.mark(0, &names)];
        for number in 0..2 {
            let (topic, mark) = ("t".to_owned(), None);
            let found = Partition { topic, number, mark, next: 0, reads_again: false, end: 0 };
            state.add(found).unwrap();
            assert!(state.hand_on(true));
            assert_eq!(state.moves(false).len(), 1);
            marks.push(state.mark(0, &names));
        }
        assert!(marks[0] != marks[1] && marks[1] != marks[2], "{marks:?}");
    }
}

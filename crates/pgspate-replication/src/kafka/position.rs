//! The positions of a stream's partitions, and their positions in the ledger.

use std::time::{Duration, Instant};

use super::topic_source::{TopicPartition, format_position, parse_position};
use crate::{DigestedPosition, Result, SourceNames, SourcePoint, SourcePosition, StreamDigest};
use pgspate_events::EventPlace;
use pgspate_target::ledger::{PartitionMove, StreamPosition};

/// How often positions are written while there are no events.
const IDLE: Duration = Duration::from_secs(10);

/// An offset of one of the run's partitions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offset {
    /// The index of the partition in this run.
    pub part: u32,
    /// The offset in the partition.
    pub offset: i64,
}

impl From<Offset> for EventPlace {
    fn from(Offset { part, offset }: Offset) -> EventPlace {
        EventPlace::Offset { part, offset }
    }
}

/// The positions of all partitions of a stream.
#[derive(Debug)]
pub struct TopicPosition {
    parts: Vec<TrackedPartition>,
    /// The partition of the message that is being taken, and its position after that message.
    arriving: Option<(usize, PartitionPlace)>,
    /// Partitions whose position is after the last whole transaction.
    unsettled: Vec<usize>,
    /// Whether the next batch shall have all positions even if it has no events.
    is_due: bool,
    /// When the last batch got positions.
    moved: Instant,
    trail: DigestedPosition<Offset>,
}

/// A partition and its positions.
#[derive(Debug)]
struct TrackedPartition {
    name: String,
    /// The position after the last message.
    now: PartitionPlace,
    /// The position after the last whole transaction.
    whole: PartitionPlace,
    /// The position that the ledger has once all batches so far are committed.
    handed: Option<StreamPosition>,
}

/// A position in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PartitionPlace {
    /// The number of events before the position.
    events: u64,
    /// The offset of the next message.
    next: i64,
    /// The digest of the last message before the position; empty if unknown.
    digest: String,
}

impl PartitionPlace {
    fn mark(&self) -> StreamPosition {
        let digest = self.digest.clone();
        StreamPosition { ordinal: self.events, source: format_position(self.next), digest }
    }
}

impl TopicPosition {
    /// Returns the position of a stream that begins at `from`, without partitions.
    pub fn new(from: &StreamPosition) -> TopicPosition {
        TopicPosition {
            parts: Vec::new(),
            arriving: None,
            unsettled: Vec::new(),
            is_due: false,
            moved: Instant::now(),
            trail: DigestedPosition::after(StreamDigest::parse(&from.digest)),
        }
    }

    /// Adds the next partition. Returns the digest of the last applied message if the source reads
    /// that message again.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Ledger`] if the ledger's position is not an offset.
    pub fn add(&mut self, partition: TopicPartition) -> Result<Option<String>> {
        let mark = partition.mark.clone().unwrap_or_default();
        let next = match &partition.mark {
            Some(mark) => parse_position(&mark.source)?,
            None => partition.next,
        };
        let place = PartitionPlace { events: mark.ordinal, next, digest: mark.digest.clone() };
        self.parts.push(TrackedPartition {
            name: partition.name(),
            whole: place.clone(),
            now: place,
            handed: partition.mark,
        });
        Ok(partition.reads_again.then_some(mark.digest))
    }

    /// Returns whether the message at `at` was taken before.
    pub fn was_taken(&self, at: Offset) -> bool {
        self.parts.get(at.part as usize).is_some_and(|part| at.offset < part.now.next)
    }

    /// Begins to take a message of a number of events. `digest` identifies the message.
    pub fn begin_message(&mut self, at: Offset, events: u64, digest: String) {
        let Some(part) = self.parts.get(at.part as usize) else { return };
        let place =
            PartitionPlace { events: part.now.events + events, next: at.offset + 1, digest };
        self.arriving = Some((at.part as usize, place));
        self.trail.digest.mix(at.offset.unsigned_abs() ^ (u64::from(at.part) << 48));
    }

    /// Notes that a partition has no more messages before `next`. Returns the last offset before
    /// `next` if the position moved.
    pub fn note_passed(&mut self, part: u32, next: i64) -> Option<Offset> {
        let found = self.parts.get(part as usize).filter(|found| next > found.now.next)?;
        let place = PartitionPlace { events: found.now.events, next, digest: String::new() };
        self.arriving = Some((part as usize, place));
        self.trail.digest.mix(next.unsigned_abs() ^ (u64::from(part) << 48));
        Some(Offset { part, offset: next - 1 })
    }

    /// Requests that the next batch has the positions of all partitions, if positions are due or
    /// the input has ended (`input_ended`). Returns whether the batch will have the positions.
    pub fn request_positions(&mut self, input_ended: bool) -> bool {
        self.is_due |= input_ended || self.moved.elapsed() >= IDLE;
        self.is_due
    }
}

impl SourcePosition for TopicPosition {
    type EventPlace = Offset;

    fn note_record(&mut self, event_place: Offset) {
        if let Some((part, place)) = self.arriving.take() {
            self.parts[part].now = place;
            self.unsettled.push(part);
        }
        self.trail.note_record(event_place);
    }

    fn note_transaction_end(&mut self) {
        for part in self.unsettled.drain(..) {
            let part = &mut self.parts[part];
            part.whole.clone_from(&part.now);
        }
        self.trail.note_transaction_end();
    }

    fn mark(&self, ordinal: u64, names: &SourceNames) -> StreamPosition {
        self.trail.mark(ordinal, names)
    }

    fn partition_moves(&mut self, has_events: bool) -> Vec<PartitionMove> {
        let mut moves = Vec::new();
        if !has_events && !self.is_due {
            return moves;
        }
        for part in &mut self.parts {
            let to = part.whole.mark();
            if part.handed.as_ref() != Some(&to) {
                let from = part.handed.replace(to.clone());
                moves.push(PartitionMove { part: part.name.clone(), from, to });
            }
        }
        if !has_events && !moves.is_empty() {
            // Without events, only a changed stream position shows whether the commit happened.
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
        let mut position = TopicPosition::new(&StreamPosition::default());
        for number in 0..count {
            let (topic, mark) = ("t".to_owned(), Some(StreamPosition::default()));
            let found = TopicPartition { topic, number, mark, next: 0, reads_again: false, end: 9 };
            position.add(found).unwrap();
        }
        position
    }

    fn arrive(state: &mut TopicPosition, part: usize, next: i64) {
        let place = PartitionPlace { events: next.unsigned_abs(), next, digest: String::new() };
        state.arriving = Some((part, place));
        state.note_record(Offset::default());
    }

    #[test]
    fn positions_move_with_whole_transactions() {
        let mut state = position(2);
        arrive(&mut state, 0, 3);
        assert!(state.partition_moves(true).is_empty());
        arrive(&mut state, 0, 4);
        state.note_transaction_end();
        arrive(&mut state, 0, 5);
        assert!(state.partition_moves(false).is_empty());
        let moves = state.partition_moves(true);
        assert_eq!(moves.len(), 1);
        assert_eq!((moves[0].part.as_str(), moves[0].to.source.as_str()), ("t/0", "offset 3"));
        assert_eq!(moves[0].from, Some(StreamPosition::default()));
        assert_eq!(state.point(), Some(SourcePoint::Messages(4)));
        state.note_transaction_end();
        assert!(state.request_positions(true));
        let moves = state.partition_moves(false);
        assert_eq!((moves[0].to.ordinal, moves[0].to.source.as_str()), (5, "offset 4"));
        assert!(state.partition_moves(true).is_empty());
    }
    /// Only a changed stream position shows that a commit without events happened.
    #[test]
    fn moves_without_events_change_the_mark() {
        let (mut state, names) = (position(0), SourceNames::new(vec!["t/0".to_owned()]));
        let mut marks = vec![state.mark(0, &names)];
        for number in 0..2 {
            let (topic, mark) = ("t".to_owned(), None);
            let found = TopicPartition { topic, number, mark, next: 0, reads_again: false, end: 0 };
            state.add(found).unwrap();
            assert!(state.request_positions(true));
            assert_eq!(state.partition_moves(false).len(), 1);
            marks.push(state.mark(0, &names));
        }
        assert!(marks[0] != marks[1] && marks[1] != marks[2], "{marks:?}");
    }
}

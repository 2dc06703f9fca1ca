//! Tracks how far each partition of a stream is read, and which positions the ledger gets.

use std::time::{Duration, Instant};

use super::topic_source::{
    TopicPartition, digest_before, format_position, parse_digest, parse_position,
};
use crate::{DigestedPosition, Result, SourceNames, SourcePoint, SourcePosition, StreamDigest};
use pgspate_events::EventPlace;
use pgspate_target::ledger::{PartitionMove, StreamPosition};

/// How often positions are written to the ledger while there are no events.
const IDLE_POSITION_INTERVAL: Duration = Duration::from_secs(10);

/// The place of a message: a partition of this run, and an offset in the partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionOffset {
    /// The index of the partition in this run.
    pub part: u32,
    /// The offset in the partition.
    pub offset: i64,
}

impl From<PartitionOffset> for EventPlace {
    fn from(PartitionOffset { part, offset }: PartitionOffset) -> EventPlace {
        EventPlace::Offset { part, offset }
    }
}

/// The positions of all partitions of a stream.
#[derive(Debug)]
pub struct TopicPosition {
    parts: Vec<TrackedPartition>,
    /// The partition of the current message, and the partition's position after that message.
    current_message: Option<(usize, PartitionPosition)>,
    /// Partitions with messages of a transaction that has not ended.
    in_open_transaction: Vec<usize>,
    /// Whether the next batch must have all positions, even if it has no events.
    positions_are_due: bool,
    /// When the last batch got positions.
    positions_sent_at: Instant,
    /// The position of the stream as a whole.
    stream_position: DigestedPosition<PartitionOffset>,
}

/// A partition and its positions.
#[derive(Debug)]
struct TrackedPartition {
    name: String,
    /// The position after the last message.
    after_message: PartitionPosition,
    /// The position after the last complete transaction.
    after_transaction: PartitionPosition,
    /// The position that the ledger has once all batches so far are committed.
    sent: Option<StreamPosition>,
}

/// A position in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PartitionPosition {
    /// The number of events before the position.
    events: u64,
    /// The offset of the next message.
    next: i64,
    /// The digest of the last message before the position, and the offset of this message if it is
    /// not directly before the position. Empty if unknown.
    digest: String,
}

impl PartitionPosition {
    /// Returns the position as the ledger stores it.
    fn to_ledger_position(&self) -> StreamPosition {
        let digest = self.digest.clone();
        StreamPosition { ordinal: self.events, source: format_position(self.next), digest }
    }
}

impl TopicPosition {
    /// Returns the position of a stream that begins at `from`, without partitions.
    pub fn new(from: &StreamPosition) -> TopicPosition {
        TopicPosition {
            parts: Vec::new(),
            current_message: None,
            in_open_transaction: Vec::new(),
            positions_are_due: false,
            positions_sent_at: Instant::now(),
            stream_position: DigestedPosition::after(StreamDigest::parse(&from.digest)),
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
        let place = PartitionPosition { events: mark.ordinal, next, digest: mark.digest.clone() };
        self.parts.push(TrackedPartition {
            name: partition.name(),
            after_transaction: place.clone(),
            after_message: place,
            sent: partition.mark,
        });
        let expected = parse_digest(&mark.digest, next).filter(|_| partition.reads_again);
        Ok(expected.map(|(digest, _)| digest.to_owned()))
    }

    /// Returns whether the message at `at` was taken before.
    pub fn was_taken(&self, at: PartitionOffset) -> bool {
        self.parts.get(at.part as usize).is_some_and(|part| at.offset < part.after_message.next)
    }

    /// Begins to take a message of a number of events. `digest` identifies the message.
    pub fn begin_message(&mut self, at: PartitionOffset, events: u64, digest: String) {
        let Some(part) = self.parts.get(at.part as usize) else { return };
        let events = part.after_message.events + events;
        let place = PartitionPosition { events, next: at.offset + 1, digest };
        self.current_message = Some((at.part as usize, place));
        self.stream_position.digest.mix(at.offset.unsigned_abs() ^ (u64::from(at.part) << 48));
    }

    /// Notes that a partition has no more messages before `next`. Returns the last offset before
    /// `next` if the position moved.
    pub fn note_passed(&mut self, part: u32, next: i64) -> Option<PartitionOffset> {
        let found = self.parts.get(part as usize)?;
        let before = Some(&found.after_message).filter(|before| next > before.next)?;
        let digest = digest_before(&before.digest, before.next);
        let place = PartitionPosition { events: before.events, next, digest };
        self.current_message = Some((part as usize, place));
        self.stream_position.digest.mix(next.unsigned_abs() ^ (u64::from(part) << 48));
        Some(PartitionOffset { part, offset: next - 1 })
    }

    /// Requests the positions of all partitions for the next batch, if positions are due or the
    /// input has ended (`input_ended`). Returns whether the next batch will have the positions.
    pub fn request_positions(&mut self, input_ended: bool) -> bool {
        let elapsed = self.positions_sent_at.elapsed();
        self.positions_are_due |= input_ended || elapsed >= IDLE_POSITION_INTERVAL;
        self.positions_are_due
    }
}

impl SourcePosition for TopicPosition {
    type EventPlace = PartitionOffset;

    fn note_record(&mut self, event_place: PartitionOffset) {
        if let Some((part, place)) = self.current_message.take() {
            self.parts[part].after_message = place;
            self.in_open_transaction.push(part);
        }
        self.stream_position.note_record(event_place);
    }

    fn note_transaction_end(&mut self) {
        for part in self.in_open_transaction.drain(..) {
            let part = &mut self.parts[part];
            part.after_transaction.clone_from(&part.after_message);
        }
        self.stream_position.note_transaction_end();
    }

    fn mark(&self, ordinal: u64, names: &SourceNames) -> StreamPosition {
        self.stream_position.mark(ordinal, names)
    }

    fn partition_moves(&mut self, has_events: bool) -> Vec<PartitionMove> {
        let mut moves = Vec::new();
        if !has_events && !self.positions_are_due {
            return moves;
        }
        for part in &mut self.parts {
            let to = part.after_transaction.to_ledger_position();
            if part.sent.as_ref() != Some(&to) {
                let from = part.sent.replace(to.clone());
                moves.push(PartitionMove { part: part.name.clone(), from, to });
            }
        }
        if !has_events && !moves.is_empty() {
            // Without events, only a changed stream position shows whether the commit happened.
            self.stream_position.advance();
        }
        (self.positions_are_due, self.positions_sent_at) = (false, Instant::now());
        moves
    }

    fn point(&self) -> Option<SourcePoint> {
        let sum = self.parts.iter().map(|part| part.after_transaction.next.unsigned_abs()).sum();
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

    fn take_message(state: &mut TopicPosition, part: usize, next: i64) {
        let place = PartitionPosition { events: next.unsigned_abs(), next, digest: String::new() };
        state.current_message = Some((part, place));
        state.note_record(PartitionOffset::default());
    }

    #[test]
    fn positions_move_only_with_complete_transactions() {
        let mut state = position(2);
        take_message(&mut state, 0, 3);
        assert!(state.partition_moves(true).is_empty());
        take_message(&mut state, 0, 4);
        state.note_transaction_end();
        take_message(&mut state, 0, 5);
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

    /// The marker of a producer's transaction comes after its messages. The next run reads the last
    /// message again, to notice another topic.
    #[test]
    fn a_passed_marker_keeps_the_digest_of_the_last_message() {
        let mut state = position(1);
        state.begin_message(PartitionOffset { part: 0, offset: 4 }, 1, "ab".to_owned());
        state.note_record(PartitionOffset { part: 0, offset: 4 });
        for next in [6, 7] {
            let passed = state.note_passed(0, next).unwrap();
            state.note_record(passed);
        }
        state.note_transaction_end();
        let mark = state.partition_moves(true).remove(0).to;
        assert_eq!((mark.source.as_str(), mark.digest.as_str()), ("offset 6", "ab of offset 4"));
        let (topic, mark) = ("t".to_owned(), Some(mark));
        let again = TopicPartition { topic, number: 0, mark, next: 7, reads_again: true, end: 9 };
        assert_eq!(again.from(), 4);
        let mut state = TopicPosition::new(&StreamPosition::default());
        assert_eq!(state.add(again).unwrap().as_deref(), Some("ab"));
        assert!(state.was_taken(PartitionOffset { part: 0, offset: 4 }));
    }

    /// If the reply to a commit is lost, only a changed stream position shows that the commit
    /// happened.
    #[test]
    fn moves_without_events_change_the_stream_position() {
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

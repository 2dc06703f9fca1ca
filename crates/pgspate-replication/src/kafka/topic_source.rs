//! The source that reads topics, and the pieces that it sends.
//!
//! Nothing here asks a broker, so this module is the same in builds with and without Kafka.

use std::sync::Arc;

use super::{KafkaTopics, TopicPosition};
use crate::{Error, ErrorKind, EventSender, EventSource, LagMeter, Result};
use pgspate_target::ledger::{PartitionMove, StreamPosition};
use pgspate_target::session::WaitLimits;

/// The source that reads topics.
pub struct TopicSource {
    /// The topics and their partitions, as of the last answer of the brokers.
    pub topics: KafkaTopics,
    /// The stream's name, for hints.
    pub stream: String,
    /// The partitions to read, and where to begin.
    pub partitions: Vec<TopicPartition>,
    /// Whether to continue after the current ends of the partitions, and to read new partitions.
    pub follows: bool,
    /// How long all brokers may be away, and how long answers may take.
    pub limits: WaitLimits,
    /// Gets the ends of the topics, and whether a broker is connected.
    pub lag: Arc<LagMeter>,
}

impl EventSource for TopicSource {
    type Position = TopicPosition;
    type Piece = TopicPiece;

    fn read(&mut self, pieces: &EventSender<TopicPiece>) {
        self.run(pieces);
    }

    fn close(self) {}
}

/// A partition that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPartition {
    /// The partition's topic.
    pub topic: String,
    /// The partition's number in the topic.
    pub number: i32,
    /// The partition's position in the ledger; `None` if the ledger does not know the partition.
    pub mark: Option<StreamPosition>,
    /// The offset of the first message to apply.
    pub next: i64,
    /// Whether the last applied message still exists and is read again, to compare its digest.
    pub reads_again: bool,
    /// The partition's end when the brokers were asked last.
    pub end: i64,
}

impl TopicPartition {
    /// Returns the partition's name in messages, in the ledger and in dead letters.
    pub fn name(&self) -> String {
        partition_name(&self.topic, self.number)
    }

    /// Returns the offset of the first message to read.
    pub(crate) fn from(&self) -> i64 {
        let last = self.mark.as_ref().and_then(|mark| parse_digest(&mark.digest, self.next));
        last.filter(|_| self.reads_again).map_or(self.next, |(_, offset)| offset)
    }
}

pub(super) fn partition_name(topic: &str, number: i32) -> String {
    format!("{topic}/{number}")
}

/// Returns the ledger's position of a partition whose next message is at `next`. The position names
/// the last applied message.
pub(super) fn format_position(next: i64) -> String {
    match next {
        0 => String::new(),
        next => format!("offset {}", next - 1),
    }
}

/// Parses a partition's position in the ledger. Returns the offset of the next message.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the position is not an offset.
pub(super) fn parse_position(source: &str) -> Result<i64> {
    let last = match source {
        "" => Some(-1),
        source => source.strip_prefix("offset ").and_then(|last| last.parse::<i64>().ok()),
    };
    last.and_then(|last| last.checked_add(1)).filter(|next| *next >= 0).ok_or_else(|| {
        let message =
            format!("the ledger's position of a partition is not an offset: \"{source}\"");
        Error::new(ErrorKind::Ledger, message)
            .hint("The position must name the last applied offset: `offset 41`.")
    })
}

/// Separates a digest and the offset of its message.
const DIGEST_OFFSET: &str = " of offset ";

/// Returns the digest of a partition whose next message is no longer directly after the message of
/// the digest, but after `next`. Offsets without messages, such as markers of transactions, follow
/// the message.
pub(super) fn digest_before(digest: &str, next: i64) -> String {
    match parse_digest(digest, next) {
        Some((digest, offset)) => format!("{digest}{DIGEST_OFFSET}{offset}"),
        None => String::new(),
    }
}

/// Splits the digest of a partition's position into the digest of the last message before `next`,
/// and this message's offset. Returns `None` for an empty digest.
pub(super) fn parse_digest(digest: &str, next: i64) -> Option<(&str, i64)> {
    let parts = digest.split_once(DIGEST_OFFSET);
    let parsed = parts.and_then(|(digest, offset)| Some((digest, offset.parse().ok()?)));
    (!digest.is_empty()).then(|| parsed.unwrap_or((digest, next - 1)))
}

/// Returns the hint for a topic that is not the topic that was applied before.
pub fn another_topic_hint(name: &str, stream: &str) -> String {
    let topic = name.rsplit_once('/').map_or(name, |(topic, _)| topic);
    format!(
        "The topic was created again, belongs to another cluster, or has lost its last messages \
         with a broker. To apply it from its beginning, begin a new stream with `--stream NAME`, \
         or run `delete from pgspate.stream where stream = '{}' and starts_with(partition, \
         '{topic}/')`.",
        stream.replace('\'', "''"),
    )
}

/// Sets the first position of partitions that the ledger does not know. Returns these positions,
/// which the ledger must store before the partitions are read: a later run could begin elsewhere.
pub fn begin_partitions(partitions: &mut [TopicPartition]) -> Vec<PartitionMove> {
    let mut moves = Vec::new();
    for partition in partitions.iter_mut().filter(|it| it.mark.is_none()) {
        let to = StreamPosition {
            ordinal: 0,
            source: format_position(partition.next),
            digest: String::new(),
        };
        moves.push(PartitionMove { part: partition.name(), from: None, to: to.clone() });
        partition.mark = Some(to);
    }
    moves
}

/// A message of a topic.
#[derive(Debug)]
pub struct TopicMessage {
    /// The index of the message's partition in this run.
    pub part: u32,
    /// The message's offset in the partition.
    pub offset: i64,
    /// The time at which the message was written, in milliseconds since 1970.
    pub written: Option<i64>,
    /// The message's key.
    pub key: Option<Vec<u8>>,
    /// The message's value; `None` for a tombstone.
    pub value: Option<Vec<u8>>,
    /// The headers that Debezium added.
    pub headers: Vec<(Box<str>, Vec<u8>)>,
}

/// A piece that the source sends.
#[derive(Debug)]
pub enum TopicPiece {
    /// A partition that is read from now on. The partition gets the next index.
    Partition(TopicPartition),
    /// Messages. Messages of one partition are in order.
    Messages(Vec<TopicMessage>),
    /// The index of each partition that has moved, and its next offset. All messages before that
    /// offset have been sent.
    Passed(Vec<(u32, i64)>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_partitions_get_their_position_once() {
        let new = |number, mark| {
            let (topic, end) = ("t".to_owned(), 9);
            TopicPartition { topic, number, mark, next: 0, reads_again: false, end }
        };
        let mut all = [new(0, Some(StreamPosition::default())), new(1, None)];
        let moves = begin_partitions(&mut all);
        assert_eq!(moves.len(), 1);
        assert_eq!((moves[0].part.as_str(), &moves[0].from), ("t/1", &None));
        assert!(begin_partitions(&mut all).is_empty());
    }

    #[test]
    fn a_digest_keeps_the_offset_of_its_message() {
        assert_eq!(parse_digest("", 7), None);
        assert_eq!(digest_before("", 7), "");
        assert_eq!(parse_digest("ab", 7), Some(("ab", 6)));
        let (once, twice) = (digest_before("ab", 7), digest_before("ab of offset 6", 9));
        assert_eq!((once.as_str(), twice.as_str()), ("ab of offset 6", "ab of offset 6"));
        assert_eq!(parse_digest(&once, 12), Some(("ab", 6)));
    }

    #[test]
    fn positions_are_read_as_they_are_written() {
        for source in ["offset", "offset x", "0/12", "offset -2"] {
            assert_eq!(parse_position(source).unwrap_err().kind(), ErrorKind::Ledger, "{source}");
        }
        for next in [0, 1, 42] {
            assert_eq!(parse_position(&format_position(next)).unwrap(), next);
        }
    }
}

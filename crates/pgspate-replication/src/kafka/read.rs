//! What is read of topics: partitions, and what comes of them.
//!
//! Nothing here asks a broker, so that it is the same whether this build can read topics or not.

use std::sync::Arc;

use super::{TopicPosition, Topics};
use crate::{Error, ErrorKind, EventSource, LagMeter, Pieces, Result};
use pgspate_target::ledger::{Mark, PartMove};
use pgspate_target::session::Limits;

/// Reads topics.
pub struct TopicSource {
    /// The topics, as they were when they were asked for last.
    pub topics: Topics,
    /// The stream's name, for hints.
    pub stream: String,
    /// Where their partitions begin.
    pub partitions: Vec<Partition>,
    /// Whether to go on where the partitions ended, and to read new ones.
    pub follows: bool,
    /// How long all brokers may be away, and answers may take.
    pub limits: Limits,
    /// Is told how far the topics are, and whether a broker is there.
    pub lag: Arc<LagMeter>,
}

impl EventSource for TopicSource {
    type Position = TopicPosition;
    type Piece = TopicPiece;

    fn read(&mut self, pieces: &Pieces<TopicPiece>) {
        self.run(pieces);
    }

    fn close(self) {}
}

/// A partition that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its topic.
    pub topic: String,
    /// Its number in the topic.
    pub number: i32,
    /// Where it is in the ledger; `None` for one that the ledger does not know.
    pub mark: Option<Mark>,
    /// The first message that is to be applied.
    pub next: i64,
    /// The message before that is still there, and is read again, to be compared.
    pub reads_again: bool,
    /// Where it ended when it was asked for.
    pub end: i64,
}

impl Partition {
    /// Returns what people, the ledger and dead letters call it.
    pub fn name(&self) -> String {
        name(&self.topic, self.number)
    }

    /// Returns the first message to be read.
    pub(crate) fn from(&self) -> i64 {
        self.next - i64::from(self.reads_again)
    }
}

pub(super) fn name(topic: &str, number: i32) -> String {
    format!("{topic}/{number}")
}

/// The place in the ledger of a partition that goes on at `next`: its last message, as people read
/// it.
pub(super) fn source_of(next: i64) -> String {
    match next {
        0 => String::new(),
        next => format!("offset {}", next - 1),
    }
}

/// The message after that place.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] for what is none.
pub(super) fn next_of(source: &str) -> Result<i64> {
    let last = match source {
        "" => Some(-1),
        source => source.strip_prefix("offset ").and_then(|last| last.parse::<i64>().ok()),
    };
    last.and_then(|last| last.checked_add(1)).filter(|next| *next >= 0).ok_or_else(|| {
        let message = format!("the ledger's place of a partition is no offset: \"{source}\"");
        Error::new(ErrorKind::Ledger, message)
            .hint("Write the last offset that is applied: `offset 41`.")
    })
}

/// Says what to do when a topic is not the one that it was: a hint.
pub fn another_topic_hint(name: &str, stream: &str) -> String {
    let topic = name.rsplit_once('/').map_or(name, |(topic, _)| topic);
    format!(
        "The topic was made anew, is one of another cluster, or has lost its last messages with a \
         broker. To apply it from its beginning, give it a stream of its own with `--stream NAME`, \
         or run `delete from pgspate.stream where stream = '{}' and starts_with(partition, \
         '{topic}/')`.",
        stream.replace('\'', "''"),
    )
}

/// Marks where partitions begin that the ledger does not know, and returns what it is to keep
/// before they are read: they would begin elsewhere another time.
pub fn begin_partitions(partitions: &mut [Partition]) -> Vec<PartMove> {
    let mut moves = Vec::new();
    for partition in partitions.iter_mut().filter(|it| it.mark.is_none()) {
        let to = Mark { ordinal: 0, source: source_of(partition.next), digest: String::new() };
        moves.push(PartMove { part: partition.name(), from: None, to: to.clone() });
        partition.mark = Some(to);
    }
    moves
}

/// A message of a topic.
#[derive(Debug)]
pub struct Message {
    /// Which of the run's partitions.
    pub part: u32,
    /// Its place in the partition.
    pub offset: i64,
    /// When it was written, in milliseconds since 1970.
    pub written: Option<i64>,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value; none for a tombstone.
    pub value: Option<Vec<u8>>,
    /// Those of Debezium's.
    pub headers: Vec<(Box<str>, Vec<u8>)>,
}

/// What comes of topics.
#[derive(Debug)]
pub enum TopicPiece {
    /// The next partition.
    Partition(Partition),
    /// Messages, in the order of each partition.
    Messages(Vec<Message>),
    /// Partitions have nothing before these offsets that has not come. Also comes when nothing
    /// else does.
    Passed(Vec<(u32, i64)>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_partitions_get_their_rows_once() {
        let new = |number, mark| {
            let (topic, end) = ("t".to_owned(), 9);
            Partition { topic, number, mark, next: 0, reads_again: false, end }
        };
        let mut all = [new(0, Some(Mark::default())), new(1, None)];
        let moves = begin_partitions(&mut all);
        assert_eq!(moves.len(), 1);
        assert_eq!((moves[0].part.as_str(), &moves[0].from), ("t/1", &None));
        assert!(begin_partitions(&mut all).is_empty());
    }

    #[test]
    fn places_are_read_as_they_are_written() {
        for source in ["offset", "offset x", "0/12", "offset -2"] {
            assert_eq!(next_of(source).unwrap_err().kind(), ErrorKind::Ledger, "{source}");
        }
        for next in [0, 1, 42] {
            assert_eq!(next_of(&source_of(next)).unwrap(), next);
        }
    }
}

//! What is read of topics: partitions, and what comes of them.
//!
//! Nothing here asks a broker, so that it is the same whether this build can read topics or not.

use std::sync::Arc;
use std::time::Duration;

use super::{TopicPosition, Topics};
use crate::apply::source::{Gauge, Pieces, Source};
use crate::{Error, Kind, Result};
use pgspate_target::ledger::{Mark, PartMove};

/// Reads topics.
pub(crate) struct TopicSource {
    pub(crate) topics: Topics,
    pub(crate) stream: String,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) follows: bool,
    pub(crate) retry_for: Duration,
    /// How long to wait for answers to what is asked meanwhile.
    pub(crate) stall_timeout: Duration,
    pub(crate) gauge: Arc<Gauge>,
}

impl Source for TopicSource {
    type Position = TopicPosition;
    type Piece = Taken;

    fn read(&mut self, pieces: &Pieces<Taken>) {
        self.run(pieces);
    }

    fn close(self) {}
}

/// A partition that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) topic: String,
    pub(crate) number: i32,
    /// Where it is in the ledger; `None` for one that the ledger does not know.
    pub(crate) mark: Option<Mark>,
    /// The first message that is to be applied.
    pub(crate) next: i64,
    /// The message before that is still there, and is read again, to be compared.
    pub(crate) reads_again: bool,
    /// Where it ended when it was asked for.
    pub(crate) end: i64,
}

impl Partition {
    /// What people, the ledger and dead letters call it.
    pub(crate) fn name(&self) -> String {
        name(&self.topic, self.number)
    }

    /// The first message to be read.
    pub(crate) fn from(&self) -> i64 {
        self.next - i64::from(self.reads_again)
    }
}

pub(super) fn name(topic: &str, number: i32) -> String {
    format!("{topic}/{number}")
}

/// The place in the ledger of a partition that goes on at `next`: its last message, as people read
/// it.
pub(crate) fn source_of(next: i64) -> String {
    match next {
        0 => String::new(),
        next => format!("offset {}", next - 1),
    }
}

/// The message after that place.
///
/// # Errors
/// Of [`Kind::Ledger`] for what is none.
pub(crate) fn next_of(source: &str) -> Result<i64> {
    let last = match source {
        "" => Some(-1),
        source => source.strip_prefix("offset ").and_then(|last| last.parse::<i64>().ok()),
    };
    last.and_then(|last| last.checked_add(1)).filter(|next| *next >= 0).ok_or_else(|| {
        let message = format!("the ledger's place of a partition is no offset: \"{source}\"");
        Error::new(Kind::Ledger, message)
            .hint("Write the last offset that is applied: `offset 41`.")
    })
}

/// What to do when a topic is not the one that it was.
pub(crate) fn is_another(name: &str, stream: &str) -> String {
    let topic = name.rsplit_once('/').map_or(name, |(topic, _)| topic);
    format!(
        "The topic was made anew, is one of another cluster, or has lost its last messages with a \
         broker. To apply it from its beginning, give it a stream of its own with `--stream NAME`, \
         or run `delete from pgspate.stream where stream = '{}' and starts_with(partition, \
         '{topic}/')`.",
        stream.replace('\'', "''"),
    )
}

/// What the ledger is to know of partitions that it does not, before they are read: where they
/// begin is not where they would begin another time.
pub(crate) fn rows(partitions: &mut [Partition]) -> Vec<PartMove> {
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
pub(crate) struct Message {
    /// Which of the run's partitions.
    pub(crate) part: u32,
    pub(crate) offset: i64,
    /// When it was written, in milliseconds since 1970.
    pub(crate) written: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    /// Those of Debezium's.
    pub(crate) headers: Vec<(Box<str>, Vec<u8>)>,
}

/// What comes of topics.
#[derive(Debug)]
pub(crate) enum Taken {
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
        let moves = rows(&mut all);
        assert_eq!(moves.len(), 1);
        assert_eq!((moves[0].part.as_str(), &moves[0].from), ("t/1", &None));
        assert!(rows(&mut all).is_empty());
    }

    #[test]
    fn places_are_read_as_they_are_written() {
        for source in ["offset", "offset x", "0/12", "offset -2"] {
            assert_eq!(next_of(source).unwrap_err().kind(), Kind::Ledger, "{source}");
        }
        for next in [0, 1, 42] {
            assert_eq!(next_of(&source_of(next)).unwrap(), next);
        }
    }
}

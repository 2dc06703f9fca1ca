//! Asks the brokers for the topics' partitions, and decides where each partition begins.
//!
//! A partition is refused if it no longer has messages that were not applied.

use std::time::Duration;

use super::address::TopicAddress;
use super::client::{AnswerTimeout, Client, bounds, client, partitions};
use super::topic_source::{
    TopicPartition, another_topic_hint, parse_digest, parse_position, partition_name,
};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::StreamPosition;

/// Topics and their partitions, as the brokers describe them.
pub struct KafkaTopics {
    pub(crate) address: TopicAddress,
    pub(crate) client: Client,
    /// The partitions, ordered by topic and number.
    pub(crate) partitions: Vec<TopicPartitionBounds>,
}

/// The bounds of a partition when the brokers were asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicPartitionBounds {
    pub(crate) topic: String,
    pub(crate) number: i32,
    /// The offset of the partition's first message.
    pub(crate) first: i64,
    /// The offset after the partition's last committed message.
    pub(crate) end: i64,
}

impl KafkaTopics {
    /// Asks the brokers of a source for its topics. The brokers must answer within `limit`. Blocks.
    ///
    /// # Errors
    /// When the URL is malformed, the brokers do not answer, or a topic does not exist.
    pub fn inspect(source: &str, follows: bool, limit: Duration) -> Result<KafkaTopics> {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let address = TopicAddress::parse(source, environment)?;
        let client = client(&address, follows)?;
        let mut topics = KafkaTopics { address, client, partitions: Vec::new() };
        topics.refresh(limit)?;
        Ok(topics)
    }

    /// Asks the brokers for the partitions again. Blocks.
    ///
    /// # Errors
    /// The errors of [`KafkaTopics::inspect`].
    pub fn refresh(&mut self, limit: Duration) -> Result<()> {
        let answer_timeout = AnswerTimeout::within(limit);
        let mut found = Vec::new();
        for topic in &self.address.topics {
            for number in partitions(&self.client, topic, &answer_timeout)? {
                let (first, end) = bounds(&self.client, topic, number, &answer_timeout)?;
                found.push(TopicPartitionBounds { topic: topic.clone(), number, first, end });
            }
        }
        self.partitions = found;
        Ok(())
    }

    /// Returns the topics' names, in the order of the URL.
    pub fn names(&self) -> &[String] {
        &self.address.topics
    }

    /// Finds where each partition begins, by the ledger's positions of the stream and its
    /// partitions.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if messages were removed before they were applied, if a topic is
    /// another topic than before, or if the stream is not a stream of topics.
    pub fn begin(
        &self,
        stream: &str,
        mark: &StreamPosition,
        rows: &[(String, StreamPosition)],
    ) -> Result<Vec<TopicPartition>> {
        check_stream(stream, mark)?;
        let begin =
            |bounds: &TopicPartitionBounds| begin(bounds, stream, rows, self.address.begins_at_end);
        self.partitions.iter().map(begin).collect()
    }
}

fn begin(
    bounds: &TopicPartitionBounds,
    stream: &str,
    rows: &[(String, StreamPosition)],
    begins_at_end: bool,
) -> Result<TopicPartition> {
    let TopicPartitionBounds { topic, number, first, end } = bounds;
    let row = |name: &str| rows.iter().find(|(known, _)| known == name).map(|(_, mark)| mark);
    let mark = row(&partition_name(topic, *number)).cloned();
    let next = match &mark {
        Some(mark) => {
            let next = parse_position(&mark.source)?;
            check(bounds, stream, next)?;
            next
        }
        // With `auto.offset.reset=latest`, a new partition of a known topic still begins at its
        // first message.
        None if begins_at_end && !rows.iter().any(|(known, _)| is_of(known, topic)) => *end,
        None => *first,
    };
    let last = mark.as_ref().and_then(|mark| parse_digest(&mark.digest, next));
    let reads_again = last.is_some_and(|(_, offset)| offset >= *first);
    let (topic, number) = (topic.clone(), *number);
    Ok(TopicPartition { topic, number, mark, next, reads_again, end: *end })
}

/// Checks that the stream in the ledger is a stream of topics, by the form of its position.
fn check_stream(stream: &str, mark: &StreamPosition) -> Result<()> {
    if mark.source.is_empty() || mark.source.contains(", offset ") {
        return Ok(());
    }
    let message =
        format!("stream \"{stream}\" is not a stream of topics: its position is {}", mark.source);
    Err(Error::new(ErrorKind::Ledger, message)
        .hint("Choose another stream for the topics with `--stream NAME`."))
}

fn is_of(part: &str, topic: &str) -> bool {
    part.rsplit_once('/').is_some_and(|(name, _)| name == topic)
}

/// Checks that a partition still has the message at `next`, or ends there.
///
/// # Errors
/// [`ErrorKind::Ledger`] if messages were removed before they were applied, or the partition ends
/// earlier.
pub(super) fn check(bounds: &TopicPartitionBounds, stream: &str, next: i64) -> Result<()> {
    let TopicPartitionBounds { topic, number, first, end } = bounds;
    let name = partition_name(topic, *number);
    if next < *first {
        return Err(lost_messages_error(&name, stream, next, *first));
    }
    if next > *end {
        let message = format!(
            "{name} ends before offset {end}, but the stream is applied up to offset {}",
            next - 1
        );
        return Err(Error::new(ErrorKind::Ledger, message).hint(another_topic_hint(&name, stream)));
    }
    Ok(())
}

/// Returns the error for messages that were removed before they were applied.
fn lost_messages_error(name: &str, stream: &str, next: i64, first: i64) -> Error {
    let last = first - 1;
    let message = match last == next {
        true => format!("offset {next} of {name} no longer exists, but was not applied"),
        false => {
            format!("offsets {next} to {last} of {name} no longer exist, but were not applied")
        }
    };
    let stream = stream.replace('\'', "''");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "The topic keeps messages for a limited time or size (`retention.ms`, `retention.bytes`), \
         and these messages were older. Correct the tables in another way, and begin a new stream \
         with `--stream NAME`. Or continue without these messages: `update pgspate.stream set \
         source = 'offset {last}', digest = '' where stream = '{stream}' and partition = '{name}'`."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(number: i32, first: i64, end: i64) -> TopicPartitionBounds {
        TopicPartitionBounds { topic: "t".to_owned(), number, first, end }
    }

    fn row(part: &str, source: &str, digest: &str) -> (String, StreamPosition) {
        let (source, digest) = (source.to_owned(), digest.to_owned());
        (part.to_owned(), StreamPosition { ordinal: 5, source, digest })
    }

    #[test]
    fn partitions_begin_after_the_last_applied_message() {
        let rows =
            [row("t/0", "offset 41", "abc"), row("t/1", "offset 41", ""), row("t/2", "", "")];
        let of = |number, first, end| begin(&bounds(number, first, end), "s", &rows, true);
        let found = of(0, 10, 50).unwrap();
        assert_eq!((found.next, found.from(), found.end), (42, 41, 50));
        // The last applied message no longer exists, but all later messages do.
        assert_eq!(of(0, 42, 42).unwrap().from(), 42);
        assert_eq!(of(1, 10, 42).unwrap().from(), 42);
        assert_eq!(of(2, 0, 3).unwrap().from(), 0);
        // Offset 41 has no message.
        let rows = [row("t/0", "offset 41", "abc of offset 39")];
        let of = |first| begin(&bounds(0, first, 50), "s", &rows, true).unwrap().from();
        assert_eq!((of(39), of(40)), (39, 42));
        let of = |number, first, end| begin(&bounds(number, first, end), "s", &rows, true);
        // A new partition of a known topic.
        assert_eq!(of(3, 7, 9).unwrap().next, 7);
        assert_eq!(begin(&bounds(0, 7, 9), "s", &[], true).unwrap().next, 9);
        assert_eq!(begin(&bounds(0, 7, 9), "s", &[], false).unwrap().next, 7);
    }

    #[test]
    fn lost_messages_are_refused() {
        let rows = [row("t/0", "offset 41", "abc")];
        let refusal = |first, end| begin(&bounds(0, first, end), "it's", &rows, false).unwrap_err();
        assert_eq!(
            refusal(44, 50).to_string(),
            "offsets 42 to 43 of t/0 no longer exist, but were not applied"
        );
        assert!(refusal(44, 50).hint_text().unwrap().contains("'offset 43'"));
        assert!(refusal(44, 50).hint_text().unwrap().contains("stream = 'it''s'"));
        assert_eq!(
            refusal(43, 50).to_string(),
            "offset 42 of t/0 no longer exists, but was not applied"
        );
        assert_eq!(
            refusal(0, 41).to_string(),
            "t/0 ends before offset 41, but the stream is applied up to offset 41"
        );
    }

    #[test]
    fn a_stream_of_something_else_is_refused() {
        let at = |source: &str| StreamPosition {
            source: source.to_owned(),
            ..StreamPosition::default()
        };
        for source in ["", "t/0, offset 7"] {
            assert!(check_stream("s", &at(source)).is_ok(), "{source}");
        }
        for source in ["a.ndjson, line 7", "0/16B3748"] {
            assert_eq!(check_stream("s", &at(source)).unwrap_err().kind(), ErrorKind::Ledger);
        }
    }
}

//! Reads messages of topics for the thread that makes batches.
//!
//! Partitions are assigned by hand, from the ledger's positions. Each message is sent once, in the
//! order of its partition. librdkafka reconnects by itself and continues where it was.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::client::{AnswerTimeout, ClientStatistics, bounds};
use super::errors::{is_group_error, is_temporary, request_error};
use super::topic_source::{TopicMessage, TopicPartition, TopicPiece, TopicSource};
use super::topics::{TopicPartitionBounds, check};
use crate::{Error, ErrorKind, EventSender, ReceiverGone, Result, SourcePoint};

/// How long the reader waits for a message before it checks whether to stop.
const POLL_TIME: Duration = Duration::from_millis(20);
/// The most messages of a piece, and the most bytes of their keys and values.
const MESSAGES_MAX: usize = 1000;
const BYTES_MAX: usize = 256 << 10;
/// The prefix of the headers that are kept.
const HEADER_PREFIX: &str = "__debezium.";

/// A partition that is being read.
struct ReadPartition {
    topic: String,
    number: i32,
    /// The offset of the next message.
    next: i64,
    /// The end of the partition, by the latest statistics.
    end: i64,
    /// The offset at which to stop; `None` to read on for ever.
    until: Option<i64>,
}

impl ReadPartition {
    fn is_done(&self) -> bool {
        self.until.is_some_and(|until| self.next >= until)
    }
}

/// Finds the index of a partition by topic and number.
#[derive(Default)]
struct PartitionIndex {
    topics: HashMap<String, HashMap<i32, u32>>,
    count: usize,
}

impl PartitionIndex {
    fn add(&mut self, read_partitions: &[ReadPartition]) {
        for (nth, partition) in read_partitions.iter().enumerate().skip(self.count) {
            self.topics
                .entry(partition.topic.clone())
                .or_default()
                .insert(partition.number, nth as u32);
        }
        self.count = read_partitions.len();
    }

    fn of(&self, topic: &str, number: i32) -> Option<u32> {
        self.topics.get(topic)?.get(&number).copied()
    }
}

/// Messages that have come and are not sent yet.
#[derive(Default)]
struct TakenMessages {
    messages: Vec<TopicMessage>,
    bytes: usize,
}

impl TopicSource {
    /// Reads until no more pieces are wanted, or up to the ends that the partitions had at the
    /// start.
    pub(super) fn run(&mut self, pieces: &EventSender<TopicPiece>) {
        let mut read_partitions = Vec::with_capacity(self.partitions.len());
        let mut list = TopicPartitionList::new();
        for partition in std::mem::take(&mut self.partitions) {
            if self.begin(partition, &mut read_partitions, &mut list, pieces).is_err() {
                return;
            }
        }
        self.lag.note_connection();
        self.note_end_of_source(&read_partitions);
        let read = match list.count() {
            0 if !self.follows => Ok(()),
            _ => self.topics.client.assign(&list).map_err(not_assigned_error),
        };
        if let Err(error) = read.and_then(|()| self.read(&mut read_partitions, pieces)) {
            let _ = pieces.send(Err(error));
        }
    }

    /// Adds a partition, and assigns it if it has messages to read.
    fn begin(
        &self,
        partition: TopicPartition,
        read_partitions: &mut Vec<ReadPartition>,
        list: &mut TopicPartitionList,
        pieces: &EventSender<TopicPiece>,
    ) -> Result<(), ReceiverGone> {
        let read_partition = ReadPartition {
            topic: partition.topic.clone(),
            number: partition.number,
            next: partition.from(),
            end: partition.end,
            until: (!self.follows).then_some(partition.end),
        };
        if !read_partition.is_done() {
            let offset = Offset::Offset(read_partition.next);
            // This cannot fail: the offset is valid.
            let _ = list.add_partition_offset(&read_partition.topic, read_partition.number, offset);
        }
        read_partitions.push(read_partition);
        pieces.send(Ok(TopicPiece::Partition(partition)))
    }

    fn read(
        &self,
        read_partitions: &mut Vec<ReadPartition>,
        pieces: &EventSender<TopicPiece>,
    ) -> Result<()> {
        let client = &self.topics.client;
        let mut index = PartitionIndex::default();
        let mut taken_messages = TakenMessages::default();
        let mut statistics: Option<ClientStatistics> = None;
        let mut lost: Option<Instant> = None;
        while pieces.are_wanted() && !read_partitions.iter().all(ReadPartition::is_done) {
            index.add(read_partitions);
            let wait = if taken_messages.messages.is_empty() { POLL_TIME } else { Duration::ZERO };
            let polled = client.poll(wait);
            let now = client.context().take_statistics();
            match polled {
                Some(Ok(message)) => {
                    taken_messages.add(&message, &index, read_partitions);
                    if taken_messages.is_full() && taken_messages.send_messages(pieces).is_err() {
                        return Ok(());
                    }
                }
                Some(Err(error)) => self.handle_error(error, read_partitions)?,
                None => {
                    // No message is left in the queue. So the reader has taken all messages that
                    // librdkafka fetched before the previous statistics. If this poll brought new
                    // statistics, messages may have arrived before them: the next poll decides.
                    let statistics = statistics.take().filter(|_| now.is_none());
                    if taken_messages
                        .send_all(statistics.as_ref(), read_partitions, pieces)
                        .is_err()
                    {
                        return Ok(());
                    }
                }
            }
            if let Some(now) = now {
                lost = self.note_connection(&now, lost)?;
                self.find_new_partitions(&now, read_partitions, pieces)?;
                for partition in read_partitions.iter_mut() {
                    let reached = now.partitions.get(&(partition.topic.clone(), partition.number));
                    partition.end = partition.end.max(reached.map_or(0, |reached| reached.end));
                }
                self.note_end_of_source(read_partitions);
                statistics = Some(now);
            }
        }
        let _ = taken_messages.send_messages(pieces);
        Ok(())
    }

    fn note_end_of_source(&self, read_partitions: &[ReadPartition]) {
        let sum = read_partitions.iter().map(|partition| partition.end.unsigned_abs()).sum();
        self.lag.note_end(SourcePoint::Messages(sum));
    }

    /// Notes whether any broker is connected. If none is, returns the time at which the last
    /// connection was lost.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if no broker was connected for the retry time.
    fn note_connection(
        &self,
        statistics: &ClientStatistics,
        lost: Option<Instant>,
    ) -> Result<Option<Instant>> {
        if statistics.is_connected {
            self.lag.note_connection();
            return Ok(None);
        }
        self.lag.note_loss(lost.is_none());
        let since = lost.unwrap_or_else(Instant::now);
        if since.elapsed() < self.limits.retry_for {
            return Ok(Some(since));
        }
        let seconds = self.limits.retry_for.as_secs();
        let message = format!("no broker was reachable for {seconds} s");
        let error = Error::new(ErrorKind::Connect, message)
            .hint("Run the same command again: it continues at the ledger's position.");
        Err(match self.topics.client.context().last_error() {
            Some(said) => error.because(said),
            None => error,
        })
    }

    /// Adds partitions that were created meanwhile, if the run follows the topics.
    fn find_new_partitions(
        &self,
        statistics: &ClientStatistics,
        read_partitions: &mut Vec<ReadPartition>,
        pieces: &EventSender<TopicPiece>,
    ) -> Result<()> {
        if !self.follows || statistics.partitions.len() <= read_partitions.len() {
            return Ok(());
        }
        let mut new: Vec<_> = statistics.partitions.keys().collect();
        new.retain(|(topic, number)| {
            !read_partitions
                .iter()
                .any(|partition| (&partition.topic, partition.number) == (topic, *number))
        });
        new.sort_unstable();
        let mut list = TopicPartitionList::new();
        let answer_timeout = AnswerTimeout::within(self.limits.stall_timeout);
        for (topic, number) in new {
            // A partition without an answer is tried again with the next statistics.
            let bounds = bounds(&self.topics.client, topic, *number, &answer_timeout);
            let Ok((first, end)) = bounds else { continue };
            let (topic, number) = (topic.clone(), *number);
            let (mark, reads_again) = (None, false);
            let found = TopicPartition { topic, number, mark, next: first, reads_again, end };
            if self.begin(found, read_partitions, &mut list, pieces).is_err() {
                return Ok(());
            }
        }
        match list.count() {
            0 => Ok(()),
            _ => self.topics.client.incremental_assign(&list).map_err(not_assigned_error),
        }
    }

    /// Handles an error that librdkafka reports. Temporary errors are ignored: librdkafka retries.
    fn handle_error(&self, error: KafkaError, read_partitions: &[ReadPartition]) -> Result<()> {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        match code {
            Code::PartitionEOF => Ok(()),
            _ if is_temporary(code) || is_group_error(code) => Ok(()),
            Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation => {
                Err(self.out_of_range_error(read_partitions))
            }
            _ => Err(request_error(
                "read the topics",
                error,
                self.topics.client.context().last_error(),
            )),
        }
    }

    /// Returns the error for a message that the brokers no longer have. The error names the message
    /// and the reason.
    fn out_of_range_error(&self, read_partitions: &[ReadPartition]) -> Error {
        let answer_timeout = AnswerTimeout::within(self.limits.stall_timeout);
        for partition in read_partitions {
            let ReadPartition { topic, number, next, .. } = partition;
            let (first, end) = match bounds(&self.topics.client, topic, *number, &answer_timeout) {
                Ok(found) => found,
                Err(error) => return error,
            };
            let bounds = TopicPartitionBounds { topic: topic.clone(), number: *number, first, end };
            if let Err(error) = check(&bounds, &self.stream, *next) {
                return error;
            }
        }
        Error::new(ErrorKind::Source, "the brokers no longer have a message that they had before")
            .hint("Run the same command again: it says what can still be read.")
    }
}

/// Moves partitions to the next offset that librdkafka will fetch, after all earlier messages were
/// taken. The offsets in between are markers of transactions and messages that were rolled back.
/// Returns the partitions that moved, with their offsets.
fn skip_offsets_without_messages(
    statistics: &ClientStatistics,
    read_partitions: &mut [ReadPartition],
) -> Vec<(u32, i64)> {
    let mut passed = Vec::new();
    for (nth, partition) in read_partitions.iter_mut().enumerate() {
        let reached = statistics.partitions.get(&(partition.topic.clone(), partition.number));
        // Messages after `until` were not taken.
        let next = reached.map(|it| partition.until.map_or(it.next, |until| it.next.min(until)));
        if let Some(next) = next.filter(|next| *next > partition.next) {
            partition.next = next;
            passed.push((nth as u32, next));
        }
    }
    passed
}

impl TakenMessages {
    fn add(
        &mut self,
        message: &impl Message,
        index: &PartitionIndex,
        read_partitions: &mut [ReadPartition],
    ) {
        let Some(part) = index.of(message.topic(), message.partition()) else { return };
        let (partition, offset) = (&mut read_partitions[part as usize], message.offset());
        // Skip messages that were taken before, and messages after the end of the run.
        if offset < partition.next || partition.is_done() {
            return;
        }
        if partition.until.is_some_and(|until| offset >= until) {
            partition.next = offset;
            return;
        }
        partition.next = offset + 1;
        let bytes = |part: Option<&[u8]>| part.map(<[u8]>::to_vec);
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        let headers = headers.filter(|header| header.key.starts_with(HEADER_PREFIX));
        let taken = TopicMessage {
            part,
            offset,
            written: message.timestamp().to_millis(),
            key: bytes(message.key()),
            value: bytes(message.payload()),
            headers: headers
                .filter_map(|header| Some((header.key.into(), header.value?.to_vec())))
                .collect(),
        };
        self.bytes +=
            taken.value.as_ref().map_or(0, Vec::len) + taken.key.as_ref().map_or(0, Vec::len);
        self.messages.push(taken);
    }

    fn is_full(&self) -> bool {
        self.messages.len() >= MESSAGES_MAX || self.bytes >= BYTES_MAX
    }

    /// Sends the taken messages. Then sends the offsets that `statistics` show to have no messages.
    fn send_all(
        &mut self,
        statistics: Option<&ClientStatistics>,
        read_partitions: &mut [ReadPartition],
        pieces: &EventSender<TopicPiece>,
    ) -> Result<(), ReceiverGone> {
        // The order matters: after `Passed`, a message with a smaller offset counts as applied.
        self.send_messages(pieces)?;
        let Some(statistics) = statistics else { return Ok(()) };
        let passed = skip_offsets_without_messages(statistics, read_partitions);
        pieces.send(Ok(TopicPiece::Passed(passed)))
    }

    fn send_messages(&mut self, pieces: &EventSender<TopicPiece>) -> Result<(), ReceiverGone> {
        let TakenMessages { messages, .. } = std::mem::take(self);
        match messages.is_empty() {
            true => Ok(()),
            false => pieces.send(Ok(TopicPiece::Messages(messages))),
        }
    }
}

fn not_assigned_error(error: KafkaError) -> Error {
    request_error("begin to read the topics", error, None)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    use super::super::client::PartitionOffsets;
    use super::*;

    fn orders_from(next: i64) -> ReadPartition {
        ReadPartition { topic: "orders".into(), number: 0, next, end: 9, until: None }
    }

    fn orders_message(offset: i64) -> OwnedMessage {
        let payload = Some(b"{}".to_vec());
        OwnedMessage::new(payload, None, "orders".into(), Timestamp::NotAvailable, 0, offset, None)
    }

    fn statistics_with_next(next: i64) -> ClientStatistics {
        let offsets = PartitionOffsets { next, end: next };
        let partitions = HashMap::from([(("orders".into(), 0), offsets)]);
        ClientStatistics { is_connected: true, partitions }
    }

    /// Takes the messages, tells the reader that librdkafka has no more messages, and returns what
    /// was sent: `message OFFSET` and `passed OFFSET`.
    fn sent_when_idle(offsets: &[i64], statistics: Option<&ClientStatistics>) -> Vec<String> {
        let mut read_partitions = [orders_from(5)];
        let mut index = PartitionIndex::default();
        index.add(&read_partitions);
        let mut taken_messages = TakenMessages::default();
        for offset in offsets {
            taken_messages.add(&orders_message(*offset), &index, &mut read_partitions);
        }
        let (to, received) = sync_channel(9);
        let pieces = EventSender::new(to, Default::default());
        taken_messages.send_all(statistics, &mut read_partitions, &pieces).unwrap();
        drop(pieces);
        let mut sent = Vec::new();
        for piece in received {
            match piece.unwrap() {
                TopicPiece::Messages(all) => {
                    sent.extend(all.iter().map(|it| format!("message {}", it.offset)));
                }
                TopicPiece::Passed(all) => {
                    sent.extend(all.iter().map(|(_, next)| format!("passed {next}")));
                }
                _ => panic!("neither messages nor passed offsets"),
            }
        }
        sent
    }

    #[test]
    fn messages_are_sent_before_the_marker_that_follows_them_is_passed() {
        // Offset 7 is the marker of the transaction that wrote 5 and 6.
        let sent = sent_when_idle(&[5, 6], Some(&statistics_with_next(8)));
        assert_eq!(sent, ["message 5", "message 6", "passed 8"]);
    }

    #[test]
    fn without_statistics_no_offset_is_passed() {
        assert_eq!(sent_when_idle(&[5], None), ["message 5"]);
    }

    #[test]
    fn a_message_that_was_taken_before_is_not_sent_again() {
        assert_eq!(sent_when_idle(&[5, 5, 4, 6], None), ["message 5", "message 6"]);
    }
}

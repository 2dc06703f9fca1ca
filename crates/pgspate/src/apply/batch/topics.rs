//! Decodes messages of Kafka topics into batches, with the position of each partition.
//!
//! A message counts as one transaction. If all messages come from one partition, the transactions
//! that the format marks are kept instead. With several partitions, the messages have no common
//! order, so the transactions of the format cannot be kept.

use std::time::{Duration, UNIX_EPOCH};

use super::{BatchBuilder, SourceFeed};
use crate::{Error, ErrorKind, Result};
use pgspate_events::ChangeEvent;
use pgspate_events::decode::{self, Debezium, Decode, KeyedRecord, RecordGrouping};
use pgspate_replication::kafka::{
    PartitionOffset, TopicMessage, TopicPiece, TopicPosition, TopicSource, another_topic_hint,
};
use pgspate_replication::{SourcePosition as _, StreamDigest};

/// The first byte of a value that a schema registry encoded.
const SCHEMA_REGISTRY_BYTE: u8 = 0;

/// Decodes messages of topics.
pub(crate) struct TopicFeed {
    builder: BatchBuilder<TopicPosition>,
    /// The stream's name.
    stream: String,
    partitions: Vec<PartitionDecoder>,
    /// The events of one message. The vector is kept to reuse its memory.
    events: Vec<ChangeEvent>,
}

/// A partition and its decoder.
struct PartitionDecoder {
    name: String,
    topic: String,
    decoder: Option<Box<dyn Decode>>,
    /// The digest of the last applied message, to be checked if the message is read again.
    expected_digest: Option<String>,
}

impl SourceFeed<TopicSource> for TopicFeed {
    fn builder(&mut self) -> &mut BatchBuilder<TopicPosition> {
        &mut self.builder
    }

    fn take_piece(&mut self, piece: TopicPiece) -> Result<()> {
        match piece {
            TopicPiece::Partition(partition) => {
                if self.partitions.len() == 1 && !self.builder.is_between_transactions() {
                    // From now on messages have no common order, and ends of transactions are
                    // ignored. So the open transaction ends here.
                    self.builder.close_transaction();
                    self.builder.note_boundary();
                }
                let (name, topic) = (partition.name(), partition.topic.clone());
                self.builder.context.names.add(name.clone());
                let expected_digest = self.builder.position.add(partition)?;
                self.partitions.push(PartitionDecoder {
                    name,
                    topic,
                    decoder: None,
                    expected_digest,
                });
                Ok(())
            }
            TopicPiece::Messages(messages) => {
                for message in &messages {
                    self.take_message(message)?;
                    self.builder.send_batch_if_due()?;
                }
                Ok(())
            }
            TopicPiece::Passed(passed) => self.skip_to(&passed),
        }
    }

    fn end(&mut self) -> Result<()> {
        self.builder.end_input()?;
        self.builder.position.request_positions(true);
        self.builder.send_batch()
    }
}

impl TopicFeed {
    pub(crate) fn new(builder: BatchBuilder<TopicPosition>, stream: String) -> TopicFeed {
        TopicFeed { builder, stream, partitions: Vec::new(), events: Vec::new() }
    }

    /// Decodes a message and takes its events.
    fn take_message(&mut self, message: &TopicMessage) -> Result<()> {
        let event_place = PartitionOffset { part: message.part, offset: message.offset };
        let digest = message_digest(message);
        let is_ordered = self.partitions.len() == 1;
        let Some(partition) = self.partitions.get_mut(message.part as usize) else {
            return Err(Error::new(
                ErrorKind::Bug,
                "received a message of a partition that is not read",
            ));
        };
        let is_replayed = self.builder.position.was_taken(event_place);
        if let Some(expected) = partition.expected_digest.take()
            && is_replayed
            && expected != digest
        {
            return Err(changed_message_error(&partition.name, event_place, &self.stream));
        }
        let mut decoder = partition.decoder.take();
        let topic = std::mem::take(&mut partition.topic);
        let record = KeyedRecord {
            topic: &topic,
            key: message.key.as_deref(),
            value: message.value.as_deref().filter(|value| !decode::has_no_value(value)),
            headers: &message.headers,
            is_ordered,
        };
        let mut found = std::mem::take(&mut self.events);
        found.clear();
        let decoded = self.decode_record(&record, &mut decoder, &mut found);
        let grouping =
            decoder.as_ref().map_or(RecordGrouping::ByEvents, |decoder| decoder.grouping());
        let partition = &mut self.partitions[message.part as usize];
        (partition.decoder, partition.topic) = (decoder, topic);
        if is_replayed {
            // The message is applied already. It was decoded only for the decoder's state, which
            // later messages need.
            self.events = found;
            return Ok(());
        }
        let builder = &mut self.builder;
        let decoded = match decoded {
            Err(error) if error.kind() != ErrorKind::Format => {
                return Err(error.at(builder.place(event_place)));
            }
            decoded => decoded,
        };
        let count = if decoded.is_err() { 1 } else { found.len() as u64 };
        builder.position.begin_message(event_place, count, digest);
        if let Some(written) = message.written.filter(|written| *written > 0) {
            let since = Duration::from_millis(written.unsigned_abs());
            builder.committed_at = UNIX_EPOCH.checked_add(since);
        }
        match grouping {
            RecordGrouping::OpensTransaction if is_ordered => builder.open_transaction(),
            RecordGrouping::ClosesTransaction if is_ordered => builder.close_transaction(),
            _ => join_events(&mut found, is_ordered),
        }
        let line = message.value.as_deref().or(message.key.as_deref()).unwrap_or_default();
        let outcome = match decoded {
            Ok(()) if found.is_empty() => {
                builder.note_position(event_place);
                Ok(())
            }
            Ok(()) => builder.take_events(&found, line.len(), event_place),
            Err(error) => builder.take_undecoded(error, line, event_place),
        };
        self.events = found;
        outcome.map_err(|error| self.builder.with_place(error, event_place))
    }

    /// Decodes a record. If `decoder` is `None`, detects the record's format first and stores its
    /// decoder.
    fn decode_record(
        &self,
        record: &KeyedRecord<'_>,
        decoder: &mut Option<Box<dyn Decode>>,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        let context = &self.builder.context;
        if decoder.is_none() {
            let format = match (context.options.format, record.value) {
                (Some(format), _) => format,
                (None, Some(value)) => {
                    decode::sniff(value).map_err(|error| unknown_record_error(error, value))?.0
                }
                // Only Debezium writes a key alone to delete a row.
                (None, None) => {
                    let mut debezium = Debezium::new(context.options.decode.debezium.clone());
                    return debezium.decode_keyed(record, &context.router, events);
                }
            };
            *decoder = Some(context.decoder(format));
        }
        let Some(decoder) = decoder else { return Ok(()) };
        let decoded = decoder.decode_keyed(record, &context.router, events);
        context.router.take_lookup_error().map_or(decoded, Err)
    }

    /// Skips to these offsets: the partitions have no events before them.
    fn skip_to(&mut self, passed: &[(u32, i64)]) -> Result<()> {
        let builder = &mut self.builder;
        for (partition, next) in passed {
            if let Some(event_place) = builder.position.note_passed(*partition, *next) {
                builder.note_position(event_place);
            }
        }
        let is_idle = builder.is_between_transactions() && builder.batch.events == 0;
        if let Some(reached) = builder.position.point().filter(|_| is_idle)
            && !builder.context.watch.writer_has_batch()
        {
            builder.context.watch.lag.note_applied(reached);
        }
        match builder.is_between_transactions() && builder.position.request_positions(false) {
            true => builder.send_batch(),
            false => Ok(()),
        }
    }
}

/// Returns the error for a message that differs from the message applied before.
fn changed_message_error(name: &str, event_place: PartitionOffset, stream: &str) -> Error {
    let message = format!(
        "the message at offset {} of {name} differs from the message that was applied before",
        event_place.offset
    );
    Error::new(ErrorKind::Ledger, message).hint(another_topic_hint(name, stream))
}

/// Returns a digest of the message's key, value and time, which differs for different messages.
fn message_digest(message: &TopicMessage) -> String {
    let mut digest = StreamDigest::default();
    for part in [&message.key, &message.value] {
        digest.mix(u64::from(part.is_some()));
        digest.add(part.as_deref().unwrap_or_default());
    }
    digest.mix(message.written.unwrap_or(-1).cast_unsigned());
    digest.to_string()
}

/// Joins the events of a message into one transaction, or into a part of a transaction that the
/// format marks.
fn join_events(events: &mut [ChangeEvent], is_ordered: bool) {
    let Some((last, rest)) = events.split_last_mut() else { return };
    for event in rest {
        event.ends_transaction = false;
        event.origin.transaction.clone_from(&last.origin.transaction);
    }
    last.ends_transaction |= !is_ordered;
}

/// Returns the error for a value in no known format. Names the schema registry if one was used.
fn unknown_record_error(error: Error, value: &[u8]) -> Error {
    if value.first() != Some(&SCHEMA_REGISTRY_BYTE) {
        return error;
    }
    Error::new(ErrorKind::Format, "messages that need a schema registry are not supported").hint(
        "Let the connector write JSON: set `value.converter` and `key.converter` to \
         org.apache.kafka.connect.json.JsonConverter.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(offset: i64, value: Option<&str>) -> TopicMessage {
        TopicMessage {
            part: 0,
            offset,
            written: Some(17),
            key: Some(b"{}".to_vec()),
            value: value.map(|value| value.as_bytes().to_vec()),
            headers: Vec::new(),
        }
    }

    #[test]
    fn digests_tell_messages_apart() {
        let one = message_digest(&message(1, Some("{}")));
        assert_eq!(one, message_digest(&message(2, Some("{}"))));
        let mut later = message(1, Some("{}"));
        later.written = Some(18);
        for other in [message(1, None), message(1, Some("")), message(1, Some("{} ")), later] {
            assert_ne!(message_digest(&other), one);
        }
    }
}

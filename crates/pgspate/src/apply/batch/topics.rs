//! Messages of topics to batches, and where each partition is after them.
//!
//! A message is taken whole or not at all: what it says is one transaction. Where all comes from
//! one partition, transactions that a format marks are kept; between partitions there is no order,
//! and so none of them ends where another one has a part.

use std::time::{Duration, UNIX_EPOCH};

use super::{BatchBuilder, SourceFeed};
use crate::{Error, ErrorKind, Result};
use pgspate_events::ChangeEvent;
use pgspate_events::decode::{self, Debezium, Decode, Grouping, KeyedRecord};
use pgspate_replication::kafka::{
    Message, Offset, TopicPiece, TopicPosition, TopicSource, another_topic_hint,
};
use pgspate_replication::{Digest, SourcePosition as _};

/// How values begin that are written with a registry of schemas.
const REGISTERED: u8 = 0;

/// Decodes messages.
pub(crate) struct TopicFeed {
    builder: BatchBuilder<TopicPosition>,
    /// The stream's name.
    stream: String,
    parts: Vec<PartitionDecoder>,
    /// Kept for its room.
    events: Vec<ChangeEvent>,
}

/// A partition.
struct PartitionDecoder {
    name: String,
    topic: String,
    decoder: Option<Box<dyn Decode>>,
    /// What the last message was that is applied already, if that comes again.
    check: Option<String>,
}

impl SourceFeed<TopicSource> for TopicFeed {
    fn builder(&mut self) -> &mut BatchBuilder<TopicPosition> {
        &mut self.builder
    }

    fn take(&mut self, piece: TopicPiece) -> Result<()> {
        match piece {
            TopicPiece::Partition(partition) => {
                let (name, topic) = (partition.name(), partition.topic.clone());
                self.builder.with.names.add(name.clone());
                let check = self.builder.position.add(partition)?;
                self.parts.push(PartitionDecoder { name, topic, decoder: None, check });
                Ok(())
            }
            TopicPiece::Messages(messages) => {
                for message in &messages {
                    self.message(message)?;
                    self.builder.hand_over_if_due()?;
                }
                Ok(())
            }
            TopicPiece::Passed(passed) => self.pass(&passed),
        }
    }

    fn end(&mut self) -> Result<()> {
        self.builder.end()?;
        self.builder.position.hand_on(true);
        self.builder.hand_over()
    }
}

impl TopicFeed {
    pub(crate) fn new(builder: BatchBuilder<TopicPosition>, stream: String) -> TopicFeed {
        TopicFeed { builder, stream, parts: Vec::new(), events: Vec::new() }
    }

    fn message(&mut self, message: &Message) -> Result<()> {
        let event_place = Offset { part: message.part, offset: message.offset };
        let digest = digest(message);
        let is_ordered = self.parts.len() == 1;
        let Some(part) = self.parts.get_mut(message.part as usize) else {
            return Err(Error::new(ErrorKind::Bug, "a message of a partition that is not read"));
        };
        let is_again = self.builder.position.is_before(event_place);
        if let Some(expected) = part.check.take()
            && is_again
            && expected != digest
        {
            return Err(is_not_the_same(&part.name, event_place, &self.stream));
        }
        let mut decoder = part.decoder.take();
        let topic = std::mem::take(&mut part.topic);
        let record = KeyedRecord {
            topic: &topic,
            key: message.key.as_deref(),
            value: message.value.as_deref().filter(|value| !decode::is_nothing(value)),
            headers: &message.headers,
            is_ordered,
        };
        let mut found = std::mem::take(&mut self.events);
        found.clear();
        let decoded = self.decode_record(&record, &mut decoder, &mut found);
        let grouping = decoder.as_ref().map_or(Grouping::AsEvents, |decoder| decoder.grouping());
        let part = &mut self.parts[message.part as usize];
        (part.decoder, part.topic) = (decoder, topic);
        if is_again {
            // It is applied. What it tells of the messages to come is all that was wanted of it.
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
        builder.position.begin(event_place, count, digest);
        if let Some(written) = message.written.filter(|written| *written > 0) {
            let since = Duration::from_millis(written.unsigned_abs());
            builder.committed = UNIX_EPOCH.checked_add(since);
        }
        match grouping {
            Grouping::Opens if is_ordered => builder.open_transaction(),
            Grouping::Closes if is_ordered => builder.close_transaction(),
            _ => make_one(&mut found, is_ordered),
        }
        let line = message.value.as_deref().or(message.key.as_deref()).unwrap_or_default();
        let outcome = match decoded {
            Ok(()) if found.is_empty() => {
                builder.note(event_place);
                Ok(())
            }
            Ok(()) => builder.take(&found, line.len(), event_place),
            Err(error) => builder.take_unread(error, line, event_place),
        };
        self.events = found;
        outcome.map_err(|error| self.builder.placed(error, event_place))
    }

    fn decode_record(
        &self,
        record: &KeyedRecord<'_>,
        found: &mut Option<Box<dyn Decode>>,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        let with = &self.builder.with;
        if found.is_none() {
            let format = match (with.options.format, record.value) {
                (Some(format), _) => format,
                (None, Some(value)) => {
                    decode::sniff(value).map_err(|error| unread(error, value))?.0
                }
                // Rows of Debezium's are all whose end a key alone may tell.
                (None, None) => {
                    let mut debezium = Debezium::new(with.options.decode.debezium.clone());
                    return debezium.decode_keyed(record, &with.router, events);
                }
            };
            *found = Some(with.decoder(format));
        }
        let Some(decoder) = found else { return Ok(()) };
        let decoded = decoder.decode_keyed(record, &with.router, events);
        with.router.take_fault().map_or(decoded, Err)
    }

    /// Partitions have nothing that is wanted before these places.
    fn pass(&mut self, passed: &[(u32, i64)]) -> Result<()> {
        let builder = &mut self.builder;
        for (part, next) in passed {
            if let Some(event_place) = builder.position.pass(*part, *next) {
                builder.note(event_place);
            }
        }
        let is_idle = builder.is_between() && builder.batch.events == 0;
        if let Some(reached) = builder.position.point().filter(|_| is_idle)
            && !builder.with.watch.has_batch()
        {
            builder.with.watch.lag.note_applied(reached);
        }
        match builder.is_between() && builder.position.hand_on(false) {
            true => builder.hand_over(),
            false => Ok(()),
        }
    }
}

fn is_not_the_same(name: &str, event_place: Offset, stream: &str) -> Error {
    let message = format!("offset {} of {name} is not what was applied before", event_place.offset);
    Error::new(ErrorKind::Ledger, message).hint(another_topic_hint(name, stream))
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
fn make_one(events: &mut [ChangeEvent], is_ordered: bool) {
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
    Error::new(ErrorKind::Format, "messages that need a registry of schemas are not read").hint(
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
